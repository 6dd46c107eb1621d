"""Theory with every index written out: the equation, covariance or average of each entry.

An entry is a name and integer arguments, times included: ``h(2, 1, t=3)`` is ``("h", (2, 1, 3))``. The values
of indices are enumerated, and times are not: one member of a table holds for all times. The reference solver
reads theories in this form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from sympy import Expr, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Response
from derive.calculus.symbols import IndexRange
from derive.program.shifted_constants import Slot, shifted_reads
from derive.theory import Equation, OrderParameter, Theory
from numerics.errors import SpecError, Unserved
from numerics.experiment.checks import ROUNDING, finite_number, precision_of, real_numbers, require_kernel
from numerics.experiment.integer_indices import Literals, index_of_axis, literals_of, require_entries
from numerics.lowering.indices import (
    TIMES,
    RealNumber,
    at_integer_depth,
    distinct_sources,
    expressions_of,
    integer_of,
    literals_in,
    lowest_values,
    ordered_indices,
    require_steps,
)
from numerics.quotients import without_overflow

EntryKey = tuple[str, tuple[int, ...]]
OpenTimeKey = tuple[str, tuple[int | None, ...]]


@dataclass(frozen=True)
class Member:
    """One quantity of a theory at fixed values of its indices, for all times.

    ``expr`` is its expression (right-hand side or definition), ``indices`` are the values of its indices.
    ``times`` are the time symbols of the expression, in the order of the times among its arguments; ``item``
    is the equation, order parameter or source of the theory from which it was written out.
    """

    expr: Expr
    indices: Mapping[Symbol, int]
    times: tuple[Symbol, ...]
    item: Any

    def at(self, *times: int) -> dict[Symbol, RealNumber]:
        """Return the values of the indices and of these times, by symbol."""
        return {**self.indices, **dict(zip(self.times, times, strict=True))}


@dataclass
class Family:
    """All quantities of a theory with one name, one member for each choice of their integer indices.

    ``places`` are the positions of times among the arguments. Keys of ``members`` are the arguments, with
    None at these positions, because a member holds for all times.
    """

    places: tuple[int, ...]
    members: dict[tuple[int | None, ...], Member] = field(default_factory=dict)

    def key(self, args: tuple[int, ...]) -> tuple[int | None, ...]:
        """Return the arguments ``args`` with None in place of times, as in the keys of ``members``."""
        return tuple(None if i in self.places else x for i, x in enumerate(args))

    def times(self, args: tuple[int, ...]) -> tuple[int, ...]:
        """Return the times among the arguments ``args``."""
        return tuple(args[i] for i in self.places)

    def get(self, args: tuple[int, ...]) -> Member | None:
        """Return the member with the arguments ``args``; None if the theory has no such member."""
        return self.members.get(self.key(args))

    def extent(self, place: int) -> tuple[int, int]:
        """Return the first and the last value of the index at position ``place`` of the arguments."""
        values = [k[place] for k in self.members]
        integers = [x for x in values if x is not None]
        return min(integers), max(integers)


class Layout:
    """Tables of the quantities of a theory at integer depth, with all indices written out as integers.

    ``values`` are the numbers of the symbols by name. Tables are built when they are first read, because
    pairs of samples have many members.
    """

    def __init__(self, theory: Theory, values: Mapping[str, RealNumber]) -> None:
        self.values = values
        self.theory = theory = distinct_sources(at_integer_depth(theory, values)).map(without_overflow)
        require_steps(theory)
        self.attributes = {a.name for a in theory.program.attributes}
        symbols = [
            *(e.lhs for e in theory.equations),
            *(x for u in theory.sources for x in (u.symbol, u.partner)),
        ]
        self.random = frozenset(str(x.func) for x in symbols)
        self.ordered = ordered_indices(theory)
        self.lowest = lowest_values(theory)

    # -- unrolling -------------------------------------------------------------------------------------

    def integer(self, e: Any, at: Mapping[Symbol, int] | None = None) -> int:
        """Return the integer value of an expression, such as a bound, with the values ``at`` of indices."""
        return integer_of(e, self.values, at)

    def over(self, ranges: Iterable[IndexRange]) -> Iterator[dict[Symbol, int]]:
        """Yield every assignment of integers to the indices of ``ranges``."""
        unique = {r.index: r for r in ranges}
        # the bounds must be numbers: `integer` raises if a bound contains another index
        spans = [range(self.integer(r.lower), self.integer(r.upper) + 1) for r in unique.values()]
        for xs in product(*spans):
            yield dict(zip(unique, xs, strict=True))

    def reader(self, symbol: AppliedUndef) -> Callable[[Mapping[Symbol, int]], tuple[int | None, ...]]:
        """Return a function that gives the integer arguments of a quantity such as ``h(ell, mu, t)``.

        ``symbol`` is the quantity with its arguments. The function takes a mapping from symbols of indices to
        integers, and returns a tuple with one integer for each argument, None in place of times.
        """
        plain = [int(x) if x.is_Integer else x for x in symbol.args]

        def key(at: Mapping[Symbol, int]) -> tuple[int | None, ...]:
            return tuple(
                x if isinstance(x, int) else None if x in TIMES else at[x] if x in at else self.integer(x, at)
                for x in plain
            )

        return key

    @cached_property
    def fields(self) -> dict[str, Family]:
        """Equations of the fields, by name, with one member for each choice of the integer indices."""
        return self.families(self.theory.equations)

    @cached_property
    def scalars(self) -> dict[str, Family]:
        """Equations of scalars, such as outputs, by name, with one member for each choice of the indices."""
        return self.families(self.theory.scalars)

    @cached_property
    def order(self) -> dict[str, Family]:
        """Definitions of order parameters, by name, with one member for each choice of the indices."""
        return self.families(self.theory.order_parameters)

    @cached_property
    def observables(self) -> dict[str, Family]:
        """Observables by name: quantities that no other equation uses, such as the tangent kernel."""
        return self.families(self.theory.observables)

    @cached_property
    def literals(self) -> dict[Slot, Literals]:
        """Axes of given data at which the theory reads fixed integers, such as the 1 in ``y(1, t)``.

        The keys are pairs (name of the data, number of the axis); the values state the integers and the first
        value of the index on this axis.
        """
        return literals_in(self.theory, self.integer)

    @property
    def sources(self) -> dict[str, Family]:
        """Gaussian sources of the theory, by name, with one member for each choice of the indices."""
        return self.drawn[0]

    @property
    def covariances(self) -> dict[tuple[OpenTimeKey, OpenTimeKey], Member]:
        """Covariances of pairs of sources, by the two keys (name, indices with None for times).

        A pair is stored in the order in which the theory states its covariance.
        """
        return self.drawn[1]

    def families(self, items: Iterable[Equation | OrderParameter]) -> dict[str, Family]:
        """Return the members that equations or order parameters define, as one family for each name."""
        by_name: dict[str, Family] = {}
        for item in items:
            symbol = item.lhs if isinstance(item, Equation) else item.symbol
            body = item.rhs if isinstance(item, Equation) else item.definition
            add_member = self.family(by_name, symbol, body, item)
            for at in self.over(item.ranges):
                add_member(at)
        return by_name

    def family(
        self, families: dict[str, Family], symbol: AppliedUndef, body: Expr, item: Any
    ) -> Callable[[dict[Symbol, int]], tuple[int | None, ...]]:
        """Return a function that adds the quantity ``symbol`` at given values of its indices to ``families``.

        The function takes the values of the indices, and returns the key of the quantity: its integer
        arguments, with None for times. ``body`` is the expression of the quantity, and ``item`` the equation
        or definition of the theory that it is from. Raises Unserved if a quantity with this name has its
        times at other positions.
        """
        places = tuple(i for i, x in enumerate(symbol.args) if x in TIMES)
        name, key = str(symbol.func), self.reader(symbol)
        members = families.setdefault(name, Family(places)).members
        if families[name].places != places:
            raise Unserved(f"{name} has its times at different positions among its arguments, as in {symbol}")
        times = tuple(symbol.args[i] for i in places)

        def put(at: dict[Symbol, int]) -> tuple[int | None, ...]:
            member_key = key(at)
            if member_key not in members:
                members[member_key] = Member(body, at, times, item)
            return member_key

        return put

    @cached_property
    def drawn(self) -> tuple[dict[str, Family], dict[tuple[OpenTimeKey, OpenTimeKey], Member]]:
        """Gaussian sources by name, and covariances of pairs of them by two keys, as a pair of mappings.

        A pair of sources is stored in the order in which the theory states its covariance.
        """
        sources: dict[str, Family] = {}
        covariances: dict[tuple[OpenTimeKey, OpenTimeKey], Member] = {}
        for u in self.theory.sources:
            body = sympify(u.covariance)
            add_members = [self.family(sources, x, body, u) for x in (u.symbol, u.partner)]
            names = str(u.symbol.func), str(u.partner.func)
            times = tuple(x for x in (*u.symbol.args, *u.partner.args) if x in TIMES)
            for at in self.over(u.ranges):
                first, second = (put(at) for put in add_members)
                covariances.setdefault(((names[0], first), (names[1], second)), Member(body, at, times, u))
        return sources, covariances

    # -- meaning of arguments --------------------------------------------------------------------------

    def is_ordered(self, e: Expr) -> bool:
        """Return whether an expression contains an index with ordered values, such as places in a sequence.

        A shift of such an index, as in ``p + 1``, is never taken to be periodic.
        """
        return any(str(x) in self.ordered for x in e.free_symbols)

    def wanted_sources(self) -> set[str]:
        """Return the names of the sources to which the theory contains a response, ``<d h / d source>``."""
        return {str(x.source.func) for e in expressions_of(self.theory) for x in e.atoms(Response)}


Datum = Any
"""An array, a mapping from index tuples, a function of the indices, or a number."""


class Constants:
    """Values of functions that no equation of the theory determines, such as targets and data kernels.

    In an array, entry 0 along an axis is the first value of the index that the theory has there (1 for
    samples ``1..P``, 0 for times); a function takes the indices themselves. The keys of a mapping are tuples
    of all indices, or integers if there is one index. An index such as ``a + k`` beyond the end of an array
    is periodic, unless it is a time or its values are ordered (places in a sequence). Arguments that are not
    indices (the prediction in a loss) need a function. ``kind`` is the type of the array elements: float, or
    object for numbers that must not be converted, such as exact fractions.
    """

    def __init__(self, layout: Layout, data: Mapping[str, Datum], kind: type = float) -> None:
        self.layout, self.data, self.kind = layout, data, kind
        self.arrays: dict[str, np.ndarray[Any, Any]] = {
            k: real_numbers(f"data.{k}", v) if kind is float else np.array(v, dtype=kind)
            for k, v in data.items()
            if not isinstance(v, Mapping | Callable)
        }
        self.mappings = {
            k: _by_indices(f"data.{k}", v, kind) for k, v in data.items() if isinstance(v, Mapping)
        }
        for x in layout.theory.program.given if kind is float else ():
            key = f"data.{x.kernel}"
            if x.kernel in self.arrays:
                precision = max(precision_of(data[x.kernel]), ROUNDING)
                self.arrays[x.kernel] = require_kernel(key, self.arrays[x.kernel], precision)
            elif x.kernel in self.mappings:
                self.mappings[x.kernel] = _kernel_by_indices(key, self.mappings[x.kernel])
        if kind is float:
            self._require_entries()

    def _require_entries(self) -> None:
        """Raise ValueError for a given array that is too short for an index at which the theory reads it.

        This is checked for arrays that are read at a shifted index, such as ``y(p + 1)``.
        """
        reads = shifted_reads(self.layout.theory.program, self.layout.values)
        if reads:
            lowest = {index: self.layout.integer(low) for index, low in self.layout.lowest.items()}
            literals = literals_of(expressions_of(self.layout.theory), lowest)
            require_entries(reads, literals, {name: x.shape for name, x in self.arrays.items()}, "data")

    def attribute(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """Return the attribute ``name``, a given constant of each unit, as an array of shape ``(units,)``.

        Raises ValueError if the data do not hold it in this form.
        """
        if name not in self.arrays or self.arrays[name].ndim != 1:
            raise ValueError(
                f"data must hold {name} as an array with one number for each unit of its population"
            )
        return self.arrays[name]

    def __call__(self, name: str, args: tuple[RealNumber, ...], given: Sequence[Expr]) -> Any:
        """Return the given number ``name(args)``.

        ``given`` are the arguments as expressions of the theory, which determine the position in an array.
        Raises ValueError for a name without data, for an array whose axes are not as many as the arguments,
        for a position outside of it, for an index of an array that is not an integer, and for a key that a
        mapping lacks.
        """
        if name not in self.data:
            raise ValueError(
                f"{name}({', '.join(map(str, given))}) has no value: it is not a field, order parameter or "
                f"scalar of the theory, and data does not contain {name}. Give data[{name!r}], or a named "
                f"activation such as tanh if {name} is an activation"
            )
        value = self.data[name]
        if callable(value):
            return float(value(*args))
        if name in self.mappings:
            return self.mapped(name, args)
        array = self.arrays[name]
        if array.ndim != len(args):
            raise ValueError(
                f"data[{name!r}] has shape {array.shape}, but must have one axis for each argument of "
                f"{name}({', '.join(map(str, given))})"
            )
        uses = zip(args, given, array.shape, strict=True)
        at = tuple(self.place((name, k), x, e, n) for k, (x, e, n) in enumerate(uses))
        return array[at] if self.kind is object else float(array[at])

    def mapped(self, name: str, args: tuple[RealNumber, ...]) -> Any:
        """Return the entry of a mapping at the indices ``args``; raise ValueError if it has none."""
        entries = self.mappings[name]
        if args in entries:
            return entries[args]
        count = len(next(iter(entries), args))
        if count != len(args):
            raise ValueError(
                f"data[{name!r}] has keys of {count} {'index' if count == 1 else 'indices'}, but {name} has "
                f"{len(args)} in the theory: give keys such as {args}"
            )
        shown = args[0] if len(args) == 1 else args
        raise ValueError(f"data[{name!r}] has no entry {shown}: give a number for it")

    def place(self, axis: Slot, x: RealNumber, e: Expr, size: int) -> int:
        """Return the position along an axis of data of the index value ``x``, written ``e`` in the theory.

        ``axis`` is a pair (name of the data, number of the axis), and ``size`` the length of the axis. A
        shifted index beyond the end is periodic, unless it is a time or its values are ordered. Raises
        ValueError for another position outside of the array, and for a value that is not an integer.
        """
        e, (name, _) = sympify(e), axis
        # `lowest` holds the lowest value of each index, for indices of fields before those of sums. The order
        # matters: an axis that is read at ``p + k`` has the range of the index that comes first, for example
        # of p if p is an index of a field and k that of a sum.
        lowest = self.layout.lowest
        index = index_of_axis(e, lowest)
        literals = self.layout.literals.get(axis, Literals())
        first = literals.first if index is None else self.layout.integer(lowest[index])
        if x != int(x):
            raise ValueError(
                f"{name} is read at {e} = {x}, which is not an integer: data[{name!r}] must be a function"
            )
        at = int(x) - first
        wraps = not (e.is_Symbol or e.is_Integer or e.has(*TIMES) or self.layout.is_ordered(e))
        if not 0 <= at < size and wraps:
            at %= size
        if not 0 <= at < size:
            raise ValueError(
                f"{name} is read at {e} = {x}, but data[{name!r}] holds the entries for "
                f"{first}..{first + size - 1} only"
            )
        return at


def _by_indices(key: str, given: Mapping[Any, Any], kind: type) -> dict[tuple[Any, ...], Any]:
    """Return a mapping from indices to numbers with tuples as keys.

    If ``kind`` is float, the numbers become floats, and those that are not real and finite raise SpecError.
    It is also raised for keys of different lengths; errors name the mapping by ``key``.
    """
    entries = {k if isinstance(k, tuple) else (k,): v for k, v in given.items()}
    lengths = {len(k) for k in entries}
    if len(lengths) > 1:
        raise SpecError(key, None, "has keys of different numbers of indices", "tuples of all indices")
    if kind is not float:
        return entries
    return {k: finite_number(f"{key}[{', '.join(map(str, k))}]", v) for k, v in entries.items()}


def _kernel_by_indices(key: str, entries: dict[tuple[Any, ...], Any]) -> dict[tuple[Any, ...], Any]:
    """Return the symmetric part of a kernel that is given by its indices, rows before columns.

    Raises SpecError for no entries, for keys that are not pairs, for a missing entry, and if the kernel is
    not symmetric positive semidefinite.
    """
    accepted = "a number for each pair of indices, such as (1, 2)"
    if not entries:
        raise SpecError(key, None, "has no entries", accepted)
    first = next(iter(entries))
    if len(first) % 2:
        shown = first[0] if len(first) == 1 else first
        raise SpecError(key, None, f"has the key {shown}, which is not a pair of indices", accepted)
    halves = sorted({part for k in entries for part in (k[: len(k) // 2], k[len(k) // 2 :])})
    pairs = [(*row, *col) for row in halves for col in halves]
    missing = [k for k in pairs if k not in entries]
    if missing:
        raise SpecError(key, None, f"has no entry {missing[0]}", accepted)
    matrix = np.array([entries[k] for k in pairs]).reshape(len(halves), -1)
    return dict(zip(pairs, require_kernel(key, matrix, ROUNDING).ravel().tolist(), strict=True))
