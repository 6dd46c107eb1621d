"""Losses of random data: the Gaussian part of an error is that of a sample that no update has met."""

from __future__ import annotations

from typing import Any

import pytest
from sympy import Function, S, Symbol, tanh

from derive.errors import NotApplicable, ProgramError
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    P,
    Parametrization,
    Population,
    eta,
    isotropic,
    mlp,
    mu,
    perceptron,
    structured,
    t,
)
from derive.program.networks.random_data import M
from derive.reduce.data import mode_sums
from tests.derive.once import mean_field

C_v, C_Delta, sigma = Function("C_v"), Function("C_Delta"), Symbol("sigma", positive=True)


def test_training_samples_have_met_updates_and_fresh_ones_have_not() -> None:
    found = mean_field(isotropic(noise=True)).losses()
    assert dict(found) == {"train_loss": C_Delta(t, t), "test_loss": sigma**2 + C_v(t, t)}


def test_of_fresh_batches_both_are_the_same() -> None:
    fresh = sigma**2 + C_v(t, t)
    assert dict(mean_field(isotropic(noise=True, data="online")).losses()) == {
        "train_loss": fresh,
        "test_loss": fresh,
    }


def test_each_output_has_its_own() -> None:
    c = Symbol("c", integer=True, positive=True)
    found = mean_field(isotropic(noise=True, outputs=2)).losses()["test_loss"]
    assert found == sigma**2 + C_v(c, c, t, t)


def test_given_samples_are_refused() -> None:
    with pytest.raises(NotApplicable, match="its samples are given"):
        mean_field(mlp(2)).losses()


def test_a_field_is_not_an_error_because_of_its_name() -> None:
    """The correlation of any field called v was returned as both losses."""
    units, inputs = Population("units"), Population("input", given=True)
    v, x, f, y = Field("v", units), GivenVector("x", inputs, "K_x"), Function("f"), Function("y")
    W, w = GaussianMatrix("W", units, inputs), GaussianVector("w", units)
    forward = {v(mu, t): W @ x(mu), f(mu, t): Mean(w.symbol * tanh(v(mu, t)))}
    network = Network("own", (v,), forward, (W, w), given=(x,), ranges=(IndexRange(mu, 1, P),))
    program = network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
    assert "v" in {e.name for e in mean_field(program).equations}
    with pytest.raises(NotApplicable, match="its samples are given"):
        mean_field(program).losses()
    with pytest.raises(NotApplicable, match="not the mean square of one vector"):
        mean_field(perceptron()).losses()  # its v are weights, and its Delta is a gradient


def test_errors_have_any_name() -> None:
    features, samples, scale = Population("features"), Population("samples", ratio=2), Symbol("rho")
    gap, misfit = Field("gap", features), Field("misfit", samples)
    Z, w = GaussianMatrix("Z", samples, features), GaussianVector("w", features)
    star = GaussianVector("star", features)
    forward = {gap(t): star.symbol - w.symbol, misfit(t): scale * (Z @ gap(t))}
    network = Network("regression", (gap, misfit), forward, (w,), (Z, star))
    named = {gap(t): "C_gap", misfit(t): "C_misfit"}
    rule = GradientDescent(eta), Parametrization(S.One)
    program = network.train(Mean(misfit(t) ** 2) / 2, *rule, notation=named)
    assert dict(mean_field(program).losses()) == {
        "train_loss": Function("C_misfit")(t, t),
        "test_loss": scale**2 * Function("C_gap")(t, t),
    }


def test_the_loss_of_a_population_of_modes_is_a_sum_over_them() -> None:
    """The average over modes was returned in place of their sum, M times as large."""
    theory = mean_field(structured(1, data="population"))
    assert theory.losses()["test_loss"] == M * C_v(t, t)
    assert mode_sums(theory).losses()["test_loss"] == C_v(t, t)


@pytest.mark.parametrize("noise", ["sigma", None, -1, True])
def test_noise_that_is_no_standard_deviation_is_refused(noise: Any) -> None:
    with pytest.raises(ProgramError, match=r"noise = .*: must be a number"):
        mean_field(isotropic(2, data="population")).losses(noise)
