"""Softmaxes of scores that exponentials overflow at: solutions and networks have the finite numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Expr, Function, Sum, Symbol, exp, lambdify, simplify, tanh

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
    eta,
    gamma0,
    mu,
    t,
)
from derive.theory import mean_field
from numerics.experiment.schema import Solver
from numerics.quotients import without_overflow
from numerics.solver.direct import evaluate

i, j, r = (Symbol(x, integer=True, positive=True) for x in "ijr")
SHARPNESS = Symbol("beta", positive=True)


def attention(shift: Expr) -> Program:
    """Return a softmax over two positions, of scores far from zero, written as exp(x)/Sum(exp(x))."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, a, h = GivenVector("x", pixels, "gram"), Field("a", units), Field("h", units)
    U, w = GaussianMatrix("U", units, pixels), GaussianVector("w", units)
    score, f, y = Function("score"), Function("f"), Function("y")
    weight = exp(score(mu, i, t)) / Sum(exp(score(mu, j, t)), (j, 1, 2))
    lines = {
        a(mu, i, t): U @ x(mu, i),
        score(mu, i, t): SHARPNESS * Mean(a(mu, i, t) ** 2) + shift,
        h(mu, t): Sum(a(mu, i, t) * weight, (i, 1, 2)),
        f(mu, t): Mean(w.symbol * tanh(h(mu, t))) / gamma0,
    }
    network = Network("net", (a, h), lines, weights=(U, w), given=(x,), ranges=(IndexRange(i, 1, 2),))
    return network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


GIVEN: dict[str, Any] = {
    "numbers": {"eta": 0.2, "gamma0": 1.0, "beta": 0.7},
    "arrays": {"gram": np.array([[1.0, 0.2], [0.2, 0.8]]).reshape(1, 2, 1, 2), "y": [1.0]},
    "times": range(2),
}


def test_evaluate_does_not_depend_on_a_shift_of_all_scores() -> None:
    """A softmax is the same for scores that are larger by 800, whose exponentials overflow."""
    near, far = (
        evaluate(
            mean_field(attention(shift)),
            steps=1,
            values={**GIVEN["numbers"], "P": 1},
            data={"gram": GIVEN["arrays"]["gram"], "y": [1.0]},
            samples=16,
            replicas=2,
        )
        for shift in (0, 800)
    )
    for place, value in near.values.items():
        if place[0] != "score":
            np.testing.assert_allclose(far.values[place], value, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("method", ["paths", "direct"])
def test_solutions_do_not_depend_on_a_shift_of_all_scores(method: str) -> None:
    near, far = (
        numerics.solve(attention(shift), solver=Solver(samples=32, method=method), **GIVEN)
        for shift in (0, 800)
    )
    np.testing.assert_allclose(far["error"], near["error"], rtol=1e-9)


def test_networks_do_not_depend_on_a_shift_of_all_scores() -> None:
    near, far = (numerics.simulate(attention(shift), width=8, seeds=2, rng=0, **GIVEN) for shift in (0, 800))
    np.testing.assert_allclose(far["error"], near["error"], rtol=1e-9)


def test_quotients_keep_their_value() -> None:
    """The forms that gradients of softmaxes have are equal, and finite where exponentials overflow."""
    a, b, c = (Symbol(x, real=True) for x in "abc")
    total, other = exp(a) + exp(b), 2 + exp(c)
    for e in (
        exp(a) / total,
        exp(a + b) / total**2,
        exp(a) * exp(b) / total**2,
        exp(a) * exp(c) / total / other,
        (a * exp(a) + b * exp(b)) * exp(a) / total**2,
        exp(2 * a) * c / total**3,
        exp(a) / (1 + exp(a)),
    ):
        new = without_overflow(e)
        assert simplify(new - e) == 0
        with np.errstate(over="ignore"):
            assert np.isfinite(
                lambdify((a, b, c), new, "numpy")(np.array([900.0, 850.0]), 880.0, 950.0)
            ).all()
