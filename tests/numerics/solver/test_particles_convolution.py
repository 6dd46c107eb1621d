"""Convolutions by particles: positions on a ring, filters that look at shifted positions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from derive.program import P, eta, gamma0
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from numerics.solver.paths import solve_particles
from tests.chance import excess
from tests.derive.once import convolution, mean_field
from tests.numerics.solver.helpers import TARGETS
from tests.numerics.solver.test_particles_networks import distances
from tests.numerics.solver.test_two_layer import within

INPUTS = np.random.default_rng(3).standard_normal((2, 4, 5))
VALUES: dict[Any, Any] = {eta: 0.04, gamma0: 1.2, P: 2}


def given(positions: int, **options: Any) -> dict[str, Any]:
    x = INPUTS[:, :positions]
    data = {"K_x": np.einsum("mpd,nqd->mpnq", x, x) / 15, "y": TARGETS[:2]}
    return {"steps": 3, "values": VALUES, "data": data} | options


@pytest.mark.parametrize(
    ("depth", "positions"),
    [(1, 3), pytest.param(2, 4, marks=pytest.mark.slow), pytest.param(3, 3, marks=pytest.mark.slow)],
)
def test_linear_convolutions_are_exact(depth: int, positions: int) -> None:
    """Matched second moments, as for linear perceptrons."""
    theory = mean_field(convolution(depth, positions=positions, receptive=1))
    steps = 2 if depth == 3 else 3
    exact = evaluate(theory, **given(positions, steps=steps))
    ours = solve_particles(theory, samples=256, replicas=2, **given(positions, steps=steps))
    for name, layer in exact.values:
        of = layer or None
        np.testing.assert_allclose(ours.value(name, of), exact.value(name, of), atol=1e-8, rtol=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "steps"), [("tanh", 2), ("relu", 2)])
def test_two_layers_against_the_direct_evaluation(activation: str, steps: int) -> None:
    theory = mean_field(convolution(2, activation, positions=3, receptive=1))
    other = evaluate(theory, samples=2**8, replicas=16, seed=1, **given(3, steps=steps))
    ours = solve_particles(theory, samples=2**9, replicas=16, seed=2, ridge=0.0, **given(3, steps=steps))
    within(distances(ours, other), 16)


@pytest.mark.slow
def test_several_outputs_and_biases() -> None:
    theory = mean_field(convolution(1, "tanh", positions=3, receptive=1, outputs=2, bias=True))
    data = given(3)["data"] | {"y": np.stack([TARGETS[:2], -TARGETS[1:3]], axis=1)}
    other = evaluate(theory, samples=2**8, replicas=16, seed=1, **given(3, steps=2, data=data))
    ours = solve_particles(theory, samples=2**9, replicas=16, seed=2, **given(3, steps=2, data=data))
    within(distances(ours, other), 16)


def test_a_ring_looks_the_same_from_everywhere() -> None:
    """With one sample that is the same at all positions all positions have the same kernels."""
    theory = mean_field(convolution(2, "tanh", positions=4, receptive=1))
    data = {"K_x": np.ones((1, 4, 1, 4)) / 3, "y": TARGETS[:1]}
    ours = solve_particles(
        theory, steps=3, values=VALUES | {P: 1}, data=data, samples=256, replicas=8, seed=1
    )
    kernel = ours.value("G", 1)[0, :, 0]
    error = ours.stderr("G", 1)[0, :, 0]
    turned = np.roll(kernel, 1, axis=(0, 1))
    z = (turned - kernel)[:, :, 2, 2] / np.hypot(error, np.roll(error, 1, axis=(0, 1)))[:, :, 2, 2]
    assert excess(z, 7) < 1


def against_networks(
    depth: int, activation: str, widths: tuple[int, int], seeds: int, steps: int
) -> np.ndarray:
    """Return differences to networks of two widths at infinite width, in joint standard errors."""
    program = convolution(depth, activation, positions=3, receptive=1)
    ours = solve_particles(mean_field(program), samples=1024, replicas=16, seed=9, **given(3, steps=steps))
    a, b = widths
    options = given(3, steps=steps - 1, seeds=seeds)
    narrow, wide = (simulate_program(program, width=n, seed=n, **options) for n in widths)
    found = []
    for name in ("Delta", "Phi", "G"):
        limit = (b * wide[name].mean - a * narrow[name].mean) / (b - a)
        error = np.hypot(b * wide[name].stderr, a * narrow[name].stderr) / (b - a)
        for layer in [None] if name == "Delta" else range(1, depth + 1):
            theirs, spread = (limit, error) if layer is None else (limit[layer - 1], error[layer - 1])
            if layer is not None:  # (t, s, mu, p, alpha, q) there
                theirs, spread = (x.transpose(2, 3, 4, 5, 0, 1) for x in (theirs, spread))
            joint = np.hypot(spread, ours.stderr(name, layer))
            moving = joint > 1e-12
            found.append((np.abs(theirs - ours.value(name, layer))[moving] / joint[moving]).ravel())
    return np.concatenate(found)


@pytest.mark.slow
def test_networks() -> None:
    within(against_networks(2, "tanh", (40, 80), 40, steps=2), 16)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "activation"), [(1, "relu"), (2, "tanh"), (2, "relu")])
def test_networks_of_larger_width(depth: int, activation: str) -> None:
    within(against_networks(depth, activation, (150, 300), 200, steps=5), 16)
