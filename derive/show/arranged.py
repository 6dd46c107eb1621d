"""What the LaTeX and the text printer share: they arrange terms alike and differ only in their signs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from sympy import Add, Derivative, Expr, Integral, Subs, Sum, Symbol
from sympy.core.function import AppliedUndef
from sympy.printing.precedence import PRECEDENCE, precedence

from derive.program.words import s as past
from derive.program.words import t as present
from derive.show.layout import Loop, Piece, join, ordered, piece
from derive.show.notation import LAYER, SAMPLE, TIME, Notation


class Arranged:
    """A mixin for SymPy's printers: indices, products, sums as :mod:`derive.show.layout` has them."""

    names: Notation
    left, right = "[", "]"
    open_average, close_average = "<", ">"

    # -- what each printer supplies --------------------------------------------------------------------

    def front(self, p: Piece) -> str:
        """The constant of a piece."""
        raise NotImplementedError

    def loop(self, loops: list[Loop]) -> str:
        """One sum sign for sums with the same bounds, or an integral sign with its differential."""
        raise NotImplementedError

    def unlimited(self, x: Expr) -> str:
        """A sum or an integral without bounds."""
        raise NotImplementedError

    def dotted(self, atom: AppliedUndef, order: int) -> str:
        """A derivative of an activation at its argument."""
        raise NotImplementedError

    def rate(self, variable: str, body: str, partial: bool = False) -> str:
        """A derivative in time, or in one of several variables."""
        raise NotImplementedError

    # -- equations and terms ---------------------------------------------------------------------------

    def equation(self, terms: Sequence[Expr]) -> str:
        """The right-hand side of an equation: terms in their order, common factors taken out."""
        if len(terms) == 1 and isinstance(terms[0], Add):
            terms = ordered(list(self._as_ordered_terms(terms[0])))  # type: ignore[attr-defined]
        return self.added(join(list(terms), self.names))

    def added(self, pieces: Sequence[Piece]) -> str:
        """Pieces with their signs between them."""
        text = ""
        for i, p in enumerate(pieces):
            text += ("-" if i == 0 else " - ") if p.negative else ("" if i == 0 else " + ")
            text += self.unsigned(p)
        return text or "0"

    def signed(self, p: Piece) -> str:
        """One piece with its sign."""
        return ("-" if p.negative else "") + self.unsigned(p)

    def unsigned(self, p: Piece) -> str:
        """``front loops [inside] tail``."""
        parts = [self.front(p), *(self.loop(list(x)) for _, x in groupby(p.loops, key=_bounds))]
        if p.inside:
            parts.append(f"{self.left}{self.added(p.inside)}{self.right}")
        parts += [self.factor(x) for x in p.tail]
        return " ".join(filter(None, parts)) or "1"

    def factor(self, x: Expr) -> str:
        """A factor of a product, in parentheses if it is a sum."""
        if isinstance(x, Sum | Integral):
            if any(len(limits) != 3 for limits in x.limits):
                return self.unlimited(x)
            return self.unsigned(piece(x, self.names))
        if isinstance(x, Derivative | Subs) and self.activation_slope(x) is not None:
            return str(self._print(x))  # type: ignore[attr-defined]
        return str(self.parenthesize(x, PRECEDENCE["Mul"]))  # type: ignore[attr-defined]

    def _print_Mul(self, expr: Expr) -> str:
        return self.signed(piece(expr, self.names))

    _print_Sum = _print_Mul
    _print_Integral = _print_Mul

    def _print_Add(self, expr: Add, order: Any = None) -> str:
        terms = ordered(list(self._as_ordered_terms(expr, order=order)))  # type: ignore[attr-defined]
        return self.added([piece(x, self.names) for x in terms])

    # -- derivatives and averages ----------------------------------------------------------------------

    def activation_slope(self, e: Expr) -> tuple[AppliedUndef, int] | None:
        """``(phi(x), n)`` when ``e`` is the n-th derivative of phi at x."""
        if isinstance(e, Subs) and len(e.variables) == 1:
            inner = e.expr
            if isinstance(inner, Derivative) and inner.expr.args == tuple(e.variables) == inner.variables[:1]:
                return inner.expr.func(e.point[0]), len(inner.variables)
        if isinstance(e, Derivative) and isinstance(e.expr, AppliedUndef) and len(e.expr.args) == 1:
            own = set(e.variables) == set(e.expr.args) and self.names.is_activation(e.expr)
            return (e.expr, len(e.variables)) if own else None
        return None

    def _print_Derivative(self, expr: Derivative) -> str:
        if (slope := self.activation_slope(expr)) is not None:
            return self.dotted(*slope)
        several = isinstance(expr.expr, AppliedUndef) and len(expr.expr.args) > 1
        several = several and self.names.is_activation(expr.expr)
        if len(expr.variables) == 1 and (several or isinstance(expr.variables[0], Symbol)):
            body = self.parenthesize(expr.expr, PRECEDENCE["Mul"], strict=True)  # type: ignore[attr-defined]
            return self.rate(self._print(expr.variables[0]), body, several)  # type: ignore[attr-defined]
        return str(super()._print_Derivative(expr))  # type: ignore[misc]

    def _print_Subs(self, expr: Subs) -> str:
        if (slope := self.activation_slope(expr)) is not None:
            return self.dotted(*slope)
        return str(super()._print_Subs(expr))  # type: ignore[misc]

    def _print_Average(self, expr: Any) -> str:
        body: str = self._print(expr.args[0])  # type: ignore[attr-defined]
        return self.open_average + body + self.close_average

    def varied(self, body: Expr) -> str:
        """What stands behind the sign of a functional derivative: products and sums in brackets."""
        text = str(self._print(body))  # type: ignore[attr-defined]
        whole = precedence(body) >= PRECEDENCE["Func"] and not isinstance(body, Sum | Integral)
        return text if whole else f"{self.left}{text}{self.right}"

    # -- indices ---------------------------------------------------------------------------------------

    def indices(self, atom: AppliedUndef) -> tuple[list[str], list[str], list[str]]:
        """The printed layers, samples and times of ``atom``."""
        roles = list(zip(self.names.roles_of(atom), atom.args, strict=True))

        def having(role: str) -> list[str]:
            return [tight(self._print(x)) for r, x in roles if r == role]  # type: ignore[attr-defined]

        return having(LAYER), having(SAMPLE), having(TIME)


def _bounds(x: Loop) -> tuple[Any, ...]:
    """Equal for neighbouring sums that one sign can stand for."""
    alone = x.integral or past_time(x) != ""
    return (x,) if alone else (x.lower, x.upper)


def tight(text: str) -> str:
    """A sum inside an index, without spaces around its signs."""
    return text.replace(" + ", "+").replace(" - ", "-")


def past_time(x: Loop) -> str:
    """``<`` or ``<=`` for a sum over all earlier times, the present left out or included; else nothing."""
    if x.integral or x.lower != 0 or x.index.is_integer:
        return ""
    return "<" if (x.upper + 1).is_Symbol and x.upper.is_Add else "<=" if x.upper.is_Symbol else ""


def present_first(times: Sequence[Expr]) -> list[Expr]:
    """The arguments of a symmetric function of two times as ``(t, s)``."""
    return sorted(times, key=lambda x: (x.has(past), not x.has(present)))


def solved(relation: Any) -> Any:
    """``L - ell >= 1`` as ``ell <= L - 1``: a condition on an index as its bound."""
    found = [x for x in Add.make_args(relation.lhs) if (-x).is_Symbol]
    if len(found) != 1:
        return relation
    rest = relation.lhs - found[0] - relation.rhs
    return type(relation.reversed)(-found[0], rest, evaluate=False)
