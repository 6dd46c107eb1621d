"""Networks with trained biases: the theory (H.3), and the update (H.2)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sympy import Basic

from tests.derive.once import mlp
from tests.ledger.claims import claimed, corrected
from tests.ledger.evidence.base import Evidence, agrees, conclude
from tests.ledger.evidence.edited import CLOSE, Experiment, edited, off, right, worst
from tests.ledger.evidence.evaluated import Functions, largest, told_apart, valued
from tests.ledger.evidence.lab import EXACT, derivative

Array = NDArray[np.float64]

DATA = {"x": np.array([[1.2, -0.4, 1.3], [0.2, 0.9, -0.8]]), "y": np.array([1.0, -0.6])}
TRAINED = Experiment(
    mlp(2, "tanh", bias=True), {"eta": 0.3, "gamma0": 2.0, "P": 2}, DATA, width=150, networks=120
)
N, GAMMA = 5, 1.5


def networks_with_biases() -> Evidence:
    """Check (H.3): covariances with the bias at the start, and its memory."""
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
    """Check (H.2): gamma^2 df/db^l is gamma0 g^{l+1}."""
    draw = np.random.default_rng(4).standard_normal
    inner, readout, firsts, bias = draw((N, N)), draw(N), draw((2, N)), draw(N)
    errors = np.array([0.7, -0.4])

    def above(h: Array, b: Array) -> Array:
        return np.asarray(inner @ np.tanh(h) / np.sqrt(N) + b)

    def output(h: Array) -> Array:
        return np.asarray(readout @ np.tanh(h) / (GAMMA * N))

    def of_bias(h: Array) -> Callable[[Array], Array]:
        return lambda b: output(above(h, b))

    moves = [GAMMA**2 * N * derivative(of_bias(h), bias) for h in firsts]
    fields = {
        1: [GAMMA * N * derivative(lambda x: output(above(x, bias)), h) for h in firsts],
        2: [GAMMA * N * derivative(output, above(h, bias)) for h in firsts],
    }
    functions: Functions = {
        "Delta": lambda sample, time: {1: errors}[time][(sample - 1) % 2],
        "g": lambda layer, sample, time: {1: fields}[time][layer][(sample - 1) % 2],
    }

    def velocity(e: Basic) -> Array:
        return np.asarray(valued(e, {"P": 2, "ell": 1, "t": 1, "gamma0": GAMMA}, functions))

    claim, true = (built("selfconsistent2023", "H.2") for built in (claimed, corrected))
    move = errors @ np.array(moves)
    return conclude(
        "bias:gradient",
        "The bias that is added to h^{l+1} moves with g^{l+1}, not with g^l.",
        agrees(
            "sum of g^{l+1}, as first printed, minus gamma^2 df/db",
            largest(velocity(claim["db_before"]) - move),
            EXACT,
        ),
        *told_apart("velocity of the bias", [velocity(x["db"]) for x in (claim, true)], move, EXACT),
    )
