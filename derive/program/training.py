"""Trained weights: their low-rank updates, and the scales of updates and outputs.

A trained weight is Gaussian at initialisation and changes by its update as its rule says
(:mod:`derive.program.rules`). The program supplies the update: a sum of outer products for a matrix, of
vectors for a vector.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sympy import Expr, S

from derive.calculus.intervals import NONZERO, POSITIVE, REAL
from derive.calculus.symbols import IndexRange, expression, gamma0
from derive.errors import ProgramError
from derive.program.language import GaussianMatrix, GaussianVector, Rewritable, number_and_field
from derive.program.rules import TrainingRule


@dataclass(frozen=True)
class Outer(Rewritable):
    """Update of a matrix, ``U = sum coefficient * left right^T / N``, at the time ``t``.

    Then ``U v = coefficient * left * (right . v) / N``. For n columns ``(right . v)/N`` is n/N times the mean
    ``<right v>``. For columns on a given population of D units, D stands in place of N, and ``(right . v)/D``
    is the kernel of the data.

    Parameters
    ----------
    coefficient : Expr
        The factor.
    left, right : Expr
        Vectors on the rows and on the columns.
    over : tuple of IndexRange
        The indices that are summed.
    gradient : Expr, optional
        The factor c in the gradient ``c left right^T / N`` of an output with respect to the matrix. None: c
        is ``coefficient`` divided by the error and by the square of the program's scale; layers of different
        widths need another value.
    more : tuple of Outer
        Further terms, for a matrix that is used in several places.
    outside : Expr
        A factor of the update that is not part of the gradient of an entry, for a nonlinear rule
        (:class:`~derive.program.nonlinear.NonlinearRule`): the rule acts on the update over ``outside``, and
        its step is multiplied by ``outside``.
    """

    coefficient: Expr
    left: Expr
    right: Expr
    over: tuple[IndexRange, ...] = ()
    gradient: Expr | None = None
    more: tuple[Outer, ...] = ()
    outside: Expr = S.One

    def __post_init__(self) -> None:
        """Move numeric factors of the vectors into the coefficients: ``left = 2 h`` becomes ``left = h``."""
        _take_numbers(self, "left", "right")

    @property
    def terms(self) -> tuple[Outer, ...]:
        """All outer products of the update."""
        return (self, *self.more)


@dataclass(frozen=True)
class Along(Rewritable):
    """Update of a trained vector, ``U = sum coefficient * vector``, at the time ``t``.

    Parameters
    ----------
    coefficient : Expr
        The factor.
    vector : Expr
        The vector.
    over : tuple of IndexRange
        The indices that are summed.
    gradient : Expr, optional
        The factor c in the gradient ``c vector / N`` of an output with respect to the trained vector. None: c
        is ``coefficient`` divided by the error and by the square of the program's scale; a weight with its
        own rate needs another value.
    outside : Expr
        As in :class:`Outer`.
    """

    coefficient: Expr
    vector: Expr
    over: tuple[IndexRange, ...] = ()
    gradient: Expr | None = None
    outside: Expr = S.One

    def __post_init__(self) -> None:
        """Move a numeric factor of the vector into the coefficients: ``2 h`` becomes ``h``."""
        _take_numbers(self, "vector")

    @property
    def terms(self) -> tuple[Along, ...]:
        """The update itself, which is one term."""
        return (self,)


def _take_numbers(update: Outer | Along, *sides: str) -> None:
    """Move numeric factors of the vectors of an update into its coefficient, in place.

    ``3 h`` becomes ``h``, and the coefficient is multiplied by 3. ``sides`` are the names of the vectors of
    the update: ``left``, ``right`` or ``vector``.
    """
    for side in sides:
        number, vector = number_and_field(getattr(update, side))
        if number != 1:
            object.__setattr__(update, side, vector)
            object.__setattr__(update, "coefficient", number * update.coefficient)
            if update.gradient is not None:
                object.__setattr__(update, "gradient", number * update.gradient)


def by_name(values: Any, key: str, accepted: str) -> dict[str, Any]:
    """Return a mapping with names as keys, or pairs of names and values, as a dict.

    Raises :class:`ProgramError` for anything else. Its message names the option ``key`` and shows
    ``accepted``, an example of a value that is accepted.

    >>> by_name((("W", 2),), "rates", "...")
    {'W': 2}
    """
    try:
        mapping = dict(values)
    except (TypeError, ValueError):
        mapping = {None: values}
    if not all(isinstance(name, str) for name in mapping):
        raise ProgramError(f"{key} = {values!r}: must be a mapping such as {accepted}")
    return mapping


class _Trained(Rewritable):
    """Base class of trained weights: the weight at initialisation, its update and its training rule."""

    initial: GaussianMatrix | GaussianVector

    @property
    def name(self) -> str:
        """The name of the weight in definitions."""
        return self.initial.name


@dataclass(frozen=True)
class TrainedMatrix(_Trained):
    """Weight matrix that is Gaussian at initialisation and then changed by its update.

    Parameters
    ----------
    initial : GaussianMatrix
        The matrix at initialisation.
    update : Outer
        The update.
    rule : TrainingRule
        The training rule.
    """

    initial: GaussianMatrix
    update: Outer
    rule: TrainingRule


@dataclass(frozen=True)
class TrainedVector(_Trained):
    """Trained vector (a readout, a bias), Gaussian at initialisation.

    Parameters
    ----------
    initial : GaussianVector
        The vector at initialisation.
    update : Along
        The update.
    rule : TrainingRule
        The training rule.
    """

    initial: GaussianVector
    update: Along
    rule: TrainingRule


@dataclass(frozen=True)
class Gradient:
    """Name and normalisation of the gradient with respect to a field.

    Parameters
    ----------
    name : str
        The name of the gradient.
    inner : str
        The name of the gradient with respect to a function of the field to which a matrix is applied (``z``
        for ``phi(h)``). Empty, the default, stands for ``z`` if the field is ``h``, and ``z_<field>``
        otherwise.
    normal : Expr, optional
        The number c if the gradient in the program is ``c N`` times the derivative of the output, or of minus
        the loss, by an entry of the field (c times the derivative by a scalar). By default c is ``scale
        sqrt(N_x/N)`` for a field of N_x units, and ``scale`` for a scalar, with the scale of the
        :class:`Parametrization`.
    """

    name: str
    inner: str = ""
    normal: Expr | None = None

    def __post_init__(self) -> None:
        """Raise ProgramError for a normalisation of zero."""
        if self.normal is not None:
            NONZERO.require(self.normal, f"normal of the gradient {self.name}")


@dataclass(frozen=True)
class Parametrization(Rewritable):
    """Factors of weights, outputs and learning rates for which the infinite-width limit exists.

    A matrix that is applied to n units is ``theta/sqrt(n)``, and raw weights ``theta`` of order one follow
    ``theta <- theta - rate scale^2 N grad(loss)`` times the rate of the rule. The backward field of a field h
    with ``N_l`` units is ``g = scale sqrt(N N_l) df/dh``.

    Parameters
    ----------
    scale : Expr
        The factor by which the outputs of the forward pass are divided; gamma0 by default.
    rate : Expr
        A factor of all learning rates; 1 by default.
    rates : mapping of str to Expr
        Factors of the learning rates of single weights by name; 1 for a weight that is not in it.
    fan_in : mapping of str to Expr
        Ratios n/N by name of matrix, for matrices ``theta/sqrt(n)`` in which n is not the number of units
        that the matrix is applied to.

    Examples
    --------
    >>> Parametrization(rates=(("W", gamma0),)).rate_of("W")
    gamma0
    """

    scale: Expr = gamma0
    rate: Expr = S.One
    rates: Mapping[str, Expr] | tuple[tuple[str, Expr], ...] = ()
    fan_in: Mapping[str, Expr] | tuple[tuple[str, Expr], ...] = ()

    def __post_init__(self) -> None:
        """Write ``rates`` and ``fan_in`` as pairs; raise ProgramError for factors of wrong kind or value."""
        for key in ("rates", "fan_in"):
            named = by_name(getattr(self, key), key, '{"W": 2}, numbers by names of weights')
            pairs = tuple((name, expression(value, f"{key}[{name!r}]")) for name, value in named.items())
            object.__setattr__(self, key, pairs)
            for name, value in pairs:
                (POSITIVE if key == "fan_in" else REAL).require(value, f"{key}[{name!r}]")
        NONZERO.require(self.scale, "scale of the parametrization")
        REAL.require(self.rate, "rate of the parametrization")

    def fan_in_of(self, m: GaussianMatrix) -> Expr:
        """Return the number n in the scaling ``theta/sqrt(n)`` of a matrix, divided by N.

        Parameters
        ----------
        m : GaussianMatrix
            The matrix.

        Returns
        -------
        Expr
            The value in ``fan_in``; by default the number of units that the matrix is applied to, over N, and
            1 for a matrix that is applied to given vectors.
        """
        ratio = S.One if m.cols.given else expression(m.cols.ratio)
        return expression(dict(self.fan_in).get(m.name, ratio))

    def rate_of(self, weight: str) -> Expr:
        """Return the factor of the learning rate of a weight: ``rate`` times its value in ``rates`` or 1.

        Parameters
        ----------
        weight : str
            The name of the weight.

        Returns
        -------
        Expr
            The factor.
        """
        return expression(self.rate, "rate") * expression(dict(self.rates).get(weight, S.One))
