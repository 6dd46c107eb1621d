"""Flows to long times by sampled paths: outputs solved for within steps that grow with their age."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sympy import Function

from derive.calculus.symbols import alpha, s, t
from derive.errors import NotApplicable
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.simulation import simulate
from numerics.solver import solve
from numerics.solver.grid import Age, TimeGrid, aged_grid, flow_grid
from numerics.solver.paths.collocation import by_sample
from numerics.solver.paths.problem import integrator_for, prepared_for
from tests.numerics.solver.helpers import TARGETS, kernel

Array = np.ndarray


def problem(network: dict[str, Any], training: dict[str, Any], samples: int = 2, **solver: Any) -> Problem:
    given = {
        "network": {"depth": 2, "activation": "tanh"} | network,
        "training": {"rule": "flow", "points": 4} | training,
        "solver": {"method": "paths", "samples": 256} | solver,
    }
    outputs = int(network.get("outputs", 1))
    labels = (
        np.eye(2)[np.arange(samples) % 2] if outputs == 2 else np.where(np.arange(samples) % 2, -1.0, 1.0)
    )
    return Problem.of(Experiment.from_dict(given, kernel=kernel(samples), targets=labels))


def errors(p: Problem, grid: TimeGrid, paths: int = 64, replicas: int = 2) -> Array:
    """Return errors at the output times, in each replica."""
    seeds = [np.random.SeedSequence(0, spawn_key=(n,)) for n in range(replicas)]
    runs = prepared_for(p, grid).runs(paths, seeds)
    return np.array([grid.once(x["Delta", ()]) for x in runs])


@pytest.mark.parametrize(
    ("order", "memory"),
    [
        pytest.param(2, {}, marks=pytest.mark.slow),
        (3, {}),
        (2, {"weight_decay": 0.2}),
        pytest.param(2, {"momentum": 0.5}, marks=pytest.mark.slow),
        (3, {"momentum": 3.0}),
    ],
)
def test_a_linear_flow_is_exact_up_to_the_order_of_its_gradients(
    order: int, memory: dict[str, float]
) -> None:
    """Check that only the time grid causes errors of a linear network.

    Second moments of sources are exact on paths.
    """
    network, training = {"depth": 1, "activation": "linear"}, {"time": 6.0} | memory
    p = problem(network, training)
    exact = solve(problem(network, training, method="march", rtol=1e-6), kernels="none").error.values
    age = Age(0.5, 1 / memory["weight_decay"] if "weight_decay" in memory else np.inf)
    missed = []
    for step in (0.2, 0.1):
        grid = aged_grid(p.times, age, step=step, order=order)
        missed.append(np.abs(errors(p, grid, paths=256, replicas=1)[0] - exact).max())
    power = np.log2(missed[0] / missed[1])
    assert missed[1] < 1e-3
    assert power > order - 0.4, (missed, power)


@pytest.mark.parametrize(
    ("network", "training"),
    [
        pytest.param({}, {}, marks=pytest.mark.slow),
        ({"depth": 1, "activation": "relu"}, {"objective": "logistic"}),
        pytest.param({}, {"weight_decay": 0.2}, marks=pytest.mark.slow),
        pytest.param({}, {"momentum": 2.0}, marks=pytest.mark.slow),
        pytest.param({"activation": "relu"}, {"momentum": 0.5}, marks=pytest.mark.slow),
        pytest.param({"depth": 1}, {"temperature": 0.05, "weight_decay": 0.2}, marks=pytest.mark.slow),
        pytest.param({"bias": True}, {"loss": "sum", "center": True}, marks=pytest.mark.slow),
        pytest.param({"depth": 1, "outputs": 2}, {"objective": "cross-entropy"}, marks=pytest.mark.slow),
    ],
)
def test_it_is_the_flow_of_short_explicit_steps(network: dict[str, Any], training: dict[str, Any]) -> None:
    """Grids take other random numbers, so that they are apart by noise of replicas."""
    p = problem(network, training | {"time": 4.0})
    found = solve(p, kernels="none")
    assert found.attrs["integrator"].startswith("collocation")
    explicit = errors(p, flow_grid(p.times, step=0.1, order=2), paths=256, replicas=4)
    noise = np.hypot(explicit.std(axis=0, ddof=1) / 2, found.error_stderr.values)
    missed = np.abs(explicit.mean(axis=0) - found.error.values)
    most = found.error_systematic.values
    assert (missed <= 5 * noise + 2 * most + 1e-6).all(), (missed / (noise + 1e-9), most)
    assert np.abs(found.error.values[-1] - found.error.values[0]).max() > 20 * noise.max()


def test_test_points_and_kernels_are_read_between_nodes() -> None:
    """Output times are not nodes: kernels there are those of a grid that has them."""
    given = {
        "network": {"depth": 1, "activation": "tanh"},
        "training": {"rule": "flow", "points": 3, "time": 4.0},
        "solver": {"method": "paths", "samples": 128},
    }
    e = Experiment.from_dict(
        given, kernel=kernel(2), targets=[1.0, -1.0], test_kernel=kernel(3)[2:], test_targets=TARGETS[:1]
    )
    p, found = Problem.of(e), []
    age = integrator_for(p).age
    assert age is not None
    for step in (0.2, 0.1):
        grid = aged_grid(p.times, age, step=step, order=3)
        assert not np.isin(p.times[1:-1], grid.nodes).any()
        (run,) = prepared_for(p, grid).runs(256, [np.random.SeedSequence(0)])
        found.append((grid.once(run["f", ()]), grid.twice(run["Phi", (1,)])))
    for coarse, fine in zip(*found, strict=True):
        assert coarse.shape[-1] == 3
        np.testing.assert_allclose(coarse, fine, atol=5e-3)


def test_flows_whose_errors_jump_are_explicit() -> None:
    integrator = integrator_for(problem({"depth": 1}, {"time": 1.0, "objective": "hinge"}))
    assert integrator.name == "Adams-Bashforth"
    assert integrator.age is None


def test_what_alternates_from_step_to_step_is_not_amplified() -> None:
    """Check long steps, of a third of the decay time of weights.

    Gradients that follow the outputs through two nodes made replicas alternate by half of their errors.
    """
    p = problem({}, {"time": 60.0, "weight_decay": 0.1, "temperature": 0.01}, 3)
    age = integrator_for(p).age
    assert age is not None
    found = errors(p, aged_grid(p.times, age, step=0.3, order=2), paths=128, replicas=4)
    assert found[:, -2:].std(axis=0, ddof=1).max() < 0.12


@pytest.mark.parametrize("network", [{}, {"relative_widths": [1.94, 1.67]}])
def test_weights_by_sample(network: dict[str, Any]) -> None:
    """``w(t, s) Delta(alpha, s)`` is ``w(alpha, t, s)`` wherever updates enter; nothing else is changed."""
    whole = problem(network, {"time": 1.0}).discrete
    own, both = Function("w")(alpha, t, s), Function("w")(t, s) * Function("Delta")(alpha, s)
    for changed, e in zip(by_sample(whole).equations, whole.equations, strict=True):
        assert changed.rhs.subs(own, both).doit() == e.rhs.doit()
        assert changed.rhs.has(own) == e.rhs.has(Function("w")(t, s))
    with pytest.raises(NotApplicable, match="jumps"):
        by_sample(problem({}, {"time": 1.0, "objective": "hinge"}).discrete)
    bare = replace(
        whole,
        equations=tuple(replace(e, terms=(e.terms[0].with_expression(e.rhs),)) for e in whole.equations),
    )
    with pytest.raises(NotApplicable, match="needs sums over errors times gradients"):
        by_sample(bare)


@pytest.mark.slow
def test_widths_of_any_digits_leave_no_update_out() -> None:
    """Numbers whose products round differently in another order had one memory term not recognised."""
    network = {"activation": "linear", "gamma0": 1.7, "relative_widths": [1.94, 1.67]}
    given = {"time": 1.0, "points": 2}
    p, exact = (problem(network, given, 1, method=x, rtol=1e-6) for x in ("paths", "march"))
    found = errors(p, aged_grid(p.times, Age(0.5), step=0.1, order=3), paths=256, replicas=1)
    np.testing.assert_allclose(found[0], solve(exact, kernels="none").error.values, atol=1e-3)


def test_a_flow_in_which_nothing_is_learnt_stays_where_it_is() -> None:
    given = {
        "network": {"depth": 1, "activation": "tanh"},
        "training": {"rule": "flow", "time": 1.0, "points": 2},
    }
    nothing = Experiment.from_dict(
        given | {"solver": {"method": "paths", "samples": 64}}, kernel=[[0.0]], targets=[1.0]
    )
    assert solve(nothing).error.values.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("age", [Age(0.5), Age(0.5, 20.0), Age(2.0, 1.0)])
def test_ages(age: Age) -> None:
    """``dx / dt = 1 / min(tau + t, most)``, and back."""
    times = np.geomspace(1e-3, 300.0, 4000)
    np.testing.assert_allclose(age.back(age.of(times)), times, rtol=1e-12)
    slope = np.gradient(age.of(times), times)[1:-1]
    np.testing.assert_allclose(slope, 1 / np.minimum(age.tau + times[1:-1], age.most), rtol=5e-3)


# -- to t = 1e4 ----------------------------------------------------------------------------------------------


def test_what_is_learnt_stays() -> None:
    """Ten thousand times the first scale of time, in steps of up to 3000."""
    p = problem({"depth": 1}, {"time": 1e4, "points": 6, "grid": "log"}, samples=2)
    found = solve(p, kernels="none")
    assert found.attrs["status"] == "ok"
    assert found.attrs["time_nodes"] < 150
    assert found.train_loss.values[0] == pytest.approx(1.0)
    assert found.train_loss.values[-2:].max() < 1e-6
    assert found.train_loss_systematic.values[-1] < 1e-6 < found.train_loss_systematic.values.max()


@pytest.mark.slow
def test_a_long_flow_with_momentum() -> None:
    """Its loss ran away at t = 33: the standard error of an explicit rule that is unstable is large, too."""
    training = {"time": 100.0, "points": 3, "momentum": 0.5}
    found = solve(problem({"depth": 1, "activation": "relu"}, training), kernels="none")
    assert found.attrs["status"] == "ok"
    assert found.train_loss.values[-1] < 1e-6


def test_the_status_is_that_of_the_numbers_that_are_stated() -> None:
    """A grid with an error above the requested accuracy, as ``rtol`` allows, had the status ok."""
    training = {"time": 20.0, "points": 3, "momentum": 2.0}
    p = problem({"depth": 1, "activation": "relu"}, training, rtol=0.5, accuracy=5e-3)
    found = solve(p, kernels="none")
    assert found.attrs["bias"] > 5e-3 > found.attrs["accuracy"]
    assert found.attrs["status"] == "not converged"
    assert found.error_systematic.values.max() >= 5e-3


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "tanh"])
def test_networks_of_the_logistic_loss_to_ten_thousand(activation: str) -> None:
    """Compare with networks of the logistic loss, which never converges.

    With ``f' = K e^(-f)`` the loss is ``1/(K t)``, and K grows with the outputs. Networks take Runge-Kutta
    steps.
    """
    training = {"time": 1e4, "points": 8, "grid": "log", "objective": "logistic"}
    p = problem({"depth": 1, "activation": activation}, training)
    found, networks = (
        solve(p, kernels="none"),
        simulate(p, width=256, seeds=8, kernels="none", tolerance=1e-3),
    )
    slopes = np.diff(np.log(found.train_loss.values[-3:])) / np.diff(np.log(p.times[-3:]))
    assert (slopes < -1).all()
    assert (slopes > -1.3).all()
    ratio = networks.train_loss.values / found.train_loss.values - 1
    noise = (
        np.hypot(networks.train_loss_stderr.values, found.train_loss_stderr.values) / found.train_loss.values
    )
    assert (np.abs(ratio) < 4 * noise + 0.01).all(), ratio
    assert np.abs(ratio[-1]) < 0.02


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "training", "count"),
    [
        ({"depth": 3, "activation": "tanh"}, {}, 5),
        ({"depth": 2, "activation": "relu"}, {"objective": "logistic"}, 3),
        ({"depth": 2, "activation": "tanh"}, {"weight_decay": 0.01, "time": 100.0}, 3),
    ],
)
def test_deep_flows_to_ten_thousand(network: dict[str, Any], training: dict[str, Any], count: int) -> None:
    """Minutes of processor time; the error of the grid is known, and compared with a finer grid."""
    p = problem(network, {"time": 1e4, "points": 30, "grid": "log"} | training, samples=count)
    begun = time.process_time()
    found = solve(p, kernels="none")
    assert time.process_time() - begun < 120.0
    assert found.attrs["status"] == "ok"
    age = integrator_for(p).age
    assert age is not None
    fine = errors(p, aged_grid(p.times, age, step=0.06, order=2), paths=256, replicas=4)
    noise = np.hypot(fine.std(axis=0, ddof=1) / 2, found.error_stderr.values)
    missed = np.abs(fine.mean(axis=0) - found.error.values)
    assert (missed <= 5 * noise + 3 * found.error_systematic.values + 1e-4).all()
