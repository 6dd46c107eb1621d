"""Linear programs whose outputs are divided by another scale than gamma0."""

from __future__ import annotations

import numpy as np
import pytest
from sympy import Expr, Function, S

import numerics
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    Parametrization,
    Population,
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.experiment.schema import Solver


@pytest.mark.parametrize("scale", [S.One, S(2)])
def test_responses_are_divided_by_the_scale_of_the_program(scale: Expr) -> None:
    """A linear network without gamma0 ended in "needs a number for gamma0"."""
    layer, pixels = Population("layer"), Population("input", given=True)
    f, y = Function("f"), Function("y")
    h, x = Field("h", layer, layered=True), GivenVector("x", pixels, "K_x")
    w = GaussianVector("w", layer.at(2))
    W0 = GaussianMatrix("W0", layer.at(1), pixels)
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, S.One, S.One))
    solved = []
    cases: list[tuple[Expr, dict[str, float]]] = [(scale, {}), (gamma0, {"gamma0": float(scale)})]
    for factor, numbers in cases:
        forward = {
            h(1, mu, t): W0 @ x(mu),
            h(ell + 1, mu, t): W(ell) @ h(ell, mu, t),
            f(mu, t): Mean(w.symbol * h(2, mu, t)) / factor,
        }
        network = Network("scaled", (h,), forward, (W0, W, w), given=(x,), depth=S(2))
        loss = (y(mu) - f(mu, t)) ** 2 / 2
        program = network.train(loss, GradientDescent(eta), parametrization=Parametrization(factor))
        solved.append(
            numerics.solve(
                program,
                numbers={"eta": 0.1, **numbers},
                arrays={"K_x": [[1.0]], "y": [1.0]},
                times=range(3),
                solver=Solver(method="march"),
            )
        )
    # The first update adds eta to the response of h to g in each layer; the second layer reads the first one.
    np.testing.assert_allclose(np.ravel(solved[0]["A"].isel(time=1, time_=0)), [0.1, 0.2])
    for name in ("f", "A", "B", "Phi", "G"):
        np.testing.assert_allclose(solved[0][name], solved[1][name], atol=1e-12)
