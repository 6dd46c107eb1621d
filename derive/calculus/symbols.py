"""The symbols that every theory is written in, the ranges of its indices, and numbers taken exactly.

They carry assumptions, so a symbol that only has the same name is another one: substitute these.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Any

from sympy import Basic, Expr, Float, Integer, Rational, Symbol, SympifyError, Tuple, sympify

from derive.errors import ProgramError

t = Symbol("t", nonnegative=True)
"""The present time: steps of a discrete rule, training time of a flow."""
s = Symbol("s", nonnegative=True)
"""An earlier time."""
ell = Symbol("ell", integer=True)
"""A layer."""
L = Symbol("L", integer=True, positive=True)
"""The number of hidden layers."""
P = Symbol("P", integer=True, positive=True)
"""The number of training samples."""
mu = Symbol("mu", integer=True, positive=True)
"""A sample."""
alpha = Symbol("alpha", integer=True, positive=True)
"""Another sample."""
gamma0 = Symbol("gamma0", positive=True)
"""The richness: how far features move."""
eta = Symbol("eta", positive=True)
"""The learning rate."""


def primed(index: Symbol) -> Symbol:
    """The partner of an index in a two-point function: alpha for mu, ``x_`` for any other ``x``."""
    return alpha if index == mu else Symbol(f"{index.name}_", **index.assumptions0)


@dataclass(frozen=True)
class IndexRange:
    """``index`` runs over the integers ``lower..upper``, both included; both may be symbolic."""

    index: Symbol
    lower: Expr
    upper: Expr

    def subs(self, *args: Any, **kwargs: Any) -> IndexRange:
        """The same range with its bounds substituted."""
        return IndexRange(
            self.index, sympify(self.lower).subs(*args, **kwargs), sympify(self.upper).subs(*args, **kwargs)
        )

    def renamed(self, index: Any) -> IndexRange:
        """The same range run over by another index."""
        return IndexRange(index, self.lower, self.upper)

    @property
    def limits(self) -> Tuple:
        """As SymPy's ``Sum`` takes it."""
        return Tuple(self.index, self.lower, self.upper)


IndexRanges = tuple[IndexRange, ...]
"""The ranges of several indices, in order."""
IndexValues = Mapping[Symbol, int]
"""The value of each index."""


def expression(value: Any, key: str = "value") -> Any:
    """A number or a SymPy object as SymPy has it; text is refused, never evaluated.

    Decimal numbers are the fractions that they show: what is derived from them is exact, by any route.
    Raises :class:`ProgramError`, naming ``key``.

    >>> expression(2) + expression(L), expression(0.1)
    (L + 2, 1/10)
    >>> expression("L + 1", "depth")
    Traceback (most recent call last):
    ...
    derive.errors.ProgramError: depth = 'L + 1': must be a number or a SymPy expression; text is not evaluated
    """
    try:
        found = None if isinstance(value, Mapping | list | set) else sympify(value, strict=True)
    except SympifyError:
        found = None
    if found is None:
        text = "; text is not evaluated" if isinstance(value, str) else ""
        raise ProgramError(f"{key} = {value!r}: must be a number or a SymPy expression{text}")
    return _with_fractions(found) if isinstance(found, Basic) else _with_fractions.__wrapped__(found)


@lru_cache(maxsize=10_000)
def _with_fractions(e: Any) -> Any:
    """``e`` with the fractions that its decimal numbers show."""
    shown = {x: str(x) if x._prec > 53 else repr(float(x)) for x in e.atoms(Float)}
    return e.xreplace({x: Rational(digits) for x, digits in shown.items()}) if shown else e


@lru_cache(maxsize=10_000)
def spelled(x: Basic) -> str:
    """Return ``str(x)``, by which expressions are put in order; SymPy computes it only once.

    >>> sorted({ell, L, t}, key=spelled)
    [L, ell, t]
    """
    return str(x)


NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
LARGEST = 1e9
"""The size of the largest number that is worked with exactly."""


def exact(name: str, value: Any) -> Expr:
    """A number as a fraction, an expression as it is; text is a number, never an expression.

    Raises ValueError for text that is no number, or one that nobody means and that exact powers of would
    take for ever (beyond LARGEST, or its inverse), and SympifyError for what is no expression.

    >>> exact("source", "0.7"), exact("source", "2/3"), exact("source", 0.1)
    (7/10, 2/3, 1/10)
    """
    if isinstance(value, float):
        value = repr(value)
    if isinstance(value, str):
        size = [Decimal(x.strip().lstrip("+-")) for x in value.split("/") if NUMBER.fullmatch(x.strip())]
        if any(x and not 1 / LARGEST <= x <= LARGEST for x in size):
            raise ValueError(f"{name} = {value!r}: must be between {1 / LARGEST:g} and {LARGEST:g} in size")
        try:
            value = Fraction(value.strip())
        except (ValueError, ZeroDivisionError):
            raise ValueError(f"{name} = {value!r}: must be a number, such as 0.7 or 2/3") from None
    if isinstance(value, Fraction):
        return Rational(value.numerator, value.denominator)
    return Integer(value) if isinstance(value, int) else sympify(value, strict=True)
