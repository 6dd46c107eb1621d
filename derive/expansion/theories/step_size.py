r"""Small steps: the theory of gradient descent in powers of its rate, around that of the flow.

Descent sums over past steps where the flow integrates, and by Euler and Maclaurin

    eta sum_{s<t} F(s) = int_0^t F ds + sum_n b_n eta^n [F^(n-1)(t) - F^(n-1)(0)],

with b_n the Taylor coefficients of z/(e^z - 1): shifting by a step is exp(eta d/dt), and the sum over steps
its geometric series.  So to each order a past update counts with other weights.  Everything in a linear
theory that depends on time is made of such sums, one inside the other, of functions that are smooth; hence
the theory of descent is that of the flow with weights that are a power series in the rate.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import (
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    Integral,
    KroneckerDelta,
    Rational,
    S,
    Sum,
    Symbol,
    factorial,
)
from sympy.core.function import AppliedUndef

from derive.calculus.series import PowerSeries
from derive.errors import NotApplicable
from derive.expansion.theories.orders import named
from derive.expansion.theories.series import TheorySeries
from derive.program.words import eta, s, t
from derive.theory import Equation, Term, Theory

WEIGHT = "w"
"""The weights with which past updates count."""


def boundary_coefficients(order: int) -> tuple[Expr, ...]:
    """b_1 ... b_order: what the derivatives at both ends of a sum over steps count.

    >>> boundary_coefficients(4)
    (-1/2, 1/12, 0, -1/720)
    """
    z = Dummy("z")
    steps = PowerSeries(tuple(Rational(1, factorial(n + 1)) for n in range(order + 1)), z)  # of (e^z - 1)/z
    return (steps**-1).coefficients[1:]


def weights(order: int) -> tuple[Eq, ...]:
    """What a sum with the weights of each order means, for a smooth function F.

    >>> for e in weights(2): print(e.rhs)
    Integral(F(s), (s, 0, t))
    F(0)/2 - F(t)/2
    Derivative(F(t), t)/12 - Subs(Derivative(F(s), s), s, 0)/12
    """
    F = Function("F")
    found = [Eq(_weighed(0, F), Integral(F(s), (s, 0, t)), evaluate=False)]
    for n, b in enumerate(boundary_coefficients(order), 1):
        slope = Derivative(F(s), s, n - 1) if n > 1 else F(s)
        found.append(Eq(_weighed(n, F), b * (slope.subs(s, t) - slope.subs(s, 0)), evaluate=False))
    return tuple(found)


def _weighed(n: int, F: Function) -> Expr:
    return Sum(Function(named(WEIGHT, n))(t, s) * F(s), (s, 0, t))


def expand_step_size(theory: Theory, order: int, rate: Symbol = eta) -> TheorySeries:
    """The theory of descent, linear and without fresh noise, in powers of the rate, up to ``order``.

    The order zero is the theory of the flow (its rule ``multistep``: weights ``w`` stand for the integral);
    t is rate times steps.  Raises :class:`NotApplicable` where updates decay or gain momentum within few
    steps, so that the rate enters in another way than as the weight of past updates, and where noise is
    drawn at each step; and ValueError for a negative order.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> gd = expand_step_size(mean_field(mlp(1)), 1)
    >>> print(gd.coefficient(1)[1].rhs)
    Sum(gamma0*Delta(alpha, s)*h(1, alpha, s)*w__1(t, s), (alpha, 1, P), (s, 0, t)) + ...
    """
    if order < 0:
        raise ValueError(f"order = {order}: must not be negative; 0 is the flow")
    for u in theory.sources:
        if any({t, s} <= set(d.args) for d in u.covariance.atoms(KroneckerDelta)):
            raise NotApplicable(f"{u.symbol} is drawn anew at each step: such noise has no flow without it")
        if u.covariance.has(rate) or _counts_steps(u.covariance):
            raise NotApplicable(f"the covariance of {u.symbol} depends on {rate}: {u.covariance}")

    def equation(e: Equation) -> Equation:
        terms = tuple(_weighted(x, rate) if x.expr.has(rate) else x for x in e.terms)
        return Equation(e.lhs, terms, e.ranges)

    scaled = Theory(
        program=theory.program,
        sources=theory.sources,
        equations=tuple(map(equation, theory.equations)),
        order_parameters=theory.order_parameters,
        scalars=tuple(map(equation, theory.scalars)),
        reduction=theory.reduction,
    )
    return TheorySeries(theory, scaled, rate, Dummy("eta", positive=True), order, frozenset({WEIGHT}))


def _counts_steps(e: Expr) -> bool:
    """Does it depend on the number of steps, other than by functions of the times?"""
    return bool(e.replace(lambda a: isinstance(a, AppliedUndef), lambda _: S.One).has(t, s))


def _weighted(x: Term, rate: Symbol) -> Term:
    """A sum over past steps with the rate as weight: with the weights of the flow in its place."""
    kept = x.coefficient * x.kernel / rate
    if x.reach != "strict" or kept.has(rate) or x.field.has(rate) or _counts_steps(kept):
        raise NotApplicable(f"{x.expr} is no sum over past updates that count with the weight {rate}")
    return replace(x, coefficient=S.One, kernel=kept * Function(WEIGHT)(t, s))


__all__ = ["boundary_coefficients", "expand_step_size", "weights"]
