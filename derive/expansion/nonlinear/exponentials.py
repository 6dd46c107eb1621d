"""Sums of powers and exponentials of ell and L, and the recursions over layers that they solve.

A term is ``c ell^a L^b x^(i ell + j L) p^(k ell + l L)``, with c in a field that contains x and p.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Any, Protocol

from sympy import Add, Expr, Symbol

from derive.errors import NotApplicable
from derive.program.words import L, ell

x, p = Symbol("x", positive=True), Symbol("p", positive=True)

Key = tuple[int, int, tuple[int, int], tuple[int, int]]
"""Powers of ell and L, then the exponents of (x, p): what multiplies ell in them, and what L."""


class Ring(Protocol):
    """The field of coefficients, and the two multipliers in it."""

    field: Any
    x: Any
    p: Any


ZERO: Key = (0, 0, (0, 0), (0, 0))


@dataclass(frozen=True)
class Series:
    """A sum of powers and exponentials of ell and L."""

    ring: Ring
    terms: dict[Key, Any]

    def plus(self, other: Series) -> Series:
        found = dict(self.terms)
        for k, c in other.terms.items():
            found[k] = found.get(k, self.ring.field(0)) + c
        return Series(self.ring, {k: c for k, c in found.items() if c})

    def times(self, other: Series) -> Series:
        found: dict[Key, Any] = {}
        for (a, b, e, f), c in self.terms.items():
            for (i, j, g, h), d in other.terms.items():
                key = (a + i, b + j, _add(e, g), _add(f, h))
                found[key] = found.get(key, self.ring.field(0)) + c * d
        return Series(self.ring, {k: c for k, c in found.items() if c})

    def power(self, exponents: tuple[int, int], times: int) -> Any:
        """``(x^i p^k)^times``."""
        return self.ring.x ** (exponents[0] * times) * self.ring.p ** (exponents[1] * times)

    def moved(self, by: int) -> Series:
        """At the layer ``ell + by``."""
        found: dict[Key, Any] = {}
        for (a, b, e, f), c in self.terms.items():
            for k in range(a + 1):
                key = (k, b, e, f)
                value = c * self.power(e, by) * (comb(a, k) * by ** (a - k))
                found[key] = found.get(key, self.ring.field(0)) + value
        return Series(self.ring, {k: c for k, c in found.items() if c})

    def at(self, place: int, last: bool) -> Series:
        """At the layer ``place``, counted from L with ``last``."""
        found: dict[Key, Any] = {}
        for (a, b, e, f), c in self.terms.items():
            rest = c * self.power(e, place)
            powers = [(k, comb(a, k) * place ** (a - k)) for k in range(a + 1)] if last else [(0, place**a)]
            for k, number in powers:
                key = (0, b + k, (0, 0), _add(e, f) if last else f)
                found[key] = found.get(key, self.ring.field(0)) + rest * number
        return Series(self.ring, {k: c for k, c in found.items() if c})

    def summed(self, m: Any, forward: bool, place: int, last: bool, value: Series) -> Series:
        """The solution of ``X(ell) = m X(ell -+ 1) + self`` with X(place) given; ``last``: counted from L."""
        sign = -1 if forward else 1
        base = self.exponents(m)
        total = Series(self.ring, {})
        for key, c in self.terms.items():
            total = total.plus(self.particular(key, c, m, base, sign))
        # the rest is a multiple of m^(+-(ell - place))
        rest = value.plus(total.at(place, last).scaled(self.ring.field(-1)))
        slope = (-sign * base[0], -sign * base[1])
        homogeneous: dict[Key, Any] = {}
        for (a, b, e, f), c in rest.terms.items():
            key = (a, b, _add(e, slope), _add(f, (-slope[0], -slope[1])) if last else f)
            homogeneous[key] = c * self.power(slope, -place)
        return total.plus(Series(self.ring, homogeneous))

    def scaled(self, c: Any) -> Series:
        return Series(self.ring, {k: v * c for k, v in self.terms.items()})

    def exponents(self, m: Any) -> tuple[int, int]:
        """``m`` as ``x^i p^k``."""
        for found in ((0, 0), (1, 0), (0, 1), (1, 1), (2, 0)):
            if self.power(found, 1) == m:
                return found
        raise NotApplicable(f"the multiplier {m.as_expr()} is no product of x and p")

    def particular(self, key: Key, c: Any, m: Any, base: tuple[int, int], sign: int) -> Series:
        """One solution of ``X(ell) = m X(ell + sign) + c ell^a rho^ell``, a polynomial times rho^ell."""
        a, b, e, f = key
        step = m * self.power(e, sign)
        resonant = step == self.ring.field(1)
        coefficients = [self.ring.field(0)] * (a + 2)
        wanted = [self.ring.field(0)] * (a + 1) + [self.ring.field(0)]
        wanted[a] = c
        # compare powers of ell, from the highest: sum_k c_k [ell^k - step (ell + sign)^k] = c ell^a
        for k in reversed(range(a + 1)):
            j = k + 1 if resonant else k
            known = wanted[k]
            for i in range(j + 1, a + 2):
                known += coefficients[i] * step * (comb(i, k) * sign ** (i - k))
            weight = -step * (comb(j, k) * sign) if resonant else 1 - step
            coefficients[j] = known / weight
        return Series(self.ring, {(k, b, e, f): v for k, v in enumerate(coefficients) if v})

    def expr(self) -> Expr:
        """As a SymPy expression."""
        return Add(
            *[
                c.as_expr() * ell**a * L**b * x ** (e[0] * ell + f[0] * L) * p ** (e[1] * ell + f[1] * L)
                for (a, b, e, f), c in self.terms.items()
            ]
        )


def _add(a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
    return a[0] + b[0], a[1] + b[1]


__all__ = ["ZERO", "Key", "Series", "p", "x"]
