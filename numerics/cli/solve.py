"""`dmft solve`: the full mean-field solution of an experiment."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from numerics.cli.common import (
    AsJson,
    DataIn,
    NetcdfOut,
    PlotOut,
    Settings,
    SpecFile,
    check_netcdf,
    check_plot,
    load_problem,
    naming_the_key,
    progress,
    report,
    say,
)


class Kernels(StrEnum):
    """How much of the two-time kernels a result holds."""

    AUTO = "auto"
    FULL = "full"
    TRACE = "trace"
    NONE = "none"


def solve(
    file: SpecFile,
    output: NetcdfOut = None,
    plot: PlotOut = None,
    as_json: AsJson = False,
    data: DataIn = None,
    settings: Settings = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say which method would run, its cost and error; run nothing.")
    ] = False,
    kernels: Annotated[
        Kernels,
        typer.Option(help="Two-time kernels to keep: of all sample pairs, their trace, none, or what fits."),
    ] = Kernels.AUTO,
) -> None:
    """Solve the mean-field theory, by the best method that fits (or solver.method)."""
    problem = load_problem(file, data, settings, depth=False)
    check_netcdf(output)
    check_plot(plot)
    from numerics.solver import registry

    if explain:
        typer.echo(str(registry.explain(problem, kernels=kernels.value)))
        return
    with naming_the_key(problem), progress("solve") as meter:
        result = registry.solve(problem, kernels=kernels.value, progress=meter, say=say)
    if plot is not None:
        from matplotlib.figure import Figure

        from numerics.plots import plot_kernels, plot_loss, save_figure

        figure = Figure(figsize=(9.0, 4.0), layout="constrained")
        left, right = figure.subplots(1, 2)
        plot_loss(result, ax=left)
        plot_kernels(result, ax=right)
        save_figure(figure, plot)
    report(result, output, as_json)
    if plot is not None and not as_json:
        typer.echo(f"wrote {plot}")
