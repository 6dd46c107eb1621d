"""Learning rates of SGD on power-law data.

Stars mark the best rates of the theory on a grid of rates. The best rate moves with the width in NTK scaling,
and by at most one step of the grid in mean-field scaling.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, main, points

import numerics
from numerics import Experiment


def experiment(width: int, scaling: str) -> Experiment:
    """Return the experiment of a width in one of both scalings.

    At width 16 both scalings give the same network. A file states gamma0 of NTK scaling at N = 1.
    """
    gamma0 = 1.6 if scaling == "mean-field" else 1.6 * np.sqrt(16)
    return Experiment.from_dict(
        {
            "network": {"depth": 3, "width": width, "parametrization": scaling, "gamma0": float(gamma0)},
            "data": {"kind": "power-law", "capacity": 2.0, "source": 1.75, "modes": 200, "batch": 128},
            "training": {"rule": "sgd", "learning_rate": 0.1, "steps": 60},
        }
    )


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    rates = np.geomspace(0.05, 0.5, 31 if run.full else 11)
    few, seeds = rates[:: (len(rates) - 1) // 5][:3], 48 if run.full else 16
    _, panels = run.panels(1, 2, sharey=True)
    for panel, scaling in zip(panels, ("ntk", "mean-field"), strict=True):
        best, ratio, error = {}, [], []
        for colour, width in zip(COLOURS, (16, 64, 256, 1024) if run.full else (16, 64, 1024), strict=False):
            e = experiment(width, scaling)
            loss = run.kept(numerics.sweep, e, {"training.learning_rate": rates}).test_loss.isel(time=-1)
            panel.loglog(rates, loss, color=colour, label=f"$N = {width}$")
            best[width] = rates[np.nanargmin(loss.values)]
            panel.plot(best[width], np.nanmin(loss), "*", color=colour, markersize=10, mfc="none")
            for rate in few if width in (64, 256)[: 1 + run.full] else ():
                last = run.networks(e.replace({"training.learning_rate": float(rate)}), (width, seeds))[
                    1
                ].isel(time=-1)
                ours = float(loss.sel(learning_rate=rate))
                points(panel, rate, float(last.test_loss), float(last.test_loss_stderr), colour)
                ratio.append(float(last.test_loss) / ours)
                error.append(np.hypot(float(last.test_loss_stderr) / ours, 1 / width + 1 / 128))
        ticks = (0.05, 0.1, 0.2, 0.4)
        panel.minorticks_off()
        panel.set(xlabel=r"learning rate $\eta$", title=f"{scaling} scaling", ylim=(7e-5, 1))
        panel.set(xticks=ticks, xticklabels=ticks)
        moved, step = best[1024] / best[16], np.log(rates[1] / rates[0])
        words = f"{scaling}: best rate at N = 1024 over that at N = 16"
        # half a step of the grid on either side
        run.number(words, moved, moved * step / 2, 1.0, allowed=3.0, rejects=scaling == "ntk")
        run.number(f"{scaling}: loss of networks over the theory's", ratio, error, 1.0, dof=seeds - 1)
    panels[0].set_ylabel("test loss after 60 steps")


if __name__ == "__main__":
    main(draw, ("107", "111 text"))
