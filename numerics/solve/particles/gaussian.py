"""Gaussian sources of one population, drawn step by step, each step conditionally on the past.

A group is a set of sources that are correlated with each other.  Its covariance grows by a block of rows each
step, and with it a Cholesky factor.  A new entry whose variance, given all entries before it, is below
``PIVOT`` of its own variance follows from them: it needs no new normal number.
"""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.special import ndtri
from scipy.stats import qmc

Array = NDArray[np.float64]

PIVOT = 1e-8
"""Relative innovation variance below which an entry follows from those before it."""

BLOCK = 256
"""Dimensions of one Sobol sequence."""


class Latents:
    """Normal numbers of one population: half of the paths from a scrambled Sobol sequence, half mirrored.

    In the mirrored half the numbers of ``flipped`` groups change sign and the others repeat, so that products
    of one of each average to zero exactly.  With ``matched``, numbers are made orthonormal over the paths and
    of zero mean, while that uses up less than a quarter of the freedom of the paths: then every second moment
    of the sources is exact.
    """

    def __init__(self, samples: int, dimensions: int, seed: np.random.SeedSequence, matched: bool) -> None:
        self.half = samples // 2
        self.points = np.empty((dimensions, self.half))
        self.seed = seed
        self.made = self.used = 0
        self.matched = matched
        self.basis: dict[bool, list[Array]] = {False: [np.ones((1, self.half))], True: []}

    def more(self) -> None:
        """The next BLOCK dimensions, whatever the number of them all: finer grids begin with the same ones.

        A block beyond the first is another scrambled sequence whose points are met in random order.
        """
        rng = np.random.default_rng(self.seed.spawn(1)[0])
        with warnings.catch_warnings():  # sizes that are no power of two are balanced well enough
            warnings.simplefilter("ignore", UserWarning)
            block = qmc.Sobol(BLOCK, seed=rng).random(self.half)
        if self.made:
            block = block[rng.permutation(self.half)]
        new = min(BLOCK, len(self.points) - self.made)
        self.points[self.made : self.made + new] = ndtri(block.T[:new].clip(1e-12, 1 - 1e-12))
        self.made += new

    def draw(self, count: int, flipped: bool) -> Array:
        """The next ``count`` normal numbers of every path, shape ``(count, samples)``."""
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
            root = np.linalg.cholesky(z @ z.T / self.half)
            z = solve_triangular(root, z, lower=True)
            basis.append(z)
        return np.concatenate([z, -z if flipped else z], axis=1)


class Growing:
    """The entries of a group so far: their Cholesky factor, and the normal numbers that they are made of.

    ``rows`` holds ``L`` of ``x = L z`` for all entries x, ``factor`` its rows at the pivots, which are a
    triangle.  ``damped`` is the Cholesky factor of the covariance with ``ridge`` of each variance added.
    """

    def __init__(self, latents: Latents, size: int, steps: int, flipped: bool, ridge: float) -> None:
        self.latents, self.size, self.flipped, self.ridge = latents, size, flipped, ridge
        most = size * steps
        self.count = self.rank = 0
        self.pivots = np.zeros(most, dtype=int)
        self.rows, self.factor = np.zeros((most, most)), np.zeros((most, most))
        self.damped = np.zeros((most, most) if ridge else (0, 0))
        self.normals = np.zeros((most, 2 * latents.half))

    def extend(self, past: Array, now: Array) -> Array:
        """Values of the next ``size`` entries on every path.

        ``past`` is their covariance with all entries before, ``now`` with each other.
        Raises ValueError if the covariance is not positive.
        """
        k, n, m = self.rank, self.count, self.size
        rows = _solved(self.factor[:k, :k], past[:, self.pivots[:k]])
        columns, chosen = _pivoted(now - rows @ rows.T, np.diag(now))
        self.rows[n : n + m, :k] = rows
        if chosen:
            new = slice(k, k + len(chosen))
            self.rows[n : n + m, new] = columns
            self.normals[new] = self.latents.draw(len(chosen), self.flipped)
            self.pivots[new] = n + np.array(chosen)
            self.factor[new] = self.rows[self.pivots[new]]
            self.rank += len(chosen)
        if self.ridge:
            self._damp(past, now)
        self.count += m
        values: Array = self.rows[n : n + m, : self.rank] @ self.normals[: self.rank]
        return values

    def _damp(self, past: Array, now: Array) -> None:
        n, m = self.count, self.size
        variance = np.diag(now)
        rows = _solved(self.damped[:n, :n], past)
        left = now + np.diag(self.ridge * np.where(variance > 0, variance, 1.0)) - rows @ rows.T
        self.damped[n : n + m, :n] = rows
        self.damped[n : n + m, n : n + m] = np.linalg.cholesky(left)

    def responses(self, v: Array, entries: int) -> Array:
        """``<d v / d x>`` for the first ``entries`` entries ``x``; ``v`` has shape ``(count, samples)``.

        Stein's lemma, ``<v x^T> = <d v / d x> C``, with the covariance C of the entries damped by the ridge:
        directions in which the sources hardly vary, of which the paths say nothing, count less.  Without a
        ridge the lemma is taken in the range of C, as ``<v z^T> = <d v / d x> L``, and booked under pivots.
        """
        k = int(np.searchsorted(self.pivots[: self.rank] // self.size, entries // self.size))
        moments = v @ self.normals[:k].T / v.shape[1]
        found = np.zeros((len(v), entries))
        if self.ridge:
            root = self.damped[:entries, :entries]
            half = solve_triangular(root, self.rows[:entries, :k] @ moments.T, lower=True)
            found = solve_triangular(root, half, lower=True, trans="T").T
        elif k:
            root = self.factor[:k, :k]
            found[:, self.pivots[:k]] = solve_triangular(root, moments.T, lower=True, trans="T").T
        return found


def _solved(root: Array, right: Array) -> Array:
    """``right`` times the inverse of the transpose of a triangle."""
    if not len(root):
        return np.zeros((len(right), 0))
    found: Array = solve_triangular(root, right.T, lower=True).T
    return found


def _pivoted(left: Array, variance: Array) -> tuple[Array, list[int]]:
    """A Cholesky factor of ``left``, the largest relative pivots first: its columns and the pivots."""
    left = left.copy()
    scale = np.where(variance > 0, variance, 1.0)
    columns: list[Array] = []
    chosen: list[int] = []
    while len(chosen) < len(left):
        relative = np.diag(left) / scale
        i = int(np.argmax(relative))
        if relative[i] <= PIVOT:
            break
        column = left[:, i] / np.sqrt(left[i, i])
        column[chosen] = 0.0
        left = left - np.outer(column, column)
        left[i, :] = left[:, i] = 0.0
        columns.append(column)
        chosen.append(i)
    worst = float((np.diag(left) / scale).min()) if len(left) else 0.0
    if worst < -1e3 * PIVOT:
        raise ValueError(
            f"a covariance is not positive: given the past, {worst:.3g} of a variance is left; the kernels "
            "are not those of a theory, or numbers have lost their accuracy"
        )
    return np.array(columns).T if columns else np.zeros((len(left), 0)), chosen
