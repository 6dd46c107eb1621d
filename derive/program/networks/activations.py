"""Nonlinearities by name, as SymPy functions or as expressions in one symbol.

Text other than a name is never parsed here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sympy import Abs, Dummy, Expr, Lambda, Max, Symbol, erf, exp, log, sin, sqrt, tanh

from derive.errors import ProgramError

_x = Symbol("x", real=True)

NAMED: dict[str, Expr] = {
    "linear": _x,
    "relu": Max(0, _x),
    "tanh": tanh(_x),
    "erf": erf(_x),
    "abs": Abs(_x),
    "softplus": log(1 + exp(_x)),
    "gelu": _x * (1 + erf(_x / sqrt(2))) / 2,
    "sin": sin(_x),
    "quadratic": _x**2,
    "cubic": _x**3,
    "hermite2": (_x**2 - 1) / sqrt(2),
    "hermite3": (_x**3 - 3 * _x) / sqrt(6),
}


@dataclass(frozen=True)
class Activation:
    """A nonlinearity ``phi`` and its derivative, each to be applied to an expression."""

    phi: Callable[[Expr], Expr]
    slope: Callable[[Expr], Expr]
    linear: bool = False


def activation_of(activation: str | Any) -> Activation:
    """What ``activation`` means: a name, a SymPy function (``tanh``, ``Function("phi")``), a ``Lambda``, any
    function of an expression, or an expression in one symbol.

    Raises :class:`ProgramError` for anything else, and for a constant.

    >>> from sympy import Function, Symbol
    >>> y = Symbol("y")
    >>> for a in ("sin", y**2, Function("phi")): print(activation_of(a).phi(y), activation_of(a).slope(y))
    sin(y) cos(y)
    y**2 2*y
    phi(y) Derivative(phi(y), y)
    """
    function = _function(activation)
    slot = Dummy("x", real=True)
    body = function(slot)
    if not isinstance(body, Expr) or not body.has(slot):
        raise ProgramError(f"activation = {activation!r}: must depend on the field it is applied to")
    derivative = body.diff(slot)
    return Activation(function, lambda v: derivative.subs(slot, v), linear=body == slot)


def _function(activation: str | Any) -> Callable[[Expr], Expr]:
    if isinstance(activation, str):
        if activation not in NAMED:
            raise ProgramError(
                f"activation = {activation!r}: must be one of {', '.join(NAMED)}, "
                "or a SymPy function such as tanh"
            )
        named: Callable[[Expr], Expr] = Lambda(_x, NAMED[activation])
        return named
    if isinstance(activation, Expr) and not isinstance(activation, Lambda):
        free = sorted(activation.free_symbols, key=str)
        if len(free) != 1:
            raise ProgramError(
                f"activation = {activation}: must contain one symbol, the field; it has {free}"
            )
        written: Callable[[Expr], Expr] = Lambda(free[0], activation)
        return written
    if callable(activation):
        given: Callable[[Expr], Expr] = activation
        return given
    raise ProgramError(f"activation = {activation!r}: must be a name or a SymPy function such as tanh")
