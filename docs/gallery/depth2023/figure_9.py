"""Limit of infinite depth of the network of figure 8 at infinite width.

Points are the theory of finite depth. It converges like 1/L to that of infinite depth.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from figure_8 import slope, task, theory
from gallery import COLOURS, Run, main

from numerics.solver.depth.frozen_ends import solve_frozen_ends_limit


def limit(steps: int) -> tuple[np.ndarray, float]:
    """Return mean squares at layer times 0, 1/4, ... 1, (layer, step), and their error."""
    found = solve_frozen_ends_limit(task()[0][:steps], slope)
    squares = np.einsum("ltt->lt", found["C_x"])
    return squares[:: (len(squares) - 1) // 4], float(found.errors["C_x"])


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    depths, steps = ((4, 8, 16, 32, 64, 128), 16) if run.full else ((4, 8, 16, 32), 8)
    ends, error = run.kept(limit, steps)
    finite = [run.kept(theory, n, steps) for n in depths]
    _, panels = run.panels(1, 2)
    for k, colour in zip(range(5), COLOURS, strict=False):
        rows = [np.sqrt(x[k * n // 4, -1]) for n, x in zip(depths, finite, strict=True)]
        panels[0].semilogx(depths, rows, "o-", mfc="white", color=colour, label=rf"$\tau = {k / 4:g}$")
        panels[0].axhline(np.sqrt(ends[k, -1]), color=colour, linestyle="--", linewidth=0.8)
    gaps = np.array([np.linalg.norm(x[-1] - ends[-1]) for x in finite])
    panels[1].loglog(depths, gaps, "o", mfc="white", label="last layer")
    panels[1].loglog(depths, gaps[-1] * depths[-1] / np.array(depths), "k:", label=r"$\propto 1/L$")
    slopes = np.log2(gaps[:-1] / gaps[1:])
    power = 2 * slopes[-1] - slopes[-2]  # the next order in 1/L taken out
    far = np.hypot(power - slopes[-1], 4 * error / gaps[-1])
    run.number("power of 1/L in the distance of the last layer to the limit", power, far, 1.0)
    for panel, title in zip(
        panels, ("rms at the last step; dashed: limit", "distance to the limit"), strict=True
    ):
        panel.set(xlabel="depth $L$", title=title, xticks=depths, xticklabels=depths)
        panel.minorticks_off()


if __name__ == "__main__":
    main(draw, ("Prop. 4.4", "Thm. C.3"))
