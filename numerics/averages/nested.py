"""Averages of three or more functions that bend anywhere: one number after the other, between the bends.

Given the numbers before it, each number is normal, and bends at known places: Gauss-Legendre panels end
there.  The last one is averaged over beforehand, as a function of its conditional mean, which has no bends.
The order of the panels rises until two results agree.  The numbers must not be nearly dependent: the
conditional means would bend sharply, and the results would not agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import make_interp_spline
from sympy import DiracDelta, Expr, Mul, Symbol

from numerics.averages.functions import X, compiled
from numerics.averages.lattice import cholesky
from numerics.averages.panels import Moment, composite, kinks_of
from numerics.averages.spacing import Function, reach_of
from numerics.averages.value import Array
from numerics.errors import NotConverged, Unserved

ORDERS = (6, 8, 10, 12)
PANELS = 6
TABLE = 20_000


PAIR = 2


def bent_product(functions: Sequence[Expr], C: Array, rtol: float) -> tuple[float, float]:
    """The average, and its error, of functions of different numbers: expressions in `X` that bend anywhere.

    Up to two numbers may be dependent.
    """
    if len(functions) > PAIR:
        return nested([Bent(compiled(f), kinks_of(f, X)) for f in functions], C, rtol)
    slots = [Symbol(f"y{i}", real=True) for i in range(len(functions))]
    body = Mul(*[f.xreplace({X: y}) for y, f in zip(slots, functions, strict=True)])
    if body.has(DiracDelta):
        raise Unserved(f"a point mass in {body}")
    return Moment(body, tuple(slots))(C[0, 0], C[-1, -1], C[0, -1], rtol)


@dataclass(frozen=True)
class Bent:
    """A function of one number, and where it is not smooth."""

    function: Function
    bends: tuple[float, ...]


def nested(functions: Sequence[Bent], covariance: Array, rtol: float) -> tuple[float, float]:
    """``<prod_i f_i(u_i)>`` and its error; ``rtol`` is relative to the average of the size.

    Raises :class:`~numerics.errors.NotConverged`, and :class:`~numerics.errors.Unserved` for a singular
    covariance.

    >>> step = Bent(lambda x: (x > 0) * 1.0, (0.0,))
    >>> value, _ = nested([step] * 3, np.full((3, 3), 0.5) + np.eye(3) / 2, 1e-10)
    >>> print(f"{value:.10f}")  # one in four numbers is the largest
    0.2500000000
    """
    factor = cholesky(covariance)
    if factor.rank < len(functions):
        raise Unserved(f"{len(functions)} functions with bends, of only {factor.rank} independent numbers")
    turned = [functions[i] for i in factor.order]
    deviation = float(np.sqrt(np.diag(covariance).max()))
    tol = max(rtol, 1e-14) / 10
    reach = reach_of(tuple(f.function for f in functions), deviation, deviation, tol)
    last = _mean(turned[-1], float(factor.L[-1, -1]), deviation * reach, reach, tol)
    before = np.inf
    for order in ORDERS:
        value, scale = _sum(turned, factor.L, last, reach, order)
        error = abs(value - before)
        if error <= rtol * scale:
            return value, error + tol * scale
        before = value
    raise NotConverged(
        f"an average over {len(functions)} numbers with bends: the last results differ by {error:.2g}"
    )


def _sum(
    functions: Sequence[Bent], L: Array, last: Function, reach: float, order: int
) -> tuple[float, float]:
    unit, share = composite(order, PANELS)
    total = scale = 0.0
    first, weights = _points(functions[0], np.zeros(1), float(L[0, 0]), reach, unit, share)
    start = weights[0] * functions[0].function(L[0, 0] * first[0])
    for x, w in zip(first[0], start, strict=True):  # one by one, to hold little
        points, value = np.array([[x]]), np.array([w])
        for j in range(1, len(functions) - 1):
            mean, width = points @ L[j, :j], float(L[j, j])
            found, weights = _points(functions[j], mean, width, reach, unit, share)
            value = (value[:, None] * weights * functions[j].function(mean[:, None] + width * found)).ravel()
            points = np.column_stack([np.repeat(points, found.shape[1], axis=0), found.ravel()])
        value = value * last(points @ L[-1, :-1])
        total += float(value.sum())
        scale += float(np.abs(value).sum())
    return total, scale


def _points(
    f: Bent, mean: Array, width: float, reach: float, unit: Array, share: Array
) -> tuple[Array, Array]:
    """Points and weights for a normal number, for every conditional mean of ``f``'s argument."""
    bends = (np.array(f.bends)[None, :] - mean[:, None]) / width
    ends = np.full((len(mean), 1), reach)
    edges = np.sort(np.concatenate([-ends, np.clip(bends, -reach, reach), ends], axis=1), axis=1)
    low, size = edges[:, :-1, None], np.diff(edges, axis=1)[:, :, None]
    x = (low + size * unit).reshape(len(mean), -1)
    w = (size * share).reshape(len(mean), -1)
    return x, w * np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)


def _mean(f: Bent, width: float, ends: float, reach: float, tol: float) -> Function:
    """``<f(m + width x)>`` as a function of ``m``, from a table that is refined until it reproduces it."""
    unit, share = composite(16, PANELS)

    def exact(m: Array) -> Array:
        x, w = _points(f, m, width, reach, unit, share)
        return np.asarray((w * f.function(m[:, None] + width * x)).sum(axis=1))

    m = np.linspace(-1.01 * ends, 1.01 * ends, 201)
    values = exact(m)
    while len(m) < TABLE:
        between = (m[1:] + m[:-1]) / 2
        direct = exact(between)
        table = make_interp_spline(m, values, k=7)
        if np.abs(table(between) - direct).max() <= tol * np.abs(direct).max():
            return lambda u: np.asarray(table(u))
        merged = np.empty(2 * len(m) - 1)
        merged[::2], merged[1::2] = values, direct
        m, values = np.linspace(m[0], m[-1], len(merged)), merged
    raise NotConverged(f"a conditional mean over a deviation of {width:g} varies too fast for a table")
