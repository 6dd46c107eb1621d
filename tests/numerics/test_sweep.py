"""Tests of sweeps: they equal single solutions, and the largest rate is the derived one."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from derive.program import Program
from derive.theory import Theory, mean_field
from numerics.analysis.limits import largest_rate
from numerics.analysis.sweep import sweep
from numerics.errors import Interrupted, SpecError
from numerics.experiment import Experiment
from numerics.lowering.linear import lower
from numerics.results import load, save
from numerics.solver import solve
from numerics.solver.paths.causal_order import Model
from tests.numerics.solver.helpers import flow, gd


def isotropic(depth: int = 1, *, steps: int = 40, **network: Any) -> Experiment:
    return Experiment.from_dict(
        {
            "network": {"depth": depth, **network},
            "data": {"kind": "isotropic"},
            "training": {"learning_rate": 0.1, "steps": steps, "center": True},
        }
    )


POINTS: dict[str, tuple[Experiment, dict[str, list[Any]]]] = {
    "rates, widths": (
        isotropic(2, steps=6, width_ratio=1.0),
        {"training.learning_rate": [0.05, 0.1], "network.width_ratio": [0.5, 2.0, 8.0]},
    ),
    "widths of layers": (
        isotropic(2, steps=6, width_ratio=1.0),
        {"network.width_ratio": [[0.5, 2.0], [1.0, 3.0]], "network.gamma0": [0.5, 1.0]},
    ),
    "sampled paths": (
        gd(2, steps=3).replace({"network.activation": "tanh", "solver.samples": 64}),
        {"network.gamma0": [0.5, 1.0]},
    ),
}


@pytest.mark.parametrize("case", POINTS)
def test_every_point_of_a_sweep_is_the_experiment_with_these_keys(case: str) -> None:
    e, over = POINTS[case]
    found = sweep(e, over)
    assert found.train_loss.dims == (*(x.rpartition(".")[2] for x in over), "time")
    assert (found.status == "ok").all()
    for at in product(*(range(len(x)) for x in over.values())):
        alone = solve(e.replace({key: over[key][k] for key, k in zip(over, at, strict=True)}), kernels="none")
        for name in {"train_loss", "test_loss", "train_loss_stderr"} & {*alone.data_vars}:
            assert np.array_equal(found[name][at], alone[name])


def test_an_interrupt_keeps_what_is_finished() -> None:
    def stop(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    rates = [0.05, 0.1, 0.2]
    with pytest.raises(Interrupted) as stopped:
        sweep(isotropic(steps=4), {"training.learning_rate": rates}, progress=stop)
    kept, whole = stopped.value.result, sweep(isotropic(steps=4), {"training.learning_rate": rates})
    assert kept.attrs["status"] == "partial"
    assert kept.status.values.tolist() == ["ok", "ok", "interrupted"]
    assert np.array_equal(kept.test_loss[:2], whole.test_loss[:2])
    assert kept.test_loss[2].isnull().all()


def test_a_theory_is_derived_once_for_all_its_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    derived: list[Program] = []

    def counted(program: Program) -> Theory:
        derived.append(program)
        return mean_field(program)

    monkeypatch.setattr("numerics.experiment.theory.mean_field", counted)
    over = {"network.gamma0": [0.5, 1.0], "training.learning_rate": [0.1, 0.2], "solver.seed": [0, 1]}
    found = sweep(isotropic(2, steps=2, branch=0.3, width_ratio=1.0, parametrization="ntk"), over)
    assert (found.status == "ok").all()
    assert len({*found.test_loss.values[..., -1].ravel().round(12)}) == 4
    assert len(derived) <= 1  # none if another test has asked for it


@pytest.mark.parametrize(
    ("case", "where", "make"),
    [
        ("sampled paths", "numerics.solver.paths.solve.Model", Model),
        ("widths of layers", "numerics.solver.linear.reduction.lower", lower),
    ],
)
def test_a_theory_is_read_once_for_all_its_numbers(
    case: str, where: str, make: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[Any] = []

    def counted(theory: Any) -> Any:
        read.append(theory)
        return make(theory)

    monkeypatch.setattr(where, counted)
    sweep(*POINTS[case])
    assert len(read) <= 1  # none if another test has asked for it


def test_a_sweep_is_kept_on_disk_with_values_of_any_kind(tmp_path: Path) -> None:
    over = {
        "network.width_ratio": [1.0, [2.0], None],
        "training.center": [True, False],
        "training.loss": ["mean"],
    }
    found = sweep(isotropic(steps=2), over)
    save(found, tmp_path / "sweep.nc")
    assert load(tmp_path / "sweep.nc").equals(found)
    assert found.width_ratio.values.tolist() == ["1.0", "[2.0]", "None"]


@pytest.mark.parametrize(
    ("key", "values", "name"),
    [("solver.seed", [0, 1], "seed"), ("training.time", [0.25, 0.5], "training.time")],
)
def test_keys_that_results_have_themselves_are_swept(
    key: str, values: list[Any], name: str, tmp_path: Path
) -> None:
    """The seed is an attribute of every result, and time a dimension; times that only some have are nan."""
    experiment = flow(1, time=1.0, points=3)
    found = sweep(experiment, {key: values})
    save(found, tmp_path / "sweep.nc")
    assert load(tmp_path / "sweep.nc").equals(found)
    for value in values:
        alone = solve(experiment.replace({key: value}), kernels="none")
        assert np.array_equal(found.train_loss.sel({name: value}).dropna("time"), alone.train_loss)


def test_data_of_random_samples_can_be_swept_and_given_samples_cannot() -> None:
    found = sweep(isotropic(steps=3, width_ratio=2.0), {"data.sample_ratio": [0.5, 5.0]})
    assert float(found.test_loss[0, -1]) > float(found.test_loss[1, -1])
    with pytest.raises(SpecError, match=r"data\.noise"):
        sweep(gd(1), {"data.noise": [0.1]})


def test_fixed_samples_have_no_test_loss() -> None:
    found = sweep(gd(1, steps=4), {"network.gamma0": [0.5, 1.0]})
    assert "test_loss" not in found
    assert found.train_loss.shape == (2, 5)


def test_what_diverges_is_marked_and_not_a_number() -> None:
    seen: list[tuple[int, int]] = []
    found = sweep(
        isotropic(),
        {"training.learning_rate": [0.1, 50.0]},
        progress=lambda n, total: seen.append((n, total)),
    )
    assert found.status.values[0] == "ok"
    assert "diverged at step" in found.status.values[1]
    assert np.isnan(found.test_loss[1]).all()
    assert np.isfinite(found.test_loss[0]).all()
    assert seen == [(1, 2), (2, 2)]


@pytest.mark.slow
def test_processes_change_nothing() -> None:
    over = {"training.learning_rate": [0.05, 0.1]}
    assert sweep(isotropic(steps=3), over).equals(sweep(isotropic(steps=3), over, jobs=2))


@pytest.mark.parametrize(
    ("over", "why"),
    [
        ({}, "no values to run over"),
        ({"training.learning_rate": []}, "no values to run over"),
        ({"network.depth": ["L"]}, r"network\.depth"),
        ({"training.learning_rate": [0.1, -1.0]}, r"training\.learning_rate = -1"),
        ({"training.speed": [1]}, r"training\.speed"),
        ({"network": [1, 2]}, r"network = \[1, 2\]: is not a key of the file"),
        ({1: [1, 2]}, r"1 = \[1, 2\]: is not a key of the file"),
        ({"training.steps": 3}, r"training.steps = 3: is not a list of values \(accepted: \[3\]\)"),
        ({"training.rule": "gd"}, r'training.rule = "gd": is not a list of values'),
        ({"training.steps": [1, np.int64(1)]}, "has a value twice"),
        ([3], "over: is list, not a mapping"),
    ],
)
def test_what_cannot_be_swept_is_refused_before_anything_runs(over, why) -> None:
    with pytest.raises(SpecError, match=why):
        sweep(isotropic(), over, progress=lambda *_: pytest.fail("something ran"))


def test_a_folder_that_cannot_be_made_is_refused_before_anything_runs(tmp_path: Path) -> None:
    folder = tmp_path / "missing" / "runs"
    with pytest.raises(SpecError, match=f"there is no folder {tmp_path / 'missing'}"):
        sweep(isotropic(), {"training.steps": [1]}, folder=folder)
    with pytest.raises(SpecError, match="cannot be made: File name too long"):
        sweep(isotropic(), {"training.steps": [1]}, folder=tmp_path / ("x" * 300))


def test_a_tolerance_of_a_largest_rate_is_a_number() -> None:
    """With nan, rates a factor two apart were returned."""
    for rtol in (-0.1, float("nan")):
        with pytest.raises(SpecError, match="rtol = "):
            largest_rate(isotropic(steps=2), rtol=rtol)


@pytest.mark.parametrize("depth", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_a_lazy_network_learns_up_to_two_over_its_kernel(depth: int) -> None:
    """Check the factor 1 - (L + 1) eta of v in the population of wide lazy layers (K = L + 1).

    Just above 2/K the error must grow for all steps to end above its start, which it does.
    """
    found = largest_rate(isotropic(depth, gamma0=1e-4), rise=False, rtol=1e-3)
    assert found.stable <= 2 / (depth + 1) <= found.unstable
    assert found.unstable / found.stable <= 1 + 1e-3


def test_above_it_comes_the_catapult() -> None:
    """One hidden layer, between 2/K and 4/K: the error grows until the kernel has shrunk, then it learns.

    The edge near 4/K = 2 is ragged: gamma0 that differ by 1e-13 have theirs anywhere from 1.93 to 2.01.
    """
    e = isotropic(gamma0=1e-3, steps=60)
    assert 1.9 < largest_rate(e).value < 2.05
    loss = solve(e.replace({"training.learning_rate": 1.5})).test_loss.values
    assert loss.max() > 1e3 * loss[0]
    assert loss[-1] < 1e-3 * loss[0]


@pytest.mark.slow
def test_wider_rich_networks_take_larger_rates_in_ntk_scaling_only() -> None:
    """Appendix B of linear2025: at fixed gamma0, as long as gamma0/sqrt(nu) is rich."""
    rates = {
        scaling: [
            largest_rate(isotropic(steps=12, gamma0=4.0, width_ratio=nu, parametrization=scaling)).value
            for nu in (8.0, 32.0)
        ]
        for scaling in ("mean-field", "ntk")
    }
    assert rates["mean-field"][1] < 1.1 * rates["mean-field"][0]
    assert rates["ntk"][1] > 1.3 * rates["ntk"][0]


def test_a_flow_has_no_largest_rate() -> None:
    with pytest.raises(SpecError, match=r"training\.rule"):
        largest_rate(flow(1))


def test_on_random_data_a_rate_is_judged_by_what_it_generalises() -> None:
    """With label noise training succeeds at rates at which the test loss grows."""
    tables = {
        "network": {"depth": 1, "width_ratio": 2.0},
        "data": {"kind": "isotropic", "sample_ratio": 1.0, "noise": 2.0},
        "training": {"learning_rate": 0.1, "steps": 6},
    }
    experiment = Experiment.from_dict(tables)
    found = largest_rate(experiment, rtol=0.2)
    at = [solve(experiment.replace({"training.learning_rate": x})) for x in (found.stable, found.unstable)]
    assert [bool(x.test_loss[-1] < x.test_loss[0]) for x in at] == [True, False]
    assert all(x.train_loss[-1] < x.train_loss[0] for x in at)
