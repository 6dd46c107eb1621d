"""Feature diversity at infinite depth: how far a layer is from one that comes a little later (depth2023 Def.
7.6).

A field is the sum over sources of answers times sources, so ``<x(tau, t) x(tau_2, s)>`` has the form of the
correlation at one layer, with each answer at its own layer.  Where an answer jumps as tau passes the layer of
the source, the field takes in fresh noise, and its path is rough.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Add, Eq, Expr, Heaviside, Integral, KroneckerDelta, Mul, Rational, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.depth.infinite import LayerTime
from derive.depth.layers import tau, tau_
from derive.errors import NotApplicable
from derive.program.words import s, t

tau_2 = Symbol("tau_2", nonnegative=True)
"""Another layer time."""


@dataclass(frozen=True)
class Diversity:
    """``distance`` is ``<(x(tau) - x(tau_2))**2>`` at time t, ``roughness`` its limit over ``|tau - tau_2|``.

    ``exponent`` is the feature-diversity exponent kappa: the root of the distance goes like
    ``|tau - tau_2|**(1 - kappa)``.  It is 1/2 where there is roughness, and 0 where answers have none and so
    are differentiable.
    """

    two_point: Eq
    distance: Expr
    roughness: Expr
    exponent: Expr


def diversity(limit: LayerTime, name: str) -> Diversity:
    """How a field of the stream differs between layers, for its correlation ``name`` at one layer.

    ``roughness`` being zero on other grounds than that nothing jumps is not seen: it is a correlation times
    squares, and zero only where that is.  Raises KeyError if there is no such correlation and
    :class:`~derive.errors.NotApplicable` if it has no layers.

    >>> from derive.theory import mean_field
    >>> from derive.depth import gamma_c_recursion, layer_time
    >>> from derive.program.networks.infinite_depth import depth_program
    >>> found = diversity(layer_time(gamma_c_recursion(mean_field(depth_program())).cross), "C_0")
    >>> found.roughness, found.exponent
    (C_0(tau, t, t), 1/2)
    """
    e = limit.correlation(name)
    if not (e.lhs.args and e.lhs.args[0] == tau):
        raise NotApplicable(f"{e.lhs} is no correlation of a layer")
    answers = {str(x.lhs.func) for x in limit.integrals}

    def put(x: AppliedUndef) -> Expr:
        return x.func(tau_2, *x.args[1:])

    # answers at the second time stand at the second layer
    both = e.rhs.replace(
        lambda x: (
            isinstance(x, AppliedUndef) and str(x.func) in answers and x.args[0] == tau and _now(x) == s
        ),
        put,
    )
    two = e.lhs.func(tau, tau_2, *e.lhs.args[1:])
    data = e.lhs.args[1:-2]  # samples of one side, then of the other
    now = {s: t} | dict(zip(data[len(data) // 2 :], data, strict=False))
    distance = Add(
        e.rhs.xreplace(now),
        e.rhs.xreplace(now).xreplace({tau: tau_2}),
        -2 * both.xreplace(now),
    )
    jumps = {str(x.lhs.func): (x.lhs, j) for x in limit.integrals if (j := _jump(x)) != 0}
    rough = Add(*[_rough(x, jumps) for x in Add.make_args(e.rhs)]).xreplace(now)
    exponent = Rational(1, 2) if rough != 0 else S.Zero
    return Diversity(Eq(two, both, evaluate=False), distance, rough, exponent)


Jumps = dict[str, tuple[Expr, Expr]]
"""Answers and by how much they jump."""


def _now(x: AppliedUndef) -> Expr:
    """The time at which an answer is given: the first among its times."""
    return next(y for y in x.args[1:] if y in (t, s))


def _jump(e: Eq) -> Expr:
    """By how much an answer rises where tau passes tau_, as a factor of its arguments."""
    total = S.Zero
    for x in Add.make_args(e.rhs):
        for side, sign in ((Heaviside(tau - tau_), 1), (Heaviside(tau_ - tau), -1)):
            total += sign * x.coeff(side)
    return total


def _rough(e: Expr, jumps: Jumps) -> Expr:
    """The part of a correlation that integrates over sources, with its answers replaced by their jumps."""
    if isinstance(e, Sum):
        found: Expr = S.Zero
        for x in Add.make_args(_rough(e.function, jumps)):
            found += _collapsed(x, e.limits)
        return found
    if isinstance(e, Integral) and e.limits[0][0] == tau_:
        value = e.function
        factors = Mul.make_args(value)
        paired = [x for x in factors if _pair(x)]
        if not paired or any(str(_base(x).func) not in jumps for x in paired):
            return S.Zero
        return Mul(*[_jumped(x, jumps) if _pair(x) else x.xreplace({tau_: tau}) for x in factors])
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


def _collapsed(e: Expr, limits: tuple[Expr, ...]) -> Expr:
    """A sum that deltas settle."""
    left = []
    for index, lower, upper in limits if e != 0 else ():
        found = next((x for x in e.atoms(KroneckerDelta) if x.has(index)), None)
        if found is None:
            left.append((index, lower, upper))
            continue
        other = next(x for x in found.args if x != index)
        if lower == 0 and upper != other:  # the push is later than the sum goes
            return S.Zero
        e = e.xreplace({found: S.One}).xreplace({index: other})
    return Sum(e, *left) if left else e


__all__ = ["Diversity", "diversity", "tau_2"]
