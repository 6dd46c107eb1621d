"""Tests of linear theories against numbers of an independent prototype and of networks."""

from __future__ import annotations

import numpy as np
import pytest

from derive.program import mlp
from derive.theory.fluctuations import fluctuations
from numerics.fluctuations.dense import DenseFluctuations
from numerics.fluctuations.lowered import LoweredFluctuations, TheorySizes
from numerics.lowering.expressions import KnownArrays


def solved(depth: int, eta: float, steps: int) -> DenseFluctuations:
    """Return the fluctuations of a deep linear network with one sample."""
    values = {"eta": eta, "gamma0": 1.0, "P": 1, "L": depth}
    known = KnownArrays(values, {"K_x": np.ones((1, 1)), "y": np.ones(1)})
    return DenseFluctuations(
        LoweredFluctuations(fluctuations(mlp(depth)), TheorySizes(values, steps + 1), known)
    )


@pytest.mark.parametrize(
    ("depth", "eta", "variance", "shift", "loss"),
    [(1, 0.1, 0.3028, -0.4294, 0.2801), (2, 0.08, 0.4056, -1.0560, 0.4056)],
)
def test_one_sample(depth: int, eta: float, variance: float, shift: float, loss: float) -> None:
    """Variance and shift of the output after five steps, and the shift of the loss."""
    found = solved(depth, eta, 5)
    f, error = found.number("f", 1, 5), found.number("Delta", 1, 5)
    assert found.covariance[f, f] == pytest.approx(variance, abs=5e-5)
    assert found.shift[f] == pytest.approx(shift, abs=5e-5)
    moved = found.values[error] * found.shift[error] + found.covariance[error, error] / 2
    assert moved == pytest.approx(loss, abs=5e-5)


@pytest.mark.parametrize("depth", [1, 2, 3, 4])
def test_initial_tangent_kernel(depth: int) -> None:
    """N Var K(0) is 2 L (L + 1) (2 L + 1)/3 for one sample of unit norm."""
    found = solved(depth, 0.1, 0)
    kernels = [("G", (1,)), *[("GH", (k,)) for k in range(1, depth)], ("H", (depth,))]
    gradient = np.zeros(found.count)
    for name, (layer,) in kernels:
        if name == "GH":  # both factors are one at the start
            gradient[found.number("G", layer + 1, 0, 0)] += 1
            gradient[found.number("H", layer, 1, 1, 0, 0)] += 1
        else:
            arguments = (layer, 0, 0) if name == "G" else (layer, 1, 1, 0, 0)
            gradient[found.number(name, *arguments)] += 1
    expected = 2 * depth * (depth + 1) * (2 * depth + 1) / 3
    assert gradient @ found.covariance @ gradient == pytest.approx(expected, rel=1e-12)
