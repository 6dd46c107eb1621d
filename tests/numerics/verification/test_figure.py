"""The figure of a verification: curves of one panel show one quantity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

import numerics
from numerics.expansion import expand
from numerics.expansion.orders import partial_sum
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.verification.figure import draw
from tests.derive.once import convolution


@pytest.mark.parametrize("objective", ["square", "logistic"])
def test_series_in_the_panel_of_losses_start_at_the_loss_of_the_theory(objective: str) -> None:
    tables: dict[str, Any] = {
        "network": {"depth": 1, "gamma0": 0.3},
        "training": {"learning_rate": 0.2, "steps": 3, "objective": objective},
    }
    experiment = Experiment.from_dict(tables, inputs=np.eye(2), targets=[1, -1])
    theory, series = numerics.solve(experiment), expand(experiment, 2)
    figure = draw(experiment, theory, [], {n: partial_sum(series, 0.3, n) for n in (0, 2)})
    panel = next(ax for part in figure.subfigs for ax in part.axes if ax.get_ylabel() == "loss" or ax.lines)
    starts = [float(line.get_ydata()[0]) for line in panel.lines if len(line.get_ydata()) == 4]
    assert len(starts) >= 3
    np.testing.assert_allclose(starts, float(theory.train_loss[0]), rtol=1e-9)


@pytest.mark.parametrize("activation", ["linear", "tanh"])
def test_kernels_of_networks_with_positions_are_drawn_between_samples(activation: str) -> None:
    """The average over equal positions; kernels of a convolution ended in a traceback."""
    program = convolution(1, activation, positions=2, receptive=0)
    x = np.random.default_rng(3).standard_normal((2, 2, 4))
    data = {"K_x": np.einsum("mpd,nqd->mpnq", x, x) / 8, "y": [1.0, -1.0]}
    problem = Problem.of(program, arrays=data, numbers={"eta": 0.1, "gamma0": 1.0}, times=range(2))
    phi = np.random.default_rng(4).standard_normal((1, 2, 2, 2, 2, 2, 2))
    dims = ("layer", "time", "time_", "sample", "position", "sample_", "position_")
    gradients = (
        (dims, phi) if activation == "tanh" else ((*dims[:3], "position", "position_"), phi[:, :, :, 0, :, 0])
    )
    variables = {"Phi": (dims, phi), "G": gradients, "train_loss": ("time", [1.0, 0.5])}
    theory = xr.Dataset(variables, {"time": [0, 1], "time_": [0, 1], "layer": [1]})
    figure = draw(problem, theory, [])
    shown = [ax.images[0].get_array() for part in figure.subfigs for ax in part.axes if ax.images]
    expected = np.einsum("mpnp->mn", phi[0, -1, -1])
    np.testing.assert_allclose(shown[1], expected / np.mean(np.diag(expected)))
