"""Online descent with batches of three sizes at one learning rate.

With the two smaller batches the theory's loss rises at first, and then falls because features are learnt. In
the lazy limit the loss with the smallest batch keeps rising. The derived growth of the first step does not
hold for later steps.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, main, points

from numerics import Experiment
from numerics.analysis.limits import early_time


def experiment(batch: float, gamma0: float = 0.5) -> Experiment:
    """Return the experiment of online descent with a batch ratio."""
    return Experiment.from_dict(
        {
            "network": {"depth": 3, "gamma0": gamma0, "width_ratio": 0.5},
            "data": {"kind": "isotropic", "batch_ratio": batch},
            "training": {"rule": "sgd", "learning_rate": 0.06, "steps": 40, "center": True},
        }
    )


def growth(e: Experiment) -> float:
    """Return the growth of the loss in the first step, in closed form."""
    return float(early_time(e).growth_factor)


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    sizes = ((80, 96), (160, 48)) if run.full else ((40, 48), (80, 24))
    _, panels = run.panels(1, 2)
    for colour, batch in zip(COLOURS, (2.0, 0.4, 0.2), strict=False):
        theory = run.solve(experiment(batch), kernels="none")
        _, wide = run.networks(experiment(batch), *sizes)
        factor = run.kept(growth, experiment(batch))
        for panel, every in zip(panels, (4, 1), strict=True):
            panel.semilogy(theory.time, theory.test_loss, color=colour, label=rf"$B = {batch:g}\,D$")
            points(panel, wide.time, wide.test_loss, wide.test_loss_stderr, colour, every)
        panels[1].plot(range(5), factor ** np.arange(5), "--", color=colour, linewidth=1)
        first, start = wide.isel(time=1), theory.test_loss.values
        run.number(
            f"B = {batch:g} D: growth of networks in the first step",
            float(first.test_loss) / start[0],
            float(first.test_loss_stderr) / start[0],
            factor,
            dof=sizes[1][1] - 1,
        )
        run.number(
            f"B = {batch:g} D: growth of the theory in the first step", start[1] / start[0], 1e-9, factor
        )
        rest = [wide.test_loss[2:9], wide.test_loss_stderr[2:9], start[2:9]]
        run.number(f"B = {batch:g} D: loss of networks, steps 2 to 8", *rest, dof=sizes[1][1] - 1)
    still = run.solve(experiment(0.2, 1e-3), kernels="none")
    panels[0].semilogy(still.time, still.test_loss, color="0.55", label=r"$B = 0.2\,D$, lazy")
    panels[0].set(xlabel="step", ylabel="test loss", ylim=(1e-3, 30))
    panels[1].set(
        xlabel="step", xlim=(-0.1, 4.1), ylim=(0.2, 8), title="dashed: growth of the first step, repeated"
    )
    last, top = wide.isel(time=-1), float(wide.test_loss.max())
    ratio, error = float(last.test_loss) / top, float(last.test_loss_stderr) / top
    run.number("B = 0.2 D: last loss of networks over their largest", ratio, error, 1.0, rejects=True)


if __name__ == "__main__":
    main(draw, ("104", "104 text", "105 text"))
