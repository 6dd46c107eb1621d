"""Finite networks against the mean-field equations as typed into tests/reference.

The reference is independent of the engine. Its agreement with networks shows that these are the equations
that the engine has to derive.
"""

from __future__ import annotations

import numpy as np
import pytest

from numerics.simulation import simulate
from numerics.verification import compare
from tests.reference.adams_weights import adams_weights, step_sum_weights
from tests.reference.as_dataset import as_dataset
from tests.reference.dense_causal import dense_causal

from .helpers import flow, gd


def theory(experiment, weights, times=slice(None)):
    e = experiment
    solution = dense_causal(e.kernel, e.targets, weights, depth=e.depth, gamma0=e.network.gamma0)
    grid = np.linspace(0.0, e.times[-1], len(weights))
    data = as_dataset(solution, grid)
    return data.isel(time=times, time_=times)


def test_exact_descent_at_a_large_rate():
    experiment = gd(2)
    networks = [simulate(experiment, width=n, seeds=k, rng=n) for n, k in ((128, 60), (256, 30), (512, 16))]
    verdict = compare(theory(experiment, step_sum_weights(6, 0.12)), networks)
    assert verdict.passed, f"\n{verdict}"
    # at this rate the flow at the same times is a different curve, and the networks tell
    other = compare(theory(experiment, adams_weights(0.12 * np.arange(7), 2)), networks)
    assert not other.passed


@pytest.mark.slow
def test_flow():
    experiment = flow(time=0.6, points=4)
    networks = [simulate(experiment, width=n, seeds=k, rng=n) for n, k in ((32, 40), (64, 20))]
    fine = theory(experiment, adams_weights(np.linspace(0.0, 0.6, 19), 3), slice(None, None, 6))
    verdict = compare(fine, networks)
    assert verdict.passed, f"\n{verdict}"


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2, 3])
def test_exact_descent_at_high_precision(depth):
    """Every summary observable, the kernels to a few parts in a thousand."""
    experiment = gd(depth, steps=8)
    networks = [
        simulate(experiment, width=n, seeds=k, rng=n) for n, k in ((256, 1200), (512, 600), (1024, 300))
    ]
    verdict = compare(theory(experiment, step_sum_weights(8, 0.12)), networks)
    assert verdict.passed, f"\n{verdict}"
    kernels = [c for c in verdict.checks if not c.name.startswith("train loss")]
    assert max(c.error / c.expected for c in kernels) < 0.006
