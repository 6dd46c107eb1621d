"""`dmft new`, `show`, `examples`, `--version` and `ledger --verdict`."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from derive.ledger import entries
from numerics.cli import run
from numerics.cli.files import EXAMPLES, template
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.schema import DATA_KEYS, SECTIONS
from numerics.results import save
from numerics.solver import solve

Said = pytest.CaptureFixture[str]


@pytest.mark.parametrize("kind", DATA_KEYS)
def test_a_new_experiment_can_be_solved_and_names_every_key(kind: str, tmp_path: Path, capsys: Said) -> None:
    folder = Path(mkdtemp(dir=tmp_path))
    file = folder / "new.toml"
    np.save(folder / "x.npy", np.eye(2))
    np.save(folder / "y.npy", np.ones(2))
    assert run(["new", str(file), "--kind", kind]) == 0
    assert solve(Experiment.load(file), kernels="none").attrs["status"] == "ok"
    named = {*re.findall(r"^#?(\w+) =", file.read_text(), re.M)}
    assert {*DATA_KEYS[kind], "gamma0", "activation", "momentum", "accuracy", "hours"} <= named
    capsys.readouterr()
    assert run(["new", str(file)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_what_is_behind_a_hash_is_what_a_file_without_it_says() -> None:
    text = template("isotropic")
    plain = Experiment.without_arrays(tables(text)).spec
    for table, model in SECTIONS.items():
        for key in model.model_fields:
            line = re.search(rf"^#{key} = (.+)$", part(text, table), re.M)
            if line is not None and (table, key) not in {
                ("training", "points"),
                ("training", "grid"),
            }:  # flows
                changed = text.replace(line.group(), line.group()[1:])
                assert Experiment.without_arrays(tables(changed)).spec == plain, key


def tables(text: str) -> dict[str, object]:
    import tomllib

    return tomllib.loads(text)


def part(text: str, table: str) -> str:
    return text.partition(f"[{table}]")[2].partition("\n[")[0]


def test_a_result_is_shown(tmp_path: Path, capsys: Said) -> None:
    e = Experiment.from_dict(
        {"network": {"depth": 1}, "training": {"learning_rate": 0.1, "steps": 2}}, kernel=[[1]], targets=[1]
    )
    result = solve(e)
    save(result, tmp_path / "r.nc")
    assert run(["show", str(tmp_path / "r.nc"), "--plot", str(tmp_path / "r.svg")]) == 0
    said = capsys.readouterr().out
    assert "learning_rate = 0.1" in said
    assert f"{float(result.train_loss[-1]):.8g}" in said
    assert all(f"{x}: " in said for x in ("version", "status", "data_sha256"))
    assert "<svg" in (tmp_path / "r.svg").read_text()
    assert run(["show", str(tmp_path / "r.nc"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["train_loss"] == result.train_loss.values.tolist()


@pytest.mark.parametrize("what", ["nothing", "cut", "other"])
def test_what_is_no_result_is_refused(what: str, tmp_path: Path, capsys: Said) -> None:
    file = tmp_path / "r.nc"
    if what == "other":
        file.write_text("no result")
    elif what == "cut":
        e = Experiment.from_dict(
            {
                "network": {"depth": 1},
                "data": {"kind": "isotropic"},
                "training": {"learning_rate": 0.1, "steps": 1},
            }
        )
        save(solve(e), file)
        file.write_bytes(file.read_bytes()[:-100])
    assert run(["show", str(file)]) == 2
    assert "RESULT.nc" in capsys.readouterr().err


def test_examples_come_with_the_package(tmp_path: Path, capsys: Said) -> None:
    folder = Path(mkdtemp(dir=tmp_path)) / "mine"
    assert run(["examples"]) == 0
    assert "isotropic.toml" in capsys.readouterr().out
    assert run(["examples", "--copy", str(folder)]) == 0
    for file in folder.glob("*.toml"):
        Experiment.load(file)
    assert len([*folder.glob("*.toml")]) == 9
    capsys.readouterr()
    assert run(["examples", "--copy", str(folder)]) == 2
    assert "already" in capsys.readouterr().err


def test_the_version_and_the_verdicts(capsys: Said) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.startswith("dmft 0.")
    assert run(["ledger", "linear2025", "--verdict", "wrong", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["entries"]
    assert [x["number"] for x in found] == [x.number for x in entries("linear2025") if x.verdict == "wrong"]
    assert found
    assert run(["ledger", "--verdict", "sometimes"]) == 2
    assert "agrees" in capsys.readouterr().err


def test_a_template_of_an_unknown_kind_is_none() -> None:
    with pytest.raises((KeyError, SpecError)):
        template("images")


def test_help_comes_before_anything_large_is_imported() -> None:
    code = "import sys; from numerics.cli import run; run(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"numpy", "sympy", "pydantic", "xarray", "matplotlib"} & set(done.stdout.split())


@pytest.mark.slow
def test_a_linear_network_is_solved_without_what_takes_long_to_import() -> None:
    code = "import sys; from numerics.cli import run; run(sys.argv[1:]); print(*sys.modules)"
    command = [sys.executable, "-c", code, "solve", str(EXAMPLES / "digits.toml")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    modules = {*done.stdout.split()}
    assert "sympy" in modules
    assert not {"xarray", "pandas", "scipy", "h5py", "matplotlib", "derive.expansion", "numpy.f2py"} & modules


def test_derive_ends_with_losses_and_symbols(capsys: Said) -> None:
    assert run(["derive", str(EXAMPLES / "isotropic.toml")]) == 0
    said = capsys.readouterr().out
    assert "test_loss  = σ² + C_v(t,t)" in said
    assert "α   data.sample_ratio: samples for each input dimension, P/D" in said
    assert run(["derive", str(EXAMPLES / "isotropic.toml"), "--show", "responses"]) == 0
    assert "Symbols" not in capsys.readouterr().out


def test_shells_complete_commands_and_options() -> None:
    for words, found in (("dmft so", "solve"), ("dmft solve --ker", "--kernels")):
        asked = {"_DMFT_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
        code = "import sys; from numerics.cli import run; sys.exit(run([]))"
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, env={**os.environ, **asked}, capture_output=True, text=True, check=False
        )
        assert done.stdout.split() == [found]


def test_derive_prints_without_the_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The equations are those of a file whose arrays are there; to compute, they must be."""
    text = '[network]\ndepth = 2\n[data]\ninputs = "x.npy"\ntargets = "y.npy"\n'
    (tmp_path / "spec.toml").write_text(text)
    np.save(tmp_path / "x.npy", np.eye(2))
    np.save(tmp_path / "y.npy", np.ones(2))
    printed = []
    for _ in range(2):
        assert run(["derive", str(tmp_path / "spec.toml")]) == 0
        printed.append(capsys.readouterr().out)
        (tmp_path / "x.npy").unlink(missing_ok=True)
    assert printed[0] == printed[1] != ""
    assert run(["expand", str(tmp_path / "spec.toml"), "--order", "2", "--show", "text"]) == 0
    assert run(["solve", str(tmp_path / "spec.toml")]) == 2
    assert "data.inputs" in capsys.readouterr().err
