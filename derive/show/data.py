"""A theory as data: JSON for other programs, srepr to rebuild the expressions in Python.

In JSON every expression is ``{"text", "latex", "srepr"}``.  ``equations`` are as derived, with the origin
of each term; ``families`` are the same with ends joined under ``base_cases``.  srepr is the text of a
Python dictionary of lists of pairs ``(lhs, rhs)``, to be evaluated in :func:`namespace`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import sympy
from sympy import Add, Expr, Symbol, sympify
from sympy.functions.elementary.piecewise import ExprCondPair
from sympy.printing.repr import ReprPrinter

from derive.calculus.averages import Average, Response
from derive.program.words import IndexRange, Mean, Product
from derive.show.latex import PaperLatex
from derive.show.sections import Entry, View
from derive.show.text import PaperText
from derive.theory.theory import Equation, OrderParameter, Source

PARTS: dict[str, tuple[str, ...]] = {
    "single-site": ("sources", "equations", "families", "base_cases"),
    "order-parameters": ("scalars", "order_parameters", "observables"),
    "responses": ("responses",),
    "action": ("action", "weights"),
    "saddle-point": ("saddle_point", "weights"),
    "all": (
        "sources", "equations", "families", "base_cases", "scalars", "order_parameters", "responses",
        "observables", ), }  # fmt: skip


ASSUMED = (
    (), ("positive",), ("nonnegative",), ("real",), ("integer",), ("integer", "nonnegative"),
    ("integer", "positive"),
)  # fmt: skip
"""Assumptions that symbols are made with; SymPy's ``assumptions0`` adds all that follow from them."""


def namespace() -> dict[str, Any]:
    """The names that srepr text is written in: SymPy's, and this package's expression classes."""
    from derive.theory.path_integral.action import Partition
    from derive.theory.path_integral.average import Entries

    ours = {x.__name__: x for x in (Average, Entries, Response, Mean, Partition, Product, ExprCondPair)}
    return {k: v for k, v in vars(sympy).items() if not k.startswith("_")} | ours


def parts(view: View, show: str) -> dict[str, Sequence[Any]]:
    """The items of a theory under the keys of both formats."""
    theory = view.theory
    made: dict[str, Callable[[], Sequence[Any]]] = {
        "sources": lambda: theory.sources,
        "equations": lambda: theory.equations,
        "families": lambda: view.families.equations,
        "base_cases": lambda: view.families.base_cases,
        "scalars": lambda: theory.scalars,
        "order_parameters": theory.correlations,
        "responses": theory.responses,
        "observables": lambda: view.families.observables,
        "action": lambda: view.action().entries,
        "saddle_point": lambda: view.saddle_point().entries,
        "weights": lambda: [replace(x, lhs=(y,)) for x in view.weights().entries for y in x.lhs],
    }
    keys = PARTS[show]
    if show == "all" and not theory.reduction:
        keys += ("action", "saddle_point", "weights")
    return {k: made[k]() for k in keys}


def as_srepr(view: View, show: str) -> str:
    """A Python dictionary, one pair a line."""
    blocks = []
    for key, items in parts(view, show).items():
        rows = "".join(f"        ({_srepr(a)}, {_srepr(b)}),\n" for a, b in map(_sides, items))
        blocks.append(f"    {key!r}: [\n{rows}    ],\n" if rows else f"    {key!r}: [],\n")
    return "{\n" + "".join(blocks) + "}"


class _Repr(ReprPrinter):
    """SymPy's srepr, in which a symbol has the assumptions that make it, not all that follow from them."""

    def _print_Symbol(self, expr: Symbol) -> str:
        if type(expr) is not Symbol:
            return str(super()._print_Symbol(expr))
        for assumed in ASSUMED:
            if Symbol(expr.name, **dict.fromkeys(assumed, True)) == expr:
                return f"Symbol({', '.join([repr(expr.name), *(f'{x}=True' for x in assumed)])})"
        return str(super()._print_Symbol(expr))


def _srepr(e: Expr | str) -> str:
    return repr(e) if isinstance(e, str) else str(_Repr().doprint(e))


def _sides(item: Any) -> tuple[Expr | str, Expr]:
    if isinstance(item, Equation):
        return item.lhs, item.rhs
    if isinstance(item, Source):
        return Average(item.symbol * item.partner), item.covariance
    if isinstance(item, OrderParameter):
        return item.symbol, item.definition
    return item.lhs[0], Add(*item.terms)


def as_json(view: View, show: str, text: PaperText, latex: PaperLatex) -> str:
    """One JSON object."""
    theory = view.theory
    program = theory.program
    writer = _Json(text, latex)
    out: dict[str, Any] = {
        "program": program.name,
        "rule": type(program.rule).__name__,
        "depth": str(program.depth),
        "reduction": theory.reduction,
        "show": show,
    }
    out |= {key: [writer.item(x) for x in items] for key, items in parts(view, show).items()}
    return json.dumps(out, indent=2, ensure_ascii=False)


class _Json:
    """Items of a theory as plain dictionaries."""

    def __init__(self, text: PaperText, latex: PaperLatex) -> None:
        self.text, self.latex = text, latex

    def expr(self, e: Expr | str) -> dict[str, str]:
        if isinstance(e, str):
            return {"text": e, "latex": e, "srepr": repr(e)}
        e = sympify(e)
        return {"text": self.text.doprint(e), "latex": self.latex.doprint(e), "srepr": _srepr(e)}

    def sum(self, terms: Sequence[Expr]) -> dict[str, str]:
        """A right-hand side: printed with common factors taken out, its srepr the plain sum."""
        return {
            "text": self.text.equation(terms),
            "latex": self.latex.equation(terms),
            "srepr": _srepr(Add(*terms)),
        }

    @staticmethod
    def ranges(ranges: Iterable[IndexRange]) -> list[dict[str, str]]:
        return [{"index": r.index.name, "lower": str(r.lower), "upper": str(r.upper)} for r in ranges]

    def item(self, x: Any) -> dict[str, Any]:
        if isinstance(x, Equation):
            return {
                "lhs": self.expr(x.lhs),
                "rhs": self.sum([y.expr for y in x.terms]),
                "ranges": self.ranges(x.ranges),
                "terms": [
                    self.expr(y.expr) | {"kind": y.kind, "matrix": y.matrix, "rule": y.rule} for y in x.terms
                ],
            }
        if isinstance(x, Source):
            sides = {"symbol": x.symbol, "partner": x.partner, "covariance": x.covariance}
            named = {k: self.expr(v) for k, v in sides.items()}
            return named | {"ranges": self.ranges(x.ranges), "matrix": x.matrix}
        if isinstance(x, OrderParameter):
            sides = {"symbol": x.symbol, "definition": x.definition}
            kind = {"kind": x.kind, "causal": x.causal}
            return {k: self.expr(v) for k, v in sides.items()} | kind | {"ranges": self.ranges(x.ranges)}
        assert isinstance(x, Entry)
        return {"lhs": self.expr(x.lhs[0]), "rhs": self.sum(x.terms)}
