"""A theory of any activation at ``gamma0 = 0``: fields are Gaussian, kernels a recursion over the layers.

Without feature learning nothing moves a field: what is left of its equation are Gaussian sources, whose
covariances are the kernels of the layer before (or, backwards, after).  The output alone moves, along its
tangent kernel, by every update that the rule remembers.  Of linear networks
:mod:`derive.linear.lazy` gives all of it in closed form.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Eq, Expr, Function, Integral, S, Sum, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.errors import NotApplicable
from derive.program.training import accumulate
from derive.program.words import gamma0, s, t
from derive.theory.theory import Equation, OrderParameter, Source, Term, Theory


@dataclass(frozen=True)
class Static:
    """A theory at ``gamma0 = 0``; symbols carry no times, for nothing here moves but the output.

    ``fields`` are what is left of their equations, ``sources`` and ``kernels`` (correlation functions) refer
    to each other layer by layer, ``tangent`` is the tangent kernel in terms of them.  ``output`` is the
    output at time t as a memory of past errors; both are None where the theory has no tangent kernel.
    """

    theory: Theory
    sources: tuple[Source, ...]
    fields: tuple[Equation, ...]
    kernels: tuple[OrderParameter, ...]
    tangent: Equation | None
    output: Eq | None


def static(theory: Theory) -> Static:
    """The limit ``gamma0 -> 0`` of a theory, of one layer or of a family of layers.

    The kernels are also those of the network at time 0 for any gamma0.  Raises :class:`NotApplicable` where
    fields move at ``gamma0 = 0``: weight decay, noise, theories whose updates gamma0 does not multiply.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> end = static(mean_field(mlp(activation="erf")))
    >>> print(end.sources[1].covariance, "|", end.kernels[0].symbol, "=", end.kernels[0].definition)
    Phi(ell, mu, alpha) | Phi(ell, mu, alpha) = <erf(h(ell, alpha))*erf(h(ell, mu))>
    >>> print(end.output.rhs)
    Sum(eta*Delta(alpha, s)*K(mu, alpha), (alpha, 1, P), (s, 0, t - 1))
    """
    for u in theory.sources:
        if _still(sympify(u.covariance)).has(t, s):
            raise NotApplicable(
                f"the source {u.symbol} moves at gamma0 = 0: its covariance is {u.covariance}"
            )
    sources = tuple(
        Source(_still(u.symbol), _still(u.partner), _still(u.covariance), u.ranges, u.matrix)
        for u in theory.sources
    )
    kernels = tuple(
        OrderParameter(_still(q.symbol), _still(q.definition), q.kind, q.ranges)
        for q in theory.correlations()
    )
    tangent = None
    if theory.observables:
        e = theory.observables[0]
        tangent = Equation(_still(e.lhs), (Term.local(_still(e.rhs), "definition"),), e.ranges)
    fields = tuple(_left(e) for e in theory.equations)
    return Static(theory, sources, fields, kernels, tangent, _output(theory, tangent))


def _left(e: Equation) -> Equation:
    """A field's equation at gamma0 = 0."""
    terms = []
    for x in e.terms:
        value = x.expr.replace(
            lambda y: isinstance(y, Sum | Integral) and y.function.subs(gamma0, 0) == 0, lambda y: S.Zero
        ).subs(gamma0, 0)
        if value.has(s) or value.has(Sum, Integral):
            raise NotApplicable(f"{e.lhs} moves at gamma0 = 0: {x.expr} does not vanish")
        if value != 0:
            terms.append(x.put(_still(value)))
    found = Equation(_still(e.lhs), tuple(terms), e.ranges)
    if found.rhs.has(t):
        raise NotApplicable(f"{e.lhs} moves at gamma0 = 0: {found.rhs}")
    return found


def _output(theory: Theory, tangent: Equation | None) -> Eq | None:
    """The output, moved along its tangent kernel by all updates that the rule remembers."""
    if tangent is None:
        return None
    output = next(e for e in theory.scalars if e.rhs.has(Average))
    error = next(e for e in theory.scalars if e.lhs != output.lhs)
    own = len(output.lhs.args) - 1
    ranges = tangent.ranges[own:]
    _, weight = theory.program.rule.memory(t, s)
    past = Function(error.name)(*[r.index for r in ranges], s)
    body = Sum(weight * tangent.lhs * past, *[r.limits for r in ranges])
    if theory.program.rule.discrete:
        return Eq(output.lhs, Sum(body.function, *body.limits, (s, 0, t - 1)), evaluate=False)
    return Eq(output.lhs, accumulate(theory.program.rule, body, s, t), evaluate=False)


def _still(e: Expr) -> Expr:
    """Without times in the arguments of functions."""
    found: Expr = e.replace(
        lambda x: isinstance(x, AppliedUndef) and bool({t, s} & set(x.args)),
        lambda x: x.func(*[a for a in x.args if a not in (t, s)]),
    )
    return found


__all__ = ["Static", "static"]
