"""Leading order in 1/L: layers become layer time, sums over layers integrals, and powers of L are counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sympy import (
    Add,
    DiracDelta,
    Expr,
    Function,
    Integral,
    KroneckerDelta,
    Mul,
    Pow,
    S,
    Sum,
    Symbol,
    limit,
    oo,
)
from sympy.core.function import AppliedUndef

from derive.linear.system import k
from derive.program.words import L, ell

tau = Symbol("tau", nonnegative=True)
"""Layer time ell/L."""
tau_ = Symbol("tau_", nonnegative=True)
"""Layer time of a source."""


@dataclass(frozen=True)
class LeadingTerm:
    """``L**order * expr``."""

    order: Expr
    expr: Expr


def at_layer_time(e: Expr, slots: Mapping[str, int]) -> Expr:
    """Layers as layer times; ``slots`` says how many layers each function carries as first arguments.

    A delta between layers is ``1/L`` of one between layer times, a sum over layers L times an integral.

    >>> from sympy import Function
    >>> f = Function("f")
    >>> at_layer_time(Sum(f(ell + 1, k) * KroneckerDelta(k, ell), (k, 1, L)), {"f": 2})
    L*Integral(f(tau, tau_)*DiracDelta(tau - tau_)/L, (tau_, 0, 1))
    """
    if isinstance(e, Sum):
        inner = at_layer_time(e.function, slots)
        rest = [lim for lim in e.limits if lim[0] not in (k, ell)]
        layers = [lim for lim in e.limits if lim[0] in (k, ell)]
        for lim in layers:
            inner = L * Integral(inner, (tau_ if lim[0] == k else tau, S.Zero, S.One))
        return Sum(inner, *rest) if rest else inner
    if isinstance(e, KroneckerDelta) and e.has(ell, k):
        return DiracDelta(tau - tau_) / L
    if isinstance(e, AppliedUndef):
        n = slots.get(str(e.func), 0)
        return Function(str(e.func))(*[layer_time_of(x) for x in e.args[:n]], *e.args[n:])
    if not e.args or not isinstance(e, Expr):
        return e
    return e.func(*[at_layer_time(x, slots) if isinstance(x, Expr) else x for x in e.args])


def layer_time_of(layer: Expr) -> Expr:
    """The layer time of a layer, at leading order."""
    if layer.has(ell):
        return tau
    if layer.has(k):
        return tau_
    return limit(layer / L, L, oo) if layer.has(L) else S.Zero


def leading(e: Expr) -> LeadingTerm:
    """Take the power of L out of a product, through sums and integrals.

    >>> from sympy import sqrt
    >>> from sympy.abc import a, x
    >>> leading(L * Sum(x * L**-a / sqrt(L), (x, 1, 3)))
    LeadingTerm(order=1/2 - a, expr=Sum(x, (x, 1, 3)))
    """
    if isinstance(e, Sum | Integral):
        inner = leading(e.function)
        return LeadingTerm(inner.order, e.func(inner.expr, *e.limits))
    if isinstance(e, Pow) and e.base == L:
        return LeadingTerm(e.exp, S.One)
    if e == L:
        return LeadingTerm(S.One, S.One)
    if isinstance(e, Mul):
        parts = [leading(x) for x in e.args]
        return LeadingTerm(Add(*[x.order for x in parts]), Mul(*[x.expr for x in parts]))
    return LeadingTerm(S.Zero, e)
