"""Gaussian sources of one population, drawn step by step, each step conditionally on the past.

A group is a set of sources that are correlated with each other.  Its covariance grows by a block of rows each
step, and with it a Cholesky factor.  A new entry whose variance, given all entries before it, is below
``PIVOT`` of its own variance follows from them: it needs no new normal number.
"""

from __future__ import annotations

import warnings
from functools import cache, lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import lapack
from scipy.special import ndtri

from numerics.errors import NotConverged

Array = NDArray[np.float64]

BITS = 30
"""Digits of the points of a sequence."""

PIVOT = 1e-7
"""Relative innovation variance below which an entry follows from those before it.

Pivots that are each apart from those before by less can depend on each other all together by rounding alone,
as close times of a flow do: with 1e-8 a few seeds in a hundred were left with -1e-3 of a variance.
"""

CUT = 1e-3
"""Negative innovation variance, relative, up to which it is taken for zero, and counted as bias."""

TRIANGLE = 96
"""Rows of a triangle that is solved as a whole."""

BLOCK = 256
"""Dimensions of one Sobol sequence."""


@lru_cache(maxsize=8)
def _sobol(dimensions: int, points: int) -> NDArray[np.uint32]:
    """The first points of the Sobol sequence, as integers of BITS bits, shape ``(dimensions, points)``."""
    from scipy.stats import qmc  # which takes a third of a second to import

    with warnings.catch_warnings():  # sizes that are no power of two are balanced well enough
        warnings.simplefilter("ignore", UserWarning)
        found = qmc.Sobol(dimensions, scramble=False, bits=BITS).random(points)
    return np.asarray(found.T * 2.0**BITS, dtype=np.uint32)


def scrambled_normals(dimensions: int, points: int, rng: np.random.Generator) -> Array:
    """Normal numbers from a Sobol sequence with scrambled bits, shape ``(dimensions, points)``.

    Matousek's linear scrambling with a random shift, as in scipy.stats.qmc, which draws all of every matrix;
    here only its columns for bits that the points have, some tens of times fewer numbers.
    """
    x = _sobol(dimensions, points)
    y = rng.integers(2**BITS, size=(len(x), 1), dtype=np.uint32)
    for low in range(BITS - 1, BITS - 1 - (points - 1).bit_length(), -1):
        column = rng.integers(2**low, 2 ** (low + 1), size=(len(x), 1), dtype=np.uint32)
        y = np.bitwise_xor(y, ((x >> low) & 1) * column, dtype=np.uint32)
    found: Array = ndtri((y + 0.5) / 2.0**BITS)
    return found


class Room:
    """Memory of replicas that are marched one after another, each of which asks for the same arrays.

    The first touch of new memory takes longer than what is done with it.
    """

    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.taken = 0

    def take(self, *shape: int) -> Array:
        """An array with whatever was in it."""
        if self.taken == len(self.arrays):
            self.arrays.append(np.empty(shape))
        elif self.arrays[self.taken].shape != shape:
            self.arrays[self.taken] = np.empty(shape)
        self.taken += 1
        return self.arrays[self.taken - 1]


class Latents:
    """Normal numbers of one population: half of the paths from a scrambled Sobol sequence, half mirrored.

    In the mirrored half the numbers of ``flipped`` groups change sign and the others repeat, so that products
    of one of each average to zero exactly.  With ``matched``, numbers are made orthonormal over the paths and
    of zero mean, while that uses up less than a quarter of the freedom of the paths: then every second moment
    of the sources is exact.
    """

    def __init__(
        self, samples: int, dimensions: int, seed: np.random.SeedSequence, matched: bool, room: Room
    ) -> None:
        self.half = samples // 2
        self.points = room.take(dimensions, self.half)
        self.seed = seed
        self.made = self.used = 0
        self.matched = matched
        self.basis: dict[bool, list[Array]] = {False: [np.ones((1, self.half))], True: []}

    def more(self) -> None:
        """The next BLOCK dimensions, whatever the number of them all: finer grids begin with the same ones.

        A block beyond the first is another scrambled sequence whose points are met in random order.
        """
        rng = np.random.default_rng(self.seed.spawn(1)[0])
        block = scrambled_normals(BLOCK, self.half, rng)
        if self.made:
            block = block[:, rng.permutation(self.half)]
        new = min(BLOCK, len(self.points) - self.made)
        self.points[self.made : self.made + new] = block[:new]
        self.made += new

    def draw(self, count: int, flipped: bool) -> Array:
        """The next ``count`` normal numbers on the first half of the paths, ``(count, samples / 2)``."""
        while self.made < self.used + count:
            self.more()
        z: Array = self.points[self.used : self.used + count]
        self.used += count
        basis = self.basis[flipped]
        held = sum(len(b) for b in basis)
        if self.matched and held + count <= self.half // 4:
            if basis:
                q = np.concatenate(basis)
                for _ in range(2):  # twice, for orthogonality to rounding
                    z = z - (z @ q.T / self.half) @ q
            root = np.asarray(np.linalg.cholesky(z @ z.T / self.half), dtype=np.float64)
            z = _triangular(root, z)
            basis.append(z)
        return z


class NotPositive(NotConverged):
    """A covariance that is not positive by more than CUT: numbers have lost their accuracy."""


class Growing:
    """The entries of a group so far: their Cholesky factor, and the normal numbers that they are made of.

    ``rows`` holds ``L`` of ``x = L z`` for all entries x, ``factor`` its rows at the pivots, which are a
    triangle.  ``damped`` is the Cholesky factor of the covariance with ``ridge`` of each variance added.
    ``normals`` are z on the first half of the paths; on the other half z, and so x, is ``mirror`` times that.
    ``cut`` is how far the covariance is from the nearest one that is positive, relative to a variance.
    """

    def __init__(
        self, latents: Latents, size: int, steps: int, flipped: bool, ridge: float, room: Room
    ) -> None:
        self.latents, self.size, self.flipped, self.ridge = latents, size, flipped, ridge
        self.mirror = -1.0 if flipped else 1.0
        most = size * steps
        self.count = self.rank = 0
        self.cut = 0.0
        self.pivots = np.zeros(most, dtype=int)
        self.rows, self.factor = room.take(most, most), room.take(most, most)
        self.damped = room.take(*(most, most) if ridge else (0, 0))
        self.normals = room.take(most, latents.half)

    def extend(self, past: Array, now: Array) -> Array:
        """Values of the next ``size`` entries on every path.

        ``past`` is their covariance with all entries before, ``now`` with each other.
        Raises NotPositive for a covariance that is not.
        """
        k, n, m = self.rank, self.count, self.size
        rows = _solved(self.factor[:k, :k], past[:, self.pivots[:k]])
        columns, chosen, cut = _pivoted(now - rows @ rows.T, np.diag(now))
        self.cut = max(self.cut, cut)
        self.rows[n : n + m, :k] = rows
        if chosen:
            new = slice(k, k + len(chosen))
            self.rows[n : n + m, new] = columns
            self.normals[new] = self.latents.draw(len(chosen), self.flipped)
            self.pivots[new] = n + np.array(chosen)
            self.factor[new, : new.stop] = self.rows[self.pivots[new], : new.stop]
            self.rank += len(chosen)
        if self.ridge:
            self._damp(past, now)
        self.count += m
        half = self.rows[n : n + m, : self.rank] @ self.normals[: self.rank]
        return np.concatenate([half, self.mirror * half], axis=1)

    def _damp(self, past: Array, now: Array) -> None:
        n, m = self.count, self.size
        variance = np.diag(now)
        rows = _solved(self.damped[:n, :n], past)
        left = now + np.diag(self.ridge * np.where(variance > 0, variance, 1.0)) - rows @ rows.T
        self.damped[n : n + m, :n] = rows
        self.damped[n : n + m, n : n + m] = np.linalg.cholesky(left)

    def responses(self, v: Array, x: Array) -> Array:
        """``<d v / d x>`` for the first entries, whose values are ``x`` on the first half of the paths.

        ``v`` has all paths, the last axis of both.

        Stein's lemma, ``<v x^T> = <d v / d x> C``, with the covariance C of the entries damped by the ridge:
        directions in which the sources hardly vary, of which the paths say nothing, count less.  Without a
        ridge the lemma is taken in the range of C, as ``<v z^T> = <d v / d x> L``, and booked under pivots.
        """
        entries, half = x.shape
        samples, v = 2 * half, v[:, :half] + self.mirror * v[:, half:]
        if self.ridge:
            root = self.damped[:entries, :entries]
            whitened = _triangular(root, (v @ x.T).T / samples)
            return _triangular(root, whitened, transposed=True).T
        found = np.zeros((len(v), entries))
        k = int(np.searchsorted(self.pivots[: self.rank] // self.size, entries // self.size))
        if k:
            moments = self.normals[:k] @ v.T / samples
            found[:, self.pivots[:k]] = _triangular(self.factor[:k, :k], moments, transposed=True).T
        return found


def _triangular(root: Array, right: Array, *, transposed: bool = False) -> Array:
    """The solution x of ``root x = right`` for a lower triangle, or of ``root^T x = right``.

    A large triangle is cut in two halves and the square between them, as products are faster than solutions.
    """
    if not root.size:
        return np.zeros_like(right)
    if (n := len(root)) > TRIANGLE:
        first, last, found = slice(n // 2), slice(n // 2, n), np.empty_like(right)
        square = root[last, first]
        if transposed:
            found[last] = _triangular(root[last, last], right[last], transposed=True)
            found[first] = _triangular(
                root[first, first], right[first] - (found[last].T @ square).T, transposed=True
            )
        else:
            found[first] = _triangular(root[first, first], right[first])
            found[last] = _triangular(root[last, last], right[last] - square @ found[first])
        return found
    # the transpose of an array in C order is an upper triangle in LAPACK's order, without a copy
    found, _ = lapack.dtrtrs(root.T, right, lower=0, trans=0 if transposed else 1)
    return np.asarray(found, dtype=np.float64)


def _solved(root: Array, right: Array) -> Array:
    """``right`` times the inverse of the transpose of a triangle."""
    return _triangular(root, right.T).T


@cache
def _lower(m: int) -> NDArray[np.bool_]:
    return np.tri(m, dtype=bool)


def _pivoted(left: Array, variance: Array) -> tuple[Array, list[int], float]:
    """A Cholesky factor of ``left``, the largest relative pivots first: its columns, the pivots, and the
    negative variance, relative to its own, that was taken for zero.
    """
    m = len(left)
    variance = np.where(variance > 0, variance, 1.0)
    scale = np.sqrt(variance)
    relative = left / scale[:, None] / scale
    relative.flat[:: m + 1] = left.diagonal() / variance  # equal ones stay equal: the first of them is taken
    if relative.diagonal().max() <= PIVOT:
        columns, chosen, rest = np.zeros((m, 0)), [], relative.diagonal()
    else:
        factor, order, rank, _ = lapack.dpstrf(relative, tol=PIVOT, lower=1)
        chosen = [int(i) for i in order[:rank] - 1]
        columns = np.zeros((m, rank))
        columns[order - 1] = np.where(_lower(m), factor, 0.0)[:, :rank]
        rest = relative.diagonal() - (columns**2).sum(axis=1)
        rest[chosen] = 0.0
        columns *= scale[:, None]
    worst = float(rest.min())
    if not worst >= -CUT:
        raise NotPositive(
            f"a covariance is not positive: given the past, {worst:.3g} of a variance is left; the kernels "
            "are not those of a theory, or numbers have lost their accuracy"
        )
    return columns, chosen, max(-worst, 0.0)
