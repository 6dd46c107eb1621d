"""`dmft limits early-time`: the first step on isotropic data."""

from __future__ import annotations

import typer

from numerics.commands.common import AsJson, SpecFile, load_served, print_json


def early_time(file: SpecFile, as_json: AsJson = False) -> None:
    """The first step on isotropic data: by which factor the test loss changes, and at which rate it rises.

    network.depth may be "L": then there are formulas and no numbers.
    """
    experiment = load_served(file, "dmft limits early-time")
    from numerics.early_time import early_time

    found = early_time(experiment)
    if as_json:
        print_json(found.to_json())
        return
    typer.echo(f"C_v(1)/C_v(0) = {found.formula}")
    if found.growth_factor is not None:
        typer.echo(f"              = {found.growth_factor:.10g}")
    typer.echo(f"critical learning rate: {_words(found.critical_learning_rate, found.critical_formula)}")


def _words(number: float | None, formula: object) -> str:
    parts = [str(formula)] if formula is not None else []
    parts += [f"{number:.10g}"] if number is not None else []
    return " = ".join(parts) or "none in closed form"
