"""Formulas of finite networks with numbers for indices, evaluated for many index values at once.

Leaves describe reads: entries of fields, products, means, constants.  Every value has three axes: networks,
rows (the entries of a field, such as its samples), units; a length of one is shared by all.  Formulas that
differ only in their indices are evaluated by one call of one function.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from numerics.names import MemberKey

PopulationAtLayer = tuple[str, int | None]  # a population and, if each layer has its own, the layer


@dataclass(eq=False, kw_only=True)
class Leaf:
    """Description of a value that a formula reads from the state of the networks.

    The value is, for example, a field, a weight, a product, a mean or a constant.

    Attributes
    ----------
    parts
        Formulas that the value is computed from, such as the vector to which a matrix is applied.
    place
        The population and layer of its units; None for a number.
    """

    parts: tuple[Bound, ...] = ()
    place: PopulationAtLayer | None = None


@dataclass(eq=False)
class Fixed(Leaf):
    """A constant number or vector, as a value that a formula reads."""

    number: Any


@dataclass(eq=False)
class Timed(Leaf):
    """A function of the time only, such as the time itself or the sample drawn at a step."""

    lookup: Callable[[NetworkState], Any]


@dataclass(eq=False)
class Called(Leaf):
    """A function given by the user, applied to numbers of the program, as a value that a formula reads.

    An example is the slope of a loss. ``parts`` are the formulas of the arguments.
    """

    function: Callable[..., Any]


@dataclass(eq=False)
class FieldOrNumber(Leaf):
    """The value of a field or number at the current step, or at step 0 if ``first`` is true."""

    key: MemberKey
    first: bool


@dataclass(eq=False)
class CurrentParameter(Leaf):
    """The value of a vector of weights at this step."""

    key: MemberKey


@dataclass(eq=False)
class Applied(Leaf):
    """The product of a matrix (or its transpose) with a vector, as a value that a formula reads.

    The vector has ``size`` components, and its formula is the only one in ``parts``.
    """

    key: MemberKey
    transposed: bool
    size: int


@dataclass(eq=False)
class Averaged(Leaf):
    """The mean over the units of a vector, as a value that a formula reads.

    The formula of the vector is the only one in ``parts``.
    """


@dataclass(eq=False)
class Total(Leaf):
    """A sum over an index, as a value that a formula reads; ``parts`` are the formulas of its terms."""


@dataclass(eq=False)
class Bound:
    """A formula at given index values: ``function`` applied to the values of its leaves, unit by unit.

    ``expr`` is the expression that it was made from, for messages. A leaf describes a value that the formula
    reads from the state of the networks.
    """

    function: Callable[..., Any]
    leaves: tuple[Any, ...]
    expr: Any = ""

    def all_leaves(self) -> Iterator[Any]:
        """Yield the leaves of the formula, also those inside of its products, means and sums.

        A leaf describes a value that the formula reads: a field, a weight, a product, a mean or a constant.
        """
        for x in self.leaves:
            yield x
            for part in x.parts:
                yield from part.all_leaves()

    def place(self) -> PopulationAtLayer | None:
        """Return the population and layer of the units at which the formula has values; None for a number.

        Raise ``ValueError`` if units of several populations or layers are combined.
        """
        return common_place([x.place for x in self.leaves], self.expr)


def common_place(places: Iterable[PopulationAtLayer | None], *words: object) -> PopulationAtLayer | None:
    """Return the common (population, layer) of the vectors in a formula; None if all are numbers.

    ``places`` has the (population, layer) of each vector, and None for each number. A population without a
    layer takes the layer of the others. Raise ValueError, with ``words`` as the name of the formula, if they
    differ.

    >>> common_place([None, ("layer", None), ("layer", 2)], "h + b")
    ('layer', 2)
    """
    known_places = {x for x in places if x is not None}
    precise = {x for x in known_places if x[1] is not None} or known_places
    if len(precise) > 1 or len({name for name, _ in known_places}) > 1:
        formula, several = " ".join(map(str, words)), ", ".join(sorted(map(str, known_places)))
        raise ValueError(f"{formula} combines entries of several populations or layers: {several}")
    return next(iter(precise), None)


Array = NDArray[np.float64]
# Key of an array of a field: the name of the field and the number of units in the array. Layers of different
# widths are in different arrays. The number is 0 for a scalar, which has no units.
UnitBlock = tuple[str, int]
Pick = slice | NDArray[np.intp]
GroupKey = TypeVar("GroupKey", bound=Hashable)


@dataclass(eq=False)
class NetworkState:
    """Fields and weights of several networks at one time of training.

    ``fields`` holds for each field or number, and number of units (0 for a number), an array (networks,
    members, units), where members are the values of its indices such as samples; ``start`` holds those of
    step 0. ``weights`` (networks, ...) are the current matrices and vectors; ``hidden`` the hidden states of
    their rules, such as a velocity; ``past`` the past of weights whose rule is defined by its memory. If
    ``flows``, ``step`` counts the recorded times. ``started`` is true if ``start`` holds the fields of step 0
    already at step 0.
    """

    weights: dict[MemberKey, Array]
    hidden: dict[MemberKey, list[Array]] = field(default_factory=dict)
    past: dict[MemberKey, Any] = field(default_factory=dict)
    fields: dict[UnitBlock, Array] = field(default_factory=dict)
    start: dict[UnitBlock, Array] = field(default_factory=dict)
    step: int = 0
    time: float = 0.0
    flows: bool = False
    started: bool = False
    """Whether ``start`` holds the fields of step 0, even at step 0."""

    def copied(self) -> NetworkState:
        """Return a copy of the state, with copies of its weights, hidden states and current fields.

        The arrays of step 0 and of past updates are shared.
        """
        weights = {k: x.copy(order="K") for k, x in self.weights.items()}
        hidden = {k: [y.copy(order="K") for y in x] for k, x in self.hidden.items()}
        fields = {k: x.copy() for k, x in self.fields.items()}
        clock = self.step, self.time, self.flows, self.started
        return NetworkState(weights, hidden, dict(self.past), fields, self.start, *clock)

    def distance(self, other: NetworkState) -> float:
        """Return the largest relative difference between the fields and numbers of two states.

        A difference is divided by the largest absolute value of the same field or number in ``other``, for a
        number by at least one. The distance is nan if a value of one of the states is nan.
        """
        worst = 0.0
        for block, x in self.fields.items():
            y = other.fields[block]
            size = max(float(np.abs(y).max()), 1e-300 if block[1] else 1.0)
            worst = float(np.maximum(worst, float(np.abs(x - y).max()) / size))
        return worst


NetworkReader = Callable[[NetworkState], Array]


def itself(x: Any) -> Any:
    """Return the argument.

    It is the function of a formula that consists of a single value read from the state.
    """
    return x


@dataclass(frozen=True)
class RowLayout:
    """Positions of fields and numbers in the state: block and row of each member.

    A member is a field at given values of its indices, such as layer 2 and sample 3. A block is one array for
    all members of one field that have equally many units; a row of it holds one member.
    """

    rows: dict[MemberKey, tuple[UnitBlock, int]]

    @staticmethod
    def of(sizes: dict[MemberKey, int]) -> RowLayout:
        """Return the layout of fields and numbers in the state, given the number of units of each member.

        A member is a field or number at given index values; the number of units of a number is 0.
        """
        positions: dict[MemberKey, tuple[UnitBlock, int]] = {}
        count: dict[UnitBlock, int] = {}
        for key in sorted(sizes):
            block = (key[0], sizes[key])
            positions[key] = (block, count.setdefault(block, 0))
            count[block] += 1
        return RowLayout(positions)

    def empty(self, networks: int) -> dict[UnitBlock, Array]:
        """Return an array (networks, rows, units) filled with nan for each block.

        A block holds all fields of one name and one number of units; a row is a field at given index values.
        """
        counts: dict[UnitBlock, int] = {}
        for block, row in self.rows.values():
            counts[block] = max(counts.get(block, 0), row + 1)
        return {b: np.full((networks, n, max(1, b[1])), np.nan) for b, n in counts.items()}

    def places(self, keys: Sequence[MemberKey]) -> list[tuple[UnitBlock, Pick, list[int]]]:
        """Return each block that holds some of the members ``keys``, as (block, rows, positions).

        A block holds all fields of one name and one number of units. The rows are those of these members in
        the block, the positions those in ``keys``.
        """
        groups = _grouped(range(len(keys)), lambda i: self.rows[keys[i]][0])
        return [(b, _pick([self.rows[keys[i]][1] for i in where]), where) for b, where in groups.items()]


class FormulaReaders:
    """Makes functions ("readers") that evaluate the formulas of one program on the state of networks.

    A reader is a function from the state of the networks to an array (networks, rows, units), with one row
    for each formula. An axis of length one is shared by all networks, rows or units.
    """

    def __init__(self, layout: RowLayout) -> None:
        self.layout = layout

    def read(self, bounds: Sequence[Bound]) -> NetworkReader:
        """Return a reader that evaluates several formulas.

        A reader is a function from the state of the networks to an array (networks, rows, units); here a row
        is a formula.
        """
        if len(unique := list(dict.fromkeys(bounds))) < len(bounds):
            inner, at = self.read(unique), {x: i for i, x in enumerate(unique)}
            index = np.array([at[x] for x in bounds])
            return inner if len(unique) == 1 else lambda state: rows_of(inner(state), index)
        groups = _grouped(range(len(bounds)), lambda i: bounds[i].function)
        if len(groups) > 1:
            return _joined([(self.read([bounds[i] for i in x]), x) for x in groups.values()])
        function = bounds[0].function
        columns = [self.leaves([b.leaves[j] for b in bounds]) for j in range(len(bounds[0].leaves))]

        def value(state: NetworkState) -> Array:
            """Return the values of the formulas for a state of the networks, (networks, formulas, units)."""
            values = np.asarray(function(*[x(state) for x in columns]), dtype=float)
            return values if values.ndim == 3 else values.reshape(1, 1, 1)

        if all(isinstance(x, Fixed) for b in bounds for x in b.leaves):
            constant = value(NetworkState({}))
            return lambda state: constant
        return columns[0] if function is itself else value

    def leaves(self, leaves: Sequence[Any]) -> NetworkReader:
        """Return a reader of several leaves, one row for each.

        A leaf describes a value that a formula reads, such as a field or a constant. A reader is a function
        from the state to an array (networks, rows, units). The leaves are the same argument of several
        formulas.
        """
        groups = _grouped(range(len(leaves)), lambda i: self._alike(leaves[i]))
        if len(groups) > 1:
            return _joined([(self.leaves([leaves[i] for i in x]), x) for x in groups.values()])
        first = leaves[0]
        makers: dict[type, Callable[[Sequence[Any]], NetworkReader]] = {
            Fixed: self._fixed,
            Timed: self._timed,
            Called: self._called,
            FieldOrNumber: self._field_or_number,
            CurrentParameter: self._parameter,
            Applied: self._applied,
            Averaged: self._averaged,
            Total: self._total,
        }
        return makers[type(first)](leaves)

    def _alike(self, x: Any) -> Hashable:
        """Return a key for the leaf ``x``; leaves with equal keys are read together.

        A leaf describes a value that a formula reads, such as a field or a constant.
        """
        if isinstance(x, FieldOrNumber):
            return FieldOrNumber, x.first, self.layout.rows[x.key][0]
        if isinstance(x, Applied):
            return Applied, x.key, x.transposed
        if isinstance(x, Called):
            return Called, x.function, len(x.parts)
        if isinstance(x, Fixed):
            return Fixed, np.size(x.number)
        if isinstance(x, Total):
            return Total, len(x.parts)
        return (CurrentParameter, x.key) if isinstance(x, CurrentParameter) else (type(x), "")

    def _fixed(self, leaves: Sequence[Fixed]) -> NetworkReader:
        """Return a reader of constants, one row for each, or a single row if all are equal.

        Constants do not depend on the state.
        A reader is a function from the state of the networks to an array (networks, rows, units).
        """
        whole = np.stack([np.atleast_1d(np.asarray(x.number, dtype=float)) for x in leaves])[None]
        if (whole == whole[:, :1]).all():
            whole = whole[:, :1]
        return lambda state: whole

    def _timed(self, leaves: Sequence[Timed]) -> NetworkReader:
        """Return a reader of functions of the time of the state, one row for each.

        A reader is a function from the state of the networks to an array (networks, rows, units).
        """
        return lambda state: np.stack(
            [np.atleast_1d(np.asarray(x.lookup(state), dtype=float)) for x in leaves]
        )[None]

    def _called(self, leaves: Sequence[Called]) -> NetworkReader:
        """Return a reader of several values of a function given by the user, one row for each.

        A reader is a function from the state of the networks to an array (networks, rows, units).
        """
        function = np.vectorize(leaves[0].function, otypes=[float])
        columns = [self.read([x.parts[j] for x in leaves]) for j in range(len(leaves[0].parts))]
        return lambda state: np.asarray(function(*[x(state) for x in columns]))

    def _field_or_number(self, leaves: Sequence[FieldOrNumber]) -> NetworkReader:
        """Return a reader of fields or numbers at the current step or at step 0, one row for each.

        All are in one array of the state. A reader is a function from the state of the networks to an array
        (networks, rows, units).
        """
        ((block, pick, _),) = self.layout.places([x.key for x in leaves])
        if leaves[0].first:
            return lambda state: (state.start if state.step > 0 or state.started else state.fields)[block][
                :, pick
            ]
        return lambda state: state.fields[block][:, pick]

    def _parameter(self, leaves: Sequence[CurrentParameter]) -> NetworkReader:
        """Return a reader of one vector of weights, as a single row.

        A reader is a function from the state of the networks to an array (networks, rows, units).
        """
        key = leaves[0].key
        return lambda state: state.weights[key][:, None]

    def _applied(self, leaves: Sequence[Applied]) -> NetworkReader:
        """Return a reader of products ``x W^T`` (or ``x W``) of one matrix W with vectors x, one row each.

        A reader is a function from the state of the networks to an array (networks, rows, units).
        """
        vectors, size, key = self.read([x.parts[0] for x in leaves]), leaves[0].size, leaves[0].key
        transposed = leaves[0].transposed

        def value(state: NetworkState) -> Array:
            """Return the products of the matrix with the vectors, for a state of the networks."""
            x, matrix = broadcast_along(vectors(state), 2, size), state.weights[key]
            product: Array = x @ (matrix if transposed else matrix.swapaxes(1, 2))
            return product

        return value

    def _averaged(self, leaves: Sequence[Averaged]) -> NetworkReader:
        """Return the reader of means of vectors over their units, one row for each vector.

        A reader is a function from the state of the networks to an array (networks, rows, units).
        """
        vectors = self.read([x.parts[0] for x in leaves])
        return lambda state: vectors(state).mean(axis=-1, keepdims=True)

    def _total(self, leaves: Sequence[Total]) -> NetworkReader:
        """Return a reader of sums over an index that have equally many terms, one row for each sum.

        A reader is a function from the state of the networks to an array (networks, rows, units).
        """
        count = len(leaves[0].parts)
        if count == 0:
            return lambda state: np.zeros((1, 1, 1))
        addends = self.read([a for x in leaves for a in x.parts])

        def value(state: NetworkState) -> Array:
            """Return the sums over an index for a state of the networks, one row for each sum."""
            x = addends(state)
            if x.shape[1] == 1:
                return count * x
            total: Array = x.reshape(x.shape[0], len(leaves), count, x.shape[2]).sum(axis=2)
            return total

        return value


def broadcast_along(x: Array, axis: int, size: int) -> Array:
    """Return the array ``x`` with ``size`` entries along ``axis``; an axis of length one is repeated."""
    if x.shape[axis] == size:
        return x
    return np.broadcast_to(x, tuple(size if i == axis else n for i, n in enumerate(x.shape)))


def rows_of(x: Array, index: Pick) -> Array:
    """Return the rows ``index`` of an array (networks, rows, units).

    An array with a single row, which all rows share, is returned unchanged.
    """
    return x if x.shape[1] == 1 else x[:, index]


def _joined(parts: Sequence[tuple[NetworkReader, list[int]]]) -> NetworkReader:
    """Return a reader that collects the rows of several readers in one array.

    Each reader comes with the positions of its rows in the result. A reader is a function from the state of
    the networks to an array (networks, rows, units).
    """
    count = sum(len(where) for _, where in parts)
    picks = [_pick(where) for _, where in parts]

    def value(state: NetworkState) -> Array:
        """Return the collected rows for a state of the networks, (networks, rows, units)."""
        arrays = [read(state) for read, _ in parts]
        networks, units = (max(x.shape[axis] for x in arrays) for axis in (0, 2))
        whole = np.empty((networks, count, units))
        for x, pick in zip(arrays, picks, strict=True):
            whole[:, pick] = x
        return whole

    return value


def _pick(rows: list[int]) -> Pick:
    """Return an index that selects the positions ``rows``: a slice if they rise in equal steps, or an array.

    A slice selects without a copy.
    """
    step = rows[1] - rows[0] if len(rows) > 1 else 1
    if step > 0 and rows == list(range(rows[0], rows[-1] + 1, step)):
        return slice(rows[0], rows[-1] + 1, step)
    return np.array(rows)


def _grouped(items: Iterable[int], key: Callable[[int], GroupKey]) -> dict[GroupKey, list[int]]:
    """Return the items grouped by the value of ``key``: a dictionary from values to lists of items."""
    groups: dict[GroupKey, list[int]] = {}
    for x in items:
        groups.setdefault(key(x), []).append(x)
    return groups
