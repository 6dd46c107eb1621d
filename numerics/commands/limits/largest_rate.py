"""`dmft limits largest-rate`: the largest learning rate on isotropic data, rich or lazy."""

from __future__ import annotations

from typing import Annotated

import typer

from numerics.commands.common import AsJson, SpecFile, load_served, print_json

Regime = Annotated[
    str | None, typer.Option("--regime", help="rich or lazy; where it is not given, that of the file.")
]


def largest_rate(file: SpecFile, regime: Regime = None, as_json: AsJson = False) -> None:
    """The largest learning rate on the population of isotropic data, and its power of nu.

    network.depth may be "L": then there are formulas and no numbers, and --regime is needed.
    """
    experiment = load_served(file, "dmft limits largest-rate")
    from numerics.largest_rate import rate_limit

    found = rate_limit(experiment, regime)
    if as_json:
        print_json(found.to_json())
        return
    form = found.form
    typer.echo(f"regime: {form.regime}")
    typer.echo(f"largest rate: {form.rate}")
    if found.rate is not None:
        typer.echo(f"            = {found.rate:.6g}")
    typer.echo(f"power of nu: {form.exponent}{_number(found.exponent)}")
    where = "none" if form.crossover is None else f"nu = {form.crossover}{_number(found.crossover)}"
    typer.echo(f"crossover between rich and lazy: {where}")
    typer.echo(f"neglected, beside one: {form.neglected}{_number(found.neglected)}")
    for line in form.conditions():
        typer.echo(f"  {line}")


def _number(x: float | None) -> str:
    return "" if x is None else f" = {x:.4g}"
