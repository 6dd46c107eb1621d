"""Exponents of the loss on a hard task with power-law data.

Local slopes of the loss of gradient flow approach the derived exponents, which depend on the depth. The
printed exponent is that of one hidden layer.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, main

import derive
from derive.scale.rich import rank_one, rich_scaling
from numerics import Experiment


def exponents(source: str, depths: tuple[int, ...]) -> list[float]:
    """Return the derived exponents of the rich regime for some depths."""
    reduced = rank_one(derive.mean_field(derive.structured(data="population", rule="flow")))
    return [float(rich_scaling(reduced, n, source, 2).exponent) for n in depths]


def experiment(depth: int, source: float, time: float) -> Experiment:
    """Return the experiment of gradient flow on power-law data up to a time."""
    return Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": 30.0},
            "data": {"kind": "power-law", "capacity": 2.0, "source": source, "modes": 10**15},
            "training": {"rule": "flow", "time": time, "points": 13, "grid": "log"},
            "solver": {"rtol": 1e-2},
        }
    )


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    time, depths = (1e6, (1, 2, 3)) if run.full else (1e4, (1, 2))
    sources = {"3/10": 0.3, "1/2": 0.5, "7/10": 0.7} if run.full else {"1/2": 0.5}
    _, panels = run.panels(1, 2)
    ends = {n: [] for n in depths}
    for name, source in sources.items():
        derived = run.kept(exponents, name, depths)
        for colour, depth in zip(COLOURS, depths, strict=False):
            theory = run.solve(experiment(depth, source, time), kernels="none")
            at, loss = theory.time.values[1:], theory.test_loss.values[1:]
            slopes = -np.log(loss[2:] / loss[:-2]) / np.log(at[2:] / at[:-2])
            if source == 0.5:
                panels[0].loglog(at, loss, color=colour, label=f"$L = {depth}$")
                panels[1].semilogx(at[1:-1], slopes, color=colour, label=f"$L = {depth}$")
                panels[1].axhline(derived[depth - 1], color=colour, linewidth=0.8, linestyle=":")
            said = f"beta = {name}, L = {depth}: slope at the end"
            error = max(
                abs(slopes[-1] - slopes[-2]), 0.005
            )  # what still drifts, and the solution's own error
            run.number(said, slopes[-1], error, derived[depth - 1], allowed=3.0)
            if depth > 1:
                run.number(f"{said}, as printed (that of L = 1)", slopes[-1], error, derived[0], rejects=True)
            ends[depth].append(slopes[-1])
    panels[0].set(xlabel="$t$", ylabel="loss", title=r"$\beta = 1/2$")
    panels[1].set(xlabel="$t$", ylabel=r"$-d\log\mathcal{L}/d\log t$", title="dotted: derived exponents")


if __name__ == "__main__":
    main(draw, ("115", "116"))
