"""Small experiments shared by the tests of this folder."""

from __future__ import annotations

from typing import Any

import numpy as np

from numerics.experiment import Experiment

RNG = np.random.default_rng(20)
INPUTS = RNG.standard_normal((3, 5))
TARGETS = np.array([0.8, -1.1, 0.6])


def gd(
    depth: int = 2, *, rate: float = 0.12, steps: int = 6, gamma0: float = 1.3, **network: Any
) -> Experiment:
    """Return exact descent on three samples with the summed loss."""
    return Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": gamma0, **network},
            "training": {"learning_rate": rate, "steps": steps, "loss": "sum"},
        },
        inputs=INPUTS,
        targets=TARGETS,
    )


def flow(depth: int = 2, *, time: float = 1.0, points: int = 6, gamma0: float = 1.3) -> Experiment:
    """Return gradient flow on three samples with the summed loss."""
    return Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": gamma0},
            "training": {"rule": "flow", "time": time, "points": points, "loss": "sum"},
        },
        inputs=INPUTS,
        targets=TARGETS,
    )
