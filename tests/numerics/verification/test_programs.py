"""A program of one's own goes the whole way, from Python and from a file; an error planted in it is seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sympy import Function, Rational, tanh

from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    L,
    Mean,
    Network,
    Population,
    Program,
    TrainedMatrix,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.cli import run
from numerics.errors import SpecError
from numerics.experiment.problem import Problem
from numerics.verification import Effort, verify
from numerics.verification.identities import descended
from numerics.verification.openings import few, opening
from tests.derive.once import mean_field, mlp, scaled

KERNEL = np.array([[1.0, 0.3], [0.3, 0.8]])
TARGETS = np.array([1.0, -0.6])
GIVEN = {"numbers": {"eta": 0.3, "gamma0": 1.2}, "arrays": {"K_x": KERNEL, "y": TARGETS}, "times": range(4)}
FEW = Effort(work=1e9, smallest=(32, 16))


@pytest.mark.slow
def test_a_program_is_verified_as_an_experiment_is(tmp_path: Path) -> None:
    given = {**GIVEN, "numbers": {**GIVEN["numbers"], "L": 2}}
    report = verify(mlp(L), tmp_path / "out", effort=FEW, **given)
    assert report.passed, report.table()
    table = report.table()
    for row in (
        "two routes, L = 2",
        "updates off the gradient, L = 2",
        "two routes, symbolic L",
        "march = theory as written",
        "H^2(t,t)",
    ):
        assert row in table
    assert "loss: power of gamma0 that is missed" in table
    assert {x.name for x in (tmp_path / "out").iterdir()} >= {"networks.nc", "figure.png", "checks.json"}


@pytest.mark.slow
def test_a_program_without_kernels_of_layers_has_a_figure(tmp_path: Path) -> None:
    units, pixels = Population("units"), Population("pixels", given=True)
    x, k, out, goal = GivenVector("x", pixels, "K_x"), Field("k", units), Function("out"), Function("goal")
    A, r = GaussianMatrix("A", units, pixels), GaussianVector("r", units)
    forward = {k(mu, t): A @ x(mu), out(mu, t): Mean(r.symbol * tanh(k(mu, t))) / gamma0}
    net = Network("no layers", (k,), forward, weights=(A, r), given=(x,))
    program = net.train((goal(mu) - out(mu, t)) ** 2 / 2, GradientDescent(eta))
    given = GIVEN | {"arrays": {"K_x": KERNEL, "goal": TARGETS}}
    report = verify(program, tmp_path / "out", effort=FEW, **given)
    assert report.passed, report.table()
    assert (tmp_path / "out" / "figure.png").stat().st_size > 0


def test_an_error_planted_in_a_theory_is_seen() -> None:
    """A theory with half the memory is solved as it is, and networks tell it apart."""
    report = verify(scaled(mean_field(mlp(1)), "memory", Rational(1, 2)), effort=FEW, **GIVEN)
    assert any(x.group == "networks" for x in report.failed), report.table()


def half_the_update(program: Program) -> Program:
    """The program with a wrong factor in the update of its hidden matrices."""
    first, hidden = program.matrices
    assert isinstance(hidden, TrainedMatrix)
    wrong = replace(hidden.update, coefficient=hidden.update.coefficient / 2)
    return replace(program, matrices=(first, replace(hidden, update=wrong)))


@pytest.mark.parametrize(
    "program", [mlp(2), mlp(2, "tanh"), mlp(2, "tanh", "flow"), mlp(2, "erf", objective="logistic")]
)
def test_a_step_down_differences_of_the_loss_sees_a_wrong_update(program: Program) -> None:
    numbers = {k: v for k, v in GIVEN["numbers"].items() if k == "gamma0" or program.rule.discrete}
    (right,), (wrong,) = (
        descended(Problem.of(p, **{**GIVEN, "numbers": numbers})) for p in (program, half_the_update(program))
    )
    assert right.passed
    assert not wrong.passed


@pytest.mark.slow
def test_a_program_in_a_file_is_verified(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text("from derive.program import mlp\nprogram = mlp(2, 'tanh')\n")
    np.save(tmp_path / "k.npy", KERNEL)
    np.save(tmp_path / "y.npy", TARGETS)
    words = ["-D", f"kernel={tmp_path / 'k.npy'}", "-D", f"targets={tmp_path / 'y.npy'}"]
    for key in ("training.steps=3", "training.learning_rate=0.3", "network.gamma0=1.2", "solver.samples=512"):
        words += ["--set", key]
    assert run(["verify", f"{tmp_path / 'net.py'}:program", *words, "-o", str(tmp_path / "out")]) == 0
    printed = capsys.readouterr().out
    assert "Single-site process" in printed
    assert (tmp_path / "out" / "table.txt").read_text() in printed


def test_what_is_missing_is_named_before_anything_runs() -> None:
    with pytest.raises(SpecError, match=r"numbers\.gamma0"):
        verify(mlp(2), **{**GIVEN, "numbers": {"eta": 0.3}})


def test_openings_of_a_program_keep_what_a_sample_teaches() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 40))
    arrays = {"K_x": x @ x.T / 40, "y": x[:, 0]}
    program = mlp(2, "linear", "gd", "mean")
    problem = Problem.of(program, numbers=GIVEN["numbers"], arrays=arrays, times=range(100))
    small = opening(problem, 3, 5)
    assert (small.seen, small.sample_count, len(small.times)) == (3, 3, 6)
    np.testing.assert_array_equal(small.arrays["K_x"], arrays["K_x"][np.ix_([0, 14, 29], [0, 14, 29])])
    cut = few(problem, Effort(kernel=0.0))
    rates = [p.values[s] / p.sample_count for p in (problem, cut) for s in p.numbers if s.name == "eta"]
    assert rates[0] == pytest.approx(rates[1])
