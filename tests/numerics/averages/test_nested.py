"""Averages of functions that bend elsewhere than at zero."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import simpson
from scipy.stats import multivariate_normal, norm
from sympy import Abs, Expr, Heaviside, Max, exp, lambdify, symbols, tanh

from numerics.averages import average, tensor
from numerics.averages.kink_quadrature import KinkedFunction, nested
from numerics.errors import NotConverged, Unserved
from tests.chance import excess

u = symbols("u", real=True)
K = np.array([[1.0, 0.4, -0.2, 0.3], [0.4, 0.8, 0.1, 0.0], [-0.2, 0.1, 1.3, 0.5], [0.3, 0.0, 0.5, 0.9]])


def kinked(e: Expr, *kinks: float) -> KinkedFunction:
    function = lambdify(u, e, "numpy")
    return KinkedFunction(lambda x: np.asarray(function(x)) + 0 * x, kinks)


def test_kinks_at_zero_are_known() -> None:
    """Orthants give the same."""
    fs = [Max(0, u), Heaviside(u), Abs(u), Heaviside(u)]
    exact = tensor(fs, K).value
    for count, at in ((3, (0, 1, 2)), (4, (0, 1, 2, 3))):
        chosen = [kinked(f, 0.0) for f in fs[:count]] if count == 3 else [kinked(f, 0.0) for f in fs]
        reference = exact[at] if count == 4 else tensor(fs[:3], K).value[at]
        value, error = nested(chosen, K[:count, :count], 1e-8)
        assert abs(value - reference) < 1e-8
        assert error < 1e-8


def test_a_corner_away_from_zero() -> None:
    """Three numbers above thresholds, by the distribution function of Genz."""
    fs = [Heaviside(u - 1), Heaviside(u + 1 / 2), Heaviside(u)]
    value, _ = nested([kinked(f, c) for f, c in zip(fs, (1.0, -0.5, 0.0), strict=True)], K[:3, :3], 1e-9)
    genz = multivariate_normal(np.zeros(3), K[:3, :3], seed=1)
    genz.abseps, genz.releps, genz.maxpts = 1e-10, 1e-10, 2_000_000
    assert abs(value - genz.cdf(np.array([-1.0, 0.5, 0.0]))) < 2e-6


def test_tensors_of_other_kinks() -> None:
    """Against sampling, and against the average of one body."""
    fs = [Abs(u - 1), Max(0, u) + tanh(u), Heaviside(u - 1)]
    small = K[:2, :2]
    found = tensor(fs, small, 1e-8)
    assert found.method == "panels"
    count = 10_000
    x = np.random.default_rng(0).normal(size=(count, 2)) @ np.linalg.cholesky(small).T
    values = [np.abs(x - 1), np.maximum(x, 0) + np.tanh(x), (x > 1) * 1.0]
    z = []
    for at in np.ndindex(2, 2, 2):
        sample = values[0][:, at[0]] * values[1][:, at[1]] * values[2][:, at[2]]
        z.append((found.value[at] - sample.mean()) / sample.std() * np.sqrt(count))
    assert excess(z) < 1
    a, b = symbols("a b", real=True)
    body = Abs(a - 1) * (Max(0, b) + tanh(b)) * Heaviside(a - 1)
    single = average(body, (a, b), small, 1e-9)
    assert abs(single.value - found.value[0, 1, 0]) < 1e-8


@pytest.mark.slow
def test_dependent_numbers_are_refused() -> None:
    step = kinked(Heaviside(u - 1), 1.0)
    with pytest.raises(Unserved, match="combinations of 1 independent"):
        nested([step] * 3, np.ones((3, 3)), 1e-8)
    close = np.full((3, 3), 1 - 1e-9) + 1e-9 * np.eye(3)
    with pytest.raises(NotConverged):
        nested([step] * 3, close, 1e-10)


def test_growth_is_reached() -> None:
    """exp(2 u) moves the point of largest weight: <exp(2 u) F(v, w)> = exp(2 <u u>) <F> at means 2 <u .>."""
    fs = [kinked(exp(2 * u)), kinked(Heaviside(u - 1), 1.0), kinked(Heaviside(u), 0.0)]
    value, _ = nested(fs, K[:3, :3], 1e-8)
    genz = multivariate_normal(-2 * K[0, 1:3], K[1:3, 1:3])
    genz.abseps, genz.releps = 1e-10, 1e-10
    assert abs(value / np.exp(2 * K[0, 0]) / genz.cdf(np.array([-1.0, 0.0])) - 1) < 1e-7


@pytest.mark.parametrize("growth", [2, 9, 12])
def test_one_variable_that_grows(growth: int) -> None:
    """<exp(a u) f(u)> = exp(a^2/2) <f(u + a)>: the largest weight is at a standard deviations."""
    found = tensor([exp(growth * u) * tanh(u) * Max(u, 0)], [[1.0]])
    x = np.linspace(0, growth + 12, 40_001)
    exact = simpson(np.tanh(x) * x * np.exp(-((x - growth) ** 2) / 2), x=x) / np.sqrt(2 * np.pi)
    exact *= np.exp(growth**2 / 2)
    assert abs(found.value[0] / exact - 1) < 1e-9
    assert abs(found.value[0] - exact) <= found.error[0] + 1e-11 * exact


@pytest.mark.parametrize(("factor", "method"), [(1, "lattice"), (Heaviside(u - 2), "panels")])
def test_two_coupled_variables_that_grow(factor: Expr, method: str) -> None:
    """A shift of both variables, with and without a kink: they do not factorise."""
    v = symbols("v", real=True)
    x = np.linspace(-9, 9, 601)
    w = np.exp(-(x**2) / 2)
    w /= w.sum()
    found = average(exp(9 * u) * tanh(u * v / 9 + u / 3) * factor, (u, v), np.eye(2), 1e-9)
    exact = np.exp(40.5) * (w @ np.tanh((x[:, None] + 9) * (x / 9 + 1 / 3)) @ w)
    assert found.method == method
    assert abs(found.value / exact - 1) < 1e-9


def test_growth_without_an_average_is_refused() -> None:
    """<exp(u^2/2) ..> is infinite."""
    a, b = symbols("a b", real=True)
    for body in (exp(a**2 / 2) * tanh(a * b + a) ** 2, exp(a**2 / 2) * Abs(a - 1)):
        with pytest.raises(NotConverged, match="grows too fast"):
            average(body, (a, b), np.eye(2))


@pytest.mark.parametrize("growth", [3, 8])
def test_growth_beside_steps_that_exclude_each_other(growth: int) -> None:
    """At equal arguments the product vanishes everywhere; the variables are independent."""
    third = 1 / 3
    fs = [kinked(exp(growth * u)), kinked(Heaviside(u - third), third), kinked(Heaviside(-u - third), -third)]
    value, _ = nested(fs, np.eye(3), 1e-7)
    exact = np.exp(growth**2 / 2) * norm.sf(third) ** 2
    assert abs(value / exact - 1) < 1e-7
