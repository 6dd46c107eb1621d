"""Sampled points of averages over many samples: as many as second moments need."""

from __future__ import annotations

import numpy as np
import pytest

from numerics.expansion import expand
from numerics.expansion.statics import Points
from numerics.experiment import Experiment


def kernel(samples: int) -> np.ndarray:
    x = np.random.default_rng(samples).standard_normal((samples, 2 * samples))
    return x @ x.T / (2 * samples)


@pytest.mark.parametrize("samples", [1, 31, 32, 33, 40, 70])
def test_second_moments_are_those_of_the_sources(samples: int) -> None:
    """More samples than points: the moments would be those of a singular covariance."""
    K = kernel(samples)
    x = Points(32, (0, 1)).of(K, 2)
    np.testing.assert_allclose(x.T @ x / len(x), K, rtol=0, atol=1e-12)
    np.testing.assert_allclose(x.mean(axis=0), 0, atol=1e-12)
    assert len(x) == 2 * Points(32, ()).number(samples) >= 4 * samples


@pytest.mark.slow
def test_few_sampled_points_of_many_samples() -> None:
    """A small solver.samples gives the coefficients of a large one, within standard errors."""
    samples = 17
    found = []
    for count in (64, 4096):
        problem = Experiment.from_dict(
            {
                "network": {"depth": 1, "activation": "tanh"},
                "training": {"learning_rate": 0.5, "steps": 1, "loss": "mean"},
                "solver": {"samples": count, "rtol": 1e-4},
            },
            kernel=kernel(samples).tolist(),
            targets=np.linspace(-1, 1, samples).tolist(),
        )
        found.append(expand(problem, 2))
    few, many = found
    assert few.attrs["samples"] == 16 * 64
    assert many.attrs["samples"] == 4096
    away = np.abs(few.train_loss - many.train_loss).sel(order=2)
    error = np.hypot(few.train_loss_stderr, many.train_loss_stderr).sel(order=2)
    assert np.all(away <= 6 * error + 1e-12)
