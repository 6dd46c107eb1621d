"""Tests of a folder of results: existing ones are not computed again after an interrupted sweep."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pytest
import xarray as xr

from numerics.analysis.sweep import cluster, sweep
from numerics.cli import run
from numerics.errors import Interrupted
from numerics.experiment import Experiment
from numerics.results import load
from numerics.solver import solve

TEXT = """
[network]
depth = 2
[data]
kind = "isotropic"
[training]
learning_rate = 0.1
steps = 4
"""
OVER: dict[str, Any] = {"training.learning_rate": [0.05, 50.0], "network.gamma0": [0.5, 1.0]}
WORDS = ("--set", "training.learning_rate=0.05,50.0", "--set", "network.gamma0=0.5,1.0")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a name for a folder that does not exist yet."""
    return Path(mkdtemp(dir=tmp_path)) / "runs"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "isotropic.toml"
    path.write_text(TEXT, encoding="utf-8")
    return path


def fresh(tmp_path: Path) -> Path:
    """Return a folder that does not exist yet, whenever the test is called."""
    return Path(mkdtemp(dir=tmp_path)) / "runs"


def stamps(folder: Path) -> dict[str, int]:
    return {x.name: x.stat().st_mtime_ns for x in folder.iterdir() if x.is_file()}


def same(one: xr.Dataset, other: xr.Dataset) -> bool:
    return bool(one.identical(other)) or bool(one.equals(other) and {*one.attrs} == {*other.attrs})


def test_what_is_there_is_not_computed_again(file: Path, tmp_path: Path) -> None:
    folder = fresh(tmp_path)
    first = sweep(file, OVER, folder=folder)
    before = stamps(folder)
    assert sorted(x.partition(".")[2] for x in before) == ["failed.json"] * 2 + ["nc"] * 2
    assert same(first, sweep(file, OVER, folder=folder))
    more = sweep(file, OVER | {"network.gamma0": [0.5, 1.0, 2.0]}, folder=folder)
    after = stamps(folder)
    assert len(after) == 6
    assert before.items() <= after.items()
    assert first.train_loss.equals(more.train_loss.sel(gamma0=[0.5, 1.0]))
    assert same(first, sweep(file, OVER))  # no folder


def test_a_failure_is_kept_with_its_reason_and_tried_again_on_demand(file: Path, tmp_path: Path) -> None:
    folder = fresh(tmp_path)
    found = sweep(file, OVER, folder=folder)
    (reason,) = {json.loads(x.read_text())["status"] for x in folder.glob("*.failed.json")}
    assert set(found.status.values[1]) == {reason}
    assert "diverged at step" in reason
    before = stamps(folder)
    sweep(file, OVER, folder=folder, retry=True)
    after = stamps(folder)
    assert {name for name in after if after[name] != before[name]} == {x for x in after if "failed" in x}


def test_a_result_that_was_cut_is_computed_again(file: Path, tmp_path: Path) -> None:
    folder = fresh(tmp_path)
    whole = sweep(file, OVER, folder=folder)
    for x in folder.iterdir():
        x.write_bytes(x.read_bytes()[:-40])
    assert same(whole, sweep(file, OVER, folder=folder))


def test_a_file_of_another_experiment_or_version_is_no_result_of_this(file: Path, tmp_path: Path) -> None:
    """Every key, those left out too, and every number of the arrays has its part in the name."""
    folder = fresh(tmp_path)
    tables = {"network": {"depth": 1}, "training": {"learning_rate": 0.1, "steps": 2}}
    over = {"network.gamma0": [1.0]}
    for target in (1.0, 1.0 + 1e-15):
        for variant in (tables, tables | {"solver": {"seed": 0}}, tables | {"solver": {"seed": 1}}):
            e = Experiment.from_dict(variant, kernel=[[1.0]], targets=[target])
            sweep(e, over, folder=folder)
    assert len([*folder.iterdir()]) == 4  # a seed of 0 is that of the default


def test_points_of_other_depths_and_times_stand_side_by_side(file: Path) -> None:
    found = sweep(file, {"network.depth": [1, 3], "training.steps": [2, 4]}, kernels="full")
    assert found.C_h.dims == ("depth", "steps", "layer", "time", "time_")
    for depth in (1, 3):
        for steps in (2, 4):
            alone = solve(Experiment.load(file).replace({"network.depth": depth, "training.steps": steps}))
            point = found.C_h.sel(depth=depth, steps=steps)
            assert np.array_equal(point[:depth, : steps + 1, : steps + 1], alone.C_h)
            assert int(point.count()) == alone.C_h.size


def test_anything_that_submits_can_run_the_points(file: Path) -> None:
    with ThreadPoolExecutor(2) as threads:
        assert same(sweep(file, OVER), sweep(file, OVER, executor=threads))


def test_an_interrupt_keeps_what_stands_in_the_folder(file: Path, tmp_path: Path) -> None:
    folder = fresh(tmp_path)

    def stop(done: int, _: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(Interrupted) as stopped:
        sweep(file, OVER, folder=folder, progress=stop)
    assert stopped.value.result.status.values.ravel().tolist()[2:] == ["interrupted"] * 2
    before = stamps(folder)
    assert same(sweep(file, OVER), sweep(file, OVER, folder=folder))
    assert before.items() <= stamps(folder).items()


# -- the command -------------------------------------------------------------------------------------------


def test_the_command_says_what_became_of_each_point(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = fresh(tmp_path)
    assert run(["sweep", str(file), *WORDS, "-o", str(folder), "--gather"]) == 0
    said = capsys.readouterr().out
    assert "4 points" in said
    assert "2 with a result, 2 without" in said
    assert "training.learning_rate = 50.0, network.gamma0 = 0.5: C_v diverged at step" in said
    assert same(load(folder / "sweep.nc"), sweep(file, OVER))
    assert run(["sweep", str(file), *WORDS, "-o", str(folder), "--json"]) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [x["network.gamma0"] for x in points] == [0.5, 1.0, 0.5, 1.0]
    assert all(Path(x["file"]).is_file() for x in points)


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (["--set", "network.gamma0=1"], 2, "names no key with several values"),
        (["--set", "network.depth=3..1"], 2, 'network.depth = "3..1"'),
        (["--set", "network.depth=1..1000", "--set", "training.steps=1..1000"], 2, "1000000 points"),
        (["--set", "network.gamma0=1,-1"], 2, "network.gamma0 = -1"),
        (["--set", "network.gamma0=1.0,1.0"], 2, "has a value twice"),
        (["--set", "network.gamma0=1,,2"], 2, "network.gamma0"),
        (["--set", "network.activation=tanh,nonsense"], 2, "network.activation"),
        (["--set", "training.learning_rate=50,60"], 3, "no point of the sweep has a result"),
    ],
)
def test_what_cannot_be_swept(
    file: Path, tmp_path: Path, words: list[str], status: int, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sweep", str(file), *words, "-o", str(tmp_path / "runs")]) == status
    assert said in capsys.readouterr().err
    assert status == 3 or not (tmp_path / "runs").exists()


def test_a_cluster_that_is_not_there_is_run_here(file: Path, tmp_path: Path) -> None:
    """The debugging mode runs each job in this process; logs are in a separate folder."""
    executor = cluster(tmp_path / "runs", hours=1, jobs=2, kind="debug")
    found = sweep(file, OVER, folder=tmp_path / "runs", executor=executor)
    assert same(found, sweep(file, OVER))
    assert (tmp_path / "runs" / "jobs").is_dir()


# -- interruptions of a sweep ------------------------------------------------------------------------------


def started(file: Path, folder: Path, count: int, jobs: int) -> subprocess.Popen[bytes]:
    rates = ",".join(f"{0.001 * n:.3f}" for n in range(1, count + 1))
    words = ["sweep", str(file), "--set", f"training.learning_rate={rates}", "--jobs", str(jobs)]
    code = "from numerics.cli import main; main()"
    words = [sys.executable, "-c", code, *words, "-o", str(folder), "--gather"]
    return subprocess.Popen(words, env=os.environ | {"PYTHONPATH": os.getcwd()}, stdout=subprocess.DEVNULL)


def ended(process: subprocess.Popen[bytes]) -> int:
    return process.wait(timeout=120)


def children(pid: int) -> list[int]:
    words = ["ps", "-o", "pid=", "--ppid", str(pid)]
    return [int(x) for x in subprocess.run(words, capture_output=True, check=False).stdout.split()]


@pytest.mark.slow
def test_a_sweep_killed_five_times_is_that_which_was_not(file: Path, tmp_path: Path) -> None:
    """A hundred points; kill -9 of the process that began it, at random times. No process stays behind."""
    draw, folder = random.Random(0), tmp_path / "killed"
    for _ in range(5):
        sweeping = started(file, folder, 100, jobs=2)
        before = len([*folder.glob("*.nc")]) if folder.exists() else 0
        while not folder.exists() or len([*folder.glob("*.nc")]) < before + draw.randint(3, 15):
            time.sleep(0.05)
            assert sweeping.poll() is None
        workers = children(sweeping.pid)
        sweeping.kill()
        ended(sweeping)
        assert workers
        deadline = time.monotonic() + 20
        while any(Path(f"/proc/{x}").exists() for x in workers):
            assert time.monotonic() < deadline
            time.sleep(0.1)
    assert 15 <= len([*folder.glob("[!.]*.nc")]) < 100
    assert ended(started(file, folder, 100, jobs=2)) == 0
    assert ended(started(file, tmp_path / "whole", 100, jobs=2)) == 0
    assert load(folder / "sweep.nc").identical(load(tmp_path / "whole" / "sweep.nc"))


@pytest.mark.slow
def test_two_sweeps_into_one_folder_do_not_hurt_each_other(file: Path, tmp_path: Path) -> None:
    both = [started(file, tmp_path / "runs", 20, jobs=2) for _ in range(2)]
    assert [ended(x) for x in both] == [0, 0]
    assert ended(started(file, tmp_path / "alone", 20, jobs=1)) == 0
    assert load(tmp_path / "runs" / "sweep.nc").identical(load(tmp_path / "alone" / "sweep.nc"))
    assert {x.name for x in (tmp_path / "runs").iterdir()} == {x.name for x in (tmp_path / "alone").iterdir()}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_all_processes_and_leaves_no_half_of_a_file(
    file: Path, tmp_path: Path, number: signal.Signals
) -> None:
    folder = tmp_path / "runs"
    sweeping = started(file, folder, 100, jobs=2)
    while not folder.exists() or len([*folder.glob("*.nc")]) < 5:
        time.sleep(0.05)
        assert sweeping.poll() is None
    workers = children(sweeping.pid)
    sweeping.send_signal(number)
    assert ended(sweeping) == (130 if number == signal.SIGINT else 128 + number)
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{x}").exists() for x in workers):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert all(".part" not in x.name for x in folder.iterdir())
    for x in folder.glob("*.nc"):
        assert load(x).attrs["status"] == "ok"
