"""Averages over the units of a population, at all pairs of times, and their means over networks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Integer, Symbol, preorder_traversal, sympify
from sympy.core.function import AppliedUndef

from derive.errors import ProgramError
from derive.program import Program, s, t

from .formulas import Binder, Missing
from .leaves import Bound, State

Array = NDArray[np.float64]
Axis = tuple[str, tuple[float, ...]]


@dataclass(frozen=True)
class Measured:
    """A mean over networks and its standard error (nan for one network), arrays of one shape.

    ``axes`` names each axis and lists its values: for a correlation ``(ell,) t, s, indices of a, indices of
    b``, for a number ``t, indices``.  The layer axis is there when each layer has units of its own;
    ``measured[layer]`` takes one layer.  Combinations of indices that do not occur are nan.
    """

    mean: Array
    stderr: Array
    axes: tuple[Axis, ...]

    def __getitem__(self, layer: int) -> Measured:
        """One layer.  ``ValueError`` when the layer is not an axis, or not one of its values."""
        name, values = self.axes[0]
        if name == "t":
            raise ValueError("this quantity has no layer axis of its own")
        if layer not in values:
            raise ValueError(f"{name} = {layer}: must be one of {values}")
        i = values.index(layer)
        return Measured(self.mean[i], self.stderr[i], self.axes[1:])


@dataclass
class Moments:
    """Running mean and squared deviations over networks (Welford)."""

    count: int = 0
    mean: Any = 0.0
    squares: Any = 0.0

    def add(self, x: Array) -> None:
        """One more network."""
        self.count += 1
        step = x - self.mean
        self.mean = self.mean + step / self.count
        self.squares = self.squares + step * (x - self.mean)

    def stderr(self) -> Array:
        """The standard error of the mean."""
        if self.count < 2:
            return np.full_like(self.mean, np.nan)
        return np.asarray(np.sqrt(self.squares / (self.count - 1) / self.count))


@dataclass(frozen=True)
class Side:
    """One of the two vectors of a correlation: for each layer, which entry stands where in its index grid."""

    axes: tuple[Axis, ...]
    layer: str | None
    population: str | None
    sites: Mapping[int | None, Mapping[tuple[int, ...], Bound]]

    @property
    def number(self) -> bool:
        """A number rather than a vector."""
        return self.population is None

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its index axes."""
        return tuple(len(values) for _, values in self.axes)

    def snapshot(self, state: State) -> dict[int | None, dict[tuple[int, ...], Any]]:
        """Its vectors now."""
        return {
            site: {i: np.array(x.value(state)) for i, x in grid.items()} for site, grid in self.sites.items()
        }


@dataclass(frozen=True)
class Pair:
    """A correlation ``(1/n) sum_i a_i(t) b_i(s)`` to be measured."""

    name: str
    first: Side
    second: Side

    def layers(self) -> list[int]:
        """The layers at which both vectors live, when layers have units of their own."""
        sites = self.first.sites if self.second.number else set(self.first.sites) & set(self.second.sites)
        return sorted(x for x in sites if x is not None)

    def axes(self, times: tuple[float, ...]) -> tuple[Axis, ...]:
        """Of the array that ``value`` gives."""
        name = self.first.layer or self.second.layer
        layers = () if name is None else ((name, tuple(self.layers())),)
        used = {n for n, _ in self.first.axes}
        second = tuple((n + "'" if n in used else n, v) for n, v in self.second.axes)
        return (*layers, ("t", times), ("s", times), *self.first.axes, *second)

    def value(self, first: list[Any], second: list[Any]) -> Array:
        """The averages, from the snapshots of both sides at all recorded times."""
        found = []
        sites: list[int | None] = [*self.layers()] or [None]
        for site in sites:
            there = None if self.second.number else site
            a = _stack([x[site] for x in first], self.first.shape, None)
            b = _stack([x[there] for x in second], self.second.shape, a.shape[-1])
            n = a.shape[-1]
            c = (a.reshape(-1, n) @ b.reshape(-1, n).T / n).reshape(a.shape[:-1] + b.shape[:-1])
            found.append(np.moveaxis(c, len(self.first.shape) + 1, 1))
        return np.stack(found) if self.first.layer or self.second.layer else found[0]


def _stack(snapshots: list[dict[tuple[int, ...], Any]], shape: tuple[int, ...], size: int | None) -> Array:
    """(times, indices..., n), nan where there is no entry."""
    n = size or max(x.size for x in snapshots[0].values())
    whole = np.full((len(snapshots), *shape, n), np.nan)
    for time, snapshot in enumerate(snapshots):
        for i, x in snapshot.items():
            whole[(time, *i)] = x
    return whole


@dataclass
class Wanted:
    """Everything to be measured in a run."""

    pairs: tuple[Pair, ...]
    scalars: Mapping[str, Side]
    sides: list[Side] = field(default_factory=list)

    def __post_init__(self) -> None:
        for x in (*(y for p in self.pairs for y in (p.first, p.second)), *self.scalars.values()):
            if not any(x is y for y in self.sides):
                self.sides.append(x)

    def snapshot(self, state: State) -> list[Any]:
        """What one time adds to the record."""
        return [x.snapshot(state) for x in self.sides]

    def values(self, record: list[list[Any]]) -> dict[str, Array]:
        """All measurements of one network."""
        at = {id(x): [row[i] for row in record] for i, x in enumerate(self.sides)}
        found = {p.name: p.value(at[id(p.first)], at[id(p.second)]) for p in self.pairs}
        for name, x in self.scalars.items():
            found[name] = _stack([y[None] for y in at[id(x)]], x.shape, 1)[..., 0]
        return found

    def axes(self, times: tuple[float, ...]) -> dict[str, tuple[Axis, ...]]:
        """The axes of each measurement."""
        found = {p.name: p.axes(times) for p in self.pairs}
        return {**found, **{n: (("t", times), *x.axes) for n, x in self.scalars.items()}}


def read_wanted(binder: Binder, wanted: Mapping[str, Any] | None) -> Wanted:
    """Which averages to take.

    ``wanted`` maps a name to a vector (its correlation with itself at two times) or to a pair ``(a, b)``:
    ``a`` at the time t, ``b`` at the time s (written with t or with s).  ``b`` may be a number: then the mean
    of ``a`` times it.  None stands for every vector that the program's notation names.
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
        a, b = e if isinstance(e, tuple) else (e, e)
        a, b = sympify(a), sympify(b).xreplace({s: t})
        first = read_side(binder, a)
        if first.number or not first.sites:
            raise ValueError(f"wanted[{name!r}]: {a} has no entries to average over")
        second = first if a == b else read_side(binder, b)
        pair = Pair(name, first, second)
        apart = not second.number and first.population != second.population
        if apart or not (pair.layers() or None in first.sites):
            raise ValueError(f"wanted[{name!r}]: {a} and {b} live on different populations")
        pairs.append(pair)
    scalars = {name: read_side(binder, _scalar(program, binder, name)) for name in program.scalars}
    return Wanted(tuple(pairs), scalars)


def read_side(binder: Binder, e: Expr) -> Side:
    """A vector with every value of its indices."""
    e = binder.named(e)
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
    return Side(axes, None if layer is None else layer.name, next(iter(names), None), sites)


def _index_values(binder: Binder, e: Expr) -> dict[Symbol, list[int]]:
    """The values of each index, in the order in which they appear in fields and then in parameters."""
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
    """Fields, numbers and families of parameters in ``e``, in order of appearance, with their members."""
    uses = []
    for a in preorder_traversal(e):
        if not isinstance(a, AppliedUndef):
            continue
        name = str(a.func)
        if name in binder.domains:
            uses.append((name, a.args[:-1], binder.domains[name]))
        elif name in binder.vectors:
            members = {tuple(m.values()) for m in binder.values.members(binder.vectors[name].indices)}
            uses.append((name, a.args, members))
    return uses


def _layer_symbol(binder: Binder, e: Expr, symbols: list[Symbol]) -> Symbol | None:
    """The index that says in which layer ``e`` lives."""
    for name, args, _ in _uses(binder, e):
        x = binder.program.field_of(name)
        if x is not None and x.layered and args:
            return next((y for y in symbols if args[0].has(y)), None)
    return None


def _scalar(program: Program, binder: Binder, name: str) -> Expr:
    d = next((d for d in program.definitions if d.name == name), None)
    if d is None or not binder.domains[name]:
        raise ProgramError(f"number {name} has no definition")
    family = next((d for d in program.definitions if d.name == name and d.ranges), d)
    return family.lhs.func(*[a if isinstance(a, Symbol) else Integer(a) for a in family.lhs.args[:-1]], t)
