"""Sections 6 and 7: the space of parametrisations and its classification, (4), (5)."""

from __future__ import annotations

from derive.ledger.depth2023.names import SOURCE, classes, shown_by
from derive.ledger.entry import Entry


def _definition(number: str, title: str, printed: str, why: str) -> Entry:
    return Entry(source=SOURCE, number=number, title=title, printed=printed, verdict="definition", why=why)


ENTRIES = (
    _definition(
        "Def. 6.1",
        "parametrised updates",
        r"w \leftarrow w - \eta n^{-c} L^{-\gamma} Q_t(n^d L^{\delta} g_0, \ldots, n^d L^{\delta} g_t)",
        "The family of training rules; gradient descent in muP is Q_t = g_t.",
    ),
    Entry(
        source=SOURCE,
        number="Table 2",
        title="muP",
        printed=(
            r"\begin{array}{llll} & \text{input} & \text{output} & \text{hidden} \\ \text{init. variance} & "
            r"1 & n^{-2} & n^{-1} \\ c & 0 & 1 & 1 \end{array}"
        ),
        verdict="convention",
        why="A choice of powers of the width.",
    ),
    _definition(
        "4",
        "update of a hidden layer",
        r"W^l \leftarrow W^l - \eta n^{-1} L^{-\gamma} Q_t^l(n L^{\delta} g_0, \ldots, n L^{\delta} g_t)",
        "Def. 6.1 for a layer of x^l = x^{l-1} + L^-alpha MS(phi(h^l)), h^l = W^l x^{l-1}.",
    ),
    _definition(
        "5",
        "stability at initialisation",
        r"\|h_0^l\|/\sqrt{n}, \|x_0^l\|/\sqrt{n}, f_0 = O(1)",
        "With Def. 7.2.",
    ),
    _definition(
        "Def. 7.2",
        "stable",
        (
            r"\text{at initialisation: (5)}; \quad \text{during training: } \Delta h_t^l, \Delta x_t^l, "
            r"\Delta f_t = O(1)"
        ),
        "A name.",
    ),
    _definition("Def. 7.3", "faithful", r"\|h_t^l\|/\sqrt{n} = \Theta(1)", "A name."),
    _definition("Def. 7.4", "trivial", r"f_t - f_0 \to 0", "A name."),
    _definition(
        "Def. 7.5",
        "feature learning",
        r"\|\Delta h_t^{\lfloor \lambda L \rfloor}\|/\sqrt{n} = \Theta(1)",
        "A name.",
    ),
    Entry(
        source=SOURCE,
        number="Def. 7.6",
        title="feature diversity exponent",
        printed=(
            r"\|x_t^{\lfloor(\lambda+\epsilon)L\rfloor} - x_t^{\lfloor\lambda L\rfloor}\|/\sqrt{n} = "
            r"\Omega(\epsilon^{1-\kappa}) \text{ for all } t"
        ),
        derived="statements: noise and drift of a window of layers",
        verdict="misprint",
        why=(
            "The largest such kappa; redundant if it is 0. It needs t >= 1: before training the difference "
            "is xi^2 ((1 + L^(-2 alpha))^((lambda + epsilon) L) - (1 + L^(-2 alpha))^(lambda L)) in the "
            "square, which goes like epsilon L^(1 - 2 alpha). Above alpha = 1/2 it vanishes as L grows, no "
            "power of epsilon bounds it from below, and no kappa exists at t = 0; Claim 7.4 means kappa = 0."
        ),
        evidence=classes("diversity"),
    ),
    _definition(
        "Def. 7.7",
        "layerwise linearisation",
        r"L^{-\alpha} \mathrm{MS}(\phi(W_t^l x_t^{l-1}) - \phi(W_0^l x_t^{l-1}) - \phi'(W_0^l x_t^{l-1}) "
        r"\odot (W_t^l - W_0^l) x_t^{l-1}) = o(L^{-1})",
        "Linear in the change of the weights, at the stream as it is: what that has moved is kept whole.",
    ),
    Entry(
        source=SOURCE,
        number="Claim 7.1",
        title="stability at initialisation",
        printed=r"\text{stable at initialisation} \iff \alpha \geq 1/2",
        derived="depth_exponents: gain; depth_first_step: start",
        verdict="agrees",
        why=(
            "A layer adds L^(-2 alpha) of the variance it gets, L layers L^(1 - 2 alpha): the gain of the "
            "one loop in the derived equations at t = 0. In closed form (1 + L^(-2 alpha))^L, bounded from "
            "alpha = 1/2 on and exp(L^(1 - 2 alpha)) below (linear layers; with bounded phi a power)."
        ),
        evidence=(*classes("start"), *shown_by("other_scalings", "first_step")),
    ),
    Entry(
        source=SOURCE,
        number="Claim 7.2",
        title="stability in training",
        printed=(
            r"\text{stable in training} \iff \alpha + \gamma \geq 1; \quad \text{nontrivial} \iff \alpha + "
            r"\gamma \leq 1"
        ),
        derived="depth_exponents: output, stream, feature; depth_first_step: output",
        verdict="wrong",
        why=(
            "For the stream and f: f_1 - f_0 = -chi xi^2 L^(1 - alpha - gamma) (1 + L^(-2 alpha))^(L - 1), "
            "and at all steps that power bounds both. But Def. 7.2 asks for the change of h too, which is "
            "L^-gamma in its learnt part: where gamma < 0 <= alpha + gamma - 1 training is not stable, and "
            "with Def. 7.2 as it stands the second part of Claim 7.3 is empty. And if phi is bounded, L "
            "layers move x by no more than L^(1 - alpha), so that above alpha = 1 nothing is nontrivial."
        ),
        evidence=classes("unbounded", "bounded", "exponents"),
    ),
)
