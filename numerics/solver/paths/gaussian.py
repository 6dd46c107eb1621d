"""Gaussian sources of one population, drawn step by step, conditional on the past.

A group is a set of correlated sources. Its covariance grows by a block of rows in each step, and with it a
Cholesky factor, in all replicas at once. A new entry whose conditional variance is below ``PIVOT`` of its own
variance is determined by the earlier ones and needs no new normal number. The march of sampled paths draws
its sources with this factor, and computes responses by Stein's lemma with the same factor.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerics.arrays import CPU, Device, PathArray, transposed
from numerics.errors import NotConverged
from numerics.sobol import BITS, directions

Array = NDArray[np.float64]

PIVOT = 1e-7
"""Ratio of conditional variance to variance below which an entry is determined by those before it.

With smaller pivots rounding errors make entries jointly dependent, as at close times of a flow: with 1e-8 a
few seeds in a hundred had a conditional variance of -1e-3 of a variance.
"""

CUT = 1e-3
"""Negative conditional variances up to this ratio to the variance are set to zero, and counted as bias."""

BLOCK = 256
"""Number of dimensions of one Sobol sequence."""

CHUNK = 32
"""Number of dimensions whose points are computed together; most dimensions of a block are never used."""


@lru_cache(maxsize=32)
def _directions(dimensions: int, bits: int) -> NDArray[np.uint32]:
    """Return the direction numbers of which the first ``2**bits`` Sobol points are sums (modulo 2).

    The shape is ``(bits, dimensions, 1)``.
    """
    return np.ascontiguousarray(directions(dimensions)[:, :bits].T)[..., None]


LARGE = 2**20
"""Number of entries from which on an array gets large pages of memory."""

PENDING = 20
"""Number of rows of a low-rank correction before it is added to the inverse, which is slow to write."""


class Scrambled:
    """Sobol sequences with scrambled bits, one for each generator of ``rngs``.

    Each has ``points`` points of ``dimensions`` dimensions. Matousek's linear scrambling with a random shift,
    as in numerics.sobol, which draws complete matrices; here only their columns for bits of the points are
    drawn, some tens of times fewer numbers. Scrambling is linear, so that the directions are scrambled and
    not the points.
    """

    def __init__(self, dimensions: int, points: int, rngs: Sequence[np.random.Generator]) -> None:
        self.points, self.bits = points, (points - 1).bit_length()
        x, one = _directions(dimensions, self.bits), (dimensions, 1)
        self.shift = np.empty((len(rngs), *one), dtype=np.uint32)
        lows = range(BITS - 1, BITS - 1 - self.bits, -1)
        columns = np.empty((len(lows), len(rngs), *one), dtype=np.uint32)
        for i, rng in enumerate(rngs):
            self.shift[i] = rng.integers(2**BITS, size=one, dtype=np.uint32)
            for k, low in enumerate(lows):
                columns[k, i] = rng.integers(2**low, 2 ** (low + 1), size=one, dtype=np.uint32)
        self.directions = np.zeros((self.bits, len(rngs), *one), dtype=np.uint32)
        for low, column in zip(lows, columns, strict=True):
            self.directions ^= ((x >> low) & 1)[:, None] * column

    def uniform(self, dimensions: slice) -> Array:
        """Return points in (0, 1) of these dimensions, shape ``(generators, dimensions, points)``."""
        shift = self.shift[:, dimensions]
        y = np.empty((*shift.shape[:2], 2**self.bits), dtype=np.uint32)
        y[..., :1] = shift
        # In the order of the Gray code, the number of points is doubled by a copy of all points so far in
        # reverse order. In each dimension, all points of the copy are combined (xor) with one direction
        # number.
        for k in range(self.bits):
            n = 2**k
            np.bitwise_xor(y[..., :n][..., ::-1], self.directions[k, :, dimensions], out=y[..., n : 2 * n])
        coordinates: Array = (y[..., : self.points] + 0.5) / 2.0**BITS
        return coordinates


class Room:
    """Allocator of arrays as parts of few large blocks of memory, which the next march uses again.

    The memory is that of ``device``. The first write to new memory is slow, so that many small allocations
    would cost time, and so would new memory for each of the marches of a search.
    """

    def __init__(self, device: Device = CPU) -> None:
        self.device = device
        self.blocks: list[PathArray] = []
        self.free: list[PathArray] = []
        self.used = 0

    def clear(self) -> None:
        """Mark the memory of all arrays as free, so that arrays taken later overwrite them."""
        self.free, self.blocks, self.used = [*self.free, *self.blocks], [], 0

    def release(self) -> None:
        """Drop the blocks of memory that are free, so that they are not used again."""
        self.free.clear()

    def take(self, *shape: int) -> PathArray:
        """Return an uninitialised array of this shape, a part of a large block of memory."""
        count = prod(shape)
        if not self.blocks or self.used + count > len(self.blocks[-1]):
            self.blocks.append(self._block(count))
            self.used = 0
        self.used += count
        return self.blocks[-1][self.used - count : self.used].reshape(shape)

    def _block(self, count: int) -> PathArray:
        """Return the smallest free block of at least ``count`` numbers, or else a new one."""
        fitting = [k for k, block in enumerate(self.free) if len(block) >= count]
        if fitting:
            return self.free.pop(min(fitting, key=lambda k: len(self.free[k])))
        return self.device.empty(max(count, LARGE))


class Latents:
    """Independent normal numbers for the sources of one population, from scrambled Sobol points.

    ``samples`` are the numbers of paths of the replicas, one for each of ``seeds``. ``points`` holds the
    numbers of the first paths, shape (replicas, dimensions, points). The other paths have the same numbers
    with other signs. In half of all paths the numbers of some groups of sources, the flipped ones, change
    sign and those of other groups do not, so that the product of a number of a flipped group and one of
    another group averages to zero exactly. If paths are ``paired``, all numbers change sign in half of each
    half, so that odd functions of all sources average to zero exactly. Functions that are even or odd gain
    nothing from pairs, which halve the number of points.

    With ``matched``, the first numbers, as many as half of the points, are orthonormal over the points and
    have mean zero, so that second moments of sources made of these numbers are exact. A replica with fewer
    paths than the largest one has each of its paths several times.
    """

    def __init__(
        self,
        samples: Sequence[int],
        dimensions: int,
        seeds: Sequence[np.random.SeedSequence],
        matched: bool,
        room: Room,
        paired: bool = False,
    ) -> None:
        copies = 4 if paired else 2
        self.count, self.seeds, self.device, self.paired = max(samples) // copies, seeds, room.device, paired
        self.points = room.take(len(seeds), dimensions + CHUNK, self.count)
        self.made, self.used = 0, np.zeros(len(seeds), dtype=int)
        numbers = np.array(samples)
        self.parts = [(n // copies, np.flatnonzero(numbers == n)) for n in {*samples}]
        self.matched = matched

    def signs(self, flipped: bool) -> tuple[float, ...]:
        """Return the signs of the numbers of a group in each part of the paths, relative to the first part.

        There are two parts, or four if paths are paired. ``flipped`` states whether half of the paths have
        opposite values of the group.
        """
        other = -1.0 if flipped else 1.0
        return (1.0, -1.0, other, -other) if self.paired else (1.0, other)

    def more(self) -> None:
        """Generate normal numbers of the next CHUNK dimensions; finer time grids begin with the same ones.

        Each block of BLOCK dimensions after the first is another scrambled sequence, with its points in
        random order.
        """
        within, now = self.made % BLOCK, slice(self.made, self.made + CHUNK)
        if not within:
            self.rngs = [np.random.default_rng(seed.spawn(1)[0]) for seed in self.seeds]
            self.sequences = [
                Scrambled(BLOCK, n, [self.rngs[i] for i in selection]) for n, selection in self.parts
            ]
            self.order = [
                [self.rngs[i].permutation(n) for i in selection] for n, selection in self.parts if self.made
            ]
        for k, (count, members) in enumerate(self.parts):
            # A part is the set of replicas with the same number of paths. If there is only one part, it has
            # all replicas, and a slice selects them without a copy.
            selection = members if self.parts[1:] else slice(None)
            block = self.sequences[k].uniform(slice(within, within + CHUNK))
            if self.order:
                block = np.stack([x[:, order] for x, order in zip(block, self.order[k], strict=True)])
            block = self.device.quantiles(self.device.put(block))
            block = self.device.namespace.tile(block, (1, 1, self.count // count))
            if self.matched and (new := min(count // 2 - self.made, CHUNK)) > 0:
                basis, new_rows = self.points[selection, : self.made], block[:, :new]
                # Gram-Schmidt in place, with a constant and all earlier rows; one pass suffices, because
                # scrambled points are nearly orthogonal.
                new_rows -= self.device.namespace.mean(new_rows, axis=2, keepdims=True)
                new_rows -= (new_rows @ transposed(basis) / self.count) @ basis
                root = np.linalg.cholesky(self.device.take(new_rows @ transposed(new_rows)) / self.count)
                block[:, :new] = self.device.put(np.linalg.inv(root)) @ new_rows
            self.points[selection, now] = block
        self.made += CHUNK

    def draw(self, live: NDArray[np.bool_]) -> PathArray:
        """Return the next normal numbers of each replica where ``live`` is true, and zeros elsewhere.

        ``live`` has shape (replicas, numbers), the result ``(replicas, numbers, points)``.
        """
        counts = live.sum(axis=1)
        while self.made < (self.used + counts).max():
            self.more()
        at = np.minimum(self.used[:, None] + np.arange(live.shape[1]), self.made - 1)
        numbers = self.points[np.arange(len(counts))[:, None], at]
        if not live.all():
            numbers[~live] = 0.0
        self.used += counts
        return numbers


class NotPositive(NotConverged):
    """Raised for a covariance of sources that is not positive semidefinite.

    A conditional variance, given the past, is then below -CUT times the variance or, for the pivots that a
    march with a perturbation is given, not positive.
    """


class Growing:
    """Gaussian sources of a group at all steps so far: Cholesky factor and normal numbers of each replica.

    An entry is one source at one step and index. The group has ``size`` entries at each of at most ``steps``
    steps; ``flipped`` states whether half of the paths have opposite values of it. All entries are x = L z
    with normal numbers z. ``rows`` is L, ``inverse`` the inverse of its rows at the ``pivots``, a triangle; a
    replica has zeros where others have one more pivot in a step. ``normals`` are z at the points, and each
    part of the paths has them with one of the ``signs``. ``free`` is the number of entries that are not
    determined by others, by number of entries so far. ``cut`` is the largest negative conditional variance
    that was set to zero in each replica, relative to the variance. With a ``ridge``, a number for each
    replica, the inverse of ``ridge + L^T D^-1 L``, with the variances D of the entries, is ``damped`` minus
    ``U^T U``, where U are ``pending`` rows of ``parts``.
    """

    def __init__(
        self, latents: Latents, size: int, steps: int, flipped: bool, ridge: Any, room: Room
    ) -> None:
        self.latents, self.size, self.ridge = latents, size, bool(np.any(ridge))
        self.signs = latents.signs(flipped)
        count, most = len(latents.seeds), size * steps
        self.count = self.width = self.pending = 0
        self.widths = {0: 0}
        self.free = {0: np.zeros(count, dtype=np.intp)}
        self.cut = np.zeros(count)
        self.pivots = np.zeros((count, 1, most), dtype=np.intp)
        self.device = latents.device
        self.chosen: list[NDArray[np.intp]] = []
        self.least = PIVOT
        self.given: Iterator[NDArray[np.intp]] = iter(())
        # numpy.zeros takes memory only where it is written, so that on the CPU entries that are never reached
        # need no memory
        self.rows, self.inverse, self.damped = self.device.zeros(3, count, most, most)
        if self.ridge:
            diagonal = self.damped.reshape(count, -1)[:, :: most + 1]
            diagonal[...] = self.device.put(1 / np.reshape(ridge, (-1, 1)))
        self.parts = self.device.zeros(count, size + PENDING, most)
        self.variance = np.ones((count, most))
        self.normals = room.take(count, most, latents.count)

    def extend(self, past: Array, now: Array) -> PathArray:
        """Return values of the next entries on every path, shape ``(replicas, entries, samples)``.

        ``past`` is their covariance with all earlier entries, ``now`` with each other, replicas first. The
        Cholesky factor grows by ``L_new = past L^-T`` and the pivoted factor of the conditional covariance
        ``now - L_new L_new^T``. Raises NotPositive if that is not positive semidefinite.
        """
        n, m, k, to_device = self.count, now.shape[1], self.width, self.device.put
        at = np.ogrid[: len(now), :m, :0][:2]
        inverse = self.inverse[:, :k, :k]
        solved = to_device(past[*at, self.pivots[..., :k]]) @ transposed(inverse)
        variance = now.diagonal(axis1=1, axis2=2)
        variance = np.where(variance > 0, variance, 1.0)
        scale = np.sqrt(variance)[..., None]
        left = now - self.device.take(solved @ transposed(solved))
        columns, inverse_of_new, chosen, cut = _pivoted(
            left, variance, scale, self.least, next(self.given, None)
        )
        self.chosen.append(chosen)
        self.cut = np.maximum(self.cut, cut)
        here = self.rows[:, n : n + m]
        here[..., :k] = solved
        if more := chosen.shape[1]:
            w = self.width = k + more
            self.pivots[:, 0, k:w] = n + chosen
            here[..., k:w] = to_device(columns)
            self.inverse[:, k:w, :k] = -(to_device(inverse_of_new) @ solved) @ inverse
            live = chosen >= 0
            corner = inverse_of_new[at[0], at[1][:, :more], chosen[:, None]] * live[:, None]
            self.inverse[:, k:w, k:w] = to_device(corner)
            self.normals[:, k:w] = self.latents.draw(live)
        self.variance[:, n : n + m] = variance
        here = here[..., : self.width]
        if self.ridge:  # rows are collected, and the large inverse is written only after PENDING of them
            rows = here / to_device(scale)
            part = self._rank_update(self._damped(rows), rows, 1.0)
            self.parts[:, self.pending : self.pending + m, : self.width] = part
            self.pending += m
            if self.pending > PENDING:
                parts, self.pending = self.parts[:, : self.pending, : self.width], 0
                self.damped[:, : self.width, : self.width] -= transposed(parts) @ parts
        self.count += m
        self.widths[self.count] = self.width
        self.free[self.count] = self.free[self.count - m] + (chosen >= 0).sum(axis=1)
        points = self.latents.count
        values = self.device.empty(len(past), m, len(self.signs) * points)
        first, *others = (values[..., k * points : (k + 1) * points] for k in range(len(self.signs)))
        self.device.namespace.matmul(here, self.normals[:, : self.width], out=first)
        for sign, part in zip(self.signs[1:], others, strict=True):
            self.device.namespace.multiply(first, sign, out=part)
        return values

    def _damped(self, x: PathArray) -> PathArray:
        """Return ``x (ridge + L^T D^-1 L)^-1`` for rows ``x`` over the normal numbers, replicas first.

        L is the Cholesky factor of the covariance of the sources and D the diagonal matrix of their
        variances.
        """
        parts = self.parts[:, : self.pending, : self.width]
        return x @ self.damped[:, : self.width, : self.width] - x @ transposed(parts) @ parts

    def _rank_update(self, product: PathArray, rows: PathArray, sign: float) -> PathArray:
        """Return P such that an inverse A loses ``P^T P`` if ``rows^T rows`` is added to the matrix.

        This is Woodbury's formula. With ``sign`` -1 the rows are subtracted and the inverse gains ``P^T P``.
        ``product`` is ``rows A``.
        """
        # The matrix 1 + sign rows A rows^T of Woodbury's formula in each replica. Its size is the number of
        # ``rows``, which is small.
        middle = np.eye(rows.shape[1]) + sign * self.device.take(product @ transposed(rows))
        return self.device.put(np.linalg.inv(np.linalg.cholesky(middle))) @ product

    def moments(self, v: PathArray, start: int = 0) -> PathArray:
        """Return ``<v z^T>``, the averages over all paths of values v times normal numbers z.

        ``v`` has shape (replicas, entries, paths), the result (replicas, entries, numbers). ``start`` is the
        position of the first normal number in the result.
        """
        points = self.normals.shape[2]
        folded = v[..., :points]
        for k, sign in enumerate(self.signs[1:], 1):
            folded = folded + sign * v[..., k * points : (k + 1) * points]
        return folded @ transposed(self.normals[:, start : self.width]) / (len(self.signs) * points)

    def responses(
        self, moments: PathArray, entries: int, present: Sequence[int] = (), *, damped: bool = True
    ) -> Array:
        """Return ``<d v / d x>`` for sources x of the group, shape (replicas, entries of v, entries x).

        ``moments`` are those of v (:meth:`moments`). Responses are computed to the first ``entries`` entries
        x and to those at the positions ``present``, which come after them. The result is zero for entries
        between these, and for entries that are not drawn yet. The length
        of the last axis is a multiple of the number of entries of one step.

        Stein's lemma is ``<v x^T> = <d v / d x> C``, with the covariance C of the entries, to which a ridge
        is added: directions in which the sources hardly vary, of which the paths contain no information, are
        weighted less. As x is ``L z`` and C is ``L L^T``, ``<d v / d x> = <v z^T> (ridge + L^T D^-1 L)^-1 L^T
        D^-1``. Without a ridge, or if ``damped`` is false, the lemma is solved in the range of C, as ``<v
        z^T> = <d v / d x> L``: by a pseudo-inverse of L if ``present`` is given and entries are left out, and
        otherwise such that only pivots have responses. If ``damped`` is false, a replica in which one of
        these entries is determined by others has NaN, because the single responses are undetermined.
        """
        size = -(-max((entries, *(x + 1 for x in present))) // self.size) * self.size
        responses = np.zeros((*moments.shape[:2], size))
        first = min(entries, self.count)
        taken = np.array([*range(first), *(x for x in present if x < self.count)], dtype=np.intp)
        later = {*range(first, self.count)} - {*present}
        left_out = np.array(sorted(later), dtype=np.intp)
        ridge = self.ridge and damped
        k = self.width if ridge or len(taken) > first else self.widths[first]
        moments = moments[..., :k]
        if ridge:
            answer = self._damped(moments)
            if len(left_out):
                scale = self.device.put(np.sqrt(self.variance[:, left_out, None]))
                rows = self.rows[:, left_out, :k] / scale
                part = self._rank_update(self._damped(rows), rows, -1.0)
                answer += moments @ transposed(part) @ part
            rows = transposed(self.rows[:, taken, :k])
            responses[..., taken] = self.device.take(answer @ rows) / self.variance[:, None, taken]
            return responses
        # ``self.inverse`` is the inverse of the Cholesky factor of all pivots. If entries up to
        # ``self.count`` are not in ``taken``, some pivots may be among them, and the responses follow from a
        # pseudo-inverse for ``taken`` instead.
        if len(taken) > first and len(left_out):
            scale = np.sqrt(self.variance[:, taken])
            rows = self.device.take(self.rows[:, taken, :k]) / scale[..., None]
            inverse = np.linalg.pinv(rows, rcond=PIVOT**0.5)
            responses[..., taken] = self.device.take(moments) @ inverse / scale[:, None]
            free = np.linalg.matrix_rank(rows, rtol=PIVOT**0.5)
        else:
            at = *np.ogrid[: moments.shape[0], : moments.shape[1], :0][:2], self.pivots[..., :k]
            np.add.at(responses, at, self.device.take(moments @ self.inverse[:, :k, :k]))
            free = self.free[len(taken)]
        if not damped:
            responses[free < len(taken)] = np.nan
        return responses


def _pivoted(
    covariances: Array,
    variance: Array,
    scale: Array,
    least: float,
    given_pivots: NDArray[np.intp] | None = None,
) -> tuple[Array, Array, NDArray[np.intp], Array]:
    """Return Cholesky factors L of ``covariances`` in each replica, with pivots.

    The next pivot is the entry with the largest ratio of its conditional variance, given the earlier pivots,
    to its ``variance``. Pivots are taken while a ratio is above ``least``; or they are the ``given_pivots``,
    in this order. ``scale`` are the roots of the variances. The results are the columns of L; the inverse,
    which gives normal numbers from entries; the pivots, -1 if a replica has fewer; and, for each replica, the
    size of the most negative ratio, which is set to zero. Raises NotPositive if a ratio is below -CUT, or if
    that of a given pivot is not positive.
    """
    count, m = variance.shape
    # `both` holds two matrices side by side: the covariance that remains after each pivot, and the factors
    # with which its rows are combinations of the original rows.
    both = np.zeros((count, m, 2 * m))
    rest, diagonal = both[..., :m], both.reshape(count, -1)[:, :: 2 * m + 1]
    np.divide(covariances, scale * transposed(scale), out=rest)
    # The diagonal is divided by the variance and not by the product of two square roots of the variance:
    # rounding of this product would make equal ratios differ. Without `given_pivots`, the first one of equal
    # ratios becomes the pivot.
    diagonal[...] = covariances.diagonal(axis1=1, axis2=2) / variance
    both.reshape(count, -1)[:, m :: 2 * m + 1] = 1.0
    replicas, rows = np.arange(count), np.empty((count, m, 2 * m))
    chosen, count_of_pivots = np.empty((count, m), dtype=np.intp), 0
    while (
        count_of_pivots < m and diagonal.max() > least
        if given_pivots is None
        else count_of_pivots < given_pivots.shape[1]
    ):
        at = diagonal.argmax(axis=1) if given_pivots is None else given_pivots[:, count_of_pivots]
        row, top = both[replicas, at], diagonal[replicas, at]
        new = top > least if given_pivots is None else at >= 0
        if given_pivots is not None and not (top > 0)[new].all():
            raise NotPositive(
                "in the march with a perturbation, the conditional variance of a source given the past is "
                f"{top[new].min():.3g} of its variance, but it is positive without the perturbation; use "
                "more samples"
            )
        row /= np.sqrt(np.where(new, top, np.inf))[:, None]
        both -= row[:, :m, None] * row[:, None]
        rows[:, count_of_pivots], chosen[:, count_of_pivots] = row, np.where(new, at, -1)
        count_of_pivots += 1
    worst = diagonal.min(axis=1)
    if not (worst >= -CUT).all():
        raise NotPositive(
            "a covariance of sources is not positive semidefinite: the conditional variance given the past "
            f"is {worst.min():.3g} of the variance; the given kernels are not positive semidefinite, "
            "samples are too few, or rounding errors are too large"
        )
    rows, chosen = rows[:, :count_of_pivots], chosen[:, :count_of_pivots]
    columns, inverse = transposed(rows[..., :m]) * scale, rows[..., m:] / transposed(scale)
    return columns, inverse, chosen, np.maximum(-worst, 0.0)
