"""What a caller gives as a number, taken exactly; text is never evaluated."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from sympy import Expr, Integer, Rational, sympify


def exact(name: str, value: Any) -> Expr:
    """A number as a fraction, an expression as it is; text is a number, never an expression.

    Raises ValueError for text that is no number and SympifyError for what is no expression.

    >>> exact("source", "0.7"), exact("source", "2/3"), exact("source", 0.1)
    (7/10, 2/3, 1/10)
    """
    if isinstance(value, float):
        value = repr(value)
    if isinstance(value, str):
        try:
            value = Fraction(value.strip())
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{name} = {value!r}: must be a number, such as 0.7 or 2/3") from None
    if isinstance(value, Fraction):
        return Rational(value.numerator, value.denominator)
    return Integer(value) if isinstance(value, int) else sympify(value, strict=True)
