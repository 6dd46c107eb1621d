"""Piecewise polynomials that bend at zero, with their point masses: rectifiers and their derivatives.

Such a function of ``x`` is a sum of ``x**n * sign(x)**s`` and of derivatives of ``delta(x)``.  Products are
of the same kind, but for a jump or a point mass on top of a point mass: what ``sign(x) * delta(x)`` is
depends on how the jump is rounded, and so it is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from math import factorial

from sympy import (
    Abs,
    Add,
    DiracDelta,
    Expr,
    Heaviside,
    Max,
    Min,
    Mul,
    Piecewise,
    Poly,
    Pow,
    S,
    Symbol,
    sign,
)
from sympy.core.relational import GreaterThan, LessThan, StrictGreaterThan, StrictLessThan

Monomial = tuple[int, int, int]
"""``x**n * sign(x)**s``, or, if ``m`` is not -1, that times the ``m``-th derivative of ``delta(x)``."""
Jumps = dict[Monomial, Expr]


class Ambiguous(ValueError):
    """A product of distributions that has no meaning by itself, such as ``Heaviside(x) * DiracDelta(x)``."""


class OtherKind(ValueError):
    """The function is no piecewise polynomial that bends at zero only."""


def jumps(e: Expr, x: Symbol) -> Jumps:
    """The monomials of ``e``, a function of the real ``x``, in lowest terms.

    Raises OtherKind for another function, Ambiguous for a jump times a point mass.

    >>> x = Symbol("x", real=True)
    >>> jumps(Max(0, x), x), jumps(Max(0, x).diff(x, 2), x)
    ({(1, 0, -1): 1/2, (1, 1, -1): 1/2}, {(0, 0, 0): 1})
    >>> jumps(Max(0, x) * DiracDelta(x), x)
    {}
    >>> jumps(Heaviside(x) * DiracDelta(x), x)
    Traceback (most recent call last):
    derive.calculus.jumps.Ambiguous: sign(x) times DiracDelta(x) depends on how the jump is rounded
    """
    return lowest(_read(e, x))


def multiplied(factors: Iterable[Mapping[Monomial, Expr]]) -> Jumps:
    """The product of functions of the same number.  Raises Ambiguous."""
    total: Jumps = {(0, 0, -1): S.One}
    for f in factors:
        total = _times(total, f)
    return lowest(total)


def slope(monomial: Monomial) -> Jumps:
    """The derivative of a monomial in lowest terms: that of a sign is twice a point mass.

    >>> slope((0, 1, -1)), slope((2, 1, -1)), slope((0, 0, 0))
    ({(0, 0, 0): 2}, {(1, 1, -1): 2}, {(0, 0, 1): 1})
    """
    n, s, m = monomial
    if m >= 0:
        return {(0, 0, m + 1): S.One}
    found: Jumps = {(n - 1, s, -1): S(n)} if n else {}
    if s and not n:
        found[0, 0, 0] = S(2)
    return found


def lowest(e: Mapping[Monomial, Expr]) -> Jumps:
    """``sign**2 = 1``, and powers of ``x`` taken into point masses, ``x delta' = - delta``.

    Raises Ambiguous.
    """
    found: Jumps = {}
    for (n, s, m), c in e.items():
        if m >= 0:
            if n > m or c == 0:
                continue
            if s:
                raise Ambiguous("sign(x) times DiracDelta(x) depends on how the jump is rounded")
            key, c = (0, 0, m - n), c * (-1) ** n * factorial(m) / factorial(m - n)
        else:
            key = n, s % 2, -1
        found[key] = found.get(key, S.Zero) + c
    return {k: c for k, c in found.items() if c != 0}


# -- reading -------------------------------------------------------------------------------------------------


def _read(e: Expr, x: Symbol) -> Jumps:
    if e.is_polynomial(x):
        return {(n, 0, -1): c for (n,), c in Poly(e, x).terms() if c != 0}
    if isinstance(e, Add):
        return _plus(_read(a, x) for a in e.args)
    if isinstance(e, Mul):
        total: Jumps = {(0, 0, -1): S.One}
        for a in e.args:
            total = _times(total, _read(a, x))
        return total
    if isinstance(e, Pow) and e.exp.is_Integer and e.exp > 0:
        return _times(_read(e.base, x), _read(e.base ** (e.exp - 1), x))
    if isinstance(e, Max | Min) and len(e.args) == 2:
        a, b = e.args
        half = S.Half if isinstance(e, Max) else -S.Half
        return _plus([_scaled(_read(a + b, x), S.Half), _scaled(_bent(a - b, x, 1), half)])
    if isinstance(e, Abs):
        return _bent(e.args[0], x, 1)
    if isinstance(e, sign):
        return _bent(e.args[0], x, 0)
    if isinstance(e, Heaviside):
        return _plus([{(0, 0, -1): S.Half}, _scaled(_bent(e.args[0], x, 0), S.Half)])
    if isinstance(e, DiracDelta):
        k, order = _slope_of(e.args[0], x), int(e.args[1]) if len(e.args) > 1 else 0
        return {(0, 0, order): 1 / (k**order * Abs(k))}
    if isinstance(e, Piecewise) and len(e.args) == 2 and e.args[1].cond == True:  # noqa: E712
        (above, where), (below, _) = e.args
        if isinstance(where, StrictGreaterThan | GreaterThan):
            gap = where.lhs - where.rhs
        elif isinstance(where, StrictLessThan | LessThan):
            gap = where.rhs - where.lhs
        else:
            raise OtherKind(str(e))
        step = _scaled(_bent(gap, x, 0), S.Half)
        apart = _plus([_read(above, x), _scaled(_read(below, x), S.NegativeOne)])
        return _plus([_scaled(_read(above + below, x), S.Half), _times(step, apart)])
    raise OtherKind(str(e))


def _bent(line: Expr, x: Symbol, power: int) -> Jumps:
    """``|line|`` or ``sign(line)``."""
    k = _slope_of(line, x)
    return {(power, 1, -1): Abs(k) if power else sign(k)}


def _slope_of(line: Expr, x: Symbol) -> Expr:
    if not line.is_polynomial(x) or Poly(line, x).monoms() != [(1,)]:
        raise OtherKind(f"a bend where {line} vanishes")
    return Poly(line, x).LC()


def _plus(parts: Iterable[Mapping[Monomial, Expr]]) -> Jumps:
    found: Jumps = {}
    for part in parts:
        for k, c in part.items():
            found[k] = found.get(k, S.Zero) + c
    return found


def _scaled(e: Mapping[Monomial, Expr], c: Expr) -> Jumps:
    return {k: c * v for k, v in e.items()}


def _times(a: Mapping[Monomial, Expr], b: Mapping[Monomial, Expr]) -> Jumps:
    """Signs are counted, not cancelled: next to a point mass a square is as ambiguous as a sign."""
    found: Jumps = {}
    for (n, s, m), c in a.items():
        for (p, q, r), d in b.items():
            if m >= 0 and r >= 0 and c != 0 and d != 0:
                raise Ambiguous("DiracDelta(x) times DiracDelta(x) has no meaning")
            key = n + p, s + q, max(m, r)
            found[key] = found.get(key, S.Zero) + c * d
    return found
