"""Scaling laws of linear2025 on power-law data, (21) and (112) to (116), in the solved theory.

The solved theory has 10^15 modes, so that the last one is never learnt. Its local slopes still change at the
last time. The remaining change is extrapolated as a geometric series, and half of it is the error.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline
from sympy import Function, Symbol, diff, lambdify, sympify

from derive.calculus.symbols import gamma0, t
from derive.scale.rich import missing, rank_one, rich_scaling
from numerics.experiment import Experiment
from numerics.experiment.numbers import power_law
from numerics.solver import solve
from tests.derive.once import mean_field, structured
from tests.ledger.claims import claimed
from tests.ledger.claims.linear2025.scaling import beta as task_exponent
from tests.ledger.claims.linear2025.scaling import chi as time_exponent
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts

Array = NDArray[np.float64]

_k = Symbol("k", integer=True, positive=True)
_lamda, _target, _K, _v = (Function(x) for x in ("lamda", "w_star", "K", "v"))
_C_g, _R_gu = (Function(x) for x in ("C_g", "R_gu"))

CAPACITY, MODES = 2.0, 10**15
HARD, EASY = (0.25, 0.5), 1.5
TIME, POINTS, RTOL = 1e5, 10, 1e-3
MANY = 5.0
"""Errors of an extrapolated slope by which a printed one must be off."""


@dataclass(frozen=True)
class Slope:
    """Local slope at the last times, its limit, and the error of the limit."""

    last: float
    limit: float
    error: float

    @classmethod
    def of(cls, x: Array, y: Array) -> Slope:
        """Return the slope of values ``y`` at even steps in ``x``, from the last four."""
        slopes = (np.diff(y) / np.diff(x))[-3:]
        before, drift = np.diff(slopes)
        left = drift**2 / (before - drift)
        return cls(float(slopes[-1]), float(slopes[-1] + left), float(abs(left)) / 2)


@dataclass(frozen=True)
class Flow:
    """The loss and C_g^1(t,t) of the solved theory at the output times but t = 0."""

    time: Array
    loss: Array
    kernel: Array
    error: float

    @property
    def decay(self) -> Slope:
        """Minus the power of time in the loss."""
        slope = Slope.of(np.log(self.time), -np.log(self.loss))
        between = self.error / np.log(self.time[-1] / self.time[-2])
        return Slope(slope.last, slope.limit, slope.error + between)

    @property
    def growth(self) -> Slope:
        """The power of time in C_g^1(t,t), the fastest growing part of K."""
        return Slope.of(np.log(self.time), np.log(self.kernel))


def experiment(
    depth: int, task: float, gamma: float = 1.0, *, modes: int = MODES, time: float = TIME
) -> Experiment:
    """Return gradient flow on power-law data with geometric output times."""
    tables = {
        "network": {"depth": depth, "gamma0": gamma},
        "data": {"kind": "power-law", "capacity": CAPACITY, "source": task, "modes": modes},
        "training": {"rule": "flow", "time": time, "points": POINTS, "grid": "log"},
        "solver": {"rtol": RTOL},
    }
    return Experiment.from_dict(tables)


@lru_cache(maxsize=16)
def solved(depth: int, task: float, gamma: float = 1.0, modes: int = MODES, time: float = TIME) -> Flow:
    """Return the flow of the derived theory at infinite width."""
    found = solve(experiment(depth, task, gamma, modes=modes, time=time))
    kernel = np.diagonal(found.C_g.values[0])
    return Flow(
        found.time.values[1:],
        found.test_loss.values[1:],
        kernel[1:],
        float(found.attrs["error_estimate"]),
    )


def exponents() -> Evidence:
    """Check (21), (114 text), (115), (116): as printed with one hidden layer, and not with two."""
    findings: list[Finding] = []
    words = []
    for task in HARD:
        one, two = solved(1, task), solved(2, task)
        for where, printed in losses("hard", task).items():
            at = f"beta = {task}: power of the loss minus {where}"
            findings += [
                agrees(f"L = 1, {at}", one.decay.limit - printed, one.decay.error),
                contradicts(f"L = 2, {at}", two.decay.limit - printed, two.decay.error, by=MANY),
            ]
        chi = number("115", "chi", task)
        at = f"beta = {task}: 1 + power of the kernel minus (115)"
        findings += [
            agrees(f"L = 1, {at}", 1 + one.growth.limit - chi, one.growth.error),
            contradicts(f"L = 2, {at}", 1 + two.growth.limit - chi, two.growth.error, by=MANY),
            _consistency(one, 1, task),
            _consistency(two, 2, task),
        ]
        words.append(
            f"{one.decay.limit:.3f}, {two.decay.limit:.3f} +- {two.decay.error:.3f} "
            f"(printed {number('21', 'hard', task):.3f})"
        )
    for depth in (1, 2):
        decay = solved(depth, EASY).decay
        for where, printed in losses("easy", EASY).items():
            label = f"L = {depth}, beta = {EASY}: power of the loss minus {where}"
            findings.append(agrees(label, decay.limit - printed, decay.error))
    return conclude(
        "scaling_exponents:exponents",
        f"Powers of the loss at L = 1 and 2, beta = {HARD[0]}: {words[0]}; beta = {HARD[1]}: {words[1]}. "
        "On hard tasks the exponent depends on depth, on easy ones it does not.",
        *findings,
    )


def losses(kind: str, task: float) -> dict[str, float]:
    """Return the printed power of the loss, by the equation that has it."""
    return {f"({n})": number(n, kind, task) for n in ("21", "116")}


def number(equation: str, name: str, task: float) -> float:
    """Return a printed exponent at a beta."""
    return float(sympify(claimed("linear2025", equation)[name]).subs(task_exponent, task))


def _consistency(flow: Flow, depth: int, task: float) -> Finding:
    """Return the finding on (114 text): the power of the kernel for the chi of the loss.

    The loss is proportional to t^(-beta chi).
    """
    printed = sympify(claimed("linear2025", "114 text")["power"])
    at = {task_exponent: task, time_exponent: flow.decay.limit / task}
    gap = flow.growth.limit - float(printed.subs(at))
    slope = abs(float(diff(printed, time_exponent).subs(at)))
    error = flow.growth.error + slope * flow.decay.error / task
    label = f"L = {depth}, beta = {task}: power of the kernel minus 1 - beta chi"
    return agrees(label, gap, error) if depth == 1 else contradicts(label, gap, error, by=MANY)


TASK, LITTLE, STEP = 0.5, 1e-3, 1.25
"""The task on which the kernel is looked at; a small gamma0; and a ratio of two values of it."""


def kernels() -> Evidence:
    """Check (113): with one hidden layer gamma0^2 and t^(chi - 1) are right, but at different gamma0."""
    chi = sympify(claimed("linear2025", "115")["chi"])
    printed = (sympify(claimed("linear2025", "113")["K"]).subs(time_exponent, chi) - 1).as_powers_dict()
    power, growth = (float(printed[x].subs(task_exponent, TASK)) for x in (gamma0, t))
    little, less = solved(1, TASK, LITTLE), solved(1, TASK, LITTLE / STEP)
    slow = np.log((little.kernel - 1) / (less.kernel - 1)) / np.log(STEP)
    lazy = Slope.of(np.log(little.time), np.log(little.kernel - 1))
    rich, more = solved(1, TASK), solved(1, TASK, STEP)
    fast = np.log(more.kernel / rich.kernel) / np.log(STEP)
    drift = abs(float(fast[-1] - fast[-3]))
    return conclude(
        "scaling_exponents:kernels",
        f"beta = {TASK}, L = 1, C_g^1 at t = {TIME:g}: at gamma0 = {LITTLE:g} it grows by "
        f"gamma0^{slow[-1]:.3f} t^{lazy.last:.3f}, at gamma0 = 1 as gamma0^{fast[-1]:.3f} "
        f"t^{rich.growth.last:.3f}; the printed powers are {power:.3g} and {growth:.3f}.",
        agrees("gamma0 << 1: power of gamma0 minus printed", float(slow[-1]) - power, 1e-3),
        contradicts("gamma0 << 1: power of t minus printed", lazy.limit - growth, lazy.error),
        agrees("gamma0 = 1: power of t minus printed", rich.growth.limit - growth, rich.growth.error),
        contradicts("gamma0 = 1: power of gamma0 minus printed", float(fast[-1]) - power, drift),
    )


def single_modes() -> Evidence:
    """Check (112): with the K of one hidden layer each mode by itself has the loss, up to a constant."""
    flow, spectrum = solved(1, TASK), power_law(CAPACITY, TASK, MODES)
    eigen, target = spectrum.attributes["lamda"], spectrum.attributes["w_star"]
    built = {name: sympify(x) for name, x in claimed("linear2025", "112").items()}
    rate = lambdify([_lamda(_k), _K(t), _v(_k, t)], built["dv"])(eigen, 1.0, 1.0)
    kernel = lambdify([_C_g(1, t, t), _R_gu(1, t, t), gamma0], built["K"])(flow.kernel, _response(), 1.0)
    x = np.log(flow.time)
    dense = np.linspace(x[0], x[-1], 1000)
    speed = np.exp(CubicSpline(x, np.log(kernel * flow.time))(dense))  # K dt/dx is nearly a power of t
    area = CubicSpline(dense, speed).antiderivative()(x) + kernel[0] * flow.time[0]
    loss = np.array([np.sum(spectrum.counts * eigen * (target * np.exp(rate * a)) ** 2) for a in area])
    ratio = loss / flow.loss
    slope = Slope.of(x, np.log(ratio))
    reduced = rank_one(mean_field(structured(data="population", rule="flow")))
    q = rich_scaling(reduced, 1, TASK).profile_exponent
    derived = float(missing(0, 0, TASK) / missing(q, q, TASK))  # without and with the memory of a mode
    return conclude(
        "scaling_exponents:single_modes",
        f"beta = {TASK}, L = 1: the loss of (112) with K of the solved theory is {ratio[-3]:.3f}, "
        f"{ratio[-2]:.3f}, {ratio[-1]:.3f} times the solved loss at the last three times; derived for late "
        f"times {derived:.3f}.",
        agrees("ratio of the losses minus derived", ratio[-1] - derived, abs(ratio[-1] - ratio[-3])),
        agrees("power of t in the ratio of the losses", slope.limit, slope.error),
        contradicts("ratio of the losses minus 1", ratio[-1] - 1, RTOL),
    )


def from_kernel_to_loss() -> Evidence:
    """Check (114): with the chi of the solved kernel, its loss has the power of the solved loss."""
    built = sympify(claimed("linear2025", "114")["v"])
    error = lambdify([_lamda(_k), _target(_k), t, gamma0, time_exponent], built)
    times = np.geomspace(1e7, 1e10, 4)  # so late that of t and t^chi only the latter counts
    findings = []
    for task in HARD:
        data = power_law(CAPACITY, task, MODES**2)
        eigen, target = data.attributes["lamda"], data.attributes["w_star"]
        for depth in (1, 2):
            flow = solved(depth, task)
            chi = 1 + flow.growth.limit
            left = [np.sum(data.counts * eigen * error(eigen, target, x, 1.0, chi) ** 2) for x in times]
            found = Slope.of(np.log(times), -np.log(left))
            label = f"L = {depth}, beta = {task}: power of the loss by (114) minus solved"
            spread = found.error + flow.decay.error + task * flow.growth.error
            findings.append(agrees(label, found.limit - flow.decay.limit, spread))
            label = f"L = {depth}, beta = {task}: power with chi = 1 minus solved"
            findings.append(contradicts(label, task - flow.decay.limit, spread))
    start = mean_field(structured(data="population", rule="flow")).equation("v").rhs.subs(t, 0)
    begins = float(built.subs(t, 0) != start)
    return conclude(
        "scaling_exponents:from_kernel_to_loss",
        "With chi from the growth of C_g^1 at either depth, the loss of (114) falls as that of the theory.",
        agrees("(114) at t = 0 is not the derived error", begins, 0.5),
        *findings,
    )


def _response() -> float:
    """Return R_gu^1(t,t) of one hidden layer, from descent in a short step, per unit of time."""
    rate = 1e-3
    tables = {
        "network": {"depth": 1, "gamma0": 1.0},
        "data": {"kind": "power-law", "capacity": CAPACITY, "source": TASK, "modes": 100},
        "training": {"rule": "gd", "learning_rate": rate, "steps": 1},
    }
    return float(solve(Experiment.from_dict(tables)).R_gu.values[0, 1, 0]) / rate


__all__ = ["Flow", "Slope", "exponents", "from_kernel_to_loss", "kernels", "single_modes", "solved"]
