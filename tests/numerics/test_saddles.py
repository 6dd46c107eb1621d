"""Symmetric saddles: found from the shifted theory, with the growth that networks leave them by."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Function

import numerics
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
    eta,
    gamma0,
    mlp,
    mu,
    t,
)
from derive.program.networks import attention
from numerics.experiment.schema import Solver
from numerics.saddles import growth, stays
from tests.numerics.networks.attention import LABELS, SEQUENCES, kernel

TIMES = np.arange(41.0)


def of_numbers(values: Any) -> xr.Dataset:
    return xr.Dataset({"m": ("time", values)}, {"time": TIMES})


@pytest.mark.parametrize("factor", [1.1, 1.3])
def test_growth_is_that_of_an_exponential(factor: float) -> None:
    found = growth(of_numbers(0 * TIMES), of_numbers(1e-5 * factor**TIMES))
    assert found is not None
    assert abs(found - factor) < 1e-9


@pytest.mark.parametrize("power", [0, 1, 2, 4])
def test_powers_of_the_time_are_no_growth(power: int) -> None:
    assert growth(of_numbers(0 * TIMES), of_numbers(1e-5 * (1 + TIMES) ** power)) is None


def test_a_decay_is_no_growth() -> None:
    assert growth(of_numbers(0 * TIMES), of_numbers(1e-5 * 0.9**TIMES)) is None


def test_losses_that_move_or_vanish_do_not_stay() -> None:
    losses = {"still": 1 + 0 * TIMES, "moves": 1 - 0.001 * TIMES, "zero": 0 * TIMES}
    sets = {k: xr.Dataset({"train_loss": ("time", x)}, {"time": TIMES}) for k, x in losses.items()}
    assert {k: stays(x) for k, x in sets.items()} == {"still": True, "moves": False, "zero": False}


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
