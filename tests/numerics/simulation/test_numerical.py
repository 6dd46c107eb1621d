"""Gradients found numerically, in place of those that programs derive: the same networks come out."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from sympy import Function, Rational, exp, log

from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Parametrization,
    Population,
    TrainedMatrix,
    eta,
    mu,
    t,
)
from numerics.simulation import simulate_program
from tests.derive.once import mlp

f, y = Function("f"), Function("y")
SQUARE = (y(mu) - f(mu, t)) ** 2 / 2
X = np.random.default_rng(1).standard_normal((3, 4))
Y = np.array([1.0, -0.5, 0.3])
SETUP = {
    "width": 6, "steps": 3, "seeds": 2, "data": {"x": X, "y": Y},
    "values": {"eta": 0.3, "gamma0": 1.2, "P": 3},
}  # fmt: skip
NAMES = ("f", "Delta")


def gap(program, loss=SQUARE, **options):
    derived = simulate_program(program, **SETUP)
    found = simulate_program(program, loss=loss, **SETUP, **options)
    return max(np.abs(derived[x].mean - found[x].mean).max() for x in NAMES)


@pytest.mark.parametrize(
    "program",
    [
        partial(mlp, 3),
        partial(mlp, 2, "tanh", bias=True),
        partial(mlp, 3, "erf", branch=0.6),
        partial(mlp, 1, "tanh"),
    ],
    ids=["linear", "biases", "branches", "one layer"],
)
def test_the_derived_updates_go_down_the_gradient(program):
    assert gap(program()) < 1e-7


def test_another_loss():
    """Logistic, of which the program derives the slope itself."""
    layer, given = Population("layer"), Population("input", given=True)
    x, h = GivenVector("x", given, "K_x"), Field("h", layer)
    W, w = GaussianMatrix("W", layer, given), GaussianVector("w", layer)
    forward = {h(mu, t): W @ x(mu), f(mu, t): Mean(w.symbol * h(mu, t))}
    loss = log(1 + exp(-y(mu) * f(mu, t)))
    p = Parametrization(Rational(1))
    program = Network("logistic", (h,), forward, weights=(W, w), given=(x,)).train(
        loss, GradientDescent(eta), p
    )
    assert gap(program, loss, parametrization=p) < 1e-7


@pytest.mark.parametrize("weight", ["W0", "W", "w"])
def test_a_wrong_update_is_seen(weight):
    """Twice the update of one weight."""
    program = mlp(2)

    def doubled(x):
        if x.name != weight:
            return x
        return replace(x, update=replace(x.update, coefficient=2 * x.update.coefficient))

    wrong = replace(
        program,
        matrices=tuple(doubled(m) if isinstance(m, TrainedMatrix) else m for m in program.matrices),
        vectors=tuple(map(doubled, program.vectors)),
    )
    assert gap(wrong) > 1e-3


def test_a_loss_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no number or field of the program"):
        simulate_program(mlp(1), loss=y(mu) ** 2, **SETUP)
