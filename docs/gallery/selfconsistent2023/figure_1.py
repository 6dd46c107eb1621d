"""Losses, preactivations and kernels of tanh networks with three hidden layers.

The panels 1 - A show the misalignment of kernels: one minus the cosine between kernels of finite networks and
those of the theory. In the panels against N bars are standard deviations over networks. At the end of
training the misalignment of Phi grows with the layer at gamma0 = 0.1, and falls with the layer at gamma0 =
1.5.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, averaged, main, of_digits, points

from derive import mean_field, mlp
from numerics.analysis import ensembles
from numerics.paths import Paths
from numerics.simulation import simulate_program
from numerics.solver.paths import solve_particles

RICH, LAYERS = 1.5, (1, 2, 3)


def given(strength: float, each: int, steps: int) -> dict:
    """Return values, data and recorded paths of the program."""
    return of_digits(strength, each, 0.15) | {"paths": Paths(("h",), times=(0, steps), samples=(0,))}


def theory(strength: float, each: int, steps: int, samples: int) -> tuple:
    """Return errors (run, t, sample), kernels by name (run, layer, t, sample, sample), units at both ends."""
    found = solve_particles(
        mean_field(mlp(3, "tanh")),
        steps=steps + 1,
        samples=samples,
        replicas=4,
        **given(strength, each, steps),
    )
    kernels = {
        name: np.stack([np.einsum("rmntt->rtmn", found.runs[name, (k,)]) for k in LAYERS], 1)
        for name in ("Phi", "G")
    }
    return found.runs["Delta", ()], kernels, found.paths.h


def trained(strength: float, each: int, steps: int, width: int, seeds: int) -> tuple:
    """Return the same quantities of trained networks."""
    sizes = {"width": width, "steps": steps, "seeds": seeds, "seed": width}
    found = simulate_program(mlp(3, "tanh"), each=True, **sizes, **given(strength, each, steps))
    kernels = {name: np.einsum("rlttmn->rltmn", found.each[name]) for name in ("Phi", "G")}
    return found.each["Delta"], kernels, found.paths.h


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    each, steps, samples, width = (5, 40, 2048, 1000) if run.full else (2, 20, 512, 256)
    seeds = 16 if run.full else 32
    widths = (64, 128, 256, 512, 1000) if run.full else (64, 128, 256)
    _, panels = run.panels(2, 3, size=(9.0, 5.4))
    for colour, strength in zip(COLOURS, (0.3, RICH, 4.0), strict=False):
        ours = run.kept(theory, strength, each, steps, samples)
        theirs = run.kept(trained, strength, each, steps, width, seeds)
        half = run.kept(trained, strength, each, steps, width // 2, seeds)
        run.losses(panels[0, 0], strength, colour, [x[0] for x in (ours, theirs, half)], 2, seeds - 1)
        if strength == RICH:
            kept = ours, theirs
    ours, theirs = kept
    grid, edges = np.linspace(-4, 4, 121), np.linspace(-4, 4, 25)
    for panel, layer in zip((panels[0, 1], panels[0, 2]), (1, 3), strict=True):
        for colour, at, word in (("0.55", 0, "start"), (COLOURS[1], steps, "end")):
            units = (x[2].sel(layer=layer, time=at, sample=0) for x in (ours, theirs))
            line, bars = (
                ensembles.kernel_density(next(units), grid, bandwidth=0.15),
                ensembles.histogram(next(units), edges),
            )
            panel.plot(grid, line.density, color=colour)
            points(panel, bars.value, bars.density, bars.density_stderr, colour, markersize=2)
            panel.text(0.03, 0.92 - 0.09 * (at > 0), word, color=colour, transform=panel.transAxes)
        panel.set(title=f"density of $h^{layer}$, one sample", ylim=(0, None))
    nets = {n: theirs if n == width else run.kept(trained, RICH, each, steps, n, seeds) for n in widths}
    for panel, name, place in ((panels[1, 0], "Phi", r"\Phi"), (panels[1, 1], "G", "G")):
        for colour, layer in zip(COLOURS, LAYERS, strict=False):
            apart = np.array([missing(ours, nets[n], name, layer, slice(None)) for n in widths])
            panel.loglog(
                widths, apart.mean(1)[0] * widths[0] / np.array(widths), color=colour, label=f"layer {layer}"
            )
            points(panel, widths, apart.mean(1), apart.std(1, ddof=1), colour)
        panel.set(title=rf"$1 - A({place})$; lines: 1/N", xlabel="$N$")
        panel.set(xticks=widths[::2], xticklabels=widths[::2])
        panel.minorticks_off()
        fell, error = averaged(np.log(apart[0] / apart[-1]) / np.log(widths[-1] / widths[0]))
        run.number(f"{name}, layer 3: power of 1/N of the misalignment", fell, error, 1.0, dof=seeds - 1)
    for colour, strength in zip((COLOURS[0], COLOURS[3]), (0.1, RICH), strict=True):
        both = ours if strength == RICH else run.kept(theory, strength, each, steps, samples)
        few = theirs if strength == RICH else run.kept(trained, strength, each, steps, width, seeds)
        rows = np.array([missing(both, few, "Phi", layer, slice(-1, None)) for layer in LAYERS])
        points(panels[1, 2], LAYERS, *averaged(rows.T), colour, fmt="o-", label=rf"$\gamma_0 = {strength:g}$")
        panels[1, 2].text(
            0.04,
            0.25 - 0.1 * (strength == RICH),
            rf"$\gamma_0 = {strength:g}$",
            color=colour,
            transform=panels[1, 2].transAxes,
        )
        sign = -1 if strength == RICH else 1
        order = "1 minus 3" if strength == RICH else "3 minus 1"
        words = f"gamma0 = {strength:g}: misalignment of Phi at the end, layer {order}"
        run.number(words, *averaged(sign * (rows[2] - rows[0])), 0.0, rejects=True)
    panels[0, 0].set(xlabel="step", title="training loss")
    panels[1, 2].set(title=r"$1 - A(\Phi)$ at the end", xlabel="layer", xticks=LAYERS, yscale="log")


def missing(ours: tuple, theirs: tuple, name: str, layer: int, times: slice) -> np.ndarray:
    """Return one minus the cosine of each network's kernels with the theory's, at equal times."""
    one, two = ours[1][name][:, layer - 1, times].mean(0), theirs[1][name][:, layer - 1, times]
    return 1 - ensembles.cosine(one, two, axes=3)


if __name__ == "__main__":
    main(draw)
