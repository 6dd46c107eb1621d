"""Variances of chosen observables of a linear theory, by sweeps backwards in time.

For the gradient e of an observable with respect to order parameters the sweep solves ``psi = e + D^T psi``,
where D holds the derivatives of order parameters by each other. Order parameter i averages a product F_i of
two fields or hats (response fields) x of a unit. On a site (a population at one layer) psi becomes a
symmetric matrix Psi, ``x^T Psi x / 2 = sum_i psi_i F_i(x)``, the influence of a unit on the observable:

    (D^T psi)_k = sum over E_k of w (V Psi V)_cd,    N Cov(O, O') = sum over sites of tr(Psi V Psi' V)/(2 a).

V is the covariance of fields and hats, E_k the products ``w x_c x_d`` that order parameter k multiplies in
the action, and a the ratio of units of the population to N. D is causal: psi at one time follows from later
ones, and within a step from a finite chain of computations. Memory is one matrix of a site for each
observable; no matrix of order parameters is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Unserved
from numerics.fluctuations.linear import GradientBlock, LinearTheory, SiteProducts
from numerics.fluctuations.lowered import IntegerArray
from numerics.fluctuations.march import MOST_LEVELS
from numerics.fluctuations.observables import ExpandedObservable

Array = NDArray[np.float64]

BATCH_BYTES = 2.0**30
"""Largest size in bytes of the matrices of observables that are swept together."""

SWEPT_MATRICES = 3
"""Number of matrices over the fields and hats of a unit that a sweep holds for each observable."""

ROUNDING = 1e-12
"""Residual of a unit gradient below which it is a combination of others."""


@dataclass(frozen=True, eq=False)
class GroupedSums:
    """Sparse linear map from an array ``values`` to an array ``totals``.

    For each target position i: ``totals[:, i] += sum over the terms of i of weight * values[:, source]``.

    Attributes
    ----------
    targets
        Positions i in ``totals`` to which sums are added, each once, ``(m,)``.
    starts
        Positions in ``sources`` of the first term of each target, ``(m,)``.
    sources
        Position in ``values`` of each term, ``(n,)``, sorted by target.
    weights
        Coefficient of each term, ``(n,)``.
    """

    targets: IntegerArray
    starts: IntegerArray
    sources: IntegerArray
    weights: Array

    @classmethod
    def of(cls, targets: IntegerArray, sources: IntegerArray, weights: Array) -> GroupedSums:
        """Return the linear map ``totals[targets[k]] += weights[k] * values[sources[k]]``.

        All three arrays have the shape (n,); a target may occur several times.
        """
        order = np.argsort(targets, kind="stable")
        unique, starts = np.unique(targets[order], return_index=True)
        return cls(unique, starts, sources[order], weights[order])

    def add(self, totals: Array, values: Array) -> None:
        """Add the sums over ``values`` (batch, sources) to ``totals`` (batch, targets), in place."""
        if len(self.targets):
            terms = values[:, self.sources] * self.weights
            totals[:, self.targets] += np.add.reduceat(terms, self.starts, axis=1)


@dataclass(frozen=True, eq=False)
class CausalSums:
    """Two linear maps from quantities of one time to the order parameters on which these depend.

    Attributes
    ----------
    same
        The map to order parameters of the same time, whose positions count from the first of them.
    earlier
        The map to order parameters of earlier times.
    """

    same: GroupedSums
    earlier: GroupedSums

    @classmethod
    def of(cls, targets: IntegerArray, sources: IntegerArray, weights: Array, present: slice) -> CausalSums:
        """Return a linear map, given by its terms, in two parts: targets of the same and of earlier times.

        The terms are ``totals[targets] += weights * values[sources]``. Targets are order parameters, numbered
        in the order of their times; ``present`` is the range of those of the same time as the sources. Raise
        Unserved if a target has a later time.
        """
        if (targets >= present.stop).any():
            raise Unserved(
                "the theory is not causal: a field or an order parameter depends on an order parameter of a "
                "later time"
            )
        now = targets >= present.start
        return cls(
            GroupedSums.of(targets[now] - present.start, sources[now], weights[now]),
            GroupedSums.of(targets[~now], sources[~now], weights[~now]),
        )


@dataclass(frozen=True, eq=False)
class SiteBlock:
    """The fields and hats of one time at one site, with the linear maps that a backward sweep applies there.

    A hat is the response field conjugate to a field: the average of a field times a hat is the response of
    the field. A site is a population at one layer. V is the covariance of its fields and hats, and Psi a
    symmetric matrix: the quadratic form of fields and hats by which one unit changes the observable.

    Attributes
    ----------
    site
        The number of the site.
    rows, last
        The range of rows of V and Psi that belong to this time, and the number of rows up to this time.
    hats
        The positions of hats among those of this time, counted from the first field or hat of this time.
    units
        The map from derivatives of the observable by order parameters of this time to ``Psi[rows, :last]``,
        flattened.
    influences
        The maps from ``(V Psi V)[hats, :last]``, flattened, to derivatives of the observable by order
        parameters.
    """

    site: int
    rows: slice
    last: int
    hats: IntegerArray
    units: GroupedSums
    influences: CausalSums


@dataclass(frozen=True, eq=False)
class TimeBlock:
    """Order parameters of one time and fields at each site, which one step of a backward sweep needs.

    A site is a population at one layer.

    Attributes
    ----------
    parameters
        The range of order parameters of this time, in the order of times.
    sites
        The fields and hats of this time at each site that has some.
    slopes
        The maps from derivatives of an observable by order parameters of this time to its derivatives by the
        order parameters of which these are functions.
    """

    parameters: slice
    sites: list[SiteBlock]
    slopes: CausalSums


@dataclass(frozen=True, eq=False)
class GradientSpan:
    """Gradients of observables by order parameters, as ``coefficients @ basis`` with independent rows.

    Attributes
    ----------
    basis
        Linearly independent gradients of length one, ``(basis, columns)``.
    columns
        For each column the number of the order parameter that it is the derivative by.
    coefficients
        Coefficients of all gradients, ``(observables, basis)``.
    """

    basis: Array
    columns: IntegerArray
    coefficients: Array


class AdjointFluctuations(LinearTheory):
    """Covariances at order 1/N of observables of a theory with linear fields, by backward sweeps.

    A sweep solves ``psi = e + D^T psi`` from the last time to the first: e is the gradient of an observable
    by order parameters, and D holds the derivatives of order parameters by each other.
    """

    def covariances_of(self, blocks: list[GradientBlock]) -> list[Array]:
        """Return for each block N times the covariance of its observables, ``(observables, observables)``.

        A block holds the gradients of some observables by order parameters. Only linearly independent
        gradients are swept backwards in time. Blocks with late times are swept first, and as many together as
        fit in memory.
        """
        spans = [self._span(x) for x in blocks]
        last = [int(self.lowered.parameter_time[x.columns].max(initial=0)) for x in blocks]
        covariances: list[Array] = [np.zeros((0, 0))] * len(blocks)
        batch: list[int] = []
        for k in sorted(range(len(blocks)), key=lambda k: -last[k]):
            if batch and sum(len(spans[i].basis) for i in (*batch, k)) > self.batch_size(last[batch[0]]):
                self._sweep_batch(batch, spans, last[batch[0]], covariances)
                batch = []
            batch.append(k)
        if batch:
            self._sweep_batch(batch, spans, last[batch[0]], covariances)
        return covariances

    def shifts_of(self, observables: Iterable[ExpandedObservable]) -> None:
        """Return None for any observables: this method does not compute shifts of means at order 1/N.

        They would need the covariances of all order parameters, which sweeps do not give.
        """

    def _sweep_batch(
        self, batch: list[int], spans: list[GradientSpan], last: int, covariances: list[Array]
    ) -> None:
        """Compute N times the covariances of some blocks of observables by one sweep backwards in time.

        ``spans`` holds the gradients of all blocks, and ``batch`` the positions of those that are swept.
        Results are written into ``covariances`` at these positions. ``last`` is the latest time of their
        observables.
        """
        counts = np.cumsum([0, *(len(spans[k].basis) for k in batch)])
        psi = np.zeros((counts[-1], self.blocks[last].parameters.stop))
        for k, start, stop in zip(batch, counts[:-1], counts[1:], strict=True):
            psi[start:stop, self.rank[spans[k].columns]] = spans[k].basis
        inner = [np.zeros((len(spans[k].basis),) * 2) for k in batch]
        for site, Psi in zip(self.sites, self.sweep(psi, last), strict=True):
            end = Psi.shape[-1]
            for basis_covariance, start, stop in zip(inner, counts[:-1], counts[1:], strict=True):
                moved = _product(Psi[start:stop], site.V[:end, :end])
                for k, x in enumerate(moved):
                    basis_covariance[k] += moved @ x.reshape(end, end).T.ravel() / (2 * site.ratio)
        for k, basis_covariance in zip(batch, inner, strict=True):
            covariances[k] = (
                spans[k].coefficients @ (basis_covariance + basis_covariance.T) @ spans[k].coefficients.T / 2
            )

    def _span(self, block: GradientBlock) -> GradientSpan:
        """Return the gradients of the observables of a block as combinations of independent gradients.

        Columns of order parameters with the same average are added first. The purpose is to sweep fewer
        gradients.
        """
        from scipy.linalg import qr  # slow to import, and seldom needed

        columns, place = np.unique(self.alike[block.columns], return_inverse=True)
        rows = np.zeros((len(block.matrix), len(columns)))
        np.add.at(rows.T, place, block.matrix.T)
        sizes = np.linalg.norm(rows, axis=1)
        unit = rows / np.where(sizes > 0, sizes, 1.0)[:, None]
        _, triangle, pivots = qr(unit.T, mode="economic", pivoting=True)
        count = int((np.abs(np.diag(triangle)) > ROUNDING * len(columns)).sum())
        basis = unit[np.sort(pivots[:count])]
        coefficients = np.linalg.lstsq(basis.T, rows.T, rcond=None)[0].T
        return GradientSpan(basis, columns, coefficients)

    def batch_size(self, last: int) -> int:
        """Return how many observables can be swept together with at most BATCH_BYTES bytes of memory.

        The result is at least one, also if this needs more. ``last`` is the latest time of the observables; a
        sweep holds arrays up to this time.
        """
        size = (
            sum(SWEPT_MATRICES * 8.0 * float(x.ends[last]) ** 2 for x in self.sites)
            + 8.0 * self.blocks[last].parameters.stop
        )
        return max(1, int(BATCH_BYTES / size))

    @cached_property
    def rank(self) -> IntegerArray:
        """Position of each order parameter in the list that is sorted by time, ``(parameters,)``."""
        positions = np.empty(self.count, int)
        positions[np.argsort(self.lowered.parameter_time, kind="stable")] = np.arange(self.count)
        return positions

    # -- sweeps ----------------------------------------------------------------------------------------------

    def sweep(self, psi: Array, last: int) -> list[Array]:
        """Return the influences Psi of a unit of each site on observables, ``(observables, n, n)`` each.

        ``psi`` (observables, parameters) holds gradients by order parameters in the order of ``rank``; it is
        overwritten by the solution of ``psi = e + D^T psi``, where e are the gradients and D the derivatives
        of order parameters by each other. ``last`` is the latest time of the observables. Psi is a symmetric
        matrix over the n fields and hats of the site up to this time. A site is a population at one layer.
        """
        batch = len(psi)
        ends = [int(x.ends[last]) for x in self.sites]
        influences = [np.zeros((batch, n, n)) for n in ends]
        for time in range(last, -1, -1):
            block = self.blocks[time]
            now = psi[:, block.parameters]
            for x in block.sites:
                V, Psi, start = self.sites[x.site].V, influences[x.site], x.rows.start
                rows = V[start : ends[x.site]][:, start : x.rows.stop][:, x.hats].T @ Psi[:, start:]
                moved = _product(rows, V[: ends[x.site], : x.last])
                x.influences.same.add(now, moved)
                x.influences.earlier.add(psi, moved)
            self._step(psi, influences, block)
        return influences

    def _step(self, psi: Array, influences: list[Array], block: TimeBlock) -> None:
        """Carry out one time of a backward sweep.

        Derivatives of observables by the order parameters of this time are passed on to the order parameters
        on which these depend. ``psi`` (observables, parameters) holds the derivatives of observables by order
        parameters, ``influences`` the matrices Psi (observables, n, n) of each site, the effect of one unit
        on the observables; both are changed in place. ``block`` is the time. Order parameters of one time
        depend on each other in a chain, which is followed until nothing is left to add. Raise Unserved if the
        chain has more than MOST_LEVELS stages.
        """
        arrived = psi[:, block.parameters].copy()
        for _ in range(MOST_LEVELS):
            if not arrived.any():
                return
            passed = np.zeros_like(arrived)
            block.slopes.same.add(passed, arrived)
            block.slopes.earlier.add(psi, arrived)
            for x in block.sites:
                V, Psi = self.sites[x.site].V, influences[x.site]
                flat = np.zeros((len(psi), (x.rows.stop - x.rows.start) * x.last))
                x.units.add(flat, arrived)
                rows = flat.reshape(len(psi), -1, x.last)
                Psi[:, x.rows, : x.last] += rows
                Psi[:, : x.rows.start, x.rows] += rows[:, :, : x.rows.start].swapaxes(1, 2)
                moved = _product(V[x.rows, x.rows][x.hats] @ rows, V[: x.last, : x.last])
                x.influences.same.add(passed, moved)
                x.influences.earlier.add(psi, moved)
            psi[:, block.parameters] += passed
            arrived = passed
        raise Unserved(
            f"order parameters of one time depend on each other in more than {MOST_LEVELS} stages, as they "
            "do if their definitions are cyclic"
        )

    # -- blocks of one time ----------------------------------------------------------------------------------

    @cached_property
    def blocks(self) -> list[TimeBlock]:
        """For each time the range of its order parameters, its fields and hats at each site, and linear maps.

        They are all that a backward sweep needs. A site is a population at one layer.
        """
        times = self.lowered.sizes.times
        ends = np.searchsorted(np.sort(self.lowered.parameter_time), np.arange(times), side="right")
        ranges = [slice(int(ends[k - 1]) if k else 0, int(ends[k])) for k in range(times)]
        slopes = self._slopes(ranges)
        sites: list[list[SiteBlock]] = [[] for _ in range(times)]
        for number, site in enumerate(self.sites):
            units = self._unit_rows(number, ranges)
            influences = self._influence_rows(number, ranges)
            for k in range(times):
                at = site.at(k)
                if at.stop > at.start:
                    hats = np.flatnonzero(site.is_hat[at])
                    sites[k].append(SiteBlock(number, at, at.stop, hats, units[k], influences[k]))
        return [TimeBlock(*x) for x in zip(ranges, sites, slopes, strict=True)]

    def _slopes(self, ranges: list[slice]) -> list[CausalSums]:
        """Return for each time the derivatives of its order parameters that are functions of other ones.

        They are linear maps from derivatives of an observable by these functions to derivatives of the
        observable by their arguments. ``ranges`` holds for each time the range of its order parameters,
        sorted by time.
        """
        terms = [(z.target, z.other[0], self.lowered.value(z, self.values)) for z in self.lowered.slopes]
        empty = (np.zeros(0, int), np.zeros(0, int), np.zeros(0))
        target, other, weights = (np.concatenate(x) for x in zip(empty, *terms, strict=True))
        time = self.lowered.parameter_time[target]
        maps = []
        for k, part in enumerate(_parts(time, len(ranges))):
            sources = self.rank[target[part]] - ranges[k].start
            maps.append(CausalSums.of(self.rank[other[part]], sources, weights[part], ranges[k]))
        return maps

    def _unit_rows(self, number: int, ranges: list[slice]) -> list[GroupedSums]:
        """Return for each time a linear map from derivatives by order parameters to a matrix Psi.

        The derivatives are those of an observable by the order parameters of this time. Psi is the quadratic
        form of the fields and hats (response fields) of one unit by which it changes the observable: an order
        parameter that averages ``x_a x_b`` adds to its entry ab. ``number`` is that of the site (a population
        at one layer), and ``ranges`` holds for each time the range of its order parameters, sorted by time.
        Raise Unserved if an order parameter contains no field at its own time.
        """
        site, x = self.sites[number], self.units.get(number, NO_PRODUCTS)
        late, early, when = _ordered(x, site.times)
        if (when != self.lowered.parameter_time[x.parameters]).any():
            raise Unserved(
                "an order parameter with the time t averages fields of earlier times only; fluctuations are "
                "computed only if each order parameter contains a field at its own time t"
            )
        # `when` is the time of the later factor of a product x_a x_b. A factor is a field or a hat. Only rows
        # of Psi for fields and hats of this time are stored. If both factors have this time, the rows contain
        # (a, b) and (b, a), which are equal. Otherwise they contain only the row of the later factor.
        both = np.flatnonzero(site.times[early] == when)
        late, early = np.concatenate([late, early[both]]), np.concatenate([early, late[both]])
        sources = self.rank[np.concatenate([x.parameters, x.parameters[both]])]
        weights, when = (np.concatenate([y, y[both]]) for y in (x.weights, when))
        maps = []
        for k, part in enumerate(_parts(when, len(ranges))):
            at = site.at(k)
            cells = (late[part] - at.start) * at.stop + early[part]
            maps.append(GroupedSums.of(cells, sources[part] - ranges[k].start, weights[part]))
        return maps

    def _influence_rows(self, number: int, ranges: list[slice]) -> list[CausalSums]:
        """Return for each time a linear map from ``V Psi V`` to derivatives by order parameters.

        V is the covariance of fields and hats, and Psi the quadratic form by which one unit changes the
        observable; the map takes the rows of the hats of this time. ``number`` is that of the site, and
        ``ranges`` holds for each time the range of its order parameters, sorted by time. A hat is the
        response field conjugate to a field: the average of a field times a hat is the response of the field.
        A site is a population at one layer. Raise Unserved if a field depends on a field or an order
        parameter of a later time.
        """
        site, x = self.sites[number], self.influences.get(number, NO_PRODUCTS)
        hat, other = x.first, x.second
        later = site.is_hat[other] & (site.times[other] > site.times[hat])
        hat, other = np.where(later, other, hat), np.where(later, hat, other)
        if (site.times[other] > site.times[hat]).any():
            raise Unserved("a field depends on a field of a later time, so that the theory is not causal")
        maps = []
        for k, part in enumerate(_parts(site.times[hat], len(ranges))):
            at = site.at(k)
            place = np.cumsum(site.is_hat[at]) - 1
            cells = place[hat[part] - at.start] * at.stop + other[part]
            maps.append(CausalSums.of(self.rank[x.parameters[part]], cells, x.weights[part], ranges[k]))
        return maps


NO_PRODUCTS = SiteProducts(np.zeros(0, int), np.zeros(0, int), np.zeros(0, int), np.zeros(0))
"""Empty products of a site."""


def _product(rows: Array, matrix: Array) -> Array:
    """Return ``rows @ matrix``, ``(batch, n, m) @ (m, k)``, with the last two axes flattened.

    The result is ``(batch, n k)``.
    """
    batch, n, m = rows.shape
    return np.asarray((rows.reshape(batch * n, m) @ matrix).reshape(batch, n * matrix.shape[1]))


def _ordered(x: SiteProducts, times: IntegerArray) -> tuple[IntegerArray, IntegerArray, IntegerArray]:
    """Return the later factor of each product of two factors, the earlier one, and the time of the later one.

    Factors are positions among the fields and hats of a site, whose times are ``times``. A hat is the
    response field conjugate to a field: the average of a field times a hat is the response of the field. A
    site is a population at one layer.
    """
    swapped = times[x.second] > times[x.first]
    late, early = np.where(swapped, x.second, x.first), np.where(swapped, x.first, x.second)
    return late, early, times[late]


def _parts(when: IntegerArray, times: int) -> list[IntegerArray]:
    """Return for each time 0, ..., ``times - 1`` the positions k at which ``when[k]`` is this time."""
    order = np.argsort(when, kind="stable")
    return np.split(order, np.searchsorted(when[order], np.arange(1, times)))
