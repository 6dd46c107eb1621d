"""Learning rates of descent on linear residual networks of growing depth.

The rate that leaves a tenth of the error changes little with the depth in Depth-muP (alpha = gamma = 1/2). It
falls faster with the depth if only the branch is scaled (alpha = 1/2, gamma = 0), and by orders of magnitude
without any scaling.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, main, points

from derive.program import depth_program
from numerics.errors import Diverged
from numerics.simulation import simulate_program
from numerics.solver.depth.frozen_ends import solve_frozen_ends

STEPS = 4


def theory(depth: int, alpha: float, gamma: float, rates: np.ndarray) -> np.ndarray:
    """Return the error 1 - f on one sample after the last step at each rate, nan where training diverges."""
    found = np.full(len(rates), np.nan)
    for k, rate in enumerate(rates):
        try:
            f = solve_frozen_ends(
                np.ones(STEPS + 1), lambda step, f, r=rate: r * (f - 1), depth=depth, alpha=alpha, gamma=gamma
            )["f"]
        except Diverged:
            continue
        found[k] = 1 - f[-1]
    return found


def tenth(rates: np.ndarray, missing: np.ndarray) -> float:
    """Return the smallest rate that leaves a tenth of the error, interpolated on the grid of rates."""
    k = int(np.argmax(missing < 0.1))
    share = np.log(missing[k - 1] / 0.1) / np.log(missing[k - 1] / max(missing[k], 1e-2))
    return float(rates[k - 1] * (rates[k] / rates[k - 1]) ** share)


def trained(depth: int, alpha: float, gamma: float, rate: float, width: int, seeds: int) -> tuple:
    """Return mean and standard error of the output of networks after the last step."""
    found = simulate_program(
        depth_program(depth, alpha, gamma),
        width=width,
        steps=STEPS,
        seeds=seeds,
        seed=width,
        values={},
        data={"xi": np.ones(STEPS + 1), "dloss": lambda step, f: rate * (f - 1)},
    )["f"]
    return float(found.mean[-1]), float(found.stderr[-1])


def drawn(
    run: Run, cases: dict[str, tuple[float, float, float, float, str]], depths: tuple[int, ...], size: tuple
) -> dict:
    """Draw the loss against the rate, and return the power of the depth of the rate that leaves a tenth.

    One panel and one power for each parametrisation.
    """
    count, width, seeds = (61, 128, 3000) if run.full else (17, 48, 200)
    _, panels = run.panels(1, len(cases), sharey=True, size=size, squeeze=False)
    moved = {}
    for panel, (name, (alpha, gamma, low, high, title)) in zip(panels[0], cases.items(), strict=True):
        rates, best = np.geomspace(low, high, count), []
        for colour, depth in zip(COLOURS, depths, strict=False):
            missing = run.kept(theory, depth, alpha, gamma, rates)
            panel.loglog(rates, missing**2, color=colour, label=f"$L = {depth}$")
            best.append(tenth(rates, missing))
            if depth == depths[0]:
                rate = float(best[-1] / 2)
                (one, bar), (two, other) = (
                    run.kept(trained, depth, alpha, gamma, rate, n, seeds) for n in (width, width // 2)
                )
                value, error = 2 * one - two, np.hypot(2 * bar, other)
                known = float(run.kept(theory, depth, alpha, gamma, np.array([rate]))[0])
                points(panel, rate, (value - 1) ** 2, 2 * abs(value - 1) * error, colour)
                run.number(
                    f"{name}: 1 - f of networks after {STEPS} steps, L = {depth}",
                    1 - value,
                    error,
                    known,
                    dof=seeds - 1,
                )
        doublings = np.log2(depths[-1] / depths[-2])
        step = np.log2(rates[1] / rates[0]) / 8  # between points of the grid it is interpolated
        moved[name] = np.log2(best[-1] / best[-2]) / doublings, step / doublings
        panel.set(xlabel=r"learning rate $\eta$", title=title, ylim=(1e-5, 30))
    panels[0, 0].set_ylabel(f"loss after {STEPS} steps")
    return moved


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    cases = {
        "Depth-muP": (0.5, 0.5, 0.02, 0.5, r"$\alpha = \gamma = 1/2$"),
        "branch alone": (0.5, 0.0, 4e-3, 0.3, r"$\alpha = 1/2, \gamma = 0$"),
        "no scaling": (0.0, 0.0, 1e-13 if run.full else 1e-6, 0.1, r"$\alpha = \gamma = 0$"),
    }
    moved = drawn(run, cases, (4, 8, 32) if run.full else (4, 12), (9.0, 3.0))
    (least, error), *others = moved.values()
    print(f"  Depth-muP: power of the depth of the rate that leaves a tenth {least:.2f} ± {error:.2f}")
    for name, (power, step) in zip(("branch alone", "no scaling"), others, strict=True):
        words = f"{name}: power of the depth of the rate that leaves a tenth, that of Depth-muP"
        run.number(words, power, np.hypot(step, error), least, allowed=5.0, rejects=True)


if __name__ == "__main__":
    main(draw, ("Table 1", "Claim 7.5"))
