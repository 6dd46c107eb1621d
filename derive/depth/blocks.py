"""Infinite depth of networks whose blocks have layers of their own: which powers of L everything goes with.

The units within a block meet the weights of that block alone, so that their answers are local; on the stream
they join all blocks.  Every function ``X`` is written as ``L**p X`` with the power p that its equations
balance at, and the limit of the rescaled system is taken as for blocks of one layer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from sympy import Add, Dummy, Eq, Expr, Function, Integral, KroneckerDelta, Mul, Pow, S, Sum, sympify
from sympy.core.function import AppliedUndef
from sympy.utilities.iterables import strongly_connected_components

from derive.depth.infinite import aligned
from derive.depth.layer_time import LayerTime, Scaling, layer_time
from derive.depth.powers import tau, tau_
from derive.depth.rescale import divided, ends_apart
from derive.depth.shifts import delta, power
from derive.errors import NotApplicable
from derive.linear.system import CrossLayer, k
from derive.program.words import L
from derive.theory.theory import Equation, Theory

ROUNDS = 50


@dataclass(frozen=True)
class BlockLimit:
    """``orders`` says with which power of L each function goes (those that are zero are left out), ``cross``
    is the system of what multiplies them, at any depth, and ``limit`` its limit.  Of single-site equations
    there are none: those within a block have no layer time.
    """

    orders: dict[str, Expr]
    cross: CrossLayer
    limit: LayerTime


def without_silent(theory: Theory) -> Theory:
    """The theory without sources of covariance zero, those of matrices that start from zero.

    >>> from derive.theory import mean_field
    >>> from derive.program.networks.deep_blocks import block_program
    >>> theory = without_silent(mean_field(block_program(linearised=True)))
    >>> [str(u.symbol) for u in theory.sources]
    ['U(0, t)', 'u_W(ell, t)', 'u_Z(ell, t)', 'V(t)', 'r_W(ell - 1, t)', 'r_Z(ell, t)']
    """
    silent = {str(u.symbol.func) for u in theory.sources if sympify(u.covariance) == 0}
    silent -= {str(u.symbol.func) for u in theory.sources if sympify(u.covariance) != 0}

    def answers(q: object) -> bool:
        return any(str(x.func) in silent for x in q.definition.atoms(AppliedUndef))  # type: ignore[attr-defined]

    gone = {q.name for q in theory.order_parameters if answers(q)}

    def kept(e: Equation) -> Equation:
        terms = tuple(
            x
            for x in e.terms
            if not any(str(a.func) in silent for a in x.expr.atoms(AppliedUndef)) and not _is_zero(x.expr)
        )
        return replace(e, terms=terms)

    return replace(
        theory,
        equations=tuple(kept(e) for e in theory.equations),
        sources=tuple(u for u in theory.sources if str(u.symbol.func) not in silent),
        order_parameters=tuple(q for q in theory.order_parameters if q.name not in gone),
    )


def _is_zero(e: Expr) -> bool:
    return e == 0 or (isinstance(e, Sum | Integral) and e.function == 0)


def within_blocks(cross: CrossLayer) -> CrossLayer:
    """The same with answers within a block as functions of it: ``R(ell, k) = delta(ell, k) R(ell)``."""
    cross = ends_apart(cross)
    local = _local(cross)

    def one(x: AppliedUndef) -> Expr:
        return x.func(x.args[0], *x.args[2:])

    def is_local(x: Expr) -> bool:
        return isinstance(x, AppliedUndef) and str(x.func) in local and len(x.args) >= 4

    def put(e: Expr) -> Expr:
        e = e.replace(lambda x: isinstance(x, Sum) and _over_layers(x), summed)
        return e.replace(is_local, one)

    def summed(x: Sum) -> Expr:
        """A sum over k of answers within block ell is its term at ell."""
        inside = [a for a in x.function.atoms(AppliedUndef) if is_local(a) and a.args[1] == k]
        if not inside:
            return x
        body = x.function.xreplace({a: one(a) for a in inside}).xreplace({k: inside[0].args[0]})
        rest = [lim for lim in x.limits if lim[0] != k]
        return Sum(body, *rest) if rest else body

    rows = []
    for e in cross.responses:
        if str(e.lhs.func) not in local:
            rows.append(_mapped(e, put))
            continue

        def alone(x: Expr) -> Expr:
            x = x.replace(lambda y: isinstance(y, KroneckerDelta) and y.has(k), lambda _: S.One)
            return put(x)

        ranges = tuple(r for r in e.ranges if r.index != k)
        rows.append(replace(_mapped(e, alone), lhs=one(e.lhs), ranges=ranges))
    found = cross.map(put)
    return replace(found, responses=tuple(rows))


def _local(cross: CrossLayer) -> set[str]:
    """Answers of units that no other block has."""
    own = {f.name for f in cross.theory.program.fields if f.layered and not f.population.shared}
    sent = {str(e.lhs.func) for e in cross.responses if len(e.lhs.args) >= 4}
    return sent & {f"R_{f}{p.name}" for f in own for p in cross.pushes}


def _over_layers(x: Sum) -> bool:
    return any(lim[0] == k for lim in x.limits)


def _mapped(e: Equation, fun: Callable[[Expr], Expr]) -> Equation:
    return replace(e, terms=tuple(x.rewrite(fun) for x in e.terms))


def balanced(cross: CrossLayer, scaling: Scaling | None = None) -> tuple[CrossLayer, dict[str, Expr]]:
    """The system with each function divided by the power of L that it goes with, and these powers.

    A power is the largest among the terms of the function's equation; the powers of all functions are found
    together, starting from those that contain none.  Raises :class:`NotApplicable` if some grow without end.
    """
    scaling = scaling or Scaling()
    rows: list[tuple[str, list[tuple[Expr, tuple[str, ...]]]]] = []
    names = {str(e.lhs.func) for e in (*cross.responses, *cross.correlations, *cross.scalars)}
    for e in cross.responses:
        added = [x.expr for x in e.terms if not _neighbouring(x.expr, e.lhs)]
        moving = len(added) < len(e.terms)
        rows.append((str(e.lhs.func), [y for x in added for y in _weights(x, names, scaling, moving)]))
    for q in (*cross.correlations, *cross.scalars):
        rows.append((str(q.lhs.func), _weights(q.rhs, names, scaling, False)))
    orders: dict[str, Expr] = {}
    for _ in range(ROUNDS):
        before = dict(orders)
        for name, terms in rows:
            for order, factors in terms:
                if all(x in orders for x in factors):
                    value = order + Add(*[orders[x] for x in factors])
                    if name not in orders or value > orders[name]:
                        orders[name] = value
        if orders == before:
            return _divided(cross, orders, names), orders
    growing = sorted(n for n in orders if orders[n] != before.get(n))
    raise NotApplicable(f"{', '.join(growing)} grow without end: the scaling has no limit")


def _neighbouring(x: Expr, lhs: Expr) -> bool:
    return isinstance(x, AppliedUndef) and x.func == lhs.func and x.args[1:] == lhs.args[1:]


def _weights(e: Expr, names: set[str], scaling: Scaling, moving: bool) -> list[tuple[Expr, tuple[str, ...]]]:
    """For each term the power of L and the functions in it; steps of a recursion add up L times."""
    found = []
    for x in Add.make_args(scaling(e).expand()):
        if x == 0:
            continue
        order, rest = power(x)
        factors = tuple(_factors(rest, names))
        once = delta(x) is not None
        found.append((scaling(order) + (1 if moving and not once else 0), factors))
    return found


def _factors(e: Expr, names: set[str]) -> list[str]:
    """The functions in a product; a given function of a scalar is of order one."""
    if isinstance(e, Sum | Integral):
        return _factors(e.function, names)
    if isinstance(e, Mul):
        return [n for x in e.args for n in _factors(x, names)]
    if isinstance(e, Pow) and e.exp.is_Integer:
        return _factors(e.base, names) * int(e.exp)
    return [str(e.func)] if isinstance(e, AppliedUndef) and str(e.func) in names else []


def _divided(cross: CrossLayer, orders: dict[str, Expr], names: set[str]) -> CrossLayer:
    def put(e: Expr) -> Expr:
        e = e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in names,
            lambda x: (
                L ** orders[str(x.func)] * Function(f"{x.func}@")(*x.args)
                if str(x.func) in orders
                else S.Zero
            ),
        )
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func).endswith("@"),
            lambda x: Function(str(x.func)[:-1])(*x.args),
        )

    def row(e: Equation) -> Equation:
        unit = L ** orders[str(e.lhs.func)]
        terms = tuple(x.put(divided(put(x.expr), unit)) for x in e.terms)
        return replace(e, terms=tuple(x for x in terms if not _is_zero(x.expr)) or terms[:1])

    rows = tuple(row(e) for e in cross.responses if str(e.lhs.func) in orders)
    return replace(cross.map(put), responses=rows)


def block_limit(cross: CrossLayer, scaling: Scaling | None = None) -> BlockLimit:
    """Balance a system with answers within blocks (see :func:`within_blocks`) and let L go to infinity.

    >>> from derive.theory import mean_field
    >>> from derive.depth import cross_layer
    >>> from derive.program.networks.deep_blocks import block_program
    >>> found = block_limit(within_blocks(cross_layer(mean_field(block_program()))))
    >>> found.limit.correlation("C_h")
    Eq(C_h(tau, t, s), C_x(tau, t, s))
    """
    system, orders = balanced(cross, scaling)
    system = aligned(system)
    bare = replace(system, theory=replace(system.theory, equations=(), sources=()))
    return BlockLimit(orders, bare, settled(layer_time(bare, scaling)))


def settled(limit: LayerTime) -> LayerTime:
    """The same with what has no integral over layers put into the rest; it is there at causal times.

    What is within a block then is gone from the equations of the stream.
    """
    inside = {
        str(e.lhs.func): e
        for e in (*limit.integrals, *limit.correlations)
        if e.lhs.args and e.lhs.args[0] == tau and not e.rhs.has(Integral) and e.lhs.args[1:2] != (tau_,)
    }

    for name in _circular(inside):
        del inside[name]

    def put(e: Expr) -> Expr:
        while True:
            new = e.replace(
                lambda x: isinstance(x, AppliedUndef) and str(x.func) in inside and not x.args[0].is_number,
                lambda x: _fresh(inside[str(x.func)], x),
            )
            new = _without_deltas(new)
            if new == e:
                return e
            e = new

    def rows(items: tuple[Eq, ...]) -> tuple[Eq, ...]:
        return tuple(Eq(e.lhs, put(e.rhs), evaluate=False) for e in items)

    return replace(
        limit,
        integrals=rows(limit.integrals),
        correlations=rows(limit.correlations),
        scalars=rows(limit.scalars),
    )


def _circular(rows: dict[str, Eq]) -> set[str]:
    """Those that need each other: what the updates of a block do to each other has not vanished."""
    edges = [
        (n, str(x.func)) for n, e in rows.items() for x in e.rhs.atoms(AppliedUndef) if str(x.func) in rows
    ]
    parts = strongly_connected_components((list(rows), edges))
    return {n for p in parts for n in p if len(p) > 1 or (n, n) in edges}


def _fresh(e: Eq, x: AppliedUndef) -> Expr:
    """What ``e`` says of ``x``; its indices of sums must not be those of x."""
    own = {y: Dummy(y.name, **y.assumptions0) for z in e.rhs.atoms(Sum) for y, *_ in z.limits}
    return e.rhs.xreplace(own).xreplace(dict(zip(e.lhs.args, x.args, strict=True)))


def _without_deltas(e: Expr) -> Expr:
    """Sums over times that a delta settles, where the sum reaches its time."""

    def put(x: Sum) -> Expr:
        total = S.Zero
        for y in Add.make_args(x.function.expand()):
            left = []
            for index, lower, upper in x.limits:
                deltas = [d for d in Mul.make_args(y) if isinstance(d, KroneckerDelta) and d.has(index)]
                if not deltas:
                    left.append((index, lower, upper))
                    continue
                other = next(z for z in deltas[0].args if z != index)
                y = (y / deltas[0]).xreplace({index: other})
            total += Sum(y, *left) if left else y
        return total

    return e.replace(lambda x: isinstance(x, Sum) and x.has(KroneckerDelta) and not x.has(Integral), put)


__all__ = ["BlockLimit", "balanced", "block_limit", "within_blocks", "without_silent"]
