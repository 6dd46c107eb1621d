"""`dmft solve` of nonlinear networks through the command line: results, refusals, an interrupt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numerics.cli import run
from numerics.experiment import Experiment
from numerics.results import load
from numerics.solver import solve

SPEC = """
[network]
depth = 2
activation = "tanh"
[data]
inputs = "x.npy"
targets = "y.npy"
[training]
learning_rate = 0.5
steps = 3
[solver]
samples = 64
"""
OWN = {"x.npy", "y.npy", "spec.toml"}


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    np.save(tmp_path / "x.npy", np.eye(2) + 0.3)
    np.save(tmp_path / "y.npy", np.array([1.0, -0.5]))
    (tmp_path / "spec.toml").write_text(SPEC)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "spec.toml"


def there() -> set[str]:
    return {path.name for path in Path().iterdir()}


def test_a_result_is_printed_saved_and_drawn(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", "spec.toml", "--json", "-o", "out.nc", "--plot", "out.png"]) == 0
    out, err = capsys.readouterr()
    found, saved = json.loads(out), load("out.nc")
    assert err == ""
    assert found["samples"] == 64
    assert found["replicas"] == 8
    assert len(found["train_loss_stderr"]) == 4
    assert found["train_loss"] == saved.train_loss.values.tolist()
    assert {"Phi_stderr", "G_stderr", "A_stderr", "B_stderr", "tangent_kernel_stderr"} < set(saved.data_vars)
    assert Path("out.png").read_bytes().startswith(b"\x89PNG")
    assert run(["solve", "spec.toml", "--kernels", "none"]) == 0
    _, errors, head, *_ = capsys.readouterr().out.splitlines()
    assert errors.startswith(f"standard error {found['accuracy']:.1e}, bias {found['bias']:.1e}")
    assert head.split() == ["time", "train_loss", "+-", "(95", "%)"]
    assert there() == {*OWN, "out.nc", "out.png"}


def test_progress_counts_the_steps_of_all_replicas(spec: Path) -> None:
    seen: list[tuple[int, int]] = []
    solve(Experiment.load(spec), progress=lambda step, total: seen.append((step, total)))
    assert ((8 + 4) * 4, (8 + 4) * 4) in seen  # with those of half the paths
    assert all(0 < step <= total for step, total in seen)


REFUSED: dict[str, tuple[tuple[str, str], str]] = {
    "too few": (
        ("steps = 3\n[solver]\nsamples = 64", "steps = 80\n[solver]\nsamples = 32"),
        "solver.samples = 32: is fewer than a quarter of the 162 entries of a source (samples of the "
        "data, outputs, times), which Stein's lemma has to tell apart (accepted: 42 or more, better 336)",
    ),
    "odd": (
        ("samples = 64", "samples = 65"),
        "solver.samples = 65: is odd, but paths come in mirrored pairs",
    ),
    "none": (("samples = 64", "samples = 0"), "solver.samples = 0: must be greater than or equal to 16"),
    "accuracy": (("samples = 64", "accuracy = 1.5"), "solver.accuracy = 1.5: must be less than 1"),
    "danger": (
        ('"tanh"', "\"__import__('os').system('touch pwned')\""),
        "network.activation = \"__import__('os').system('touch pwned')\"",
    ),
    "not known": (('"tanh"', '"f(h)"'), 'network.activation = "f(h)"'),
    "targets": (('"y.npy"', '"y3.npy"'), 'data.targets = "y3.npy"'),
    "targets of two outputs": (("depth = 2", "depth = 2\noutputs = 2"), 'data.targets = "y.npy"'),
    "kernel": (('inputs = "x.npy"', 'kernel = "bad.npy"'), 'data.kernel = "bad.npy"'),
    "infinite depth": (
        ("depth = 2", 'depth = "L"\nbranch = 0.5\nbias = true'),
        'network.depth = "L": no limit of infinite depth',
    ),
    "isotropic": (
        ('inputs = "x.npy"\ntargets = "y.npy"', 'kind = "isotropic"\nsample_ratio = 2.0'),
        'network.activation = "tanh": excludes data.kind = "isotropic": the theory of random data',
    ),
    "power law": (
        (
            'inputs = "x.npy"\ntargets = "y.npy"',
            'kind = "power-law"\ncapacity = 1.5\nsource = 1.0\nmodes = 10',
        ),
        'network.activation = "tanh": excludes data.kind = "power-law": the theory of random data',
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_in_one_line_that_names_key_and_value(
    spec: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    np.save("y3.npy", np.ones(3))
    np.save("bad.npy", np.array([[1.0, 2.0], [2.0, 1.0]]))
    (old, new), message = REFUSED[name]
    assert old in SPEC
    spec.write_text(SPEC.replace(old, new))
    assert run(["solve", "spec.toml", "-o", "out.nc", "--plot", "out.png"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"dmft: {message}")
    assert err.count("\n") == 1
    assert there() == {*OWN, "y3.npy", "bad.npy"}


NO_RESULT: dict[str, tuple[dict[str, str], str]] = {
    "diverged": (
        {'"tanh"': '"relu"', "learning_rate = 0.5\nsteps = 3": "learning_rate = 1e30\nsteps = 12"},
        r"dmft: Diverged: training.learning_rate = 1e+30: ",
    ),
    "out of reach": (
        {"depth = 2": "depth = 1", "samples = 64": "samples = 64\naccuracy = 1e-6"},
        "dmft: NotConverged: solver.accuracy = 1.0e-06: 8 replicas of 64 samples reach ",
    ),
}


def test_accuracy_in_a_word(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", "spec.toml", "--accuracy", "1e-6"]) == 3
    assert "solver.accuracy = 1.0e-06: 8 replicas of 64 samples reach " in capsys.readouterr().err
    spec.write_text(SPEC.replace("samples = 64", 'method = "paths"'))
    assert run(["solve", "spec.toml", "--accuracy", "0.05", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"] <= 0.05
    assert found["samples"] * found["replicas"] < 4096


@pytest.mark.parametrize("name", NO_RESULT)
def test_no_result_ends_with_3(spec: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    text = SPEC
    changes, message = NO_RESULT[name]
    for old, new in changes.items():
        assert old in text
        text = text.replace(old, new)
    spec.write_text(text)
    assert run(["solve", "spec.toml", "-o", "out.nc"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert name != "diverged" or " at step " in err
    assert err.count("\n") == 1
    assert there() == OWN


def test_what_is_not_converged_is_shown_and_ends_with_3(
    spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """At a rate of 5 the replicas are apart; they are there to be looked at."""
    text = SPEC.replace("learning_rate = 0.5\nsteps = 3", "learning_rate = 5\nsteps = 10")
    spec.write_text(text.replace("depth = 2", "depth = 2\ngamma0 = 4.0"))
    assert run(["solve", "spec.toml", "-o", "out.nc"]) == 3
    out, err = capsys.readouterr()
    assert out.startswith("status: not converged\n")
    assert "errors that are not known: kernels: 64 paths" in out
    assert err.startswith("dmft: NotConverged: the status is 'not converged': ")
    assert load("out.nc").attrs["status"] == "not converged"


@pytest.mark.slow
def test_an_interrupt_in_the_middle_ends_with_130_and_writes_nothing(spec: Path) -> None:
    """Control-C, once the first replicas have been marched."""
    spec.write_text(SPEC.replace("steps = 3", "steps = 300").replace("samples = 64", "samples = 4096"))
    # a test run in the background may ignore interrupts, and its children with it
    before = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    before += "import numerics.solver.paths.march as m; draw = m.PathMarch.draw\n"
    announce = "def said(*a): print('drawing', flush=True); return draw(*a)\n"
    code = before + announce + "m.PathMarch.draw = said; from numerics.cli import main; main()"
    environment: dict[str, Any] = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = [sys.executable, "-c", code, "solve", "spec.toml", "-o", "out.nc", "--plot", "out.png"]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "drawing\n"
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert time.monotonic() - started < 30
    assert there() == OWN


@pytest.mark.slow
def test_the_shipped_example_in_fewer_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = EXAMPLE.read_text().replace("steps = 40", "steps = 4").replace("samples = 4000", "samples = 256")
    (tmp_path / "tanh.toml").write_text(text.replace('"digits_', f'"{EXAMPLE.parent}/digits_'))
    assert run(["solve", str(tmp_path / "tanh.toml"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["samples"] == 256
    assert found["train_loss"][0] > found["train_loss"][4] + 20 * found["train_loss_stderr"][4]


@pytest.mark.slow
def test_the_shipped_example(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It learns: the loss falls by more than a hundred times."""
    assert run(["solve", str(EXAMPLE), "--json", "-o", str(tmp_path / "out.nc")]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["accuracy"] < 0.01
    assert found["train_loss"][-1] < 0.01 * found["train_loss"][0]
    assert load(tmp_path / "out.nc").sizes["time"] == 41


EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "tanh.toml"
