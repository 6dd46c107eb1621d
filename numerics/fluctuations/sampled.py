"""Fluctuations of nonlinear theories: derivatives of averages over sampled paths of each site.

Order parameters average products of two fields, or responses. A response is written as the product of a field
and a hat, the response field: the hat acts as the derivative with respect to a perturbation of an equation of
the unit. On the paths of a site (a population at one layer) at given order parameters (:mod:`.unit_paths`)

- ``kappa`` is the covariance of these products over units; a hat differentiates all fields of both products,
- ``D`` has the derivatives of averages with respect to order parameters: differences between runs with
  perturbed order parameters, on the same random numbers,
- the shift of the mean uses second differences along the eigenvectors of the covariance, and differences of
  ``kappa``.

The covariance ``C = L L^T`` of the sources is perturbed by ``L A L^T``, because single entries of a nearly
singular covariance cannot be perturbed alone. Sources that are linear combinations of earlier ones, as at
late steps, have no random numbers of their own. A change of their correlations with the others gives them
multiples of the random numbers of the others (:class:`MoveBasis`); a change of their correlations with each
other acts by second differences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from derive.calculus.symbols import s, t
from numerics.errors import NotConverged
from numerics.fluctuations.linear import GradientBlock
from numerics.fluctuations.lowered import (
    CONSTANT,
    IntegerArray,
    LoweredFluctuations,
    has_kinks,
    key_of,
)
from numerics.fluctuations.observables import ExpandedObservable
from numerics.fluctuations.unit_paths import (
    PIVOT,
    PathArrays,
    Perturbation,
    UnitPaths,
    extend_factor,
    solve_saddle,
)

Array = NDArray[np.float64]

STEPS = 1e-3, 3e-3
"""Perturbations of order parameters for first and second differences, in units of order one."""

KINKED_STEPS = 0.1, 0.2
"""Perturbations if fields jump, so large that enough paths jump."""

ROUNDING_WIDTHS = 0.3, 0.15, 0.075
"""Widths over which kinks are rounded if there are responses, relative to the sources of a site.

The narrowest width determines the noise of extrapolated values: at half of it, shifts of G scatter six times
as much.
"""


def causal_factor(C: Array) -> tuple[Array, IntegerArray]:
    """Return a lower triangular factor L of a covariance, ``C = L L^T`` (n, n), and its pivots.

    Pivots are the positions of variables of which more than a share PIVOT of the variance remains, given
    earlier variables. The others count as linear combinations of earlier ones. L is ``(n, rank)``, with one
    column for each pivot.
    """
    rows: list[Array] = []
    pivots: list[int] = []
    extend_factor(rows, pivots, C, PIVOT)
    factor = np.zeros((len(C), len(pivots)))
    for row, into in zip(rows, factor, strict=True):
        into[: len(row)] = row
    return factor, np.array(pivots, int)


@dataclass(frozen=True, eq=False)
class MoveBasis:
    """A basis for changes of the covariance of Gaussian variables.

    The covariance ``C = L L^T`` of n variables has r pivots, and the other variables are linear combinations
    of pivots, without random numbers of their own. A change of C is written in the vectors of ``F = (L, E)``.
    E has a unit vector for each variable that is not a pivot, because such a variable may cease to be a
    linear combination of pivots when C changes.

    Attributes
    ----------
    vectors, inverse
        ``F`` and its inverse, ``(n, n)``.
    sizes
        Scale of each vector, ``(n,)``: for a pivot its standard deviation given the pivots before it, for
        another variable the largest of these, or 1 without pivots.
    rank
        The number of pivots.
    weak
        The positions of the variables that are not pivots.
    """

    vectors: Array
    inverse: Array
    sizes: Array
    rank: int
    weak: IntegerArray

    @classmethod
    def of(cls, factor: Array, pivots: IntegerArray) -> MoveBasis:
        """Return the basis for changes of a covariance ``C = L L^T``.

        ``factor`` is L (n, r), and ``pivots`` (r,) are the positions of variables that are not linear
        combinations of earlier ones.
        """
        weak = np.setdiff1d(np.arange(len(factor)), pivots)
        inner = np.zeros(factor.T.shape)
        inner[:, pivots] = np.linalg.inv(factor[pivots])
        outer = np.eye(len(factor))[weak] - factor[weak] @ inner
        vectors = np.concatenate([factor, np.eye(len(factor))[:, weak]], axis=1)
        diagonal = np.diag(factor[pivots])
        sizes = np.concatenate([diagonal, np.full(len(weak), diagonal.max(initial=0.0) or 1.0)])
        return cls(vectors, np.concatenate([inner, outer]), sizes, len(pivots), weak)

    def split(self, change: Array) -> SourceChange:
        """Return the blocks of X for the change ``F X F^T = change`` (n, n) of the covariance.

        F is this basis.
        """
        X, r = self.inverse @ change @ self.inverse.T, self.rank
        return SourceChange(self, X[:r, :r], X[r:, :r], X[r:, r:])

    @property
    def no_change(self) -> SourceChange:
        """The zero change of the covariance, written in this basis."""
        return self.split(np.zeros((len(self.vectors),) * 2))


@dataclass(frozen=True, eq=False)
class SourceChange:
    """A change ``F X F^T`` of the covariance of n Gaussian sources, written in a basis F.

    r of the variables are pivots: they are not linear combinations of earlier ones.

    Attributes
    ----------
    basis
        The basis F, with the pivots.
    inner, mixed, outer
        Blocks of X: pivots with pivots ``(r, r)``, other variables with pivots ``(n - r, r)``, and other
        variables with each other ``(n - r, n - r)``.
    """

    basis: MoveBasis
    inner: Array
    mixed: Array
    outer: Array


@dataclass(frozen=True, eq=False)
class Move:
    """Perturbation of order parameters along a direction, with the change of the sources of one site.

    A site is a population at one layer.

    Attributes
    ----------
    values
        The order parameters without perturbation.
    direction
        Their change by a step of length one.
    start
        The first time at which they change.
    step
        The length of a step.
    change
        The change of the covariance of the sources of a site by a step of length one; None if it does not
        change.
    """

    values: Array
    direction: Array
    start: int
    step: float
    change: SourceChange | None = None

    def at(self, count: int) -> Perturbation:
        """Return the perturbed order parameters and sources after ``count`` steps (negative: backwards).

        L is the factor of the covariance of the sources u, and E has a unit vector for each source that is a
        combination of others. With ``u = (L + E X) z`` and ``<z z^T> = 1 + A`` the covariance of ``u``
        changes by ``L A L^T``, by ``E X (1 + A) L^T`` and its transpose, and by a term of second order in X.
        The second term is linear in the step for ``X = mixed (1 + A)^(-1)``, where ``mixed`` is the block of
        ``change`` between combinations and other sources. The block of combinations with each other is left
        out here.
        """
        size = count * self.step
        values = self.values + size * self.direction
        if self.change is None:
            return Perturbation(values, start=self.start)
        inner, basis = size * self.change.inner, self.change.basis
        mixed = np.zeros((len(basis.vectors), basis.rank))
        mixed[basis.weak] = np.linalg.solve(np.eye(basis.rank) + inner, size * self.change.mixed.T).T
        return Perturbation(values, inner, mixed, start=self.start)


PathAverage = Callable[[int, Iterable[PathArrays]], Array]
"""Averages over the paths of a site."""

LARGEST_CHANGE = 0.2
"""The largest relative change of a variance in a step."""


@dataclass(frozen=True, eq=False)
class UnitProducts:
    """Products of two fields, and responses, of one site whose averages make up order parameters.

    A site is a population at one layer.

    Attributes
    ----------
    first, second
        Positions of both fields of each product among the fields of the site, ``(n,)``; the second is
        CONSTANT for a single field. For a response they are the position of the field, and the position of
        the hat by which it is differentiated among the hats of the site.
    responses
        The number of responses, which come after the products.
    parameters, weights, product
        Terms of order parameters. Term k adds ``weights[k]`` times the average of the product (or response)
        ``product[k]`` to the order parameter with the number ``parameters[k]``.
    """

    first: IntegerArray
    second: IntegerArray
    responses: int
    parameters: IntegerArray
    weights: Array
    product: IntegerArray

    @property
    def pair_range(self) -> slice:
        """Slice of the products of two fields among all products and responses."""
        return slice(0, len(self.first) - self.responses)

    @property
    def response_range(self) -> slice:
        """Slice of the responses among all products and responses."""
        return slice(len(self.first) - self.responses, len(self.first))


class SampledFluctuations:
    """Covariances and shifts at order 1/N of order parameters, from sampled paths of each site.

    A site is a population at one layer. Functions of fields may be nonlinear. The constructor solves the
    mean-field theory by :func:`solve_saddle` and raises the errors of that function.

    Parameters
    ----------
    lowered
        The theory in arrays.
    samples, seed
        The number of paths of each site, an even number, and the seed of the random numbers.
    shifts
        Whether shifts are computed beside covariances. If not, :attr:`shift` must not be read.
    width
        The width over which kinks of functions are rounded, relative to the root mean square of the sources
        of a site at time zero; zero for no rounding.
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
        self.step, self.second_step = KINKED_STEPS if has_kinks(lowered) and width == 0 else STEPS
        self.values, self.paths = solve_saddle(lowered, samples, seed, width)
        self.count = lowered.parameters.count
        self.units = [self._products(x) for x in self.paths]
        self.means = [self._means(k, x.base) for k, x in enumerate(self.paths)]

    def _products(self, paths: UnitPaths) -> UnitProducts:
        """Return the products of two fields, and the responses, that order parameters average at one site.

        ``paths`` are the sampled paths of the site. A site is a population at one layer.
        """
        low, site = self.lowered, paths.site
        plain: list[tuple[IntegerArray, Array, IntegerArray, IntegerArray]] = []
        responses: list[tuple[IntegerArray, Array, IntegerArray, IntegerArray]] = []
        for x in low.units:
            weights = low.value(x, self.values)
            at = np.flatnonzero(low.site[x.second if x.hats else x.first] == site.number)
            first, second = x.first[at], x.second[at]
            if x.hats:
                responses.append(
                    (x.target[at], weights[at], site.place[second], site.column[site.place[first]])
                )
            else:
                other = np.where(second == CONSTANT, CONSTANT, site.place[second])
                plain.append((x.target[at], weights[at], site.place[first], other))
        count, products, terms = 0, [], []
        for parts in (plain, responses):
            q, weights, first, second = (
                np.concatenate(z) if parts else np.zeros(0, int)
                for z in (zip(*parts, strict=True) if parts else [()] * 4)
            )
            if parts is plain:  # the order matters in responses, but not in x_a x_b = x_b x_a
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
        """Return the averages over paths of the products and responses of a site, ``(products,)``.

        Products are those of two fields whose averages are order parameters. ``number`` is that of the site,
        and ``parts`` are batches of its paths. A site is a population at one layer.
        """
        units, total = self.units[number], np.zeros(len(self.units[number].first))
        a, b = units.first[units.pair_range], units.second[units.pair_range]
        two = b != CONSTANT
        for paths in parts:
            total[units.pair_range][two] += np.einsum("is,is->i", paths.X[a[two]], paths.X[b[two]])
            total[units.pair_range][~two] += paths.X[a[~two]].sum(axis=1)
            total[units.response_range] += paths.J[
                units.first[units.response_range], units.second[units.response_range]
            ].sum(axis=-1)
        return total / self.paths[number].samples

    def averages(self, number: int, products: Array) -> Array:
        """Return the contribution of one site to each order parameter, ``(parameters,)``.

        ``products`` are the averages of the products and responses of the site ``number``, of which order
        parameters are weighted sums. A site is a population at one layer.
        """
        units, averages = self.units[number], np.zeros(self.count)
        np.add.at(averages, units.parameters, units.weights * products[units.product])
        return averages

    def _field_products(self, units: UnitProducts, paths: PathArrays) -> Array:
        """Return the products of two fields that order parameters average, on all paths of a batch.

        The shape is ``(products, paths)``; responses are left out. ``units`` holds the positions of the
        fields.
        """
        a, b = units.first[units.pair_range], units.second[units.pair_range]
        products = paths.X[a]
        products[b != CONSTANT] *= paths.X[b[b != CONSTANT]]
        return products

    def _noise(self, number: int, parts: Iterable[PathArrays]) -> tuple[Array, Array]:
        """Return the averages over units of the products and responses of a site, and their covariance.

        The shapes are ``(n,)`` and ``(n, n)``. ``number`` is that of the site, and ``parts`` are batches of
        its paths. The covariance of responses with each other is left at zero; :meth:`_response_noise`
        computes it. A site is a population at one layer.
        """
        units, samples = self.units[number], self.paths[number].samples
        n, plain_count = len(units.first), len(units.first) - units.responses
        covariance, means = np.zeros((n, n)), np.zeros(n)
        response_fields, hats = units.first[units.response_range], units.second[units.response_range]
        a, b = units.first[units.pair_range], units.second[units.pair_range]
        clock = np.append(self.lowered.time[self.paths[number].site.nodes], 0)
        times = np.maximum(clock[a], clock[b])
        for paths in parts:
            plain = self._field_products(units, paths)
            means[units.pair_range] += plain.sum(axis=1)
            means[units.response_range] += paths.J[response_fields, hats].sum(axis=-1)
            covariance[units.pair_range, units.pair_range] += plain @ plain.T
            for r in np.unique(hats):
                at = np.flatnonzero(hats == r)
                later = np.flatnonzero(times >= self._time_of_hat(number, r))
                x, y, two = a[later], b[later], b[later] != CONSTANT
                moved = paths.J[x, r]
                moved[two] = moved[two] * paths.X[y[two]] + paths.X[x[two]] * paths.J[y[two], r]
                covariance[np.ix_(later, plain_count + at)] += moved @ paths.X[response_fields[at]].T
                covariance[units.pair_range, plain_count + at] += plain @ paths.J[response_fields[at], r].T
        means /= samples
        covariance = covariance / samples - np.outer(means, means)
        covariance[units.response_range, units.pair_range] = covariance[
            units.pair_range, units.response_range
        ].T
        covariance[units.response_range, units.response_range] = 0.0
        return means, covariance

    def _means_and_noise(self, number: int, parts: Iterable[PathArrays]) -> Array:
        """Return averages and covariance of the products of a site as one array, ``(n, 1 + n)``.

        The first column holds the averages of the n products and responses. The other columns hold their
        covariance, which is zero between responses, as in :meth:`_noise`. ``number`` is that of the site, and
        ``parts`` are batches of its paths. A site is a population at one layer.
        """
        means, noise = self._noise(number, parts)
        return np.concatenate([means[:, None], noise], axis=1)

    def _responses_and_pairs(self, number: int, parts: Iterable[PathArrays]) -> tuple[Array, Array]:
        """Return the responses of a site, and derivatives ``<d (x x') / d hat>`` of products of fields.

        The responses ``<d x / d hat>`` have the shape ``(responses,)``, and the derivatives the shape
        ``(responses, fields)``. A row is a response: it gives x and hat. A column gives x', one of the fields
        x of all responses. A derivative by a hat is a derivative by a shift of a product of weights with a
        vector. ``number`` is that of the site, a population at one layer; ``parts`` are batches of its paths.
        """
        units, samples = self.units[number], self.paths[number].samples
        response_fields, hats = units.first[units.response_range], units.second[units.response_range]
        fields = np.unique(response_fields)
        derivatives, means = np.zeros((len(response_fields), len(fields))), np.zeros(len(response_fields))
        for paths in parts:
            means += paths.J[response_fields, hats].sum(axis=-1)
            for r in np.unique(hats):
                at = np.flatnonzero(hats == r)
                derivatives[at] += (
                    paths.J[response_fields[at], r] @ paths.X[fields].T
                    + paths.X[response_fields[at]] @ paths.J[fields, r].T
                )
        return means / samples, derivatives / samples

    def _response_noise(self, number: int) -> Array:
        """Return the covariance over units of the responses of a site, ``(responses, responses)``.

        The second moment of the responses ``d x / d hat`` and ``d x' / d hat'`` is the average of the second
        derivative ``d^2 (x x') / d hat d hat'``. One of its derivatives is a finite difference: the product
        of weights with a field is shifted up and down. ``number`` is that of the site, a population at one
        layer.
        """
        units, paths = self.units[number], self.paths[number]
        response_fields, hats = units.first[units.response_range], units.second[units.response_range]
        second_moments = np.zeros((len(response_fields), len(response_fields)))
        column = np.searchsorted(np.unique(response_fields), response_fields)
        for r in np.unique(hats):
            product_shift = np.zeros(len(paths.site.hats))
            product_shift[r] = self.step
            start = self._time_of_hat(number, r)
            sides = [
                self._responses_and_pairs(
                    number, paths.run(Perturbation(self.values, product_shift=x, start=start))
                )[1]
                for x in (product_shift, -product_shift)
            ]
            at = np.flatnonzero(hats == r)
            second_moments[:, at] = ((sides[0] - sides[1]) / (2 * self.step))[:, column[at]]
        means = self.means[number][units.response_range]
        return second_moments - np.outer(means, means)

    def _time_of_hat(self, number: int, column: int) -> int:
        """Return the time of the equation that a hat perturbs.

        ``number`` is that of the site, and ``column`` the position of the hat among its hats. A hat is the
        response field conjugate to a field: the average of a field times a hat is the response of the field.
        A site is a population at one layer.
        """
        site = self.paths[number].site
        return int(self.lowered.time[site.nodes[site.hats[column]]])

    @cached_property
    def kappas(self) -> list[Array]:
        """For each site the covariance over units of its products and responses, ``(products, products)``.

        Products are those of two fields whose averages are order parameters. A site is a population at one
        layer.
        """
        covariances = []
        for number, units in enumerate(self.units):
            block = self._noise(number, self.paths[number].base)[1]
            if units.responses:
                block[units.response_range, units.response_range] = self._response_noise(number)
            covariances.append(block)
        return covariances

    @cached_property
    def kappa(self) -> Array:
        """N times the covariance of order parameters without the response of units to order parameters.

        It is the covariance of averages over independent units, ``(parameters, parameters)``.
        """
        covariance = np.zeros((self.count, self.count))
        for units, block, ratio in zip(self.units, self.kappas, self.lowered.ratios, strict=True):
            weighted = block[np.ix_(units.product, units.product)]
            weighted = weighted * np.outer(units.weights, units.weights) / ratio
            np.add.at(covariance, np.ix_(units.parameters, units.parameters), weighted)
        return covariance

    # -- directions of perturbations -------------------------------------------------------------------------

    @cached_property
    def directions(self) -> tuple[Array, Array]:
        """Directions in which order parameters are perturbed: a matrix B and its left inverse.

        The columns of B ``(parameters, n)`` are the directions; the inverse is ``(n, parameters)``. If the
        correlations of a group of fields determine covariances of sources and all are order parameters, they
        change together, by products of two vectors of a :class:`MoveBasis`. Every other order parameter is a
        direction by itself.
        """
        columns: list[Array] = []
        inverse: list[Array] = []
        left = np.ones(self.count, bool)
        for site in range(len(self.paths)):
            for fields in self._correlated_fields(site):
                block = self._block(site, fields)
                if block is None:
                    continue
                numbers, basis = block
                left[numbers.ravel()] = False
                for j in range(len(numbers)):
                    for k in range(j, len(numbers)):
                        size = min(basis.sizes[j], basis.sizes[k])
                        moved = np.outer(basis.vectors[:, j], basis.vectors[:, k]) / size
                        moved = moved + moved.T if j != k else moved
                        column = np.zeros(self.count)
                        column[numbers] = moved
                        columns.append(column)
                        row = np.zeros(self.count)
                        both = np.outer(basis.inverse[j], basis.inverse[k]) * size
                        np.add.at(row, numbers, (both + both.T) / 2)
                        inverse.append(row)
        for number in np.flatnonzero(left):
            unit = np.zeros(self.count)
            unit[number] = 1.0
            columns.append(unit)
            inverse.append(unit)
        return np.stack(columns, axis=1), np.stack(inverse)

    def _source_terms(self, number: int) -> tuple[IntegerArray, IntegerArray, IntegerArray]:
        """Return the order parameters of a site on which covariances of Gaussian sources depend.

        They are averages of products of two fields of the site ``number``. The sources may belong to another
        site, such as the next layer. The result is three arrays: numbers of the order parameters, and
        positions of both fields among those of the site. A site is a population at one layer.
        """
        units = self.units[number]
        sources = [x.target for x in self.lowered.influences if x.hats == 2]
        known = np.unique(np.concatenate(sources)) if sources else np.zeros(0, int)
        at = np.flatnonzero(np.isin(units.parameters, known))
        product = units.product[at]
        return units.parameters[at], units.first[product], units.second[product]

    def _correlated_fields(self, number: int) -> list[IntegerArray]:
        """Return groups of fields of a site whose correlations are covariances of Gaussian sources.

        A group holds all fields that such correlations connect, as for the fields that one weight matrix
        multiplies at all times. Each group is an array of positions among the fields of the site, sorted by
        time. ``number`` is that of the site, a population at one layer.
        """
        _, first, second = self._source_terms(number)
        nodes = self.paths[number].site.nodes
        pairs = coo_array((np.ones(len(first)), (first, second)), (len(nodes), len(nodes)))
        labels = connected_components(pairs, directed=False)[1]
        fields = np.unique(np.concatenate([first, second]))
        fields = fields[np.argsort(self.lowered.time[nodes[fields]], kind="stable")]
        return [fields[labels[fields] == x] for x in np.unique(labels[fields])]

    def _block(self, number: int, fields: IntegerArray) -> tuple[IntegerArray, MoveBasis] | None:
        """Return the order parameters that are correlations of n fields, and a basis for their changes.

        The first result is the number of the order parameter for each pair of fields, ``(n, n)``. ``number``
        is that of the site, and ``fields`` are positions among its fields. The whole result is None if the
        correlation of some pair is not an order parameter.
        """
        place = np.full(len(self.paths[number].site.nodes), -1)
        place[fields] = np.arange(len(fields))
        numbers = np.full((len(fields), len(fields)), -1)
        for q, a, b in zip(*self._source_terms(number), strict=True):
            x, y = place[a], place[b]
            if x >= 0:
                numbers[(x, y) if numbers[x, y] < 0 else (y, x)] = q
        # For two different fields a and b, often only one of the correlations q(a, b) and q(b, a) is an order
        # parameter. The number of the other one is -1 here, and is replaced by that of the order parameter.
        numbers = np.where(numbers < 0, numbers.T, numbers)
        if (numbers < 0).any():
            return None
        C = self.values[numbers]
        return numbers, MoveBasis.of(*causal_factor((C + C.T) / 2))

    @cached_property
    def site_directions(self) -> list[IntegerArray]:
        """For each site the directions of order parameters that change the equations or sources there.

        They are positions among the columns of :attr:`directions`. A site is a population at one layer.
        """
        low = self.lowered
        B = self.directions[0]
        positions = []
        for number in range(len(self.paths)):
            touched = np.zeros(self.count, bool)
            for x in low.influences:
                touched[x.target[low.site[x.first] == number]] = True
            positions.append(np.flatnonzero((B[touched] != 0).any(axis=0)))
        return positions

    def _source_change(self, number: int, direction: Array) -> SourceChange | None:
        """Return how the covariance of the sources of a site changes along a direction of order parameters.

        It is a derivative; None if it is zero. ``number`` is that of the site, a population at one layer.
        """
        sigma, basis, entries = self._sources[number]
        if not direction[entries].any():
            return None
        # The covariance is linear in the order parameters, so that the difference below is exact for every
        # step. With the step `size` the order parameters change by at most 1.
        size = 1 / np.abs(direction).max()
        change = (self.paths[number].site.sigma(self.values + size * direction) - sigma) / size
        return basis.split(change)

    def move(self, number: int, direction: Array, step: float) -> Move:
        """Return the perturbation of order parameters along a direction, and of the sources of a site.

        The step is ``step``, or less where a variance would change by more than a share LARGEST_CHANGE.
        ``number`` is that of the site, a population at one layer.
        """
        start = int(self.times[direction != 0].min(initial=self.lowered.sizes.times))
        change = self._source_change(number, direction)
        if change is None:
            return Move(self.values, direction, start, step)
        # After the step, the covariance of the pivots (sources that are not linear combinations of earlier
        # ones) is 1 + step * inner in the basis of the change. It must stay positive definite, so that the
        # norm of `inner` limits the step. The largest entry of `mixed`, the block of the other sources with
        # the pivots, limits the step too.
        inner = np.linalg.norm(change.inner, 2) if change.inner.size else 0.0
        largest = max(inner, np.abs(change.mixed).max(initial=0.0))
        return Move(self.values, direction, start, min(step, LARGEST_CHANGE / max(largest, 1e-300)), change)

    def dependent_part(self, number: int, move: Move, evaluate: PathAverage) -> Array | float:
        """Return the part of the derivative of path averages that comes from dependent sources.

        These are sources that are linear combinations of earlier ones. A change V of their covariance changes
        an average by ``V : Hessian / 2``, where the Hessian has the second derivatives with respect to shifts
        of the sources. ``move`` holds the change, ``evaluate`` computes the averages on the paths of the site
        ``number``. Zero if the covariance does not change. A site is a population at one layer.
        """
        if move.change is None:
            return 0.0
        outer, total = move.change.outer, 0.0
        largest = max(np.abs(x).max(initial=0.0) for x in (move.change.inner, move.change.mixed, outer))
        sizes, vectors = np.linalg.eigh(outer)
        for size, v in zip(sizes, vectors.T, strict=True):
            if abs(size) > NEGLIGIBLE * largest:
                source_shift = np.zeros(len(self.paths[number].site.sources))
                source_shift[move.change.basis.weak] = self.second_step * v
                start = int(self.lowered.time[self.paths[number].site.sources[source_shift != 0]].min())
                runs = [
                    Perturbation(self.values, source_shift=x * source_shift, start=start) for x in (1, -1, 0)
                ]
                up, down, middle = (evaluate(number, self.paths[number].run(x)) for x in runs)
                total = total + size * (up + down - 2 * middle) / (2 * self.second_step**2)
        return total

    @cached_property
    def _sources(self) -> list[tuple[Array, MoveBasis, IntegerArray]]:
        """For each site the covariance of its sources, a basis for its changes, and its order parameters.

        The last are the numbers of the order parameters on which the covariance depends. A site is a
        population at one layer.
        """
        sources = []
        for number, paths in enumerate(self.paths):
            low = self.lowered
            parts = [x.target[low.site[x.first] == number] for x in low.influences if x.hats == 2]
            entries = np.unique(np.concatenate(parts)) if parts else np.zeros(0, int)
            basis = MoveBasis.of(paths.factor, np.array(paths.pivots, int))
            sources.append((paths.site.sigma(self.values), basis, entries))
        return sources

    @cached_property
    def times(self) -> IntegerArray:
        """Time of each order parameter, ``(parameters,)``; the later one if it has two."""
        low, times = self.lowered, np.zeros(self.count, int)
        for q in low.stated:
            grid = low.grid_of(q)
            numbers = low.parameters.find(key_of(q.symbol), low.arguments(q.symbol, grid))
            times[numbers] = grid[t] if s not in grid else np.maximum(grid[t], grid[s])
        return times

    @cached_property
    def slopes(self) -> list[list[tuple[Array, Array | None]]]:
        """For each site the derivatives of its averages, and of their covariance, by order parameters.

        The derivatives are along directions of order parameters: the list of a site has a pair of arrays
        ``(products,)`` and ``(products, products)`` for each direction in :attr:`site_directions`, in this
        order. The covariance of responses with each other counts as constant. The second array is None if
        shifts are not computed. A site is a population at one layer.
        """
        slopes = []
        for number, at in enumerate(self.site_directions):
            site_slopes: list[tuple[Array, Array | None]] = []
            for k in at:
                move = self.move(number, self.directions[0][:, k], self.step)
                evaluate = self._means_and_noise if self.shifts else self._means
                up, down = (evaluate(number, self.paths[number].run(move.at(x))) for x in (1, -1))
                slope = (up - down) / (2 * move.step) + self.dependent_part(number, move, evaluate)
                site_slopes.append((slope[:, 0], slope[:, 1:]) if self.shifts else (slope, None))
            slopes.append(site_slopes)
        return slopes

    @cached_property
    def D(self) -> Array:
        """Derivatives of order parameters with respect to each other, ``(n, n)``.

        Rows and columns are the n directions of :attr:`directions`, along which order parameters are
        perturbed.
        """
        B, inverse = self.directions
        derivatives = np.zeros((self.count, B.shape[1]))
        for number, at in enumerate(self.site_directions):
            for k, (slope, _) in zip(at, self.slopes[number], strict=True):
                derivatives[:, k] += self.averages(number, slope)
        for x in self.lowered.slopes:
            weights = self.lowered.value(x, self.values)
            np.add.at(derivatives, x.target, weights[:, None] * B[x.other[0]])
        return np.asarray(inverse @ derivatives)

    @cached_property
    def R(self) -> Array:
        """Response ``(1 - D)^(-1)`` of order parameters to shifts of each other, ``(n, n)``.

        Rows and columns are the n directions of :attr:`directions`, along which order parameters are
        perturbed.
        """
        return np.asarray(np.linalg.inv(np.eye(len(self.D)) - self.D))

    @cached_property
    def covariance(self) -> Array:
        """N times the covariance of the order parameters, ``(parameters, parameters)``."""
        B, inverse = self.directions
        moved = B @ self.R @ inverse
        return np.asarray(moved @ self.kappa @ moved.T)

    # -- shifts ----------------------------------------------------------------------------------------------

    @cached_property
    def shift(self) -> Array:
        """N times (mean minus value at infinite width) of each order parameter, ``(parameters,)``.

        The option ``shifts`` of the class must be true.
        """
        B, inverse = self.directions
        R, C = self.R, self.R @ inverse @ self.kappa @ inverse.T @ self.R.T
        source = np.zeros(self.count)
        for number in range(len(self.paths)):
            source += self._curvature_shift(number, B, C)
            source += self._self_action(number, R, inverse, B)
        whole = B @ C @ B.T
        for x in self.lowered.second_slopes:
            weights = self.lowered.value(x, self.values)
            np.add.at(source, x.target, weights * whole[x.other[0], x.other[1]])
        return np.asarray(B @ R @ inverse @ source)

    def _curvature_shift(self, number: int, B: Array, C: Array) -> Array:
        """Return the shift of each order parameter by the curvature of averages at a site, ``(parameters,)``.

        It is half the second derivatives of the averages, contracted with the covariance C of order
        parameters; the response of order parameters to it is not included. ``B`` are the directions of
        perturbations, and C is in coordinates along them. ``number`` is that of the site, a population at one
        layer.
        """
        at, curvature = self.site_directions[number], np.zeros(len(self.units[number].first))
        if not len(at):
            return self.averages(number, curvature)
        sizes, vectors = np.linalg.eigh(C[np.ix_(at, at)])
        extra: Array | float = 0.0
        for size, v in zip(sizes, vectors.T, strict=True):
            if abs(size) > NEGLIGIBLE * np.abs(sizes).max():
                move = self.move(number, B[:, at] @ v, self.second_step)
                up, down = (self._means(number, self.paths[number].run(move.at(x))) for x in (1, -1))
                curvature += size * (up - 2 * self.means[number] + down) / (2 * move.step**2)
                # Pivots are the sources that are not linear combinations of earlier ones. The block `mixed`
                # adds combinations of the pivots' random numbers to the other sources. At second order in
                # the step this changes the covariance of the other sources with each other by mixed mixed^T.
                # The contribution of this change is subtracted below.
                if move.change is not None:
                    extra = extra + size * move.change.mixed @ move.change.mixed.T
        if np.ndim(extra):
            change = replace(self._sources[number][1].no_change, outer=np.asarray(extra))
            curvature -= self.dependent_part(
                number, Move(self.values, np.zeros(self.count), 0, 0.0, change), self._means
            )
        return self.averages(number, curvature)

    def _self_action(self, number: int, R: Array, inverse: Array, B: Array) -> Array:
        """Return the shift of each order parameter by the action of units on themselves, ``(parameters,)``.

        A unit of the site ``number`` changes order parameters, and these change the unit. The response of
        order parameters to the result is not included. R is the response of order parameters, in coordinates
        along the directions B, whose inverse is ``inverse``.
        """
        units = self.units[number]
        # moves[k, i] is the change of order parameters along direction k that product i of the site causes.
        moves = np.zeros((len(R), len(units.first)))
        np.add.at(moves.T, units.product, (R @ inverse[:, units.parameters] * units.weights).T)
        total = np.zeros(len(units.first))
        for k, (_, slope) in zip(self.site_directions[number], self.slopes[number], strict=True):
            assert slope is not None
            total += slope @ moves[k]
        if units.responses:
            total[units.response_range] += self._response_action(number, B, moves)
        return self.averages(number, total) / self.lowered.ratios[number]

    def _response_action(self, number: int, B: Array, moves: Array) -> Array:
        """Return the shift of responses by the action of responses of a unit on the unit, ``(responses,)``.

        They act through order parameters. ``number`` is that of the site, B are directions of order
        parameters, and ``moves`` (directions, products) is the change of order parameters along these
        directions by each product of the site.
        """
        units, paths, at = self.units[number], self.paths[number], self.site_directions[number]
        response_fields, hats = units.first[units.response_range], units.second[units.response_range]
        fields, means = np.unique(response_fields), self.means[number][units.response_range]
        total = np.zeros(len(response_fields))
        for b in range(len(response_fields)):
            strength = moves[at, len(units.first) - units.responses + b]
            size = np.abs(strength).max(initial=0.0)
            if size <= NEGLIGIBLE:
                continue
            direction = B[:, at] @ (strength / size)
            product_shift = np.zeros(len(paths.site.hats))
            product_shift[hats[b]] = self.second_step
            column = int(np.searchsorted(fields, response_fields[b]))
            mixed, slopes = np.zeros(len(response_fields)), np.zeros(len(response_fields))
            move = self.move(number, direction, self.second_step)
            for along in (1, -1):
                other = move.at(along)
                for side in (1, -1):
                    start = min(other.start, self._time_of_hat(number, hats[b]))
                    perturbed = replace(other, product_shift=side * product_shift, start=start)
                    responses, pairs = self._responses_and_pairs(number, paths.run(perturbed))
                    mixed += along * side * pairs[:, column] / (4 * self.second_step * move.step)
                    slopes += along * responses / (4 * move.step)
            total += size * (mixed - slopes * means[b] - means * slopes[b])
        return total


NEGLIGIBLE = 1e-9
"""Share of the largest eigenvalue of a covariance below which eigenvalues are left out."""


@dataclass(frozen=True, eq=False)
class SampledMoments:
    """Order parameters with their covariances and shifts, from one set of paths.

    Attributes
    ----------
    values
        The order parameters at infinite width, ``(parameters,)``.
    covariance
        N times their covariance.
    shift
        N times (mean minus value at infinite width) of each; None if shifts were not computed.
    lower
        Another estimate of the values, covariances and shifts: the polynomial that extrapolates to kinks of
        width zero has one degree less, because it omits the largest width. None if no kink was rounded.
    """

    values: Array
    covariance: Array
    shift: Array | None
    lower: SampledMoments | None = None

    def covariances_of(self, blocks: list[GradientBlock]) -> list[Array]:
        """Return for each block N times the covariance of its observables, ``(observables, observables)``.

        A block holds the gradients of some observables with respect to order parameters.
        """
        return [x.matrix @ self.covariance[np.ix_(x.columns, x.columns)] @ x.matrix.T for x in blocks]

    def shifts_of(self, observables: Iterable[ExpandedObservable]) -> list[Array] | None:
        """Return N times (mean minus value at infinite width) of each observable, ``(points,)``.

        None if shifts were not computed. An observable is a function of order parameters at several points.
        """
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
        Moments from each set of paths.
    values
        The order parameters at infinite width: their mean over the sets of paths.
    """

    def __init__(self, lowered: LoweredFluctuations, replicas: Sequence[SampledMoments]) -> None:
        self.lowered, self.replicas = lowered, tuple(replicas)
        self.values = np.mean([x.values for x in replicas], axis=0)

    @property
    def lower(self) -> SampledSolution | None:
        """The same solution, extrapolated to sharp kinks by a polynomial of one degree less.

        The polynomial is in the width over which kinks of functions are rounded. None if no kink was rounded.
        """
        lower = [x.lower for x in self.replicas if x.lower is not None]
        return SampledSolution(self.lowered, lower) if lower else None

    def covariances_of(self, blocks: list[GradientBlock]) -> list[Array]:
        """Return for each block N times the covariance of its observables, ``(observables, observables)``.

        A block holds the gradients of some observables with respect to order parameters. The result is the
        mean over the sets of sampled paths.
        """
        covariances = [x.covariances_of(blocks) for x in self.replicas]
        return [np.mean(x, axis=0) for x in zip(*covariances, strict=True)]

    def shifts_of(self, observables: Iterable[ExpandedObservable]) -> list[Array] | None:
        """Return N times (mean minus value at infinite width) of each observable, ``(points,)``.

        None if shifts were not computed. The result is the mean over the sets of sampled paths.
        """
        wanted = list(observables)
        shifts = [x.shifts_of(wanted) for x in self.replicas]
        known = [x for x in shifts if x is not None]
        return [np.mean(x, axis=0) for x in zip(*known, strict=True)] if known else None


def sample_fluctuations(
    lowered: LoweredFluctuations, samples: int, seed: int, *, shifts: bool = True
) -> SampledMoments:
    """Return covariances and shifts of order parameters at order 1/N from one set of sampled paths.

    If order parameters contain responses and functions of fields have kinks, the kinks are rounded. Averages
    are then power series in the width of the rounding: the polynomial through several widths is evaluated at
    width zero. A second polynomial omits the largest width and gives ``lower`` of the result; the difference
    of both is the error estimate.

    Parameters
    ----------
    lowered
        The theory in arrays.
    samples, seed
        The number of paths of each site, an even number, and the seed of the random numbers.
    shifts
        Whether shifts are wanted.

    Returns
    -------
    SampledMoments
        The moments; those from other seeds are independent of them.

    Raises
    ------
    NotConverged
        If a matrix of the expansion is singular, or a covariance or shift is not finite.
    Diverged
        If an order parameter at infinite width is not finite.
    Unserved
        If the order parameters of one time depend on each other in a cycle, or a function of fields has an
        argument that sampled paths cannot evaluate.
    """
    is_rounded = has_kinks(lowered) and any(x.hats for x in lowered.units)
    widths = ROUNDING_WIDTHS if is_rounded else (0.0,)
    moments = []
    try:
        for width in widths:
            sampled = SampledFluctuations(lowered, samples, seed, shifts=shifts, width=width)
            with np.errstate(over="ignore", invalid="ignore"):
                shift = sampled.shift if shifts else None
                moments.append(SampledMoments(sampled.values, sampled.covariance, shift))
    except np.linalg.LinAlgError as reason:
        raise _not_converged(samples, str(reason)) from None
    if not all(np.isfinite(x.covariance).all() for x in moments) or not all(
        np.isfinite(x.shift).all() for x in moments if x.shift is not None
    ):
        raise _not_converged(samples, "covariances or shifts of order parameters are not finite")
    lower = extrapolated(widths[1:], moments[1:]) if is_rounded else None
    return replace(extrapolated(widths, moments), lower=lower)


def extrapolated(widths: Sequence[float], moments: Sequence[SampledMoments]) -> SampledMoments:
    """Return moments extrapolated to width zero, from moments at several widths.

    The width is the one over which kinks of functions are rounded. The polynomial through all widths follows
    from Lagrange's formula: ``p(0) = sum_i p(w_i) prod_(j != i) w_j / (w_j - w_i)``. The moments of a single
    width are returned unchanged, apart from ``lower``, which is None in all cases.
    """
    weights = [np.prod([x / (x - w) for x in widths if x != w]) for w in widths]
    values = np.tensordot(weights, [x.values for x in moments], 1)
    covariance = np.tensordot(weights, [x.covariance for x in moments], 1)
    shifts = [x.shift for x in moments if x.shift is not None]
    return SampledMoments(values, covariance, np.tensordot(weights, shifts, 1) if shifts else None)


def _not_converged(samples: int, reason: str) -> NotConverged:
    """Return the exception for a failed expansion from ``samples`` paths, with its reason and a remedy."""
    would = "a smaller learning rate or more paths (solver.samples) would do"
    return NotConverged(f"the expansion in 1/N about {samples} sampled paths failed: {reason}; {would}")
