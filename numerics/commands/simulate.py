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
from numerics.served import is_plain


def simulate(
    file: SpecFile,
    width: Annotated[int, typer.Option(min=1, metavar="N", help="Neurons in the widest hidden layer.")],
    seeds: Annotated[int, typer.Option(min=1, metavar="K", help="Networks to train and average over.")],
    output: NetcdfOut = None,
    as_json: AsJson = False,
) -> None:
    """Train finite networks and average; the randomness starts from solver.seed."""
    experiment = load_numeric(file, "dmft simulate")
    check_netcdf(output)
    import numerics.simulate

    with naming_the_key(experiment):
        train = numerics.simulate.simulate if is_plain(experiment.spec) else numerics.simulate.simulate_steps
        result = train(experiment, width=width, seeds=seeds, rng=experiment.solver.seed)
    report(result, output, as_json)
