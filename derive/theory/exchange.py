"""Exchangeable indices: values of an index that can be permuted without changing the equations of a theory.

An index class is one index of the theory wherever it occurs: ``v(k, t)`` and ``C_v(k, k_, t, s)`` contain the
same one. The module finds the classes, and for each quantity the reasons for which its equation distinguishes
values of the index: the index itself stands in an expression, it has an integer value, its values are
ordered, or it is an index of a given array. A solver that knows the arrays averages order parameters over the
permutations that remain (:mod:`numerics.solver.paths.exchange`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from sympy import Expr, Integral, KroneckerDelta, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from derive.theory.data import Equation, OrderParameter, Source, TheoryData

IndexPlace = tuple[str, int]
"""Name of a quantity or array, and the position of an index among its arguments."""

ClassMember = tuple[str | int, ...]
"""Position ``(name, k)`` of an index, or ``(number,)`` for an index with a range in one statement."""

TIMES = frozenset({t, s})


@dataclass(frozen=True)
class IndexClass:
    """Index of a theory, with all places at which it occurs as an argument.

    Attributes
    ----------
    places : frozenset of (str, int)
        Names of quantities and given arrays, each with the position of the index among their arguments.
    lower, upper : Expr
        Range of the index.
    arrays : dict
        For each quantity the names of the given arrays with this index on which the quantity depends,
        directly or through other quantities. Quantities without such an array are missing.
    fixed : frozenset of str
        Names of quantities whose equations distinguish values of the index even if the arrays do not, or that
        depend on such a quantity.
    """

    places: frozenset[IndexPlace]
    lower: Expr
    upper: Expr
    arrays: Mapping[str, frozenset[str]]
    fixed: frozenset[str]

    def axes(self, name: str) -> tuple[int, ...]:
        """Return the positions of the index among the arguments of the quantity or array ``name``."""
        return tuple(sorted(k for x, k in self.places if x == name))


def exchangeable(theory: TheoryData) -> tuple[IndexClass, ...]:
    """Return the indices of a theory, each with the quantities that limit permutations of its values.

    The equations of every name outside of ``fixed`` keep their form if the values of the index are permuted
    in all places of the class at once, and so do the equations of all quantities on which it depends. The
    solution is therefore invariant under those permutations that leave the ``arrays`` of the name unchanged.
    An index with different ranges at different places is left out. Equations of observables are not read, so
    that nothing is stated about observables.

    >>> from derive.program.networks import committee
    >>> from derive.theory import mean_field
    >>> units, taught = exchangeable(mean_field(committee(student=3, teacher=2)))
    >>> units.upper, units.axes("C_v"), units.axes("C_vv_star"), sorted(units.fixed)
    (3, (0, 1), (0,), [])
    >>> taught.upper, taught.axes("C_vv_star")
    (2, (1,))
    """
    return tuple(_Classes(theory).classes())


@dataclass
class _ReadItem:
    """Equation, source or order parameter, with the quantities and indices that occur in it.

    ``names`` are the quantities that it determines, ``reads`` those that it contains, and ``broken`` the
    indices whose values it distinguishes. ``arrays`` are the given arrays that it contains, each with the
    position of an index among its arguments.
    """

    names: tuple[str, ...]
    is_source: bool
    reads: set[str] = field(default_factory=set)
    broken: set[ClassMember] = field(default_factory=set)
    arrays: set[tuple[str, ClassMember]] = field(default_factory=set)


class _Classes:
    """Classes of indices that must be permuted together (a union-find structure).

    They are joined while the equations, sources and order parameters of a theory are read. A member of a
    class is a position ``(name, k)`` among the arguments of a quantity, or ``(number,)`` for an index that
    runs over a range in one equation.
    """

    def __init__(self, theory: TheoryData) -> None:
        self.parent: dict[ClassMember, ClassMember] = {}
        self.ranges: dict[ClassMember, set[tuple[Expr, Expr]]] = {}
        equations = (*theory.equations, *theory.scalars)
        stated = (*equations, *theory.order_parameters, *theory.observables)
        self.known = {x.name for x in stated} | {
            str(x.func) for u in theory.sources for x in (u.symbol, u.partner)
        }
        self.items: list[_ReadItem] = []
        for e in equations:
            self.read((e.symbol,), (e.lhs, e.rhs), e)
        for q in theory.order_parameters:
            self.read((q.symbol,), (q.symbol, q.definition), q)
        for u in theory.sources:
            self.read((u.symbol, u.partner), (u.symbol, u.partner, sympify(u.covariance)), u)

    # -- joining -----------------------------------------------------------------------------------------

    def root(self, x: ClassMember) -> ClassMember:
        """Return the member that represents the class of equal indices to which ``x`` belongs.

        ``x`` is an argument position ``(name, k)`` or an index ``(number,)``; unknown ones become a new
        class.
        """
        while (above := self.parent.setdefault(x, x)) != x:
            x = above
        return x

    def join(self, x: ClassMember, y: ClassMember) -> None:
        """Merge the classes of equal indices to which ``x`` and ``y`` belong."""
        self.parent[self.root(x)] = self.root(y)

    # -- reading -----------------------------------------------------------------------------------------

    def read(
        self,
        symbols: tuple[AppliedUndef, ...],
        expressions: Iterable[Expr],
        stated: Equation | OrderParameter | Source,
    ) -> None:
        """Record which arguments are the same index in one equation, source or order parameter, ``stated``.

        ``symbols`` are the quantities that it determines, and ``expressions`` all expressions in it, in which
        a free index has one meaning.
        """
        names = tuple(dict.fromkeys(str(x.func) for x in symbols))
        item = _ReadItem(names, isinstance(stated, Source))
        scope = {r.index: self.bound(r.lower, r.upper, {}, item) for r in stated.ranges}
        for e in expressions:
            self.walk(e, scope, item)
        self.items.append(item)

    def bound(
        self, lower: Expr, upper: Expr, scope: Mapping[Symbol, ClassMember], item: _ReadItem
    ) -> ClassMember:
        """Return a new member of the classes of equal indices, for an index from ``lower`` to ``upper``.

        ``scope`` maps the other indices of the statement ``item`` to their members. If a bound contains one
        of them, the values of both indices are ordered and thus distinguished.
        """
        member = (len(self.parent),)
        self.parent[member] = member
        ends = tuple(map(sympify, (lower, upper)))
        self.ranges[member] = {ends}
        for end in ends:
            if end.free_symbols & {*scope}:
                item.broken.add(member)
                self.walk(end, scope, item)
        return member

    def walk(self, e: Any, scope: Mapping[Symbol, ClassMember], item: _ReadItem) -> None:
        """Record the indices in the expression ``e``, which is part of the statement ``item``.

        ``scope`` maps each index that may occur in ``e`` to its member in the classes of equal indices. The
        two indices of a Kronecker delta belong to one class. Any other index that stands alone, not as an
        argument, has distinguished values.
        """
        if isinstance(e, Symbol):
            if e in scope:
                item.broken.add(scope[e])
        elif isinstance(e, Sum | Integral):
            inner = dict(scope)
            for index, *ends in reversed(e.limits):
                if index in TIMES or isinstance(e, Integral):
                    inner.pop(index, None)
                    for end in ends:
                        self.walk(end, inner, item)
                else:
                    inner[index] = self.bound(ends[0], ends[1], inner, item)
            self.walk(e.function, inner, item)
        elif isinstance(e, KroneckerDelta) and all(x in scope for x in e.args):
            self.join(*[scope[x] for x in e.args])
        elif isinstance(e, AppliedUndef):
            self.applied(e, scope, item)
        else:
            for x in e.args:
                self.walk(x, scope, item)

    def applied(self, e: AppliedUndef, scope: Mapping[Symbol, ClassMember], item: _ReadItem) -> None:
        """Record which indices stand at the argument positions of ``e``, such as ``v(k, t)``.

        ``scope`` maps indices to their members in the classes of equal indices, and ``item`` is the statement
        with ``e``. An argument such as ``a + 1`` or 3, which is neither an index nor contains a function,
        distinguishes values of the index. The times t and s are not indices.
        """
        name = str(e.func)
        item.reads.add(name)
        for k, x in enumerate(e.args):
            if x in TIMES:
                continue
            place = (name, k)
            if x in scope:
                self.join(place, scope[x])
                if name not in self.known:
                    item.arrays.add((name, place))
            elif x.is_Integer:
                item.broken.add(place)
            else:
                if not x.atoms(AppliedUndef):
                    for index in x.free_symbols & {*scope}:
                        self.join(place, scope[index])
                    item.broken.add(place)
                self.walk(x, scope, item)

    # -- classes -----------------------------------------------------------------------------------------

    def classes(self) -> Iterator[IndexClass]:
        """Yield the classes whose indices all have the same range, as `IndexClass` objects."""
        members: dict[ClassMember, list[ClassMember]] = {}
        for x in list(self.parent):
            members.setdefault(self.root(x), []).append(x)
        for root, inside in members.items():
            ranges = {r for x in inside for r in self.ranges.get(x, ())}
            places = frozenset((str(x[0]), int(x[1])) for x in inside if len(x) == 2)
            if len(ranges) != 1 or not places:
                continue
            ((lower, upper),) = ranges
            broken, arrays = self.depends(root)
            yield IndexClass(places, lower, upper, arrays, frozenset(broken))

    def depends(self, root: ClassMember) -> tuple[Set[str], Mapping[str, frozenset[str]]]:
        """Return the names that distinguish values of an index, and the given arrays on which names depend.

        ``root`` represents the class of the index. The dictionary gives for each name its given arrays, and
        names without arrays are missing. A quantity that contains another one takes over both properties
        from it. Correlated sources and the quantities in their covariances share both properties, because a
        solver must average their covariances over the same permutations.
        """
        broken: set[str] = set()
        arrays: dict[str, set[str]] = {name: set() for name in self.known}
        together = self.covariances()
        for item in self.items:
            is_broken = any(self.root(x) == root for x in item.broken)
            given = {name for name, place in item.arrays if self.root(place) == root}
            for name in item.names:
                broken |= {name} if is_broken else set()
                arrays[name] |= given
        while True:
            before = (len(broken), sum(map(len, arrays.values())))
            for item in self.items:
                read = item.reads & self.known
                given = set().union(*(arrays[x] for x in read))
                for name in item.names:
                    broken |= {name} if read & broken else set()
                    arrays[name] |= given
            for names in together:
                broken |= names if names & broken else set()
                given = set().union(*(arrays[x] for x in names))
                for name in names:
                    arrays[name] |= given
            if before == (len(broken), sum(map(len, arrays.values()))):
                return broken, {name: frozenset(x) for name, x in arrays.items() if x}

    def covariances(self) -> list[set[str]]:
        """Return one set of names for each group of correlated sources.

        It contains the sources, and the quantities of the theory that occur in their covariances.
        """
        groups: list[set[str]] = []
        for item in self.items:
            if not item.is_source:
                continue
            names = {*item.names}
            joined = [x for x in groups if x & names]
            groups = [x for x in groups if not x & names]
            groups.append(names.union(item.reads & self.known, *joined))
        return groups
