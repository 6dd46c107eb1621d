"""`dmft limits scaling`: exponents of the loss on power-law data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from numerics.commands.common import AsJson, print_json
from numerics.errors import SpecError

if TYPE_CHECKING:
    from sympy import Expr

    from derive.scale.power_laws import PowerLaw


def scaling(
    depth: Annotated[int, typer.Option(help="Hidden layers L.")],
    source: Annotated[str, typer.Option(help="beta: (w*_k)^2 lambda_k = k^(-a beta - 1), a the capacity.")],
    capacity: Annotated[str | None, typer.Option(help="a: lambda_k = k^-a. A symbol if left out.")] = None,
    regime: Annotated[
        str,
        typer.Option(help="lazy, leading (order gamma0^2), rich; batch, width or data: what finite ones do."),
    ] = "lazy",
    gamma0: Annotated[
        str | None, typer.Option(help="A number for gamma0 in crossover times. A symbol if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """By which power of time the loss of gradient flow falls on power-law data, and when.

    Numbers may be fractions, such as 2/3.
    """
    found = _found(depth, source, capacity, regime)
    if not found.exponent.is_number:
        raise SpecError("--capacity", None, f"is missing; the exponent is {found.exponent}", "a number")
    shown = _numbers(found, gamma0)
    if as_json:
        print_json(
            {
                "exponent": float(found.exponent),
                "formula": str(found.formula),
                "regime": found.regime,
                "conditions": list(found.conditions),
                "crossover": shown,
            }
        )
        return
    what = {"leading": "order gamma0^2 of the loss", "width": "order 1/N of the loss"}.get(regime, "loss")
    of = "t"
    if regime == "data":
        what, of = "loss in the end", "P"
    typer.echo(f"{what} ~ {of}^-({found.exponent}) = {of}^{-float(found.exponent):.6g}")
    typer.echo(f"loss = {found.formula}")
    typer.echo("holds where")
    for line in found.conditions:
        typer.echo(f"  {line}")
    for why, when in shown.items():
        typer.echo(f"meets {why} at t = {when}")


REGIMES = ("lazy", "leading", "rich", "batch", "width", "data")


def _found(depth: int, source: str, capacity: str | None, regime: str) -> PowerLaw:
    from derive.errors import NotApplicable
    from derive.scale.modes import capacity as symbol

    if regime not in REGIMES:
        raise SpecError("--regime", regime, "is no regime", ", ".join(REGIMES))
    try:
        return _law(regime, depth, source, symbol if capacity is None else capacity)
    except (ValueError, NotApplicable) as error:
        name, _, said = str(error).partition(" = ")
        value, _, problem = said.partition(": ")
        if name not in ("depth", "source", "capacity"):
            raise
        accepted = "1, 2, 3, ..." if name == "depth" else "a positive number"
        if isinstance(error, NotApplicable):
            accepted += " other than this"
        raise SpecError(f"--{name}", value.strip("'"), problem, accepted) from error


def _law(regime: str, *at: Any) -> PowerLaw:
    """The law of a regime, from the theories that it is derived of, at a depth, source and capacity."""
    from derive.program.networks import mlp, structured
    from derive.scale import bottlenecks, modes, power_laws
    from derive.scale.rich import rank_one
    from derive.theory import mean_field

    if regime == "batch":
        return power_laws.batch_law(bottlenecks.batch_noise(mean_field(structured(noise=True))), *at)
    flow = mean_field(structured(data="population", rule="flow"))
    if regime == "rich":
        return power_laws.rich_law(rank_one(flow), modes.lazy_modes(flow), *at)
    if regime == "data":
        fixed = mean_field(structured(data="full-batch", noise=True, rule="flow"))
        return power_laws.data_law(bottlenecks.fixed_data(fixed), modes.lazy_modes(flow), *at)
    samples = mean_field(mlp(rule="flow", loss="sum"))
    if regime == "width":
        return power_laws.width_law(bottlenecks.width_noise(flow, samples, modes.lazy_modes(flow)), *at)
    order = modes.leading_order(flow, samples)
    if regime == "leading":
        return power_laws.leading_law(order, *at)
    return power_laws.lazy_law(order.modes, *at, order=order)


def _numbers(found: PowerLaw, given: str | None) -> dict[str, Any]:
    """Crossover times: numbers where nothing is open."""
    from derive.calculus.symbols import exact, gamma0

    values: dict[Any, Expr] = {}
    if given is not None:
        try:
            values = {gamma0: exact("gamma0", given)}
        except ValueError as error:
            raise SpecError("--gamma0", given, "is no number", "a positive number") from error
        if not values[gamma0] > 0:
            raise SpecError("--gamma0", given, "must be positive", "a positive number")
    out: dict[str, Any] = {}
    for why, when in found.crossover.items():
        e = when.subs(values)
        out[why] = float(e) if e.is_number else str(e)
    return out
