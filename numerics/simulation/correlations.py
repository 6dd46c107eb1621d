"""Measurements of finite networks: averages over units at pairs of times, numbers, and paths of units.

:func:`read_wanted` turns the requested correlations into readers; a :class:`Record` keeps the vectors at the
recorded times, and a :class:`Pair` averages their products over units.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.errors import ProgramError
from derive.program import Mean, Program, s, t
from numerics.paths import Block, Paths, dimension

from .formulas import Binder, named
from .rows import Array, Bound, FormulaReaders, NetworkReader, NetworkState
from .symbol_values import Missing

ObservableAxis = tuple[str, tuple[float, ...]]


@dataclass(frozen=True)
class Measured:
    """Measurement of finite networks: mean over networks and standard error, arrays of one shape.

    Attributes
    ----------
    mean : array, shape given by ``axes``
        Mean over networks; combinations of indices that do not occur are nan.
    stderr : array, shape given by ``axes``
        Standard error of the mean; nan for one network.
    axes : tuple of (str, tuple of float)
        Name and values of each axis: for a correlation ``(ell,) t, s, indices of a, indices of b``, for a
        number ``t, indices``.  A correlation at equal indices has no indices of b.  The layer is an axis if
        each layer has its own units; ``measured[layer]`` selects one.
    """

    mean: Array
    stderr: Array
    axes: tuple[ObservableAxis, ...]

    def __getitem__(self, layer: int) -> Measured:
        """Return the measurement at one layer.

        Raise ``ValueError`` if it has no axis of layers, or no such layer.
        """
        name, values = self.axes[0]
        if name == "t":
            raise ValueError("this measurement has no layer axis: its first axis is the time t")
        if layer not in values:
            raise ValueError(f"{name} = {layer}: must be one of the layers {values}")
        i = values.index(layer)
        return Measured(self.mean[i], self.stderr[i], self.axes[1:])


@dataclass(frozen=True, eq=False)
class CorrelationVector:
    """A vector over units, or a number, of a program at all values of its indices, to be measured.

    Attributes
    ----------
    axes
        Name and values of each index, without the layer.
    layer
        Name of the index that counts layers; None if layers do not have units of their own.
    population
        Name of the population that its units belong to; None for a number.
    sites
        For each layer (key None without layers) the formulas, by the positions of index values in ``axes``.
    readers
        For each layer the function that evaluates these formulas on the state of the networks.
    """

    axes: tuple[ObservableAxis, ...]
    layer: str | None
    population: str | None
    sites: Mapping[int | None, Mapping[tuple[int, ...], Bound]]
    readers: Mapping[int | None, NetworkReader]

    @cached_property
    def rows(self) -> dict[int | None, slice | NDArray[np.intp]]:
        """For each layer (key None without layers) the index values at which the vector exists.

        They are positions in the flattened grid of all indices but the layer. If the vector exists at all
        positions, the entry is a full slice.
        """
        every = list(np.ndindex(*self.shape))
        place = {spot: i for i, spot in enumerate(every)}
        return {
            site: slice(None) if list(grid) == every else np.array([place[spot] for spot in grid])
            for site, grid in self.sites.items()
        }

    @property
    def number(self) -> bool:
        """Whether this is a number of the program, and not a vector over units."""
        return self.population is None

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of values of each index, without the layer."""
        return tuple(len(values) for _, values in self.axes)


class Record:
    """Values of vectors of the networks at the recorded times.

    There is an array (networks, indices, times, units) for each vector and layer, nan where the vector does
    not exist.

    All indices form one axis, in the order of a C array of :attr:`CorrelationVector.shape`. ``places`` maps
    each vector to the positions of the times at which it is recorded, in increasing order. ``networks`` and
    ``times`` are the numbers of networks and of recorded times.
    """

    def __init__(
        self, places: Mapping[CorrelationVector, tuple[int, ...]], networks: int, times: int
    ) -> None:
        self.places, self.sides, self.networks, self.times = places, [*places], networks, times
        self.now = 0
        self.kept: dict[tuple[int, int | None], Array] = {}

    def append(self, state: NetworkState) -> None:
        """Store the vectors of the networks in ``state`` at the next recorded time.

        Vectors that are not recorded at this time are left out.
        """
        for i, (side, places) in enumerate(self.places.items()):
            at = bisect_left(places, self.now)
            if at == len(places) or places[at] != self.now:
                continue
            for site, read in side.readers.items():
                x, rows = read(state), side.rows[site]
                whole = self.kept.get((i, site))
                if whole is None:
                    shape = (self.networks, int(np.prod(side.shape, dtype=int)), len(places), x.shape[-1])
                    whole = np.empty(shape) if isinstance(rows, slice) else np.full(shape, np.nan)
                elif x.shape[-1] > whole.shape[-1]:
                    whole = np.repeat(whole, x.shape[-1], axis=-1)
                self.kept[i, site] = whole
                whole[:, rows, at] = x
        self.now += 1

    def of(self, side: CorrelationVector, site: int | None, times: tuple[int, ...] | None = None) -> Array:
        """Return the stored values of one vector at the layer ``site`` (None without layers).

        The shape is (networks, indices, times, units). ``times`` are positions of recorded times; None for
        all at which the vector is recorded.
        """
        whole = self.kept[self.sides.index(side), site]
        if times is None or times == self.places[side]:
            return whole
        chosen: Array = whole[:, :, [self.places[side].index(k) for k in times]]
        return chosen


@dataclass(frozen=True)
class Pair:
    """Correlation ``(1/n) sum_i a_i(t) b_i(s)`` to be measured.

    Attributes
    ----------
    name
        Name of the measurement.
    first, second
        The vectors a and b.
    equal
        Whether a is b, and the correlation is measured at equal values of all indices of both only.
    times
        Positions among the recorded times of those at which it is measured; None for all.
    """

    name: str
    first: CorrelationVector
    second: CorrelationVector
    equal: bool = False
    times: tuple[int, ...] | None = None

    def layers(self) -> list[int]:
        """Return the layers at which both vectors exist; an empty list if layers share their units."""
        sites = self.first.sites if self.second.number else set(self.first.sites) & set(self.second.sites)
        return sorted(x for x in sites if x is not None)

    def axes(self, times: tuple[float, ...]) -> tuple[ObservableAxis, ...]:
        """Return (name, values) of each axis of the array of :meth:`value`, without that of the networks.

        ``times`` are the recorded times. An index of the second vector whose name the first one has, too,
        gets a prime: ``mu'``.
        """
        name = self.first.layer or self.second.layer
        layers = () if name is None else ((name, tuple(self.layers())),)
        used = {n for n, _ in self.first.axes}
        second = tuple((n + "'" if n in used else n, v) for n, v in self.second.axes)
        times = times if self.times is None else tuple(times[k] for k in self.times)
        return (*layers, ("t", times), ("s", times), *self.first.axes, *(() if self.equal else second))

    def value(self, record: Record) -> Array:
        """Return the correlation ``(1/n) sum_i a_i(t) b_i(s)`` of every network, from recorded vectors.

        The shape is (networks, [layers,] times, times, indices...).
        """
        sites: list[int | None] = [*self.layers()] or [None]
        indices = self.first.shape + (() if self.equal else self.second.shape)
        networks, times = record.networks, record.times if self.times is None else len(self.times)
        whole = np.empty((networks, len(sites), times, times, *indices))
        for i, site in enumerate(sites):
            a = record.of(self.first, site, self.times)
            b = record.of(self.second, None if self.second.number else site, self.times)
            n = a.shape[-1]
            b = b if b.shape[-1] == n else np.broadcast_to(b, (*b.shape[:-1], n))
            if self.equal:
                c = (a @ b.swapaxes(-1, -2)).transpose(0, 2, 3, 1)
            else:
                flat = a.reshape(networks, -1, n) @ b.reshape(networks, -1, n).swapaxes(1, 2)
                c = flat.reshape(networks, a.shape[1], times, b.shape[1], times).transpose(0, 2, 4, 1, 3)
            np.divide(c.reshape(networks, times, times, *indices), n, out=whole[:, i])
        return whole if self.first.layer or self.second.layer else whole[:, 0]


@dataclass
class Wanted:
    """Correlations (``pairs``) and numbers of the program (``scalars``) to be measured in a run."""

    pairs: tuple[Pair, ...]
    scalars: Mapping[str, CorrelationVector]
    sides: list[CorrelationVector] = field(default_factory=list)

    def __post_init__(self) -> None:
        vectors = [*(y for p in self.pairs for y in (p.first, p.second)), *self.scalars.values()]
        self.sides.extend(dict.fromkeys(vectors))

    def values(self, record: Record) -> dict[str, Array]:
        """Return the measurements of every network by name, computed from recorded vectors.

        Networks are the first axis of each array.
        """
        measurements = {p.name: p.value(record) for p in self.pairs}
        for name, x in self.scalars.items():
            entries = record.of(x, None)[..., 0].swapaxes(1, 2)
            measurements[name] = entries.reshape(*entries.shape[:2], *x.shape)
        return measurements

    def axes(self, times: tuple[float, ...]) -> dict[str, tuple[ObservableAxis, ...]]:
        """Return (name, values) of each axis of each measurement, without that of the networks.

        ``times`` are the recorded times.
        """
        axes = {p.name: p.axes(times) for p in self.pairs}
        return {**axes, **{n: (("t", times), *x.axes) for n, x in self.scalars.items()}}

    def places(self, times: int) -> dict[CorrelationVector, tuple[int, ...]]:
        """Return for each vector the positions of the recorded times at which it must be recorded.

        ``times`` is the number of recorded times. Numbers of the program are recorded at all times.
        """
        every = tuple(range(times))
        places: dict[CorrelationVector, tuple[int, ...]] = dict.fromkeys(self.sides, ())
        for p in self.pairs:
            for side in (p.first, p.second):
                places[side] = tuple(sorted({*places[side], *(every if p.times is None else p.times)}))
        return places | dict.fromkeys(self.scalars.values(), every)


@dataclass(frozen=True)
class ChosenPairs:
    """Correlation to be measured at some of the recorded times, or at equal values of indices only.

    Attributes
    ----------
    pair
        A vector, or a pair of vectors.
    times
        Positions of recorded times; None for all.
    equal
        An index: the correlation of a vector that has it with itself is measured at equal values of all
        indices only. None for all pairs of values.
    """

    pair: Any
    times: tuple[int, ...] | None = None
    equal: Symbol | None = None


def read_wanted(
    binder: Binder, reading: FormulaReaders, wanted: Mapping[str, Any] | None, equal: Symbol | None = None
) -> Wanted:
    """Return the measurements of a run: the wanted correlations, and all numbers of the program.

    ``wanted`` maps a name to a vector (its correlation with itself at two times) or to a pair ``(a, b)``:
    ``a`` at the time t, ``b`` at the time s (written with t or with s); a :class:`ChosenPairs` holds a vector
    or a pair, with options that replace ``equal``. If ``b`` is a number, the result is the mean of ``a``
    times ``b``. None stands for every vector that the program's notation names. A vector with the index
    ``equal`` is correlated with itself at equal values of all its indices only. A vector in several
    correlations is recorded once. Raises ValueError for a name that a number of the program has, if ``a`` is
    a number, and if ``a`` and ``b`` have units of different populations or no layer in common.
    """
    program, vectors = binder.program, dict[Expr, CorrelationVector]()

    def vector(e: Expr) -> CorrelationVector:
        if e not in vectors:
            vectors[e] = read_vector(binder, reading, e)
        return vectors[e]

    if wanted is None:
        wanted = {}
        for e, name in program.notation.items():
            if name in wanted:
                raise ValueError(
                    f"the notation of the program gives two vectors the name {name}: choose names of "
                    "correlations in `wanted`"
                )
            wanted = {**wanted, name: e}
    pairs = []
    for name, e in wanted.items():
        if name in program.scalars:
            raise ValueError(f"wanted[{name!r}]: the program has a number of that name, choose another name")
        chosen = e if isinstance(e, ChosenPairs) else ChosenPairs(e, equal=equal)
        a, b = chosen.pair if isinstance(chosen.pair, tuple) else (chosen.pair, chosen.pair)
        a, b = sympify(a), sympify(b).xreplace({s: t})
        first = vector(a)
        _require_vector(name, a, first)
        second = vector(b)
        is_equal = chosen.equal is not None and first is second and chosen.equal in a.free_symbols
        pair = Pair(name, first, second, is_equal, chosen.times)
        differ = not second.number and first.population != second.population
        if differ or not (pair.layers() or None in first.sites):
            raise ValueError(
                f"wanted[{name!r}]: {a} and {b} have no common units: their populations or layers differ"
            )
        pairs.append(pair)
    scalars = {name: read_vector(binder, reading, _scalar(program, binder, name)) for name in program.scalars}
    return Wanted(tuple(pairs), scalars)


def _require_vector(name: str, e: Expr, vector: CorrelationVector) -> None:
    """Raise ValueError unless the wanted expression ``e`` of this name is a vector of units."""
    if vector.number or not vector.sites:
        remedy = (
            f"for the average give the pair ({e.args[0]}, 1)"
            if isinstance(e, Mean)
            else "numbers of the program are measured in any case, and others follow from averages of vectors"
        )
        kind = f"{e} is a number; {remedy}" if vector.sites else f"{e} is not defined at any indices"
        raise ValueError(
            f"wanted[{name!r}] must be a vector with an entry for each unit, or a pair that begins with a "
            f"vector, but {kind}"
        )


def read_vector(binder: Binder, reading: FormulaReaders, e: Expr) -> CorrelationVector:
    """Return the vector or number ``e`` of the program as formulas, one for each set of index values.

    Sets of values at which ``e`` is not defined are left out. Raise ValueError if its entries are units of
    several populations.
    """
    e = named(e, binder.functions)
    values = _index_values(binder, e)
    symbols = list(values)
    bounds: dict[tuple[int, ...], Bound] = {}
    for choice in product(*values.values()):
        try:
            bounds[choice] = binder.bind(e, dict(zip(symbols, choice, strict=True)))
        except Missing:
            continue
    places = {choice: x.place() for choice, x in bounds.items()}
    populations = {p[0] for p in places.values() if p is not None}
    if len(populations) > 1:
        raise ValueError(f"{e} has units of several populations: {', '.join(sorted(populations))}")
    layer = (
        _layer_symbol(binder, e, symbols) if any(p and p[1] is not None for p in places.values()) else None
    )
    keep = [j for j, x in enumerate(symbols) if x != layer]
    used = [sorted({choice[j] for choice in bounds}) for j in keep]
    sites: dict[int | None, dict[tuple[int, ...], Bound]] = {}
    for choice, x in bounds.items():
        p = places[choice]
        spot = tuple(used[i].index(choice[j]) for i, j in enumerate(keep))
        sites.setdefault(None if p is None else p[1], {})[spot] = x
    axes = tuple((symbols[j].name, tuple(v)) for j, v in zip(keep, used, strict=True))
    readers = {site: reading.read(list(grid.values())) for site, grid in sites.items()}
    return CorrelationVector(
        axes, None if layer is None else layer.name, next(iter(populations), None), sites, readers
    )


def _index_values(binder: Binder, e: Expr) -> dict[Symbol, list[int]]:
    """Return for each free index of ``e`` the values at which all fields and weights in ``e`` are defined.

    Indices are in the order in which they appear in ``e``.
    """
    index_values: dict[Symbol, set[int]] = {}
    for _, args, members in _uses(binder, e):
        for j, arg in enumerate(args):
            symbols = [x for x in arg.free_symbols if x.name not in binder.values.numbers]
            if len(symbols) != 1:
                continue
            (x,) = symbols
            shift = sympify(arg - x)
            if not shift.is_Integer:
                continue
            here = {m[j] - int(shift) for m in members}
            index_values[x] = index_values[x] & here if x in index_values else here
    return {x: sorted(v) for x, v in index_values.items()}


def _uses(binder: Binder, e: Expr) -> list[tuple[str, tuple[Any, ...], set[tuple[int, ...]]]]:
    """Return each use of a field, number or family of weights in the expression ``e``.

    A use is a triple: name, arguments without the time, and the set of index values at which it is defined.
    Inside of a sum, arguments with the summation index are replaced by 0, because it is not an index of
    ``e``. Raise ValueError for a field, number or weight with another number of indices than it has.
    """
    if isinstance(e, Sum):
        bound = e.bound_symbols
        inner = _uses(binder, e.function)
        return [
            (name, tuple(S.Zero if a.has(*bound) else a for a in args), members)
            for name, args, members in inner
        ]
    uses = []
    if isinstance(e, AppliedUndef):
        name = str(e.func)
        if name in binder.domains:
            uses.append((name, e.args[:-1], binder.domains[name]))
        elif name in binder.vectors:
            members = {tuple(m.values()) for m in binder.values.members(binder.vectors[name].indices)}
            uses.append((name, e.args, members))
    for name, args, members in uses:
        count = len(next(iter(members), args))
        if count != len(args):
            raise ValueError(f"{e}: {name} has {count} indices beside the time, and {len(args)} are given")
    return [*uses, *(use for a in e.args for use in _uses(binder, a))]


def _layer_symbol(binder: Binder, e: Expr, symbols: list[Symbol]) -> Symbol | None:
    """Return the one of ``symbols`` that is in the layer index of the first layered field in ``e``.

    The result is None if ``e`` contains no layered field, or if the layer of the first one has no symbol.
    """
    for name, args, _ in _uses(binder, e):
        x = binder.program.field_of(name)
        if x is not None and x.layered and args:
            return next((y for y in symbols if args[0].has(y)), None)
    return None


def _scalar(program: Program, binder: Binder, name: str) -> Expr:
    """Return the number ``name`` of the program as an expression with symbolic indices: ``f(mu, t)``.

    An index for which the definitions have integers only becomes a new symbol. Raise ProgramError for a
    number without a definition.
    """
    lines = [d for d in program.definitions if d.name == name]
    if not lines or not binder.domains[name]:
        raise ProgramError(f"the number {name} of the program has no definition at any index")
    args = []
    for k, at in enumerate(zip(*(d.lhs.args[:-1] for d in lines), strict=True)):
        indices = {r.index for d in lines for r in d.ranges}
        candidates = sorted({x for a in at for x in a.free_symbols & indices}, key=str)
        args.append(candidates[0] if candidates else Symbol(f"index{k + 1}", integer=True))
    return lines[0].lhs.func(*args, t)


@dataclass
class KeptPaths:
    """Fields of the single units of each network at some steps, kept for the user.

    Attributes
    ----------
    vectors
        The fields by name.
    times
        Steps, or positions of recorded times, in any order.
    record
        Record of the networks in training.
    """

    vectors: Mapping[str, CorrelationVector]
    times: Sequence[int]
    record: Record = field(init=False)

    def begin(self, networks: int) -> None:
        """Start an empty record for a group of ``networks`` networks that are trained together."""
        every = tuple(range(len({*self.times})))
        self.record = Record(dict.fromkeys(self.vectors.values(), every), networks, len(every))

    def record_state(self, state: NetworkState) -> None:
        """Record the state of the networks, if its step is one of the times.

        Raise ValueError if the kept layers of a field have unequal numbers of units.
        """
        if state.step in self.times:
            self.record.append(state)
            for vector in self.vectors.values():
                if len({self.record.of(vector, k).shape[-1] for k in vector.sites}) > 1:
                    raise ValueError(
                        "paths: the selected layers have different widths: select one layer, or layers of "
                        "one width"
                    )

    def blocks(self) -> list[dict[str, Block]]:
        """Return for each network of the group that was trained last its kept fields, by name."""
        blocks: list[dict[str, Block]] = [{} for _ in range(self.record.networks)]
        at = [sorted({*self.times}).index(x) for x in self.times]
        for name, vector in self.vectors.items():
            layers = tuple(k for k in vector.sites if k is not None)
            whole = np.stack([self.record.of(vector, k) for k in vector.sites], axis=1)[:, :, :, at].swapaxes(
                2, 3
            )
            for block, x in zip(blocks, whole.reshape(*whole.shape[:3], *vector.shape, -1), strict=True):
                block[name] = Block(x if layers else x[0], layers, vector.axes)
        return blocks


def read_kept(binder: Binder, reading: FormulaReaders, paths: Paths, steps: int) -> KeptPaths:
    """Return the fields and steps that ``paths`` selects, for a run of ``steps`` steps.

    Raise ValueError for a field that has no units in the networks.
    """
    sides = {}
    for name, e in paths.expressions(binder.program).items():
        side = read_vector(binder, reading, e)
        if side.number or not side.sites:
            raise ValueError(f"paths: {name} = {e} has no units in this network")
        sides[name] = _chosen(reading, paths, side)
    return KeptPaths(sides, paths.steps(binder.program, steps))


def _chosen(reading: FormulaReaders, paths: Paths, side: CorrelationVector) -> CorrelationVector:
    """Return the field ``side`` at only those layers and samples that ``paths`` selects.

    Its axes get the names that they have in results.
    """
    there = sorted(x for x in side.sites if x is not None)
    layers: list[Any] = paths.chosen("layers", there) if there else [None]
    axes, places = [], []
    for index, values in side.axes:
        whole = [int(x) for x in values]
        name, labels = dimension(index), whole
        if name == "sample":
            labels = paths.chosen("samples", range(len(whole)))
        elif name == "layer":  # all layers have the same units, so that the layer is an axis
            labels = paths.chosen("layers", whole)
        places.append(labels if name == "sample" else [whole.index(x) for x in labels])
        axes.append((name, tuple(labels)))
    spots = [*zip(np.ndindex(*map(len, places)), product(*places), strict=True)]
    sites = {k: {new: side.sites[k][old] for new, old in spots} for k in layers}
    readers = {k: reading.read([*grid.values()]) for k, grid in sites.items()}
    return replace(side, axes=tuple(axes), sites=sites, readers=readers)
