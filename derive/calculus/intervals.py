"""Intervals of real numbers that constants of a program must lie in: rates, variances, correlations, ratios.

Constants are checked when a rule, a matrix or a vector is made, and again when symbols receive numbers.
Parameters that depend on the time are checked at each time at which they are read. An expression with symbols
passes, unless it is infinite or complex, or a symbol or product that is known to be outside, such as one of
the wrong sign.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sympy import Expr, I, S, nan, oo, zoo

from derive.calculus.symbols import expression
from derive.errors import ProgramError


@dataclass(frozen=True)
class RealInterval:
    """Interval of real numbers from ``low`` to ``high``; ``words`` describe it in messages.

    The ends are included, unless ``low_open`` or ``high_open`` excludes one, and are infinite by default.
    ``without_zero`` excludes 0.
    """

    words: str
    low: Expr = S.NegativeInfinity
    high: Expr = S.Infinity
    low_open: bool = False
    high_open: bool = False
    without_zero: bool = False

    def require(self, value: Any, key: str) -> None:
        """Raise :class:`ProgramError`, naming ``key``, if a value cannot be a number of the interval.

        Expressions with symbols are judged by :meth:`contains`. Text, truth values, lists, tuples, mappings
        and matrices are refused.

        >>> POSITIVE.require(2, "ratio")
        >>> NONNEGATIVE.require(-0.1, "diffusion")
        Traceback (most recent call last):
        ...
        derive.errors.ProgramError: diffusion = -1/10: must be a number >= 0
        """
        e = expression(value, key)
        if isinstance(e, Expr) and not e.is_Matrix and self.contains(e):
            return
        raise ProgramError(f"{key} = {e}: must be {self.words}")

    def contains(self, e: Expr) -> bool:
        """Return whether a number is in the interval, or whether an expression with symbols may be.

        A symbol or a product is refused if SymPy knows that it is not real, that it is zero where zero is
        excluded, or that it has the wrong sign for an interval that begins at 0. Other expressions with
        symbols may be in the interval. Infinite, undefined and complex values are not.
        """
        factors = {e, *e.args} if e.is_Mul or e.is_Add else {e}
        if e.has(nan, zoo) or factors & {oo, -oo} or (e.has(I) and not e.is_real):
            return False
        # Rational numbers are compared with the finite ends of the interval only, because SymPy takes long to
        # compare numbers with infinity.
        if e.is_Rational:
            above = self.low is S.NegativeInfinity or (e > self.low if self.low_open else e >= self.low)
            below = self.high is S.Infinity or (e < self.high if self.high_open else e <= self.high)
            return bool(above and below) and not (self.without_zero and e == 0)
        if e.is_number:
            above = e > self.low if self.low_open else e >= self.low
            below = e < self.high if self.high_open else e <= self.high
            zero = self.without_zero and e.is_zero
            return e.is_real is not False and above != S.false and below != S.false and not zero
        if not (e.is_Symbol or e.is_Mul):
            return True
        if e.is_real is False or (self.without_zero and e.is_zero):
            return False
        return self.low != 0 or not (e.is_nonpositive if self.low_open else e.is_negative)


@dataclass(frozen=True)
class BoundedParameter:
    """Parameter of a training rule, and the interval in which it must be at all times.

    ``name`` is that of messages, such as "rate of Momentum"; ``value`` is an expression of symbols and of the
    time.
    """

    name: str
    value: Expr
    interval: RealInterval

    def require(self) -> None:
        """Raise :class:`ProgramError` if the value cannot be in the interval.

        A value with symbols passes, unless it is infinite or complex, or a symbol or product that is known to
        be outside.
        """
        self.interval.require(self.value, self.name)


REAL = RealInterval("a real number")
NONZERO = RealInterval("a real number other than 0", without_zero=True)
NONNEGATIVE = RealInterval("a number >= 0", low=S.Zero)
POSITIVE = RealInterval("a positive number", low=S.Zero, low_open=True)
FRACTION = RealInterval("a number >= 0 and < 1", low=S.Zero, high=S.One, high_open=True)
CORRELATION = RealInterval("a number from -1 to 1", low=S.NegativeOne, high=S.One)
