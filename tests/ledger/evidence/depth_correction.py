"""First correction at finite depth: derived coefficients against solved networks, for both papers.

The differences of layers are compared too.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from numerics.experiment import Experiment
from numerics.solver import solve
from numerics.solver.depth.frozen_ends import (
    exact_power,
    frozen_ends_correction,
    solve_frozen_ends,
    solve_frozen_ends_correction,
)
from numerics.solver.depth.solve import (
    FIRST,
    DepthCorrection,
    LayerDistances,
    layer_distances,
    solve_depth_correction,
)
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts

Array = NDArray[np.float64]

INPUTS, TARGETS = (1.0, 0.6, 0.8), (0.9, -0.4, 0.7)
DEPTHS = (8, 16, 32)
BRANCH, RATE, STEPS = 0.8, 0.03, 4


def _slope(step: int, f: float) -> float:
    return f - TARGETS[step]


def _curvature(step: int, f: float) -> float:
    return 1.0


def in_powers(depths: tuple[int, ...], rows: list[Array], power: float) -> list[Array]:
    """Return the first coefficients of a series in ``L**power``, as many as there are depths."""
    x = np.array(depths, dtype=float) ** power
    matrix = np.vander(x, increasing=True)
    flat = np.stack([np.ravel(r) for r in rows])
    return [a.reshape(np.shape(rows[0])) for a in np.linalg.solve(matrix, flat)]


@lru_cache(maxsize=8)
def frozen(alpha: float) -> DepthCorrection:
    """Return the theory of Program 1 at (alpha, 1 - alpha), to first order in the inverse depth."""
    return solve_frozen_ends_correction(INPUTS, _slope, _curvature, layers=16, alpha=alpha, gamma=1.0 - alpha)


def _differences(alpha: float, name: str, layer: float | None = None) -> tuple[Array, list[Array]]:
    """Return the correction, and ``(X_L - X)/L**order`` of each finite depth."""
    found = frozen(alpha)

    def at(a: Array, cells: int) -> Array:
        return a if layer is None else a[round(layer * cells)]

    base = at(found.limit[name], len(found.limit.nodes) - 1)
    rows = []
    for depth in DEPTHS:
        value = solve_frozen_ends(INPUTS, _slope, depth=depth, alpha=alpha, gamma=1.0 - alpha)[name]
        rows.append((at(value, depth) - base) * depth**-found.order)
    return at(found.first[name], len(found.limit.nodes) - 1), rows


def frozen_ends() -> Evidence:
    """Check Prop. 4.4, C.2, Thm. C.3: the error of the limit at alpha = gamma = 1/2 is derived over L."""
    gaps, sizes, lines = [], [], []
    for name, layer in (("f", None), ("C_x", 0.5), ("C_dx", 0.5)):
        derived, rows = _differences(0.5, name, layer)
        measured = in_powers(DEPTHS, rows, -1.0)[0]
        size = float(np.max(np.abs(derived)))
        gaps.append(float(np.max(np.abs(measured - derived))) / size)
        sizes.append(float(np.max(np.abs(rows[-1] - derived))) / size)
        lines.append(f"{name} {gaps[-1]:.1e}")
    derived, _ = _differences(0.5, "C_x", 0.5)
    exact = -np.exp(0.5) * 0.5 / 2 * INPUTS[0] ** 2  # (1 + 1/L)^(L tau) at tau = 1/2
    return conclude(
        "depth_correction:frozen_ends",
        f"L (X_L - X) at L = {', '.join(map(str, DEPTHS))}, extrapolated, minus the derived coefficient, "
        f"relative: {', '.join(lines)}; order {frozen(0.5).order:g}.",
        agrees("worst relative difference", max(gaps), 0.02),
        agrees("order plus 1", frozen(0.5).order + 1.0, 1e-12),
        agrees("correction of <x x> at the start minus -tau exp(tau)/2", float(derived[0, 0]) - exact, 1e-4),
        contradicts("without extrapolation, relative", max(sizes), 0.02, by=2),
    )


def residual() -> Evidence:
    """Check 17 text of linear2025: deep residual networks converge to the limit at a derived rate.

    The coefficient of the first correction is derived.
    """

    def at(depth: int | str) -> Experiment:
        branch = BRANCH if depth == "L" else BRANCH / np.sqrt(float(depth))
        return Experiment.from_dict(
            {
                "network": {"depth": depth, "branch": branch, "gamma0": 0.8, "width_ratio": 2.0},
                "data": {"kind": "isotropic"},
                "training": {"learning_rate": RATE, "steps": STEPS},
            }
        )

    found = solve_depth_correction(at("L"))
    limit, derived = found.limit["test_loss"], found.first["test_loss"]
    rows = [(solve(at(n)).test_loss.values - limit) * n for n in DEPTHS]
    measured = in_powers(DEPTHS, rows, -1.0)[0]
    gap = float(np.max(np.abs(measured - derived)))
    plain = float(np.max(np.abs(limit - solve(at(DEPTHS[-1])).test_loss.values)))
    better = float(
        np.max(np.abs(found.at_depth(DEPTHS[-1], "test_loss") - solve(at(DEPTHS[-1])).test_loss.values))
    )
    return conclude(
        "depth_correction:residual",
        f"Coefficient of 1/L in the loss over {STEPS} steps: derived {_listed(derived)}, from L = "
        f"{', '.join(map(str, DEPTHS))} {_listed(measured)}.  At L = {DEPTHS[-1]} the limit is off by "
        f"{plain:.1e}, to first order by {better:.1e}.",
        agrees("worst difference of the coefficients", gap, 2e-3),
        agrees("error at first order over that of the limit", better / plain, 0.05),
        contradicts("largest coefficient", float(np.max(np.abs(derived))), 2e-3),
    )


def after_one_step(depth: int, alpha: float) -> float:
    """Return the output after the first step, from the recursions of (11) and the derived ones (equal)."""
    share, total = depth ** (-2 * alpha), 0.0
    c = -INPUTS[0] * INPUTS[1]
    for _ in range(depth):
        total += share * total + c  # b is share times what there is so far
        c *= 1 + share
    return total / depth * _slope(0, 0.0)


def between_the_ends() -> Evidence:
    """Check D.3: above alpha = 1/2 the error of the ODE is L**(1 - 2 alpha) with derived coefficients.

    At alpha = 1 the discretisation into layers contributes the same order.
    """
    gaps, orders, lines = [], [], []
    for alpha in (0.6, 0.75, 1.0):
        if alpha == 0.6:  # a series in L**(-1/5): depths of which only the first step is known
            found, deep = frozen(alpha), tuple(2**k for k in range(10, 22, 2))
            derived = found.first["f"][:2]
            rows = [np.array([0.0, after_one_step(n, alpha) - found.limit["f"][1]]) for n in deep]
            rows = [r * n**-found.order for r, n in zip(rows, deep, strict=True)]
            measured = in_powers(deep, rows, found.order)[0]
        else:
            derived, rows = _differences(alpha, "f")
            measured = in_powers(DEPTHS, rows, frozen(alpha).order)[0]
        gaps.append(float(np.max(np.abs(measured - derived))))
        orders.append(frozen(alpha).order - (1 - 2 * alpha))
        lines.append(f"alpha = {alpha}: {_listed(derived[1:])} and {_listed(measured[1:])}")
    exact = exact_power(0.75)
    steps = [x for x in frozen_ends_correction(exact, 1 - exact).equations if x.startswith("slope_")]
    at_one = frozen_ends_correction(exact_power(1.0), exact_power(0.0)).coefficient("f", 1).rhs
    ode, other = frozen(0.75).first["f"], frozen(1.0).first["f"]
    return conclude(
        "depth_correction:between_the_ends",
        f"(f_L - f) L**(2 alpha - 1), derived and extrapolated from L = {', '.join(map(str, DEPTHS))}: "
        f"{'; '.join(lines)}.",
        agrees("worst difference at alpha = 0.6", gaps[0], 0.03),
        agrees("worst difference at alpha = 0.75", gaps[1], 0.02),
        agrees("worst difference at alpha = 1", gaps[2], 0.02),
        agrees("orders minus 1 - 2 alpha", float(np.max(np.abs(orders))), 1e-12),
        agrees("derivatives by layer time needed below alpha = 1", len(steps), 0.5),
        contradicts("coefficients at 0.75 minus those at 1", float(np.max(np.abs(ode - other))), 0.005),
        agrees(
            "the correction of f is that of the last layer", float(str(at_one) != f"{FIRST}R_xV(1, t)"), 0.5
        ),
    )


def _listed(x: Array) -> str:
    return ", ".join(f"{v:.3f}" for v in x)


@lru_cache(maxsize=4)
def distances(alpha: float) -> LayerDistances:
    """Return the distances between layers of Program 1."""
    exact = exact_power(alpha)
    return layer_distances(
        frozen_ends_correction(exact, 1 - exact).limit,
        "C_x",
        layers=128,
        steps=len(INPUTS),
        constants={},
        known={"xi": lambda step: np.asarray(INPUTS)[step], "dloss": _slope},
    )


def diversity() -> Evidence:
    """Check Def. 7.6, Claims 7.4, 7.5: kappa is 1/2 at alpha = 1/2, at every step, and 0 above."""
    rough, node = distances(0.5), 8
    ahead, slopes = rough.slopes(node)
    kappa = 1.0 - (2 * slopes[:, 0] - slopes[:, 1])  # the next power of the distance taken out
    near = rough.squares[:, node, node + 1 : node + 3] / ahead[:2]
    kink = 2 * near[:, 0] - near[:, 1]
    own = frozen(0.5).limit
    middle = own["C_x"][len(own.nodes) // 4]  # the same layer time
    gap = kink - np.diagonal(middle)
    smooth = [1.0 - distances(a).slopes(node)[1][1:, 0] for a in (0.6, 0.75, 1.0)]
    worst = float(np.max(np.abs(smooth)))
    return conclude(
        "depth_correction:diversity",
        f"At alpha = 1/2, kappa from local slopes at t = 0, 1, 2: {_listed(kappa)}; squared distance over "
        f"distance at tau = 1/4: {_listed(kink)}, and C_x(tau, t, t) = {_listed(np.diagonal(middle))}.  At "
        f"alpha = 0.6, 0.75, 1 kappa is at most {worst:.2f} at distance 1/32.",
        agrees("kappa minus 1/2, worst of three steps", float(np.max(np.abs(kappa - 0.5))), 0.03),
        agrees("roughness minus C_x(tau, t, t), worst of three steps", float(np.max(np.abs(gap))), 0.01),
        agrees("derived kappa minus 1/2", float(rough.derived.exponent) - 0.5, 1e-12),
        agrees("derived kappa above alpha = 1/2", float(distances(0.75).derived.exponent), 1e-12),
        agrees("kappa above alpha = 1/2", worst, 0.1),
        contradicts("kappa at 1/2 minus kappa above", 0.5 - worst, 0.04),
    )
