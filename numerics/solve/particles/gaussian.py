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

PIVOT = 1e-10
"""Relative innovation variance below which an entry follows from those before it."""


class Latents:
    """Normal numbers of one population: half of the paths from a scrambled Sobol sequence, half mirrored.

    In the mirrored half the numbers of ``flipped`` groups change sign and the others repeat, so that products
    of one of each average to zero exactly.  With ``matched``, numbers are made orthonormal over the paths and
    of zero mean, while that uses up less than a quarter of the freedom of the paths: then every second moment
    of the sources is exact.
    """

    def __init__(self, samples: int, dimensions: int, seed: np.random.SeedSequence, matched: bool) -> None:
        self.half = samples // 2
        with warnings.catch_warnings():  # sizes that are no power of two are balanced well enough
            warnings.simplefilter("ignore", UserWarning)
            points = qmc.Sobol(max(dimensions, 1), seed=np.random.default_rng(seed)).random(self.half)
        self.points = ndtri(points.T.clip(1e-12, 1 - 1e-12))
        self.used = 0
        self.matched = matched
        self.basis: dict[bool, list[Array]] = {False: [np.ones((1, self.half))], True: []}

    def draw(self, count: int, flipped: bool) -> Array:
        """The next ``count`` normal numbers of every path, shape ``(count, samples)``."""
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
    """The entries of a group so far: their pivots, the Cholesky factor of these, their normal numbers."""

    def __init__(self, latents: Latents, size: int, flipped: bool, floor: float) -> None:
        self.latents, self.size, self.flipped, self.floor = latents, size, flipped, floor
        self.factor = np.zeros((0, 0))
        self.pivots = np.zeros(0, dtype=int)
        self.strong = np.zeros(0, dtype=int)
        self.ranks: list[int] = []
        self.normals = np.zeros((0, 2 * latents.half))

    def extend(self, past: Array, now: Array) -> Array:
        """Values of the next ``size`` entries on every path.

        ``past`` is their covariance with all entries before, ``now`` with each other.
        Raises ValueError if the covariance is not positive.
        """
        k = len(self.pivots)
        rows = np.zeros((self.size, k))
        if k:
            rows = solve_triangular(self.factor, past[:, self.pivots].T, lower=True).T
        columns, chosen, left = _pivoted(now - rows @ rows.T, np.diag(now))
        values: Array = rows @ self.normals
        self.ranks.append(k + len(chosen))
        if chosen:
            z = self.latents.draw(len(chosen), self.flipped)
            values = values + columns @ z
            grown = np.zeros((k + len(chosen), k + len(chosen)))
            grown[:k, :k] = self.factor
            grown[k:, :k] = rows[chosen]
            grown[k:, k:] = columns[chosen]
            self.factor = grown
            self.normals = np.concatenate([self.normals, z])
            self.pivots = np.concatenate([self.pivots, past.shape[1] + np.array(chosen)])
            strong = [k + i for i, x in enumerate(left) if x > self.floor]
            self.strong = np.concatenate([self.strong, np.array(strong, dtype=int)])
        return values

    def responses(self, v: Array, entries: int) -> Array:
        """``<d v / d x>`` for the first ``entries`` entries ``x``; ``v`` has shape ``(count, samples)``.

        Stein's lemma for the normal numbers z that the entries are made of: ``<v z_j> = sum_i L_ij <d v / d
        x_i>``.  Only entries whose innovation is more than ``floor`` of their variance count: the others, up
        to that, are combinations of these, and their response is booked under these.
        """
        use = self.strong[self.pivots[self.strong] < entries]
        found = np.zeros((len(v), entries))
        if len(use):
            moments = v @ self.normals[use].T / v.shape[1]
            root = self.factor[np.ix_(use, use)]
            found[:, self.pivots[use]] = solve_triangular(root, moments.T, lower=True, trans="T").T
        return found


def _pivoted(left: Array, variance: Array) -> tuple[Array, list[int], list[float]]:
    """A Cholesky factor of ``left`` with the largest relative pivots first; columns, pivots, their sizes."""
    left = left.copy()
    scale = np.where(variance > 0, variance, 1.0)
    columns: list[Array] = []
    chosen: list[int] = []
    sizes: list[float] = []
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
        sizes.append(float(relative[i]))
    if len(left) and (np.diag(left) / scale).min() < -1e3 * PIVOT:
        worst = float((np.diag(left) / scale).min())
        raise ValueError(
            f"a covariance is not positive: given the past, {worst:.3g} of a variance is left; the kernels "
            "are not those of a theory, or numbers have lost their accuracy"
        )
    return (np.array(columns).T if columns else np.zeros((len(left), 0))), chosen, sizes
