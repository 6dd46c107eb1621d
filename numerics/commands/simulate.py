"""`dmft simulate`: finite networks trained by brute force."""

from __future__ import annotations

from typing import Annotated

import typer

from numerics.commands.common import (
    AsJson,
    NetcdfOut,
    SpecFile,
    check_netcdf,
    load_numeric,
    naming_the_key,
    report,
)


def simulate(
    file: SpecFile,
    width: Annotated[int, typer.Option(min=1, metavar="N", help="Neurons in each hidden layer.")],
    seeds: Annotated[int, typer.Option(min=1, metavar="K", help="Networks to train and average over.")],
    output: NetcdfOut = None,
    as_json: AsJson = False,
) -> None:
    """Train finite networks and average; the randomness starts from solver.seed."""
    experiment = load_numeric(file, "dmft simulate")
    check_netcdf(output)
    import numerics.simulate

    with naming_the_key(experiment):
        result = numerics.simulate.simulate(experiment, width=width, seeds=seeds, rng=experiment.solver.seed)
    report(result, output, as_json)
