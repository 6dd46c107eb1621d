"""The page of findings shows for every contradiction what was measured, and how to measure it again."""

from __future__ import annotations

import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from derive.ledger import FINDINGS, causes, entries, find, recorded

DOCS = Path(__file__).parents[2] / "docs"
SELF = "selfconsistent2023"
FOUND = [e for e in entries() if e.verdict in FINDINGS]
CONTRADICTED = [e for e in entries() if e.verdict in (*FINDINGS, "conditional", "improved", "illegible")]


@pytest.fixture(scope="module")
def pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("ledger_markdown", DOCS / "_ext" / "ledger_markdown.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_contradicted_entry_stands_on_the_page():
    text = (DOCS / "ledger" / "findings.md").read_text()
    shown = set(re.findall(r"^```\{ledger-findings\} (\w+) (\w+)$", text, re.MULTILINE))
    assert shown == {(e.source, e.verdict) for e in FOUND}
    others = set(re.findall(r"^```\{ledger-entries\} (\w+)$", text, re.MULTILINE))
    assert others == {e.verdict for e in CONTRADICTED} - set(FINDINGS)


def test_an_entry_shows_the_sentence_and_the_command(pages: ModuleType):
    e = find("linear2025", "105 text")
    text = pages.entry_text(e)
    command = re.search(r"`dmft (.*)`$", text, re.MULTILINE)
    assert command is not None
    assert shlex.split(command[1]) == ["ledger", "linear2025", "105 text", "--check"]
    assert pages.plain(recorded()[e.evidence[0]].summary) in text


def test_every_finding_shows_what_is_printed_and_what_is_true(pages: ModuleType):
    for e in FOUND:
        text = pages.entry_text(e)
        order = [text.index(f"**{word}**") for word in ("Printed", "True", "Apart", "Again", "Why")]
        assert order == sorted(order)
        assert e.correct.splitlines()[0] in text


def test_a_cause_stands_once_with_all_of_its_equations(pages: ModuleType):
    for c in causes():
        text = pages.cause_text(c)
        assert text.startswith(f"**{pages.plain(c.headline)}**")
        assert all(f"({pages.plain(e.number)})" in text.split("\n\n")[0] for e in c.entries)
        assert text.count("**Again**") == len(c.entries)
    table = pages.causes_table(list(causes())).splitlines()
    assert len(table) == len(causes()) + 2
    assert not [row for row in table if "nothing that is rejected" in row]


def test_causes_are_counted_and_not_equations(pages: ModuleType):
    linear = list(causes("linear2025"))
    touched = sum(len(c.entries) for c in linear if c.verdict == "wrong")
    assert f"6 causes with the verdict *wrong*, in {touched} equations" in pages.causes_counted(linear)


def test_every_piece_stands_in_the_table_with_its_commit(pages: ModuleType):
    rows = pages.pieces(entries()).splitlines()[2:]
    assert len(rows) == len(recorded())
    assert all(recorded()[row.split("`")[1]].commit in row.replace("\\", "") for row in rows)


def test_each_finding_says_in_one_row_how_far_print_is_from_truth(pages: ModuleType):
    assert re.fullmatch(
        r"\*\*0\.72\*\* \(.* as printed.*; 1e-11 is allowed\)", pages.distance(find(SELF, "4 text"))
    )
    assert "(D.10)" in pages.distance(find(SELF, "D.10"))
    table = pages.glance(FOUND).splitlines()
    assert len(table) == len(FOUND) + 2
    assert not [row for row in table if "nothing that is rejected" in row]
