"""Section 7: which parametrisations of depth are faithful, diverse and linear in each layer."""

from __future__ import annotations

from derive.ledger.depth2023.names import SOURCE, classes, shown_by
from derive.ledger.entry import Entry

ENTRIES = (
    Entry(
        source=SOURCE,
        number="Claim 7.3",
        title="faithfulness",
        printed=(
            r"\text{stable, nontrivial: faithful at initialisation} \iff \alpha \geq 1/2, \quad \text{in "
            r"training} \iff \alpha \leq 1"
        ),
        derived="depth_exponents: preactivation",
        verdict="agrees",
        why=(
            "h_t is of order L^max(0, -gamma) once the stream is stable, and gamma = 1 - alpha on the line. "
            "It needs 'stable' to mean the stream and f, as in Claim 7.2: with h among what Def. 7.2 keeps "
            "bounded, no stable parametrisation is unfaithful."
        ),
        evidence=classes("exponents", "unbounded", "networks"),
    ),
    Entry(
        source=SOURCE,
        number="Claim 7.4",
        title="redundancy",
        printed=r"\text{stable, nontrivial, faithful in training: redundant if } \alpha \in (1/2, 1]",
        derived="depth_exponents: noise, drift; statements",
        verdict="agrees",
        why=(
            "After a step of training. Independent layers give a window of epsilon L of them the variance "
            "epsilon L^(1 - 2 alpha), which vanishes; what they agree on moves it by epsilon L^(1 - alpha - "
            "gamma), which stays on the line. The measured kappa at alpha = 3/4 and 1 is 0."
        ),
        evidence=classes("diversity"),
    ),
    Entry(
        source=SOURCE,
        number="Claim 7.5",
        title="Depth-muP",
        printed=(
            r"\alpha = \gamma = 1/2 \text{ is the one stable, nontrivial, faithful, feature learning "
            r"parametrisation with maximal } \kappa = 1/2"
        ),
        derived="DepthParametrization.optimal: noise and output of order one",
        verdict="agrees",
        why=(
            "Two linear equations, 1/2 - alpha = 0 and 1 - alpha - gamma = 0. Diversity alone does not need "
            "training: all of alpha = 1/2, gamma > 1/2 has kappa = 1/2 and is trivial."
        ),
        evidence=classes("diversity", "exponents", "networks"),
    ),
    Entry(
        source=SOURCE,
        number="Claim 7.6",
        title="layerwise linearisation",
        printed=r"\text{stable, nontrivial: layerwise linearisation} \iff \alpha \in [1/2, 1)",
        derived="depth_exponents: linearisation",
        verdict="agrees",
        why=(
            "What h remembers of the updates is L^-gamma, so a layer loses L^(-alpha - 2 gamma) and all of "
            "them L^(1 - alpha - 2 gamma), which is L^(alpha - 1) on the line. Smooth phi; the sum is "
            "attained because layers agree on <phi'' phi'^2> dx^2. For signs that has no fluctuation over "
            "units, mean subtraction takes it away, and less is lost. Shown on networks."
        ),
        evidence=classes("networks"),
    ),
    Entry(
        source=SOURCE,
        number="Claim 7.6 text",
        title="no global linearisation",
        printed=r"\text{layerwise linearisation does not linearise the network in all parameters}",
        derived="depth_exponents: feature",
        verdict="agrees",
        why="At alpha = gamma = 1/2 h moves by order one, through the stream, while W moves it by L^-1/2.",
        evidence=(*classes("exponents"), *shown_by("infinite_depth")),
    ),
)
