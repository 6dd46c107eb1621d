"""The command `dmft`: one command in, its exit status out.

Exit statuses: 0 done; 1 a check failed; 2 bad input; 3 the dynamics diverged or a solver did not converge;
4 a defect in dmft; 130 interrupted; 128 + n ended by signal n, such as 141 if the reader of a pipe closed it.

Modules are imported only when a command needs them, so that an interrupt during an import is handled too.
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

from derive.errors import NotDerived, ProgramError
from numerics.errors import NumericsError, SpecError, memory_there

BAD_INPUT = 2
NO_RESULT = 3
DEFECT = 4
INTERRUPTED = 130


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit status; an exception prints one line on stderr.

    Wrong options print the usage of the command on stderr. A defect is raised with its traceback if the
    environment variable DMFT_TRACEBACK is set.
    """
    try:
        with warnings.catch_warnings():
            # Runtime warnings, such as those of NumPy for operations that overflow, are not shown: a result
            # that is not finite is reported as an error later.
            warnings.simplefilter("ignore", RuntimeWarning)
            _command()(args=list(arguments), prog_name="dmft")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except (KeyboardInterrupt, Exception) as error:
        message, status = _explained(error)
        if status == DEFECT and os.environ.get("DMFT_TRACEBACK"):
            raise
        return _fail(message, status)
    return 0


def _explained(error: BaseException) -> tuple[str, int]:
    """Return the message and the exit status of the command for an exception that ended it."""
    if isinstance(error, SpecError):
        message, status = f"{error}", BAD_INPUT
    elif isinstance(error, NotDerived | ProgramError):
        message, status = f"program: {error}", BAD_INPUT
    elif isinstance(error, NumericsError):
        message, status = f"{type(error).__name__}: {error}", NO_RESULT
    elif isinstance(error, OSError):  # for example a full disk, which checks of paths cannot foresee
        message, status = f"{error.filename or 'output'}: {error.strerror or error}", BAD_INPUT
    elif isinstance(error, MemoryError):
        available = f"the {memory_there() / 2**30:.3g} GiB of this machine"
        advice = "fewer steps, times, samples or a smaller width would do (dmft solve --explain estimates it)"
        message, status = f"memory: the computation needs more than {available}; {advice}", BAD_INPUT
    elif isinstance(error, KeyboardInterrupt):
        message, status = "interrupted", INTERRUPTED
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        reason = " ".join(f"{error}".split())[:300]
        place = f"{Path(last.filename).name}:{last.lineno}"
        message = (
            f"a defect in dmft: {type(error).__name__} at {place}: {reason}; please report it with the files "
            "and the output of the same command with DMFT_TRACEBACK=1"
        )
        status = DEFECT
    return message, status


@cache
def _command() -> Callable[..., object]:
    """Return the command `dmft` with all its subcommands; it is built once in a process."""
    from typer.main import get_command

    from numerics.cli.commands import app

    return get_command(app)


def _fail(message: str, status: int) -> int:
    """Print a message on stderr and return the exit status."""
    if sys.stderr is not None:  # print(file=None) would write to stdout
        print(f"dmft: {message}", file=sys.stderr)
    return status


def _ended(number: int, frame: object) -> NoReturn:
    """Exit with status 128 + ``number``, as the handler of the signal ``number``.

    The exit is an exception, so that half-written files are removed. ``frame`` is not used.
    """
    if number == signal.SIGPIPE:  # the reader of the output has ended: discard the rest
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(128 + number)


def main() -> None:
    """Run the command line of this process and exit with its status.

    It is the entry point of the console script `dmft`.
    """
    gc.set_threshold(100_000, 50, 50)  # collect less often: modules and theories stay in memory
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        # A signal that the caller ignores, as nohup does with SIGHUP, stays ignored. SIGPIPE is an exception,
        # because Python itself ignores it.
        if signal.getsignal(number) is not signal.SIG_IGN or number == signal.SIGPIPE:
            signal.signal(number, _ended)
    os.environ["PYDANTIC_DISABLE_PLUGINS"] = "1"  # the search for plugins reads every installed package
    os.environ.pop("MPLBACKEND", None)  # no window is shown, and an unknown backend would stop Matplotlib
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # the calling process has closed the stream
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 - open until exit
        getattr(sys, name).reconfigure(errors="backslashreplace")  # for characters that the terminal lacks
    status = run(sys.argv[1:])
    try:
        sys.stdout.flush()
    except OSError as error:
        status = status or _fail(f"output: {error.strerror}", BAD_INPUT)
        # Python flushes stdout again at exit, which would repeat the error. Stdout therefore goes to the null
        # device.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.exit(status)
