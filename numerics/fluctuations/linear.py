"""Linear theories around their saddle: covariances of fields and hats, and the products that are averaged.

A hat is the response field conjugate to a field. The fields and hats of one unit are jointly Gaussian with
the covariance

    V = [[C, R], [R^T, 0]],   R = d fields / d hats,   C = R Sigma R^T,

with the covariance Sigma of sources. Order parameters average products ``F = x_a x_b`` and the exponent of
the path integral holds products ``E = w x_c x_d``, so that all averages follow by Wick's theorem. The
covariance of products is ``kappa_ab,cd = V_ac V_bd + V_ad V_bc``, divided by the units of the population over
N. The derivative of the average of ``x_a x_b`` by the order parameter k is ``D_ab,k = (V E_k V)_ab +
transposed``, where ``E_k`` is the matrix of the products that k multiplies. The average of one field ``x_a``
is that of the product ``x_a x_1`` with a constant ``x_1`` of variance one that is independent of all fields:
``kappa_a1,c1 = V_ac``, and ``kappa_a1,cd = 0``. Two modules use these formulas: dense matrices
(:mod:`numerics.fluctuations.dense`) and adjoint sweeps (:mod:`numerics.fluctuations.adjoint`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from numerics.fluctuations.lowered import CONSTANT, IntegerArray, LoweredFluctuations, TermArrays
from numerics.fluctuations.march import LinearMarch

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class UnitCovariance:
    """Covariance of the fields and hats of one unit of a site, in the order of their times.

    Only fields and hats are included that order parameters average, or multiply in the exponent of the path
    integral. If an order parameter averages one field, a constant of variance one is added at time 0. A hat
    is the response field conjugate to a field: the average of a field times a hat is the response of the
    field. A site is a population at one layer.

    Attributes
    ----------
    V
        The covariance of fields and hats, ``(n, n)``; zero between hats.
    is_hat
        Whether each of them is a hat (the conjugate of a field), ``(n,)``.
    times
        The time of each, ``(n,)``.
    ends
        For each time the number of fields and hats up to it, ``(times of the theory,)``.
    ratio
        Units of the population over N.
    """

    V: Array
    is_hat: NDArray[np.bool_]
    times: IntegerArray
    ends: IntegerArray
    ratio: float

    def at(self, time: int) -> slice:
        """Return the slice of rows of the covariance V that are fields and hats of the time ``time``.

        A hat is the response field conjugate to a field: the average of a field times a hat is the response
        of the field.
        """
        return slice(int(self.ends[time - 1]) if time else 0, int(self.ends[time]))


@dataclass(frozen=True, eq=False)
class SiteProducts:
    """Products of two fields (or hats) of one site, each with an order parameter and a weight.

    The order parameter is the one that averages the product, or the one that multiplies it in the path
    integral. A hat is the response field conjugate to a field: the average of a field times a hat is the
    response of the field. A site is a population at one layer.

    Attributes
    ----------
    parameters
        The number of the order parameter of each product, ``(n,)``.
    first, second
        The positions of both factors in the covariance V of the site.
    weights
        The coefficients of the products.
    """

    parameters: IntegerArray
    first: IntegerArray
    second: IntegerArray
    weights: Array

    def merged(self) -> SiteProducts:
        """Return these products with duplicates merged: their weights are added.

        Duplicates have the same order parameter and the same pair of factors, in any order. The result is
        sorted by order parameter, then by the smaller and the larger position of the factors.
        """
        pair = np.sort(np.stack([self.first, self.second]), axis=0)
        distinct, place = np.unique(np.stack([self.parameters, *pair]), axis=1, return_inverse=True)
        weights = np.zeros(distinct.shape[1])
        np.add.at(weights, place.ravel(), self.weights)
        return SiteProducts(distinct[0], distinct[1], distinct[2], weights)


@dataclass(frozen=True, eq=False)
class GradientBlock:
    """Gradients, with respect to order parameters, of observables whose covariance is computed.

    Attributes
    ----------
    matrix
        Derivative of each observable (row) by each order parameter (column).
    columns
        The number of the order parameter of each column, increasing, ``(columns,)``.
    """

    matrix: Array
    columns: IntegerArray


class LinearTheory:
    """Solution at infinite width of a theory with linear fields, from which the expansion in 1/N starts.

    The constructor solves the theory by a :class:`LinearMarch` and raises the errors of that class. A hat is
    the response field conjugate to a field: the average of a field times a hat is the response of the field.

    Parameters
    ----------
    lowered
        The expansion in 1/N of a program as arrays, with numbers for its sizes.

    Attributes
    ----------
    values
        The order parameters at infinite width, ``(parameters,)``.
    sites
        For each population and layer the covariance of fields and hats, in the order of the numbers of sites.
    """

    def __init__(self, lowered: LoweredFluctuations) -> None:
        self.lowered = lowered
        self.march = LinearMarch(lowered)
        self.values = self.march.values
        self.count = lowered.parameters.count
        self._number_places()

    def _number_places(self) -> None:
        """Give each field and hat that occurs in a product a row of its site's covariance V, and fill V.

        The rows are sorted by time. The last row of time 0 is a constant of variance one if an order
        parameter of the site averages one field. A hat is the response field conjugate to a field: the
        average of a field times a hat is the response of the field. A site is a population at one layer.
        """
        low, march = self.lowered, self.march
        used: list[IntegerArray] = []
        hats: list[IntegerArray] = []
        for x in (*low.units, *low.influences, *low.second_influences):
            for k, column in enumerate((x.first, x.second)):
                (hats if k < x.hats else used).append(column)
        fields = np.unique(np.concatenate(used))
        fields = fields[fields >= 0]
        hatted = np.unique(np.concatenate(hats)) if hats else np.zeros(0, int)
        self.field_place = np.full(low.nodes.count, -1)
        self.hat_place = np.full(low.nodes.count, -1)
        self.constant_place = np.full(len(march.sites), -1)
        alone = np.concatenate([np.zeros(0, int), *(x.first[x.second == CONSTANT] for x in low.units)])
        self.sites: list[UnitCovariance] = []
        for number, site in enumerate(march.sites):
            site_fields = fields[low.site[fields] == number]
            responding = hatted[low.site[hatted] == number]
            constant = np.zeros(int((low.site[alone] == number).any()), int)
            time = np.concatenate([low.time[site_fields], low.time[responding], constant])
            order = np.argsort(time, kind="stable")
            place = np.empty(len(order), int)
            place[order] = np.arange(len(order))
            self.field_place[site_fields] = place[: len(site_fields)]
            self.hat_place[responding] = place[len(site_fields) : len(site_fields) + len(responding)]
            V = np.zeros((len(order), len(order)))
            R = site.R[np.ix_(march.local[site_fields], march.hat[responding])]
            V[np.ix_(self.field_place[site_fields], self.field_place[site_fields])] = site.C[
                np.ix_(march.local[site_fields], march.local[site_fields])
            ]
            V[np.ix_(self.field_place[site_fields], self.hat_place[responding])] = R
            V[np.ix_(self.hat_place[responding], self.field_place[site_fields])] = R.T
            if len(constant):
                self.constant_place[number] = place[-1]
                V[place[-1], place[-1]] = 1.0
            ends = np.searchsorted(time[order], np.arange(low.sizes.times), side="right")
            is_hat = (order >= len(site_fields)) & (order < len(site_fields) + len(responding))
            self.sites.append(UnitCovariance(V, is_hat, time[order], ends, low.ratios[number]))

    def places(self, x: TermArrays) -> tuple[IntegerArray, IntegerArray, IntegerArray]:
        """Return for each product of two factors its site and the rows of both in the site's covariance.

        ``x`` holds a term at all values of its indices and times, a product of two fields or hats at each, or
        one field, whose second factor is then a constant of variance one. The three arrays have the shape
        (n,). A hat is the response field conjugate to a field: the average of a field times a hat is the
        response of the field. A site is a population at one layer.
        """
        first = (self.hat_place if x.hats > 0 else self.field_place)[x.first]
        second = (self.hat_place if x.hats > 1 else self.field_place)[x.second]
        site = self.lowered.site[x.first]
        return site, first, np.where(x.second == CONSTANT, self.constant_place[site], second)

    @cached_property
    def units(self) -> dict[int, SiteProducts]:
        """For each site the products of two fields or hats whose averages over units are order parameters.

        Keys are numbers of sites; sites without such products are left out. A hat is the response field
        conjugate to a field: the average of a field times a hat is the response of the field. A site is a
        population at one layer.
        """
        return self.gathered(self.lowered.units)

    @cached_property
    def influences(self) -> dict[int, SiteProducts]:
        """For each site the products of two fields or hats that order parameters multiply in the action.

        The action is the exponent of the path integral over one unit. Keys are numbers of sites; sites
        without such products are left out. A hat is the response field conjugate to a field: the average of a
        field times a hat is the response of the field. A site is a population at one layer.
        """
        return self.gathered(self.lowered.influences)

    def gathered(
        self,
        entries: list[TermArrays],
        covariance: Callable[[IntegerArray, IntegerArray], Array] | None = None,
    ) -> dict[int, SiteProducts]:
        """Return the products of two fields or hats in some terms, by number of the site.

        Each term in ``entries`` holds numbers of fields, hats and order parameters at all values of its
        indices. Products whose weight is zero are left out, and duplicates are not merged. If ``covariance``
        is given, the terms are second derivatives by two order parameters: the weights are multiplied by the
        covariance of both, the value of ``covariance`` at their numbers, and the result holds the number of
        the first one only. A site is a population at one layer.
        """
        parts: list[list[tuple[IntegerArray, IntegerArray, IntegerArray, Array]]] = [[] for _ in self.sites]
        for x in entries:
            weights = self.lowered.value(x, self.values)
            if covariance is not None:
                weights = weights * covariance(x.target, x.other[0])
            site, first, second = self.places(x)
            for number in np.unique(site):
                at = np.flatnonzero((site == number) & (weights != 0))
                parts[number].append((x.target[at], first[at], second[at], weights[at]))
        return {
            number: SiteProducts(*(np.concatenate(z) for z in zip(*part, strict=True)))
            for number, part in enumerate(parts)
            if part
        }

    @cached_property
    def alike(self) -> IntegerArray:
        """For each order parameter the number of the first one with the same average.

        For example, H(2, 1) has the same average as H(1, 2). Two order parameters count as equal if each is a
        single product of the same two fields or hats with the same weight. Any other order parameter has its
        own number.
        """
        representatives = np.arange(self.count)
        for x in self.units.values():
            factors = np.sort(np.stack([x.first, x.second]), axis=0)
            once = np.bincount(x.parameters, minlength=self.count)[x.parameters] == 1
            same = np.stack([factors[0], factors[1], x.weights])[:, once]
            _, first, inverse = np.unique(same, axis=1, return_index=True, return_inverse=True)
            parameters = x.parameters[once]
            representatives[parameters] = parameters[first[inverse.ravel()]]
        # `rests` are terms of order parameters that are not averages over units. An order parameter with such
        # a term may differ from others with the same average, and therefore represents itself only.
        for z in self.lowered.rests:
            representatives[z.target] = z.target
        return representatives

    @cached_property
    def kept(self) -> IntegerArray:
        """Numbers of the order parameters that remain when those with equal averages are counted once.

        They are sorted by time.
        """
        representatives = np.flatnonzero(self.alike == np.arange(self.count))
        return representatives[np.argsort(self.lowered.parameter_time[representatives], kind="stable")]

    @cached_property
    def index(self) -> IntegerArray:
        """For each order parameter the position in :attr:`kept` of the one with the same average.

        :attr:`kept` holds the order parameters with different averages.
        """
        place = np.full(self.count, -1)
        place[self.kept] = np.arange(len(self.kept))
        return place[self.alike]

    def number(self, name: str, *arguments: int) -> int:
        """Return the number of the order parameter ``name`` at integer indices and times ``arguments``.

        It is -1 if the order parameter does not exist at them.
        """
        (key,) = (k for k in self.lowered.names if k[0] == name)
        (numbers,) = self.lowered.parameters.find(key, [np.array([x]) for x in arguments])
        return int(numbers)
