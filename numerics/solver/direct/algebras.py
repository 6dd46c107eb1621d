"""Random values of a theory, as affine functions of Gaussian sources or as sampled paths.

A field of a linear theory is ``constant + sum_k coefficients[k] source_k``. Its covariance with another one
is ``c^T Sigma c'`` and its response to a source is the coefficient; both are exact.

For other theories all sources of a path come from one point of a low-discrepancy sequence; correlated sources
are drawn one after the other, each conditional on those before it. A value carries its derivatives by the
sources of its path, by the chain rule; if a function jumps, average responses come from Stein's lemma. Order
parameters are averages over the paths of one replica. Each replica solves the theory independently, so that
the scatter of the replicas gives the standard error. The reference solver uses both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerics.lowering.expressions import CompiledFunction, UnseenJump
from numerics.lowering.indices import connected_groups
from numerics.solver.direct.interpret import ALL, Interpreter, NonlinearTheory, RandomValue, RandomVariables
from numerics.solver.direct.layout import EntryKey, Layout, OpenTimeKey
from numerics.stats import normal_points

Array = NDArray[np.float64]

# -- linear theories, exactly --------------------------------------------------------------------------------


@dataclass(eq=False)
class Affine:
    """Affine function ``constant + sum_k coefficients[k] source_k``, plus products of two such functions.

    ``constant`` is a number or has one for each unit, shape ``(units,)``; ``coefficients`` have shape
    ``(sources, units)``, with one column if they are equal for all units. ``products`` holds the two factors
    of each product. A value with products can be averaged, and cannot be a field.
    """

    constant: Any
    coefficients: Array
    products: tuple[tuple[Affine, Affine], ...] = ()

    __array_ufunc__ = None  # so that a NumPy number times this object calls __rmul__ here

    @property
    def fixed(self) -> bool:
        """Whether no source occurs in the function, which is then a number, or one number for each unit."""
        return not self.products and not self.coefficients.any()

    def scaled(self, x: Any) -> Affine:
        """Return the function times a number, or times one number for each unit."""
        products = tuple((a.scaled(x), b) for a, b in self.products)
        return Affine(self.constant * x, self.coefficients * x, products)

    def __add__(self, other: Any) -> Affine:
        if not isinstance(other, Affine):
            return Affine(self.constant + other, self.coefficients, self.products)
        coefficients, products = self.coefficients + other.coefficients, self.products + other.products
        return Affine(self.constant + other.constant, coefficients, products)

    def __mul__(self, other: Any) -> Affine:
        if not isinstance(other, Affine):
            return self.scaled(other)
        if self.fixed or other.fixed:
            return other.scaled(self.constant) if self.fixed else self.scaled(other.constant)
        if self.products or other.products:
            raise NonlinearTheory(
                "the theory averages a product of more than two fields, so that it is not linear: use "
                "method='particles'"
            )
        return Affine(0.0, np.zeros_like(self.coefficients), ((self, other),))

    __radd__, __rmul__ = __add__, __mul__


class Linear(RandomVariables):
    """Random values of a linear theory as affine functions of at most ``capacity`` Gaussian sources."""

    def __init__(self, interpreter: Interpreter, capacity: int) -> None:
        self.interpreter, self.capacity = interpreter, capacity
        self.columns: dict[EntryKey, int] = {}
        self.sigma = np.full((capacity, capacity), np.nan)

    def source(self, entry: EntryKey) -> Affine:
        """Return the Gaussian source with this key (name, indices and time) as a random value.

        It is the affine function with coefficient one for this source; equal keys give the same source.
        """
        coefficients = np.zeros((self.capacity, 1))
        coefficients[self.columns.setdefault(entry, len(self.columns))] = 1.0
        return Affine(0.0, coefficients)

    def fixed(self, x: Any) -> Affine:
        """Return a given number ``x``, or one number for each unit, as an affine function without sources."""
        return Affine(x, np.zeros((self.capacity, 1)))

    def attribute(self, name: str) -> Affine:
        """Return the attribute ``name`` as an affine function without sources: one number for each unit.

        An attribute is a given constant of each unit, such as the eigenvalue of a mode.
        """
        return self.fixed(self.interpreter.constants.attribute(name))

    def apply(self, f: CompiledFunction, args: list[RandomValue], tangent: bool) -> Affine:
        """Return ``f`` of arguments that do not depend on sources.

        Raises NonlinearTheory if an argument depends on a source. ``tangent`` has no effect, because all
        derivatives vanish.
        """
        if any(isinstance(x, Affine) and not x.fixed for x in args):
            raise NonlinearTheory(f"{f.expr} is not linear in the fields: use method='particles'")
        return self.fixed(f(*[x.constant if isinstance(x, Affine) else x for x in args]))

    def field(self, name: str, v: RandomValue) -> RandomValue:
        """Return the value of a field as it is; raise NonlinearTheory if it contains a product of fields."""
        if isinstance(v, Affine) and v.products:
            raise NonlinearTheory(
                f"the equation of {name} is not linear in the fields: use method='particles'"
            )
        return v

    def mean(self, v: RandomValue) -> float:
        """Return the mean of a value over the sources and the units."""
        if not isinstance(v, Affine):
            return float(v)
        return float(np.mean(v.constant) + sum(np.mean(self.overlap(*x)) for x in v.products))

    def overlap(self, x: Affine, y: Affine) -> Any:
        """Return the mean ``<x y>`` of two affine functions over the sources, for each unit."""
        return x.constant * y.constant + self.covariance(x.coefficients, y.coefficients)

    def covariance(self, a: Array, b: Array) -> Array:
        """Return ``a^T Sigma b`` for each unit, with the covariance Sigma of the sources.

        ``a`` and ``b`` are coefficients of shape (sources, units). Entries of Sigma are computed when they
        are first needed, for nonzero coefficients only.
        """
        # `columns` are the sources in use. Only their coefficients are read, because a value that has
        # overflowed has the coefficient NaN for sources that are not in use, too.
        entries = list(self.columns)
        rows, cols = (np.flatnonzero(x[: len(entries)].any(axis=1)) for x in (a, b))
        for i in rows:
            for j in cols:
                if np.isnan(self.sigma[i, j]):
                    value = self.interpreter.covariance(entries[i], entries[j])
                    self.sigma[i, j] = self.sigma[j, i] = value
        product: Array = np.sum((self.sigma[np.ix_(rows, cols)].T @ a[rows]) * b[cols], axis=0)
        return product

    def derivative(self, v: RandomValue, source: EntryKey) -> RandomValue:
        """Return the coefficient of a source in a value, a number; 0 if the source does not occur.

        If units have different coefficients, it is an affine function with one number for each unit. Raises
        NonlinearTheory if the value contains a product of fields, unless the source was never read.
        """
        if source not in self.columns or not isinstance(v, Affine):
            return 0
        if v.products:
            raise NonlinearTheory(
                "the theory contains the response of a product of fields, so that it is not linear: use "
                "method='particles'"
            )
        c = v.coefficients[self.columns[source]]
        return float(c[0]) if c.size == 1 else self.fixed(c)


# -- any theory, on sampled paths ----------------------------------------------------------------------------

PIVOT = 1e-10
"""Ratio of conditional variance to variance below which a source is determined by those drawn before it."""


@dataclass(eq=False)
class Path:
    """Random value ``scale * value`` on each path, with derivatives ``scale * slopes`` by sources.

    Arrays have shape ``(samples,)``; a slope that is equal on all paths is a number. Derivatives are carried
    only for sources to which the theory contains a response; ``needs`` holds the keys of those sources with a
    response on which the value depends. ``jumps`` is true if a function between a source and the value jumps;
    the slopes then lack delta functions, and responses are computed by Stein's lemma.
    """

    value: Array
    slopes: Mapping[EntryKey, Any]
    scale: float = 1.0
    needs: frozenset[EntryKey] = frozenset()
    jumps: bool = False

    __array_ufunc__ = None

    def scaled(self, x: float) -> Path:
        """Return the random value times a number."""
        return Path(self.value, self.slopes, self.scale * x, self.needs, self.jumps)

    def __mul__(self, other: Any) -> Path:
        if not isinstance(other, Path):
            return self.scaled(other)
        slopes: dict[EntryKey, Any] = {k: j * other.value for k, j in self.slopes.items()}
        for k, j in other.slopes.items():
            slopes[k] = slopes[k] + self.value * j if k in slopes else self.value * j
        needs, jumps = self.needs | other.needs, self.jumps or other.jumps
        return Path(self.value * other.value, slopes, self.scale * other.scale, needs, jumps)

    def __add__(self, other: Any) -> RandomValue:
        return added([self, other])

    __rmul__, __radd__ = __mul__, __add__

    @property
    def array(self) -> Array:
        """Values of the random variable on all paths, ``scale * value``, shape ``(samples,)``."""
        return self.value * self.scale


def added(values: list[RandomValue]) -> RandomValue:
    """Return the sum of numbers and paths.

    Multiples of the same path are added first. Then the sum is ``value = sum_p scale_p value_p``, and its
    derivative by each source is the same sum of derivatives, a number if it is equal on all paths.
    """
    constant: float = 0
    paths: dict[int, Path] = {}
    for v in values:
        if not isinstance(v, Path):
            constant += v
        elif id(v.value) in paths:
            p = paths[id(v.value)]
            paths[id(v.value)] = Path(p.value, p.slopes, p.scale + v.scale, p.needs, p.jumps)
        else:
            paths[id(v.value)] = v
    distinct = list(paths.values())
    if not distinct:
        return constant
    if len(distinct) == 1 and constant == 0:
        return distinct[0]
    shape = distinct[0].value.shape
    value, buffer = np.full(shape, float(constant)), np.empty(shape)
    slopes: dict[EntryKey, Any] = {}
    numbers: dict[EntryKey, float] = {}
    for p in distinct:
        value += np.multiply(p.value, p.scale, out=buffer)
        for k, j in p.slopes.items():
            if isinstance(j, float):
                numbers[k] = numbers.get(k, 0.0) + j * p.scale
            elif k in slopes:
                slopes[k] += np.multiply(j, p.scale, out=buffer)
            else:
                slopes[k] = j * p.scale
    for k, x in numbers.items():
        slopes[k] = slopes[k] + x if k in slopes else x
    needs = frozenset().union(*[p.needs for p in distinct])
    return Path(value, slopes, 1.0, needs, any(p.jumps for p in distinct))


class Gaussian:
    """Group of jointly Gaussian sources, drawn one by one with a growing Cholesky factor.

    A source whose conditional variance is zero up to rounding gets no normal number of its own.
    """

    def __init__(self, samples: int) -> None:
        self.samples = samples
        self.entries: list[EntryKey] = []
        self.rows: list[Array] = []
        self.pivots: list[int] = []
        self.normals: list[Array] = []

    def draw(self, entry: EntryKey, interpreter: Interpreter, normals: Iterator[Array]) -> Array:
        """Return values of a further source on all paths, conditional on the sources drawn before it.

        With the row ``L_nj = (C_ni - sum_k<j L_nk L_ik) / L_ij`` of the Cholesky factor the source n is
        ``sum_j L_nj z_j``, where i is the source for which the normal number z_j was drawn. A new normal
        number is used if the conditional variance ``C_nn - sum_j L_nj^2`` exceeds rounding errors. ``entry``
        is the key of the source, and ``normals`` yields arrays of independent normal numbers. Raises
        ValueError if the conditional variance is negative beyond rounding.
        """
        variance = interpreter.covariance(entry, entry)
        c: list[float] = []
        # The loop has no fixed range, because a covariance may need an average that draws sources and adds
        # them to `entries`.
        while len(c) < len(self.entries):
            c.append(interpreter.covariance(entry, self.entries[len(c)]))
        row = np.zeros(len(self.pivots) + 1)
        for j, i in enumerate(self.pivots):
            row[j] = (c[i] - self.rows[i][:j] @ row[:j]) / self.rows[i][j]
        conditional = variance - float(row @ row)
        if conditional < -1e3 * PIVOT * max(variance, 1e-300):
            raise ValueError(
                f"the covariance matrix of the source {entry[0]}{entry[1]} and of the sources drawn before "
                f"it is not positive semidefinite: the variance of {entry[0]}{entry[1]} is {variance:.3g}, "
                f"and its conditional variance, given the other sources, is {conditional:.3g}"
            )
        if conditional > PIVOT * variance:
            row[-1] = np.sqrt(conditional)
            self.pivots.append(len(self.entries))
            self.normals.append(next(normals))
        else:
            row = row[:-1]
        self.entries.append(entry)
        self.rows.append(row)
        value = np.zeros(self.samples)
        for x, z in zip(row, self.normals, strict=False):
            if x != 0:
                value += x * z
        return value

    def responses(self, v: Array, to: list[EntryKey]) -> tuple[Array, NDArray[np.bool_]]:
        """Return ``<d v / d source>`` for the sources ``to``, and which of these averages are undetermined.

        ``v`` has shape ``(samples,)``; ``to`` are all sources of this group on which v depends. Stein's
        lemma for the normal numbers z from which the sources are made is ``<v z_j> = sum_i L_ij <d v / d
        source_i>``. Sources that determine each other, ``sum_i c_i source_i = 0``, leave single responses
        undetermined: the solution of least norm is returned. Fields do not depend on this choice, because a
        response multiplies the vector whose covariance is that of its source, so that ``sum_i c_i vector_i =
        0`` too.
        """
        factor = np.zeros((len(self.pivots), len(to)))
        for column, entry in enumerate(to):
            row = self.rows[self.entries.index(entry)]
            factor[: len(row), column] = row
        right = np.array([np.mean(v * z) for z in self.normals])
        left, sizes, rows = np.linalg.svd(factor, full_matrices=True)
        rank = int(np.sum(sizes > 1e-9 * sizes.max(initial=0.0)))
        means: Array = rows[:rank].T @ ((left.T @ right)[:rank] / sizes[:rank])
        return means, np.abs(rows[rank:]).max(axis=0, initial=0.0) > 1e-6


class Particles(RandomVariables):
    """Random values of a theory, linear or not, as arrays over the sampled paths of one replica."""

    def __init__(
        self, interpreter: Interpreter, samples: int, dimensions: int, seed: np.random.SeedSequence
    ) -> None:
        self.interpreter = interpreter
        layout = interpreter.layout
        self.wanted = layout.wanted_sources()
        populations = {a.name: a.population.name for a in layout.theory.program.attributes}
        self.populations = populations
        self.samples = samples
        self.fresh = iter(normal_points(samples, dimensions + len(set(populations.values())), seed))
        self.positions = {p: np.argsort(np.argsort(next(self.fresh))) for p in set(populations.values())}
        self.groups = _groups(layout, samples)

    def source(self, entry: EntryKey) -> Path:
        """Draw the Gaussian source with this key (name, indices and time), conditional on correlated sources.

        The interpreter asks for each key only once, so that equal keys are the same random numbers.
        Derivatives by the source are carried only if the theory contains a response to it.
        """
        key = (entry[0], self.interpreter.layout.sources[entry[0]].key(entry[1]))
        value = self.groups[key].draw(entry, self.interpreter, self.fresh)
        if entry[0] not in self.wanted:
            return Path(value, {})
        return Path(value, {entry: 1.0}, needs=frozenset({entry}))

    def attribute(self, name: str) -> Path:
        """Return the attribute ``name`` as an array over the paths: the value for the unit of each path.

        An attribute is a given constant of each unit, such as the eigenvalue of a mode. All units occur
        equally often among the paths.
        """
        numbers = self.interpreter.constants.attribute(name)
        at = self.positions[self.populations[name]]
        return Path(numbers[at * len(numbers) // len(at)], {})

    def apply(self, f: CompiledFunction, args: list[RandomValue], tangent: bool) -> Path:
        """Return ``f`` of the arguments on each path, with derivatives by the chain rule if ``tangent``."""
        values = [x.array if isinstance(x, Path) else x for x in args]
        slopes: dict[EntryKey, Any] = {}
        paths = {i: x for i, x in enumerate(args) if isinstance(x, Path)}
        jumps = any(x.jumps for x in paths.values())
        for i, x in paths.items():
            if not (tangent and x.slopes):
                continue
            try:
                outer = f.partial(i, *values) * x.scale
            except UnseenJump:
                jumps = True
                continue
            for k, j in x.slopes.items():
                slopes[k] = slopes[k] + outer * j if k in slopes else outer * j
        needs = frozenset().union(*[x.needs for x in paths.values()])
        value = np.broadcast_to(np.asarray(f(*values), dtype=float), (self.samples,))
        return Path(value, slopes, 1.0, needs, jumps)

    def total(self, values: list[RandomValue]) -> RandomValue:
        """Return the sum of values."""
        return added(values)

    def restricted(self, v: RandomValue, to: EntryKey | None) -> RandomValue:
        """Return a random value without those of its derivatives that are not needed.

        With ``to`` = ALL its derivatives by all sources are kept, with the key of a source only the
        derivative by that source, and with None no derivative.
        """
        if to == ALL or not isinstance(v, Path):
            return v
        if to is None:
            return Path(v.value, {}, v.scale)
        return Path(v.value, {to: v.slopes[to]} if to in v.slopes else {}, v.scale, v.needs, v.jumps)

    def mean(self, v: RandomValue) -> float:
        """Return the mean of a random value over the paths of the replica."""
        return float(v.value.mean() * v.scale) if isinstance(v, Path) else float(v)

    def derivative(self, v: RandomValue, source: EntryKey) -> RandomValue:
        """Return the derivative of a value by a source on each path, or its average if a function jumps.

        It is a number if it is equal on all paths, and 0 if the value does not depend on the source. If the
        average is undetermined because sources determine each other, ``is_undetermined`` is set.
        """
        if not isinstance(v, Path) or source not in v.needs:
            return 0
        if v.jumps:
            key = (source[0], self.interpreter.layout.sources[source[0]].key(source[1]))
            group = self.groups[key]
            sources = [e for e in group.entries if e in v.needs]
            responses, is_undetermined = group.responses(v.array, sources)
            self.is_undetermined |= bool(is_undetermined[sources.index(source)])
            return float(responses[sources.index(source)])
        if source not in v.slopes:
            return 0
        slope = v.slopes[source]
        if np.ndim(slope) == 0:
            return float(slope * v.scale)
        return Path(np.broadcast_to(slope, v.value.shape), {}, v.scale)


def _groups(layout: Layout, samples: int) -> dict[OpenTimeKey, Gaussian]:
    """Return the group of correlated sources to which each source belongs, by key without times.

    Groups draw ``samples`` paths, and contain no sources at first.
    """
    keys = {x for pair in layout.covariances for x in pair}
    groups: dict[OpenTimeKey, Gaussian] = {}
    for correlated in connected_groups(keys, layout.covariances):
        groups |= dict.fromkeys(correlated, Gaussian(samples))
    return groups
