"""What an entry refuses, and how a claim is found."""

from typing import Any

import pytest

from derive.ledger import Entry, find
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
    with pytest.raises(ValueError, match="needs what is true instead"):
        Entry(**{**GOOD, "verdict": verdict, "evidence": ("module:function",)})


def test_a_claim_is_a_name_or_absent() -> None:
    entry = find("selfconsistent2023", "F.14")
    assert entry.claim == "selfconsistent2023.two_layer:f14"
    again = Entry(**{**GOOD, "claim": entry.claim})
    assert build(again) == build(entry) != {}
    assert build(Entry(**GOOD)) == {}
    with pytest.raises(AttributeError):
        build(Entry(**{**GOOD, "claim": "selfconsistent2023.two_layer:nothing"}))
