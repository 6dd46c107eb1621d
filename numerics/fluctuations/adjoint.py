"""Variances of chosen observables of a linear theory, by sweeps backwards in time.

For the gradient e of an observable with respect to order parameters the sweep solves ``psi = e + D^T psi``.
On a site psi is a symmetric matrix Psi, ``x^T Psi x / 2 = sum_i psi_i F_i(x)``, the influence of a unit on
the observable:

    (D^T psi)_k = sum over E_k of w (V Psi V)_cd,    N Cov(O, O') = sum over sites of tr(Psi V Psi' V)/(2 a).

D is causal: psi at one time follows from later ones, and within a step from a finite chain of computations.
Memory is one matrix of a site for each observable; no matrix of order parameters is needed.
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

ROUNDING = 1e-12
"""Residual of a unit gradient below which it is a combination of others."""


@dataclass(frozen=True, eq=False)
class GroupedSums:
    """Sums of terms by target: ``found[..., targets] += sum of weight * value at source``.

    Attributes
    ----------
    targets
        Positions to which sums are added, each once, ``(m,)``.
    starts
        Positions of the first term of each target, ``(m,)``.
    sources
        The positions of the values, ``(n,)``, sorted by target.
    weights
        The coefficients of the values, ``(n,)``.
    """

    targets: IntegerArray
    starts: IntegerArray
    sources: IntegerArray
    weights: Array

    @classmethod
    def of(cls, targets: IntegerArray, sources: IntegerArray, weights: Array) -> GroupedSums:
        """Return the sums for terms ``weights * value[sources]`` that are added at ``targets``, (n,) each."""
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
    """Contributions of one time to the order parameters on which it depends.

    Attributes
    ----------
    same
        Sums for order parameters of the same time, counted from the first of them.
    earlier
        Sums for order parameters of earlier times.
    """

    same: GroupedSums
    earlier: GroupedSums

    @classmethod
    def of(cls, targets: IntegerArray, sources: IntegerArray, weights: Array, present: slice) -> CausalSums:
        """Divide terms by the time of their targets.

        ``present`` is the range of the targets of the same time. Raise Unserved for targets of later times.
        """
        if (targets >= present.stop).any():
            raise Unserved(
                "a quantity depends on an order parameter of a later time, so that it is not causal"
            )
        now = targets >= present.start
        return cls(
            GroupedSums.of(targets[now] - present.start, sources[now], weights[now]),
            GroupedSums.of(targets[~now], sources[~now], weights[~now]),
        )


@dataclass(frozen=True, eq=False)
class SiteBlock:
    """The part of a site that belongs to one time.

    A hat is the perturbation of the equation of a field. A site is a population at one layer.

    Attributes
    ----------
    site
        The number of the site.
    own, last
        The range of the fields and hats of this time in the site, and the number of them up to this time.
    hats
        The positions of hats among those of this time, counted from the first field or hat of this time.
    units
        Sums from order parameters of this time to the rows ``Psi[own, :last]``, flattened.
    influences
        Sums from the rows ``(V Psi V)[hats, :last]``, flattened, to order parameters.
    """

    site: int
    own: slice
    last: int
    hats: IntegerArray
    units: GroupedSums
    influences: CausalSums


@dataclass(frozen=True, eq=False)
class TimeBlock:
    """Order parameters and sites of one time.

    A site is a population at one layer.

    Attributes
    ----------
    own
        The range of order parameters of this time, in the order of times.
    sites
        The part of each site that belongs to this time.
    slopes
        Sums with the derivatives of those order parameters that are functions of others.
    """

    own: slice
    sites: list[SiteBlock]
    slopes: CausalSums


@dataclass(frozen=True, eq=False)
class GradientSpan:
    """Gradients of observables as combinations of some of them, ``gradients = coefficients @ basis``.

    Attributes
    ----------
    basis
        Independent gradients of length one, ``(basis, columns)``.
    columns
        The order parameters of the columns, by number.
    coefficients
        Coefficients of all gradients, ``(observables, basis)``.
    """

    basis: Array
    columns: IntegerArray
    coefficients: Array


class AdjointFluctuations(LinearTheory):
    """Covariances of observables of a linear theory at order 1/N, by sweeps backwards in time."""

    def covariances_of(self, blocks: list[GradientBlock]) -> list[Array]:
        """Return N times the covariance of the observables of each block, ``(observables, observables)``.

        Only independent combinations of the observables of a block are swept.  Blocks of late times come
        first, and as many of them together as fit in memory.
        """
        spans = [self._span(x) for x in blocks]
        last = [int(self.lowered.parameter_time[x.columns].max(initial=0)) for x in blocks]
        found: list[Array] = [np.zeros((0, 0))] * len(blocks)
        batch: list[int] = []
        for k in sorted(range(len(blocks)), key=lambda k: -last[k]):
            if batch and sum(len(spans[i].basis) for i in (*batch, k)) > self.batch_size(last[batch[0]]):
                self._sweep_batch(batch, spans, last[batch[0]], found)
                batch = []
            batch.append(k)
        if batch:
            self._sweep_batch(batch, spans, last[batch[0]], found)
        return found

    def shifts_of(self, observables: Iterable[ExpandedObservable]) -> None:
        """Return None, because shifts need all covariances, which sweeps do not compute."""

    def _sweep_batch(
        self, batch: list[int], spans: list[GradientSpan], last: int, covariances: list[Array]
    ) -> None:
        """Compute the covariances of the blocks ``batch`` by one sweep and write them into ``covariances``.

        ``last`` is the latest time of their observables.
        """
        counts = np.cumsum([0, *(len(spans[k].basis) for k in batch)])
        psi = np.zeros((counts[-1], self.blocks[last].own.stop))
        for k, start, stop in zip(batch, counts[:-1], counts[1:], strict=True):
            psi[start:stop, self.rank[spans[k].columns]] = spans[k].basis
        inner = [np.zeros((len(spans[k].basis),) * 2) for k in batch]
        for site, Psi in zip(self.sites, self.sweep(psi, last), strict=True):
            end = Psi.shape[-1]
            for own, start, stop in zip(inner, counts[:-1], counts[1:], strict=True):
                moved = _product(Psi[start:stop], site.V[:end, :end])
                for k, x in enumerate(moved):
                    own[k] += moved @ x.reshape(end, end).T.ravel() / (2 * site.ratio)
        for k, own in zip(batch, inner, strict=True):
            covariances[k] = spans[k].coefficients @ (own + own.T) @ spans[k].coefficients.T / 2

    def _span(self, block: GradientBlock) -> GradientSpan:
        """Return the gradients of a block as combinations of independent ones, so that fewer are swept."""
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
        """Return how many observables at times up to ``last`` are swept together within BATCH_BYTES."""
        size = sum(3 * 8.0 * float(x.ends[last]) ** 2 for x in self.sites) + 8.0 * self.blocks[last].own.stop
        return max(1, int(BATCH_BYTES / size))

    @cached_property
    def rank(self) -> IntegerArray:
        """Position of each order parameter in the order of their times."""
        found = np.empty(self.count, int)
        found[np.argsort(self.lowered.parameter_time, kind="stable")] = np.arange(self.count)
        return found

    # -- sweeps ----------------------------------------------------------------------------------------------

    def sweep(self, psi: Array, last: int) -> list[Array]:
        """Return the influences Psi of a unit of each site on observables, ``(observables, n, n)`` each.

        ``psi`` (observables, parameters) holds gradients by order parameters in the order of ``rank``; it is
        overwritten by the solution of ``psi = e + D^T psi``. ``last`` is the latest time of the observables.
        A site is a population at one layer.
        """
        batch = len(psi)
        ends = [int(x.ends[last]) for x in self.sites]
        influences = [np.zeros((batch, n, n)) for n in ends]
        for time in range(last, -1, -1):
            block = self.blocks[time]
            now = psi[:, block.own]
            for x in block.sites:
                V, Psi, start = self.sites[x.site].V, influences[x.site], x.own.start
                rows = V[start : ends[x.site]][:, start : x.own.stop][:, x.hats].T @ Psi[:, start:]
                moved = _product(rows, V[: ends[x.site], : x.last])
                x.influences.same.add(now, moved)
                x.influences.earlier.add(psi, moved)
            self._step(psi, influences, block)
        return influences

    def _step(self, psi: Array, influences: list[Array], block: TimeBlock) -> None:
        """Propagate contributions of one time to order parameters of this and of earlier times.

        Order parameters of one time depend on each other in a chain, which is followed until nothing is left
        to add.
        """
        arrived = psi[:, block.own].copy()
        for _ in range(MOST_LEVELS):
            if not arrived.any():
                return
            passed = np.zeros_like(arrived)
            block.slopes.same.add(passed, arrived)
            block.slopes.earlier.add(psi, arrived)
            for x in block.sites:
                V, Psi = self.sites[x.site].V, influences[x.site]
                flat = np.zeros((len(psi), (x.own.stop - x.own.start) * x.last))
                x.units.add(flat, arrived)
                rows = flat.reshape(len(psi), -1, x.last)
                Psi[:, x.own, : x.last] += rows
                Psi[:, : x.own.start, x.own] += rows[:, :, : x.own.start].swapaxes(1, 2)
                moved = _product(V[x.own, x.own][x.hats] @ rows, V[: x.last, : x.last])
                x.influences.same.add(passed, moved)
                x.influences.earlier.add(psi, moved)
            psi[:, block.own] += passed
            arrived = passed
        raise Unserved(
            f"order parameters of one time depend on each other in more than {MOST_LEVELS} stages: "
            "their definitions are cyclic"
        )

    # -- blocks of one time ----------------------------------------------------------------------------------

    @cached_property
    def blocks(self) -> list[TimeBlock]:
        """For each time the order parameters, parts of sites and derivatives that a sweep uses.

        A site is a population at one layer.
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
        """Return for each time the derivatives of order parameters that are functions of others.

        ``ranges`` are the ranges of order parameters of each time.
        """
        terms = [(z.target, z.other[0], self.lowered.value(z, self.values)) for z in self.lowered.slopes]
        empty = (np.zeros(0, int), np.zeros(0, int), np.zeros(0))
        target, other, weights = (np.concatenate(x) for x in zip(empty, *terms, strict=True))
        time = self.lowered.parameter_time[target]
        found = []
        for k, part in enumerate(_parts(time, len(ranges))):
            sources = self.rank[target[part]] - ranges[k].start
            found.append(CausalSums.of(self.rank[other[part]], sources, weights[part], ranges[k]))
        return found

    def _unit_rows(self, number: int, ranges: list[slice]) -> list[GroupedSums]:
        """Return for each time the sums from order parameters to rows of Psi of the site ``number``.

        ``ranges`` are the ranges of order parameters of each time. A site is a population at one layer.
        """
        site, x = self.sites[number], self.units.get(number, NO_PRODUCTS)
        late, early, when = _ordered(x, site.times)
        if (when != self.lowered.parameter_time[x.parameters]).any():
            raise Unserved(
                "an order parameter is an average of fields of earlier times only; fluctuations are "
                "computed if it contains a field at its own time"
            )
        # Psi is symmetric: if both factors a, b have the same time, its rows hold entries (a, b) and (b, a)
        both = np.flatnonzero(site.times[early] == when)
        late, early = np.concatenate([late, early[both]]), np.concatenate([early, late[both]])
        sources = self.rank[np.concatenate([x.parameters, x.parameters[both]])]
        weights, when = (np.concatenate([y, y[both]]) for y in (x.weights, when))
        found = []
        for k, part in enumerate(_parts(when, len(ranges))):
            at = site.at(k)
            cells = (late[part] - at.start) * at.stop + early[part]
            found.append(GroupedSums.of(cells, sources[part] - ranges[k].start, weights[part]))
        return found

    def _influence_rows(self, number: int, ranges: list[slice]) -> list[CausalSums]:
        """Return for each time the sums from rows of ``V Psi V`` at hats to order parameters.

        ``number`` is the site, and ``ranges`` are the ranges of order parameters of each time. A hat is the
        perturbation of the equation of a field. A site is a population at one layer.
        """
        site, x = self.sites[number], self.influences.get(number, NO_PRODUCTS)
        hat, other = x.first, x.second
        later = site.is_hat[other] & (site.times[other] > site.times[hat])
        hat, other = np.where(later, other, hat), np.where(later, hat, other)
        if (site.times[other] > site.times[hat]).any():
            raise Unserved("a field depends on a field of a later time, so that the theory is not causal")
        found = []
        for k, part in enumerate(_parts(site.times[hat], len(ranges))):
            at = site.at(k)
            place = np.cumsum(site.is_hat[at]) - 1
            cells = place[hat[part] - at.start] * at.stop + other[part]
            found.append(CausalSums.of(self.rank[x.parameters[part]], cells, x.weights[part], ranges[k]))
        return found


NO_PRODUCTS = SiteProducts(np.zeros(0, int), np.zeros(0, int), np.zeros(0, int), np.zeros(0))
"""Empty products of a site."""


def _product(rows: Array, matrix: Array) -> Array:
    """Return ``rows @ matrix``, ``(batch, n, m) @ (m, k)``, with the last two axes flattened.

    The result is ``(batch, n k)``.
    """
    batch, n, m = rows.shape
    return np.asarray((rows.reshape(batch * n, m) @ matrix).reshape(batch, n * matrix.shape[1]))


def _ordered(x: SiteProducts, times: IntegerArray) -> tuple[IntegerArray, IntegerArray, IntegerArray]:
    """Return the later factor of each product, the earlier one, and the time of the later one.

    ``times`` are those of the fields and hats of the site. A hat is the perturbation of the equation of a
    field. A site is a population at one layer.
    """
    swapped = times[x.second] > times[x.first]
    late, early = np.where(swapped, x.second, x.first), np.where(swapped, x.first, x.second)
    return late, early, times[late]


def _parts(when: IntegerArray, times: int) -> list[IntegerArray]:
    """Return for each of ``times`` steps the positions at which ``when`` (n,) has this time."""
    order = np.argsort(when, kind="stable")
    return np.split(order, np.searchsorted(when[order], np.arange(1, times)))
