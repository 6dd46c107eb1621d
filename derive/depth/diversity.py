"""Feature diversity at infinite depth: how far a layer is from one that comes a little later (depth2023 Def.
7.6).

A field is the sum over sources of answers times sources, so ``<x(tau, t) x(tau_2, s)>`` has the form of the
correlation at one layer, with each answer at its own layer.  The squared distance of two layers starts with a
power of ``|tau - tau_2|``: with the first if answers jump as tau passes the layer of the source, since the
field takes in fresh noise there, and with the second if answers are differentiable.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Add, Eq, Expr, Heaviside, Integral, Mul, Rational, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.sums import settled, without_empty
from derive.calculus.symbols import s, t
from derive.depth.infinite import LayerTime
from derive.depth.layers import tau, tau_
from derive.errors import NotApplicable
from derive.show.latex import aligned_latex

tau_2 = Symbol("tau_2", nonnegative=True)
"""Another layer time."""


@dataclass(frozen=True)
class Diversity:
    """``distance`` is ``<(x(tau) - x(tau_2))**2>`` at time t, ``roughness`` its limit over ``|tau - tau_2|``.

    ``power`` is that of ``|tau - tau_2|`` in the distance.
    """

    two_point: Eq
    distance: Expr
    roughness: Expr
    power: int

    @property
    def exponent(self) -> Expr:
        """kappa of Def. 7.6: the root of the distance goes like ``|tau - tau_2|**(1 - kappa)``."""
        return 1 - Rational(self.power, 2)

    def conditions(self) -> tuple[str, ...]:
        """What is assumed, in words."""
        if self.power == 1:
            return ("the covariance in the roughness is not zero",)
        return ("the stream's derivative by layer time is not zero",)

    def _repr_latex_(self) -> str:
        return aligned_latex((self.two_point,))


def diversity(limit: LayerTime, name: str) -> Diversity:
    """How a field of the stream differs between layers, for its correlation ``name`` at one layer.

    Raises KeyError if there is no such correlation and :class:`~derive.errors.NotApplicable` if it has no
    layers.

    >>> from derive.theory import mean_field
    >>> from derive.depth import gamma_c_recursion, layer_time
    >>> from derive.program.networks.residual import depth_program
    >>> found = diversity(layer_time(gamma_c_recursion(mean_field(depth_program()))), "C_0")
    >>> found.roughness, found.exponent
    (C_0(tau, t, t), 1/2)
    """
    e = limit.correlation(name)
    if not (e.lhs.args and e.lhs.args[0] == tau):
        raise NotApplicable(f"{e.lhs} is no correlation of a layer")
    answers = {str(x.lhs.func) for x in limit.integrals}

    def later(x: Expr) -> bool:
        """Is it an answer at the second time?  It stands at the second layer."""
        return isinstance(x, AppliedUndef) and str(x.func) in answers and x.args[0] == tau and _now(x) == s

    both = e.rhs.replace(later, lambda x: x.func(tau_2, *x.args[1:]))
    two = e.lhs.func(tau, tau_2, *e.lhs.args[1:])
    data = e.lhs.args[1:-2]  # samples of one side, then of the other
    now = {s: t} | dict(zip(data[len(data) // 2 :], data, strict=False))
    here = e.rhs.xreplace(now)
    distance = here + here.xreplace({tau: tau_2}) - 2 * both.xreplace(now)
    jumps = {str(x.lhs.func): (x.lhs, j) for x in limit.integrals if (j := _jump(x)) != 0}
    rough = Add(*[_rough(x, jumps) for x in Add.make_args(e.rhs)]).xreplace(now)
    return Diversity(Eq(two, both, evaluate=False), distance, rough, 1 if rough != 0 else 2)


Jumps = dict[str, tuple[Expr, Expr]]
"""Answers and by how much they jump."""


def _now(x: AppliedUndef) -> Expr:
    """The time at which an answer is given: the first among its times."""
    return next(y for y in x.args[1:] if y in (t, s))


def _jump(e: Eq) -> Expr:
    """By how much an answer rises where tau passes tau_, as a factor of its arguments."""
    sides = ((Heaviside(tau - tau_), 1), (Heaviside(tau_ - tau), -1))
    return Add(*[sign * x.coeff(side) for x in Add.make_args(e.rhs) for side, sign in sides])


def _rough(e: Expr, jumps: Jumps) -> Expr:
    """What a term adds to the roughness: of ``integral over tau_ of R(tau, tau_) R(tau_2, tau_) C(tau_)`` the
    product of both jumps and ``C(tau)``, and nothing where not every answer jumps.
    """
    if isinstance(e, Sum):
        return without_empty(settled(Sum(_rough(e.function, jumps), *e.limits)))
    if isinstance(e, Integral) and e.limits[0][0] == tau_:
        factors = Mul.make_args(e.function)
        paired = [x for x in factors if _pair(x)]
        if not paired or any(str(_base(x).func) not in jumps for x in paired):
            return S.Zero
        return Mul(*[_jumped(x, jumps) if x in paired else x.xreplace({tau_: tau}) for x in factors])
    if isinstance(e, Mul):
        inner = [x for x in e.args if isinstance(x, Sum | Integral)]
        return Mul(*[_rough(x, jumps) if x in inner else x for x in e.args]) if inner else S.Zero
    return S.Zero


def _base(x: Expr) -> Expr:
    return x.base if x.is_Pow else x


def _pair(x: Expr) -> bool:
    base = _base(x)
    return isinstance(base, AppliedUndef) and base.args[:2] == (tau, tau_)


def _jumped(x: Expr, jumps: Jumps) -> Expr:
    base = _base(x)
    lhs, jump = jumps[str(base.func)]
    value = jump.xreplace(dict(zip(lhs.args, base.args, strict=True)))
    return value**x.exp if x.is_Pow else value


__all__ = ["Diversity", "diversity", "tau_2"]
