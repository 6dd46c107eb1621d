"""Derived laws of the rich regime (:mod:`derive.scale.rich`) in the solved theory and in print.

linear2025 prints (21) and (113) to (116). At gamma0 = 30 the regime begins early. Beyond one hidden layer the
law has one number that is not derived, kappa, which is the same for all times.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sympy import Rational, lambdify

from derive.calculus.symbols import L, gamma0
from derive.scale.modes import beta, capacity, lazy_modes
from derive.scale.modes import time as t
from derive.scale.rich import RankOne, RichScaling, kappa, rank_one, rich_scaling
from derive.theory import Theory
from numerics.experiment import Experiment
from numerics.solver import solve
from tests.derive.once import mean_field, structured
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.scaling_exponents import losses

Array = NDArray[np.float64]

CAPACITY, MODES = 2, 10**15
DEPTHS, HARD = (1, 2, 3, 4), ("3/10", "1/2", "7/10")
SHALLOW, EASY = (1, 2, 3), "3/2"
"""Four layers on easy tasks take minutes, and say the same."""
GAMMA, TIME, POINTS, RTOL = 30.0, 1e6, 9, 1e-2
EXACT = 2.0
"""kappa of one hidden layer, which obeys the reduced equations at all times."""
CLOSE, MANY = 0.02, 5.0
"""How close slopes must be to the derived exponent, and by how many errors a printed one must be off."""


@dataclass(frozen=True)
class Flow:
    """The solved theory at the output times but t = 0: four decades."""

    time: Array
    loss: Array
    kernel: Array
    error: float

    @property
    def slopes(self) -> tuple[Array, Array, float]:
        """Times, minus slopes over two output times, and their error by that of the loss."""
        x, y = np.log(self.time), np.log(self.loss)
        width = x[2:] - x[:-2]
        return self.time[1:-1], (y[:-2] - y[2:]) / width, 2 * self.error / float(width.min())


@lru_cache(maxsize=32)
def solved(depth: int, task: str, gamma: float = GAMMA, time: float = TIME) -> Flow:
    """Return gradient flow of the derived theory at infinite width."""
    tables = {
        "network": {"depth": depth, "gamma0": gamma},
        "data": {
            "kind": "power-law",
            "capacity": float(CAPACITY),
            "source": float(Rational(task)),
            "modes": MODES,
        },
        "training": {"rule": "flow", "time": time, "points": POINTS, "grid": "log"},
        "solver": {"rtol": RTOL},
    }
    found = solve(Experiment.from_dict(tables))
    kernel = np.diagonal(found.C_g.values[0])[1:]
    return Flow(
        found.time.values[1:], found.test_loss.values[1:], kernel, float(found.attrs["error_estimate"])
    )


@lru_cache(maxsize=1)
def theory() -> Theory:
    """Return the theory of flow on the population's loss, with structured data."""
    return mean_field(structured(data="population", rule="flow"))


@lru_cache(maxsize=1)
def reduced() -> RankOne:
    """Return the theory with kernels of rank one."""
    return rank_one(theory())


@lru_cache(maxsize=32)
def law(depth: int, task: str) -> RichScaling:
    """Return the derived law."""
    return rich_scaling(reduced(), depth, task, CAPACITY)


def predicted(rule: RichScaling, gamma: float, at: Array, start: float, what: str = "corrected") -> Array:
    """Return the loss or the slope with its first corrections; ``start`` is kappa."""
    curve = lambdify((t, gamma0, kappa), getattr(rule, what)(start=kappa), "mpmath")
    return np.array([float(curve(y, gamma, start)) for y in at])


def _size(rule: RichScaling, gamma: float, at: Array, start: float) -> Array:
    """Return the sum of the sizes of the corrections."""
    sizes = [lambdify((t, gamma0, kappa), c.size, "mpmath") for c in rule.corrections]
    return np.array([sum(abs(float(f(y, gamma, start))) for f in sizes) for y in at])


def _start(rule: RichScaling, flow: Flow, gamma: float) -> float:
    """Return kappa from the losses at all times; the corrected law is linear in it.

    The times have weights for which the neglected term, the square of the corrections, counts least.
    """
    without, unit = (predicted(rule, gamma, flow.time, x) for x in (0.0, 1.0))
    each = (flow.loss - without) / (unit - without)
    doubt = (_size(rule, gamma, flow.time, 2.0) ** 2 + flow.error) / np.abs(unit / without - 1)
    return float(np.sum(each / doubt**2) / np.sum(1 / doubt**2))


def slopes() -> Evidence:
    """Check (21), (116): four decades of the derived exponent at every depth, with its drift."""
    return _slopes("slopes", DEPTHS, HARD)


def two_layers() -> Evidence:
    """Check (21), (116): four decades of the derived exponent for two hidden layers and beta = 1/2."""
    return _slopes("two_layers", (2,), ("1/2",))


def _slopes(name: str, depths: tuple[int, ...], tasks: tuple[str, ...]) -> Evidence:
    findings: list[Finding] = []
    words = []
    for task in tasks:
        for depth in depths:
            flow, rule = solved(depth, task), law(depth, task)
            at, found, error = flow.slopes
            exponent = float(rule.exponent)
            start = EXACT if depth == 1 else _start(rule, flow, GAMMA)
            where = f"L = {depth}, beta = {float(Rational(task))}"
            worst = float(np.abs(found - exponent).max())
            findings.append(agrees(f"{where}: slopes minus derived exponent, worst", worst, CLOSE))
            drift = predicted(rule, GAMMA, at, start, "slope")
            second = _size(rule, GAMMA, at, start) ** 2
            k = int(np.argmax(np.abs(found - drift) / (second + error)))
            label = f"{where}: slopes minus those with first corrections, worst"
            findings.append(agrees(label, float(found[k] - drift[k]), float(second[k] + error)))
            for eq, printed in losses("hard", float(Rational(task))).items():
                gap = float(found[-1]) - printed
                label = f"{where}: last slope minus {eq}"
                findings.append(
                    agrees(label, gap, CLOSE) if depth == 1 else contradicts(label, gap, error, by=MANY)
                )
            words.append(f"{where}: {found[0]:.4f} to {found[-1]:.4f} ({exponent:.4f}), kappa {start:.2f}")
    return conclude(
        f"rich_regime:{name}",
        f"gamma0 = {GAMMA:g}, slopes from t = {TIME / 1e4:g} to {TIME:g} (derived): {'; '.join(words)}.",
        *findings,
    )


def easy_tasks() -> Evidence:
    """Check (21), (116), easy tasks: beta at each depth, and the final kernel of balance and target."""
    findings: list[Finding] = []
    words = []
    for depth in SHALLOW:
        flow, rule = solved(depth, EASY), law(depth, EASY)
        _, found, error = flow.slopes
        where = f"L = {depth}, beta = {float(Rational(EASY))}"
        findings.append(
            agrees(f"{where}: last slope minus beta", float(found[-1] - rule.exponent), 1e-3 + error)
        )
        final = float(rule.kernel.subs(gamma0, GAMMA))
        first = final ** (1 / depth)  # sigma^2, beside which the start is of order one
        ratio = float(flow.kernel[-1] / final)
        findings.append(agrees(f"{where}: final kernel over derived minus 1", ratio - 1, 3 / first))
        start = _start(rule, flow, GAMMA)
        findings.append(agrees(f"{where}: kappa minus 2", start - 2, 1.0))
        words.append(f"{where}: {ratio:.4f}, kappa {start:.2f}")
    return conclude(
        "rich_regime:easy_tasks",
        f"gamma0 = {GAMMA:g}: C_g^1 at t = {TIME:g} over its derived end, {'; '.join(words)}.",
        *findings,
    )


SMALL = (0.1, 0.05)


def crossover() -> Evidence:
    """Check (21), (113): the time of the change from the lazy to the rich power, at two depths."""
    task, findings, words = "1/2", [], []
    for depth in (1, 2):
        rule = law(depth, task)
        lazy = lazy_modes(theory()).loss().expr.subs({L: depth, beta: Rational(task), capacity: CAPACITY})
        meeting = rule.crossover(lazy)
        middle = (float(rule.exponent) + float(Rational(task))) / 2
        times, shares = [], []
        for gamma in SMALL:
            meets = float(meeting.subs(gamma0, gamma))
            flow = solved(depth, task, gamma, 100 * meets)
            at, found, error = flow.slopes
            times.append(float(np.exp(np.interp(middle, found, np.log(at)))))
            shares.append(times[-1] / meets)
            where = f"L = {depth}, gamma0 = {gamma}"
            findings += [
                Finding(f"{where}: first slope", float(found[0]), error, found[0] + error < middle),
                Finding(f"{where}: last slope", float(found[-1]), error, found[-1] - error > middle),
            ]
        power = np.log(times[0] / times[1]) / np.log(SMALL[0] / SMALL[1])
        derived = float((gamma0 * meeting.diff(gamma0) / meeting).subs(gamma0, 1))
        findings.append(agrees(f"L = {depth}: power of gamma0 minus derived", power - derived, 0.02))
        words.append(f"L = {depth}: gamma0^{power:.3f} ({derived:.3g}), {shares[0]:.2f} and {shares[1]:.2f}")
    return conclude(
        "rich_regime:crossover",
        "beta = 0.5: the time at which the slope is half way, in powers of gamma0 (derived), and in units of "
        f"the time at which the two laws meet, {'; '.join(words)}.",
        *findings,
    )


__all__ = ["Flow", "crossover", "easy_tasks", "slopes", "solved", "two_layers"]
