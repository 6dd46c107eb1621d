"""Coefficients that are polynomials in the layer and the depth, and their sums over layers in closed form."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import comb
from typing import Any

from sympy import QQ, Expr, Integer, Poly, Symbol, factor_terms, sympify
from sympy.polys.rings import PolyElement, PolyRing

from derive.calculus.symbols import ell


class Polynomials:
    """The ring of polynomials in ``ell`` and further ``symbols`` over the rationals.

    >>> from derive.calculus.symbols import L
    >>> p = Polynomials([L])
    >>> p.expr(p.summed(p.of(L * ell), 1, ell))  # L (1 + ... + ell)
    L*ell**2/2 + L*ell/2
    """

    def __init__(self, symbols: Iterable[Symbol] = ()) -> None:
        names = [ell, *sorted(set(symbols) - {ell}, key=str)]
        self.ring = PolyRing(names, QQ)
        self.layer = self.ring.gens[0]
        self.one, self.zero = self.ring.one, self.ring.zero

    def of(self, e: Any) -> PolyElement:
        """``e`` as an element.  Raises ValueError if it is no polynomial with rational coefficients."""
        if isinstance(e, int | PolyElement):
            return self.ring(e)
        return self.ring.from_expr(sympify(e))

    def expr(self, p: PolyElement) -> Expr:
        """An element as a SymPy expression, expanded."""
        return p.as_expr()

    def moved(self, p: PolyElement, layer: Any) -> PolyElement:
        """``p`` with ``layer`` in place of ell."""
        place = self.of(layer)
        return p if place == self.layer or p.is_ground else p.compose(self.layer, place)

    def summed(self, p: PolyElement, lower: Any, upper: Any) -> PolyElement:
        """The sum of ``p(k)`` over the layers k from ``lower`` to ``upper``."""
        below, above = self.of(lower) - 1, self.of(upper)
        total = self.zero
        for power, c in self.by_power(p).items():
            rise = power_sum(self, power)
            total += c * (self.moved(rise, above) - self.moved(rise, below))
        return total

    def by_power(self, p: PolyElement) -> dict[int, PolyElement]:
        """The coefficients of the powers of ell."""
        found: dict[int, PolyElement] = {}
        for powers, c in p.terms():
            rest = self.ring.from_dict({(0, *powers[1:]): c})
            found[powers[0]] = found.get(powers[0], self.zero) + rest
        return found


@lru_cache(maxsize=256)
def power_sum(p: Polynomials, n: int) -> PolyElement:
    """``1**n + ... + ell**n`` (Faulhaber), by telescoping ``(k+1)**(n+1) - k**(n+1)``.

    >>> ring = Polynomials()
    >>> [ring.expr(power_sum(ring, n)) for n in (0, 1, 2)]
    [ell, ell**2/2 + ell/2, ell**3/3 + ell**2/2 + ell/6]
    """
    x = p.layer
    total = (x + 1) ** (n + 1) - 1
    for j in range(n):
        total -= comb(n + 1, j) * power_sum(p, j)
    return total * QQ(1, n + 1)


@lru_cache(maxsize=10_000)
def factored(e: Expr) -> Expr:
    """A polynomial as a product of its factors.

    >>> from derive.calculus.symbols import L
    >>> factored(L**2 / 2 + L / 2)
    L*(L + 1)/2
    """
    if not e.free_symbols:
        return e
    number, factors = Poly(e, *sorted(e.free_symbols, key=str)).factor_list()
    # the number is kept outside: a rational times a single sum would be multiplied out
    value: Expr = Integer(1)
    for f, power in factors:
        value *= f.as_expr() ** power
    return factor_terms(number * value) if value.is_Add else number * value


__all__ = ["Polynomials", "factored", "power_sum"]
