"""Tests of a user's program through `verify`, from Python and from a file, with a planted error."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sympy import Function, Rational, S, Symbol, tanh

from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    L,
    Mean,
    Network,
    Population,
    Program,
    TrainedMatrix,
    adam,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.cli import run
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.results.program_names import self_correlations
from numerics.simulation import simulate
from numerics.solver import solve
from numerics.verification import Effort, identities, networks, verify
from numerics.verification.identities import gradient_step
from numerics.verification.series import expansion
from numerics.verification.smaller_problems import smaller_problem, with_small_kernels
from tests.benchmarks.programs import gram
from tests.derive.once import mean_field, mlp, scaled
from tests.numerics.test_served_programs import CASES

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
        "two derivations, L = 2",
        "wrong updates, L = 2",
        "two derivations, symbolic L",
        "march vs direct evaluation",
        "H^2(t,t)",
    ):
        assert row in table
    assert "loss: exponent of the truncation error" in table
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


def two_outputs(name: str, *, ordered: bool = False) -> Program:
    """Return a network with two outputs of two fields, or of one ordered family of two, of this name."""
    n = Symbol("n", integer=True)
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h, a = GivenVector("x", pixels, "K_x"), Field(name, units, ordered=ordered), Field("a", units)
    A, B = GaussianMatrix("A", units, pixels), GaussianMatrix("B", units, units)
    r, q = GaussianVector("r", units), GaussianVector("q", units)
    one, two, y = map(Function, ("one", "two", "y"))
    if ordered:
        forward, top = {h(1, mu, t): A @ x(mu), h(n + 1, mu, t): B @ tanh(h(n, mu, t))}, h(2, mu, t)
    else:
        forward, top = {h(mu, t): A @ x(mu), a(mu, t): B @ tanh(h(mu, t))}, a(mu, t)
    forward |= {f(mu, t): Mean(w.symbol * tanh(top)) / gamma0 for f, w in ((one, r), (two, q))}
    ranges = (IndexRange(n, S.One, S.One),) if ordered else ()
    fields = (h,) if ordered else (h, a)
    net = Network("two outputs", fields, forward, weights=(A, B, r, q), given=(x,), ranges=ranges)
    return net.train((y(mu) - one(mu, t) * (1 + two(mu, t))) ** 2 / 2, GradientDescent(eta))


@pytest.mark.parametrize("ordered", [pytest.param(False, marks=pytest.mark.slow), True])
def test_kernels_of_fields_without_layers_are_not_read_as_those_of_layers(ordered: bool) -> None:
    """The correlations of a field ``h`` without layers are called Phi and G, and have no axis of layers."""
    given = GIVEN | {"times": range(2)}
    problem = Problem.of(two_outputs("h", ordered=ordered), **given, solver=Solver(samples=64))
    theory, trained = solve(problem), simulate(problem, width=8, seeds=2, rng=0)
    assert {"Phi", "G"} <= {*theory.data_vars} & {*trained.data_vars}
    assert {*networks.traced(theory).data_vars} == {*theory.data_vars}
    compared = {x.label for x in networks.quantities(theory, [trained])}
    assert {"Phi(t,t), t = 1", "G(t,0), t = 1"} <= compared
    checks = identities.correlations(theory, authored=self_correlations(problem))
    assert {"Phi is symmetric", "G is symmetric"} <= {x.name for x in checks}
    assert all(x.passed for x in checks)


@pytest.mark.slow
@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("name", ["h", "k"])
def test_a_program_of_two_outputs_is_verified_under_any_name(name: str, ordered: bool) -> None:
    report = verify(two_outputs(name, ordered=ordered), effort=FEW, **GIVEN)
    assert report.passed, report.table()
    assert any("is symmetric" in x.name for x in report.checks)


@pytest.mark.slow
def test_an_error_planted_in_a_theory_is_seen() -> None:
    """A theory with half the memory is solved as it is, and networks reject it."""
    report = verify(scaled(mean_field(mlp(1)), "memory", Rational(1, 2)), effort=FEW, **GIVEN)
    assert any(x.group == "networks" for x in report.failed), report.table()


def half_the_update(program: Program) -> Program:
    """Return the program with a wrong factor in the update of its hidden matrices."""
    first, hidden = program.matrices
    assert isinstance(hidden, TrainedMatrix)
    wrong = replace(hidden.update, coefficient=hidden.update.coefficient / 2)
    return replace(program, matrices=(first, replace(hidden, update=wrong)))


@pytest.mark.parametrize(
    "program",
    [
        mlp(2),
        mlp(2, "tanh"),
        pytest.param(mlp(2, "tanh", "flow"), marks=pytest.mark.slow),
        mlp(2, "erf", objective="logistic"),
    ],
)
def test_a_step_down_differences_of_the_loss_sees_a_wrong_update(program: Program) -> None:
    numbers = {k: v for k, v in GIVEN["numbers"].items() if k == "gamma0" or program.rule.discrete}
    (right,), (wrong,) = (
        gradient_step(Problem.of(p, **{**GIVEN, "numbers": numbers}))
        for p in (program, half_the_update(program))
    )
    assert right.passed
    assert not wrong.passed


QUICK = ("gains of units",)


@pytest.mark.parametrize(
    "name",
    [
        x if x in QUICK else pytest.param(x, marks=pytest.mark.slow)
        for x in CASES
        if not x.startswith("modes")
    ],
)
def test_a_step_of_each_program_on_samples_is_compared(name: str) -> None:
    """Refusals of the check's own arrays counted as networks that cannot have its width."""
    given = {key: value for key, value in CASES[name].given.items() if key in ("numbers", "arrays", "times")}
    (row,) = gradient_step(Problem.of(CASES[name].make(), **given))
    assert row.passed


def test_a_step_of_an_entrywise_rule_is_compared_too() -> None:
    """Inputs and their kernel were both given to the network, and its refusal was taken for a width of 0."""
    program = mlp(1, rule=adam(eta))
    matrix, *others = program.matrices
    assert isinstance(matrix, TrainedMatrix)
    up = replace(matrix.update, coefficient=-matrix.update.coefficient)  # the size does not count for Adam
    arrays = {"x": np.array([[1.0, 0.5, -0.3], [0.2, -1.0, 0.4]]), "y": [1.0, -1.0]}
    (right,), (wrong,) = (
        gradient_step(Problem.of(p, **{**GIVEN, "arrays": arrays}))
        for p in (program, replace(program, matrices=(replace(matrix, update=up), *others)))
    )
    assert right.passed
    assert not wrong.passed


@pytest.mark.parametrize(
    ("samples", "penalty"),
    [
        *(pytest.param(2, k, marks=pytest.mark.slow) for k in (0, 1)),
        pytest.param(4, 0, marks=pytest.mark.slow),
        (4, 1),
    ],
)
def test_a_step_is_compared_whatever_the_index_of_samples_is_called(samples: int, penalty: int) -> None:
    """Two outputs have no role, and their samples are counted by a symbol of the author's.

    Of four samples two are left out, along every axis of every array that samples run along.
    """
    i, S_ = Symbol("i", integer=True), Symbol("S", integer=True, positive=True)
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h = GivenVector("x", pixels, "K"), Field("h", units)
    A, r, q = GaussianMatrix("A", units, pixels), GaussianVector("r", units), GaussianVector("q", units)
    one, two, y, share = map(Function, ("one", "two", "y", "share"))
    forward = {h(i, t): A @ x(i)}
    forward |= {f(i, t): Mean(w.symbol * tanh(h(i, t))) / gamma0 for f, w in ((one, r), (two, q))}
    net = Network("own", (h,), forward, (A, r, q), given=(x,), ranges=(IndexRange(i, S.One, S_),))
    loss = share(i) * (y(i) - one(i, t) * (1 + two(i, t))) ** 2 / 2 + penalty * Mean(r.symbol**2)
    program = net.train(loss, GradientDescent(eta))
    arrays = {"K": gram(samples), "y": np.arange(1.0, samples + 1), "share": np.arange(1.0, samples + 1)}
    problem = Problem.of(program, **{**GIVEN, "arrays": arrays})
    kept = smaller_problem(problem, 2, 1).arrays
    kernel, *others = sorted(kept.values(), key=lambda x: -x.ndim)
    np.testing.assert_array_equal(kernel, arrays["K"][np.ix_([0, -1], [0, -1])])
    assert [x.tolist() for x in others] == [[1, samples], [1, samples]]
    (row,) = gradient_step(problem)
    assert row.passed
    assert expansion(problem) == (
        [],
        "expansion: not checked; the program has no single output with its error",
    )


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
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"-D targets={tmp_path / 'y.npy'} --set training.steps=3" in page


def test_what_is_missing_is_named_before_anything_runs() -> None:
    with pytest.raises(SpecError, match=r"numbers\.gamma0"):
        verify(mlp(2), **{**GIVEN, "numbers": {"eta": 0.3}})


@pytest.mark.parametrize(("samples", "modes"), [(2, 2), (5, 5), (9, 6)])
def test_a_smaller_problem_has_as_many_modes_as_are_asked_for(samples: int, modes: int) -> None:
    """It had four modes for any number."""
    data = {"kind": "power-law", "capacity": 2.0, "source": 0.5, "modes": 6}
    tables = {"network": {"depth": 1}, "training": {"rule": "flow", "time": 4.0, "points": 5}, "data": data}
    small = smaller_problem(Problem.of(Experiment.from_dict(tables)), samples, 2)
    assert small.experiment is not None
    assert small.experiment.data is not None
    assert (small.experiment.data.modes, len(small.times), small.times[-1]) == (modes, 3, 2.0)


def test_openings_of_a_program_keep_what_a_sample_teaches() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((30, 40))
    arrays = {"K_x": x @ x.T / 40, "y": x[:, 0]}
    program = mlp(2, "linear", "gd", "mean")
    problem = Problem.of(program, numbers=GIVEN["numbers"], arrays=arrays, times=range(100))
    small = smaller_problem(problem, 3, 5)
    assert (small.seen, small.sample_count, len(small.times)) == (3, 3, 6)
    np.testing.assert_array_equal(small.arrays["K_x"], arrays["K_x"][np.ix_([0, 14, 29], [0, 14, 29])])
    cut = with_small_kernels(problem, Effort(kernel=0.0))
    rates = [p.values[s] / p.sample_count for p in (problem, cut) for s in p.numbers if s.name == "eta"]
    assert rates[0] == pytest.approx(rates[1])
