"""`dmft derive`: the equations of an experiment, as text, LaTeX, SymPy source or JSON."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from numerics.cli.common import SpecFile, load, load_program


class Show(StrEnum):
    """The parts of a theory."""

    SINGLE_SITE = "single-site"
    ORDER_PARAMETERS = "order-parameters"
    RESPONSES = "responses"
    ACTION = "action"
    SADDLE_POINT = "saddle-point"
    ALL = "all"


class Format(StrEnum):
    """The forms it is printed in."""

    TEXT = "text"
    LATEX = "latex"
    SREPR = "srepr"
    JSON = "json"


def derive(
    file: SpecFile,
    show: Annotated[Show, typer.Option(help="The part of the theory to print.")] = Show.ALL,
    form: Annotated[Format, typer.Option("--format", help="The form to print it in.")] = Format.TEXT,
) -> None:
    """Print the derived mean-field equations of any experiment file or program; network.depth may be "L".

    Neither arrays nor rates and times are needed: the numbers of the file are symbols here. After a limit
    (wide layers) or a rewriting (sums over modes), "all" leaves out the action; ask for it by name.
    """
    program = load_program(file)
    if program is not None:
        from derive.theory import mean_field

        typer.echo(mean_field(program).render(show.value, form.value))
        return
    experiment = load(file)
    from numerics.experiment.theory import path_integral_of, theory_of

    exact = show in (Show.ACTION, Show.SADDLE_POINT)
    theory = (path_integral_of if exact else theory_of)(experiment)
    typer.echo(theory.render(show.value, form.value))
