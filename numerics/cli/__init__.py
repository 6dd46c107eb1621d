"""The command `dmft`: turns errors into exit statuses.

0 done; 1 a check failed; 2 bad input; 3 the dynamics diverged or a solver did not converge; 4 a defect in
dmft; 130 interrupted; 128 + n ended by the signal n, such as 141 when the reader of a pipe has gone.

Nothing is imported before it is needed: an interrupt in the midst of an import is one like any other.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NoReturn

from derive.errors import NotDerived
from numerics.errors import NumericsError, SpecError, memory_there

BAD_INPUT = 2
NO_RESULT = 3
DEFECT = 4
INTERRUPTED = 130


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit status; what went wrong is on stderr, in one line."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # numbers that overflow are no results, said once
            _command()(args=list(arguments), prog_name="dmft")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except SpecError as error:
        return _fail(f"{error}", BAD_INPUT)
    except NotDerived as error:
        return _fail(f"program: {error}", BAD_INPUT)
    except NumericsError as error:
        return _fail(f"{type(error).__name__}: {error}", NO_RESULT)
    except OSError as error:  # a full disk, a folder that vanished: not foreseen by the checks on paths
        return _fail(f"{error.filename or 'output'}: {error.strerror or error}", BAD_INPUT)
    except MemoryError:
        there = f"the {memory_there() / 2**30:.3g} GiB there are"
        advice = "fewer steps, times, samples or a smaller width would do (dmft solve --explain estimates it)"
        return _fail(f"memory: this takes more than {there}; {advice}", BAD_INPUT)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except Exception as error:  # a defect: one line, and where to find it
        if os.environ.get("DMFT_TRACEBACK"):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(f"{error}".split())[:300]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return _fail(
            f"a defect in dmft: {type(error).__name__} at {place}: {said}; please report it with the files "
            "and the output of the same command with DMFT_TRACEBACK=1",
            DEFECT,
        )
    return 0


@cache
def _command() -> Callable[..., object]:
    """All commands with their options, put together once in a process."""
    from typer.main import get_command

    from numerics.cli.commands import app

    return get_command(app)


def _fail(message: str, status: int) -> int:
    if sys.stderr is not None:  # print would take stdout for it
        print(f"dmft: {message}", file=sys.stderr)
    return status


def _ended(number: int, frame: object) -> NoReturn:
    """Ends as an exception does, so that files half written are removed."""
    if number == signal.SIGPIPE:  # nobody reads: what is left is for nobody
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(128 + number)


def main() -> None:
    """The console script."""
    gc.set_threshold(100_000, 50, 50)  # what is imported and derived stays: to look through it often is dear
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGPIPE:  # nohup stays
            signal.signal(number, _ended)
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "1"  # for which every installed package is looked through
    os.environ.pop("MPLBACKEND", None)  # no window is shown, and a name unknown to Matplotlib stops it
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed before we began
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        getattr(sys, name).reconfigure(errors="backslashreplace")  # a letter that the terminal has not
    status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as error:
        status = status or _fail(f"output: {error.strerror}", BAD_INPUT)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or Python complains of it once more
    sys.exit(status)
