"""Rational functions of which the powers of one symbol are known up to a highest one.

Every sum, product and quotient keeps powers up to ``TruncatedField.last`` and states up to which power its
value is exact, so that no coefficient depends on powers that were dropped. The first steps of a theory
(:mod:`derive.scale.first_steps`) use them for orders in the learning rate or in gamma0.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from math import inf
from operator import mul
from typing import Any

from sympy import Expr

from derive.errors import NotApplicable


class TruncatedField:
    """Field of rational functions in which powers of one symbol above ``last`` are dropped.

    ``last`` may be raised between two computations.

    >>> from sympy import QQ
    >>> from sympy.abc import a, x
    >>> series = TruncatedField(QQ.frac_field(a, x), 1, 2)
    >>> y = (series.from_sympy(a) + series.from_sympy(x**3)) / series.from_sympy(x)
    >>> print(y.known, series.to_sympy(y), series.to_sympy(series.one / series.from_sympy(1 - a * x)))
    1 a/x a**2*x**2 + a*x + 1
    """

    def __init__(self, field: Any, place: int, last: int) -> None:
        """Set the field of rational functions, and the highest power ``last`` of the symbol that is kept.

        ``place`` is the position of this symbol among the symbols of the field.
        """
        self.field, self.place, self.last = field, place, last
        self.zero, self.one = Truncated(self, field.zero), Truncated(self, field.one)

    @property
    def symbol(self) -> Expr:
        """The symbol whose powers above ``last`` are dropped."""
        return self.field.symbols[self.place]

    def from_sympy(self, e: Expr) -> Truncated:
        """Convert an expression to an element that is exact; only later operations drop powers.

        Raises ValueError if it is not a rational function in the symbols of the field.
        """
        return Truncated(self, self.field.from_sympy(e))

    def to_sympy(self, x: Truncated) -> Expr:
        """Return the value of an element as an expression."""
        return self.field.to_sympy(x.value)

    def element(self, value: Any, known: float) -> Truncated:
        """Return a rational function as an element, without the powers that are dropped.

        Powers of ``value`` up to ``known`` are exact; higher ones, and those above ``last``, are dropped. The
        function is expanded in the symbol, unless its denominator has a single power of the symbol.
        """
        last = min(known, self.last)
        kept = self.cut(value, int(last))
        return Truncated(self, kept, known if kept == value else last)

    def cut(self, value: Any, last: int) -> Any:
        """Return the powers of the symbol up to ``last`` of a rational function, as a rational function."""
        powers = {m[self.place] for m in value.denom.monoms()}
        low = min(powers)
        if len(powers) == 1:
            if value.numer.degree(self.place) - low <= last:
                return value
            kept = {m: c for m, c in value.numer.terms() if m[self.place] - low <= last}
            return self.field(value.numer.ring.from_dict(kept)) / self.field(value.denom)
        above, below = self.by_power(value.numer), self.by_power(value.denom)
        # The quotient sum_k q_k x^k of the polynomials `above` and `below` in x obeys sum_j below_j x^j sum_k
        # q_k x^k = sum_k above_k x^k, which determines one q_k after the other.
        quotient: dict[int, Any] = {}
        for k in range(min(above) - low, last + 1):
            known = (below[j] * quotient[k + low - j] for j in below if k + low - j in quotient)
            quotient[k] = (above.get(k + low, self.field.zero) - sum(known, self.field.zero)) / below[low]
        return self.total(quotient)

    def by_power(self, polynomial: Any) -> dict[int, Any]:
        """Return the coefficient of each power of the symbol in a polynomial, as elements of the field."""
        terms: dict[int, dict[tuple[int, ...], Any]] = {}
        for m, c in polynomial.terms():
            power = m[self.place]
            terms.setdefault(power, {})[(*m[: self.place], 0, *m[self.place + 1 :])] = c
        return {k: self.field(polynomial.ring.from_dict(x)) for k, x in terms.items()}

    def total(self, coefficients: dict[int, Any]) -> Any:
        """Return the sum of coefficients times powers of the symbol as a rational function."""
        x = self.field.gens[self.place]
        return sum((c * x**k for k, c in coefficients.items()), self.field.zero)


@dataclass(frozen=True, eq=False)
class Truncated:
    """Element of a :class:`TruncatedField`: ``value`` is exact up to the power ``known`` of the symbol.

    ``known`` is infinite for a function of which nothing was dropped. ``bool`` of an element is False only if
    the value is zero and ``known`` is infinite, so that the function is exactly zero.
    """

    parent: TruncatedField
    value: Any
    known: float = inf

    @property
    def numer(self) -> Any:
        """The numerator of the value, a polynomial."""
        return self.value.numer

    @property
    def lowest(self) -> float:
        """Lowest power of the symbol in the value, negative for a pole; ``known + 1`` if the value is zero.

        It is infinite for the function that is exactly zero.
        """
        if not self.value:
            return self.known + 1
        above, below = (
            int(min(m[self.parent.place] for m in x.monoms())) for x in (self.numer, self.value.denom)
        )
        return above - below

    def __bool__(self) -> bool:
        return bool(self.value) or self.known < inf

    def __add__(self, other: Any) -> Truncated:
        other = self.converted(other)
        return self.parent.element(self.value + other.value, min(self.known, other.known))

    __radd__ = __add__

    def __neg__(self) -> Truncated:
        return Truncated(self.parent, -self.value, self.known)

    def __sub__(self, other: Any) -> Truncated:
        return self + -self.converted(other)

    def __mul__(self, other: Any) -> Truncated:
        other = self.converted(other)
        if not (self and other):
            return self.parent.zero
        known = min(self.known + other.lowest, other.known + self.lowest)
        return self.parent.element(self.value * other.value, known)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Truncated:
        other = self.converted(other)
        if not other.value and other:
            raise NotApplicable(
                f"a divisor is known up to order {other.known} in {self.parent.symbol}, and all its known "
                "coefficients are zero: give a higher order"
            )
        known = min(self.known - other.lowest, other.known + self.lowest - 2 * other.lowest)
        return self.parent.element(self.value / other.value, known) if self else self.parent.zero

    def __pow__(self, n: int) -> Truncated:
        return reduce(mul, [self] * n) if n else self.parent.one

    def converted(self, x: Any) -> Truncated:
        """Return ``x``, an element or an integer, as an element."""
        return x if isinstance(x, Truncated) else Truncated(self.parent, self.parent.field(x))
