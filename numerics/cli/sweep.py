"""The command `dmft sweep`: an experiment at many values of its keys, in a folder that remembers."""

from __future__ import annotations

import re
import tomllib
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from numerics.cli.common import (
    AsJson,
    DataIn,
    Kernels,
    SpecFile,
    check_folder,
    check_outputs,
    load,
    print_json,
    progress,
    say,
)
from numerics.errors import Interrupted, NumericsError, SpecError

Cluster = StrEnum("Cluster", {"SUBMITIT": "submitit"})
"""What sends points to other machines."""

MOST = 100_000
"""Points beyond which a sweep is a slip of the pen."""

SHOWN = 10
"""Failures that are printed."""


def values_of(key: str, said: str) -> list[Any]:
    """The values of a key: ``V1,V2,...`` as TOML spells them or as words; ``A..B`` are all integers of these.

    >>> values_of("network.gamma0", "0.1,0.5,1"), values_of("network.depth", "1..3")
    ([0.1, 0.5, 1], [1, 2, 3])
    >>> values_of("network.activation", "tanh,relu"), values_of("network.widths", "[1,2],[2,4]")
    (['tanh', 'relu'], [[1, 2], [2, 4]])
    """
    from numerics.experiment.problem import value_of

    ends = re.fullmatch(r"\s*(-?\d{1,18})\.\.(-?\d{1,18})\s*", said)
    if ends is not None:
        first, last = map(int, ends.groups())
        if not first <= last < first + MOST:
            raise SpecError(
                key, said, f"are {max(0, last - first + 1)} values", f"A..B with A <= B < A + {MOST}"
            )
        return [*range(first, last + 1)]
    try:
        found = tomllib.loads(f"x = [{said}]")["x"]
    except (ValueError, RecursionError):
        found = [value_of(x.strip()) for x in said.split(",")]
    if not found:
        raise SpecError(key, said, "has no value", "KEY=V1,V2,...")
    return list(found)


def sweep(
    file: SpecFile,
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="KEY=V1,V2,...",
            help="A key of the file and its values, or integers KEY=A..B; one value is a setting.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", help="The folder of the results, new or old.")
    ],
    jobs: Annotated[int, typer.Option(min=1, metavar="N", help="Points at a time.")] = 1,
    cluster: Annotated[
        Cluster | None, typer.Option(help="Send the points to a cluster, as one array of jobs.")
    ] = None,
    gather: Annotated[
        bool, typer.Option("--gather", help="Combine the results in DIR/sweep.nc, a dimension for each key.")
    ] = False,
    retry: Annotated[bool, typer.Option("--retry", help="Try again what failed before.")] = False,
    kernels: Annotated[Kernels, typer.Option(help="Two-time kernels to keep, as in solve.")] = Kernels.NONE,
    as_json: AsJson = False,
    data: DataIn = None,
) -> None:
    """Solve an experiment at all combinations of values of its keys, one NetCDF file a point in DIR.

    What is there is skipped, so that a sweep that was stopped goes on where it was; what failed is kept with
    its reason, and does not stop the others. The exit status is 3 if no point has a result.
    """
    from numerics.experiment.problem import pairs

    said = pairs("--set", settings)
    over = {key: found for key, text in said.items() if len(found := values_of(key, text)) > 1}
    if not over:
        raise SpecError("--set", settings, "names no key with several values", "KEY=V1,V2,... or KEY=A..B")
    count = 1
    for values in over.values():
        count *= len(values)
    if count > MOST:
        raise SpecError("--set", settings, f"are {count} points", f"at most {MOST}")
    experiment = load(file, data, [f"{key}={text}" for key, text in said.items() if key not in over])
    check_folder(output)
    whole = output / "sweep.nc"
    if gather and output.exists():
        check_outputs(file, data, experiment, {"--gather": whole})
    from numerics.analysis import sweep as sweeps
    from numerics.results import save

    grid = sweeps.Grid.of(experiment, over, output, kernels.value)
    executor = None
    if cluster is not None:
        executor = sweeps.cluster(output, hours=experiment.solver.hours, jobs=jobs)
    try:
        with progress("sweep", whole=True) as meter:
            found = grid.run(jobs=jobs, retry=retry, executor=executor, progress=meter)
    except Interrupted:
        say(f"what is finished is kept in {output}: the same command goes on from there")
        raise
    if gather:
        save(grid.gathered(found), whole)
    rows: list[dict[str, Any]] = [
        {**dict(point.at), "status": x.status, "file": str(point.file if point.done else point.failed)}
        for point, x in zip(grid.points, found, strict=True)
    ]
    failed = [row for point, row in zip(grid.points, rows, strict=True) if not point.done]
    if as_json:
        print_json({"points": rows, "failed": len(failed), **({"gathered": str(whole)} if gather else {})})
    else:
        typer.echo(
            f"{len(rows)} points in {output}: {len(rows) - len(failed)} with a result, {len(failed)} without"
        )
        for row in failed[:SHOWN]:
            typer.echo("  " + ", ".join(f"{key} = {row[key]}" for key in over) + f": {row['status']}")
        if len(failed) > SHOWN:
            typer.echo(f"  and {len(failed) - SHOWN} more; each has its reason beside the results")
        if gather:
            typer.echo(f"wrote {whole}")
    if any(row["status"].startswith(sweeps.DEFECT) for row in failed):
        raise typer.Exit(4)
    if len(failed) == len(rows):
        raise NumericsError(f"no point has a result; the first: {failed[0]['status']}")
