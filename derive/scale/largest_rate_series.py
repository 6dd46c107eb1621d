"""Power series of unknowns that are given by rational equations in one another."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sympy import QQ, Add, Expr, Mul, Pow, Symbol

from derive.errors import NotApplicable

Series = list[Any]
"""Coefficients in a field of rational functions, lowest order first."""


def solved_series(equations: Mapping[Symbol, Expr], x: Symbol, n: int) -> dict[Symbol, list[Expr]]:
    """The power series in ``x``, to order n, of unknowns with ``unknown = right-hand side``.

    The equations are repeated, from zero on, until nothing changes; every repetition must settle a further
    order.  Raises :class:`NotApplicable` if none does.

    >>> from sympy.abc import H, a, x
    >>> solved_series({H: 1 + a * x * H**2}, x, 3)[H]
    [1, a, 2*a**2, 5*a**3]
    """
    others = {y for e in equations.values() for y in e.free_symbols} - {x, *equations}
    field = QQ.frac_field(*sorted(others, key=str)) if others else QQ
    values: dict[Symbol, Series] = {y: [field.zero] * (n + 1) for y in equations}
    values[x] = [field.zero, field.one, *[field.zero] * n][: n + 1]
    read = _Truncated(field, values, n)
    for _ in range(len(equations) * (n + 2)):
        before = dict(values)
        for y, e in equations.items():
            values[y] = read.series(e)
        if before == values:
            return {y: [field.to_sympy(c) for c in values[y]] for y in equations}
    raise NotApplicable("the equations do not settle their power series, order by order")


class _Truncated:
    """Evaluates expressions as power series."""

    def __init__(self, field: Any, values: Mapping[Symbol, Series], n: int) -> None:
        self.field, self.values, self.n = field, values, n

    def series(self, e: Expr) -> Series:
        if e in self.values:
            return self.values[e]
        if isinstance(e, Add):
            return [sum(c, self.field.zero) for c in zip(*map(self.series, e.args), strict=True)]
        if isinstance(e, Mul):
            found = self.constant(self.field.one)
            for x in e.args:
                found = self.product(found, self.series(x))
            return found
        if isinstance(e, Pow) and e.exp.is_Integer:
            base = self.series(e.base) if e.exp > 0 else self.inverse(self.series(e.base))
            found = self.constant(self.field.one)
            for _ in range(abs(int(e.exp))):
                found = self.product(found, base)
            return found
        return self.constant(self.field.from_sympy(e))

    def constant(self, c: Any) -> Series:
        return [c, *[self.field.zero] * self.n]

    def product(self, a: Series, b: Series) -> Series:
        found = [self.field.zero] * (self.n + 1)
        for i, x in enumerate(a):
            if x:
                for j in range(self.n + 1 - i):
                    if b[j]:
                        found[i + j] += x * b[j]
        return found

    def inverse(self, a: Series) -> Series:
        if not a[0]:
            raise NotApplicable("a denominator vanishes where the series starts")
        found = [1 / a[0]]
        for i in range(1, self.n + 1):
            found.append(-sum((a[j] * found[i - j] for j in range(1, i + 1)), self.field.zero) / a[0])
        return found
