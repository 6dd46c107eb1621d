"""Losses and kernels of deep linear networks on the digits.

The turn of a kernel is one minus the cosine between the kernel at the end and at the start. In the theory the
mean turn over layers is larger for L = 4 than for L = 1 at the same gamma0.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, beyond, main, on_digits, points

from derive import mlp
from derive.program import mu
from numerics import Experiment
from numerics.analysis import ensembles
from numerics.paths import Paths
from numerics.simulation import simulate_program

GAMMA0 = 1.5
RATE = 0.4
"""Times the depth plus one: the tangent kernel of a lazy network is that of its inputs so many times."""


def trained(e: Experiment, depth: int, width: int, seeds: int) -> tuple:
    """Return losses and kernels of trained networks.

    Losses (network, t), kernels of start and end (2, network, layer, sample, sample), and their traces at two
    times (network, layer, t, s).
    """
    steps = int(e.training.steps)
    values = {"eta": e.effective_rate, "gamma0": GAMMA0, "P": len(e.targets)}
    found = simulate_program(
        mlp(depth),
        width=width,
        steps=steps,
        seeds=seeds,
        seed=depth,
        each=True,
        values=values,
        data={"x": e.inputs, "y": e.targets},
        equal=mu,
        paths=Paths(times=(0, steps)),
    )
    h = found.paths.h.transpose("time", "run", "layer", "sample", "unit").values
    return (found.each["Delta"] ** 2).mean(-1), h @ h.swapaxes(-1, -2) / width, found.each["H"].sum(-1)


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    depths, each, steps, seeds = ((1, 2, 3, 4, 5), 10, 60, 24) if run.full else ((1, 2, 4), 4, 30, 240)
    width = 1000 if run.full else 120
    _, panels = run.panels(1, 3)
    means = []
    for colour, depth in zip(COLOURS, depths, strict=False):
        e = on_digits(depth, GAMMA0, each, steps, RATE / (depth + 1))
        theory = run.solve(e)
        wide, small = (run.kept(trained, e, depth, n, seeds) for n in (width, width // 2))
        loss, error = beyond(wide[0], small[0])
        panels[0].semilogy(theory.time, theory.train_loss, color=colour, label=f"$L = {depth}$")
        points(panels[0], theory.time, loss, error, colour, max(1, steps // 10))
        run.number(
            f"L = {depth}: loss of networks", loss[1:], error[1:], theory.train_loss[1:], dof=seeds - 1
        )
        Phi = theory.Phi.values[:, [0, -1], [0, -1]]
        turned = 1 - ensembles.cosine(Phi[:, 1], Phi[:, 0])
        layers = np.arange(1, depth + 1)
        panels[1].plot(layers, turned, "-", color=colour)
        theirs = [1 - ensembles.cosine(x[1][1], x[1][0]) for x in (wide, small)]
        points(panels[1], layers, *beyond(*theirs), colour)
        run.number(f"L = {depth}: how far kernels turn", *beyond(*theirs), turned, dof=seeds - 1)
        means.append((turned.mean(), *beyond(*(x.mean(1) for x in theirs))))
        traces = np.einsum("tsmm->ts", theory.Phi.values[-1])
        if depth == depths[-1]:
            for k, s in enumerate((0, steps // 6, steps)):
                panels[2].plot(theory.time, traces[:, s], color=COLOURS[k], label=f"$s = {s}$")
                points(
                    panels[2],
                    theory.time,
                    *beyond(*(x[2][:, -1, :, s] for x in (wide, small))),
                    COLOURS[k],
                    max(1, steps // 10),
                )
            panels[2].set(title=rf"$\sum_\mu H^{depth}_{{\mu\mu}}(t, s)$", xlabel="step")
    (one, low, bar), (many, high, other) = means[0], means[-1]
    far = high - low, np.hypot(bar, other)
    words = "mean turn of the deepest network less that of one layer"
    run.number(words, *far, many - one, dof=seeds - 1)
    run.number(f"{words}, in the theory", many - one, 1e-6, 0.0, rejects=True)
    panels[0].set(xlabel="step", title="training loss")
    panels[1].set(
        xlabel="layer", title="$1 - A(H(T), H(0))$", xticks=range(1, depths[-1] + 1), ylim=(0, None)
    )


if __name__ == "__main__":
    main(draw, ("15",))
