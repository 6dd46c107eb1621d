"""`dmft expand`: the power series in gamma0, as symbols and as numbers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from numerics.cli.common import (
    AsJson,
    DataIn,
    NetcdfOut,
    Settings,
    SpecFile,
    check_netcdf,
    load,
    load_problem,
    load_program,
    naming_the_key,
    print_json,
    report,
    say,
)
from numerics.errors import SpecError

LONG = 30.0
"""Seconds from which an estimate is said before anything runs."""


class Method(StrEnum):
    """How the series is evaluated; as in :mod:`numerics.expansion.evaluated`."""

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
    data: DataIn = None,
    settings: Settings = None,
) -> None:
    """Expand in gamma0. With --show, print the series, and compute nothing unless -o asks for numbers.

    To print the series network.depth may be "L". Loss and error at network.gamma0 come with an estimate of
    what the truncation misses: partial sums, Padé approximants, or words with the error in full.
    """
    check_netcdf(output)
    extra = {}
    if show is not None:
        extra = {"series": _series(file, order, show, settings)}
        if not as_json:
            typer.echo(extra["series"])
    if show is not None and output is None:
        if as_json:
            print_json(extra)
        return
    problem = load_problem(file, data, settings)
    from numerics.expansion import evaluated_at, forecast

    tell(forecast(problem, order))
    with naming_the_key(problem):
        result = evaluated_at(problem, order, resum)
    report(result, output, as_json, extra)


def tell(seconds: float | None) -> None:
    """Says beforehand what takes long."""
    if seconds is not None and seconds > LONG:
        say(f"this takes about {seconds:.0f} s on one core")


def _series(file: str, order: int, show: Form, settings: list[str] | None) -> str:
    """The series itself, of an experiment or of a program."""
    program = load_program(file)
    if program is None:
        from numerics.expansion import forecast, series

        experiment = load(file, None, settings)
        tell(forecast(experiment, order, symbols=True))
        return series(experiment, order).render(show.value)
    from derive.errors import NotApplicable
    from derive.expansion import expand
    from derive.program import gamma0
    from derive.theory import mean_field

    try:
        return expand(mean_field(program), gamma0, order).render(show.value)
    except NotApplicable as reason:
        raise SpecError("file", file, str(reason), "another program") from reason
