"""Gaussian sources of one population, drawn step by step, each step conditionally on the past.

A group is a set of sources that are correlated with each other.  Its covariance grows by a block of rows each
step, and with it a Cholesky factor, in all replicas at once.  A new entry whose variance, given all entries
before it, is below ``PIVOT`` of its own variance follows from them: it needs no new normal number.
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
    """Return the numbers that the first ``2**bits`` Sobol points are sums of: ``(bits, dimensions, 1)``."""
    return np.ascontiguousarray(directions(dimensions)[:, :bits].T)[..., None]


LARGE = 2**20
"""Numbers in an array whose pages are large."""

PENDING = 20
"""Rows by which an inverse is corrected before they are put into it: writing all of it takes longest."""


class Scrambled:
    """Points of Sobol sequences with scrambled bits, one for each generator.

    Matousek's linear scrambling with a random shift, as in numerics.sobol, which draws all of every matrix;
    here only its columns for bits that the points have, some tens of times fewer numbers.  As the scrambling
    is linear, the directions are scrambled and not the points.
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

    def uniform(self, some: slice) -> Array:
        """Points between zero and one, some dimensions, shape ``(generators, dimensions, points)``."""
        shift = self.shift[:, some]
        y = np.empty((*shift.shape[:2], 2**self.bits), dtype=np.uint32)
        y[..., :1] = shift
        for k in range(self.bits):  # points are met in the order of the reflected Gray code
            n = 2**k
            np.bitwise_xor(y[..., :n][..., ::-1], self.directions[k, :, some], out=y[..., n : 2 * n])
        found: Array = (y[..., : self.points] + 0.5) / 2.0**BITS
        return found


class Room:
    """Memory in few large arrays: its first touch takes longer than its use, unless pages are large."""

    def __init__(self, device: Device = CPU) -> None:
        self.device, self.used = device, LARGE

    def take(self, *shape: int) -> PathArray:
        """An array with whatever was in it."""
        count = prod(shape)
        if self.used + count > LARGE:
            self.block, self.used = self.device.empty(max(count, LARGE)), 0
        self.used += count
        return self.block[self.used - count : self.used].reshape(shape)


class Latents:
    """Normal numbers of one population, of scrambled points: ``points`` are those of the first paths.

    The other paths have the same numbers with other signs.  In half of all paths the numbers of ``flipped``
    groups change sign and the others repeat, so that products of one of each average to zero exactly.  In
    half of each half all numbers change sign if paths are ``paired``, so that odd functions of all sources
    average to zero exactly.  Even and odd functions alone gain nothing from pairs, which halve the number of
    points.

    With ``matched``, the first numbers, as many as half of the points, are orthonormal over the points and of
    zero mean: then every second moment of the sources is exact.  A replica with a part of the most
    ``samples`` has each of its paths several times over.
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
        """The signs of the numbers of a group in each part of the paths."""
        other = -1.0 if flipped else 1.0
        return (1.0, -1.0, other, -other) if self.paired else (1.0, other)

    def more(self) -> None:
        """The next CHUNK dimensions, whatever the number of them all: finer grids begin with the same ones.

        A block beyond the first BLOCK is another scrambled sequence whose points are met in random order.
        """
        within, now = self.made % BLOCK, slice(self.made, self.made + CHUNK)
        if not within:
            self.rngs = [np.random.default_rng(seed.spawn(1)[0]) for seed in self.seeds]
            self.sequences = [Scrambled(BLOCK, n, [self.rngs[i] for i in own]) for n, own in self.parts]
            self.order = [[self.rngs[i].permutation(n) for i in own] for n, own in self.parts if self.made]
        for k, (count, members) in enumerate(self.parts):
            own = members if self.parts[1:] else slice(None)  # a view, where all have as many paths
            block = self.sequences[k].uniform(slice(within, within + CHUNK))
            if self.order:
                block = np.stack([x[:, order] for x, order in zip(block, self.order[k], strict=True)])
            block = self.device.quantiles(self.device.put(block))
            block = self.device.namespace.tile(block, (1, 1, self.count // count))
            if self.matched and (new := min(count // 2 - self.made, CHUNK)) > 0:
                basis, mine = self.points[own, : self.made], block[:, :new]
                # once is orthogonal to rounding: scrambled points nearly are; in place, as new memory is slow
                mine -= self.device.namespace.mean(mine, axis=2, keepdims=True)
                mine -= (mine @ transposed(basis) / self.count) @ basis
                root = np.linalg.cholesky(self.device.take(mine @ transposed(mine)) / self.count)
                block[:, :new] = self.device.put(np.linalg.inv(root)) @ mine
            self.points[own, now] = block
        self.made += CHUNK

    def draw(self, live: NDArray[np.bool_]) -> PathArray:
        """The next normal numbers of each replica where it is ``live``, its first ones, and zeros elsewhere;
        shape ``(replicas, numbers, points)``.
        """
        counts = live.sum(axis=1)
        while self.made < (self.used + counts).max():
            self.more()
        at = np.minimum(self.used[:, None] + np.arange(live.shape[1]), self.made - 1)
        found = self.points[np.arange(len(counts))[:, None], at]
        if not live.all():
            found[~live] = 0.0
        self.used += counts
        return found


class NotPositive(NotConverged):
    """A covariance that is not positive by more than CUT: numbers have lost their accuracy."""


class Growing:
    """The entries of a group so far, in all replicas: their Cholesky factors, and what they are made of.

    ``rows`` holds ``L`` of ``x = L z`` for all entries x, ``inverse`` that of its rows at the ``pivots``, a
    triangle; a replica has zeros where others have a pivot more in a step.  ``normals`` are z at the points,
    and parts of the paths have them, and so x, with each of the ``signs``.  ``free`` counts the entries that
    do not follow from others after each step.  ``cut`` is how far each
    covariance is from the nearest one that is positive, relative to a variance.  With a ``ridge`` the inverse
    of ``ridge + L^T D^-1 L``, with the variances D of the entries, is ``damped`` less ``U^T U``, where U are
    ``pending`` rows of ``parts``.
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
        # zeros are pages that nobody has touched: what is beyond the width takes no memory
        self.rows, self.inverse, self.damped = self.device.zeros(3, count, most, most)
        if self.ridge:
            diagonal = self.damped.reshape(count, -1)[:, :: most + 1]
            diagonal[...] = self.device.put(1 / np.reshape(ridge, (-1, 1)))
        self.parts = self.device.zeros(count, size + PENDING, most)
        self.variance = np.ones((count, most))
        self.normals = room.take(count, most, latents.count)

    def extend(self, past: Array, now: Array) -> PathArray:
        """Values of the next entries, ``size`` or fewer, on every path, ``(replicas, entries, samples)``.

        ``past`` is their covariance with all entries before, ``now`` with each other, replicas first.
        Raises NotPositive for a covariance that is not.
        """
        n, m, k, put = self.count, now.shape[1], self.width, self.device.put
        at = np.ogrid[: len(now), :m, :0][:2]
        inverse = self.inverse[:, :k, :k]
        solved = put(past[*at, self.pivots[..., :k]]) @ transposed(inverse)
        variance = now.diagonal(axis1=1, axis2=2)
        variance = np.where(variance > 0, variance, 1.0)
        scale = np.sqrt(variance)[..., None]
        left = now - self.device.take(solved @ transposed(solved))
        columns, own, chosen, cut = _pivoted(left, variance, scale, self.least, next(self.given, None))
        self.chosen.append(chosen)
        self.cut = np.maximum(self.cut, cut)
        here = self.rows[:, n : n + m]
        here[..., :k] = solved
        if more := chosen.shape[1]:
            w = self.width = k + more
            self.pivots[:, 0, k:w] = n + chosen
            here[..., k:w] = put(columns)
            self.inverse[:, k:w, :k] = -(put(own) @ solved) @ inverse
            live = chosen >= 0
            corner = own[at[0], at[1][:, :more], chosen[:, None]] * live[:, None]
            self.inverse[:, k:w, k:w] = put(corner)
            self.normals[:, k:w] = self.latents.draw(live)
        self.variance[:, n : n + m] = variance
        here = here[..., : self.width]
        if self.ridge:  # written to seldom, as it is large
            rows = here / put(scale)
            part = self._less(self._damped(rows), rows, 1.0)
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
        """``x (ridge + L^T D^-1 L)^-1``."""
        parts = self.parts[:, : self.pending, : self.width]
        return x @ self.damped[:, : self.width, : self.width] - x @ transposed(parts) @ parts

    def _less(self, seen: PathArray, rows: PathArray, sign: float) -> PathArray:
        """P, where an inverse A loses ``P^T P`` when ``rows^T rows`` is added to its matrix, or gains that
        when it is taken away, by the formula of Woodbury; ``seen`` is ``rows A``.
        """
        middle = np.eye(rows.shape[1]) + sign * self.device.take(seen @ transposed(rows))  # a small square
        return self.device.put(np.linalg.inv(np.linalg.cholesky(middle))) @ seen

    def moments(self, v: PathArray) -> PathArray:
        """``<v z^T>`` with the normal numbers so far, replicas first; ``v`` has all paths last."""
        points = self.normals.shape[2]
        folded = v[..., :points]
        for k, sign in enumerate(self.signs[1:], 1):
            folded = folded + sign * v[..., k * points : (k + 1) * points]
        return folded @ transposed(self.normals[:, : self.width]) / (len(self.signs) * points)

    def responses(
        self, moments: PathArray, entries: int, present: Sequence[int] = (), *, damped: bool = True
    ) -> Array:
        """``<d v / d x>`` for the first entries x and those ``present``, which come after them.

        Replicas first, from the :meth:`moments` of v.  It is zero for entries between these, and for
        those that are not drawn yet; the last one is the last of a step.

        Stein's lemma, ``<v x^T> = <d v / d x> C``, with the covariance C of the entries damped by the ridge:
        directions in which the sources hardly vary, of which the paths say nothing, count less.  As x is
        ``L z`` and C is ``L L^T``, ``<d v / d x> = <v z^T> (ridge + L^T D^-1 L)^-1 L^T D^-1``.  Without a
        ridge the lemma is taken in the range of C, as ``<v z^T> = <d v / d x> L``, and booked under pivots.
        So it is where it is not to be ``damped`` though there is a ridge, but a replica of which one of these
        entries follows from others has nan: nothing tells them apart.
        """
        size = -(-max((entries, *(x + 1 for x in present))) // self.size) * self.size
        found = np.zeros((*moments.shape[:2], size))
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
                part = self._less(self._damped(rows), rows, -1.0)
                answer += moments @ transposed(part) @ part
            rows = transposed(self.rows[:, taken, :k])
            found[..., taken] = self.device.take(answer @ rows) / self.variance[:, None, taken]
            return found
        if len(taken) > first and len(left_out):  # pivots may be entries that are left out
            scale = np.sqrt(self.variance[:, taken])
            rows = self.device.take(self.rows[:, taken, :k]) / scale[..., None]
            inverse = np.linalg.pinv(rows, rcond=PIVOT**0.5)
            found[..., taken] = self.device.take(moments) @ inverse / scale[:, None]
            free = np.linalg.matrix_rank(rows, rtol=PIVOT**0.5)
        else:
            at = *np.ogrid[: moments.shape[0], : moments.shape[1], :0][:2], self.pivots[..., :k]
            np.add.at(found, at, self.device.take(moments @ self.inverse[:, :k, :k]))
            free = self.free[len(taken)]
        if not damped:
            found[free < len(taken)] = np.nan
        return found


def _pivoted(
    left: Array, variance: Array, scale: Array, least: float, given: NDArray[np.intp] | None = None
) -> tuple[Array, Array, NDArray[np.intp], Array]:
    """Cholesky factors L of ``left`` of each replica, the largest pivots, relative to a variance, first.

    Pivots above ``least`` are taken.  If pivots are ``given``, these are taken.

    The columns of L; what their normal numbers are of the entries; the pivots, -1 where a replica has fewer
    of them; and the largest negative variance, relative to its own, that was taken for zero.
    """
    count, m = variance.shape
    both = np.zeros((count, m, 2 * m))  # what is left, and which entries it is of
    rest, diagonal = both[..., :m], both.reshape(count, -1)[:, :: 2 * m + 1]
    np.divide(left, scale * transposed(scale), out=rest)
    diagonal[...] = left.diagonal(axis1=1, axis2=2) / variance  # equal ones stay equal: the first is taken
    both.reshape(count, -1)[:, m :: 2 * m + 1] = 1.0
    replicas, rows = np.arange(count), np.empty((count, m, 2 * m))
    chosen, found = np.empty((count, m), dtype=np.intp), 0
    while found < m and diagonal.max() > least if given is None else found < given.shape[1]:
        at = diagonal.argmax(axis=1) if given is None else given[:, found]
        row, top = both[replicas, at], diagonal[replicas, at]
        new = top > least if given is None else (at >= 0) & (top > 0)
        row /= np.sqrt(np.where(new, top, np.inf))[:, None]
        both -= row[:, :m, None] * row[:, None]
        rows[:, found], chosen[:, found] = row, np.where(new, at, -1)
        found += 1
    worst = diagonal.min(axis=1)
    if not (worst >= -CUT).all():
        raise NotPositive(
            f"a covariance is not positive: given the past, {worst.min():.3g} of a variance is left; the "
            "kernels are not those of a theory, or numbers have lost their accuracy"
        )
    rows, chosen = rows[:, :found], chosen[:, :found]
    columns, own = transposed(rows[..., :m]) * scale, rows[..., m:] / transposed(scale)
    return columns, own, chosen, np.maximum(-worst, 0.0)
