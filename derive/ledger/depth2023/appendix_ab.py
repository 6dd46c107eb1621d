"""Appendices A and B: the notation of kets and the infinite-width limit in it, (7)-(10).

The copy of the text that the ledger was written from has lost these formulas; (8) and (9) are restated as
Def. 4.1.
"""

from __future__ import annotations

from derive.ledger.depth2023.names import SOURCE, shown_by
from derive.ledger.entry import Entry

LOST = r"\text{(the formula is missing in the copy of the text at hand)}"

ENTRIES = (
    Entry(
        source=SOURCE,
        number="7",
        title="a ket times a diagonal matrix",
        printed=LOST,
        verdict="definition",
        why="A shorthand for kets with several columns; here every column is a field with an index.",
    ),
    Entry(
        source=SOURCE,
        number="8",
        title="covariance of hats",
        printed=(
            r"\operatorname{Cov}(|W y\rangle^{\wedge}, |U z\rangle^{\wedge}) = \mathbb{I}(W = U) \langle "
            r"y|z\rangle"
        ),
        derived="the conditioning rule: covariance of the sources u and r",
        verdict="agrees",
        why=(
            "As Def. 4.1, which restates it: sources of one matrix have the overlaps of the vectors that it "
            "met as covariance, those of different matrices, W and its transpose included, are independent."
        ),
        evidence=shown_by("recursions"),
    ),
    Entry(
        source=SOURCE,
        number="9",
        title="dots",
        printed=(
            r"|W y\rangle^{\bullet} = \sum_z |z\rangle \frac{\partial |y\rangle}{\partial |W^{\top} "
            r"z\rangle^{\wedge}}"
        ),
        derived="the conditioning rule: response terms",
        verdict="agrees",
        why="As Def. 4.1: the responses, summed over every vector that met the transpose.",
        evidence=shown_by("recursions"),
    ),
    Entry(
        source=SOURCE,
        number="10",
        title="update of a parameter in general",
        printed=LOST,
        verdict="definition",
        why=(
            "The update of Def. 6.1 as an outer product of kets. For plain descent it is the memory of "
            "updates of every theory here; general update functions Q are not served."
        ),
    ),
)
