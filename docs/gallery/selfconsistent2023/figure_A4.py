"""Gradient independence at gamma0 = 1.5.

This approximation takes backward matrices as independent of the forward ones. It is exact with one hidden
layer, wrong with three, and right for networks whose backward matrices are drawn independently (untied
networks).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from figure_4 import independent, trained
from gallery import COLOURS, Run, beyond, main, on_digits, points

import numerics
from derive.reduce.independence import independent_backward


def untied(e: object, width: int, seeds: int) -> object:
    """Return networks whose backward matrices are drawn independently of the forward ones."""
    return numerics.simulate(
        e, width=width, seeds=seeds, rng=width, variant=independent_backward, kernels="none"
    )


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    depths, each, steps, width, seeds = ((1, 3, 5), 10, 60, 1000, 6) if run.full else ((1, 3), 4, 30, 200, 48)
    _, panels = run.panels(1, 2)
    time = np.arange(steps + 1)
    for colour, depth in zip(COLOURS, depths, strict=False):
        e = on_digits(depth, 1.5, each, steps, 0.4 / (depth + 1))
        tied, free = run.solve(e), run.kept(independent, e)
        panels[0].semilogy(time, tied.train_loss, color=colour, label=f"$L = {depth}$")
        panels[0].semilogy(time, free.train_loss, "--", color=colour)
        wide, half = (run.kept(trained, e, depth, 1.5, n, seeds) for n in (width, width // 2))
        found = beyond(wide[0], half[0])
        points(panels[0], time, *found, colour, steps // 10)
        at = 5  # where they differ most
        words = f"L = {depth}: loss of networks after {at} steps"
        run.number(words, found[0][at], found[1][at], float(tied.train_loss[at]), dof=seeds - 1)
        if depth > 1:
            other = float(free.train_loss[at])
            run.number(f"{words}, gradient independence", found[0][at], found[1][at], other, rejects=True)
            one, two = (run.kept(untied, e, n, seeds) for n in (width, width // 2))
            value = (2 * one.train_loss - two.train_loss).values
            error = np.hypot(2 * one.train_loss_stderr, two.train_loss_stderr).values
            points(panels[0], time, value, error, colour, steps // 10, fmt="s")
            run.number(
                f"L = {depth}: loss of networks with untied backward matrices",
                value[at],
                error[at],
                other,
                dof=seeds - 1,
            )
    for theory, style, label in ((tied, "-", "theory"), (free, "--", "gradient independence")):
        kernels = np.einsum("lmm->l", theory.Phi.values[:, -1, -1])
        panels[1].plot(range(1, depth + 1), kernels, style, color=colour, label=label)
    points(panels[1], range(1, depth + 1), *beyond(wide[1][..., -1], half[1][..., -1]), colour)
    panels[0].set(xlabel="step", title="training loss; squares: untied networks", ylim=(5e-4, 2))
    panels[1].set(
        xlabel=r"layer $\ell$",
        title=rf"$\sum_\mu H^\ell_{{\mu\mu}}$ at the end, $L = {depth}$",
        xticks=range(1, depth + 1),
    )


if __name__ == "__main__":
    main(draw, ("O.1 text",))
