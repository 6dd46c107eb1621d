"""Dependence of the best learning rate on the width.

The best rate moves with the width in NTK scaling, and hardly in mean-field scaling.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, main, points

import numerics
from numerics import Experiment

BASE = Experiment.from_dict(
    {
        "network": {"depth": 2, "gamma0": 4.0, "width_ratio": 1.0},
        "data": {"kind": "isotropic"},
        "training": {"learning_rate": 0.05, "steps": 10, "center": True},
    }
)
RATIOS = (0.5, 1.0, 4.0)


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    rates = np.geomspace(0.01, 0.6, 121 if run.full else 41)
    few = (0.015, 0.03, 0.06) if run.full else (0.02, 0.05)
    _, panels = run.panels(1, 2, sharey=True)
    for panel, scaling in zip(panels, ("ntk", "mean-field"), strict=True):
        base, best = BASE.replace({"network.parametrization": scaling}), {}
        swept = run.kept(
            numerics.sweep, base, {"network.width_ratio": RATIOS, "training.learning_rate": rates}
        )
        ours, theirs = [], []
        for colour, ratio in zip(COLOURS, RATIOS, strict=False):
            loss = swept.test_loss.sel(width_ratio=ratio).isel(time=-1)
            best[ratio] = rates[np.nanargmin(loss.values)]
            panel.loglog(rates, loss, color=colour, label=rf"$\nu = {ratio:g}$")
            panel.axvline(best[ratio], color=colour, linewidth=0.7, linestyle=":")
            small = int(40 * max(1, ratio / 2))
            for rate in few:
                e = base.replace({"network.width_ratio": ratio, "training.learning_rate": rate})
                ours.append(run.solve(e, kernels="none").test_loss.values[-1])
                last = run.networks(e, (small, 64), (2 * small, 32))[1].isel(time=-1)
                theirs.append((float(last.test_loss), float(last.test_loss_stderr)))
                points(panel, rate, *theirs[-1], colour)
        panel.set(title=f"{scaling} scaling", xlabel=r"learning rate $\eta$", ylim=(1e-6, 3))
        moved, step = best[4.0] / best[0.5], np.log(rates[1] / rates[0])
        words = f"{scaling}: best rate at nu = 4 over that at nu = 1/2"
        run.number(words, moved, moved * step, 1.0, allowed=5.0, rejects=scaling == "ntk")
        run.number(f"{scaling}: loss of networks after 10 steps", *np.transpose(theirs), ours, dof=62)
    panels[0].set_ylabel("loss after 10 steps")


if __name__ == "__main__":
    main(draw, ("14 text",))
