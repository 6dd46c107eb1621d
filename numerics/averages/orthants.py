"""Averages of monomials, signs and point masses of correlated Gaussian variables.

The variables are rows ``a_i . x`` with standard normal ``x``, given for many tuples at once. Stein's lemma
replaces a power by derivatives. The derivative of a sign is a point mass, and a point mass projects the other
rows; projecting rows loses no digits, while updating a covariance would. The remaining averages are products
of signs: none, two (the arcsine law), or four, which are an integral over one variable along the path that
takes two independent pairs to their full correlation (Plackett's identity).

A variable that a projection makes zero still has a sign, because the average is continuous in the rows: it
is the sign of an infinitesimal, independent Gaussian number that is added to each variable before
projections. :mod:`numerics.averages.tensor_averages` uses this module for piecewise polynomials with kinks
at zero, such as relu.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations, product
from typing import Any

import numpy as np
from sympy import S

from derive.calculus.jumps import Ambiguous, SignMonomial, SignPolynomial, lowest, slope
from numerics.averages.lattice import Array, cholesky
from numerics.errors import Unserved

ZERO_LENGTH = 1e-11
"""A row shorter than this share of its length before projections counts as zero."""
SIGNS = 4
"""Largest number of signs in a product."""
ACCURACY = 1e-14
"""Error of an average relative to the sum of absolute values of its terms, if no two rows are parallel."""


def rows_of(covariance: Array) -> Array:
    """Return rows whose inner products are the covariance, ``(variables, rank)``.

    The rank is that of the covariance. Raises SpecError if it has a negative eigenvalue.
    """
    factor = cholesky(covariance)
    rows = np.zeros_like(factor.L)
    rows[list(factor.order)] = factor.L
    return rows


def of_products(functions: Sequence[SignPolynomial], rows: Array) -> tuple[Array, Array]:
    """Return averages of a product of piecewise polynomials, one for each variable, and their errors.

    The variables are ``a_i . x`` with standard normal x; ``rows`` (tuples, variables, rank) holds the a_i for
    several tuples of variables. Averages and errors have the shape ``(tuples,)``. Errors are absolute: the
    relative rounding error ACCURACY times the sum of the absolute values of all terms, divided by the
    smallest distance between two unit vectors ``a_i / |a_i|`` (up to their signs) if this distance is less
    than one. Parallel vectors do not count.
    """
    total, size = np.zeros(len(rows)), np.zeros(len(rows))
    for terms in product(*[f.items() for f in functions]):
        number = float(np.prod([float(c) for _, c in terms]))
        mean, scale = moment([m for m, _ in terms], rows)
        total += number * mean
        size += abs(number) * scale
    unit = _unit(rows)
    smallest_gap = np.ones(len(rows))
    for i, j in combinations(range(rows.shape[1]), 2):
        for sign in (1, -1):
            gap = np.sqrt(((unit[:, i] - sign * unit[:, j]) ** 2).sum(axis=-1))
            smallest_gap = np.where(gap > ZERO_LENGTH, np.minimum(gap, smallest_gap), smallest_gap)
    return total, ACCURACY * size / smallest_gap


def moment(monomials: Sequence[SignMonomial], rows: Array) -> tuple[Array, Array]:
    """Return the average ``<prod_i monomial_i(a_i . x)>`` over normal x, and the size of its terms.

    The size is the sum of the absolute values of the terms; both results have the shape (tuples,). ``rows``
    (tuples, variables, rank) holds the a_i. A monomial is a tuple (n, s, m): for m = -1 the function ``x^n
    sign(x)^s`` with s = 0 or 1, and for m >= 0 the m-th derivative of ``delta(x)``, where n and s must be
    zero.

    Raises :class:`~derive.calculus.jumps.Ambiguous` for a point mass of a variable without variance, and for
    a point mass times a sign (without a power) or a point mass of a parallel variable;
    :class:`~numerics.errors.Unserved` for an average of an even number of six or more signs.

    >>> rows = np.array([[[1.0, 0.0], [0.5, np.sqrt(0.75)]]])
    >>> value, _ = moment([(0, 1, -1), (0, 1, -1)], rows)  # signs of two variables with correlation 1/2
    >>> print(f"{value[0]:.12f}")
    0.333333333333
    """
    return _moment(tuple(monomials), _Rows.of(rows), True)


@dataclass(frozen=True)
class _Rows:
    """Gaussian variables ``a_i . x``, given by rows a_i, conditional on some of them being zero.

    Attributes
    ----------
    rows
        The rows, ``(tuples, variables, rank)``.
    small
        Infinitesimal parts of the rows, ``(tuples, variables, variables)``, independent before projections.
        They give a sign to a variable that a projection makes zero.
    lengths
        Lengths of the rows before any projection, ``(tuples, variables)``.
    """

    rows: Array
    small: Array
    lengths: Array

    @classmethod
    def of(cls, rows: Array) -> _Rows:
        """Return the Gaussian variables ``a_i . x`` without a condition.

        ``rows`` (tuples, variables, rank) holds the a_i.
        """
        small = np.broadcast_to(np.eye(rows.shape[1]), (len(rows), rows.shape[1], rows.shape[1]))
        return cls(rows, small, np.sqrt((rows**2).sum(axis=-1)))

    def __len__(self) -> int:
        return len(self.rows)

    def vanishing(self) -> Any:
        """Return whether each variable is zero under the condition, up to rounding, (tuples, variables)."""
        return np.sqrt((self.rows**2).sum(axis=-1)) <= ZERO_LENGTH * self.lengths

    def overlap(self, i: int, j: int) -> Array:
        """Return the conditional covariance of variables ``i`` and ``j``, shape (tuples,)."""
        return np.asarray((self.rows[:, i] * self.rows[:, j]).sum(axis=-1))

    def without(self, i: int, v: Array) -> _Rows:
        """Return the variables under the further condition that variable ``i`` is zero.

        ``v`` (tuples,) is the variance of variable ``i`` under the present condition. Each row is projected
        orthogonally to row i.
        """
        share = (self.rows @ self.rows[:, i, :, None]) / v[:, None, None]
        return _Rows(
            self.rows - share * self.rows[:, i, None],
            self.small - share * self.small[:, i, None],
            self.lengths,
        )

    def unit(self, which: list[int]) -> Array:
        """Return the rows of the variables at positions ``which``, divided by their lengths.

        Rows that are zero are replaced by their infinitesimal parts, which determine the sign of the
        variable. The shape is (tuples, positions, components).
        """
        vanishing = self.vanishing()[:, which, None]
        x = np.concatenate(
            [np.where(vanishing, 0.0, self.rows[:, which]), np.where(vanishing, self.small[:, which], 0.0)],
            axis=-1,
        )
        return np.asarray(x / np.sqrt((x**2).sum(axis=-1, keepdims=True)))


def _moment(ms: tuple[SignMonomial, ...], rows: _Rows, is_given: bool) -> tuple[Array, Array]:
    """Return the average of a product of monomials of Gaussian variables, and the size of its terms.

    ``ms`` has one monomial, a power times a sign or a point mass, for each variable of ``rows``. The size is
    the sum of the absolute values of the terms. ``is_given`` is true until Stein's lemma turns a sign into a
    point mass. While it is true, Ambiguous is raised for a point mass of a variable without variance, and for
    a point mass times a jump or a point mass of a parallel variable. These include point masses into which
    integration by parts turns signs. If ``is_given`` is false, a point mass of a variable without variance
    contributes zero.
    """
    at = next((i for i, (_, _, m) in enumerate(ms) if m >= 0), None)
    if not (is_given and at is not None) and sum(n + s + max(m, 0) for n, s, m in ms) % 2:
        return np.zeros(len(rows)), np.zeros(len(rows))
    if at is not None:
        return _mass(ms, at, rows, is_given)
    at = next((i for i, (n, _, _) in enumerate(ms) if n), None)
    if at is not None:
        n, s, _ = ms[at]
        lowered = (*ms[:at], (n - 1, s, -1), *ms[at + 1 :])
        return _by_stein(lowered, at, rows, is_given)
    value = signs(rows.unit([i for i, (_, s, _) in enumerate(ms) if s]))
    return value, np.abs(value)


def _by_stein(ms: tuple[SignMonomial, ...], by: int, rows: _Rows, is_given: bool) -> tuple[Array, Array]:
    """Return the average of a product times a variable x, by Stein's lemma, and the size of its terms.

    The average is ``sum_j <x x_j> <d prod / dx_j>``. x is the variable at position ``by`` of ``rows``, and
    ``ms`` are the monomials of the product, one for each variable. ``is_given`` is that of :func:`_moment`.
    """
    total, size = np.zeros(len(rows)), np.zeros(len(rows))
    for j, m in enumerate(ms):
        overlap = rows.overlap(by, j)
        for new, c in slope(m).items():
            from_sign = m[2] < 0 <= new[2]
            value, scale = _moment((*ms[:j], new, *ms[j + 1 :]), rows, is_given and not from_sign)
            total += float(c) * overlap * value
            size += abs(float(c)) * np.abs(overlap) * scale
    return total, size


def _mass(ms: tuple[SignMonomial, ...], at: int, rows: _Rows, is_given: bool) -> tuple[Array, Array]:
    """Return the average of a product with a point mass, and the size of its terms.

    It is the density of the variable at zero times the average of the other factors, conditional on it being
    zero. ``ms`` are the monomials, and the point mass is at position ``at``. ``is_given`` is that of
    :func:`_moment`; while it is true, Ambiguous is raised for a point mass of a variable that does not vary,
    and for a point mass times a jump or a point mass of a parallel variable.
    """
    vanishing = rows.vanishing()[:, at]
    if is_given and np.any(vanishing):
        raise Ambiguous(
            "the averaged function contains DiracDelta(x), but the variance of x is zero, so that the "
            "average does not exist; give x a positive variance, or a function without DiracDelta"
        )
    v = np.where(vanishing, 1.0, rows.overlap(at, at))
    order = ms[at][2]
    if order:
        value, scale = _by_parts(ms, at, order - 1, v, rows, is_given)
        return np.where(vanishing, 0.0, value), np.where(vanishing, 0.0, scale)
    conditional, others = rows.without(at, v), (*ms[:at], (0, 0, -1), *ms[at + 1 :])
    if is_given:
        short = conditional.vanishing() & ~vanishing[:, None]
        if any(np.any(short[:, i]) for i, (n, s, m) in enumerate(others) if (s or m >= 0) and not n):
            raise Ambiguous(
                "the averaged function contains DiracDelta(x) times a jump or another DiracDelta at x = 0, "
                "so that the average does not exist; give a function without this product"
            )
    value, scale = _moment(others, conditional, is_given)
    density = np.where(vanishing, 0.0, 1 / np.sqrt(2 * np.pi * v))
    return density * value, density * scale


def _by_parts(
    ms: tuple[SignMonomial, ...], at: int, order: int, v: Array, rows: _Rows, is_given: bool
) -> tuple[Array, Array]:
    """Return the average of a product with a derivative of a point mass, by integration by parts.

    The derivative has the order ``order + 1``; the second result is the size of the terms. ``ms`` are the
    monomials, ``is_given`` is that of :func:`_moment`. ``at`` is the position of the point mass, and ``v``
    the variance of its variable x. With F for the other factors,
    ``<delta' F> = <x delta F> / v - sum_j <x x_j> <delta dF/dx_j> / v`` lowers the order by one.
    """
    lower = (*ms[:at], (0, 0, order), *ms[at + 1 :])
    changed = [(-1.0 / v, (at, new), c) for new, c in lowest({(1, 0, order): -S.One}).items()]
    for j, m in enumerate(ms):
        if j != at:
            changed += [(-rows.overlap(at, j) / v, (j, new), c) for new, c in slope(m).items()]
    total, size = np.zeros(len(rows)), np.zeros(len(rows))
    for factor, (j, new), c in changed:
        value, scale = _moment((*lower[:j], new, *lower[j + 1 :]), rows, is_given)
        total += float(c) * factor * value
        size += abs(float(c)) * np.abs(factor) * scale
    return total, size


# -- signs ---------------------------------------------------------------------------------------------------


def signs(unit: Array) -> Array:
    """Return the mean of the product of the signs of ``a_i . x``, ``(tuples,)``.

    x is standard normal. ``unit`` are the unit vectors a_i for each tuple of variables, (tuples, signs,
    rank). The mean of an odd number of signs is zero, and that of none is one. Raises Unserved for an even
    number of more than four signs.
    """
    count = unit.shape[1]
    if count == 0:
        return np.ones(len(unit))
    if count % 2:
        return np.zeros(len(unit))
    if count == 2:
        return np.asarray(2 / np.pi * _angle(unit[:, 0], unit[:, 1]))
    if count == SIGNS:
        return four(unit)
    raise Unserved(
        f"the average of a product of {count} signs is not known: for an even number of signs, averages of "
        f"at most {SIGNS} signs are known"
    )


def _angle(a: Array, b: Array) -> Array:
    """Return the arc sine of the inner products of unit vectors ``a`` and ``b`` along the last axis.

    It is accurate also where they are parallel.
    """
    plus, minus = np.sqrt(((a + b) ** 2).sum(axis=-1)), np.sqrt(((a - b) ** 2).sum(axis=-1))
    return np.where(plus + minus > 0, np.arctan2(plus, minus) * 2 - np.pi / 2, 0.0)


def four(unit: Array) -> Array:
    """Return the mean of the product of the signs of ``a_i . x`` for four unit vectors a_i, ``(tuples,)``.

    ``unit`` (tuples, 4, rank) holds the a_i, and x is standard normal. The signs are paired so that the inner
    products within the pairs are small. The value for independent pairs is a product of two arcsines. The
    inner products between the pairs are then switched on (Plackett's identity). If two vectors are equal
    (opposite), the value is the mean of the product of the two other signs (times -1).
    """
    R = unit @ np.swapaxes(unit, 1, 2)
    pairings = [(0, 1, 2, 3), (0, 2, 1, 3), (0, 3, 1, 2)]
    alike = np.stack([np.maximum(np.abs(R[:, i, j]), np.abs(R[:, k, m])) for i, j, k, m in pairings])
    chosen = np.array(pairings)[np.argmin(alike, axis=0)]
    unit = np.take_along_axis(unit, chosen[..., None], axis=1)
    start = (2 / np.pi) ** 2 * _angle(unit[:, 0], unit[:, 1]) * _angle(unit[:, 2], unit[:, 3])
    value = np.asarray(start + sum(_switched(unit, i, j) for i in (0, 1) for j in (2, 3)))
    for i, j in combinations(range(4), 2):
        others = [k for k in range(4) if k not in (i, j)]
        remaining = 2 / np.pi * _angle(unit[:, others[0]], unit[:, others[1]])
        for sign in (1, -1):
            same = np.sqrt(((unit[:, i] - sign * unit[:, j]) ** 2).sum(axis=-1)) <= ZERO_LENGTH
            value = np.where(same, sign * remaining, value)
    return value


def _switched(unit: Array, i: int, j: int) -> Array:
    """Return the change of the mean of four signs that comes from one inner product, ``(tuples,)``.

    The mean is that of the signs of ``a_k . x`` with the four unit vectors ``unit`` (tuples, 4, rank). All
    inner products between the pairs (0, 1) and (2, 3) are multiplied by t, which rises from 0 to 1, and the
    change is the part that comes from the inner product of the vectors ``i`` (0 or 1) and ``j`` (2 or 3). It
    is an integral over the angle whose sine is t times this inner product. Variables with such inner products
    are ``sqrt(t) a.x + sqrt(1 - t) a.y`` with an independent ``y`` for each pair.
    """
    x, y, w = double_exponential()
    top = _angle(unit[:, i], unit[:, j])[:, None]
    safe = np.where(top == 0, 1.0, top)
    t = np.where(top == 0, x, np.sin(safe * x) / np.sin(safe))
    one_minus_t = np.where(top == 0, y, 2 * np.cos(safe * (1 + x) / 2) * np.sin(safe * y / 2) / np.sin(safe))
    shared, separate = np.sqrt(t)[..., None], np.sqrt(np.clip(one_minus_t, 0, None))[..., None]

    def number(k: int) -> Array:
        a = unit[:, None, k]
        parts = [shared * a, separate * a, 0 * separate * a]
        return np.concatenate(parts if k < 2 else [parts[0], parts[2], parts[1]], axis=-1)

    first = number(i)
    second = _unit(_without(number(j), first))
    others = [_unit(_without(_without(number(k), first), second)) for k in (1 - i, 5 - j)]
    return np.asarray(4 / np.pi**2 * top[:, 0] * (_angle(*others) @ w))


def _without(a: Array, unit: Array) -> Array:
    """Return each vector of ``a`` without its part along the unit vector at the same place of ``unit``.

    Vectors are along the last axis.
    """
    return np.asarray(a - (a * unit).sum(axis=-1, keepdims=True) * unit)


def _unit(a: Array) -> Array:
    """Return vectors divided by their lengths; vectors of length zero stay zero."""
    length = np.sqrt((a**2).sum(axis=-1, keepdims=True))
    return np.asarray(a / np.where(length > 0, length, 1.0))


@lru_cache(maxsize=4)
def double_exponential(step: float = 0.08) -> tuple[Array, Array, Array]:
    """Return points of the double exponential rule on (0, 1), their distances to 1, and their weights.

    ``step`` is the distance of points in the variable of the trapezoidal rule.
    """
    k = np.pi * np.sinh(step * np.arange(-int(3.9 / step), int(3.9 / step) + 1))
    x, y = 1 / (1 + np.exp(-k)), 1 / (1 + np.exp(k))
    return x, y, step * np.sqrt(np.pi**2 + k**2) * x * y
