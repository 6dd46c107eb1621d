"""Approximations of the theory of a deep linear network.

The static kernel has features that stand still, the leading order is the expansion to gamma0^2, and
independent matrices are drawn anew for the backward pass. The right panel shows the cosine between kernels of
networks and of each theory. It is nearly the same for all at gamma0 = 0.2. At gamma0 = 1 each approximation
fails in the loss or in the trace of the last kernel.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, averaged, beyond, main, on_digits, points

import numerics
from derive import mlp
from derive.program import mu
from derive.reduce.independence import independent_backward
from numerics import Experiment
from numerics.analysis import ensembles
from numerics.expansion.orders import partial_sum
from numerics.experiment.problem import Problem
from numerics.paths import Paths
from numerics.simulation import simulate_program

STYLES = {"theory": "-", "leading order": "-.", "static kernel": ":", "independent matrices": "--"}


def independent(e: Experiment) -> object:
    """Return the solution of the theory with independent backward matrices."""
    return numerics.solve(Problem.of(e).varied(independent_backward))


def trained(e: Experiment, depth: int, gamma0: float, width: int, seeds: int) -> tuple:
    """Return the networks' losses, traces of kernels at equal times, and kernels of the end."""
    steps = int(e.training.steps)
    found = simulate_program(
        mlp(depth),
        width=width,
        steps=steps,
        seeds=seeds,
        seed=depth,
        each=True,
        values={"eta": e.effective_rate, "gamma0": gamma0, "P": len(e.targets)},
        data={"x": e.inputs, "y": e.targets},
        equal=mu,
        paths=Paths(times=(steps,)),
    )
    h = found.paths.h.isel(time=0).transpose("run", "layer", "sample", "unit").values
    return (
        (found.each["Delta"] ** 2).mean(-1),
        np.einsum("nlttm->nlt", found.each["H"]),
        h @ h.swapaxes(-1, -2) / width,
    )


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    depth, each, steps, width, seeds = (5, 10, 60, 1000, 4) if run.full else (3, 4, 30, 400, 32)
    strengths = (0.2, 0.5, 1.0, 1.5, 2.0) if run.full else (0.2, 1.0, 2.0)
    series = run.kept(numerics.expand, on_digits(depth, 1.0, each, steps, 0.4 / (depth + 1)), 2)
    _, panels = run.panels(1, 3)
    aligned = {name: [] for name in STYLES}
    for strength in strengths:
        e = on_digits(depth, strength, each, steps, 0.4 / (depth + 1))
        theories = {
            "theory": run.solve(e),
            "leading order": partial_sum(series, strength, 2),
            "static kernel": partial_sum(series, strength, 0),
            "independent matrices": run.kept(independent, e),
        }
        loss, traces, kernels = run.kept(trained, e, depth, strength, width, seeds)
        half = run.kept(trained, e, depth, strength, width // 2, seeds)
        trace, between = beyond(traces[:, -1, -1], half[1][:, -1, -1]), beyond(loss, half[0])
        for (name, theory), colour in zip(theories.items(), COLOURS, strict=False):
            Phi = np.einsum("lttmn->ltmn", theory.Phi.values)
            aligned[name].append(averaged(ensembles.cosine(Phi[:, -1], kernels).mean(-1)))
            if strength == 1.0:
                panels[0].semilogy(theory.time, (theory.error**2).mean("sample"), STYLES[name], color=colour)
                panels[1].plot(
                    theory.time, np.einsum("tmm->t", Phi[-1]), STYLES[name], color=colour, label=name
                )
                if name == "independent matrices":  # whose last layer moves much as it should
                    at = steps // 5
                    words, last = f"loss of networks after {at} steps", (between[0][at], between[1][at])
                    expected = (theory.error.values[at] ** 2).mean()
                else:
                    words, last = f"trace of the last H^{depth} of networks", trace
                    expected = float(np.trace(Phi[-1, -1]))
                words = f"gamma0 = 1: {words}, that of the {name}"
                run.number(words, *last, expected, dof=seeds - 1, rejects=name != "theory")
        if strength == 1.0:
            every = np.arange(steps + 1)
            points(panels[0], every, *averaged(loss), "black", steps // 10)
            points(panels[1], every, *averaged(traces[:, -1]), "black", steps // 10)
    for (name, rows), colour in zip(aligned.items(), COLOURS, strict=False):
        value, error = np.transpose(rows)
        panels[2].errorbar(strengths, value, error, color=colour, linestyle=STYLES[name])
    panels[0].set(xlabel="step", title=r"training loss, $\gamma_0 = 1$", ylim=(1e-3, 2))
    panels[1].set(xlabel="step", title=rf"$\sum_\mu H^{depth}_{{\mu\mu}}(t, t)$")
    panels[2].set(xlabel=r"$\gamma_0$", title="alignment with networks")


if __name__ == "__main__":
    main(draw, ("Figure 4 text", "16", "P.4"))
