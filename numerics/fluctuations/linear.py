"""Fluctuations of linear theories: averages of products of four Gaussian fields, by Wick's theorem.

The fields and hats of one unit are jointly Gaussian with the covariance

    V = [[C, R], [R^T, 0]],   R = d fields / d hats,   C = R Sigma R^T.

Order parameters average products ``F = x_a x_b`` and the exponent holds products ``E = w x_c x_d``, so that
``kappa_ab,cd = V_ac V_bd + V_ad V_bc`` and ``D_ab,k = (V E_k V)_ab + transposed``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Unserved
from numerics.fluctuations.lowered import CONSTANT, IntegerArray, LoweredFluctuations, TermArrays

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SiteMatrices:
    """One population at one layer.

    Attributes
    ----------
    nodes
        The numbers of its fields and products, ``(n,)``.
    hats
        The numbers of those whose equations are pushed, ``(k,)``.
    R, Y, C
        Responses of fields to hats ``(n, k)``, covariances of sources with fields ``(k, n)``, and of fields.
    sigma
        The covariance of the sources, ``(k, k)``.
    """

    nodes: IntegerArray
    hats: IntegerArray
    R: Array
    Y: Array
    C: Array
    sigma: Array


@dataclass(frozen=True, eq=False)
class SiteProducts:
    """Products of two fields (or hats) of one site, each with an order parameter and a weight.

    Attributes
    ----------
    parameters
        Order parameters, by number, ``(n,)``.
    first, second
        The places of both factors in the covariance of the site.
    weights
        The numbers in front.
    """

    parameters: IntegerArray
    first: IntegerArray
    second: IntegerArray
    weights: Array


class LinearMarch:
    """The mean-field solution of a linear theory: order parameters, responses and covariances of fields."""

    def __init__(self, lowered: LoweredFluctuations) -> None:
        self.lowered = lowered
        if lowered.features:
            feature = next(iter(lowered.features.values()))
            raise Unserved(f"{feature.expr} is not linear in the fields of a unit")
        self.values = np.zeros(lowered.parameters.count)
        pushed = [x.target for x in (*lowered.kernels, *lowered.covariances)]
        pushed += [x.first for x in lowered.covariances]
        pushed += [x.first for x in lowered.units if x.hats]
        pushed += [x.first for x in lowered.influences if x.hats]
        hatted = np.unique(np.concatenate(pushed))
        self.local = np.zeros(lowered.nodes.count, int)
        self.hat = np.full(lowered.nodes.count, -1)
        self.sites = []
        for number in range(len(lowered.sites)):
            nodes = np.flatnonzero(lowered.site == number)
            nodes = nodes[np.argsort(lowered.time[nodes], kind="stable")]
            hats = hatted[lowered.site[hatted] == number]
            self.local[nodes] = np.arange(len(nodes))
            self.hat[hats] = np.arange(len(hats))
            n, k = len(nodes), len(hats)
            R, Y, C = np.zeros((n, k)), np.zeros((k, n)), np.zeros((n, n))
            R[self.local[hats], np.arange(k)] = 1.0
            self.sites.append(SiteMatrices(nodes, hats, R, Y, C, np.zeros((k, k))))
        for time in range(lowered.sizes.times):
            self._step(time)

    def _step(self, time: int) -> None:
        """All rows and order parameters of one time, repeated until a step's computations are through."""
        for _ in range(MOST_LEVELS):
            before = self.values.copy()
            self._covariances(time)
            moved = self._rows(time)
            self._parameters(time)
            changed = np.abs(self.values - before)
            if not moved and (changed <= 1e-15 * np.abs(self.values)).all():
                return
        raise Unserved("the definitions of one step do not come to an end")

    def _covariances(self, time: int) -> None:
        lowered = self.lowered
        for x in lowered.covariances:
            part = x.at(time)
            weights = lowered.value(x, self.values, part)
            rows, cols = self.hat[x.target[part]], self.hat[x.first[part]]
            for number, at in self._by_site(x.target[part]):
                sigma = self.sites[number].sigma
                sigma[rows[at], cols[at]] = weights[at]
                sigma[cols[at], rows[at]] = weights[at]

    def _by_site(self, nodes: IntegerArray) -> list[tuple[int, IntegerArray]]:
        """The places of nodes of each site."""
        site = self.lowered.site[nodes]
        return [(int(k), np.flatnonzero(site == k)) for k in np.unique(site)]

    def _rows(self, time: int) -> bool:
        """The rows of fields at a time; returns whether any has changed."""
        lowered, changed = self.lowered, False
        new: list[dict[int, Array]] = [{} for _ in self.sites]
        for x in (*lowered.kernels, *lowered.definitions):
            part = x.at(time)
            if part.stop == part.start:
                continue
            weights = lowered.value(x, self.values, part)
            for number, at in self._by_site(x.target[part]):
                site = self.sites[number]
                rows = self.local[x.target[part][at]]
                cols = self.local[x.first[part][at]]
                if (x.first[part][at] == CONSTANT).any():
                    raise Unserved("a field has a constant part")
                kinds, place = np.unique(rows, return_inverse=True)
                first = int(cols.max()) + 1
                matrix = np.zeros((len(kinds), first))
                np.add.at(matrix, (place, cols), weights[at])
                for r, v in zip(kinds, matrix @ site.R[:first], strict=True):
                    own = new[number].get(int(r))
                    new[number][int(r)] = v if own is None else own + v
        for number, found in enumerate(new):
            site = self.sites[number]
            now = np.flatnonzero(lowered.time[site.nodes] == time)
            if not len(now):
                continue
            rows = np.zeros((len(now), site.R.shape[1]))
            hat = self.hat[site.nodes[now]]
            has = np.flatnonzero(hat >= 0)
            rows[has, hat[has]] = 1.0
            for k, r in enumerate(now):
                if int(r) in found:
                    rows[k] += found[int(r)]
            scale = np.abs(rows).max()
            changed |= bool(np.abs(rows - site.R[now]).max() > 1e-15 * scale)
            site.R[now] = rows
            last = int(now[-1]) + 1
            site.Y[:, :last] = site.sigma @ site.R[:last].T
            site.C[now, :last] = site.R[now] @ site.Y[:, :last]
            site.C[:last, now] = site.C[now, :last].T
        return changed

    def _parameters(self, time: int) -> None:
        lowered = self.lowered
        fresh = np.zeros(lowered.parameters.count)
        touched = np.zeros(lowered.parameters.count, bool)
        for x in lowered.units:
            part = x.at(time)
            if part.stop > part.start:
                weights = lowered.value(x, self.values, part)
                np.add.at(fresh, x.target[part], weights * self.pair(x, part))
                touched[x.target[part]] = True
        self.values[touched] = fresh[touched]
        for x in lowered.rests:
            touched[x.target[x.at(time)]] = True
        while True:
            found = fresh.copy()
            for x in lowered.rests:
                part = x.at(time)
                np.add.at(found, x.target[part], lowered.value(x, self.values, part))
            if (found[touched] == self.values[touched]).all():
                return
            self.values[touched] = found[touched]

    def pair(self, x: TermArrays, part: slice) -> Array:
        """Return the averages of pairs of fields, or of a hat and a field."""
        found = np.zeros(part.stop - part.start)
        for number, at in self._by_site(x.second[part] if x.hats else x.first[part]):
            site = self.sites[number]
            second = x.second[part][at]
            if x.hats:
                found[at] = site.R[self.local[second], self.hat[x.first[part][at]]]
            else:
                found[at] = site.C[self.local[x.first[part][at]], self.local[second]]
        return found


MOST_LEVELS = 200
"""Computations of a step that wait for each other, at most."""


class LinearFluctuations:
    """Covariances and shifts of the order parameters of a linear theory."""

    def __init__(self, lowered: LoweredFluctuations) -> None:
        self.lowered = lowered
        self.march = LinearMarch(lowered)
        self.values = self.march.values
        self.count = lowered.parameters.count
        self._fields()

    def _fields(self) -> None:
        """Number the fields and hats that stand in products, and their covariance at each site."""
        low, march = self.lowered, self.march
        used: list[IntegerArray] = []
        hats: list[IntegerArray] = []
        for x in (*low.units, *low.influences, *low.second_influences):
            columns = [x.first, x.second]
            for k, column in enumerate(columns):
                (hats if k < x.hats else used).append(column)
        fields = np.unique(np.concatenate(used))
        fields = fields[fields >= 0]
        hatted = np.unique(np.concatenate(hats)) if hats else np.zeros(0, int)
        self.field_place = np.full(low.nodes.count, -1)
        self.hat_place = np.full(low.nodes.count, -1)
        self.V: list[Array] = []
        for number, site in enumerate(march.sites):
            own = fields[low.site[fields] == number]
            pushed = hatted[low.site[hatted] == number]
            self.field_place[own] = np.arange(len(own))
            self.hat_place[pushed] = len(own) + np.arange(len(pushed))
            C = site.C[np.ix_(march.local[own], march.local[own])]
            R = site.R[np.ix_(march.local[own], march.hat[pushed])]
            zero = np.zeros((len(pushed), len(pushed)))
            self.V.append(np.block([[C, R], [R.T, zero]]))

    def places(self, x: TermArrays) -> tuple[IntegerArray, IntegerArray, IntegerArray]:
        """Return the sites of entries, and the places of both factors in the covariance of their site."""
        first = (self.hat_place if x.hats > 0 else self.field_place)[x.first]
        second = (self.hat_place if x.hats > 1 else self.field_place)[x.second]
        return self.lowered.site[x.first], first, second

    @cached_property
    def units(self) -> dict[int, SiteProducts]:
        """At each site: order parameters, places of both factors, weights."""
        return self._gathered(self.lowered.units)

    @cached_property
    def influences(self) -> dict[int, SiteProducts]:
        """The same of what order parameters multiply."""
        return self._gathered(self.lowered.influences)

    def _gathered(self, entries: list[TermArrays]) -> dict[int, SiteProducts]:
        parts: list[list[tuple[IntegerArray, IntegerArray, IntegerArray, Array]]] = [[] for _ in self.V]
        for x in entries:
            weights = self.lowered.value(x, self.values)
            site, first, second = self.places(x)
            for number in np.unique(site):
                at = np.flatnonzero((site == number) & (weights != 0))
                parts[number].append((x.target[at], first[at], second[at], weights[at]))
        return _joined(parts)

    # -- everything, as matrices -----------------------------------------------------------------------------

    @cached_property
    def kappa(self) -> Array:
        """How averages over units scatter, ``(parameters, parameters)``."""
        found = np.zeros((self.count, self.count))
        for number, x in self.units.items():
            q, a, b, w = x.parameters, x.first, x.second, x.weights
            V, ratio = self.V[number], self.lowered.ratios[number]
            block = (V[np.ix_(a, a)] * V[np.ix_(b, b)] + V[np.ix_(a, b)] * V[np.ix_(b, a)]) * np.outer(w, w)
            np.add.at(found, np.ix_(q, q), block / ratio)
        return found

    @cached_property
    def D(self) -> Array:
        """The derivative of each order parameter by each other one."""
        found = np.zeros((self.count, self.count))
        for number, x in self.units.items():
            if number not in self.influences:
                continue
            V, y = self.V[number], self.influences[number]
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

    # -- shifts ----------------------------------------------------------------------------------------------

    @cached_property
    def shift(self) -> Array:
        """N times the mean of each order parameter minus its value at infinite width."""
        source = np.zeros(self.count)
        second = self._second()
        for number, x in self.units.items():
            V = self.V[number]
            T = np.zeros_like(V)
            if number in self.influences:
                T += self._twice(V, self.influences[number])
                T += self._self_action(V, x, self.influences[number]) / self.lowered.ratios[number]
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

    def _second(self) -> dict[int, SiteProducts]:
        """Second derivatives of the exponent, weighted with the covariance of the two order parameters."""
        parts: list[list[tuple[IntegerArray, IntegerArray, IntegerArray, Array]]] = [[] for _ in self.V]
        for x in self.lowered.second_influences:
            weights = self.lowered.value(x, self.values) * self.covariance[x.target, x.other[0]]
            site, first, second = self.places(x)
            for number in np.unique(site):
                at = site == number
                parts[number].append((x.target[at], first[at], second[at], weights[at]))
        return _joined(parts)

    def numbers(self, name: str, *arguments: int) -> int:
        """Return the number of an order parameter at indices and times."""
        (key,) = (k for k in self.lowered.names if k[0] == name)
        (found,) = self.lowered.parameters.find(key, [np.array([x]) for x in arguments])
        return int(found)


def _joined(
    parts: list[list[tuple[IntegerArray, IntegerArray, IntegerArray, Array]]],
) -> dict[int, SiteProducts]:
    """The products of each site that has any."""
    return {
        number: SiteProducts(*(np.concatenate(z) for z in zip(*part, strict=True)))
        for number, part in enumerate(parts)
        if part
    }


CHUNK = 2**22
"""TermArrays of a block of products of covariances that is computed at once."""
