"""The reference implementations against each other."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest

from tests.reference.adams_weights import adams_weights, adams_weights_exact, step_sum_weights
from tests.reference.dense_causal import dense_causal
from tests.reference.fixed_point import NotSettled, fixed_point
from tests.reference.mp_reference import gamma0_taylor, mp_solution
from tests.reference.power_series import gamma_expansion, loss_expansion

RNG = np.random.default_rng(1)
X = RNG.standard_normal((3, 5))
KERNEL = X @ X.T / 5
TARGETS = np.array([0.9, -0.7, 1.1])
GRIDS = {
    "gd": step_sum_weights(9, 0.11),
    "flow": adams_weights(np.cumsum(RNG.uniform(0.03, 0.08, 10)), 3),
}


@pytest.mark.parametrize("rule", GRIDS)
@pytest.mark.parametrize("depth", [1, 2, 3])
@pytest.mark.parametrize("low_rank", [False, True])
def test_fixed_point_and_forward_recursion_agree(rule, depth, low_rank):
    weights = GRIDS[rule]
    one = dense_causal(KERNEL, TARGETS, weights, depth=depth, gamma0=1.2)
    two = fixed_point(KERNEL, TARGETS, weights, depth=depth, gamma0=1.2, low_rank=low_rank, window=4)
    assert one.distance(two) < 1e-12
    assert two.residuals[-1] <= 1e-13
    assert one.train_loss[-1] < 0.6 * one.train_loss[0]
    assert float(np.abs(one.Phi[0, -1, -1] - KERNEL).max()) > 0.05  # features have moved
    if depth > 1:
        assert float(np.abs(one.A[0]).max()) > 1e-3
        assert float(np.abs(one.B[0]).max()) > 1e-3
    assert float(np.abs(one.B[-1]).max()) == 0.0


def test_windows_and_damping_change_only_the_way():
    kwargs = {"depth": 2, "gamma0": 1.0, "low_rank": True}
    ways = [{}, {"window": 1}, {"window": 3}, {"damping": 0.3}]
    solutions = [fixed_point(KERNEL, TARGETS, GRIDS["gd"], **kwargs, **way) for way in ways]
    assert max(solutions[0].distance(s) for s in solutions[1:]) < 1e-11


def test_the_papers_predictions_differ_by_the_size_of_the_step():
    """Euler steps of the tangent kernel are not the output: first order in the step on the same grid."""
    gaps = []
    for count in (11, 21, 41):
        weights = adams_weights(np.linspace(0.0, 0.5, count), 1)
        kwargs = {"depth": 2, "gamma0": 1.0, "low_rank": True}
        tangent = fixed_point(KERNEL, TARGETS, weights, predictions="tangent", tolerance=1e-11, **kwargs)
        output = fixed_point(KERNEL, TARGETS, weights, window=5, tolerance=1e-11, **kwargs)
        gaps.append(abs(float(tangent.f[-1, 0] - output.f[-1, 0])))
    assert np.log2(np.array(gaps[:-1]) / gaps[1:]) == pytest.approx(1.0, abs=0.25)


def test_fixed_point_refuses_and_reports():
    with pytest.raises(ValueError, match="lower triangular"):
        fixed_point(KERNEL, TARGETS, np.ones((3, 3)), depth=1, gamma0=1.0)
    with pytest.raises(ValueError, match="predictions"):
        fixed_point(KERNEL, TARGETS, GRIDS["gd"], depth=1, gamma0=1.0, predictions="exact")
    with pytest.raises(NotSettled, match="3 sweeps"):
        fixed_point(KERNEL, TARGETS, GRIDS["gd"], depth=3, gamma0=1.0, max_iterations=3)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_output_equals_its_discrete_time_form(depth):
    """selfconsistent2023 M.8: f = sum_s A^L(t,s) + sum_s w(t,s) sum_alpha H^L(t,s) Delta(s)."""
    weights = GRIDS["gd"]
    s = dense_causal(KERNEL, TARGETS, weights, depth=depth, gamma0=1.2)
    again = s.A[-1].sum(axis=1) + np.einsum("ts,tsma,sa->tm", weights, s.Phi[-1], s.error)
    assert again == pytest.approx(s.f, abs=1e-13)


def test_adams_weights_integrate_polynomials_exactly():
    times = [Fraction(n) for n in (0, 1, 3, 4, 7, 9)]
    for order in (1, 2, 3, 4):
        rows = adams_weights_exact(times, order)
        start = order - 1  # before it the order is still being raised
        for power in range(order):
            for n in range(start, len(times)):
                total = sum((rows[n][s] - rows[start][s]) * times[s] ** power for s in range(n))
                assert total == (times[n] ** (power + 1) - times[start] ** (power + 1)) / (power + 1)


def test_adams_weights_of_second_order_on_a_uniform_grid():
    w = adams_weights(np.arange(6) * 0.5, 2)
    assert w[5].tolist() == [0.25, 0.5, 0.5, 0.5, 0.75, 0.0]
    assert w[1].tolist() == [0.5, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="order"):
        adams_weights([0.0, 1.0], 0)
    with pytest.raises(ValueError, match="increase"):
        adams_weights([0.0, 1.0, 1.0], 2)


TINY_KERNEL = np.array([[1.0, 0.25], [0.25, 0.75]])
TINY_TARGETS = np.array([1.0, -0.5])
TINY_WEIGHTS = step_sum_weights(3, 0.125)


def test_high_precision_agrees_with_floats():
    precise = mp_solution(TINY_KERNEL, TINY_TARGETS, TINY_WEIGHTS, depth=2, gamma0=1.5)
    plain = dense_causal(TINY_KERNEL, TINY_TARGETS, TINY_WEIGHTS, depth=2, gamma0=1.5)
    assert precise.distance(plain) < 1e-14
    assert isinstance(precise.f[-1, 0], mpmath.mpf)


def test_derivatives_in_gamma0_agree_with_the_power_series():
    parts = gamma_expansion(TINY_KERNEL, TINY_TARGETS, TINY_WEIGHTS, depth=2, order=2)
    for pick in (lambda s: s.f[3, 0], lambda s: s.Phi[1, 3, 2, 0, 1], lambda s: s.G[0, 3, 3]):
        taylor = gamma0_taylor(pick, TINY_KERNEL, TINY_TARGETS, TINY_WEIGHTS, depth=2, order=4)
        assert [float(taylor[2 * n]) for n in range(3)] == pytest.approx(
            [float(pick(p)) for p in parts], abs=1e-12
        )
        assert abs(taylor[1]) < 1e-12
        assert abs(taylor[3]) < 1e-12


def test_power_series_sums_to_the_solution():
    gamma0 = 0.05
    parts = gamma_expansion(KERNEL, TARGETS, GRIDS["flow"][:6, :6], depth=3, order=3)
    full = dense_causal(KERNEL, TARGETS, GRIDS["flow"][:6, :6], depth=3, gamma0=gamma0)
    for name in ("Phi", "G", "A", "B", "f", "tangent_kernel"):
        total = sum(gamma0 ** (2 * n) * getattr(p, name) for n, p in enumerate(parts))
        assert np.abs(total - getattr(full, name)).max() < 1e-8
    loss = sum(gamma0 ** (2 * n) * c for n, c in enumerate(loss_expansion(parts)))
    assert loss == pytest.approx(full.train_loss, abs=1e-8)


def test_power_series_in_exact_fractions():
    def exact(values):
        array = np.asarray(values)
        return np.array([Fraction(float(v)) for v in array.ravel()], dtype=object).reshape(array.shape)

    parts = gamma_expansion(exact(TINY_KERNEL), exact(TINY_TARGETS), exact(TINY_WEIGHTS), depth=2, order=1)
    floats = gamma_expansion(TINY_KERNEL, TINY_TARGETS, TINY_WEIGHTS, depth=2, order=1)
    assert isinstance(parts[1].f[3, 0], Fraction)
    assert float(parts[1].f[3, 0]) == pytest.approx(floats[1].f[3, 0], rel=1e-14)
