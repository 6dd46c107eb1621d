"""Learning rates of residual networks of several depths.

With a branch of one the best rate falls by more than two orders of magnitude from L = 2 to L = 8. With the
branch 1.25/sqrt(L) it falls much less.
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
        "network": {"depth": 2, "branch": 1.0, "gamma0": 1.0, "width_ratio": 1.0},
        "data": {"kind": "isotropic"},
        "training": {"learning_rate": 0.01, "steps": 10, "center": True},
    }
)
DEPTHS = (2, 4, 8)


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    count = 61 if run.full else 19
    _, panels = run.panels(1, 2, sharey=True)
    fell = 0.0
    for panel, scaled in zip(panels, (False, True), strict=True):
        rates, best = np.geomspace(1e-3 if scaled else 3e-5, 0.2, count), {}
        ours, theirs = [], []
        for colour, depth in zip(COLOURS, (*DEPTHS, 16) if scaled and run.full else DEPTHS, strict=False):
            branch = float(1.25 / np.sqrt(depth)) if scaled else 1.0
            e = BASE.replace({"network.depth": depth, "network.branch": branch})
            loss = run.kept(numerics.sweep, e, {"training.learning_rate": rates}).test_loss.isel(time=-1)
            panel.loglog(rates, loss, color=colour, label=f"$L = {depth}$")
            best[depth] = rates[np.nanargmin(loss.values)]
            if depth <= 4:
                for share in (0.1, 0.3):
                    at = e.replace({"training.learning_rate": float(share * best[depth])})
                    ours.append(float(run.solve(at, kernels="none").test_loss[-1]))
                    last = run.networks(at, (32, 48), (64, 32))[1].isel(time=-1)
                    theirs.append((float(last.test_loss), float(last.test_loss_stderr)))
                    points(panel, share * best[depth], *theirs[-1], colour)
        words = r"\beta = 1.25/\sqrt{L}" if scaled else r"\beta = 1"
        panel.set(title=f"${words}$", xlabel=r"learning rate $\eta$", ylim=(1e-4, 3))
        words = "branch 1.25/sqrt(L)" if scaled else "branch 1"
        moved, error = np.log2(best[8] / best[4]), np.log2(rates[1] / rates[0])
        said = f"{words}: power of 2 by which the best rate moves from L = 4 to L = 8"
        run.number(said, moved, error, fell, rejects=True)
        fell = moved
        run.number(f"{words}: loss of networks after 10 steps", *np.transpose(theirs), ours, dof=31)
    panels[0].set_ylabel("loss after 10 steps")


if __name__ == "__main__":
    main(draw, ("17 text", "83"))
