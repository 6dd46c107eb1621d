"""A theory at given sizes: integer depth, and the range of each index as integers.

:class:`SizedTheory` holds a theory with numbers for its sizes; :class:`Extents` collects the first value and
the number of values of each index. The reader :mod:`~numerics.lowering.quantities` uses both, and
:mod:`~numerics.lowering.memoryless` the ranges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from typing import Any

from sympy import Expr, Symbol

from derive.calculus.symbols import IndexRange
from derive.theory import Theory
from numerics.errors import Unserved
from numerics.lowering.indices import (
    RealNumber,
    at_integer_depth,
    distinct_sources,
    integer_of,
    lowest_values,
    ordered_indices,
    require_fixed_limits,
    require_steps,
)
from numerics.quotients import without_overflow


@dataclass(frozen=True, eq=False)
class SizedTheory:
    """Theory in steps and at integer depth, with the numbers of its sizes.

    Attributes
    ----------
    theory
        The theory.
    values
        Numbers by the names of symbols.
    """

    theory: Theory
    values: Mapping[str, RealNumber]

    @classmethod
    def of(cls, theory: Theory, values: Mapping[str, RealNumber]) -> SizedTheory:
        """Return a theory at integer depth, with a distinct name for each family of sources.

        ``values`` are numbers by the names of symbols. Quotients of exponentials are rewritten so that they
        do not overflow. Raises Unserved for a flow, and ValueError for a theory with layers whose depth is
        not an integer.
        """
        sized = distinct_sources(at_integer_depth(theory, values)).map(without_overflow)
        require_steps(sized)
        return cls(sized, values)

    @cached_property
    def attributes(self) -> frozenset[str]:
        """Names of the attributes of units."""
        return frozenset(a.name for a in self.theory.program.attributes)

    @cached_property
    def random(self) -> frozenset[str]:
        """Names of fields and sources, which differ between units."""
        fields = [e.lhs for e in self.theory.equations]
        sources = [x for u in self.theory.sources for x in (u.symbol, u.partner)]
        return frozenset(str(x.func) for x in (*fields, *sources))

    @cached_property
    def ordered(self) -> frozenset[str]:
        """Names of indices along which a field is computed value by value, such as positions in a sequence.

        They are never periodic.
        """
        return ordered_indices(self.theory)

    @cached_property
    def lowest(self) -> dict[Symbol, Expr]:
        """The first value of each index, as an expression.

        If an index has several ranges, it is the lowest of their first values; of two values that cannot be
        compared, the first one counts.
        """
        return lowest_values(self.theory)

    def integer(self, e: Any, at: Mapping[Symbol, int] | None = None) -> int:
        """Return the integer value of an expression of sizes and of indices, which have the values ``at``.

        Raise ValueError if the value is not an integer.
        """
        return integer_of(e, self.values, at)

    def is_ordered(self, e: Expr) -> bool:
        """Return whether an expression contains an index along which a field is computed value by value."""
        return any(str(x) in self.ordered for x in e.free_symbols)

    def over(self, ranges: Iterable[IndexRange]) -> Iterator[dict[Symbol, int]]:
        """Yield each combination of values of the indices in ``ranges``, as integers by index.

        The bounds of the ranges must not contain other indices.
        """
        range_of = {r.index: r for r in ranges}
        spans = [range(self.integer(r.lower), self.integer(r.upper) + 1) for r in range_of.values()]
        for values in product(*spans):
            yield dict(zip(range_of, values, strict=True))


@dataclass(frozen=True, eq=False)
class Extents:
    """First value and number of values of each index, collected from ranges and limits of sums.

    Attributes
    ----------
    integer
        Function that returns the integer value of a bound.
    values
        Numbers by the names of the symbols that bounds may contain.
    first, sizes
        First value and number of values of each index.
    """

    integer: Callable[[Any], int]
    values: Mapping[str, RealNumber]
    first: dict[Symbol, int] = field(default_factory=dict)
    sizes: dict[Symbol, int] = field(default_factory=dict)

    def add(self, limits: Iterable[Any]) -> None:
        """Add indices with their limits ``(index, lower, upper)``.

        Raises Unserved for a bound with another index in it, and for an index with two different ranges.
        """
        for index, lower, upper in limits:
            require_fixed_limits(index, lower, upper, self.values)
            low, high = self.integer(lower), self.integer(upper)
            if self.first.setdefault(index, low) != low:
                raise Unserved(
                    f"the index {index} has two ranges, which start at different values: use a name for "
                    "each range"
                )
            if self.sizes.setdefault(index, high - low + 1) != high - low + 1:
                raise Unserved(f"the index {index} has two ranges: use a name for each range")

    def shape(self, indices: Iterable[Symbol]) -> tuple[int, ...]:
        """Return the number of values of each of these indices."""
        return tuple(self.sizes[x] for x in indices)
