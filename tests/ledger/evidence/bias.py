"""Networks with trained biases: the theory (H.3), and the update (H.2)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tests.derive.once import mlp
from tests.ledger.claims import claimed
from tests.ledger.evidence.base import Evidence, agrees, conclude, contradicts
from tests.ledger.evidence.edited import CLOSE, Experiment, edited, off, right, worst
from tests.ledger.evidence.lab import EXACT, derivative

Array = NDArray[np.float64]

DATA = {"x": np.array([[1.2, -0.4, 1.3], [0.2, 0.9, -0.8]]), "y": np.array([1.0, -0.6])}
TRAINED = Experiment(
    mlp(2, "tanh", bias=True), {"eta": 0.3, "gamma0": 2.0, "P": 2}, DATA, width=150, networks=120
)
N, GAMMA = 5, 1.5


def networks_with_biases() -> Evidence:
    """(H.3): covariances with the bias at the start, and its memory."""
    measured = TRAINED.measured()
    theory = edited(TRAINED.theory(), claimed("selfconsistent2023", "H.3"), TRAINED.depth)
    return conclude(
        "bias:networks_with_biases",
        "Networks with trained biases agree with the derived theory, and with (H.3) put in its place.",
        right("biases, L = 2", TRAINED, measured),
        agrees("(H.3) put in: largest z", worst(measured, TRAINED.solved(theory)), CLOSE),
        off("no biases", TRAINED, measured, replace(TRAINED, program=mlp(2, "tanh")).theory()),
    )


def gradient() -> Evidence:
    """(H.2): gamma^2 df/db^l is gamma0 g^{l+1}."""
    draw = np.random.default_rng(4).standard_normal
    inner, readout, first, bias = draw((N, N)), draw(N), draw(N), draw(N)

    def above(h: Array, b: Array) -> Array:
        return np.asarray(inner @ np.tanh(h) / np.sqrt(N) + b)

    def output(h: Array) -> Array:
        return np.asarray(readout @ np.tanh(h) / (GAMMA * N))

    move = GAMMA**2 * N * derivative(lambda b: output(above(first, b)), bias)
    g1 = GAMMA * N * derivative(lambda h: output(above(h, bias)), first)
    g2 = GAMMA * N * derivative(output, above(first, bias))
    return conclude(
        "bias:gradient",
        "The bias that is added to h^{l+1} moves with g^{l+1}, not with g^l.",
        agrees("gamma^2 df/db minus gamma0 g^{l+1}", float(np.max(np.abs(move - GAMMA * g2))), EXACT),
        contradicts("gamma^2 df/db minus gamma0 g^l", float(np.max(np.abs(move - GAMMA * g1))), EXACT),
    )
