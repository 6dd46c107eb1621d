"""Averages of products of derivatives of phi at one layer, for all tuples of samples."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri
from scipy.stats import qmc
from sympy import Lambda, Mul

from numerics.averages import tensors
from numerics.averages.panels import compiled, expression

Array = NDArray[np.float64]
Pattern = tuple[tuple[int, ...], ...]
"""For each sample, the orders of the derivatives of phi that stand at it."""


PAIRS = 2
"""Averages over so many samples, or fewer, are never sampled."""


@dataclass(frozen=True)
class Points:
    """How averages over many samples are found where quadrature is too long: ``count`` points, and seeds."""

    count: int
    seeds: tuple[int, ...]

    def of(self, covariance: Array, layer: int) -> Array:
        """Points of the sources of a layer, (2 count, P), with their opposites, of the right covariance."""
        size = len(covariance)
        sobol = qmc.Sobol(size, seed=np.random.default_rng([*self.seeds, layer]))
        x = ndtri(np.clip(sobol.random(self.count), 1e-15, 1 - 1e-15))
        x = x @ np.linalg.inv(np.linalg.cholesky(x.T @ x / len(x))).T
        values, vectors = np.linalg.eigh(covariance)
        x = x @ (vectors * np.sqrt(np.maximum(values, 0.0))).T
        return np.concatenate([x, -x])


class Moments:
    """``<prod_i prod_{a in pattern_i} phi^(a)(u_i)>`` for all samples i.

    By quadrature, with errors within ``rtol``; with ``points`` those over more than two samples are sampled,
    and those by quadrature are taken from others that are ``known`` of the same covariance.
    Raises :class:`~numerics.errors.SpecError` for averages that have no meaning, as of a jump times a point
    mass.
    """

    def __init__(
        self,
        phi: Lambda,
        covariance: Array,
        patterns: Iterable[Pattern],
        rtol: float,
        points: Array | None = None,
        known: Moments | None = None,
    ) -> None:
        self.covariance = np.asarray(covariance, dtype=float)
        found = sorted({tuple(sorted(p)) for p in patterns})
        top = max((a for p in found for orders in p for a in orders), default=0)
        x = phi.variables[0]
        self.slopes = [phi.expr.diff(x, k).doit() for k in range(top + 1)]
        P = len(self.covariance)
        self.arrays = {p: np.zeros((P,) * len(p)) for p in found}
        self.error = 0.0
        # what vanishes is left out, so that polynomials are no exception
        alive = [p for p in found if all(self.slopes[a] != 0 for orders in p for a in orders)]
        sampled = [p for p in alive if points is not None and len(p) > PAIRS]
        exact = [p for p in alive if p not in sampled]
        if known is not None and np.array_equal(known.covariance, self.covariance):
            self.arrays |= {p: known.arrays[p] for p in exact if p in known.arrays}
            self.error = known.error
            exact = [p for p in exact if p not in known.arrays]
        lists = [[Mul(*[self.slopes[a] for a in orders]) for orders in p] for p in exact]
        for p, value in zip(exact, tensors(lists, covariance, rtol), strict=True):
            self.arrays[p] = value.value
            self.error = max(self.error, float(np.max(value.error)))
        if points is not None and sampled:
            self.sample(sampled, points)

    def sample(self, patterns: list[Pattern], points: Array) -> None:
        """Means over points, as products of matrices."""
        needed = {a for p in patterns for orders in p for a in orders}
        at = {a: compiled(expression(self.slopes[a]))(points) for a in needed}
        at = {a: np.broadcast_to(v, points.shape) for a, v in at.items()}

        def factor(orders: tuple[int, ...]) -> Array:
            return np.asarray(np.prod([at[a] for a in orders], axis=0))

        def joined(parts: Pattern) -> Array:
            value = np.ones((len(points), 1))
            for orders in parts:
                value = (value[:, :, None] * factor(orders)[:, None, :]).reshape(len(points), -1)
            return value

        P = len(self.covariance)
        for p in patterns:
            half = (len(p) + 1) // 2
            self.arrays[p] = (joined(p[:half]).T @ joined(p[half:]) / len(points)).reshape((P,) * len(p))

    def __call__(self, pattern: Pattern) -> Array:
        """One axis for each sample of the pattern."""
        order = sorted(range(len(pattern)), key=lambda i: pattern[i])
        array = self.arrays[tuple(pattern[i] for i in order)]
        return np.transpose(array, np.argsort(order))


__all__ = ["Moments", "Pattern", "Points"]
