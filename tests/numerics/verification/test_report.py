"""Rows, verdicts and the width of the table; formulas on the page."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from numerics.verification import Check, Report
from numerics.verification.report import mathml
from tests.derive.show.test_render import THEORIES, shown


def row(observed: float, allowed: float = 0.1, **more: object) -> Check:
    return Check("group", "a number", observed, 1.0, allowed, "somewhere", **more)  # type: ignore[arg-type]


def test_a_check_passes_within_what_is_allowed():
    assert row(1.1 - 1e-12).passed
    assert row(0.9 + 1e-12).passed
    assert not row(1.2).passed
    assert not row(0.8).passed


def test_an_upper_bound_does_not_bound_from_below():
    assert row(-50.0, upper=True).passed
    assert not row(1.2, upper=True).passed


def test_what_is_not_a_number_fails():
    assert not row(math.nan).passed
    assert not row(math.inf).passed
    assert not row(math.nan, upper=True).passed
    assert not row(1.0, allowed=math.nan).passed


def test_a_report_without_checks_has_not_passed():
    report = Report("nothing", ())
    assert not report.passed
    assert "nothing was checked" in report.table()


@pytest.mark.parametrize(
    "name", [x if x == "phi flow" else pytest.param(x, marks=pytest.mark.slow) for x in THEORIES]
)
def test_formulas_of_every_kind_of_theory_are_set(name: str):
    page = mathml(shown(name, "latex"))
    assert page.count("<math") == shown(name, "latex").count(r"\begin{align*}")
    assert "\\" not in page
    assert "<h3>Single-site process</h3>" in page


def test_a_formula_that_cannot_be_set_is_shown_as_it_stands():
    assert r"x^2^3" in mathml(r"\begin{align*} % Twice" "\n" r"x^2^3 &= 1 \end{align*}")


def test_the_table_names_what_failed():
    report = Report("title", (row(1.0), row(3.0)), wall_time_s=2.0)
    assert not report.passed
    assert report.failed == (row(3.0),)
    assert "FAILED: 1 of 2 checks in 2 s: a number" in report.table()
    assert Report("title", (row(1.0),)).table().startswith("title\nall 1 checks passed\n")


@given(st.floats(allow_nan=True, allow_infinity=True), st.floats(min_value=0), st.none() | st.floats(0, 1e9))
def test_every_row_fits_and_is_json(observed: float, allowed: float, error: float | None):
    check = Check("group", "x" * 38, observed, -1.23456789e-7, allowed, "y" * 22, error)
    table = Report("title", (check,)).table()
    assert max(map(len, table.splitlines())) < 120
    json.dumps(check.as_dict(), allow_nan=False)
