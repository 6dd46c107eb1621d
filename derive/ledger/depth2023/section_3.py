"""Sections 2 and 3: the parametrisation and the size of updates, Table 1, (1)-(3)."""

from __future__ import annotations

from derive.ledger.depth2023.claims import linear
from derive.ledger.depth2023.names import SOURCE, classes, shown_by
from derive.ledger.entry import Entry

ENTRIES = (
    Entry(
        source=SOURCE,
        number="Table 1",
        title="multipliers and learning rates",
        printed=(
            r"\begin{array}{lll} & \text{branch multiplier} & \text{learning rate} \\ \text{Standard} & 1 & "
            r"\text{tuned} \\ \text{Depth-}\mu\text{P (SGD)} & a/\sqrt{L} & \eta \\ \text{Depth-}\mu\text{P "
            r"(Adam)} & a/\sqrt{L} & \eta/\sqrt{L} \end{array}"
        ),
        verdict="convention",
        why=(
            "A choice, the one that (2) and the claims of section 7 single out: the largest rate is "
            "L^(2 alpha - 1) for SGD, L^(alpha - 1) for signs."
        ),
        evidence=(*shown_by("update_size"), *classes("rates")),
    ),
    Entry(
        source=SOURCE,
        number="1",
        title="residual network",
        printed=r"x^l = x^{l-1} + \frac{a}{\sqrt{L}} g^l(x^{l-1}; W^l)",
        verdict="definition",
        why="The network.",
    ),
    Entry(
        source=SOURCE,
        number="2",
        title="first step of the output",
        printed=(
            r"x_1^L = x_0^L - \frac{\eta}{\sqrt{L}} A_L + O(\eta^2), \quad A_L = \sum_l \left[\prod_{k>l}(I "
            r"+ W_0^k/\sqrt{L})\right] G_0^l \left[\prod_{k<l}(I + W_0^k/\sqrt{L})\right] x^0, \quad E A_L^2 "
            r"= \Theta(L) \text{ (SGD)}, \Theta(L^2) \text{ (Adam)}"
        ),
        derived="first order of the product; depth_program at any (alpha, gamma)",
        verdict="agrees",
        why=(
            "Differentiating the product of blocks. The gradient G carries 1/sqrt(L) of its own, so L "
            "coherent terms of size L^-1/2 add up to L^1/2; signs add up to L."
        ),
        evidence=(*shown_by("update_size"), *classes("rates")),
    ),
    Entry(
        source=SOURCE,
        number="3",
        title="first step at width one",
        printed=(
            r"x_1^L = \prod_l \left(1 + W_0^l/\sqrt{L} - \tau M_{L,l}/L\right) x^0, \quad M_{L,l} = \prod_{k "
            r"\neq l}(1 + W_0^k/\sqrt{L}), \quad \tau = (V x_0^L - y) x^0"
        ),
        claim=linear.eq3,
        derived="gradient of the squared loss by hand",
        verdict="misprint",
        why=(
            "The gradient of W^l has the factor V with which the output reads x^L: tau = (V x_0^L - y) V "
            "x^0. With V = 1 print is right."
        ),
        evidence=shown_by("update_size"),
    ),
)
