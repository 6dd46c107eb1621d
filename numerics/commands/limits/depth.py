"""`dmft limits depth`: a residual network and its limit of infinite depth."""

from __future__ import annotations

import typer

from numerics.commands.common import AsJson, SpecFile, load_served, naming_the_key, print_json, progress


def depth(file: SpecFile, as_json: AsJson = False) -> None:
    """A residual linear network and its limit of infinite depth: loss, first correction, feature diversity.

    The depth may be a number, or "L": then network.branch is the branch times the square root of the depth,
    and only the limit is there.
    """
    experiment = load_served(file, "dmft limits depth")
    from numerics.depth_limits import depth_limits

    with naming_the_key(experiment), progress("limits depth") as meter:
        found = depth_limits(experiment, progress=meter)
    if as_json:
        print_json(found.to_json())
        return
    power = "1/L" if found.order == -1 else f"L^({found.order:g})"
    typer.echo(f"limit: branch = {found.beta0:.10g}/sqrt(L), L -> infinity")
    named = "" if found.depth is None else f"{f'L = {found.depth}':>16}{'to first order':>16}"
    typer.echo(f"{'time':>8}{'limit':>16}{'coefficient':>16}{named}")
    rough = found.to_first_order
    for i, time in enumerate(found.time):
        line = f"{time:8g}{found.limit[i]:16.8g}{found.first[i]:16.8g}"
        if found.finite is not None and rough is not None:
            line += f"{found.finite[i]:16.8g}{rough[i]:16.8g}"
        typer.echo(line)
    typer.echo(
        f"{found.name} = limit + coefficient * {power}; errors of the layer grid: {found.limit_error:.1g}, "
        f"{found.first_error:.1g}"
    )
    typer.echo(
        f"feature-diversity exponent kappa = {found.diversity.exponent}: <(x(tau) - x(tau_2))**2> / "
        f"|tau - tau_2| -> {found.diversity.roughness}"
    )
