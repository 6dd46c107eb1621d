"""Results: names, dimensions, the way to NetCDF and back, JSON, and no half-written file whatever happens."""

from __future__ import annotations

import json
import re
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

from numerics import Experiment, expand, simulate, solve, sweep
from numerics.errors import Diverged
from numerics.experiment.problem import Problem
from numerics.results import VARIABLES, dataset, interval, load, provenance, replacing, save, to_json
from numerics.stats import extrapolate

SIZES = {"layer": 2, "time": 4, "time_": 4, "sample": 3, "sample_": 3, "test_sample": 2}
TIMES = np.linspace(0.0, 1.0, 4)


@cache
def everything(stderr: bool = False) -> xr.Dataset:
    rng = np.random.default_rng(0)
    names = [*VARIABLES, *(f"{name}_stderr" for name in VARIABLES if stderr)]
    shapes = {name: [SIZES[d] for d in VARIABLES[name.removesuffix("_stderr")].dims] for name in names}
    values = {name: rng.random(shape) for name, shape in shapes.items()}
    return dataset(values, times=TIMES, spec="[network]\ndepth = 2\n", seed=0, wall_time_s=0.5, note=None)


def test_a_result_has_the_contracts_dimensions_coordinates_and_attributes() -> None:
    result = everything(stderr=True)
    assert result.Phi.dims == ("layer", "time", "time_", "sample", "sample_")
    assert result.A_stderr.dims == result.A.dims == ("layer", "time", "time_", "sample")
    assert list(result.layer.values) == [1, 2]
    assert np.array_equal(result.time, result.time_)
    assert result.G_stderr.attrs["long_name"] == f"standard error of the {result.G.attrs['long_name']}"
    assert set(result.attrs) == {"spec", "version", "libraries", "status", "seed", "wall_time_s"}
    assert all(array.attrs["long_name"] for array in result.data_vars.values())


def test_orders_lead_every_variable() -> None:
    result = dataset({"train_loss": np.ones((2, 4))}, times=TIMES, spec="", orders=[0, 2])
    assert result.train_loss.dims == ("order", "time")
    assert to_json(result)["order"] == [0, 2]


def test_unknown_names_and_wrong_dimensions_are_errors() -> None:
    with pytest.raises(KeyError, match="loss"):
        dataset({"loss": np.ones(4)}, times=TIMES, spec="")
    with pytest.raises(ValueError, match="error has shape"):
        dataset({"error": np.ones(4)}, times=TIMES, spec="")
    with pytest.raises(ValueError, match=r"conflicting sizes|dimension"):
        dataset({"train_loss": np.ones(3)}, times=TIMES, spec="")


def test_saving_and_loading_gives_the_same_result(tmp_path: Path) -> None:
    result = everything(stderr=True).assign_attrs(flag=1)
    save(result, tmp_path / "out.nc")
    assert load(tmp_path / "out.nc").identical(result)
    assert [path.name for path in tmp_path.iterdir()] == ["out.nc"]


def test_words_and_labels_of_no_dimension_are_stored(tmp_path: Path) -> None:
    words = {"status": ("time", ["ok", "", "C_v diverged"]), "kept": ("time", [True, False, True])}
    coords = {"time": [0.0, 1.0, 2.0], "word": ("time", ["a", "b", "c"]), "width": 3}
    result = xr.Dataset({**words, "empty": ("layer", np.zeros(0))}, coords, {"spec": "é", "orders": [0, 2]})
    save(result, tmp_path / "out.nc")
    assert load(tmp_path / "out.nc").identical(result)


def test_booleans_are_stored(tmp_path: Path) -> None:
    save(dataset({}, times=TIMES, spec="", converged=True), tmp_path / "out.nc")
    assert load(tmp_path / "out.nc").attrs["converged"] == 1


@pytest.mark.parametrize(
    ("old", "interruption"),
    [
        (None, KeyboardInterrupt),
        (b"an older result", OSError),
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in (
                (None, OSError),
                (None, MemoryError),
                (b"old", KeyboardInterrupt),
                (b"old", MemoryError),
            )
        ),
    ],
)
def test_an_interrupted_save_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, interruption: type[BaseException], old: bytes | None
) -> None:
    path = tmp_path / "out.nc"
    if old is not None:
        path.write_bytes(old)

    def interrupted(_: int) -> None:
        raise interruption

    monkeypatch.setattr("os.fsync", interrupted)  # half of it is written
    with pytest.raises(interruption):
        save(everything(), path)
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == (
        [("out.nc", old)] if old else []
    )


def test_a_link_stays_one_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "old.nc").write_bytes(b"an older result")
    (tmp_path / "link.nc").symlink_to("old.nc")
    save(everything(), tmp_path / "link.nc")
    assert (tmp_path / "link.nc").is_symlink()
    assert load(tmp_path / "old.nc").identical(everything())


def test_a_changed_byte_is_found(tmp_path: Path) -> None:
    result = dataset({"train_loss": np.linspace(1.0, 0.5, 4)}, times=TIMES, spec="")
    save(result, tmp_path / "out.nc")
    whole = (tmp_path / "out.nc").read_bytes()
    place = whole.index(result.train_loss.values.tobytes())
    (tmp_path / "out.nc").write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
    with pytest.raises(OSError, match="read"):
        load(tmp_path / "out.nc")


def test_the_name_beside_keeps_the_suffix_and_the_folder(tmp_path: Path) -> None:
    with replacing(tmp_path / "figure.png") as beside:
        assert (beside.suffix, beside.parent) == (".png", tmp_path)
        beside.write_bytes(b"new")
    assert (tmp_path / "figure.png").read_bytes() == b"new"


def test_json_holds_the_curves_and_attributes_and_is_valid() -> None:
    result = everything(stderr=True)
    result["train_loss_stderr"][0] = np.nan
    found = json.loads(json.dumps(to_json(result), allow_nan=False))
    assert found["train_loss"] == result.train_loss.values.tolist()
    assert found["train_loss_stderr"][0] is None
    assert found["time"] == TIMES.tolist()
    assert (found["status"], found["seed"], found["wall_time_s"]) == ("ok", 0, 0.5)
    assert "Phi" not in found


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"train_loss": [1.0, np.nan, 1.0]}, "train_loss is not finite at t = 0.5"),
        ({"train_loss": [1.0, 2.0, 3e8]}, "train_loss has grown by more than a factor of 1e+08 at t = 1"),
        (
            {"train_loss": [1.0] * 3, "train_loss_stderr": [0.0, np.inf, 0.0]},
            "train_loss_stderr is not finite",
        ),
        ({"C_v": np.diag([1.0, 1.0, np.inf])}, "C_v is not finite at t = 1"),
    ],
)
def test_a_number_that_is_not_finite_is_no_result(values: dict[str, Any], said: str) -> None:
    with pytest.raises(Diverged, match=re.escape(said)):
        dataset(values, times=[0.0, 0.5, 1.0], spec="")


def test_a_loss_may_grow_but_not_run_away() -> None:
    assert dataset({"train_loss": [1.0, 9e7]}, times=[0.0, 1.0], spec="").train_loss[-1] == 9e7
    assert dataset({"test_loss": [1e9, 2e9]}, times=[0.0, 1.0], spec="").test_loss[-1] == 2e9


def test_every_result_knows_what_it_was_made_of(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = {"network": {"depth": 1}, "training": {"learning_rate": 0.1, "steps": 2}}
    first, other = (
        Experiment.from_dict(tables, inputs=np.eye(2), targets=y) for y in ([1.0, -1.0], [1.0, -1.0 - 1e-15])
    )

    def made(e: Experiment) -> list[xr.Dataset]:
        networks = [simulate(e, width=n, seeds=2, kernels="none", rng=0) for n in (4, 8)]
        return [
            solve(e),
            expand(e, 1),
            sweep(e, {"network.gamma0": [0.5, 1.0]}),
            *networks,
            extrapolate(networks),
        ]

    found, changed = made(first), made(other)
    assert len({x.attrs["data_sha256"] for x in found}) == len({x.attrs["data_sha256"] for x in changed}) == 1
    assert found[0].attrs["data_sha256"] != changed[0].attrs["data_sha256"]
    assert found[0].attrs["data_sha256"] == Problem.of(first).data_sha256
    for x in found:
        assert x.attrs["version"].startswith(version("dmft-derive"))
        assert f"numpy {version('numpy')}, " in x.attrs["libraries"]
    assert "data_sha256" not in solve(Experiment.from_dict(tables | {"data": {"kind": "isotropic"}})).attrs


def test_the_version_of_a_checkout_says_its_commit() -> None:
    root, commit = Path(__file__).parents[2], ""
    if (root / ".git").exists():
        asked = ["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"]
        commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    assert provenance()["version"].partition("+g")[2].removesuffix(".changed") == commit


@pytest.mark.parametrize("bias", [0.0, 0.3, -0.3, 2.0, -8.0])
def test_an_interval_holds_the_true_value_as_often_as_it_says_for_either_sign_of_a_bias(bias: float) -> None:
    """8 normal replicas 4000 times, in standard errors: 1 is the true value, their mean has a bias."""
    rng, rows = np.random.default_rng(1), 4000
    replicas = 1 + bias + np.sqrt(8) * rng.standard_normal((8, rows))
    loss, stderr = replicas.mean(axis=0), replicas.std(axis=0, ddof=1) / np.sqrt(8)
    loss -= 1  # a bias is relative to the largest value, that of a separate entry
    values = {"train_loss": np.append(loss, 100.0), "train_loss_stderr": np.append(stderr, 1.0)}
    found = dataset(values, times=np.arange(rows + 1.0), spec="", replicas=8).assign_attrs(
        bias=abs(bias) / 100
    )
    held = np.abs(loss) <= interval(found, "train_loss")[:-1]
    assert abs(held.mean() - 0.95) < 5 * np.sqrt(0.95 * 0.05 / rows)


@pytest.mark.parametrize("level", [0.0, 1.0, 95])
def test_an_interval_has_a_probability(level: float) -> None:
    """A level of 95 gave nan."""
    found = dataset({"train_loss": [1.0], "train_loss_stderr": [0.1]}, times=[0.0], spec="", replicas=8)
    with pytest.raises(ValueError, match=f"level = {level}: is not a probability"):
        interval(found, "train_loss", level)
