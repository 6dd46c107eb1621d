"""dmft verify of nonlinear networks: the checks pass, and each sees an error that is planted."""

from dataclasses import replace

import numpy as np
import pytest
from sympy import Function, tanh

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
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.solver import solve
from numerics.solver.direct import evaluate
from numerics.verification import Effort, identities, networks, sampled, series, verify
from numerics.verification.plan import NetworkPlan
from numerics.verification.smaller_problems import smaller_problem, solve_by_paths, with_solver
from tests.derive.once import mean_field, mlp, scaled

KERNEL = np.array([[1.0, 0.3], [0.3, 0.8]])
TARGETS = np.array([1.0, -0.6])
FLOW = {"rule": "flow", "time": 2.0, "points": 5}
QUICK = Effort(work=1e9, smallest=(32,), paths=256, replicas=6)


def experiment(network=None, training=None, solver=None):
    steps = {} if training and "rule" in training else {"learning_rate": 0.3, "steps": 3}
    tables = {
        "network": {"depth": 2, "activation": "tanh", "gamma0": 1.5, **(network or {})},
        "training": {**steps, **(training or {})},
        "solver": {"samples": 512, **(solver or {})},
    }
    return Problem.of(Experiment.from_dict(tables, kernel=KERNEL, targets=TARGETS))


@pytest.mark.slow
def test_a_nonlinear_network_is_verified(tmp_path):
    report = verify(experiment(), tmp_path / "out", effort=QUICK)
    assert report.passed, report.table()
    table = report.table()
    assert table.startswith("tanh network: L = 2 hidden layers")
    for row in (
        "paths vs direct evaluation",
        "Stein's lemma",
        "lazy limit",
        "mean G^2_mumu(t,t)",
        "Phi^1(t,t)",
        "B^l: gamma0^2",
    ):
        assert row in table
    assert "expansion: gamma0^2 on 2 samples and 3 steps" in table
    assert {x.name for x in (tmp_path / "out").iterdir()} == {
        *("equations.txt", "equations.tex", "table.txt", "checks.json"),
        *("theory.nc", "networks.nc", "figure.png", "report.html"),
    }


def test_a_march_that_is_not_the_theory_is_seen():
    small = smaller_problem(experiment(), 2, 2)
    wrong = scaled(small.discrete, "memory", 1.3)
    written = evaluate(
        small.discrete,
        steps=len(small.times),
        values=small.values,
        data=small.arrays,
        method="particles",
        samples=QUICK.paths,
        replicas=QUICK.replicas,
    )
    for theory in (small.discrete, wrong):
        march = solve_by_paths(small, QUICK.paths, QUICK.replicas, 1, theory=theory)
        assert sampled.same("march", march, written, QUICK.replicas).passed == (theory is small.discrete)


@pytest.mark.slow
def test_descent_is_sampled_as_its_flow_is():
    """With a velocity no nodes follow the flow, but its steps have them: errors of both are compared."""
    flow = {"rule": "flow", "time": 1.0, "points": 3, "momentum": 2.0}
    network = {"depth": 1, "activation": "h**2/2", "gamma0": 0.3}
    tables = {"network": network, "training": flow, "solver": {"accuracy": 0.1}}
    problem = Problem.of(Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0]))
    (check,) = identities.small_steps(problem, solve(problem, kernels="none"))
    assert check.passed


@pytest.mark.slow
def test_an_affine_activation_is_checked_on_paths():
    """Its theory is linear, but its averages are not of two fields: the march does not take it."""
    spec = {"network": {"depth": 1, "activation": "h + 0.5"}, "training": {"learning_rate": 0.1, "steps": 2}}
    report = verify(Experiment.from_dict(spec, kernel=KERNEL, targets=TARGETS), effort=QUICK)
    assert report.passed, report.table()


def test_responses_obey_steins_lemma():
    (check,) = sampled.responses(experiment(), replace(QUICK, replicas=16))
    assert check.passed


@pytest.mark.slow
def test_steins_lemma_holds_of_sources_of_one_matrix_that_is_used_twice():
    """Sources of ``R @ a`` and ``R @ b`` are correlated: each response contributes to products with both."""
    units, pixels = Population("units"), Population("pixels", given=True)
    first, second, third = (Field(name, units) for name in "abc")
    x, read = GivenVector("x", pixels, "K_x"), GaussianVector("w", units)
    W, R = GaussianMatrix("W", units, pixels), GaussianMatrix("R", units, units)
    f, y = Function("f"), Function("y")
    forward = {
        first(mu, t): W @ x(mu),
        second(mu, t): R @ tanh(first(mu, t)) + W @ x(mu),
        third(mu, t): R @ tanh(second(mu, t)),
        f(mu, t): Mean(read.symbol * third(mu, t)) / gamma0,
    }
    net = Network("twice", (first, second, third), forward, weights=(W, R, read), given=(x,))
    program = net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
    given = {"numbers": {"eta": 0.3, "gamma0": 1.5}, "arrays": {"K_x": [[1.0]], "y": [1.0]}}
    (check,) = sampled.responses(Problem.of(program, **given, times=range(3)), QUICK)
    assert check.passed


def test_steps_that_are_not_those_of_the_tangent_kernel_are_seen():
    given = {"numbers": {"eta": 0.3, "gamma0": 1.5}, "arrays": {"K_x": KERNEL, "y": TARGETS}}
    theory = mean_field(mlp(2, "tanh"))
    right, wrong = (Problem.of(x, **given, times=range(4)) for x in (theory, scaled(theory, "memory", 1.5)))
    assert all(c.passed for c in sampled.lazy(right, QUICK))
    assert not all(c.passed for c in sampled.lazy(wrong, QUICK))


def test_where_a_slope_jumps_there_is_no_second_way_to_responses():
    assert sampled.responses(experiment({"activation": "relu"})) == []


def test_without_matrices_between_layers_there_are_no_responses():
    e = experiment({"depth": 1})
    assert sampled.responses(e) == []
    assert identities.causality(e, solve(with_solver(e, "paths"))) == []


def test_networks_see_a_kernel_of_the_wrong_size():
    e = experiment()
    theory = solve(e)
    trained = networks.train(e, NetworkPlan((32, 64, 128), (30, 30, 30)))
    assert all(c.passed for c in networks.against_networks(theory, trained))
    wrong = theory.assign(G=1.3 * theory.G)
    failed = [c.name for c in networks.against_networks(wrong, trained) if not c.passed]
    assert any("G^" in name for name in failed)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_flow_is_verified(activation):
    report = verify(experiment({"activation": activation}, FLOW), effort=QUICK)
    assert report.passed, report.table()
    assert "from descent" in report.table()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "training"),
    [
        ({"activation": "relu", "depth": 1}, {}),
        ({"activation": "softplus", "bias": True}, {"weight_decay": 0.2}),
        ({"branch": 0.6, "depth": 3}, {"momentum": 0.5}),
        ({"relative_widths": [1.0, 0.5], "init_variance": [1.0, 1.5, 0.7]}, {}),
        ({"activation": "erf"}, {"temperature": 0.1, "weight_decay": 0.2}),
    ],
)
def test_every_kind_of_network_is_verified(network, training):
    report = verify(experiment(network, training), effort=QUICK)
    assert report.passed, report.table()


def test_standard_errors_of_coefficients_halve_with_four_times_the_replicas():
    problem = experiment({"depth": 1, "gamma0": 1.0})
    few, many = (series.differences(problem, (0.1, 0.2), paths=32, replicas=n, seed=1) for n in (64, 256))
    ratio = float(few.train_loss_stderr[-1] / many.train_loss_stderr[-1])
    assert ratio == pytest.approx(2, rel=3 / np.sqrt(2 * 63))  # three errors of a spread of 64 numbers
