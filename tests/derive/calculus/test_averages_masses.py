"""Point masses inside Gaussian averages; Price, Hermite and Isserlis: against quadrature and each other."""

from __future__ import annotations

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from sympy import (
    Abs,
    DiracDelta,
    Expr,
    Float,
    Function,
    Heaviside,
    Matrix,
    Max,
    Rational,
    cos,
    diff,
    erf,
    exp,
    factorial,
    hermite_prob,
    lambdify,
    pi,
    sign,
    sin,
    sqrt,
    symbols,
    tanh,
)

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.jumps import Ambiguous

x, y, z = symbols("x y z", real=True)
a, b, c = symbols("a b c", positive=True)
phi = Function("phi")
K = {(x, x): Rational(7, 5), (x, y): -Rational(3, 5), (y, y): Rational(4, 5)}


def on_the_line(body: Expr, at: float = 0) -> mpmath.mpf:
    """Return ``<delta(x - at) body(y)>`` by quadrature over y, from the joint density."""
    va, vb, vc = (mp.mpf(v.p) / v.q for v in (K[x, x], K[y, y], K[x, y]))
    f, det = lambdify(y, body, "mpmath"), va * vb - vc**2

    def density(q: mpmath.mpf) -> mpmath.mpf:
        form = (vb * at**2 - 2 * vc * at * q + va * q**2) / det
        return mp.exp(-form / 2) / (2 * mp.pi * mp.sqrt(det))

    return mp.quad(lambda q: density(q) * f(q), [-15, -4, 0, 1, 4, 15])


def number(e: Expr) -> mpmath.mpf:
    value = e.evalf(25)
    assert value.is_Float or value.is_Rational, value
    return mp.mpf(value)


@pytest.mark.parametrize("body", [y**2, erf(y), Max(0, y), sign(y) * y, cos(y) * y**2, Heaviside(y)], ids=str)
@pytest.mark.parametrize("at", [pytest.param(0, marks=pytest.mark.slow), Rational(1, 2)])
def test_a_point_mass_conditions(body: Expr, at: Expr) -> None:
    with mp.workdps(25):
        found = number(GaussianAverage(DiracDelta(x - at) * body, K).doit())
        assert abs(found - on_the_line(body, mp.mpf(at))) < mp.mpf(10) ** -15


@pytest.mark.parametrize(("body", "order"), [(cos(y), 1), (Max(0, y), 1), (Max(0, y), 2)], ids=str)
def test_derivatives_of_a_point_mass(body: Expr, order: int) -> None:
    """``<delta^(n)(x) F> = (-1)^n d^n/dt^n <delta(x - t) F>`` at ``t = 0``, from the quadrature."""
    with mp.workdps(20):
        found = number(GaussianAverage(DiracDelta(x, order) * body, K).doit())
        direct = (-1) ** order * mp.diff(lambda t: on_the_line(body, t), 0, order)
        assert abs(found - direct) < mp.mpf(10) ** -9


def test_slopes_of_rectifiers_are_consistent() -> None:
    """``d<F>/dc`` of closed forms agrees with Price's theorem, with its point masses."""
    both = {(x, x): a, (x, y): c, (y, y): b}
    at = {a: Rational(7, 5), b: Rational(4, 5), c: Rational(2, 5)}
    for body in (Max(0, x) * Max(0, y), Abs(x) * Max(0, y) ** 2, sign(x) * erf(y), sign(x) * sign(y)):
        average = GaussianAverage(body, both)
        for parameter in (a, b, c):
            direct = average.doit().diff(parameter).subs(at).evalf(20)
            assert abs(average.diff(parameter).doit().subs(at).evalf(20) - direct) < 1e-15
    assert (
        GaussianAverage(Max(0, x) * Max(0, y), both)
        .price(x, x)
        .doit()
        .equals(2 * GaussianAverage(Max(0, x) * Max(0, y), both).doit().diff(a))
    )


@pytest.mark.parametrize(
    "body",
    [
        Heaviside(x) * DiracDelta(x),
        DiracDelta(x) * DiracDelta(2 * x),
        sign(x - y) * DiracDelta(y - x),
        Max(0, x) * DiracDelta(x, 1),
        DiracDelta(x) ** 2,
        sign(x) ** 2 * DiracDelta(x),
    ],
    ids=str,
)
def test_jumps_on_point_masses_are_refused(body: Expr) -> None:
    with pytest.raises(Ambiguous):
        GaussianAverage(body, K).doit()


def test_what_vanishes_outweighs_a_point_mass() -> None:
    assert GaussianAverage(Max(0, x) * DiracDelta(x) * y**2, K).doit() == 0
    assert GaussianAverage(x * phi(y) * DiracDelta(x), K).doit() == 0


def test_equal_and_opposite_numbers() -> None:
    """A singular covariance: y = -2 x, so that a point mass of x decides on the sign of y."""
    line = {(x, x): 1, (x, y): -2, (y, y): 4}
    with pytest.raises(Ambiguous):
        GaussianAverage(sign(y) * DiracDelta(x), line).doit()
    assert GaussianAverage(phi(y) * DiracDelta(x - 1), line).doit() == phi(-2) * exp(-Rational(1, 2)) / sqrt(
        2 * pi
    )
    assert GaussianAverage(sign(x) * sign(y), line).doit() == -1


def test_an_unknown_function_stays_under_the_condition() -> None:
    found = GaussianAverage(DiracDelta(x) * phi(x) * phi(y), K).doit()
    rest = found.atoms(GaussianAverage).pop()
    assert rest.variables == (y,)
    assert rest.matrix[0] == K[y, y] - K[x, y] ** 2 / K[x, x]
    assert found == phi(0) * rest / sqrt(2 * pi * K[x, x])


# -- Hermite, Isserlis, Price --------------------------------------------------------------------------------


def by_quadrature(average: GaussianAverage) -> Float:
    """Return an average over one variable."""
    g, root = lambdify(x, average.body, "mpmath"), mp.sqrt(mp.mpf(average.matrix[0].p) / average.matrix[0].q)
    return Float(mp.quad(lambda q: mp.npdf(q) * g(root * q), [-12, -5, -2, 0, 2, 5, 12]))


@pytest.mark.parametrize(
    "body",
    [
        tanh(x),
        Max(0, x),
        *(pytest.param(y, marks=pytest.mark.slow) for y in (x**3 + exp(x / 2), erf(x), Abs(x))),
    ],
    ids=str,
)
def test_hermite_coefficients_are_projections(body: Expr) -> None:
    """``<F He_n> / n!`` by quadrature, in a variable of variance 9/4."""
    v = Rational(9, 4)
    for n in range(5):
        found = GaussianAverage(body, {(x, x): v}).hermite(n).doit()
        value = found.replace(lambda e: isinstance(e, GaussianAverage), by_quadrature).evalf(20)
        polynomial = hermite_prob(n, 2 * x / 3) / factorial(n)
        assert abs(value - by_quadrature(GaussianAverage(body * polynomial, {(x, x): v}))) < 1e-10, n


def test_hermite_series_add_up() -> None:
    """``<F G> = sum_n n! f_n g_n r^n`` for functions of two numbers with correlation r (Mehler)."""
    both = {(x, x): 1, (x, y): Rational(1, 3), (y, y): 1}
    f, g = sin(x), exp(y / 2) * y
    total = 0.0
    for n in range(11):
        first = GaussianAverage(f, {(x, x): 1}).hermite(n).doit()
        second = GaussianAverage(g, {(y, y): 1}).hermite(n).doit()
        total += float(mp.factorial(n)) * float(first) * float(second) / 3**n
    assert abs(total - float(GaussianAverage(f * g, both).doit())) < 1e-9


def test_hermite_in_several_variables() -> None:
    """The coefficient of one variable while another depends on it: ``<He_2(x) F> / 2``."""
    both = {(x, x): a, (x, y): c, (y, y): b}
    found = GaussianAverage(x * y**3, both).hermite(2, x).doit()
    direct = GaussianAverage((x**2 / a - 1) * x * y**3, both).doit() / 2
    assert (found - direct).expand() == 0


ENTRIES = st.lists(st.integers(-3, 3), min_size=9, max_size=9)


@given(ENTRIES, st.lists(st.integers(0, 3), min_size=3, max_size=3))
@settings(max_examples=6, deadline=None)
def test_isserlis_is_the_generating_function(entries: list[int], powers: list[int]) -> None:
    """Derivatives of ``exp(t.K t / 2)`` at zero."""
    rows = [entries[0:3], entries[3:6], entries[6:9]]
    k = [[sum(p * q for p, q in zip(r, s, strict=True)) for s in rows] for r in rows]
    t = symbols("t:3")
    generating = exp(sum(k[i][j] * t[i] * t[j] for i in range(3) for j in range(3)) / 2)
    for s, n in zip(t, powers, strict=True):
        generating = diff(generating, s, n).subs(s, 0) if n else generating.subs(s, 0)
    average = GaussianAverage(x ** powers[0] * y ** powers[1] * z ** powers[2], (x, y, z), Matrix(k))
    assert average.isserlis() == generating == average.doit()


def test_isserlis_leaves_unknown_functions() -> None:
    three = {(x, x): 1, (y, y): 1, (z, z): a, (x, y): b, (x, z): c}
    found = GaussianAverage(x * y * phi(z), three).isserlis()
    assert found == b * GaussianAverage(phi(z), {(z, z): a})
    also = GaussianAverage(x * y * phi(z), three | {(y, z): b}).isserlis()
    assert also == found + c * b * GaussianAverage(phi(z).diff(z, 2), {(z, z): a})


def test_wrong_requests_are_refused() -> None:
    both = GaussianAverage(phi(x) * phi(y), K)
    with pytest.raises(ValueError, match="z is not a variable of the average, whose variables are x, y"):
        both.price(x, z)
    with pytest.raises(ValueError, match="variable = None: must be one of"):
        both.hermite(2)
    with pytest.raises(ValueError, match="n = -1"):
        both.hermite(-1, x)


def test_divergent_integrals_stay_unevaluated() -> None:
    """With two growing directions the determinant is positive again."""
    unit = {(x, x): 1, (y, y): 1}
    assert GaussianAverage(exp(x**2 + y**2), unit).doit().has(GaussianAverage)
    assert GaussianAverage(exp(x**2 / 4 + y**2 / 4), unit).doit() == 2
