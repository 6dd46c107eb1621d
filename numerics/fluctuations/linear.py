"""Linear theories around their saddle: covariances of fields and hats, and the products that are averaged.

The fields and hats of one unit are jointly Gaussian with the covariance

    V = [[C, R], [R^T, 0]],   R = d fields / d hats,   C = R Sigma R^T.

Order parameters average products ``F = x_a x_b`` and the exponent holds products ``E = w x_c x_d``, so that
all averages follow by Wick's theorem: ``kappa_ab,cd = V_ac V_bd + V_ad V_bc`` over the ratio of the
population, and ``D_ab,k = (V E_k V)_ab + transposed``.  Two modules use this: dense matrices
(:mod:`numerics.fluctuations.dense`) and adjoint sweeps (:mod:`numerics.fluctuations.adjoint`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from numerics.fluctuations.lowered import IntegerArray, LoweredFluctuations, TermArrays
from numerics.fluctuations.march import LinearMarch

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class UnitCovariance:
    """The fields and hats of one site that stand in products, in the order of their times.

    Attributes
    ----------
    V
        Their covariance, ``(n, n)``; zero between hats.
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
        """Return the slice of the fields and hats of one time.

        A hat is the perturbation of the equation of a field.
        """
        return slice(int(self.ends[time - 1]) if time else 0, int(self.ends[time]))


@dataclass(frozen=True, eq=False)
class SiteProducts:
    """Products of two fields (or hats) of one site, each with an order parameter and a weight.

    A hat is the perturbation of the equation of a field. A site is a population at one layer.

    Attributes
    ----------
    parameters
        Order parameters, by number, ``(n,)``.
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
        """Return the same products with the weights of equal ones added.

        Equal products have the same order parameter and the same pair of factors.
        """
        pair = np.sort(np.stack([self.first, self.second]), axis=0)
        found, place = np.unique(np.stack([self.parameters, *pair]), axis=1, return_inverse=True)
        weights = np.zeros(found.shape[1])
        np.add.at(weights, place.ravel(), self.weights)
        return SiteProducts(found[0], found[1], found[2], weights)


@dataclass(frozen=True, eq=False)
class GradientBlock:
    """First derivatives of observables whose covariance with each other is computed.

    Attributes
    ----------
    matrix
        Derivatives, ``(observables, columns)``.
    columns
        The numbers of the order parameters of the columns, increasing, ``(columns,)``.
    """

    matrix: Array
    columns: IntegerArray


class LinearTheory:
    """A theory whose fields are linear, at infinite width: the starting point of its expansion in 1/N.

    A hat is the perturbation of the equation of a field.

    Parameters
    ----------
    lowered
        The fluctuations of a program with numbers for its sizes.

    Attributes
    ----------
    values
        The order parameters at infinite width, ``(parameters,)``.
    sites
        For each population and layer the covariance of the fields and hats that stand in products.
    """

    def __init__(self, lowered: LoweredFluctuations) -> None:
        self.lowered = lowered
        self.march = LinearMarch(lowered)
        self.values = self.march.values
        self.count = lowered.parameters.count
        self._number_places()

    def _number_places(self) -> None:
        """Assign positions to the fields and hats in products, and set their covariance at each site.

        A hat is the perturbation of the equation of a field. A site is a population at one layer.
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
        self.sites: list[UnitCovariance] = []
        for number, site in enumerate(march.sites):
            own = fields[low.site[fields] == number]
            responding = hatted[low.site[hatted] == number]
            time = low.time[np.concatenate([own, responding])]
            order = np.argsort(time, kind="stable")
            place = np.empty(len(order), int)
            place[order] = np.arange(len(order))
            self.field_place[own], self.hat_place[responding] = place[: len(own)], place[len(own) :]
            V = np.zeros((len(order), len(order)))
            R = site.R[np.ix_(march.local[own], march.hat[responding])]
            V[np.ix_(self.field_place[own], self.field_place[own])] = site.C[
                np.ix_(march.local[own], march.local[own])
            ]
            V[np.ix_(self.field_place[own], self.hat_place[responding])] = R
            V[np.ix_(self.hat_place[responding], self.field_place[own])] = R.T
            ends = np.searchsorted(time[order], np.arange(low.sizes.times), side="right")
            self.sites.append(UnitCovariance(V, order >= len(own), time[order], ends, low.ratios[number]))

    def places(self, x: TermArrays) -> tuple[IntegerArray, IntegerArray, IntegerArray]:
        """Return for each entry of a term its site, and the positions of both factors at this site.

        The positions count the fields and hats in the covariance V of the site. A hat is the perturbation of
        the equation of a field. A site is a population at one layer.
        """
        first = (self.hat_place if x.hats > 0 else self.field_place)[x.first]
        second = (self.hat_place if x.hats > 1 else self.field_place)[x.second]
        return self.lowered.site[x.first], first, second

    @cached_property
    def units(self) -> dict[int, SiteProducts]:
        """Products of fields and hats that order parameters average, by site.

        A hat is the perturbation of the equation of a field. A site is a population at one layer.
        """
        return self.gathered(self.lowered.units)

    @cached_property
    def influences(self) -> dict[int, SiteProducts]:
        """Products of fields and hats that order parameters multiply in the path integral, by site.

        A hat is the perturbation of the equation of a field. A site is a population at one layer.
        """
        return self.gathered(self.lowered.influences)

    def gathered(
        self,
        entries: list[TermArrays],
        covariance: Callable[[IntegerArray, IntegerArray], Array] | None = None,
    ) -> dict[int, SiteProducts]:
        """Return the products of some terms, by number of the site.

        With ``covariance``, a function of two arrays of order parameters, the terms are second derivatives,
        which are multiplied by the covariance of both order parameters. A site is a population at one layer.
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
        """For each order parameter the first one with the same average, such as H(1, 2) for H(2, 1)."""
        found = np.arange(self.count)
        for x in self.units.values():
            factors = np.sort(np.stack([x.first, x.second]), axis=0)
            once = np.bincount(x.parameters, minlength=self.count)[x.parameters] == 1
            same = np.stack([factors[0], factors[1], x.weights])[:, once]
            _, first, inverse = np.unique(same, axis=1, return_index=True, return_inverse=True)
            parameters = x.parameters[once]
            found[parameters] = parameters[first[inverse.ravel()]]
        # An order parameter with a term besides its average over units is equal to no other one.
        for z in self.lowered.rests:
            found[z.target] = z.target
        return found

    @cached_property
    def kept(self) -> IntegerArray:
        """Numbers of order parameters with different averages, in the order of their times.

        Each stands for all order parameters that are ``alike``.
        """
        own = np.flatnonzero(self.alike == np.arange(self.count))
        return own[np.argsort(self.lowered.parameter_time[own], kind="stable")]

    @cached_property
    def index(self) -> IntegerArray:
        """For each order parameter the position in ``kept`` of the one that has the same average.

        ``kept`` are the order parameters with different averages.
        """
        place = np.full(self.count, -1)
        place[self.kept] = np.arange(len(self.kept))
        return place[self.alike]

    def number(self, name: str, *arguments: int) -> int:
        """Return the number of the order parameter ``name`` at given indices and times."""
        (key,) = (k for k in self.lowered.names if k[0] == name)
        (found,) = self.lowered.parameters.find(key, [np.array([x]) for x in arguments])
        return int(found)
