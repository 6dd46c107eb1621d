"""All entries, and the way to one of them."""

from __future__ import annotations

from derive.ledger import depth2023, linear2025, selfconsistent2023
from derive.ledger.entry import Entry

_PAPERS: dict[str, tuple[Entry, ...]] = {
    "selfconsistent2023": selfconsistent2023.ENTRIES,
    "linear2025": linear2025.ENTRIES,
    "depth2023": depth2023.ENTRIES,
}


def entries(source: str | None = None) -> tuple[Entry, ...]:
    """The entries of one paper in the paper's order, or those of all papers.

    Raises ``LookupError`` for a paper that is not in the ledger.

    >>> entries("selfconsistent2023")[0].number
    '1'
    """
    if source is None:
        return tuple(e for paper in _PAPERS.values() for e in paper)
    if source not in _PAPERS:
        raise LookupError(f"source = {source!r}: no such paper in the ledger (there: {', '.join(_PAPERS)})")
    return _PAPERS[source]


def find(source: str, number: str) -> Entry:
    """The entry of one numbered equation.

    Raises ``LookupError`` when the paper or the number is not in the ledger.

    >>> find("selfconsistent2023", "F.2").verdict
    'wrong'
    """
    for entry in entries(source):
        if entry.number == number:
            return entry
    raise LookupError(f"number = {number!r}: no such equation of {source} in the ledger")
