"""Tests of hostile files, options and environments: a status, one line, and no file written."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import numpy as np
import pytest

from numerics.cli import main, run
from numerics.errors import SpecError
from numerics.expansion import expand
from numerics.experiment import Experiment
from numerics.solver import solve

FIXED = {"data": {"kernel": "k.npy", "targets": "y.npy"}}
STEPS: dict[str, Any] = {"learning_rate": 0.1, "steps": 5}
FLOW: dict[str, Any] = {"rule": "flow", "time": 2.0, "points": 5}
LINEAR: dict[str, Any] = {"network": {"depth": 2}, "training": STEPS, **FIXED}
TANH: dict[str, Any] = LINEAR | {
    "network": {"depth": 2, "activation": "tanh"},
    "solver": {"samples": 256},
}
ISOTROPIC: dict[str, Any] = {
    "network": {"depth": 2, "width_ratio": 1.0},
    "data": {"kind": "isotropic", "sample_ratio": 1.0},
    "training": STEPS,
}


def written(tables: Mapping[str, Any]) -> str:
    def value(x: Any) -> str:
        if isinstance(x, bool):
            return str(x).lower()
        return f'"{x}"' if isinstance(x, str) else str(x)

    return "\n".join(
        f"[{name}]\n" + "\n".join(f"{k} = {value(x)}" for k, x in table.items())
        for name, table in tables.items()
    )


def changed(tables: Mapping[str, Any], **sections: Any) -> dict[str, Any]:
    return {k: {**tables.get(k, {}), **sections.get(k, {})} for k in {**tables, **sections}}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    np.save("k.npy", [[1.0, 0.3], [0.3, 1.0]])
    np.save("y.npy", [1.0, -1.0])
    return tmp_path


def answer(words: str, capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    """Return exit status, output and message of a command that leaves no file behind."""
    before = sorted(Path().iterdir())
    status = run(words.split(" "))
    assert sorted(Path().iterdir()) == before
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    assert err.count("\n") == (status != 0)
    return status, out, err


HEADER = "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), }"
HEADERS = [
    HEADER.replace("<f8", "<zz9"),
    HEADER.replace("(2, 2)", "(-2, 2)"),
    HEADER.replace("(2, 2)", "(1000000000000, 2000000)"),
    HEADER.replace("(2, 2)", "(True, True)"),
    HEADER.replace("(2, 2)", "4"),
    HEADER.replace("'<f8'", "['a', 'b']"),
    HEADER.replace("'<f8'", "7"),
    HEADER.replace("'<f8'", "'V'"),
    HEADER.replace("'<f8'", "'O'"),
    "{'descr': '<f8'}",
    "(" * 5000,
    "\x00",
    "",
]


@pytest.mark.parametrize("header", HEADERS)
def test_a_broken_array_is_refused(header: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("spec.toml").write_text(written(LINEAR))
    text = header.encode()
    Path("k.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + b"\0" * 32)
    status, _, said = answer("solve spec.toml", capsys)
    assert status == 2
    assert 'data.kernel = "k.npy"' in said


REFUSED = {
    "integer of 100,000 digits": ("depth = " + "9" * 100_000, "solve spec.toml", "is not valid TOML"),
    "the same as an option": ("depth = 2", "solve spec.toml --set network.depth=" + "9" * 100_000, "depth"),
    "name of 20,000 dots": (
        "a" + ".a" * 20_000 + " = 1",
        "derive spec.toml",
        "a line of the file has 20000 dots",
    ),
    "seed of 65 bits": ("depth = 2\n[solver]\nseed = 18446744073709551616", "solve spec.toml", "solver.seed"),
    "pipe": ("depth = 2", "solve pipe", "no regular file"),
    "device": ("depth = 2", "solve /dev/zero", "no regular file"),
    "folder": ("depth = 2", "solve .", "a folder"),
    "array in a pipe": (
        'depth = 2\n[data]\nkernel = "pipe"\ntargets = "y.npy"',
        "solve spec.toml",
        "no regular",
    ),
    "picture that needs LaTeX": ("depth = 2", "solve whole.toml --plot p.pgf", "not a picture format"),
    "number with less than its digits": (
        "depth = 2\ngamma0 = 1e-320",
        "derive spec.toml",
        "network.gamma0 = 1e-320: is closer to 0 than the smallest normal",
    ),
    "output is the spec": ("depth = 2", "solve whole.toml -o whole.toml", "is read or written"),
    "output is an array": ("depth = 2", "solve whole.toml -o k.npy", "is read or written"),
    "output is the plot": ("depth = 2", "solve whole.toml -o a.png --plot a.png", "is read or written"),
    "output is a folder": ("depth = 2", "solve whole.toml -o .", "is a folder"),
    "output is a device": ("depth = 2", "solve whole.toml -o /dev/null", "is not a regular file"),
    "folder is a file": ("depth = 2", "verify whole.toml -o k.npy", "is a file"),
    "output is a pipe": ("depth = 2", "expand whole.toml --order 2 -o pipe", "not a regular file"),
    "output is a link to the spec": ("depth = 2", "solve whole.toml -o link.nc", "is read or written"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_can_not_be_read_or_written_is_refused(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    network, words, told = REFUSED[case]
    Path("spec.toml").write_text("[network]\n" + network)
    Path("whole.toml").write_text(written(LINEAR))
    os.mkfifo("pipe")
    Path("link.nc").symlink_to("whole.toml")
    status, _, said = answer(words, capsys)
    assert status == 2
    assert told in said


def test_nothing_to_learn_is_learnt_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    np.save("y.npy", np.zeros(2))
    Path("spec.toml").write_text(written(changed(LINEAR, training=FLOW) | {"training": FLOW}))
    for words in ("solve spec.toml --json", "expand spec.toml --order 2 --json"):
        status, out, _ = answer(words, capsys)
        assert status == 0
        assert "1" not in out.partition('"train_loss": ')[2].partition("]")[0]


def test_a_flow_of_no_time_has_its_coefficients(capsys: pytest.CaptureFixture[str]) -> None:
    """The flow lasts 1e-200, whose square underflows."""
    Path("spec.toml").write_text(written(LINEAR | {"training": FLOW | {"time": 1e-200}}))
    status, out, _ = answer("expand spec.toml --order 2 --json", capsys)
    assert status == 0
    assert json.loads(out)["train_loss"] == [[1.0] * 5]


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_an_activation_with_a_number_in_front_is_linear(depth: int) -> None:
    tables = {"network": {"depth": depth, "activation": "16*h"}, "training": {**STEPS, "learning_rate": 1e-6}}
    experiment = Experiment.from_dict(tables, kernel=np.eye(2), targets=[1.0, -0.5])
    found = solve(experiment)
    judge = solve(experiment.replace({"solver.method": "direct"}))
    assert "march" in found.attrs["method"]
    np.testing.assert_allclose(found.train_loss, judge.train_loss, rtol=1e-9)
    lazy = expand(experiment, 0).train_loss.sel(order=0)
    kernel = 16.0 ** (2 * depth) * (depth + 1)  # of the gradients, each of which has all numbers but its own
    first = ((1 - 1e-6 * kernel / 2) ** 2 * (1 + 0.25)) / 2
    np.testing.assert_allclose(lazy[1], first, rtol=1e-6)


# -- one gate: no number that is not finite, and no loss that ran away --------------------------------------

SIMULATE = "simulate spec.toml --width 16 --seeds 2 --json"
RUNAWAY = {
    "decay at a large rate": (
        changed(TANH, training={"learning_rate": 5.0, "steps": 20, "weight_decay": 1.0}),
        ("solve", "simulate"),
        {},
        r"training.learning_rate = 5.0: .* at step \d+; a smaller learning rate",
    ),
    "few samples": (
        changed(ISOTROPIC, data={"sample_ratio": 0.05}, training={"learning_rate": 0.9, "steps": 60}),
        ("solve", "simulate"),
        {},
        r"training.learning_rate = 0.9: .* at step \d+",
    ),
    "gamma0 that rounding hides": (
        changed(TANH, network={"gamma0": 1e-200}),
        ("solve", "verify"),
        {},
        r"network.gamma0 = 1e-200: rounding errors of averages over paths are",
    ),
    "an output that overflows": (
        changed(TANH, network={"gamma0": 1e-200}),
        ("simulate",),
        {},
        "^(?!.*rate).* before any step",
    ),
    "rate that overflows in a closed form": (
        changed(ISOTROPIC, network={"depth": 1}, training={"learning_rate": 1e200, "weight_decay": 0.1}),
        ("limits",),
        {},
        "growth_factor is not finite",
    ),
    "more time than steps": (
        LINEAR | {"training": FLOW | {"time": 1e12}},
        ("simulate",),
        {},
        "training.time = 1000000000000.0: ",
    ),
    "a strength whose square overflows": (
        changed(LINEAR, network={"gamma0": 1e160}),
        ("expand",),
        {},
        "does not converge at gamma0",
    ),
    "temperature": (
        changed(LINEAR, training={"temperature": 1e200}),
        ("solve", "simulate", "expand"),
        {},
        "step",
    ),
    "the same, tanh": (
        changed(TANH, training={"temperature": 1e200}),
        ("solve", "simulate"),
        {},
        "rounding|step",
    ),
}


@pytest.mark.parametrize(
    ("case", "command"),
    [(case, command) for case, (_, commands, *_) in RUNAWAY.items() for command in commands],
)
def test_what_runs_away_is_no_result(case: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    tables, _, arrays, told = RUNAWAY[case]
    Path("spec.toml").write_text(written(tables))
    for name, x in arrays.items():
        np.save(f"{name}.npy", x)
    words = {
        "simulate": SIMULATE,
        "expand": "expand spec.toml --order 2 --json --resum sum",
        "limits": "limits early-time spec.toml --json",
        "verify": "verify spec.toml",
    }
    status = run(words.get(command, f"{command} spec.toml --json").split())
    err = capsys.readouterr().err
    assert (status, err.count("\n")) == (3, 1)
    assert re.search(told, err)


@pytest.mark.parametrize("tables", [LINEAR, TANH, changed(ISOTROPIC, data={"noise": 1e160})])
@pytest.mark.parametrize(
    "words", ["solve spec.toml", SIMULATE, "expand spec.toml --order 2", "verify spec.toml"]
)
def test_data_whose_squares_overflow_are_refused(
    tables: dict[str, Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("spec.toml").write_text(written(tables))
    np.save("y.npy", [1e160, -1e160])
    status, _, said = answer(words, capsys)
    assert status == 2
    assert re.search(r"data\.(targets = \"y.npy\"|noise = 1e\+160): has (squares that|a square that)", said)


@pytest.mark.parametrize("command", ["solve spec.toml", SIMULATE, "expand spec.toml --order 2"])
def test_a_kernel_near_the_largest_number_has_no_curve(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("spec.toml").write_text(written(LINEAR))
    np.save("k.npy", 1e308 * np.eye(2))
    status, _, said = answer(command, capsys)
    assert status == 3
    assert re.search("^(?!.* rate).*before any step|training.learning_rate = 0.1: .* at step [1-9]", said)


@pytest.mark.parametrize(
    "tables",
    [
        changed(ISOTROPIC, data={"sample_ratio": 0.001}),
        changed(ISOTROPIC, data={"sample_ratio": 1e19}),
        changed(ISOTROPIC, data={"sample_ratio": 1e308}),
        changed(TANH, network={"relative_widths": [1.0, 0.001]}),
    ],
)
def test_less_than_one_unit_and_too_many_are_refused(
    tables: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    Path("spec.toml").write_text(written(tables))
    status, _, said = answer(SIMULATE, capsys)
    assert status == 2
    assert "width = 16" in said


# -- no hang: costly problems are refused by estimate -------------------------------------------------------

DEEP = changed(LINEAR, network={"depth": 10**9})
LONG = changed(LINEAR, training={"steps": 10**6})
ENDLESS = {
    "expand --order 30 --show text": (
        LINEAR,
        "expand spec.toml --order 30 --show text --set solver.hours=0.001",
        "solver.hours = 0.001",
    ),
    "expand --order 10^9": (LINEAR, "expand spec.toml --order 1000000000", "solver.hours = 24.0"),
    "the same, tanh": (TANH, "expand spec.toml --order 1000000000", "solver.hours = 24.0"),
    "the same, printed": (LINEAR, "expand spec.toml --order 1000000000 --show text", "solver.hours = 24.0"),
    "expand --order 200": (
        LINEAR,
        "expand spec.toml --order 200 --set solver.hours=0.02",
        "solver.hours = 0.02: the expansion to order 200",
    ),
    "the same of trees": (TANH, "expand spec.toml --order 200", "solver.hours = 24.0"),
    "solve of 10^4 layers": (
        changed(LINEAR, network={"depth": 10**4}),
        "solve spec.toml --set solver.hours=1",
        "network.depth = 10000: deriving its equations",
    ),
    "solve of 10^9 layers": (DEEP, "solve spec.toml", "network.depth = 1000000000"),
    "their explanation": (DEEP, "solve spec.toml --explain", "network.depth = 1000000000"),
    "simulate of 10^9 layers": (DEEP, SIMULATE, "network.depth = 1000000000"),
    "expand of 10^9 layers": (DEEP, "expand spec.toml --order 2", "network.depth = 1000000000"),
    "limits of 10^9 layers": (
        changed(ISOTROPIC, network={"depth": 10**9}),
        "limits early-time spec.toml --json",
        "network.depth = 1000000000",
    ),
    "verify of 10^9 layers": (DEEP, "verify spec.toml", "network.depth = 1000000000"),
    "a million steps": (LONG, "solve spec.toml", "solver.hours = 24.0"),
    "a million steps of networks": (LONG, SIMULATE, "training.steps = 1000000: needs"),
    "wide networks": (LINEAR, "simulate spec.toml --width 1000000000 --seeds 2", "width = 1000000000: needs"),
    "many networks": (LINEAR, "simulate spec.toml --width 16 --seeds 1000000000000", "solver.hours = 24.0"),
    "large powers": (LINEAR, "limits scaling --depth 2 --source 1e999", "--source"),
    "small powers": (LINEAR, "limits scaling --depth 2 --source 1e-999", "--source"),
    "powers of many digits": (LINEAR, "limits scaling --depth 2 --source 1e999999999999", "--source"),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_what_takes_too_long_or_too_much_is_refused(case: str, capsys: pytest.CaptureFixture[str]) -> None:
    tables, words, told = ENDLESS[case]
    Path("spec.toml").write_text(written(tables))
    status, _, said = answer(words, capsys)
    assert status == 2
    assert told in said


def test_a_longer_run_can_be_asked_for() -> None:
    """Hours of a spec lift the bound, and lower it."""
    experiment = Experiment.from_dict(LINEAR | {"data": {}}, kernel=np.eye(2), targets=[1.0, -0.5])
    with pytest.raises(SpecError, match=r"solver\.hours"):
        solve(experiment.replace({"solver.hours": 1e-9}))
    assert solve(experiment.replace({"solver.hours": 1e9})).attrs["status"] == "ok"


# -- processes: streams, signals, limits ------------------------------------------------------------------


@dataclass
class Ended:
    """Status and output of an ended process."""

    status: int
    out: str
    err: str


def stream(number: int, encoding: str) -> Any:
    """Return a stream as Python opens it, or None if it is closed."""
    with suppress(OSError):
        return open(number, "w", encoding=encoding, closefd=False)
    return None


def process(words: str, before: Callable[[], object] = lambda: None, encoding: str = "utf-8") -> Ended:
    """Run the command in a forked process, so that no module is imported again."""
    gc.freeze()  # a garbage collection in the child would copy all pages that the two share
    with TemporaryFile("w+", encoding=encoding) as out, TemporaryFile("w+", encoding=encoding) as err:
        child = os.fork()
        if not child:
            status = 99
            try:
                os.dup2(out.fileno(), 1)
                os.dup2(err.fileno(), 2)
                signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored
                before()
                sys.stdout, sys.stderr = (stream(x, encoding) for x in (1, 2))
                sys.argv = ["dmft", *words.split()]
                main()
            except SystemExit as end:
                status = int(end.code or 0)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(status)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return Ended(status, *texts)


def test_letters_that_a_terminal_has_not_are_spelled_out() -> None:
    Path("spec.toml").write_text(written(LINEAR))
    found = process("derive spec.toml", encoding="latin-1")
    assert (found.status, found.err) == (0, "")
    assert "\\u03b7" in found.out


def test_a_closed_pipe_ends_quietly() -> None:
    def close() -> None:
        read, write = os.pipe()
        os.close(read)
        os.dup2(write, 1)

    Path("spec.toml").write_text(written(LINEAR))
    assert process("derive spec.toml", close) == Ended(128 + signal.SIGPIPE, "", "")


def test_a_backend_of_no_name_is_not_asked() -> None:
    Path("spec.toml").write_text(written(LINEAR))
    found = process("solve spec.toml --plot p.png", lambda: os.environ.update(MPLBACKEND="nonsense"))
    assert (found.status, found.err) == (0, "")
    assert Path("p.png").read_bytes().startswith(b"\x89PNG")


def test_closed_streams_are_no_failure() -> None:
    assert process("solve nowhere.toml", lambda: os.close(2)) == Ended(2, "", "")
    Path("spec.toml").write_text(written(LINEAR))
    assert process("solve spec.toml", lambda: os.close(1)) == Ended(0, "", "")


def test_an_interrupt_while_modules_load_is_one() -> None:
    early = (
        "import sys, builtins; old = builtins.__import__\n"
        "def late(name, *args):\n"
        "    if name.startswith('typer'): raise KeyboardInterrupt\n"
        "    return old(name, *args)\n"
        "builtins.__import__ = late; from numerics.cli import main; main()"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", early, "solve", "spec.toml"]
    found = subprocess.run(command, capture_output=True, env=env, check=False)
    assert (found.returncode, found.stderr) == (130, b"dmft: interrupted\n")
