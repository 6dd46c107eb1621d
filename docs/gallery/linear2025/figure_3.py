"""Overfitting of few data and noise of small batches in linear networks.

The fewer the samples, the faster falls the training loss. With alpha = 0.5 the test loss falls, and then
rises slowly. With fresh batches the loss falls more slowly for small batches. At the end most of this loss is
the noise of the labels, 0.09.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from gallery import COLOURS, Run, main, points

from numerics import Experiment


def experiment(data: dict[str, float], ratio: float = 1.0) -> Experiment:
    """Return the experiment with fixed samples, or with fresh batches if ``data`` has a batch ratio."""
    rule = "sgd" if "batch_ratio" in data else "gd"
    return Experiment.from_dict(
        {
            "network": {"depth": 4, "gamma0": 1.0, "width_ratio": ratio},
            "data": {"kind": "isotropic", "noise": 0.3, **data},
            "training": {"rule": rule, "learning_rate": 0.02, "steps": 80, "center": True},
        }
    )


DATA = {rf"$\alpha = {x:g}$": experiment({"sample_ratio": x}) for x in (0.5, 1.5, 4.0)}
FRESH = {
    y: {rf"$\alpha_B = {x:g}$": experiment({"batch_ratio": x}, y) for x in (0.3, 1.0, 4.0)}
    for y in (0.5, 4.0)
}
PANELS = {
    "(a) training loss": ("train_loss", DATA),
    "(b) test loss": ("test_loss", DATA),
    r"(c) fresh batches, $\nu = 0.5$": ("test_loss", FRESH[0.5]),
    r"(d) fresh batches, $\nu = 4$": ("test_loss", FRESH[4.0]),
}


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    sizes = ((120, 24), (240, 16)) if run.full else ((40, 32), (80, 16))
    _, panels = run.panels(2, 2, size=(8.0, 5.0))
    for panel, (title, (name, cases)) in zip(panels.flat, PANELS.items(), strict=True):
        for colour, (label, e) in zip(COLOURS, cases.items(), strict=False):
            theory, (found, wide) = run.solve(e, kernels="none"), run.networks(e, *sizes)
            panel.semilogy(theory.time, theory[name], color=colour, label=label)
            points(panel, wide.time, wide[name], wide[f"{name}_stderr"], colour, 10)
            run.compare(f"{title}, {label}", theory, found, name.replace("_", " "))
        panel.set(xlabel="step", title=title, ylim=(1e-2 if name == "train_loss" else 6e-2, 1.6))


if __name__ == "__main__":
    main(draw, ("10", "7 text", "13"))
