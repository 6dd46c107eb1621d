"""Tests of an entry: refusals, its claim, and the ledger as text, LaTeX and JSON."""

import json
from typing import Any

import pytest

from derive.ledger import Entry, entries, find, render
from tests.ledger.claims import build

GOOD: dict[str, Any] = {
    "source": "paper2020",
    "number": "F.2",
    "title": "operators",
    "printed": r"C = \left\{ A \right\}",
    "verdict": "agrees",
    "why": "It does.",
}


def test_a_good_entry_is_frozen() -> None:
    entry = Entry(**GOOD)
    with pytest.raises(AttributeError):
        entry.verdict = "wrong"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("source", "Paper"),
        ("source", ""),
        ("number", "eq. 5"),
        ("number", "F.2 note"),
        ("number", "Figure"),
        ("number", "Algorithm A1"),
        ("number", "Lemma 4"),
        ("number", "Thm 4.1"),
        ("number", "Def. 41"),
        ("number", "Claim text"),
        ("title", " "),
        ("printed", ""),
        ("printed", "$x$"),
        ("printed", r"\frac{1}{2"),
        ("printed", "}{"),
        ("correct", "$x$"),
        ("correct", r"\frac{1}{2"),
        ("verdict", "right"),
        ("why", ""),
        ("claim", "no colon"),
        ("evidence", ["linear:x"]),
        ("evidence", ("tests/test_x.py",)),
    ],
)
def test_a_malformed_field_is_named(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"{field} = "):
        Entry(**{**GOOD, field: value})


@pytest.mark.parametrize("number", ["16", "F.12 text", "Table N1", "Figure 3", "Figure A2", "Algorithm 1"])
def test_equations_tables_figures_and_algorithms_have_numbers(number: str) -> None:
    assert Entry(**{**GOOD, "number": number}).number == number


@pytest.mark.parametrize("verdict", ["wrong", "misprint", "conditional", "improved", "illegible"])
def test_a_contradiction_needs_evidence(verdict: str) -> None:
    with pytest.raises(ValueError, match="needs evidence"):
        Entry(**{**GOOD, "verdict": verdict, "correct": "C = A"})
    Entry(**{**GOOD, "verdict": verdict, "correct": "C = A", "evidence": ("package.module:function",)})


@pytest.mark.parametrize("verdict", ["wrong", "misprint"])
def test_a_finding_says_what_is_true_instead(verdict: str) -> None:
    with pytest.raises(ValueError, match="needs the correct form"):
        Entry(**{**GOOD, "verdict": verdict, "evidence": ("module:function",)})


def test_only_findings_have_causes() -> None:
    with pytest.raises(ValueError, match="must not have a cause"):
        Entry(**{**GOOD, "cause": "labels of layers"})


def test_a_claim_is_a_name_or_absent() -> None:
    entry = find("selfconsistent2023", "F.14")
    assert entry.claim == "selfconsistent2023.two_layer:f14"
    again = Entry(**{**GOOD, "claim": entry.claim})
    assert build(again) == build(entry) != {}
    assert build(Entry(**GOOD)) == {}
    with pytest.raises(AttributeError):
        build(Entry(**{**GOOD, "claim": "selfconsistent2023.two_layer:nothing"}))


# -- as text, LaTeX and JSON ---------------------------------------------------------------------------------


def test_text_shows_number_verdict_reason_and_evidence() -> None:
    text = render([find("selfconsistent2023", "16")])
    assert "16" in text
    assert "wrong" in text
    assert "L(L+1)^2(L+2)/12" in text
    assert "shown by expansion:tangent_kernel_depth_coefficient" in text
    assert max(map(len, text.splitlines())) <= 110


def test_full_text_shows_the_four_of_a_finding_and_why() -> None:
    lines = render([find("linear2025", "105 text")], full=True).splitlines()
    words = [line.split(":")[0].strip() for line in lines if line.startswith("    ") and ":" in line]
    assert [x for x in words if x in ("printed", "correct", "difference", "measure again", "why")] == [
        "printed",
        "correct",
        "difference",
        "measure again",
        "why",
    ]
    assert any("dmft ledger linear2025 '105 text' --check" in line for line in lines)


def test_latex_wraps_displays_of_several_lines_and_escapes_prose() -> None:
    latex = render([find("selfconsistent2023", n) for n in ("F.2", "F.13", "Table 1")], "latex")
    assert latex.count(r"\begin{gathered}") == 1
    assert latex.count(r"\begin{array}") == 1
    assert latex.startswith(r"\begin{longtable}")
    assert r"A\_mu" in latex


def test_json_carries_every_field() -> None:
    rows = json.loads(render(entries(), "json"))
    assert len(rows) == len(entries())
    assert set(rows[0]) == {
        "source",
        "number",
        "title",
        "printed",
        "correct",
        "claim",
        "copy",
        "cause",
        "derived",
        "verdict",
        "why",
        "evidence",
    }


def test_nothing_renders_as_an_empty_table_and_an_unknown_format_is_refused() -> None:
    assert render([]) == ""
    assert json.loads(render([], "json")) == []
    with pytest.raises(ValueError, match="html"):
        render([], "html")


def test_the_number_of_an_equation_is_a_string():
    with pytest.raises(TypeError, match='number = 16: must be a string, such as "16"'):
        find("selfconsistent2023", 16)
