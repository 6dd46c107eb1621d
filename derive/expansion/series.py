"""Power series in gamma0 with noncommutative coefficients, truncated at a fixed order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sympy import Add, Expr, Indexed, Integer, Mul, Pow, S, Symbol, sympify
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.expansion.words import tidy, transposed


@dataclass(frozen=True)
class Ring:
    """Series in ``variable`` up to ``order``, with words in which ``symmetric`` operators equal their transpose."""

    variable: Symbol
    order: int
    symmetric: frozenset[Expr]

    def constant(self, e: Expr) -> list[Expr]:
        """A series with only the zeroth term."""
        return [sympify(e), *[S.Zero] * self.order]

    def add(self, *xs: list[Expr]) -> list[Expr]:
        """Sum."""
        return [Add(*[x[n] for x in xs]) for n in range(self.order + 1)]

    def mul(self, a: list[Expr], b: list[Expr]) -> list[Expr]:
        """Product, in this order."""
        out = []
        for n in range(self.order + 1):
            total = Add(*[a[k] * b[n - k] for k in range(n + 1) if a[k] != 0 and b[n - k] != 0])
            out.append(tidy(total, set(self.symmetric)))
        return out

    def inverse(self, a: list[Expr]) -> list[Expr]:
        """``1/a`` for a series that starts with 1 (a Neumann series).  Raises ValueError otherwise."""
        if a[0] != 1:
            raise ValueError(f"cannot invert a series that starts with {a[0]}")
        loop = [S.Zero, *[-x for x in a[1:]]]
        total, power = self.constant(S.One), self.constant(S.One)
        for _ in range(self.order):
            power = self.mul(power, loop)
            if all(x == 0 for x in power):
                break
            total = self.add(total, power)
        return total

    def transpose(self, a: list[Expr]) -> list[Expr]:
        """Transpose of each coefficient."""
        return [transposed(x, set(self.symmetric)) for x in a]

    def evaluate(self, e: Expr, known: Callable[[Indexed], list[Expr]]) -> list[Expr]:
        """The series of an operator expression whose indexed operators have the series ``known``."""
        if e == self.variable:
            return [Integer(int(n == 1)) for n in range(self.order + 1)]
        if isinstance(e, Indexed):
            return known(e)
        if isinstance(e, Transpose):
            return self.transpose(self.evaluate(e.args[0], known))
        if isinstance(e, Add):
            return self.add(*[self.evaluate(x, known) for x in e.args])
        if isinstance(e, Mul):
            out = self.constant(S.One)
            for x in e.args:
                out = self.mul(out, self.evaluate(x, known))
            return out
        if isinstance(e, Pow) and e.exp.is_Integer and (e.has(self.variable) or not e.is_commutative):
            base = self.evaluate(e.base, known)
            if e.exp < 0:
                base = self.inverse(base)
            out = base
            for _ in range(abs(int(e.exp)) - 1):
                out = self.mul(out, base)
            return out
        return self.constant(e)
