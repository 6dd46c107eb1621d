"""Learning curves on power-law data at finite batch and width.

The theory is an approximation at finite batch and width. At infinite width an easy task (beta > 1) is learnt
with nearly the same slope as in the lazy limit, and a hard task (beta < 1) with a larger slope.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, main, points

from numerics import Experiment


def experiment(network: dict[str, float], data: dict[str, float], rule: str, rate: float) -> Experiment:
    """Return the experiment on power-law data with some settings of network and data."""
    return Experiment.from_dict(
        {
            "network": {"depth": 4, "gamma0": 1.0, **network},
            "data": {"kind": "power-law", "capacity": 1.5, "source": 1.0, "modes": 300, **data},
            "training": {"rule": rule, "learning_rate": rate, "steps": 100},
        }
    )


def easy_or_hard(source: float, rate: float, **network: float) -> Experiment:
    """Return the experiment of full-batch descent on a task with some source exponent."""
    return experiment(network, {"source": source}, "gd", rate)


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    seeds = 48 if run.full else 12
    _, panels = run.panels(1, 3)
    cases = [
        (f"$B = {x}$", experiment({"width": 64}, {"batch": x}, "sgd", 0.1), 64, 1 / x + 1 / 64)
        for x in (16, 64)
    ]
    shown(run, panels[0], cases, seeds, r"(a) batches, $N = 64, \beta = 1$")
    steep = {}
    for panel, source, rate, word in ((panels[1], 1.5, 0.1, "(b) easy"), (panels[2], 0.5, 0.04, "(c) hard")):
        cases = [(f"$N = {x}$", easy_or_hard(source, rate, width=x), x, 1 / x) for x in (16, 64, 256)]
        shown(run, panel, cases[: 3 if run.full else 2], seeds, rf"{word}, $\beta = {source:g}$")
        for label, colour, change in ((r"$N = \infty$", "black", {}), ("lazy", "0.55", {"gamma0": 1e-3})):
            theory = run.solve(easy_or_hard(source, rate, **change), kernels="none")
            panel.loglog(theory.time[1:], theory.test_loss[1:], color=colour, label=label)
            loss = theory.test_loss.values
            steep[word, label] = (
                np.log(loss[25] / loss[100]) / np.log(4),
                abs(np.log(loss[25] * loss[100] / loss[50] ** 2)),
            )
    (rich, error), (lazy, other) = steep["(c) hard", r"$N = \infty$"], steep["(c) hard", "lazy"]
    words = "hard task: slope of the rich loss, that of the lazy one, steps 25 to 100"
    run.number(words, rich, np.hypot(error, other), lazy, rejects=True)


def shown(run: Run, panel: object, cases: list, seeds: int, title: str) -> None:
    """Draw the losses of theory and networks for some cases, and compare them at the last step."""
    for colour, (label, e, width, order) in zip(COLOURS, cases, strict=False):
        theory, (_, nets) = run.solve(e, kernels="none"), run.networks(e, (width, seeds))
        panel.loglog(theory.time[1:], theory.test_loss[1:], color=colour, label=label)
        few = nets.isel(time=np.unique(np.geomspace(1, 100, 9).astype(int)))
        points(panel, few.time, few.test_loss, few.test_loss_stderr, colour)
        last, end = nets.isel(time=-1), float(theory.test_loss[-1])
        error = np.hypot(float(last.test_loss_stderr) / end, order)
        run.number(
            f"{title}, {label}: loss of networks over the theory's",
            float(last.test_loss) / end,
            error,
            1.0,
            dof=seeds - 1,
        )
    panel.set(xlabel="step", title=title)


if __name__ == "__main__":
    main(draw, ("21", "116"))
