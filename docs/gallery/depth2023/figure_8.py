"""Root mean squares of the layers of a deep linear residual network.

Each step of training has one sample. As the width N grows, networks converge to the theory of infinite width.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, digits, main, points

from derive.program import depth_program
from numerics.simulation import simulate_program
from numerics.solver.depth.frozen_ends import solve_frozen_ends


def task() -> tuple[np.ndarray, np.ndarray]:
    """Return one number for each digit, its first principal component, in random order, and the targets."""
    x, y = digits()
    component = x @ np.linalg.svd(x - x.mean(0))[2][0]
    order = np.random.default_rng(0).permutation(len(y))[:16]
    return (component / component.std())[order], y[order]


def slope(step: float, f: float) -> float:
    """Return the derivative of the loss at output f for the sample of this step."""
    return 0.3 * (f - task()[1][int(step)])


def theory(depth: int, steps: int) -> np.ndarray:
    """Return the mean squares of layers, (layer, step)."""
    return np.einsum("ltt->lt", solve_frozen_ends(task()[0][:steps], slope, depth=depth)["C_x"])


def trained(depth: int, steps: int, width: int, seeds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean squares of layers of networks and their standard errors, (layer, step)."""
    found = simulate_program(
        depth_program(depth),
        width=width,
        steps=steps - 1,
        seeds=seeds,
        seed=width,
        values={},
        data={"xi": task()[0][:steps], "dloss": slope},
    )["C_x"]
    return np.einsum("ttkk->kt", found.mean), np.einsum("ttkk->kt", found.stderr)


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    depth, steps = (64, 16) if run.full else (16, 10)
    ours = run.kept(theory, depth, steps)
    sizes = ((32, 80), (128, 40), (256, 24)) if run.full else ((16, 96), (64, 48), (128, 48))
    _, panels = run.panels(1, 3, sharey=True)
    shown, at = range(0, depth + 1, depth // 4), np.arange(steps)
    nets = [run.kept(trained, depth, steps, *size) for size in sizes]
    (low, bar), (high, other) = ((mean[-1], error[-1]) for mean, error in nets[-2:])
    ratio = sizes[-1][0] / sizes[-2][0]
    limit, far = (ratio * high - low) / (ratio - 1), np.hypot(ratio * other, bar) / (ratio - 1)
    words = "mean square of the last layer, extrapolated in 1/N"
    run.number(words, limit, far, ours[-1], dof=sizes[-1][1] - 1)
    for panel, (width, seeds), (mean, error) in zip(panels, sizes, nets, strict=True):
        for colour, layer in zip(COLOURS, shown, strict=False):
            label = rf"$\ell = {layer}$" if panel is panels[-1] else None
            panel.plot(
                at,
                np.sqrt(ours[layer]),
                color=colour,
                label=label,
            )
            points(panel, at, np.sqrt(mean[layer]), error[layer] / 2 / np.sqrt(mean[layer]), colour)
        panel.set(xlabel="step", title=f"$N = {width}$")
        spread = np.sqrt(seeds) * error[-1]
        print(f"  N = {width}: spread of the last layer's mean square among networks {spread.mean():.2g}")
    panels[0].set_ylabel("rms of a layer")


if __name__ == "__main__":
    main(draw, ("Lemma 4.3", "Thm. 4.1"))
