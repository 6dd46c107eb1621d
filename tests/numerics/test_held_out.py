"""Tests of test points of an experiment file: reading, and refusals with key, value and remedy."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
from hypothesis import given, settings
from hypothesis import strategies as st

from derive.program import P, P_train
from numerics.cli import run
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, numbers_of
from numerics.experiment.theory import program_of
from numerics.results import load as load_result
from numerics.simulation import simulate

STEPS = {"learning_rate": 0.1, "steps": 2}
INPUTS = {"inputs": "x.npy", "targets": "y.npy"}
KERNEL = {"kernel": "k.npy", "targets": "y.npy"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x, xt = rng.standard_normal((3, 5)), rng.standard_normal((2, 5))
    both = np.concatenate([x, xt])
    whole = both @ both.T / 5
    bad = whole[3:].copy()
    bad[0, 3] = -1.0
    skew = whole[3:].copy()
    skew[0, 4] += 0.25
    holes = xt.copy()
    holes[1, 2] = np.nan
    arrays = {"x": x, "y": rng.standard_normal(3), "k": whole[:3, :3], "xt": xt, "kt": whole[3:]}
    arrays |= {"yt": np.ones(2), "yt3": np.ones(3), "yt2": np.ones((2, 2)), "x4": xt[:, :4], "holes": holes}
    arrays |= {"bad": bad, "skew": skew, "narrow": whole[3:, :4], "words": np.array(["a", "b"])}
    arrays |= {"none": np.zeros((0, 5))}
    for name, array in arrays.items():
        np.save(tmp_path / f"{name}.npy", array)
    return tmp_path


def load(folder: Path, data: dict[str, Any], **more: Any) -> Experiment:
    return Experiment.from_dict({"network": {"depth": 2}, "data": data, **more}, folder=folder)


REFUSED: list[tuple[dict[str, str], str, str]] = [
    (INPUTS | {"test_inputs": "x4.npy"}, "data.test_inputs", r"shape \(P\*, 5\)"),
    (INPUTS | {"test_inputs": "y.npy"}, "data.test_inputs", r"shape \(P\*, 5\)"),
    (INPUTS | {"test_inputs": "none.npy"}, "data.test_inputs", r"shape \(P\*, 5\)"),
    (INPUTS | {"test_inputs": "holes.npy"}, "data.test_inputs", r"nan at index \(1, 2\)"),
    (INPUTS | {"test_inputs": "words.npy"}, "data.test_inputs", "real numbers"),
    (INPUTS | {"test_inputs": "absent.npy"}, "data.test_inputs", "no such file"),
    (INPUTS | {"test_kernel": "kt.npy"}, "data.test_kernel", "in addition to data.inputs"),
    (INPUTS | {"test_inputs": "xt.npy", "test_kernel": "kt.npy"}, "data.test_inputs", "one of the two"),
    (INPUTS | {"test_inputs": "xt.npy", "test_targets": "yt3.npy"}, "data.test_targets", r"shape \(2,\)"),
    (INPUTS | {"test_inputs": "xt.npy", "test_targets": "yt2.npy"}, "data.test_targets", "outputs = 1"),
    (INPUTS | {"test_targets": "yt.npy"}, "data.test_targets", "without test points"),
    (KERNEL | {"test_inputs": "xt.npy"}, "data.test_inputs", "data.test_kernel"),
    (KERNEL | {"test_kernel": "narrow.npy"}, "data.test_kernel", r"shape \(P\*, 3 \+ P\*\)"),
    (KERNEL | {"test_kernel": "bad.npy"}, "data.test_kernel", "kernel of all points that is not positive"),
    (KERNEL | {"test_kernel": "skew.npy"}, "data.test_kernel", "kernel of all points that is not symmetric"),
    ({"test_inputs": "xt.npy"}, "data.inputs", "neither is given"),
    ({"test_kernel": "kt.npy"}, "data.inputs", "neither is given"),
    ({"kind": "isotropic", "test_inputs": "xt.npy"}, "data.test_inputs", 'belongs to data.kind = "fixed"'),
]


@pytest.mark.parametrize(("data", "key", "said"), REFUSED)
def test_refused_by_key_and_what_would_do(folder: Path, data: dict[str, str], key: str, said: str) -> None:
    with pytest.raises(SpecError, match=said) as caught:
        load(folder, data)
    assert caught.value.key == key
    assert caught.value.value == data.get(key.removeprefix("data."))


def test_inputs_and_kernel_say_the_same(folder: Path) -> None:
    one = load(folder, INPUTS | {"test_inputs": "xt.npy", "test_targets": "yt.npy"}, training=STEPS)
    two = load(folder, KERNEL | {"test_kernel": "kt.npy", "test_targets": "yt.npy"}, training=STEPS)
    for name, array in arrays_of(one).items():
        np.testing.assert_allclose(array, arrays_of(two)[name], rtol=1e-14)
    assert arrays_of(one)["rho"].tolist() == [1, 1, 1, 0, 0]
    assert arrays_of(one)["y"][3:].tolist() == [1, 1]
    assert numbers_of(one)[P] == 5
    assert numbers_of(one)[P_train] == 3
    assert len(one.held_out or ()) == 2


def test_training_samples_are_what_they_are_without(folder: Path) -> None:
    plain, more = load(folder, INPUTS), load(folder, INPUTS | {"test_inputs": "xt.npy"})
    assert np.array_equal(plain.kernel, more.kernel)
    assert np.array_equal(arrays_of(more)["K_x"][:3, :3], plain.kernel)
    assert arrays_of(more)["y"][3:].tolist() == [0, 0]
    assert plain.held_out is None
    assert set(arrays_of(plain)) == {"K_x", "y"}


def test_single_precision_excuses_its_rounding(folder: Path) -> None:
    rng = np.random.default_rng(1)
    x = rng.standard_normal((20, 3)).astype(np.float32)
    k = (x @ x.T / np.float32(3)).astype(np.float32)
    found = Experiment.from_dict(
        {"network": {"depth": 1}}, kernel=k[:15, :15], targets=np.ones(15), test_kernel=k[15:]
    )
    assert found.held_out is not None
    with pytest.raises(SpecError, match="not positive semidefinite"):
        Experiment.from_dict(
            {"network": {"depth": 1}},
            kernel=k[:15, :15].astype(np.float64),
            targets=np.ones(15),
            test_kernel=k[15:].astype(np.float64),
        )


def test_arrays_are_read_only(folder: Path) -> None:
    held = load(folder, INPUTS | {"test_inputs": "xt.npy", "test_targets": "yt.npy"}).held_out
    assert held is not None
    for array in (held.kernel, held.inputs, held.targets):
        assert array is not None
        assert not array.flags.writeable


def test_arrays_given_are_as_files(folder: Path) -> None:
    read = load(folder, INPUTS | {"test_inputs": "xt.npy", "test_targets": "yt.npy"}, training=STEPS)
    x, y, xt, yt = (np.load(folder / f"{n}.npy") for n in ("x", "y", "xt", "yt"))
    tables = {"network": {"depth": 2}, "training": STEPS}
    given_ = Experiment.from_dict(tables, inputs=x, targets=y, test_inputs=xt, test_targets=yt)
    for name, array in arrays_of(read).items():
        assert np.array_equal(array, arrays_of(given_)[name])
    again = given_.replace({"network.gamma0": 0.5})
    assert again.held_out is given_.held_out
    assert again.spec.has_test_points
    assert tomllib.loads(given_.text)["data"]["test_inputs"] == "(array)"


def test_arrays_without_training_samples_are_refused() -> None:
    with pytest.raises(SpecError, match=r"data\.inputs: neither is given"):
        Experiment.from_dict({"network": {"depth": 2}}, test_inputs=[[1.0]])
    tables = {"network": {"depth": 2}, "data": {"test_inputs": "xt.npy"}}
    with pytest.raises(SpecError, match="names a file"):
        Experiment.from_dict(tables, inputs=[[1.0]], targets=[1.0])


def test_the_program_has_weights_only_when_asked(folder: Path) -> None:
    plain, more = load(folder, INPUTS), load(folder, INPUTS | {"test_inputs": "xt.npy"})
    assert "rho" in program_of(more).constants
    assert "rho" not in program_of(plain).constants


def test_experiments_with_test_points_have_one_program_whichever_way_they_are_given(folder: Path) -> None:
    one = load(folder, INPUTS | {"test_inputs": "xt.npy"}, training=STEPS)
    two = load(folder, KERNEL | {"test_kernel": "kt.npy", "test_targets": "yt.npy"}, training=STEPS)
    assert program_of(one) == program_of(two) != program_of(load(folder, INPUTS, training=STEPS))


def test_networks_are_asked_on_them(folder: Path) -> None:
    more = load(folder, INPUTS | {"test_inputs": "xt.npy"}, training=STEPS)
    assert "test_f" in simulate(more, width=8, seeds=2)


@pytest.mark.slow
def test_the_commands_serve_them(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    data = INPUTS | {"test_inputs": "xt.npy", "test_targets": "yt.npy"}
    tables = {"network": {"depth": 2}, "data": data, "training": STEPS}
    Path("spec.toml").write_text(tomli_w.dumps(tables))
    assert run(["derive", "spec.toml"]) == 0
    shown = capsys.readouterr().out
    assert "P_train" in shown
    assert "ρ_μ" in shown
    assert run(["solve", "spec.toml", "-o", "theory.nc", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    theory = load_result("theory.nc")
    assert theory.test_f.dims == ("time", "test_sample")
    assert printed["test_loss"] == theory.test_loss.values.tolist()
    assert run(["simulate", "spec.toml", "--width", "16", "--seeds", "2", "-o", "networks.nc"]) == 0
    assert {"test_f_stderr", "test_loss_stderr"} <= set(load_result("networks.nc").data_vars)
    capsys.readouterr()
    Path("bad.toml").write_text(tomli_w.dumps(tables | {"data": data | {"test_inputs": "x4.npy"}}))
    assert run(["solve", "bad.toml"]) == 2
    assert 'data.test_inputs = "x4.npy": has shape (2, 4)' in capsys.readouterr().err
    assert run(["expand", "spec.toml", "--order", "2"]) == 0


@settings(max_examples=6, deadline=None)
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
def test_any_points_make_a_kernel(train: int, test: int, features: int, seed: int) -> None:
    """Copies of training inputs, and more points than features, are kernels too: singular ones."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((train, features))
    xt = np.concatenate([x, rng.standard_normal((test, features))])
    both = np.concatenate([x, xt])
    whole = both @ both.T / features
    tables = {"network": {"depth": 1}}
    y = np.ones(train)
    one = Experiment.from_dict(tables, inputs=x, targets=y, test_inputs=xt)
    two = Experiment.from_dict(tables, kernel=whole[:train, :train], targets=y, test_kernel=whole[train:])
    np.testing.assert_allclose(arrays_of(one)["K_x"], whole, rtol=0, atol=1e-13 * np.abs(whole).max())
    np.testing.assert_allclose(arrays_of(two)["K_x"], whole, rtol=0, atol=1e-13 * np.abs(whole).max())
