"""(P.16), section 5.2: the expansion of relu networks is not even in gamma0 (one layer, one sample).

A relu unit and its gradient scale with its initial size, so that only the direction of (u, r) matters. The
network has one unit for each of many directions, with the mean squared size, and is trained by gradient
descent.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from tests.ledger.claims.selfconsistent2023 import perturbation as claim
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts

Array = NDArray[np.float64]

UNITS, STEPS, RATE, KERNEL, TARGET = 400_000, 4, 0.2, 1.0, 1.0
STRENGTHS = (0.02, 0.04, 0.08)


def directions() -> tuple[Array, Array]:
    """Return u and r of all units: evenly spaced directions, size sqrt(2)."""
    angle = 2 * np.pi * (np.arange(UNITS) + 0.5) / UNITS
    return np.sqrt(2 * KERNEL) * np.cos(angle), np.sqrt(2) * np.sin(angle)


def trained(gamma: float) -> dict[str, float]:
    """Return Phi, G, tangent kernel and loss after the steps, and v, the sum of the errors."""
    u, r = directions()
    h, z, error, v = u.copy(), r.copy(), TARGET, 0.0
    for _ in range(STEPS):
        v += RATE * error
        on = h > 0
        move = RATE * gamma * error
        h, z = h + move * KERNEL * on * z, z + move * on * h
        error = TARGET - float(np.mean(z * np.maximum(h, 0.0))) / gamma
    on = h > 0
    Phi, G = float(np.mean(on * h**2)), float(np.mean(on * z**2))
    return {"Phi": Phi, "G": G, "K": Phi + KERNEL * G, "loss": error**2, "v": v}


def _limits(name: str, power: int) -> tuple[float, float]:
    """Return the limit of (Q(gamma0) - Q(0))/gamma0^power from Richardson's triangle.

    The second number is its last correction.
    """
    lazy = {"Phi": KERNEL / 2, "G": 0.5, "K": KERNEL}
    start = lazy[name] if name in lazy else _lazy_loss()
    slopes = [(trained(g)[name] - start) / g**power for g in STRENGTHS]
    first = [2 * a - b for a, b in pairwise(slopes)]
    best = (4 * first[0] - first[1]) / 3
    return best, abs(best - first[0])


def _lazy_loss() -> float:
    return float(TARGET**2 * (1 - RATE * KERNEL) ** (2 * STEPS))


def linear_term_of_relu() -> Evidence:
    """Check (P.16) text: G, the tangent kernel and the loss of relu networks move at order |gamma0|."""
    u, r = directions()
    v = float(sum(RATE * TARGET * (1 - RATE * KERNEL) ** k for k in range(STEPS)))
    small = STRENGTHS[0] / 4
    crossed = (u > 0) & (u + small * KERNEL * v * r <= 0)
    count = -float(np.mean(r**2 * crossed)) / small
    G, G_error = _limits("G", 1)
    K, K_error = _limits("K", 1)
    loss, loss_error = _limits("loss", 1)
    Phi, _ = _limits("Phi", 1)
    Phi2, _ = _limits("Phi", 2)
    tolerance = 2 * max(G_error, 1e-3)
    stated = float(claim.p16_text()["G1"])
    return conclude(
        "perturbation_kinks:linear_term_of_relu",
        f"One layer, one sample, relu, v = {v:.4f}: G = 1/2 {G:+.4f} |gamma0| + ..., loss {loss:+.4f} "
        f"|gamma0|, while Phi moves by {Phi2:+.4f} gamma0^2. Units whose u is below |gamma0 v r| are "
        f"switched off; counting them gives {count:+.4f} |gamma0| for G, which is -v/pi.",
        agrees("linear term of G minus count of the units that cross", G - count, tolerance),
        agrees("linear term of G plus v/pi", G + v / np.pi, tolerance),
        contradicts("linear term of G, stated to vanish", G - stated, max(G_error, 1e-3)),
        contradicts("linear term of the tangent kernel", K, max(K_error, 1e-3)),
        contradicts("linear term of the loss", loss, max(loss_error, 1e-3)),
        agrees("linear term of Phi", Phi, 1e-3),
    )
