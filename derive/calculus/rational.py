"""Padé approximants of power series, exact where the coefficients are."""

from __future__ import annotations

from collections.abc import Sequence

from sympy import Expr, S, sympify
from sympy.polys.constructor import construct_domain
from sympy.polys.matrices import DomainMatrix
from sympy.polys.matrices.exceptions import DMNonInvertibleMatrixError


class DegeneratePade(ValueError):
    """There is no approximant of these degrees, or it is one of lower degrees in disguise."""


def pade(coefficients: Sequence[Expr], m: int, n: int) -> tuple[list[Expr], list[Expr]]:
    """Numerator (degree m) and denominator (degree n, starting with 1) that agree with it to order m + n.

    The coefficients are those of powers 0, 1, 2, ... of one variable.  Raises ValueError for negative degrees
    or too few coefficients, :class:`DegeneratePade` where the equations for the denominator are singular.

    >>> from sympy import Rational
    >>> pade([Rational(1, 1), Rational(1, 1), Rational(1, 2)], 1, 1)  # exp(z) = (1 + z/2) / (1 - z/2) + ...
    ([1, 1/2], [1, -1/2])
    >>> pade([1, 1, 1, 1, 1], 2, 2)
    Traceback (most recent call last):
    derive.calculus.rational.DegeneratePade: [2/2]: ...
    """
    if m < 0 or n < 0:
        raise ValueError(f"[{m}/{n}]: degrees must not be negative")
    if m + n >= len(coefficients):
        raise ValueError(f"[{m}/{n}] needs {m + n + 1} coefficients; there are {len(coefficients)}")
    known = [sympify(c) for c in coefficients]

    def at(k: int) -> Expr:
        return known[k] if k >= 0 else S.Zero

    below = [S.One, *_solved(known, m, n)]
    above = [sum((below[j] * at(k - j) for j in range(min(k, n) + 1)), S.Zero) for k in range(m + 1)]
    return above, below


def _solved(known: list[Expr], m: int, n: int) -> list[Expr]:
    """The denominator's further coefficients b: sum_j b_j c_{k-j} = -c_k for k = m+1, ..., m+n."""
    if n == 0:
        return []
    domain, values = construct_domain(known[: m + n + 1], field=True)

    def at(k: int) -> object:
        return values[k] if k >= 0 else domain.zero

    rows = [[at(m + i - j) for j in range(1, n + 1)] for i in range(1, n + 1)]
    right = [[-at(m + i)] for i in range(1, n + 1)]  # type: ignore[operator]
    matrix = DomainMatrix(rows, (n, n), domain)
    try:
        solution = matrix.lu_solve(DomainMatrix(right, (n, 1), domain))
    except DMNonInvertibleMatrixError:
        raise DegeneratePade(f"[{m}/{n}]: the equations for the denominator are singular") from None
    return [domain.to_sympy(x) for x in solution.to_list_flat()]


__all__ = ["DegeneratePade", "pade"]
