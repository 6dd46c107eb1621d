"""The command `dmft`: registers the commands and turns errors into exit statuses.

0 done; 1 a check failed; 2 bad input; 3 the dynamics diverged or a solver did not converge; 4 a defect in
dmft; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

import typer

from numerics.cli.commands import derive, expand, ledger, simulate, solve, verify
from numerics.cli.limits import limits
from numerics.errors import NumericsError, SpecError

BAD_INPUT = 2
NO_RESULT = 3
DEFECT = 4
INTERRUPTED = 130

app = typer.Typer(
    name="dmft",
    help="Derive, expand, solve and verify the mean-field theory of a neural network's training.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for command in (derive, solve, simulate, expand, verify, ledger):
    app.command()(command)
app.add_typer(limits, name="limits")


def run(arguments: Sequence[str]) -> int:
    """Runs one command and returns its exit status; what went wrong is on stderr, in one line."""
    try:
        app(args=list(arguments), prog_name="dmft")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(bool(end.code))
    except SpecError as error:
        return _fail(f"{error}", BAD_INPUT)
    except NumericsError as error:
        return _fail(f"{type(error).__name__}: {error}", NO_RESULT)
    except OSError as error:  # a full disk, a folder that vanished: not foreseen by the checks on paths
        return _fail(f"{error.filename or 'file'}: {error.strerror or error}", BAD_INPUT)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except Exception as error:  # a defect: one line, and where to find it
        if os.environ.get("DMFT_TRACEBACK"):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(f"{error}".split())[:300]
        place = f"{Path(last.filename).name}:{last.lineno}"
        return _fail(
            f"a defect: {type(error).__name__} at {place}: {said} (DMFT_TRACEBACK=1 shows more)", DEFECT
        )
    return 0


def _fail(message: str, status: int) -> int:
    print(f"dmft: {message}", file=sys.stderr)
    return status


def main() -> None:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
