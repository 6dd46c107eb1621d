"""Averages that do not exist are refused before anything runs, and no others."""

from __future__ import annotations

from typing import Any

import pytest
from sympy import Abs, Expr, Function, Lambda, Max, Rational, Sum, Symbol, cosh, expand, sqrt, tan

import numerics
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    P,
    Population,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.averages.existence import singularities
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.activation import h, parse_activation
from tests.derive.once import mean_field, mlp

TRAINING = {"learning_rate": 0.1, "steps": 2}


def experiment(activation: str, depth: int = 1, **solver: Any) -> Experiment:
    tables = {"network": {"depth": depth, "activation": activation}, "training": TRAINING, "solver": solver}
    return Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])


@pytest.mark.parametrize(
    ("tenths", "shift", "outer"),
    [
        (3, 0, False),
        (5, -4, True),
        pytest.param(6, 3, False, marks=pytest.mark.slow),
        pytest.param(8, 0, True, marks=pytest.mark.slow),
        (12, 2, False),
    ],
)
def test_the_power_is_that_of_the_squared_slope(tenths: int, shift: int, outer: bool) -> None:
    """For ``|h - c|^a``, also around tanh, the power is ``2 a - 2``."""
    argument = f"tanh(h - {shift / 10})" if outer else f"h - {shift / 10}"
    found = singularities(mean_field(mlp(1, parse_activation(f"abs({argument})**{tenths / 10}"))))
    if tenths >= 10:
        assert not found
        return
    (kernel,) = found
    assert (kernel.name, kernel.field) == ("G", "h")
    assert kernel.at == pytest.approx(shift / 10, abs=1e-9)
    assert kernel.power == pytest.approx(2 - tenths / 5, abs=1e-3)
    assert kernel.has_mean == (tenths > 5)
    assert kernel.has_variance == (tenths > 7)


third = Rational(1, 3)


@pytest.mark.parametrize(
    ("function", "power"),
    [
        pytest.param(expand((h - third) ** 2) ** Rational(1, 4), 1, marks=pytest.mark.slow),
        pytest.param(expand((h - third) ** 4) ** Rational(3, 20), 0.8, marks=pytest.mark.slow),
        pytest.param(expand((h - third) ** 2 * (h**2 + 1)) ** Rational(1, 4), 1, marks=pytest.mark.slow),
        ((cosh(h - third) - 1) ** Rational(1, 4), 1),
        pytest.param(sqrt(Max(0, h - third)), 1, marks=pytest.mark.slow),
    ],
)
def test_zeros_without_a_change_of_sign_are_found(function: Expr, power: float) -> None:
    """Such a zero was found only where it lay on the grid of the search."""
    (kernel,) = singularities(mean_field(mlp(1, Lambda(h, function))))
    assert (kernel.name, kernel.at) == ("G", pytest.approx(1 / 3, abs=1e-9))
    assert kernel.power == pytest.approx(power, abs=1e-3)


def test_poles_of_trigonometric_functions_are_found() -> None:
    found = {x.name: x for x in singularities(mean_field(mlp(1, Lambda(h, tan(h)))))}
    assert [found[name].power for name in ("Phi", "G", "f")] == pytest.approx([2, 4, 1])


@pytest.mark.parametrize("method", ["auto", "direct"])
def test_a_kernel_without_a_value_is_refused(method: str) -> None:
    with pytest.raises(SpecError, match=r'"abs\(h\)\*\*0.5": G averages \|h\|\^-1, .* not exist') as refused:
        numerics.solve(experiment("abs(h)**0.5", method=method))
    assert refused.value.key == "network.activation"


def test_a_program_with_such_an_average_is_refused() -> None:
    """The singular function is a factor of the output, and has no name."""
    unit, pixels = Population("unit"), Population("input", given=True)
    x, w = GivenVector("x", pixels, "K_x"), GaussianVector("w", unit)
    b, U = Field("b", unit), GaussianMatrix("U", unit, pixels)
    f, y = Function("f"), Function("y")
    output = Mean(w.symbol * (1 + b(mu, t)) * Abs(b(mu, t)) ** Rational(1, 3)) / gamma0
    forward = {b(mu, t): U @ x(mu), f(mu, t): output}
    network = Network("factors", (b,), forward, weights=(U, w), given=(x,))
    program = network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
    numbers, arrays = {"eta": 0.1, "gamma0": 1.0}, {"K_x": [[1.0]], "y": [1.0]}
    with pytest.raises(SpecError, match="an average that does not exist"):
        numerics.solve(program, numbers=numbers, arrays=arrays, times=range(3))


def test_replicas_do_not_tell_an_error_that_is_infinite() -> None:
    found = numerics.solve(experiment("abs(h)**0.7", samples=512))
    assert "G averages |h|^-0.6, whose variance is infinite" in found.unknown_errors


@pytest.mark.parametrize("activation", ["relu", "abs", "tanh", "erf", "gelu", "h**2", "h**3", "abs(h)**1.5"])
def test_no_false_alarm(activation: str) -> None:
    assert not singularities(mean_field(mlp(2, parse_activation(activation))))


@pytest.mark.parametrize(("shift", "exists"), [(Rational(1, 10), True), (Rational(-1, 10), False)])
def test_a_variance_over_samples_is_not_negative(shift: Rational, exists: bool) -> None:
    """Normalisation over a batch was refused: 1/(variance + 1/10) has a pole at a negative variance."""
    unit, pixels = Population("unit"), Population("input", given=True)
    x, w = GivenVector("x", pixels, "K_x"), GaussianVector("w", unit)
    h, m, v, U = Field("h", unit), Field("m", unit), Field("v", unit), GaussianMatrix("U", unit, pixels)
    f, y = Function("f")(mu, t), Function("y")(mu)
    forward = {
        h(mu, t): U @ x(mu),
        m(t): Sum(h(mu, t), (mu, 1, P)) / P,
        v(t): Sum((h(mu, t) - m(t)) ** 2, (mu, 1, P)) / P,
        f: Mean(w.symbol * (h(mu, t) - m(t)) / (v(t) + shift)) / gamma0,
    }
    network = Network("batch", (h, m, v), forward, weights=(U, w), given=(x,))
    program = network.train((y - f) ** 2 / 2, GradientDescent(eta), together=True)
    theory = mean_field(program)
    assert (singularities(theory) == ()) is exists


def test_numbers_in_denominators_are_no_singularities() -> None:
    """A ratio of widths, gamma0 and an average are numbers: nothing is averaged over them."""
    unit, pixels = Population("unit", Symbol("r", positive=True)), Population("input", given=True)
    x, w = GivenVector("x", pixels, "K_x"), GaussianVector("w", unit)
    h, q, U = Field("h", unit), Field("q", unit), GaussianMatrix("U", unit, pixels)
    f, m, y = Function("f")(mu, t), Function("m")(mu, t), Function("y")(mu)
    forward = {
        h(mu, t): U @ x(mu),
        m: Mean(h(mu, t) ** 2),
        q(mu, t): h(mu, t) / m,
        f: Mean(w.symbol * q(mu, t)) / gamma0,
    }
    network = Network("numbers", (h, q), forward, weights=(U, w), given=(x,))
    theory = mean_field(network.train((y - f - f**3 / 3) ** 2 / 2, GradientDescent(eta)))
    assert theory.order_parameters
    assert not singularities(theory)
