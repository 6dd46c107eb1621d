"""Networks trained by brute force: against naive loops, exact recursions and their own exact means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.chance import excess
from tests.numerics.fluctuations.estimates import Estimate, Samples, expansion_in_width
from tests.numerics.fluctuations.isotropic import Isotropic, train_isotropic
from tests.numerics.fluctuations.limits import linear_limit, one_layer_limit
from tests.numerics.fluctuations.networks import Networks, Training, measure, train
from tests.numerics.fluctuations.one_layer import (
    OneLayer,
    exact_moments,
    leading_order,
    recursion,
    trajectories,
)
from tests.reference.isotropic_dense import isotropic_dense

K = np.array([[1.0, 0.3], [0.3, 0.8]])
Y = np.array([1.0, -0.5])


def drawn(training: Training, width: int, count: int = 3) -> Networks:
    return Networks.draw(training, width, count, np.random.default_rng(1), np.float64)


def outputs_of(weights: list[Any], training: Training, width: int) -> Any:
    """Return f of one network written out; weights may be complex."""
    matrices, biases = weights[: training.depth + 1], weights[training.depth + 1 :]
    outputs = []
    for x in training.inputs:
        vector = x
        for layer in range(training.depth):
            vector = matrices[layer] @ vector / (width**0.5 if layer else 1.0)
            vector = np.tanh(vector + (biases[layer][:, 0] if biases else 0.0))
        outputs.append(matrices[-1][:, 0] @ vector / (training.gamma0 * width))
    return np.array(outputs)


@pytest.mark.parametrize(
    "options", [{}, {"bias": True, "momentum": 0.6}, {"weight_decay": 0.3, "centred": True}]
)
def test_networks_descend_the_gradient_of_their_loss(options: dict[str, Any]) -> None:
    """One network after the other, down derivatives of the loss by complex steps."""
    width = 3
    training = Training(2, K, Y, 0.2, 3, "tanh", gamma0=1.3, **options)
    networks = drawn(training, width)
    for k in range(3):
        weights = [w[k].copy() for w in networks.weights]
        first = outputs_of(weights, training, width) if training.centred else 0.0
        velocity = [np.zeros_like(w) for w in weights]
        series = []
        for _ in range(training.steps + 1):
            error = Y - outputs_of(weights, training, width) + first
            series.append(Y - error)
            for i, w in enumerate(weights):
                for place in np.ndindex(w.shape):
                    moved = [x.astype(complex) for x in weights]
                    moved[i][place] += 1e-30j
                    slope = -error @ outputs_of(moved, training, width).imag / 1e-30
                    velocity[i][place] *= training.momentum
                    velocity[i][place] -= training.gamma0**2 * width * slope
            decayed = 1 - training.eta * training.weight_decay
            weights = [decayed * w + training.eta * v for w, v in zip(weights, velocity, strict=True)]
        one = Networks(training, [x[k : k + 1].copy() for x in networks.matrices], [])
        one.biases = [x[k : k + 1].copy() for x in networks.biases]
        one.initial_output = first
        for t, expected in enumerate(series):
            now = one.fields()
            np.testing.assert_allclose(now.output[0], expected, rtol=0, atol=1e-13, err_msg=str(t))
            one.step(now)


@pytest.mark.parametrize("activation", ["linear", "relu"])
def test_other_activations_have_the_right_gradient(activation: str) -> None:
    training = Training(3, K, Y, 0.2, 1, activation, gamma0=1.3, bias=True)
    networks, rng, step = drawn(training, 6), np.random.default_rng(2), 1e-6
    direction = [rng.standard_normal(w.shape) for w in networks.weights]

    def loss(factor: float) -> Any:
        return measure(training, networks.shifted(direction, factor).fields())["loss"]

    descent = networks.updates(1.0, networks.fields())
    along = sum((a * b).sum(axis=(1, 2)) for a, b in zip(descent, direction, strict=True))
    slope = (loss(step) - loss(-step)) / (2 * step)
    np.testing.assert_allclose(-along, training.gamma0**2 * 6 * slope, rtol=1e-7)


@pytest.mark.parametrize("centred", [False, True])
def test_one_linear_layer_follows_its_recursion(centred: bool) -> None:
    training = Training(1, K, Y, 0.1, 8, gamma0=1.3, centred=centred)
    networks = drawn(training, 10)
    units = np.concatenate([networks.matrices[-1], networks.fields().pre[0]], axis=2)
    exact = recursion(OneLayer(K, Y, 0.1, 8, 1.3, centred), units.swapaxes(1, 2) @ units / 10)
    for t in range(9):
        now = networks.fields()
        for name, value in measure(training, now).items():
            np.testing.assert_allclose(value, exact[name][:, t], rtol=0, atol=1e-14, err_msg=name)
        networks.step(now)


def test_the_flow_is_right_to_fourth_order() -> None:
    training = Training(1, np.array([[1.3]]), np.array([1.0]), 0.4, 4, gamma0=0.7)
    network = OneLayer(training.kernel, training.targets, 0.4, 4, 0.7, flow=True)
    gaps = []
    for substeps in (2, 4):
        networks = drawn(replace(training, substeps=substeps), 7)
        h, w = networks.fields().pre[0] / 1.3**0.5, networks.matrices[-1]
        halves = (((h + sign * w) ** 2).sum(axis=(1, 2)) / 14 for sign in (1, -1))
        exact = trajectories(network, *halves)["f"]
        for _ in range(4):
            networks.step(networks.fields())
        gaps.append(np.abs(networks.fields().output[:, 0] - exact[-1]).max())
    assert np.log2(gaps[0] / gaps[1]) == pytest.approx(4, abs=0.5)


@pytest.mark.parametrize("activation", ["linear", "tanh"])
def test_kernels_at_two_times_are_those_at_one_where_both_are_equal(activation: str) -> None:
    training = Training(2, K, Y, 0.1, 3, activation)
    values = train(training, 8, 5, 0, pairs=[(2, 2), (3, 1), (1, 3)]).values
    for name in ("Phi", "G"):
        pairs = values[f"{name}_pairs"]
        np.testing.assert_array_equal(pairs[:, 0], values[name][:, 2])
        np.testing.assert_array_equal(pairs[:, 1], pairs[:, 2].swapaxes(-1, -2))


@pytest.mark.parametrize(
    "training",
    [
        Training(3, K, Y, 0.1, 0),
        Training(2, K, Y, 0.1, 0, "tanh", gamma0=0.7),
        Training(2, K, Y, 0.1, 0, "relu"),
        Training(2, K, Y, 0.1, 0, "tanh", bias=True),
        Isotropic(2, 0.75, 0.5, 0.05, 2, noise=0.5, centred=True),
        Isotropic(2, 0.75, 0.5, 0.05, 2, gamma0=1.5, whole_batches=True),
    ],
    ids=["linear", "tanh", "relu", "bias", "isotropic", "whole batches"],
)
def test_controls_have_mean_zero_in_narrow_networks(training: Any) -> None:
    if isinstance(training, Isotropic):
        controls = train_isotropic(training, 8, 6000, 3).controls
    else:
        controls = train(training, 6, 10_000, 3).controls
    error = controls.std(axis=0) / len(controls) ** 0.5
    assert excess(controls.mean(axis=0) / error) <= 1


@pytest.mark.parametrize("substeps", [0, 2])
def test_networks_of_one_width_have_the_exact_moments_of_one_layer(substeps: int) -> None:
    width = 16
    training = Training(1, np.array([[1.3]]), np.array([1.0]), 0.1, 6, gamma0=0.8, substeps=substeps)
    network = OneLayer(training.kernel, training.targets, 0.1, 6, 0.8, flow=substeps > 0)
    samples = train(training, width, 6000, 0)
    for name, exact in exact_moments(network, width).items():
        mean, variance = samples.mean(name), samples.scaled_variance(name)
        shape = mean.value.shape
        assert excess(mean.distance(exact.mean.reshape(shape))) <= 1, name
        assert excess(variance.distance(width * exact.variance.reshape(shape))) <= 1, name


def test_networks_have_the_leading_order_of_one_layer() -> None:
    """Two samples; three widths, extrapolated by a polynomial of second degree in 1/N."""
    training, widths = Training(1, K, Y, 0.1, 5), (12, 24, 48)
    order = leading_order(OneLayer(K, Y, 0.1, 5))
    ensembles = [train(training, width, 6000, width) for width in widths]
    for name in ("f", "loss", "tangent_kernel"):
        limit = order.limit(name)
        shifts = expansion_in_width(widths, [x.scaled_shift(name, limit) for x in ensembles])
        variances = expansion_in_width(widths, [x.scaled_variance(name) for x in ensembles])
        means = expansion_in_width(widths, [x.mean(name) for x in ensembles])
        for fit, k, expected in (
            (shifts, 0, order.scaled_shift(name)),
            (variances, 0, order.scaled_variance(name)),
            (means, 0, limit),
            (means, 1, order.scaled_shift(name)),
        ):
            distance = Estimate(fit.value[k], fit.error[k]).distance(expected)
            assert excess(np.where(fit.error[k] > 1e-9, distance, 0)) <= 1, name


def test_controls_lower_errors_and_keep_values() -> None:
    training = Training(2, K, Y, 0.08, 4)
    samples = train(training, 24, 4000, 5)
    plain = Samples(24, samples.values, samples.controls[:, :0])
    for name in ("f", "loss", "tangent_kernel"):
        one, two = samples.mean(name), plain.mean(name)
        assert (one.error < 0.5 * two.error).all()
        gap = (one.value - two.value) / np.sqrt(
            two.error**2 - one.error**2
        )  # two has the noise of one, and more
        assert excess(gap) <= 1


@pytest.mark.parametrize(("activation", "depth"), [("tanh", 1), ("relu", 1), ("linear", 2)])
def test_wide_networks_approach_the_limit(activation: str, depth: int) -> None:
    """Means extrapolated from three widths agree with the quadrature or with the dense reference."""
    training, widths = Training(depth, K, Y, 0.15, 4, activation), (16, 32, 64)
    limits = [linear_limit(training)] * 2 if activation == "linear" else None
    coarse, limit = limits or [one_layer_limit(training, points) for points in (2**15, 2**17)]
    ensembles = [train(training, width, 2000 if depth == 1 else 1200, width) for width in widths]
    for name in ("f", "tangent_kernel", "Phi"):
        fit = expansion_in_width(widths, [x.mean(name) for x in ensembles])
        error = np.hypot(fit.error[0], np.abs(coarse[name] - limit[name]))
        assert excess(Estimate(fit.value[0], error).distance(limit[name])) <= 1, name


def test_linear_one_layer_limit_is_that_of_the_dense_reference() -> None:
    training = Training(1, K, Y, 0.1, 4)
    one, two = linear_limit(training), one_layer_limit(training)
    for name in ("f", "loss", "Phi", "tangent_kernel"):
        np.testing.assert_allclose(one[name], two[name], rtol=0, atol=1e-9)


@pytest.mark.parametrize("options", [{}, {"noise": 0.5, "centred": True, "gamma0": 0.8}])
def test_online_networks_approach_the_dense_reference(options: dict[str, Any]) -> None:
    widths, steps = (12, 24, 48), 3
    training = Isotropic(1, 1.5, 0.5, 0.05, steps, **options)
    ensembles = [train_isotropic(training, width, 2000, width) for width in widths]
    names = {"center" if k == "centred" else k: v for k, v in options.items()}
    limit = isotropic_dense(steps + 1, depth=1, eta=0.05, nu=1.5, alpha_B=0.5, **names)
    for name in ("C_v", "C_Delta", "C_h0", "C_h", "C_g"):
        expected = np.diagonal(getattr(limit, name), axis1=-2, axis2=-1).T
        fit = expansion_in_width(widths, [x.mean(name) for x in ensembles])
        assert excess(Estimate(fit.value[0], fit.error[0]).distance(expected)) <= 1, name


def test_batches_drawn_from_their_law_are_those_of_whole_batches() -> None:
    training = Isotropic(1, 1.0, 1.5, 0.08, 2, noise=0.4)
    one = train_isotropic(training, 12, 10_000, 0)
    two = train_isotropic(replace(training, whole_batches=True), 12, 10_000, 1)
    for name in one.values:
        for a, b in (
            (one.mean(name), two.mean(name)),
            (one.scaled_variance(name), two.scaled_variance(name)),
        ):
            assert excess((a.value - b.value) / np.hypot(a.error, b.error)) <= 1, name
