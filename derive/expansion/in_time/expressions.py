"""Exponential polynomials as ordinary SymPy expressions, with coefficients factored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sympy import QQ, ZZ, Add, Expr, Integer, Mul, Poly, Pow, Rational, Symbol, exp
from sympy.polys.fields import FracElement
from sympy.polys.rings import PolyElement, PolyRing

from derive.expansion.in_time.exponentials import Exponentials, Powers
from derive.expansion.in_time.modes import Scales
from derive.expansion.in_time.operators import TwoTimes


@dataclass(frozen=True)
class Expressions:
    """Writes elements out.

    ``known`` says what parameters stand for; ``feedback`` is the number whose inverse powers operators carry.
    """

    functions: Exponentials
    scales: Scales
    feedback: Expr
    known: Mapping[Symbol, Expr]
    rates: dict[Powers, tuple[Expr, ...]] = field(default_factory=dict, compare=False, repr=False)

    def factor_of(self, unit: int, damping: int) -> Expr:
        """``unit^unit feedback^-damping``."""
        return Mul(Pow(self.scales.unit, unit), Pow(self.feedback, -damping))

    def one_time(self, f: PolyElement, front: Expr, time: Expr) -> Expr:
        """``front f(time)``."""
        parts = self.functions.parts(f)
        return Add(*[self.coefficient(c, front, m[0]) * self.wave(m, time) for m, c in parts.items()])

    def two_times(self, f: TwoTimes, front: Expr, now: Expr, past: Expr) -> Expr:
        """``front f(now, past)``."""
        out = []
        for last, g in f.items():
            for m, c in self.functions.parts(g).items():
                value = self.coefficient(c, front, m[0] + last[0])
                out.append(value * self.wave(m, now) * self.wave(last, past))
        return Add(*out)

    def wave(self, m: Powers, time: Expr) -> Expr:
        """``time^a E(time)^n``, without the clock's factor of the power."""
        power = Pow(time, m[0])
        if not any(m[1:]):
            return power
        if not self.functions.discrete:
            # one product of all factors: SymPy distributes a number over a lone sum
            return power * exp(Mul(*self.rate(m[1:]), time))
        waves = [
            Pow(Mul(*self.rate(tuple(int(j == k) for j in range(len(m) - 1)))), n * time)
            for k, n in enumerate(m[1:])
            if n
        ]
        return Mul(power, *waves)

    def rate(self, powers: Powers) -> tuple[Expr, ...]:
        """The eigenvalue of ``E^powers`` in t, as factors."""
        if powers not in self.rates:
            number, factors = self.factored(self.functions.ring(self.functions.eigenvalue(powers)))
            clock = Mul.make_args(Mul(self.scales.clock, *factors))
            self.rates[powers] = (number, *clock)
        return self.rates[powers]

    def coefficient(self, c: PolyElement, front: Expr, degree: int) -> Expr:
        """``front clock^degree c``, factored; c is free of time."""
        number, factors = self.factored(c)
        value = Mul(number, front, Pow(self.scales.clock, degree), *factors)
        return value.xreplace(dict(self.known)) if self.known else value

    def factored(self, c: PolyElement, time: bool = False) -> tuple[Expr, list[Expr]]:
        """A number, and factors that are polynomials or inverse ones.

        With ``time`` c may depend on time; factors then contain the ring's letters for t and exponentials.
        """
        f = self.functions
        first = 0 if time else f.width
        symbols = list(f.ring.symbols[first:])
        if f.field in (QQ, ZZ):
            top = PolyRing(symbols or [Symbol("_")], QQ)
            pad = () if symbols else (0,)
            numerator = top.from_dict({(*m[first:], *pad): QQ(x) for m, x in c.iterterms()})
            return self.listed(numerator, 1)
        if not isinstance(next(iter(c.values())), FracElement):
            return Integer(1), [c.as_expr()]
        inner = f.field.field.ring
        below = inner.one
        for x in c.values():
            below = below.lcm(x.denom)
        joint = PolyRing([*symbols, *inner.symbols], QQ)
        above: dict[Powers, Any] = {}
        for m, x in c.iterterms():
            for p, q in (x.numer * below.exquo(x.denom)).iterterms():
                above[(*m[first:], *p)] = QQ(q)
        left = (0,) * len(symbols)
        under = joint.from_dict({(*left, *p): QQ(q) for p, q in below.iterterms()})
        a, up = self.listed(joint.from_dict(above), 1)
        b, down = self.listed(under, -1)
        return a * b, [*up, *down]

    def listed(self, p: PolyElement, sign: int) -> tuple[Expr, list[Expr]]:
        """The factors of a polynomial, each to the power ``sign``."""
        number, factors = p.factor_list()
        found = Rational(int(QQ(number).numerator), int(QQ(number).denominator))
        return Pow(found, sign), [Pow(self.named(q.as_expr()), sign * k) for q, k in factors]

    def named(self, e: Expr) -> Expr:
        """A polynomial with what the field's symbols stand for; ratios are cleared."""
        reference, names = self.scales.reference, self.scales.names
        if reference is None:
            return e.xreplace(names)
        gens = sorted(names, key=str)
        if not gens or not e.has(*gens):
            return e
        poly = Poly(e, *gens)
        top = poly.total_degree()
        whole = [c * Mul(*map(Pow, gens, m)) * reference ** (top - sum(m)) for m, c in poly.terms()]
        return Add(*whole) * reference**-top


__all__ = ["Expressions"]
