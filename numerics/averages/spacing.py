"""What a lattice needs to know about functions of one variable: spacing, reach, and tables of means."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.interpolate import make_interp_spline

from numerics.averages.value import Array
from numerics.errors import NotConverged

Function = Callable[[Array], Array]
Parts = tuple[Function, ...]
"""Functions of one number that are multiplied."""

FARTHEST = 30.0
"""Standard deviations beyond which nothing is summed."""
AWAY = np.array([0.0, 0.7, -1.9])[:, None]
"""Where one variable is looked at while the others stand elsewhere, in standard deviations."""
FINEST = 0.01
TABLE = 100_000


def base_reach(tol: float) -> float:
    """Where the normal density has fallen by ``tol``."""
    return float(np.sqrt(-2 * np.log(tol)))


def ruler(bodies: Sequence[Parts], scale: float, deviation: float, tol: float) -> tuple[float, float]:
    """The largest spacing at which a lattice and the one between agree for ``f(m + scale x)``, and the reach.

    >>> [round(ruler([(np.tanh, np.tanh)], s, 1.0, 1e-10)[0], 2) for s in (0.1, 1.0, 3.0)]
    [0.83, 0.36, 0.13]
    """
    reach = max(reach_of(body, scale, deviation, tol) for body in bodies)
    h = 2 * np.pi / np.sqrt(-2 * np.log(tol))
    while h > FINEST:
        x = h / 2 * np.arange(-2 * np.ceil(reach / h), 2 * np.ceil(reach / h) + 1)
        w = np.exp(-(x**2) / 2)
        w[::2] /= w[::2].sum()
        w[1::2] /= -w[1::2].sum()
        if all(_agree(body, deviation * AWAY + scale * x, w, 10 * tol) for body in bodies):
            break
        h *= 0.9
    return float(h), reach


def _agree(body: Parts, u: Array, w: Array, tol: float) -> bool:
    value = multiplied(body, u)
    return bool(np.all(np.abs(value @ w) <= tol * (np.abs(value) @ np.abs(w))))


def multiplied(parts: Parts, u: Array) -> Array:
    """The product of functions."""
    value = np.ones(u.shape)
    for f in parts:
        value = value * f(u)
    return value


def reach_of(body: Parts, scale: float, deviation: float, tol: float) -> float:
    """Where the integrand has fallen below a tolerance, on both sides; at least that of a constant."""
    x = np.linspace(-FARTHEST, FARTHEST, 601)
    with np.errstate(over="ignore", invalid="ignore"):
        value = np.abs(multiplied(body, deviation * AWAY + scale * x) * np.exp(-(x**2) / 2))
    if not np.all(np.isfinite(value)):
        raise NotConverged(f"a function is not finite within {FARTHEST:g} standard deviations of {scale:g}")
    farthest = float(np.abs(x[(value > tol * value.max(axis=1, keepdims=True)).any(axis=0)]).max(initial=0.0))
    if farthest >= FARTHEST:
        raise NotConverged(f"a function still counts at {FARTHEST:g} standard deviations of {scale:g}")
    return max(base_reach(tol), farthest + 0.1)


def conditional_means(
    functions: Sequence[Parts], deviation: float, ends: float, h: float, reach: float, tol: float
) -> Callable[[Array], Array]:
    """``<f(m + deviation x)>`` for every ``f`` (the last axis), for ``|m| <= ends``, from a table.

    The table is made finer until it reproduces what lies between its points.  Raises NotConverged.
    """
    x = h / 2 * np.arange(-np.ceil(2 * reach / h), np.ceil(2 * reach / h) + 1)
    w = np.exp(-(x**2) / 2)
    w /= w.sum()

    def exact(m: Array) -> Array:
        found = []
        for piece in np.array_split(m, 1 + (len(m) * len(x) >> 20)):
            u = piece[:, None] + deviation * x
            found.append(np.stack([multiplied(f, u) @ w for f in functions], axis=-1))
        return np.concatenate(found)

    spread = 1.01 * max(ends, 1e-3 * deviation)
    m = np.linspace(-spread, spread, 201)
    values = exact(m)
    while len(m) < TABLE:
        between = (m[1:] + m[:-1]) / 2
        direct = exact(between)
        table = make_interp_spline(m, values, k=7)
        near = tol ** ((between / spread) ** 2)[:, None]  # as the weight of the points that lie there
        wrong, size = np.abs(table(between) - direct) * near, np.abs(direct) * near
        if np.all(wrong.max(axis=0) <= tol * size.max(axis=0)):
            return lambda u: np.asarray(table(u))
        merged = np.empty((2 * len(m) - 1, len(functions)))
        merged[::2], merged[1::2] = values, direct
        m, values = np.linspace(-spread, spread, len(merged)), merged
    raise NotConverged(f"a conditional mean over a deviation of {deviation:g} varies too fast for a table")
