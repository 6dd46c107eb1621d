"""Covariances at the start of training against counted layers, quadrature and networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Symbol, cancel, symbols

from derive.calculus.symbols import L, alpha, gamma0, mu
from derive.errors import NotApplicable
from derive.scale.fluctuations import initial_covariance
from numerics.errors import Unserved
from numerics.fluctuations.initial import initial_value
from tests.chance import excess
from tests.derive.once import kept, mlp

covariance = kept(initial_covariance)
first, second = symbols("mu_ alpha_", integer=True, positive=True)
ONE = {"K_x": np.ones((1, 1))}
PAIRS = ("K", mu, alpha), ("K", first, second)


def test_outputs_of_linear_networks_have_the_kernel_of_the_inputs() -> None:
    found = covariance(mlp(), ("f", mu), ("f", alpha))
    assert str(found.value) == "K_x(mu, alpha)/gamma0**2"
    assert "fixed depth" in found.conditions()[1]


def test_the_tangent_kernel_of_one_sample_by_depth() -> None:
    """Layers k = 1..L move it by (L + 1 - k) times independent noise of variance 2 forwards and backwards."""
    one = covariance(mlp(), ("K", mu, mu))
    assert str(one.value) == "2*L*(L + 1)*(2*L + 1)*K_x(mu, mu)**2/3"


@pytest.mark.slow
def test_the_tangent_kernel_of_four_samples_by_depth() -> None:
    four = covariance(mlp(), *PAIRS).value
    for depth in (1, 2, 3):
        assert cancel(four.subs(L, depth) - covariance(mlp(depth), *PAIRS).value) == 0


def test_one_hidden_linear_layer_has_the_cumulants_of_a_wishart_matrix() -> None:
    assert str(covariance(mlp(1), *PAIRS).value) == (
        "K_x(alpha, alpha_)*K_x(mu, mu_) + K_x(alpha, mu_)*K_x(mu, alpha_) "
        "+ 2*K_x(alpha_, mu_)*K_x(mu, alpha)"
    )
    assert covariance(mlp(1), ("K", mu, mu), ("f", alpha)).value == 0


def test_layers_of_three_times_the_units() -> None:
    """Kernels are sums over units over N: three times as large, with a third of the relative variance."""
    assert str(covariance(mlp(1, relative_widths=3), ("K", mu, mu)).value) == "12*K_x(mu, mu)**2"


@pytest.mark.slow
def test_rectifiers_by_depth() -> None:
    """Critical variance: a polynomial in L, the same as for each number of layers."""
    found = covariance(mlp(activation="relu", init_variance=2), ("K", mu, mu)).value
    assert str(found) == "L*(L + 1)*(11*L + 7)*K_x(mu, mu)**2/3"
    halved = covariance(mlp(activation="relu"), ("K", mu, mu)).value
    for depth in (1, 2):
        assert cancel(halved.subs(L, depth) - covariance(mlp(depth, "relu"), ("K", mu, mu)).value) == 0


def test_kernels_that_are_no_powers_of_the_layer_need_a_number_of_layers() -> None:
    with pytest.raises(NotApplicable, match="give a number of layers"):
        covariance(mlp(activation="tanh"), ("K", mu, mu))
    with pytest.raises(NotApplicable, match="share their units"):
        covariance(mlp(branch=Symbol("b", positive=True)), ("K", mu, mu))
    with pytest.raises(TypeError, match="has 2 indices"):
        covariance(mlp(1), ("K", mu))


def test_one_layer_of_tanh_against_an_integral() -> None:
    """Units are independent: the variance of the averaged quantity, by the trapezoidal rule."""
    spacing = 0.1
    x = np.arange(-90, 91) * spacing
    weight = np.exp(-(x**2) / 2) * spacing / np.sqrt(2 * np.pi)
    both, phi = np.outer(weight, weight), np.tanh(x)[:, None]
    summand = phi**2 + (1 - phi**2) ** 2 * x**2
    expected = (both * summand**2).sum() - (both * summand).sum() ** 2
    found = initial_value(covariance(mlp(1, "tanh"), ("K", mu, mu)), {mu: 0}, ONE, {})
    assert found == pytest.approx(expected, rel=1e-9)  # the tolerance of numerics.averages is 1e-10
    # the output has the average of phi^2
    output = initial_value(covariance(mlp(1, "tanh"), ("f", mu)), {mu: 0}, ONE, {gamma0: 2.0})
    assert output == pytest.approx((weight * np.tanh(x) ** 2).sum() / 4, rel=1e-9)


def test_numbers_that_are_left_are_named() -> None:
    with pytest.raises(Unserved, match="gamma0"):
        initial_value(covariance(mlp(1), ("f", mu)), {mu: 0}, ONE, {})


def kernels_of_networks(width: int, count: int, rng: np.random.Generator, inputs: Any) -> Any:
    """Return initial tangent kernels of tanh networks with two hidden layers, (count, P, P)."""
    kernel = inputs @ inputs.T / inputs.shape[1]
    found = []
    for _ in range(count):
        h = rng.standard_normal((width, inputs.shape[1])) @ inputs.T / inputs.shape[1] ** 0.5
        W = rng.standard_normal((width, width)) / width**0.5
        first_phi = np.tanh(h)
        second_phi = np.tanh(W @ first_phi)
        upper = rng.standard_normal(width)[:, None] * (1 - second_phi**2)
        lower = (1 - first_phi**2) * (W.T @ upper)
        inner = [x.T @ x / width for x in (first_phi, second_phi, upper, lower)]
        found.append(inner[1] + inner[2] * inner[0] + kernel * inner[3])
    return np.array(found)


@pytest.mark.slow
def test_two_layers_of_tanh_against_networks() -> None:
    """N Cov at three widths, extrapolated by a quadratic in 1/N."""
    rng = np.random.default_rng(5)
    inputs = rng.standard_normal((2, 4))
    data = {"K_x": inputs @ inputs.T / 4}
    widths, parts = (16, 32, 64), 40
    measured = []
    for width in widths:
        K = kernels_of_networks(width, 8000, rng, inputs).reshape(parts, -1, 4)
        measured.append([width * np.cov(x.T)[[0, 0, 1], [0, 3, 1]] for x in K])
    weights = np.linalg.solve(np.vander([1 / n for n in widths], 3, increasing=True).T, [1, 0, 0])
    limit = np.einsum("w,wpk->pk", weights, measured)
    members = [(("K", mu, mu),) * 2, (("K", mu, mu), ("K", alpha, alpha)), (("K", mu, alpha),) * 2]
    expected = [initial_value(covariance(mlp(2, "tanh"), *x), {mu: 0, alpha: 1}, data, {}) for x in members]
    error = limit.std(axis=0, ddof=1) / parts**0.5
    assert excess((limit.mean(axis=0) - expected) / error, parts - 1) < 1
    assert (error < 0.1 * np.array(expected)).all()


LAYERS = ("H", 2, mu, mu), ("H", L, mu, mu), ("G", 1), ("K", mu, mu)


@pytest.mark.parametrize(
    ("one", "two"), [(0, 0), (1, 1), (2, 2), (0, 3), pytest.param(2, 3, marks=pytest.mark.slow)]
)
def test_kernels_of_one_layer_depend_on_the_layers_before_them_only(one: int, two: int) -> None:
    """A symbolic depth gives the covariances of every number of layers that have these layers."""
    found = covariance(mlp(), LAYERS[one], LAYERS[two]).value
    for depth in (2, 3):
        pair = [tuple(depth if x == L else x for x in LAYERS[k]) for k in (one, two)]
        assert cancel(found.subs(L, depth) - covariance(mlp(depth), *pair).value) == 0


def test_layers_whose_order_depends_on_the_depth_are_refused() -> None:
    with pytest.raises(NotApplicable, match="which of the layers 2 and L - 1 comes first"):
        covariance(mlp(), ("H", 2, mu, mu), ("H", L, mu, mu))
