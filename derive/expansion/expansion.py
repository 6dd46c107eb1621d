"""What every expansion is: the coefficients of a theory's quantities in powers of one small parameter."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from sympy import Expr, Symbol

from derive.calculus.series import PowerSeries
from derive.show.text import wrap

COLUMNS = 110
PrintedBlock = Iterable[tuple[str, list[str]]]
"""What stands at the left, and the terms that stand at the right."""


class Expansion(ABC):
    """A theory in powers of a small ``variable``, known up to ``order``.

    The variable is ``gamma0``, ``|gamma0|``, ``1/nu``, ``1/alpha``, ``1/alpha_B`` or ``eta``.  Arguments
    besides the name and the order (``layer=``, ``now=``) are those that a kind of expansion understands, and
    are handed through by all methods.
    """

    order: int
    variable: Expr

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """The quantities that have coefficients."""

    @abstractmethod
    def coefficient(self, name: str, n: int, *args: Any, **where: Any) -> Expr:
        """The coefficient of ``variable**n``.

        Raises KeyError for an unknown name, IndexError beyond the order.
        """

    def truncate(self, n: int) -> Self:
        """The same up to order n only.  Raises IndexError beyond the order."""
        self.check_order(n)
        return replace(self, order=n)  # type: ignore[type-var]

    @abstractmethod
    def render(self, format: str = "text") -> str:
        """All that is known, as ``text`` or ``latex``.  Raises ValueError for another format."""

    def conditions(self) -> tuple[str, ...]:
        """What was assumed beyond the theory itself; empty if nothing was."""
        return ()

    def series(self, name: str, *args: Any, **where: Any) -> PowerSeries:
        """All coefficients of ``name`` as one truncated power series."""
        found = (self.coefficient(name, n, *args, **where) for n in range(self.order + 1))
        return PowerSeries(tuple(found), self.variable)

    def lambdify(self, name: str, *symbols: Symbol, modules: Any = None, **where: Any) -> Callable[..., Any]:
        """The truncated series as a function of the variable's symbol and of ``symbols``.

        See :meth:`.PowerSeries.lambdify`.  Raises ValueError where a coefficient is no number for given
        symbols: operators that do not commute, and functions without a definition.
        """
        return self.series(name, **where).lambdify(*symbols, modules=modules)

    def error_estimate(self, name: str, *args: Any, **where: Any) -> Expr:
        """An estimate of what the truncation misses in ``name``; see :meth:`.PowerSeries.error_estimate`."""
        return self.series(name, *args, **where).error_estimate()

    def check_order(self, n: int) -> None:
        """Raise IndexError beyond the order."""
        if not 0 <= n <= self.order:
            raise IndexError(f"n = {n}: the series is known for orders 0 to {self.order}")

    def unknown(self, name: str) -> KeyError:
        """The error for a name that is not there."""
        return KeyError(f"no series {name!r}; there are {', '.join(self.names)}")

    def _repr_latex_(self) -> str:
        return self.render("latex")


def printed(format: str, head: str, blocks: Mapping[str, PrintedBlock]) -> str:
    """Blocks of sums, a term on each line; in text under a head.  Raises ValueError for another format.

    >>> print(printed("text", "A series", {"Orders": [("f", ["1", "-x [y]"])]}))
    A series
    <BLANKLINE>
    Orders
        f = 1
            -x [y]
    """
    if format == "latex":
        rows = []
        for left, (first, *rest) in (x for block in blocks.values() for x in block):
            rows.append(f"{left} &= {first}")
            rows += [rf"&\quad {_signed(x)}" for x in rest]
        return "\\begin{align*}\n  " + " \\\\\n  ".join(rows) + "\n\\end{align*}"
    if format != "text":
        raise ValueError(f"format = {format!r}: must be 'text' or 'latex'")
    lines = [head]
    for title, block in blocks.items():
        lines += ["", title]
        for left, (first, *rest) in block:
            lines.append(wrap(f"    {left} = {first}", COLUMNS, 10))
            lines += [wrap(f"        {_signed(x)}", COLUMNS, 12) for x in rest]
    return "\n".join(lines)


def _signed(x: str) -> str:
    return x if x.startswith("-") else f"+ {x}"
