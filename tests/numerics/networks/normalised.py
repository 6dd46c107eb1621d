"""Residual networks with normalisation before and after their branches, on three samples."""

from __future__ import annotations

import numpy as np

from derive.program.networks import normalised
from numerics.experiment.schema import Solver
from tests.numerics.networks.case import Case

INPUTS = np.array([[1.2, 0.3, -0.5], [0.4, 1.0, 0.6], [-0.3, 1.1, 0.9]])
LABELS = np.array([1.0, -1.0, 0.5])
ARRAYS = {"K_x": INPUTS @ INPUTS.T / 3, "y": LABELS}
NUMBERS = {"eta": 0.02, "gamma0": 2.0}


def rms_before(steps: int = 30) -> Case:
    """Return three branches that read the stream over its root mean square."""
    program = normalised(3, branch=0.5)
    return Case(program, NUMBERS, ARRAYS, steps, (48, 96), (200, 100), Solver(samples=2**10))


def layer_after(steps: int = 20) -> Case:
    """Return two branches of relu, with mean and variance of the stream normalised after each."""
    program = normalised(2, "relu", place="after", normalisation="layer", bias=True)
    return Case(program, NUMBERS, ARRAYS, steps, (48, 96), (200, 100), Solver(samples=2**10))
