"""Algorithm 1 as printed: responses without the 1/gamma0 of (14), against trained networks."""

from __future__ import annotations

from tests.derive.once import mlp
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, conclude
from tests.ledger.evidence.edited import Experiment, edited, off, right
from tests.ledger.evidence.nonlinear import DATA, VALUES

TRAINED = Experiment(mlp(2, "tanh"), VALUES, DATA, width=150, networks=120)
"""At gamma0 = 2."""


def responses_as_printed() -> Evidence:
    """Check Algorithm 1: both responses as printed, then one of them."""
    measured, theory = TRAINED.measured(), TRAINED.theory()
    printed = claimed("selfconsistent2023", "Algorithm 1")
    findings = [
        off(f"{' and '.join(names)} as printed", TRAINED, measured, edited(theory, claim, TRAINED.depth))
        for names in (("A", "B"), ("A",), ("B",))
        if (claim := {name: printed[name] for name in names})
    ]
    return conclude(
        "algorithm:responses_as_printed",
        "Tanh networks with two hidden layers at gamma0 = 2 agree with the derived theory, and reject the "
        "one whose responses lack the factor 1/gamma0.",
        right("tanh, L = 2", TRAINED, measured),
        *findings,
    )
