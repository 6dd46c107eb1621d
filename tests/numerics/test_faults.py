"""Tests of faults during a command: no partial file under the requested name, earlier files intact.

A table of faults by commands. Each command runs in a process forked from this one, and the fault occurs at a
named moment: while numbers become a result, or when half of the file is on the disk.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from numerics import Experiment, results, solve
from numerics.results import load, save
from tests.numerics.test_attacks import Ended, process, written

SMALL = {
    "network": {"depth": 1},
    "data": {"kernel": "k.npy", "targets": "y.npy"},
    "training": {"learning_rate": 0.1, "steps": 1},
}
OLD = b"an older result"


@dataclass(frozen=True)
class Command:
    """Command line, with the folder in place of {}, and the file of it that a fault must not truncate."""

    words: str
    target: str = "out.nc"

    def run(self, before: Callable[[], object] = lambda: None, place: str = ".") -> Ended:
        """Run the command in a separate process that calls ``before`` first."""
        return process(self.words.format(place), before)


COMMANDS = {
    "solve": Command("solve spec.toml -o {}/out.nc"),
    "simulate": Command("simulate spec.toml --width 8 --seeds 2 -o {}/out.nc"),
    "expand": Command("expand spec.toml --order 2 -o {}/out.nc"),
    "sweep": Command("sweep spec.toml --set network.gamma0=0.5,1.0 -o {}/out --gather", "out/sweep.nc"),
    "verify": Command("verify spec.toml -o {}/out", "out/theory.nc"),
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("k.npy", [[1.0]])
    np.save("y.npy", [1.0])
    Path("spec.toml").write_text(written(SMALL))


@pytest.fixture(scope="module", autouse=True)
def known(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Fill the caches that processes forked from this one use."""
    tables = {"network": {"depth": 1}, "training": SMALL["training"]}
    save(
        solve(Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])),
        tmp_path_factory.mktemp("x") / "x.nc",
    )


def table(faults: Iterable[str], cheap: str = "solve") -> list[Any]:
    """Return every fault with every command as parameters.

    In the default suite are those with one cheap command, and one of two signals that a process handles.
    """
    return [
        pytest.param(f, c, marks=() if c == cheap and "SIGHUP" not in f else pytest.mark.slow, id=f"{c}: {f}")
        for f in faults
        for c in COMMANDS
    ]


def older(command: Command, place: str = ".") -> Path:
    """Return a file of an earlier run at the target of the command."""
    target = Path(place, command.target)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(OLD)
    return target


def there() -> set[str]:
    return {str(x) for x in Path().rglob("*")}


# -- signals ----------------------------------------------------------------------------------------------

ENDINGS = {"kill -9": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGHUP": signal.SIGHUP}
MOMENTS = {"computing": (results, "provenance"), "writing": (os, "fsync")}
"""What is called at the moment of the fault: when numbers become a result, and when half of it is written."""


@pytest.mark.parametrize(("fault", "name"), table(f"{e} while {m}" for e in ENDINGS for m in MOMENTS))
def test_a_signal_leaves_what_was_there(fault: str, name: str) -> None:
    which, _, moment = fault.partition(" while ")
    ending, (module, function), command = ENDINGS[which], MOMENTS[moment], COMMANDS[name]
    target, before = older(command), there()
    found = command.run(lambda: setattr(module, function, lambda *_: os.kill(os.getpid(), ending)))
    handled = ending != signal.SIGKILL
    assert found.status == (128 + ending if handled else -ending)
    left = there() - before
    assert all(any(y.startswith(".dmft-") for y in Path(x).parts) for x in left), left
    assert not (left and handled)
    assert target.read_bytes() == OLD
    assert command.run().status == 0  # whatever was left hinders no later run
    load(target)


# -- disks and folders ------------------------------------------------------------------------------------


def full() -> None:
    """Limit the size of files, as on a disk that is full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))


def powerless() -> None:
    """Give up the superuser's right to write anywhere."""
    if os.geteuid() == 0:
        version, nothing = 0x20080522, bytes(24)
        assert ctypes.CDLL(None).capset(struct.pack("=Ii", version, 0), nothing) == 0


@pytest.mark.parametrize(("fault", "name"), table(["full disk", "read-only folder"]))
def test_where_nothing_can_be_written_is_said(fault: str, name: str) -> None:
    command = COMMANDS[name]
    target = older(command, "place")
    before = there()
    sealed = target.parent
    if fault != "full disk":
        sealed.chmod(0o555)
    found = command.run(full if fault == "full disk" else powerless, "place")
    sealed.chmod(0o755)
    assert found.status == 2
    assert ("File too large" if fault == "full disk" else "Permission denied") in found.err
    assert str(sealed) in found.err
    assert found.err.count("\n") == 1
    if name == "verify":  # which tries its folder before it works, and says what it found before it writes
        assert (" checks passed in " in found.out) == (fault == "full disk")
    assert there() == before
    assert target.read_bytes() == OLD


# -- two writers, and files of an earlier fault ------------------------------------------------------------


@pytest.mark.parametrize("new", [True, False], ids=["new", "old"])
@pytest.mark.parametrize(("fault", "name"), table(["two writers"]))
def test_two_writers_leave_one_whole_result(fault: str, name: str, new: bool) -> None:
    """The second one runs from its start to its end when the first has written half of its file."""
    command = COMMANDS[name]
    target = Path(command.target) if new else older(command)
    before, said = there(), Path("second.txt")
    own = os.fsync

    def meanwhile(number: int) -> None:
        if not said.exists():
            said.touch()
            said.write_text(str(command.run().status))
        own(number)

    assert command.run(lambda: setattr(os, "fsync", meanwhile)).status == 0
    assert said.read_text() == "0"
    load(target)
    fresh = {Path(x).name for x in there() - before} - {said.name}
    assert not any(x.startswith(".dmft-") for x in fresh)


@pytest.mark.parametrize(("fault", "name"), table(["truncated result"]))
def test_a_truncated_result_is_none_and_is_replaced(fault: str, name: str) -> None:
    command = COMMANDS[name]
    assert command.run().status == 0
    target = Path(command.target)
    whole = target.read_bytes()
    for size in (0, 30, 2000, -10):
        target.write_bytes(whole[:size])
        with pytest.raises(OSError, match="open file"):
            load(target)
    assert command.run().status == 0
    load(target)
