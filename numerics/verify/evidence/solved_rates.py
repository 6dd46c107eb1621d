"""Largest stable learning rates of linear2025 appendix B, bisected in the solved theory of isotropic data."""

from __future__ import annotations

import numpy as np

from derive.ledger import find
from derive.program.expressions import L
from numerics.early_time import early_time
from numerics.experiment import Experiment
from numerics.sweep import largest_rate
from numerics.verify.evidence.base import Evidence, Finding, agrees, conclude, contradicts

DEPTHS = (1, 2, 4)
RATIOS = (4.0, 8.0, 16.0, 32.0, 64.0)
RICH, LAZY = 300.0, 1e-3
STEPS, RTOL = 40, 0.02
MANY = 4.0
"""Standard errors of a fitted power: of five rates, each on an edge of stability that is not smooth."""


def largest_rates() -> Evidence:
    """(70): in the theory the power of nu is 0 in mean-field scaling; in NTK scaling it is the printed one if
    L counts layers of weights, of which there is one more than hidden layers.
    """
    printed = find("linear2025", "70").build()
    findings: list[Finding] = []
    words = []
    for depth in DEPTHS:
        flat, flat_error = power(depth, RICH, "mean-field", RATIOS)
        rises, error = power(depth, RICH, "ntk", RATIOS)
        as_printed, of_weights = (float(printed["ntk"].subs(L, n)) for n in (depth, depth + 1))
        findings += [
            agrees(f"L = {depth}, mean field: power of nu", flat, MANY * flat_error),
            agrees(
                f"L = {depth}, ntk: power of nu minus the printed one at L + 1",
                rises - of_weights,
                MANY * error,
            ),
        ]
        if depth < DEPTHS[-1]:  # 3/4 and 4/5 are too near to one another
            label = f"L = {depth}, ntk: power of nu minus the printed one"
            findings.append(contradicts(label, rises - as_printed, error, by=MANY))
        words.append(f"{rises:.3f} +- {error:.3f}")
    return conclude(
        "solved_rates:largest_rates",
        f"Powers of nu in the largest rate of the solved theory at gamma0 = {RICH:g}, NTK, L = 1, 2, 4: "
        + ", ".join(words)
        + "; the printed power with L + 1 for L is right.",
        *findings,
    )


def lazy_rates() -> Evidence:
    """Text after (70): at gamma0 << 1 the largest rate tends from below to that at which the first step of
    infinitely wide layers raises the loss, in both scalings.
    """
    findings = []
    for depth in DEPTHS:
        mean_field, ntk = (
            [_largest(depth, LAZY, scaling, nu, rise=False) for nu in (256.0, 1024.0)]
            for scaling in ("mean-field", "ntk")
        )
        wide = early_time(_experiment(depth, LAZY, "mean-field", None)).critical_learning_rate
        assert wide is not None
        gaps = [1 - rate / wide for rate in mean_field]
        findings += [
            agrees(f"L = {depth}: ntk over mean field, minus 1", ntk[1] / mean_field[1] - 1, 2 * RTOL),
            agrees(
                f"L = {depth}: how far it is from the critical rate {wide:.3g} at nu = 1024",
                gaps[1],
                0.75 * gaps[0],
            ),
        ]
    return conclude(
        "solved_rates:lazy_rates",
        f"At gamma0 = {LAZY:g} the largest rate of the solved theory is the same in both scalings and tends "
        "to the critical rate of the first step of wide layers as nu grows.",
        *findings,
    )


def power(depth: int, gamma0: float, scaling: str, ratios: tuple[float, ...]) -> tuple[float, float]:
    """The fitted power of nu in the largest rate, and its standard error from the residuals."""
    x = np.log(ratios)
    y = np.log([_largest(depth, gamma0, scaling, nu) for nu in ratios])
    slope, start = np.polyfit(x, y, 1)
    left = y - start - slope * x
    spread = max(float(np.sum(left**2)) / (len(x) - 2), (RTOL / 2) ** 2)  # no better than the bisection
    return float(slope), float(np.sqrt(spread / np.sum((x - x.mean()) ** 2)))


def _largest(depth: int, gamma0: float, scaling: str, nu: float, *, rise: bool = True) -> float:
    return largest_rate(_experiment(depth, gamma0, scaling, nu), rtol=RTOL, rise=rise).value


def _experiment(depth: int, gamma0: float, scaling: str, nu: float | None) -> Experiment:
    network: dict[str, object] = {"depth": depth, "gamma0": gamma0, "width_ratio": nu}
    if nu is not None:
        network["parametrization"] = scaling
    tables = {
        "network": {k: v for k, v in network.items() if v is not None},
        "data": {"kind": "isotropic"},
        "training": {"learning_rate": 1e-2, "steps": STEPS, "center": True},
    }
    return Experiment.from_dict(tables)
