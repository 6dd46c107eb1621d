"""Names, indices and layers of the quantities of a theory, and the ranges of indices.

The functions take a derived theory, or symbols such as ``h(2, mu, t)``, and return nodes (name and integers),
open indices, and integer bounds; some refuse forms that a solver does not read. All readers of theories use
them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from sympy import (
    Derivative,
    Expr,
    Function,
    Integer,
    Integral,
    S,
    Sum,
    Symbol,
    sympify,
)
from sympy.core.function import AppliedUndef
from sympy.utilities.iterables import connected_components

from derive.calculus.symbols import L, ell, primed, s, t
from derive.program.shifted_constants import Slot
from derive.theory import Theory
from numerics.errors import Unserved
from numerics.experiment.integer_indices import Literals, literals_of
from numerics.names import MemberKey

Array = NDArray[np.float64]

TIMES = (t, s)
RealNumber = int | float
GraphNode = TypeVar("GraphNode", bound=Hashable)


class Axis(NamedTuple):
    """Values of an index or time that lie along one axis of an array.

    They are the positions ``start .. stop - 1``. ``axis`` is the number of the axis, and ``ndim`` the number
    of axes of the array.
    """

    start: int
    stop: int
    axis: int
    ndim: int

    @property
    def positions(self) -> NDArray[np.int_]:
        """The positions as an array with ``ndim`` axes, all of length one but this axis."""
        return np.arange(self.start, self.stop).reshape(
            [-1 if k == self.axis else 1 for k in range(self.ndim)]
        )


Places = Mapping[Symbol, "int | Axis"]
"""Positions at which an expression is evaluated: for each index or time one position (from 0) or an axis."""


def connected_groups(
    nodes: Iterable[GraphNode], links: Iterable[Iterable[GraphNode]]
) -> list[tuple[GraphNode, ...]]:
    """Return the connected components of ``nodes``, each in the order of ``nodes``.

    Each link is a collection of one or more nodes, and connects all of them.

    >>> connected_groups("abcd", ["ac", "cd"])
    [('a', 'c', 'd'), ('b',)]
    """
    nodes = list(dict.fromkeys(nodes))
    edges = [(first, other) for first, *others in links for other in others]
    place = {node: i for i, node in enumerate(nodes)}
    components = [sorted(x, key=place.__getitem__) for x in connected_components((nodes, edges))]
    return [tuple(x) for x in sorted(components, key=lambda x: place[x[0]])]


@lru_cache(maxsize=4096)
def node_of(symbol: AppliedUndef) -> MemberKey:
    """Return the key ("node") of a function such as ``h(2, mu, t)``: its name and its integer arguments."""
    return str(symbol.func), tuple(int(x) for x in symbol.args if x.is_Integer)


def node_at_zero(symbol: AppliedUndef) -> MemberKey | None:
    """Return the key of a function at time zero: its name and the integers in its other arguments.

    The result is None for a function whose last argument is not zero.
    """
    if not symbol.args or symbol.args[-1] != 0:
        return None
    name, integers = node_of(symbol)
    return name, integers[:-1]


def moving_nodes(theory: Theory) -> frozenset[MemberKey]:
    """Return the fields and scalars of a theory that depend on the time t.

    Each is given by its name and its integer indices, such as ("x", (2,)).
    """
    items = (*theory.equations, *theory.scalars)
    return frozenset(node_of(e.symbol) for e in items if e.symbol.args[-1:] == (t,))


def require_open_numbers(theory: Theory) -> None:
    """Raise Unserved if an equation reads a scalar at one value of an index, such as f(1, t).

    Methods that call this function read a scalar as one array over all values of the index, and cannot read
    a single entry of it.
    """
    known, moving = {node_of(e.lhs) for e in theory.scalars}, moving_nodes(theory)
    for item in (*theory.scalars, *theory.equations):
        for x in sorted(item.rhs.atoms(AppliedUndef), key=str):
            if (str(x.func), ()) in known and node_of(x) not in known and node_at_zero(x) not in moving:
                raise Unserved(
                    f"the scalar {x} is read at one value of an index, and this method reads all values: "
                    'use solver.method = "direct", or use solver.method = "paths" and write a sum over the '
                    "index with a Kronecker delta that selects the value"
                )


def require_present(theory: Theory) -> None:
    """Raise Unserved if an expression of the theory contains a field or a scalar at time zero."""
    moving = moving_nodes(theory)
    for e in expressions_of(theory):
        for x in sorted(e.atoms(AppliedUndef), key=str):
            if node_at_zero(x) in moving:
                raise Unserved(
                    f"{x} is a value at time zero, which this method cannot use: choose solver.method = "
                    '"paths" or "direct"'
                )


def limits(theory: Theory) -> Iterator[tuple[Symbol, Expr, Expr]]:
    """Yield the range ``(index, lower, upper)`` of each index of a theory.

    First come the ranges of fields, scalars, order parameters, sources and observables, then those of sums,
    sums over times included. An index with several ranges occurs several times.
    """
    items: list[Any] = [*theory.equations, *theory.scalars, *theory.order_parameters, *theory.sources]
    for x in (*items, *theory.observables):
        yield from ((r.index, sympify(r.lower), sympify(r.upper)) for r in x.ranges)
    for e in expressions_of(theory):
        for total in e.atoms(Sum):
            yield from total.limits


def expressions_of(theory: Theory) -> Iterator[Expr]:
    """Yield all expressions of a theory, without their left-hand sides.

    They are right-hand sides of equations, definitions of order parameters, and covariances of sources.
    """
    for e in (*theory.equations, *theory.scalars, *theory.observables):
        yield e.rhs
    for q in theory.order_parameters:
        yield q.definition
    for u in theory.sources:
        yield sympify(u.covariance)


def lowest_values(theory: Theory) -> dict[Symbol, Expr]:
    """Return the first value of each index, as the theory writes it; 0 for both times.

    If an index has several ranges the lowest value counts, because a range may be a part of another. If two
    values cannot be compared, the first one counts; ranges of fields and order parameters come before those
    of sums. A bound with another index in it counts only if the index has no other bound; it is evaluated at
    the first value of that other index.
    """
    lowest: dict[Symbol, Expr] = {t: S.Zero, s: S.Zero}
    ends = list(limits(theory))
    indices = {index for index, _, _ in ends}
    for index, lower, _ in ends:
        if not lower.free_symbols & indices and (
            index not in lowest or (sympify(lowest[index]) - lower).is_positive
        ):
            lowest[index] = lower
    for index, lower, _ in ends:
        if index not in lowest:
            lowest[index] = lower.subs(lowest)
    return lowest


def literals_in(theory: Theory, integer: Callable[[Expr], int]) -> dict[Slot, Literals]:
    """Return the axes of data and other functions of a theory, with the integers at which it reads them.

    Keys are (name, axis). An axis is included if it is read at an integer, such as 1 in ``y(1, t)``, or at
    an index with a known first value. The result is empty if the theory reads no function at an integer.
    ``integer`` is a function that returns the integer value of the lower bound of an index.
    """
    expressions = list(expressions_of(theory))
    if not any(a.is_Integer for e in expressions for x in e.atoms(AppliedUndef) for a in x.args):
        return {}
    lowest = {index: integer(lower) for index, lower in lowest_values(theory).items()}
    return literals_of(expressions, lowest, {x.kernel for x in theory.program.given})


def require_fixed_limits(index: Symbol, low: Any, high: Any, values: Mapping[str, Any]) -> None:
    """Raise Unserved if the limits of a sum contain symbols without a number, such as another index.

    ``low`` and ``high`` are the limits, and ``values`` are numbers by the names of symbols. ``index`` only
    stands in the message.
    """
    free = sympify(low).free_symbols | sympify(high).free_symbols
    if others := sorted(str(x) for x in free if str(x) not in values):
        raise Unserved(
            f"the limits {low} and {high} of the index {index} contain {', '.join(others)}: values needs a "
            "number for each symbol; if a limit contains another index, use numerics.solver.direct.evaluate"
        )


def open_args(symbol: AppliedUndef) -> tuple[Symbol, ...]:
    """Return the arguments of a function that are not integers: indices and times.

    Raise Unserved for a shifted index such as ``a + k``, for an index that occurs twice, and for an argument
    that contains a function.
    """
    args = tuple(x for x in symbol.args if not x.is_Integer)
    for x in args:
        if x.atoms(AppliedUndef):
            raise Unserved(
                f"{symbol} has the argument {x}, which is not an index: if {symbol.func} is a function "
                "without an expression, use a named one such as tanh"
            )
        if not isinstance(x, Symbol):
            raise Unserved(
                f"{symbol} has the argument {x}: only integers, times and indices such as mu are supported "
                "as arguments"
            )
    if len(set(args)) < len(args) and not set(TIMES) & {x for x in args if args.count(x) > 1}:
        raise Unserved(
            f"{symbol} has the same index twice, which is not supported: use two indices, and a sum with "
            "their Kronecker delta"
        )
    return args


@lru_cache(maxsize=4096)
def indices_of(symbol: AppliedUndef) -> tuple[Symbol, ...]:
    """Return the arguments of a function that are indices, without integers and times.

    Raise Unserved for a shifted index, for an index that occurs twice, and for an argument that contains a
    function.
    """
    return tuple(x for x in open_args(symbol) if x not in TIMES)


IndexSymbols = tuple[Symbol, ...]


def axes_of(symbol: AppliedUndef) -> IndexSymbols:
    """Return the indices of a function without times and integers; raise Unserved for a shifted index."""
    indices = tuple(x for x in symbol.args if not isinstance(x, Integer) and x not in TIMES)
    if not all(isinstance(x, Symbol) for x in indices):
        raise Unserved(f"the left-hand side {symbol} of an equation has an index that is not a symbol")
    return indices


# -- integer depth and sizes ---------------------------------------------------------------------------------


def sizes_of(theory: Theory, values: Mapping[str, RealNumber]) -> dict[str, RealNumber]:
    """Return the part of ``values`` whose symbols occur in the depth of a theory or in ranges of its indices.

    ``values`` are numbers by the names of symbols.
    """
    bounds = [sympify(theory.program.depth), *(b for _, *ends in limits(theory) for b in ends)]
    return {x.name: values[x.name] for b in bounds for x in b.free_symbols if x.name in values}


def integer_of(
    e: Any, values: Mapping[str, RealNumber], at: Mapping[Symbol, RealNumber] | None = None
) -> int:
    """Return the integer value of an expression.

    ``values`` are numbers by names of symbols, ``at`` values of indices, which come first if a symbol has
    both. Raises ValueError for a symbol without a value, and for a number that is not an integer.

    >>> integer_of(Symbol("P") - 1, {"P": 3})
    2
    """
    e = sympify(e)
    if e.is_Integer:
        return int(e)
    if isinstance(e, Symbol) and isinstance(n := (at or {}).get(e), int):
        return n
    names = {x: (at or {}).get(x, values.get(str(x))) for x in e.free_symbols}
    missing = [str(x) for x, v in names.items() if v is None]
    if missing:
        raise ValueError(f"{e} must be an integer, but values has no {', '.join(sorted(missing))}")
    number = e.xreplace({x: sympify(v) for x, v in names.items()})
    if float(number) != int(number):
        raise ValueError(f"{e} = {number} must be an integer")
    return int(number)


def require_steps(theory: Theory) -> None:
    """Raise Unserved if the theory contains a rate of change or an integral, as that of a flow does."""
    given = (*theory.equations, *theory.scalars, *theory.observables)
    named = [(e.lhs, e.rhs) for e in given] + [(q.symbol, q.definition) for q in theory.order_parameters]
    for symbol, body in named:
        if isinstance(symbol, Derivative) or body.has(Integral):
            raise Unserved(
                f"{symbol} is given by a rate of change or an integral, as in a flow, and this method takes "
                "rules in steps: use a rule in steps, such as GradientDescent with a small rate"
            )


def ordered_indices(theory: Theory) -> frozenset[str]:
    """Return the names of indices along which a field is computed value by value, with and without a prime.

    Examples are the positions in a sequence, if the field at p + 1 depends on that at p.
    """
    program = theory.program
    ordered = {x.name for x in program.fields if x.ordered}
    indices = {i for d in program.definitions if d.name in ordered for i in d.lhs.args[0].free_symbols}
    return frozenset(str(index) for i in indices for index in (i, primed(i)))


def at_integer_depth(theory: Theory, values: Mapping[str, RealNumber]) -> Theory:
    """Return the theory at the integer depth of its program, or at the depth in ``values`` if it is given.

    A theory without layers and without the depth in its equations is returned unchanged. Raises ValueError if
    the depth of the program is not an integer and ``values`` has no number for it, or one that is not an
    integer.
    """
    items: list[Any] = [*theory.equations, *theory.scalars, *theory.observables, *theory.sources]
    ranges = (r for x in [*items, *theory.order_parameters] for r in x.ranges)
    if not any(r.index == ell for r in ranges) and not any(
        L in e.free_symbols for e in expressions_of(theory)
    ):
        return theory
    depth = sympify(theory.program.depth)
    if (given := values.get(str(depth))) is not None:
        depth = sympify(integer_of(depth, {str(depth): given}))
    if not depth.is_Integer:
        raise ValueError(
            f"the depth is {depth}, but must be an integer: use theory.at_depth(n) with an integer n"
        )
    return theory.at_depth(int(depth))


def distinct_sources(theory: Theory) -> Theory:
    """Return the theory with a distinct name for each family of sources.

    A vector of weights on the last layer may share the name of the sources of a family of matrices below it:
    ``r(2, t)`` and ``r(1, mu, t)`` are different families, because their numbers of arguments differ.
    """
    places: dict[str, int] = {}
    renamed: set[tuple[str, int]] = set()
    for x in (x for u in theory.sources for x in (u.symbol, u.partner)):
        name, count = str(x.func), len(x.args)
        if places.setdefault(name, count) != count:
            renamed.add((name, count))
    if not renamed:
        return theory

    def with_counts(e: Any) -> Any:
        """Return an expression in which ambiguous names of sources hold the number of their arguments.

        For example ``r(2, t)`` becomes ``r[2](2, t)`` if an earlier source r has three arguments.
        """
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and (str(x.func), len(x.args)) in renamed,
            lambda x: Function(f"{x.func}[{len(x.args)}]")(*x.args),
        )

    return theory.map(lambda e: with_counts(e) if isinstance(e, Expr) else e)
