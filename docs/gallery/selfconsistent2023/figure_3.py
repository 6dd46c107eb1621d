"""Relu networks with weight decay at several gamma0.

The larger gamma0, the smaller is the last loss, and the closer is the last kernel to the targets. Below a
threshold in gamma0, which the paper's caption does not name, outputs decay to zero.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, digits, main, of_digits, points
from sympy import Symbol

from derive import mean_field, mlp
from numerics.analysis import ensembles
from numerics.paths import Paths
from numerics.simulation import simulate_program
from numerics.solver.paths import solve_particles

lam = Symbol("lambda", positive=True)
NETWORK = mlp(1, "relu", weight_decay=lam)


def given(strength: float, each: int, steps: int) -> dict:
    """Return values, data and recorded paths, with a weight decay of 1 as in the paper."""
    known = of_digits(strength, each, 0.25)
    return known | {"values": known["values"] | {lam: 1.0}, "paths": Paths(("phi(h)",), times=(0, steps))}


def theory(strength: float, each: int, steps: int, samples: int) -> tuple:
    """Return errors (run, t, sample), and units at the end."""
    found = solve_particles(
        mean_field(NETWORK), steps=steps + 1, samples=samples, replicas=4, **given(strength, each, steps)
    )
    return found.runs["Delta", ()], last(found.paths["phi(h)"])


def trained(strength: float, each: int, steps: int, width: int) -> tuple:
    """Return errors and units at the end of trained networks."""
    sizes = {"width": width, "steps": steps, "seeds": 12, "seed": width}
    found = simulate_program(NETWORK, wanted={}, each=True, **sizes, **given(strength, each, steps))
    return found.each["Delta"], last(found.paths["phi(h)"])


def last(paths: object) -> np.ndarray:
    """Return the kernels at the end, (run, sample, sample)."""
    units = paths.isel(time=-1, layer=0).transpose("run", "sample", "unit").values
    return units @ units.swapaxes(-1, -2) / units.shape[-1]


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    each, steps, samples, width = (5, 160, 512, 1000) if run.full else (2, 80, 256, 500)
    y = digits(each)[1]
    strengths = (0.1, 0.5, 1.0, 2.0, 4.0) if run.full else (0.2, 2.0, 4.0)
    _, panels = run.panels(1, 2)
    rows, target = [], np.outer(y, y)[None]
    for colour, strength in zip(COLOURS, strengths, strict=False):
        ours, theirs = (
            run.kept(theory, strength, each, steps, samples),
            run.kept(trained, strength, each, steps, width),
        )
        half = run.kept(trained, strength, each, steps, width // 2)
        at = np.linspace(1, steps, 8).astype(int)
        run.losses(panels[0], strength, colour, [x[0] for x in (ours, theirs, half)], steps // 10, 11, at)
        found = [ensembles.each(target, x[1]) for x in (ours, theirs)]
        rows.append([float(v) for a in found for v in (a.value, a.stderr)])
        f = np.abs(y - theirs[0][:, -1]).max(-1)
        if strength == strengths[0]:
            run.number(
                "below the threshold: largest output of networks at the end",
                f.max(),
                0.02,
                0.0,
                allowed=3.0,
                alternative=1.0,
            )
        if strength == strengths[-1]:
            run.number("above it: smallest output of networks at the end", f.min(), 0.02, 0.0, rejects=True)
    known, _, value, bars = np.transpose(rows)
    panels[1].plot(strengths, known, color=COLOURS[0])
    points(panels[1], strengths, value, bars, COLOURS[0])
    panels[0].set(xlabel="step", title="training loss")
    panels[1].set(xlabel=r"$\gamma_0$", title=r"alignment of the last $\Phi$ with $y y^\top$")


if __name__ == "__main__":
    main(draw)
