"""The figure of a verification: curves of one panel show one quantity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import numerics
from numerics.expansion import expand
from numerics.expansion.orders import partial_sum
from numerics.experiment import Experiment
from numerics.verification.figure import draw


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
