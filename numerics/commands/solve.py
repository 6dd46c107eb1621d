"""`dmft solve`: the full mean-field solution of an experiment."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from numerics.commands.common import (
    AsJson,
    NetcdfOut,
    PlotOut,
    SpecFile,
    check_netcdf,
    check_plot,
    load_numeric,
    naming_the_key,
    progress,
    report,
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
    kernels: Annotated[
        Kernels,
        typer.Option(help="Two-time kernels to keep: of all sample pairs, their trace, none, or what fits."),
    ] = Kernels.AUTO,
) -> None:
    """Solve the mean-field theory."""
    experiment = load_numeric(file, "dmft solve")
    check_netcdf(output)
    check_plot(plot)
    import numerics.solve

    with naming_the_key(experiment), progress("solve") as meter:
        result = numerics.solve.solve(experiment, kernels=kernels.value, progress=meter)
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
