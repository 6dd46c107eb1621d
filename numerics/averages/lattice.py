"""Averages of products of analytic functions of correlated Gaussian numbers, many products at once.

The numbers are ``m + L x`` with ``x`` standard normal: ``L`` is a pivoted Cholesky factor, so that a singular
covariance has fewer columns.  Over ``x`` the trapezoidal rule is summed.  Its error for an analytic function
falls exponentially with the inverse spacing, and the same lattice moved by half a spacing along the diagonal
has the opposite error, to leading order: the mean of the two is returned, half of their difference is the
error.  Spacings and reach of each direction are found from functions of one variable first.

The last of several independent numbers is averaged over beforehand: its mean, given the others, is a function
of one variable, which is tabulated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.interpolate import make_interp_spline

from numerics.averages.value import Array
from numerics.errors import NotConverged

Function = Callable[[Array], Array]
Product = tuple[Function, ...]
"""One function for each variable."""


@dataclass(frozen=True)
class Joint:
    """The product of functions of one variable."""

    parts: tuple[Function, ...]

    def __call__(self, x: Array) -> Array:
        value = np.ones(np.shape(x))
        for f in self.parts:
            value = value * f(x)
        return value


RANK = 1e-14
"""Pivots below this share of the largest variance are dropped; smooth averages lose as little."""
POINTS = 20_000_000
"""The largest lattice that is summed."""
CHUNK = 1 << 17
ROUNDING = 4e-16
FARTHEST = 40.0
"""Standard deviations beyond which nothing is summed."""


@dataclass(frozen=True)
class Factor:
    """``m + L x``, the variables in the order of ``order``; each column starts with a variable of its own."""

    order: tuple[int, ...]
    L: Array

    @property
    def rank(self) -> int:
        """How many independent numbers there are."""
        return int(self.L.shape[1])


def cholesky(covariance: Array) -> Factor:
    """The pivoted factor, largest variance first.

    Raises ValueError for a matrix that is not positive semidefinite.

    >>> cholesky(np.array([[1.0, 2.0], [2.0, 4.0]])).L
    array([[2.],
           [1.]])
    """
    rest = np.array(covariance, dtype=float)
    n, largest = len(rest), max(float(np.diag(rest).max(initial=0.0)), 0.0)
    order, columns = list(range(n)), []
    for k in range(n):
        left = order[k:]
        best = k + int(np.argmax(np.diag(rest)[left]))
        pivot = rest[order[best], order[best]]
        if pivot <= RANK * largest:
            break
        order[k], order[best] = order[best], order[k]
        column = rest[:, order[k]] / np.sqrt(pivot)
        column[order[:k]] = 0.0
        columns.append(column)
        rest = rest - np.outer(column, column)
    lost = max(-float(np.diag(rest).min(initial=0.0)), float(np.abs(rest).max(initial=0.0)) if n else 0.0)
    if lost > 1e-9 * largest or (largest == 0.0 and np.any(covariance)):
        raise ValueError(f"a covariance has no negative eigenvalue, as {np.asarray(covariance).tolist()} has")
    L = np.stack(columns, axis=1) if columns else np.zeros((n, 0))
    return Factor(tuple(order), L[order])


def averages(
    products: Sequence[Product], covariance: Array, rtol: float, means: Array | None = None
) -> tuple[Array, Array]:
    """``<prod_i f_i(u_i)>`` for every product, and the errors; ``rtol`` is relative to the mean of the size.

    Raises :class:`~numerics.errors.NotConverged` where the lattice would become too large.

    >>> both = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> value, error = averages([(np.sin, np.sin), (np.cos, np.cos)], both, 1e-10)
    >>> exact = np.exp(-1) * np.array([np.sinh(0.5), np.cosh(0.5)])
    >>> bool(np.abs(value - exact).max() < 1e-10), bool(error.max() < 1e-10)
    (True, True)
    """
    factor = cholesky(covariance)
    shift = np.zeros(len(factor.order)) if means is None else np.asarray(means, dtype=float)
    shift = shift[list(factor.order)]
    turned = [tuple(p[i] for i in factor.order) for p in products]
    scales = np.abs(factor.L).max(axis=0, initial=0.0)
    steps, reaches, base = _spacings(
        turned, scales, shift, float(np.sqrt((factor.L**2).sum(1).max(initial=0.0))), rtol
    )
    radius = base + float(np.sqrt(((reaches - base) ** 2).sum()))
    peeled = factor.rank == len(factor.order) >= 2
    d = factor.rank - peeled
    while True:
        found = [
            _sum(turned, factor, shift, steps, reaches, radius, offset, peeled, rtol) for offset in (0.0, 0.5)
        ]
        (first, scale, size), (second, _, _) = found
        error = np.abs(first - second) / 2 + ROUNDING * 10 * scale
        if np.all(error <= np.maximum(rtol, 20 * ROUNDING) * scale):
            return (first + second) / 2, error
        steps = steps * 0.8
        if d == 0 or size / 0.8**d > POINTS:
            worst = int(np.argmax(error / np.maximum(scale, 1e-300)))
            raise NotConverged(
                f"an average over {factor.rank} independent Gaussian numbers: {size} points give "
                f"{first[worst]:.6g} with an error of {error[worst]:.2g}; take a larger rtol than {rtol:g}"
            )


def _sum(
    products: Sequence[Product],
    factor: Factor,
    shift: Array,
    steps: Array,
    reaches: Array,
    radius: float,
    offset: float,
    peeled: bool,
    rtol: float,
) -> tuple[Array, Array, int]:
    """One lattice: the averages, those of the sizes, and the number of points."""
    d = factor.rank - peeled
    L = factor.L[:, :d]
    total, scale, weight, size = np.zeros(len(products)), np.zeros(len(products)), 0.0, 0
    tables: dict[Function, Function] = {}
    if peeled:
        last, ends = float(factor.L[-1, -1]), radius * float(np.sqrt((L[-1] ** 2).sum()))
        for f in {p[-1] for p in products}:
            tables[f] = conditional_mean(
                f, last, float(shift[-1]), ends, rtol, float(steps[-1]), float(reaches[-1])
            )
    for points in _points(steps[:d], reaches[:d], radius, offset):
        w = np.exp(-(points**2).sum(axis=1) / 2)
        u = points @ L.T + shift
        known: dict[tuple[int, Function], Array] = {}
        for n, p in enumerate(products):
            value = w
            for i, f in enumerate(p):
                if (i, f) not in known:
                    g = tables[f] if peeled and i == len(p) - 1 else f
                    known[i, f] = _at(g, i, u[:, i], known)
                value = value * known[i, f]
            total[n] += value.sum()
            scale[n] += np.abs(value).sum()
        weight += float(w.sum())
        size += len(points)
    return total / weight, scale / weight, size


def _at(f: Function, i: int, u: Array, known: dict[tuple[int, Function], Array]) -> Array:
    """A function at the points; factors of products are kept for other products."""
    if not isinstance(f, Joint):
        return np.broadcast_to(f(u), u.shape)
    value = np.ones_like(u)
    for part in f.parts:
        if (i, part) not in known:
            known[i, part] = np.broadcast_to(part(u), u.shape)
        value = value * known[i, part]
    return value


def _points(steps: Array, reaches: Array, radius: float, offset: float) -> Iterator[Array]:
    """The lattice inside the ball, in pieces."""
    axes = [np.arange(-np.ceil(r / h), np.ceil(r / h) + 1) for h, r in zip(steps, reaches, strict=True)]
    axes = [h * (k + offset) for h, k in zip(steps, axes, strict=True)]
    if not axes:
        yield np.zeros((1, 0))
        return
    inner = np.zeros((1, 0))
    for x in axes[1:]:
        inner = np.column_stack([np.repeat(inner, len(x), axis=0), np.tile(x, len(inner))])
        inner = inner[(inner**2).sum(axis=1) <= radius**2]
    inside = (inner**2).sum(axis=1)
    held: list[Array] = []
    count = 0
    for x in axes[0]:
        kept = inner[inside <= radius**2 - x**2]
        held.append(np.column_stack([np.full(len(kept), x), kept]))
        count += len(kept)
        if count >= CHUNK:
            yield np.concatenate(held)
            held, count = [], 0
    if count:
        yield np.concatenate(held)


# -- functions of one variable -------------------------------------------------------------------------------


def _spacings(
    products: Sequence[Product], scales: Array, shift: Array, deviation: float, rtol: float
) -> tuple[Array, Array, float]:
    """Spacing and reach of each direction, from functions of one variable, and the reach of a constant."""
    tol = max(rtol, 1e-15) / 10
    base = float(np.sqrt(-2 * np.log(tol)))
    steps, reaches = [], []
    for s in scales:
        bodies = [_along(p, s, shift + deviation * m) for p in products for m in (0.0, 0.7, -1.9)]
        reach = max(_reach(b, tol, base) for b in bodies)
        steps.append(min(_spacing(b, reach, tol) for b in bodies))
        reaches.append(reach)
    return np.array(steps), np.array(reaches), base


def _along(p: Product, scale: float, shift: Array) -> Function:
    """All factors moved together."""

    def body(x: Array) -> Array:
        value = np.ones_like(x)
        for f, m in zip(p, shift, strict=True):
            value = value * f(m + scale * x)
        return value

    return body


def _reach(body: Function, tol: float, base: float) -> float:
    """Where the integrand has fallen below a tolerance, from both sides; at least ``base``."""
    x = np.linspace(-FARTHEST, FARTHEST, 801)
    with np.errstate(over="ignore", invalid="ignore"):
        value = np.abs(body(x) * np.exp(-(x**2) / 2))
    value[~np.isfinite(value)] = 0.0
    counts = np.flatnonzero(value > tol * value.max())
    return max(base, float(np.abs(x[counts]).max(initial=0.0)) + 0.1)


def _spacing(body: Function, reach: float, tol: float) -> float:
    """The largest spacing at which two lattices agree."""
    h = 2 * np.pi / np.sqrt(-2 * np.log(tol))
    while h > 0.01:
        first, second = (_trapezoid(body, h, reach, offset) for offset in (0.0, 0.5))
        if abs(first[0] - second[0]) <= 10 * tol * first[1]:
            break
        h *= 0.9
    return float(h)


def _trapezoid(body: Function, h: float, reach: float, offset: float) -> tuple[float, float]:
    x = h * (np.arange(-np.ceil(reach / h), np.ceil(reach / h) + 1) + offset)
    w = np.exp(-(x**2) / 2)
    value = body(x)
    return float(w @ value / w.sum()), float(w @ np.abs(value) / w.sum())


def conditional_mean(
    f: Function, deviation: float, shift: float, ends: float, rtol: float, h: float, reach: float
) -> Function:
    """``<f(m + deviation x)>`` as a function of ``m`` for ``|m - shift| <= ends``, from a table.

    The table is made finer until it reproduces the values between its points.
    """
    x = h / 2 * np.arange(-np.ceil(2 * reach / h), np.ceil(2 * reach / h) + 1)
    w = np.exp(-(x**2) / 2)
    w /= w.sum()

    def exact(m: Array) -> Array:
        parts = [f(p[:, None] + deviation * x) @ w for p in np.array_split(m, max(1, len(m) * len(x) >> 20))]
        return np.concatenate(parts)

    spread = max(ends, 1e-3 * max(abs(shift), deviation)) * 1.01
    count = 200
    m = np.linspace(shift - spread, shift + spread, count + 1)
    values = exact(m)
    while True:
        between = (m[1:] + m[:-1]) / 2
        direct = exact(between)
        table = make_interp_spline(m, values, k=7)
        wide = (between - shift) / spread
        near = np.exp(-(wide**2) / 2 * (-2 * np.log(max(rtol, 1e-15) / 10)))
        if np.all(
            np.abs(table(between) - direct) * near <= max(rtol, 1e-14) / 10 * np.max(np.abs(direct) * near)
        ):
            return lambda m: np.asarray(table(m))
        m, values = np.sort(np.concatenate([m, between])), np.insert(direct, range(len(m)), values)
        if len(m) > 200_000:
            raise NotConverged(
                f"a conditional mean with deviation {deviation:g} varies too fast for its table"
            )
