"""Classes of depthwise parametrisations of linear residual networks.

The branch has a factor L^-alpha and the updates a factor L^-gamma. Counting powers of the depth L decides
which pairs (alpha, gamma) are stable, and which learn features. Squares mark the pairs that are measured in
solved theories.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from fractions import Fraction

import numpy as np
from gallery import COLOURS, Run, main

import derive
from derive.depth.balance import alpha, gamma
from derive.program import depth_program
from derive.scale.depth import DepthParametrization
from numerics.solver.depth.frozen_ends import solve_frozen_ends

POINTS = (("1/2", "1/2"), ("1", "0"), ("1/2", "1"), ("1", "1/2"))


def classes(rows: tuple[tuple[str, str], ...]) -> list[tuple[str, float]]:
    """Return derived class and power of the depth in the output's change, for each parametrisation."""
    network = DepthParametrization(derive.mean_field(depth_program(alpha=alpha, gamma=gamma)))
    found = (network.classify(a, g) for a, g in rows)
    return [(x.region, float(x.exponents["output"])) for x in found]


def moved(a: str, g: str, depth: int) -> float:
    """Return the change of the output in the first step, for a loss of slope one."""
    powers = {"alpha": float(Fraction(a)), "gamma": float(Fraction(g))}
    return float(np.diff(solve_frozen_ends([1.0, 1.0], lambda step, f: -1.0, depth=depth, **powers)["f"])[0])


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    step = Fraction(1, 4 if run.full else 2)
    grid = tuple(
        (str(k * step), str(n * step - 1)) for k in range(int(2 / step) + 1) for n in range(int(2 / step) + 1)
    )
    found = run.kept(classes, grid)
    _, panel = run.panels(size=(6.0, 3.6))
    for colour, region in zip(COLOURS, dict.fromkeys(x for x, _ in found), strict=False):
        at = [
            (float(Fraction(a)), float(Fraction(g)))
            for (a, g), (x, _) in zip(grid, found, strict=True)
            if x == region
        ]
        panel.plot(*np.transpose(at), "o", color=colour, markersize=4)
        panel.plot([], [], color=colour, label=region)
    chosen = POINTS if run.full else POINTS[:3]
    depths = (16, 32, 64) if run.full else (8, 16, 32)
    for (a, g), (_, power) in zip(chosen, run.kept(classes, chosen), strict=True):
        sizes = [run.kept(moved, a, g, n) for n in depths]
        slopes = np.diff(np.log(sizes)) / np.diff(np.log(depths))
        x, y = float(Fraction(a)), float(Fraction(g))
        panel.plot(x, y, "s", color="black", mfc="none", markersize=8)
        limit = 2 * slopes[-1] - slopes[-2]  # corrections halve with each doubling of the depth
        run.number(
            f"alpha = {a}, gamma = {g}: power of L of the output's change",
            limit,
            abs(limit - slopes[-1]),
            power,
            alternative=0.0 if power else 0.5,
        )
    panel.set(xlabel=r"$\alpha$ (branch $L^{-\alpha}$)", ylabel=r"$\gamma$ (update $L^{-\gamma}$)")
    panel.legend(loc="center left", bbox_to_anchor=(1.0, 0.5))


if __name__ == "__main__":
    main(draw, ("Claim 7.1", "Claim 7.2", "Claim 7.3", "Claim 7.5"))
