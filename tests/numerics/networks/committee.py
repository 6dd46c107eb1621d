"""Committee machines on random inputs: the same samples at every step, batches in turn, new samples."""

from __future__ import annotations

from derive.program.networks import committee
from tests.numerics.networks.case import Case

STEPS = 24
SIZES = {"widths": (100, 200), "seeds": (600, 300)}


def full_batch(activation: str = "erf") -> Case:
    """Return two units that learn two from twice as many samples as inputs have entries."""
    return Case(committee(2, 2, activation, ratio=2), {"eta": 0.4}, {}, STEPS, **SIZES)


def batches_in_turn() -> Case:
    """Return three units that learn two from two batches, noisy labels and decay."""
    program = committee(3, 2, ratio=1, batches=2, noise=0.1, weight_decay=0.05)
    return Case(program, {"eta": 0.4}, {}, STEPS, **SIZES)


def online() -> Case:
    """Return two units that see new samples in each step."""
    return Case(committee(2, 2, ratio=1, online=True), {"eta": 0.4}, {}, STEPS, **SIZES)
