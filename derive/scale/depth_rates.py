"""Learning rates as powers of the depth, for gradient descent and for updates that keep signs only (depth2023
section 3).

An update moves the output by a sum over all layers.  In a network of width one that sum, ``A_L``, has a
closed form; in wide networks the power of L with which an update enters is read off the derived equation of a
layer.  The largest stable rate is that at which the output moves by order one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

from sympy import (
    Add,
    Dummy,
    Expr,
    Mul,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
    integrate,
    limit,
    oo,
    pi,
    powsimp,
    sign,
    solve,
    sqrt,
)

from derive.errors import NotApplicable
from derive.program.networks.infinite_depth import depth_program
from derive.program.program import Program
from derive.program.training import Outer, TrainedMatrix
from derive.program.words import L, Product, ell
from derive.scale.depth_counting import alpha, as_expression, counted
from derive.theory import mean_field

RULES = ("sgd", "sign")
"""Gradient descent; the sign of every entry of the gradient (Adam without memory)."""
c = Symbol("c", real=True)
"""Learning rates are ``eta L^-c``."""
x_0, chi = Symbol("x_0", real=True), Symbol("chi", real=True)
"""Width one: the input, and the slope of the loss at the output."""


@dataclass(frozen=True)
class FirstUpdate:
    """Width one, one step at rate eta: ``x_1^L = x_0^L - eta L^-alpha A_L + O(eta^2)``.

    ``square`` is ``E A_L^2`` for every L; ``leading`` what it is for large L and alpha > 1/2, to be
    multiplied by ``at_half`` at alpha = 1/2; ``rate`` is the c at which ``eta L^(-alpha - c) A_L`` is of
    order one.
    """

    rule: str
    square: Expr
    leading: Expr
    at_half: Expr
    rate: Expr


@lru_cache(maxsize=2)
def first_update(rule: str = "sgd") -> FirstUpdate:
    """``E A_L^2`` at fixed slope chi of the loss, from the product of independent layers.

    Raises :class:`NotApplicable` for another rule.

    >>> found = first_update("sgd")
    >>> found.leading, found.at_half, found.rate
    (L**(2 - 2*alpha)*chi**2*x_0**4, exp(6), 1 - 2*alpha)
    >>> signs = first_update("sign")
    >>> signs.leading, signs.at_half, signs.rate
    (L**2*x_0**2, E, 1 - alpha)
    """
    _check(rule)
    # dx^L/dW_l = L^-alpha M_l x_0 with M_l the product of all other layers' factors 1 + L^-alpha W.  The
    # update is that times chi, or its sign: either way layer l adds |M_l|^power times a constant to A_L.
    power = 2 if rule == "sgd" else 1
    constant = (L**-alpha * chi * x_0**2) ** 2 if rule == "sgd" else x_0**2
    others, own = _moment(2 * power), _moment(power)
    square = constant * (L * others ** (L - 1) + L * (L - 1) * own**2 * others ** (L - 2))
    leading = powsimp(constant * L**2)
    # factors to the power L tend to one for alpha > 1/2
    at_half = exp(limit((L * (others - 1)).subs(alpha, Rational(1, 2)).expand(), L, oo))
    exponent = counted(leading.subs({chi: 1, x_0: 1}), recursion=False).power
    size = as_expression(frozenset({exponent})) / 2
    (rate,) = solve(-alpha - c + size, c)
    return FirstUpdate(rule, square, leading, at_half, rate)


def _moment(p: int) -> Expr:
    """``E |1 + L^-alpha W|^p`` for a normal W."""
    a, w = Dummy("a", positive=True), Dummy("w", real=True)
    weight = exp(-(w**2) / 2) / sqrt(2 * pi)
    if p % 2 == 0:
        found = integrate(((1 + a * w) ** p * weight).expand(), (w, -oo, oo))
    else:
        found = integrate((1 + a * w) ** p * weight, (w, -1 / a, oo))
        found -= integrate((1 + a * w) ** p * weight, (w, -oo, -1 / a))
    return found.subs(a, L**-alpha)


@lru_cache(maxsize=2)
def update_power(rule: str = "sgd") -> Expr:
    """The gamma of a rule with learning rate ``eta L^-c``: updates enter a layer's h with ``L^-gamma``.

    Read off the theory of the linear network that is trained by the rule itself: the gradient of a weight has
    the factor of its branch, which gradient descent keeps and signs do not.  Raises :class:`NotApplicable`.

    >>> update_power("sgd"), update_power("sign")
    (alpha + c, c)
    """
    _check(rule)
    program = trained_by(rule)
    equation = mean_field(program).equation("x", ell)
    (memory,) = [x.expr for x in equation.terms if x.kind == "memory"]
    body = memory.function if isinstance(memory, Sum) else memory
    powers = Mul(*[x for x in Mul.make_args(body) if x.is_Pow and x.base == L])
    return (-powers.as_powers_dict()[L] - alpha).expand() if powers != 1 else S.Zero


def optimal_rate(rule: str = "sgd") -> Expr:
    """The c of the largest rate ``eta L^-c`` at which the output stays of order one, for alpha >= 1/2.

    An update enters the stream at L layers, each time with its branch: ``L^(1 - alpha - gamma)``.

    >>> optimal_rate("sgd"), optimal_rate("sign")
    (1 - 2*alpha, 1 - alpha)
    """
    (found,) = solve(1 - alpha - update_power(rule), c)
    return found


def trained_by(rule: str, depth: Expr | int = L) -> Program:
    """The linear residual network of depth2023 trained by a rule as it stands, with learning rate ``L^-c``.

    >>> (W,) = trained_by("sign").matrices
    >>> W.update.coefficient, W.update.left
    (-1/L**c, sign(dx(ell, t)))
    """
    _check(rule)
    program = depth_program(depth, alpha=alpha, gamma=c)
    (W,) = program.matrices
    if not isinstance(W, TrainedMatrix) or not isinstance(W.update, Outer):
        raise NotApplicable(f"{W} is not trained by outer products")
    update = W.update
    if rule == "sign":  # of one sample: the gradient has rank one, and so have its signs
        update = replace(update, left=sign(update.left), right=sign(update.right))
    else:
        update = replace(update, coefficient=update.coefficient * branch(program))
    return replace(program, matrices=(replace(W, update=update),))


def branch(program: Program) -> Expr:
    """What multiplies a layer's product with its matrix: the gradient of the matrix has it too."""
    for d in program.definitions:
        for x in Add.make_args(d.rhs):
            products = [y for y in Mul.make_args(x) if isinstance(y, Product)]
            if d.lhs.args and d.lhs.args[0] == ell and len(products) == 1:
                return x / products[0]
    raise NotApplicable("the program has no residual layer: x(ell) = x(ell - 1) + c * (W(ell) @ x(ell - 1))")


def _check(rule: str) -> None:
    if rule not in RULES:
        raise NotApplicable(f"rule = {rule!r} is not known; {' and '.join(map(repr, RULES))} are")


__all__ = ["RULES", "FirstUpdate", "branch", "first_update", "optimal_rate", "trained_by", "update_power"]
