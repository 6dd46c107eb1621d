"""Tests of `dmft limits depth`: output and refusals."""

import json
import tomllib
from pathlib import Path

import numpy as np
import pytest

from numerics import solve
from numerics.analysis.limits import depth_limits
from numerics.cli import run
from numerics.experiment import Experiment

RESIDUAL = """
[network]
depth = 8
branch = 0.25
width_ratio = 1.0
[data]
kind = "isotropic"
[training]
learning_rate = 0.03
steps = 1
"""


def written(folder: Path, text: str) -> str:
    path = folder / "e.toml"
    path.write_text(text)
    return str(path)


@pytest.mark.slow
def test_json_has_the_limit_its_correction_and_the_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["limits", "depth", written(tmp_path, RESIDUAL), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    limit, first, finite = (np.array(found[n]) for n in ("limit", "coefficient", "test_loss"))
    assert found["status"] == "ok"
    assert (found["exponent"], found["diversity_exponent"], found["depth"]) == (-1.0, 0.5, 8)
    assert found["branch_times_sqrt_depth"] == pytest.approx(np.sqrt(0.5))
    np.testing.assert_allclose(found["to_first_order"], limit + first / 8)
    assert np.max(np.abs(finite - found["to_first_order"])) < 0.1 * np.max(np.abs(finite - limit))
    assert "beta0**2*C_h(tau, t, t)" in found["formula"]


@pytest.mark.slow
def test_text_says_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = RESIDUAL.replace("depth = 8", "depth = 4")
    assert run(["limits", "depth", written(tmp_path, text)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("limit: branch = 0.5/sqrt(L)")
    assert "L = 4" in lines[1]
    assert lines[2 + 2 + 2] == "conditions"


def test_the_first_order_comes_closer_to_the_network_than_the_limit() -> None:
    found = depth_limits(Experiment.from_dict(tomllib.loads(RESIDUAL)), layers=4)
    near, far = found.finite - found.to_first_order, found.finite - found.limit
    assert np.abs(near).max() < 0.1 * np.abs(far).max()


def test_symbolic_depth_has_the_limit_alone() -> None:
    text = RESIDUAL.replace("depth = 8", 'depth = "L"')
    found = depth_limits(Experiment.from_dict(tomllib.loads(text)), layers=4)
    assert (found.depth, found.finite, found.to_first_order) == (None, None, None)
    assert found.beta0 == 0.25
    assert found.to_json()["test_loss"] is None


def test_a_file_that_has_no_such_limit_is_told_all_that_must_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The residual example, a rectifier with biases in a flow."""
    example = Path(__file__).parents[2] / "docs" / "examples" / "residual.toml"
    assert run(["limits", "depth", str(example)]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    for told in (
        'network.activation = "relu"',
        '"linear"',
        "network.bias = false",
        "network.init_variance = one number",
        'training.rule = "gd"',
        "learning_rate and steps",
    ):
        assert told in said


@pytest.mark.slow
def test_a_file_on_given_samples_whose_weights_decay_is_solved(tmp_path: Path) -> None:
    """The settings of the residual example that stay: samples, variances other than one, and decay."""
    text = RESIDUAL.replace('kind = "isotropic"', 'kind = "fixed"\nkernel = "k.npy"\ntargets = "y.npy"')
    text = text.replace("width_ratio = 1.0", "init_variance = 1.5").replace(
        "steps = 1", "steps = 1\nweight_decay = 0.1"
    )
    np.save(tmp_path / "k.npy", np.eye(1))
    np.save(tmp_path / "y.npy", np.ones(1))
    found = depth_limits(Experiment.load(written(tmp_path, text)), layers=4)
    assert found.diversity.power == 1


@pytest.mark.parametrize(
    ("old", "new", "names"),
    [
        ("branch = 0.25\n", "", ("network.branch", "missing", "1/sqrt(depth)")),
        (
            "width_ratio = 1.0",
            'width_ratio = 1.0\nactivation = "tanh"',
            ("network.activation", "tanh", "linear"),
        ),
        ("learning_rate = 0.03\nsteps = 1", 'rule = "flow"\ntime = 1.0', ("training.rule", "flow", "gd")),
    ],
)
def test_what_has_no_limit_is_refused_by_key_value_and_what_would_do(
    old: str, new: str, names: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["limits", "depth", written(tmp_path, RESIDUAL.replace(old, new))]) == 2
    message = capsys.readouterr().err
    assert all(x in message for x in names)


def test_a_rate_that_diverges_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = RESIDUAL.replace("0.03", "8.0").replace("steps = 1", "steps = 12")
    assert run(["limits", "depth", written(tmp_path, text)]) == 3
    assert "training.learning_rate" in capsys.readouterr().err


@pytest.mark.slow
def test_noise_has_its_correction_in_the_inverse_depth() -> None:
    """The limit and its coefficient from networks of 32 and 64 layers, extrapolated, with temperature."""

    def noisy(depth: int | str) -> Experiment:
        branch = 0.5 if isinstance(depth, str) else 0.5 / depth**0.5
        return Experiment.from_dict(
            {
                "network": {"depth": depth, "gamma0": 0.5, "branch": branch},
                "data": {"kind": "isotropic", "noise": 0.3},
                "training": {"learning_rate": 0.05, "steps": 3, "temperature": 0.2},
            }
        )

    found = depth_limits(noisy("L"))
    few, many = (n * (solve(noisy(n))[found.name].to_numpy() - found.limit) for n in (32, 64))
    assert 2 * many - few == pytest.approx(found.first, rel=1e-3)


@pytest.mark.slow
def test_a_series_that_leads_away_from_the_network_is_warned_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At one layer and a large branch the first order overshoots; at eight it does not."""
    text = RESIDUAL.replace("depth = 8", "depth = 1").replace("branch = 0.25", "branch = 1.2")
    assert run(["limits", "depth", written(tmp_path, text), "--set", "training.learning_rate=0.02"]) == 0
    said = capsys.readouterr().out
    assert "warning: the series in 1/L does not hold at L = 1" in said
    assert run(["limits", "depth", written(tmp_path, RESIDUAL), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warning"] is None
