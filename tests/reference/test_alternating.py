"""The published algorithm 1 against the causal march of linear networks and against particles."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from derive.program import P, eta, gamma0
from numerics.solver.direct import evaluate
from numerics.solver.paths import solve_particles
from tests.chance import excess
from tests.derive.once import mean_field, mlp
from tests.reference.alternating import LINEAR, TANH, Activation, Alternated, alternating

X = np.random.default_rng(3).standard_normal((2, 5))
KERNEL = X @ X.T / 5
TARGETS = np.array([0.9, -0.7])
STEP, STRENGTH, TIMES = 0.3, 1.1, 3
GIVEN: dict[str, Any] = {
    "steps": TIMES,
    "values": {eta: STEP, gamma0: STRENGTH, P: 2},
    "data": {"K_x": KERNEL, "y": TARGETS},
}


def alternated(depth: int, activation: Activation, **options: Any) -> Alternated:
    given: dict[str, Any] = {"rate": STEP, "times": TIMES, "gamma0": STRENGTH, "samples": 500} | options
    return alternating(KERNEL, TARGETS, activation, depth=depth, **given)


def differences(runs: list[Alternated], ours: Any, depth: int, linear: bool) -> np.ndarray:
    """Return the mean over seeds minus our value in joint standard errors, at all times and entries."""
    found = []
    for name in ("error", "Phi", "G", "A", "B"):
        layers = {"error": [None], "A": range(1, depth), "B": range(1, depth)}.get(name, range(1, depth + 1))
        for layer in layers:
            of = np.stack([getattr(r, name) if layer is None else getattr(r, name)[layer - 1] for r in runs])
            if layer is not None:
                of = of.transpose(0, 3, 4, 1, 2)
            its = "Delta" if name == "error" else "H" if linear and name == "Phi" else name
            value, error = ours.value(its, layer), ours.stderr(its, layer)
            if linear and name == "G":  # gradients of linear networks are the same for all samples
                of = of[:, 0, 0]
            elif linear and name == "A":
                of = of.sum(axis=2)
            elif linear and name == "B":
                of = of[:, 0]
            assert value.shape == of.shape[1:]
            joint = np.hypot(of.std(axis=0, ddof=1) / np.sqrt(len(runs)), error)
            moves = joint > 1e-7
            left = 20 * 0.4**20  # of the first guess, after 20 iterations
            assert np.abs(of.mean(axis=0) - value)[~moves].max(initial=0.0) < left
            found.append(((of.mean(axis=0) - value)[moves] / joint[moves]).ravel())
    return np.concatenate(found)


@pytest.mark.parametrize("depth", [pytest.param(x, marks=pytest.mark.slow) for x in (1, 2)])
def test_linear_networks(depth: int) -> None:
    exact = evaluate(mean_field(mlp(depth)), **GIVEN)
    runs = [alternated(depth, LINEAR, seed=n, samples=1000, jacobians="causal") for n in range(16)]
    z = differences(runs, exact, depth, linear=True)
    assert excess(z, 15) < 1
    assert np.sqrt((z**2).mean()) < 1.8


def test_tanh_networks_against_particles() -> None:
    ours = solve_particles(mean_field(mlp(2, "tanh")), samples=512, replicas=8, responses="jacobian", **GIVEN)
    runs = [alternated(2, TANH, seed=n, samples=500, jacobians="causal") for n in range(8)]
    z = differences(runs, ours, 2, linear=False)
    assert excess(z, 7) < 1
    assert np.sqrt((z**2).mean()) < 1.8
    assert np.abs(ours.value("A", 1)).max() > 10 * ours.stderr("A", 1).max()


def test_both_ways_to_the_jacobians() -> None:
    """LU of every path and forward substitution, from the same random numbers."""
    one, other = (alternated(3, TANH, iterations=2, samples=40, jacobians=way) for way in ("solve", "causal"))
    for name in ("error", "Phi", "G", "A", "B"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-10)
    assert np.abs(one.A[1]).max() > 0.01
    assert np.abs(one.B[0]).max() > 0.01


def test_predictions_by_the_tangent_kernel_are_those_of_small_steps() -> None:
    """Line 3 is far from the output after large steps, and equal to it for small steps."""
    distances = []
    for times in (3, 9):
        options = {"rate": 1.2 / (times - 1), "times": times, "jacobians": "causal"}
        f = [
            np.stack([alternated(1, TANH, seed=n, predictions=way, **options).f[-1] for n in range(8)])
            for way in ("tangent", "output")
        ]
        gap = f[0] - f[1]
        distances.append(np.abs(gap.mean(axis=0)) / (gap.std(axis=0, ddof=1) / np.sqrt(8)))
    assert distances[0].min() > 6
    assert excess(distances[1], 7) < 1
