"""Two-layer networks without memory: exact references, particles and networks, error estimates, refusals."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from sympy import Function, Rational

from derive.errors import NotApplicable
from derive.program import P, eta, gamma0
from numerics.errors import Diverged, NotConverged
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.simulation import simulate_program
from numerics.solver import explain, solve
from numerics.solver.direct import evaluate
from numerics.solver.method import MethodEstimate
from numerics.solver.paths import solve_particles
from numerics.solver.quadrature.solve import TwoLayerSolved, forecast, solve_nodes, solve_two_layer, tensor
from tests.chance import excess
from tests.derive.once import convolution, feedback_alignment, mean_field, mlp
from tests.numerics.solver.helpers import TARGETS, kernel
from tests.numerics.solver.test_particles_networks import distances

DATA: dict[str, Any] = {"K_x": kernel(2), "y": TARGETS[:2]}
VALUES: dict[Any, Any] = {eta: 0.3, gamma0: 1.1, P: 2}


def solved(activation: Any, steps: int = 5, **options: Any) -> TwoLayerSolved:
    given: dict[str, Any] = {"values": VALUES, "data": DATA} | options
    return solve_two_layer(mean_field(mlp(1, activation)), steps=steps, **given)


def within(z: np.ndarray, replicas: int) -> None:
    """Require distances that standard errors over this many replicas explain."""
    assert excess(z, replicas - 1) < 1
    assert np.sqrt((z**2).mean()) < 1.8


# -- exact references ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_linear_networks_in_steps() -> None:
    exact = evaluate(mean_field(mlp(1)), steps=8, values=VALUES, data=DATA)
    ours = solved("linear", steps=8, accuracy=1e-12)
    assert ours.converged
    assert ours.rule == "hermite"
    for name, layer in exact.values:
        np.testing.assert_allclose(ours.value(name, layer), exact.value(name, layer), rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    ("network", "training"),
    [
        ({}, {}),
        pytest.param({"bias": True}, {"weight_decay": 0.3}, marks=pytest.mark.slow),
        pytest.param({}, {"momentum": 0.4}, marks=pytest.mark.slow),
    ],
    ids=["plain", "bias and decay", "momentum"],
)
def test_linear_flows(network: dict[str, Any], training: dict[str, float]) -> None:
    """Against the march of the same experiment's integral equations."""
    rule = {"rule": "flow", "time": 0.5, "points": 3, "loss": "mean"}
    spec = {"network": {"depth": 1, "gamma0": 1.5} | network, "training": rule | training}
    experiment = Experiment.from_dict(
        spec | {"solver": {"rtol": 1e-7}}, kernel=kernel(2), targets=TARGETS[:2]
    )
    exact = solve(experiment)
    ours = solve_nodes(experiment, accuracy=1e-7)
    assert ours.converged
    np.testing.assert_allclose(ours.value("Delta"), exact["error"].values, rtol=0, atol=1e-6)
    if not network:
        phi = ours.value("H", 1).transpose(2, 3, 0, 1)
        np.testing.assert_allclose(phi, exact["Phi"].values[0], rtol=0, atol=1e-5)


def test_tanh_to_ten_digits() -> None:
    """One sample, two updates written out by hand, on a grid of Gauss-Legendre points."""
    rate, g = 0.5, 1.3
    x, w = np.polynomial.legendre.leggauss(300)
    x, w = 9 * x, 9 * w * np.exp(-((9 * x) ** 2) / 2) / np.sqrt(2 * np.pi)
    u, r, weight = x[:, None], x[None, :], np.outer(w, w)
    h, z, delta = u + 0 * r, r + 0 * u, [1.0]
    for _ in range(2):
        kick = rate * g * delta[-1]
        h, z = h + kick * z / np.cosh(h) ** 2, z + kick * np.tanh(h)
        delta.append(1 - (weight * z * np.tanh(h)).sum() / g)
    data, values = {"K_x": [[1.0]], "y": [1.0]}, {eta: rate, gamma0: g, P: 1}
    ours = solved("tanh", steps=3, data=data, values=values, accuracy=1e-11)
    assert ours.converged
    assert ours.dimensions == 2
    np.testing.assert_allclose(ours.value("Delta")[:, 0], delta, rtol=0, atol=1e-10)
    mean = (weight * np.tanh(h) ** 2).sum()
    np.testing.assert_allclose(ours.value("Phi", 1)[0, 0, 2, 2], mean, rtol=0, atol=1e-10)
    paths = ours.paths["h", (1,)][2, 0]
    np.testing.assert_allclose(ours.weights @ paths**4, (weight * h**4).sum(), rtol=0, atol=1e-9)


def test_flows_are_the_limit_of_steps() -> None:
    """On the same nodes: half the steps, half the distance; extrapolated, none."""
    same: dict[str, Any] = {"rule": "trapezoid", "start": 14, "most": 1, "accuracy": 1e-8}
    theory = mean_field(mlp(1, "tanh", "flow"))
    flow = solve_two_layer(theory, times=[0.0, 0.5, 1.0], values=VALUES, data=DATA, **same)
    found = []
    for n in (10, 20, 40):
        run = solved("tanh", steps=n + 1, values=VALUES | {eta: 1 / n}, kernels=False, **same)
        found.append(run.value("Delta")[:: n // 2] - flow.value("Delta"))
    coarse, middle, fine = found
    assert 0.4 < np.abs(middle).max() / np.abs(coarse).max() < 0.6
    limit = (coarse - 6 * middle + 8 * fine) / 3
    assert np.abs(limit).max() < 1e-3 * np.abs(coarse).max()


@pytest.mark.slow
def test_two_rules_agree_and_errors_hold() -> None:
    best = solved("erf", steps=4, accuracy=1e-7)
    assert best.converged
    assert best.rule == "trapezoid"
    other = solved("erf", steps=4, rule="hermite", accuracy=1e-4)
    scattered = solved("erf", steps=4, rule="sobol", accuracy=1e-3)
    for name, layer in best.values:
        gap = np.abs(other.value(name, layer) - best.value(name, layer))
        assert (gap <= other.stderr(name, layer) + 1e-7).all()
    z = distances(scattered, best)
    within(z, 8)


def test_standard_errors_halve_with_four_times_the_replicas() -> None:
    few, many = (
        solved("erf", steps=3, rule="sobol", replicas=n, start=64, most=64, kernels=False) for n in (32, 128)
    )
    ratio = np.linalg.norm(few.stderr("Delta")) / np.linalg.norm(many.stderr("Delta"))
    assert ratio == pytest.approx(2, rel=3 / np.sqrt(2 * 31))  # three errors of a spread of 32 numbers


def test_a_small_first_set_of_points_is_not_compared_with_itself() -> None:
    """From one point on, each set is larger than the last, or the error would be zero by construction."""
    best = solved("tanh", steps=3, kernels=False)
    ours = solved("tanh", steps=3, rule="hermite", start=1, accuracy=1e-3, kernels=False)
    gap = np.abs(ours.value("Delta") - best.value("Delta"))
    assert (gap <= ours.stderr("Delta") + 1e-7).all()
    with pytest.raises(ValueError, match="start = 0: must be at least 1"):
        solved("tanh", steps=3, start=0)


def test_rank_of_the_data() -> None:
    """Repeated and antiparallel samples add no dimension."""
    x = np.array([[1.0, 0.5], [1.0, 0.5], [-2.0, -1.0]])
    values = VALUES | {P: 3}
    ours = solved("tanh", values=values, data={"K_x": x @ x.T / 2, "y": TARGETS[:3]})
    assert ours.dimensions == 2
    assert ours.converged
    np.testing.assert_allclose(ours.value("f")[:, 0], ours.value("f")[:, 1], rtol=0, atol=1e-14)


def test_nodes() -> None:
    for rule, count in (("hermite", 20), ("trapezoid", 30)):
        nodes = tensor(rule, count, 3)  # type: ignore[arg-type]
        moment = nodes.weights @ (nodes.points[0] ** 4 * nodes.points[2] ** 2)
        assert abs(moment - 3) < 1e-11


# -- particles -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "activation",
    ["tanh", "relu", *(pytest.param(x, marks=pytest.mark.slow) for x in ("softplus", "erf", "sin"))],
)
def test_particles(activation: str) -> None:
    theory = mean_field(mlp(1, activation))
    ours = solved(activation, accuracy=1e-4, most=2**14)
    particles = solve_particles(theory, steps=5, values=VALUES, data=DATA, samples=1024, replicas=16, seed=7)
    z = distances(particles, ours)
    within(z, 16)


QUICK = ("feedback alignment", "weight decay")
PROGRAMS: dict[str, Any] = {
    "bias and channels": partial(mlp, 1, "tanh", bias=True, outputs=2),
    "momentum": partial(mlp, 1, "tanh", momentum=Rational(1, 2)),
    "weight decay": partial(mlp, 1, "tanh", weight_decay=Rational(1, 2)),
    "both": partial(mlp, 1, "tanh", weight_decay=Rational(1, 2), momentum=Rational(1, 3)),
    "feedback alignment": partial(feedback_alignment, 1, "tanh"),
    "widths and variances": partial(mlp, 1, "tanh", relative_widths=[Rational(1, 2)], init_variance=[2, 1]),
}


@pytest.mark.parametrize(
    "name", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in PROGRAMS]
)
def test_programs(name: str) -> None:
    data = DATA | ({"y": np.stack([TARGETS[:2], -TARGETS[1:3]], axis=1)} if "channels" in name else {})
    given: dict[str, Any] = {"steps": 4, "values": VALUES, "data": data}
    theory = mean_field(PROGRAMS[name]())
    ours = solve_two_layer(theory, accuracy=1e-3, most=2**14, **given)
    particles = solve_particles(theory, samples=512, replicas=16, seed=1, **given)
    z = distances(particles, ours)
    within(z, 16)


@pytest.mark.slow
def test_convolution() -> None:
    """Comparison with the direct evaluation of the same theory, which uses no states."""
    x = np.random.default_rng(3).standard_normal((1, 3, 4))
    data = {"K_x": np.einsum("mpd,nqd->mpnq", x, x) / 4, "y": TARGETS[:1]}
    theory = mean_field(convolution(1, "tanh", positions=3, receptive=1))
    given: dict[str, Any] = {"steps": 2, "values": VALUES | {eta: 0.05, P: 1}, "data": data}
    ours = solve_two_layer(theory, accuracy=1e-3, most=2**12, **given)
    other = evaluate(theory, samples=2**8, replicas=16, seed=5, **given)
    z = distances(other, ours)
    within(z, 16)


@pytest.mark.parametrize("activation", ["tanh", pytest.param("softplus", marks=pytest.mark.slow)])
def test_the_error_of_particles_falls_with_samples(activation: str) -> None:
    """Without a floor: at 16 times the samples by more than the root of 16."""
    exact = solved(activation, accuracy=1e-8)
    error = {}
    for samples in (64, 1024):
        runs = solve_particles(
            mean_field(mlp(1, activation)),
            steps=5,
            values=VALUES,
            data=DATA,
            samples=samples,
            replicas=24,
            seed=samples,
        ).runs["Delta", ()]
        error[samples] = np.sqrt(((runs - exact.value("Delta"))[:, 1:] ** 2).mean())
    assert error[1024] < error[64] / 4


# -- networks ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_flow_against_networks() -> None:
    """Gradient flow of networks of two widths, taken to infinite width."""
    program, times = mlp(1, "tanh", "flow"), [0.0, 0.5, 1.0, 1.5]
    ours = solve_two_layer(mean_field(program), times=times, values=VALUES, data=DATA, accuracy=1e-5)
    a, b = 100, 200
    narrow, wide = (
        simulate_program(
            program, width=n, steps=3, seeds=100, values=VALUES, data=DATA, seed=n, dt=0.1, times=times
        )
        for n in (a, b)
    )
    for name in ("Delta", "Phi", "G"):
        limit = (b * wide[name].mean - a * narrow[name].mean) / (b - a)
        error = np.hypot(b * wide[name].stderr, a * narrow[name].stderr) / (b - a)
        value = ours.value(name) if name == "Delta" else ours.value(name, 1).transpose(2, 3, 0, 1)
        z = (limit.reshape(value.shape) - value) / error.reshape(value.shape)
        assert excess(z, 99) < 1, name


# -- test points ---------------------------------------------------------------------------------------------


def test_predictions() -> None:
    """A test point that repeats a sample is predicted as it is fitted, and moves nothing."""
    inputs = np.random.default_rng(2).standard_normal((3, 4))
    training = {"learning_rate": 0.3, "steps": 4, "loss": "mean"}
    spec = {"network": {"depth": 1, "activation": "tanh"}, "training": training}
    given: dict[str, Any] = {"inputs": inputs[:2], "targets": TARGETS[:2]}
    alone = solve_nodes(Experiment.from_dict(spec, **given), accuracy=1e-4)
    asked = Experiment.from_dict(spec, **given, test_inputs=inputs[[1, 2]], test_targets=np.array([0.0, 1.0]))
    both = solve_nodes(asked, accuracy=1e-4, kernels=False, most=2**16)
    f = both.value("f")
    np.testing.assert_allclose(f[:, 2], f[:, 1], rtol=0, atol=1e-12)
    bound = 5 * (both.reached + alone.reached) * np.abs(f).max()
    np.testing.assert_allclose(f[:, :2], alone.value("f"), rtol=0, atol=bound)
    assert np.abs(f[-1, 3]) > 5 * bound


# -- refusals ------------------------------------------------------------------------------------------------


def test_refusals() -> None:
    with pytest.raises(NotApplicable, match="times its value at time 0"):
        solve_two_layer(mean_field(mlp(2, "tanh")).at_depth(2), steps=2, values=VALUES, data=DATA)
    with pytest.raises(ValueError, match="a theory in discrete time needs steps"):
        solve_two_layer(mean_field(mlp(1, "tanh")), times=[0.0, 1.0], values=VALUES, data=DATA)
    with pytest.raises(ValueError, match="times"):
        solve_two_layer(mean_field(mlp(1, "tanh", "flow")), times=[1.0, 0.5], values=VALUES, data=DATA)
    with pytest.raises(ValueError, match="function without an expression"):
        solved(Function("phi"))
    with pytest.raises(ValueError, match="data does not contain y"):
        solved("tanh", data={"K_x": kernel(2)})
    with pytest.raises(ValueError, match="values contains no number for eta"):
        solved("tanh", values={gamma0: 1.0, P: 2})
    with pytest.raises(ValueError, match=r"data\.K_x: is not positive semidefinite"):
        solved("tanh", data=DATA | {"K_x": np.array([[1.0, 2.0], [2.0, 1.0]])})
    with pytest.raises(Diverged, match="at step"):
        solved("quadratic", steps=12, values=VALUES | {eta: 1e30})


def test_a_flow_that_cannot_be_followed_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numerics.solver.quadrature.solve.RATES", 60)
    with pytest.raises(NotConverged, match="after 60 evaluations"):
        solve_two_layer(mean_field(mlp(1, "cubic", "flow")), times=[50.0], values=VALUES, data=DATA)


def test_errors_of_numbers_and_of_kernels_are_told_apart() -> None:
    """Few nodes miss more of kernels than of outputs, and the forecast is that of outputs."""
    tables = {
        "network": {"depth": 1, "activation": "tanh", "gamma0": 2.0},
        "training": {"learning_rate": 0.5, "steps": 6},
    }
    problem = Problem.of(Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0]))
    few, many = (solve_nodes(problem, accuracy=1e-12, most=n) for n in (2_000, 10_000))
    told = forecast(problem, 1e-12, most=2_000)
    assert few.kernel_error is not None
    assert many.kernel_error is not None
    assert few.scalar_error < few.kernel_error / 2
    assert few.scalar_error / 3 < told.error < 3 * few.scalar_error
    for name, error in (("Delta", few.scalar_error), ("Phi", few.kernel_error)):
        layer = 1 if name == "Phi" else None
        gap = np.abs(few.value(name, layer) - many.value(name, layer)).max()
        assert gap <= error * np.abs(many.value(name, layer)).max()


@pytest.mark.slow
def test_the_status_says_whether_outputs_have_the_accuracy() -> None:
    tables = {"network": {"depth": 1, "activation": "relu"}, "training": {"learning_rate": 0.3, "steps": 2}}
    e = Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0]).replace({"solver.method": "nodes"})
    for accuracy, status in ((1e-2, "ok"), (1e-9, "not converged")):
        found = solve(e.replace({"solver.accuracy": accuracy}), kernels="none")
        assert found.attrs["status"] == status


def test_what_is_not_reached_is_said() -> None:
    ours = solved("relu", accuracy=1e-9, most=2**11)
    assert not ours.converged
    assert ours.reached > 1e-9
    assert ours.rule == "sobol"


@pytest.mark.parametrize("samples", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_plain_solve_takes_nodes_where_they_are_exact(samples: int) -> None:
    """The forecast of trials with few nodes is close to the accuracy of moving nodes."""
    tables = {"network": {"depth": 1, "activation": "tanh"}, "training": {"learning_rate": 0.3, "steps": 8}}
    one = Experiment.from_dict(tables, kernel=kernel(samples), targets=np.ones(samples))
    choice = explain(one)
    assert choice.method is not None
    assert choice.method.name == "nodes"
    found, exact = solve(one), solve_nodes(one, accuracy=1e-9, most=2**20)
    assert found.attrs["method"] == "nodes"
    np.testing.assert_allclose(found.error.values, exact.value("Delta"), rtol=0, atol=2e-6)
    said = dict((m.name, x) for m, x in choice.answers)["nodes"]
    assert isinstance(said, MethodEstimate)
    assert said.error < 1e-4


@pytest.mark.parametrize(("samples", "most"), [(1, 2**20), (3, 2**18)])
def test_a_forecast_is_that_of_the_nodes_that_a_run_may_use(samples: int, most: int) -> None:
    """A run with scattered points took 100 s where 8 s were announced."""
    tables = {"network": {"depth": 1, "activation": "relu"}, "training": {"learning_rate": 0.3, "steps": 2}}
    one = Experiment.from_dict(tables, kernel=kernel(samples), targets=np.ones(samples))
    choice = explain(one.replace({"solver.accuracy": 1e-6}))
    (estimate,) = (x for m, x in choice.answers if m.name == "nodes")
    assert isinstance(estimate, MethodEstimate)
    assert estimate.note.startswith(f"{most} nodes, sobol")
    few = forecast(Problem.of(one), 1e-6, most=2**18, patience=1e-9)
    assert estimate.cost == pytest.approx(few.cost * most / 2**18)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"replicas": 1}, "replicas = 1: gives no standard error"),
        ({"replicas": 0}, "replicas = 0: gives no standard error"),
        ({"most": -1}, "most = -1: is the largest number of nodes"),
        ({"most": 0}, "most = 0: is the largest number of nodes"),
        ({"start": 0}, "start = 0: must be at least 1"),
        ({"steps": 0}, "steps = 0: must be at least 1"),
        ({"steps": 2.5}, "steps = 2.5: must be a whole number"),
        ({"data": DATA | {"K_x": [[1.0, 0.3], [0.0, 1.0]]}}, "data.K_x: is not symmetric"),
        ({"values": VALUES | {eta: float("nan")}}, "values.eta = nan: is not finite"),
    ],
)
def test_numbers_and_data_are_checked_first(options: dict[str, Any], reason: str) -> None:
    """One set of scattered points gave the error 0.0 and counted as converged."""
    with pytest.raises(ValueError, match=reason):
        solved("tanh", **({"rule": "sobol"} | options))


def test_times_are_finite() -> None:
    with pytest.raises(ValueError, match="times: is nan"):
        solve_two_layer(mean_field(mlp(1, "tanh", "flow")), times=[np.nan], values=VALUES, data=DATA)


@pytest.mark.parametrize("rule", ["sobol", "hermite", "trapezoid"])
def test_no_set_has_more_than_the_largest_number_of_nodes(rule: Any) -> None:
    """The first set of scattered points had 1024 points."""
    for most in (20, 100):
        ours = solved("tanh", steps=2, rule=rule, most=most, kernels=False)
        assert ours.nodes <= most
        assert not ours.converged
