"""Yang, Yu, Zhu & Hayou, arXiv:2310.02244 (Tensor Programs VI): sections 3, 4, 6, 7, 9, appendices A to E.

``printed`` follows the restatement of the paper's formulas, slips included; ``Gamma`` and ``C`` are as
defined in section 4.  Unnumbered statements carry the name of the definition, lemma, proposition or claim.
"""

from __future__ import annotations

from derive.ledger.depth2023 import (
    appendix_ab,
    appendix_d,
    section_3,
    section_4,
    section_6,
    section_7,
    section_9,
)
from derive.ledger.entry import Entry

ENTRIES: tuple[Entry, ...] = (
    section_3.ENTRIES
    + section_4.ENTRIES
    + section_6.ENTRIES
    + section_7.ENTRIES
    + section_9.ENTRIES
    + appendix_ab.ENTRIES
    + appendix_d.ENTRIES
)

__all__ = ["ENTRIES"]
