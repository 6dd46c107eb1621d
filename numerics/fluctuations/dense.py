"""Covariances and shifts of all order parameters of a linear theory, as dense matrices.

``N Cov = R kappa R^T`` with ``R = (1 - D)^(-1)``, and the tadpole for the mean at order 1/N.  Memory grows
with the square of the number of order parameters and time with its third power.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from numerics.fluctuations.linear import LinearTheory, SiteProducts

Array = NDArray[np.float64]

CHUNK = 2**22
"""Products of covariances that are computed at once."""


class DenseFluctuations(LinearTheory):
    """Covariances and shifts of the order parameters of a linear theory."""

    @cached_property
    def kappa(self) -> Array:
        """How averages over units scatter, ``(parameters, parameters)``."""
        found = np.zeros((self.count, self.count))
        for number, x in self.units.items():
            q, a, b, w = x.parameters, x.first, x.second, x.weights
            V, ratio = self.sites[number].V, self.sites[number].ratio
            for part in np.array_split(np.arange(len(q)), max(1, len(q) ** 2 // CHUNK)):
                c, d = a[part], b[part]
                block = (V[np.ix_(c, a)] * V[np.ix_(d, b)] + V[np.ix_(c, b)] * V[np.ix_(d, a)]) / ratio
                np.add.at(found, np.ix_(q[part], q), block * np.outer(w[part], w))
        return found

    @cached_property
    def D(self) -> Array:
        """The derivative of each order parameter by each other one."""
        found = np.zeros((self.count, self.count))
        for number, x in self.units.items():
            if number not in self.influences:
                continue
            V, y = self.sites[number].V, self.influences[number]
            a, b = x.first, x.second
            chunks = max(1, len(y.parameters) * len(a) // CHUNK)
            for part in np.array_split(np.arange(len(y.parameters)), chunks):
                c, d = y.first[part], y.second[part]
                moved = V[np.ix_(a, c)] * V[np.ix_(b, d)] + V[np.ix_(a, d)] * V[np.ix_(b, c)]
                moved *= np.outer(x.weights, y.weights[part])
                np.add.at(found, (x.parameters[:, None], y.parameters[part][None, :]), moved)
        for z in self.lowered.slopes:
            np.add.at(found, (z.target, z.other[0]), self.lowered.value(z, self.values))
        return found

    @cached_property
    def R(self) -> Array:
        """``(1 - D)^(-1)``."""
        return np.asarray(np.linalg.inv(np.eye(self.count) - self.D), dtype=float)

    @cached_property
    def covariance(self) -> Array:
        """N times the covariance of the order parameters."""
        found: Array = self.R @ self.kappa @ self.R.T
        return found

    @cached_property
    def shift(self) -> Array:
        """N times the mean of each order parameter minus its value at infinite width."""
        source = np.zeros(self.count)
        second = self.gathered(self.lowered.second_influences, self.covariance)
        for number, x in self.units.items():
            V = self.sites[number].V
            T = np.zeros_like(V)
            if number in self.influences:
                T += self._twice(V, self.influences[number])
                T += self._self_action(V, x, self.influences[number]) / self.sites[number].ratio
            if number in second:
                y = second[number]
                np.add.at(T, (y.first, y.second), y.weights)
                np.add.at(T, (y.second, y.first), y.weights)
            moved = V @ T @ V
            np.add.at(source, x.parameters, x.weights * moved[x.first, x.second])
        for z in self.lowered.second_slopes:
            weights = self.lowered.value(z, self.values)
            np.add.at(source, z.target, weights * self.covariance[z.other[0], z.other[1]])
        return np.asarray(self.R @ source)

    def _twice(self, V: Array, x: SiteProducts) -> Array:
        """``sum_jk C_jk E_j V E_k`` with symmetric matrices E of products."""
        k, e = np.concatenate([x.parameters, x.parameters]), np.concatenate([x.weights, x.weights])
        c, d = np.concatenate([x.first, x.second]), np.concatenate([x.second, x.first])
        order = np.argsort(c, kind="stable")
        k, c, d, e = k[order], c[order], d[order], e[order]
        starts = np.flatnonzero(np.diff(c, prepend=-1))
        found = np.zeros_like(V)
        for part in np.array_split(np.arange(len(k)), max(1, len(k) ** 2 // CHUNK)):
            block = self.covariance[np.ix_(k[part], k)] * V[np.ix_(d[part], d)] * np.outer(e[part], e)
            rows = np.zeros((len(V), len(starts)))
            np.add.at(rows, c[part], np.add.reduceat(block, starts, axis=1))
            found[:, c[starts]] += rows
        return found

    def _self_action(self, V: Array, x: SiteProducts, y: SiteProducts) -> Array:
        """A unit moves order parameters, and these move the unit: ``Q + Q^T``."""
        found = np.zeros_like(V)
        for q, a, b, w in zip(x.parameters, x.first, x.second, x.weights, strict=True):
            strength = self.R[y.parameters, q] * y.weights * w
            moved = np.zeros_like(V)
            np.add.at(moved, (y.first, y.second), strength)
            np.add.at(moved, (y.second, y.first), strength)
            found[:, b] += moved @ V[:, a]
            found[:, a] += moved @ V[:, b]
        return np.asarray(found + found.T)
