"""Section 9: blocks of several layers, (6)."""

from __future__ import annotations

from derive.ledger.depth2023.names import SOURCE
from derive.ledger.entry import Entry

_EVIDENCE = "depth_blocks"

ENTRIES = (
    Entry(
        source=SOURCE,
        number="6",
        title="deeper blocks",
        printed=r"x^l = x^{l-1} + \frac{a}{\sqrt{L}} g^l(x^{l-1}; W^l), \quad \text{block depth} \geq 2",
        derived="block_limit of block_program",
        verdict="agrees",
        why=(
            "Printed as a choice, with the statement that it has a limit. For two linear layers in a block "
            "it does: the powers of L of all functions are found from the derived equations, and networks of "
            "finite depth approach the limit like 1/L with the coefficient of the derived first correction."
        ),
        evidence=(f"{_EVIDENCE}:linearise", f"{_EVIDENCE}:networks"),
    ),
    Entry(
        source=SOURCE,
        number="6 text",
        title="blocks are linear in their updates",
        printed=(
            r"\text{block depth} \geq 2: \quad W^2 W^1 x \to W_0^2 W_0^1 x + \Delta W^2 W_0^1 x + W_0^2 "
            r"\Delta W^1 x, \text{ and no learning rates and multiplier that are stable, faithful, "
            r"nontrivial and diverse avoid it}"
        ),
        derived="block_limit of block_program, as it is and linearised; balanced for other powers of L",
        verdict="agrees",
        why=(
            "For linear layers, blocks of two. Each update is L^(-1/2) of its weight. Alone it adds up over "
            "L blocks; where two meet in a block, through answers of its units of order L^(-1/2), what they "
            "add is of order 1/L of the limit. The derived limits of the network and of the linearised one "
            "are the same equations. On a grid of powers the updates of a block act on each other at "
            "alpha = 1, gamma = 0 alone, where kappa = 0. Not shown: nonlinear blocks, deeper ones."
        ),
        evidence=(f"{_EVIDENCE}:linearise", f"{_EVIDENCE}:parametrizations"),
    ),
)
