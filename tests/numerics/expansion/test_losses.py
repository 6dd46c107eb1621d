"""The expansion of networks that descend another loss than the square."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from sympy import Function, Symbol, exp, symbols

from derive import expand as expand_in
from derive import gamma0
from derive.errors import NotApplicable
from derive.expansion.errors import ErrorLaw
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
    mu,
    t,
)
from numerics import expand, simulate, solve
from numerics.errors import SpecError
from numerics.expansion import evaluated_at
from numerics.expansion.orders import partial_sum
from numerics.experiment import Experiment
from tests.derive.once import mean_field, mlp

RNG = np.random.default_rng(3)
X, OTHER = RNG.standard_normal((2, 5)) / 2, RNG.standard_normal((1, 5)) / 2
Y = np.array([1.0, -1.0])


def experiment(strength: float, **network: object) -> Experiment:
    tables = {
        "network": {"depth": 2, "gamma0": strength, **network},
        "training": {"learning_rate": 0.8, "steps": 4, "objective": "logistic"},
        "solver": {"accuracy": 1e-8},
    }
    if "activation" in network:
        return Experiment.from_dict(tables, inputs=X[:1], targets=Y[:1])
    return Experiment.from_dict(tables, inputs=X, targets=Y, test_inputs=OTHER, test_targets=Y[:1])


@pytest.mark.parametrize(
    "network", [{}, pytest.param({"depth": 1, "activation": "tanh"}, marks=pytest.mark.slow)], ids=str
)
def test_what_the_series_misses_falls_as_the_next_power(network: dict[str, object]) -> None:
    """From gamma0 = 0.2 to 0.1, gamma0^4 falls by 16: of losses, errors and kernels, and on a test point."""
    series = expand(experiment(1.0, **network), 2)
    missed: dict[str, list[float]] = {}
    for strength in (0.2, 0.1):
        full, sum_ = solve(experiment(strength, **network)), partial_sum(series, strength)
        for name in {"train_loss", "error", "Phi", "G", "tangent_kernel", "test_f", "test_loss"} & {*sum_}:
            missed.setdefault(name, []).append(float(np.abs(full[name] - sum_[name]).max()))
    assert {"train_loss", "error", "tangent_kernel"} <= {*missed}
    for name, (large, small) in missed.items():
        assert np.log2(large / small) == pytest.approx(4, abs=0.2), name


def test_the_error_at_each_order_is_that_of_the_composed_series() -> None:
    """SymPy's series of minus the slope of the loss at f_0 + f_1 g + f_2 g^2 + f_3 g^3 is the expectation."""
    law = ErrorLaw.of(mean_field(mlp(2, objective="logistic")))
    f, g, y = symbols("f_0:4"), Symbol("g"), Symbol("y")
    slope = y / (1 + exp(y * sum(x * g**k for k, x in enumerate(f))))
    target = next(x for x in law.body.atoms(Function("y")(Symbol("mu")).func))
    numbers = {y: 0.7, f[0]: 0.3, f[1]: -0.5, f[2]: 1.1, f[3]: 0.2}
    for n in range(4):
        expected = (slope.diff(g, n).subs(g, 0) / [1, 1, 2, 6][n]).subs(numbers)
        assert float(law.order(f[: n + 1]).subs({target: 0.7}).subs(numbers)) == pytest.approx(
            float(expected)
        )


def test_the_printed_error_is_minus_the_slope_of_the_loss() -> None:
    text = expand_in(mean_field(mlp(2, objective="logistic")), gamma0, 2).render("text")
    assert "Δ^(0)_μ(t) = (e^{y_μ f^(0)_μ(t)} + 1)⁻¹ y_μ" in text
    assert "f^(0)_μ(t) = 3 Σ_β K^x_μβ v_β(t)" in text
    assert "Δ^(0)_μ(t) = ρ_μ y_μ - ρ_μ f^(0)_μ(t)" in expand_in(
        mean_field(mlp(2, sample_weights=True)), gamma0, 0
    ).render("text")


def test_an_error_that_jumps_has_no_series_beyond_order_zero() -> None:
    own = experiment(0.5).replace({"training.objective": "hinge"})
    lazy = solve(own.replace({"network.gamma0": 1e-6}))
    assert expand(own, 0).train_loss.values[0] == pytest.approx(lazy.train_loss.values, abs=1e-9)
    with pytest.raises(SpecError, match="with respect to the output jumps") as refused:
        expand(own, 2)
    assert refused.value.key == "training.objective"
    with pytest.raises(NotApplicable, match="jumps"):
        ErrorLaw.of(mean_field(mlp(2, objective="hinge"))).slope(1)


def test_a_truncated_series_below_zero_is_noted():
    """A loss of -0.4 was printed without a word where the series is cut far from where it holds."""
    tables = {"network": {"depth": 1}, "training": {"learning_rate": 0.2, "steps": 10}}
    e = Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0])
    for strength, noted in ((0.1, False), (3.0, True)):
        found = evaluated_at(e.replace({"network.gamma0": strength}), 2)
        total = found.train_loss[0] + strength**2 * found.train_loss[1]
        assert bool((total < 0).any()) == noted
        assert ("note" in found.attrs) == noted
    first = float(found.time[int(np.argmax(total.values < 0))])
    assert f"order 2 is below zero at gamma0 = 3 from t = {first:g} on" in found.attrs["note"]


def own(power: int) -> Program:
    """Return one linear layer with a user's loss, in which samples have weights."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, a = GivenVector("x", pixels, "K_x"), Field("h", units)
    W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units)
    f, y = Function("f"), Function("y")
    forward = {a(mu, t): W @ x(mu), f(mu, t): Mean(w.symbol * a(mu, t)) / gamma0}
    net = Network("own", (a,), forward, weights=(W, w), given=(x,))
    return net.train(mu * (y(mu) - f(mu, t)) ** power / power, GradientDescent(eta))


def test_a_sample_that_counts_by_its_number_is_expanded_and_simulated() -> None:
    given = {"arrays": {"K_x": X @ X.T, "y": Y}, "times": range(4)}
    series = expand(own(2), 2, numbers={"eta": 0.03, "gamma0": 1.0}, **given)
    missed = []
    for strength in (0.2, 0.1):
        full = solve(own(2), numbers={"eta": 0.03, "gamma0": strength}, **given)
        missed.append(float(np.abs(full.error - partial_sum(series, strength).error).max()))
    assert missed[0] / missed[1] == pytest.approx(16, rel=0.2)
    networks = simulate(own(2), width=30, seeds=2, numbers={"eta": 0.03, "gamma0": 1.0}, **given)
    assert np.sign(networks.error[0]).values.tolist() == [1.0, -1.0]


def test_powers_of_the_output_come_from_solutions() -> None:
    """The theory of each order does not have all of them."""
    given = {"arrays": {"K_x": X @ X.T, "y": Y}, "times": range(4)}
    series = expand(own(4), 2, numbers={"eta": 0.03, "gamma0": 1.0}, **given)
    assert "solutions" in series.attrs["method"]
    missed = []
    for strength in (0.2, 0.1):
        full = solve(own(4), numbers={"eta": 0.03, "gamma0": strength}, **given)
        missed.append(float(np.abs(full.error - partial_sum(series, strength).error).max()))
    assert missed[0] / missed[1] == pytest.approx(16, rel=0.2)


def test_the_square_error_of_an_activation_with_a_kink_has_the_orders_of_the_loss() -> None:
    """The result has it beside a loss that is not half of the square, and the expansion raised KeyError."""
    given = {"arrays": {"K_x": X @ X.T, "y": Y}, "times": range(3)}
    plain = mlp(1, "relu")
    series = expand(replace(plain, loss=2 * plain.loss), 1, numbers={"eta": 0.4, "gamma0": 1.0}, **given)
    np.testing.assert_allclose(series.mean_square_error, series.train_loss, rtol=1e-12)
    assert series.mean_square_error.attrs["known_to_order"] == 1


@pytest.mark.slow
def test_solutions_of_one_linear_layer_have_the_series_of_its_family() -> None:
    given = {"arrays": {"K_x": X @ X.T, "y": Y}, "times": range(3)}
    numbers = {"eta": 0.4, "gamma0": 1.0}
    one = expand(mlp(1, objective="logistic"), 2, numbers=numbers, **given)
    family = expand(mlp(objective="logistic"), 2, numbers={**numbers, "L": 1}, **given)
    assert "solutions" in one.attrs["method"]
    for name in ("error", "train_loss"):
        np.testing.assert_allclose(one[name], family[name], rtol=1e-5, atol=1e-9)


@pytest.mark.slow
def test_one_linear_layer_has_the_series_of_its_family() -> None:
    """A program at symbolic depth with one layer has the series of a file."""
    tables = {
        "network": {"depth": 1},
        "training": {"learning_rate": 0.8, "steps": 2, "objective": "logistic"},
    }
    kernel = X @ X.T
    file = expand(Experiment.from_dict(tables, kernel=kernel, targets=Y), 2)
    numbers, arrays = {"eta": 0.4, "gamma0": 1.0}, {"K_x": kernel, "y": Y}  # the file's loss is a mean
    family = mlp(objective="logistic")
    found = expand(family, 2, numbers=numbers | {"L": 1}, arrays=arrays, times=range(3))
    for name in ("error", "train_loss", "Phi", "G"):
        np.testing.assert_allclose(found[name], file[name], rtol=1e-9, atol=1e-12)
