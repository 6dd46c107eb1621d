"""Rates, variances and correlations that cannot be are refused when a rule or a weight is made."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sympy import Function, I, Matrix, S, Symbol, nan, oo

from derive.errors import ProgramError
from derive.program import (
    GaussianMatrix,
    GaussianVector,
    Gradient,
    GradientDescent,
    GradientFlow,
    LinearRule,
    Momentum,
    MomentumFlow,
    Multistep,
    Parametrization,
    Population,
    depth_program,
    eta,
    isotropic,
    mlp,
    network,
    perceptron,
    t,
    training_rule,
)

units, lam = Population("units"), Symbol("lam")


def matrix(**options: Any) -> GaussianMatrix:
    return GaussianMatrix("J", units, units, **options)


WRONG: dict[str, Callable[[], Any]] = {
    "diffusion of GradientDescent = -1/10: must be a number >= 0": lambda: GradientDescent(
        eta, diffusion=-0.1
    ),
    "rate of GradientDescent = I*eta: must be a number >= 0": lambda: GradientDescent(I * eta),
    "rate of GradientDescent = nan: must be a number >= 0": lambda: GradientDescent(float("nan")),
    "rate of GradientDescent = oo: must be a number >= 0": lambda: GradientDescent(oo),
    "rate of GradientDescent = -eta: must be a number >= 0": lambda: GradientDescent(-eta),
    "decay of GradientFlow = -1/2: must be a number >= 0": lambda: GradientFlow(decay=-0.5),
    "momentum of Momentum = 6/5: must be a number >= 0 and < 1": lambda: Momentum(eta, 1.2),
    "momentum of MomentumFlow = 0: must be a positive number": lambda: MomentumFlow(0),
    "b of LinearRule = I: must be a real number": lambda: LinearRule(Matrix([[1]]), Matrix([I])),
    "diffusion of LinearRule = -1: must be a number >= 0": lambda: LinearRule(1, 1, -1),
    "GaussianMatrix J: symmetry = 2: must be a number from -1 to 1": lambda: matrix(symmetry=2),
    "GaussianMatrix J: variance = -1: must be a number >= 0": lambda: matrix(variance=-1),
    "GaussianVector v: variance = nan: must be a number >= 0": lambda: GaussianVector("v", units, nan),
    "Population a: ratio = 0: must be a positive number": lambda: Population("a", ratio=0),
    "rates['W'] = nan: must be a real number": lambda: Parametrization(rates={"W": nan}),
    "scale of the parametrization = 0: must be a real number other than 0": lambda: Parametrization(0),
    "rate of Multistep = -1: must be a number >= 0": lambda: Multistep(rate=-1),
    "diffusion of Multistep = nan: must be a number >= 0": lambda: Multistep(diffusion=nan),
    "normal of the gradient g = 0: must be a real number other than 0": lambda: Gradient("g", normal=S.Zero),
    "noise = -1: must be a number >= 0": lambda: isotropic(2, noise=-1),
    "branch = I: must be a real number other than 0": lambda: mlp(2, branch=I),
    "signal = nan: must be a number >= 0": lambda: perceptron("mixture", signal=nan),
    "loss = -1: must be one of squared, logistic, or a function of h and y": lambda: perceptron(loss=-1),
    "outputs = nan: must be a real number": lambda: mlp(2, outputs=nan),
    "alpha = oo: must be a real number": lambda: depth_program(alpha=oo),
    "rule = -1: must be 'gd', 'flow', 'multistep', or one of sign, adam, adamw, rmsprop, lion": lambda: (
        training_rule(-1)
    ),
    "samples = 0: must be a positive number": lambda: training_rule(samples=0),
    "backward = -1: must be 'transposed', 'fixed' or 'independent'": lambda: network(2, backward=-1),
    "fan_in['W'] = -1: must be a positive number": lambda: Parametrization(fan_in={"W": -1}),
}


@pytest.mark.parametrize("told", WRONG)
def test_constants_that_cannot_be_are_refused_where_they_are_written(told: str) -> None:
    with pytest.raises(ProgramError) as refusal:
        WRONG[told]()
    assert str(refusal.value) == told


def test_symbols_and_schedules_may_have_any_sign() -> None:
    """A decay above one turns the sign of a weight, and ``rates`` may go up the loss."""
    assert GradientDescent(lam, decay=1.5, diffusion=lam - 1).rate == lam
    assert Momentum(Function("eta")(t), lam).momentum == lam
    assert matrix(symmetry=lam, variance=0).symmetry == lam
    assert Parametrization(rates={"W": -1}).rate_of("W") == -1
    assert Parametrization(-1, rate=-1).scale == -1
    assert mlp(2, branch=-1).name == mlp(2, branch=1).name
