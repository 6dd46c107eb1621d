"""Covariances and shifts of all order parameters of a linear theory, as dense matrices.

The covariances are ``N Cov = R kappa R^T`` with ``R = (1 - D)^(-1)``, where kappa is the covariance for units
that do not respond to order parameters, and D holds the derivatives of order parameters by each other. The
shifts of means at order 1/N follow from them. Memory grows with the square of the number of order parameters
and time with its third power.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from numerics.fluctuations.linear import GradientBlock, LinearTheory, SiteProducts
from numerics.fluctuations.observables import ExpandedObservable

Array = NDArray[np.float64]

CHUNK = 2**22
"""Number of products of covariances that are computed at once."""


class DenseFluctuations(LinearTheory):
    """Covariances and shifts at order 1/N of all order parameters of a theory with linear fields.

    Order parameters with equal averages share a row of the matrices; ``kept`` holds the numbers of those with
    a row.
    """

    @cached_property
    def products(self) -> dict[int, SiteProducts]:
        """For each site the products of two fields or hats whose averages over units are order parameters.

        Only order parameters of ``kept`` are included, those with different averages. A hat is the response
        field conjugate to a field. A site is a population at one layer.
        """
        products = {}
        for number, x in self.units.items():
            entries = np.flatnonzero(self.alike[x.parameters] == x.parameters)
            first, second, weights = x.first[entries], x.second[entries], x.weights[entries]
            products[number] = SiteProducts(self.index[x.parameters[entries]], first, second, weights)
        return products

    @cached_property
    def driving(self) -> dict[int, SiteProducts]:
        """For each site the products of two fields or hats that order parameters multiply in the action.

        The action is the exponent of the path integral over one unit. A hat is the response field conjugate
        to a field: the average of a field times a hat is the response of the field. A site is a population at
        one layer.
        """
        return {
            number: SiteProducts(self.index[x.parameters], x.first, x.second, x.weights).merged()
            for number, x in self.influences.items()
        }

    @cached_property
    def kappa(self) -> Array:
        """N times the covariance of order parameters over networks whose units do not respond to them.

        It is the covariance of averages over independent units, ``(kept, kept)``; ``kept`` are the order
        parameters with different averages.
        """
        covariance = np.zeros((len(self.kept),) * 2)
        for number, x in self.products.items():
            q, a, b, w = x.parameters, x.first, x.second, x.weights
            V, ratio = self.sites[number].V, self.sites[number].ratio
            for part in np.array_split(np.arange(len(q)), max(1, len(q) ** 2 // CHUNK)):
                c, d = a[part], b[part]
                block = (V[np.ix_(c, a)] * V[np.ix_(d, b)] + V[np.ix_(c, b)] * V[np.ix_(d, a)]) / ratio
                np.add.at(covariance, np.ix_(q[part], q), block * np.outer(w[part], w))
        return covariance

    @cached_property
    def D(self) -> Array:
        """Derivatives of order parameters (rows) with respect to each other (columns), ``(kept, kept)``.

        ``kept`` are the order parameters with different averages, sorted by time.
        """
        derivatives = np.zeros((len(self.kept),) * 2)
        for number, x in self.products.items():
            if number not in self.driving:
                continue
            V, y = self.sites[number].V, self.driving[number]
            a, b = x.first, x.second
            chunks = max(1, len(y.parameters) * len(a) // CHUNK)
            for part in np.array_split(np.arange(len(y.parameters)), chunks):
                c, d = y.first[part], y.second[part]
                moved = V[np.ix_(a, c)] * V[np.ix_(b, d)] + V[np.ix_(a, d)] * V[np.ix_(b, c)]
                moved *= np.outer(x.weights, y.weights[part])
                np.add.at(derivatives, (x.parameters[:, None], y.parameters[part][None, :]), moved)
        for z in self.lowered.slopes:
            slopes = self.lowered.value(z, self.values)
            np.add.at(derivatives, (self.index[z.target], self.index[z.other[0]]), slopes)
        return derivatives

    @cached_property
    def parts(self) -> list[slice]:
        """For each time with order parameters, the slice of their rows in the matrices.

        Rows are sorted by time.
        """
        times = self.lowered.parameter_time[self.kept]
        ends = np.searchsorted(times, np.arange(self.lowered.sizes.times), side="right").tolist()
        return [slice(a, b) for a, b in pairwise([0, *ends]) if b > a]

    @cached_property
    def R(self) -> Array:
        """Response ``(1 - D)^(-1)`` of order parameters (rows) to shifts of each other (columns).

        The shape is ``(kept, kept)``: order parameters with equal averages share a row and a column. D
        holds their derivatives with respect to each other. The response is computed one time after the other,
        because D is causal.
        """
        response = np.eye(len(self.kept))
        for part in self.parts:
            before = slice(part.start)
            response[part, before] = self.D[part, before] @ response[before, before]
            inside = np.eye(part.stop - part.start) - self.D[part, part]
            response[part, : part.stop] = np.linalg.solve(inside, response[part, : part.stop])
        return response

    @cached_property
    def kept_covariance(self) -> Array:
        """N times the covariance ``R kappa R^T`` over networks of order parameters, ``(kept, kept)``.

        ``kept`` are the order parameters with different averages, R is their response, and kappa the
        covariance without response.
        """
        covariance = np.empty_like(self.kappa)
        # covariance R kappa R^T: this loop computes R kappa, the next one multiplies it by R^T
        for part in self.parts:
            covariance[part] = self.R[part, : part.stop] @ self.kappa[: part.stop]
        for part in reversed(self.parts):
            covariance[: part.stop, part] = covariance[: part.stop, : part.stop] @ self.R[part, : part.stop].T
            covariance[part, : part.start] = covariance[: part.start, part].T
        return covariance

    @property
    def covariance(self) -> Array:
        """N times the covariance of all order parameters, ``(parameters, parameters)``."""
        return self.kept_covariance[np.ix_(self.index, self.index)]

    def covariances_of(self, blocks: list[GradientBlock]) -> list[Array]:
        """Return for each block N times the covariance of its observables, ``(observables, observables)``.

        A block holds the gradients of some observables with respect to order parameters.
        """
        covariances = []
        for x in blocks:
            at = self.index[x.columns]
            covariances.append(x.matrix @ self.kept_covariance[np.ix_(at, at)] @ x.matrix.T)
        return covariances

    def shifts_of(self, observables: Iterable[ExpandedObservable]) -> list[Array]:
        """Return N times (mean minus value at infinite width) of each observable, ``(points,)``.

        An observable is a function of order parameters on a grid of ``points`` indices and times.
        """
        return [x.shift(self.shift, self.kept_covariance, self.index) for x in observables]

    @cached_property
    def shift(self) -> Array:
        """N times (mean minus value at infinite width) of each order parameter, ``(parameters,)``."""
        source, index = np.zeros(len(self.kept)), self.index
        second = self.gathered(
            self.lowered.second_influences, lambda j, k: self.kept_covariance[index[j], index[k]]
        )
        for number, x in self.products.items():
            V = self.sites[number].V
            T = np.zeros_like(V)
            if number in self.driving:
                T += self._twice(V, self.driving[number])
                T += self._self_action(V, x, self.driving[number]) / self.sites[number].ratio
            if number in second:
                y = second[number]
                np.add.at(T, (y.first, y.second), y.weights)
                np.add.at(T, (y.second, y.first), y.weights)
            moved = V @ T @ V
            np.add.at(source, x.parameters, x.weights * moved[x.first, x.second])
        for z in self.lowered.second_slopes:
            weights = self.lowered.value(z, self.values)
            both = self.kept_covariance[index[z.other[0]], index[z.other[1]]]
            np.add.at(source, index[z.target], weights * both)
        return np.asarray((self.R @ source)[index])

    def _twice(self, V: Array, x: SiteProducts) -> Array:
        """Return the matrix ``sum_jk C_jk E_j V E_k`` of one site, a term of the shifts at order 1/N.

        It is the effect at second order of fluctuating order parameters on a unit. C is the covariance of
        order parameters, V that of fields and hats, and E_k the symmetric matrix of the products ``x`` that
        order parameter k multiplies. A hat is the response field conjugate to a field: the average of a field
        times a hat is the response of the field. A site is a population at one layer.
        """
        k, e = np.concatenate([x.parameters, x.parameters]), np.concatenate([x.weights, x.weights])
        c, d = np.concatenate([x.first, x.second]), np.concatenate([x.second, x.first])
        order = np.argsort(c, kind="stable")
        k, c, d, e = k[order], c[order], d[order], e[order]
        starts = np.flatnonzero(np.diff(c, prepend=-1))
        matrix = np.zeros_like(V)
        for part in np.array_split(np.arange(len(k)), max(1, len(k) ** 2 // CHUNK)):
            block = self.kept_covariance[np.ix_(k[part], k)] * V[np.ix_(d[part], d)] * np.outer(e[part], e)
            rows = np.zeros((len(V), len(starts)))
            np.add.at(rows, c[part], np.add.reduceat(block, starts, axis=1))
            matrix[:, c[starts]] += rows
        return matrix

    def _self_action(self, V: Array, x: SiteProducts, y: SiteProducts) -> Array:
        """Return the matrix ``Q + Q^T``, with Q the action of a unit on itself, a term of the shifts.

        A unit changes order parameters, and these change the unit; this shifts means at order 1/N. V (n, n)
        is the covariance of fields and hats of the site, ``x`` are the products that order parameters
        average, and ``y`` those that they multiply in the exponent of the path integral.
        """
        action = np.zeros_like(V)
        for q, a, b, w in zip(x.parameters, x.first, x.second, x.weights, strict=True):
            strength = self.R[y.parameters, q] * y.weights * w
            moved = np.zeros_like(V)
            np.add.at(moved, (y.first, y.second), strength)
            np.add.at(moved, (y.second, y.first), strength)
            action[:, b] += moved @ V[:, a]
            action[:, a] += moved @ V[:, b]
        return np.asarray(action + action.T)
