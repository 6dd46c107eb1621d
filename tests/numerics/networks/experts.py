"""Two experts whose gates start with different preferences for four samples."""

from __future__ import annotations

import numpy as np

from derive.program.networks import experts
from numerics.experiment.schema import Solver
from tests.numerics.networks.case import Case

INPUTS = np.array([[1.2, 0.3, -0.5], [0.4, 1.0, 0.6], [-0.3, 1.1, 0.9], [0.8, -0.7, 1.0]])
LABELS = np.array([1.0, -1.0, 1.0, -0.5])
OFFSETS = np.array([[1.0, -0.5, 0.3, 0.0], [0.0, 0.5, -1.0, 0.7]])
"""Given parts of the gates: one row an expert, one column a sample."""


def two_experts(steps: int = 30) -> Case:
    """Return one block of two experts with RMS normalisation."""
    arrays = {"K_x": INPUTS @ INPUTS.T / 3, "y": LABELS, "offset": OFFSETS}
    numbers, solver = {"eta": 0.01, "gamma0": 3.0}, Solver(samples=2**10)
    program = experts(1, offsets=True)
    return Case(program, numbers, arrays, steps, (48, 96), (200, 100), solver)


def four_experts(steps: int = 20) -> Case:
    """Return two blocks of four experts with biases, on two samples."""
    offsets = np.array([[1.0, -0.5], [0.0, 0.5], [-0.4, 0.2], [0.3, 0.8]])
    arrays = {"K_x": INPUTS[:2] @ INPUTS[:2].T / 3, "y": LABELS[:2], "offset": offsets}
    numbers, solver = {"eta": 0.02, "gamma0": 2.0}, Solver(samples=2**10)
    program = experts(2, count=4, offsets=True, bias=True, branch=0.5)
    return Case(program, numbers, arrays, steps, (48, 96), (300, 150), solver)
