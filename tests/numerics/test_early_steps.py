"""Tests of `dmft limits early-time --steps --recovery`: curves, dropped terms, rates, refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numerics.analysis.limits import Recovery, early_steps, early_time, recovery
from numerics.cli import run
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.solver import solve

ONLINE = """
[network]
depth = 1
gamma0 = 0.5
width_ratio = 0.5
[data]
kind = "isotropic"
batch_ratio = 0.25
noise = 0.2
[training]
rule = "sgd"
learning_rate = 0.15
steps = 30
center = true
"""


def experiment(data: dict[str, Any], *, center: bool = True, rate: float = 0.2, **network: Any) -> Experiment:
    rule = "sgd" if "batch_ratio" in data else "gd"
    training = {"rule": rule, "learning_rate": rate, "steps": 30, "center": center}
    network = {"depth": 1, "gamma0": 0.8, "width_ratio": 0.5, **network}
    return Experiment.from_dict(
        {"network": network, "data": {"kind": "isotropic", **data}, "training": training}
    )


@pytest.mark.parametrize(
    ("data", "network"),
    [
        ({"batch_ratio": 0.7, "noise": 0.3}, {}),
        pytest.param({}, {"parametrization": "ntk", "depth": 2}, marks=pytest.mark.slow),
        pytest.param({"batch_ratio": 0.7}, {"width_ratio": [0.5, 1.5], "depth": 2}, marks=pytest.mark.slow),
    ],
)
def test_dropped_terms_are_the_gap_of_the_second_step(data: dict[str, Any], network: dict[str, Any]) -> None:
    e = experiment(data, **network)
    found = early_steps(e, 2)
    assert found.memory_free is not None
    assert found.dropped is not None
    gap = found.C_v[2] - found.memory_free[2]
    assert abs(gap) > 1e-3
    assert sum(found.dropped.values()) == pytest.approx(gap, abs=1e-12)
    assert found.memory_free[1] == pytest.approx(early_time(e).growth_factor, rel=1e-12)


def test_losses_with_label_noise_and_on_samples() -> None:
    e = experiment({"sample_ratio": 0.7, "noise": 0.5}, center=False)
    found, solved = early_steps(e, 2), solve(e.replace({"training.steps": 2}))
    test, train = solved.test_loss.values, solved.train_loss.values
    assert found.test_growth_factor == pytest.approx(float(test[1] / test[0]), rel=1e-12)
    assert found.train_growth_factor == pytest.approx(float(train[1] / train[0]), rel=1e-12)
    assert found.train_growth_factor != pytest.approx(found.test_growth_factor, rel=1e-2)
    assert found.memory_free is None
    assert "center" in str(found.refused)


def rates() -> Recovery:
    lazy = recovery(experiment({"batch_ratio": 0.25}, gamma0=1e-4).replace({"training.steps": 2}), rtol=0.9)
    assert lazy.critical is not None
    assert lazy.lazy is not None
    assert lazy.ceiling is not None
    return lazy


@pytest.mark.slow
def test_the_lazy_rate_lies_between_the_critical_one_and_its_ceiling() -> None:
    lazy = rates()
    assert lazy.critical < lazy.lazy < lazy.ceiling


@pytest.mark.slow
def test_rates_that_recover() -> None:
    lazy = rates()
    for share, settles in ((0.97, True), (1.03, False)):  # no step size of the bisection comes in here
        e = experiment({"batch_ratio": 0.25}, gamma0=1e-4, rate=share * lazy.lazy)
        late = np.diag(solve(e.replace({"training.steps": 80})).C_v.values)
        assert late[1] > 1
        assert (late[80] < 0.6 * late[40]) == settles
        assert (late[80] > late[40] / 0.6) != settles
    quiet = recovery(experiment({}, gamma0=0.3), rtol=0.2)
    assert not quiet.recovers
    assert quiet.lazy is not None
    assert quiet.critical is not None
    assert quiet.lazy < quiet.critical


@pytest.mark.slow
def test_json_and_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "online.toml"
    file.write_text(ONLINE)
    assert run(["limits", "early-time", str(file), "--steps", "2", "--recovery", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["C_v"][1] == pytest.approx(printed["growth_factor"])
    assert len(printed["memory_free"]) == 3
    assert len(printed["dropped"]) == 4
    assert printed["recovers"] is True
    assert printed["critical_learning_rate"] < printed["largest_learning_rate"]
    assert printed["lazy_largest_learning_rate"] < printed["lazy_ceiling"]
    assert run(["limits", "early-time", str(file), "--steps", "2"]) == 0
    assert "terms that the recursion neglects in the second step:" in capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_without_centring_there_is_neither_recursion_nor_lazy_limit() -> None:
    e = experiment({"batch_ratio": 0.7}, center=False).replace({"training.steps": 3})
    assert "not centred" in str(early_steps(e, 1).refused)
    found = recovery(e, rtol=0.5)
    assert found.lazy is None
    assert "centred" in str(found.refused)


def test_refusals(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "online.toml"
    file.write_text(ONLINE.replace("depth = 1", 'depth = "L"'))
    assert run(["limits", "early-time", str(file), "--steps", "2"]) == 2
    assert "network.depth" in capsys.readouterr().err
    with pytest.raises(SpecError, match="steps"):
        early_steps(experiment({}), 0)


def test_steps_on_given_samples_are_refused() -> None:
    """Once a KeyError, because a result on given samples has no C_v."""
    given = Experiment.from_dict({"network": {"depth": 1}}, kernel=[[1.0]], targets=[1.0])
    with pytest.raises(SpecError, match=r'data\.kind = "fixed": are given samples'):
        early_steps(given, 2)


def test_several_outputs_are_refused() -> None:
    with pytest.raises(SpecError, match=r"network.outputs = 2: gives a C_v for each pair of outputs"):
        early_steps(experiment({}, outputs=2), 2)


def test_the_number_of_eigenvalues_is_named() -> None:
    with pytest.raises(SpecError, match="nodes = 0: must be positive"):
        recovery(experiment({}), nodes=0)
