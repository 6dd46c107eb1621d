"""Predictions on test points: against formulas written by hand, and what test points may not change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from derive.program import Program
from numerics.analysis.limits import largest_rate
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.names import MemberKey
from numerics.results.predictions import split
from numerics.simulation import simulate
from numerics.solver import solve
from numerics.solver.by_role import by_variable, reduced
from numerics.stats import extrapolate
from tests.chance import excess
from tests.derive.once import mlp

Array = NDArray[np.float64]

STEPS = {"learning_rate": 0.3, "steps": 6}
FLOW = {"rule": "flow", "time": 1.0, "points": 3}
NETWORKS: dict[str, dict[str, Any]] = {
    "plain": {"network": {"depth": 2}, "training": STEPS},
    "flow": {"network": {"depth": 2}, "training": FLOW, "solver": {"rtol": 1e-5}},
    "sum": {"network": {"depth": 2}, "training": {**STEPS, "learning_rate": 0.1, "loss": "sum"}},
    "bias": {"network": {"depth": 2, "bias": True}, "training": STEPS},
    "residual": {"network": {"depth": 2, "branch": 0.5}, "training": STEPS},
    "decay": {"network": {"depth": 2}, "training": {**STEPS, "weight_decay": 0.2}},
    "momentum": {"network": {"depth": 2}, "training": {**STEPS, "momentum": 0.5}},
    "temperature": {"network": {"depth": 2}, "training": {**STEPS, "weight_decay": 0.2, "temperature": 0.1}},
    "widths": {
        "network": {"depth": 2, "relative_widths": [1.0, 0.5], "init_variance": [1.0, 2.0, 1.0]},
        "training": STEPS,
    },
    "outputs": {"network": {"depth": 2, "outputs": 2}, "training": STEPS},
    "decaying flow": {"network": {"depth": 1}, "training": {**FLOW, "weight_decay": 0.2}},
}

CASES = [
    pytest.param(name, marks=pytest.mark.slow) if name not in ("plain", "flow") else name for name in NETWORKS
]


def arrays(train: int = 3, test: int = 2, seed: int = 0, outputs: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    columns = (outputs,) if outputs > 1 else ()
    return {
        "inputs": rng.standard_normal((train, 4)),
        "targets": rng.standard_normal((train, *columns)),
        "test_inputs": rng.standard_normal((test, 4)),
        "test_targets": rng.standard_normal((test, *columns)),
    }


def data_for(name: str) -> dict[str, Array]:
    return arrays(outputs=int(NETWORKS[name]["network"].get("outputs", 1)))


def with_tests(name: str, data: dict[str, Array], **options: Any) -> xr.Dataset:
    return solve(Experiment.from_dict(NETWORKS[name], **data), **options)


def without(name: str, data: dict[str, Array], **options: Any) -> xr.Dataset:
    own = {key: data[key] for key in ("inputs", "targets")}
    return solve(Experiment.from_dict(NETWORKS[name], **own), **options)


# -- formulas ------------------------------------------------------------------------------------------------


def two_layers(x: Array, y: Array, xt: Array, gamma: float, rate: float, steps: int) -> Array:
    """Return outputs of one hidden layer at all points.

    h and g are combinations of independent normal numbers. ``h_mu(t+1) = h_mu(t) + rate gamma sum_alpha
    Delta_alpha K_mu,alpha g(t)`` and ``g(t+1) = g(t) + rate gamma sum_alpha Delta_alpha h_alpha(t)``, from
    ``h_mu(0) = x_mu . theta/sqrt(D)``.
    """
    points, trained = np.concatenate([x, xt]), len(y)
    features = points.shape[1]
    K = points @ points.T / features
    h = np.concatenate([points / np.sqrt(features), np.zeros((len(points), 1))], axis=1)
    g = np.zeros(features + 1)
    g[-1] = 1.0
    found = []
    for _ in range(steps + 1):
        f = h @ g / gamma
        found.append(f)
        error = y - f[:trained]
        moved = h + rate * gamma * np.outer(K[:, :trained] @ error, g)
        g = g + rate * gamma * error @ h[:trained]
        h = moved
    return np.array(found)


@pytest.mark.parametrize("loss", ["mean", "sum"])
def test_one_hidden_layer_predicts_as_its_two_fields_say(loss: str) -> None:
    data = arrays()
    training = {"learning_rate": 0.2, "steps": 5, "loss": loss}
    spec = {"network": {"depth": 1, "gamma0": 0.7}, "training": training}
    found = solve(Experiment.from_dict(spec, **data))
    rate = 0.2 / (3 if loss == "mean" else 1)
    f = two_layers(data["inputs"], data["targets"], data["test_inputs"], 0.7, rate, 5)
    np.testing.assert_allclose(found.test_f, f[:, 3:], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.error, data["targets"] - f[:, :3], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.test_error, data["test_targets"] - f[:, 3:], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(found.test_loss, np.mean((data["test_targets"] - f[:, 3:]) ** 2, axis=1))


@pytest.mark.parametrize(("depth", "flow"), [(1, True), (3, False)])
def test_lazy_networks_predict_by_their_kernel(depth: int, flow: bool) -> None:
    """``f(x) = k(x) K^-1 (1 - (1 - rate (L+1) K)^t) y``, or ``1 - exp(-(L+1) K t/P)`` along the flow."""
    data = arrays(train=4, seed=1)
    x, xt = data["inputs"], data["test_inputs"]
    K, k = x @ x.T / 4, xt @ x.T / 4
    eigenvalues, vectors = np.linalg.eigh(K)
    if flow:
        training: dict[str, Any] = {"rule": "flow", "time": 2.0, "points": 4}
        left = [np.exp(-(depth + 1) * eigenvalues * t / 4) for t in np.linspace(0, 2, 4)]
    else:
        training = {"learning_rate": 0.2, "steps": 6}
        left = [(1 - 0.2 * (depth + 1) * eigenvalues / 4) ** t for t in range(7)]
    expected = [k @ vectors @ ((1 - a) / eigenvalues * (vectors.T @ data["targets"])) for a in left]
    spec = {"network": {"depth": depth, "gamma0": 1e-5}, "training": training}
    found = solve(Experiment.from_dict(spec, **data), kernels="none")
    np.testing.assert_allclose(found.test_f, expected, rtol=0, atol=1e-7)
    assert np.abs(expected[-1]).max() > 0.1


# -- numbers independent of test points ----------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_training_samples_do_not_know_of_test_points(name: str) -> None:
    """Equal to rounding; a flow to its tolerance, because its integrator enlarges rounding by up to that."""
    data = data_for(name)
    alone, both = without(name, data), with_tests(name, data)
    assert set(both.data_vars) - set(alone.data_vars) == {"test_f", "test_error", "test_loss"}
    assert set(alone.data_vars) <= set(both.data_vars)
    tolerance = 1e-8 if "time_nodes" in alone.attrs else 1e-12
    for variable, array in alone.data_vars.items():
        assert both[variable].dims == array.dims
        size = float(np.abs(array).max())
        np.testing.assert_allclose(both[variable], array, rtol=0, atol=tolerance * size)


@pytest.mark.parametrize("name", CASES)
def test_a_copy_of_a_training_input_is_predicted_as_it_is(name: str) -> None:
    data = data_for(name)
    data["test_inputs"] = np.concatenate([data["inputs"], data["test_inputs"]])
    del data["test_targets"]
    found = with_tests(name, data, kernels="none")
    fitted = data["targets"] - found.error.values
    np.testing.assert_allclose(found.test_f[:, :3], fitted, rtol=0, atol=1e-11 * np.abs(fitted).max())
    assert "test_error" not in found
    assert "test_loss" not in found


def test_traces_are_those_of_training_samples() -> None:
    data = arrays()
    for name, tolerance in (("plain", 1e-12), ("bias", 1e-12)):
        alone, both = (run(name, data, kernels="trace") for run in (without, with_tests))
        for variable, array in alone.data_vars.items():
            size = float(np.abs(array).max())
            np.testing.assert_allclose(both[variable], array, rtol=0, atol=tolerance * size)


@settings(max_examples=2, deadline=None)
@given(st.permutations(range(4)), st.integers(0, 99))
def test_test_points_do_not_know_of_each_other(order: list[int], seed: int) -> None:
    """In any order, and for single points, predictions are the same."""
    data = arrays(test=4, seed=seed)
    found = with_tests("bias", data, kernels="none")
    other = {"test_inputs": data["test_inputs"][order], "test_targets": data["test_targets"][order]}
    shuffled = with_tests("bias", data | other, kernels="none")
    np.testing.assert_allclose(shuffled.test_f, found.test_f[:, order], rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(shuffled.test_loss, found.test_loss, rtol=1e-10)
    first = slice(order[0], order[0] + 1)
    single = {"test_inputs": data["test_inputs"][first], "test_targets": data["test_targets"][first]}
    alone = with_tests("bias", data | single, kernels="none")
    np.testing.assert_allclose(alone.test_f, found.test_f[:, first], rtol=1e-10, atol=1e-12)


def test_a_linear_network_predicts_linearly() -> None:
    """A test point that is a combination of others is predicted by that combination."""
    data = arrays(test=3)
    data["test_inputs"][2] = 0.4 * data["test_inputs"][0] - 1.3 * data["test_inputs"][1]
    f = with_tests("plain", data, kernels="none").test_f.values
    np.testing.assert_allclose(f[:, 2], 0.4 * f[:, 0] - 1.3 * f[:, 1], rtol=0, atol=1e-13)


@pytest.mark.slow
def test_infinite_depth_predicts_copies_alike_and_leaves_the_training_set() -> None:
    data = arrays()
    data["test_inputs"][1] = data["inputs"][2]
    spec = {"network": {"depth": "L", "branch": 1.0}, "training": {"learning_rate": 0.1, "steps": 2}}
    both = solve(Experiment.from_dict(spec, **data))
    alone = solve(Experiment.from_dict(spec, inputs=data["inputs"], targets=data["targets"]))
    for variable, array in alone.data_vars.items():
        np.testing.assert_allclose(both[variable], array, rtol=0, atol=1e-11 * float(np.abs(array).max()))
    fitted = data["targets"][2] - both.error[:, 2]
    np.testing.assert_allclose(both.test_f[:, 1], fitted, rtol=0, atol=1e-12)


@pytest.mark.slow
def test_the_largest_rate_is_that_of_training() -> None:
    """Targets of test points that nothing predicts do not make a rate unstable."""
    data = arrays()
    data["test_targets"] = 5 * np.sign(-with_tests("plain", data).test_f.values[-1])
    experiment = Experiment.from_dict(NETWORKS["plain"], **data)
    own = Experiment.from_dict(NETWORKS["plain"], inputs=data["inputs"], targets=data["targets"])
    found = solve(experiment, kernels="none")
    assert found.test_loss[-1] > found.test_loss[0]
    assert largest_rate(experiment, rtol=0.2) == largest_rate(own, rtol=0.2)


# -- finite networks -----------------------------------------------------------------------------------------


def test_finite_networks_predict_as_the_theory() -> None:
    """Two widths, extrapolated."""
    data = arrays()
    data["test_inputs"][1] = data["inputs"][0]
    experiment = Experiment.from_dict(NETWORKS["bias"], **data)
    theory = solve(experiment, kernels="none")
    networks = [simulate(experiment, width=n, seeds=16, rng=n, kernels="none") for n in (50, 100)]
    limit = extrapolate(networks)
    for name in ("error", "test_f", "test_error", "test_loss", "train_loss"):
        z = (limit[name] - theory[name]) / limit[f"{name}_stderr"]
        assert excess(z, 15) < 1, name
    fitted = data["targets"][0] - networks[0].error[:, 0]
    np.testing.assert_allclose(networks[0].test_f[:, 1], fitted, rtol=0, atol=1e-12)


# -- parting -------------------------------------------------------------------------------------------------


def test_split_parts_what_has_samples() -> None:
    data = arrays(outputs=2)
    spec = {"network": {"depth": 2, "outputs": 2}, "training": STEPS}
    problem = Problem.of(Experiment.from_dict(spec, **data))
    rng = np.random.default_rng(5)
    shapes = {"f": (4, 5, 2), "error": (4, 5, 2), "Phi": (2, 4, 4, 5, 5), "G": (2, 4, 4, 2, 2)}
    values = {name: rng.random(shape) for name, shape in shapes.items()}
    found = split(problem, values)
    assert found["error"].shape == (4, 3, 2)
    assert np.array_equal(found["f"], values["f"][:, :3])
    assert found["Phi"].shape == (2, 4, 4, 3, 3)
    assert np.array_equal(found["G"], values["G"])
    assert np.array_equal(found["test_f"], values["f"][:, 3:])
    expected = ((data["test_targets"] - values["f"][:, 3:]) ** 2).sum(axis=2).mean(axis=1)
    np.testing.assert_allclose(found["test_loss"], expected)
    own = Problem.of(Experiment.from_dict(spec, inputs=data["inputs"], targets=data["targets"]))
    assert set(split(own, values)) == {"f", "error", "Phi", "G", "train_loss"}


def with_positions() -> tuple[Program, dict[str, Any]]:
    """Return a convolution with three samples, of which the last has weight zero, and its data."""
    x = np.random.default_rng(6).standard_normal((9, 8))
    given: dict[str, Any] = {"times": range(2), "numbers": {"eta": 0.1, "gamma0": 1.0}}
    y = np.array([[1.0, 0.5], [-0.3, 0.2], [0.1, -0.8]])
    given["arrays"] = {"K_x": (x @ x.T / 8).reshape(3, 3, 3, 3), "y": y, "rho": np.array([1.0, 2.0, 0.0])}
    program = mlp(1, "tanh", positions=3, receptive=1, outputs=2, sample_weights=True)
    return program, given


def test_test_points_of_networks_with_positions() -> None:
    """A sample of weight zero is a test point; once positions were cut in its place."""
    program, given = with_positions()
    found = simulate(program, width=4, seeds=2, rng=1, **given)
    assert found.f.shape == (2, 2, 2)
    assert found.test_f.shape == (2, 1, 2)
    assert found.Phi.shape == (1, 2, 2, 2, 3, 2, 3)
    assert found.G.shape == (1, 2, 2, 2, 3, 2, 2, 3, 2)
    np.testing.assert_allclose(found.G_trace, np.einsum("ltsmpcmpc->lts", found.G), rtol=1e-12)


def test_test_points_of_a_theory_with_positions() -> None:
    program, given = with_positions()
    problem = Problem.of(program, **given)
    rng = np.random.default_rng(7)
    kernels: dict[MemberKey, Array] = {
        ("Phi", (1,)): rng.random((3, 3, 3, 3, 4, 4)),
        ("G", (1,)): rng.random((3, 3, 2, 3, 3, 2, 4, 4)),
    }
    whole, traces = (by_variable(problem, reduced(problem, kernels, keep)) for keep in ("full", "trace"))
    assert whole["Phi"].shape == (1, 4, 4, 2, 3, 2, 3)
    assert whole["G"].shape == (1, 4, 4, 2, 3, 2, 2, 3, 2)
    np.testing.assert_allclose(traces["Phi_trace"], np.einsum("ltsmpmp->lts", whole["Phi"]))
    np.testing.assert_allclose(traces["G_trace"], np.einsum("ltsmpcmpc->lts", whole["G"]))


@pytest.mark.slow
def test_a_theory_with_positions_and_outputs_has_traces() -> None:
    program, given = with_positions()
    found = solve(program, kernels="trace", solver=Solver(samples=16), **given)
    assert found.test_f.shape == (2, 1, 2)
    assert found.G_trace.dims == ("layer", "time", "time_")
