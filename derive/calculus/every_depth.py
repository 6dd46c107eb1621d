"""Expressions for every depth, found from depths that are numbers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from sympy import Dummy, Expr, Integer, Poly, S, interpolate

from derive.calculus.symbols import L
from derive.errors import NotApplicable

HIGHEST = 14
"""No polynomial in the depth of a higher degree is looked for."""
CHECKED = 2
"""Depths beyond those that fix a polynomial, at which it must be right."""


def in_depth(value: Callable[[int], Expr], *variables: Expr, degree: int | None = None) -> Expr:
    """``value(1), value(2), ...`` in one expression: polynomials in L times powers of ``variables``.

    With ``degree`` the degree in L is known not to be higher, and one further depth is tried; without, it is
    raised until :data:`CHECKED` further depths agree.  This is an argument and no
    proof: a polynomial that agrees with that many further depths is taken for the function.  Raises
    :class:`NotApplicable` where there is none.

    >>> from derive.calculus.symbols import eta
    >>> in_depth(lambda k: Integer(k) ** 2 * eta + k, eta)
    L**2*eta + L
    """
    found: list[Expr] = []
    for top in range(HIGHEST + 1) if degree is None else (degree,):
        while len(found) < top + (2 if degree is not None else 1 + CHECKED):
            found.append(value(len(found) + 1).expand())
        rest = found
        for _ in range(top + 1):
            rest = [(y - x).expand() for x, y in pairwise(rest)]
        if not any(rest):
            return _through(found[: top + 1], variables)
    raise NotApplicable(f"not a polynomial of degree {HIGHEST if degree is None else degree} in the depth")


def _through(values: list[Expr], variables: tuple[Expr, ...]) -> Expr:
    polynomials = [Poly(x, *variables) for x in values]
    found = S.Zero
    x = Dummy("x")
    for m in sorted({m for p in polynomials for m in p.monoms()}):
        points = [(Integer(k), p.coeff_monomial(m)) for k, p in enumerate(polynomials, 1)]
        term = interpolate(points, x).subs(x, L)
        for y, power in zip(variables, m, strict=True):
            term *= y**power
        found += term
    return found


__all__ = ["in_depth"]
