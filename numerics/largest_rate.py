"""The largest learning rate of an experiment from the derived closed forms, beside what can be measured.

The regime is that of the file: training is rich where the rich rate is the smaller one.
:func:`numerics.sweep.largest_rate` measures the same in the solved theory.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sympy import Expr, sympify

from derive.program import L, gamma0
from derive.program.networks.random_data import nu
from derive.scale.largest_rate import LargestRate, largest_rate
from derive.scale.lazy import lazy_kernel
from derive.theory import Theory
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.numbers import structure
from numerics.experiment.theory import theory_of


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
    """The largest rate of ``experiment``, which `dmft limits largest-rate` must serve.

    ``regime`` is "rich" or "lazy"; that of the file if it is not given, which needs a depth that is a number.
    Raises :class:`~numerics.errors.SpecError` for another, and for a network without one finite width.

    >>> from numerics.experiment import Experiment
    >>> network = {"depth": 2, "gamma0": 300.0, "width_ratio": 4.0, "parametrization": "ntk"}
    >>> tables = {"network": network, "data": {"kind": "isotropic"}, "training": {"center": True}}
    >>> found = rate_limit(Experiment.from_dict(tables))
    >>> print(found.form.regime, found.form.exponent, round(found.exponent, 3), f"{found.rate:.6f}")
    rich L/(L + 1) 0.667 0.000836
    """
    width = experiment.network.width_ratio
    if not isinstance(width, float | int):
        raise SpecError("network.width_ratio", width, "is not one width over features", "a positive number")
    if regime not in (None, "rich", "lazy"):
        raise SpecError("--regime", regime, "is no regime", '"rich" or "lazy"')
    if experiment.symbolic:
        if regime is None:
            raise SpecError("network.depth", "L", "leaves the regime open", "a number, or --regime rich|lazy")
        return RateLimit(_forms(_text(experiment))[regime], None, None, None, None)
    numbers = {L: experiment.depth, gamma0: sympify(experiment.network.gamma0), nu: sympify(width)}

    def number(e: Expr | None) -> float | None:
        return None if e is None else float(sympify(e).subs(numbers))

    forms = _forms(_text(experiment))
    leading = {k: number(x.prefactor * nu**x.exponent) for k, x in forms.items()}
    own = regime or min(leading, key=lambda k: leading[k] or 0.0)
    form, rate = forms[own], leading[own]
    if own == "lazy":
        rate = 2 / lazy_kernel(_theory(_text(experiment)), experiment.depth).edge({nu: width})
    return RateLimit(form, number(form.exponent), rate, number(form.crossover), number(form.neglected))


def _text(experiment: Experiment) -> str:
    return structure(experiment.replace({"network.depth": "L"})).text


@lru_cache(maxsize=8)
def _theory(text: str) -> Theory:
    return theory_of(Experiment.without_arrays(tomllib.loads(text)))


@lru_cache(maxsize=8)
def _forms(text: str) -> dict[str, LargestRate]:
    return {regime: largest_rate(_theory(text), regime) for regime in ("rich", "lazy")}


__all__ = ["RateLimit", "rate_limit"]
