"""Every equation that the ledger has to hold is there once, in a usable state."""

import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from derive.ledger import VERDICTS, entries, find

ROOT = Path(__file__).parents[2]
SOURCE = "selfconsistent2023"
LAST = {"G": 6, "H": 3, "I": 5, "J": 2, "K": 23, "L": 3, "M": 8, "N": 10, "O": 1}
REQUIRED = (
    [str(k) for k in range(1, 17)]
    + [f"D.{k}" for k in range(1, 56)]
    + ["E.1", "E.2"]
    + [f"F.{k}" for k in range(1, 17)]
    + [f"{appendix}.{k}" for appendix, last in LAST.items() for k in range(1, last + 1)]
    + [f"P.{k}" for k in range(1, 27) if k != 13]  # the paper has no (P.13)
    + ["Table 1", "Table N1", "Figure 1", "Figure 3", "Figure 4", "Algorithm 1"]
)
ALL = entries(SOURCE)


def test_every_numbered_equation_is_present_once() -> None:
    numbered = Counter(e.number for e in ALL if not e.number.endswith(" text"))
    assert numbered == Counter(REQUIRED)


def test_statements_in_the_text_belong_to_a_numbered_equation() -> None:
    texts = [e.number for e in ALL if e.number.endswith(" text")]
    assert len(texts) == len(set(texts))
    assert {t.removesuffix(" text") for t in texts} <= set(REQUIRED)


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


def test_the_ledger_and_its_claims_do_not_import_numpy() -> None:
    code = (
        "import sys; from derive.ledger import entries; from tests.ledger.claims import build; "
        "[build(e) for e in entries()]; sys.exit('numpy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, cwd=ROOT).returncode == 0
