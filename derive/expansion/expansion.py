"""Base class of all expansions: coefficients of the quantities of a theory in powers of a small parameter.

Subclasses give `coefficient`; truncated series, compiled functions and error estimates follow from it.
`derive.expansion.expand` returns them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Self

from sympy import Expr, Symbol, sympify

from derive.calculus.series import PowerSeries
from derive.errors import require_order
from derive.show.summary import Summarised
from derive.show.text import wrap

COLUMNS = 110
PrintedBlock = Iterable[tuple[str, list[str]]]
"""Pairs of the text of a left-hand side and the texts of the terms of its right-hand side."""


class Expansion(Summarised, ABC):
    """Base class of expansions of a theory: coefficients of its quantities in powers of a small ``variable``.

    Coefficients are known up to ``order``. The variable is ``gamma0``, ``|gamma0|``, one over a size (such as
    ``1/nu``), the learning rate ``eta``, or the step of a map. Arguments after the name of a quantity and the
    order (``layer=``, ``now=``) depend on the kind of expansion. Methods of this class that take ``args`` or
    ``where`` pass them to :meth:`coefficient`.
    """

    order: int
    variable: Expr

    @property
    @abstractmethod
    def names(self) -> tuple[str, ...]:
        """Names of the quantities (order parameters, fields, outputs) that have coefficients."""

    @abstractmethod
    def coefficient(self, name: str, n: int, *args: Any, **where: Any) -> Expr:
        """Return the coefficient of ``variable**n`` in the series of a quantity.

        Parameters
        ----------
        name : str
            Name of the quantity.
        n : int
            Order.
        *args : Any
            Further arguments, such as numbers of modes, if the kind of expansion takes them.
        **where : Any
            Further options, such as ``layer``, if the kind of expansion takes them.

        Returns
        -------
        Expr
            Coefficient.

        Raises
        ------
        KeyError
            If there is no quantity of that name.
        IndexError
            If ``n`` is negative or beyond the order.
        """

    def truncate(self, n: int) -> Self:
        """Return the expansion up to a lower order.

        Parameters
        ----------
        n : int
            New order.

        Returns
        -------
        Self
            Truncated expansion.

        Raises
        ------
        IndexError
            If ``n`` is negative or beyond the order.
        """
        self.check_order(n)
        return replace(self, order=n)  # type: ignore[type-var]

    @abstractmethod
    def render(self, format: str = "text") -> str:
        """Return the coefficients as text or LaTeX.

        Parameters
        ----------
        format : {"text", "latex"}
            Format.

        Returns
        -------
        str
            The coefficients; which of them are shown depends on the kind of expansion.

        Raises
        ------
        ValueError
            If the kind of expansion does not have this format.
        """

    def conditions(self) -> tuple[str, ...]:
        """Return the assumptions beyond those of the theory itself.

        Returns
        -------
        tuple[str, ...]
            Assumptions as sentences; empty if there are none.
        """
        return ()

    def series(self, name: str, *args: Any, **where: Any) -> PowerSeries:
        """Return the coefficients of a quantity up to ``order`` as one truncated power series.

        Parameters
        ----------
        name : str
            Name of the quantity.
        *args : Any
            As in :meth:`coefficient`.
        **where : Any
            As in :meth:`coefficient`.

        Returns
        -------
        PowerSeries
            Series in the variable.

        Raises
        ------
        KeyError
            If there is no quantity of that name; further errors are those of :meth:`coefficient`.
        """
        coefficients = (self.coefficient(name, n, *args, **where) for n in range(self.order + 1))
        return PowerSeries(tuple(coefficients), self.variable)

    def lambdify(self, name: str, *symbols: Symbol, modules: Any = None, **where: Any) -> Callable[..., Any]:
        """Return the truncated series as a function of the variable and of ``symbols``.

        Parameters
        ----------
        name : str
            Name of the quantity.
        *symbols : Symbol
            Further arguments of the function.
        modules : Any, optional
            Modules for the compiled function, as in SymPy's ``lambdify``.
        **where : Any
            Options as in :meth:`coefficient`. Arguments that :meth:`coefficient` takes by position, such as
            numbers of modes, cannot be given.

        Returns
        -------
        Callable[..., Any]
            Function; see :meth:`.PowerSeries.lambdify`.

        Raises
        ------
        ValueError
            If a coefficient is not a number for given symbols, such as an undefined function. Operators of a
            :class:`.LinearExpansion` are compiled as functions of matrices.
        """
        return self.series(name, **where).lambdify(*symbols, modules=modules)

    def error_estimate(self, name: str, *args: Any, **where: Any) -> Expr:
        """Return an estimate of the truncation error of a quantity's series.

        It continues the last known coefficients as a geometric series, and is not a bound.

        Parameters
        ----------
        name : str
            Name of the quantity.
        *args : Any
            As in :meth:`coefficient`.
        **where : Any
            As in :meth:`coefficient`.

        Returns
        -------
        Expr
            Estimate as a function of the variable, infinite where the coefficients do not determine it, such
            as for fewer than two terms that are not zero; see :meth:`.PowerSeries.error_estimate`.

        Raises
        ------
        KeyError
            If there is no quantity of that name; further errors are those of :meth:`coefficient`.
        """
        return self.series(name, *args, **where).error_estimate()

    def check_order(self, n: int) -> None:
        """Raise IndexError unless n is an integer from 0 to the highest known order.

        Parameters
        ----------
        n : int
            Order.
        """
        require_order(n, self.order)

    def unknown(self, name: str) -> KeyError:
        """Return the KeyError for a name that has no coefficients.

        Parameters
        ----------
        name : str
            Name.

        Returns
        -------
        KeyError
            Error that lists the names that have coefficients.
        """
        return KeyError(f"no series {name!r}; there are {', '.join(self.names)}")

    def _repr_latex_(self) -> str:
        return self.render("latex")


def placed_layer(name: str, layer: Any, first: Expr, last: Expr, symbolic: bool = True) -> Expr:
    """Return a layer as an expression; raise ValueError unless it is from ``first`` to ``last``.

    ``name`` is that of the quantity in the message. With ``symbolic`` the layer may contain symbols, and is
    refused if it is outside for all values of these; otherwise it must be an integer.

    >>> placed_layer("H", 3, sympify(0), sympify(2))
    Traceback (most recent call last):
    ValueError: layer = 3: must be an integer from 0 to 2 for H
    """
    value = sympify(layer)
    exact = value.is_Integer or (symbolic and not value.is_number)
    if not exact or (value - first).is_negative or (last - value).is_negative:
        raise ValueError(f"layer = {layer}: must be an integer from {first} to {last} for {name}")
    return value


def printed(format: str, head: str, blocks: Mapping[str, PrintedBlock]) -> str:
    """Return equations as text with a headline, one term on each line, or as a LaTeX environment.

    ``head`` is the headline. ``blocks`` maps each title to pairs of a left-hand side and the terms of its
    right-hand side, which is 0 without terms. LaTeX has neither headline nor titles. Another format raises
    ValueError.

    >>> print(printed("text", "A series", {"Orders": [("f", ["1", "-x [y]"])]}))
    A series
    <BLANKLINE>
    Orders
        f = 1
            -x [y]
    """
    if format == "latex":
        rows = []
        for left, terms in (x for block in blocks.values() for x in block):
            first, *rest = terms or ["0"]
            rows.append(f"{left} &= {first}")
            rows += [rf"&\quad {_signed(x)}" for x in rest]
        return "\\begin{align*}\n  " + " \\\\\n  ".join(rows) + "\n\\end{align*}"
    if format != "text":
        raise ValueError(f"format = {format!r}: must be 'text' or 'latex'")
    lines = [head]
    for title, block in blocks.items():
        lines += ["", title]
        for left, terms in block:
            first, *rest = terms or ["0"]
            lines.append(wrap(f"    {left} = {first}", COLUMNS, 10))
            lines += [wrap(f"        {_signed(x)}", COLUMNS, 12) for x in rest]
    return "\n".join(lines)


def _signed(x: str) -> str:
    """Return the text of a term with "+ " in front unless it starts with a minus."""
    return x if x.startswith("-") else f"+ {x}"
