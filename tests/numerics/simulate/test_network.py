"""One finite network: gradients against finite differences, a step by hand, and a deliberate mistake."""

from __future__ import annotations

import numpy as np
import pytest

from numerics.errors import Diverged
from numerics.simulate import inputs_from_kernel, network, train_network
from numerics.simulate.parameters import (
    Parameters,
    add,
    backward,
    draw_parameters,
    forward,
    output,
    velocity,
)

from .helpers import INPUTS, TARGETS


def loss(p: Parameters) -> float:
    return 0.5 * float(((TARGETS - output(p, forward(p, INPUTS))) ** 2).sum())


def update(p: Parameters) -> Parameters:
    """A unit step from p, as new parameters."""
    fields = forward(p, INPUTS)
    q = p.copy()
    add(q, [(1.0, velocity(fields, backward(p), TARGETS - output(p, fields), p.gamma0))])
    return q


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_update_is_minus_the_scaled_gradient_of_the_loss(depth):
    """theta -> theta - eta gamma0^2 N grad (1/2) sum Delta^2 (contract.md), every single weight."""
    width, gamma0, eps = 4, 0.7, 1e-6
    p = draw_parameters(5, depth, width, gamma0, np.random.default_rng(3))
    new = update(p)
    for layer, matrix in enumerate(p.matrices):
        for index in np.ndindex(matrix.shape):
            up, down = p.copy(), p.copy()
            up.matrices[layer][index] += eps
            down.matrices[layer][index] -= eps
            gradient = (loss(up) - loss(down)) / (2 * eps)
            assert new.matrices[layer][index] - matrix[index] == pytest.approx(
                -(gamma0**2) * width * gradient, rel=1e-6, abs=1e-8
            )
    for i in range(width):
        up, down = p.copy(), p.copy()
        up.readout[i] += eps
        down.readout[i] -= eps
        gradient = (loss(up) - loss(down)) / (2 * eps)
        assert new.readout[i] - p.readout[i] == pytest.approx(
            -(gamma0**2) * width * gradient, rel=1e-6, abs=1e-8
        )


@pytest.mark.parametrize("width", [1, 2])
def test_one_step_by_hand(width):
    """Two layers on one sample, written out entry by entry."""
    rate, gamma0, x, y = 0.3, 1.7, 0.9, 0.5
    run = train_network(
        np.array([[x]]), np.array([y]), depth=2, gamma0=gamma0, width=width, rate=rate, steps=1, rng=11
    )
    p = draw_parameters(1, 2, width, gamma0, np.random.default_rng(11))
    (w0, w1), w = p.matrices, p.readout
    n = range(width)
    h1 = [w0[i, 0] * x for i in n]
    h2 = [sum(w1[i, j] * h1[j] for j in n) / width**0.5 for i in n]
    g1 = [sum(w1[i, j] * w[i] for i in n) / width**0.5 for j in n]
    delta = y - sum(w[i] * h2[i] for i in n) / (gamma0 * width)
    c = rate * gamma0 * delta
    w0_new = [w0[i, 0] + c * g1[i] * x for i in n]
    w1_new = [[w1[i, j] + c / width**0.5 * w[i] * h1[j] for j in n] for i in n]
    w_new = [w[i] + c * h2[i] for i in n]
    h1_new = [w0_new[i] * x for i in n]
    h2_new = [sum(w1_new[i][j] * h1_new[j] for j in n) / width**0.5 for i in n]
    g1_new = [sum(w1_new[i][j] * w_new[i] for i in n) / width**0.5 for j in n]
    assert run.h[0, 1, 0] == pytest.approx(h1_new)
    assert run.h[1, 1, 0] == pytest.approx(h2_new)
    assert run.g[0, 1] == pytest.approx(g1_new)
    assert run.g[1, 1] == pytest.approx(w_new)
    assert run.f[1, 0] == pytest.approx(sum(w_new[i] * h2_new[i] for i in n) / (gamma0 * width))


def flow_limit_error() -> float:
    """How far small exact steps end from the tangent kernel's prediction of one step, relative."""
    run = train_network(INPUTS, TARGETS, depth=2, gamma0=1.0, width=64, rate=1e-6, steps=1, rng=0)
    predicted = 1e-6 * run.tangent_kernel()[0, 0] @ run.error[0]
    return float(np.abs(run.f[1] - run.f[0] - predicted).max() / np.abs(predicted).max())


def test_first_change_of_the_output_is_the_tangent_kernel_times_the_error():
    assert flow_limit_error() < 1e-4


@pytest.mark.parametrize("mutation", ["sign", "missing layer", "not simultaneous"])
def test_a_wrong_update_is_caught(monkeypatch, mutation):
    """The check above fails for a network with a mistake in it."""

    def wrong(p, terms):
        ((coefficient, v),) = terms
        if mutation == "sign":
            add(p, [(-coefficient, v)])
        elif mutation == "missing layer":
            kept = p.matrices[1].copy(order="F")
            add(p, terms)
            p.matrices[1] = kept
        else:  # the readout moves twice: once before and once with the others
            p.readout = p.readout + coefficient * v.readout
            add(p, terms)

    monkeypatch.setattr(network, "add", wrong)
    assert flow_limit_error() > 1e-2


def test_shapes_kernels_and_initial_statistics():
    run = train_network(INPUTS, TARGETS, depth=3, gamma0=1.0, width=600, rate=0.05, steps=4, rng=1)
    assert run.h.shape == (3, 5, 3, 600)
    assert run.g.shape == (3, 5, 600)
    assert run.f.shape == run.error.shape == (5, 3)
    kernel = INPUTS @ INPUTS.T / 5
    for layer in (1, 2, 3):
        assert run.feature_kernel(layer)[0, 0] == pytest.approx(kernel, abs=0.5)
        assert run.gradient_kernel(layer)[0, 0] == pytest.approx(1.0, abs=0.3)
        assert run.feature_trace(layer) == pytest.approx(np.einsum("tsmm->ts", run.feature_kernel(layer)))
    assert run.feature_kernel(0)[2, 3] == pytest.approx(kernel)
    assert run.tangent_trace() == pytest.approx(np.einsum("tsmm->ts", run.tangent_kernel()))
    assert run.train_loss[-1] < run.train_loss[0]


def test_output_is_the_top_fields_overlap():
    run = train_network(INPUTS, TARGETS, depth=2, gamma0=0.6, width=32, rate=0.1, steps=3, rng=5)
    assert run.f == pytest.approx(np.einsum("tmi,ti->tm", run.h[-1], run.g[-1]) / (0.6 * 32))


def test_inputs_from_a_singular_kernel():
    kernel = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 2.0]])
    x = inputs_from_kernel(kernel)
    assert x.shape == (3, 2)
    assert x @ x.T / 2 == pytest.approx(kernel)


@pytest.mark.parametrize(
    "kernel", [np.diag([1.0, -1.0]), np.ones((2, 3)), np.array([[1.0, 0.5], [0.2, 1.0]])]
)
def test_impossible_kernels_are_refused(kernel):
    with pytest.raises(ValueError, match="must be"):
        inputs_from_kernel(kernel)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rate": -0.1}, "rate"),
        ({"rate": float("nan")}, "rate"),
        ({"steps": 0}, "steps"),
        ({"steps": None}, "steps"),
        ({"times": [0.0, 1.0]}, "times"),
        ({"rule": "adam"}, "adam"),
        ({"rule": "flow", "steps": None, "times": [0.0, 1.0, 1.0]}, "increase"),
        ({"rule": "flow", "steps": None, "times": [0.5, 1.0]}, "start at 0"),
        ({"rule": "flow"}, "flow"),
        ({"gamma0": 0.0}, "gamma0"),
        ({"width": 0}, "width"),
        ({"depth": 0}, "depth"),
        ({"targets": np.ones(2)}, "targets"),
        ({"inputs": np.full((3, 5), np.nan)}, "finite"),
    ],
)
def test_impossible_arguments_are_refused(change, message):
    arguments = {
        "inputs": INPUTS, "targets": TARGETS, "depth": 2, "gamma0": 1.0, "width": 4, "rate": 0.1, "steps": 2,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        train_network(**(arguments | {"rng": 0} | change))


def test_divergence_names_the_step():
    with pytest.raises(Diverged, match=r"step \d+"):
        train_network(INPUTS, TARGETS, depth=2, gamma0=1.0, width=16, rate=50.0, steps=200, rng=0)
