"""The first step of an experiment on isotropic data: growth of the loss, and the rate above which it rises.

The closed form is derived; numbers are put in exactly, so rounding comes last.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from sympy import Expr, Rational, nsimplify, sympify

from derive.calculus.recurrences import q
from derive.errors import NotApplicable
from derive.program import Program, eta
from derive.scale import FirstStep, first_step, smallest_rate
from derive.theory import Theory
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.numbers import layered_numbers, numbers_of
from numerics.experiment.refusals import served
from numerics.experiment.theory import Layered, Reduction, derived, program_of, reductions_of

WANTS = {"data.kind": "isotropic", "training.rule": ("gd", "sgd"), "network.outputs": 1}
"""What has a first step in closed form, as far as keys go."""


@dataclass(frozen=True)
class EarlyTime:
    """``growth_factor`` is ``C_v(1)/C_v(0)``, a number; ``formula`` the same in symbols.

    ``critical_learning_rate`` is the smallest rate at which the first step leaves the loss where it is;
    ``critical_formula`` the same in symbols, if it is a rational function.  Numbers are None if the depth is
    a symbol, or if there is no such rate.
    """

    formula: Expr
    critical_formula: Expr | None
    growth_factor: float | None
    critical_learning_rate: float | None

    def to_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        critical = None if self.critical_formula is None else str(self.critical_formula)
        return {
            "growth_factor": self.growth_factor,
            "critical_learning_rate": self.critical_learning_rate,
            "formula": str(self.formula),
            "critical_formula": critical,
        }


def early_time(experiment: Experiment) -> EarlyTime:
    """The first step of ``experiment``, on isotropic data.

    The formula is one for every depth ``L`` where the layers are alike: one width, no branch, plain descent;
    otherwise it is that of the file's depth.  Raises :class:`~numerics.errors.SpecError` naming the key where
    the first step has no closed form.

    >>> from numerics.experiment import Experiment
    >>> found = early_time(Experiment.from_dict({
    ...     "network": {"depth": 2, "width_ratio": 2.0}, "data": {"kind": "isotropic", "batch_ratio": 1.0},
    ...     "training": {"rule": "sgd", "learning_rate": 0.1, "center": True}}))
    >>> print(found.growth_factor, found.critical_learning_rate, found.critical_formula)
    0.63 0.2608695652173913 12*alpha_B*nu/((alpha_B + 1)*(2*L**2 + 6*L*nu + L + 6*nu))
    """
    one = served(experiment, _first_step, "the first step in closed form", WANTS)
    theory = None if experiment.symbolic else _theory(experiment)
    step = one if theory is None or not _alike(experiment) else _every_depth(experiment)
    formula = step.growth_factor if step.root is None else step.growth_factor.xreplace({q: step.root})
    critical = _critical(step)
    if theory is None:
        return EarlyTime(formula, critical, None, None)
    numbers = {k: Rational(str(v)) for k, v in numbers_of(experiment).items()}
    if eta not in numbers:
        raise SpecError("training.learning_rate", None, "is missing; growth needs it", "a positive number")

    def exact(e: Expr) -> Expr:
        return nsimplify(sympify(e).subs({k: v for k, v in numbers.items() if k != eta}), rational=True)

    growth = first_step(theory.map(exact)).growth_factor
    return EarlyTime(formula, critical, float(growth.subs(eta, numbers[eta])), smallest_rate(growth, eta))


def _alike(experiment: Experiment) -> bool:
    """Are its layers alike, so that all depths have one formula?"""
    network, training = experiment.network, experiment.training
    if network.branch or isinstance(network.width_ratio, list):
        return False
    return not (training.weight_decay or training.momentum or training.temperature)


def _every_depth(experiment: Experiment) -> FirstStep:
    try:
        return _first_step(experiment.replace({"network.depth": "L"}))
    except NotApplicable as reason:
        raise SpecError("network.depth", "L", f"has no closed form: {reason}", "a number") from None


def _theory(experiment: Experiment) -> Theory:
    return derived(*_parts(experiment))


def _parts(experiment: Experiment) -> tuple[Program, tuple[Reduction, ...], Layered]:
    return program_of(experiment), reductions_of(experiment.spec), layered_numbers(experiment.spec)


def _first_step(experiment: Experiment) -> FirstStep:
    if experiment.spec.kind != "isotropic":
        raise NotApplicable("the first step is that of isotropic data")
    return _of_program(*_parts(experiment))


@lru_cache(maxsize=16)
def _of_program(program: Program, reductions: tuple[Reduction, ...], layered: Layered) -> FirstStep:
    return first_step(derived(program, reductions, layered))


def _critical(step: FirstStep) -> Expr | None:
    try:
        return step.critical_learning_rate
    except NotApplicable:
        return None


__all__ = ["EarlyTime", "early_time"]
