"""Residual networks with two matrices in a block (depth2023 section 9).

Deep networks train as if each block were linear in its updates.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import product
from typing import Any

import autograd.numpy as anp
import numpy as np
from numpy.typing import NDArray
from sympy import Add, Expr, Function, Integral, Rational, S, Sum, Symbol

from derive.depth import CrossLayer, Scaling, cross_layer
from derive.depth.blocks import (
    BlockLimit,
    balanced,
    block_limit,
    within_blocks,
    without_silent,
)
from derive.depth.infinite import infinite_depth
from derive.errors import NotApplicable
from derive.program.networks.residual import block_program
from numerics.lowering.layer_time import lower_layer_time
from numerics.lowering.linear import lower
from numerics.solver.depth.frozen_ends import given_in_sources
from numerics.solver.depth.layer_grid import Known
from numerics.solver.depth.solve import FIRST, extrapolated, on_grids
from numerics.solver.linear.march import march
from tests.derive.once import mean_field
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.lab import Weights, gradients, moved

Array = NDArray[np.float64]

INPUTS, TARGETS, SIZE = np.array([1.0, 0.6, 0.8]), (0.9, -0.4, 0.7), 0.3
DEPTHS = (4, 8, 16)
LAYERS = 16
WIDTHS, SEEDS, BLOCKS = (50, 100), (2000, 1000), 2
STREAM = ("R_xU", "R_xV", "R_dxU", "R_dxV", "R_xu_Z", "R_dxu_Z", "R_xr_W", "R_dxr_W", "C_x", "C_dx", "f")


def _slope(step: int, f: float) -> float:
    return SIZE * (f - TARGETS[int(step)])


def _system(linearised: bool, **symbols: Symbol) -> CrossLayer:
    theory = mean_field(block_program(linearised=linearised, **symbols))
    return within_blocks(cross_layer(without_silent(theory)))


@lru_cache(maxsize=4)
def limit_of(linearised: bool) -> BlockLimit:
    """Return the derived limit, with multiplier a and rate eta."""
    a, eta = Symbol("a", positive=True), Symbol("eta", positive=True)
    return block_limit(_system(linearised, multiplier=a, rate=eta))


@lru_cache(maxsize=4)
def corrected(linearised: bool) -> dict[str, Array]:
    """Return f of the limit and its first correction."""
    found = infinite_depth(block_limit(_system(linearised)).cross)
    table = lower_layer_time(found.system)
    known: Known = {"xi": lambda t: INPUTS[t], "dloss": _slope, "ddloss": lambda t, f: SIZE}
    runs = on_grids(table, LAYERS, len(INPUTS), known=known)
    return extrapolated(LAYERS, [{n: run[n] for n in ("f", FIRST + "f")} for run in runs], ()).values


@lru_cache(maxsize=16)
def at_depth(depth: int, linearised: bool) -> Array:
    """Return f of the theory of a network with ``depth`` blocks."""
    theory = without_silent(mean_field(block_program(depth, linearised=linearised)))
    table = lower(given_in_sources(theory.at_depth(depth), "xi"))
    run = march(
        table,
        steps=len(INPUTS),
        constants={},
        data={"xi": INPUTS},
        functions={"dloss": _slope},
        wanted=(),
    )
    found: Array = np.asarray(run.scalars["f"])
    return found


def _by_square_and_product(name: str, rhs: Expr) -> bool:
    """Return whether an equation depends on a and eta through a**2 and a eta only.

    Responses to sources are measured in units of a.
    """
    a, eta, theta = Symbol("a", positive=True), Symbol("eta", positive=True), Symbol("theta")
    units = {n: Function(n) for n in ("R_xu_Z", "R_dxu_Z", "R_xr_W", "R_dxr_W")}
    for n, f in units.items():
        rhs = rhs.replace(f, lambda *x, n=n: a * Function(n + "_")(*x))
    value = rhs.subs(eta, theta / a).replace(
        lambda x: isinstance(x, Sum | Integral),
        lambda x: Add(*[_outside(y, x, a) for y in Add.make_args(x.function.expand())]),
    )
    powers = {y.as_coeff_exponent(a)[1] for y in Add.make_args(value.expand())}
    own = 1 if name in units else 0  # these have the factor a of their own
    found: bool = not value.has(eta) and all((p - own) % 2 == 0 for p in powers)
    return found


def _outside(e: Expr, of: Expr, a: Symbol) -> Expr:
    """Return a term of a sum or integral with powers of ``a`` taken out."""
    factor, power = e.as_coeff_exponent(a)
    return a**power * of.func(factor, *of.limits)


def linearise() -> Evidence:
    """Check (6), section 9.2: the derived limits of the network and of its linearisation are equal.

    The linearisation is within blocks. At finite depth both differ by a derived coefficient over L.
    """
    whole, linear = limit_of(False).limit, limit_of(True).limit
    ours, theirs = (
        {str(e.lhs.func): e.rhs for e in (*x.integrals, *x.correlations, *x.scalars)} for x in (whole, linear)
    )
    differ = [n for n in STREAM if ours[n] != theirs[n]]
    second = {str(d.lhs.func): d.order for d in whole.dropped}
    derived = corrected(False)[FIRST + "f"] - corrected(True)[FIRST + "f"]
    rows = [n * (at_depth(n, False) - at_depth(n, True)) for n in DEPTHS]
    scaled = [rows[i + 1] * 2 - rows[i] for i in range(len(rows) - 1)]
    measured = scaled[-1] + (scaled[-1] - scaled[-2]) / 3
    away = [n * (at_depth(n, False) - corrected(False)["f"]) for n in DEPTHS]
    near = [away[i + 1] * 2 - away[i] for i in range(len(away) - 1)]
    limit_gap = near[-1] + (near[-1] - near[-2]) / 3 - corrected(False)[FIRST + "f"]
    apart = [n for n in STREAM if not _by_square_and_product(n, ours[n])]
    one = at_depth(1, False) - at_depth(1, True)
    return conclude(
        "depth_blocks:linearise",
        f"The equations of the stream are the same in both limits.  L (f - f linearised) in the third step: "
        f"{', '.join(f'{x[2]:.4f}' for x in rows)} at L = {', '.join(map(str, DEPTHS))}, extrapolated "
        f"{measured[2]:.4f}, derived {derived[2]:.4f}; with one block they differ by {one[2]:.4f}.",
        agrees("equations of the stream that differ", len(differ), 0.5),
        agrees("orders of what is left out, plus 1", max(float(abs(x + 1)) for x in second.values()), 1e-12),
        agrees("coefficient of the difference: measured minus derived", measured[2] - derived[2], 0.006),
        agrees("coefficient of 1/L: measured minus derived", float(np.max(np.abs(limit_gap))), 0.03),
        agrees("equations with more than multiplier squared and multiplier times rate", len(apart), 0.5),
        contradicts("difference with one block", float(one[2]), 5e-4),
        contradicts("derived coefficient of the difference", float(derived[2]), 0.003),
    )


def trained(width: int, seeds: int, linearised: bool) -> Array:
    """Return f of networks of :data:`BLOCKS` blocks trained by descent, (network, step)."""
    rng = np.random.default_rng(width)
    share, n = BLOCKS**-0.5, width
    found = np.zeros((seeds, len(INPUTS)))
    for i in range(seeds):
        u, v = rng.normal(size=(2, n))
        start = rng.normal(size=(2, BLOCKS, n, n)) / np.sqrt(n)
        moves: Weights = (np.zeros_like(start[0]), np.zeros_like(start[1]))
        for t, xi in enumerate(INPUTS):

            def output(by: Weights, start: Array = start, xi: Any = xi, u: Array = u, v: Array = v) -> Any:
                """Return f of the updates, for a block z' w' x or its part linear in the updates."""
                x = xi * u
                for (w, z), (dw, dz) in zip(
                    start.swapaxes(0, 1), zip(by[0], by[1], strict=True), strict=True
                ):
                    if linearised:
                        form = anp.dot(z, w) + anp.dot(dz, w) + anp.dot(z, dw)
                    else:
                        form = anp.dot(z + dz, w + dw)
                    x = x + share * anp.dot(form, x)
                return anp.dot(x, v) / n

            found[i, t] = f = output(moves)
            moves = moved(moves, gradients(output, moves), -_slope(t, f))
    return found


def networks() -> Evidence:
    """Check (6), section 9: networks with two blocks, as they are and linearised, against their theories."""
    scores, lines = [], []
    for linearised in (False, True):
        (few, few_error), (many, many_error) = (
            (x.mean(axis=0), x.std(axis=0, ddof=1) / np.sqrt(len(x)))
            for x in (trained(n, k, linearised) for n, k in zip(WIDTHS, SEEDS, strict=True))
        )
        value, error = 2 * many - few, np.hypot(2 * many_error, few_error)
        theory = at_depth(BLOCKS, linearised)
        scores.append(float(np.max(np.abs((value - theory) / error))))
        lines.append(f"{value[2]:.4f}+-{error[2]:.4f} ({theory[2]:.4f})")
    return conclude(
        "depth_blocks:networks",
        f"f in the third step of networks of {BLOCKS} blocks, extrapolated in the width, and of their "
        f"theory: {lines[0]} as they are, {lines[1]} linearised within blocks.",
        agrees("worst score of the network", scores[0], 4.0),
        agrees("worst score of the linearised one", scores[1], 4.0),
    )


def parametrizations() -> Evidence:
    """Check (6) text, section 9.3: products of two updates of a block survive at alpha = 1 only.

    The grid is over (alpha, gamma_W, gamma_Z). They survive with rates that do not fall with depth, where
    features are redundant.
    """
    a, w, z = Symbol("a"), Symbol("w"), Symbol("z")
    program = block_program(alpha=a, gammas=(w, z))
    system = within_blocks(cross_layer(mean_field(program)))
    half = [Rational(Fraction(i, 4)) for i in range(5)]
    stable, together, refused = [], [], 0
    for alpha, slow, fast in product([Rational(1, 2), Rational(3, 4), S.One], half, half):
        try:
            _, orders = balanced(system, Scaling({a: alpha, w: slow, z: fast}))
        except NotApplicable:
            refused += 1
            continue
        if orders["f"] != 0 or orders["C_x"] > 0 or orders["C_h"] > 0:
            continue
        stable.append((alpha, slow, fast))
        if max(orders["R_bu_W"] - slow, orders["R_hr_Z"] - fast) >= 0:
            together.append((alpha, slow, fast))
    line = {(x, y) for x, _, y in stable} | {(x, y) for x, y, _ in stable}
    at_half = [x for x in stable if x[0] == Rational(1, 2)]
    return conclude(
        "depth_blocks:parametrizations",
        f"{len(stable)} of 75 are stable and nontrivial; updates of a block act on each other at "
        f"{', '.join(str(tuple(map(str, x))) for x in together)} alone.",
        agrees("points with interaction minus 1", len(together) - 1, 0.5),
        agrees("of these with alpha < 1", len([x for x in together if x[0] != 1]), 0.5),
        agrees(
            "all rates at alpha = 1/2 at least 1/2", len([x for x in at_half if min(x[1:]) < S.Half]), 0.5
        ),
        contradicts("stable points", len(stable), 0.5, by=2),
        contradicts("pairs of powers", len(line), 0.5, by=2),
    )
