"""Tests of the comparison of theory and networks: its rate of acceptance, and rejection of wrong theories."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from numerics.simulation import simulate
from numerics.stats import extrapolate
from numerics.verification import compare
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
