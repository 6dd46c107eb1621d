"""Averages of products of analytic functions of correlated Gaussian numbers, many products at once.

The numbers are ``m + L x`` with ``x`` standard normal: ``L`` is a pivoted Cholesky factor, so that a singular
covariance has fewer columns.  Over ``x`` the trapezoidal rule is summed.  Its error for an analytic function
falls exponentially with the inverse spacing, and the same lattice moved by half a spacing along the diagonal
has the opposite error, to leading order: the mean of the two is returned, half of their difference is the
error.  Spacings and reach of each direction are found from functions of one variable first.

The last of several independent numbers is averaged over beforehand: its mean, given the others, is a function
of one variable, which is tabulated.

What a lattice needs to know about functions of one variable: spacing, reach, and tables of means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg.lapack import dpstrf
from scipy.special import gamma

from numerics.errors import NotConverged, SpecError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Value:
    """One average.

    ``error`` bounds the distance to the exact value, as far as the method can tell; ``method`` says which:
    ``closed form``, ``lattice``, ``orthants`` or ``panels``.
    """

    value: float
    error: float
    method: str

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Tensor:
    """Averages over tuples of samples: arrays with one axis for each function."""

    value: Array
    error: Array
    method: str

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.value, dtype=dtype)


Function = Callable[[Array], Array]
FunctionProduct = tuple[Function, ...]
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


def ruler(
    bodies: Sequence[FunctionProduct], scale: float, deviation: float, tol: float
) -> tuple[float, float]:
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


def _agree(body: FunctionProduct, u: Array, w: Array, tol: float) -> bool:
    value = multiplied(body, u)
    return bool(np.all(np.abs(value @ w) <= tol * (np.abs(value) @ np.abs(w))))


def multiplied(parts: FunctionProduct, u: Array) -> Array:
    """The product of functions."""
    value = np.ones(u.shape)
    for f in parts:
        value = value * f(u)
    return value


def reach_of(body: FunctionProduct, scale: float, deviation: float, tol: float) -> float:
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
    functions: Sequence[FunctionProduct], deviation: float, ends: float, h: float, reach: float, tol: float
) -> Callable[[Array], Array]:
    """``<f(m + deviation x)>`` for every ``f`` (the last axis), for ``|m| <= ends``.  Raises NotConverged."""
    x = h / 2 * np.arange(-np.ceil(2 * reach / h), np.ceil(2 * reach / h) + 1)
    w = np.exp(-(x**2) / 2)
    w /= w.sum()

    def exact(m: Array) -> Array:
        found = []
        for piece in np.array_split(m, 1 + (len(m) * len(x) >> 20)):
            u = piece[:, None] + deviation * x
            found.append(np.stack([multiplied(f, u) @ w for f in functions], axis=-1))
        return np.concatenate(found)

    def near(share: Array) -> Array:
        return np.asarray(tol ** (share**2)[:, None])  # as the weight of the points that lie there

    return tabulated(exact, 1.01 * max(ends, 1e-3 * deviation), deviation, tol, near)


def tabulated(
    exact: Function, ends: float, deviation: float, tol: float, near: Function = np.ones_like
) -> Function:
    """A conditional mean as a function of ``|m| <= ends``, from a table.

    The table is made finer until it reproduces what lies between its points, where that counts: ``near`` is
    a weight of the place, as a share of ``ends``.  Raises NotConverged.
    """
    from scipy.interpolate import make_interp_spline  # slow to import, and seldom needed

    m = np.linspace(-ends, ends, 201)
    values = exact(m)
    while len(m) < TABLE:
        between = (m[1:] + m[:-1]) / 2
        direct = exact(between)
        table = make_interp_spline(m, values, k=7)
        weight = near(between / ends)
        wrong, size = np.abs(table(between) - direct) * weight, np.abs(direct) * weight
        if np.all(wrong.max(axis=0) <= tol * size.max(axis=0)):
            return lambda u: np.asarray(table(u))
        merged = np.empty((2 * len(m) - 1, *values.shape[1:]))
        merged[::2], merged[1::2] = values, direct
        m, values = np.linspace(-ends, ends, len(merged)), merged
    raise NotConverged(f"a conditional mean over a deviation of {deviation:g} varies too fast for a table")


ProductsByVariable = tuple[FunctionProduct, ...]
"""What is multiplied of each variable."""


RANK = 1e-14
"""Pivots below this share of the largest variance are dropped; smooth averages lose as little."""
POINTS = 20_000_000
"""The largest lattice that is summed."""
REFINEMENTS = 8
CHUNK = 1 << 14
ACCEPTED = "a symmetric matrix without negative eigenvalues"
ROUNDING = 4e-16


@dataclass(frozen=True)
class CovarianceRoot:
    """``m + L x``, the variables in the order of ``order``; each column starts with a variable of its own."""

    order: tuple[int, ...]
    L: Array

    @property
    def rank(self) -> int:
        """How many independent numbers there are."""
        return int(self.L.shape[1])


def cholesky(covariance: Array) -> CovarianceRoot:
    """The pivoted factor, largest variance first.

    Raises SpecError for a matrix that is not positive semidefinite.

    >>> cholesky(np.array([[1.0, 2.0], [2.0, 4.0]])).L
    array([[2.],
           [1.]])
    """
    K = np.array(covariance, dtype=float)
    largest = max(float(np.diag(K).max(initial=0.0)), 0.0)
    found, places, rank, _ = dpstrf(K, tol=RANK * largest, lower=1) if len(K) else (K, K, 0, 0)
    order, L = tuple(int(i) - 1 for i in places), np.tril(found)[:, :rank]
    rest = K[np.ix_(order, order)] - L @ L.T if len(K) else K
    lost = max(-float(np.diag(rest).min(initial=0.0)), float(np.abs(rest).max(initial=0.0)))
    if lost > 1e-9 * largest or (largest == 0.0 and np.any(K)):
        raise SpecError("covariance", str(K.tolist()), "has a negative eigenvalue", ACCEPTED)
    return CovarianceRoot(order, L)


def check_covariance(K: Array) -> None:
    """Raises SpecError for what is no symmetric matrix of finite numbers."""
    square = K.ndim == 2 and K.shape[0] == K.shape[1]
    if not square or not np.all(np.isfinite(K)) or not np.allclose(K, K.T, rtol=1e-12, atol=0.0):
        raise SpecError("covariance", str(K.tolist()), "is no covariance", ACCEPTED)


def averages(products: Sequence[ProductsByVariable], covariance: Array, rtol: float) -> tuple[Array, Array]:
    """``<prod_i f_i(u_i)>`` for every product, and the errors; ``rtol`` is relative to the mean of the size.

    Raises :class:`~numerics.errors.NotConverged` where the lattice would become too large.

    >>> both = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> value, error = averages([((np.sin,), (np.sin,)), ((np.cos,), (np.cos,))], both, 1e-10)
    >>> exact = np.exp(-1) * np.array([np.sinh(0.5), np.cosh(0.5)])
    >>> bool(np.abs(value - exact).max() < 1e-10), bool(error.max() < 1e-10)
    (True, True)
    """
    factor = cholesky(covariance)
    turned = [tuple(p[i] for i in factor.order) for p in products]
    lattice = _Lattice.of(turned, factor, max(rtol, 40 * ROUNDING) / 10)
    for _ in range(REFINEMENTS):
        if lattice.size > POINTS:
            break
        (first, scale), (second, _) = (lattice.summed(turned, offset) for offset in (0.0, 0.5))
        error = np.abs(first - second) / 2 + lattice.tol * scale  # the second for reach and table
        if np.all(error <= 10 * lattice.tol * scale):
            return (first + second) / 2, error
        lattice = replace(lattice, steps=lattice.steps * 0.8)
    raise NotConverged(
        f"an average over {factor.rank} independent numbers is not found to {rtol:g} with at most "
        f"{POINTS:.0e} points: take a larger rtol"
    )


@dataclass(frozen=True)
class _Lattice:
    """Spacings and reaches of every column of ``L``, and the radius of the ball that holds the points."""

    L: Array
    steps: Array
    reaches: Array
    radius: float
    tol: float

    @classmethod
    def of(cls, products: Sequence[ProductsByVariable], factor: CovarianceRoot, tol: float) -> _Lattice:
        deviation = float(np.sqrt((factor.L**2).sum(axis=1).max(initial=0.0)))
        labels: dict[Function, int] = {}
        for f in [f for p in products for parts in p for f in parts]:
            labels.setdefault(f, len(labels))
        whole = {tuple(sorted((f for parts in p for f in parts), key=labels.__getitem__)) for p in products}
        bodies = [*whole, *[(f,) for f in labels]]
        scales = np.abs(factor.L).max(axis=0, initial=0.0)
        found = np.array([ruler(bodies, s, deviation, tol) for s in scales]).reshape(-1, 2)
        steps, reaches = found[:, 0], found[:, 1]
        base = base_reach(tol)
        return cls(factor.L, steps, reaches, base + float(np.sqrt(((reaches - base) ** 2).sum())), tol)

    @property
    def peeled(self) -> bool:
        """Is the last number averaged over beforehand?  Only if no other depends on its column."""
        return bool(self.L.shape[0] == self.L.shape[1] >= 2)

    @property
    def dimension(self) -> int:
        return int(self.L.shape[1]) - self.peeled

    @property
    def size(self) -> float:
        """About how many points there are."""
        d = self.dimension
        box = np.prod(2 * self.radius / self.steps[:d])
        return float(box * np.pi ** (d / 2) / gamma(d / 2 + 1) / 2**d)

    def summed(self, products: Sequence[ProductsByVariable], offset: float) -> tuple[Array, Array]:
        """The averages, and those of the sizes."""
        L = self.L[:, : self.dimension]
        half = (len(self.L) + 1) // 2  # one half of each product times the other: one product of matrices
        firsts = list(dict.fromkeys(p[:half] for p in products))
        seconds = list(dict.fromkeys(p[half:] for p in products))
        total, scale = np.zeros((2, len(firsts), len(seconds)))
        weight = 0.0
        last = list(dict.fromkeys(p[-1] for p in products)) if self.peeled else []
        if last:
            ends, end = self.radius * float(np.sqrt((L[-1] ** 2).sum())), float(self.L[-1, -1])
            means = conditional_means(last, end, ends, self.steps[-1], self.reaches[-1], self.tol)
        for points in self.points(offset):
            w = np.exp(-(points**2).sum(axis=1) / 2)
            u = L @ points.T
            known: dict[tuple[int, Any], Array] = {}
            if last:
                known = dict(zip([(len(L) - 1, f) for f in last], np.array(means(u[-1]).T), strict=True))
            left = np.array([w * _product(p, 0, u, known) for p in firsts])
            right = np.array([_product(p, half, u, known) for p in seconds])
            total += left @ right.T
            scale += np.abs(left) @ np.abs(right).T
            weight += float(w.sum())
        at = [firsts.index(p[:half]) for p in products], [seconds.index(p[half:]) for p in products]
        return total[at] / weight, scale[at] / weight

    def points(self, offset: float) -> Iterator[Array]:
        """Those inside the ball, in pieces."""
        axes = []
        for h, r in zip(self.steps[: self.dimension], self.reaches, strict=False):
            axes.append(h * (np.arange(-np.ceil(r / h), np.ceil(r / h) + 1) + offset))
        if not axes:
            yield np.zeros((1, 0))
            return
        inner, inside = np.zeros((1, 0)), np.zeros(1)
        for x in axes[1:]:
            inner = np.column_stack([np.repeat(inner, len(x), axis=0), np.tile(x, len(inner))])
            inside = (inner**2).sum(axis=1)
            inner, inside = inner[inside <= self.radius**2], inside[inside <= self.radius**2]
        held: list[Array] = []
        count = 0
        for x in axes[0]:
            kept = inner[inside <= self.radius**2 - x**2]
            held.append(np.column_stack([np.full(len(kept), x), kept]))
            count += len(kept)
            if count >= CHUNK:
                yield np.concatenate(held)
                held, count = [], 0
        if count:
            yield np.concatenate(held)


def _product(p: ProductsByVariable, first: int, u: Array, known: dict[tuple[int, Any], Array]) -> Array:
    """Of functions of consecutive numbers at the points; what is known is not computed again."""
    value = np.ones(u.shape[1])
    for i, parts in enumerate(p, first):
        if (i, parts) not in known:
            for f in parts:
                if (i, f) not in known:
                    known[i, f] = np.broadcast_to(f(u[i]), u[i].shape)
            known[i, parts] = np.prod([known[i, f] for f in parts], axis=0) if parts else np.ones_like(u[i])
        value = value * known[i, parts]
    return value
