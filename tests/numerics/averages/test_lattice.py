"""Averages of analytic functions: nested quadrature, closed forms, sampling, Stein's lemma."""

from __future__ import annotations

from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from scipy.special import erf
from sympy import Matrix, Rational, cos, exp, sqrt, symbols, tanh
from sympy import erf as erf_
from sympy import pi as pi_

from derive.calculus.gaussian import GaussianAverage
from numerics.averages import tensor, tensors
from numerics.averages.lattice import averages, cholesky
from numerics.errors import NotConverged, SpecError
from tests.chance import excess

u = symbols("u", real=True)
T0 = tanh(u)
T1, T2, T3 = (T0.diff(u, n) for n in (1, 2, 3))
FOUR = [T1, T2, T0, T3]


def covariance(samples: int, seed: int, scale: float = 1.0, rank: int | None = None) -> np.ndarray:
    a = np.random.default_rng(seed).normal(size=(samples, rank or samples + 2))
    K = scale * a @ a.T / a.shape[1]
    return (K + K.T) / 2


def sech2(x: np.ndarray) -> np.ndarray:
    return 1 / np.cosh(x) ** 2


# -- references ----------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("variance", [0.3, 4.0])
def test_two_variables_by_nested_quadrature(variance: float) -> None:
    K = variance * np.array([[1.0, -0.4], [-0.4, 0.7]])
    found = tensor([T1, T0, T2], K)
    with mp.workdps(15):

        def f(x: mpmath.mpf, y: mpmath.mpf) -> mpmath.mpf:
            return mp.sech(x) ** 2 * mp.tanh(y) * (-2 * mp.tanh(x) * mp.sech(x) ** 2)

        root, slope = np.sqrt(K[0, 0]), K[0, 1] / np.sqrt(K[0, 0])
        width, h = np.sqrt(K[1, 1] - slope**2), mp.mpf("0.13")
        grid = [(k * h, h * mp.npdf(k * h)) for k in range(-59, 60)]
        total = mp.fsum(w * v * f(root * p, slope * p + width * q) for p, w in grid for q, v in grid)
    assert abs(found.value[0, 1, 0] - float(total)) < 2e-10
    assert found.error.max() < 1e-10


def test_closed_forms_of_four_factors() -> None:
    """Derivatives of error functions times error functions: arcsine laws under a tilt, at unequal samples."""
    K = covariance(4, 3, 1.3)
    E0, E1 = erf_(u), erf_(u).diff(u)
    found = tensor([E1, E1 * u**2, E0, E0], K)
    x = symbols("x:4", real=True)
    exact = Matrix(4, 4, [Rational(float(k)) for k in K.ravel()])
    for index in ((0, 1, 2, 3), (3, 1, 0, 2), (0, 1, 1, 2), (2, 2, 0, 0)):
        body = E1.subs(u, x[index[0]]) * (E1 * u**2).subs(u, x[index[1]])
        body *= E0.subs(u, x[index[2]]) * E0.subs(u, x[index[3]])
        closed = float(GaussianAverage(body, x, exact).doit().evalf(20))
        assert abs(found.value[index] - closed) <= 1e-10 * abs(closed) + found.error[index]
        assert abs(found.value[index] - closed) < 1e-11


@pytest.mark.slow
@pytest.mark.parametrize("scale", [pytest.param(0.5, marks=pytest.mark.slow), 4.0])
def test_four_factors_by_sampling(scale: float) -> None:
    K = covariance(4, 5, scale)
    found = tensor(FOUR, K, 1e-6)
    count = 10_000
    x = np.random.default_rng(1).normal(size=(count, 4)) @ np.linalg.cholesky(K).T
    t = np.tanh(x)
    values = [1 - t**2, -2 * t * (1 - t**2), t, (1 - t**2) * (6 * t**2 - 2)]
    misses = []
    for index in product(range(4), repeat=4):
        sample = np.prod([v[:, i] for v, i in zip(values, index, strict=True)], axis=0)
        deviation = sample.std() / np.sqrt(count)
        misses.append((found.value[index] - sample.mean()) / deviation)
    assert excess(misses) < 1
    assert np.mean(np.square(misses)) < 2


@given(st.integers(0, 10_000), st.floats(0.1, 4.0))
@settings(max_examples=4, deadline=None)
def test_steins_lemma(seed: int, scale: float) -> None:
    """``<u_a f(u_b) g(u_c) h(u_d)>`` from derivatives of f, g, h: other integrals, over all 3**4 tuples."""
    K = covariance(3, seed, scale)
    left, *right = tensors([[u, T0, T1, T1], [T1, T1, T1], [T0, T2, T1], [T0, T1, T2]], K, 1e-9)
    expected = sum(np.einsum(f"a{x},bcd->abcd", K, r.value) for x, r in zip("bcd", right, strict=True))
    size = K.max() + sum(np.abs(r.value).max() for r in right)
    assert np.abs(left.value - expected).max() < 1e-8 * size


@given(st.integers(0, 10_000))
@settings(max_examples=3, deadline=None)
def test_prices_theorem(seed: int) -> None:
    """A symmetric difference in one covariance, whose error is of second order in the step."""
    K, step = covariance(3, seed), 1e-3
    moved = np.zeros((3, 3))
    moved[0, 1] = moved[1, 0] = step
    more, less = (tensor([T0, T1, T0], K + s * moved, 1e-11).value[0, 1, 2] for s in (1, -1))
    slope = tensor([T1, T2, T0], K, 1e-9).value[0, 1, 2]
    assert abs((more - less) / (2 * step) - slope) < 3 * step**2


# -- singular covariances ------------------------------------------------------------------------------------


def test_equal_samples_and_fewer_directions_than_samples() -> None:
    small = covariance(2, 7)
    again = np.array([[1, 0], [0, 1], [1, 0], [0.6, -0.8]])
    K = again @ small @ again.T
    found = tensor(FOUR, K)
    assert cholesky(K).rank == 2
    assert np.abs(found.value[0, 1, 2, 2] - found.value[0, 1, 0, 0]) < 1e-12
    x, w = np.polynomial.hermite_e.hermegauss(160)
    w = w / w.sum()
    root = np.linalg.cholesky(small)
    v = (again @ root)[:, :, None, None]
    y = v[:, 0] * x[:, None] + v[:, 1] * x
    direct = w @ (sech2(y[0]) * -2 * np.tanh(y[1]) * sech2(y[1]) * np.tanh(y[3]) * third_of(y[3])) @ w
    assert abs(found.value[0, 1, 3, 3] - direct) < 1e-10


def third_of(x: np.ndarray) -> np.ndarray:
    """Return the third derivative of tanh."""
    return sech2(x) * (6 * np.tanh(x) ** 2 - 2)


@pytest.mark.parametrize("gap", [1e-3, 1e-9, 1e-14])
def test_nearly_equal_samples(gap: float) -> None:
    """The average is smooth in the covariance: near equal samples it changes in proportion to the gap."""
    K = np.array([[1.0, 1.0 - gap], [1.0 - gap, 1.0]])
    near, same = tensor([T0, T0], K).value[0, 1], tensor([T0, T0], [[1.0]]).value[0, 0]
    slope = tensor([T1, T1], [[1.0]]).value[0, 0]
    assert abs(near - (same - gap * slope)) < gap**2 + 1e-10


def test_no_variance_and_no_functions() -> None:
    found = tensor([T1, u + 2], np.zeros((2, 2)))
    assert np.array_equal(found.value, np.full((2, 2), 2.0))
    assert tensor([], np.eye(2)).value.shape == ()
    assert float(tensor([], np.eye(2)).value) == 1.0


# -- growth, and refusals ------------------------------------------------------------------------------------


def test_growing_functions_reach_farther() -> None:
    """Products of exponentials peak away from the origin: their generating function."""
    K = covariance(3, 2, 2.0)
    found = tensor([exp(2 * u), exp(u), exp(u)], K).value
    for index in ((0, 1, 2), (0, 0, 0), (1, 2, 1)):
        a = np.zeros(3)
        for i, c in zip(index, (2, 1, 1), strict=True):
            a[i] += c
        assert abs(found[index] / np.exp(a @ K @ a / 2) - 1) < 1e-9


def test_polynomials_are_exact() -> None:
    K = covariance(3, 4, 2.0)
    found = tensor([u, u, u**2, u**3 - u], K).value
    x = symbols("x:3", real=True)
    exact = Matrix(3, 3, [Rational(float(k)) for k in K.ravel()])
    body = x[0] * x[1] * x[2] ** 2 * (x[0] ** 3 - x[0])
    assert abs(found[0, 1, 2, 0] - float(GaussianAverage(body, x, exact).doit())) < 1e-10


def test_a_divergent_integral_is_no_number() -> None:
    with pytest.raises(NotConverged, match="is infinite or overflows"):
        tensor([exp(u**2)], [[1.0]])


def test_a_function_with_a_close_pole_runs_out_of_points() -> None:
    with pytest.raises(NotConverged, match=r"take a larger rtol|varies too fast"):
        tensor([tanh(300 * u)] * 4, covariance(4, 1))


@pytest.mark.parametrize(
    "K", [[[1.0, 0.5]], [[1.0, 0.5], [0.4, 1.0]], [1.0], [[np.nan]]], ids=["oblong", "skew", "flat", "nan"]
)
def test_what_is_no_covariance_is_refused(K: object) -> None:
    with pytest.raises(SpecError, match="covariance"):
        tensor([T0, T0], K)


def test_a_negative_eigenvalue_is_refused() -> None:
    with pytest.raises(SpecError, match="negative eigenvalue"):
        tensor([T0, T0], [[1.0, 2.0], [2.0, 1.0]])


# -- the error is an error -----------------------------------------------------------------------------------


def test_the_error_bounds_what_is_wrong() -> None:
    """At loose tolerances, against a tight one."""
    K = covariance(3, 11, 2.0)
    exact = tensor(FOUR, K, 1e-11).value
    for rtol in (1e-3, 1e-5, 1e-7):
        found = tensor(FOUR, K, rtol)
        assert np.all(np.abs(found.value - exact) <= found.error + 1e-11)
        assert found.error.max() < rtol


@pytest.mark.slow
def test_a_wrong_covariance_is_noticed() -> None:
    """The comparisons above detect one covariance that is wrong by a thousandth."""
    K = covariance(4, 3, 1.3)
    wrong = K.copy()
    wrong[0, 1] = wrong[1, 0] = K[0, 1] + 1e-3
    E0, E1 = erf_(u), erf_(u).diff(u)
    fs = [E1, E1 * u**2, E0, E0]
    change = np.abs(tensor(fs, K).value - tensor(fs, wrong).value)
    assert change[0, 1, 2, 3] > 1e-6


def test_callables_and_shared_points() -> None:
    """Functions of arrays; lists of them give the same as single functions."""
    K = covariance(3, 6)
    several = tensors([[erf, sech2], [np.tanh, np.tanh, sech2], [u]], K)
    alone = [tensor([erf, sech2], K), tensor([T0, T0, T1], K)]
    for x, y in zip(several, alone, strict=False):
        assert np.abs(x.value - y.value).max() < 2e-10
    assert np.abs(several[2].value).max() < 1e-12
    slope = 2 / sqrt(pi_) * exp(-(u**2))
    assert erf_(u).diff(u) == slope


def test_many_products_at_once() -> None:
    """The lattice takes products by variable; the order of the variables does not matter."""
    K = covariance(3, 8)
    fs = ((np.tanh,), (sech2, np.tanh), (erf,))
    first, _ = averages([fs], K, 1e-10)
    turned = [2, 0, 1]
    second, _ = averages([tuple(fs[i] for i in turned)], K[np.ix_(turned, turned)], 1e-10)
    assert abs(first[0] - second[0]) < 2e-11


@pytest.mark.parametrize(("growth", "correlation"), [(2, -1.0), (4, -0.9), (6, -0.5), (3, 0.5)])
def test_functions_that_grow_in_opposite_directions(growth: int, correlation: float) -> None:
    """<exp(a u) exp(-a v)> = exp(a^2 (1 - <u v>)): at equal arguments the product is one."""
    found = tensor([exp(growth * u), exp(-growth * u)], [[1.0, correlation], [correlation, 1.0]], 1e-8)
    exact = np.exp(growth**2 * (1 - correlation))
    assert abs(found.value[0, 1] / exact - 1) < 1e-8
    assert abs(found.value[0, 1] - exact) <= found.error[0, 1] + 1e-13 * exact
    assert found.value[0, 0] == pytest.approx(1.0, abs=1e-8)


@pytest.mark.parametrize("frequency", [5, 14, 20, 40, 77])
def test_fast_waves_are_no_constants(frequency: int) -> None:
    """A wave with two oscillations from point to point was constant on the lattice and its shifted copy."""
    found = tensor([cos(frequency * u)], [[1.0]])
    assert found.value[0] == pytest.approx(np.exp(-(frequency**2) / 2), abs=1e-9)


@pytest.mark.parametrize("overlap", [1e-3, 1e-14, 5e-18])
def test_variables_that_are_independent_up_to_rounding(overlap: float) -> None:
    """<tanh(u) tanh(v)> = <u v> <tanh'>^2 to first order: rounding is relative to <|tanh|>, not to this."""
    found = tensor([T0, T0], [[1.0, overlap], [overlap, 1.0]])
    slope = tensor([T1], [[1.0]]).value[0]
    assert abs(found.value[0, 1] - overlap * slope**2) < 1e-15 + overlap**2
    assert found.error[0, 1] < 1e-14
