"""Bordelon & Pehlevan, ICML 2025 (PMLR 267): deep linear networks on random data.

``printed`` follows the text of the paper with its slips.  Marks of the text extraction are repaired:
displays of several lines are joined by ``\\\\`` without alignment marks, letters lost at bold symbols of (5)
are back, (6) and (7) are put on one line, and C_q^l reads C_g^l in (67).
Responses and sources are in the paper's units: r^0 and u^0 enter v and h^0 with factor one.
A slip that leaves one sensible reading only (a missing bold face, measure or layer index) is named in ``why``
and does not change the verdict.  Numbers that end in "text" are statements printed between the equations.
"""

from __future__ import annotations

from derive.ledger.entry import Entry
from derive.ledger.linear2025 import (
    appendix_a_average,
    appendix_a_final,
    appendix_a_saddle,
    appendix_a_setup,
    appendix_a_sites,
    appendix_c,
    appendix_d,
    appendix_e,
    appendix_fg,
    main_text,
)


def _place(entry: Entry) -> tuple[int, bool]:
    """Where the entry stands in the paper; the table is last."""
    number = entry.number.removesuffix(" text")
    return int(number) if number.isdigit() else 1000, number != entry.number


ENTRIES: tuple[Entry, ...] = tuple(
    sorted(
        main_text.ENTRIES
        + appendix_a_setup.ENTRIES
        + appendix_a_average.ENTRIES
        + appendix_a_sites.ENTRIES
        + appendix_a_saddle.ENTRIES
        + appendix_a_final.ENTRIES
        + appendix_c.ENTRIES
        + appendix_d.ENTRIES
        + appendix_e.ENTRIES
        + appendix_fg.ENTRIES,
        key=_place,
    )
)

__all__ = ["ENTRIES"]
