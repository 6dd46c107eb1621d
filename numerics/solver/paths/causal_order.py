"""Causal order of the operations of a step of sampled paths.

The input are the tables of a theory (:mod:`~numerics.lowering.quantities`); the output are its operations,
sorted topologically: a cycle means that no order within a step is causal. A march also reads from it which
quantities later steps read, which averages no step reads, and whether functions between a source and a
response jump.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from math import prod

from sympy import Expr, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from numerics.errors import Unserved
from numerics.lowering.entries import EntrySum
from numerics.lowering.expressions import UnseenJump
from numerics.lowering.indices import TIMES, node_of
from numerics.lowering.quantities import PathCorrelation, PathEntry, PathResponse, QuantityTables
from numerics.names import MemberKey
from numerics.solver.linear.plan import NotCausal, in_order


class Model:
    """Theory in the form of a march of paths: its tables, and the operations of a step in causal order.

    ``groups`` are tuples of keys (name, indices) of correlated sources, in the order in which they are drawn.
    """

    def __init__(self, tables: QuantityTables) -> None:
        self.tables = tables
        self.groups = tables.groups
        self.blocks = list(self.groups)
        """Sources that are drawn at once: a whole group, unless some depend on others at the same step."""
        self.in_order = True
        """Whether blocks are in the order in which they are drawn."""
        self.order = self._causal_order()

    def _causal_order(self) -> list[PathOperation]:
        """Return the operations of a step in causal order.

        If no order exists in which all sources of a group are drawn at once, as for a matrix that is used
        several times, all sources are drawn one by one. Raises Unserved if some operations still depend on
        each other.
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
            raise Unserved(f"sampled paths: {reason}") from None

    def _sorted(self) -> list[PathOperation]:
        """Return the operations of a step in causal order, for the present partition of sources into blocks.

        The sources of a block are drawn at once. Raises NotCausal if there is no such order.
        """
        return in_order(
            _operations(self), lambda op: _needs(self, op), lambda op: f"{op[0]} {op[1][0]}{op[1][1]}"
        )

    def before(self, block: tuple[MemberKey, ...]) -> tuple[MemberKey, ...]:
        """Return the sources that are drawn in the same step before those of ``block``, from the same group.

        A group holds correlated sources; a block is the part of it that is drawn at once.
        """
        group = self.groups[group_of(self, block[0])]
        earlier = self.blocks[: self.blocks.index(block)] if self.in_order else []
        return tuple(n for n in group if any(n in x for x in earlier))

    @cached_property
    def afterwards(self) -> set[MemberKey]:
        """Keys of two-time correlations that no operation of a step reads; computed after all steps."""
        read = {x[1] for op in self.order for x in _needs(self, op)}

        def plain(e: PathEntry) -> bool:
            correlations = [c for c in e.averages.values() if isinstance(c, PathCorrelation) and c.two_times]
            return len(correlations) == len(e.averages) and all(plain(x) for x in e.sums.values())

        return {n for n, e in self.tables.entries.items() if n not in read and e.two_times and plain(e)}

    def read_later(self, entries: Iterable[PathEntry]) -> set[MemberKey]:
        """Return the keys of quantities of which more than the values of the last two steps are read.

        They are read by sums over the past, by averages over two times, and at time zero. A sum that is
        steady is a running sum, which reads the last step only. ``entries`` are the order parameters that a
        march computes.
        """
        sums = [m for q in self.tables.quantities.values() for ms in q.memories.values() for m in ms]
        keys = {m.quantity for m in sums if m.reach != "now" and not m.steady}
        for c in _averages_of([*entries, *self.tables.scalars.values()]):
            if isinstance(c, PathCorrelation) and c.two_times:
                keys |= {*c.factors}
        return keys | self.read_at_zero

    def needed(self, entries: Iterable[PathEntry]) -> set[MemberKey]:
        """Return the keys of the quantities that a march must compute.

        They are those that order parameters, scalars and weights with an entrywise rule read, directly or
        through other quantities. ``entries`` are the order parameters of the march.
        """
        tables, found = self.tables, set[MemberKey]()
        todo = [n for x in tables.weights for nodes in x.nodes for n in nodes]
        for c in _averages_of([*entries, *tables.scalars.values()]):
            todo += c.factors if isinstance(c, PathCorrelation) else (c.quantity,)
        while todo:
            n = todo.pop()
            if n in tables.quantities and n not in found:
                found.add(n)
                q = tables.quantities[n]
                todo += tables.feeds(q)
                todo += [x.vector.node for x in q.entries.values() if x.vector is not None]
        return found

    @cached_property
    def read_at_zero(self) -> set[MemberKey]:
        """Keys of fields whose values at time zero are read at later times."""
        tables = self.tables
        leaves = [x for q in tables.quantities.values() for x in q.function.leaves]
        read = {tables.node(x) for x in leaves if isinstance(x, AppliedUndef) and tables.is_at_zero(x)}
        return read & {*tables.quantities}

    @cached_property
    def kinds(self) -> dict[PathResponse, str]:
        """For each response, how its quantity depends on its source: ``linear``, ``smooth`` or ``jumps``.

        ``jumps`` means that a function on the way from the source to the quantity is discontinuous, or that a
        weight with an entrywise rule lies on it.
        """
        averages = [c for e in self.tables.entries.values() for c in e.averages.values()]
        return {c: _kind(self, c) for c in averages if isinstance(c, PathResponse)}

    @cached_property
    def entries_of_variance(self) -> dict[MemberKey, list[PathEntry]]:
        """For each source, the order parameters in its covariance with itself."""
        tables = self.tables
        read = {a: tables.covariances[a, a].expr.atoms(AppliedUndef) for a in tables.sources}
        nodes = {a: sorted({tables.node(x) for x in some} & {*tables.entries}) for a, some in read.items()}
        return {a: [tables.entries[n] for n in keys] for a, keys in nodes.items()}

    @cached_property
    def moving_sources(self) -> set[MemberKey]:
        """Keys of sources a of which a covariance ``<a b>`` that the theory states depends on time."""
        times = {*TIMES}
        return {a for (a, _), c in self.tables.covariances.items() if c.expr.free_symbols & times}


def group_of(model: Model, source: MemberKey) -> int:
    """Return the position in ``model.groups`` of the group of correlated sources that contains ``source``."""
    return next(i for i, g in enumerate(model.groups) if source in g)


def size_of(model: Model, group: int) -> int:
    """Return the number of random variables of a group of correlated sources at one time.

    Each source counts once for each value of its indices. ``group`` is a position in ``model.groups``.
    """
    return sum(prod(model.tables.sources[n][1]) for n in model.groups[group])


def involved(model: Model, what: MemberKey, group: int) -> dict[MemberKey, None]:
    """Return the quantities on the way from a group of correlated sources to the quantity ``what``.

    They depend on a source of the group, and ``what`` depends on them; ``what`` itself is one of them, and
    sources are not. The result is empty if ``what`` is a source or does not depend on the group. ``group`` is
    the position of the group in ``model.groups``. The keys (name, indices) of the quantities are the keys of
    a dict, used as an ordered set.
    """
    tables = model.tables
    upstream: dict[MemberKey, None] = {}
    todo = [what]
    while todo:
        n = todo.pop()
        if n in tables.quantities and n not in upstream:
            upstream[n] = None
            todo += tables.feeds(tables.quantities[n])
    feels = {n for n in model.groups[group]}
    while True:
        more = {n for n in upstream if n not in feels and feels & set(tables.feeds(tables.quantities[n]))}
        if not more:
            return {n: None for n in upstream if n in feels}
        feels |= more


def sources_now(model: Model, what: MemberKey, group: int) -> frozenset[MemberKey]:
    """Return the sources of a group on which the quantity ``what`` at time t depends at the same time t.

    ``group`` is the position of a group of correlated sources in ``model.groups``.
    """
    tables = model.tables
    todo, seen = [what], set[MemberKey]()
    while todo:
        n = todo.pop()
        if n in seen:
            continue
        seen.add(n)
        if n in tables.quantities:
            q = tables.quantities[n]
            applied = (x for x in q.function.leaves if isinstance(x, AppliedUndef) and tables.is_random(x))
            todo += [node_of(x) for x in applied if x.args[-1] == t]
            todo += [m.quantity for ms in q.memories.values() for m in ms if m.through]
    return frozenset(seen.intersection(model.groups[group]))


def moves(model: Model, group: tuple[MemberKey, ...]) -> bool:
    """Return whether some covariance of a group of sources depends on time.

    If not, its sources are constant in time, and are drawn once.
    """
    return not model.moving_sources.isdisjoint(group)


def _kind(model: Model, c: PathResponse) -> str:
    """Return how the quantity of a response depends on its source: ``linear``, ``smooth`` or ``jumps``.

    The answer is ``jumps`` if a function on the way from the source to the quantity is discontinuous, or if a
    weight with an entrywise rule lies on it.
    """
    tables = model.tables
    group = group_of(model, c.source)
    way = involved(model, c.quantity, group)
    feels = {*way, *model.groups[group]}
    linear = True
    for n in way:
        q = tables.quantities[n]
        if any(feels.intersection(tables.own_nodes(x)) for x in q.entries.values()):
            # A derivative by the source cannot be carried through a weight with an entrywise rule, so that
            # the response is computed like that of a discontinuous function.
            return "jumps"
        for i, x in enumerate(q.function.leaves):
            if x not in q.memories and not (
                isinstance(x, AppliedUndef) and tables.is_random(x) and tables.node(x) in feels
            ):
                continue
            try:
                slope = q.function.derivative(i)
            except UnseenJump:
                return "jumps"
            moving = {
                s for s, y in zip(q.function.slots, q.function.leaves, strict=True) if tables.is_random(y)
            }
            linear = linear and not slope.free_symbols & moving
    return "linear" if linear else "smooth"


def derivative_paths(model: Model, responses: Iterable[MemberKey], samples: int) -> int:
    """Return the number of paths that carry derivatives for the ``responses``, given by key.

    It is ``samples``, or at most 2 if every response is that of a linear function. Derivatives are then equal
    on all paths, so that only the first path and its mirror image carry them.
    """
    ways = (c for n in responses for c in model.tables.entries[n].averages.values())
    linear = all(model.kinds[c] == "linear" for c in ways if isinstance(c, PathResponse))
    return min(2, samples) if linear else samples


PathOperation = tuple[str, MemberKey]
"""``("draw", ("", (block,)))``, ``("quantity", node)``, ``("row" | "now" | "column" | "response", entry)`` or
``("scalar", node)``."""


def _operations(model: Model) -> Iterator[PathOperation]:
    """Yield all operations of a step of sampled paths, in no particular order.

    They draw sources, compute quantities on the paths, and compute responses, correlations and scalars; each
    is a pair of its kind, such as "draw", and the key of its result.
    """
    tables = model.tables
    for i in range(len(model.blocks)):
        yield "draw", ("", (i,))
    for n in tables.quantities:
        yield "quantity", n
    for n, e in tables.entries.items():
        if e.is_response:
            yield "response", n
        else:
            yield from (("row", n), ("now", n))
            if s in e.args:
                yield "column", n
    for n in tables.scalars:
        yield "scalar", n


def _needs(  # noqa: PLR0912 - one branch for each kind of operation
    model: Model, op: PathOperation
) -> Iterator[PathOperation]:
    """Yield the operations of the same step whose results the operation ``op`` of sampled paths reads."""
    tables = model.tables
    kind, node = op
    if kind == "draw":
        block = model.blocks[node[1][0]]
        known = {*model.before(block), *block}
        for (a, b), c in tables.covariances.items():
            if a in block:
                yield from _reads(model, c.expr, present=b in known)
            # The covariance <a(s) b(t)> is also needed if b is drawn at this step t: with a at an earlier
            # step s, and with a at this step if a is known or drawn together with b.
            if b in block and a != b:
                yield from _reads(model, c.expr.xreplace({t: s, s: t}), present=a in known)
        yield from (_random(model, n) for n in known - {*block})
    elif kind == "quantity":
        q = tables.quantities[node]
        for x in q.function.leaves:
            if x in q.entries:
                yield from _applied(model, q.entries[x])
            elif x in q.memories:
                for m in q.memories[x]:
                    yield from _reads(model, m.kernel, present=m.through)
                    if m.through:
                        yield from _drawn(model, m.quantity)
            elif tables.is_random(x):
                yield from _drawn(model, tables.node(x))
            else:
                yield from _reads(model, x, present=True)
    else:
        yield from _averages(model, kind, tables.scalars[node] if kind == "scalar" else tables.entries[node])


def _averages_of(entries: Iterable[PathEntry]) -> Iterator[PathCorrelation | PathResponse]:
    """Yield the averages in order parameters and scalars, also those inside of their sums over indices."""
    for e in entries:
        yield from e.averages.values()
        yield from _averages_of(e.sums.values())


def _applied(model: Model, x: EntrySum) -> Iterator[PathOperation]:
    """Yield the operations of this step that must precede the product of a weight and a vector.

    ``x`` is the product; the weight has an entrywise rule.
    """
    yield from _reads(model, x.factor, present=True)
    if x.own is not None:
        yield from _drawn(model, x.own.node)
    if x.vector is not None and not x.vector.given:
        yield from _drawn(model, x.vector.node)


def _averages(model: Model, kind: str, e: PathEntry) -> Iterator[PathOperation]:
    """Yield the operations of this step that must precede the computation of an order parameter or scalar.

    They compute the quantities in the averages of ``e`` on the paths, and the numbers in its expression.
    ``kind`` states which values of ``e(t, s)`` are computed: "row" for t = now and s < now, "column" for
    t < now and s = now, "now" for t = s = now; or it is "response" or "scalar".
    """
    for mean in e.averages.values():
        if isinstance(mean, PathResponse):
            yield from _drawn(model, mean.quantity)
            if e.causal != "strict":
                yield _random(model, mean.source)
        else:
            if kind != "column":
                yield from _drawn(model, mean.first)
            if mean.second is not None and (kind in ("column", "now") or mean.one_time):
                yield from _drawn(model, mean.second)
    for inner in e.sums.values():
        yield from _averages(model, kind, inner)
    rest = e.expr.xreplace({a: Symbol("average") for a in (*e.averages, *e.sums)})
    yield from _reads(model, rest, present=kind in ("now", "scalar"))


def _random(model: Model, node: MemberKey) -> PathOperation:
    """Return the operation of a step that computes the source or quantity ``node`` on the paths.

    It draws the block of sources that contains it, or evaluates its equation. ``node`` is the key (name,
    indices).
    """
    if node in model.tables.sources:
        return "draw", ("", (next(i for i, x in enumerate(model.blocks) if node in x),))
    return "quantity", node


def _drawn(model: Model, node: MemberKey) -> Iterator[PathOperation]:
    """Yield the operation that computes ``node`` on the paths; nothing for given attributes."""
    if node not in model.tables.attributes:
        yield _random(model, node)


def _reads(model: Model, e: Expr, present: bool) -> Iterator[PathOperation]:
    """Yield the operations of this step that must precede the evaluation of an expression ``e``.

    They compute the order parameters and scalars in it, at s < t and, if ``present`` is true, at s = t.
    """
    tables = model.tables
    for x in e.atoms(AppliedUndef):
        node = tables.node(x)
        times = [a for a in x.args if a in (t, s)]
        if node in tables.scalars:
            if t in times or present:
                yield "scalar", node
        elif node in tables.entries:
            entry = tables.entries[node]
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
