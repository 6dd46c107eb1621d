"""Programs of a user's own go through every command, or are refused in one sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sympy import Function, Symbol, tanh
from typer.testing import CliRunner

import numerics
from derive.errors import NotApplicable, ProgramError
from derive.program import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.analysis.limits import early_time
from numerics.cli.limits import limits
from numerics.errors import NotConverged, SpecError
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from numerics.solver.registry import METHODS
from numerics.verification import Effort
from numerics.verification.plan import plan_of
from tests.chance import excess, in_errors
from tests.derive.once import isotropic, mean_field, mlp
from tests.numerics.zoo import CASES, Case, K, Y

STEPS, REPLICAS = 3, 8
REFUSALS = (SpecError, NotApplicable, ProgramError)
SOLVED = [name for name, case in CASES.items() if case.output]
QUICK = ("zero readout", "weighted in time", "stream")
"""Cases whose test is part of the default suite."""


def marked(names: list[str]) -> list[Any]:
    """Return the names as parameters, with slow ones marked."""
    return [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in names]


def given(case: Case) -> dict[str, Any]:
    """Return the numbers, arrays and times that a command takes beside the program."""
    return {"numbers": dict(case.numbers), "arrays": dict(case.arrays), "times": range(STEPS)}


def values(case: Case) -> dict[str, Any]:
    """Return the numbers for functions that read no sizes from arrays."""
    return {**case.numbers, "P": len(Y), "M": len(Y)}


def judged(case: Case, samples: int = 2**10) -> Any:
    """Return the solution by the reference solver, which reads the theory of the program as written."""
    theory = mean_field(case.make().with_layers_counted())
    numbers = values(case)
    return evaluate(theory, steps=STEPS, values=numbers, data=case.arrays, samples=samples, replicas=REPLICAS)


def distances(result: Any, value: Any, stderr: Any) -> Any:
    """Return distances of errors in joint standard errors; exact values agree to 1e-8."""
    error = result.error_stderr.values if "error_stderr" in result else 0.0
    gap = np.abs(result.error.values - np.reshape(value, result.error.shape))
    joint = np.hypot(error, np.reshape(stderr, result.error.shape))
    return np.maximum(gap - 1e-8, 0.0) / np.maximum(joint, 1e-12)


@pytest.mark.parametrize("name", marked(SOLVED))
def test_solve_is_what_the_reference_solver_finds(name: str) -> None:
    case = CASES[name]
    found = numerics.solve(case.make(), solver=Solver(samples=256), **given(case))
    expected = judged(case)
    stderr = expected.stderr(case.error) if expected.runs else np.zeros(expected.value(case.error).shape)
    assert excess(distances(found, expected.value(case.error), stderr), REPLICAS - 1) < 1


@pytest.mark.slow
@pytest.mark.parametrize("gamma0", [1.0, 1e-3])
@pytest.mark.parametrize("name", SOLVED)
def test_every_method_is_right_or_refuses(name: str, gamma0: float) -> None:
    case = CASES[name]
    case = Case(case.make, {**case.numbers, "gamma0": gamma0}, case.arrays, case.output, case.error)
    expected = None
    for method in METHODS:
        solver = Solver(method=method.name, samples=256 if method.name == "paths" else None)
        try:
            found = numerics.solve(case.make(), solver=solver, **given(case))
        except (*REFUSALS, NotConverged):
            continue
        expected = expected or judged(case, 2**11)
        stderr = expected.stderr(case.error) if expected.runs else np.zeros(expected.value(case.error).shape)
        missed = found.attrs.get("error_estimate", 0.0)
        z = distances(found, expected.value(case.error), np.hypot(stderr, missed))
        assert excess(z, REPLICAS - 1) < 1, method.name


@pytest.mark.parametrize("name", marked(SOLVED))
def test_networks_are_those_of_the_program_as_it_is_written(name: str) -> None:
    case, seeds = CASES[name], 16
    found = numerics.simulate(case.make(), width=24, seeds=seeds, rng=1, **given(case))
    program, steps = case.make().with_layers_counted(), STEPS - 1
    run = simulate_program(
        program, width=24, steps=steps, seeds=seeds, values=values(case), data=case.arrays, seed=2
    )
    expected = run[case.error]
    assert excess(distances(found, expected.mean, expected.stderr), seeds - 1) < 1


def test_names_of_ones_own_change_no_number() -> None:
    """The perceptron of the builder, and the same with a user's own name for everything."""
    case, solver = CASES["renamed"], Solver(samples=64)
    mine = numerics.solve(case.make(), solver=solver, **given(case))
    arrays = {"K_x": K, "y": Y}
    theirs = numerics.solve(
        mlp(2, "tanh"), solver=solver, numbers=case.numbers, arrays=arrays, times=range(STEPS)
    )
    assert set(mine.data_vars) == set(theirs.data_vars)
    for name in theirs.data_vars:
        np.testing.assert_allclose(mine[name], theirs[name], rtol=1e-12, atol=1e-12)


def test_correlations_of_a_program_without_outputs() -> None:
    """Solved by paths, and equal to the reference solver."""
    case = CASES["modes"]
    found = numerics.solve(case.make(), solver=Solver(samples=256), **given(case))
    assert found.attrs["method"] == "paths"
    expected = judged(case)
    for name in ("C_v", "C_tanh"):
        error = np.hypot(found[f"{name}_stderr"], expected.stderr(name))
        gap = found[name].values - expected.value(name)
        assert excess(in_errors(gap, error), REPLICAS - 1) < 1


@pytest.mark.slow
def test_verify_draws_a_program_without_outputs(tmp_path: Path) -> None:
    case = CASES["modes"]
    report = numerics.verify(case.make(), tmp_path / "out", effort=Effort(work=1e7), **given(case))
    assert report.passed, report.table()
    assert (tmp_path / "out" / "figure.png").exists()


def gains(phi: Callable[[Any], Any] = lambda h: h) -> Program:
    """Return one hidden layer whose units have individual gains."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h, gain = GivenVector("x", pixels, "K_x"), Field("h", units), Attribute("gain", units)
    k = Symbol("k", integer=True, positive=True)
    U, w = GaussianMatrix("U", units, pixels), GaussianVector("w", units)
    f, y = Function("f"), Function("y")
    forward = {h(mu, t): U @ x(mu), f(mu, t): Mean(w.symbol * phi(gain(k) * h(mu, t))) / gamma0}
    net = Network("gains", (h,), forward, weights=(U, w), given=(x,), attributes=(gain,))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


GAINS = {"numbers": {"eta": 0.2, "gamma0": 1.0}, "times": range(3)}
GAINS |= {"arrays": {"K_x": K, "y": Y, "gain": np.array([0.5, 1.0, 1.5])}}


def test_units_have_attributes_from_arrays() -> None:
    """Solutions are exact, networks those of the program, and a width is a multiple of the attributes."""
    program, arrays = gains(), GAINS["arrays"]
    numbers = {"eta": 0.2, "gamma0": 1.0, "P": len(Y)}
    expected = evaluate(mean_field(program), steps=3, values=numbers, data=arrays)
    np.testing.assert_allclose(numerics.solve(program, **GAINS).error, expected.value("Delta"), rtol=1e-10)
    repeated = arrays | {"gain": np.tile(arrays["gain"], 2)}
    run = simulate_program(program, width=6, steps=2, seeds=64, values=numbers, data=repeated, seed=2)
    found = numerics.simulate(program, width=6, seeds=64, rng=1, **GAINS)
    assert excess(distances(found, run["Delta"].mean, run["Delta"].stderr), 63) < 1
    assert {n % 3 for n in plan_of(Problem.of(program, **GAINS)).widths} == {0}


def test_attributes_that_a_command_does_not_take_are_refused() -> None:
    few = partial(numerics.simulate, seeds=2)
    refused = [
        (partial(few, gains(), width=7), GAINS, "width: gives 7 units, and arrays.gain has 3 numbers"),
        (partial(numerics.expand, gains(tanh), 2), GAINS, "which the expansion of a nonlinear network does"),
        (partial(numerics.solve, gains(), solver=Solver(method="march")), GAINS, 'solver.method = "paths"'),
    ]
    for wrong, told in ((np.eye(3), "gain: has shape"), (None, "gain: is missing")):
        arrays = {**GAINS["arrays"], "gain": wrong}
        arrays = {name: x for name, x in arrays.items() if x is not None}
        refused.append((partial(numerics.solve, gains()), {**GAINS, "arrays": arrays}, told))
    for command, said, told in refused:
        with pytest.raises(SpecError) as refusal:
            command(**said)
        assert told in str(refusal.value)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("name", ["renamed", "weighted in time"])
def test_refusals_say_the_names_of_the_author(name: str) -> None:
    case = CASES[name]
    lost = next(iter(case.arrays))
    arrays = {k: x for k, x in case.arrays.items() if k != lost}
    with pytest.raises(SpecError, match=f"arrays.{lost}: is missing"):
        numerics.solve(case.make(), numbers=case.numbers, arrays=arrays, times=range(STEPS))
    with pytest.raises(SpecError, match=r"numbers\.speed = 1\.0: is not a symbol"):
        numerics.solve(case.make(), **{**given(case), "numbers": {**case.numbers, "speed": 1.0}})


def test_files_take_a_readout_that_starts_at_zero() -> None:
    """Outputs are zero at the start, exactly, and the march is the reference solver's solution."""
    network = {"depth": 2, "init_variance": [1.0, 1.0, 0.0]}
    tables = {"network": network, "training": {"learning_rate": 0.2, "steps": 2}}
    file = numerics.Experiment.from_dict(tables, kernel=K, targets=Y)
    found = numerics.solve(file)
    assert found.error.values[0].tolist() == Y.tolist()
    other = numerics.solve(file.replace({"solver.method": "direct"}))
    np.testing.assert_allclose(found.error, other.error, rtol=1e-10)
    for variances in (0.0, [0.0, 1.0, 1.0], [1.0, 0.0, 0.0]):
        with pytest.raises(SpecError, match=r"network\.init_variance"):
            file.replace({"network.init_variance": variances})


@pytest.mark.slow
def test_limits_take_programs_with_numbers(tmp_path: Path) -> None:
    """The first step of a program has the number that it has of the file with the same numbers."""
    program = isotropic(data="online", center=True)
    numbers = {"L": 2.0, "nu": 2.0, "alpha_B": 1.0, "eta": 0.1}
    found = early_time(program, numbers)
    file = numerics.Experiment.from_dict(
        {
            "network": {"depth": 2, "width_ratio": 2.0},
            "data": {"kind": "isotropic", "batch_ratio": 1.0},
            "training": {"rule": "sgd", "learning_rate": 0.1, "center": True},
        }
    )
    assert found.growth_factor == pytest.approx(early_time(file).growth_factor, rel=1e-12)
    with pytest.raises(SpecError, match="nu: is missing"):
        early_time(program, {k: x for k, x in numbers.items() if k != "nu"})
    path = tmp_path / "net.py"
    path.write_text("from derive.program import isotropic\nprogram = isotropic(data='online', center=True)\n")
    runner = CliRunner()
    assert runner.invoke(limits, ["early-time", f"{path}:program"]).exit_code == 0
    refused = runner.invoke(limits, ["early-time", f"{path}:program", "-D", "kernel=k.npy"])
    assert isinstance(refused.exception, SpecError)
