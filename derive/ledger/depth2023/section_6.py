"""Sections 6 and 7: the space of parametrisations and its classification, (4), (5)."""

from __future__ import annotations

from derive.ledger.depth2023.names import SOURCE, shown_by
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
    _definition(
        "Def. 7.6",
        "feature diversity exponent",
        r"\|x_t^{\lfloor(\lambda+\epsilon)L\rfloor} - x_t^{\lfloor\lambda L\rfloor}\|/\sqrt{n} = "
        r"\Omega(\epsilon^{1-\kappa})",
        "The largest such kappa; redundant if it is 0.",
    ),
    _definition(
        "Def. 7.7",
        "layerwise linearisation",
        r"\text{the change of } \phi(W_t^l x) \text{ with } W_t^l \text{ is linear at leading order}",
        "A name.",
    ),
    Entry(
        source=SOURCE,
        number="Claim 7.1",
        title="stability at initialisation",
        printed=r"\text{stable at initialisation} \iff \alpha \geq 1/2",
        derived="layer_time of gamma_c_recursion for symbolic alpha (linear)",
        verdict="agrees",
        why=(
            "For the linear network: the layer's own source enters with L^(1/2 - alpha) in units in which a "
            "limit exists, and layer_time refuses what grows. By hand: (1 + L^(-2 alpha))^L is bounded for "
            "alpha >= 1/2."
        ),
        evidence=shown_by("other_scalings", "first_step"),
    ),
    Entry(
        source=SOURCE,
        number="Claim 7.2",
        title="stability in training",
        printed=(
            r"\text{stable in training} \iff \alpha + \gamma \geq 1; \quad \text{nontrivial} \iff \alpha + "
            r"\gamma \leq 1"
        ),
        derived="layer_time of gamma_c_recursion for symbolic alpha, gamma (linear)",
        verdict="agrees",
        why="For the linear network: an update enters with L^(1 - alpha - gamma).",
        evidence=shown_by("other_scalings"),
    ),
)
