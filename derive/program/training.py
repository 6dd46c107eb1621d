"""How weights remember: training rules, and the low-rank updates they accumulate.

A trained weight is ``W(t) = m(t) W(0) + sum_{s<t} k(t, s) U(s)``.  The rule supplies the memory ``m`` and
``k`` and says whether steps are counted or time flows; the program supplies the update ``U``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from sympy import Expr, Function, Integral, S, Sum, Symbol, sympify

from derive.program.expressions import GaussianMatrix, GaussianVector, IndexRange


class TrainingRule(Protocol):
    """What the engine needs to know of a training rule."""

    @property
    def discrete(self) -> bool:
        """True when time counts steps."""
        ...

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """``(m(t), k(t, s))``: what is left of W(0), and the weight of the update made at ``past``."""
        ...


@dataclass(frozen=True)
class GradientDescent:
    """Exact discrete steps ``W(t+1) = W(t) + rate U(t)``.

    >>> from sympy.abc import t, s
    >>> GradientDescent(Symbol("eta")).memory(t, s)
    (1, eta)
    """

    rate: Expr
    discrete: bool = True

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """Nothing is forgotten and every update counts alike."""
        return S.One, sympify(self.rate)


@dataclass(frozen=True)
class GradientFlow:
    """Continuous time, ``dW/dt = rate U(t)``; ``rate`` is 1 for the summed loss, 1/P for its mean."""

    rate: Expr = S.One
    discrete: bool = False

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """As for descent; the sum over steps has become an integral."""
        return S.One, sympify(self.rate)


@dataclass(frozen=True)
class Multistep:
    """A linear multistep integrator of the flow: the update of step s enters W(t) with weight ``w(t, s)``.

    Every explicit linear multistep method (Euler, Adams-Bashforth of any order, on any time grid) is of
    this form, so a discretised flow is itself a program with an exact mean-field theory.
    """

    rate: Expr = S.One
    weight: str = "w"
    discrete: bool = True

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """The weight stays a symbol ``w(t, s)``; numerics supplies its table."""
        return S.One, self.rate * Function(self.weight)(time, past)


def accumulate(
    rule: TrainingRule, integrand: Expr, past: Symbol, now: Expr, *, inclusive: bool = False
) -> Expr:
    """Sum (or integrate) over past times ``past`` < ``now``; ``inclusive`` adds ``past = now``."""
    if rule.discrete:
        return Sum(integrand, (past, 0, now if inclusive else now - 1))
    return Integral(integrand, (past, 0, now))


@dataclass(frozen=True)
class Outer:
    """The update ``U = sum coefficient * left right^T / N``: ``U v = coefficient * left * (right . v) / N``.

    The inner product over N is the ratio |C|/N of the columns times the mean ``<right v>``; on given
    populations it is the data's kernel.  ``left`` lives on the rows and ``right`` on the columns.  Written
    at the current time ``t``.
    """

    coefficient: Expr
    left: Expr
    right: Expr
    over: tuple[IndexRange, ...] = ()


@dataclass(frozen=True)
class Along:
    """The update ``U = sum coefficient * vector`` of a trained vector."""

    coefficient: Expr
    vector: Expr
    over: tuple[IndexRange, ...] = ()


@dataclass(frozen=True)
class TrainedMatrix:
    """A weight matrix: Gaussian at first, then moved by ``update`` as ``rule`` says."""

    initial: GaussianMatrix
    update: Outer
    rule: TrainingRule

    @property
    def name(self) -> str:
        """The name by which products refer to the matrix."""
        return self.initial.name


@dataclass(frozen=True)
class TrainedVector:
    """A trained vector parameter (a readout, a bias)."""

    initial: GaussianVector
    update: Along
    rule: TrainingRule

    @property
    def name(self) -> str:
        """The name by which definitions refer to the vector."""
        return self.initial.name


Rule = Any
