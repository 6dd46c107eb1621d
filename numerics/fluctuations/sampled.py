"""Fluctuations of nonlinear theories: derivatives of averages over sampled paths of each site.

Order parameters average products of fields, or fields pushed by a hat.  On the paths of a site at given order
parameters (:mod:`.unit_paths`)

- ``kappa`` is the covariance of these products, in which hats differentiate the whole product,
- ``D`` is the difference of averages between runs with other order parameters, on the same random numbers,
- the shift takes second differences along the eigenvectors of the covariance, and differences of ``kappa``.

A correlation that is the covariance of sources is moved in units of its own factor, ``C = L A L^T``: single
entries of a covariance that is nearly singular cannot be moved alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from sympy import Abs, Heaviside, Max, Min, sign

from derive.calculus.symbols import s, t
from numerics.fluctuations.linear import GradientBlock
from numerics.fluctuations.lowered import CONSTANT, IntegerArray, LoweredFluctuations, key_of
from numerics.fluctuations.observables import ExpandedObservable
from numerics.fluctuations.unit_paths import PathArrays, Perturbation, UnitPaths, extend_factor, solve_saddle

Array = NDArray[np.float64]

STEPS = 1e-3, 3e-3
"""By how much order parameters are moved, for first and second differences, in units of order one."""

KINKED_STEPS = 0.1, 0.2
"""The same where fields jump: so far that enough paths jump."""

ROUNDING_WIDTH = 0.15
"""Over which part of the root mean square of its argument a kink is rounded where responses are averaged."""

SMALLEST = 1e-9
"""A field follows from earlier ones if, given them, this small a part of its mean square is left."""


def causal_factor(C: Array) -> tuple[Array, IntegerArray]:
    """Return a triangular factor of a covariance, and the rows that do not follow from those before them."""
    rows: list[Array] = []
    pivots: list[int] = []
    extend_factor(rows, pivots, C, SMALLEST)
    factor = np.zeros((len(C), len(pivots)))
    for row, into in zip(rows, factor, strict=True):
        into[: len(row)] = row
    return factor, np.array(pivots, int)


@dataclass(frozen=True, eq=False)
class UnitProducts:
    """What order parameters average over the units of one site.

    Attributes
    ----------
    first, second
        The places of both fields of each product; of a response the field and the column of the hat that
        pushes it, ``(n,)``.
    responses
        How many of the products are responses: the last ones.
    parameters, weights, product
        The terms of order parameters: the order parameter, the number in front, and which product it is.
    """

    first: IntegerArray
    second: IntegerArray
    responses: int
    parameters: IntegerArray
    weights: Array
    product: IntegerArray

    @property
    def plain(self) -> slice:
        """Products of two fields."""
        return slice(0, len(self.first) - self.responses)

    @property
    def pushed(self) -> slice:
        """Responses."""
        return slice(len(self.first) - self.responses, len(self.first))


class SampledFluctuations:
    """Covariances and shifts of the order parameters of any theory, from sampled paths.

    Parameters
    ----------
    lowered
        The theory in arrays.
    samples, seed
        The number of paths of each site, and the seed of the random numbers.
    shifts
        Whether shifts are wanted beside covariances.
    width
        Over which width kinks of functions are rounded; zero for none.
    """

    def __init__(
        self,
        lowered: LoweredFluctuations,
        samples: int,
        seed: int,
        *,
        shifts: bool = True,
        width: float = 0.0,
    ) -> None:
        self.lowered, self.shifts = lowered, shifts
        self.step, self.wide = KINKED_STEPS if has_kinks(lowered) and width == 0 else STEPS
        self.values, self.paths = solve_saddle(lowered, samples, seed, width)
        self.count = lowered.parameters.count
        self.units = [self._products(x) for x in self.paths]
        self.means = [self._means(k, x.base) for k, x in enumerate(self.paths)]

    def _products(self, paths: UnitPaths) -> UnitProducts:
        """The products that are averaged at one site."""
        low, site = self.lowered, paths.site
        plain: list[tuple[IntegerArray, Array, IntegerArray, IntegerArray]] = []
        pushed: list[tuple[IntegerArray, Array, IntegerArray, IntegerArray]] = []
        for x in low.units:
            weights = low.value(x, self.values)
            at = np.flatnonzero(low.site[x.second if x.hats else x.first] == site.number)
            first, second = x.first[at], x.second[at]
            if x.hats:
                pushed.append((x.target[at], weights[at], site.place[second], site.column[site.place[first]]))
            else:
                other = np.where(second == CONSTANT, CONSTANT, site.place[second])
                plain.append((x.target[at], weights[at], site.place[first], other))
        count, products, terms = 0, [], []
        for parts in (plain, pushed):
            q, weights, first, second = (
                np.concatenate(z) if parts else np.zeros(0, int)
                for z in (zip(*parts, strict=True) if parts else [()] * 4)
            )
            if parts is plain:  # in any order
                first, second = np.maximum(first, second), np.minimum(first, second)
            pairs, at = np.unique(np.stack([first, second]), axis=1, return_inverse=True)
            products.append(pairs)
            terms.append((q, weights, count + at.ravel()))
            count += pairs.shape[1]
        first, second = np.concatenate(products, axis=1)
        q, weights, at = (np.concatenate(z) for z in zip(*terms, strict=True))
        return UnitProducts(first, second, products[1].shape[1], q, weights, at)

    # -- averages on paths -----------------------------------------------------------------------------------

    def _means(self, number: int, parts: Iterable[PathArrays]) -> Array:
        """The averages of the products of a site."""
        units, total = self.units[number], np.zeros(len(self.units[number].first))
        a, b = units.first[units.plain], units.second[units.plain]
        two = b != CONSTANT
        for paths in parts:
            total[units.plain][two] += np.einsum("is,is->i", paths.X[a[two]], paths.X[b[two]])
            total[units.plain][~two] += paths.X[a[~two]].sum(axis=1)
            total[units.pushed] += paths.J[units.first[units.pushed], units.second[units.pushed]].sum(axis=-1)
        return total / self.paths[number].samples

    def averages(self, number: int, products: Array) -> Array:
        """Return what the products of a site add to the order parameters, ``(parameters,)``."""
        units, found = self.units[number], np.zeros(self.count)
        np.add.at(found, units.parameters, units.weights * products[units.product])
        return found

    def _plain(self, units: UnitProducts, paths: PathArrays) -> Array:
        """Products of two fields on all paths."""
        a, b = units.first[units.plain], units.second[units.plain]
        found = paths.X[a]
        found[b != CONSTANT] *= paths.X[b[b != CONSTANT]]
        return found

    def _noise(self, number: int, parts: Iterable[PathArrays]) -> tuple[Array, Array]:
        """The averages of products of a site, and their covariance but for that of responses."""
        units, samples = self.units[number], self.paths[number].samples
        n, plain_count = len(units.first), len(units.first) - units.responses
        found, means = np.zeros((n, n)), np.zeros(n)
        own, hats = units.first[units.pushed], units.second[units.pushed]
        a, b = units.first[units.plain], units.second[units.plain]
        clock = np.append(self.lowered.time[self.paths[number].site.nodes], 0)
        times = np.maximum(clock[a], clock[b])
        for paths in parts:
            plain = self._plain(units, paths)
            means[units.plain] += plain.sum(axis=1)
            means[units.pushed] += paths.J[own, hats].sum(axis=-1)
            found[units.plain, units.plain] += plain @ plain.T
            for r in np.unique(hats):
                at = np.flatnonzero(hats == r)
                later = np.flatnonzero(times >= self._time_of_hat(number, r))
                x, y, two = a[later], b[later], b[later] != CONSTANT
                moved = paths.J[x, r]
                moved[two] = moved[two] * paths.X[y[two]] + paths.X[x[two]] * paths.J[y[two], r]
                found[np.ix_(later, plain_count + at)] += moved @ paths.X[own[at]].T
                found[units.plain, plain_count + at] += plain @ paths.J[own[at], r].T
        means /= samples
        found = found / samples - np.outer(means, means)
        found[units.pushed, units.plain] = found[units.plain, units.pushed].T
        found[units.pushed, units.pushed] = 0.0
        return means, found

    def _pushed_pairs(self, number: int, parts: Iterable[PathArrays]) -> tuple[Array, Array]:
        """Responses, and ``<d (x x') / d push>`` of their fields, ``(responses, fields)``."""
        units, samples = self.units[number], self.paths[number].samples
        own, hats = units.first[units.pushed], units.second[units.pushed]
        fields = np.unique(own)
        found, means = np.zeros((len(own), len(fields))), np.zeros(len(own))
        for paths in parts:
            means += paths.J[own, hats].sum(axis=-1)
            for r in np.unique(hats):
                at = np.flatnonzero(hats == r)
                found[at] += paths.J[own[at], r] @ paths.X[fields].T + paths.X[own[at]] @ paths.J[fields, r].T
        return means / samples, found / samples

    def _response_noise(self, number: int) -> Array:
        """The covariance of the responses of a site with each other."""
        units, paths = self.units[number], self.paths[number]
        own, hats = units.first[units.pushed], units.second[units.pushed]
        found = np.zeros((len(own), len(own)))
        column = np.searchsorted(np.unique(own), own)
        for r in np.unique(hats):
            push = np.zeros(len(paths.site.hats))
            push[r] = self.step
            start = self._time_of_hat(number, r)
            sides = [
                self._pushed_pairs(number, paths.run(Perturbation(self.values, push=x, start=start)))[1]
                for x in (push, -push)
            ]
            at = np.flatnonzero(hats == r)
            found[:, at] = ((sides[0] - sides[1]) / (2 * self.step))[:, column[at]]
        means = self.means[number][units.pushed]
        return found - np.outer(means, means)

    def _time_of_hat(self, number: int, column: int) -> int:
        """The time of what a hat pushes."""
        site = self.paths[number].site
        return int(self.lowered.time[site.nodes[site.hats[column]]])

    @cached_property
    def kappas(self) -> list[Array]:
        """The covariance of the products of each site."""
        found = []
        for number, units in enumerate(self.units):
            block = self._noise(number, self.paths[number].base)[1]
            if units.responses:
                block[units.pushed, units.pushed] = self._response_noise(number)
            found.append(block)
        return found

    @cached_property
    def kappa(self) -> Array:
        """How averages over units scatter, ``(parameters, parameters)``."""
        found = np.zeros((self.count, self.count))
        for units, block, ratio in zip(self.units, self.kappas, self.lowered.ratios, strict=True):
            weighted = block[np.ix_(units.product, units.product)]
            weighted = weighted * np.outer(units.weights, units.weights) / ratio
            np.add.at(found, np.ix_(units.parameters, units.parameters), weighted)
        return found

    # -- directions ------------------------------------------------------------------------------------------

    @cached_property
    def directions(self) -> tuple[Array, Array]:
        """Directions in which order parameters are moved, ``(parameters, n)``, and the inverse of these."""
        columns: list[Array] = []
        inverse: list[Array] = []
        left = np.ones(self.count, bool)
        for name, site in self._correlations():
            block = self._block(name, site)
            if block is None:
                continue
            numbers, factor, pseudo = block
            left[numbers.ravel()] = False
            rank = factor.shape[1]
            for j in range(rank):
                for k in range(j, rank):
                    moved = np.outer(factor[:, j], factor[:, k])
                    moved = moved + moved.T if j != k else moved
                    column = np.zeros(self.count)
                    column[numbers] = moved
                    columns.append(column)
                    row = np.zeros(self.count)
                    both = np.outer(pseudo[j], pseudo[k])
                    row[numbers] = (both + both.T) / 2
                    inverse.append(row)
        for number in np.flatnonzero(left):
            unit = np.zeros(self.count)
            unit[number] = 1.0
            columns.append(unit)
            inverse.append(unit)
        return np.stack(columns, axis=1), np.stack(inverse)

    def _correlations(self) -> list[tuple[str, int]]:
        """The names and sites of correlations of one vector with itself that are covariances of sources."""
        low = self.lowered
        sources = {k for x in low.influences if x.hats == 2 for k in x.target.tolist()}
        found: dict[tuple[str, int], None] = {}
        for q in low.stated:
            if q.kind == "correlation":
                arguments = low.arguments(q.symbol, low.grid_of(q))
                numbers = low.parameters.find((q.name, len(q.symbol.args)), arguments)
                for number, units in enumerate(self.units):
                    own = set(units.parameters.tolist()) & set(numbers.tolist())
                    if own & sources:
                        found[q.name, number] = None
        return list(found)

    def _block(self, name: str, number: int) -> tuple[IntegerArray, Array, Array] | None:
        """Order parameters of a correlation as a matrix of fields, its factor and the inverse of that."""
        low, units = self.lowered, self.units[number]
        keys = [k for k in low.names if k[0] == name]
        own = np.concatenate([low.parameters.families[k].numbers.ravel() for k in keys])  # type: ignore[union-attr]
        at = np.flatnonzero(np.isin(units.parameters, own[own >= 0]))
        first, second = units.first[units.product[at]], units.second[units.product[at]]
        fields = np.unique(np.concatenate([first, second]))
        nodes = self.paths[number].site.nodes
        fields = fields[np.argsort(low.time[nodes[fields]], kind="stable")]
        place = {int(x): k for k, x in enumerate(fields)}
        numbers = np.full((len(fields), len(fields)), -1)
        for q, a, b in zip(units.parameters[at], first, second, strict=True):
            x, y = place[int(a)], place[int(b)]
            numbers[(x, y) if numbers[x, y] < 0 else (y, x)] = q
        if (numbers < 0).any():
            return None
        C = self.values[numbers]
        factor, pivots = causal_factor((C + C.T) / 2)
        pseudo = np.zeros(factor.T.shape)
        pseudo[:, pivots] = np.linalg.inv(factor[pivots])
        return numbers, factor, pseudo

    @cached_property
    def feeding(self) -> list[IntegerArray]:
        """For each site the directions that move something on it."""
        low = self.lowered
        B = self.directions[0]
        found = []
        for number in range(len(self.paths)):
            touched = np.zeros(self.count, bool)
            for x in low.influences:
                touched[x.target[low.site[x.first] == number]] = True
            found.append(np.flatnonzero((B[touched] != 0).any(axis=0)))
        return found

    def moved(self, number: int, direction: Array, size: float) -> Perturbation:
        """Return order parameters moved along a direction, as a site sees them."""
        paths = self.paths[number]
        values = self.values + size * direction
        start = int(self.times[direction != 0].min(initial=self.lowered.sizes.times))
        sigma, inverse, entries = self._sources[number]
        if not direction[entries].any():
            return Perturbation(values, start=start)
        change = paths.site.sigma(values) - sigma
        return Perturbation(values, inverse @ change @ inverse.T, start=start)

    @cached_property
    def _sources(self) -> list[tuple[Array, Array, IntegerArray]]:
        """Of each site the covariance of sources, the inverse of its factor, and what it depends on."""
        found = []
        for number, paths in enumerate(self.paths):
            inverse = np.zeros(paths.factor.T.shape)
            inverse[:, paths.pivots] = np.linalg.inv(paths.factor[paths.pivots])
            low = self.lowered
            parts = [x.target[low.site[x.first] == number] for x in low.influences if x.hats == 2]
            entries = np.unique(np.concatenate(parts)) if parts else np.zeros(0, int)
            found.append((paths.site.sigma(self.values), inverse, entries))
        return found

    @cached_property
    def times(self) -> IntegerArray:
        """The later time of each order parameter."""
        low, found = self.lowered, np.zeros(self.count, int)
        for q in low.stated:
            grid = low.grid_of(q)
            numbers = low.parameters.find(key_of(q.symbol), low.arguments(q.symbol, grid))
            found[numbers] = grid[t] if s not in grid else np.maximum(grid[t], grid[s])
        return found

    @cached_property
    def slopes(self) -> list[list[tuple[Array, Array | None]]]:
        """For each site and each of its directions the derivatives of averages and of their covariance.

        The latter are None without a shift.
        """
        found = []
        for number, at in enumerate(self.feeding):
            own: list[tuple[Array, Array | None]] = []
            for k in at:
                up, down = (
                    self.paths[number].run(self.moved(number, self.directions[0][:, k], x))
                    for x in (self.step, -self.step)
                )
                if self.shifts:
                    sides = zip(self._noise(number, up), self._noise(number, down), strict=True)
                    means, noise = ((x - y) / (2 * self.step) for x, y in sides)
                    own.append((means, noise))
                else:
                    difference = self._means(number, up) - self._means(number, down)
                    own.append((difference / (2 * self.step), None))
            found.append(own)
        return found

    @cached_property
    def D(self) -> Array:
        """The derivative of order parameters by each other, in the coordinates of directions."""
        B, inverse = self.directions
        found = np.zeros((self.count, B.shape[1]))
        for number, at in enumerate(self.feeding):
            for k, (slope, _) in zip(at, self.slopes[number], strict=True):
                found[:, k] += self.averages(number, slope)
        for x in self.lowered.slopes:
            weights = self.lowered.value(x, self.values)
            np.add.at(found, x.target, weights[:, None] * B[x.other[0]])
        return np.asarray(inverse @ found)

    @cached_property
    def R(self) -> Array:
        """``(1 - D)^(-1)``, in the coordinates of directions."""
        return np.asarray(np.linalg.inv(np.eye(len(self.D)) - self.D))

    @cached_property
    def covariance(self) -> Array:
        """N times the covariance of the order parameters."""
        B, inverse = self.directions
        moved = B @ self.R @ inverse
        return np.asarray(moved @ self.kappa @ moved.T)

    # -- shifts ----------------------------------------------------------------------------------------------

    @cached_property
    def shift(self) -> Array:
        """N times the mean of each order parameter minus its value at infinite width."""
        B, inverse = self.directions
        R, C = self.R, self.R @ inverse @ self.kappa @ inverse.T @ self.R.T
        source = np.zeros(self.count)
        for number in range(len(self.paths)):
            source += self._curved(number, B, C)
            source += self._self_action(number, R, inverse, B)
        whole = B @ C @ B.T
        for x in self.lowered.second_slopes:
            weights = self.lowered.value(x, self.values)
            np.add.at(source, x.target, weights * whole[x.other[0], x.other[1]])
        return np.asarray(B @ R @ inverse @ source)

    def _curved(self, number: int, B: Array, C: Array) -> Array:
        """Half the second derivatives of the averages of a site, summed with the covariance."""
        at, found = self.feeding[number], np.zeros(len(self.units[number].first))
        if len(at):
            sizes, vectors = np.linalg.eigh(C[np.ix_(at, at)])
            for size, v in zip(sizes, vectors.T, strict=True):
                if abs(size) > NEGLIGIBLE * np.abs(sizes).max():
                    up, down = (
                        self._means(number, self.paths[number].run(self.moved(number, B[:, at] @ v, x)))
                        for x in (self.wide, -self.wide)
                    )
                    found += size * (up - 2 * self.means[number] + down) / (2 * self.wide**2)
        return self.averages(number, found)

    def _self_action(self, number: int, R: Array, inverse: Array, B: Array) -> Array:
        """What a unit moves and what moves it in turn: derivatives of the noise, over the units."""
        units = self.units[number]
        moves = np.zeros((len(R), len(units.first)))  # by each product of the site
        np.add.at(moves.T, units.product, (R @ inverse[:, units.parameters] * units.weights).T)
        total = np.zeros(len(units.first))
        for k, (_, slope) in zip(self.feeding[number], self.slopes[number], strict=True):
            assert slope is not None
            total += slope @ moves[k]
        if units.responses:
            total[units.pushed] += self._response_action(number, B, moves)
        return self.averages(number, total) / self.lowered.ratios[number]

    def _response_action(self, number: int, B: Array, moves: Array) -> Array:
        """The same between responses."""
        units, paths, at = self.units[number], self.paths[number], self.feeding[number]
        own, hats = units.first[units.pushed], units.second[units.pushed]
        fields, means = np.unique(own), self.means[number][units.pushed]
        total = np.zeros(len(own))
        for b in range(len(own)):
            strength = moves[at, len(units.first) - units.responses + b]
            size = np.abs(strength).max(initial=0.0)
            if size <= NEGLIGIBLE:
                continue
            direction = B[:, at] @ (strength / size)
            push = np.zeros(len(paths.site.hats))
            push[hats[b]] = self.wide
            column = int(np.searchsorted(fields, own[b]))
            mixed, slopes = np.zeros(len(own)), np.zeros(len(own))
            for along in (1, -1):
                other = self.moved(number, direction, along * self.wide)
                for side in (1, -1):
                    start = min(other.start, self._time_of_hat(number, hats[b]))
                    pushed = replace(other, push=side * push, start=start)
                    responses, pairs = self._pushed_pairs(number, paths.run(pushed))
                    mixed += along * side * pairs[:, column] / (4 * self.wide**2)
                    slopes += along * responses / (4 * self.wide)
            total += size * (mixed - slopes * means[b] - means * slopes[b])
        return total


NEGLIGIBLE = 1e-9
"""Eigenvalues of a covariance, as parts of the largest one, that are left out."""


@dataclass(frozen=True, eq=False)
class SampledMoments:
    """Order parameters with their covariances and shifts.

    Attributes
    ----------
    values
        The order parameters at infinite width, ``(parameters,)``.
    covariance
        N times their covariance.
    shift
        N times their mean minus their value; None where it was not asked for.
    """

    values: Array
    covariance: Array
    shift: Array | None

    def covariances_of(self, blocks: list[GradientBlock]) -> list[Array]:
        """Return N times the covariance of the observables of each block."""
        return [x.matrix @ self.covariance[np.ix_(x.columns, x.columns)] @ x.matrix.T for x in blocks]

    def shifts_of(self, observables: Iterable[ExpandedObservable]) -> list[Array] | None:
        """Return N times the mean of observables minus their values."""
        if self.shift is None:
            return None
        index = np.arange(len(self.values))
        return [x.shift(self.shift, self.covariance, index) for x in observables]


class SampledSolution:
    """Fluctuations of a nonlinear theory from several independent sets of paths.

    Attributes
    ----------
    lowered
        The theory in arrays.
    replicas
        What each set of paths gives.
    values
        The order parameters at infinite width, their mean.
    """

    def __init__(self, lowered: LoweredFluctuations, replicas: Sequence[SampledMoments]) -> None:
        self.lowered, self.replicas = lowered, tuple(replicas)
        self.values = np.mean([x.values for x in replicas], axis=0)

    def covariances_of(self, blocks: list[GradientBlock]) -> list[Array]:
        """Return N times the covariance of the observables of each block."""
        found = [x.covariances_of(blocks) for x in self.replicas]
        return [np.mean(x, axis=0) for x in zip(*found, strict=True)]

    def shifts_of(self, observables: Iterable[ExpandedObservable]) -> list[Array] | None:
        """Return N times the mean of observables minus their values."""
        wanted = list(observables)
        found = [x.shifts_of(wanted) for x in self.replicas]
        known = [x for x in found if x is not None]
        return [np.mean(x, axis=0) for x in zip(*known, strict=True)] if known else None


def has_kinks(lowered: LoweredFluctuations) -> bool:
    """Return whether a function of fields has a kink or a jump."""
    return any(x.expr.has(Max, Min, Heaviside, Abs, sign) for x in lowered.features.values())


def sample_fluctuations(
    lowered: LoweredFluctuations, samples: int, seed: int, *, shifts: bool = True
) -> SampledMoments:
    """Return covariances and shifts from sampled paths.

    Responses of functions with kinks are averaged with these rounded, which changes averages in proportion to
    the width of the rounding: two widths are extrapolated to none.

    Parameters
    ----------
    lowered
        The theory in arrays.
    samples, seed
        The number of paths of each site, and the seed of the random numbers.
    shifts
        Whether shifts are wanted.

    Returns
    -------
    SampledMoments
        One sample; others with other seeds are independent of it.
    """
    widths = {0.0: 1.0}
    if has_kinks(lowered) and any(x.hats for x in lowered.units):
        widths = {ROUNDING_WIDTH: -1.0, ROUNDING_WIDTH / 2: 2.0}
    values, covariance, shift = (np.zeros(1) for _ in range(3))
    for width, weight in widths.items():
        found = SampledFluctuations(lowered, samples, seed, shifts=shifts, width=width)
        values = values + weight * found.values
        covariance = covariance + weight * found.covariance
        if shifts:
            shift = shift + weight * found.shift
    return SampledMoments(values, covariance, shift if shifts else None)
