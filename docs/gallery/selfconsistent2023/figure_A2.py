"""Tanh networks on clusters of points.

At gamma0 = 0.2 the loss is nearly that of the static kernel. At larger gamma0 training is faster. At gamma0 =
3 the last Phi at the end has one block for each class, and G between classes is nearly as large as G within
them.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, beyond, main

from derive import P, eta, gamma0, mean_field, mlp
from numerics import Experiment
from numerics.simulation import simulate_program
from numerics.solver.paths import solve_particles

RATE = 0.03


def given(strength: float, each: int) -> dict:
    """Return values and data of points with variance one half around the centre of their class."""
    rng = np.random.default_rng(2)
    y = np.repeat([1.0, -1.0], each)
    x = (y[:, None] * rng.standard_normal(50) + rng.standard_normal((2 * each, 50))) / np.sqrt(2)
    return {
        "values": {eta: 5 * RATE / each, gamma0: strength, P: len(y)},
        "data": {"K_x": x @ x.T / 50, "y": y},
    }


def static(each: int, steps: int) -> Experiment:
    """Return the experiment in the lazy limit, with the same data."""
    told = given(1e-3, each)
    training = {"learning_rate": told["values"][eta], "steps": steps, "loss": "sum"}
    network = {"depth": 3, "activation": "tanh", "gamma0": 1e-3}
    arrays = {"kernel": told["data"]["K_x"], "targets": told["data"]["y"]}
    return Experiment.from_dict({"network": network, "training": training}, **arrays)


def theory(strength: float, each: int, steps: int, samples: int) -> tuple:
    """Return errors (run, t, sample), and kernels of the last layer at the end (run, sample, sample)."""
    found = solve_particles(
        mean_field(mlp(3, "tanh")), steps=steps + 1, samples=samples, replicas=4, **given(strength, each)
    )
    kernels = {n: found.value(n, 3)[:, :, -1, -1] for n in ("Phi", "G")}
    return found.runs["Delta", ()], kernels


def trained(strength: float, each: int, steps: int, width: int, seeds: int) -> tuple:
    """Return the same quantities of trained networks."""
    sizes = {"width": width, "steps": steps, "seeds": seeds, "seed": width}
    found = simulate_program(mlp(3, "tanh"), each=True, **sizes, **given(strength, each))
    return found.each["Delta"], {n: found.each[n][:, -1, -1, -1] for n in ("Phi", "G")}


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    each, steps, samples, width, seeds = (5, 25, 2048, 2000, 6) if run.full else (2, 16, 512, 256, 32)
    _, panels = run.panels(1, 4, size=(10.0, 2.8), width_ratios=(2, 1, 1, 1))
    for colour, strength in zip(COLOURS, (0.2, 1.0, 3.0), strict=False):
        ours = run.kept(theory, strength, each, steps, samples)
        wide, half = (run.kept(trained, strength, each, steps, n, seeds) for n in (width, width // 2))
        run.losses(panels[0], strength, colour, [x[0] for x in (ours, wide, half)], 2, seeds - 1)
    for name in ("Phi", "G"):
        value, off = beyond(wide[1][name], half[1][name])
        share = value[0, -1] / value[0, 0], np.hypot(off[0, -1], off[0, 0]) / value[0, 0]
        known = ours[1][name]
        run.number(
            f"gamma0 = 3: {name} between classes over that within",
            *share,
            known[0, -1] / known[0, 0],
            dof=seeds - 1,
        )
    lazy = run.solve(static(each, steps), kernels="none")
    panels[0].semilogy(lazy.time, lazy.train_loss, "k--", label="static kernel")
    shown = (r"\Phi^3", ours[1]["Phi"]), (r"\Phi^3", wide[1]["Phi"].mean(0)), ("G^3", ours[1]["G"])
    for panel, (name, kernel), word in zip(panels[1:], shown, ("theory", "networks", "theory"), strict=True):
        panel.imshow(kernel, cmap="RdBu_r", vmin=-abs(kernel).max(), vmax=abs(kernel).max())
        panel.set(xticks=[], yticks=[], title=f"${name}$, {word}")
    panels[0].set(xlabel="step", title="training loss")


if __name__ == "__main__":
    main(draw, ("13",))
