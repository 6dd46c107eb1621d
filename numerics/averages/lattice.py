"""Averages of products of analytic functions of correlated Gaussian variables, many products at once.

The variables have mean zero. They are ``u = L x`` with standard normal ``x`` and a pivoted Cholesky factor
``L``, so that a singular covariance has fewer columns. The trapezoidal rule sums over ``x``. Its error for an
analytic function falls exponentially with the inverse spacing. The same lattice shifted by half a spacing
along the diagonal has the opposite error to leading order, so that the mean of both lattices is returned.
Half of their difference is the main part of the error that is returned. The spacing and the range of each
direction come from functions of one variable.

If the covariance has full rank, the last variable is averaged over first: the average at fixed other
variables is a function of its conditional mean, which is tabulated. :mod:`numerics.averages.single` and
:mod:`numerics.averages.tensor_averages` use this module for analytic functions.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerics.errors import NotConverged, SpecError

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Value:
    """Value of one Gaussian average, with its error bound and method.

    Attributes
    ----------
    value : float
        The average.
    error : float
        Estimated bound of the absolute error.
    method : str
        ``"closed form"``, ``"lattice"`` (trapezoidal sums), ``"orthants"`` (signs and monomials) or
        ``"panels"`` (Gauss-Legendre panels between kinks). A sum whose terms need several methods has their
        names, separated by commas.
    """

    value: float
    error: float
    method: str

    def __float__(self) -> float:
        return self.value


@dataclass(frozen=True)
class Tensor:
    """Gaussian averages of a product of functions, for all tuples of samples.

    Attributes
    ----------
    value : numpy.ndarray
        The averages, shape ``(samples, ...)`` with one axis for each function.
    error : numpy.ndarray
        Estimated bounds of the absolute errors, with the same shape ``(samples, ...)``.
    method : str
        ``"lattice"``, ``"orthants"`` or ``"panels"``.
    """

    value: Array
    error: Array
    method: str

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        return np.array(self.value, dtype=dtype)


Function = Callable[[Array], Array]
FunctionProduct = tuple[Function, ...]
"""Functions of one variable that are multiplied."""
ProductsByVariable = tuple[FunctionProduct, ...]
"""For each variable the functions of it; all of them are multiplied."""

FARTHEST = 30.0
"""Largest distance of lattice points from the mean, in standard deviations."""
TEST_MEANS = np.array([0.0, 0.7, -1.9])[:, None]
"""Means of one variable, in standard deviations, at which its spacing and range are chosen."""
FINEST = 0.01
"""Smallest spacing of a lattice."""
TABLE = 100_000
"""Largest number of points of a table of conditional means."""


def base_reach(tol: float) -> float:
    """Return the number x at which ``exp(-x^2/2)`` has fallen to ``tol``: the range of a lattice."""
    return float(np.sqrt(-2 * np.log(tol)))


def spacing_and_range(
    bodies: Sequence[ProductsByVariable], scale: float, deviation: float, tol: float
) -> tuple[float, float]:
    """Return the spacing and the range of a lattice for averages of ``f(m + scale x)`` over normal x.

    ``bodies`` are the products f; the means m are tried at a few multiples of ``deviation``. The spacing is
    reduced until the sums over the lattice, over the lattice shifted by half a spacing, and over a finer
    lattice agree to the relative tolerance ``10 tol``, or until it is below FINEST.

    >>> both = [((np.tanh,), (np.tanh,))]
    >>> [round(spacing_and_range(both, s, 1.0, 1e-10)[0], 2) for s in (0.1, 1.0, 3.0)]
    [0.83, 0.36, 0.13]
    """
    reach = max(reach_of(body, scale, deviation, tol) for body in bodies)
    flat = [tuple(f for parts in body for f in parts) for body in bodies]
    h = 2 * np.pi / np.sqrt(-2 * np.log(tol))
    while h > FINEST:
        x = h / 2 * np.arange(-2 * np.ceil(reach / h), 2 * np.ceil(reach / h) + 1)
        w = np.exp(-(x**2) / 2)
        w[::2] /= w[::2].sum()
        w[1::2] /= -w[1::2].sum()
        # A wave that makes two oscillations from one point to the next is a constant on both lattices. On a
        # lattice whose spacing is no rational multiple of theirs it is not.
        other = h / np.sqrt(2) * np.arange(-np.ceil(2 * reach / h), np.ceil(2 * reach / h) + 1)
        v = np.exp(-(other**2) / 2)
        points = np.concatenate([x[::2], other])
        weights = np.concatenate([w[::2], -v / v.sum()])
        lattices = (x, w), (points, weights)
        if all(
            _agree(parts, deviation * TEST_MEANS + scale * nodes, signed, 10 * tol)
            for parts in flat
            for nodes, signed in lattices
        ):
            break
        h *= 0.9
    return float(h), reach


def _agree(body: FunctionProduct, u: Array, w: Array, tol: float) -> bool:
    """Return whether the sums of a product over a lattice and over a shifted lattice agree.

    The product is one of functions of one variable, and ``tol`` the relative tolerance. ``u`` are the points
    of both, and their weights ``w`` have opposite signs.
    """
    value = multiplied(body, u)
    return bool(np.all(np.abs(value @ w) <= tol * (np.abs(value) @ np.abs(w))))


def multiplied(parts: FunctionProduct, u: Array) -> Array:
    """Return the product ``f(u) g(u) ...`` of the functions in ``parts``, at the points ``u``."""
    value = np.ones(u.shape)
    for f in parts:
        value = value * f(u)
    return value


def _spelled(body: ProductsByVariable) -> str:
    """Return the product of functions in ``body`` as text, for messages."""
    return " * ".join(getattr(f, "__name__", str(f)) for parts in body for f in parts) or "1"


def reach_of(body: ProductsByVariable, scale: float, deviation: float, tol: float) -> float:
    """Return the distance from the mean beyond which an integrand is below a share ``tol`` of its maximum.

    ``body`` holds for each variable the functions of it. The integrand is ``exp(-x^2/2) prod_i F_i(m + scale
    x)``, where ``F_i(r)`` is the largest absolute value of the functions of variable i up to the distance r
    from zero. It bounds the product for all correlations of the variables, also if functions of two variables
    grow in opposite directions, or one decays where another grows. The means m are zero and the largest of
    TEST_MEANS times ``deviation``. The distance is in standard deviations, and at least the distance for a
    constant function. Raises NotConverged if the integrand is not finite at a test point within FARTHEST
    standard deviations, or not below this share at FARTHEST.
    """
    x = np.linspace(0.0, FARTHEST, 301)
    farthest = 0.0
    for mean in (0.0, deviation * float(np.abs(TEST_MEANS).max())):
        r = np.concatenate([np.linspace(0.0, mean, 101), mean + scale * x])
        with np.errstate(over="ignore", invalid="ignore"):
            largest = np.exp(-(x**2) / 2)
            for parts in body:
                sizes = np.maximum(np.abs(multiplied(parts, r)), np.abs(multiplied(parts, -r)))
                largest = largest * np.maximum.accumulate(sizes)[-len(x) :]
        if not np.all(np.isfinite(largest)):
            raise NotConverged(
                f"the Gaussian average of {_spelled(body)} is not computed, because this function is "
                f"infinite or overflows within {FARTHEST:g} standard deviations (each {scale:g}) from the "
                "mean: use a function that grows more slowly, or smaller variances"
            )
        farthest = max(farthest, float(x[largest > tol * largest.max()].max(initial=0.0)))
    if farthest >= FARTHEST:
        raise NotConverged(
            f"the Gaussian average of {_spelled(body)} is not computed, because this function grows so fast "
            f"that its product with the Gaussian density is not negligible at {FARTHEST:g} standard "
            f"deviations (each {scale:g}) from the mean: use a function that grows more slowly, or smaller "
            "variances"
        )
    return max(base_reach(tol), farthest + 0.1)


def conditional_means(
    functions: Sequence[FunctionProduct], deviation: float, ends: float, h: float, reach: float, tol: float
) -> Callable[[Array], Array]:
    """Return the averages ``<f(m + deviation x)>`` over normal x as functions of ``|m| <= ends``.

    ``h`` and ``reach`` are spacing and range of the lattice in x. The result is one function of an array of
    m, whose values have the given ``functions`` f along the last axis. ``tol`` is the tolerance at m = 0,
    relative to the largest value; it is looser towards ``ends``, where the points of the lattice have less
    weight. Raises NotConverged if no table is accurate enough.
    """
    x = h / 2 * np.arange(-np.ceil(2 * reach / h), np.ceil(2 * reach / h) + 1)
    w = np.exp(-(x**2) / 2)
    w /= w.sum()

    def exact(m: Array) -> Array:
        means = []
        for piece in np.array_split(m, 1 + (len(m) * len(x) >> 20)):
            u = piece[:, None] + deviation * x
            means.append(np.stack([multiplied(f, u) @ w for f in functions], axis=-1))
        return np.concatenate(means)

    def near(position: Array) -> Array:
        # Errors of the table count less where the lattice points have less weight. The weight is taken as a
        # Gaussian of `position`, which runs from -1 to 1 over the range of the table: 1 at the centre and
        # `tol` at both ends.
        return np.asarray(tol ** (position**2)[:, None])

    return tabulated(exact, 1.01 * max(ends, 1e-3 * deviation), deviation, tol, near)


def mean_sizes(functions: Sequence[FunctionProduct], deviation: float, h: float, reach: float) -> Array:
    """Return the averages ``<|f(deviation x)|>`` over normal x of some products of functions, roughly.

    ``h`` and ``reach`` are spacing and range of the lattice in x.
    """
    x = h * np.arange(-np.ceil(reach / h), np.ceil(reach / h) + 1)
    w = np.exp(-(x**2) / 2)
    sizes = [np.abs(multiplied(f, deviation * x)) @ w for f in functions]
    return np.array(sizes, dtype=float) / float(w.sum())


def tabulated(
    exact: Function, ends: float, deviation: float, tol: float, near: Function = np.ones_like
) -> Function:
    """Return the function ``exact`` on ``|m| <= ends`` as a spline through a table.

    The table is refined until the spline reproduces the function between its points to ``tol`` times its
    largest value. ``near`` is the weight of errors and values as a function of ``m / ends``, and
    ``deviation`` is used in messages. Raises NotConverged if the table becomes too long.
    """
    from scipy.interpolate import make_interp_spline  # slow to import, and seldom used

    m = np.linspace(-ends, ends, 201)
    values = exact(m)
    while len(m) < TABLE:
        between = (m[1:] + m[:-1]) / 2
        direct = exact(between)
        table = make_interp_spline(m, values, k=7)
        weight = near(between / ends)
        errors, sizes = np.abs(table(between) - direct) * weight, np.abs(direct) * weight
        if np.all(errors.max(axis=0) <= tol * sizes.max(axis=0)):
            return lambda u: np.asarray(table(u))
        merged = np.empty((2 * len(m) - 1, *values.shape[1:]))
        merged[::2], merged[1::2] = values, direct
        m, values = np.linspace(-ends, ends, len(merged)), merged
    raise NotConverged(
        "a Gaussian average is not computed: the mean over one of the variables, of standard deviation "
        f"{deviation:g}, varies too fast with the other variables to be interpolated in a table; take a "
        "larger rtol"
    )


RANK = 1e-14
"""Pivots below this share of the largest variance are dropped; smooth averages change as little."""
POINTS = 20_000_000
"""Largest number of points of a lattice."""
REFINEMENTS = 8
"""Largest number of times that the spacing is reduced."""
CHUNK = 1 << 14
"""Number of points from which on a part of a lattice is summed."""
ACCEPTED = "a symmetric matrix without negative eigenvalues"
ROUNDING = 4e-16
"""Relative rounding error of a sum."""
ASYMMETRY = 1e-12
"""Largest difference of entries (i, j) and (j, i) of a covariance that counts as rounding.

It is relative to the larger of the entry and the product of the standard deviations i and j."""


@dataclass(frozen=True)
class CovarianceRoot:
    """Pivoted Cholesky factor of a covariance, ``K[order][:, order] = L L^T``.

    ``L`` is ``(variables, rank)``, with zeros above the diagonal. ``order`` are the numbers of the variables
    in the order of the rows of ``L``.
    """

    order: tuple[int, ...]
    L: Array

    @property
    def rank(self) -> int:
        """Number of columns of ``L``: of independent normal numbers that give all variables."""
        return int(self.L.shape[1])


def cholesky(covariance: Array) -> CovarianceRoot:
    """Return the pivoted Cholesky factor, largest variance first.

    Pivots below RANK times the largest variance are dropped. Raises SpecError for a matrix that is not
    positive semidefinite.

    >>> cholesky(np.array([[1.0, 2.0], [2.0, 4.0]])).L
    array([[2.],
           [1.]])
    """
    K = np.array(covariance, dtype=float)
    largest = max(float(np.diag(K).max(initial=0.0)), 0.0)
    from scipy.linalg.lapack import dpstrf  # imported here because the import takes 0.3 s

    factor, places, rank, _ = dpstrf(K, tol=RANK * largest, lower=1) if len(K) else (K, K, 0, 0)
    order, L = tuple(int(i) - 1 for i in places), np.tril(factor)[:, :rank]
    residual = K[np.ix_(order, order)] - L @ L.T if len(K) else K
    lost = max(-float(np.diag(residual).min(initial=0.0)), float(np.abs(residual).max(initial=0.0)))
    if lost > 1e-9 * largest or (largest == 0.0 and np.any(K)):
        raise SpecError("covariance", str(K.tolist()), "has a negative eigenvalue", ACCEPTED)
    return CovarianceRoot(order, L)


def covariance_from(given: Any) -> Array:
    """Return a covariance as an array; raise SpecError unless it is a symmetric matrix of finite numbers.

    Entries (i, j) and (j, i) may differ by ASYMMETRY times the product of the standard deviations i and j, or
    times the entry if this is larger. The rounding error of a sum of products is relative to this product.
    """
    try:
        K = np.asarray(given, dtype=float)
    except (TypeError, ValueError):
        K = np.array(np.nan)
    is_square = K.ndim == 2 and K.shape[0] == K.shape[1]
    if is_square and np.all(np.isfinite(K)):
        deviations = np.sqrt(np.abs(np.diag(K)))
        sizes = np.maximum(np.abs(K), np.outer(deviations, deviations))
        if np.all(np.abs(K - K.T) <= ASYMMETRY * sizes):
            return K
    raise SpecError(
        "covariance",
        str(given if K.ndim == 0 else K.tolist()),
        "is not a symmetric matrix of finite numbers",
        ACCEPTED,
    )


def averages(products: Sequence[ProductsByVariable], covariance: Array, rtol: float) -> tuple[Array, Array]:
    """Return the average ``<prod_i f_i(u_i)>`` of each product of analytic functions, and the errors.

    The u_i are Gaussian variables of mean zero with the covariance ``covariance``. A product holds for each
    variable a tuple of functions, which are multiplied; an empty tuple is the constant 1.

    ``rtol`` is relative to the average of the absolute value; the errors are absolute. Raises
    :class:`~numerics.errors.NotConverged` if ``rtol`` is not reached with POINTS points or with REFINEMENTS
    spacings, or if a product grows too fast.

    >>> both = np.array([[1.0, 0.5], [0.5, 1.0]])
    >>> value, error = averages([((np.sin,), (np.sin,)), ((np.cos,), (np.cos,))], both, 1e-10)
    >>> exact = np.exp(-1) * np.array([np.sinh(0.5), np.cosh(0.5)])
    >>> bool(np.abs(value - exact).max() < 1e-10), bool(error.max() < 1e-10)
    (True, True)
    """
    factor = cholesky(covariance)
    reordered = [tuple(p[i] for i in factor.order) for p in products]
    lattice = _Lattice.of(reordered, factor, max(rtol, 40 * ROUNDING) / 10)
    for _ in range(REFINEMENTS):
        if lattice.size > POINTS:
            break
        (first, scale, size), (second, _, _) = (lattice.summed(reordered, x) for x in (0.0, 0.5))
        # The sums `first` and `second` are over two lattices that differ by half a step. Half their
        # difference is an estimate of the error that the finite spacing causes. The second term of `error` is
        # for the finite range and for the interpolated table, the third for rounding.
        error = np.abs(first - second) / 2 + lattice.tol * scale + ROUNDING * size
        if np.all(error <= 10 * lattice.tol * scale + 10 * ROUNDING * size):
            return (first + second) / 2, error
        lattice = replace(lattice, steps=lattice.steps * 0.8)
    raise NotConverged(
        f"an average over {factor.rank} independent variables does not reach rtol = {rtol:g} with at most "
        f"{POINTS:.0e} points: take a larger rtol"
    )


@dataclass(frozen=True)
class _Lattice:
    """Lattice of points in the independent normal variables x, from which the variables are ``u = L x``.

    Attributes
    ----------
    L
        Factor of the covariance, ``(variables, rank)``.
    steps, reaches
        Spacing and range of each direction.
    radius
        Radius of the ball that holds the points.
    tol
        Relative tolerance.
    """

    L: Array
    steps: Array
    reaches: Array
    radius: float
    tol: float

    @classmethod
    def of(cls, products: Sequence[ProductsByVariable], factor: CovarianceRoot, tol: float) -> _Lattice:
        """Return a lattice that is fine and wide enough to average some products of functions.

        ``factor`` is the factor of the covariance, and ``tol`` the relative tolerance. Spacings and ranges
        are found from averages over one variable.
        """
        deviation = float(np.sqrt((factor.L**2).sum(axis=1).max(initial=0.0)))
        labels: dict[Function, int] = {}
        for f in [f for p in products for parts in p for f in parts]:
            labels.setdefault(f, len(labels))
        whole = {
            tuple(sorted((parts for parts in p if parts), key=lambda parts: [labels[f] for f in parts]))
            for p in products
        }
        bodies = [*whole, *[((f,),) for f in labels]]
        scales = np.abs(factor.L).max(axis=0, initial=0.0)
        steps, reaches = (
            np.array([spacing_and_range(bodies, s, deviation, tol) for s in scales]).reshape(-1, 2).T
        )
        base = base_reach(tol)
        radius = base + float(np.sqrt(((reaches - base) ** 2).sum()))
        return cls(factor.L, steps, reaches, radius, tol)

    @property
    def last_by_table(self) -> bool:
        """Whether the last variable is averaged over first, by a table over its conditional mean.

        This is done for two or more variables with a covariance of full rank, because the last variable then
        has a part that is independent of the others.
        """
        return bool(self.L.shape[0] == self.L.shape[1] >= 2)

    @property
    def dimension(self) -> int:
        """Number of directions of the lattice, without a last variable that is averaged by a table."""
        return int(self.L.shape[1]) - self.last_by_table

    @property
    def size(self) -> float:
        """Estimated number of points of the lattice."""
        d = self.dimension
        box = np.prod(2 * self.radius / self.steps[:d])
        return float(box * np.pi ** (d / 2) / math.gamma(d / 2 + 1) / 2**d)

    def summed(self, products: Sequence[ProductsByVariable], offset: float) -> tuple[Array, Array, Array]:
        """Return the averages of products, and two averages of their absolute values, on a shifted lattice.

        All three are arrays (products,). ``offset`` is the shift in units of the spacing. Each product is
        split into two halves, so that all averages are one matrix product, ``<p> = sum_x w(x) left(x)
        right(x) / sum_x w(x)``. In the second result the last variable is averaged before absolute values are
        taken, so that it is small for almost independent variables; the third, to which rounding errors are
        relative, has no such cancellation.
        """
        L = self.L[:, : self.dimension]
        half = (len(self.L) + 1) // 2
        firsts = list(dict.fromkeys(p[:half] for p in products))
        seconds = list(dict.fromkeys(p[half:] for p in products))
        total, scale, size = np.zeros((3, len(firsts), len(seconds)))
        weight = 0.0
        last = list(dict.fromkeys(p[-1] for p in products)) if self.last_by_table else []
        if last:
            ends, end = self.radius * float(np.sqrt((L[-1] ** 2).sum())), float(self.L[-1, -1])
            means = conditional_means(last, end, ends, self.steps[-1], self.reaches[-1], self.tol)
            sizes = mean_sizes(last, end, self.steps[-1], self.reaches[-1])
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
            if last:
                known = {key: x for key, x in known.items() if key[0] < len(L) - 1}
                known |= {(len(L) - 1, f): np.full(len(w), x) for f, x in zip(last, sizes, strict=True)}
                right = np.array([_product(p, half, u, known) for p in seconds])
            size += np.abs(left) @ np.abs(right).T
            weight += float(w.sum())
        at = [firsts.index(p[:half]) for p in products], [seconds.index(p[half:]) for p in products]
        return total[at] / weight, scale[at] / weight, size[at] / weight

    def points(self, offset: float) -> Iterator[Array]:
        """Yield the points of the lattice in chunks, ``(points, dimension)``.

        The lattice is shifted by ``offset`` spacings, and cut at a ball.
        """
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
    """Return the product of functions of several variables at given points, ``(points,)``.

    ``p`` holds the functions of the variables ``first``, ``first + 1``, ..., and ``u`` (variables, points)
    the values of all variables. ``known`` holds values of functions that are computed already, by variable
    and function, and receives new ones.
    """
    value = np.ones(u.shape[1])
    for i, parts in enumerate(p, first):
        if (i, parts) not in known:
            for f in parts:
                if (i, f) not in known:
                    known[i, f] = np.broadcast_to(f(u[i]), u[i].shape)
            known[i, parts] = np.prod([known[i, f] for f in parts], axis=0) if parts else np.ones_like(u[i])
        value = value * known[i, parts]
    return value
