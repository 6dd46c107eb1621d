"""Gaussian sources of one population, drawn step by step, each step conditionally on the past.

A group is a set of sources that are correlated with each other.  Its covariance grows by a block of rows each
step, and with it a Cholesky factor, in all replicas at once.  A new entry whose variance, given all entries
before it, is below ``PIVOT`` of its own variance follows from them: it needs no new normal number.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from numerics.arrays import CPU, Device, PathArray, transposed
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

BLOCK = 256
"""Dimensions of one Sobol sequence."""

CHUNK = 32
"""Dimensions whose points are made together: most of a block are never asked for."""


@lru_cache(maxsize=32)
def _directions(dimensions: int, bits: int) -> NDArray[np.uint32]:
    """What the first ``2**bits`` points of the Sobol sequence are sums of, modulo two in each of BITS bits.

    Shape ``(bits, dimensions, 1)``.  Point ``i`` is that before it plus number ``k``, the power of two in i.
    """
    from scipy.stats import qmc  # which takes a third of a second to import

    with warnings.catch_warnings():  # sizes that are no power of two are balanced well enough
        warnings.simplefilter("ignore", UserWarning)
        found = qmc.Sobol(dimensions, scramble=False, bits=BITS).random(2 ** max(bits - 1, 0) + 1)
    x = np.asarray(found * 2.0**BITS, dtype=np.uint32)
    return np.array([x[2**k] ^ x[2**k - 1] for k in range(bits)])[..., None]


class Scrambled:
    """Normal numbers from Sobol sequences with scrambled bits, one for each generator.

    Matousek's linear scrambling with a random shift, as in scipy.stats.qmc, which draws all of every matrix;
    here only its columns for bits that the points have, some tens of times fewer numbers.  As the scrambling
    is linear, the directions are scrambled and not the points.
    """

    def __init__(self, dimensions: int, points: int, rngs: Sequence[np.random.Generator]) -> None:
        self.points, self.bits = points, (points - 1).bit_length()
        x, one = _directions(dimensions, self.bits), (dimensions, 1)
        self.shift = np.empty((len(rngs), *one), dtype=np.uint32)
        self.directions = np.zeros((self.bits, len(rngs), *one), dtype=np.uint32)
        for i, rng in enumerate(rngs):
            self.shift[i] = rng.integers(2**BITS, size=one, dtype=np.uint32)
            for low in range(BITS - 1, BITS - 1 - self.bits, -1):
                column = rng.integers(2**low, 2 ** (low + 1), size=one, dtype=np.uint32)
                self.directions[:, i] ^= ((x >> low) & 1) * column

    def normals(self, some: slice) -> Array:
        """Those of some dimensions, shape ``(generators, dimensions, points)``."""
        shift = self.shift[:, some]
        y = np.empty((*shift.shape[:2], 2**self.bits), dtype=np.uint32)
        y[..., :1] = shift
        for k in range(self.bits):  # points are met in the order of the reflected Gray code
            n = 2**k
            np.bitwise_xor(y[..., :n][..., ::-1], self.directions[k, :, some], out=y[..., n : 2 * n])
        found: Array = ndtri((y[..., : self.points] + 0.5) / 2.0**BITS)
        return found


class Room:
    """Memory of replicas that are marched one after another, each of which asks for the same arrays.

    The first touch of new memory takes longer than what is done with it.
    """

    def __init__(self, device: Device = CPU) -> None:
        self.device = device
        self.arrays: list[PathArray] = []
        self.taken = 0

    def take(self, *shape: int) -> PathArray:
        """An array with whatever was in it."""
        if self.taken == len(self.arrays):
            self.arrays.append(self.device.empty(*shape))
        elif self.arrays[self.taken].shape != shape:
            self.arrays[self.taken] = self.device.empty(*shape)
        self.taken += 1
        return self.arrays[self.taken - 1]


class Latents:
    """Normal numbers of one population: half of the paths from scrambled points, half mirrored.

    In the mirrored half the numbers of ``flipped`` groups change sign and the others repeat, so that products
    of one of each average to zero exactly.  With ``matched``, the first numbers, as many as half of these
    paths, are orthonormal over the paths and of zero mean: then every second moment of the sources is exact.
    """

    def __init__(
        self,
        samples: int,
        dimensions: int,
        seeds: Sequence[np.random.SeedSequence],
        matched: bool,
        room: Room,
    ) -> None:
        self.half, self.seeds, self.device = samples // 2, seeds, room.device
        count = len(seeds)
        self.points = room.take(count, dimensions + CHUNK, self.half)
        self.made, self.used = 0, np.zeros(count, dtype=int)
        self.quota = self.half // 2 if matched else 0

    def more(self) -> None:
        """The next CHUNK dimensions, whatever the number of them all: finer grids begin with the same ones.

        A block beyond the first BLOCK is another scrambled sequence whose points are met in random order.
        """
        within = self.made % BLOCK
        if not within:
            rngs = [np.random.default_rng(seed.spawn(1)[0]) for seed in self.seeds]
            self.sequences = Scrambled(BLOCK, self.half, rngs)
            self.order = [rng.permutation(self.half) for rng in rngs] if self.made else None
        block = self.sequences.normals(slice(within, within + CHUNK))
        if self.order is not None:
            block = np.stack([x[:, order] for x, order in zip(block, self.order, strict=True)])
        self.points[:, self.made : self.made + CHUNK] = self.device.put(block)
        if (new := min(self.quota - self.made, CHUNK)) > 0:
            basis = self.points[:, : self.made]
            mine = self.points[:, self.made : self.made + new]
            for _ in range(2):  # twice, for orthogonality to rounding
                mine = mine - self.device.namespace.mean(mine, axis=2, keepdims=True)
                mine = mine - (mine @ transposed(basis) / self.half) @ basis
            root = np.linalg.cholesky(self.device.take(mine @ transposed(mine)) / self.half)
            self.points[:, self.made : self.made + new] = self.device.put(np.linalg.inv(root)) @ mine
        self.made += CHUNK

    def draw(self, counts: NDArray[np.intp]) -> PathArray:
        """The next ``counts`` normal numbers of each replica on the first half of the paths.

        Shape ``(replicas, largest count, samples / 2)``; what is beyond a count has no meaning.
        """
        while self.made < (self.used + counts).max():
            self.more()
        at = np.minimum(self.used[:, None] + np.arange(counts.max()), self.made - 1)
        found = self.points[np.arange(len(counts))[:, None], at]
        self.used += counts
        return found


class NotPositive(NotConverged):
    """A covariance that is not positive by more than CUT: numbers have lost their accuracy."""


class Growing:
    """The entries of a group so far, in all replicas: their Cholesky factors, and what they are made of.

    ``rows`` holds ``L`` of ``x = L z`` for all entries x, ``inverse`` that of its rows at the pivots, which
    are a triangle; a replica has zeros beyond its own ``rank``.  ``normals`` are z on the first half of the
    paths; on the other half z, and so x, is ``mirror`` times that.  ``cut`` is how far each covariance is
    from the nearest one that is positive, relative to a variance.  With a ``ridge`` there is ``damped``, the
    inverse of ``ridge + L^T D^-1 L`` with the variances D of the entries.
    """

    def __init__(self, latents: Latents, size: int, steps: int, flipped: bool, ridge: float) -> None:
        self.latents, self.size, self.ridge = latents, size, ridge
        self.mirror = -1.0 if flipped else 1.0
        count, most = len(latents.seeds), size * steps
        self.replicas = np.arange(count)[:, None]
        self.count = self.width = 0
        self.rank = np.zeros(count, dtype=int)
        self.ranks = [self.rank]
        self.cut = np.zeros(count)
        self.pivots = np.zeros((count, most), dtype=int)
        # zeros are pages that nobody has touched: what is beyond the width takes no memory
        self.rows, self.inverse = np.zeros((count, most, most)), np.zeros((count, most, most))
        self.damped = np.zeros((count, *((most, most) if ridge else (0, 0))))
        np.einsum("rii->ri", self.damped)[...] = 1 / ridge if ridge else 0.0
        self.variance = np.ones((count, most))
        self.device = latents.device
        self.normals = self.device.zeros(count, most, latents.half)

    def extend(self, past: Array, now: Array) -> PathArray:
        """Values of the next ``size`` entries on every path, ``(replicas, size, samples)``.

        ``past`` is their covariance with all entries before, ``now`` with each other, replicas first.
        Raises NotPositive for a covariance that is not.
        """
        n, m, k = self.count, self.size, self.width
        known = past.transpose(0, 2, 1)[self.replicas, self.pivots[:, :k]]
        solved = (self.inverse[:, :k, :k] @ known).transpose(0, 2, 1)
        variance = now.diagonal(axis1=1, axis2=2)
        variance = np.where(variance > 0, variance, 1.0)
        columns, chosen, cut = _pivoted(now - solved @ solved.transpose(0, 2, 1), variance)
        self.cut = np.maximum(self.cut, cut)
        if chosen.shape[1]:
            self._widen(solved, columns, chosen)
        else:
            self.rows[:, n : n + m, :k] = solved
        self.variance[:, n : n + m] = variance
        here = self.rows[:, n : n + m, : self.width]
        if self.ridge:  # by the formula of Woodbury
            inverse = self.damped[:, : self.width, : self.width]
            inverse -= _less(inverse, here / np.sqrt(variance)[..., None], 1.0)
        self.count += m
        self.ranks.append(self.rank)
        size = self.normals.shape[2]
        values = self.device.empty(len(past), m, 2 * size)
        half, other = values[:, :, :size], values[:, :, size:]
        self.device.namespace.matmul(self.device.put(here), self.normals[:, : self.width], out=half)
        self.device.namespace.multiply(half, self.mirror, out=other)
        return values

    def _widen(self, solved: Array, columns: Array, chosen: NDArray[np.intp]) -> None:
        """Room for new pivots, of each replica its own: with their rows ``(B, D)`` of L the inverse M of the
        triangle of all pivots gets the rows ``(-D^-1 B M, D^-1)``.
        """
        n, m, k = self.count, self.size, self.width
        dead = chosen < 0
        counts = chosen.shape[1] - dead.sum(axis=1)
        rank = self.rank + counts
        self.width = width = int(rank.max())
        rows = self.rows[:, n : n + m, :width]
        rows[:, :, :k] = solved
        triangle = columns[self.replicas, chosen]
        if dead.any():
            triangle[dead] = np.eye(chosen.shape[1])[np.nonzero(dead)[1]]
        root = np.linalg.inv(triangle)
        before = -root @ (solved[self.replicas, chosen] @ self.inverse[:, :k, :k])
        i, c = np.nonzero(~dead)
        at = self.rank[i] + c
        rows[i, :, at] = columns[i, :, c]
        self.inverse[i, at, :k] = before[i, c]
        j, c1, c2 = np.nonzero(~dead[:, :, None] & ~dead[:, None])
        self.inverse[j, self.rank[j] + c1, self.rank[j] + c2] = root[j, c1, c2]
        self.pivots[i, at] = n + chosen[i, c]
        self.normals[i, at] = self.latents.draw(counts)[i, c]
        self.rank = rank

    def responses(self, v: PathArray, entries: int) -> Array:
        """``<d v / d x>`` for the first entries x, replicas first; ``v`` has all paths on its last axis.

        Stein's lemma, ``<v x^T> = <d v / d x> C``, with the covariance C of the entries damped by the ridge:
        directions in which the sources hardly vary, of which the paths say nothing, count less.  As x is
        ``L z`` and C is ``L L^T``, ``<d v / d x> = <v z^T> (ridge + L^T D^-1 L)^-1 L^T D^-1``.  Without a
        ridge the lemma is taken in the range of C, as ``<v z^T> = <d v / d x> L``, and booked under pivots.
        """
        half = self.normals.shape[2]
        rank = self.ranks[entries // self.size]
        k = int(rank.max())
        folded = v[..., :half] + self.mirror * v[..., half:]
        moments = self.device.take(folded @ transposed(self.normals[:, :k])) / (2 * half)
        if not self.ridge:
            found = np.zeros((*v.shape[:2], entries))
            answer = moments @ self.inverse[:, :k, :k]
            for i, r in enumerate(rank):
                found[i][:, self.pivots[i, :r]] = answer[i, :, :r]
            return found
        inverse = self.damped[:, :k, :k]
        if entries < self.count:
            later = slice(entries, self.count)
            weight = np.sqrt(self.variance[:, later])
            inverse = inverse + _less(inverse, self.rows[:, later, :k] / weight[..., None], -1.0)
        rows = self.rows[:, :entries, :k].transpose(0, 2, 1)
        return np.asarray(moments @ inverse @ rows / self.variance[:, None, :entries])


def _less(inverse: Array, rows: Array, sign: float) -> Array:
    """What the inverse of a matrix loses when ``rows^T rows`` is added to it, or gains if taken away."""
    seen = rows @ inverse
    middle = np.eye(rows.shape[1]) + sign * (seen @ rows.transpose(0, 2, 1))
    part = np.linalg.inv(np.linalg.cholesky(middle)) @ seen  # a square, as what is not symmetric would grow
    return np.asarray(part.transpose(0, 2, 1) @ part)


def _pivoted(left: Array, variance: Array) -> tuple[Array, NDArray[np.intp], Array]:
    """Cholesky factors of ``left`` of each replica, the largest pivots, relative to a variance, first.

    The columns; the pivots, -1 where a replica has fewer of them; and the largest negative variance, relative
    to its own, that was taken for zero.
    """
    scale = np.sqrt(variance)
    rest = left / scale[:, :, None] / scale[:, None, :]
    count, m = variance.shape
    diagonal = np.einsum("rii->ri", rest)  # which writes into it
    diagonal[...] = left.diagonal(axis1=1, axis2=2) / variance  # equal ones stay equal: the first is taken
    replicas = np.arange(count)
    columns, chosen, found = np.empty((count, m, m)), np.empty((count, m), dtype=np.intp), 0
    while found < m and diagonal.max() > PIVOT:
        at = diagonal.argmax(axis=1)
        column = rest[replicas, at]
        top = column[replicas, at]
        new = top > PIVOT
        column = column / np.sqrt(np.where(new, top, np.inf))[:, None]
        rest -= column[:, :, None] * column[:, None, :]
        columns[:, :, found], chosen[:, found] = column * scale, np.where(new, at, -1)
        found += 1
    worst = diagonal.min(axis=1)
    if not (worst >= -CUT).all():
        raise NotPositive(
            f"a covariance is not positive: given the past, {worst.min():.3g} of a variance is left; the "
            "kernels are not those of a theory, or numbers have lost their accuracy"
        )
    return columns[:, :, :found], chosen[:, :found], np.maximum(-worst, 0.0)
