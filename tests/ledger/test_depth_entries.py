"""The ledger of depth2023 and of the residual networks of linear2025 is complete and usable."""

from collections import Counter
from importlib import import_module

import pytest

from derive.ledger import Entry, entries, find
from tests.ledger.claims import build

DEPTH = entries("depth2023")
NAMED = (
    [str(n) for n in range(1, 12)]
    + ["Table 1", "Table 2", "Program 1", "Prop. 4.2", "Prop. 4.4", "Prop. C.2", "Thm. 4.1", "Thm. C.3"]
    + ["Lemma 4.3", "Lemma C.1", "D.3", "Claim E.1", "Remark A.1", "Remark A.2"]
    + ["Def. 4.1", "Def. 6.1", "Def. 6.2", "Def. B.1", "Def. E.1", *(f"Def. 7.{k}" for k in range(1, 8))]
    + [f"Claim 7.{k}" for k in range(1, 7)]
)
RESIDUAL = [e for e in entries("linear2025") if e.number.split()[0] in map(str, (16, 17, *range(71, 96)))]
ALL = (*DEPTH, *RESIDUAL)


def _name(entry: Entry) -> str:
    return f"{entry.source}-{entry.number}"


def test_every_named_statement_of_depth2023_is_there_once() -> None:
    assert Counter(e.number for e in DEPTH if not e.number.endswith(" text")) == Counter(NAMED)


def test_every_equation_of_residual_networks_is_there_once() -> None:
    numbers = Counter(e.number for e in RESIDUAL if not e.number.endswith(" text"))
    assert numbers == Counter(map(str, (16, 17, *range(71, 96))))


def test_evidence_exists() -> None:
    for name in sorted({n for e in ALL for n in e.evidence}):
        module, _, function = name.partition(":")
        assert callable(getattr(import_module(f"tests.ledger.evidence.{module}"), function))


@pytest.mark.parametrize("number", ["17", "72", "73", "74", "81", "89", "93", "94"])
def test_what_is_wrong_has_a_claim_and_evidence(number: str) -> None:
    entry = find("linear2025", number)
    assert entry.verdict == "wrong"
    assert build(entry)
    assert entry.evidence


@pytest.mark.parametrize("number", ["Lemma 4.3", "D.3", "Prop. 4.4", "11"])
def test_the_recursions_of_depth2023_agree(number: str) -> None:
    assert find("depth2023", number).verdict == "agrees"


@pytest.mark.parametrize("number", ["Lemma 4", "Thm 4.1", "Def. 41", "Claim text"])
def test_malformed_names_are_refused(number: str) -> None:
    with pytest.raises(ValueError, match="number"):
        Entry(source="depth2023", number=number, title="x", printed="x", verdict="definition", why="x.")
