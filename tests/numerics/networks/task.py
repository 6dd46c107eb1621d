"""Recurrent networks on two tasks: to name the sum of a sequence, and to keep a running sum of it."""

from __future__ import annotations

import numpy as np

from derive.program.networks import recurrent_task
from tests.numerics.networks.case import Case

STEPS = 4


def sequences(samples: int = 3, steps: int = STEPS) -> np.ndarray:
    """Return sequences of signs, one a sample."""
    return np.random.default_rng(5).choice([-1.0, 1.0], size=(samples, steps))


def kernel_of(signs: np.ndarray) -> np.ndarray:
    """Return the overlaps of all inputs: a sign, and a clock that marks the first step."""
    clock = np.zeros_like(signs)
    clock[:, 0] = 1
    inputs = np.stack([signs, clock], axis=-1)
    return np.einsum("mka,nla->mknl", inputs, inputs) / 2


def running_sum(leak: float = 0.5) -> Case:
    """Return leaky units with an output at each step."""
    signs = sequences()
    program = recurrent_task(STEPS, leak=leak, read="all", bias=True)
    arrays = {"K_x": kernel_of(signs), "y": np.cumsum(signs, axis=1) / 2}
    return Case(program, {"eta": 0.1, "gamma0": 1.0}, arrays, 24, seeds=(600, 300))


def parity(decay: float = 0.02) -> Case:
    """Return units with an output at the end, whose weights decay."""
    signs = sequences()
    program = recurrent_task(STEPS, weight_decay=decay)
    arrays = {"K_x": kernel_of(signs), "y": signs.prod(axis=1)}
    return Case(program, {"eta": 0.2, "gamma0": 1.0}, arrays, 24, seeds=(600, 300))
