"""Gradient flow of one network: its own accuracy, its conservation law, and the limit of small steps."""

from __future__ import annotations

import numpy as np
import pytest

from numerics.errors import NotConverged
from numerics.simulate import train_network
from numerics.simulate.flow import _runge_kutta_step, integrate
from numerics.simulate.parameters import draw_parameters

from .helpers import INPUTS, TARGETS

NETWORK = {"depth": 2, "gamma0": 1.3, "width": 24, "rng": 4}
TIMES = np.linspace(0.0, 1.0, 6)


def trained(**changes):
    arguments = {"rate": 1.0, "rule": "flow", "times": TIMES} | NETWORK | changes
    return train_network(INPUTS, TARGETS, **arguments)


def test_loss_decreases_and_the_error_estimate_is_met():
    run = trained(tolerance=1e-9)
    assert np.all(np.diff(run.train_loss) < 0)
    assert run.integration_error <= 1e-9
    rough = trained(tolerance=1e-4)
    assert np.abs(rough.f - run.f).max() <= 3 * max(rough.integration_error, 1e-9)


def test_exact_steps_approach_the_flow_linearly_in_the_rate():
    """Also ties `rate` of the two rules together: time = rate x steps."""
    exact = trained(tolerance=1e-10).f[-1]
    errors = []
    for steps in (100, 200, 400):
        run = train_network(INPUTS, TARGETS, rate=1.0 / steps, steps=steps, **NETWORK)
        errors.append(np.abs(run.f[-1] - exact).max())
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    assert orders == pytest.approx(1.0, abs=0.1)


def test_fourth_order():
    start = draw_parameters(5, 2, 24, 1.3, np.random.default_rng(4))
    ends = [integrate(start, INPUTS, TARGETS, TIMES, 1.0, refinement=k).f[-1] for k in (4, 8, 16, 64)]
    errors = [np.abs(end - ends[-1]).max() for end in ends[:-1]]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(4.0, abs=0.7)


def test_flow_conserves_the_balance_of_neighbouring_layers():
    """W^{l T} W^l - W^{l-1} W^{l-1 T} is constant under the flow of a deep linear network."""
    p = draw_parameters(5, 3, 12, 1.0, np.random.default_rng(0))

    def balances():
        w0, w1, w2 = p.matrices
        # the factors 1/sqrt(N), 1/sqrt(D) sit in field and update alike and drop out
        return [w2.T @ w2 - w1 @ w1.T, w1.T @ w1 - w0 @ w0.T, np.outer(p.readout, p.readout) - w2 @ w2.T]

    before, weights = balances(), p.matrices[1].copy()
    for _ in range(80):
        _runge_kutta_step(p, INPUTS, TARGETS, 0.005)
    assert np.abs(p.matrices[1] - weights).max() > 0.05
    for old, new in zip(before, balances(), strict=True):
        assert new == pytest.approx(old, abs=1e-7)


def test_start_is_not_changed():
    start = draw_parameters(5, 2, 8, 1.0, np.random.default_rng(0))
    kept = start.copy()
    integrate(start, INPUTS, TARGETS, TIMES, 1.0, refinement=1)
    assert all(np.array_equal(a, b) for a, b in zip(start.matrices, kept.matrices, strict=True))
    assert np.array_equal(start.readout, kept.readout)


def test_an_unreachable_tolerance_is_reported():
    with pytest.raises(NotConverged, match="integration error"):
        trained(tolerance=1e-18)
