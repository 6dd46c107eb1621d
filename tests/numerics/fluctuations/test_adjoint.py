"""Adjoint sweeps against dense matrices, for gradients by any order parameters."""

from __future__ import annotations

import numpy as np
import pytest

from numerics.experiment.problem import Problem
from numerics.fluctuations.adjoint import AdjointFluctuations
from numerics.fluctuations.dense import DenseFluctuations
from numerics.fluctuations.expanded_problem import lowered
from numerics.fluctuations.linear import GradientBlock
from tests.numerics.fluctuations.cases import CASES, case


@pytest.mark.parametrize("name", CASES)
def test_sweeps_give_the_covariance_of_dense_matrices(name: str) -> None:
    """Random gradients by random order parameters."""
    arrays = lowered(Problem.of(case(name)))
    rng = np.random.default_rng(0)
    columns = np.sort(rng.permutation(arrays.parameters.count)[:80])
    blocks = [GradientBlock(rng.normal(size=(3, 80)), columns), GradientBlock(np.eye(9, 40), columns[::2])]
    dense = DenseFluctuations(arrays).covariances_of(blocks)
    for found, expected in zip(AdjointFluctuations(arrays).covariances_of(blocks), dense, strict=True):
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12 * np.abs(expected).max())
