"""The mean-field solution of a linear theory at all times: order parameters, responses and covariances.

Fields ``x`` of one unit obey ``x = u + K x`` with sources ``u`` of covariance Sigma.  The march adds one time
step after the other: its rows of ``R = (1 - K)^(-1)`` and ``C = R Sigma R^T``, and the order parameters that
follow from them.  The expansion in 1/N takes both from here (:mod:`numerics.fluctuations.linear`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Unserved, diverged_at
from numerics.fluctuations.lowered import CONSTANT, IntegerArray, LoweredFluctuations, TermArrays

Array = NDArray[np.float64]

MOST_LEVELS = 200
"""Largest number of successive computations within a step."""


@dataclass(eq=False)
class SiteFields:
    """Responses and covariances of the fields of one unit of a population at one layer, sorted by time.

    A *node* is a field, or a product of weights with a field, at one time and one value of each index. A
    *hat* belongs to a node and stands for a perturbation of its equation.

    Attributes
    ----------
    nodes, hats
        The numbers of the nodes ``(n,)``, and of those that have a hat ``(k,)``.
    node_ends, hat_ends
        For each time the number of nodes and of hats at this time or before, ``(times,)``.
    R, Y, C
        Responses of nodes to hats ``(n, k)``, covariances of sources with nodes ``(k, n)``, and covariances
        of nodes ``(n, n)``.
    sigma
        The covariance of the sources, ``(k, k)``.
    """

    nodes: IntegerArray
    hats: IntegerArray
    node_ends: IntegerArray
    hat_ends: IntegerArray
    R: Array
    Y: Array
    C: Array
    sigma: Array
    coupling: Array = field(default_factory=lambda: np.zeros((0, 0)))
    """Coefficients of nodes in the equations of the nodes of one time (rows of K), ``(now, nodes)``."""

    @classmethod
    def of(cls, nodes: IntegerArray, hats: IntegerArray, time: IntegerArray, times: int) -> SiteFields:
        """Return the site with given nodes and hats; its matrices are zero and are filled later.

        ``nodes`` and ``hats`` are numbers of nodes, ``time`` is the time of every node of the theory, and
        ``times`` the number of times. A node is a field, or a product of weights with a field, at one time. A
        hat is the response field conjugate to a field: the average of a field times a hat is the response of
        the field. A site is a population at one layer.
        """
        nodes, hats = (x[np.argsort(time[x], kind="stable")] for x in (nodes, hats))
        node_ends, hat_ends = (
            np.searchsorted(time[x], np.arange(times), side="right") for x in (nodes, hats)
        )
        n, k = len(nodes), len(hats)
        R, Y, C, sigma = (np.zeros(shape) for shape in ((n, k), (k, n), (n, n), (k, k)))
        return cls(nodes, hats, node_ends, hat_ends, R, Y, C, sigma)

    def nodes_at(self, time: int) -> slice:
        """Return the slice of the nodes of the time ``time`` among all nodes of the site.

        A node is a field, or a product of weights with a field, at one time. A site is a population at one
        layer.
        """
        return slice(int(self.node_ends[time - 1]) if time else 0, int(self.node_ends[time]))

    def hats_at(self, time: int) -> slice:
        """Return the slice of the hats of the time ``time`` among all hats of the site.

        A hat is the response field conjugate to a field: the average of a field times a hat is the response
        of the field. A site is a population at one layer.
        """
        return slice(int(self.hat_ends[time - 1]) if time else 0, int(self.hat_ends[time]))

    def extend(self, time: int, direct: Array) -> None:
        """Compute the responses R and the covariances Y and C of the fields of one time.

        The equations are ``R_now = direct + K R``, ``Y = Sigma R^T`` and ``C = R Y``. K is the attribute
        ``coupling``, which must be set: the coefficients of fields up to this time in the equations of this
        time. Sigma is the covariance of the sources. ``direct`` (nodes of this time, hats up to it) is 1
        where a hat (perturbation) perturbs the node itself. A node is a field, or a product of weights with a
        field, at one time.
        """
        now, known = self.nodes_at(time), slice(int(self.hat_ends[time]))
        earlier, last = slice(now.start), slice(now.stop)
        rows = direct + self.coupling[:, earlier] @ self.R[earlier, known]
        self.R[now, known], inside = rows, self.coupling[:, now]
        # Fields of one time depend on each other without cycles, so that this fixed-point iteration ends
        # after at most one pass for each row.
        for _ in range(len(rows)):
            responses = rows + inside @ self.R[now, known]
            if np.array_equal(responses, self.R[now, known]):
                break
            self.R[now, known] = responses
        new = self.hats_at(time)
        self.Y[new, last] = self.sigma[new, known] @ self.R[last, known].T
        self.Y[known, now] = self.sigma[known, known] @ self.R[now, known].T
        rows = self.R[now, known] @ self.Y[known, last]
        rows[:, now] = (rows[:, now] + rows[:, now].T) / 2  # C is symmetric: this removes rounding errors
        self.C[now, last] = rows
        self.C[last, now] = rows.T


class LinearMarch:
    """The mean-field solution of a theory with linear fields, computed one time step after the other.

    A hat is the response field conjugate to a field: the average of a field times a hat is the response of
    the field. A node is a field, or a product of weights with a field, at one time.

    Parameters
    ----------
    lowered
        The expansion in 1/N as arrays, with numbers for its sizes.

    Attributes
    ----------
    values
        The order parameters, ``(parameters,)``.
    sites
        Responses and covariances of the fields of each site, a population at one layer.
    local, hat
        The position of each node among the nodes of its site, and among the hats of its site; the second is
        -1 for nodes without hat.

    Raises
    ------
    Unserved
        If a function of fields is not linear, if an equation of a field has an addend without a field, or if
        the order parameters of one time depend on each other in a cycle.
    Diverged
        If an order parameter is not finite.
    """

    def __init__(self, lowered: LoweredFluctuations) -> None:
        self.lowered = lowered
        if lowered.features:
            feature = next(iter(lowered.features.values()))
            raise Unserved(
                f"the march needs a linear theory, and {feature.expr} is not linear in the fields of a unit"
            )
        self.values = np.zeros(lowered.parameters.count)
        hatted = _hatted(lowered)
        self.local = np.zeros(lowered.nodes.count, int)
        self.hat = np.full(lowered.nodes.count, -1)
        self.sites = []
        for number in range(len(lowered.sites)):
            nodes = np.flatnonzero(lowered.site == number)
            hats = hatted[lowered.site[hatted] == number]
            site = SiteFields.of(nodes, hats, lowered.time, lowered.sizes.times)
            self.local[site.nodes] = np.arange(len(nodes))
            self.hat[site.hats] = np.arange(len(hats))
            self.sites.append(site)
        with np.errstate(over="ignore", invalid="ignore"):
            for time in range(lowered.sizes.times):
                self._step(time)

    def _step(self, time: int) -> None:
        """Compute order parameters, responses and covariances of one time.

        They depend on each other, so that the computation is repeated until nothing changes. Raise Unserved
        if it still changes after MOST_LEVELS repetitions, and Diverged if a value is not finite.
        """
        for _ in range(MOST_LEVELS):
            before = self.values.copy()
            changed = self._covariances(time)
            changed |= self._couplings(time)
            for number in changed:
                self._extend(number, time)
            self._parameters(time)
            if not np.isfinite(self.values).all():
                name = self.lowered.name_of(int(np.flatnonzero(~np.isfinite(self.values))[0]))
                raise diverged_at(time, name, self.values)
            moved = np.abs(self.values - before)
            if not changed and (moved <= 1e-15 * np.abs(self.values)).all():
                return
        raise Unserved(
            f"order parameters of one time still change after {MOST_LEVELS} evaluations, as they do if their "
            "definitions are cyclic: one of them must depend on earlier times only"
        )

    def _extend(self, number: int, time: int) -> None:
        """Compute the responses and covariances of the fields of one time at the site ``number``.

        A site is a population at one layer.
        """
        site = self.sites[number]
        now = site.nodes_at(time)
        direct = np.zeros((now.stop - now.start, int(site.hat_ends[time])))
        hat = self.hat[site.nodes[now]]
        has = np.flatnonzero(hat >= 0)
        direct[has, hat[has]] = 1.0
        site.extend(time, direct)

    def _covariances(self, time: int) -> set[int]:
        """Compute the covariances of the Gaussian sources of a time with sources up to this time.

        Return the numbers of the sites where one of them has changed. A site is a population at one layer.
        """
        lowered, changed = self.lowered, set()
        covariances = []
        for site in self.sites:
            now = site.hats_at(time)
            covariances.append(np.zeros((2, now.stop - now.start, now.stop)))
        for x in lowered.covariances:
            part = x.at(time)
            weights = lowered.value(x, self.values, part)
            for number, at in self.by_site(x.target[part]):
                rows, cols = self.hat[x.target[part][at]], self.hat[x.first[part][at]]
                start = self.sites[number].hats_at(time).start
                new, old = rows >= start, cols >= start
                np.add.at(covariances[number][0], (rows[new] - start, cols[new]), weights[at][new])
                np.add.at(covariances[number][1], (cols[old] - start, rows[old]), weights[at][old])
        for number, (site, both) in enumerate(zip(self.sites, covariances, strict=True)):
            now = site.hats_at(time)
            # `both` holds the covariances of the pairs (a, b) and (b, a). Their mean is taken, because
            # rounding may make given kernels slightly asymmetric.
            covariance = both.mean(axis=0)
            if len(covariance) and not np.array_equal(site.sigma[now, : now.stop], covariance):
                site.sigma[now, : now.stop] = covariance
                site.sigma[: now.stop, now] = covariance.T
                changed.add(number)
        return changed

    def by_site(self, nodes: IntegerArray) -> list[tuple[int, IntegerArray]]:
        """Group nodes by their site: return pairs (number of the site, positions in ``nodes``).

        A site is a population at one layer. A node is a field, or a product of weights with a field, at one
        time.
        """
        site = self.lowered.site[nodes]
        return [(int(k), np.flatnonzero(site == k)) for k in np.unique(site)]

    def _couplings(self, time: int) -> set[int]:
        """Compute the coefficients of fields in the equations of the fields of one time (rows of K).

        Return the numbers of the sites where a row is new or has changed. A site is a population at one
        layer. Raises Unserved if an equation has an addend without a field.
        """
        lowered = self.lowered
        couplings = []
        for site in self.sites:
            now = site.nodes_at(time)
            couplings.append(np.zeros((now.stop - now.start, now.stop)))
        for x in (*lowered.kernels, *lowered.definitions):
            part = x.at(time)
            if part.stop == part.start:
                continue
            if (x.first[part] == CONSTANT).any():
                raise Unserved(
                    "the equation of a field has an addend that contains no field, and fluctuations of a "
                    "linear theory need equations of fields in which each addend contains a field"
                )
            weights = lowered.value(x, self.values, part)
            for number, at in self.by_site(x.target[part]):
                rows = self.local[x.target[part][at]] - self.sites[number].nodes_at(time).start
                np.add.at(couplings[number], (rows, self.local[x.first[part][at]]), weights[at])
        changed = set()
        for number, (site, coupling) in enumerate(zip(self.sites, couplings, strict=True)):
            if len(coupling) and not np.array_equal(site.coupling, coupling):
                site.coupling = coupling
                changed.add(number)
        return changed

    def _parameters(self, time: int) -> None:
        """Compute the order parameters of one time from the covariances and responses of fields.

        Averages of products come first, then functions of other order parameters.
        """
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
        # If order parameters of one time depend on each other without cycles, this fixed-point iteration
        # ends. It has at most MOST_LEVELS passes; `_step`, which calls this method, refuses cycles.
        for _ in range(MOST_LEVELS):
            updated = fresh.copy()
            for x in lowered.rests:
                part = x.at(time)
                np.add.at(updated, x.target[part], lowered.value(x, self.values, part))
            if np.array_equal(updated[touched], self.values[touched], equal_nan=True):
                return
            self.values[touched] = updated[touched]

    def pair(self, x: TermArrays, part: slice) -> Array:
        """Return the averages that multiply the weights of a term, for the values of its indices in ``part``.

        The averages are covariances of two fields, or responses of a field to a hat, one for each value in
        ``part``. They are zero for a term with one field, because no field of a linear theory has a mean. A
        hat is the response field conjugate to a field: the average of a field times a hat is the response of
        the field.
        """
        averages = np.zeros(part.stop - part.start)
        paired = x.second[part] != CONSTANT
        for number, same_site in self.by_site(x.first[part]):
            site, at = self.sites[number], same_site[paired[same_site]]
            second = x.second[part][at]
            if x.hats:
                averages[at] = site.R[self.local[second], self.hat[x.first[part][at]]]
            else:
                averages[at] = site.C[self.local[x.first[part][at]], self.local[second]]
        return averages


def _hatted(lowered: LoweredFluctuations) -> IntegerArray:
    """Return the numbers of the nodes that have a hat, increasing.

    These are nodes with a Gaussian source, products of weights with fields that have memory or responses in
    their equation, nodes in whose equation an order parameter stands, and nodes that are perturbed in a
    response. A hat is the response field conjugate to a field: the average of a field times a hat is the
    response of the field. A node is a field, or a product of weights with a field, at one time.
    """
    perturbed = [x.target for x in (*lowered.kernels, *lowered.covariances)]
    perturbed += [x.first for x in lowered.covariances]
    perturbed += [x.first for x in lowered.units if x.hats]
    perturbed += [x.first for x in lowered.influences if x.hats]
    return np.unique(np.concatenate(perturbed))
