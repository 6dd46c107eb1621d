"""Checks of depth2023: deep residual networks with frozen ends, as finite networks and at infinite depth."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from sympy import Derivative, Expr, Function, Lambda, Rational, Symbol, cos, sin, sqrt
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import L, ell, t
from derive.depth import (
    Scaling,
    cross_layer,
    ends_apart,
    gamma_c_recursion,
    layer_time,
    rescale,
)
from derive.depth.nonlinear import effective, with_activation
from derive.program.networks.residual import nonlinear_program
from derive.theory import Term, Theory
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from tests.derive.once import depth_program, mean_field
from tests.ledger.claims import claimed, corrected
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.evaluated import Functions, told_apart, valued
from tests.ledger.evidence.explicit import number, written_out
from tests.ledger.evidence.layers import (
    Array,
    Known,
    Solution,
    extrapolated,
    solve_layer_time,
    solve_layers,
)

SOURCE = "depth2023"
DEPTH, STEPS = 4, 3
DEPTHS = (4, 8, 16, 32)
WIDTHS = ((128, 800), (256, 400))
INPUTS, TARGETS = (1.0, 0.6, 0.8), (0.9, -0.4, 0.7)
Z = 4.0


def _xi(step: Any) -> Any:
    return np.asarray(INPUTS)[np.asarray(step, dtype=int)]


def _slope(step: Any, f: Any) -> Any:
    return f - np.asarray(TARGETS)[np.asarray(step, dtype=int)]


KNOWN: Known = {"xi": _xi, "dloss": _slope}


@lru_cache(maxsize=1)
def networks() -> tuple[dict[str, Array], dict[str, Array]]:
    """Return f, C_x and C_dx of networks, extrapolated in the inverse width, with standard errors."""
    found = []
    for width, seeds in WIDTHS:
        runs = simulate_program(
            depth_program(DEPTH), width=width, steps=STEPS - 1, seeds=seeds, values={}, data=KNOWN, seed=width
        )
        parts = []
        for part in ("mean", "stderr"):
            values = {"f": getattr(runs["f"], part)}
            for name in ("C_x", "C_dx"):
                whole = getattr(runs[name], part)
                values[name] = np.stack([whole[:, :, i, i] for i in range(DEPTH + 1)])
            parts.append(values)
        found.append(parts)
    (few, few_error), (many, many_error) = found
    return (
        {n: 2 * many[n] - few[n] for n in few},
        {n: np.hypot(2 * many_error[n], few_error[n]) for n in few},
    )


def recursions() -> Evidence:
    """Check Program 1, Def. 4.1, Lemma 4.3, (8), (9): recursions, the theory evaluated directly, networks."""
    theory = mean_field(depth_program())
    found = solve_layers(gamma_c_recursion(theory), DEPTH, STEPS, {}, KNOWN)
    direct = evaluate(mean_field(depth_program(DEPTH)), steps=STEPS, data=KNOWN)
    mean, error = networks()
    shifted = max(
        float(np.max(np.abs(found["C_0"][k] - direct.value("C_x", k)))) for k in range(1, DEPTH + 1)
    )
    gaps, scores = [found["f"] - direct.value("f")], [(mean["f"] - found["f"]) / error["f"]]
    for label in range(1, DEPTH + 1):  # label k: the covariances of the sources of W^k
        for name, ours, layer in (("C_x", "C_0", label - 1), ("C_dx", "C_1", label)):
            gaps.append(found[ours][label] - direct.value(name, layer))
            scores.append((mean[name][layer] - found[ours][label]) / error[name][layer])
    worst = max(float(np.nanmax(np.abs(x))) for x in scores)
    same = max(float(np.max(np.abs(x))) for x in gaps)
    return conclude(
        "depth:recursions",
        f"Recursions and direct evaluation agree to {same:.0e}; worst score of {WIDTHS[0][1]} and "
        f"{WIDTHS[1][1]} networks of {DEPTH} layers over {STEPS} steps: {worst:.1f}.",
        agrees("recursions minus direct evaluation", same, 1e-11),
        agrees("worst score of networks", worst, Z),
        contradicts("C_{t,s,0} of label l taken at layer l and not at l - 1", shifted, 1e-11),
    )


@lru_cache(maxsize=1)
def _deep() -> tuple[list[Solution], list[Solution]]:
    cross = gamma_c_recursion(mean_field(depth_program()))
    finite = [solve_layers(cross, d, 2, {}, KNOWN) for d in DEPTHS]
    limit = layer_time(cross)
    return finite, [solve_layer_time(limit, n, 2, {}, KNOWN) for n in DEPTHS]


def infinite_depth() -> Evidence:
    """Check Prop. 4.2, 4.4, Thm. C.3: finite depth approaches the integral equations like 1/L.

    The output f_1 after the first step is computed by hand from (11).
    """
    finite, grids = _deep()
    value = extrapolated([x["f"] for x in grids])
    gaps = [float(np.max(np.abs(x["f"] - value))) for x in finite]
    left = float(np.max(np.abs(extrapolated([x["f"] for x in finite]) - value)))
    rates = np.log2(np.array(gaps[:-1]) / np.array(gaps[1:]))
    order = 2 * rates[-1] - rates[-2]
    hats = [float(np.max(np.abs(x["Gamma_01"]))) / np.sqrt(d) for x, d in zip(finite, DEPTHS, strict=True)]
    falls = np.log2(np.array(hats[1:]) / np.array(hats[:-1]))
    power = 2 * falls[-1] - falls[-2]
    first = TARGETS[0] * INPUTS[0] * INPUTS[1]  # -chi_0 xi_0 xi_1 at f_0 = 0
    return conclude(
        "depth:infinite_depth",
        f"Distance of f to the limit at L = 4, 8, 16, 32: {', '.join(f'{x:.4f}' for x in gaps)}; {left:.1e} "
        f"after extrapolation; order {order:.2f}.",
        agrees("order of 1/L minus 1", order - 1.0, 0.1),
        agrees("extrapolated depth minus limit, over the distance at L = 32", left / gaps[-1], 0.1),
        agrees("f_1 minus -chi_0 xi_0 xi_1 e", value[1] - np.e * first, 3e-4),
        contradicts("without Gamma in the bracket, e - 1 for e", value[1] - (np.e - 1) * first, 3e-4),
        agrees("power of L of a coefficient of hats plus 1/2", power + 0.5, 0.02),
        contradicts("the same, were it of order one", power, 0.02),
    )


def output_kernel() -> Evidence:
    """Check Thm. 4.1: the kernel of x^L is C_{t,s,0}(1).

    C_{t,s,1}(1) is the kernel of the gradient, chi_t chi_s.
    """
    _, grids = _deep()
    forward, backward, chi = (
        extrapolated([x[n] if n == "chi" else x[n][-1] for x in grids]) for n in ("C_0", "C_1", "chi")
    )
    stream = np.exp(1.0) * INPUTS[0] ** 2
    functions: Functions = {
        f"C_{a}": lambda tau, t, s, x=x: {1: x}[tau][t, s] for a, x in enumerate((forward, backward))
    }
    kernels = [
        valued(built(SOURCE, "Thm. 4.1")["kernel"], {"t": 0, "s": 0}, functions)
        for built in (claimed, corrected)
    ]
    return conclude(
        "depth:output_kernel",
        f"At t = s = 0 <x^L|x^L> is e xi^2 = {stream:.4f}; C_0(1) = {forward[0, 0]:.4f}, C_1(1) = "
        f"{backward[0, 0]:.4f} = chi^2.",
        agrees("C_1(1) minus chi chi", float(np.max(np.abs(backward - np.outer(chi, chi)))), 1e-3),
        *told_apart("(Thm. 4.1): kernel at the first step", kernels, stream, 1e-3),
    )


def _printed_step(powers: Mapping[str, Rational], found: Solution) -> dict[tuple[str, int], float]:
    """Return b, c, f and the norms by layer from the recursions of (11), started at ``c(1)``."""
    printed = claimed(SOURCE, "11")
    at = {x: powers[x.name] for e in printed.values() for x in e.free_symbols if x.name in powers}
    known: dict[tuple[str, int], float] = {
        ("b", 1): 0.0,
        ("c", 1): -float(found["C_x"][0, 1, 0]),
        ("chi", 0): float(found["chi"][0]),
        ("C_x", 0): float(found["C_x"][0, 0, 0]),
    }

    def value(name: str, layer: int) -> float:
        e = written_out(printed[name].subs(at), {L: DEPTH, ell: layer})
        return number(e, lambda a: known[str(a.func), int(a.args[0])]).real

    for layer in range(2, DEPTH + 1):
        known["c", layer] = value("c", layer)
        known["b", layer] = value("b", layer - 1)
    return known | {("f", 1): value("f", 0)} | {("norm", n): value("norm", n) for n in range(DEPTH + 1)}


def first_step() -> Evidence:
    """Check 11: b, c and f_1 from the printed recursions against the derived theory, for two scalings."""
    gaps, sizes, others = [], [], []
    for a, g in ((Rational(1, 2), Rational(1, 2)), (Rational(3, 4), Rational(1, 4))):
        theory = mean_field(depth_program(alpha=a, gamma=g))
        found = solve_layers(ends_apart(cross_layer(theory)), DEPTH, 2, {}, KNOWN)
        step, layers = _printed_step({"alpha": a, "gamma": g}, found), range(1, DEPTH + 1)
        moved = [float(found["C_x"][m - 1, 1, 0]) for m in layers]
        gaps += [step["b", m] - float(found["R_xr"][m - 1, m - 1, 1, 0]) * DEPTH ** float(g) for m in layers]
        gaps += [step["c", m] + x for m, x in zip(layers, moved, strict=True)]
        others.append(max(abs(step["c", 1] + x) for x in moved))
        gaps.append(step["f", 1] - float(found["f"][1]))
        gaps += [step["norm", m] - float(found["C_x"][m, 0, 0]) for m in range(DEPTH + 1)]
        linear = (1 + float(DEPTH) ** (-2 * float(a)) * np.arange(DEPTH + 1)) * INPUTS[0] ** 2
        others.append(float(np.max(np.abs(found["C_x"][:, 0, 0] - linear))))
        sizes.append(step["f", 1])
    worst = max(abs(x) for x in gaps)
    return conclude(
        "depth:first_step",
        f"b, c, f_1 and <x_0^l|x_0^l> as printed agree with the recursions to {worst:.0e} at alpha = 1/2 "
        f"and 3/4 (f_1 = {sizes[0]:.4f}, {sizes[1]:.4f}).",
        agrees("worst difference", worst, 1e-12),
        contradicts("c that stays, and a stream that grows linearly: nearest", min(others), 1e-12),
    )


def other_scalings() -> Evidence:
    """Check D.3: above alpha = 1/2 finite networks approach the ODE.

    Below, or away from alpha + gamma = 1, there is no limit.
    """
    half, small = Rational(1, 2), Rational(1, 4)
    theory = mean_field(depth_program(alpha=half + small, gamma=half - small))
    cross = gamma_c_recursion(theory)
    limit = layer_time(cross)
    grids = [solve_layer_time(limit, n, 2, {}, KNOWN) for n in (8, 16, 32, 64)]
    value = extrapolated([x["f"] for x in grids])
    gaps = [float(np.max(np.abs(solve_layers(cross, d, 2, {}, KNOWN)["f"] - value))) for d in (4, 16, 64)]
    order = float(np.log(gaps[1] / gaps[2]) / np.log(4))
    a, g, e = Symbol("a"), Symbol("g"), Symbol("epsilon", positive=True)
    whole = gamma_c_recursion(mean_field(depth_program(alpha=a, gamma=g)))
    gone = layer_time(whole, Scaling({a: half + e, g: half - e})).vanishing
    refused = 0
    for wrong in ({a: half - e, g: half + e}, {a: half, g: half - e}):
        try:
            layer_time(whole, Scaling(wrong))
        except ValueError:
            refused += 1
    return conclude(
        "depth:other_scalings",
        f"At alpha = 3/4 f is {', '.join(f'{x:.3f}' for x in gaps)} from the ODE at L = 4, 16, 64 (order "
        f"{order:.2f}; L^(1 - 2 alpha) is expected); all Gamma between layers vanish above 1/2.",
        agrees("order minus 2 alpha - 1", order - 0.5, 0.1),
        agrees("families of Gamma that vanish minus 4", len(gone) - 4, 0.5),
        agrees("scalings without a limit that are refused, minus 2", refused - 2, 0.5),
    )


def update_size() -> Evidence:
    """Check 2, 3: A_L at width one from the printed formula against a step taken, and its growth with L."""
    rng = np.random.default_rng(1)
    depth, eta, target, scale = 6, 1e-4, 0.7, 1.7
    W, x0 = rng.normal(size=depth), 0.9

    def output(w: Array) -> float:
        return float(np.prod(1 + w / np.sqrt(len(w))) * x0)

    factors = 1 + W / np.sqrt(depth)
    M = np.array([np.prod(np.delete(factors, i)) for i in range(depth)])
    G = (scale * output(W) - target) * scale * M * x0 / np.sqrt(depth)
    A = float(np.sum(M * G * x0))
    moved = (output(W - eta * G) - output(W)) / (-eta / np.sqrt(depth))
    exact = output(W - G)
    numbers = {"V": scale, "x0": x0, "xL": output(W), "y": target, "L": depth}
    claim, true = (built(SOURCE, "3") for built in (claimed, corrected))
    taus = [valued(x["tau"], numbers, {}) * x0 * float(M @ M) / depth for x in (claim, true)]
    moves = float(np.sum(M * G)) * x0 / np.sqrt(depth)  # what the step takes off x^L at first order
    printed, right = (
        x0
        * prod(
            valued(
                x["factor"], {**numbers, "ell": k, "W": W[k]}, {"M": lambda L, layer: {depth: M}[L][layer]}
            )
            for k in range(depth)
        )
        for x in (claim, true)
    )
    sizes: dict[str, list[float]] = {"sgd": [], "adam": []}
    for many in (64, 256):
        w = rng.normal(size=(4000, many)) / np.sqrt(many)
        m = np.prod(1 + w, axis=1)[:, None] / (1 + w)
        error = np.prod(1 + w, axis=1)[:, None] - target
        sizes["sgd"].append(float(np.median((np.sum(m * error * m, axis=1) / np.sqrt(many)) ** 2)))
        sizes["adam"].append(float(np.median(np.sum(m * np.sign(error * m), axis=1) ** 2)))
    powers = {n: float(np.log(b / a) / np.log(4)) for n, (a, b) in sizes.items()}
    return conclude(
        "depth:update_size",
        f"A_L grows like L^{powers['sgd']:.2f} (SGD) and L^{powers['adam']:.2f} (signs), in the square.  "
        f"With V = {scale}, (3) needs tau = (V x^L - y) V x^0: the step gives {exact:.4f}, print "
        f"{printed:.4f}.",
        agrees("first order in eta minus A_L, relative", moved / A - 1.0, 1e-3),
        agrees("exponent for SGD minus 1", powers["sgd"] - 1.0, 0.15),
        agrees("exponent for signs minus 2", powers["adam"] - 2.0, 0.15),
        *told_apart("(3), x^L after the step", (printed, right), exact, 1e-12),
        *told_apart("(3), tau by the move of x^L", taus, moves, 1e-12),
    )


# -- the nonlinear limit -------------------------------------------------------------------------------------

SLOPES = (-0.6, 1.0)
CURVED: Known = {
    "xi": lambda step: 1.0 + 0 * np.asarray(step),
    "dloss": lambda step, f: np.asarray(SLOPES)[np.asarray(step, dtype=int)] + 0 * f,
}
"""Losses that are linear in f: what is measured in the second step does not hang on f."""
CURVED_WIDTH, CURVED_RUNS = 128, {8: 120, 16: 80, 32: 60}
_z = Symbol("z")


def activation(z: Expr) -> Expr:
    """Return a bounded activation, neither even nor odd, whose Gaussian averages have closed forms.

    The averages of its derivatives differ from each other.
    """
    return sin(z) + cos(z) / 2


def as_printed(theory: Theory) -> Theory:
    """Return Def. E.1: the backward bracket is <MS(phi') phi'> Gamma - <phi' phi'> C, for s < t only."""
    mean, pair = Function("M_1"), Function("V_11")

    def printed(term: Term) -> Term | None:
        names = {str(a.func) for a in term.expr.atoms(AppliedUndef)}
        if names & {"V_22", "V_02", "V_13", "M_2"}:
            return None
        if "R_dxu" not in names:
            return term
        total = term.expr.replace(pair, lambda *i: pair(*i) - mean(*i[:2]) * mean(i[0], i[2]))
        ((index, lower, _),) = total.limits
        return term.with_expression(total.func(total.function, (index, lower, t - 1)))

    rows = []
    for e in theory.equations:
        if e.name == "dx":
            e = replace(e, terms=tuple(y for x in e.terms if (y := printed(x)) is not None))
        rows.append(e)
    second = theory.order_parameter("M_2")
    body = second.definition.replace(Derivative, lambda f, over: Derivative(f, over[0]))
    first = replace(second, symbol=mean(ell, t), definition=body)
    return replace(theory, equations=tuple(rows), order_parameters=(*theory.order_parameters, first))


def at_infinite_depth(theory: Theory) -> Array:
    """Return f, <dx^0 x_0^0>, <dx^0 dx^0>, <dx^0 dx_0^0> at the second step."""
    limit = layer_time(rescale(cross_layer(with_activation(theory, activation)), 1 / sqrt(L)))
    rows = []
    for nodes in (8, 16, 32, 64):
        x = solve_layer_time(limit, nodes, 2, {}, CURVED)
        rows.append(np.array([x["f"][1], x["R_dxU"][0, 1], x["C_dx"][0, 1, 1], x["C_dx"][0, 1, 0]]))
    return extrapolated(rows)


def in_networks(depth: int, width: int, runs: int, seed: int) -> tuple[Array, Array]:
    """Return the same four numbers in networks, and their standard errors."""
    found = simulate_program(
        nonlinear_program(depth),
        width=width,
        steps=1,
        seeds=runs,
        values={"phi": Lambda(_z, activation(_z))},
        data=CURVED,
        wanted={"C_dx": Function("dx")(ell, t), "cross": (Function("dx")(ell, t), Function("x")(ell, t))},
        seed=seed,
    )
    places = (("f", (1,)), ("cross", (1, 0, 0, 0)), ("C_dx", (1, 1, 0, 0)), ("C_dx", (1, 0, 0, 0)))
    means = np.array([found[name].mean[at] for name, at in places])
    return means, np.array([found[name].stderr[at] for name, at in places])


def nonlinear() -> Evidence:
    """Check Def. E.1: the derived limit, the printed one, and networks that get deeper."""
    theory = effective(mean_field(nonlinear_program()))
    derived, printed = at_infinite_depth(theory), at_infinite_depth(as_printed(theory))
    rows = [in_networks(d, CURVED_WIDTH, runs, d) for d, runs in CURVED_RUNS.items()]
    value = extrapolated([mean for mean, _ in rows])
    weights = extrapolated([x for x in np.eye(len(rows))])
    error = np.sqrt(sum((w * e) ** 2 for w, (_, e) in zip(weights, rows, strict=True)))
    right, off = np.abs(value - derived) / error, np.abs(value - printed) / error

    def listed(x: Array) -> str:
        return ", ".join(f"{v:.3f}" for v in x)

    return conclude(
        "depth:nonlinear",
        "f, <dx^0 x_0^0>, <dx^0 dx^0>, <dx^0 dx_0^0> in the second step, networks extrapolated in depth: "
        f"{', '.join(f'{v:.3f} +- {e:.3f}' for v, e in zip(value, error, strict=True))}; derived "
        f"{listed(derived)}; printed {listed(printed)}.",
        agrees("worst score, derived", float(np.max(right)), Z),
        contradicts("worst score, printed", float(np.max(off)), 1.0),
    )
