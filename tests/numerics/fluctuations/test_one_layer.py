"""One hidden linear layer: quadrature, leading order and draws agree, and with closed forms of the flow."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.polynomial import Polynomial

from tests.chance import excess
from tests.numerics.fluctuations.estimates import Estimate, expansion_in_width
from tests.numerics.fluctuations.one_layer import (
    OneLayer,
    chi_squared_nodes,
    draw,
    exact_moments,
    leading_order,
)

K = np.array([[1.0, 0.3], [0.3, 0.8]])
Y = np.array([1.0, -0.5])
ONE = np.eye(1), np.ones(1)


@pytest.mark.parametrize("width", [3, 16, 1024])
def test_quadrature_integrates_powers_of_a_mean_of_squares(width: int) -> None:
    nodes, weights = chi_squared_nodes(width, 24)
    for power in range(12):
        exact = np.prod(1 + 2 * np.arange(power) / width)
        assert weights @ nodes**power == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("flow", [False, True])
def test_what_is_left_of_the_leading_order_falls_as_one_over_width(flow: bool, centred: bool) -> None:
    """The exponent of the remainder is -1, up to the next order, which falls with the width as well."""
    network = OneLayer(np.array([[1.3]]), np.ones(1), 0.1, 8, 0.7, centred, flow)
    order = leading_order(network)
    widths = 2 ** np.arange(8, 15, 3)
    for name in ("f", "loss", "tangent_kernel", "Phi", "G"):
        found = [(width, exact_moments(network, int(width), 20)[name]) for width in widths]
        variance = [N * x.variance - order.scaled_variance(name).ravel() for N, x in found]
        shift = [N * (x.mean - x.limit) - order.scaled_shift(name).ravel() for N, x in found]
        for remainder in (np.array(variance), np.array(shift)):
            times = np.abs(remainder[1]) > 1e-4  # rounding errors of moments are 1e-16 N^2 = 3e-8 at most
            slopes = np.log2(np.abs(remainder[1:, times] / remainder[:-1, times])) / 3
            wide, narrow = (np.abs(slope + 1).max(initial=0) for slope in (slopes[1], slopes[0]))
            assert wide < 0.01, name
            assert wide < narrow / 4 + 1e-6, name
        np.testing.assert_allclose(found[0][1].limit, order.limit(name).ravel(), rtol=0, atol=1e-13)


def test_numbers_of_the_theory_of_finite_width() -> None:
    """Leading order at gamma0 = K_x = y = 1, eta = 0.1, t = 5, as found by another program before."""
    order = leading_order(OneLayer(*ONE, 0.1, 5))
    assert order.scaled_variance("f")[5, 0] == pytest.approx(0.3028, abs=5e-5)
    assert order.scaled_shift("f")[5, 0] == pytest.approx(-0.4294, abs=5e-5)
    assert order.scaled_shift("loss")[5] == pytest.approx(0.2801, abs=5e-5)
    assert order.scaled_variance("tangent_kernel")[5, 0, 0] == pytest.approx(4.554, abs=5e-4)


@pytest.mark.parametrize("gamma0", [0.5, 1.0, 2.0])
def test_flow_ends_with_the_closed_forms(gamma0: float) -> None:
    """``N Var K = 4 / (1 + gamma0^2 y^2)`` (4 if centred), ``N shift = -(1 + gamma0^2 y^2)^(-3/2)``."""
    end = leading_order(OneLayer(*ONE, 10.0, 1, gamma0, flow=True))
    assert end.scaled_variance("tangent_kernel")[1, 0, 0] == pytest.approx(4 / (1 + gamma0**2), abs=1e-7)
    assert end.scaled_shift("tangent_kernel")[1, 0, 0] == pytest.approx(-((1 + gamma0**2) ** -1.5), abs=1e-7)
    centred = leading_order(OneLayer(*ONE, 10.0, 1, gamma0, centred=True, flow=True))
    assert centred.scaled_variance("tangent_kernel")[1, 0, 0] == pytest.approx(4, abs=1e-7)


def test_covariance_of_errors_in_time_is_the_closed_form() -> None:
    """``N Cov(Delta(t), Delta(s)) = D K(t) D K(s) (1/(4 gamma0^2 y^2) + 16 I(t) I(s))``, ``I = int K^-2``."""
    gamma0, points = 0.8, 16
    order = leading_order(OneLayer(*ONE, 1.0 / points, points, gamma0, flow=True))
    kernel, error = order.limit("tangent_kernel")[:, 0, 0], 1 - order.limit("f")[:, 0]
    times = np.linspace(0, 1, points + 1)
    integral = Polynomial.fit(times, kernel**-2.0, 12).integ(lbnd=0)(times)
    expected = np.outer(error * kernel, error * kernel)
    expected *= 1 / (4 * gamma0**2) + 16 * np.outer(integral, integral)
    f = order.jets["f"][:, 0]
    np.testing.assert_allclose(order.scaled_covariance(f, f), expected, rtol=1e-6)


def test_draws_have_the_leading_order() -> None:
    widths = (32, 64, 128)
    for kernel, targets in ((K, Y), (np.ones((2, 2)), np.array([0.6, 0.4]))):
        network = OneLayer(kernel, targets, 0.1, 5, 0.9)
        order, ensembles = leading_order(network), [draw(network, width, 8000, width) for width in widths]
        for name in ("f", "loss", "tangent_kernel"):
            limit = order.limit(name)
            for estimates, expected in (
                ([x.scaled_variance(name) for x in ensembles], order.scaled_variance(name)),
                ([x.scaled_shift(name, limit) for x in ensembles], order.scaled_shift(name)),
            ):
                fit = expansion_in_width(widths, estimates)
                distance = Estimate(fit.value[0], fit.error[0]).distance(expected)
                assert excess(np.where(fit.error[0] > 1e-10, distance, 0)) <= 1, name
