"""Observables: functions of order parameters, expanded to second order around the saddle.

From expressions in order parameters and data to arrays: values, first and second derivatives, each at all
points of a grid of indices and times.  With C, N times the covariance of order
parameters, and with their shifts, an observable O has ``N Var O = grad^T C grad`` and
``N (mean O - O) = grad . shift + C : Hessian / 2``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Dummy, Expr, sympify
from sympy.core.function import AppliedUndef

from derive.theory.fluctuations import Addend, addends
from numerics.errors import SpecError
from numerics.fluctuations.lowered import IndexGrid, IntegerArray, LoweredFluctuations, key_of, length, slope

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class ExpandedObservable:
    """A function of order parameters, at several points, with its first and second derivatives by them.

    A point is a choice of all indices and times.

    Attributes
    ----------
    values
        Its values at infinite width, ``(points,)``.
    rows, columns, slopes
        First derivatives that may be nonzero: the point, the number of the order parameter, and the
        derivative.
    curved, first, second, curvatures
        Second derivatives, each pair of order parameters once: the point, the numbers of both order
        parameters, and the factor of their covariance in the mean. This factor is the derivative, or half of
        it where both order parameters are the same.
    """

    values: Array
    rows: IntegerArray
    columns: IntegerArray
    slopes: Array
    curved: IntegerArray
    first: IntegerArray
    second: IntegerArray
    curvatures: Array

    def gradient(self, points: IntegerArray, columns: IntegerArray) -> Array:
        """Return the first derivatives by order parameters at some points, ``(points, columns)``.

        ``points`` are positions among the points of this observable. ``columns`` are numbers of order
        parameters in increasing order, which include all with a derivative at these points.
        """
        place = np.full(len(self.values), -1)
        place[points] = np.arange(len(points))
        selected = place[self.rows] >= 0
        gradient = np.zeros((len(points), len(columns)))
        at = place[self.rows[selected]], np.searchsorted(columns, self.columns[selected])
        np.add.at(gradient, at, self.slopes[selected])
        return gradient

    def shift(self, shift: Array, covariance: Array, index: IntegerArray) -> Array:
        """Return N times (mean minus value at infinite width) of the observable, ``(points,)``.

        ``shift`` holds N times (mean minus value at infinite width) of each order parameter.
        ``covariance`` is N times their covariance, in which the row of order parameter k is ``index[k]``.
        """
        shifts = np.zeros(len(self.values))
        np.add.at(shifts, self.rows, self.slopes * shift[self.columns])
        both = covariance[index[self.first], index[self.second]]
        np.add.at(shifts, self.curved, self.curvatures * both)
        return shifts


class ObservableBuilder:
    """Evaluates functions of order parameters, and their first and second derivatives by these.

    Parameters
    ----------
    lowered
        The expansion in 1/N of a program as arrays, with numbers for its sizes.
    values
        The order parameters at infinite width, in the order of ``lowered.parameters``.
    """

    def __init__(self, lowered: LoweredFluctuations, values: Array) -> None:
        self.lowered, self.values = lowered, values
        theory = lowered.theory.parameters
        self.derived = {key_of(q.symbol): q for q in theory if q.kind == "observable"}
        self.responses = {key_of(q.symbol) for q in theory if q.kind == "response"}

    def expression(self, e: Expr) -> ExpandedObservable:
        """Return the value and derivatives of an expression of order parameters, such as ``f(1, 5)**2``.

        All indices and times in it are integers, so that the result has one point. Responses that are not
        causal are zero.

        Raises
        ------
        SpecError
            If another order parameter in it does not exist at these indices.
        """
        whole = self.written_out(sympify(e))
        return self.on_grid([Addend(x) for x in (whole,)], {Dummy("one"): np.zeros(1, int)})

    def written_out(self, e: Expr) -> Expr:
        """Return an expression with sums written out and with numbers for sizes, such as that of samples.

        Quantities that no equation uses, such as a tangent kernel, are replaced by their definitions in terms
        of other order parameters.
        """
        for a in [x for x in e.atoms(AppliedUndef) if key_of(x) in self.derived]:
            q = self.derived[key_of(a)]
            e = e.xreplace({a: q.function.xreplace(dict(zip(q.symbol.args, a.args, strict=True)))})
        sizes = {x: int(self.lowered.sizes.values[x.name]) for x in _sizes(e, self.lowered)}
        return sympify(e.xreplace(sizes)).doit()

    def on_grid(self, terms: Iterable[Addend], grid: IndexGrid) -> ExpandedObservable:
        """Return the value and derivatives of a sum of terms at the points of a grid.

        Terms are expressions of order parameters, and may be sums over further indices. The grid maps each
        index or time to an array of its values at all points.
        """
        size = length(grid)
        values = np.zeros(size)
        slopes: list[tuple[IntegerArray, IntegerArray, Array]] = [_none(2)]
        curvatures: list[tuple[IntegerArray, IntegerArray, IntegerArray, Array]] = [_none(3)]
        for term in terms:
            term_grid, rows = grid, np.arange(size)
            for r in term.over:
                term_grid, inner = self.lowered.sizes.extended(term_grid, r, len(rows))
                rows = rows[inner]
            np.add.at(values, rows, self._value(term.expr, term_grid))
            parameters = self.lowered.parameters_in(term.expr)
            for k, a in enumerate(parameters):
                first, number = slope(term.expr, a), self._numbers(a, term_grid)
                slopes.append(_kept(rows, number, weights=self._value(first, term_grid)))
                for b in parameters[k:]:
                    second = slope(first, b) / (2 if a == b else 1)
                    if second != 0:
                        weights = self._value(second, term_grid)
                        curvatures.append(_kept(rows, number, self._numbers(b, term_grid), weights=weights))
        first_order = [np.concatenate(x) for x in zip(*slopes, strict=True)]
        second_order = [np.concatenate(x) for x in zip(*curvatures, strict=True)]
        return ExpandedObservable(values, *first_order, *second_order)

    def _value(self, e: Expr, grid: IndexGrid) -> Array:
        """Return the values of an expression at infinite width at all points of a grid, ``(points,)``.

        The grid maps each index or time to an array of its values.
        """
        size = length(grid)
        return self.lowered.weight(e, grid)(self.values, slice(0, size))

    def _numbers(self, a: AppliedUndef, grid: IndexGrid) -> IntegerArray:
        """Return the number of the order parameter ``a`` at each point of a grid, ``(points,)``.

        The grid maps each index or time in ``a`` to an array of its values. Responses that do not exist,
        because they are not causal, have -1. Raise SpecError if another order parameter does not exist at a
        point.
        """
        numbers = self.lowered.parameters.find(key_of(a), self.lowered.arguments(a, grid))
        if key_of(a) not in self.responses and (numbers < 0).any():
            raise SpecError(
                "observable", str(a), "does not exist at these indices", "indices and times of the theory"
            )
        return numbers


def observable_terms(e: Expr) -> tuple[Addend, ...]:
    """Return the addends of an expression of order parameters, each with the ranges of its sums."""
    return tuple(addends(e))


def _sizes(e: Expr, lowered: LoweredFluctuations) -> list[Any]:
    """Return the symbols in an expression that are sizes, such as the number of samples P.

    They are the integer symbols to which ``lowered`` gives a number.
    """
    known = lowered.sizes.values
    return [x for x in e.free_symbols if x.is_integer and x.name in known]


def _none(columns: int) -> tuple[Any, ...]:
    """Return empty arrays: ``columns`` arrays of integers, and one of floats for weights."""
    return (*[np.zeros(0, int)] * columns, np.zeros(0))


def _kept(*columns: IntegerArray, weights: Array) -> tuple[Any, ...]:
    """Return arrays without the entries for which an order parameter does not exist.

    ``columns`` are integer arrays in which -1 stands for an order parameter that does not exist; such order
    parameters are responses that are not causal, which are zero. ``weights`` is shortened in the same way and
    comes last.
    """
    there = np.all([x >= 0 for x in columns], axis=0)
    return (*(x[there] for x in columns), weights[there])
