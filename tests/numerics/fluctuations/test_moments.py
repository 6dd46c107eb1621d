"""Values, covariances and shifts of order parameters by name."""

from __future__ import annotations

import re

import numpy as np
import pytest
from sympy import Function, tanh

import numerics
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Population,
    eta,
    mu,
    t,
)
from numerics.errors import SpecError, Unserved
from numerics.experiment.problem import Problem
from numerics.fluctuations import finite_width, moments
from tests.numerics.fluctuations.cases import case, experiment

f, K = Function("f"), Function("K")


@pytest.mark.parametrize("name", ["widths", "online"])
def test_moments_at_equal_times_are_those_of_results(name: str) -> None:
    found, corrections, solved = moments(case(name)), finite_width(case(name)), numerics.solve(case(name))
    ratio = 1.5 if name == "online" else 1.0  # N counts the widest layer in results, and features here
    for x in found.names:
        if x in solved and found.value(x).shape == solved[x].shape:  # A has no last layer
            np.testing.assert_allclose(found.value(x), solved[x], rtol=0, atol=1e-13)
        for end, method in (("variance", found.variance), ("shift", found.shift)):
            if f"{x}_{end}" not in corrections:
                continue
            value, axes = method(x), method(x).dims
            if "time_" in axes:
                now = np.diagonal(value.values, 0, axes.index("time"), axes.index("time_"))
                value = value.isel(time_=0).copy(data=np.moveaxis(now, -1, axes.index("time")))
            np.testing.assert_allclose(ratio * value, corrections[f"{x}_{end}"], rtol=0, atol=1e-12)


def test_covariances_and_functions_agree() -> None:
    found = moments(case("three layers"))
    covariance = found.covariance("f", "tangent_kernel").sel(time=3, other_time=3, other_time_=3).values
    variance = found.variance("f").values[3, 0]
    first, second = found.observable(f(1, 3)), found.observable(f(1, 3) ** 2)
    assert first.variance == pytest.approx(variance, rel=1e-12)
    assert second.variance == pytest.approx(4 * first.value**2 * variance, rel=1e-12)
    assert second.shift == pytest.approx(2 * first.value * first.shift + variance, rel=1e-12)
    product = found.observable(f(1, 3) * K(1, 2, 3, 3))
    kernel = found.observable(K(1, 2, 3, 3))
    expected = first.value * kernel.shift + kernel.value * first.shift + covariance[0, 0, 1]
    assert product.shift == pytest.approx(expected, rel=1e-12)
    np.testing.assert_allclose(
        found.covariance("f", "f").values.reshape(8, 8).diagonal(), found.variance("f").values.ravel()
    )


def test_the_average_of_one_field_fluctuates_by_itself() -> None:
    """For f = <w h> + <v> with v frozen, f(1) changes by 0.8 d<v> + 0.81 d<w h> + 0.1 d<w^2 + h^2>."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h, y = GivenVector("x", pixels, "K_x"), Field("h", units), Function("y")
    W, w, v = (
        GaussianMatrix("W", units, pixels),
        GaussianVector("w", units),
        GaussianVector("v", units),
    )
    forward = {h(mu, t): W @ x(mu), f(mu, t): Mean(w.symbol * h(mu, t)) + Mean(v.symbol)}
    network = Network("offset", (h,), forward, weights=(W, w), frozen=(v,), given=(x,))
    problem = Problem.of(
        network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta)),
        numbers={"eta": 0.1, "gamma0": 1.0},
        arrays={"K_x": [[1.0]], "y": [1.0]},
        times=range(2),
    )
    found, corrections = moments(problem), finite_width(problem)
    variance, shift = [2.0, 0.8**2 + 0.81**2 + 0.1**2 * 4], [0.0, -0.02]
    np.testing.assert_allclose(found.value("f")[:, 0], [0.0, 0.2], atol=1e-12)
    np.testing.assert_allclose(found.variance("f")[:, 0], variance, rtol=1e-12)
    np.testing.assert_allclose(found.shift("f")[:, 0], shift, atol=1e-12)
    np.testing.assert_allclose(np.ravel(corrections["f_variance"]), variance, rtol=1e-12)
    np.testing.assert_allclose(np.ravel(corrections["f_shift"]), shift, atol=1e-12)


def test_given_arrays_inside_of_functions_are_refused_with_a_remedy() -> None:
    """They ended in ``KeyError: alpha``."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h, y, b = GivenVector("x", pixels, "K_x"), Field("h", units), Function("y"), Function("b")
    W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units)
    forward = {h(mu, t): W @ x(mu), f(mu, t): Mean(w.symbol * tanh(h(mu, t) + b(mu)))}
    network = Network("shifted", (h,), forward, weights=(W, w), given=(x,))
    problem = Problem.of(
        network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta)),
        numbers={"eta": 0.1, "gamma0": 1.0},
        arrays={"K_x": [[1.0]], "y": [1.0], "b": [0.3]},
        times=range(2),
    )
    with pytest.raises(
        Unserved, match=r"contains the given array b\(\w+\), .*: define a field for its argument"
    ):
        finite_width(problem)


def test_refusals() -> None:
    known = case("widths")
    with pytest.raises(SpecError, match=r"is not an order parameter of the theory .accepted: Phi, G"):
        moments(known).variance("Psi")
    with pytest.raises(SpecError, match="does not exist at these indices"):
        moments(known).observable(f(9, 1))
    with pytest.raises(SpecError, match=r"training.rule = .flow"):
        moments(experiment({}, TEMPERED, {}))
    for network, training, data, words in (
        ({"activation": "tanh"}, FLOWING, {}, 'training.rule = "flow": fluctuations of nonlinear networks'),
        ({}, {}, {"kind": "isotropic"}, "network.width_ratio: is left out"),
        ({}, {"objective": "hinge"}, {}, 'training.objective = "hinge": has an error signal that jumps'),
        ({}, TEMPERED, {}, "training.temperature = 0.1: adds noise"),
    ):
        with pytest.raises(SpecError, match=re.escape(words)):
            finite_width(experiment(network, training, data))


FLOWING = {"rule": "flow", "time": 1.0, "points": 3, "steps": None, "learning_rate": None}
TEMPERED = {**FLOWING, "temperature": 0.1}
