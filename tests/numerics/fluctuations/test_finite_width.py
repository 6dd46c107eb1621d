"""Variances and shifts in results against the exact expansion of one hidden linear layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

import numerics
from numerics.experiment import Experiment
from numerics.fluctuations import finite_width, methods
from numerics.solver.method import KeptKernels
from tests.numerics.fluctuations.cases import CASES, case
from tests.numerics.fluctuations.one_layer import Leading, OneLayer, leading_order

KERNELS = {
    1: np.array([[1.3]]),
    2: np.array([[1.0, 0.3], [0.3, 0.8]]),
    4: 0.6 * np.eye(4) + 0.4 * np.cos(np.subtract.outer(np.arange(4.0), np.arange(4.0))),
}
TARGETS = np.array([1.0, -0.5, 0.7, 0.2])
NAMES = ("f", "train_loss", "tangent_kernel", "Phi", "G")


def one_layer(samples: int, training: dict[str, Any], gamma0: float = 1.0) -> Experiment:
    """Return a network with one hidden linear layer, and the sum of losses."""
    tables: dict[str, Any] = {"network": {"depth": 1, "gamma0": gamma0}, "training": training}
    return Experiment.from_dict(tables, kernel=KERNELS[samples], targets=TARGETS[:samples])


@pytest.mark.parametrize(("samples", "centred"), [(1, False), (2, True), (4, False)])
def test_one_layer_in_steps(samples: int, centred: bool) -> None:
    """Every variance and shift at every step."""
    training = {"learning_rate": 0.1, "steps": 4, "loss": "sum", "center": centred}
    found = finite_width(one_layer(samples, training, 1.3))
    exact = leading_order(OneLayer(KERNELS[samples], TARGETS[:samples], 0.1, 4, 1.3, centred))
    compare(found, exact, 1e-11)
    np.testing.assert_allclose(found.error_variance, found.f_variance, rtol=1e-12)
    np.testing.assert_allclose(found.error_shift, -found.f_shift, rtol=1e-12)


@pytest.mark.parametrize(("samples", "time"), [(1, 0.45), pytest.param(2, 1.5, marks=pytest.mark.slow)])
def test_one_layer_in_flow(samples: int, time: float) -> None:
    """Extrapolated to steps of length zero, within the errors that the result states."""
    training = {"rule": "flow", "time": time, "points": 4, "loss": "sum"}
    found = finite_width(one_layer(samples, training))
    flow = OneLayer(KERNELS[samples], TARGETS[:samples], time / 3, 3, flow=True)
    assert max(found.variance_error, found.shift_error) < 3e-3
    compare(found, leading_order(flow), found.variance_error, found.shift_error)


@pytest.mark.parametrize(
    ("name", "keep"), [*((x, "full") for x in CASES), *((x, "trace") for x in ("outputs", "residual"))]
)
def test_sweeps_and_matrices_agree(name: str, keep: KeptKernels, monkeypatch: pytest.MonkeyPatch) -> None:
    """Variances of all variables of results; their limits are the solution."""
    experiment = case(name)
    dense = finite_width(experiment, kernels=keep)
    monkeypatch.setattr(methods, "DENSE", 0)
    swept = finite_width(experiment, kernels=keep)
    assert "more than 0" in swept.no_shift
    assert "f_shift" not in swept
    solved = numerics.solve(experiment)
    names = [str(x) for x in dense.data_vars if not str(x).endswith("_shift")]
    assert {*names} == {*map(str, swept.data_vars)}
    for x in names:
        one, two = dense[x], swept[x]
        np.testing.assert_allclose(two, one, rtol=0, atol=1e-12 * float(np.abs(one).max()), err_msg=x)
        if x in solved:
            np.testing.assert_allclose(one, solved[x], rtol=0, atol=1e-13, err_msg=x)


def compare(found: xr.Dataset, exact: Leading, variance: float, shift: float | None = None) -> None:
    """Compare all corrections, with errors relative to the largest value of each."""
    for name in NAMES:
        for end, expected, error in (
            ("variance", exact.scaled_variance(name), variance),
            ("shift", exact.scaled_shift(name), variance if shift is None else shift),
        ):
            value = found[f"{name}_{end}"].values.reshape(expected.shape)
            allowed = error * np.abs(expected).max()
            np.testing.assert_allclose(value, expected, rtol=0, atol=allowed, err_msg=f"{name} {end}")
