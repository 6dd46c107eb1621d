"""Averages of products of derivatives of phi at one layer, for all tuples of samples."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product

import numpy as np
from numpy.typing import NDArray
from sympy import Lambda

from numerics.averages.functions import compiled, expression
from numerics.averages.lattice import Joint, averages

Array = NDArray[np.float64]
Pattern = tuple[tuple[int, ...], ...]
"""For each sample, the orders of the derivatives of phi that stand at it."""


class Moments:
    """``<prod_i prod_{a in pattern_i} phi^(a)(u_i)>`` for all samples i, with errors within ``rtol``.

    What all ``patterns`` need for a set of samples is found on one lattice.
    """

    def __init__(self, phi: Lambda, covariance: Array, patterns: Iterable[Pattern], rtol: float) -> None:
        self.covariance = np.asarray(covariance, dtype=float)
        found = {tuple(sorted(p)) for p in patterns}
        top = max((a for p in found for orders in p for a in orders), default=0)
        x = phi.variables[0]
        self.functions = [compiled(expression(Lambda(x, phi.expr.diff(x, k).doit()))) for k in range(top + 1)]
        self.error = 0.0
        self.arrays = self.evaluated(sorted(found), rtol)

    def evaluated(self, patterns: list[Pattern], rtol: float) -> dict[Pattern, Array]:
        P = len(self.covariance)
        arrays = {p: np.ones((P,) * len(p)) for p in patterns}
        wanted: dict[tuple[int, ...], dict[Pattern, list[tuple[Pattern, tuple[int, ...]]]]] = {}
        for p in patterns:
            for index in product(range(P), repeat=len(p)):
                samples = tuple(sorted(set(index)))
                key = tuple(
                    tuple(sorted(a for i, orders in zip(index, p, strict=True) if i == m for a in orders))
                    for m in samples
                )
                wanted.setdefault(samples, {}).setdefault(key, []).append((p, index))
        for samples, keys in wanted.items():
            products = [tuple(Joint(tuple(self.functions[a] for a in orders)) for orders in k) for k in keys]
            values, errors = averages(products, self.covariance[np.ix_(samples, samples)], rtol)
            self.error = max(self.error, float(np.max(errors)))
            for value, places in zip(values, keys.values(), strict=True):
                for p, index in places:
                    arrays[p][index] = value
        return arrays

    def __call__(self, pattern: Pattern) -> Array:
        """One axis for each sample of the pattern."""
        order = sorted(range(len(pattern)), key=lambda i: pattern[i])
        array = self.arrays[tuple(pattern[i] for i in order)]
        return np.transpose(array, np.argsort(order))


__all__ = ["Moments", "Pattern"]
