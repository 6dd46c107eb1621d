"""Single averages: the method that is chosen, and its value against others."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from mpmath import mp
from numpy.typing import NDArray
from sympy import (
    Abs,
    Contains,
    DiracDelta,
    Expr,
    Function,
    Heaviside,
    I,
    Interval,
    Lambda,
    Max,
    Mod,
    Piecewise,
    Rational,
    Symbol,
    ceiling,
    cos,
    coth,
    erf,
    exp,
    floor,
    lambdify,
    log,
    nan,
    oo,
    sin,
    sqrt,
    symbols,
    tan,
    tanh,
    zoo,
)

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.jumps import Ambiguous
from numerics.averages import Value, average, tensor
from numerics.errors import NotConverged, SpecError, Unserved
from tests.chance import excess

x, y, z, w = symbols("x y z w", real=True)
K = np.array([[0.9, 0.3, -0.2, 0.1], [0.3, 0.7, 0.2, 0.0], [-0.2, 0.2, 1.1, 0.4], [0.1, 0.0, 0.4, 0.6]])

METHODS = [
    (erf(x) * erf(y) * z * w, "closed form"),
    (Max(0, x + y) * Abs(z - w), "closed form"),
    (sin(x + 2 * y) * z, "closed form"),
    (tanh(x) * tanh(y) * tanh(z) * w, "lattice"),
    (tanh(x + y) * tanh(z) + 2 * w**2, "lattice"),
    (erf(x) * erf(y) * erf(z) * erf(w), "lattice"),
    (Max(0, x) * Max(0, y) * Max(0, z) * Max(0, w), "orthants"),
    (Heaviside(x - y) * Heaviside(y) * Heaviside(z + w) * Max(0, w), "closed form"),
    (Max(0, x - 1) * tanh(y), "panels"),
    (tanh(x * y), "lattice"),
    (log(1 + exp(x)) * Max(0, y), "panels"),
    (tanh(x) * y + Max(0, x - 1) * tanh(y), "lattice, panels"),
]


@cache
def sample() -> NDArray[np.float64]:
    """Draw Gaussian variables of covariance K."""
    return np.random.default_rng(4).normal(size=(400_000, 4)) @ np.linalg.cholesky(K).T


@pytest.mark.parametrize(("body", "method"), METHODS, ids=[str(b) for b, _ in METHODS])
def test_values_and_methods(body: Expr, method: str) -> None:
    """Against sampling."""
    found = average(body, (x, y, z, w), K)
    assert set(found.method.split(", ")) == set(method.split(", "))
    values = lambdify((x, y, z, w), body, ["scipy", "numpy"])(*sample().T)
    assert excess((found.value - values.mean()) / values.std() * np.sqrt(len(values))) < 1
    assert found.error < 1e-9


def test_two_routes_agree() -> None:
    """Closed forms against what comes without them: the same functions in disguise."""
    rescaled = tensor([erf(x), erf(x)], K[:2, :2]).value[0, 1]
    assert abs(average(erf(x) * erf(y), (x, y), K[:2, :2]).value - rescaled) < 1e-11
    orthants = tensor([Max(0, x), Max(0, x) ** 2], K[:2, :2]).value[0, 1]
    assert abs(average(Max(0, x) * Max(0, y) ** 2, (x, y), K[:2, :2]).value - orthants) < 1e-14


def test_an_average_object_brings_its_covariance() -> None:
    both = {(x, x): 1, (x, y): Rational(1, 3), (y, y): 2}
    found = average(GaussianAverage(x**2 * y**2, both))
    assert found == Value(2 + Rational(2, 9), found.error, "closed form") or abs(found.value - 20 / 9) < 1e-15
    assert abs(float(found) - 20 / 9) < 1e-15


def test_fields_are_variables() -> None:
    h = Function("h")
    found = average(h(1) * h(2), (h(1), h(2)), [[1, 0.25], [0.25, 1]])
    assert abs(found.value - 0.25) < 1e-15


def test_kinks_off_zero_to_twelve_digits() -> None:
    found = average(Max(0, x - 1) * tanh(x), (x,), [[0.9]])
    direct = mp.quad(
        lambda q: mp.npdf(q) * (mp.sqrt(0.9) * q - 1) * mp.tanh(mp.sqrt(0.9) * q), [1 / mp.sqrt(0.9), 4, 12]
    )
    assert abs(found.value - float(direct)) < 1e-12


def test_point_masses_among_other_functions() -> None:
    """Conditioning: the symbolic route takes any function along."""
    found = average(DiracDelta(x) * cos(y), (x, y), K[:2, :2])
    left = K[1, 1] - K[0, 1] ** 2 / K[0, 0]
    assert abs(found.value - np.exp(-left / 2) / np.sqrt(2 * np.pi * K[0, 0])) < 1e-14
    found = average(DiracDelta(x) * tanh(y) ** 2, (x, y), K[:2, :2])
    expected = average(tanh(y) ** 2, (y,), [[left]]).value / np.sqrt(2 * np.pi * K[0, 0])
    assert abs(found.value - expected) < 1e-10


def test_constants_and_no_variance() -> None:
    assert average(3, (x,), [[1.0]]).value == 3.0
    assert abs(average(tanh(x + 1), (x,), [[0.0]]).value - np.tanh(1)) < 1e-15


@pytest.mark.parametrize("body", [tan(x), y / x, 1 / (x - y), 1 / sin(x), x / (x**2 - 1), coth(x)])
def test_means_that_do_not_exist_are_refused(body: Expr) -> None:
    """Symmetry would make most of them zero."""
    with pytest.raises(NotConverged, match=r"does not exist.*pole"):
        average(body, (x, y), [[1.0, 0.0], [0.0, 1.0]])


def test_a_singularity_that_is_integrable_or_cut_off_is_averaged() -> None:
    assert average(log(Abs(x)), (x,), [[1.0]]).value == pytest.approx(-(np.euler_gamma + np.log(2)) / 2)
    assert average(DiracDelta(x - 1) / x, (x,), [[1.0]]).value == pytest.approx(
        np.exp(-0.5) / np.sqrt(2 * np.pi)
    )


def test_what_is_refused() -> None:
    one, two = (x,), (x, y)
    with pytest.raises(SpecError, match="unknown symbols a"):
        average(Symbol("a") * x, one, [[1.0]])
    with pytest.raises(SpecError, match=r"variables = .*a list of symbols"):
        average(tanh(x), ("x",), [[1.0]])
    for covariance in ([[1.0]], [[1.0, 0.0], [0.0]], None):
        with pytest.raises(SpecError, match="has the shape"):
            average(x * y, two, covariance)
    for rtol in (0, -1.0, np.nan, "small"):
        with pytest.raises(SpecError, match="is not a relative tolerance"):
            average(tanh(x), one, [[1.0]], rtol)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="negative eigenvalue"):
        average(x * y, two, [[1.0, 2.0], [2.0, 1.0]])
    with pytest.raises(Ambiguous):
        average(Heaviside(x) * DiracDelta(x), one, [[1.0]])
    with pytest.raises(Unserved, match="is over 3 variables"):
        average(tanh(x * y * z), (x, y, z), K[:3, :3])
    overflow = r"of .*exp\(_x\*\*2\).*infinite or overflows .* smaller variances"
    with pytest.raises(NotConverged, match=overflow):
        average(exp(x**2) * tanh(x) ** 2, one, [[1.0]])
    assert average(exp(x**2 / 4), one, [[1.0]]).value == pytest.approx(float(sqrt(2)), rel=1e-14)


@pytest.mark.parametrize(
    "functions", [[Max(0, x - 1), np.tanh], [np.tanh, Max(0, x - 1)], [np.tanh, Max(0, x)]]
)
def test_a_callable_beside_a_kink_is_refused_in_any_order(functions: list[Any]) -> None:
    with pytest.raises(Unserved, match="as a SymPy expression"):
        tensor(functions, K[:2, :2])


def test_cases_of_several_conditions() -> None:
    """<x; 0 < x < 1> = (1 - exp(-1/2))/sqrt(2 pi), and cases with a condition on each variable."""
    inside = Piecewise((x, (x > 0) & (x < 1)), (0, True))
    exact = (1 - np.exp(-1 / 2)) / np.sqrt(2 * np.pi)
    assert abs(tensor([inside], [[1.0]]).value[0] - exact) < 1e-11
    assert abs(average(inside, (x,), [[1]]).value - exact) < 1e-11
    outside = Piecewise((x, (x < 0) | (x > 1)), (0, True))
    assert abs(average(outside, (x,), [[1]]).value + exact) < 1e-11
    both = Piecewise((x, (x > 0) & (y < 1)), (0, True))
    product = average(Max(0, x) * Heaviside(1 - y), (x, y), K[:2, :2], 1e-9)
    assert abs(average(both, (x, y), K[:2, :2], 1e-9).value - product.value) < 1e-9


BAD_FUNCTIONS = [
    (Lambda(x, x * y), "is not a function of one variable"),
    (Lambda((x, y), x * y), "is not a function of one variable"),
    (x * y, "is not a function of one variable"),
    ("tanh(", "is not a function of one variable"),
    (object(), "is not a function of one variable"),
    (x > 0, "is not a function of one variable"),
    (I * x**2, "not real numbers"),
    (zoo, "contains an infinite or undefined number"),
]


@pytest.mark.parametrize(("function", "reason"), BAD_FUNCTIONS)
def test_functions_that_are_refused(function: Any, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        tensor([function], [[1.0]])


BAD_BODIES = [
    (I * tanh(x), "not real numbers"),
    (exp(I * x) * tanh(x), "not real numbers"),
    (nan, "contains an infinite or undefined number"),
    (oo, "contains an infinite or undefined number"),
    (x > 0, "is not an expression"),
    (Lambda(x, x), "is not an expression"),
    ("tanh(", "is not an expression"),
]


@pytest.mark.parametrize(("body", "reason"), BAD_BODIES)
def test_bodies_that_are_refused(body: Any, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        average(body, (x,), [[1]])


def test_real_bodies_in_complex_form() -> None:
    mean = average((exp(I * x) + exp(-I * x)) * tanh(x) ** 2, (x,), [[1]]).value
    assert abs(mean - average(2 * cos(x) * tanh(x) ** 2, (x,), [[1]]).value) < 1e-12
    assert average(I * x, (x,), [[1]]).value == 0


@pytest.mark.parametrize("body", [floor(x), Mod(x, 1) * tanh(x), ceiling(x) * Max(x, 1)])
def test_infinitely_many_jumps_are_refused(body: Expr) -> None:
    for run in (lambda: average(body, (x,), [[1]]), lambda: tensor([body], [[1.0]])):
        with pytest.raises(Unserved, match="whose jumps are not located"):
            run()


def test_unknown_functions_and_conditions_are_refused() -> None:
    with pytest.raises(Unserved, match="unknown function"):
        average(Function("f")(x), (x,), [[1]])
    with pytest.raises(Unserved, match="not a comparison"):
        tensor([Piecewise((x, Contains(x, Interval(0, 1))), (0, True))], [[1.0]])
    for variables in (x, (x, x)):
        with pytest.raises(SpecError, match="are not different symbols"):
            average(tanh(x), variables, np.eye(2))  # type: ignore[arg-type]


@pytest.mark.parametrize("covariance", [[[1.0, 1e-17], [0.0, 1.0]], [[4.0, -3e-16], [3e-16, 9.0]]])
def test_covariances_that_are_symmetric_up_to_rounding(covariance: Any) -> None:
    """Independent variables, from a product of matrices."""
    assert tensor([tanh(x), tanh(x)], covariance).value[0, 1] == pytest.approx(0, abs=1e-12)
    assert average(tanh(x) * tanh(y), (x, y), covariance).value == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    "covariance", [[[1.0, 1e-9], [0.0, 1.0]], [[1e-20, 1e-17], [0.0, 1.0]], None, "x", [["a", 1], [1, 1]]]
)
def test_covariances_that_are_refused(covariance: Any) -> None:
    with pytest.raises(SpecError, match=r"covariance"):
        tensor([tanh(x), tanh(x)], covariance)
    with pytest.raises(SpecError, match=r"covariance"):
        average(tanh(x) * tanh(y), (x, y), covariance)
