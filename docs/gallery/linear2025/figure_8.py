"""The largest learning rate as a function of the width.

Lines are the derived law, and points are measured in the solved theory. In NTK scaling the rate grows with
the derived power nu^(L/(L + 1)), and not with the printed one. In mean-field scaling it does not depend on
the width.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, main

import derive
from derive.calculus.symbols import L, gamma0
from derive.program.networks.random_data import nu
from derive.scale import largest_rate
from numerics import Experiment
from numerics.analysis.limits import largest_rate as measured_rate

STRENGTH = 100.0


def derived(scaling: str) -> object:
    """Return the derived largest learning rate in one of both scalings."""
    return largest_rate(derive.isotropic(data="population", center=True, parametrization=scaling))


def measured(scaling: str, depth: int, ratio: float, start: float, steps: int, rtol: float) -> float:
    """Return the largest rate at which the loss of the solved theory never exceeds its start and vanishes."""
    e = Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": STRENGTH, "parametrization": scaling, "width_ratio": ratio},
            "data": {"kind": "isotropic"},
            "training": {"learning_rate": start, "steps": steps, "center": True},
        }
    )
    return measured_rate(e, rtol=rtol, rise=False, settle=True).value


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    depths, steps = (1, 2), (60, 80) if run.full else (40, 60)  # deeper ones need a larger gamma0
    rtol = 0.005 if run.full else 0.02
    ratios = np.geomspace(1, 1e3, 7 if run.full else 4)
    _, panels = run.panels(1, 2, sharey=True)
    for panel, scaling in zip(panels, ("ntk", "mean-field"), strict=True):
        form = run.kept(derived, scaling)
        for colour, depth, count in zip(COLOURS, depths, steps, strict=False):
            at = {L: depth, gamma0: STRENGTH}
            law = [float(form.rate.subs({**at, nu: x})) for x in ratios]
            found = [
                run.kept(measured, scaling, depth, float(x), (0.4 + 0.07 * k) * y, count, rtol)
                for k, (x, y) in enumerate(zip(ratios, law, strict=True))  # searches on grids of their own
            ]
            panel.loglog(ratios, law, color=colour, label=f"$L = {depth}$")
            panel.loglog(ratios, found, "o", color=colour, mfc="white")
            decade = list(ratios.round(9)).index(10.0)  # beyond it wide networks begin to be lazy
            power, power_error = np.log10(found[decade] / found[0]), 2 * rtol / np.log(10)
            said = f"{scaling}, L = {depth}: power of nu"
            expected = float(form.exponent.subs(L, depth))
            run.number(said, power, power_error, expected, alternative=0.0 if expected else 0.5)
            if scaling == "ntk":  # printed is the derived power of one layer less
                printed = float(form.exponent.subs(L, depth - 1))
                panel.loglog(ratios, law[0] * ratios**printed, ":", color=colour, linewidth=1)
                run.number(f"{said}, as printed", power, power_error, printed, rejects=True)
        panel.set(xlabel=r"$\nu = N/D$", title=f"{scaling} scaling")
    panels[0].set_ylabel("largest learning rate")
    panels[0].annotate("dotted: as printed", (0.04, 0.92), xycoords="axes fraction")


if __name__ == "__main__":
    main(draw, ("70", "70 text"))
