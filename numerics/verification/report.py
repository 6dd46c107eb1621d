"""What a verification says: what was verified, and a row per check, with the value, what it should be and how
far off it may be.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from derive.linear.form import LinearForm
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem

EPS = float(np.finfo(np.float64).eps)

LEVEL = 1e-3
"""How often a right theory would fail a comparison with what scatters."""


@dataclass(frozen=True)
class Check:
    """One row: `observed` passes if it is within `allowed` of `expected`, in the same units.

    `error` is the standard error of a Monte-Carlo estimate, None for everything else; `basis` says in a few
    words where `allowed` (or `error`) comes from. `upper` rows only bound the observed value from above.

    >>> Check("identities", "H is symmetric", 1e-16, 0.0, 1e-13, "rounding").passed
    True
    >>> Check("expansion", "exponent", float("nan"), 4.0, 0.2, "fit").passed
    False
    """

    group: str
    name: str
    observed: float
    expected: float
    allowed: float
    basis: str
    error: float | None = None
    upper: bool = False

    @property
    def passed(self) -> bool:
        """Whether the observed value is close enough; a NaN never is."""
        difference = self.observed - self.expected
        return bool((difference if self.upper else abs(difference)) <= self.allowed)

    @property
    def cells(self) -> tuple[str, str, str, str, str]:
        """As words: ok or FAIL, the name, what was observed (with its error), expected and allowed."""
        expected, allowed = _number(self.expected), f"{self.allowed:.2g}"
        if self.upper:
            expected, allowed = f"< {self.expected + self.allowed:.3g}", ""
        observed = _number(self.observed)
        if self.error is not None:
            observed += f" +- {self.error:.1e}" if self.error < 1e-4 else f" +- {self.error:.2g}"
        return "ok" if self.passed else "FAIL", self.name, observed, expected, allowed

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN: what is not finite becomes null."""
        fields = {**asdict(self), "passed": self.passed}
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in fields.items()
        }


@dataclass(frozen=True)
class Report:
    """All checks of one experiment, the equations they were about and the folder that was written."""

    title: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    equations: str = ""
    folder: Path | None = None
    wall_time_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether every check passed; a report without checks has shown nothing."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    def table(self) -> str:
        """Aligned text under 110 columns, the verdict first; a row ends with the basis of what is allowed."""
        lines = [self.title, self.verdict, ""]
        head = f"{'':<4} {'':<38} {'observed':>19} {'expected':>11} {'allowed':>8}"
        for group in dict.fromkeys(check.group for check in self.checks):
            rows = [check for check in self.checks if check.group == group]
            lines += [group + head[len(group) :], *(_row(check) for check in rows), ""]
        return "\n".join([*lines, *self.notes]).rstrip()

    __str__ = table

    def _repr_html_(self) -> str:
        """The verdict and the table, in a notebook."""
        from numerics.verification.webpage import fragment

        return fragment(self)

    @property
    def verdict(self) -> str:
        """How many checks passed, or which failed."""
        if not self.checks:
            return "FAILED: nothing was checked"
        count, time = len(self.checks), f" in {self.wall_time_s:.0f} s" if self.wall_time_s else ""
        if self.passed:
            return f"all {count} checks passed{time}"
        return f"FAILED: {len(self.failed)} of {count} checks{time}: " + _listed(
            check.name for check in self.failed
        )


def _row(check: Check) -> str:
    verdict, name, observed, expected, allowed = check.cells
    return f"{verdict:<4} {name:<38} {observed:>19} {expected:>11} {allowed:>8}  {check.basis}".rstrip()


def _number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if value == 0 or (value == round(value) and abs(value) < 1e6):
        return f"{value:.0f}"
    if abs(value) < 1e-4:
        return f"{value:.2e}" if abs(value) > 1e-6 else f"{value:.0e}"
    return f"{value:.5g}" if abs(value) < 1e6 else f"{value:.4g}"


def _listed(names: Iterable[str], limit: int = 3) -> str:
    every = list(names)
    return "; ".join(every[:limit]) + (f"; and {len(every) - limit} more" if len(every) > limit else "")


# -- what is verified, in a line ---------------------------------------------------------------------------


def title(source: Problem | Experiment) -> str:
    """The network, its data and its training, with all numbers that are not at their defaults; of a program
    its name and its numbers.

    >>> from numerics.experiment import Experiment
    >>> data = {"kind": "isotropic", "sample_ratio": 2.0, "noise": 0.1}
    >>> training = {"learning_rate": 0.1, "steps": 5}
    >>> print(title(Experiment.from_dict({"network": {"depth": 2}, "data": data, "training": training})))
    deep linear network: L = 2 hidden layers, gamma0 = 1, infinitely wide
    isotropic data: P/D = 2, noise 0.1; 5 steps of gradient descent at rate 0.1
    """
    problem = Problem.of(source)
    experiment = problem.experiment
    if experiment is None:
        numbers = ", ".join(f"{k} = {v:g}" for k, v in problem.numbers.items())
        clock = "time" if problem.flow else "step"
        return f"{problem.program.name}: {numbers}\nup to {clock} {problem.times[-1]:g}"
    apart = "\n" if experiment.spec.kind == "power-law" else "; "
    data = apart.join([_data(experiment), _training(experiment)])
    return f"{kind(problem)} network: {', '.join(_network(experiment))}\n{data}"


def kind(problem: Problem) -> str:
    """What kind of network it is by its activation; of a program its name."""
    if problem.experiment is None:
        return problem.program.name
    return "deep linear" if isinstance(problem.linear, LinearForm) else problem.experiment.network.activation


def _network(experiment: Experiment) -> list[str]:
    network = experiment.network
    words = [f"L = {experiment.depth} hidden layers", f"gamma0 = {network.gamma0:g}"]
    words += ["biases"] if network.bias else []
    words += [f"{network.outputs} outputs"] if network.outputs > 1 else []
    words += [] if network.branch is None else [f"branches {network.branch:g}"]
    words += [] if network.init_variance == 1.0 else [f"variances {_list(network.init_variance)}"]
    words += [] if network.relative_widths is None else [f"widths N times {_list(network.relative_widths)}"]
    if experiment.spec.kind == "isotropic":
        wide = network.width_ratio is None
        words += ["infinitely wide"] if wide else [f"N/D = {_list(network.width_ratio)}"]
    if experiment.spec.kind == "power-law":
        words += ["infinitely wide"] if network.width is None else [f"N = {network.width}"]
    return words + (["NTK scaling"] if network.parametrization == "ntk" else [])


def _data(experiment: Experiment) -> str:
    data = experiment.data
    if experiment.spec.kind == "fixed" or data is None:
        held = experiment.held_out
        words = "" if held is None else f" and {len(held)} test points"
        return f"P = {len(experiment.targets)} samples{words}"
    noise = f", noise {data.noise:g}" if data.noise else ""
    if experiment.spec.kind == "power-law":
        size = "the population" if data.batch is None else f"batches of {data.batch}"
        law = f"{data.modes} modes, capacity {data.capacity:g}, source {data.source:g}"
        return f"power-law data: {law}; {size}{noise}"
    size = "the population"
    if data.sample_ratio is not None:
        size = f"P/D = {data.sample_ratio:g}"
    if data.batch_ratio is not None:
        size = f"new batches, B/D = {data.batch_ratio:g}"
    return f"isotropic data: {size}{noise}"


def _training(experiment: Experiment) -> str:
    training = experiment.training
    words = [f"{training.steps} steps of gradient descent at rate {training.learning_rate or 0:g}"]
    if training.rule == "flow":
        words = [f"gradient flow up to time {training.time:g}"]
    words += [f"decay {training.weight_decay:g}"] if training.weight_decay else []
    words += [f"momentum {training.momentum:g}"] if training.momentum else []
    words += [f"temperature {training.temperature:g}"] if training.temperature else []
    return ", ".join(words + (["centred"] if experiment.spec.centered else []))


def _list(value: object) -> str:
    return ", ".join(f"{x:g}" for x in value) if isinstance(value, list) else f"{value:g}"
