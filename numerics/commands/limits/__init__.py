"""`dmft limits`: what derived theories say in closed form, one module a limit."""

from __future__ import annotations

import typer

from numerics.commands.limits.depth import depth
from numerics.commands.limits.early_time import early_time
from numerics.commands.limits.largest_rate import largest_rate
from numerics.commands.limits.parametrization import parametrization
from numerics.commands.limits.scaling import scaling

limits = typer.Typer(help="Limits of the derived theory in closed form.", no_args_is_help=True)
limits.command("early-time")(early_time)
limits.command("largest-rate")(largest_rate)
limits.command("scaling")(scaling)
limits.command("parametrization")(parametrization)
limits.command("depth")(depth)
