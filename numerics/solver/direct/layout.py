"""A Theory with every index written out: which equation, covariance or average stands behind each entry.

An entry is a name and integer arguments, times among them: ``h(2, 1, t=3)`` is ``("h", (2, 1, 3))``.  Ranges
are run through with the given values; only the times stay open, so a table holds one member for all times.
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
from derive.program.shifts import Slot, shifted_reads
from derive.theory import Equation, OrderParameter, Theory
from numerics.errors import Unserved
from numerics.experiment.checks import precision_of, real_numbers, require_kernel
from numerics.experiment.literals import Literals, index_of_axis, literals_of, require_entries
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

ROUNDING = 1e3 * float(np.finfo(float).eps)
"""Of the entries of kernels that others have computed."""


@dataclass(frozen=True)
class Member:
    """One member of a family: its expression and what its indices are.

    ``times`` are the time symbols in the order of the open (None) places of its key; ``item`` is what it was
    unrolled from.
    """

    expr: Expr
    indices: Mapping[Symbol, int]
    times: tuple[Symbol, ...]
    item: Any

    def at(self, *times: int) -> dict[Symbol, RealNumber]:
        """The values of its indices and times."""
        return {**self.indices, **dict(zip(self.times, times, strict=True))}


@dataclass
class Family:
    """All members that share a name: where their times stand and how far each index runs."""

    places: tuple[int, ...]
    members: dict[tuple[int | None, ...], Member] = field(default_factory=dict)

    def key(self, args: tuple[int, ...]) -> tuple[int | None, ...]:
        """``args`` with the times left open."""
        return tuple(None if i in self.places else x for i, x in enumerate(args))

    def times(self, args: tuple[int, ...]) -> tuple[int, ...]:
        """The times among ``args``."""
        return tuple(args[i] for i in self.places)

    def get(self, args: tuple[int, ...]) -> Member | None:
        """The member for ``args``, if there is one."""
        return self.members.get(self.key(args))

    def extent(self, place: int) -> tuple[int, int]:
        """The first and the last value of the index at ``place``."""
        found = [x for k in self.members if (x := k[place]) is not None]
        return min(found), max(found)


class Layout:
    """The tables of a theory at integer depth, for the numbers ``values`` (by the names of symbols).

    Members are written out where somebody asks for them: of pairs of samples they are many.
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
        """The integer that ``e`` is once symbols have their values."""
        return integer_of(e, self.values, at)

    def over(self, ranges: Iterable[IndexRange]) -> Iterator[dict[Symbol, int]]:
        """Every assignment of integers to the indices of ``ranges``."""
        unique = {r.index: r for r in ranges}
        spans = [
            range(self.integer(r.lower), self.integer(r.upper) + 1) for r in unique.values()
        ]  # bounds hold no index
        for xs in product(*spans):
            yield dict(zip(unique, xs, strict=True))

    def reader(self, symbol: AppliedUndef) -> Callable[[Mapping[Symbol, int]], tuple[int | None, ...]]:
        """The arguments of ``symbol`` as integers, its times left open, from the values of its indices."""
        plain = [int(x) if x.is_Integer else x for x in symbol.args]

        def key(at: Mapping[Symbol, int]) -> tuple[int | None, ...]:
            return tuple(
                x if isinstance(x, int) else None if x in TIMES else at[x] if x in at else self.integer(x, at)
                for x in plain
            )

        return key

    @cached_property
    def fields(self) -> dict[str, Family]:
        """By name, as the others."""
        return self.families(self.theory.equations)

    @cached_property
    def scalars(self) -> dict[str, Family]:
        """Outputs and what follows from them."""
        return self.families(self.theory.scalars)

    @cached_property
    def order(self) -> dict[str, Family]:
        """Order parameters."""
        return self.families(self.theory.order_parameters)

    @cached_property
    def observables(self) -> dict[str, Family]:
        """What nothing depends on."""
        return self.families(self.theory.observables)

    @cached_property
    def literals(self) -> dict[Slot, Literals]:
        """The axes of data that are read at integers."""
        return literals_in(self.theory, self.integer)

    @property
    def sources(self) -> dict[str, Family]:
        """Gaussian sources."""
        return self.drawn[0]

    @property
    def covariances(self) -> dict[tuple[OpenTimeKey, OpenTimeKey], Member]:
        """Of pairs of sources."""
        return self.drawn[1]

    def families(self, items: Iterable[Equation | OrderParameter]) -> dict[str, Family]:
        found: dict[str, Family] = {}
        for item in items:
            symbol = item.lhs if isinstance(item, Equation) else item.symbol
            body = item.rhs if isinstance(item, Equation) else item.definition
            put = self.family(found, symbol, body, item)
            for at in self.over(item.ranges):
                put(at)
        return found

    def family(
        self, found: dict[str, Family], symbol: AppliedUndef, body: Expr, item: Any
    ) -> Callable[[dict[Symbol, int]], tuple[int | None, ...]]:
        """What places the members of ``symbol`` in its family, and says their keys."""
        places = tuple(i for i, x in enumerate(symbol.args) if x in TIMES)
        name, key = str(symbol.func), self.reader(symbol)
        members = found.setdefault(name, Family(places)).members
        if found[name].places != places:
            raise Unserved(f"{name} carries its times in different places: {symbol}")
        times = tuple(symbol.args[i] for i in places)

        def put(at: dict[Symbol, int]) -> tuple[int | None, ...]:
            own = key(at)
            if own not in members:
                members[own] = Member(body, at, times, item)
            return own

        return put

    @cached_property
    def drawn(self) -> tuple[dict[str, Family], dict[tuple[OpenTimeKey, OpenTimeKey], Member]]:
        """Sources and their covariances."""
        sources: dict[str, Family] = {}
        covariances: dict[tuple[OpenTimeKey, OpenTimeKey], Member] = {}
        for u in self.theory.sources:
            body = sympify(u.covariance)
            puts = [self.family(sources, x, body, u) for x in (u.symbol, u.partner)]
            names = str(u.symbol.func), str(u.partner.func)
            times = tuple(x for x in (*u.symbol.args, *u.partner.args) if x in TIMES)
            for at in self.over(u.ranges):
                first, second = (put(at) for put in puts)
                covariances.setdefault(((names[0], first), (names[1], second)), Member(body, at, times, u))
        return sources, covariances

    # -- what an argument means ------------------------------------------------------------------------

    def is_ordered(self, e: Expr) -> bool:
        """Is it an index run through in order (never periodic)?"""
        return any(str(x) in self.ordered for x in e.free_symbols)

    def wanted_sources(self) -> set[str]:
        """The names of the sources that some response asks about."""
        return {str(x.source.func) for e in expressions_of(self.theory) for x in e.atoms(Response)}


Datum = Any
"""An array, a mapping from index tuples, a function of the indices, or a number."""


class Constants:
    """Values of the functions that no equation of the theory determines.

    In an array, entry 0 along an axis is the first value of the index that the theory has there (1 for
    samples ``1..P``, 0 for times); a mapping or a function takes the indices as they are.  An index such as
    ``a + k`` beyond the end of a kernel is taken periodically.  Arguments that are no indices (a loss's
    prediction) need a function.  ``kind`` is float, or object for numbers that stay as they are.
    """

    def __init__(self, layout: Layout, data: Mapping[str, Datum], kind: type = float) -> None:
        self.layout, self.data, self.kind = layout, data, kind
        self.arrays: dict[str, np.ndarray[Any, Any]] = {
            k: real_numbers(f"data.{k}", v) if kind is float else np.array(v, dtype=kind)
            for k, v in data.items()
            if not isinstance(v, Mapping | Callable)
        }
        for x in layout.theory.program.given if kind is float else ():
            if x.kernel in self.arrays:
                key, precision = f"data.{x.kernel}", max(precision_of(data[x.kernel]), ROUNDING)
                self.arrays[x.kernel] = require_kernel(key, self.arrays[x.kernel], precision)
        if kind is float:
            self._require_entries()

    def _require_entries(self) -> None:
        """Raise ``ValueError`` for an array without an entry for each value of a shifted index."""
        reads = shifted_reads(self.layout.theory.program, self.layout.values)
        if reads:
            lowest = {index: self.layout.integer(low) for index, low in self.layout.lowest.items()}
            literals = literals_of(expressions_of(self.layout.theory), lowest)
            require_entries(reads, literals, {name: x.shape for name, x in self.arrays.items()}, "data")

    def attribute(self, name: str) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The values of an attribute, one for each unit."""
        if name not in self.arrays or self.arrays[name].ndim != 1:
            raise ValueError(f"data must hold {name}, one number for each unit")
        return self.arrays[name]

    def __call__(self, name: str, args: tuple[RealNumber, ...], given: Sequence[Expr]) -> Any:
        """``name(args)``; ``given`` are the arguments as the theory writes them."""
        if name not in self.data:
            raise ValueError(
                f"{name}({', '.join(map(str, given))}) is no field, order parameter or scalar of the theory, "
                f"and data does not hold {name}; a generic activation cannot be evaluated"
            )
        value = self.data[name]
        if callable(value):
            return float(value(*args))
        if isinstance(value, Mapping):
            return float(value[args] if args in value else value[args[0]])
        array = self.arrays[name]
        if array.ndim != len(args):
            raise ValueError(f"data[{name!r}] has shape {array.shape}; {name} has {len(args)} indices")
        uses = zip(args, given, array.shape, strict=True)
        at = tuple(self.place((name, k), x, e, n) for k, (x, e, n) in enumerate(uses))
        return array[at] if self.kind is object else float(array[at])

    def place(self, axis: Slot, x: RealNumber, e: Expr, size: int) -> int:
        """The position along an axis of the index ``x``, written ``e``."""
        e, (name, _) = sympify(e), axis
        lowest = self.layout.lowest  # of ``p + k``, the index p of a field comes before the k of a sum
        index = index_of_axis(e, lowest)
        literals = self.layout.literals.get(axis, Literals())
        first = literals.first if index is None else self.layout.integer(lowest[index])
        if x != int(x):
            raise ValueError(
                f"{name} is read at {e} = {x}; data[{name!r}] must be a function to be read there"
            )
        at = int(x) - first
        if not 0 <= at < size and not (e.is_Symbol or e.is_Integer or self.layout.is_ordered(e)):
            at %= size
        if not 0 <= at < size:
            raise ValueError(f"{name} is read at {e} = {x}; data[{name!r}] holds {first}..{first + size - 1}")
        return at
