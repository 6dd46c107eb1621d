"""Functions in terms of signs, error functions and exponentials, which is all that `moments` integrates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sympy import (
    Abs,
    Add,
    Expr,
    Heaviside,
    I,
    Max,
    Min,
    Piecewise,
    S,
    cos,
    cosh,
    erf,
    erfc,
    erfi,
    exp,
    sign,
    sin,
    sinh,
)
from sympy.core.relational import GreaterThan, LessThan, StrictGreaterThan, StrictLessThan


def written(body: Expr, variables: tuple[Expr, ...]) -> Expr:
    """Rectifiers, steps and sines in terms of signs and exponentials, where they depend on the variables."""

    def random(e: Any) -> bool:
        return any(e.has(v) for v in variables)

    def step(x: Expr) -> Expr:
        return (1 + sign(x)) / 2

    def bend(e: Expr) -> Expr:
        """A maximum or minimum of two."""
        x, y = e.args
        return (x + y + (x - y) * sign(x - y) * (1 if isinstance(e, Max) else -1)) / 2

    def cases(e: Piecewise) -> Expr:
        (x, where), (y, other) = e.args
        if isinstance(where, StrictGreaterThan | GreaterThan):
            gap = where.lhs - where.rhs
        elif isinstance(where, StrictLessThan | LessThan):
            gap = where.rhs - where.lhs
        else:
            return e
        return x * step(gap) + y * step(-gap) if other == True else e  # noqa: E712

    rules: list[tuple[Callable[[Any], bool], Callable[[Any], Expr]]] = [
        (lambda e: isinstance(e, Piecewise) and len(e.args) == 2, cases),
        (lambda e: isinstance(e, Max | Min) and len(e.args) == 2, bend),
        (lambda e: isinstance(e, Heaviside), lambda e: step(e.args[0])),
        (lambda e: isinstance(e, Abs), lambda e: e.args[0] * sign(e.args[0])),
        (lambda e: isinstance(e, erfc), lambda e: 1 - erf(e.args[0])),
        (lambda e: isinstance(e, sin | cos | sinh | cosh), lambda e: e.rewrite(exp)),
    ]
    for is_one, rule in rules:
        body = body.replace(lambda e, is_one=is_one: is_one(e) and random(e), rule)
    return body


def real(e: Expr) -> Expr:
    """Complex exponentials back to sines."""
    if not e.has(I):
        return e

    def wave(x: Expr) -> Expr:
        real, imaginary = S.Zero, S.Zero
        for part in Add.make_args(x.args[0].expand()):
            (c, i) = part.as_independent(I)
            if i == I:
                imaginary += c
            else:
                real += part
        return exp(real) * (cos(imaginary) + I * sin(imaginary))

    e = e.expand().replace(lambda x: isinstance(x, exp) and x.has(I), wave)
    return e.replace(
        lambda x: isinstance(x, erf) and x.has(I) and not (x.args[0] / I).has(I),
        lambda x: I * erfi(x.args[0] / I),
    ).expand()
