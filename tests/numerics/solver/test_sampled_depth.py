"""Nonlinear residual networks of infinite depth: grids of layer time, finite depth, networks, refusals."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from numpy.polynomial.hermite_e import hermegauss
from scipy.integrate import solve_ivp

from numerics import simulate, solve
from numerics.cli import run
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.theory import beta
from numerics.solver.depth.sampled import ACCURACY, SHARE, SampledDepth, at_cells, solve_cells
from numerics.solver.depth.solve import solve_depth_correction, solve_depth_limit
from numerics.solver.registry import explain
from numerics.stats import Line
from tests.chance import excess

STEPS, BRANCH = 20, 1.5
INPUTS = np.random.default_rng(0).standard_normal((2, 4))
REPLICAS = 8


def experiment(network: dict[str, Any] | None = None, **keys: Any) -> Experiment:
    tables: dict[str, Any] = {
        "network": {"depth": "L", "activation": "tanh", "branch": BRANCH, **(network or {})},
        "training": {"learning_rate": 0.2, "steps": STEPS, **keys.pop("training", {})},
        "solver": keys.pop("solver", {}),
    }
    return Experiment.from_dict(tables, inputs=INPUTS, targets=[1.0, -1.0])


def sampled(**keys: Any) -> Problem:
    return Problem.of(experiment(**keys))


@lru_cache
def grids() -> SampledDepth:
    """Return twenty steps on all grids."""
    return solve_cells(sampled(solver={"samples": 2048}), "trace")


def excess_of(gap: Any, *errors: Any, systematic: Any = 0.0) -> float:
    """Return distances beyond the systematic error of grids, relative to the bound of chance."""
    beyond = np.maximum(np.abs(gap) - systematic, 0.0)
    return excess(beyond / np.sqrt(sum(np.square(e) for e in errors)), REPLICAS - 1)


def test_grids_are_extrapolated_by_a_polynomial_in_the_spacing() -> None:
    """Cubic polynomials are extrapolated exactly; errors of the grids are independent."""
    cells = (2, 4, 8, 16)
    exact = np.array([3.0, -2.0, 5.0, 1.0])
    runs = tuple(
        {"f": np.array([exact @ (1.0 / n) ** np.arange(4)]), "f_stderr": np.array([0.1])} for n in cells
    )
    found = SampledDepth(cells, runs, ({},) * 4)
    for n in (0, 1, 2):
        np.testing.assert_allclose(found.order(n)["f"], exact[n], rtol=1e-10)
    np.testing.assert_allclose(found.at_depth(5)["f"], exact @ 0.2 ** np.arange(4), rtol=1e-10)
    np.testing.assert_allclose(found.at_depth(8)["f_stderr"], 0.1, rtol=1e-10)
    spread = np.array([-1.0, 14.0, -56.0, 64.0]) / 21
    np.testing.assert_allclose(found.order(0)["f_stderr"], 0.1 * np.linalg.norm(spread), rtol=1e-10)
    quadratic = np.array([1.0, -6.0, 8.0]) / 3 @ [run["f"] for run in runs[1:]]
    beyond = abs(exact[0] - quadratic) - 0.2 * np.linalg.norm(spread - np.array([0, 1.0, -6.0, 8.0]) / 3)
    np.testing.assert_allclose(found.order(0)["f_systematic"], np.maximum(beyond, 0), rtol=1e-10)


def test_cells_are_layers_of_the_theory() -> None:
    """Branch beta0/sqrt(n), at grids with separate seeds; the same for a file and for its program."""
    whole = sampled()
    parts = [at_cells(whole, n) for n in (4, 9)]
    assert [x.depth for x in parts] == [4, 9]
    np.testing.assert_allclose([x.numbers[beta] for x in parts], [BRANCH / 2, BRANCH / 3])
    assert parts[0].solver.seed != parts[1].solver.seed
    given = {str(k): v for k, v in whole.numbers.items() if str(k) in ("beta", "eta", "gamma0")}
    program = Problem.of(whole.program, numbers=given, arrays=whole.arrays, times=range(3))
    assert at_cells(program, 4).program == parts[0].program
    assert at_cells(program, 4).numbers[beta] == parts[0].numbers[beta]


@pytest.mark.slow
def test_it_is_a_method_of_the_registry() -> None:
    choice = explain(experiment())
    assert choice.method is not None
    assert choice.method.name == "layers"
    assert "cells of layer time" in str(choice)


@pytest.mark.slow
def test_the_command_prints_and_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("x.npy", INPUTS)
    np.save("y.npy", np.array([1.0, -1.0]))
    Path("deep.toml").write_text(
        '[network]\ndepth = "L"\nactivation = "tanh"\nbranch = 1.0\n'
        '[data]\ninputs = "x.npy"\ntargets = "y.npy"\n'
        "[training]\nlearning_rate = 0.2\nsteps = 3\n[solver]\nsamples = 64\n"
    )
    assert run(["solve", "deep.toml", "-o", "deep.nc", "--plot", "deep.png"]) == 0
    assert "train_loss" in capsys.readouterr().out
    assert xr.load_dataset("deep.nc").layer.values.tolist() == [0.5, 1.0]
    assert run(["show", "deep.nc"]) == 0
    assert run(["solve", "deep.toml", "--explain"]) == 0
    assert "2, 4, 8, 16 cells of layer time" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"network": {"bias": True}}, "no limit of infinite depth: .*grows like"),
        ({"network": {"branch": None}}, "computing needs a number of layers"),
        ({"network": {"bias": True}, "solver": {"method": "layers"}}, "grows like"),
    ],
)
def test_what_has_no_limit_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        solve(experiment(**given))


def test_closed_equations_say_where_paths_are_sampled() -> None:
    with pytest.raises(SpecError, match="the method layers samples paths"):
        solve_depth_limit(experiment())


@pytest.mark.slow
def test_linear_networks_have_the_exact_limit() -> None:
    """Paths on grids against the closed equations in layer time: the limit and the coefficient of 1/L."""
    given = sampled(
        network={"activation": "linear", "branch": 0.8}, training={"steps": 4}, solver={"samples": 512}
    )
    found, exact = solve_cells(given), solve_depth_correction(given)
    for n, known in ((0, exact.limit), (1, exact.first)):
        part = found.order(n)
        gap = part["f"] - known["f"]
        assert excess_of(gap[1:], part["f_stderr"][1:], systematic=part["f_systematic"][1:]) < 1
        assert np.abs(gap).max() < 0.1 * np.abs(known["f"]).max()


def average(f: Any, variance: float) -> float:
    """Return the average over a Gaussian number."""
    x, w = hermegauss(60)
    return float(w / w.sum() @ f(np.sqrt(variance) * x))


def kernels_at_the_start(variance: float) -> dict[str, list[float]]:
    """Return Phi and G of one sample at layer times 1/2 and 1, from two differential equations."""

    def rise(_: float, v: Any) -> list[float]:
        return [BRANCH**2 * average(lambda z: np.tanh(z) ** 2, v[0])]

    stream = solve_ivp(rise, (0, 1), [variance], rtol=1e-9, dense_output=True).sol

    def slope(u: float) -> float:
        return average(lambda z: np.cosh(z) ** -4.0, float(stream(u)[0]))

    def fall(u: float, g: Any) -> list[float]:
        return [-(BRANCH**2) * slope(u) * g[0]]

    back = solve_ivp(fall, (1, 0), [slope(1.0)], rtol=1e-9, dense_output=True).sol
    times = (0.5, 1.0)
    return {
        "Phi_trace": [average(lambda z: np.tanh(z) ** 2, float(stream(u)[0])) for u in times],
        "G_trace": [float(back(u)[0]) for u in times],
    }


@pytest.mark.slow
def test_kernels_at_the_start_obey_their_differential_equations() -> None:
    """``dV/dtau = beta0^2 <phi^2>`` of the stream's variance V, and ``dG/dtau = -beta0^2 <phi'^2> G``."""
    found = grids().order(0)
    samples = [kernels_at_the_start(float(x @ x) / 4) for x in INPUTS]
    for name in ("Phi_trace", "G_trace"):
        known = np.sum([one[name] for one in samples], axis=0)
        value, error, missed = (found[name + x][:, 0, 0] for x in ("", "_stderr", "_systematic"))
        assert excess_of(value - known, error, systematic=missed) < 1, name
        assert error.max() < 0.1 * known.max()


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "same"), [(32, True), (4, False)])
def test_deep_theories_come_to_it(depth: int, same: bool) -> None:
    """The theory of 32 layers agrees with the polynomial in 1/L; another depth is rejected."""
    network = {"depth": 32, "branch": BRANCH * 32**-0.5}
    deep = solve(experiment(network, solver={"method": "paths", "samples": 512, "seed": 5}), kernels="none")
    part, value = grids().at_depth(depth), deep.train_loss.to_numpy()
    errors = part["train_loss_stderr"][1:], deep.train_loss_stderr.to_numpy()[1:]
    missed = part["train_loss_systematic"][1:]
    assert (excess_of((part["train_loss"] - value)[1:], *errors, systematic=missed) < 1) == same


@lru_cache
def deep_networks() -> tuple[np.ndarray, np.ndarray]:
    """Return errors of networks of 24 layers at infinite width, and their standard errors."""
    given = experiment({"depth": 24, "branch": BRANCH * 24**-0.5}, training={"center": True})
    widths, seeds = (64, 128), (160, 80)
    trained = [
        simulate(given, width=n, seeds=k, rng=n, kernels="none") for n, k in zip(widths, seeds, strict=True)
    ]
    line = Line.through(widths, seeds).intercept
    value = sum(w * x.error.to_numpy() for w, x in zip(line, trained, strict=True))
    squares = sum((w * x.error_stderr.to_numpy()) ** 2 for w, x in zip(line, trained, strict=True))
    return value, np.sqrt(squares)


@pytest.mark.slow
@pytest.mark.parametrize(("depth", "same"), [(24, True), (4, False)])
def test_deep_networks_come_to_it(depth: int, same: bool) -> None:
    """Networks of 24 layers over twenty steps in which features move; another depth is rejected."""
    theory, (value, error) = grids().at_depth(depth), deep_networks()
    kernel = theory["Phi_trace"]
    assert (np.abs(kernel[:, -1, -1] / kernel[:, 0, 0] - 1)).max() > 0.1
    gap = theory["error"] - value
    missed = theory["error_systematic"][1:]
    assert (excess_of(gap[1:], theory["error_stderr"][1:], error[1:], systematic=missed) < 1) == same


def test_the_accuracy_of_a_grid_is_for_the_grids_that_are_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was that for (2, 4, 8, 16) cells, whatever the cells."""
    asked: list[float | None] = []

    def solved(problem: Problem, *_: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        asked.append(problem.solver.accuracy)
        return {}, {}

    monkeypatch.setattr("numerics.solver.paths.problem.solve_paths", solved)
    monkeypatch.setattr("numerics.solver.depth.sampled.process_of", lambda _: None)
    solve_cells(sampled(), cells=(4, 8))
    np.testing.assert_allclose(asked, SHARE * ACCURACY / np.sqrt(5))  # the limit is 2 f(8) - f(4)


@pytest.mark.parametrize("cells", [(), (8, 4), (4, 4), (0, 4)])
def test_cells_that_do_not_increase_are_refused(cells: tuple[int, ...]) -> None:
    with pytest.raises(SpecError, match="cells = "):
        solve_cells(sampled(), cells=cells)
