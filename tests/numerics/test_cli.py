"""The command line: exit statuses, messages without traceback, and nothing written on refusal or interrupt.

The computations behind the commands have their own tests; here they are stand-ins.
"""

from __future__ import annotations

import importlib
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import xarray as xr

import numerics.verification  # noqa: F401 - rooms are read before some of them are replaced
from derive.program import gamma0
from numerics.cli import run
from numerics.cli.common import progress, say, summary
from numerics.errors import Diverged, NotConverged
from numerics.experiment import Experiment
from numerics.results import Result, load

GOOD = """
[network]
depth = 2
[data]
inputs = "x.npy"
targets = "y.npy"
[training]
learning_rate = 0.25
steps = 3
"""
SYMBOLIC = '[network]\ndepth = "L"\n'


@pytest.fixture
def spec(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    np.save(tmp_path / "x.npy", np.eye(2))
    np.save(tmp_path / "y.npy", np.ones(2))
    (tmp_path / "spec.toml").write_text(GOOD)
    (tmp_path / "symbolic.toml").write_text(SYMBOLIC)
    monkeypatch.chdir(tmp_path)
    return tmp_path / "spec.toml"


def files(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


OWN_FILES = {"x.npy", "y.npy", "spec.toml", "symbolic.toml"}


def a_result(experiment: Experiment, **extra: Any) -> Result:
    times = experiment.times
    values: dict[str, Any] = {"train_loss": np.exp(-times), "G": np.ones((2, len(times), len(times)))}
    return Result.of(values | extra, times=times, spec=experiment.text)


@dataclass
class Fakes:
    """Stand-ins of `solve`, `simulate`, `expand` and `verify`, which record their arguments."""

    calls: list[tuple[str, dict[str, Any]]]
    action: Callable[[Experiment], Result]
    passed: bool = True


@pytest.fixture
def fakes(monkeypatch: pytest.MonkeyPatch) -> Fakes:
    fake = Fakes([], a_result)

    def computing(name: str) -> Callable[..., xr.Dataset | Result]:
        def compute(experiment: Experiment, *positional: Any, **options: Any) -> xr.Dataset | Result:
            fake.calls.append((name, {**options, **({"order": positional[0]} if positional else {})}))
            result = fake.action(experiment)
            return result if name == "solve" else result.dataset()

        return compute

    def verify(
        experiment: Experiment, out_dir: Path | None, progress: object, before: Callable[[Any], object]
    ) -> SimpleNamespace:
        fake.calls.append(("verify", {"out_dir": out_dir}))
        fake.action(experiment)
        shown = {"table": lambda: "the table", "folder": Path("out"), "verdict": "the verdict"}
        report = SimpleNamespace(**shown, passed=fake.passed)
        before(report)
        return report

    @dataclass
    class Entry:
        number: str
        verdict: str

    def listing(rows: list[Entry], form: str, full: bool = False) -> str:
        if form == "json":
            return json.dumps([{"number": row.number, "verdict": row.verdict} for row in rows])
        return "\n".join(f"{row.number} {row.verdict}" for row in rows)

    def rendering(word: str) -> Callable[..., SimpleNamespace]:
        return lambda *_: SimpleNamespace(
            render=lambda *how: " ".join([word, *how]), symbols={"gamma0": gamma0}
        )

    def install(name: str, **contents: object) -> None:
        module = ModuleType(name)
        module.__dict__.update(contents)
        above, _, child = name.rpartition(".")
        parent = importlib.import_module(above)
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(parent, child, module, raising=False)

    install("numerics.solution", solved=computing("solve"))
    install("numerics.simulation", simulate=computing("simulate"))
    install(
        "numerics.expansion",
        evaluated_at=computing("expand"),
        series=rendering("series"),
        forecast=lambda *_, **__: 0.0,
        has_words=lambda _: True,
    )
    install(
        "numerics.experiment.theory",
        theory_of=rendering("theory"),
        path_integral_of=rendering("path integral of"),
    )
    texts = ["theory all text", "series text"]
    install(
        "numerics.verification",
        verify=verify,
        equations=lambda *_, **__: [lambda _, said=x: said for x in texts],
    )
    install(
        "derive.ledger",
        entries=lambda source: (Entry("13", "agrees"), Entry("14", "misprint")),
        render=listing,
    )
    return fake


COMPUTING = [
    ["solve", "FILE"],
    ["simulate", "FILE", "--width", "8", "--seeds", "2"],
    ["expand", "FILE", "--order", "2"],
    ["verify", "FILE"],
]


def command(words: list[str], file: Path | str) -> list[str]:
    return [str(file) if word == "FILE" else word for word in words]


BROKEN = [
    (GOOD.replace("depth = 2", "depth = 0"), "network.depth = 0"),
    (GOOD.replace("depth", "dept"), "network.dept = 2: unknown key, perhaps network.depth was meant"),
    (GOOD.replace("0.25", "-0.25"), "training.learning_rate = -0.25"),
    (GOOD.replace("x.npy", "z.npy"), 'data.inputs = "z.npy": no such file'),
    (GOOD.replace("steps = 3", "steps = 0"), "training.steps = 0"),
    ("[network", "is not valid TOML"),
]


@pytest.mark.parametrize(
    ("words", "broken", "named"),
    [(words, *bad) for words, bad in zip(cycle([*COMPUTING, ["derive", "FILE"]]), BROKEN, strict=False)],
)
def test_bad_input_ends_with_2_and_one_line_naming_key_and_value(
    spec: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str], words: list[str], broken: str, named: str
) -> None:
    spec.write_text(broken)
    assert run(command(words, spec)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("dmft: ")
    assert named in err
    assert err.count("\n") == 1
    assert files(spec.parent) == OWN_FILES
    assert fakes.calls == []


def test_a_missing_file_ends_with_2(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", "nowhere.toml"]) == 2
    assert capsys.readouterr().err == (
        'dmft: file = "nowhere.toml": no such file (accepted: an experiment file in TOML)\n'
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["solve"],
        ["solve", "spec.toml", "--kernels", "some"],
        ["solve", "spec.toml", "--bogus"],
        ["simulate", "spec.toml", "--width", "8"],
        ["simulate", "spec.toml", "--width", "0", "--seeds", "2"],
        ["simulate", "spec.toml", "--width", "8", "--seeds", "x"],
        ["expand", "spec.toml"],
        ["expand", "spec.toml", "--order", "-1"],
        ["derive", "spec.toml", "--show", "everything"],
        ["derive", "spec.toml", "--format", "html"],
        ["solve", "spec.toml", "-o", "nowhere/out.nc"],
        ["solve", "spec.toml", "-o", "."],
        ["solve", "spec.toml", "--plot", "figure.docx"],
        ["verify", "spec.toml", "-o", "spec.toml"],
        ["verify", "spec.toml", "-o", "nowhere/out"],
        ["nonsense"],
    ],
)
def test_bad_arguments_end_with_2_before_anything_runs(
    spec: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str], arguments: list[str]
) -> None:
    assert run(arguments) == 2
    assert "Traceback" not in capsys.readouterr().err
    assert fakes.calls == []
    assert files(spec.parent) == OWN_FILES


@pytest.mark.parametrize("words", COMPUTING)
def test_a_symbolic_depth_gives_no_numbers(
    spec: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(command(words, "symbolic.toml")) == 2
    assert 'network.depth = "L"' in capsys.readouterr().err
    assert fakes.calls == []


@pytest.mark.parametrize("words", COMPUTING)
def test_every_command_takes_any_activation_and_biases(spec: Path, fakes: Fakes, words: list[str]) -> None:
    spec.write_text(GOOD.replace("depth = 2", 'depth = 2\nactivation = "h + h**2"\nbias = true'))
    assert run(command(words, spec)) == 0
    assert [name for name, _ in fakes.calls] == [words[0]]


LEFT_OUT = [
    ("learning_rate = 0.25\n", "training.learning_rate: is missing"),
    ("steps = 3\n", "training.steps: is missing"),
    ('[data]\ninputs = "x.npy"\ntargets = "y.npy"\n', "data: is missing"),
]


@pytest.mark.parametrize(
    ("words", "left_out", "named"),
    [(words, *bad) for words, bad in zip(COMPUTING, cycle(LEFT_OUT), strict=False)],
)
def test_what_is_left_out_is_missed_by_what_computes_and_not_by_derive(
    spec: Path,
    fakes: Fakes,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    left_out: str,
    named: str,
) -> None:
    spec.write_text(GOOD.replace(left_out, ""))
    assert run(command(words, spec)) == 2
    assert named in capsys.readouterr().err
    assert fakes.calls == []
    assert run(["derive", str(spec)]) == 0


def test_derive_shows_the_action_of_the_program_itself(
    spec: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    for show in ("action", "saddle-point"):
        assert run(["derive", str(spec), "--show", show]) == 0
        assert capsys.readouterr().out == f"path integral of {show} text\n"


def test_a_symbolic_depth_derives_and_expands_as_symbols(
    spec: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["derive", "symbolic.toml", "--show", "responses", "--format", "latex"]) == 0
    assert capsys.readouterr().out == "theory responses latex\n"
    assert run(["expand", "symbolic.toml", "--order", "2", "--show", "text"]) == 0
    assert capsys.readouterr().out == "series text\n"
    assert fakes.calls == []
    assert run(["expand", "symbolic.toml", "--order", "2", "--show", "text", "-o", "out.nc"]) == 2


OUTPUTS = [words for words in COMPUTING if words[0] != "verify"]


@pytest.mark.parametrize("words", OUTPUTS)
def test_results_are_printed_as_a_table_or_as_json_and_saved(
    spec: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    assert run(command(words, spec)) == 0
    out, err = capsys.readouterr()
    assert out.splitlines()[0] == "status: ok"
    assert len(out.splitlines()) == 2 + 4
    assert err == ""
    assert run([*command(words, spec), "--json", "-o", "out.nc"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["time"] == [0.0, 1.0, 2.0, 3.0]
    assert found["status"] == "ok"
    assert load("out.nc").train_loss.values.tolist() == found["train_loss"]
    assert files(spec.parent) == {*OWN_FILES, "out.nc"}


def test_the_options_reach_the_computation(spec: Path, fakes: Fakes) -> None:
    assert run(["solve", "spec.toml", "--kernels", "full"]) == 0
    assert run(["simulate", "spec.toml", "--width", "8", "--seeds", "2"]) == 0
    assert run(["expand", "spec.toml", "--order", "4"]) == 0
    assert fakes.calls == [
        ("solve", {"width": None, "kernels": "full", "progress": None, "say": say}),
        ("simulate", {"width": 8, "seeds": 2, "rng": 0, "progress": None}),
        ("expand", {"order": 4, "progress": None}),
    ]


def test_kernels_that_nobody_would_see_are_not_computed(spec: Path, fakes: Fakes) -> None:
    for more in ([], ["--json"], ["-o", "out.nc"], ["--plot", "out.png"]):
        assert run(["solve", "spec.toml", *more]) == 0
    assert [options["kernels"] for _, options in fakes.calls] == ["none", "none", "auto", "auto"]


def test_show_prints_the_series_before_the_numbers(
    spec: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["expand", "spec.toml", "--order", "2", "--show", "latex", "-o", "out.nc", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["series"] == "series latex"
    assert len(found["train_loss"]) == 4


def test_a_plot_is_written(spec: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", "spec.toml", "--plot", "loss.png"]) == 0
    assert Path("loss.png").read_bytes().startswith(b"\x89PNG")
    assert "wrote loss.png" in capsys.readouterr().out


FAILURES = [
    (Diverged("|f| = 1e9 at step 7"), "learning_rate = 0.25"),
    (NotConverged("late"), "rtol = 1e-08"),
]


@pytest.mark.parametrize(
    ("words", "failure", "named"),
    [(words, *bad) for words, bad in zip(COMPUTING, cycle(FAILURES), strict=False)],
)
def test_no_result_ends_with_3_names_key_and_value_and_writes_nothing(
    spec: Path,
    fakes: Fakes,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    failure: Exception,
    named: str,
) -> None:
    def fail(experiment: Experiment) -> xr.Dataset:
        raise failure

    fakes.action = fail
    assert run([*command(words, spec), "-o", "out"]) == 3
    err = capsys.readouterr().err
    assert named in err
    assert str(failure) in err
    assert err.count("\n") == 1
    assert files(spec.parent) == OWN_FILES


@pytest.mark.parametrize(
    ("failure", "status", "said"),
    [
        (KeyboardInterrupt(), 130, ""),
        (OSError(28, "No space left on device", "out.nc"), 2, "out.nc: No space left on device"),
        (MemoryError(), 2, "memory: the computation needs more than the "),
    ],
)
def test_a_failed_write_says_why_and_leaves_what_was_there(
    spec: Path,
    fakes: Fakes,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    failure: BaseException,
    status: int,
    said: str,
) -> None:
    Path("out.nc").write_bytes(b"older")

    def half(_: int) -> None:
        raise failure

    monkeypatch.setattr("os.fsync", half)
    assert run(["solve", "spec.toml", "-o", "out.nc"]) == status
    assert Path("out.nc").read_bytes() == b"older"
    assert files(spec.parent) == {*OWN_FILES, "out.nc"}
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") <= 1


@pytest.mark.parametrize("passed", [True, False])
def test_verify_prints_equations_table_and_figure_and_fails_with_a_check(
    spec: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str], passed: bool
) -> None:
    fakes.passed = passed
    assert run(["verify", "spec.toml", "-o", "out"]) == (0 if passed else 1)
    assert capsys.readouterr().out.splitlines() == [
        "theory all text",
        "series text",
        "the table",
        "the verdict: out/report.html",
    ]
    assert fakes.calls == [("verify", {"out_dir": Path("out")})]


def test_the_ledger_is_listed_and_checked(
    spec: Path, fakes: Fakes, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ledger"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "13 agrees",
        "14 misprint",
        "2 entries: 1 agrees, 1 misprint",
    ]
    assert run(["ledger", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["number"] for row in found["entries"]] == ["13", "14"]


def test_one_paper_of_the_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ledger", "depth2023", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)["entries"]
    assert {row["source"] for row in listed} == {"depth2023"}
    assert run(["ledger", "depth2022"]) == 2
    assert "no such paper" in capsys.readouterr().err


@pytest.mark.slow
def test_one_equation_of_the_ledger_with_its_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(["ledger", "linear2025", "104", "--check"]) == 0
    out = capfd.readouterr().out
    assert out.index("linear2025  104") < out.index("holds: first_step:growth")
    assert "    L = 1: networks minus (104) with L layers: -0.2442 (tolerance or standard error 0.0054" in out
    assert run(["ledger", "linear2025", "104", "--check", "--json"]) == 0
    (row,) = json.loads(capfd.readouterr().out)["checks"]
    assert (row["evidence"], row["passed"]) == ("first_step:growth", True)
    assert run(["ledger", "linear2025", "1040"]) == 2
    assert "1040" in capfd.readouterr().err


def test_the_evidence_is_looked_for_where_it_can_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("numerics.cli.commands.EVIDENCE", "tests/ledger/nowhere")
    assert run(["ledger", "linear2025", "104", "--check"]) == 2
    assert "a checkout" in capsys.readouterr().err


def test_no_arguments_print_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert run([]) == 2
    assert run(["--help"]) == 0
    captured = capsys.readouterr()
    for name in ("derive", "solve", "simulate", "expand", "verify", "ledger"):
        assert name in captured.out


class Terminal(io.StringIO):
    """Stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_progress_is_on_stderr_and_only_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("solve") as meter:
        assert meter is None
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    with progress("solve") as meter:
        assert meter is not None
        meter(1, 2)
        meter(2, 2)
    monkeypatch.undo()
    assert "solve" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_the_installed_command_answers_without_matplotlib() -> None:
    """All modules that it imports are named on the standard error."""
    command = [sys.executable, "-X", "importtime", "-m", "numerics.cli", "solve", "--nothing"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stdout) == (2, "")
    assert "Traceback" not in found.stderr
    assert "--nothing" in found.stderr
    assert not re.search(r"\| +(matplotlib|sympy)\b", found.stderr)


def test_each_loss_stands_under_its_own_name() -> None:
    curves = {"train_loss": ("time", [1.0, 0.25]), "test_loss": ("time", [1.5, 0.75])}
    _, head, *rows = summary(xr.Dataset(curves, {"time": [0.0, 1.0]}, {"status": "ok"})).splitlines()
    assert head.split() == ["time", "train_loss", "test_loss"]
    assert [[float(x) for x in row.split()] for row in rows] == [[0, 1, 1.5], [1, 0.25, 0.75]]
