"""The largest learning rate of an experiment from the derived closed forms, beside what can be measured.

The regime is that of the file: training is rich where the rich rate is the smaller one.
:func:`numerics.analysis.sweep.largest_rate` measures the same in the solved theory.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sympy import Expr, sympify

from derive.errors import NotApplicable
from derive.program import L, Program, gamma0
from derive.program.networks.random_data import nu
from derive.scale.largest_rate import LargestRate, largest_rate
from derive.scale.lazy import lazy_kernel
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.refusals import served
from numerics.experiment.theory import Reduction, derived, program_of, reductions_of

WANTS = {
    "data.kind": "isotropic",
    "data.sample_ratio": None,
    "data.batch_ratio": None,
    "data.noise": 0.0,
    "network.outputs": 1,
    "network.branch": None,
    "training.rule": "gd",
    "training.center": True,
    "training.weight_decay": 0.0,
    "training.momentum": 0.0,
    "training.temperature": 0.0,
}
"""What has a largest rate in closed form, as far as keys go."""


@dataclass(frozen=True)
class RateLimit:
    """``form`` is the closed form, the rest its numbers, None if the depth is a symbol.

    ``rate`` of lazy networks is 2 over the largest eigenvalue of the kernel at the file's width, which the
    closed form has to first order only; ``neglected`` is what the form leaves out, beside one.
    """

    form: LargestRate
    exponent: float | None
    rate: float | None
    crossover: float | None
    neglected: float | None

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        crossover = None if self.form.crossover is None else str(self.form.crossover)
        return {
            "regime": self.form.regime,
            "exponent": self.exponent,
            "exponent_formula": str(self.form.exponent),
            "formula": str(self.form.rate),
            "rate": self.rate,
            "crossover": self.crossover,
            "crossover_formula": crossover,
            "neglected": self.neglected,
            "assumptions": list(self.form.conditions()),
        }


def rate_limit(experiment: Experiment, regime: str | None = None) -> RateLimit:
    """The largest rate of ``experiment``, on the population of isotropic data.

    ``regime`` is "rich" or "lazy"; that of the file if it is not given, which needs a depth that is a number.
    Raises :class:`~numerics.errors.SpecError` for another, for a network without one finite width, and naming
    the key where there is no closed form.

    >>> from numerics.experiment import Experiment
    >>> network = {"depth": 2, "gamma0": 300.0, "width_ratio": 4.0, "parametrization": "ntk"}
    >>> tables = {"network": network, "data": {"kind": "isotropic"}, "training": {"center": True}}
    >>> found = rate_limit(Experiment.from_dict(tables))
    >>> print(found.form.regime, found.form.exponent, round(found.exponent, 3), f"{found.rate:.6f}")
    rich L/(L + 1) 0.667 0.000836
    """
    if regime not in (None, "rich", "lazy"):
        raise SpecError("--regime", regime, "is no regime", '"rich" or "lazy"')
    width = experiment.network.width_ratio
    if isinstance(width, list):
        raise SpecError("network.width_ratio", width, "is not one width over features", "a positive number")
    every = served(experiment, _deep_forms, "the largest rate in closed form", WANTS)
    if width is None:
        raise SpecError(
            "network.width_ratio", None, "is missing: layers are infinitely wide", "a positive number"
        )
    if experiment.symbolic:
        if regime is None:
            raise SpecError("network.depth", "L", "leaves the regime open", "a number, or --regime rich|lazy")
        return RateLimit(every[regime], None, None, None, None)
    numbers = {L: experiment.depth, gamma0: sympify(experiment.network.gamma0), nu: sympify(width)}

    def number(e: Expr | None) -> float | None:
        return None if e is None else float(sympify(e).subs(numbers))

    leading = {k: number(x.prefactor * nu**x.exponent) for k, x in every.items()}
    own = regime or min(leading, key=lambda k: leading[k] or 0.0)
    form, rate = every[own], leading[own]
    if own == "lazy":
        rate = 2 / lazy_kernel(derived(*_deep(experiment)), experiment.depth).edge({nu: width})
    return RateLimit(form, number(form.exponent), rate, number(form.crossover), number(form.neglected))


def _deep(experiment: Experiment) -> tuple[Program, tuple[Reduction, ...]]:
    """The program with the depth as a symbol, and what is done to its theory."""
    return program_of(experiment, L), reductions_of(experiment.spec)


def _deep_forms(experiment: Experiment) -> dict[str, LargestRate]:
    if experiment.spec.kind != "isotropic":
        raise NotApplicable("the closed form is that of isotropic data")
    return _forms(*_deep(experiment))


@lru_cache(maxsize=8)
def _forms(program: Program, reductions: tuple[Reduction, ...]) -> dict[str, LargestRate]:
    theory = derived(program, reductions)
    return {regime: largest_rate(theory, regime) for regime in ("rich", "lazy")}


__all__ = ["RateLimit", "rate_limit"]
