"""Theory A = B = 0 and networks with independent backward matrices (section 5.1, O).

The ansatz gives the fields of such a network but not its output, because (4) assumes that updates are
gradients of the output. With an independent backward matrix only the updates of the readout and of the last
hidden layer are gradients. At small gamma0 the output therefore moves at 2 K^x, whatever the depth, instead
of (L + 1) K^x.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.engine import solved, steps_of
from tests.ledger.evidence.lab import Weights, gradients, held, moved

RNG, NETWORKS, WIDTH = 511, 40, 400
RATE, GAMMA, TARGET = 0.1, 0.2, 1.0
ONE = np.eye(1)
BOUND = 3.5
"""Standard errors that the mean over networks may be off, for the six numbers compared here."""


def first_step(depth: int, tied: bool, rng: np.random.Generator) -> float:
    """Return the change of the output of one network on one sample in a step, over rate times error.

    The backward pass uses the transposes of the weights, or of independent matrices.
    """
    n = WIDTH
    first = rng.standard_normal(n)  # W^0 x / sqrt(D) for an input of unit norm
    hidden = [rng.standard_normal((n, n)) for _ in range(depth - 1)]
    back = hidden if tied else [rng.standard_normal((n, n)) for _ in range(depth - 1)]
    weights = (first, *hidden, rng.standard_normal(n))

    def output(w: Weights) -> Any:
        h = w[0]
        for forward, backward in zip(w[1:-1], back, strict=True):
            # The value is W h, the gradient in W that of W h, and in h that of V h.
            h = (backward @ h + (forward - backward) @ held(h)) / np.sqrt(n)
        return w[-1] @ h / (n * GAMMA)

    error = TARGET - output(weights)
    after = moved(weights, gradients(output, weights), n * GAMMA**2 * RATE * error)
    return float((output(after) - output(weights)) / (RATE * error))


def output_with_independent_backward() -> Evidence:
    """Check 5.1, O text: with independent backward matrices the output learns at 2 K^x.

    It does not learn at (L + 1) K^x.
    """
    findings: list[Finding] = []
    rng = np.random.default_rng(RNG)
    for depth in (1, 2, 3):
        printed = depth + 1.0
        for tied in (True, False):
            moves = np.array([first_step(depth, tied, rng) for _ in range(NETWORKS)])
            error = float(moves.std(ddof=1) / np.sqrt(NETWORKS))
            run = solved(ONE, np.array([TARGET]), steps_of(RATE, 2), depth=depth, gamma=GAMMA, tied=tied)
            derived = float(TARGET - run.error[1, 0]) / (RATE * TARGET)
            what = f"L = {depth}, {'transposed' if tied else 'independent'} backward matrices"
            findings.append(
                agrees(f"{what}: networks minus engine", float(moves.mean()) - derived, BOUND * error)
            )
            if not tied and depth > 1:
                findings.append(
                    contradicts(f"{what}: networks minus (L + 1) K", float(moves.mean()) - printed, error)
                )
    return conclude(
        "independence:output_with_independent_backward",
        "With independent backward matrices the output starts to learn at 2 K^x at every depth; with "
        "A = B = 0 and (4), as the ansatz is used, it would at (L + 1) K^x.",
        *findings,
    )
