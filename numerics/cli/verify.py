"""`dmft verify`: derive, expand, solve, simulate, and say how well they agree."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from numerics.cli.common import (
    DataIn,
    Settings,
    SpecFile,
    check_folder,
    load_problem,
    naming_the_key,
    progress,
    refuse_program,
)

SHOWN_ORDER = 2


def verify(
    file: SpecFile,
    output: Annotated[
        Path | None, typer.Option("-o", "--output", metavar="DIR", help="Write results and figure here.")
    ] = None,
    data: DataIn = None,
    settings: Settings = None,
) -> None:
    """Print the equations and a table of checks with error bars; exit 1 if a check fails."""
    problem = load_problem(file, data, settings)
    experiment = refuse_program(problem, "dmft verify", "dmft solve and dmft simulate, which take programs")
    check_folder(output)
    from numerics.expansion import has_words, series
    from numerics.experiment.theory import theory_of
    from numerics.verification import verify as verified

    typer.echo(theory_of(experiment).render("all", "text"))
    if has_words(experiment):
        typer.echo(series(experiment, SHOWN_ORDER).render("text"))
    with naming_the_key(experiment), progress("verify") as meter:
        report = verified(experiment, out_dir=output, progress=meter)
    typer.echo(report.table())
    if report.figure is not None:
        typer.echo(f"figure: {report.figure}")
    if not report.passed:
        raise typer.Exit(1)
