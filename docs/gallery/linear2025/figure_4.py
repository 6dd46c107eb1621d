"""Speed of training of residual networks.

A larger gamma0 makes training faster, but not its first step. A larger branch makes all steps faster. With
the branch beta0 over the root of the depth the loss converges to a limit, and its distance to the limit falls
like 1/L.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, main, points

from numerics import Experiment


def experiment(depth: int | str, beta0: float, gamma0: float = 1.0, steps: int = 40) -> Experiment:
    """Return the experiment of a depth, or of infinite depth ("L"), whose branch is beta0 itself."""
    branch = beta0 if depth == "L" else float(beta0 / np.sqrt(depth))
    return Experiment.from_dict(
        {
            "network": {"depth": depth, "branch": branch, "gamma0": gamma0, "width_ratio": 1.0},
            "data": {"kind": "isotropic"},
            "training": {"learning_rate": 0.015, "steps": steps, "center": True},
        }
    )


PANELS = {
    r"(a) $L = 4, \beta_0 = 1$": {rf"$\gamma_0 = {x:g}$": (4, 1.0, x) for x in (0.5, 1.0, 2.0)},
    r"(b) $L = 4, \gamma_0 = 1$": {rf"$\beta_0 = {x:g}$": (4, x) for x in (0.5, 1.0, 1.4)},
    r"(c) $\beta_0 = 1.2$": {f"$L = {x}$": (x, 1.2, 1.0, 20) for x in (1, 4, 12)},
}


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    sizes = ((100, 32), (200, 24)) if run.full else ((32, 32), (64, 24))
    _, panels = run.panels(1, 3, sharey=True)
    first = []
    for panel, (title, cases) in zip(panels, PANELS.items(), strict=True):
        for colour, (label, of) in zip(COLOURS, cases.items(), strict=False):
            theory = run.solve(experiment(*of), kernels="none")
            panel.semilogy(theory.time, theory.test_loss, color=colour, label=label)
            if of[0] <= 4:
                found, wide = run.networks(experiment(*of), *sizes)
                points(panel, wide.time, wide.test_loss, wide.test_loss_stderr, colour, 4)
                run.compare(f"{title}, {label}", theory, found)
            if "(a)" in title:
                first.append(float(theory.test_loss[1]))
        panel.set(xlabel="step", title=title, ylim=(1e-3, 1.6))
    panels[0].set_ylabel("test loss")
    run.number("loss after one step at gamma0 = 1 and 2, against 0.5", first[1:], 1e-12, first[0])
    limit = run.solve(experiment("L", 1.2, steps=20 if run.full else 6))
    panels[2].semilogy(limit.time, limit.test_loss, color="black", linestyle="--")
    panels[2].annotate(r"$L = \infty$: dashed", (0.04, 0.06), xycoords="axes fraction")
    depths = (8, 16, 32, 64) if run.full else (4, 8, 16, 32)
    ends = [run.solve(experiment(n, 1.2, steps=6), kernels="none").test_loss[6] for n in depths]
    gaps = np.abs(np.array(ends, dtype=float) - float(limit.test_loss[6]))
    slopes = np.log2(gaps[:-1] / gaps[1:])
    powers = 2 * slopes[1:] - slopes[:-1]  # the next order in 1/L taken out
    error = abs(powers[-1] - slopes[-1])
    run.number("power of 1/L in the distance to the limit", powers[-1], error, 1.0)


if __name__ == "__main__":
    main(draw, ("17", "17 text", "83"))
