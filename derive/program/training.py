"""Trained weights: the low-rank updates that they accumulate, and the scale of both.

A trained weight starts Gaussian and moves by its update as its rule says (:mod:`derive.program.rules`).  The
program supplies the update, a sum of outer products for a matrix and of vectors for a vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Expr, S

from derive.calculus.intervals import NONZERO, POSITIVE, REAL
from derive.calculus.symbols import IndexRange, expression, gamma0
from derive.errors import ProgramError
from derive.program.rules import TrainingRule
from derive.program.words import GaussianMatrix, GaussianVector, Rewritable, numbered


@dataclass(frozen=True)
class Outer(Rewritable):
    """The update ``U = sum coefficient * left right^T / N``: ``U v = coefficient * left * (right . v) / N``.

    The inner product over N is the ratio |C|/N of the columns times the mean ``<right v>``; on given
    populations it is the data's kernel.  ``left`` lives on the rows and ``right`` on the columns.  Written
    at the current time ``t``.

    ``gradient`` is the coefficient with which the gradient of an output is ``left right^T / N``, where it is
    not the update's own over its error and the square of the program's scale (layers of different widths).
    ``more`` are further terms, of a matrix that is used in several places.  An entrywise rule
    (:class:`~derive.program.entrywise.Entrywise`) takes the update over ``outside`` for the gradient of an
    entry, and multiplies its own step by it.
    """

    coefficient: Expr
    left: Expr
    right: Expr
    over: tuple[IndexRange, ...] = ()
    gradient: Expr | None = None
    more: tuple[Outer, ...] = ()
    outside: Expr = S.One

    def __post_init__(self) -> None:
        _take_numbers(self, "left", "right")

    @property
    def terms(self) -> tuple[Outer, ...]:
        """Every outer product of the update."""
        return (self, *self.more)


@dataclass(frozen=True)
class Along(Rewritable):
    """The update ``U = sum coefficient * vector`` of a trained vector.

    ``gradient`` is the coefficient with which the gradient of an output is ``vector/N``, where it is not the
    update's own over its error and the square of the program's scale (a weight with a rate of its own).
    ``outside`` is as in :class:`Outer`.
    """

    coefficient: Expr
    vector: Expr
    over: tuple[IndexRange, ...] = ()
    gradient: Expr | None = None
    outside: Expr = S.One

    def __post_init__(self) -> None:
        _take_numbers(self, "vector")

    @property
    def terms(self) -> tuple[Along, ...]:
        """The update itself, which is one term."""
        return (self,)


def _take_numbers(update: Outer | Along, *sides: str) -> None:
    """Puts the number in front of a field, a side of the update, into the coefficients."""
    for side in sides:
        number, vector = numbered(getattr(update, side))
        if number != 1:
            object.__setattr__(update, side, vector)
            object.__setattr__(update, "coefficient", number * update.coefficient)
            if update.gradient is not None:
                object.__setattr__(update, "gradient", number * update.gradient)


def by_name(values: Any, key: str, accepted: str) -> dict[str, Any]:
    """Return a mapping with names as keys, or pairs of names and values, as a dict.

    Raises :class:`ProgramError`, naming ``key``, for anything else.

    >>> by_name((("W", 2),), "rates", "...")
    {'W': 2}
    """
    try:
        found = dict(values)
    except (TypeError, ValueError):
        found = {None: values}
    if not all(isinstance(name, str) for name in found):
        raise ProgramError(f"{key} = {values!r}: must be a mapping such as {accepted}")
    return found


class _Trained(Rewritable):
    initial: GaussianMatrix | GaussianVector

    @property
    def name(self) -> str:
        """The name by which definitions refer to the weight."""
        return self.initial.name


@dataclass(frozen=True)
class TrainedMatrix(_Trained):
    """A weight matrix: Gaussian at first, then moved by ``update`` as ``rule`` says."""

    initial: GaussianMatrix
    update: Outer
    rule: TrainingRule


@dataclass(frozen=True)
class TrainedVector(_Trained):
    """A trained vector parameter (a readout, a bias)."""

    initial: GaussianVector
    update: Along
    rule: TrainingRule


@dataclass(frozen=True)
class Gradient:
    """How the gradient with respect to a field is written.

    ``name`` is its name and ``inner`` that of the gradient with respect to a function of the field that a
    matrix is applied to (``z`` for ``phi(h)``).  ``normal`` is its normalisation over N (over 1 for a
    number); ``scale sqrt(N_x/N)`` if there is none.
    """

    name: str
    inner: str = ""
    normal: Expr | None = None

    def __post_init__(self) -> None:
        if self.normal is not None:
            NONZERO.require(self.normal, f"normal of the gradient {self.name}")


@dataclass(frozen=True)
class Parametrization(Rewritable):
    """The factors that make the limit exist, in one place.

    A matrix that is applied to n units is ``theta/sqrt(n)``, and raw weights ``theta`` of order one follow
    ``theta <- theta - rate scale^2 N grad(loss)`` times the rule's own rate; ``scale`` is the gamma0 by which
    the outputs of the forward pass are divided.  ``rates`` multiplies the rates of single weights, ``rate``
    those of all; ``fan_in`` says n/N for matrices that are divided by something else.  Backward fields are
    ``g = scale sqrt(N N_l) df/dh``.

    >>> Parametrization(rates=(("W", gamma0),)).rate_of("W")
    gamma0
    """

    scale: Expr = gamma0
    rate: Expr = S.One
    rates: Mapping[str, Expr] | tuple[tuple[str, Expr], ...] = ()
    fan_in: Mapping[str, Expr] | tuple[tuple[str, Expr], ...] = ()

    def __post_init__(self) -> None:
        for key in ("rates", "fan_in"):
            named = by_name(getattr(self, key), key, '{"W": 2}, numbers by names of weights')
            pairs = tuple((name, expression(value, f"{key}[{name!r}]")) for name, value in named.items())
            object.__setattr__(self, key, pairs)
            for name, value in pairs:
                (POSITIVE if key == "fan_in" else REAL).require(value, f"{key}[{name!r}]")
        NONZERO.require(self.scale, "scale of the parametrization")
        REAL.require(self.rate, "rate of the parametrization")

    def fan_in_of(self, m: GaussianMatrix) -> Expr:
        """The number n of units that a matrix is applied to, over N (given vectors: over their number)."""
        own = S.One if m.cols.given else expression(m.cols.ratio)
        return expression(dict(self.fan_in).get(m.name, own))

    def rate_of(self, weight: str) -> Expr:
        """By what the rate of a weight is multiplied."""
        return expression(self.rate, "rate") * expression(dict(self.rates).get(weight, S.One))
