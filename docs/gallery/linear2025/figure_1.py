"""Width and depth of a linear network on isotropic data.

Wider networks learn faster in both scalings, and the widths differ more in mean-field scaling. In NTK scaling
wide networks become lazy. Networks of one, two, four and six hidden layers are compared with the theory.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from gallery import COLOURS, Run, main, points

from numerics import Experiment

BASE = Experiment.from_dict(
    {
        "network": {"depth": 4, "gamma0": 1.0, "width_ratio": 1.0},
        "data": {"kind": "isotropic"},
        "training": {"learning_rate": 0.02, "steps": 60, "center": True},
    }
)
PANELS = {
    "NTK scaling, L = 4": [
        ({"network.parametrization": "ntk", "network.width_ratio": x}, rf"$\nu = {x:g}$")
        for x in (0.5, 1.0, 4.0)
    ],
    r"mean-field scaling, L = 4": [({"network.width_ratio": x}, rf"$\nu = {x:g}$") for x in (0.5, 1.0, 4.0)],
    r"depth, $\nu = 1$": [({"network.depth": x}, f"$L = {x}$") for x in (1, 2, 6)],
}


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    sizes = ((128, 32), (256, 32)) if run.full else ((40, 48), (80, 32))
    _, panels = run.panels(1, 3, sharey=True)
    for panel, (title, cases) in zip(panels, PANELS.items(), strict=True):
        for colour, (change, label) in zip(COLOURS, cases, strict=False):
            e = BASE.replace(change)
            theory, (found, wide) = run.solve(e, kernels="none"), run.networks(e, *sizes)
            panel.semilogy(theory.time, theory.test_loss, color=colour, label=label)
            points(panel, wide.time, wide.test_loss, wide.test_loss_stderr, colour, 6)
            run.compare(f"{title}, {label}".replace("$", "").replace("\\", ""), theory, found)
        panel.set(xlabel="step", title=title)
    panels[0].set(ylabel="test loss", ylim=(3e-3, 1.6))


if __name__ == "__main__":
    main(draw, ("14 text",))
