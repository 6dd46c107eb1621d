"""Exact evaluation of a theory at its first time, for polynomial nonlinearities.

Only the data of the theory are read: every field becomes a polynomial in the Gaussian sources, order
parameters are Gaussian moments (Isserlis), and responses are derivatives of such polynomials.
"""

from __future__ import annotations

from sympy import Expr, Integer, Mul, Poly, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.program import s, t
from derive.theory import Average, Response, Theory


class SingleTime:
    """The fields of a theory at t = 0."""

    def __init__(self, theory: Theory) -> None:
        self.theory = theory
        self.fields: dict[str, Expr] = {}
        self.known: dict[str, Expr] = {}
        self.sources = {str(u.symbol.func) for u in theory.sources}
        for e in theory.equations:
            self.fields[e.name] = self.value(e.rhs).expand()

    def value(self, e: Expr) -> Expr:
        """Return an expression at t = s = 0, in sources."""
        now = e.xreplace({t: Integer(0)}).doit()
        assert not now.has(Sum)
        return self.filled(now.xreplace({s: Integer(0)}))

    def filled(self, e: Expr) -> Expr:
        """Return the expression with every function replaced by its value."""
        e = e.xreplace({x: self.pushed(x) for x in e.atoms(Response)})
        return e.xreplace({x: self.named(x) for x in e.atoms(AppliedUndef)})

    def pushed(self, x: Response) -> Expr:
        """Return the derivative of a response's body by its source."""
        return self.filled(x.body).diff(Symbol(str(x.source.func)))

    def named(self, x: AppliedUndef) -> Expr:
        """Return the value of a source, a field or an order parameter."""
        name = str(x.func)
        if name in self.sources:
            return Symbol(name)
        return self.fields[name] if name in self.fields else self.parameter(name)

    def parameter(self, name: str) -> Expr:
        """Return the value of an order parameter."""
        if name not in self.known:
            definition = self.theory.order_parameter(name).definition.xreplace({t: Integer(0), s: Integer(0)})
            averages = {x: self.mean(self.filled(x.body)) for x in definition.atoms(Average)}
            self.known[name] = definition.xreplace(averages)
        return self.known[name]

    def mean(self, e: Expr) -> Expr:
        """Return the Gaussian mean of a polynomial in sources: E[x f] = sum_y <x y> E[df/dy]."""
        names = [Symbol(n) for n in sorted(self.sources)]
        total = S.Zero
        for powers, coefficient in Poly(e, *names).terms():
            first = next((x for x, n in zip(names, powers, strict=True) if n), None)
            if first is None:
                total += coefficient
                continue
            rest = Mul(*[x**n for x, n in zip(names, powers, strict=True)]) / first
            for x in rest.free_symbols | {first}:
                if (slope := rest.diff(x)) != 0:
                    total += coefficient * self.covariance(first.name, x.name) * self.mean(slope)
        return total.expand()

    def covariance(self, one: str, two: str) -> Expr:
        """Return the covariance of two sources, zero if none is stated."""
        for u in self.theory.sources:
            if {one, two} == {str(u.symbol.func), str(u.partner.func)}:
                return self.filled(u.covariance.xreplace({t: Integer(0), s: Integer(0)}))
        return S.Zero
