"""Tests of the comparison of theory and networks: its rate of acceptance, and rejection of wrong theories."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.simulation import simulate
from numerics.stats import extrapolate
from numerics.verification import compare, verify
from numerics.verification.networks import parting_of
from tests.derive.once import mlp
from tests.numerics.simulation.helpers import gd


@pytest.fixture(scope="module")
def networks() -> list[xr.Dataset]:
    return [simulate(gd(steps=3), width=n, seeds=12, rng=n) for n in (24, 48)]


def test_comparison_accepts_the_truth_at_its_nominal_rate(networks):
    """Against the mean of many other networks of the same width, few comparisons fail."""
    truth = simulate(gd(1, steps=1), width=16, seeds=400, rng=5)
    failed = 0
    for k in range(8):
        failed += not compare(
            truth, simulate(gd(1, steps=1), width=16, seeds=12, rng=100 + k), level=0.1
        ).passed
    assert failed <= 4  # 0.8 expected at most; 5 has probability below 1e-3


def test_comparison_rejects_a_wrong_theory_and_names_the_worst(networks):
    limit = extrapolate(networks)
    wrong = limit.assign(train_loss=limit["train_loss"] * 3.0)
    verdict = compare(wrong, networks)
    assert not verdict.passed
    assert verdict.failed[0].name.startswith("train loss")
    assert "FAILED: " in str(verdict)
    right = compare(limit, networks)
    assert right.passed
    assert all(0 < c.allowed < np.inf for c in right.checks)
    assert all(abs(c.observed - c.expected) < 1e-6 * c.error for c in right.checks)


def test_what_a_theory_says_that_it_misses_is_allowed(networks):
    limit = extrapolate(networks)
    off = limit.assign(train_loss=limit["train_loss"] * 10.0)
    said = 9.0 * limit["train_loss"].variable
    assert compare(off.assign(train_loss_systematic=said), networks).passed
    assert not compare(off.assign(train_loss_systematic=said / 2), networks).passed


def test_comparison_refuses_other_times(networks):
    other = simulate(gd(steps=4), width=8, seeds=2, rng=0)
    with pytest.raises(ValueError, match="axis 'time'"):
        compare(other, networks)


@pytest.mark.parametrize("level", [0, 1, 5, -0.1, float("nan")])
def test_the_level_is_a_probability(networks, level):
    """Every check failed, with bounds that were infinite, zero or not numbers."""
    with pytest.raises(SpecError, match=f"level = {level}: is not a probability"):
        compare(extrapolate(networks), networks, level=level)


def test_networks_and_times_are_needed(networks):
    limit = extrapolate(networks)
    with pytest.raises(SpecError, match="networks: is empty"):
        compare(limit, [])
    with pytest.raises(SpecError, match="theory: has one time only"):
        compare(limit.isel(time=[0], time_=[0]), networks)


def test_verify_needs_a_time_after_the_start():
    given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": {"K_x": [[1.0]], "y": [1.0]}}
    with pytest.raises(SpecError, match=r"times = \[0.0\]: has no time after the start"):
        verify(mlp(1, "tanh"), times=range(1), **given)


def test_a_small_number_without_noise_must_be_right(networks):
    """Numbers that all networks share were allowed to be off by 1e-9, however small they were."""

    def exact(x, value):
        return x.assign(train_loss=0 * x.train_loss + value, train_loss_stderr=0 * x.train_loss)

    limit, small = extrapolate(networks), [exact(d, 1e-10) for d in networks]
    assert compare(exact(limit, 1e-10), small).passed
    assert not compare(exact(limit, 2e-10), small).passed


def test_without_networks_no_errors_part():
    spec = {"network": {"depth": 1}, "training": {"learning_rate": 0.1, "steps": 1, "objective": "hinge"}}
    problem = Problem.of(Experiment.from_dict(spec, kernel=[[1.0]], targets=[1.0]))
    assert parting_of(problem, []) is None
