"""`dmft limits`: what derived theories say in closed form, one module a limit."""

from __future__ import annotations

import typer

from numerics.commands.limits.early_time import early_time
from numerics.commands.limits.largest_rate import largest_rate

limits = typer.Typer(help="Limits of the derived theory in closed form.", no_args_is_help=True)
limits.command("early-time")(early_time)
limits.command("largest-rate")(largest_rate)
