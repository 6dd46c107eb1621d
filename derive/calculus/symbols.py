"""Symbols in which every theory is written, ranges of indices, and exact numbers.

The symbols carry assumptions, so a new symbol with the same name is a different symbol: import these for
substitutions. :func:`expression` and :func:`exact` convert numbers of users to SymPy expressions.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from numbers import Real
from typing import Any

from sympy import Basic, Expr, Float, Integer, MatrixBase, Rational, Symbol, SympifyError, Tuple, sympify

from derive.errors import ProgramError

t = Symbol("t", nonnegative=True)
"""The present time: steps of a discrete rule, training time of a flow."""
s = Symbol("s", nonnegative=True)
"""An earlier time."""
ell = Symbol("ell", integer=True)
"""The index of a layer."""
L = Symbol("L", integer=True, positive=True)
"""The number of hidden layers."""
P = Symbol("P", integer=True, positive=True)
"""The number of training samples."""
mu = Symbol("mu", integer=True, positive=True)
"""The index of a sample."""
alpha = Symbol("alpha", integer=True, positive=True)
"""The index of a second sample."""
gamma0 = Symbol("gamma0", positive=True)
"""The feature-learning strength (richness); features do not move as it goes to 0."""
eta = Symbol("eta", positive=True)
"""The learning rate."""


def primed(index: Symbol) -> Symbol:
    """Return the second index of a two-point function: alpha for mu, ``x_`` for an index ``x``."""
    return alpha if index == mu else Symbol(f"{index.name}_", **index.assumptions0)


@dataclass(frozen=True)
class IndexRange:
    """Range of an index: the integers from ``lower`` to ``upper``, both included.

    Parameters
    ----------
    index : Symbol
        The index.
    lower, upper : Expr
        The bounds; both may be symbolic.

    Raises
    ------
    ProgramError
        If :func:`expression` refuses a bound, for example text.
    """

    index: Symbol
    lower: Expr
    upper: Expr

    def __post_init__(self) -> None:
        """Convert the bounds to SymPy expressions; raise ProgramError for other objects, such as text."""
        for key in ("lower", "upper"):
            bound = getattr(self, key)
            if not isinstance(bound, Basic):
                object.__setattr__(self, key, expression(bound, f"{key} end of the range of {self.index}"))

    def subs(self, *args: Any, **kwargs: Any) -> IndexRange:
        """Return the range with a substitution in its bounds.

        Parameters
        ----------
        *args, **kwargs
            Arguments of :meth:`sympy.core.basic.Basic.subs`.

        Returns
        -------
        IndexRange
            The range of the same index.
        """
        return IndexRange(self.index, self.lower.subs(*args, **kwargs), self.upper.subs(*args, **kwargs))

    def renamed(self, index: Any) -> IndexRange:
        """Return the range of another index with the same bounds.

        Parameters
        ----------
        index : Symbol
            The new index.

        Returns
        -------
        IndexRange
            The range of ``index``.
        """
        return IndexRange(index, self.lower, self.upper)

    @property
    def limits(self) -> Tuple:
        """The tuple ``(index, lower, upper)``, as SymPy's ``Sum`` takes it."""
        return Tuple(self.index, self.lower, self.upper)


IndexRanges = tuple[IndexRange, ...]
"""The ranges of several indices, in order."""
IndexValues = Mapping[Symbol, int]
"""The value of each index."""


def expression(value: Any, key: str = "value") -> Any:
    """Return a number or a SymPy object as a SymPy object; raise :class:`ProgramError` for any other value.

    Text is never evaluated, and refused; so are lists, sets, mappings and arrays. A tuple becomes a ``Tuple``
    and True a SymPy truth value. A decimal number becomes the fraction that its digits show, so that derived
    expressions are exact. ``key`` is the name of the argument in the message.

    >>> expression(2) + expression(L), expression(0.1)
    (L + 2, 1/10)
    >>> expression("L + 1", "depth")
    Traceback (most recent call last):
    ...
    derive.errors.ProgramError: depth = 'L + 1': must be a number or a SymPy expression; text is not evaluated
    """
    if isinstance(value, Real) and hasattr(value, "dtype"):
        # A real number of NumPy stands for the digits that NumPy prints: float32(0.1) is 0.1, and not
        # 0.100000001490116.
        value = Float(str(value))
    result = None
    with suppress(SympifyError):
        if isinstance(value, tuple):
            # Each entry is converted by itself, because sympify would evaluate text inside of a tuple.
            result = Tuple(*(expression(entry, key) for entry in value))
        elif isinstance(value, Basic | MatrixBase) or not isinstance(value, Iterable):
            result = converted(value)
    if result is None:
        text = "; text is not evaluated" if isinstance(value, str) else ""
        raise ProgramError(f"{key} = {value!r}: must be a number or a SymPy expression{text}")
    return _with_fractions(result) if isinstance(result, Basic) else _with_fractions.__wrapped__(result)


@lru_cache(maxsize=10_000)
def _with_fractions(e: Any) -> Any:
    """Return an expression in which each decimal number is replaced by the fraction that its digits show."""
    shown = {x: str(x) if x._prec > 53 else repr(float(x)) for x in e.atoms(Float)}
    return e.xreplace({x: Rational(text) for x, text in shown.items()}) if shown else e


@lru_cache(maxsize=10_000)
def spelled(x: Basic) -> str:
    """Return ``str(x)``, by which expressions are sorted; the string is cached.

    >>> sorted({ell, L, t}, key=spelled)
    [L, ell, t]
    """
    return str(x)


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
LARGEST = 1e9
"""The largest size of a decimal number, or of a number in text, that :func:`exact` converts."""


def exact(name: str, value: Any) -> Expr:
    """Return a number as a SymPy fraction; an expression is returned unchanged, and text must be a number.

    A decimal number of SymPy counts as an expression, and a ``Decimal`` of Python is converted to one.
    ``name`` is the name of the value in messages. Raises ValueError for text that is not a number. Raises it
    also for a decimal number, or a number in text, that is not 0 and whose size is above 1e9 or below 1e-9,
    because exact powers of it would take too long; in text, numerator and denominator are checked each. A
    NumPy number is read as its text. Other integers and fractions may have any size. Raises NotAnExpression
    for a value that is not an expression.

    >>> exact("source", "0.7"), exact("source", "2/3"), exact("source", 0.1)
    (7/10, 2/3, 1/10)
    """
    if isinstance(value, float) or (isinstance(value, Real) and hasattr(value, "dtype")):
        value = str(value)
    if isinstance(value, str):
        sizes = [Decimal(x.strip().lstrip("+-")) for x in value.split("/") if NUMBER.fullmatch(x.strip())]
        if any(x and not 1 / LARGEST <= x <= LARGEST for x in sizes):
            raise ValueError(
                f"{name} = {value!r}: must be 0, or have an absolute value from {1 / LARGEST:g} to "
                f"{LARGEST:g}; in a fraction this holds for numerator and denominator each"
            )
        try:
            value = Fraction(value.strip())
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{name} = {value!r}: must be a number, such as 0.7 or 2/3") from None
    if isinstance(value, Fraction):
        return Rational(value.numerator, value.denominator)
    return Integer(value) if isinstance(value, int) else converted(value)


class NotAnExpression(SympifyError):
    """Error: a value is neither a number nor a SymPy object."""

    def __str__(self) -> str:
        text = "; text is not evaluated" if isinstance(self.expr, str) else ""
        return f"{self.expr!r}: must be a number or a SymPy expression{text}"


def converted(value: Any) -> Any:
    """Return a number or SymPy object as a SymPy object; raise NotAnExpression for text and containers.

    SymPy's own strict conversion evaluates text inside of tuples, sets and mappings.

    >>> converted(2) + converted(L)
    L + 2
    >>> converted("L")
    Traceback (most recent call last):
    derive.calculus.symbols.NotAnExpression: 'L': must be a number or a SymPy expression; text is not ...
    """
    if isinstance(value, Iterable) and not isinstance(value, Basic | MatrixBase):
        raise NotAnExpression(value)
    try:
        return sympify(value, strict=True)
    except SympifyError:
        raise NotAnExpression(value) from None
