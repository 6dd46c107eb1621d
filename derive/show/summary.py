"""Short text of results: the name of the class, and one line for each part.

The input is a dataclass that holds a derived result, such as an expansion; the output is the text that
Python prints for it. Of an expression with many terms only the number of operations is printed. The base
class of such results is :class:`Summarised`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from sympy import Basic, count_ops

WIDTH = 100
"""Largest number of characters in a line of a summary."""

MOST_PARTS = 12
"""Number of elements of a collection above which only this number is printed."""

MOST_OPERATIONS = 60
"""Number of operations of an expression above which only this number is printed, not the expression."""


class Summarised:
    """Base class of results that Python prints as a table of their parts.

    Subclasses are dataclasses with ``repr=False``, because a dataclass would otherwise replace the method.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> from sympy import symbols
    >>> x, y = symbols("x y")
    >>> @dataclass(frozen=True, repr=False)
    ... class Line(Summarised):
    ...     slope: object
    ...     points: tuple
    >>> Line(x / y, tuple(range(100)))
    Line
      slope   x/y
      points  100 of int
    """

    def __repr__(self) -> str:
        return summary(self)


def summary(result: Any) -> str:
    """Return the name of the class of a dataclass, and below it each part in one line."""
    parts = [(x.name, _brief(getattr(result, x.name))) for x in fields(result) if x.repr]
    width = max((len(name) for name, _ in parts), default=0)
    lines = [f"  {name:{width}}  {text}" for name, text in parts]
    cut = (x if len(x) <= WIDTH else f"{x[: WIDTH - 4]} ..." for x in lines)
    return "\n".join([type(result).__name__, *cut])


def _brief(value: Any) -> str:
    """Return one line of text for a part of a result: its value, or a short description if it is long.

    A short mapping is shown by its keys. A dataclass whose text is generated is shown by its class name.
    """
    if isinstance(value, Basic):
        operations = int(count_ops(value))
        if operations > MOST_OPERATIONS:
            return f"{type(value).__name__} of {operations} operations"
        return str(value)
    if isinstance(value, str) or not isinstance(value, Collection):
        # The text that a dataclass generates is as long as its parts together, so that the name of the class
        # stands for it. Theories and programs have a title in their first line.
        generated = is_dataclass(value) and hasattr(type(value).__repr__, "__wrapped__")
        return type(value).__name__ if generated else repr(value).partition("\n")[0]
    if len(value) <= MOST_PARTS:
        texts = [_brief(x) for x in value]
        if sum(map(len, texts)) + 2 * len(texts) < WIDTH:
            left, right = "()" if isinstance(value, tuple | list) else "{}"
            return left + ", ".join(texts) + right
    if isinstance(value, Mapping):
        return f"{len(value)} entries"
    kinds = sorted({type(x).__name__ for x in value})
    return f"{len(value)} of {' and '.join(kinds)}"
