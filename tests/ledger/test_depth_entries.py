"""The ledger of depth2023 and of the residual networks of linear2025 is complete and usable."""

from importlib import import_module

import pytest

from derive.ledger import Entry, entries, find
from tests.ledger.claims import build

DEPTH = entries("depth2023")
RESIDUAL = [e for e in entries("linear2025") if e.number.split()[0] in map(str, (16, 17, *range(71, 96)))]
ALL = (*DEPTH, *RESIDUAL)
PIECES = sorted({n.partition(":") for e in ALL for n in e.evidence})
MODULES = {m: import_module(f"tests.ledger.evidence.{m}") for m, _, _ in PIECES}


def _name(entry: Entry) -> str:
    return f"{entry.source}-{entry.number}"


def test_evidence_exists() -> None:
    for module, _, function in PIECES:
        assert callable(getattr(MODULES[module], function))


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
