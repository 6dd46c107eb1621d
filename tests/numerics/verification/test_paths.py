"""dmft verify of nonlinear networks: the checks pass, and each sees an error that is planted."""

from dataclasses import replace

import numpy as np
import pytest

from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.solver import solve
from numerics.verification import identities, networks, sampled, series, verify
from numerics.verification.networks import Plan
from numerics.verification.openings import by

KERNEL = np.array([[1.0, 0.3], [0.3, 0.8]])
TARGETS = np.array([1.0, -0.6])
FLOW = {"rule": "flow", "time": 2.0, "points": 5}


def experiment(network=None, training=None, solver=None):
    steps = {} if training and "rule" in training else {"learning_rate": 0.3, "steps": 3}
    tables = {
        "network": {"depth": 2, "activation": "tanh", "gamma0": 1.5, **(network or {})},
        "training": {**steps, **(training or {})},
        "solver": {"samples": 512, **(solver or {})},
    }
    return Problem.of(Experiment.from_dict(tables, kernel=KERNEL, targets=TARGETS))


@pytest.fixture
def quick(monkeypatch):
    """Fewer paths and networks."""
    monkeypatch.setattr(sampled, "PATHS", 256)
    monkeypatch.setattr(sampled, "READ_PATHS", 256)
    monkeypatch.setattr(sampled, "REPLICAS", 6)
    monkeypatch.setattr(series, "PATHS", 256)
    monkeypatch.setattr(series, "REPLICAS", 6)
    monkeypatch.setattr(networks, "plan_of", lambda e: Plan((32, 64, 128), (30, 30, 30)))


@pytest.mark.slow
def test_a_nonlinear_network_is_verified(quick, tmp_path):
    report = verify(experiment(), out_dir=tmp_path / "out")
    assert report.passed, report.table()
    table = report.table()
    assert table.startswith("tanh network: L = 2 hidden layers")
    for row in (
        "paths = theory as written",
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
        *("theory.nc", "networks.nc", "figure.png"),
    }


def changed(kind, factor):
    """Theories with terms of a kind multiplied."""
    right = Problem.__dict__["discrete"]

    def derive(problem):
        theory = right.func(problem)
        return replace(
            theory,
            equations=tuple(
                replace(
                    x,
                    terms=tuple(y.times(factor) if y.kind == kind else y for y in x.terms),
                )
                for x in theory.equations
            ),
        )

    return derive


def test_a_march_that_is_not_the_theory_is_seen(quick, monkeypatch):
    right = sampled.particles
    wrong = changed("memory", 1.3)
    monkeypatch.setattr(sampled, "particles", lambda small, *given: right(small, *given, theory=wrong(small)))
    assert not all(c.passed for c in sampled.reading(experiment()))


def test_responses_of_the_wrong_size_are_seen(quick, monkeypatch):
    right = sampled._factor
    monkeypatch.setattr(sampled, "REPLICAS", 16)
    monkeypatch.setattr(sampled, "_factor", lambda q: 1.2 * right(q))
    (check,) = sampled.responses(experiment())
    assert not check.passed


def test_steps_that_are_not_those_of_the_tangent_kernel_are_seen(quick, monkeypatch):
    monkeypatch.setattr(Problem, "discrete", property(changed("memory", 1.5)))
    (check,) = sampled.lazy(experiment())
    assert not check.passed


def test_where_a_slope_jumps_there_is_no_second_way_to_responses(quick):
    assert sampled.responses(experiment({"activation": "relu"})) == []


def test_without_matrices_between_layers_there_are_no_responses(quick):
    e = experiment({"depth": 1})
    assert sampled.responses(e) == []
    assert identities.causality(e, solve(by(e, "paths"))) == []


def test_networks_see_a_kernel_of_the_wrong_size(quick):
    e = experiment()
    theory = solve(e)
    trained = networks.train(e, Plan((32, 64, 128), (30, 30, 30)))
    assert all(c.passed for c in networks.against_networks(theory, trained))
    wrong = theory.assign(G=1.3 * theory.G)
    failed = [c.name for c in networks.against_networks(wrong, trained) if not c.passed]
    assert any("G^" in name for name in failed)


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_a_flow_is_verified(quick, activation):
    report = verify(experiment({"activation": activation}, FLOW))
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
def test_every_kind_of_network_is_verified(quick, network, training):
    report = verify(experiment(network, training))
    assert report.passed, report.table()


def test_standard_errors_of_coefficients_halve_with_four_times_the_replicas():
    problem = experiment({"depth": 1, "gamma0": 1.0})
    few, many = (series.differences(problem, (0.1, 0.2), paths=32, replicas=n, seed=1) for n in (64, 256))
    ratio = float(few.train_loss_stderr[-1] / many.train_loss_stderr[-1])
    assert ratio == pytest.approx(2, rel=3 / np.sqrt(2 * 63))  # three errors of a spread of 64 numbers
