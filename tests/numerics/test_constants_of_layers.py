"""Constants with an index of the layer, which have values where the program uses them: layers 1 to L - 1."""

from __future__ import annotations

import numpy as np
import pytest
from sympy import Expr, Function, S, Symbol, tanh

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
    Population,
    Program,
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.experiment.schema import Solver

DEPTH = 3
layer, pixels = Population("layer"), Population("pixels", given=True)
x, h = GivenVector("x", pixels, "K_x"), Field("h", layer, layered=True)
U = GaussianMatrix("U", layer.at(1), pixels)
W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=IndexRange(ell, S.One, S(DEPTH - 1)))
w = GaussianVector("w", layer.at(DEPTH))
f, y, c = (Function(n) for n in "fyc")
ARRAYS = {"K_x": np.array([[1.0, 0.3], [0.3, 0.8]]), "y": np.array([0.8, -0.6])}


def trained(inside: Expr) -> Program:
    """Return a perceptron whose layers are W @ ``inside``."""
    lines = {h(1, mu, t): U @ x(mu), h(ell + 1, mu, t): W(ell) @ inside}
    lines[f(mu, t)] = Mean(w.symbol * tanh(h(DEPTH, mu, t))) / gamma0
    net = Network("constants of layers", (h,), lines, (U, W, w), given=(x,), depth=S(DEPTH))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def given(**arrays: list[float]) -> dict[str, object]:
    numbers = {"eta": 0.3, "gamma0": 1.0}
    return {"numbers": numbers, "arrays": {**ARRAYS, **arrays}, "times": range(3)}


FACTOR = Symbol("b", positive=True)


@pytest.mark.parametrize("command", [numerics.solve, numerics.simulate])
def test_an_array_of_layers_has_values_for_the_layers_of_the_matrix(command: object) -> None:
    """The theory asked for c(L), which no definition uses, and networks for an array without it."""
    solving = command is numerics.solve
    options = {"solver": Solver(samples=64, accuracy=0.9)} if solving else {"width": 8, "seeds": 2, "rng": 3}
    one = given()
    one["numbers"] = {**one["numbers"], "b": 0.7}
    same, expected = (
        command(trained(tanh(factor * h(ell, mu, t))), **numbers, **options)
        for factor, numbers in ((c(ell), given(c=[0.7, 0.7])), (FACTOR, one))
    )
    np.testing.assert_allclose(same["f"], expected["f"], rtol=1e-9, atol=1e-12)
    kernels = same["Phi"]
    assert np.isfinite(kernels.sel(layer=[1, 2])).all()
    assert np.isnan(kernels.sel(layer=3)).all()


def test_other_values_in_an_array_of_layers_give_other_outputs() -> None:
    options = {"solver": Solver(samples=64, accuracy=0.9)}
    program = trained(tanh(c(ell) * h(ell, mu, t)))
    one, other = (numerics.solve(program, **given(c=v), **options)["f"] for v in ([0.7, 0.7], [0.7, 1.4]))
    assert abs(one - other).max() > 0.05
