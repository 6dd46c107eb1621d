"""Responses that are there at equal time only: the response of a field that has no memory is a delta.

Online, a batch is used once, so ``R_Delta(t, s)`` is 1 at ``s = t`` and 0 before; the same holds for any
field without memory.  Written out, its order parameter and the sum over the past in front of it are gone.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import Add, Expr, Integral, KroneckerDelta, Mul, S, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Response
from derive.program.words import s, t
from derive.theory.theory import OrderParameter, Term, Theory


def instant_responses(theory: Theory) -> Theory:
    """The theory with every response of a memoryless field put in as a number at equal time.

    >>> from derive.theory import mean_field
    >>> from derive.program.networks.isotropic import isotropic
    >>> print(instant_responses(mean_field(isotropic(data="online"))).equation("h0").rhs)
    v(t) + u0(t)/alpha_B
    """
    for q in theory.responses():
        value = _at_once(theory, q)
        if value is not None:
            theory = _put(theory, q, value)
    return theory


def _at_once(theory: Theory, q: OrderParameter) -> Expr | None:
    """The factor of delta(t, s) in a response; None if memory makes it more than that."""
    node = next(iter(q.definition.atoms(Response)))
    body = _unfolded(theory, node.body)
    if body is None or q.definition.has(Sum):
        return None
    now = node.source.xreplace({s: t})
    total = S.Zero
    for x in Add.make_args(body.expand()):
        for a in x.atoms(AppliedUndef):
            if a.func == now.func:
                same = Mul(*[KroneckerDelta(i, j) for i, j in zip(a.args[:-1], now.args[:-1], strict=True)])
                total += same * x / a
    average = q.definition.xreplace({node: S.One})
    number = average.replace(lambda e: e.func.__name__ == "Average", lambda e: e.args[0])
    return None if any(f.name in str(total) for f in theory.program.attributes) else number * total


def _unfolded(theory: Theory, e: Expr) -> Expr | None:
    """A field in terms of sources at the same time, if that is all it is made of."""
    names = {x.name for x in theory.program.fields}
    for _ in range(len(theory.equations)):
        fields = [a for a in e.atoms(AppliedUndef) if str(a.func) in names]
        if not fields:
            return e
        for a in fields:
            found = [x for x in theory.equations if x.lhs == a]
            if len(found) != 1 or found[0].rhs.has(Sum, Integral) or a.args[-1] != t:
                return None
            e = e.xreplace({a: found[0].rhs})
    return None


def _put(theory: Theory, q: OrderParameter, value: Expr) -> Theory:
    def term(x: Term) -> Term:
        return x.put(_collapsed(x.expr, q, value))

    equations = tuple(
        replace(e, terms=tuple(y for y in map(term, e.terms) if y.expr != 0)) for e in theory.equations
    )
    kept = tuple(x for x in theory.order_parameters if x.symbol != q.symbol)
    return replace(theory, equations=equations, order_parameters=kept)


def _collapsed(e: Expr, q: OrderParameter, value: Expr) -> Expr:
    """``sum over s of delta(t, s) f(s)`` is ``f(t)``."""
    hits = [a for a in e.atoms(AppliedUndef) if _is(a, q)]
    if not hits:
        return e
    a = hits[0]
    names = dict(zip(q.symbol.args[:-2], a.args[:-2], strict=True))
    number = sympify(value).xreplace(names)
    if not isinstance(e, Sum | Integral):
        return e.xreplace({a: number * (S.One if a.args[-1] == a.args[-2] else KroneckerDelta(*a.args[-2:]))})
    body, limits = e, []
    while isinstance(body, Sum | Integral):
        limits += list(body.limits)
        body = body.function
    for lim in limits:
        if lim[0] == s and lim[2] == t - 1:
            return S.Zero
    body = body.xreplace({a: number}).xreplace({s: t})
    for lim in (x for x in limits if x[0] != s):
        body = _over_index(body, lim)
    return body


def _over_index(body: Expr, lim: tuple[Symbol, Expr, Expr]) -> Expr:
    for delta in body.atoms(KroneckerDelta):
        if lim[0] in delta.args:
            other = next(x for x in delta.args if x != lim[0])
            return body.xreplace({delta: S.One}).xreplace({lim[0]: other})
    return Sum(body, lim)


def _is(a: AppliedUndef, q: OrderParameter) -> bool:
    """The same response, at any indices and times (a layer that is a number must be that number)."""
    if a.func != q.symbol.func or len(a.args) != len(q.symbol.args):
        return False
    pairs = zip(a.args[:-2], q.symbol.args[:-2], strict=True)
    return all(y == x for x, y in pairs if y.is_Integer)
