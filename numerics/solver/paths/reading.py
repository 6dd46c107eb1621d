"""A nonlinear Theory read into quantities on paths, groups of sources and averages, and the order of a step.

Nothing is known about networks here: what multiplies what, over which past, is what the engine derived.  What
a step computes is sorted topologically; a cycle means that nothing is causal.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

from sympy import (
    Abs,
    Add,
    DiracDelta,
    Dummy,
    Expr,
    Heaviside,
    Max,
    Min,
    Mul,
    Piecewise,
    Sum,
    Symbol,
    sign,
    sympify,
)
from sympy import Function as Named
from sympy.core.function import AppliedUndef, UndefinedFunction

from derive.calculus.averages import Average, Response, is_random
from derive.calculus.symbols import IndexRange, s, t
from derive.theory import Equation, OrderParameter, Term, Theory
from numerics.errors import Unserved
from numerics.lowering.expressions import CompiledFunction, UnseenJump, function, leaves_of
from numerics.lowering.indices import (
    TIMES,
    indices_of,
    limits,
    moving_nodes,
    node_at_zero,
    node_of,
    open_args,
    require_fixed_limits,
    require_open_numbers,
    together,
)
from numerics.lowering.sizes import SizedTheory
from numerics.names import MemberKey
from numerics.solver.linear.plan import NotCausal, in_order
from numerics.solver.paths.indices import with_plain_indices


@dataclass(frozen=True)
class PastSum:
    """``Sum(kernel * what, over, times)``: a known kernel on a quantity at past times.

    ``symbols`` are the indices of ``what`` as the kernel writes them; ``over`` are all indices summed over;
    ``through`` says that the present belongs to the sum.
    """

    kernel: Expr
    what: MemberKey
    symbols: tuple[Symbol, ...]
    over: tuple[Symbol, ...]
    time: Symbol
    through: bool


@dataclass
class Quantity:
    """Something that differs between paths, at time t: a field or a function of fields."""

    node: MemberKey
    indices: tuple[Symbol, ...]
    sizes: tuple[int, ...]
    expr: Expr
    memories: dict[Expr, list[PastSum]] = field(default_factory=dict)

    @cached_property
    def function(self) -> CompiledFunction:
        """``expr`` as a function of its leaves."""
        return function(self.expr)


@dataclass(frozen=True)
class PathCorrelation:
    """``<X(t) Y(s)>`` (or, with one quantity, ``<X(t)>``): quantities and the indices that they carry."""

    first: MemberKey
    first_symbols: tuple[Symbol, ...]
    second: MemberKey | None = None
    second_symbols: tuple[Symbol, ...] = ()


@dataclass(frozen=True)
class Responding:
    """``<d X(t) / d source(s)>``."""

    what: MemberKey
    symbols: tuple[Symbol, ...]
    source: MemberKey
    source_symbols: tuple[Symbol, ...]


@dataclass(frozen=True)
class PathEntry:
    """An order parameter or scalar: its indices, its expression, and the averages in it."""

    node: MemberKey
    args: tuple[Symbol, ...]
    expr: Expr
    averages: Mapping[Expr, PathCorrelation | Responding]
    causal: str = ""
    sums: Mapping[Expr, PathEntry] = field(default_factory=dict)
    """Sums over indices of what has averages in it, as entries that carry these indices too."""

    @cached_property
    def indices(self) -> tuple[Symbol, ...]:
        """Its indices, without times."""
        return tuple(x for x in self.args if x not in TIMES)

    @cached_property
    def two_times(self) -> bool:
        """Is it read at two times?"""
        return s in self.args

    @cached_property
    def is_response(self) -> bool:
        """Does it hold a response?"""
        return any(isinstance(x, Responding) for x in self.averages.values())


@dataclass(frozen=True)
class Covariance:
    """``<a(t) b(s)>`` with the indices of ``a`` and those of ``b``."""

    expr: Expr
    first: tuple[Symbol, ...]
    second: tuple[Symbol, ...]


def with_named_averages(theory: Theory) -> Theory:
    """The theory with a scalar for each average at one time that stands inside of an expression.

    In ``a/sqrt(<a(t)**2>)`` the average becomes ``average0(t)``, with ``average0(t) = <a(t)**2>`` among the
    scalars.  Order parameters and scalars keep the averages that they are made of.
    """
    ends = {index: (lower, upper) for index, lower, upper in reversed(list(limits(theory)))}
    scalars: dict[Expr, Equation] = {}

    def named(a: Expr) -> Expr:
        times = a.free_symbols & set(TIMES)
        if a.args[0].has(Response) or len(times) != 1:
            return a
        (time,) = times
        now = a.xreplace({time: t})
        if now not in scalars:
            indices = sorted((x for x in a.free_symbols if x in ends), key=str)
            lhs = UndefinedFunction(f"average{len(scalars)}")(*indices, t)
            ranges = tuple(IndexRange(x, *ends[x]) for x in indices)
            scalars[now] = Equation(lhs, (Term.local(now, "definition"),), ranges)
        return scalars[now].lhs.xreplace({t: time})

    def inside(e: Expr) -> Expr:
        return sympify(e).replace(lambda x: isinstance(x, Average), named)

    def within(e: Expr) -> Expr:
        return sympify(e).xreplace(
            {a: Average(inside(a.body)) for a in leaves_of(sympify(e)) if isinstance(a, Average)}
        )

    found = replace(
        theory,
        equations=tuple(e.map(inside) for e in theory.equations),
        sources=tuple(u.map(inside) for u in theory.sources),
        observables=tuple(e.map(inside) for e in theory.observables),
        order_parameters=tuple(q.map(within) for q in theory.order_parameters),
        scalars=tuple(e.map(within) for e in theory.scalars),
    )
    return replace(found, scalars=(*scalars.values(), *found.scalars)) if scalars else theory


def with_attributes_as_fields(theory: Theory) -> Theory:
    """Return the theory with each attribute of units read as a field at the time of what it multiplies.

    In ``<tanh(h(t)*gain(k))*r(s)>`` the attribute becomes ``gain(t)``: a quantity without an index that
    differs between paths and is the same at all times.
    """
    names = {x.name for x in theory.program.attributes}
    return theory.map(lambda e: _attributes_at(sympify(e), names, t)) if names else theory


def _attributes_at(e: Expr, names: set[str], time: Symbol) -> Expr:
    """``e`` with ``time``, or the time of the sum or factor that it stands in, as argument of attributes."""
    if isinstance(e, AppliedUndef) and str(e.func) in names:
        return e.func(time)
    if isinstance(e, Average):
        factors = Mul.make_args(e.body)
        late = s if e.body.has(s) and not e.body.has(t) else t
        return Average(
            Mul(*[_attributes_at(x, names, late if x.has(t) or not x.has(s) else s) for x in factors])
        )
    if isinstance(e, Sum):
        own = s if any(limit[0] == s for limit in e.limits) else time
        return Sum(_attributes_at(e.function, names, own), *e.limits)
    if not any(str(x.func) in names for x in e.atoms(AppliedUndef)):
        return e
    return e.func(*[_attributes_at(x, names, time) for x in e.args])


class Model:
    """The tables of a theory for given sizes, whatever the other numbers are."""

    def __init__(self, sized: SizedTheory) -> None:
        self.sized = sized
        plain = with_plain_indices(sized)
        self.written_out, self.literals = plain.written_out, plain.literals
        theory = with_named_averages(with_attributes_as_fields(plain.theory))
        self.observables = theory.observables
        self.attributes: dict[MemberKey, str] = {(name, ()): name for name in sorted(sized.attributes)}
        """The attributes of units, which are the same at all times, by the nodes that stand for them."""
        self.random = {*sized.random, *sized.attributes}
        self.moving = moving_nodes(theory)
        self.sizes: dict[Symbol, int] = {}
        self.first: dict[Symbol, int] = {}
        self.sources: dict[MemberKey, tuple[tuple[Symbol, ...], tuple[int, ...]]] = {}
        self.covariances: dict[tuple[MemberKey, MemberKey], Covariance] = {}
        self.quantities: dict[MemberKey, Quantity] = {}
        self.pieces: dict[Expr, MemberKey] = {}
        for u in theory.sources:
            self._source(u.symbol, u.partner, sympify(u.covariance), u.ranges)
        self.field_names = {node_of(e.lhs) for e in theory.equations if not e.lhs.is_Derivative}
        for e in theory.equations:
            self._field(e.lhs, e.rhs, e.ranges)
        self.entries: dict[MemberKey, PathEntry] = {}
        for q in theory.order_parameters:
            self._entry(q.symbol, q.definition, q.ranges, q)
        self.scalars: dict[MemberKey, PathEntry] = {}
        for x in theory.scalars:
            self.scalars[node_of(x.lhs)] = self._read(x.lhs, x.rhs, x.ranges)
        for x in theory.observables:
            self._remember(r.limits for r in x.ranges)
        require_open_numbers(theory)
        self.groups = together(self.sources, self.covariances)
        components = self._components()
        number = {n: i for i, group in enumerate(self.groups) for n in group}
        groups = [list(dict.fromkeys(number[n] for n in x if n in number)) for x in components]
        self.populations = [own for own in groups if own]
        self.members = [x for x, own in zip(components, groups, strict=True) if own]
        """The sources, quantities and attributes of each population."""
        self.attributes_of = {
            n: tuple(self.attributes[a] for a in x if a in self.attributes) for x in components for n in x
        }
        self.blocks = list(self.groups)
        """What is drawn at once: all of a group, unless some of its sources need others at the same step."""
        self.in_order = True
        """Are blocks in the order in which they are drawn?"""
        self.order = self._causal_order()

    # -- sizes -----------------------------------------------------------------------------------------

    def _remember(self, limits: Iterable[Any]) -> None:
        for index, lower, upper in limits:
            require_fixed_limits(index, lower, upper, self.sized.values)
            low, high = self.sized.integer(lower), self.sized.integer(upper)
            if self.first.setdefault(index, low) != low:
                raise Unserved(f"index {index} starts in two places")
            if self.sizes.setdefault(index, high - low + 1) != high - low + 1:
                raise Unserved(f"index {index} has two ranges")

    def size(self, symbols: Iterable[Symbol]) -> tuple[int, ...]:
        """How far these indices run."""
        return tuple(self.sizes[x] for x in symbols)

    # -- sources and fields ----------------------------------------------------------------------------

    def _source(self, symbol: AppliedUndef, partner: AppliedUndef, covariance: Expr, ranges: Any) -> None:
        self._remember(r.limits for r in ranges)
        for x in (symbol, partner):
            if len(open_args(x)) - len(indices_of(x)) != 1:
                raise Unserved(f"the source {x} does not carry one time")
            self.sources.setdefault(node_of(x), (indices_of(x), self.size(indices_of(x))))
        self.covariances[node_of(symbol), node_of(partner)] = Covariance(
            covariance, indices_of(symbol), indices_of(partner)
        )

    def _field(self, lhs: Expr, rhs: Expr, ranges: Any) -> None:
        if lhs.is_Derivative:
            raise Unserved(f"{lhs} is given by a flow; sampled paths count steps: use a rule in steps")
        if open_args(lhs) != (*indices_of(lhs), t):
            raise Unserved(f"the equation of {lhs} does not end with one time t")
        self._remember(r.limits for r in ranges)
        node = node_of(lhs)
        if node in self.quantities:
            raise Unserved(f"{lhs} is given by cases")
        self.quantities[node] = self._quantity(node, indices_of(lhs), rhs)

    def _quantity(self, node: MemberKey, indices: tuple[Symbol, ...], expr: Expr) -> Quantity:
        """Sums over the past that are added up are one leaf, the first: kernels are added before the past is
        read, once.  A smooth function of fields, such as tanh(h), is a quantity by itself: others read it.
        """
        outside = expr.xreplace({x: Dummy() for x in expr.atoms(Sum)})
        for x in sorted(outside.atoms(Named), key=str):
            if x != expr and expr.has(x) and self.is_random(x) and _is_smooth(x):
                own, symbols = self.piece(x, t)
                self.random.add(own[0])
                expr = expr.xreplace({x: UndefinedFunction(own[0])(*symbols, t)})
        added = [x for x in Add.make_args(expr) if isinstance(x, Sum) and self.is_random(x)]
        q = Quantity(node, indices, self.size(indices), Add(expr, *(-x for x in added[1:])))
        for x in q.function.leaves:
            if isinstance(x, Sum) and self.is_random(x):
                sums = added if x in added else [x]
                q.memories[x] = _joined(self._memory(y, term, indices) for y in sums for term in _terms(y))
            elif isinstance(x, AppliedUndef) and self.is_random(x):
                if x.args[-1] != t and not self.is_at_zero(x):
                    raise Unserved(f"{x} stands in an equation at time t")
                if set(indices_of(x)) - set(indices):
                    raise Unserved(f"{x} carries an index that {node[0]} does not have")
        return q

    def node(self, x: AppliedUndef) -> MemberKey:
        """The node of a field or number, which may be read at time zero."""
        return node_at_zero(x) or node_of(x) if self.is_at_zero(x) else node_of(x)

    def is_at_zero(self, x: AppliedUndef) -> bool:
        """Is this the value of a field or number at time zero?"""
        return node_at_zero(x) in self.moving

    def is_random(self, e: Expr) -> bool:
        """Does ``e`` differ between paths?"""
        return is_random(e, frozenset(self.random))

    def _memory(self, leaf: Sum, body: Expr, own: tuple[Symbol, ...]) -> PastSum:
        times = [x for x in leaf.limits if x[0] in TIMES]
        over = tuple(x[0] for x in leaf.limits if x[0] not in TIMES)
        self._remember(x for x in leaf.limits if x[0] not in TIMES)
        if len(times) > 1 or (times and (times[0][0] != s or times[0][1] != 0)):
            raise Unserved(f"{leaf}: sums over time must run over s from 0")
        if times and times[0][2] not in (t, t - 1):
            raise Unserved(f"{leaf}: sums over time must end at t or t - 1")
        time = times[0][0] if times else t
        factors = Mul.make_args(body)
        moving = [x for x in factors if self.is_random(x)]
        around = self._unshifted(Mul(*moving), over)
        factors = tuple(x.subs(around) for x in factors)
        what = Mul(*[x.subs(around) for x in moving])
        if what.free_symbols & (set(TIMES) - {time}):
            raise Unserved(f"{leaf}: {what} is read at two times")
        node, symbols = self.piece(what, time)
        if set(symbols) - set(over) - set(own):
            raise Unserved(f"{leaf}: {what} carries an index that is not summed")
        through = not times or times[0][2] == t
        kernel = Mul(*[x for x in factors if not self.is_random(x)])
        return PastSum(kernel, node, symbols, over, time, through)

    def _unshifted(self, what: Expr, over: tuple[Symbol, ...]) -> list[tuple[Symbol, Expr]]:
        """Substitutions under which ``what`` is read at ``p`` and not at ``p + k``: sums over a ring may
        start anywhere.
        """
        found: dict[Symbol, Expr] = {}
        for x in sorted(what.atoms(AppliedUndef), key=str):
            for a in x.args:
                ring = [y for y in over if a != y and y in a.free_symbols and self.first[y] == 1]
                if len(ring) == 1 and not self.sized.is_ordered(a):
                    found.setdefault(ring[0], 2 * ring[0] - a)
        return list(found.items())

    def piece(self, e: Expr, time: Symbol) -> tuple[MemberKey, tuple[Symbol, ...]]:
        """The quantity that ``e``, read at ``time``, is, and the indices that it carries."""
        if isinstance(e, AppliedUndef) and node_of(e) in {*self.field_names, *self.sources, *self.attributes}:
            return node_of(e), indices_of(e)
        applied = (i for x in sorted(e.atoms(AppliedUndef), key=str) for i in indices_of(x))
        bare = (
            x for x in sorted(e.free_symbols, key=str) if x in self.sizes
        )  # in 1/(p + p*exp(h(mu, r, t)))
        symbols = tuple(
            i
            for i in dict.fromkeys((*applied, *bare))
            if i in e.free_symbols  # and not one that a sum in it runs over
        )
        for x in symbols:
            if x not in self.sizes:
                raise Unserved(f"{e}: the range of {x} is not known")
        slots = tuple(self._slot(n, x) for n, x in enumerate(symbols))
        bare = e.xreplace(dict(zip(symbols, slots, strict=True)) | {time: t})
        if bare not in self.pieces:
            node = (f"piece{len(self.pieces)}", ())
            self.pieces[bare] = node
            self.quantities[node] = self._quantity(node, slots, bare)
        return self.pieces[bare], symbols

    def _slot(self, n: int, x: Symbol) -> Symbol:
        """The n-th index of a piece, one for each range because sizes are kept by the index."""
        slot = Symbol(f"_{n}[{self.first[x]}:{self.sizes[x]}]", integer=True)
        self.first[slot], self.sizes[slot] = self.first[x], self.sizes[x]
        return slot

    # -- averages --------------------------------------------------------------------------------------

    def _entry(self, symbol: AppliedUndef, body: Expr, ranges: Any, item: OrderParameter) -> None:
        if tuple(x for x in open_args(symbol) if x in TIMES) not in ((t, s), (t,)):
            raise Unserved(f"{symbol} does not end with t, s")
        self.entries[node_of(symbol)] = self._read(symbol, body, ranges, item.causal)

    def _read(self, symbol: AppliedUndef, body: Expr, ranges: Any, causal: str = "") -> PathEntry:
        self._remember(r.limits for r in ranges)
        args = open_args(symbol)
        sums: dict[Expr, PathEntry] = {}
        for x in leaves_of(body):
            if isinstance(x, Sum) and x.has(Average):
                over = tuple(lim[0] for lim in x.limits)
                self._remember(x.limits)
                wider = symbol.func(*over, *symbol.args)
                sums[x] = self._read(wider, x.function, ())
        averages = {a: self._average(a) for a in leaves_of(body) if isinstance(a, Average)}
        return PathEntry(node_of(symbol), args, body, averages, causal, sums)

    def _average(self, a: Average) -> PathCorrelation | Responding:
        body = a.body
        if isinstance(body, Response):
            what, symbols = self.piece(body.body, t)
            return Responding(what, symbols, node_of(body.source), indices_of(body.source))
        if s not in body.free_symbols:
            return PathCorrelation(*self.piece(body, t))
        factors = Mul.make_args(body)
        early, late = (Mul(*[x for x in factors if y in x.free_symbols]) for y in (s, t))
        for x in factors:  # numbers, such as 1/2, and fields at time zero
            if not x.free_symbols & {s, t}:
                apart = x.free_symbols - late.free_symbols
                early, late = (early * x, late) if apart & early.free_symbols else (early, late * x)
        if t in early.free_symbols or s in late.free_symbols:
            raise Unserved(f"{a} is no product of something at t and something at s")
        return PathCorrelation(*self.piece(late, t), *self.piece(early, s))

    # -- what a march asks ------------------------------------------------------------------------------

    def _causal_order(self) -> list[PathOperation]:
        """Sort the operations of a step; a matrix that is used twice in sequence has its sources drawn one
        after another.

        Raises Unserved if some operations need each other even so.
        """
        try:
            return self._sorted()
        except NotCausal:
            pass
        self.blocks, self.in_order = [(n,) for group in self.groups for n in group], False
        try:
            drawn = [self.blocks[node[1][0]][0] for kind, node in self._sorted() if kind == "draw"]
            self.groups = [tuple(n for n in drawn if n in group) for group in self.groups]
            self.blocks, self.in_order = [(n,) for n in drawn], True
            return self._sorted()
        except NotCausal as reason:
            raise Unserved(f"sampled paths find no order within a step: {reason}") from None

    def _sorted(self) -> list[PathOperation]:
        return in_order(
            _operations(self), lambda op: _needs(self, op), lambda op: f"{op[0]} {op[1][0]}{op[1][1]}"
        )

    def before(self, block: tuple[MemberKey, ...]) -> tuple[MemberKey, ...]:
        """Return the sources of the same group that are drawn before a block in the same step."""
        group = self.groups[group_of(self, block[0])]
        earlier = self.blocks[: self.blocks.index(block)] if self.in_order else []
        return tuple(n for n in group if any(n in x for x in earlier))

    @cached_property
    def afterwards(self) -> set[MemberKey]:
        """Correlations that no operation reads: they are found all at once, when all steps are done."""
        read = {x[1] for op in self.order for x in _needs(self, op)}

        def plain(e: PathEntry) -> bool:
            found = [
                c for c in e.averages.values() if isinstance(c, PathCorrelation) and c.second is not None
            ]
            return len(found) == len(e.averages) and all(plain(x) for x in e.sums.values())

        return {n for n, e in self.entries.items() if n not in read and e.two_times and plain(e)}

    @cached_property
    def read_later(self) -> set[MemberKey]:
        """What is read after its step: by sums over the past, by averages, or for its rounding."""
        found = {
            m.what for q in self.quantities.values() for ms in q.memories.values() for m in ms if m.time != t
        }
        entries = [*self.entries.values(), *self.scalars.values()]
        for e in entries:
            entries += e.sums.values()
            for c in e.averages.values():
                if isinstance(c, PathCorrelation) and (c.second is not None or e.node in self.scalars):
                    found |= {c.first, c.second or c.first}
        return found | self.read_at_zero

    @cached_property
    def read_at_zero(self) -> set[MemberKey]:
        """The fields of which some quantity reads the values at time zero."""
        leaves = [x for q in self.quantities.values() for x in q.function.leaves]
        return {self.node(x) for x in leaves if isinstance(x, AppliedUndef) and self.is_at_zero(x)} & {
            *self.quantities
        }

    @cached_property
    def kinds(self) -> dict[Responding, str]:
        """``linear``, ``smooth`` or ``jumps``: the functions on the way from a source to what responds."""
        averages = [c for e in self.entries.values() for c in e.averages.values()]
        return {c: _kind(self, c) for c in averages if isinstance(c, Responding)}

    @cached_property
    def moving_sources(self) -> set[MemberKey]:
        """The sources with a covariance that depends on times."""
        times = {*TIMES}
        return {a for (a, _), c in self.covariances.items() if c.expr.free_symbols & times}

    # -- groups and populations ------------------------------------------------------------------------

    def _components(self) -> list[tuple[MemberKey, ...]]:
        """The sources, quantities and attributes that meet in fields: their averages are taken together."""
        links = [*self.groups, *((q.node, *self.feeds(q)) for q in self.quantities.values())]
        there = {*self.sources, *self.quantities, *self.attributes}
        for name, literals in sorted({n for link in links for n in link} - there):
            raise Unserved(
                f"{name} is read at the integers {literals}, but its equation is that of all indices"
            )
        return together([*self.sources, *self.quantities, *self.attributes], links)

    def feeds(self, q: Quantity) -> list[MemberKey]:
        """The random nodes in the expression of ``q``."""
        own = [self.node(x) for x in q.function.leaves if isinstance(x, AppliedUndef) and self.is_random(x)]
        return own + [m.what for ms in q.memories.values() for m in ms]


def _is_smooth(x: Expr) -> bool:
    """Is this a smooth function of fields at t?"""
    fields = x.atoms(AppliedUndef)
    plain = all(a.is_Integer or isinstance(a, Symbol) for y in fields for a in y.args)
    rough = x.has(Piecewise, Heaviside, Abs, sign, Max, Min, DiracDelta)
    return plain and not rough and not isinstance(x, AppliedUndef) and all(t in y.args for y in fields)


def _joined(memories: Iterable[PastSum]) -> list[PastSum]:
    """The same with kernels added that multiply the same, over the same times, where they move with time."""
    found: dict[Any, PastSum] = {}
    for m in memories:
        key = replace(m, kernel=sympify(1) if t in m.kernel.free_symbols else m.kernel)
        found[key] = replace(m, kernel=found[key].kernel + m.kernel) if key in found else m
    return list(found.values())


def _terms(x: Sum) -> tuple[Expr, ...]:
    body = x.function.expand() if isinstance(x.function, Add) else x.function
    return tuple(Add.make_args(body))


def group_of(model: Model, source: MemberKey) -> int:
    """The group that a source belongs to."""
    return next(i for i, g in enumerate(model.groups) if source in g)


def size_of(model: Model, group: int) -> int:
    """How many entries a group has at one time."""
    return sum(prod(model.sources[n][1]) for n in model.groups[group])


def involved(model: Model, what: MemberKey, group: int) -> dict[MemberKey, None]:
    """The quantities on the way from a group to ``what``, in no particular order."""
    upstream: dict[MemberKey, None] = {}
    todo = [what]
    while todo:
        n = todo.pop()
        if n in model.quantities and n not in upstream:
            upstream[n] = None
            todo += model.feeds(model.quantities[n])
    feels = {n for n in model.groups[group]}
    while True:
        more = {n for n in upstream if n not in feels and feels & set(model.feeds(model.quantities[n]))}
        if not more:
            return {n: None for n in upstream if n in feels}
        feels |= more


def sources_now(model: Model, what: MemberKey, group: int) -> frozenset[MemberKey]:
    """The sources of a group that a quantity is a function of at its own time."""
    todo, seen = [what], set[MemberKey]()
    while todo:
        n = todo.pop()
        if n in seen:
            continue
        seen.add(n)
        if n in model.quantities:
            q = model.quantities[n]
            applied = (x for x in q.function.leaves if isinstance(x, AppliedUndef) and model.is_random(x))
            todo += [node_of(x) for x in applied if x.args[-1] == t]
            todo += [m.what for ms in q.memories.values() for m in ms if m.through]
    return frozenset(seen.intersection(model.groups[group]))


def moves(model: Model, group: tuple[MemberKey, ...]) -> bool:
    """Does a covariance in a group depend on times?  If not, its sources are the same at all of them."""
    return not model.moving_sources.isdisjoint(group)


def _kind(model: Model, c: Responding) -> str:
    group = group_of(model, c.source)
    way = involved(model, c.what, group)
    feels = {*way, *model.groups[group]}
    linear = True
    for n in way:
        q = model.quantities[n]
        for i, x in enumerate(q.function.leaves):
            if x not in q.memories and not (
                isinstance(x, AppliedUndef) and model.is_random(x) and model.node(x) in feels
            ):
                continue
            try:
                slope = q.function.derivative(i)
            except UnseenJump:
                return "jumps"
            moving = {
                s for s, y in zip(q.function.slots, q.function.leaves, strict=True) if model.is_random(y)
            }
            linear = linear and not slope.free_symbols & moving
    return "linear" if linear else "smooth"


PathOperation = tuple[str, MemberKey]
"""``("draw", ("", (block,)))``, ``("quantity", node)``, ``("row" | "now" | "column" | "response", entry)`` or
``("scalar", node)``."""


def _operations(model: Model) -> Iterator[PathOperation]:
    for i in range(len(model.blocks)):
        yield "draw", ("", (i,))
    for n in model.quantities:
        yield "quantity", n
    for n, e in model.entries.items():
        if e.is_response:
            yield "response", n
        else:
            yield from (("row", n), ("now", n))
            if s in e.args:
                yield "column", n
    for n in model.scalars:
        yield "scalar", n


def _needs(model: Model, op: PathOperation) -> Iterator[PathOperation]:
    kind, node = op
    if kind == "draw":
        block = model.blocks[node[1][0]]
        known = {*model.before(block), *block}
        for (a, b), c in model.covariances.items():
            if a in block:
                yield from _reads(model, c.expr, present=b in known)
            if b in block and a != b:  # the second source now, the first one before
                yield from _reads(model, c.expr.xreplace({t: s, s: t}), present=a in known)
        yield from (_random(model, n) for n in known - {*block})
    elif kind == "quantity":
        q = model.quantities[node]
        for x in q.function.leaves:
            if x in q.memories:
                for m in q.memories[x]:
                    yield from _reads(model, m.kernel, present=m.through)
                    if m.through:
                        yield from _drawn(model, m.what)
            elif model.is_random(x):
                yield from _drawn(model, model.node(x))
            else:
                yield from _reads(model, x, present=True)
    else:
        yield from _averages(model, kind, model.scalars[node] if kind == "scalar" else model.entries[node])


def _averages(model: Model, kind: str, e: PathEntry) -> Iterator[PathOperation]:
    for mean in e.averages.values():
        if isinstance(mean, Responding):
            yield from _drawn(model, mean.what)
            if e.causal != "strict":
                yield _random(model, mean.source)
        else:
            if kind != "column":
                yield from _drawn(model, mean.first)
            if kind in ("column", "now") and mean.second is not None:
                yield from _drawn(model, mean.second)
    for inner in e.sums.values():
        yield from _averages(model, kind, inner)
    rest = e.expr.xreplace({a: Symbol("average") for a in (*e.averages, *e.sums)})
    yield from _reads(model, rest, present=kind in ("now", "scalar"))


def _random(model: Model, node: MemberKey) -> PathOperation:
    if node in model.sources:
        return "draw", ("", (next(i for i, x in enumerate(model.blocks) if node in x),))
    return "quantity", node


def _drawn(model: Model, node: MemberKey) -> Iterator[PathOperation]:
    """The operation that gives a random node its values at this step; attributes always have them."""
    if node not in model.attributes:
        yield _random(model, node)


def _reads(model: Model, e: Expr, present: bool) -> Iterator[PathOperation]:
    """The averages of this step in ``e``, read at s < t and, if ``present``, at s = t."""
    for x in e.atoms(AppliedUndef):
        node = model.node(x)
        times = [a for a in x.args if a in (t, s)]
        if node in model.scalars:
            if t in times or present:
                yield "scalar", node
        elif node in model.entries:
            entry = model.entries[node]
            if entry.is_response:
                if t in times or present:
                    yield "response", node
                continue
            if times == [t, s]:
                yield "row", node
            elif times == [s, t]:
                yield "column", node
            if present or times == [t] * len(times):
                yield "now", node
