"""One linear path: reductions change no number and drop no variable, whatever the options are."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from derive.calculus.symbols import mu
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.solver.linear.plan import Plan
from numerics.solver.linear.reduction import REDUCTIONS, reduced
from numerics.solver.linear.solve import solved
from numerics.solver.refine import Trapezoidal

KERNEL = np.array([[1.0, 0.3, -0.2], [0.3, 0.8, 0.1], [-0.2, 0.1, 1.2]])
TARGETS = np.array([1.0, -0.5, 0.4])

OPTIONS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "momentum": ({}, {"momentum": 0.4}),
    "noise": ({}, {"temperature": 0.2}),
    "widths and variances": ({"relative_widths": [1.0, 2.0], "init_variance": [1.0, 2.0, 0.5]}, {}),
    "biases": ({"bias": True}, {"temperature": 0.2, "weight_decay": 0.3}),
    "many": ({"bias": True, "branch": 0.7, "outputs": 2}, {"weight_decay": 0.3}),
}


def problem(network: dict[str, Any], training: dict[str, Any]) -> Problem:
    targets = np.stack([TARGETS, TARGETS[::-1]], axis=1) if network.get("outputs") else TARGETS
    tables = {
        "network": {"depth": 2, "gamma0": 0.8} | network,
        "training": {"learning_rate": 0.15, "steps": 6} | training,
    }
    return Problem.of(Experiment.from_dict(tables, kernel=KERNEL, targets=targets))


@pytest.mark.parametrize(
    "option",
    [
        pytest.param(x, marks=pytest.mark.slow) if x in ("momentum", "widths and variances", "noise") else x
        for x in OPTIONS
    ],
)
def test_the_projection_on_the_error_changes_no_number(option: str) -> None:
    given = problem(*OPTIONS[option])
    assert reduced(given, REDUCTIONS).theory.reduction == "error projection"
    for kernels in ("full", "trace") if option in ("plain", "many") else ("full",):
        plain, found = solved(given, kernels, reductions=())[0], solved(given, kernels)[0]  # type: ignore[arg-type]
        assert set(plain) == set(found)
        for name, value in plain.items():
            assert np.abs(found[name] - value).max() <= 1e-13 * max(1.0, np.abs(value).max()), name


@pytest.mark.parametrize("option", OPTIONS)
def test_no_row_of_a_sample_feeds_back(option: str) -> None:
    table = reduced(problem(*OPTIONS[option]), REDUCTIONS).table
    plan = Plan(table, tuple(x for x in table.tensors if x[0] == "G"))
    samples = {i for i in plan.fields if table.row(i).indices == (mu,)}
    fed_back = {i for i, _ in (*plan.rows, *plan.responses)} & samples
    assert not fed_back


@pytest.mark.parametrize("kernels", ["full", "trace", "none"])
def test_a_little_decay_changes_numbers_by_a_little(kernels: Any) -> None:
    plain, found = (solved(problem({}, x), kernels)[0] for x in ({}, {"weight_decay": 1e-9}))
    assert set(plain) == set(found)
    for name, value in plain.items():
        assert np.abs(found[name] - value).max() < 1e-7 * np.abs(value).max(), name


def test_a_flow_with_noise_meets_a_fine_tolerance() -> None:
    """And small steps with noise go to it in first order."""
    noisy = {"temperature": 0.1, "weight_decay": 0.2}
    flow = {"rule": "flow", "time": 1.0, "points": 3, "learning_rate": None, "steps": None}
    tables = {
        "network": {"depth": 1},
        "training": {k: v for k, v in (flow | noisy).items() if v is not None},
        "solver": {"rtol": 1e-8},
    }
    given = Problem.of(Experiment.from_dict(tables, kernel=KERNEL, targets=TARGETS))
    values, notes = solved(given)
    assert notes["error_estimate"] <= 1e-8
    assert notes["time_nodes"] < 300
    gaps = []
    for steps in (16, 32, 64):
        training = {"learning_rate": 1 / steps, "steps": steps} | noisy
        stepped = solved(problem({"depth": 1, "gamma0": 1.0}, training), "none")[0]["error"][:: steps // 2]
        gaps.append(stepped - values["error"])
    ratios = [np.linalg.norm(b) / np.linalg.norm(a) for a, b in itertools.pairwise(gaps)]
    assert np.abs(np.array(ratios) - 0.5).max() < 0.05


def test_functions_of_two_times_are_read_on_their_side_of_the_diagonal() -> None:
    """A polynomial of degree seven at t >= s, with a kink at t = s, is read to rounding."""
    times = np.linspace(0.0, 2.0, 23)
    clock = Trapezoidal(times, 1e-3, first=16)
    _, grid = next(clock.grids())

    def function(t: Any, s: Any) -> Any:
        later, earlier = np.maximum(t, s), np.minimum(t, s)
        return later**4 * earlier**3 - later * earlier + later**2

    def table(times: Any) -> Any:
        return function(times[:, None], times[None, :])

    found = clock.read("tangent_kernel_trace", table(grid.nodes))
    assert np.abs(found - table(times)).max() < 1e-11
