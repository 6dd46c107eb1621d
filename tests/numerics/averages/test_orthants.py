"""Averages of signs, powers and point masses: known orthants, quadrature over angles, sampling, limits."""

from __future__ import annotations

from itertools import product

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from sympy import Abs, DiracDelta, Expr, Heaviside, Matrix, Max, Rational, lambdify, sign, symbols

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.jumps import Ambiguous, jumps
from numerics.averages import orthants, tensor
from numerics.errors import Unserved
from tests.chance import excess

u = symbols("u", real=True)
RELU, STEP, MASS = Max(0, u), Heaviside(u), DiracDelta(u)
SIGNS = sign(u)


def covariance(samples: int, seed: int, rank: int | None = None) -> np.ndarray:
    a = np.random.default_rng(seed).normal(size=(samples, rank or samples + 1))
    K = a @ a.T / a.shape[1]
    return (K + K.T) / 2


def equal_correlations(n: int, r: float) -> np.ndarray:
    return np.full((n, n), r) + (1 - r) * np.eye(n)


# -- closed forms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_orthants_of_equal_correlations_one_half(n: int) -> None:
    """The probability that the first of n + 1 equal numbers is the smallest: 1 / (n + 1)."""
    found = tensor([STEP] * n, equal_correlations(n, 0.5)).value[tuple(range(n))]
    assert abs(found - 1 / (n + 1)) < 1e-14


@pytest.mark.parametrize("r", [-0.99, -0.3, 0.2, 0.7, 0.999999])
def test_arcsine_and_arccosine_laws(r: float) -> None:
    """Sheppard (1899); Cho and Saul (2009), degrees 0, 1, 2."""
    K = np.array([[1.0, r], [r, 1.0]])
    angle = 2 * np.arctan2(np.sqrt(1 - r), np.sqrt(1 + r))
    assert abs(tensor([SIGNS, SIGNS], K).value[0, 1] - (1 - 2 * angle / np.pi)) < 1e-13
    kernels = [
        np.pi - angle,
        np.sin(angle) + (np.pi - angle) * np.cos(angle),
        3 * np.sin(angle) * np.cos(angle) + (np.pi - angle) * (1 + 2 * np.cos(angle) ** 2),
    ]
    for degree, kernel in enumerate(kernels):
        found = tensor([RELU**degree * STEP] * 2, K).value[0, 1]
        assert abs(found - kernel / (2 * np.pi)) < 1e-13


def test_four_signs_of_pairs_that_are_independent() -> None:
    """Products of arcsine laws, whichever pairs they are."""
    for pairs in ([(0, 1), (2, 3)], [(0, 2), (1, 3)], [(0, 3), (1, 2)]):
        K, expected = np.eye(4), 1.0
        for (i, j), r in zip(pairs, (0.6, -0.9), strict=True):
            K[i, j] = K[j, i] = r
            expected *= 2 / np.pi * np.arcsin(r)
        assert abs(tensor([SIGNS] * 4, K).value[0, 1, 2, 3] - expected) < 1e-14


@given(st.integers(0, 10_000), st.permutations(range(4)), st.sampled_from([1.0, 1e-3, 1e-6]))
@settings(max_examples=20, deadline=None)
def test_four_signs_do_not_depend_on_the_order(seed: int, order: list[int], gap: float) -> None:
    """Every order is another integral; three of the numbers may be nearly parallel."""
    rows = np.random.default_rng(seed).normal(size=(4, 4))
    rows[1:3] = [[1], [-1]] * rows[0] + gap * rows[1:3]
    unit = rows / np.sqrt((rows**2).sum(axis=-1, keepdims=True))
    first, second = orthants.four(unit[None]), orthants.four(unit[None][:, order])
    assert abs(first[0] - second[0]) < 1e-14 / gap


# -- closed forms and quadrature -----------------------------------------------------------------------------


def distinct(functions: list[Expr], K: np.ndarray) -> float:
    """Return the average over distinct samples, one for each function."""
    value, _ = orthants.of_products([jumps(f, u) for f in functions], orthants.rows_of(K)[None])
    return float(value[0])


CLOSED = [
    [RELU, RELU, u**2, u],
    [STEP, STEP, u, u],
    [Abs(u) * u, SIGNS, u**2, 1 + u**2],
    [RELU**2, Abs(u), u**3],
    [MASS, STEP * u, u**2],
    [MASS, Abs(u), SIGNS, u],
    [DiracDelta(u, 1), RELU, u],
    [DiracDelta(u, 2), u**2, STEP],
    [MASS, MASS, RELU, u],
]


@pytest.mark.parametrize("functions", CLOSED, ids=str)
def test_symbolic_closed_forms(functions: list[Expr]) -> None:
    """The same averages over distinct samples, by the symbolic route in rational numbers."""
    n = len(functions)
    K = covariance(n, 3)
    found = distinct(functions, K)
    x = symbols(f"x:{n}", real=True)
    body = Rational(1)
    for f, y in zip(functions, x, strict=True):
        body *= f.subs(u, y)
    exact = GaussianAverage(body, x, Matrix(n, n, [Rational(float(k)) for k in K.ravel()])).doit()
    assert abs(found - float(exact.evalf(20))) < 1e-13 * max(1, abs(found))


def test_four_rectifiers_of_two_numbers_by_angles() -> None:
    """Four directions in a plane: a homogeneous function of degree 4 is 8 times its mean over angles."""
    rows = np.random.default_rng(3).normal(size=(4, 2))
    found = tensor([Abs(u)] * 4, rows @ rows.T).value[0, 1, 2, 3]
    corners = sorted(float(np.mod(np.arctan2(-a, b), np.pi)) for a, b in rows)

    def integrand(t: mpmath.mpf) -> mpmath.mpf:
        return mp.fprod(abs(a * mp.cos(t) + b * mp.sin(t)) for a, b in rows)

    direct = 8 / mp.pi * mp.quad(integrand, [0, *corners, mp.pi])
    assert abs(found - float(direct)) < 1e-9 * found  # the covariance itself was rounded


def test_four_signs_of_three_numbers() -> None:
    """The fourth number is the sum of the others: sampling, and a covariance that is not quite singular."""
    a = np.array([[1.0, 0.0, 0.0], [0.3, 1.0, 0.0], [-0.5, 0.2, 1.0]])
    rows = np.vstack([a, a.sum(axis=0)])
    found = tensor([SIGNS] * 4, rows @ rows.T).value[0, 1, 2, 3]
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1_000_000, 3)) @ rows.T
    sample = np.sign(x).prod(axis=1)
    assert excess((found - sample.mean()) / sample.std() * 1000) < 1
    jitter = tensor([SIGNS] * 4, rows @ rows.T + 1e-10 * np.eye(4)).value[0, 1, 2, 3]
    assert abs(found - jitter) < 1e-4  # of the order of the root of the change


@pytest.mark.parametrize(
    "functions",
    [
        [STEP, STEP, RELU, RELU],
        pytest.param([SIGNS] * 4, marks=pytest.mark.slow),
        pytest.param([Abs(u), STEP, SIGNS, u], marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_four_factors_by_sampling(functions: list[Expr]) -> None:
    K = covariance(4, 5)
    found = tensor(functions, K).value
    count = 100_000
    x = np.random.default_rng(2).normal(size=(count, 4)) @ np.linalg.cholesky(K).T
    values = [
        np.asarray(lambdify(u, f, ["numpy", {"Heaviside": lambda y: (y > 0) * 1.0}])(x)) for f in functions
    ]
    misses = []
    for index in product(range(4), repeat=4):
        sample = np.prod([v[:, i] for v, i in zip(values, index, strict=True)], axis=0)
        deviation = sample.std() / np.sqrt(count)
        if deviation > 0:
            misses.append((found[index] - sample.mean()) / deviation)
        else:
            assert abs(found[index] - sample[0]) < 1e-13
    assert excess(misses) < 1
    assert np.mean(np.square(misses)) < 2


@given(st.integers(0, 10_000))
@settings(max_examples=4, deadline=None)
def test_steins_lemma(seed: int) -> None:
    """``<u_a f(u_b) g(u_c) h(u_d)>`` with the point masses of slopes, at distinct samples."""
    K = covariance(4, seed)
    f, g, h = RELU, Abs(u), STEP * u**2
    left = tensor([u, f, g, h], K).value[0, 1, 2, 3]
    slopes = [[f.diff(u), g, h], [f, g.diff(u), h], [f, g, 2 * u * STEP]]
    right = [tensor(fs, K).value[1, 2, 3] for fs in slopes]
    assert abs(left - K[0, 1:] @ right) < 1e-12 * (1 + np.abs(right).max())


@pytest.mark.slow
@given(st.integers(0, 10_000))
@settings(max_examples=10, deadline=None)
def test_prices_theorem_with_point_masses(seed: int) -> None:
    K, step = covariance(4, seed) + 0.2 * np.eye(4), 1e-4
    moved = np.zeros((4, 4))
    moved[0, 1] = moved[1, 0] = step
    more, less = (tensor([SIGNS, STEP, RELU, Abs(u)], K + s * moved).value[0, 1, 2, 3] for s in (1, -1))
    slope = distinct([2 * MASS, MASS, RELU, Abs(u)], K)
    assert abs((more - less) / (2 * step) - slope) < 1e-6


# -- samples that coincide or nearly do ----------------------------------------------------------------------


def test_samples_that_are_equal_or_opposite() -> None:
    rows = np.array([[1.0, 0.5], [1.0, 0.5], [-2.0, -1.0], [0.3, 1.0]])
    K = rows @ rows.T
    steps, pair = tensor([STEP, STEP], K).value, tensor([SIGNS, Abs(u)], K).value
    assert abs(steps[0, 1] - 0.5) < 1e-12
    assert abs(steps[0, 2]) < 1e-12
    assert abs(pair[0, 1]) < 1e-12
    four = tensor([SIGNS] * 4, K).value
    assert abs(four[0, 1, 2, 3] - four[0, 0, 2, 3]) < 1e-12
    assert abs(four[0, 2, 0, 2] - 1) < 1e-12


@pytest.mark.parametrize("gap", [1e-4, 1e-8, 1e-12])
def test_nearly_equal_samples(gap: float) -> None:
    """Steps of numbers with correlation 1 - gap differ with probability arccos(1 - gap) / pi."""
    K = np.array([[1.0, 1.0 - gap], [1.0 - gap, 1.0]])
    exact = 0.5 - np.arccos(1.0 - gap) / (2 * np.pi)
    assert abs(tensor([STEP, STEP], K).value[0, 1] - exact) < 1e-15 / np.sqrt(gap) + 1e-14


def test_a_jump_on_a_point_mass_is_refused() -> None:
    K = covariance(2, 1)
    with pytest.raises(Ambiguous, match="DiracDelta"):
        tensor([STEP, MASS], K)
    assert np.isfinite(distinct([STEP, MASS], K))
    assert np.isfinite(tensor([RELU, MASS], K).value).all()
    with pytest.raises(Ambiguous, match=r"same variable|DiracDelta"):
        tensor([STEP, MASS], np.array([[1.0, 2.0], [2.0, 4.0]]) * K[0, 0])  # two samples that are one


def test_what_is_refused() -> None:
    with pytest.raises(Unserved, match="6 signs"):
        tensor([SIGNS] * 6, covariance(6, 1))
    with pytest.raises(Unserved, match=r"no values|point mass"):
        tensor([DiracDelta(u - 1), RELU], np.eye(2))
