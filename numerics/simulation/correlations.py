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
from derive.program import Program, s, t
from numerics.paths import Block, Paths, dimension

from .formulas import Binder, Missing, named
from .rows import Array, Bound, FormulaReaders, NetworkReader, NetworkState

ObservableAxis = tuple[str, tuple[float, ...]]


@dataclass(frozen=True)
class Measured:
    """Mean over networks and its standard error (nan for one network), arrays of one shape.

    Attributes
    ----------
    mean : array, shape given by ``axes``
        Mean over networks; combinations of indices that do not occur are nan.
    stderr : array, shape given by ``axes``
        Its standard error.
    axes : tuple of (str, tuple of float)
        Name and values of each axis: for a correlation ``(ell,) t, s, indices of a, indices of b``, for a
        number ``t, indices``.  The layer is an axis if each layer has its own units; ``measured[layer]``
        selects one.
    """

    mean: Array
    stderr: Array
    axes: tuple[ObservableAxis, ...]

    def __getitem__(self, layer: int) -> Measured:
        """Return one layer; raise ``ValueError`` if the layer is not an axis, or not one of its values."""
        name, values = self.axes[0]
        if name == "t":
            raise ValueError("this quantity has no layer axis of its own")
        if layer not in values:
            raise ValueError(f"{name} = {layer}: must be one of {values}")
        i = values.index(layer)
        return Measured(self.mean[i], self.stderr[i], self.axes[1:])


@dataclass(frozen=True, eq=False)
class Side:
    """One of the two vectors of a correlation, with the grid positions of its entries for each layer."""

    axes: tuple[ObservableAxis, ...]
    layer: str | None
    population: str | None
    sites: Mapping[int | None, Mapping[tuple[int, ...], Bound]]
    readers: Mapping[int | None, NetworkReader]

    @cached_property
    def rows(self) -> dict[int | None, slice | NDArray[np.intp]]:
        """Positions of the entries of each layer in the grid of indices; a full slice if they fill it."""
        every = list(np.ndindex(*self.shape))
        place = {spot: i for i, spot in enumerate(every)}
        return {
            site: slice(None) if list(grid) == every else np.array([place[spot] for spot in grid])
            for site, grid in self.sites.items()
        }

    @property
    def number(self) -> bool:
        """Whether this is a number and not a vector."""
        return self.population is None

    @property
    def shape(self) -> tuple[int, ...]:
        """Lengths of the index axes."""
        return tuple(len(values) for _, values in self.axes)


class Record:
    """Vectors at the recorded times: arrays (networks, indices, times, units), nan where nothing is recorded.

    Indices are one axis, in the order of a C array of :attr:`Side.shape`.  ``places`` maps each vector to the
    positions of the times at which it is recorded.
    """

    def __init__(self, places: Mapping[Side, tuple[int, ...]], networks: int, times: int) -> None:
        self.places, self.sides, self.networks, self.times = places, [*places], networks, times
        self.now = 0
        self.kept: dict[tuple[int, int | None], Array] = {}

    def take(self, state: NetworkState) -> None:
        """Record the state at one more time."""
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
                elif x.shape[-1] > whole.shape[-1]:  # a constant at first
                    whole = np.repeat(whole, x.shape[-1], axis=-1)
                self.kept[i, site] = whole
                whole[:, rows, at] = x
        self.now += 1

    def of(self, side: Side, site: int | None, times: tuple[int, ...] | None = None) -> Array:
        """Return the record of one vector at one layer, at all of its times or at some of them."""
        whole = self.kept[self.sides.index(side), site]
        if times is None or times == self.places[side]:
            return whole
        chosen: Array = whole[:, :, [self.places[side].index(k) for k in times]]
        return chosen


@dataclass(frozen=True)
class Pair:
    """Correlation ``(1/n) sum_i a_i(t) b_i(s)`` to be measured.

    ``equal``: correlate a vector with itself at equal indices only.  ``times``: positions of the times at
    which it is measured; None for all.
    """

    name: str
    first: Side
    second: Side
    equal: bool = False
    times: tuple[int, ...] | None = None

    def layers(self) -> list[int]:
        """Return the layers that both vectors have, if layers have their own units."""
        sites = self.first.sites if self.second.number else set(self.first.sites) & set(self.second.sites)
        return sorted(x for x in sites if x is not None)

    def axes(self, times: tuple[float, ...]) -> tuple[ObservableAxis, ...]:
        """Return the axes of the array of :meth:`value` after the axis of networks."""
        name = self.first.layer or self.second.layer
        layers = () if name is None else ((name, tuple(self.layers())),)
        used = {n for n, _ in self.first.axes}
        second = tuple((n + "'" if n in used else n, v) for n, v in self.second.axes)
        times = times if self.times is None else tuple(times[k] for k in self.times)
        return (*layers, ("t", times), ("s", times), *self.first.axes, *(() if self.equal else second))

    def value(self, record: Record) -> Array:
        """Return the averages of every network, shape (networks, [layers,] times, times, indices...)."""
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
    """All correlations and numbers to be measured in a run."""

    pairs: tuple[Pair, ...]
    scalars: Mapping[str, Side]
    sides: list[Side] = field(default_factory=list)

    def __post_init__(self) -> None:
        found = [*(y for p in self.pairs for y in (p.first, p.second)), *self.scalars.values()]
        self.sides.extend(dict.fromkeys(found))

    def values(self, record: Record) -> dict[str, Array]:
        """Return all measurements by name, networks along the first axis."""
        found = {p.name: p.value(record) for p in self.pairs}
        for name, x in self.scalars.items():
            entries = record.of(x, None)[..., 0].swapaxes(1, 2)
            found[name] = entries.reshape(*entries.shape[:2], *x.shape)
        return found

    def axes(self, times: tuple[float, ...]) -> dict[str, tuple[ObservableAxis, ...]]:
        """Return the axes of each measurement after the axis of networks."""
        found = {p.name: p.axes(times) for p in self.pairs}
        return {**found, **{n: (("t", times), *x.axes) for n, x in self.scalars.items()}}

    def places(self, times: int) -> dict[Side, tuple[int, ...]]:
        """Return the positions of the times at which each vector is recorded.

        Numbers are recorded at all times.
        """
        every = tuple(range(times))
        found: dict[Side, tuple[int, ...]] = dict.fromkeys(self.sides, ())
        for p in self.pairs:
            for side in (p.first, p.second):
                found[side] = tuple(sorted({*found[side], *(every if p.times is None else p.times)}))
        return found | dict.fromkeys(self.scalars.values(), every)


@dataclass(frozen=True)
class ChosenPairs:
    """Correlation to be measured at some of the recorded times, or at equal values of an index only.

    ``pair`` is a vector or a pair of vectors; ``times`` are positions of recorded times, None for all;
    ``equal`` is the index.
    """

    pair: Any
    times: tuple[int, ...] | None = None
    equal: Symbol | None = None


def read_wanted(
    binder: Binder, reading: FormulaReaders, wanted: Mapping[str, Any] | None, equal: Symbol | None = None
) -> Wanted:
    """Return the readers of the wanted averages.

    Vectors with an index ``equal`` are averaged at equal indices.

    ``wanted`` maps a name to a vector (its correlation with itself at two times) or to a pair ``(a, b)``:
    ``a`` at the time t, ``b`` at the time s (written with t or with s).  If ``b`` is a number, the result is
    the mean of ``a`` times ``b``.  None stands for every vector that the program's notation names.
    """
    program = binder.program
    if wanted is None:
        wanted = {}
        for e, name in program.notation.items():
            if name in wanted:
                raise ValueError(f"the notation calls two vectors {name}: say what is wanted")
            wanted = {**wanted, name: e}
    pairs = []
    for name, e in wanted.items():
        if name in program.scalars:
            raise ValueError(f"wanted[{name!r}]: the program has a number of that name")
        chosen = e if isinstance(e, ChosenPairs) else ChosenPairs(e, equal=equal)
        a, b = chosen.pair if isinstance(chosen.pair, tuple) else (chosen.pair, chosen.pair)
        a, b = sympify(a), sympify(b).xreplace({s: t})
        first = read_side(binder, reading, a)
        if first.number or not first.sites:
            raise ValueError(f"wanted[{name!r}]: {a} has no entries to average over")
        second = first if a == b else read_side(binder, reading, b)
        is_equal = chosen.equal is not None and first is second and chosen.equal in a.free_symbols
        pair = Pair(name, first, second, is_equal, chosen.times)
        apart = not second.number and first.population != second.population
        if apart or not (pair.layers() or None in first.sites):
            raise ValueError(f"wanted[{name!r}]: {a} and {b} live on different populations")
        pairs.append(pair)
    scalars = {name: read_side(binder, reading, _scalar(program, binder, name)) for name in program.scalars}
    return Wanted(tuple(pairs), scalars)


def read_side(binder: Binder, reading: FormulaReaders, e: Expr) -> Side:
    """Return the readers of a vector at every value of its indices."""
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
    names = {p[0] for p in places.values() if p is not None}
    if len(names) > 1:
        raise ValueError(f"{e} lives on several populations: {', '.join(sorted(names))}")
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
    return Side(axes, None if layer is None else layer.name, next(iter(names), None), sites, readers)


def _index_values(binder: Binder, e: Expr) -> dict[Symbol, list[int]]:
    """Return the values of each index, in the order of appearance in fields and then in parameters."""
    found: dict[Symbol, set[int]] = {}
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
            found[x] = found[x] & here if x in found else here
    return {x: sorted(v) for x, v in found.items()}


def _uses(binder: Binder, e: Expr) -> list[tuple[str, tuple[Any, ...], set[tuple[int, ...]]]]:
    """Return fields, numbers and families of parameters in ``e`` with their arguments and members.

    The summation index of a sum is not an index of ``e`` outside of the sum.
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
    return [*uses, *(use for a in e.args for use in _uses(binder, a))]


def _layer_symbol(binder: Binder, e: Expr, symbols: list[Symbol]) -> Symbol | None:
    """Return the index of ``e`` that counts layers, or None."""
    for name, args, _ in _uses(binder, e):
        x = binder.program.field_of(name)
        if x is not None and x.layered and args:
            return next((y for y in symbols if args[0].has(y)), None)
    return None


def _scalar(program: Program, binder: Binder, name: str) -> Expr:
    """Return a number of the program at symbols for its indices; integer indices become new symbols."""
    lines = [d for d in program.definitions if d.name == name]
    if not lines or not binder.domains[name]:
        raise ProgramError(f"number {name} has no definition")
    args = []
    for k, at in enumerate(zip(*(d.lhs.args[:-1] for d in lines), strict=True)):
        indices = {r.index for d in lines for r in d.ranges}
        own = sorted({x for a in at for x in a.free_symbols & indices}, key=str)
        args.append(own[0] if own else Symbol(f"index{k + 1}", integer=True))
    return lines[0].lhs.func(*args, t)


@dataclass
class Kept:
    """Paths of each network at ``times``, and the record of the networks in training."""

    sides: Mapping[str, Side]
    times: Sequence[int]
    record: Record = field(init=False)

    def begin(self, networks: int) -> None:
        """Prepare the record of a group of networks."""
        every = tuple(range(len({*self.times})))
        self.record = Record(dict.fromkeys(self.sides.values(), every), networks, len(every))

    def look(self, state: NetworkState) -> None:
        """Record this step, if it is one of the times."""
        if state.step in self.times:
            self.record.take(state)
            for side in self.sides.values():
                if len({self.record.of(side, k).shape[-1] for k in side.sites}) > 1:
                    raise ValueError(
                        "paths: layers of unequal widths have unequal numbers of units: keep one of them"
                    )

    def taken(self) -> list[dict[str, Block]]:
        """Return the blocks of the networks trained last."""
        found: list[dict[str, Block]] = [{} for _ in range(self.record.networks)]
        at = [sorted({*self.times}).index(x) for x in self.times]
        for name, side in self.sides.items():
            layers = tuple(k for k in side.sites if k is not None)
            whole = np.stack([self.record.of(side, k) for k in side.sites], axis=1)[:, :, :, at].swapaxes(
                2, 3
            )
            for block, x in zip(found, whole.reshape(*whole.shape[:3], *side.shape, -1), strict=True):
                block[name] = Block(x if layers else x[0], layers, side.axes)
        return found


def read_kept(binder: Binder, reading: FormulaReaders, paths: Paths, steps: int) -> Kept:
    """Which entries ``paths`` ask for.  Raises ValueError for what a network does not have."""
    sides = {}
    for name, e in paths.expressions(binder.program).items():
        side = read_side(binder, reading, e)
        if side.number or not side.sites:
            raise ValueError(f"paths: {name} = {e} has no units in this network")
        sides[name] = _chosen(reading, paths, side)
    return Kept(sides, paths.steps(binder.program, steps))


def _chosen(reading: FormulaReaders, paths: Paths, side: Side) -> Side:
    """Return the entries that paths keep, under the names of their dimensions."""
    there = sorted(x for x in side.sites if x is not None)
    layers: list[Any] = paths.chosen("layers", there) if there else [None]
    axes, places = [], []
    for index, values in side.axes:
        whole = [int(x) for x in values]
        name, labels = dimension(index), whole
        if name == "sample":
            labels = paths.chosen("samples", range(len(whole)))
        elif name == "layer":  # layers that are the same units
            labels = paths.chosen("layers", whole)
        places.append(labels if name == "sample" else [whole.index(x) for x in labels])
        axes.append((name, tuple(labels)))
    spots = [*zip(np.ndindex(*map(len, places)), product(*places), strict=True)]
    sites = {k: {new: side.sites[k][old] for new, old in spots} for k in layers}
    readers = {k: reading.read([*grid.values()]) for k, grid in sites.items()}
    return replace(side, axes=tuple(axes), sites=sites, readers=readers)
