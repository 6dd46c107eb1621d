"""Units of nonlinear theories on sampled paths: fields of one site for given order parameters.

Given the order parameters, the units of different populations and layers are independent, and a unit is a
function of the Gaussian sources that drive it.  A site samples them once; :meth:`UnitPaths.run` computes all
fields on these paths for any values of the order parameters, and their derivatives by perturbations of
products of weights and fields, so that differences between runs have little noise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Abs, Expr, Heaviside, Max, Min, Symbol, erf, exp, pi, sign, sqrt
from sympy.core.function import AppliedUndef
from sympy.utilities.iterables import topological_sort

from numerics.errors import Unserved, diverged_at
from numerics.fluctuations.lowered import (
    CONSTANT,
    FunctionKey,
    IntegerArray,
    LoweredFluctuations,
    TermArrays,
    key_of,
)
from numerics.lowering.expressions import CompiledFunction, function
from numerics.stats import normal_points

Array = NDArray[np.float64]

PIVOT = 1e-7
"""Share of its variance that a source must keep, given earlier sources, to have a random number of its own.

With smaller shares rounding errors grow from step to step: at 1e-9, variances of two layers of tanh are wrong
from step 14 on.
"""


@dataclass(eq=False)
class NodeGroup:
    """Fields of one name at one time, which are computed together.

    A site is a population at one layer. A node is a field, a product of weights with a field, or a function
    of fields, at one time.

    Attributes
    ----------
    rows
        Positions of the fields of the group among the nodes of the site.
    columns
        Positions of the nodes in the sums that define the fields; CONSTANT for an addend without field.
    parts
        The terms of these sums. Each is a tuple: the arrays of a term, the positions in these arrays that
        belong to the group, and for each position the row and the column in the matrix of coefficients, which
        is ``rows`` by ``columns``.
    compiled, arguments
        For a function of fields: the compiled function, and a pair for each of its arguments. The pair is
        "field" with positions of nodes, "value" with positions of order parameters, "number" with a number,
        or "width" for the width of rounded kinks.
    """

    key: FunctionKey
    time: int
    rows: IntegerArray
    columns: IntegerArray = field(default_factory=lambda: np.zeros(0, int))
    parts: list[tuple[TermArrays, IntegerArray, IntegerArray, IntegerArray]] = field(default_factory=list)
    compiled: CompiledFunction | None = None
    arguments: list[tuple[str, Any]] = field(default_factory=list)


WIDTH = Symbol("width", positive=True)
"""Width over which a kink is rounded, in units of the argument of the function with the kink."""


def rounded(e: Expr) -> Expr:
    """Return an expression with its kinks and jumps smoothed over a length, the symbol ``WIDTH``.

    A jump becomes the normal distribution function with the standard deviation ``WIDTH``, and a kink the
    integral of this function, so that the derivative of a smoothed kink is the smoothed jump.

    >>> from sympy.abc import x
    >>> round(float(rounded(Max(0, x)).subs({x: 1, WIDTH: 0.1})), 6)
    1.0
    """
    if not e.has(Max, Min, Heaviside, Abs, sign):
        return e

    def step(x: Expr) -> Expr:
        """Return the smoothed step function of ``x``: the normal distribution function of ``x/WIDTH``."""
        return (1 + erf(x / (sqrt(2) * WIDTH))) / 2

    def ramp(x: Expr) -> Expr:
        """Return ``max(0, x)`` with a smoothed kink: the integral of the smoothed step up to ``x``."""
        return x * step(x) + WIDTH * exp(-(x**2) / (2 * WIDTH**2)) / sqrt(2 * pi)

    def largest(first: Expr, *others: Expr) -> Expr:
        """Return the maximum of several expressions, with kinks smoothed over the length WIDTH.

        The maximum of two expressions a and b is ``a + ramp(b - a)``, with the smoothed ramp.
        """
        return first if not others else first + ramp(largest(*others) - first)

    rules = {
        Max: largest,
        Min: lambda *xs: -largest(*(-x for x in xs)),
        Heaviside: lambda x, *_: step(x),
        Abs: lambda x: 2 * ramp(x) - x,
        sign: lambda x: 2 * step(x) - 1,
    }
    for kind, rule in rules.items():
        e = e.replace(kind, rule)
    return e


class SampledSite:
    """Equations of one unit of a site: groups of nodes in the order of computation, and Gaussian sources.

    A site is a population at one layer. A node is a field, a product of weights with a field, or a function
    of fields, at one time.

    ``number`` is the number of the site. ``width`` is the width over which kinks of functions are rounded, in
    units of ``scale``, the root mean square of the sources at time zero; zero for no rounding. ``scale`` is 1
    until :meth:`UnitPaths.extend` computes time zero.
    """

    def __init__(self, lowered: LoweredFluctuations, number: int, width: float) -> None:
        self.lowered, self.number, self.width, self.scale = lowered, number, width, 1.0
        self.nodes = np.flatnonzero(lowered.site == number)
        self.place = np.full(lowered.nodes.count, -1)
        self.place[self.nodes] = np.arange(len(self.nodes))
        hats = [x.first for x in lowered.units if x.hats]
        hatted = np.unique(np.concatenate(hats)) if hats else np.zeros(0, int)
        self.hats = self.place[hatted[lowered.site[hatted] == number]]
        self.column = np.full(len(self.nodes), -1)
        self.column[self.hats] = np.arange(len(self.hats))
        self._sources()
        self._groups()

    def _sources(self) -> None:
        """Find the fields of this site that have a Gaussian source, and sort them by time.

        The attribute ``sources`` holds their numbers, and ``source`` the position of each field of the theory
        among them, or -1. A site is a population at one layer.
        """
        low = self.lowered
        nodes = [x.target[low.site[x.target] == self.number] for x in low.covariances]
        nodes += [x.first[low.site[x.first] == self.number] for x in low.covariances]
        driven = np.unique(np.concatenate(nodes))
        self.sources = driven[np.argsort(low.time[driven], kind="stable")]
        self.source = np.full(low.nodes.count, -1)
        self.source[self.sources] = np.arange(len(self.sources))

    def sigma(self, values: Array, time: int | None = None) -> Array:
        """Return the covariance of the Gaussian sources of the site, ``(sources, sources)``.

        ``values`` are all order parameters. With a time, only the sources up to it are included.
        """
        low = self.lowered
        count = len(self.sources) if time is None else int(np.sum(low.time[self.sources] <= time))
        covariance = np.zeros((count, count))
        for x in low.covariances:
            part = slice(0, len(x.target) if time is None else int(x.ends[time]))
            weights = low.value(x, values, part)
            at = low.site[x.target[part]] == self.number
            rows, cols = self.source[x.target[part][at]], self.source[x.first[part][at]]
            np.add.at(covariance, (rows, cols), weights[at])  # each pair occurs as (a, b) and as (b, a)
        return (covariance + covariance.T) / 2

    def weights(self, values: Array, time: int | None = None) -> dict[int, Array]:
        """Return the coefficients in the equations of the fields, for given order parameters ``values``.

        The result has an array ``(n,)`` for each term, with a coefficient for each of the n values of the
        indices and times of the term. Its key is the ``id`` of the ``TermArrays`` of the term. If
        ``time`` is given, coefficients in equations at all other times are zero.
        """
        low, coefficients = self.lowered, {}
        for x in (*low.kernels, *low.definitions):
            if time is None:
                coefficients[id(x)] = low.value(x, values)
            else:
                coefficients[id(x)] = np.zeros(len(x.target))
                coefficients[id(x)][x.at(time)] = low.value(x, values, x.at(time))
        return coefficients

    def _groups(self) -> None:
        """Divide the nodes into groups by name and time, and sort groups in the order of computation.

        A node is a field, a product of weights with a field, or a function of fields, at one time. The
        attribute ``groups`` holds the sorted groups, with their equations and functions.
        """
        low = self.lowered
        groups: dict[tuple[FunctionKey, int], NodeGroup] = {}
        names: dict[FunctionKey, IntegerArray] = {}
        for key, box in low.nodes.families.items():
            assert box.numbers is not None
            nodes = box.numbers[box.numbers >= 0]
            nodes = nodes[low.site[nodes] == self.number]
            if len(nodes):
                names[key] = nodes
        of_node: dict[int, tuple[FunctionKey, int]] = {}
        for key, nodes in names.items():
            for time in np.unique(low.time[nodes]):
                at = nodes[low.time[nodes] == time]
                groups[key, int(time)] = NodeGroup(key, int(time), self.place[at])
                of_node |= dict.fromkeys(at.tolist(), (key, int(time)))
        self.needs: dict[tuple[FunctionKey, int], set[tuple[FunctionKey, int]]] = {k: set() for k in groups}
        self._sums(groups, of_node)
        self._functions(groups, of_node)
        ordered = sorted(groups, key=lambda x: (x[1], str(x[0])))
        number = {kind: k for k, kind in enumerate(ordered)}
        edges = [(number[b], number[a]) for a, needed in self.needs.items() for b in needed if b != a]
        sorted_groups = [groups[ordered[k]] for k in topological_sort((range(len(ordered)), edges))]
        self.groups = sorted(sorted_groups, key=lambda x: x.time)

    def _sums(
        self, groups: dict[tuple[FunctionKey, int], NodeGroup], of_node: dict[int, tuple[FunctionKey, int]]
    ) -> None:
        """Store the equations of those groups of fields that are linear combinations of other fields.

        The attribute ``needs`` then holds the groups on which each such group depends. ``groups`` are fields
        of one name at one time, and ``of_node`` is the group of each node, by number. A node is a field, a
        product of weights with a field, or a function of fields, at one time.
        """
        low = self.lowered
        entries: dict[tuple[FunctionKey, int], list[tuple[TermArrays, IntegerArray]]] = {}
        for x in (*low.kernels, *low.definitions):
            mine = np.flatnonzero(low.site[x.target] == self.number)
            kinds: dict[tuple[FunctionKey, int], list[int]] = {}
            for k in mine.tolist():
                kinds.setdefault(of_node[int(x.target[k])], []).append(k)
            for kind, numbers in kinds.items():
                entries.setdefault(kind, []).append((x, np.array(numbers)))
        for kind, parts in entries.items():
            group = groups[kind]
            columns = np.unique(np.concatenate([x.first[at] for x, at in parts]))
            group.columns = np.where(columns == CONSTANT, CONSTANT, self.place[columns])
            for c in columns[columns >= 0].tolist():
                self.needs[kind].add(of_node[c])
            where = {int(r): k for k, r in enumerate(group.rows)}
            for x, at in parts:
                rows = np.array([where[int(r)] for r in self.place[x.target[at]]])
                group.parts.append((x, at, rows, np.searchsorted(columns, x.first[at])))

    def _functions(
        self, groups: dict[tuple[FunctionKey, int], NodeGroup], of_node: dict[int, tuple[FunctionKey, int]]
    ) -> None:
        """Compile the functions of those groups of fields that are nonlinear functions of other fields.

        The arguments of the functions are stored too. ``groups`` are fields of one name at one time, and
        ``of_node`` is the group of each node, by number. A node is a field, a product of weights with a
        field, or a function of fields, at one time. Raises Unserved for a symbol without a number, and for an
        argument that is a sum or a given array.
        """
        low = self.lowered
        for key, feature in low.features.items():
            box = low.nodes.families[key]
            assert box.numbers is not None
            axes = [np.arange(a, b + 1) for a, b in zip(box.lows, box.highs, strict=True)]
            boxed = np.stack([x.ravel() for x in np.meshgrid(*axes, indexing="ij")])
            for kind, group in groups.items():
                if kind[0] != key:
                    continue
                positions = [int(np.flatnonzero(box.numbers == n)[0]) for n in self.nodes[group.rows]]
                at = dict(zip(feature.slots, boxed[:, positions], strict=True))
                group.compiled = function(rounded(feature.expr) if self.width else feature.expr)
                for leaf in group.compiled.leaves:
                    if leaf == WIDTH:
                        group.arguments.append(("width", np.zeros(0, int)))
                        continue
                    if isinstance(leaf, Symbol):
                        if leaf.name not in low.sizes.values:
                            raise Unserved(
                                f"no number is given for {leaf} in {feature.expr}: give a number for {leaf}"
                            )
                        group.arguments.append(("number", low.sizes.values[leaf.name]))
                        continue
                    if not isinstance(leaf, AppliedUndef):
                        raise Unserved(
                            f"the function {feature.expr} of fields contains {leaf}, which sampled paths "
                            "cannot evaluate: use fields, order parameters and numbers only"
                        )
                    if key_of(leaf) not in low.random and key_of(leaf) not in low.names:
                        raise Unserved(
                            f"a function of fields contains the given array {leaf}, and fluctuations need "
                            f"functions of fields only: define a field for its argument, such as "
                            f"c(mu, t) = h(mu, t) + b(mu)"
                        )
                    arguments = [at[x] for x in leaf.args]
                    if key_of(leaf) in low.random:
                        numbers = low.nodes.find(key_of(leaf), arguments)
                        self.needs[kind] |= {of_node[n] for n in numbers.tolist()}
                        group.arguments.append(("field", self.place[numbers]))
                    else:
                        group.arguments.append(("value", low.parameters.find(key_of(leaf), arguments)))


@dataclass(frozen=True, eq=False)
class PathArrays:
    """Values and derivatives of the fields of one unit of a site, on a batch of sampled paths.

    A site is a population at one layer. A node is a field, a product of weights with a field, or a function
    of fields, at one time.

    Attributes
    ----------
    X
        The values of all nodes, ``(nodes, samples)``.
    J
        Derivatives of all nodes with respect to perturbations of the products of weights and fields that have
        hats (perturbations in responses), ``(nodes, hats, samples)``.
    """

    X: Array
    J: Array


@dataclass(frozen=True, eq=False)
class Perturbation:
    """Order parameters, and perturbations of sources and products, for which a site's fields are computed.

    A site is a population at one layer.

    Attributes
    ----------
    values
        The order parameters, perturbed or not.
    sigma
        The change A of the covariance of the independent random numbers, ``(rank, rank)``. The covariance of
        the sources is then ``L (1 + A) L^T`` with their factor L. None if it does not change.
    mixed
        The change of the factor L, ``(sources, rank)``; None if it does not change.
    source_shift
        A number added to each source, ``(sources,)``; None to add nothing.
    product_shift
        A number added to each product of weights with a field that occurs in a response, ``(hats,)``; None to
        add nothing.
    start
        The first time at which any of these is perturbed.
    """

    values: Array
    sigma: Array | None = None
    mixed: Array | None = None
    source_shift: Array | None = None
    product_shift: Array | None = None
    start: int = 0


class UnitPaths:
    """Sampled paths of one unit of a site: its fields at all times for many draws of the sources.

    A site is a population at one layer. Each draw of random numbers is used with both signs.

    Parameters
    ----------
    site
        The site.
    samples, seed
        The number of paths, an even number, and the seed of the scrambled sequence of random numbers.
    """

    def __init__(self, site: SampledSite, samples: int, seed: np.random.SeedSequence) -> None:
        self.site, self.samples = site, samples
        z = normal_points(samples // 2, len(site.sources), seed)
        self.z = np.concatenate([z, -z], axis=1)
        n, m = len(site.nodes), len(site.hats)
        size = max(1, min(samples, CHUNK // max(1, n * (m + 1))))
        ends = [*range(0, samples, size), samples]
        self.chunks = [slice(a, b) for a, b in pairwise(ends)]
        self.base = [
            PathArrays(np.zeros((n, c.stop - c.start)), np.zeros((n, m, c.stop - c.start)))
            for c in self.chunks
        ]
        self.rows: list[Array] = []
        self.pivots: list[int] = []

    @property
    def factor(self) -> Array:
        """Factor L of the covariance of sources, ``(sources, rank)``.

        Sources are ``L z`` with independent standard normal numbers z. Only sources of times that
        :meth:`extend` has reached have a row.
        """
        factor = np.zeros((len(self.rows), len(self.pivots)))
        for row, into in zip(self.rows, factor, strict=True):
            into[: len(row)] = row
        return factor

    # -- the mean-field solution, step by step ---------------------------------------------------------------

    def extend(self, values: Array, time: int) -> None:
        """Compute the fields of the site at one time on all paths.

        ``values`` are the order parameters up to this time. Those of this time may be provisional; the caller
        repeats the call until they do not change.
        """
        site = self.site
        known = int(np.sum(site.lowered.time[site.sources] < time))
        del self.rows[known:]
        self.pivots = [p for p in self.pivots if p < known]
        sigma = site.sigma(values, time)
        extend_factor(self.rows, self.pivots, sigma, PIVOT)
        if time == 0 and len(sigma):
            site.scale = float(np.sqrt(np.diag(sigma).mean()))
        weights = site.weights(values, time)
        for chunk, paths in zip(self.chunks, self.base, strict=True):
            drawn = {i: row @ self.z[: len(row), chunk] for i, row in enumerate(self.rows) if i >= known}
            for group in site.groups:
                if group.time == time:
                    self._compute(group, values, weights, paths, drawn)

    # -- other values of the order parameters ----------------------------------------------------------------

    def run(self, other: Perturbation) -> Iterator[PathArrays]:
        """Yield all fields of the site for perturbed order parameters, sources or products, batch by batch.

        Each batch holds some of the paths. The random numbers are the same as without perturbation.
        """
        site, factor = self.site, self.factor
        z = self.z[: factor.shape[1]]
        if other.sigma is not None:
            z = np.linalg.cholesky(np.eye(len(other.sigma)) + other.sigma) @ z
        if other.mixed is not None:
            factor = factor + other.mixed
        weights = site.weights(other.values)
        groups = [group for group in site.groups if group.time >= other.start]
        later = np.concatenate([g.rows for g in groups]) if groups else np.zeros(0, int)
        earlier = np.setdiff1d(np.arange(len(site.nodes)), later)
        for chunk, base in zip(self.chunks, self.base, strict=True):
            sources = factor @ z[:, chunk]
            drawn = dict(
                enumerate(sources if other.source_shift is None else sources + other.source_shift[:, None])
            )
            paths = PathArrays(np.empty_like(base.X), np.empty_like(base.J))
            paths.X[earlier], paths.J[earlier] = base.X[earlier], base.J[earlier]
            for group in groups:
                self._compute(group, other.values, weights, paths, drawn, other.product_shift)
            yield paths

    def _compute(
        self,
        group: NodeGroup,
        values: Array,
        weights: Mapping[int, Array],
        paths: PathArrays,
        drawn: Mapping[int, Array],
        product_shift: Array | None = None,
    ) -> None:
        """Compute one group of fields on a batch of paths and write them to ``paths``, with derivatives.

        ``values`` are the order parameters, ``weights`` the coefficients of :meth:`SampledSite.weights`, and
        ``drawn`` has the values of each source on the paths. ``product_shift`` is added to products that
        occur in responses.
        """
        site, X, J = self.site, paths.X, paths.J
        if group.compiled is not None:
            self._function(group, values, X, J)
            return
        rows = group.rows
        if not group.parts:
            X[rows], J[rows] = 0.0, 0.0
        else:
            matrix = np.zeros((len(rows), len(group.columns)))
            for x, at, r, c in group.parts:
                np.add.at(matrix, (r, c), weights[id(x)][at])
            columns, constant = group.columns, np.zeros((len(rows), 1))
            if columns[0] == CONSTANT:
                constant, matrix, columns = matrix[:, :1], matrix[:, 1:], columns[1:]
            X[rows] = constant + matrix @ X[columns]
            J[rows] = (matrix @ J[columns].reshape(len(columns), -1)).reshape(len(rows), *J.shape[1:])
        for k, node in zip(rows, site.nodes[rows], strict=True):
            source = site.source[node]
            if source >= 0:
                X[k] += drawn[int(source)]
            if site.column[k] >= 0:
                J[k, site.column[k]] += 1.0
                if product_shift is not None:
                    X[k] += product_shift[site.column[k]]

    def _function(self, group: NodeGroup, values: Array, X: Array, J: Array) -> None:
        """Compute a group of fields that is a nonlinear function of other fields, on a batch of paths.

        X (nodes, paths) are the values and J (nodes, hats, paths) the derivatives of all fields; both are
        changed in place, J by the chain rule. ``values`` are the order parameters.
        """
        assert group.compiled is not None
        argument_values: list[Any] = []
        for kind, at in group.arguments:
            if kind == "field":
                argument_values.append(X[at])
            elif kind == "value":
                argument_values.append(values[at][:, None])
            else:
                argument_values.append(at if kind == "number" else self.site.width * self.site.scale)
        X[group.rows] = group.compiled(*argument_values)
        if not J.shape[1]:
            return
        total: Array | float = 0.0
        for i, (kind, at) in enumerate(group.arguments):
            if kind == "field":
                slope = np.broadcast_to(group.compiled.partial(i, *argument_values), argument_values[i].shape)
                total = total + slope[:, None, :] * J[at]
        J[group.rows] = total


def extend_factor(rows: list[Array], pivots: list[int], covariance: Array, smallest: float) -> None:
    """Append the missing rows to a lower triangular factor L of a covariance ``L L^T``, (n, n).

    ``rows`` are the rows of L so far. A variable has no random number of its own if its conditional variance,
    given the earlier variables, is at most the share ``smallest`` of its variance. ``pivots`` are the
    positions of the variables with a random number. Both lists are extended in place.
    """
    for i in range(len(rows), len(covariance)):
        row = np.zeros(len(pivots) + 1)
        for j, p in enumerate(pivots):
            row[j] = (covariance[i, p] - rows[p][:j] @ row[:j]) / rows[p][j]
        left = covariance[i, i] - row @ row
        if left > smallest * max(covariance[i, i], 1e-300):
            row[-1] = np.sqrt(left)
            pivots.append(i)
        else:
            row = row[:-1]
        rows.append(row)


CHUNK = 2**19
"""Approximate count of numbers that are computed at once, so that they stay in a fast memory."""


def solve_saddle(
    lowered: LoweredFluctuations, samples: int, seed: int, width: float
) -> tuple[Array, list[UnitPaths]]:
    """Return the order parameters of the mean-field theory, and the paths of each site.

    Order parameters and paths are computed one time after the other. ``samples`` is the number of paths of
    each site, an even number. ``width`` is that over which kinks of functions are rounded, relative to the
    root mean square of the sources of a site at time zero; zero for no rounding. A site is a population at
    one layer.

    Raises
    ------
    Unserved
        If the definitions of one time are cyclic, or a function of fields has an argument that sampled paths
        cannot evaluate.
    Diverged
        If an order parameter is not finite.
    """
    sites = [SampledSite(lowered, k, width) for k in range(len(lowered.sites))]
    seeds = np.random.SeedSequence(seed).spawn(len(sites))
    paths = [UnitPaths(x, samples, s) for x, s in zip(sites, seeds, strict=True)]
    # Order parameters of one time may depend on each other, but not in cycles, which are refused. They begin
    # at some value, here 1, and are evaluated again until they change by rounding errors only.
    values = np.ones(lowered.parameters.count)
    for time in range(lowered.sizes.times):
        for _ in range(MOST_LEVELS):
            before = values.copy()
            with np.errstate(all="ignore"):
                for x in paths:
                    x.extend(values, time)
                update(lowered, values, paths, time)
            if _are_settled(values, before):
                break
        else:
            raise Unserved(_CYCLIC)
        unbounded = np.flatnonzero(~np.isfinite(values) & (lowered.parameter_time <= time))
        if len(unbounded):
            raise diverged_at(time, lowered.name_of(int(unbounded[0])), values[unbounded])
    return values, paths


def _are_settled(values: Array, before: Array) -> bool:
    """Return whether values and their previous iterates differ by rounding only.

    The result is false if one of the two is finite where the other is not.
    """
    known = np.isfinite(values)
    if not np.array_equal(known, np.isfinite(before)):
        return False
    rounding = 1e-14 * np.abs(values[known]) + 1e-16 * np.abs(values[known]).max(initial=0.0)
    return bool((np.abs(values[known] - before[known]) <= rounding).all())


MOST_LEVELS = 100
"""Largest number of evaluations of one time, after which order parameters must not change."""

_CYCLIC = (
    f"order parameters of one time still change after {MOST_LEVELS} evaluations, as they do if their "
    "definitions are cyclic: one of them must depend on earlier times only"
)
"""Message of the refusal of cyclic definitions."""


def update(lowered: LoweredFluctuations, values: Array, paths: list[UnitPaths], time: int) -> None:
    """Compute the order parameters of one time from sampled paths and write them into ``values``.

    Averages over the paths of each site come first, then functions of other order parameters. Raises Unserved
    if the definitions of these functions are cyclic.
    """
    fresh, touched = np.zeros_like(values), np.zeros(len(values), bool)
    for x in lowered.units:
        part = x.at(time)
        if part.stop > part.start:
            weights = lowered.value(x, values, part)
            for k, w in zip(range(part.start, part.stop), weights, strict=True):
                site = paths[lowered.site[x.second[k] if x.hats else x.first[k]]]
                fresh[x.target[k]] += w * pair_average(site, x, k)
                touched[x.target[k]] = True
    values[touched] = fresh[touched]
    for x in lowered.rests:
        touched[x.target[x.at(time)]] = True
    for _ in range(MOST_LEVELS):
        updated = fresh.copy()
        for x in lowered.rests:
            part = x.at(time)
            np.add.at(updated, x.target[part], lowered.value(x, values, part))
        before, values[touched] = values[touched], updated[touched]
        if _are_settled(values[touched], before):
            return
    raise Unserved(_CYCLIC)


def pair_average(paths: UnitPaths, x: TermArrays, k: int) -> float:
    """Return the average over paths of a field, a product of two fields, or a response.

    ``k`` is its position in the arrays of the term ``x``, and ``paths`` are the sampled paths of its site.
    """
    place, total = paths.site.place, 0.0
    for part in paths.base:
        if x.hats:
            total += float(part.J[place[x.second[k]], paths.site.column[place[x.first[k]]]].sum())
        elif x.second[k] == CONSTANT:
            total += float(part.X[place[x.first[k]]].sum())
        else:
            total += float(part.X[place[x.first[k]]] @ part.X[place[x.second[k]]])
    return total / paths.samples
