"""Tests of losses whose error jumps in the output: flows that stay at the jump, and their comparison."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from numerics.errors import SpecError
from numerics.expansion import expand
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.simulation import simulate
from numerics.solver import solve
from numerics.verification.networks import against_networks, parting_of, quantities

TIME = 1.5


def hinge(**training: Any) -> Experiment:
    """Return an experiment with two equal samples of opposite sign.

    One stays at the margin until the other reaches it.
    """
    spec = {
        "network": {"depth": 1},
        "training": {"objective": "hinge", "loss": "sum", **training},
        "solver": {"rtol": 1e-2},
    }
    return Experiment.from_dict(spec, kernel=[[1.0, 0.6], [0.6, 1.0]], targets=[1.0, -0.4])


def flow() -> Experiment:
    return hinge(rule="flow", time=TIME, points=4)


def test_a_flow_that_rests_at_the_margin_is_the_limit_of_short_steps() -> None:
    found = solve(flow(), kernels="full")
    steps = [hinge(learning_rate=TIME / n, steps=n) for n in (75, 150)]
    coarse, fine = (solve(e, kernels="full") for e in steps)
    error = found.attrs["error_estimate"]
    assert "jumps widened" in found.attrs["integrator"]
    for at, place in enumerate((0, 1, 2, 3)):
        loss = [float(x.train_loss[place * (x.sizes["time"] - 1) // 3]) for x in (coarse, fine)]
        assert abs(float(found.train_loss[at]) - loss[1]) <= abs(loss[1] - loss[0]) + error
    last = [x.Phi.isel(time=-1, time_=-1) for x in (found, coarse, fine)]
    assert np.abs(last[0] - last[2]).max() <= np.abs(last[2] - last[1]).max() + 2 * error
    kept = fine.error[-15:, 0].mean()  # what keeps it there: on in some steps, off in the others
    assert 0.1 < kept < 0.3
    assert float(found.error[-1, 0]) == pytest.approx(float(kept), abs=0.03)


@pytest.mark.parametrize("left", [pytest.param(0.05, marks=pytest.mark.slow), 1e-3])
def test_an_output_on_its_way_to_the_margin_is_not_extrapolated(left: float) -> None:
    """One sample and layer: f = sinh(2 gamma0 t)/gamma0 until it is 1.

    Jumps wider than the remaining distance had extrapolated to 0.03 of the initial loss.
    """
    end = float(np.arcsinh(1 - left)) / 2
    spec = {
        "network": {"depth": 1},
        "training": {"objective": "hinge", "rule": "flow", "time": end, "points": 3},
    }
    found = solve(Experiment.from_dict(spec, kernel=[[1.0]], targets=[1.0]), kernels="none")
    missed = found.get("train_loss_systematic", 0 * found.train_loss)
    assert np.abs(found.train_loss[1:] - [1 - np.sinh(end), left]).max() < 1e-3 + missed.max()
    assert missed.max() < 0.05
    assert 1.0 - found.error[-1, 0] <= found.get("error_systematic", 1e-9 + 0 * found.error)[-1, 0]


def test_networks_of_such_a_flow_settle() -> None:
    found = simulate(flow(), width=32, seeds=2, rng=1, tolerance=1e-2)
    assert found.attrs["integration_error"] <= 1e-2


def test_networks_on_both_sides_of_a_jump_are_not_compared() -> None:
    experiment = hinge(learning_rate=0.25, steps=4)
    theory = solve(experiment)
    networks = [simulate(experiment, width=n, seeds=40, rng=n) for n in (16, 32, 64)]
    problem = Problem.of(experiment)
    parting = parting_of(problem, networks)
    assert parting is not None
    assert parting < 4
    assert any(float(d.error_stderr[parting].max()) > 0.0 for d in networks)
    assert all(float(d.error_stderr[:parting].max()) < 1e-9 for d in networks)
    kept = quantities(theory, networks, parting)
    assert all(q.at["time"] <= parting for q in kept)
    assert all(q.at["time"] < parting for q in kept if q.name == "error")
    assert all(c.passed for c in against_networks(theory, networks, kept))
    smooth = Problem.of(experiment.replace({"training.objective": "square"}))
    assert parting_of(smooth, networks) is None


def test_a_flow_has_no_series() -> None:
    with pytest.raises(SpecError, match="jumps as a function of the output"):
        expand(flow(), 0)
