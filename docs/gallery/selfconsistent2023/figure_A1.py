"""Losses, distributions of fields and kernels of two-layer relu networks.

Two layers are one hidden layer and the readout. Preactivations h at the end are nearly Gaussian at gamma0 =
0.2 and skewed at gamma0 = 4. The larger gamma0, the broader is the distribution of the backward fields z at
the end. It has hardly any skewness.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, main, of_digits, points

from derive import mean_field, mlp
from numerics.analysis.ensembles import histogram, moments
from numerics.paths import Paths
from numerics.simulation import simulate_program
from numerics.solver.paths import solve_particles


def given(strength: float, each: int, steps: int) -> dict:
    """Return values, data and recorded paths of the program."""
    return of_digits(strength, each, 0.2) | {"paths": Paths(("h", "z", "phi(h)", "g"), times=(steps,))}


def theory(strength: float, each: int, steps: int, samples: int) -> tuple:
    """Return errors (run, t, sample), and units at the end."""
    found = solve_particles(
        mean_field(mlp(1, "relu")),
        steps=steps + 1,
        samples=samples,
        replicas=6,
        **given(strength, each, steps),
    )
    return found.runs["Delta", ()], found.paths.isel(time=-1, layer=0)


def trained(strength: float, each: int, steps: int, width: int, seeds: int) -> tuple:
    """Return errors and units at the end of trained networks."""
    sizes = {"width": width, "steps": steps, "seeds": seeds, "seed": width}
    found = simulate_program(mlp(1, "relu"), wanted={}, each=True, **sizes, **given(strength, each, steps))
    return found.each["Delta"], found.paths.isel(time=-1, layer=0)


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    each, steps, samples, width, seeds = (10, 60, 2048, 2000, 12) if run.full else (2, 30, 512, 500, 16)
    strengths = (0.2, 1.0, 4.0)
    _, grid = run.panels(2, 3, size=(9.0, 5.4))
    panels = grid[0]
    for colour, strength in zip(COLOURS, strengths, strict=False):
        ours = run.kept(theory, strength, each, steps, samples)
        wide, half = (run.kept(trained, strength, each, steps, n, seeds) for n in (width, width // 2))
        run.losses(panels[0], strength, colour, [x[0] for x in (ours, wide, half)], steps // 10, seeds - 1)
        edges = np.linspace(-6, 6, 31)
        for panel, name in zip(panels[1:], ("h", "z"), strict=True):
            one, two = (histogram(x[1][name].isel(sample=0), edges) for x in (ours, wide))
            panel.stairs(one.density, edges, color=colour, linewidth=1)
            points(panel, two.value, two.density, two.density_stderr, colour, markersize=2)
            panel.set(title=f"density of ${name}$, one sample", yscale="log", ylim=(1e-3, 1))
        first, second = (moments(x[1].h.isel(sample=0)) for x in (ours, wide))
        if strength == strengths[-1]:
            run.number(
                "gamma0 = 4: skewness of h in networks, that of the theory",
                float(second.skewness),
                np.hypot(float(first.skewness_stderr), float(second.skewness_stderr)),
                float(first.skewness),
                dof=5,
            )
            run.number(
                "gamma0 = 4: skewness of h, Gaussian",
                float(second.skewness),
                float(second.skewness_stderr),
                0.0,
                rejects=True,
            )
            final = ours, wide
    pictures = {}
    for name, field in ((r"\Phi", "phi(h)"), ("G", "g")):
        for word, (_, paths) in zip(("theory", "networks"), final, strict=True):
            units = paths[field].transpose("run", "sample", "unit").values
            pictures[name, word] = (units @ units.swapaxes(-1, -2) / units.shape[-1]).mean(0)
    for panel, (name, word) in zip(
        grid[1], [(r"\Phi", "theory"), (r"\Phi", "networks"), ("G", "theory")], strict=True
    ):
        most = abs(pictures[name, "theory"]).max()
        panel.imshow(pictures[name, word], cmap="RdBu_r", vmin=-most, vmax=most)
        panel.set(xticks=[], yticks=[], title=rf"${name}$ at the end, $\gamma_0 = 4$: {word}")
    panels[0].set(xlabel="step", title="training loss")


if __name__ == "__main__":
    main(draw, ("D.21",))
