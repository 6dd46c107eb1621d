"""Every equation that the ledger has to hold is there once, in a usable state."""

import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from derive.ledger import VERDICTS, entries, find
from tests.ledger.claims import build

ROOT = Path(__file__).parents[2]
SOURCE = "selfconsistent2023"
READ = json.loads((Path(__file__).with_name("numbered.json")).read_text(encoding="utf-8"))
"""What each paper numbers, as `python -m tests.ledger.numbered` reads it from a copy of its text."""

MISSING = {("selfconsistent2023", "P.13")}
"""Numbers that a paper passes over."""

PICTURES = {
    "linear2025": [f"Figure {n}" for n in (1, 2, 3, 4, 5, 6, 7, 8, 10)],
    "selfconsistent2023": ["Figure 2", "Figure 5", *(f"Figure A{n}" for n in range(1, 6))],
    "depth2023": [],
}
"""Captions without an entry: they show solved equations beside networks, and the equations have entries."""

NOT_READ = {"depth2023": {"D.3", "Program 1", "Table 1", "Table 2"}}
"""Entries for what the copy does not number: a section, and what lost its caption."""

ALL = entries(SOURCE)


def equations(paper: str) -> set[str]:
    """Return the numbers of a paper's equations, with the numbers between those in its copy.

    The copy is read by a machine and lacks single numbers; between ``F.9`` and ``F.11`` there is an ``F.10``.
    """
    last: dict[str, int] = {}
    for number in READ[paper]["equations"]:
        letter, _, count = number.rpartition(".")
        last[letter] = max(last.get(letter, 0), int(count))
    whole = {f"{x}.{n}".removeprefix(".") for x, most in last.items() for n in range(1, most + 1)}
    return {n for n in whole if (paper, n) not in MISSING}


@pytest.mark.parametrize("paper", READ)
def test_all_that_a_paper_numbers_has_one_entry_and_nothing_else_has(paper: str) -> None:
    numbered = Counter(e.number for e in entries(paper) if not e.number.endswith(" text"))
    captions = set(READ[paper]["captions"]) - set(PICTURES[paper])
    wanted = equations(paper) | captions | {*READ[paper]["statements"]} | NOT_READ.get(paper, set())
    assert numbered == Counter(wanted)
    assert set(PICTURES[paper]) <= set(READ[paper]["captions"])
    assert set(READ[paper]["equations"]) <= equations(paper)


@pytest.mark.parametrize("paper", READ)
def test_statements_in_the_text_belong_to_a_numbered_equation(paper: str) -> None:
    numbers = [e.number for e in entries(paper)]
    texts = {n.removesuffix(" text") for n in numbers if n.endswith(" text")}
    assert len(numbers) == len(set(numbers))
    assert texts <= set(numbers)


def test_every_kind_of_verdict_occurs() -> None:
    assert {e.verdict for e in entries()} == set(VERDICTS)


def test_brackets_of_the_printed_forms_match_line_by_line() -> None:
    for entry in entries():
        for line in entry.printed.split(r" \\ "):
            left = len(re.findall(r"\\left(?![a-z])", line))
            right = len(re.findall(r"\\right(?![a-z])", line))
            assert left == right, (entry.source, entry.number, line)


def test_why_is_short_prose_and_derived_is_filled_where_there_is_something_to_derive() -> None:
    for entry in ALL:
        assert len(entry.why) <= 700, entry.number
        assert entry.why.endswith((".", ")")), entry.number
        assert entry.derived or entry.verdict in ("definition", "convention"), entry.number


def test_one_can_find_an_entry_by_number() -> None:
    assert find(SOURCE, "P.2").verdict == "wrong"
    with pytest.raises(LookupError, match=r"Q\.1"):
        find(SOURCE, "Q.1")
    with pytest.raises(LookupError, match="nobody1999"):
        entries("nobody1999")


def test_every_piece_of_evidence_exists() -> None:
    for name in {name for e in entries() for name in e.evidence}:
        module, _, function = name.partition(":")
        assert f"\ndef {function}(" in (ROOT / f"tests/ledger/evidence/{module}.py").read_text(), name


def test_verdicts_on_residual_networks_and_depth() -> None:
    for number in ("17", "72", "73", "74", "89", "93", "94"):
        entry = find("linear2025", number)
        assert entry.verdict == "wrong"
        assert build(entry)
    for number in ("Lemma 4.3", "D.3", "Prop. 4.4", "11"):
        assert find("depth2023", number).verdict == "agrees"


@pytest.mark.slow
def test_the_ledger_and_its_claims_do_not_import_numpy() -> None:
    code = (
        "import sys; from derive.ledger import entries; from tests.ledger.claims import build; "
        "[build(e) for e in entries()]; sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0
