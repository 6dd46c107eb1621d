"""Relu networks with weight decay: the more features they learn, the smaller is the last loss and the
closer the last kernel to the targets; below a threshold in gamma0, which the caption lacks, all decays to
nothing."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, averaged, beyond, digits, main, points
from sympy import Symbol

from derive import P, eta, gamma0, mean_field, mlp
from numerics.analysis import ensembles
from numerics.paths import Paths
from numerics.simulation import simulate_program
from numerics.solver.paths import solve_particles

lam = Symbol("lambda", positive=True)
NETWORK = mlp(1, "relu", weight_decay=lam)


def given(strength: float, each: int, steps: int) -> dict:
    """A decay of 1, as in the paper."""
    x, y = digits(each)
    values = {eta: 0.25 / each, gamma0: strength, P: len(y), lam: 1.0}
    paths = Paths(("phi(h)",), times=(0, steps))
    return {"values": values, "data": {"K_x": x @ x.T / x.shape[1], "y": y}, "paths": paths}


def theory(strength: float, each: int, steps: int, samples: int) -> tuple:
    """Errors (run, t, sample), and units at the end."""
    found = solve_particles(
        mean_field(NETWORK), steps=steps + 1, samples=samples, replicas=4, **given(strength, each, steps)
    )
    return found.runs["Delta", ()], last(found.paths["phi(h)"])


def trained(strength: float, each: int, steps: int, width: int) -> tuple:
    sizes = {"width": width, "steps": steps, "seeds": 12, "seed": width}
    found = simulate_program(NETWORK, wanted={}, each=True, **sizes, **given(strength, each, steps))
    return found.each["Delta"], last(found.paths["phi(h)"])


def last(paths: object) -> np.ndarray:
    """Kernels at the end, (run, sample, sample)."""
    units = paths.isel(time=-1, layer=0).transpose("run", "sample", "unit").values
    return units @ units.swapaxes(-1, -2) / units.shape[-1]


def draw(run: Run) -> None:
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
        (loss, error), (nets, bar) = (averaged((d**2).mean(-1)) for d in (ours[0], theirs[0]))
        panels[0].semilogy(loss, color=colour, label=rf"$\gamma_0 = {strength:g}$")
        points(panels[0], np.arange(steps + 1), nets, bar, colour, steps // 10)
        half = run.kept(trained, strength, each, steps, width // 2)
        last, far = beyond(*((x[0] ** 2).mean(-1) for x in (theirs, half)))
        at = np.linspace(1, steps, 8).astype(int)
        run.number(f"gamma0 = {strength:g}: loss", last[at], np.hypot(error, far)[at], loss[at], dof=11)
        found = [ensembles.each(target, x[1]) for x in (ours, theirs)]
        rows.append([float(v) for a in found for v in (a.value, a.stderr)])
        f = np.abs(y - theirs[0][:, -1]).max(-1)
        if strength == strengths[0]:
            run.number(
                "below the threshold: largest output of networks at the end", f.max(), 0.02, 0.0, allowed=3.0
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
