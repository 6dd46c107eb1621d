"""Predictions of nonlinear networks on test points: particles against formulas and finite networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from derive.program import P, P_train, Program, eta, gamma0
from numerics.simulation import simulate_program
from numerics.solver.direct import Evaluated
from numerics.solver.paths import solve_particles
from numerics.solver.quadrature.solve import solve_two_layer
from tests.chance import excess
from tests.derive.once import mean_field, mlp

Array = NDArray[np.float64]

RNG = np.random.default_rng(0)
INPUTS = RNG.standard_normal((3, 4))
TARGETS = np.array([1.0, -0.8, 0.6])
ELSEWHERE = np.concatenate([INPUTS[:1], RNG.standard_normal((2, 4))])
"""The first test point is a copy of the first training sample."""

STEPS = 5


def kernel(*points: Array) -> Array:
    x = np.concatenate(points)
    return x @ x.T / x.shape[1]


def data_for(*test: Array) -> dict[str, Array]:
    count = sum(len(x) for x in test)
    return {
        "K_x": kernel(INPUTS, *test),
        "y": np.concatenate([TARGETS, np.zeros(count)]),
        "rho": np.concatenate([np.ones(3), np.zeros(count)]),
    }


def values_for(test: int, strength: float, rate: float = 1.0) -> dict[Any, Any]:
    return {eta: rate, gamma0: strength, P: 3 + test, P_train: 3}


def program(activation: str, depth: int, weighted: bool = True, **options: Any) -> Program:
    return mlp(depth, activation, loss="mean", sample_weights=weighted, **options)


def solved(
    activation: str, depth: int, strength: float, seed: int, *test: Array, **options: Any
) -> Evaluated:
    count = sum(len(x) for x in test)
    return solve_particles(
        mean_field(program(activation, depth, bool(test), **options)),
        steps=STEPS,
        values=values_for(count, strength) if test else {eta: 1.0, gamma0: strength, P: 3},
        data=data_for(*test) if test else {"K_x": kernel(INPUTS), "y": TARGETS},
        samples=256,
        replicas=12,
        seed=seed,
    )


def distances(a: Array, b: Array, *errors: Array) -> Array:
    """Return distances in joint standard errors; exact values must be equal."""
    joint = np.sqrt(sum(e**2 for e in errors))
    assert np.abs(a - b)[joint < 1e-12].max(initial=0.0) < 1e-9
    z: Array = (np.abs(a - b)[joint >= 1e-12] / joint[joint >= 1e-12]).ravel()
    return z


@pytest.mark.parametrize(
    ("activation", "depth"), [pytest.param("tanh", 2, marks=pytest.mark.slow), ("relu", 1)]
)
def test_training_samples_do_not_know_of_test_points(activation: str, depth: int) -> None:
    alone = solved(activation, depth, 1.5, 1)
    both = solved(activation, depth, 1.5, 2, ELSEWHERE)
    z = distances(
        both.value("Delta")[:, :3], alone.value("Delta"), both.stderr("Delta")[:, :3], alone.stderr("Delta")
    )
    assert excess(z, 11) < 1
    assert np.all(both.value("Delta")[:, 3:] == 0)


@pytest.mark.parametrize(("activation", "depth"), [("tanh", 2)])
def test_a_copy_of_a_training_input_is_predicted_as_it_is(activation: str, depth: int) -> None:
    """On every path, although the covariance of the sources is singular."""
    f = solved(activation, depth, 1.5, 3, ELSEWHERE).value("f")
    np.testing.assert_allclose(f[:, 3], f[:, 0], rtol=0, atol=1e-9)
    assert np.abs(f[-1]).max() > 0.1


def test_test_points_do_not_know_of_each_other() -> None:
    """Predictions are the same in another order, and for a single point."""
    new = ELSEWHERE[1:]
    a = solved("tanh", 2, 1.5, 4, new)
    b = solved("tanh", 2, 1.5, 5, new[::-1])
    c = solved("tanh", 2, 1.5, 6, new[:1])
    pairs = [(a, [3, 4], b, [4, 3]), (a, [3], c, [3])]
    for one, i, two, j in pairs:
        z = distances(
            one.value("f")[:, i], two.value("f")[:, j], one.stderr("f")[:, i], two.stderr("f")[:, j]
        )
        assert excess(z, 11) < 1


def test_lazy_relu_predicts_by_its_arc_cosine_kernel() -> None:
    """One hidden layer: ``K = <phi phi> + K_x <phi' phi'>``, of degree one and zero (Cho and Saul)."""
    K = kernel(INPUTS, ELSEWHERE)
    size = np.sqrt(np.outer(np.diag(K), np.diag(K)))
    angle = np.arccos(np.clip(K / size, -1, 1))
    features = size * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi)
    tangent = features + K * (np.pi - angle) / (2 * np.pi)
    f, expected = np.zeros(6), []
    for _ in range(STEPS):
        expected.append(f)
        f = f + tangent[:, :3] @ (TARGETS - f[:3]) / 3
    found = solved("relu", 1, 0.01, 7, ELSEWHERE)
    z = distances(found.value("f"), np.array(expected), found.stderr("f"))
    assert excess(z, 11) < 1
    assert found.stderr("f").max() < 0.02 * np.abs(expected).max()


def test_one_hidden_layer_predicts_as_its_states_do() -> None:
    """Quadrature over the start, in the plane (three dimensions); 24 numbers, Student with 11."""
    angles = np.array([0.3, 2.0, 0.3, 1.1, 4.0])
    x = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    given: dict[str, Any] = {
        "steps": STEPS,
        "values": {eta: 1.0, gamma0: 1.5, P: 5, P_train: 2},
        "data": {
            "K_x": x @ x.T,
            "y": np.array([1.0, -0.5, 0, 0, 0]),
            "rho": np.array([1.0, 1.0, 0, 0, 0]),
        },
    }
    theory = mean_field(program("tanh", 1))
    states = solve_two_layer(theory, accuracy=1e-3, kernels=False, **given)
    paths = solve_particles(theory, samples=512, replicas=12, seed=9, **given)
    assert states.converged
    assert np.abs(states.value("f")[:, 2] - states.value("f")[:, 0]).max() < 1e-12
    z = distances(paths.value("f"), states.value("f"), paths.stderr("f"), states.stderr("f"))
    assert excess(z, 11) < 1


KINDS: dict[str, dict[str, Any]] = {
    "bias": {"bias": True},
    "residual": {"branch": 0.5},
    "decay": {"weight_decay": 0.2},
    "momentum": {"momentum": 0.5},
    "temperature": {"temperature": 0.1, "weight_decay": 0.2},
    "backward": {"tied": False},
}


@pytest.mark.parametrize(
    "name", [x if x == "bias" else pytest.param(x, marks=pytest.mark.slow) for x in KINDS]
)
def test_programs_of_every_kind_predict_copies_alike(name: str) -> None:
    """Bias, residual, decay, momentum, temperature, independent backward matrices."""
    found = solve_particles(
        mean_field(program("tanh", 2, **KINDS[name])),
        steps=3,
        values=values_for(3, 1.0),
        data=data_for(ELSEWHERE),
        samples=64,
        replicas=2,
    )
    f = found.value("f")
    np.testing.assert_allclose(f[:, 3], f[:, 0], rtol=0, atol=1e-9)
    assert np.abs(f[-1, 4:]).max() > 1e-3


# -- finite networks -----------------------------------------------------------------------------------------


def against_networks(
    activation: str, depth: int, strength: float, widths: tuple[int, int], seeds: int
) -> tuple[Array, float]:
    """Return distances of predictions to those of two widths at 1/N = 0, and the largest error."""
    values = values_for(3, strength)
    runs = [
        simulate_program(
            program(activation, depth),
            width=n,
            steps=STEPS - 1,
            seeds=seeds,
            values=values,
            data=data_for(ELSEWHERE),
            wanted={},
            seed=n,
        )["f"]
        for n in widths
    ]
    a, b = widths
    limit = (b * runs[1].mean - a * runs[0].mean) / (b - a)
    spread = np.hypot(b * runs[1].stderr, a * runs[0].stderr) / (b - a)
    ours = solved(activation, depth, strength, 8, ELSEWHERE)
    error = np.hypot(spread[:, 3:], ours.stderr("f")[:, 3:])
    z = np.abs(limit - ours.value("f"))[:, 3:] / error
    return z, float(error.max())


@pytest.mark.parametrize(
    ("activation", "depth"), [("tanh", 2), pytest.param("relu", 2, marks=pytest.mark.slow)]
)
def test_finite_networks_predict_alike(activation: str, depth: int) -> None:
    z, error = against_networks(activation, depth, 1.5, (60, 120), 40)
    assert excess(z, 11) < 1
    assert error < 0.1


@pytest.mark.slow
@pytest.mark.parametrize("strength", [0.5, 3.0])
@pytest.mark.parametrize(("activation", "depth"), [("tanh", 1), ("tanh", 3), ("relu", 1), ("relu", 3)])
def test_wider_networks_predict_alike(activation: str, depth: int, strength: float) -> None:
    z, error = against_networks(activation, depth, strength, (200, 400), 100)
    assert excess(z, 11) < 1
    assert error < 0.05
