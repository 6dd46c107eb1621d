"""One hidden layer on whitened data.

Inputs are orthogonal: their kernel is the identity. The error solves one differential equation. Its solution
is an exponential at small gamma0, and approaches a logistic sigmoid at large gamma0.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import numpy as np
from gallery import COLOURS, Run, averaged, main, points
from scipy.integrate import solve_ivp
from sympy import Function, Sum, lambdify

from derive import gamma0, mean_field, mlp, two_layer, whitened
from derive.program import ell, mu, t
from derive.reduce.whitened import norm
from numerics.simulation import simulate_program

TIMES, SIZE = np.linspace(0, 4, 81), 10


def solution(strength: float) -> tuple:
    """Return the error and the kernel along the targets from the integrated derived equation."""
    reduced = whitened(two_layer(mean_field(mlp(1, rule="flow"))))
    letters = Function("Delta")(t), gamma0, norm
    rate = lambdify(letters, reduced.error.rhs)
    kernel = lambdify(letters, next(e.rhs for e in reduced.eliminated if "H" in str(e.lhs)))
    found = solve_ivp(lambda _, d: rate(d, strength, 1.0), (0, 4), [1.0], t_eval=TIMES, rtol=1e-9, atol=1e-12)
    return found.y[0], kernel(found.y[0], strength, 1.0)


def trained(strength: float, width: int, seeds: int) -> tuple:
    """Return the same quantities of networks trained by gradient flow."""
    y = np.full(SIZE, SIZE**-0.5)
    along = Sum(Function("y")(mu) * Function("h")(ell, mu, t), (mu, 1, SIZE))
    found = simulate_program(
        mlp(1, rule="flow"),
        width=width,
        steps=20,
        times=TIMES[::4],
        dt=min(0.1, 0.2 / strength),
        seeds=seeds,
        seed=width,
        each=True,
        values={"eta": 1, "gamma0": strength, "P": SIZE},
        data={"x": np.sqrt(SIZE) * np.eye(SIZE), "y": y},
        wanted={"H_y": along},
    )
    return found.each["Delta"] @ y, np.einsum("ntt->nt", found.each["H_y"][:, 0])


def draw(run: Run) -> None:
    """Draw the panels of the figure and check its numbers."""
    width, seeds = (1000, 40) if run.full else (200, 40)
    _, panels = run.panels(1, 2)
    for colour, strength in zip(COLOURS, (0.1, 1.0, 3.0, 10.0), strict=False):
        ours, wide, half = (
            run.kept(solution, strength),
            *(run.kept(trained, strength, n, seeds) for n in (width, width // 2)),
        )
        for panel, curve, one, two, word in zip(panels, ours, wide, half, ("error", "kernel"), strict=True):
            (a, da), (b, db) = averaged(one), averaged(two)
            limit, bar = 2 * a - b, np.hypot(np.hypot(2 * da, db), 1e-8)
            panel.plot(TIMES, curve, color=colour, label=rf"$\gamma_0 = {strength:g}$")
            points(panel, TIMES[::4], a, da, colour)
            run.number(
                f"gamma0 = {strength:g}: {word} along the targets", limit, bar, curve[::4], dof=seeds - 1
            )
    panels[0].set(xlabel="$t$", title=r"error $\Delta(t)$ along the targets", ylim=(-0.05, 1.1))
    panels[1].set(xlabel="$t$", title="kernel $H_y(t)$ along the targets", yscale="log")


if __name__ == "__main__":
    main(draw, ("F.11", "F.14 text"))
