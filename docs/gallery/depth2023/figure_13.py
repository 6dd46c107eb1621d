"""Transfer of the multiplier of the branch between depths.

The branch is the multiplier over the root of the depth, and data are isotropic. The best multiplier on the
grid is the same for L = 8 and L = 16.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, main, points

import numerics
from numerics import Experiment


def experiment(depth: int, multiplier: float) -> Experiment:
    """Return the experiment of a depth whose branch is the multiplier over the root of the depth."""
    return Experiment.from_dict(
        {
            "network": {
                "depth": depth,
                "branch": float(multiplier / np.sqrt(depth)),
                "gamma0": 1.0,
                "width_ratio": 1.0,
            },
            "data": {"kind": "isotropic"},
            "training": {"learning_rate": 0.02, "steps": 10, "center": True},
        }
    )


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    depths, count = ((2, 4, 8, 16, 32), 41) if run.full else ((2, 4, 8, 16), 13)
    shares, best = np.geomspace(0.4, 3.0, count), []
    _, panel = run.panels(size=(5.5, 3.2))
    ours, theirs = [], []
    for colour, depth in zip(COLOURS, depths, strict=False):
        branches = [float(x / np.sqrt(depth)) for x in shares]
        loss = (
            run.kept(numerics.sweep, experiment(depth, 1.0), {"network.branch": branches})
            .test_loss.isel(time=-1)
            .values
        )
        panel.loglog(shares, loss, color=colour, label=f"$L = {depth}$")
        best.append(shares[np.nanargmin(loss)])
        if depth <= 4:
            for share in (0.6, 1.0):
                ours.append(float(run.solve(experiment(depth, share), kernels="none").test_loss[-1]))
                last = run.networks(experiment(depth, share), (40, 64), (80, 32))[1].isel(time=-1)
                theirs.append((float(last.test_loss), float(last.test_loss_stderr)))
                points(panel, share, *theirs[-1], colour)
    ticks = (0.5, 1, 2)
    panel.minorticks_off()
    panel.set(
        xlabel=r"multiplier $a$ of the branch $a/\sqrt{L}$", ylabel="loss after 10 steps", ylim=(1e-3, 3)
    )
    panel.set(xticks=ticks, xticklabels=ticks)
    step = np.log(shares[1] / shares[0])
    for k in range(1, len(depths)):
        ratio = best[k] / best[k - 1]
        words = f"best multiplier at L = {depths[k]} over that at L = {depths[k - 1]}"
        if k == len(depths) - 1:
            run.number(words, ratio, ratio * step, 1.0, allowed=3.0)
    run.number("loss of networks after 10 steps", *np.transpose(theirs), ours, dof=31)


if __name__ == "__main__":
    main(draw, ("Claim 7.5",))
