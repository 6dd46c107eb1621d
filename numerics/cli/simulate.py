"""`dmft simulate`: finite networks trained by brute force."""

from __future__ import annotations

from typing import Annotated, Any

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
from numerics.experiment import Experiment


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
    from numerics.simulation import simulate, simulate_problem

    given: dict[str, Any] = {"width": width, "seeds": seeds, "rng": problem.solver.seed}
    with naming_the_key(problem), progress("simulate") as meter:
        if isinstance(problem, Experiment):
            result = simulate(problem, progress=meter, **given)
        else:
            result = simulate_problem(problem, progress=meter, **given)
    report(result, output, as_json)
