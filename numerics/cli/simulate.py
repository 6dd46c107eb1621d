"""`dmft simulate`: finite networks trained by brute force."""

from __future__ import annotations

from typing import Annotated

import typer

from numerics.cli.common import (
    AsJson,
    DataIn,
    NetcdfOut,
    Settings,
    SpecFile,
    check_netcdf,
    load_problem,
    naming_the_key,
    progress,
    report,
)


def simulate(
    file: SpecFile,
    width: Annotated[int, typer.Option(min=1, metavar="N", help="Neurons in the widest hidden layer.")],
    seeds: Annotated[int, typer.Option(min=1, metavar="K", help="Networks to train and average over.")],
    output: NetcdfOut = None,
    as_json: AsJson = False,
    data: DataIn = None,
    settings: Settings = None,
) -> None:
    """Train finite networks and average; the randomness starts from solver.seed."""
    problem = load_problem(file, data, settings)
    check_netcdf(output)
    from numerics.simulation import simulate

    with naming_the_key(problem), progress("simulate") as meter:
        result = simulate(problem, width=width, seeds=seeds, rng=problem.solver.seed, progress=meter)
    report(result, output, as_json)
