"""Powers of gamma0 of every kind of experiment, held against the solution at a small gamma0."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Function, tanh

from derive.expansion.theory_orders import expand_strength
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
    gamma0,
    mu,
    t,
)
from numerics.errors import SpecError
from numerics.expansion import expand, has_words
from numerics.expansion.orders import partial_sum, strength_series
from numerics.experiment import Experiment
from numerics.solver import solve
from tests.derive.once import mean_field, mlp

GD: dict[str, Any] = {"learning_rate": 0.2, "steps": 2}
FLOW: dict[str, Any] = {"rule": "flow", "time": 1.0, "points": 3}
ISO: dict[str, Any] = {"kind": "isotropic", "sample_ratio": 2.0, "noise": 0.2}

CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any] | None]] = {
    "biases, decay, temperature": (
        {"depth": 1, "bias": True},
        GD | {"weight_decay": 0.1, "temperature": 0.1},
        None,
    ),
    "widths, variances, momentum": (
        {"relative_widths": [1.0, 0.5], "init_variance": [1.0, 2.0, 0.5]},
        GD | {"momentum": 0.5},
        None,
    ),
    "branch": ({"branch": 0.5}, GD, None),
    "deep biases": ({"bias": True}, GD | {"weight_decay": 0.1, "temperature": 0.1}, None),
    "outputs": ({"outputs": 2}, GD, None),
    "flow with momentum": ({}, FLOW | {"momentum": 0.5}, None),
    "decaying flow": ({}, FLOW | {"weight_decay": 0.1}, None),
    "isotropic": ({}, GD, ISO),
    "online": ({}, GD | {"rule": "sgd"}, {"kind": "isotropic", "batch_ratio": 2.0}),
    "power law": ({}, GD, {"kind": "power-law", "capacity": 1.5, "source": 1.0, "modes": 50}),
}
QUICK = ("biases, decay, temperature", "isotropic")


def experiment(
    network: dict[str, Any], training: dict[str, Any], data: dict[str, Any] | None, gamma0: float, **more: Any
) -> Experiment:
    tables: dict[str, Any] = {"network": {"depth": 2, "gamma0": gamma0} | network, "training": training}
    tables |= {"solver": {"rtol": 1e-7}} if training.get("rule") == "flow" else {}
    if data is not None:
        return Experiment.from_dict(tables | {"data": data})
    rng = np.random.default_rng(3)
    y = rng.normal(size=(2, network["outputs"])) if "outputs" in network else rng.normal(size=2)
    given = {"inputs": rng.normal(size=(2, 3)), "targets": y}
    if more:
        given |= {"test_inputs": rng.normal(size=(2, 3)), "test_targets": np.ones(2)}
    return Experiment.from_dict(tables, **given)


def missed(one: Experiment, series: xr.Dataset) -> dict[str, float]:
    """Return the remainder at the experiment's gamma0, relative to the largest entry."""
    full, summed = solve(one), partial_sum(series, float(one.network.gamma0))
    names = [str(x) for x in summed.data_vars if x in full and not str(x).startswith("R_")]
    names = [x for x in names if np.nanmax(np.abs(full[x])) > 0]  # one layer has no responses
    return {x: float(np.nanmax(np.abs(summed[x] - full[x])) / np.nanmax(np.abs(full[x]))) for x in names}


@pytest.mark.parametrize(
    "name", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in CASES]
)
def test_what_is_missed_falls_with_the_fourth_power(name: str) -> None:
    network, training, data = CASES[name]
    floor = 3e-6 if training.get("rule") == "flow" else 1e-10
    large, small = (experiment(network, training, data, g) for g in (0.2, 0.1))
    series = expand(large, 2)
    assert list(series.order) == ([0, 1, 2] if data else [0, 2])
    more, less = missed(large, series), missed(small, series)
    assert {"train_loss"} <= set(more)
    assert {"Phi", "G", "tangent_kernel"} <= set(more) or data is not None
    assert all(less[x] < more[x] / 11 + floor for x in more), (more, less)


def test_responses_of_a_flow_with_momentum() -> None:
    one = experiment({"depth": 1}, FLOW | {"momentum": 0.5}, None, 1e-4)
    found, expected = expand(one, 0).A.sel(order=0), solve(one).A
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * float(np.abs(expected).max()))


@pytest.mark.parametrize(
    ("training", "order"),
    [
        (GD | {"momentum": 0.5}, 2),
        pytest.param(GD, 4, marks=pytest.mark.slow),
        pytest.param(GD | {"momentum": 0.5}, 4, marks=pytest.mark.slow),
    ],
)
def test_words_are_the_theory_of_each_order(training: dict[str, Any], order: int) -> None:
    """Two engines, with test points and momentum: words (their recursion at order four), and the march."""
    one = experiment({}, training, None, 1.0, test=True)
    assert has_words(one)
    words, theory = expand(one, order), strength_series(one, order)
    for name in theory.data_vars:
        expected = theory[name].sel(order=words.order).values
        size = np.nanmax(np.abs(expected))
        np.testing.assert_allclose(words[name].values, expected, rtol=0, atol=1e-10 * size, err_msg=str(name))


@pytest.mark.parametrize(
    "training",
    [
        pytest.param(GD | {"momentum": 0.5}, id="momentum"),
        pytest.param(FLOW, id="flow", marks=pytest.mark.slow),
    ],
)
def test_nonlinear_networks_with_momentum_and_test_points(training: dict[str, Any]) -> None:
    """One hidden layer of tanh, a sample and a test point, against moving nodes."""
    tables: dict[str, Any] = {
        "network": {"depth": 1, "activation": "tanh", "gamma0": 0.2},
        "training": training,
        "solver": {"method": "nodes"},
    }
    given = {"kernel": [[1.0]], "targets": [1.0], "test_kernel": [[0.4, 0.8]], "test_targets": [0.5]}
    large = Experiment.from_dict(tables, **given)
    small = large.replace({"network.gamma0": 0.1})
    series = expand(large, 2)
    assert "test_loss" in series
    more, less = missed(large, series), missed(small, series)
    assert all(less[x] < more[x] / 9 + 1e-5 for x in more), (more, less)


@pytest.mark.parametrize(("activation", "bias"), [("linear", False), ("linear", True), ("tanh", False)])
def test_programs_with_their_numbers(activation: str, bias: bool) -> None:
    """Programs agree with their experiment, by either evaluation."""
    program = mlp(1, activation, bias=bias)
    network = {"depth": 1, "activation": activation, "bias": bias}
    given = {"K_x": np.array([[1.0, 0.3], [0.3, 0.8]]), "y": np.array([1.0, -0.5])}
    one = Experiment.from_dict(
        {"network": network, "training": GD | {"loss": "sum"}},
        kernel=given["K_x"],
        targets=given["y"],
    )
    numbers = {"eta": 0.2, "gamma0": 1.0}
    found, expected = expand(program, 2, numbers=numbers, arrays=given, times=range(3)), expand(one, 2)
    assert list(found.order) == list(expected.order)
    for name in ("error", "train_loss", "Phi", "G", "A", "tangent_kernel"):
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-10, err_msg=name)
    with pytest.raises(SpecError, match=r"numbers\.eta"):
        expand(program, 2, numbers={"gamma0": 1.0}, arrays=given, times=range(3))


def test_what_has_no_series_says_why() -> None:
    one = Experiment.from_dict({"network": {"depth": 2, "width_ratio": 1.0}, "data": ISO, "training": GD})
    with pytest.raises(SpecError, match=r"1/gamma0 remains in front of -r0\(t\)/nu"):
        expand(one, 2)
    with pytest.raises(SpecError, match="has no expansion in trees"):
        expand(experiment({"bias": True, "activation": "tanh"}, GD, None, 1.0), 2)
    with pytest.raises(ValueError, match="must be 0 or more"):
        expand_strength(mean_field(mlp()), -1)


def test_a_program_without_a_series_says_what_it_would_need() -> None:
    """A perceptron with a field for each layer is one, and names of outputs are free."""
    units, inputs = Population("units"), Population("input", given=True)
    a, b, f, q, y = Field("a", units), Field("b", units), *(Function(name) for name in "fqy")
    x, w = GivenVector("x", inputs, "K_x"), GaussianVector("w", units)
    U, V = GaussianMatrix("U", units, inputs), GaussianMatrix("V", units, units)
    lines: dict[Any, Any] = {a(mu, t): U @ x(mu), b(mu, t): V @ tanh(a(mu, t))}
    lines[f(mu, t)] = Mean(w.symbol * tanh(b(mu, t))) / gamma0
    given: dict[str, Any] = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": {"K_x": [[1.0]], "y": [1.0]}}

    def refusal(lines: dict[Any, Any], loss: Any) -> str:
        net = Network("own", (a, b), lines, (U, V, w), given=(x,))
        with pytest.raises(SpecError) as refused:
            expand(net.train(loss, GradientDescent(eta)), 2, times=range(2), **given)
        return str(refused.value)

    square = (y(mu) - f(mu, t)) ** 2 / 2
    said = refusal(lines, square)
    assert "needs the fields g, h and z and no others (those of a perceptron with a nonlinear" in said
    assert "this theory has the fields a, b, g_a, g_b, omega, z_a" in said
    second = {**lines, q(mu, t): Mean(w.symbol * b(mu, t)) / gamma0}
    assert "has the outputs f, q, and the expansion needs one" in refusal(second, square + q(mu, t) ** 2)
    mean = Mean(y(mu) * w.symbol * b(mu, t))
    assert "has a loss that contains no output (a number that a definition computes)" in refusal(lines, mean)


def test_parity_and_what_vanishes() -> None:
    """Parts of h have even orders of the input's source and odd orders of the readout's only."""
    series = expand_strength(mean_field(mlp(2, bias=True)).at_depth(2), 3)
    assert [len(x) for x in series.parts("f")] == [1, 0, 1, 0]
    assert [len(x) for x in series.parts("H")] == [1, 0, 3, 0]
    assert "(1, 2)" not in str(series.parts("H"))
