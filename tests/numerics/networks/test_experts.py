"""Experts: the builder against a network in NumPy, both routes, and solutions against networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import numerics
from derive.program import L
from derive.program.networks import experts
from derive.theory.routes import check_routes
from numerics.experiment.schema import Solver
from numerics.simulation import simulate_program
from tests.chance import excess, in_errors
from tests.numerics.networks.case import Case
from tests.numerics.networks.experts import INPUTS, OFFSETS, four_experts, two_experts
from tests.numerics.networks.plain import Weights, descended, rms, softmax

N, NUMBERS, TARGETS = 4, {"eta": 0.05, "gamma0": 1.3}, np.array([1.0, -0.6])


def written(w: Weights) -> Any:
    """Return outputs of one block of two experts with biases and RMS normalisation."""
    h = INPUTS[:2] @ w["W0"].T / np.sqrt(3)
    shares = softmax(w["r"][0] @ rms(h).T / N + OFFSETS[:, :2], axis=0)
    answers = [
        np.tanh(rms(h) @ w["U"][0, e].T / np.sqrt(N) + w["b"][0, e]) @ w["D"][0, e].T / np.sqrt(N)
        for e in range(2)
    ]
    return rms(h + np.einsum("em,emi->mi", shares, answers)) @ w["w"] / (NUMBERS["gamma0"] * N)


def test_the_builder_is_the_network_that_is_written_in_numpy() -> None:
    rng, pairs = np.random.default_rng(1), (1, 2, N, N)
    shapes = {"W0": (N, 3), "U": pairs, "D": pairs, "r": (1, 2, N), "b": (1, 2, N), "w": (N,)}
    weights = {k: rng.standard_normal(shape) for k, shape in shapes.items()}
    found = simulate_program(
        experts(1, offsets=True, bias=True),
        width=N,
        steps=2,
        seeds=1,
        values={**NUMBERS, "P": 2},
        data={"x": INPUTS[:2], "y": TARGETS, "offset": OFFSETS[:, :2]},
        initial={k: x / {"W0": np.sqrt(3), "U": 2.0, "D": 2.0}.get(k, 1.0) for k, x in weights.items()},
        wanted={},
    )
    expected = descended(written, weights, TARGETS, NUMBERS, steps=2)
    assert np.abs(expected[2] - expected[0]).max() > 0.05
    assert np.abs(found["f"].mean - expected).max() < 1e-10


@pytest.mark.slow
def test_equal_experts_keep_equal_shares() -> None:
    """Without offsets the theory is symmetric for ever; networks leave it, as fluctuations break it."""
    given: dict[str, Any] = {
        "numbers": {"eta": 0.05, "gamma0": 2.0},
        "arrays": {"K_x": INPUTS @ INPUTS.T / 3, "y": [1.0, -1.0, 1.0, -0.5]},
        "times": range(11),
    }
    found = numerics.solve(experts(1, count=3), solver=Solver(samples=2**7), **given)
    error = found.share_stderr.values[1:]
    assert excess(in_errors(found.share.values[1:] - 1 / 3, error), found.attrs["replicas"] - 1) < 1


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"count": 3, "outputs": 2, "bias": True, "normalisation": "layer"}])
def test_routes_agree_at_any_depth(options: dict[str, Any]) -> None:
    for depth in (L, 1):
        found = check_routes(experts(depth, offsets=True, **options))
        assert found == []
        assert found.gradients == "compared"


@pytest.mark.slow
@pytest.mark.parametrize("make", [two_experts, four_experts])
def test_theory_and_networks(make: Callable[[], Case]) -> None:
    case = make()
    theory, networks = case.theory(), case.networks()
    report = numerics.verification.compare(theory, networks)
    assert report.passed, str(report)
    size = theory["last_size"]
    assert float(abs(size[-1] - size[0]).max()) > 0.1 * float(size[0].max())


@pytest.mark.slow
def test_networks_without_normalisation_are_others() -> None:
    case = replace(two_experts(20), seeds=(60, 30))
    assert not case.compared(experts(1, offsets=True, normalisation="none")).passed
