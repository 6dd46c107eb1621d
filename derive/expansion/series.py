"""Power series in gamma0 whose coefficients are sums of noncommutative words, truncated at a fixed order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sympy import Add, Expr, Indexed, Mul, Pow, Symbol, sympify
from sympy import transpose as flip
from sympy.functions.elementary.complexes import transpose as Transpose
from sympy.polys.rings import PolyElement

from derive.calculus.polynomials import Polynomials
from derive.expansion.words import letters
from derive.linear.operators import J

Word = tuple[Expr, ...]
"""A product of letters, left to right; empty for the identity."""

Sum = dict[Word, PolyElement]
"""Words with their coefficients, none of them zero."""

Series = list[Sum]
"""One sum for each power."""


@dataclass(frozen=True)
class Ring:
    """Series in ``variable`` up to ``order``, in which the ``symmetric`` letters equal their transpose."""

    variable: Symbol
    order: int
    symmetric: frozenset[Expr]
    numbers: Polynomials
    flipped: dict[Expr, Expr] = field(default_factory=dict, compare=False)

    # -- one coefficient -------------------------------------------------------------------------------

    def word(self, *ls: Expr) -> Sum:
        """One word with coefficient 1."""
        return {ls: self.numbers.one}

    def number(self, e: Any) -> Sum:
        """A multiple of the identity."""
        p = self.numbers.of(e)
        return {(): p} if p else {}

    def transposed(self, a: Sum) -> Sum:
        """The transpose, letter by letter."""
        return {tuple(self.transposed_letter(x) for x in reversed(w)): c for w, c in a.items()}

    def transposed_letter(self, x: Expr) -> Expr:
        """The transpose of one letter."""
        if x not in self.flipped:
            if isinstance(x, Transpose):
                self.flipped[x] = x.args[0]
            else:
                self.flipped[x] = x if x == J or x in self.symmetric else flip(x)
        return self.flipped[x]

    def moved(self, a: Sum, layer: Any) -> Sum:
        """``a`` with another layer in place of ell."""
        return {w: p for w, c in a.items() if (p := self.numbers.moved(c, layer))}

    # -- series ----------------------------------------------------------------------------------------

    def constant(self, a: Sum) -> Series:
        """A series with only the zeroth term."""
        return [a, *[{} for _ in range(self.order)]]

    def add(self, *xs: Series) -> Series:
        """Sum."""
        return [total(*[x[n] for x in xs]) for n in range(self.order + 1)]

    def mul(self, a: Series, b: Series) -> Series:
        """Product, in this order."""
        out: Series = []
        for n in range(self.order + 1):
            found: Sum = {}
            for k in range(n + 1):
                for v, c in a[k].items():
                    for w, d in b[n - k].items():
                        found[v + w] = found.get(v + w, self.numbers.zero) + c * d
            out.append({w: c for w, c in found.items() if c})
        return out

    def inverse(self, a: Series) -> Series:
        """``1/a`` for a series that starts with 1 (a Neumann series).  Raises ValueError otherwise."""
        if a[0] != self.number(1):
            raise ValueError(f"cannot invert a series that starts with {self.expr(a[0])}")
        loop: Series = [{}, *[{w: -c for w, c in x.items()} for x in a[1:]]]
        found = power = self.constant(self.number(1))
        for _ in range(self.order):
            power = self.mul(power, loop)
            if not any(power):
                break
            found = self.add(found, power)
        return found

    def transpose(self, a: Series) -> Series:
        """Transpose of each coefficient."""
        return [self.transposed(x) for x in a]

    def evaluate(self, e: Expr, known: Callable[[Indexed], Series]) -> Series:
        """The series of an operator expression whose indexed operators have the series ``known``."""
        if e == self.variable:
            return [self.number(int(n == 1)) for n in range(self.order + 1)]
        if isinstance(e, Indexed):
            return known(e)
        if isinstance(e, Transpose):
            return self.transpose(self.evaluate(e.args[0], known))
        if isinstance(e, Add):
            return self.add(*[self.evaluate(x, known) for x in e.args])
        if isinstance(e, Mul):
            out = self.constant(self.number(1))
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
        return self.constant(self.number(e) if e.is_commutative else self.word(*letters(e)))

    # -- to and from SymPy -----------------------------------------------------------------------------

    def expr(self, a: Sum) -> Expr:
        """A coefficient as a SymPy expression."""
        return sympify(Add(*[self.numbers.expr(c) * Mul(*w) for w, c in a.items()]))


def total(*xs: Sum) -> Sum:
    """The sum of sums.

    >>> total({}, {})
    {}
    """
    found: Sum = {}
    for x in xs:
        for w, c in x.items():
            found[w] = found[w] + c if w in found else c
    return {w: c for w, c in found.items() if c}


__all__ = ["Ring", "Series", "Sum", "Word", "total"]
