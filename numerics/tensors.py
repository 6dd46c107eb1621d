"""A theory without memory as arrays: what moves, how it moves, and averages, all at one time.

Arrays of what differs between nodes have shape ``(*indices, nodes)``; those of what does not end with one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import prod
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sympy import (
    Add,
    Derivative,
    DiracDelta,
    Dummy,
    Expr,
    Integer,
    KroneckerDelta,
    Mul,
    Piecewise,
    S,
    Subs,
    Sum,
    Symbol,
    sympify,
)
from sympy import Eq as Equal
from sympy.core.function import AppliedUndef
from sympy.utilities.iterables import connected_components

from derive.calculus.averages import Average, Response, is_random
from derive.calculus.symbols import ell, s, spelled, t
from derive.reduce.memoryless import Markov, State
from derive.theory import Equation, Theory
from numerics.arrays import CPU, Device, namespace_of, permuted
from numerics.errors import Unserved
from numerics.experiment.literals import Literals, Slot, literals_of

Array = NDArray[np.float64]

TIMES = (t, s)
N = TypeVar("N", bound=Hashable)
Node = tuple[str, tuple[int, ...]]
"""A name and its layer (integers that stand in the symbol): ``("h", (2,))``."""


class Axis(NamedTuple):
    """Positions ``start .. stop - 1`` of an index or time, along one axis of ``ndim``."""

    start: int
    stop: int
    axis: int
    ndim: int

    @property
    def positions(self) -> NDArray[np.int_]:
        """The positions, along the axis."""
        return np.arange(self.start, self.stop).reshape(
            [-1 if k == self.axis else 1 for k in range(self.ndim)]
        )


Places = Mapping[Symbol, "int | Axis"]
"""Where an expression is read: for each index or time its position (from 0), or all along an axis."""


def together(nodes: Iterable[N], links: Iterable[Iterable[N]]) -> list[tuple[N, ...]]:
    """``nodes`` in the sets that ``links`` join, each in their order.

    >>> together("abcd", ["ac", "cd"])
    [('a', 'c', 'd'), ('b',)]
    """
    nodes = list(dict.fromkeys(nodes))
    edges = [(first, x) for first, *rest in links for x in rest]
    place = {x: i for i, x in enumerate(nodes)}
    found = [sorted(x, key=place.__getitem__) for x in connected_components((nodes, edges))]
    return [tuple(x) for x in sorted(found, key=lambda x: place[x[0]])]


@lru_cache(maxsize=4096)
def node_of(symbol: AppliedUndef) -> Node:
    """The node that ``symbol`` belongs to."""
    return str(symbol.func), tuple(int(x) for x in symbol.args if x.is_Integer)


def require_open_numbers(theory: Theory) -> None:
    """Raise Unserved for a number of the program that is read at one value of an index or of the time."""
    known = {node_of(e.lhs) for e in theory.scalars}
    for item in (*theory.scalars, *theory.equations):
        for x in sorted(item.rhs.atoms(AppliedUndef), key=str):
            if (str(x.func), ()) in known and node_of(x) not in known:
                raise Unserved(
                    f"{x} is read at one value of an index: write a sum over the index, or use "
                    "numerics.solver.direct.evaluate"
                )


def limits(theory: Theory) -> Iterator[tuple[Symbol, Expr, Expr]]:
    """How far indices run: those of fields, then those that are only summed over."""
    items: list[Any] = [*theory.equations, *theory.scalars, *theory.order_parameters, *theory.sources]
    for x in (*items, *theory.observables):
        yield from ((r.index, sympify(r.lower), sympify(r.upper)) for r in x.ranges)
    for e in expressions_of(theory):
        for total in e.atoms(Sum):
            yield from total.limits


def expressions_of(theory: Theory) -> Iterator[Expr]:
    """The right-hand sides, definitions and covariances of a theory."""
    for e in (*theory.equations, *theory.scalars, *theory.observables):
        yield e.rhs
    for q in theory.order_parameters:
        yield q.definition
    for u in theory.sources:
        yield sympify(u.covariance)


def lowest_values(theory: Theory) -> dict[Symbol, Expr]:
    """The first value of each index, as the theory writes it.

    Indices of fields come before those that are only summed over.  Of several ranges of one index the
    lowest counts, because a range may be a part of another; a bound that holds another index counts at the
    first value of that one.
    """
    found: dict[Symbol, Expr] = {t: S.Zero, s: S.Zero}
    ends = list(limits(theory))
    indices = {index for index, _, _ in ends}
    for index, lower, _ in ends:
        if not lower.free_symbols & indices and (
            index not in found or (sympify(found[index]) - lower).is_positive
        ):
            found[index] = lower
    for index, lower, _ in ends:
        if index not in found:
            found[index] = lower.subs(found)
    return found


def literals_in(theory: Theory, integer: Callable[[Expr], int]) -> dict[Slot, Literals]:
    """The axes that ``theory`` reads at integers; ``integer`` gives the integer that a bound is."""
    expressions = list(expressions_of(theory))
    if not any(a.is_Integer for e in expressions for x in e.atoms(AppliedUndef) for a in x.args):
        return {}
    lowest = {index: integer(lower) for index, lower in lowest_values(theory).items()}
    return literals_of(expressions, lowest, {x.kernel for x in theory.program.given})


def require_fixed_limits(index: Symbol, low: Any, high: Any, values: Mapping[str, Any]) -> None:
    """Raise Unserved for a sum whose limits hold another index, such as one over earlier positions."""
    free = sympify(low).free_symbols | sympify(high).free_symbols
    if others := sorted(str(x) for x in free if str(x) not in values):
        raise Unserved(
            f"the sum over {index} runs from {low} to {high}, which depends on {', '.join(others)}: use "
            "numerics.solver.direct.evaluate, which sums over parts of a range"
        )


def open_args(symbol: AppliedUndef) -> tuple[Symbol, ...]:
    """Its indices and times.  Raises Unserved for one such as ``a + k``."""
    found = tuple(x for x in symbol.args if not x.is_Integer)
    for x in found:
        if x.atoms(AppliedUndef):
            raise Unserved(f"{symbol.func} is a function that is not given; use a named one such as tanh")
        if not isinstance(x, Symbol):
            raise Unserved(f"{symbol} is read at {x}: shifted indices are not served by sampled paths")
    if len(set(found)) < len(found) and not set(TIMES) & {x for x in found if found.count(x) > 1}:
        raise Unserved(f"{symbol} repeats an index")
    return found


@lru_cache(maxsize=4096)
def indices_of(symbol: AppliedUndef) -> tuple[Symbol, ...]:
    """Its indices without times."""
    return tuple(x for x in open_args(symbol) if x not in TIMES)


def arranged(a: Array, labels: Sequence[Hashable], indices: Sequence[Hashable]) -> Array:
    """``a``, whose axes are ``labels``, on the axes ``indices``; a label that comes twice is its diagonal."""
    place = {x: k for k, x in enumerate(labels)}
    kept = [place[x] for x in indices if x in place]
    if len(place) == len(labels):
        value: Array = permuted(a, tuple(kept))
    else:
        letters = {x: chr(97 + k) for k, x in enumerate(indices)}
        result = "".join(letters[labels[k]] for k in kept)
        value = namespace_of(a).einsum(f"{''.join(letters[x] for x in labels)}->{result}", a)
    if len(kept) == len(indices):
        return value
    shape = iter(value.shape)
    return value.reshape([next(shape) if x in place else 1 for x in indices])


def leaves_of(e: Expr) -> tuple[Expr, ...]:
    """The largest parts of ``e`` that are looked up: fields, order parameters, sums, averages, symbols.

    Symbols come first: numbers are multiplied with each other before arrays are.
    """
    return tuple(sorted(_leaves(e), key=lambda x: (not isinstance(x, Symbol), spelled(x))))


def _leaves(e: Expr) -> set[Expr]:
    if isinstance(e, AppliedUndef | Sum | Average | Response | Symbol):
        return {e}
    return {x for arg in e.args for x in _leaves(arg)}


@lru_cache(maxsize=1024)
def _slot(i: int) -> Dummy:
    """The variable that stands for leaf ``i`` of every function, so that equal ones are compiled once."""
    return Dummy(f"x{i}", real=True)


class Jump(Unserved):
    """A derivative that no path sees, because the function jumps."""


class Function:
    """``expr`` as a function of its leaves, with partial derivatives."""

    def __init__(self, expr: Expr) -> None:
        self.expr = expr
        self.leaves = leaves_of(expr)
        self.slots = tuple(map(_slot, range(len(self.leaves))))
        body = expr.xreplace(dict(zip(self.leaves, self.slots, strict=True)))
        self.body = body.replace(KroneckerDelta, lambda a, b: Piecewise((1, Equal(a, b)), (0, True)))
        if self.body.has(Subs, Derivative):
            raise Unserved(f"{expr} contains a function that is not given; use a named one such as tanh")
        self._compiled: dict[tuple[int, Device], Callable[..., Any]] = {}
        self._derivatives: dict[int, Expr] = {}

    def __call__(self, *values: Any) -> Any:
        """The function, of NumPy's arrays."""
        return self.compiled(CPU)(*values)

    def partial(self, i: int, *values: Any, on: Device = CPU) -> Any:
        """Its derivative by leaf ``i``."""
        return self.compiled(on, i)(*values)

    def derivative(self, i: int) -> Expr:
        """The expression of its derivative by leaf ``i``.  Raises Jump if it has a delta function."""
        if i not in self._derivatives:
            self._derivatives[i] = self.body.diff(self.slots[i])
        e = self._derivatives[i]
        if e.has(DiracDelta) or any(x.has(self.slots[i]) for x in self.body.atoms(Piecewise)):
            raise Jump(f"{self.expr} jumps: its derivative has a delta function that no path sees")
        return e

    def compiled(self, on: Device, i: int = -1) -> Callable[..., Any]:
        """It, or its derivative by leaf ``i``, of arrays ``on`` a device."""
        if (i, on) not in self._compiled:
            self._compiled[i, on] = on.function(self.slots, self.body if i < 0 else self.derivative(i))
        return self._compiled[i, on]


@lru_cache(maxsize=1024)
def function(e: Expr) -> Function:
    """``e`` as a function, compiled once."""
    return Function(e)


@dataclass
class Known:
    """What is the same for every path: numbers, data, order parameters and scalars found so far.

    Arrays of ``found`` have the axes of the symbol's indices and times in order, and the replicas last.
    """

    values: Mapping[str, float]
    data: Mapping[str, Any]
    found: dict[Node, Array] = field(default_factory=dict)
    first: dict[Symbol, int] = field(default_factory=dict)
    """Where indices start, those that do not start at 1."""
    functions: dict[Expr, Function] = field(default_factory=dict)
    literals: dict[Slot, Literals] = field(default_factory=dict)
    """Axes of data that are read at integers."""

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The data as arrays."""
        return {k: np.asarray(v, dtype=float) for k, v in self.data.items() if not callable(v)}

    def __call__(self, e: Expr, at: Places, given: Mapping[Expr, Any] | None = None) -> Any:
        """The value of ``e``, broadcast over the arrays in ``at``, with the replicas as its last axis.

        ``given`` holds leaves found otherwise, with that axis.
        """
        f = self.functions.get(e)
        if f is None:
            f = self.functions[e] = function(e)
        return f(*[self.leaf(x, at, given or {}) for x in f.leaves])

    def leaf(self, x: Expr, at: Places, given: Mapping[Expr, Any]) -> Any:
        """The value of one leaf."""
        if x in given:
            return given[x]
        if isinstance(x, Symbol):
            if x in at:  # positions of indices count from 0, the indices themselves mostly from 1
                return np.asarray(_array(at[x]), dtype=float)[..., None] + self.start(x)
            if x.name not in self.values:
                raise ValueError(f"values has no {x}")
            return float(self.values[x.name])
        if isinstance(x, Sum):
            return self._sum(x, at, given)
        if not isinstance(x, AppliedUndef):
            raise Unserved(f"{x} cannot be evaluated here")
        node = node_of(x)
        if node in self.found:
            return self.read(self.found[node], [a for a in x.args if not a.is_Integer], at)
        name = node[0]
        if name not in self.data:
            raise ValueError(
                f"{x} is no field, order parameter or scalar of the theory, and data does not hold {name}; "
                "a generic activation cannot be evaluated"
            )
        if callable(self.data[name]):
            args = [_array(at[a]) + self.start(a) if a in at else int(a) for a in x.args]
            return np.vectorize(self.data[name], otypes=[float])(*args)[..., None]
        if self.arrays[name].ndim != len(x.args):
            raise ValueError(
                f"data[{name!r}] has shape {self.arrays[name].shape}; {name} has {len(x.args)} indices"
            )
        return self.read(self.arrays[name], x.args, at, name)[..., None]

    def start(self, x: Symbol) -> int:
        """The first value of an index or time."""
        return 0 if x in TIMES else self.first.get(x, 1)

    def read(self, array: Array, args: Sequence[Expr], at: Places, name: str = "") -> Any:
        """An array at some arguments; one such as ``p + k`` that leaves its range goes round a ring.

        Integers are values of an index of the data that are called ``name``.
        """
        places = [
            self.position(name, k, int(a), n) if a.is_Integer else self.place(a, at, n)
            for k, (a, n) in enumerate(zip(args, array.shape, strict=False))
        ]
        axes = [x.axis for x in places if isinstance(x, Axis)]
        if len(set(axes)) < len(axes) or any(isinstance(x, np.ndarray) for x in places):
            return array[tuple(map(_array, places))]
        value = array[tuple(slice(x.start, x.stop) if isinstance(x, Axis) else x for x in places)]
        if axes != sorted(axes):
            order = sorted(range(len(axes)), key=axes.__getitem__)
            value = value.transpose(*order, *range(len(axes), value.ndim))
        ndim = next((x.ndim for x in places if isinstance(x, Axis)), 0)
        if len(axes) == ndim:
            return value
        shape = iter(value.shape)
        return value.reshape(*[next(shape) if k in axes else 1 for k in range(ndim)], *shape)

    def place(self, a: Expr, at: Places, size: int | None = None) -> Any:
        """The position of an argument along an axis of this size."""
        if a in at:
            return at[a]
        shift, parts = a.as_coeff_add()
        total: Any = int(shift) - next((x for i, x in self.first.items() if i in a.free_symbols), 1)
        for part in parts:
            factor, x = part.as_coeff_Mul()
            if x not in at or x in TIMES or size is None:
                raise Unserved(f"index {a} has no position here")
            total = total + int(factor) * (_array(at[x]) + self.start(x))
        return total % size

    def position(self, name: str, axis: int, value: int, size: int) -> int:
        """The position of an integer among the values of an index of data."""
        return self.literals.get((name, axis), Literals()).position(value, size)

    def _sum(self, x: Sum, at: Places, given: Mapping[Expr, Any]) -> Any:
        """A sum of what is known over layers, which are written out, or over indices, along an axis."""
        index, low, high = x.limits[-1]
        require_fixed_limits(index, low, high, self.values)
        first, last = self.bound(low), self.bound(high)
        body = Sum(x.function, *x.limits[:-1]) if len(x.limits) > 1 else x.function
        if index == ell:
            return sum((self(body.subs(index, i), at, given) for i in range(first, last + 1)), 0.0)
        self.first[index] = first
        ndim = max((v.ndim for v in at.values() if isinstance(v, Axis)), default=0)
        wider = {k: v._replace(ndim=ndim + 1) if isinstance(v, Axis) else v for k, v in at.items()}
        wider[index] = Axis(0, last - first + 1, ndim, ndim + 1)
        inner = {k: v if np.ndim(v) == 0 else v[..., None, :] for k, v in given.items()}
        value = np.asarray(self(body, wider, inner))
        if value.ndim < 2 or value.shape[-2] == 1:  # all terms are equal
            return (last - first + 1) * (value if value.ndim < 2 else value[..., 0, :])
        return value.sum(axis=-2)

    def bound(self, e: Expr) -> int:
        """The integer that a bound of a sum is."""
        return int(np.ravel(self(e, {}))[0])


def _array(place: Any) -> Any:
    return place.positions if isinstance(place, Axis) else place


class Reading:
    """``e`` along ``axes``, replicas first: where its leaves are is found once, times are said in each call.

    Of t and s those among the axes are read along slices, the others at one time.  ``given`` are the leaves
    found otherwise; their arrays come with each call, too.
    """

    def __init__(
        self,
        known: Known,
        e: Expr,
        axes: Sequence[Symbol],
        sizes: Mapping[Symbol, int],
        given: Iterable[Expr] = (),
    ) -> None:
        self.known, self.axes, self.sizes = known, tuple(axes), sizes
        self.given = tuple(given)
        f = function(e)
        self.function = None if f.leaves == (e,) else f.compiled(CPU)
        self.leaves = [self._leaf(x) for x in f.leaves]

    def __call__(self, late: Any, early: Any = None, given: Sequence[Array] = ()) -> Any:
        """The value at t = ``late`` and s = ``early``, broadcastable to ``(replicas, *axes)``."""
        values: list[Any] = []
        for leaf in self.leaves:
            if type(leaf) is float:
                values.append(leaf)
            elif type(leaf) is int:
                values.append(given[leaf])
            elif type(leaf) is tuple:
                array, places = leaf
                at = tuple([late if x == "t" else early if x == "s" else x for x in places])
                values.append(array[at])
            else:
                values.append(self._looked_up(leaf, late, early))
        return self.function(*values) if self.function else values[0]

    def _leaf(self, x: Expr) -> Any:
        """A number, the place of what is given, an array and where it is read, or what is looked up later."""
        if x in self.given:
            return self.given.index(x)
        if isinstance(x, Symbol) and x not in (*self.axes, *TIMES):
            return float(self.known.leaf(x, {}, {}))
        if not isinstance(x, AppliedUndef):
            return x
        node = node_of(x)
        array, labels = self.known.found.get(node), [a for a in x.args if not a.is_Integer]
        first: Any = slice(None)
        if array is None:
            array, labels, first = self.known.arrays.get(node[0]), list(x.args), None
        if array is None or array.ndim != len(labels) + (first is not None) or len(set(labels)) < len(labels):
            return x
        if not all(a in self.axes or a in TIMES for a in labels):
            return x
        fixed = [a for a in labels if a not in self.axes]
        order = [*fixed, *(a for a in self.axes if a in labels)]
        lead = () if first is None else (array.ndim - 1,)
        view = array.transpose(*lead, *(labels.index(a) for a in order))
        there = [a.name if a in TIMES else slice(0, self.sizes[a]) for a in self.axes]
        along = [x if a in labels else None for a, x in zip(self.axes, there, strict=True)]
        return view, [first, *(a.name for a in fixed), *along]

    def _looked_up(self, x: Expr, late: Any, early: Any) -> Any:
        """A leaf that is a sum, or read at shifted indices, by what looks up any."""
        at: dict[Symbol, Any] = {t: late, s: early}
        for k, a in enumerate(self.axes):
            where = at[a] if a in TIMES else slice(0, self.sizes[a])
            at[a] = Axis(where.start, where.stop, k, len(self.axes))
        value = np.asarray(self.known.leaf(x, at, {}))
        if not value.ndim:
            return value
        value = value.transpose(-1, *range(value.ndim - 1))
        return value.reshape(len(value), *[1] * (len(self.axes) + 1 - value.ndim), *value.shape[1:])


Axes = tuple[Symbol, ...]

RANK = 1e-12
"""Share of the largest variance below which a direction of the Gaussian variables is left out."""


class System:
    """The tables of a theory without memory, for given numbers: how far indices run and where they start,
    what stands for fields and scalars; ``names`` are those of what differs between nodes.
    """

    def __init__(self, markov: Markov, values: Mapping[str, float], data: Mapping[str, Any]) -> None:
        self.markov, self.values = markov, values
        self.data = {k: np.asarray(v, dtype=float) for k, v in data.items()}
        self.first: dict[Symbol, int] = {}
        self.sizes: dict[Symbol, int] = {}
        self.random: dict[Expr, bool] = {}
        theory = markov.theory
        require_open_numbers(theory)
        items: list[Any] = [*theory.equations, *theory.scalars, *theory.observables]
        for x in (*items, *theory.order_parameters, *markov.start):
            self.remember((r.index, r.lower, r.upper) for r in x.ranges)
        self.states: dict[Node, State] = {node_of(x.symbol): x for x in markov.states}
        self.fields = {node_of(e.lhs): e for e in markov.fields}
        self.scalars = {node_of(e.lhs): e for e in theory.scalars}
        self.start: dict[Node, Axes] = {}
        for u in markov.start:
            for y in (u.symbol, u.partner):
                self.start.setdefault(node_of(y), axes_of(y))
        self.names = frozenset(n[0] for n in (*self.start, *self.states, *self.fields))
        self.literals = literals_in(theory, self.integer)

    def remember(self, limits: Iterable[Any]) -> None:
        """Note how far indices run."""
        for index, low, high in limits:
            require_fixed_limits(index, low, high, self.values)
            self.first[index] = self.integer(low)
            size = self.integer(high) - self.first[index] + 1
            if self.sizes.setdefault(index, size) != size:
                raise Unserved(f"index {index} has two ranges")

    def integer(self, e: Any) -> int:
        """The integer that a bound of a range is."""
        found = sympify(e).xreplace({x: sympify(self.number(x)) for x in sympify(e).free_symbols})
        return int(found)

    def number(self, x: Symbol) -> float:
        """The value of a symbol.  Raises ValueError if there is none."""
        if str(x) not in self.values:
            raise ValueError(f"values has no {x}")
        return self.values[str(x)]

    def shape(self, axes: Axes) -> tuple[int, ...]:
        """How far these indices run."""
        return tuple(self.sizes[x] for x in axes)

    def is_random(self, e: Expr) -> bool:
        """Does ``e`` differ between nodes?"""
        if e not in self.random:
            self.random[e] = is_random(e, self.names)
        return self.random[e]

    @cached_property
    def layout(self) -> list[tuple[Node, tuple[int, ...], slice]]:
        """Where each state stands in the vector of all."""
        found, at = [], 0
        for n, x in self.states.items():
            shape = self.shape(axes_of(x.symbol))
            found.append((n, shape, slice(at, at + prod(shape))))
            at += prod(shape)
        return found

    @property
    def size(self) -> int:
        """How many states a node has."""
        return self.layout[-1][2].stop if self.layout else 0

    @cached_property
    def root(self) -> dict[Node, Array]:
        """What the Gaussian variables are of independent standard normal numbers.

        Shapes ``(*indices, dimensions)``; correlated variables share numbers, others do not.
        """
        links = [(node_of(u.symbol), node_of(u.partner)) for u in self.markov.start]
        blocks = [self.root_of(g) for g in together(self.start, links)]
        total, at = sum(next(iter(b.values())).shape[-1] for b in blocks), 0
        found = {}
        for b in blocks:
            rank = next(iter(b.values())).shape[-1]
            for n, x in b.items():
                found[n] = np.zeros((*x.shape[:-1], total))
                found[n][..., at : at + rank] = x
            at += rank
        return found

    def root_of(self, nodes: tuple[Node, ...]) -> dict[Node, Array]:
        """The same for variables that are correlated.  Raises ValueError for no covariance."""
        counts = [prod(self.shape(self.start[n])) for n in nodes]
        ends = np.cumsum([0, *counts])
        c = np.zeros((ends[-1], ends[-1]))
        present = Present(self, {}, np.ones(1))
        for u in self.markov.start:
            a, b = node_of(u.symbol), node_of(u.partner)
            if a not in nodes:
                continue
            i, j = nodes.index(a), nodes.index(b)
            axes = (*axes_of(u.symbol), *axes_of(u.partner))
            block = np.broadcast_to(present.value(sympify(u.covariance), axes), (*self.shape(axes), 1))
            here, there = slice(*ends[i : i + 2]), slice(*ends[j : j + 2])
            c[here, there] = block.reshape(counts[i], counts[j])
            c[there, here] = c[here, there].T
        values, vectors = np.linalg.eigh((c + c.T) / 2)
        if values[0] < -1e-8 * max(values[-1], 1e-300):
            raise ValueError(f"the covariance of {nodes[0][0]} at the start is not positive: {values[0]:.3g}")
        kept = values > RANK * values[-1]
        flat = vectors[:, kept] * np.sqrt(values[kept])
        return {
            n: flat[ends[i] : ends[i + 1]].reshape(*self.shape(self.start[n]), -1)
            for i, n in enumerate(nodes)
        }


class Present(Known):
    """Values at one time: fields on all nodes, and averages over them, computed on demand."""

    def __init__(
        self,
        system: System,
        start: Mapping[Node, Array],
        weights: Array,
        states: Array | None = None,
        time: float = 0.0,
    ) -> None:
        super().__init__(system.values, system.data, dict(start), system.first, literals=system.literals)
        self.system, self.weights, self.time = system, weights, time
        if states is not None and len(states):
            for n, shape, where in system.layout:
                self.found[n] = states[where].reshape(*shape, -1)

    def motion(self) -> Array:
        """The right-hand sides of all equations of motion, shape ``(states, nodes)``."""
        rows = []
        for n, shape, _ in self.system.layout:
            x = self.system.states[n]
            value = self.value(x.motion.rhs, axes_of(x.symbol))
            rows.append(np.broadcast_to(value, (*shape, len(self.weights))).reshape(-1, len(self.weights)))
        return np.concatenate(rows) if rows else np.zeros((0, len(self.weights)))

    def array(self, node: Node, x: Expr) -> Array:
        """A field, a scalar or data."""
        system = self.system
        if node[0] in system.data and node[1]:  # y(mu, 1) and y(1, mu) are two of them
            node = str(x.func(*(a if a.is_Integer else Symbol("_") for a in x.args))), ()
        if node not in self.found:
            e = system.fields.get(node) or system.scalars.get(node)
            if e is not None:
                axes = axes_of(e.lhs)
                value = np.asarray(self.value(e.rhs, axes))
                self.found[node] = np.broadcast_to(value, (*system.shape(axes), value.shape[-1]))
            elif str(x.func) in system.data:
                self.found[node] = self.data_now(str(x.func), x)[..., None]
            else:
                raise ValueError(
                    f"{x} is no field or scalar of the theory, and data does not hold {node[0]}; "
                    "a generic activation cannot be evaluated"
                )
        return self.found[node]

    def data_now(self, name: str, x: Expr) -> Array:
        """Data, at the integers among the arguments and at the present step along the axes of the time.

        Data of a flow do not depend on the time.
        """
        array = self.system.data[name]
        if array.ndim != len(x.args):
            raise ValueError(f"{name} has an array with {array.ndim} axes; it has {len(x.args)} indices")
        args = [a for a in x.args if not a.is_Integer]
        for axis in reversed([k for k, a in enumerate(x.args) if a.is_Integer]):
            array = array.take(self.position(name, axis, int(x.args[axis]), array.shape[axis]), axis)
        if not x.has(t):
            return array
        if not self.system.markov.discrete:
            raise Unserved(f"{x} depends on the time, which is tabulated for steps only")
        for axis in reversed([k for k, a in enumerate(args) if a == t]):
            if not self.time < array.shape[axis]:
                raise ValueError(f"data[{name!r}] of shape {array.shape} ends before step {self.time:g}")
            array = array.take(int(self.time), axis)
        return array

    def value(self, e: Expr, axes: Axes) -> Any:
        """``e``, broadcastable to the sizes of ``axes`` and the number of nodes."""
        sizes, ndim = self.system.sizes, len(axes)
        value = np.asarray(self(e, {x: Axis(0, sizes[x], k, ndim) for k, x in enumerate(axes)}))
        return value.reshape((1,) * (ndim + 1 - value.ndim) + value.shape)

    def leaf(self, x: Expr, at: Places, given: Mapping[Expr, Any]) -> Any:
        """The value of one leaf; ``p + k`` runs on a ring."""
        if isinstance(x, Average):
            value = self.value(x.body, tuple(at))
            full = np.broadcast_to(value, (*value.shape[:-1], len(self.weights)))
            return (full @ self.weights)[..., None]
        if isinstance(x, Sum):
            return self.total(x, tuple(at))
        if not isinstance(x, AppliedUndef) or isinstance(x, Response):
            return self.time if x == t else super().leaf(x, at, given)
        args = [a for a in x.args if not a.is_Integer and (a in at or a not in TIMES)]
        array = self.array(node_of(x), x)
        if array.ndim != len(args) + 1:
            raise ValueError(f"{x.func} has an array with {array.ndim - 1} axes; it has {len(args)} indices")
        missing = [y for a in args for y in a.free_symbols if y not in at]
        if missing:
            raise Unserved(f"{x} carries the index {missing[0]}, which is not given here")
        return self.read(array, args, at)

    def total(self, x: Sum, axes: Axes) -> Array:
        """A sum over indices; what differs between nodes is multiplied by what does not as matrices are."""
        self.system.remember(x.limits)
        over = tuple(lim[0] for lim in x.limits)
        factors = Mul.make_args(x.function)
        moving = Mul(*[y for y in factors if self.system.is_random(y)])
        inner = tuple(y for y in over if y in moving.free_symbols)
        if moving == 1 or moving.free_symbols & set(axes):
            value = np.asarray(self.value(x.function, (*axes, *over)))
            full = np.broadcast_to(
                value, (*value.shape[: len(axes)], *self.system.shape(over), value.shape[-1])
            )
            summed: Array = full.sum(axis=tuple(range(len(axes), len(axes) + len(over))))
            return summed
        gone = tuple(y for y in over if y not in inner)
        known = Mul(*[y for y in factors if not self.system.is_random(y)])
        kernel = np.asarray(self.value(known, (*axes, *inner, *gone)))[..., 0]
        own = kernel.shape[: len(axes)]
        kernel = np.broadcast_to(kernel, (*own, *self.system.shape((*inner, *gone))))
        kernel = kernel.sum(axis=tuple(range(len(axes) + len(inner), kernel.ndim)))
        what = np.asarray(self.value(moving, inner))
        what = np.broadcast_to(what, (*self.system.shape(inner), what.shape[-1]))
        flat = kernel.reshape(prod(own), -1) @ what.reshape(-1, what.shape[-1])
        result: Array = flat.reshape(*own, -1)
        return result


def layers_written_out(e: Expr) -> Expr:
    """``e`` with sums over layers as sums of their terms."""

    def terms(x: Sum) -> Expr:
        index, low, high = next(lim for lim in x.limits if lim[0] == ell)
        rest = [lim for lim in x.limits if lim[0] != ell]
        layers = [x.function.subs(index, i) for i in range(int(low), int(high) + 1)]
        return Add(*[Sum(y, *rest) if rest else y for y in layers])

    found: Expr = e.replace(lambda x: isinstance(x, Sum) and any(lim[0] == ell for lim in x.limits), terms)
    return found


def observable(
    e: Equation,
    found: Mapping[Node, Array],
    values: Mapping[str, float],
    data: Mapping[str, Any],
    axes: Axes | None = None,
    first: Mapping[Symbol, int] | None = None,
    literals: Mapping[Slot, Literals] | None = None,
    sizes: Mapping[Any, int] | None = None,
) -> Array:
    """The right-hand side of ``e``, a combination of order parameters, at all pairs of times.

    ``found`` have the axes of the theory's arguments (samples, then t, s) and replicas last; the result has
    ``axes``, or those of the left-hand side, and replicas last.  Indices start at 1, or as ``first`` says.
    ``sizes`` are those of indices that no array has.
    """
    known = Known(values, data, dict(found), dict(first or {}), literals=dict(literals or {}))
    body, axes = layers_written_out(e.rhs), (*axes_of(e.lhs), t, s) if axes is None else axes
    sizes = dict(sizes or {})
    for x in body.atoms(AppliedUndef):
        node = node_of(x)
        array = found[node][..., 0] if node in found else known.arrays.get(node[0])
        if array is not None:
            args = [a for a in x.args if not a.is_Integer] if node in found else x.args
            sizes |= zip(args, array.shape, strict=True)
    shape = [sizes[x] for x in axes]
    places = {x: Axis(0, n, k, len(axes)) for k, (x, n) in enumerate(zip(axes, shape, strict=True))}
    value = np.atleast_1d(known(body, places))
    return np.broadcast_to(value, (*shape, value.shape[-1]))


def axes_of(symbol: AppliedUndef) -> Axes:
    """Its indices, without times and layers."""
    found = tuple(x for x in symbol.args if not isinstance(x, Integer) and x not in TIMES)
    if not all(isinstance(x, Symbol) for x in found):
        raise Unserved(f"{symbol} stands on the left with an index that is no symbol")
    return found
