"""Symmetric saddles: found from the shifted theory, with the growth that networks leave them by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Function, Rational

import numerics
from derive import mean_field
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Population,
    Program,
    adamw,
    eta,
    gamma0,
    mlp,
    mu,
    t,
)
from derive.program.networks import attention
from derive.reduce.responses import without_responses
from numerics.experiment.schema import Solver
from numerics.results import Labelled
from numerics.saddles import growth_of, linear_times, stays
from tests.numerics.networks.attention import LABELS, SEQUENCES, kernel

TIMES = np.arange(41.0)


@pytest.mark.parametrize("factor", [1.1, 1.3])
@pytest.mark.parametrize("times", [TIMES, TIMES**2 / 40], ids=["even", "uneven"])
def test_growth_is_that_of_an_exponential(factor: float, times: np.ndarray) -> None:
    found = growth_of(1e-5 * factor**times, times)
    assert found is not None
    assert abs(found - factor) < 1e-9


@pytest.mark.parametrize("power", [0, 1, 2, 4])
@pytest.mark.parametrize("times", [TIMES, TIMES**2 / 40], ids=["even", "uneven"])
def test_powers_of_the_time_are_no_growth(power: int, times: np.ndarray) -> None:
    assert growth_of(1e-5 * (1 + times) ** power, times) is None


def test_a_saturating_perturbation_is_linear_at_first() -> None:
    """The function tanh deviates from its argument by a tenth at 0.58, which 1e-5 exp(t) reaches at 11."""
    exact = np.exp(TIMES)[None]
    large, small = np.tanh(1e-5 * exact), np.tanh(1e-25 * exact)
    assert linear_times(large, small, 1e20) == 11
    assert growth_of(large[0, :11], TIMES[:11]) is not None


def test_a_decay_is_no_growth() -> None:
    assert growth_of(1e-5 * 0.9**TIMES, TIMES) is None


def test_losses_that_move_or_vanish_do_not_stay() -> None:
    losses = {"still": 1 + 0 * TIMES, "moves": 1 - 0.001 * TIMES, "zero": 0 * TIMES}
    variables = {k: {"train_loss": Labelled(("time",), x)} for k, x in losses.items()}
    assert {k: stays(x) for k, x in variables.items()} == {"still": True, "moves": False, "zero": False}


def product_of_means() -> Program:
    """Return an output that is a product of two averages.

    They grow by 1 + 2 eta in a step from their saddle.
    """
    units, inputs = Population("units"), Population("input", given=True)
    x, h = GivenVector("x", inputs, "K_x"), Field("h", units)
    W, a, b = GaussianMatrix("W", units, inputs), GaussianVector("a", units), GaussianVector("b", units)
    f, y = Function("f"), Function("y")
    forward = {
        h(mu, t): W @ x(mu),
        f(mu, t): Mean(a.symbol * h(mu, t)) * Mean(b.symbol * h(mu, t)) / gamma0**2,
    }
    net = Network("product of two means", (h,), forward, weights=(W, a, b), given=(x,))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


@pytest.mark.slow
@pytest.mark.parametrize("rate", [0.1, 0.2])
def test_a_saddle_is_told_with_its_growth(rate: float) -> None:
    given: dict[str, Any] = {"numbers": {"eta": rate, "gamma0": 1.0}, "times": range(25)}
    found = numerics.solve(product_of_means(), arrays={"K_x": [[1.0]], "y": [1.0]}, **given)
    assert "symmetric saddle: finite networks leave it" in found.attrs["saddle"]
    assert abs(found.attrs["saddle_growth"] - (1 + 2 * rate)) < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("steps", [25, 60])
def test_a_perturbation_may_leave_the_linear_order(steps: int) -> None:
    """At a growth of 2 in a step even the smallest shift is of order one after 40 steps."""
    given: dict[str, Any] = {"numbers": {"eta": 0.5, "gamma0": 1.0}, "times": range(steps)}
    found = numerics.solve(product_of_means(), arrays={"K_x": [[1.0]], "y": [1.0]}, **given)
    assert abs(found.attrs["saddle_growth"] - 2) < 0.02


@pytest.mark.slow
def test_the_saddle_of_adam_has_a_note() -> None:
    """Its perturbations grow by six orders in twenty steps, out of the linear order of the first shift."""
    rule = adamw(Rational(1, 20), 0, beta2=Rational(95, 100), epsilon=Rational(1, 10))
    program = attention(1, None, rule, normalisation="none")
    arrays = {"x": SEQUENCES * 3**0.5, "y": LABELS}
    numbers, solver = {"gamma0": 2.0}, Solver(samples=2**6)
    found = numerics.solve(program, numbers=numbers, arrays=arrays, times=range(21), solver=solver)
    assert np.allclose(found.train_loss, 1, atol=1e-9)
    assert 1.3 < found.attrs["saddle_growth"] < 2.5


def test_a_saddle_without_a_program_has_a_reason() -> None:
    """The perturbation needs a program; a theory that was changed has none."""
    changed = without_responses(mean_field(mlp(2, "tanh")))
    given: dict[str, Any] = {"numbers": {"eta": 1e-13, "gamma0": 1.0}, "times": range(13)}
    found = numerics.solve(changed, arrays={"K_x": [[1.0]], "y": [1.0]}, solver=Solver(samples=64), **given)
    assert "is not known, because a changed theory has no program" in found.attrs["saddle"]


@pytest.mark.slow
def test_small_steps_are_no_saddle() -> None:
    given: dict[str, Any] = {"numbers": {"eta": 1e-13, "gamma0": 1.0}, "times": range(25)}
    found = numerics.solve(mlp(1, "tanh"), arrays={"K_x": [[1.0]], "y": [1.0]}, **given)
    assert stays(found)
    assert "saddle" not in found.attrs


@pytest.mark.slow
def test_networks_of_attention_leave_their_saddle_in_log_n_steps() -> None:
    """Steps to half of the loss grow with log N as in the theory, in networks of 32 to 512 units."""
    program = attention(1, None, normalisation="none")
    given: dict[str, Any] = {
        "numbers": {"eta": 0.02, "gamma0": 2.0},
        "arrays": {"K_x": kernel(SEQUENCES), "y": LABELS},
        "times": range(51),
    }
    found = numerics.solve(program, solver=Solver(samples=2**7), **given)
    assert np.allclose(found.train_loss, 1, atol=1e-9)
    slope = 1 / (2 * np.log(found.attrs["saddle_growth"]))
    widths, count = np.array([32, 128, 512]), 6
    steps = np.array([[half(program, int(N), seed, given) for seed in range(count)] for N in widths])
    fits = np.array([np.polyfit(np.log(widths), x, 1)[0] for x in steps.T])
    error = fits.std(ddof=1) / np.sqrt(count)
    assert error < 0.3 * slope
    assert abs(fits.mean() - slope) < 4 * error


def half(program: Program, width: int, seed: int, given: dict[str, Any]) -> float:
    """Return the step at which the mean loss of five networks is half of its initial value."""
    found = numerics.simulate(program, width=width, seeds=5, rng=seed, kernels="none", **given)
    loss = found.train_loss.values
    first = int(np.argmax(loss < 0.5))
    return float(first - (0.5 - loss[first]) / (loss[first - 1] - loss[first]))
