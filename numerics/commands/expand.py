"""`dmft expand`: the power series in gamma0, as symbols and as numbers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from numerics.commands.common import (
    AsJson,
    NetcdfOut,
    SpecFile,
    check_netcdf,
    load_numeric,
    load_served,
    naming_the_key,
    print_json,
    report,
)


class Method(StrEnum):
    """How the series is evaluated; as in :mod:`numerics.expand.evaluated`."""

    SUM = "sum"
    PADE = "pade"
    SELF_CONSISTENT = "self-consistent"


class Form(StrEnum):
    """The forms the series is printed in."""

    TEXT = "text"
    LATEX = "latex"


def expand(
    file: SpecFile,
    order: Annotated[int, typer.Option(min=0, metavar="n", help="The highest power of gamma0.")],
    show: Annotated[Form | None, typer.Option(help="Print the series itself, in this form.")] = None,
    output: NetcdfOut = None,
    resum: Annotated[
        Method | None,
        typer.Option(help="How the series is evaluated at network.gamma0.", show_default="pade"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Expand in gamma0. With --show, print the series, and compute nothing unless -o asks for numbers.

    To print the series network.depth may be "L". Loss and error at network.gamma0 come with an estimate of
    what the truncation misses: partial sums, Padé approximants, or words with the error in full.
    """
    symbols_only = show is not None and output is None
    load = load_served if symbols_only else load_numeric
    experiment = load(file, "dmft expand")
    check_netcdf(output)
    import numerics.expand

    extra = {}
    if show is not None:
        extra = {"series": numerics.expand.series(experiment, order).render(show.value)}
        if not as_json:
            typer.echo(extra["series"])
    if symbols_only:
        if as_json:
            print_json(extra)
        return
    with naming_the_key(experiment):
        result = numerics.expand.evaluated_at(experiment, order, resum)
    report(result, output, as_json, extra)
