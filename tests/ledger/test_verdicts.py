"""One standard for all verdicts: like slips have like verdicts, and findings are counted by their causes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from derive.ledger import FINDINGS, VERDICTS, causes, entries, find

ROOT = Path(__file__).parents[2]
SELF, LINEAR = "selfconsistent2023", "linear2025"
ALIKE = {
    "the same statement on the relative change of the kernel": [(SELF, "16 text"), (SELF, "P.26 text")],
    "growth with layers, after training": [(SELF, "P.22 text"), (SELF, "P.23 text"), (SELF, "P.26 text")],
    "a fixed point for every strength": [(SELF, "J.1 text"), (SELF, "Figure 3")],
    "a sign that other equations have right": [(LINEAR, "69"), (LINEAR, "81"), (LINEAR, "121")],
    "a process given by its law at one time": [(LINEAR, "98"), (LINEAR, "107")],
    "labels of layers, false to the letter": [(SELF, "D.10"), (SELF, "K.4"), (SELF, "K.5"), (SELF, "H.2")],
    "slips of notation, true to the letter": [(SELF, "K.7"), (SELF, "K.12"), (SELF, "P.16")],
    "what (13) and (F.15) have right": [(SELF, "F.1"), (SELF, "F.2"), (SELF, "D.54"), (SELF, "N.10 text")],
    "one glyph that its own display contradicts": [(LINEAR, "35"), (LINEAR, "42"), (LINEAR, "58")],
    "statements about approximations": [(SELF, "Figure 4 text"), (SELF, "O.1 text"), (LINEAR, "104 text")],
}


@pytest.mark.parametrize("kind", ALIKE)
def test_like_slips_have_like_verdicts(kind: str) -> None:
    assert len({find(*x).verdict for x in ALIKE[kind]}) == 1


def test_every_finding_has_a_cause_and_shares_its_verdict() -> None:
    touched = [e for c in causes() for e in c.entries]
    assert sorted(x.number for x in touched) == sorted(e.number for e in entries() if e.verdict in FINDINGS)
    assert len(touched) == len(set(touched))
    assert all(e.verdict == c.verdict for c in causes() for e in c.entries)


def test_headlines_say_what_stands() -> None:
    """A headline is a list of corrections: the correct statement comes first, and is named."""
    for c in causes():
        assert re.search(r"\bstands?\b", c.headline), c.name
        assert re.fullmatch(r"[A-Z(].*\.", c.headline), c.name


def test_a_condition_or_a_reading_is_named() -> None:
    """The reason of a conditionally right statement begins with the condition, or with both readings."""
    words = re.compile(r"\b(right|true|reading|holds|agree)", re.IGNORECASE)
    for e in entries():
        if e.verdict == "conditional":
            assert words.search(e.why), (e.source, e.number)


def test_what_is_illegible_says_so() -> None:
    for e in entries():
        if e.source != "depth2023":  # of which our text holds restatements alone
            assert (e.verdict == "illegible") == e.why.startswith("In the text at hand"), e.number


def test_verdicts_are_defined_once() -> None:
    """Pages show the table that the code holds, and no other."""
    index = (ROOT / "docs/ledger/index.md").read_text()
    assert "{ledger-verdicts}" in index
    assert not any(meaning in index for meaning in VERDICTS.values())


def test_pages_count_causes() -> None:
    counts = {verdict: sum(c.verdict == verdict for c in causes()) for verdict in FINDINGS}
    said = f"{counts['wrong']} errors and {counts['misprint']} misprints"
    for page in ("README.md", "docs/index.md"):
        assert said in (ROOT / page).read_text(), (page, said)
