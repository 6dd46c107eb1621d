"""Results at chosen steps or times: the numbers of the full result, whoever computes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import numerics
from numerics.cli import run
from numerics.errors import SpecError
from numerics.expansion import evaluated_at
from numerics.experiment import Experiment
from numerics.experiment.schema import Solver
from numerics.plots import plot_loss
from numerics.results import interval, systematic
from numerics.verification.smaller_problems import Effort
from tests.derive.once import mlp

GIVEN: dict[str, Any] = {
    "numbers": {"eta": 0.1, "gamma0": 0.8},
    "arrays": {"K_x": [[1.0, 0.2], [0.2, 0.9]], "y": [1.0, -0.5]},
}
DECAY = {**GIVEN, "numbers": {"eta": 0.1, "gamma0": 0.8, "lambda": 0.5}}
LAST = 5


def at(whole: xr.Dataset, times: list[float]) -> xr.Dataset:
    """Return the full result at these of its times."""
    return whole.sel({x: times for x in ("time", "time_") if x in whole.dims})


def assert_part(part: xr.Dataset, whole: xr.Dataset, times: list[float]) -> None:
    """Require that every variable of ``part`` is that of the full result, bit by bit."""
    assert part.time.values.tolist() == list(times)
    xr.testing.assert_equal(part, at(whole, times))
    assert set(part.data_vars) == set(whole.data_vars)


def program(method: str) -> tuple[Any, dict[str, Any]]:
    """Return a program that this method solves, with its arguments."""
    solver = {"solver": Solver(method=method, samples=64 if method == "paths" else None)}
    if method == "lazy":
        return mlp(1, "tanh"), {**GIVEN, "numbers": {"eta": 0.1, "gamma0": 1e-3}, **solver}
    if method == "rest":
        return mlp(1, "relu", weight_decay=0.5), {**GIVEN, **solver}
    return mlp(1, "tanh" if method in ("nodes", "paths") else "linear"), {**GIVEN, **solver}


@pytest.mark.parametrize("method", ["march", "nodes", "lazy", "paths", "rest", "direct"])
def test_every_method_gives_the_steps_that_are_asked_for(method: str) -> None:
    source, taken = program(method)
    rng, last = np.random.default_rng(len(method)), {"nodes": 2, "rest": 8}.get(method, LAST)
    steps = [float(k) for k in range(last + 1) if k == last or rng.random() < 0.4]
    whole = numerics.solve(source, times=range(last + 1), **taken)
    assert_part(numerics.solve(source, times=steps, **taken), whole, steps)


@pytest.mark.slow
def test_the_limit_of_infinite_depth_too() -> None:
    tables = {
        "network": {"depth": "L", "branch": 1.0},
        "training": {"learning_rate": 0.1, "steps": 2},
    }
    e = Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])
    part = numerics.solve(e.replace({"training.times": [2]}))
    assert part.attrs["method"] == "infinite depth, layer grid"
    assert_part(part, numerics.solve(e), [2.0])


@settings(max_examples=5, deadline=None)
@given(st.sets(st.integers(0, LAST), min_size=1))
def test_any_subset_of_steps_is_that_of_the_full_result(steps: set[int]) -> None:
    times = sorted(map(float, steps))
    whole = numerics.solve(mlp(1), times=range(max(steps) + 1), **GIVEN)
    part = numerics.solve(mlp(1), times=times, **GIVEN)
    assert_part(part, whole, times)
    assert part.time.attrs["long_name"] == "step"


def test_the_error_at_step_ten_is_that_after_ten_updates() -> None:
    """gamma0 -> 0: Delta decays by 1 - 2 eta in every step, as the tangent kernel is 2."""
    lazy = {"numbers": {"eta": 0.1, "gamma0": 1e-6}, "arrays": {"K_x": [[1.0]], "y": [1.0]}}
    found = numerics.solve(mlp(1), times=[0, 5, 10], **lazy).error.values[:, 0]
    np.testing.assert_allclose(found, 0.8 ** np.array([0, 5, 10]), rtol=1e-9)


@pytest.mark.parametrize("activation", ["linear", "tanh"])
def test_networks_and_series_hold_the_steps_that_are_asked_for(activation: str) -> None:
    source, steps = mlp(1, activation), [1.0, 4.0]
    how = {"width": 12, "seeds": 3, "rng": 0, **GIVEN}
    assert_part(
        numerics.simulate(source, times=steps, **how),
        numerics.simulate(source, times=range(5), **how),
        steps,
    )
    whole = numerics.expand(source, 2, times=range(5), **GIVEN)
    assert_part(numerics.expand(source, 2, times=steps, **GIVEN), whole, steps)


def experiment(**training: Any) -> Experiment:
    """Return an experiment with two samples, with or without ``times`` in [training]."""
    tables = {"network": {"depth": 1}, "training": {"learning_rate": 0.1, "steps": 6, **training}}
    return Experiment.from_dict(tables, kernel=GIVEN["arrays"]["K_x"], targets=GIVEN["arrays"]["y"])


def test_files_say_the_steps_and_the_times_of_a_flow() -> None:
    part = numerics.solve(experiment(times=[0, 2, 5]))
    assert_part(part, numerics.solve(experiment()), [0.0, 2.0, 5.0])
    flow = {"rule": "flow", "learning_rate": None, "steps": None, "time": 0.4}
    found = numerics.solve(experiment(**flow, times=[0.1, 0.3]))
    whole = numerics.solve(experiment(**flow, times=[0, 0.1, 0.3, 0.4]))
    assert_part(found, whole, [0.1, 0.3])
    assert found.time.attrs["long_name"] == "time"


@pytest.mark.parametrize("method", ["pade", "self-consistent"])
def test_a_summed_series_is_judged_by_every_step(method: str) -> None:
    whole = evaluated_at(experiment(), 4, method)
    assert_part(evaluated_at(experiment(times=[1, 6]), 4, method), whole, [1.0, 6.0])


def test_a_sweep_holds_the_steps_of_its_file() -> None:
    over = {"network.gamma0": [0.5, 1.0]}
    part, whole = (numerics.sweep(experiment(**x), over) for x in ({"times": [0, 6]}, {}))
    xr.testing.assert_equal(part, at(whole, [0.0, 6.0]))


@pytest.mark.slow
def test_verification_checks_every_step_and_writes_those_that_are_asked_for(tmp_path: Path) -> None:
    effort = Effort(work=1e6, smallest=(8, 6, 4), paths=64, replicas=4)
    part = numerics.verify(experiment(times=[0, 6]), tmp_path / "part", effort=effort)
    whole = numerics.verify(experiment(), tmp_path / "whole", effort=effort)
    assert [(x.name, x.basis) for x in part.checks] == [(x.name, x.basis) for x in whole.checks]
    for name in ("theory", "networks"):
        found, full = (xr.load_dataset(tmp_path / x / f"{name}.nc") for x in ("part", "whole"))
        assert found.time.values.tolist() == [0.0, 6.0]
        xr.testing.assert_equal(found, at(full, [0.0, 6.0]))


def test_the_command_line_takes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text("from derive.program import mlp\nprogram = mlp(1)\n")
    for name, x in GIVEN["arrays"].items():
        np.save(tmp_path / f"{name}.npy", x)
    arrays = [x for k in GIVEN["arrays"] for x in ("-D", f"{k}={tmp_path / k}.npy")]
    keys = {"training.learning_rate": "0.1", "training.steps": "6", "network.gamma0": "0.8"}
    said = [x for k, v in (keys | {"training.times": "[0, 2]"}).items() for x in ("--set", f"{k}={v}")]
    assert run(["solve", f"{tmp_path / 'net.py'}:program", *arrays, *said, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    whole = numerics.solve(mlp(1), times=range(7), **GIVEN)
    assert found["time"] == [0.0, 2.0]
    assert found["train_loss"] == whole.train_loss.values[[0, 2]].tolist()


def test_an_axis_of_chosen_steps_counts_steps() -> None:
    from matplotlib.figure import Figure

    ax = Figure().subplots()
    plot_loss(numerics.solve(mlp(1), times=[0, 5, 10], **GIVEN), ax=ax)
    assert ax.get_xlabel() == "step"


def test_a_bias_stays_relative_to_the_largest_value_of_all_times() -> None:
    """Without the start, where the loss is largest, the systematic error is the same number."""
    taken = GIVEN | {"solver": Solver(method="paths", samples=64)}
    part, whole = (numerics.solve(mlp(1, "tanh"), times=x, **taken) for x in ([4], range(5)))
    assert whole.attrs["bias"] > 0
    for name in ("train_loss", "error"):
        np.testing.assert_array_equal(systematic(part, name), systematic(whole, name)[[4]])


def test_entries_that_are_not_known_do_not_hide_the_error_of_others() -> None:
    """Responses of sampled paths are NaN at the last layer, and every interval was NaN."""
    taken = GIVEN | {"solver": Solver(method="paths", samples=64)}
    found = numerics.solve(mlp(2, "tanh"), times=range(3), kernels="full", **taken)
    unknown = np.isnan(found.A_stderr.values)
    assert unknown.any()
    assert not unknown.all()
    np.testing.assert_array_equal(np.isnan(interval(found, "A")), unknown)


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        ([0, 2.5], "2.5 is not a step"),
        ([0, 3, 2], "must rise"),
        ([1, 1], "must rise"),
        ([-1, 2], "must rise, from 0 or later"),
        ([], "has shape"),
        (5, "has shape"),
        ([0, float("nan")], "is nan at index"),
        (["0", "1"], "holds <U1"),
        (None, "is missing"),
        ([0, 2e6], "too many steps"),
    ],
)
def test_other_times_of_a_program_are_refused(times: Any, reason: str) -> None:
    for entry in (numerics.solve, numerics.verify):
        with pytest.raises(SpecError, match=reason) as refusal:
            entry(mlp(1), times=times, **GIVEN)
        assert refusal.value.key == "times"


@pytest.mark.parametrize(
    ("training", "reason"),
    [
        ({"times": [0, 2.5]}, "2.5 is not a step"),
        ({"times": [0, 7]}, "ends after training.steps = 6"),
        ({"times": []}, "not what this key takes|at least 1"),
        ({"times": [-1, 2]}, "not what this key takes"),
        ({"times": [2, 1]}, "must rise"),
        ({"times": "all"}, "valid list"),
        ({"times": [0, 1], "rule": "flow", "steps": None, "learning_rate": None, "time": 0.5}, "ends after"),
        (
            {"times": [0, 1], "rule": "flow", "steps": None, "learning_rate": None, "time": 5.0, "points": 3},
            "excludes training.points = 3",
        ),
    ],
)
def test_other_times_of_a_file_are_refused(training: dict[str, Any], reason: str) -> None:
    with pytest.raises(SpecError, match=reason) as refusal:
        experiment(**training)
    assert refusal.value.key == "training.times"
