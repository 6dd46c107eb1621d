"""Tests of the text that Python prints for derived results: a table of parts, not a page."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from sympy import Add, Integer, Symbol, symbols
from sympy.core._print_helpers import Printable

import derive
from derive import L, eta, expand, gamma0, lazy, linear_closure
from derive.show.summary import WIDTH, Summarised
from tests.derive.once import isotropic, mean_field, mlp

PARTS = {"Equation", "LinearTerm", "OrderParameter", "PowerSeries", "Row", "Source", "Statement", "Term"}
OVERVIEWS = {"Fluctuations", "Program", "Theory"}
"""Classes with LaTeX that print themselves in another way: parts of theories, and overviews."""


def classes() -> Iterator[type]:
    """Yield all classes of `derive` but those of expressions, which SymPy prints."""
    for module in pkgutil.walk_packages(derive.__path__, "derive."):
        for x in vars(importlib.import_module(module.name)).values():
            if isinstance(x, type) and x.__module__ == module.name and not issubclass(x, Printable):
                yield x


def test_every_result_with_latex_prints_a_table() -> None:
    shown = [x for x in classes() if hasattr(x, "_repr_latex_") and x.__name__ not in PARTS | OVERVIEWS]
    tables = [x for x in shown if issubclass(x, Summarised)]
    assert len(tables) > 60
    assert [x.__name__ for x in tables if x.__repr__ is not Summarised.__repr__] == []
    assert {x.__name__ for x in shown} - {x.__name__ for x in tables} == {"Shown"}  # a base class of tables


RESULTS: dict[str, Callable[[], object]] = {
    "LinearExpansion": lambda: expand(mean_field(mlp(L, "linear", rule="flow")), gamma0, 2),
    "NonlinearExpansion": lambda: expand(mean_field(mlp(1, "tanh")), gamma0, 1),
    "KinkExpansion": lambda: expand(mean_field(mlp(L, "relu")), gamma0, 1),
    "TheorySeries": lambda: expand(mean_field(isotropic()), eta, 1),
    "LinearClosure": lambda: linear_closure(mean_field(mlp())),
    "Lazy": lambda: lazy(mean_field(mlp())),
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_printed_in_few_short_lines(name: str) -> None:
    lines = repr(RESULTS[name]()).splitlines()
    assert lines[0] == name
    assert 1 < len(lines) <= 20
    assert max(map(len, lines)) <= WIDTH


def test_parts_are_values_or_counted() -> None:
    @dataclass(frozen=True, repr=False)
    class Result(Summarised):
        short: Any
        long: Any
        pair: Any
        table: Any
        many: Any
        text: str

    @dataclass(frozen=True)
    class Part:
        number: int

    x, y = symbols("x y")
    long = Add(*[Symbol(f"x_{k}") ** 2 for k in range(100)])
    table = {k: Part(k) for k in range(100)}
    shown = repr(Result(x / y, long, (x, Part(3)), table, (Part(1),) * 50 + (Integer(2),) * 50, "one\ntwo"))
    assert shown.splitlines() == [
        "Result",
        "  short  x/y",
        "  long   Add of 199 operations",
        "  pair   (x, Part)",
        "  table  100 entries",
        "  many   100 of Integer and Part",
        r"  text   'one\ntwo'",
    ]
