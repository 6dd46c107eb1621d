"""Limits of the sizes of a theory: very many samples, very wide layers.

Every term, covariance and definition is followed as a parameter goes to its limit, with order parameters
held fixed.  Terms that vanish go, sources whose covariance vanishes go with them, and so do responses that
nothing asks for any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sympy import Add, Expr, Integral, Mul, S, Sum, Symbol, limit, sympify
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.reduce.data.instant import instant_responses
from derive.reduce.data.sources import absorb_factors
from derive.theory.theory import Equation, Term, Theory


def theory_limit(theory: Theory, values: Mapping[Symbol, Expr]) -> Theory:
    """The theory as each parameter in ``values`` goes to the given value.

    Sources whose factors contain such a parameter are scaled first (:func:`.absorb_factors`), and
    responses that have become instantaneous are written out (:func:`.instant_responses`).  Raises
    :class:`NotApplicable` when a term has no finite limit.

    >>> from sympy import oo
    >>> from derive.theory import mean_field
    >>> from derive.program.networks.isotropic import alpha, isotropic
    >>> print(theory_limit(mean_field(isotropic()), {alpha: oo}).equation("h0").rhs)
    v(t)
    """
    for x, value in values.items():
        theory = _one(theory, x, sympify(value))
    return theory


def _one(theory: Theory, x: Symbol, value: Expr) -> Theory:
    theory = absorb_factors(theory, *scaled_sources(theory, x))
    sources = [replace(u, covariance=at_limit(u.covariance, x, value)) for u in theory.sources]
    dead = {u.symbol.func for u in sources if u.covariance == 0 and u.symbol.func == u.partner.func}
    lively = tuple(u for u in sources if u.covariance != 0)

    def equation(e: Equation) -> Equation:
        found = (y.put(at_limit(y.expr, x, value)) for y in e.terms)
        return replace(e, terms=tuple(y for y in found if y.expr != 0 and not _is_source(y, dead)))

    moved = replace(
        theory,
        sources=lively,
        equations=tuple(map(equation, theory.equations)),
        scalars=tuple(map(equation, theory.scalars)),
        observables=(),
        reduction=f"{theory.reduction}, {x} -> {value}".strip(", "),
    )
    return _needed(instant_responses(_needed(moved)))


def at_limit(e: Expr, x: Symbol, value: Expr) -> Expr:
    """The limit of an expression whose only parts that depend on ``x`` are factors.

    Where a factor stands, before a sum or in it, makes no difference: what depends on ``x`` is taken inside.
    Raises :class:`NotApplicable` for any other dependence, and where there is no finite limit.

    >>> from sympy import Function, oo
    >>> from sympy.abc import k, t, x
    >>> f = Function("f")
    >>> at_limit(Sum((1 + 1 / x) * f(t), (t, 0, 3)) + f(1) / x, x, oo)
    Sum(f(t), (t, 0, 3))
    >>> at_limit(Sum(x * f(k), (k, 0, 2)) / x, x, oo)
    Sum(f(k), (k, 0, 2))
    """
    e = sympify(e)
    if not e.has(x):
        return e
    if isinstance(e, Sum | Integral):
        if any(end.has(x) for limits in e.limits for end in limits[1:]):
            raise NotApplicable(f"the bounds of {e} depend on {x}")
        inside = at_limit(e.function, x, value)
        return S.Zero if inside == 0 else e.func(inside, *e.limits)
    total = S.Zero
    for part in Add.make_args(e.expand()):
        fixed, moving = part.as_independent(x, as_Add=False)
        inner = next((y for y in Mul.make_args(moving) if isinstance(y, Sum | Integral)), None)
        if inner is not None:
            total += fixed * at_limit(_into(moving / inner, inner), x, value)
            continue
        if moving.has(AppliedUndef, Sum, Integral):
            raise NotApplicable(f"{part} does not depend on {x} by a factor only")
        end = limit(moving, x, value)
        if not end.is_finite:
            raise NotApplicable(f"{part} has no finite limit as {x} goes to {value}")
        total += end * fixed
    return total


def _into(factor: Expr, inner: Sum | Integral) -> Expr:
    """``factor * inner`` as one sum or integral, its indices renamed if the factor has such symbols."""
    if factor.free_symbols & set(inner.variables):
        inner = inner.as_dummy()
    return inner.func(factor * inner.function, *inner.limits)


def scaled_sources(theory: Theory, x: Symbol) -> list[str]:
    """Sources in front of which the parameter stands."""
    own = {u.symbol.func for u in theory.sources}
    return sorted(
        {
            str(a.func)
            for e in theory.equations
            for y in e.terms
            if not y.expr.has(Sum, Integral) and y.expr.has(x)
            for a in y.expr.atoms(AppliedUndef)
            if a.func in own
        }
    )


def _is_source(term: Term, dead: set[object]) -> bool:
    return any(a.func in dead for a in term.expr.atoms(AppliedUndef))


def _needed(theory: Theory) -> Theory:
    """Without responses that no equation contains."""
    used = {a.func for e in (*theory.equations, *theory.scalars) for a in e.rhs.atoms(AppliedUndef)}
    kept = tuple(q for q in theory.order_parameters if q.kind != "response" or q.symbol.func in used)
    return replace(theory, order_parameters=kept)
