"""In what order a step computes its quantities: a topological sort; a cycle means that nothing is causal."""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from numerics.solve.causal import in_order
from numerics.solve.particles.formulas import Node, node_of
from numerics.solve.particles.reading import Entry, Model, Responding

Op = tuple[str, Node]
"""``("draw", ("", (group,)))``, ``("quantity", node)``, ``("row" | "now" | "column" | "response", entry)`` or
``("scalar", node)``."""


def order_of(model: Model) -> list[Op]:
    """The operations of a step.  Raises NotCausal if some of them need each other."""
    return in_order(
        _operations(model), lambda op: _needs(model, op), lambda op: f"{op[0]} {op[1][0]}{op[1][1]}"
    )


def _operations(model: Model) -> Iterator[Op]:
    for i in range(len(model.groups)):
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


def _needs(model: Model, op: Op) -> Iterator[Op]:
    kind, node = op
    if kind == "draw":
        group = model.groups[node[1][0]]
        for (a, b), c in model.covariances.items():
            if a in group:
                yield from _reads(model, c.expr, present=True)
                if a != b:  # read the other way round, too: the second source now, the first one before
                    yield from _reads(model, c.expr.xreplace({t: s, s: t}), present=True)
    elif kind == "quantity":
        q = model.quantities[node]
        for x in q.function.leaves:
            if x in q.memories:
                for m in q.memories[x]:
                    yield from _reads(model, m.kernel, present=m.through)
                    if m.through:
                        yield _random(model, m.what)
            elif model.is_random(x):
                yield _random(model, node_of(x))
            else:
                yield from _reads(model, x, present=True)
    else:
        yield from _averages(model, kind, model.scalars[node] if kind == "scalar" else model.entries[node])


def _averages(model: Model, kind: str, e: Entry) -> Iterator[Op]:
    for mean in e.averages.values():
        if isinstance(mean, Responding):
            yield _random(model, mean.what)
            if e.causal != "strict":
                yield _random(model, mean.source)
        else:
            if kind != "column":
                yield _random(model, mean.first)
            if kind in ("column", "now") and mean.second is not None:
                yield _random(model, mean.second)
    for inner in e.sums.values():
        yield from _averages(model, kind, inner)
    rest = e.expr.xreplace({a: Symbol("average") for a in (*e.averages, *e.sums)})
    yield from _reads(model, rest, present=kind in ("now", "scalar"))


def _random(model: Model, node: Node) -> Op:
    if node in model.sources:
        return "draw", ("", (next(i for i, g in enumerate(model.groups) if node in g),))
    return "quantity", node


def _reads(model: Model, e: Expr, present: bool) -> Iterator[Op]:
    """The averages of this step in ``e``, read at s < t and, if ``present``, at s = t."""
    for x in e.atoms(AppliedUndef):
        node = node_of(x)
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
