"""`dmft limits early-time`: the first steps on isotropic data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from numerics.commands.common import AsJson, SpecFile, load_served, print_json

if TYPE_CHECKING:
    from numerics.early_steps import EarlySteps, Recovery

Steps = Annotated[
    int, typer.Option("--steps", help="Also the loss after 1, 2, ... steps, and the memory-free recursion.")
]
Recovers = Annotated[
    bool,
    typer.Option(
        "--recovery", help="Also the largest rate at which training.steps steps succeed, and its lazy limit."
    ),
]


def early_time(file: SpecFile, steps: Steps = 0, recovery: Recovers = False, as_json: AsJson = False) -> None:
    """The first step on isotropic data: by which factor the test loss changes, and at which rate it rises.

    network.depth may be "L": then there are formulas and no numbers.
    """
    experiment = load_served(file, "dmft limits early-time")
    from numerics.early_steps import early_steps
    from numerics.early_steps import recovery as recovered
    from numerics.early_time import early_time

    found = early_time(experiment)
    more: EarlySteps | None = early_steps(experiment, steps) if steps else None
    rates: Recovery | None = recovered(experiment) if recovery else None
    if as_json:
        print_json({k: v for x in (found, more, rates) if x is not None for k, v in x.to_json().items()})
        return
    typer.echo(f"C_v(1)/C_v(0) = {found.formula}")
    if found.growth_factor is not None:
        typer.echo(f"              = {found.growth_factor:.10g}")
    typer.echo(f"critical learning rate: {_words(found.critical_learning_rate, found.critical_formula)}")
    for line in (*_steps(more), *_rates(rates)):
        typer.echo(line)


def _words(number: float | None, formula: object) -> str:
    parts = [str(formula)] if formula is not None else []
    parts += [f"{number:.10g}"] if number is not None else []
    return " = ".join(parts) or "none in closed form"


def _steps(found: EarlySteps | None) -> list[str]:
    if found is None:
        return []
    lines = [f"test loss with label noise, first step: times {found.test_growth_factor:.10g}"]
    if found.train_growth_factor is not None:
        lines.append(f"training loss, first step: times {found.train_growth_factor:.10g}")
    recursion = found.memory_free
    lines.append("step  C_v" + (" " * 13 + "memory-free" if recursion else ""))
    for t, value in enumerate(found.C_v):
        lines.append(f"{t:4}  {value:<14.8g}" + (f"  {recursion[t]:.8g}" if recursion else ""))
    if found.dropped is None:
        return [*lines, f"no memory-free recursion: {found.refused}"]
    return [
        *lines,
        "dropped in the second step:",
        *[f"  {name}: {value:.6g}" for name, value in found.dropped.items()],
    ]


def _rates(found: Recovery | None) -> list[str]:
    if found is None:
        return []
    largest = found.largest
    lines = [f"largest learning rate over {largest.steps} steps: {largest.value:.4g}"]
    lines.append(f"a loss that rises first {'can' if found.recovers else 'does not'} recover")
    if found.lazy is None:
        return [*lines, f"no lazy limit: {found.refused}"]
    return [*lines, f"in the lazy limit: {found.lazy:.4g}, at most {found.ceiling:.4g}"]
