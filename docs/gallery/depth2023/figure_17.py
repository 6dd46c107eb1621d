"""Distance of two layers as a function of their distance in depth.

At small distances it grows like the root with Depth-muP (diversity exponent 1/2), and linearly with branches
over the depth (exponent 0).
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, main, points
from sympy import Rational

import derive
from derive.depth import gamma_c_recursion, layer_time
from derive.program import depth_program
from numerics.paths import Paths
from numerics.simulation import simulate_program
from numerics.solver.depth import layer_distances

STEPS = 3


def slope(step: float, f: float) -> float:
    """Return the derivative of the loss at output f."""
    return 0.5 * (f - 1)


def theory(alpha: str, layers: int) -> tuple:
    """Return distances of layers at infinite depth, and the derived diversity exponent.

    They are measured from the layer at a quarter of the depth: distances in depth, mean squares of the
    difference (step, distance), local powers of its root (step, doubling), exponent.
    """
    power = Rational(alpha)
    limit = layer_time(gamma_c_recursion(derive.mean_field(depth_program(alpha=power, gamma=1 - power))))
    known = {"xi": lambda t: 1.0, "dloss": slope}
    found = layer_distances(limit, "C_0", layers=layers, steps=STEPS, constants={}, known=known)
    start = (len(found.nodes) - 1) // 4
    ahead, powers = found.slopes(start)
    return (
        ahead,
        found.squares[:, start, start + 2 ** np.arange(len(ahead))],
        powers,
        float(found.derived.exponent),
    )


def trained(alpha: str, depth: int, width: int, seeds: int) -> np.ndarray:
    """Return mean squares of differences of layers in networks, (network, step, distance).

    The distances are 1, 2, 4, ... layers.
    """
    power = Rational(alpha)
    found = simulate_program(
        depth_program(depth, power, 1 - power),
        width=width,
        steps=STEPS - 1,
        seeds=seeds,
        seed=width,
        values={},
        data={"xi": np.ones(STEPS), "dloss": slope},
        wanted={},
        paths=Paths(("x",)),
    ).paths.x.transpose("run", "time", "layer", "unit")
    start = depth // 4
    return np.stack(
        [
            ((found.sel(layer=start + n) - found.sel(layer=start)).values ** 2).mean(-1)
            for n in doublings(depth)
        ],
        -1,
    )


def doublings(depth: int) -> list[int]:
    """Return the powers of two up to half of the depth."""
    return [2**k for k in range(int(np.log2(depth)))]


def drawn(run: Run, panels: list, steps: tuple[int, ...]) -> None:
    """Draw the distances of layers after some steps, from the theory of infinite depth and from networks."""
    layers, depth, width, seeds = (128, 64, 256, 16) if run.full else (64, 32, 64, 24)
    for panel, alpha in zip(panels, ("1/2", "1"), strict=True):
        ahead, squares, powers, exponent = run.kept(theory, alpha, layers)
        nets = run.kept(trained, alpha, depth, width, seeds)
        for colour, step in zip(COLOURS, steps, strict=False):
            panel.loglog(ahead, np.sqrt(squares[step]), color=colour, label=f"$t = {step}$")
            rms = np.sqrt(nets[:, step])
            share = np.array(doublings(depth)) / depth
            points(panel, share, rms.mean(0), rms.std(0, ddof=1) / seeds**0.5, colour)
            kappa = 1 - powers[step]
            error = max(abs(kappa[0] - kappa[1]), 0.01)
            words = f"alpha = {alpha}, step {step}: 1 - local power, 1/{1 / ahead[1]:.0f} of the depth apart"
            run.number(words, kappa[0], error, exponent, allowed=3.0, alternative=0.0 if exponent else 0.5)
        panel.minorticks_off()
        ticks = [2.0**-k for k in range(1, 6)]
        panel.set(xticks=ticks, xticklabels=[f"1/{1 / x:.0f}" for x in ticks])
        panel.set(xlabel=r"distance $\epsilon$ of the layers", title=rf"$\alpha = {alpha}$")


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    _, panels = run.panels(1, 2)
    drawn(run, list(panels), (1, 2))
    panels[0].set_ylabel("rms of their difference")


if __name__ == "__main__":
    main(draw, ("Claim 7.4", "Claim 7.5", "Def. 7.6"))
