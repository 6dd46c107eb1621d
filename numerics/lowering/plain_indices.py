"""Theories with plain indices: each index runs over one range, and most shifts are written out.

The input is a theory with numbers for its sizes. In the output

- indices that are run through in order, or of which a field is read at ``p + 1``, are written out:
  ``x(p, t)`` becomes ``x(1, t), x(2, t), ...``, and sums over them become sums of their terms;
- a sum over a part of a range, such as ``r = 1..p``, runs over the whole range with a factor that is one or
  zero;
- an index that runs over two ranges has a name for each, and nested sums have different indices.

Fields are read at shifted indices only in sums over a whole period.

:mod:`~numerics.lowering.quantities` reads the result. :func:`stacked_members` stacks the arrays of members
that were written out into one array.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Expr, Heaviside, Integer, Max, Min, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.pairs import EntryStep
from derive.calculus.sums import rename_bound, rename_multiplied
from derive.calculus.symbols import IndexRange, ell
from derive.program.shifted_constants import Slot, shifted_reads
from derive.theory import Equation, OrderParameter, Source, Term, Theory
from numerics.experiment.integer_indices import Literals, index_of_axis, literals_of
from numerics.lowering.indices import TIMES, expressions_of, lowest_values, node_of
from numerics.lowering.sizes import SizedTheory
from numerics.names import MemberKey

Array = NDArray[np.float64]
TheoryItem = Equation | Source | OrderParameter
IntegerBounds = tuple[int, int]
"""The first and the last value of an index."""

IndexBounds = Mapping[Symbol, IntegerBounds]


@dataclass(frozen=True)
class WrittenOut:
    """Scalar, order parameter or observable of which some indices were replaced by their integer values.

    Attributes
    ----------
    node : tuple
        Name of the quantity, with its integer indices, before the replacement.
    axes : tuple of int
        Positions of the replaced indices among its indices that are symbols, without times, in increasing
        order.
    shape : tuple of int
        Number of values of each replaced index.
    members : tuple
        Names, with integer indices, of the quantities that took its place, in the order of an array of this
        shape.
    """

    node: MemberKey
    axes: tuple[int, ...]
    shape: tuple[int, ...]
    members: tuple[MemberKey, ...]


@dataclass(frozen=True)
class Plain:
    """Theory whose indices run over one range each.

    Fields are read at shifted indices, as in ``x(p + 1, t)``, only in sums over a whole period.

    Attributes
    ----------
    theory
        The theory.
    written_out
        Quantities of which some indices were replaced by their integer values.
    literals
        Axes of data and other functions by (name, axis), with the index value of the first entry, and the
        integers at which the theory read them before the replacement.
    bounds
        First and last value of each index of the fields, scalars, sources, order parameters and observables,
        by (name, position among the arguments).
    """

    theory: Theory
    written_out: tuple[WrittenOut, ...]
    literals: Mapping[Slot, Literals]
    bounds: Mapping[Slot, IntegerBounds]


def with_plain_indices(sized: SizedTheory) -> Plain:
    """Return the theory in a form in which each index runs over one range.

    ``sized`` is the theory with numbers for its sizes. Some indices are replaced by their integer values.
    Fields are read at shifted indices only in sums over a whole period.
    """
    theory = sized.theory.each(lambda x: [_with_own_indices(x)])
    sized = replace(sized, theory=theory)
    out = _Unrolling(sized)
    written_out: tuple[WrittenOut, ...] = ()
    if out.slots:
        items = (*theory.scalars, *theory.observables, *theory.order_parameters)
        written_out = tuple(x for item in items if (x := out.written_out(item)) is not None)
        theory = theory.each(out.members)
    whole = _WholeRanges(sized, theory)
    theory = theory.each(lambda x: [whole.of(x)])
    names = _Names(sized)
    theory = theory.each(lambda x: [names.of(x)])
    return Plain(theory, written_out, _literals(sized), _extents(sized, theory))


def stacked_members(
    arrays: Mapping[MemberKey, Array], written_out: Iterable[WrittenOut]
) -> dict[MemberKey, Array]:
    """Return the arrays with the members of each quantity that was written out stacked in one array.

    The members are removed. A quantity of which an array is missing is left as it is. Axis 0 of each array
    counts replicas.
    """
    whole = dict(arrays)
    for x in written_out:
        if all(n in whole for n in x.members):
            members = np.stack([whole.pop(n) for n in x.members])
            array = members.reshape(*x.shape, *members.shape[1:])
            whole[x.node] = np.moveaxis(array, range(len(x.shape)), [1 + k for k in x.axes])
    return whole


def _literals(sized: SizedTheory) -> dict[Slot, Literals]:
    """Return axes of data and other functions, by (name, axis), with the index value of the first entry.

    Each comes with the integers at which the theory reads it, such as 1 for ``y(1, t)``.
    """
    lowest = {index: sized.integer(lower) for index, lower in lowest_values(sized.theory).items()}
    kernels = {x.kernel for x in sized.theory.program.given}
    return literals_of(expressions_of(sized.theory), lowest, kernels)


def ring_of(a: Expr, summed: IndexBounds, whole: IntegerBounds) -> Symbol | None:
    """Return the index of a sum that runs once around a periodic axis used at ``a``, such as p in ``p - q``.

    ``summed`` are the ranges of summed indices, ``whole`` is that of the axis. Such a sum may start anywhere
    on the axis. The result is None if no index does so, if several do, or if the axis does not begin at 1.

    >>> p, q = Symbol("p", integer=True), Symbol("q", integer=True)
    >>> ring_of(p - q, {p: (1, 4), q: (-1, 1)}, (1, 4)), ring_of(2 * p, {p: (1, 4)}, (1, 4))
    (p, None)
    """
    candidates = [x for x, bounds in summed.items() if a.coeff(x) == 1 and bounds == whole]
    return candidates[0] if len(candidates) == 1 and whole[0] == 1 else None


# -- indices of nested sums ----------------------------------------------------------------------------------


def _with_own_indices(item: Any) -> Any:
    """Return an equation, source or order parameter, with new names for indices that it uses twice.

    An index of a sum is renamed if it is also an index of the item or of a sum around it.
    """
    return _changed(item, lambda e: _separated(e, frozenset(r.index for r in item.ranges)))


def _separated(e: Expr, taken: frozenset[Symbol]) -> Expr:
    """Return an expression whose sums have indices that are not in ``taken`` and not those of outer sums.

    In the gradient of a weight with an entrywise rule, multiplied sums get different indices, too, because
    their limits are collected. Times keep their names.
    """
    if not e.has(Sum):
        return e
    if isinstance(e, EntryStep):
        return EntryStep(e.weight, rename_multiplied(e.gradient, taken), e.time)
    if isinstance(e, Sum):
        e = rename_bound(e, taken)
        taken |= {index for index, *_ in e.limits if index not in TIMES}
    return e.func(*[_separated(x, taken) if isinstance(x, Expr) else x for x in e.args])


# -- ranges of indices ---------------------------------------------------------------------------------------


def _symbols(item: Any) -> tuple[AppliedUndef, ...]:
    """Return the left-hand side of an equation or order parameter, or both sources of a covariance."""
    if isinstance(item, Source):
        return (item.symbol, item.partner)
    return (item.symbol,)


def _body(item: Any) -> Expr:
    """Return the right-hand side of an equation, the definition of an order parameter, or a covariance."""
    if isinstance(item, Source):
        return sympify(item.covariance)
    return item.rhs if isinstance(item, Equation) else item.definition


def _changed(item: Any, change: Callable[[Expr], Expr]) -> Any:
    """Return an item of a theory with its body changed by a function.

    If the body stays equal, the result is the item itself. An item is an equation, a source or an order
    parameter.
    """
    body = _body(item)
    new = change(body)
    if new == body:
        return item
    if isinstance(item, Source):
        return replace(item, covariance=new)
    if isinstance(item, Equation):
        return replace(item, terms=(Term.local(new),))
    return replace(item, definition=new)


def _span(sized: SizedTheory, lower: Any, upper: Any, scope: IndexBounds) -> IntegerBounds:
    """Return the lowest value of ``lower`` and the highest of ``upper`` over all indices in ``scope``.

    ``scope`` holds the range of each index that the limits may contain.
    """
    lower, upper = sympify(lower), sympify(upper)
    if lower.is_Integer and upper.is_Integer:
        return int(lower), int(upper)
    inside = sorted((lower.free_symbols | upper.free_symbols) & {*scope}, key=str)
    corners = [dict(zip(inside, ends, strict=True)) for ends in product(*(scope[x] for x in inside))]
    return min(sized.integer(lower, at) for at in corners), max(sized.integer(upper, at) for at in corners)


def _spans(sized: SizedTheory, ranges: Iterable[IndexRange]) -> dict[Symbol, IntegerBounds]:
    """Return the lowest and the highest value of each index in ``ranges``.

    A bound may contain indices that come earlier in ``ranges``.
    """
    spans: dict[Symbol, IntegerBounds] = {}
    for r in ranges:
        spans[r.index] = _span(sized, r.lower, r.upper, spans)
    return spans


@dataclass(frozen=True)
class _SourceUse:
    """Function of indices, such as ``h(p + 1, t)``, at one place in an expression.

    Attributes
    ----------
    atom
        The function with its arguments.
    scope
        Ranges of the indices at this place.
    summed
        Indices of sums that contain this place.
    """

    atom: AppliedUndef
    scope: IndexBounds
    summed: frozenset[Symbol]


def _uses(
    sized: SizedTheory, e: Expr, scope: IndexBounds, summed: frozenset[Symbol] = frozenset()
) -> Iterator[_SourceUse]:
    """Yield every function of indices in an expression, whose free indices have the ranges ``scope``.

    ``summed`` are the indices of sums around the expression.
    """
    if isinstance(e, Sum):
        inner = dict(scope)
        for index, lower, upper in reversed(e.limits):
            if index not in TIMES:
                inner[index] = _span(sized, lower, upper, inner)
        yield from _uses(sized, e.function, inner, summed | {*inner} - {*scope})
        return
    if isinstance(e, AppliedUndef):
        yield _SourceUse(e, scope, summed)
    for x in e.args:
        yield from _uses(sized, x, scope, summed)


def _uses_of(sized: SizedTheory, theory: Theory) -> Iterator[tuple[TheoryItem, _SourceUse]]:
    """Yield pairs (item, use), one for each function of indices in the body of an item of a theory.

    Items are equations, sources and order parameters.
    """
    for item in theory.stated():
        scope = _spans(sized, item.ranges)
        for use in _uses(sized, _body(item), scope):
            yield item, use


def _extents(sized: SizedTheory, theory: Theory) -> dict[Slot, IntegerBounds]:
    """Return the first and the last value of each index of the quantities of a theory.

    Keys are the name of a quantity and the position of the index among all of its arguments.
    """
    extents: dict[Slot, IntegerBounds] = {}
    for item in theory.stated():
        scope = _spans(sized, item.ranges)
        for x in _symbols(item):
            for k, a in enumerate(x.args):
                if a not in TIMES:
                    low, high = _span(sized, a, a, scope)
                    first, last = extents.get((str(x.func), k), (low, high))
                    extents[str(x.func), k] = min(low, first), max(high, last)
    return extents


# -- indices that are written out ----------------------------------------------------------------------------


class _Unrolling:
    """Replacement of some indices of a theory by integers: ``x(p, t)`` becomes ``x(1, t), x(2, t), ...``.

    ``slots`` are the positions of these indices, each a pair (name of a quantity, number of the argument).
    Arguments ``item`` of the methods are equations, covariances of sources or order parameters.
    """

    def __init__(self, sized: SizedTheory) -> None:
        self.sized, self.theory = sized, sized.theory
        self.shifted = shifted_reads(sized.theory.program, sized.values)
        self.extents = _extents(sized, sized.theory)
        self.known = {name for name, _ in self.extents}
        self.uses: dict[int, list[AppliedUndef]] = {}
        self.limits: dict[int, list[Any]] = {}
        self.symbols: dict[Expr, set[Symbol]] = {}
        """Symbols in each expression, kept because most expressions occur in several members."""
        self.alike: dict[Source, bool] = {}
        self.indexed = {
            (str(x.func), k)
            for item in self.theory.stated()
            for x in _symbols(item)
            for k, a in enumerate(x.args)
            if a.free_symbols - {*TIMES}
        }
        """Positions at which an item holds for all values of an index; an integer there reads one member."""
        self.slots = set(self._first())
        if self.slots:
            self._close()

    def _first(self) -> Iterator[Slot]:
        """Yield positions of indices to replace by integers, each as (name, number of the argument).

        They are indices of fields and sources that are computed in order, shifted, read at one integer, or
        used over a part of their range.
        """
        ordered = {x.name for x in self.theory.program.fields if x.ordered}
        for e in self.theory.equations:
            name = str(e.symbol.func)
            if name in ordered:
                yield name, 0
            yield from ((name, k) for k, a in enumerate(e.symbol.args) if a.free_symbols and not a.is_Symbol)
        for _, use in _uses_of(self.sized, self.theory):
            name = str(use.atom.func)
            if name in self.sized.random:
                yield from (
                    (name, k) for k, a in enumerate(use.atom.args) if self._needs_integers((name, k), a, use)
                )

    def _needs_integers(self, slot: Slot, a: Expr, use: _SourceUse) -> bool:
        """Return whether the use of a field requires that one of its indices is replaced by integers.

        It does if the field is used at a shifted index, at one integer, or, outside of a sum over the index,
        over a part of its range. A shift is allowed in a sum over a whole period. An integer is allowed if no
        equation, source or order parameter holds for all values of the index. ``a`` is the argument of the
        field at the position ``slot``.
        """
        if a in TIMES:
            return False
        if a.is_Integer:
            return slot in self.indexed
        if a.is_Symbol:
            return a not in use.summed and a in use.scope and use.scope[a] != self.extents[slot]
        return ring_of(a, {x: use.scope[x] for x in use.summed}, self.extents[slot]) is None

    def _close(self) -> None:
        """Add the positions of all indices that are equal to replaced ones in some equation.

        An index that is replaced by integers in one quantity must be replaced in each quantity that shares
        it.
        """
        count = 0
        while count != len(self.slots):
            count = len(self.slots)
            for item in self.theory.stated():
                indices = self.indices(item)
                for x in self._atoms(item):
                    if str(x.func) in self.known:
                        self.slots |= {
                            (str(x.func), k) for k, a in enumerate(x.args) if a.free_symbols & indices
                        }

    def _atoms(self, item: Any) -> list[AppliedUndef]:
        """Return the functions of indices in the body and on the left-hand side of an item.

        An item is an equation, a source or an order parameter.
        """
        key = id(item)
        if key not in self.uses:
            atoms = {*_body(item).atoms(AppliedUndef), *_symbols(item)}
            self.uses[key] = sorted(atoms, key=str)
            self.limits[key] = [
                x for total in _body(item).atoms(Sum) for x in total.limits if x[0] not in TIMES
            ]
        return self.uses[key]

    def indices(self, item: Any) -> set[Symbol]:
        """Return the indices of an equation, covariance or order parameter that are replaced by integers.

        The indices in the limits of sums over such indices are replaced, too.
        """
        replaced: set[Symbol] = set()
        for x in self._atoms(item):
            for k, a in enumerate(x.args):
                if (str(x.func), k) in self.slots:
                    replaced |= a.free_symbols - {*TIMES}
        bound = {r.index for r in item.ranges} | {x[0] for x in self.limits[id(item)]}
        for index, lower, upper in self.limits[id(item)]:
            if index in replaced:
                replaced |= lower.free_symbols | upper.free_symbols
        return replaced & bound

    def members(self, item: Any) -> Iterator[Any]:
        """Yield an equation, covariance or order parameter at all values of its replaced indices.

        If both sources of a covariance have one name and take the same values of the indices, only one of the
        two orders of a pair is kept, because the covariance is symmetric.
        """
        indices = self.indices(item)
        if not indices:
            yield item
            return
        rest = tuple(r for r in item.ranges if r.index not in indices)
        for at in self.sized.over(r for r in item.ranges if r.index in indices):
            integers = {x: Integer(n) for x, n in at.items()}
            body = self.substituted(_body(item), integers, indices)
            symbols = [self.substituted(x, integers, indices) for x in _symbols(item)]
            if isinstance(item, Source):
                if self._is_second(item, at):
                    continue
                yield replace(item, symbol=symbols[0], partner=symbols[1], covariance=body, ranges=rest)
            elif isinstance(item, Equation):
                yield Equation(symbols[0], (Term.local(body),), rest)
            else:
                yield replace(item, symbol=symbols[0], definition=body, ranges=rest)

    def _is_second(self, item: Source, at: Mapping[Symbol, int]) -> bool:
        """Return whether the covariance of two members of a source is also stored with the members exchanged.

        ``at`` gives the values of the indices of the covariance ``item``. The result is true for the second
        of two equal covariances only, which is left out. Both covariances exist if the two sources take the
        same index values.
        """
        if item.symbol.func != item.partner.func:
            return False
        first, second = self._member(item.symbol, at), self._member(item.partner, at)
        return first < second and self._runs_alike(item)

    def _runs_alike(self, item: Source) -> bool:
        """Return whether both sources of a covariance run over the same set of values of their indices.

        These are the indices that are written out. The sources ``r(p)`` and ``r(p + 1)`` for p = 1..2 run
        over {1, 2} and {2, 3}, so that the result is False.
        """
        indices = self.indices(item)
        if item not in self.alike:
            members = [*self.sized.over(r for r in item.ranges if r.index in indices)]
            first, second = ({self._member(x, at) for at in members} for x in _symbols(item))
            self.alike[item] = first == second
        return self.alike[item]

    def _member(self, x: AppliedUndef, at: Mapping[Symbol, int]) -> tuple[int, ...]:
        """Return the integer arguments of the source x, with the values ``at`` in place of its indices.

        Arguments without a value, such as the time, are left out.
        """
        return tuple(self.sized.integer(a, at) for a in x.args if a.is_Integer or a.free_symbols & {*at})

    def substituted(self, e: Expr, at: Mapping[Symbol, Expr], indices: set[Symbol]) -> Expr:
        """Return an expression with integers ``at`` for indices, and sums over ``indices`` written out."""
        if e not in self.symbols:
            self.symbols[e] = e.atoms(Symbol)
        if self.symbols[e].isdisjoint(indices):
            return e
        if isinstance(e, Symbol):
            return at.get(e, e)
        if isinstance(e, Sum):
            return Add(*self._terms(e.function, tuple(e.limits), at, indices))
        if isinstance(e, AppliedUndef):
            return e.func(*[self._argument(e, k, a, at) for k, a in enumerate(e.args)])
        return e.func(*[self.substituted(x, at, indices) for x in e.args])

    def _terms(
        self, body: Expr, limits: tuple[Any, ...], at: Mapping[Symbol, Expr], indices: set[Symbol]
    ) -> Iterator[Expr]:
        """Yield the terms of a sum in which the indices in ``indices`` have integer values.

        ``body`` is the summand. ``limits`` are those of the sum, the outer ones last; each term is a sum
        over the indices that remain. ``at`` are integers for other indices in the summand.
        """
        outer = [x for x in limits if x[0] in indices]
        rest = [x for x in limits if x[0] not in indices]

        def run(left: list[Any], at: Mapping[Symbol, Expr]) -> Iterator[Expr]:
            if not left:
                inner = self.substituted(body, at, indices)
                ends = [
                    (i, self.substituted(low, at, indices), self.substituted(high, at, indices))
                    for i, low, high in rest
                ]
                yield Sum(inner, *ends) if ends else inner
                return
            index, lower, upper = left[-1]
            values = {x: int(n) for x, n in at.items()}
            for n in range(self.sized.integer(lower, values), self.sized.integer(upper, values) + 1):
                yield from run(left[:-1], {**at, index: Integer(n)})

        yield from run(outer, at)

    def _argument(self, e: AppliedUndef, k: int, a: Expr, at: Mapping[Symbol, Expr]) -> Expr:
        """Return the argument ``a`` of the function e at position k, with integers for replaced indices.

        ``at`` maps indices to integers. A value beyond the range is taken modulo the period, except along
        indices that are computed in order, and in arrays of constants that the program itself reads at
        shifted indices. If ``p + q`` becomes ``q + 2`` in an array of data, the first entry belongs to the
        lowest value of q and no longer to that of p; the difference of both is added to the argument, so
        that the same entry is read.
        """
        new = a.xreplace(dict(at))
        if (str(e.func), k) in self.shifted:
            return new
        if a.is_Integer or a.is_Symbol or self.sized.is_ordered(a):
            return new
        if not new.is_Integer:
            if new == a or str(e.func) in self.known or a.has(AppliedUndef):
                return new
            # Entry 0 of an axis of data belongs to the lowest value of one index of the argument. In
            # a = p + q this index is p. If p is replaced by 2, the argument becomes new = q + 2, and this
            # index is q. The lowest value of q minus that of p is added, so that the argument still reads the
            # same entry.
            return new + self._of_data(new)[0] - self._of_data(a)[0]
        low, high = self.extents.get((str(e.func), k)) or self._of_data(a)
        return Integer(low + (int(new) - low) % (high - low + 1))

    def _of_data(self, a: Expr) -> IntegerBounds:
        """Return the first and last index value of the axis of data that is used at ``a``, such as ``p + k``.

        They are those of the index p, or (1, 1) if ``a`` contains no index.
        """
        index = index_of_axis(a, [x for x in self.sized.lowest if x in self.widest])
        return (1, 1) if index is None else self.widest[index]

    @cached_property
    def widest(self) -> IndexBounds:
        """The lowest and the highest value of each index in all of its ranges."""
        bounds: dict[Symbol, IntegerBounds] = {}
        for _, use in _uses_of(self.sized, self.theory):
            for index, (low, high) in use.scope.items():
                first, last = bounds.get(index, (low, high))
                bounds[index] = min(low, first), max(high, last)
        return bounds

    def written_out(self, item: Any) -> WrittenOut | None:
        """Return which quantities take the place of the quantity ``item``, whose indices become integers.

        ``item`` is a scalar, observable or order parameter. The result is None if none of its indices is
        replaced by integers.
        """
        indices, symbol = self.indices(item), item.symbol
        ranges = [r for r in item.ranges if r.index in indices]
        if not ranges:
            return None
        open_places = [a for a in symbol.args if not a.is_Integer and a not in TIMES]
        axes = tuple(k for k, a in enumerate(open_places) if a.free_symbols & indices)
        index_of = [next(iter(open_places[k].free_symbols & indices)) for k in axes]
        spans = {r.index: range(self.sized.integer(r.lower), self.sized.integer(r.upper) + 1) for r in ranges}
        members = []
        for values in product(*(spans[x] for x in index_of)):
            at = {x: Integer(n) for x, n in zip(index_of, values, strict=True)}
            members.append(node_of(self.substituted(symbol, at, indices)))
        return WrittenOut(node_of(symbol), axes, tuple(len(spans[x]) for x in index_of), tuple(members))


# -- sums over parts of a range ------------------------------------------------------------------------------


class _WholeRanges:
    """Replacement of sums over a part of an index range by sums over the whole range.

    The summand then has a factor that is one in the part and zero elsewhere.
    """

    def __init__(self, sized: SizedTheory, theory: Theory) -> None:
        self.sized, self.extents = sized, _extents(sized, theory)
        known = {name for name, _ in self.extents}
        for _, use in _uses_of(sized, theory):
            name = str(use.atom.func)
            for k, a in enumerate(use.atom.args) if name not in known else ():
                if a.is_Symbol and a in use.scope:
                    low, high = use.scope[a]
                    first, last = self.extents.get((name, k), (low, high))
                    self.extents[name, k] = min(low, first), max(high, last)

    def of(self, item: Any) -> Any:
        """Return an equation, covariance or order parameter with sums over whole index ranges.

        Sums over times and layers, and sums without a wider range (:meth:`whole`), are unchanged.
        """
        scope = _spans(self.sized, item.ranges)
        return _changed(item, lambda e: self.summed(e, scope))

    def summed(self, e: Expr, scope: IndexBounds) -> Expr:
        """Return an expression with sums over whole ranges; ``scope`` are the ranges of its free indices.

        ``sum_(p=a..b) f(p)`` becomes ``sum_p theta(a <= p <= b) f(p)`` over the range of p.
        """
        if not e.has(Sum):
            return e
        if not isinstance(e, Sum):
            return e.func(*[self.summed(x, scope) for x in e.args])
        inner = dict(scope)
        for index, lower, upper in reversed(e.limits):
            if index not in TIMES:
                inner[index] = _span(self.sized, lower, upper, inner)
        body, inside, limits = self.summed(e.function, inner), S.One, []
        if body == 0:
            return S.Zero
        for index, lower, upper in e.limits:
            indicator = S.One
            if index not in TIMES and index != ell:
                first, last = self.whole(index, e.function, inner[index])
                indicator = self.inside(index, self.valued(lower), self.valued(upper), (first, last))
            limits.append((index, lower, upper) if indicator == 1 else (index, first, last))
            inside *= indicator
        return Sum(Add(*[inside * x for x in Add.make_args(body)]), *limits)

    def valued(self, e: Expr) -> Expr:
        """Return an expression with numbers in place of the symbols of sizes, such as P."""
        values = self.sized.values
        return e.subs({x: values[x.name] for x in e.free_symbols if x.name in values})

    def whole(self, index: Symbol, body: Expr, own_range: IntegerBounds) -> IntegerBounds:
        """Return the range over which a sum with this index is extended.

        ``body`` is the summand, and ``own_range`` the range of the sum. The result is the range of the
        index in the functions of ``body`` that have the index as an argument, such as that of p in
        ``x(p, t)``. It is ``own_range`` if there are no such functions, if the index has several ranges
        in them, or if its range in them does not contain ``own_range``.
        """
        spans = {
            self.extents[str(x.func), k]
            for x in body.atoms(AppliedUndef)
            for k, a in enumerate(x.args)
            if a == index and (str(x.func), k) in self.extents
        }
        wide = [x for x in spans if x[0] <= own_range[0] and own_range[1] <= x[1]]
        return wide[0] if len(spans) == len(wide) == 1 else own_range

    def inside(self, index: Symbol, lower: Expr, upper: Expr, whole: IntegerBounds) -> Expr:
        """Return a factor that is one within the limits of a sum, and zero elsewhere in the whole range."""
        factor: Expr = S.One
        for e in lower.args if isinstance(lower, Max) else (lower,):
            if e.free_symbols or self.sized.integer(e) > whole[0]:
                factor *= Heaviside(index - e + S.Half)
        for e in upper.args if isinstance(upper, Min) else (upper,):
            if e.free_symbols or self.sized.integer(e) < whole[1]:
                factor *= Heaviside(e - index + S.Half)
        return factor


# -- one name for each range ---------------------------------------------------------------------------------


class _Names:
    """Renaming of indices such that each name has one range."""

    def __init__(self, sized: SizedTheory) -> None:
        self.sized = sized
        self.ranges: dict[Symbol, IntegerBounds] = {}

    def name(self, index: Symbol, lower: Any, upper: Any) -> Symbol:
        """Return the name of an index that runs over a range: a new one if it had another range before.

        Times, layers, and indices whose limits contain another index keep their names.
        """
        free = sympify(lower).free_symbols | sympify(upper).free_symbols
        if index in TIMES or index == ell or any(x.name not in self.sized.values for x in free):
            return index
        span = self.sized.integer(lower), self.sized.integer(upper)
        if self.ranges.setdefault(index, span) == span:
            return index
        return Symbol(f"{index.name}[{span[0]}:{span[1]}]", **index.assumptions0)

    def of(self, item: Any) -> Any:
        """Return an equation, covariance or order parameter in which each index name has one range."""
        names = {r.index: self.name(r.index, r.lower, r.upper) for r in item.ranges}
        changed = {x: new for x, new in names.items() if x != new}
        item = _changed(item, self.summed)
        if not changed:
            return item
        ranges = tuple(r.renamed(names[r.index]) for r in item.ranges)
        if isinstance(item, Equation):
            return Equation(item.lhs.xreplace(changed), (Term.local(item.rhs.xreplace(changed)),), ranges)
        return replace(item.map(lambda e: sympify(e).xreplace(changed)), ranges=ranges)

    def summed(self, e: Expr) -> Expr:
        """Return an expression with the indices of its sums renamed such that each has one range."""
        if not e.has(Sum):
            return e
        if not isinstance(e, Sum):
            return e.func(*[self.summed(x) for x in e.args])
        names = {x[0]: self.name(*x) for x in e.limits}
        body = self.summed(e.function).xreplace({x: new for x, new in names.items() if x != new})
        return Sum(body, *[(names[index], lower, upper) for index, lower, upper in e.limits])
