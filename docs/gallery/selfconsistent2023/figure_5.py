"""Convolutional networks on small images.

Networks of two channel counts, extrapolated to infinitely many channels, are compared with the theory. A
larger gamma0 turns the last kernel further towards the targets. Training is not faster at larger gamma0 on
these few images, whereas in the paper it is.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, averaged, beyond, digits, main, points

from derive import P, eta, gamma0, mean_field
from derive.program import convolution
from numerics.analysis import ensembles
from numerics.simulation import simulate_program
from numerics.solver.paths import solve_particles


def given(strength: float, each: int) -> dict:
    """Return values and data: digits of 8 x 8 pixels as rings of four positions with 16 pixels each."""
    x, y = digits(each)
    return {
        "values": {eta: 0.03 / each, gamma0: strength, P: len(y)},
        "data": {"x": x.reshape(len(x), 4, 16), "y": y},
    }


def theory(depth: int, strength: float, each: int, steps: int, samples: int) -> tuple:
    """Return errors (run, t, sample), and the last kernel (run, t, sample, sample) summed over positions."""
    told = given(strength, each)
    x = told["data"].pop("x")
    flat = x.reshape(-1, x.shape[-1])
    told["data"]["K_x"] = (flat @ flat.T / x.shape[-1]).reshape(*x.shape[:-1], *x.shape[:-1])
    program = convolution(depth, "tanh", positions=4, receptive=1)
    found = solve_particles(mean_field(program), steps=steps + 1, samples=samples, replicas=4, **told)
    return found.runs["Delta", ()], np.einsum("rmpnptt->rtmn", found.runs["Phi", (depth,)])


def trained(depth: int, strength: float, each: int, steps: int, channels: int, seeds: int) -> tuple:
    """Return the same quantities of trained networks."""
    program = convolution(depth, "tanh", positions=4, receptive=1)
    sizes = {"width": channels, "steps": steps, "seeds": seeds, "seed": channels}
    found = simulate_program(program, each=True, **sizes, **given(strength, each))
    return found.each["Delta"], np.einsum("rttmpnp->rtmn", found.each["Phi"][:, depth - 1])


def drawn(run: Run, depth: int, strengths: tuple[float, ...], sizes: tuple[int, ...]) -> None:
    """Draw the losses and the alignment of the last kernel with the targets at some gamma0."""
    each, steps, samples, channels, seeds = sizes
    _, panels = run.panels(1, 2)
    y, speeds = digits(each)[1], []
    for colour, strength in zip(COLOURS, strengths, strict=False):
        ours = run.kept(theory, depth, strength, each, steps, samples)
        nets = [run.kept(trained, depth, strength, each, steps, n, seeds) for n in (channels, channels // 2)]
        for panel, measure in zip(
            panels,
            (lambda x: (x[0] ** 2).mean(-1), lambda x: ensembles.cosine(np.outer(y, y), x[1])),
            strict=True,
        ):
            (value, error), (limit, bar) = averaged(measure(ours)), beyond(*map(measure, nets))
            panel.plot(value, color=colour, label=rf"$\gamma_0 = {strength:g}$")
            for found, marker, shift in zip(nets, "os", (-0.12, 0.12), strict=True):
                points(panel, np.arange(steps + 1) + shift, *averaged(measure(found)), colour, 2, fmt=marker)
            words = "loss" if panel is panels[0] else "alignment of the last kernel with the targets"
            far = np.hypot(error, bar)[1:]
            run.number(f"gamma0 = {strength:g}: {words}", limit[1:], far, value[1:], dof=seeds - 1)
        speeds.append((limit[-1], bar[-1]))
    (low, bar), (high, other) = speeds[0], speeds[-1]
    run.number(
        "alignment at the end: more at the largest gamma0 by",
        high - low,
        np.hypot(bar, other),
        0.0,
        rejects=True,
    )
    panels[0].set(
        xlabel="step", title=f"training loss, $L = {depth}$; squares: half as many channels", yscale="log"
    )
    panels[1].set(xlabel="step", title="alignment with the targets")


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    drawn(run, 2, (0.5, 1.0, 2.0), (3, 30, 1024, 250, 40) if run.full else (2, 16, 256, 64, 32))


if __name__ == "__main__":
    main(draw, ("G.6",))
