"""Gradient flow of networks: its own accuracy, its conservation law, and the limit of small steps."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from derive.program import GradientFlow, MomentumFlow, eta
from numerics.errors import NotConverged
from numerics.experiment import Experiment
from numerics.simulation import Trainer, simulate, simulate_program
from numerics.simulation.experiment import converged_steps
from numerics.simulation.run import advance
from tests.derive.once import mlp

from .helpers import INPUTS, TARGETS

TIMES = np.linspace(0.0, 1.0, 6)
SEED = np.random.SeedSequence(4)


def trainer(rule="flow", **options):
    options = {"times": TIMES, "steps": 5, "dt": 0.2} | options
    numbers = {"eta": options.pop("eta", 1.0), "gamma0": 1.3, "P": 3}
    data = {"x": INPUTS, "y": TARGETS}
    return Trainer.of(mlp(2, rule=rule), width=24, values=numbers, data=data, **options)


@lru_cache(maxsize=1)
def fine():
    """Return steps with an error of at most 1e-6, and the message about them."""
    return converged_steps(trainer(), SEED, 1e-6, False)


def test_loss_decreases_and_the_error_estimate_is_met():
    run, estimate = fine()
    exact = run.train(SEED)["Delta"]
    assert np.all(np.diff((exact**2).mean(axis=1)) < 0)
    assert estimate <= 1e-6
    rough, estimate = converged_steps(trainer(), SEED, 1e-3, False)
    assert np.abs(rough.train(SEED)["Delta"] - exact).max() <= 3 * max(estimate, 1e-6)
    assert sum(rough.counts) < sum(run.counts)


def test_exact_steps_approach_the_flow_linearly_in_the_rate():
    """Also ties the rates of the two rules together: time = rate x steps."""
    exact = fine()[0].train(SEED)["f"][-1]
    errors = []
    for steps in (40, 80):
        run = trainer("gd", eta=1.0 / steps, steps=steps, times=None, dt=None).train(SEED)
        errors.append(np.abs(run["f"][-1] - exact).max())
    assert np.log2(np.array(errors[:-1]) / errors[1:]) == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    "rule", [GradientFlow(eta, decay=0.4), pytest.param(MomentumFlow(eta, 0.7), marks=pytest.mark.slow)]
)
def test_fourth_order(rule):
    """With decay, which is carried along with the updates, and with a velocity too."""
    runs = [trainer(rule, dt=0.1)]
    for _ in range(3):
        runs.append(runs[-1].halved())
    ends = [x.train(SEED)["f"][-1] for x in runs]
    errors = [np.abs(x - ends[-1]).max() for x in ends[:2]]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(4.0, abs=0.7)


def test_flow_conserves_the_balance_of_neighbouring_layers():
    """W^{l T} W^l - W^{l-1} W^{l-1 T} is constant under the flow of a deep linear network."""
    run = trainer(dt=0.005)
    state, _ = run.begin([np.random.default_rng(0)])

    def balances():
        w0, w1, w = (state.weights[key][0] for key in (("W0", ()), ("W", (1,)), ("w", ())))
        # as applied, entries are of order 1/sqrt(D) and 1/sqrt(N); rates are those of N(0, 1) weights
        return [24 * w1.T @ w1 - 5 * w0 @ w0.T, np.outer(w, w) - 24 * w1 @ w1.T]

    run.network.compute(state)
    state.step = 1
    before, weights = balances(), state.weights["W", (1,)].copy()
    for _ in range(80):
        advance(run.network, run.moving, state, 0.005, [])
    assert np.abs(state.weights["W", (1,)] - weights).max() > 0.05 / 24**0.5
    for old, new in zip(before, balances(), strict=True):
        assert new == pytest.approx(old, abs=1e-7)


def test_steps_go_where_they_are_needed():
    """Late in training the error at hand is slow: long intervals take few steps."""
    times = np.array([0.0, 0.5, 1.0, 2.0, 4.0, 8.0])
    fitted = trainer(times=times).fitted(SEED, 1e-6)
    lengths = np.diff(times) / np.array(fitted.counts)
    assert lengths[-1] > 1.5 * lengths[0]


def test_steps_that_are_unstable_are_not_taken_for_rounding():
    """A velocity of 0.05 in an interval of 1: two halvings miss as much as one does, and still explode."""
    spec = {
        "network": {"depth": 1},
        "training": {"rule": "flow", "time": 1.0, "points": 2, "momentum": 0.05},
    }
    e = Experiment.from_dict(spec, kernel=np.eye(2), targets=[0.6, 1.0])
    found = simulate(e, width=16, seeds=2, rng=0)
    assert found.attrs["integration_error"] < 1e-5
    assert found.train_loss[-1] < found.train_loss[0]


def test_an_unreachable_tolerance_is_reported(monkeypatch):
    monkeypatch.setattr("numerics.simulation.run.MOST_STEPS", 32)
    monkeypatch.setattr("numerics.simulation.experiment.MOST_STEPS", 32)
    with pytest.raises(NotConverged, match="integration error"):
        converged_steps(trainer(times=[0.0, 0.1], steps=1), SEED, 1e-18, False)


def test_without_times_every_step_is_recorded():
    given = {"width": 24, "dt": 0.1, "seeds": 2, "seed": 1, "data": {"x": INPUTS, "y": TARGETS}}
    given |= {"values": {"eta": 1.0, "gamma0": 1.3, "P": 3}}
    steps = simulate_program(mlp(2, rule="flow"), steps=2, **given)
    assert steps["f"].axes[0] == ("t", (0.0, 0.1, 0.2))
    times = simulate_program(mlp(2, rule="flow"), steps=1, times=[0, 0.2], **given)
    np.testing.assert_allclose(steps["f"].mean[[0, 2]], times["f"].mean, rtol=1e-12)
    for last in (np.nan, np.inf):
        with pytest.raises(ValueError, match="times: must be 2 finite increasing numbers"):
            simulate_program(mlp(2, rule="flow"), steps=1, times=[0, last], **given)


def test_steps_of_a_centred_flow_are_chosen_on_the_centred_flow():
    """A pilot that forgot the initial function ran away at t = 0.46, and the flow was given up."""
    spec = {
        "network": {"depth": 2, "gamma0": 2.0, "width": 8},
        "data": {"kind": "power-law", "capacity": 2.0, "source": 0.5, "modes": 6},
        "training": {"rule": "flow", "time": 0.5, "points": 3},
    }
    found = simulate(Experiment.from_dict(spec), width=8, seeds=2, rng=2001025171)
    assert found.attrs["integration_error"] <= 1e-6
    assert (found.train_loss.diff("time") < 0).all()
