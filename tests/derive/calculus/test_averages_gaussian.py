"""Gaussian averages against quadrature, pairings and each other; Price's and Stein's lemmas."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp
from sympy import (
    Abs,
    Expr,
    Function,
    Heaviside,
    KroneckerDelta,
    Max,
    Piecewise,
    Rational,
    Symbol,
    cos,
    erf,
    exp,
    factorial,
    hermite_prob,
    lambdify,
    latex,
    sign,
    sin,
    symbols,
    tanh,
)

from derive.calculus.averages import Average
from derive.calculus.gaussian import GaussianAverage
from derive.program import alpha, mu, s, t
from derive.theory import gaussian
from tests.derive.once import mean_field, mlp

a, b = symbols("a b", positive=True)
c, x, y = symbols("c x y", real=True)
phi, u = Function("phi"), Function("u")
BOTH = {(x, x): a, (x, y): c, (y, y): b}
STEP = Rational(1, 5)  # of the trapezoidal rule
AT = {a: Rational(7, 5), b: Rational(4, 5), c: Rational(-3, 5)}


@pytest.fixture(autouse=True)
def precision() -> Iterator[None]:
    with mp.workdps(26):
        yield


def closed(e: Expr, at: dict[Symbol, Rational] = AT) -> mpmath.mpf:
    value = e.subs(at).evalf(30)
    assert value.is_Float or value.is_Rational, value
    return mp.mpf(value)


def quadrature(
    body: Expr, kink: bool = False, at: dict[Symbol, Rational] = AT, step: Rational = STEP
) -> mpmath.mpf:
    """Return ``<body>`` by the trapezoidal rule.

    Its error for analytic functions is exponentially small.
    """
    va, vb, vc = (mp.mpf(at[k].p) / at[k].q for k in (a, b, c))
    f: Callable[..., mpmath.mpf] = lambdify((x, y), body, "mpmath")
    slope, width, root, h = vc / va, mp.sqrt(vb - vc**2 / va), mp.sqrt(va), mp.mpf(step.p) / step.q

    def density(q: mpmath.mpf) -> mpmath.mpf:
        return mp.exp(-q * q / 2) / mp.sqrt(2 * mp.pi)

    last = int(11 / h)
    nodes = [(k * h, h * density(k * h)) for k in range(-last, last + 1)]

    def inner(p: mpmath.mpf) -> mpmath.mpf:
        """Return the integral over y at x = root * p, up to where the density of both is 1e-26."""
        return mp.fsum(w * f(root * p, slope * root * p + width * q) for q, w in nodes if p * p + q * q < 120)

    if kink:
        return mp.quad(lambda p: density(p) * inner(p), [-11, 0, 11], method="gauss-legendre")
    return mp.fsum(w * inner(p) for p, w in nodes)


def both_kinks(body: Expr, degree: int) -> mpmath.mpf:
    """Return the average in polar coordinates of functions with kinks on the axes.

    The functions are homogeneous of ``degree``.
    """
    va, vb, vc = (mp.mpf(AT[k].p) / AT[k].q for k in (a, b, c))
    f = lambdify((x, y), body, "mpmath")
    root, slope, width = mp.sqrt(va), vc / mp.sqrt(va), mp.sqrt(vb - vc**2 / va)
    turn = mp.atan2(-slope, width)
    corners = sorted({mp.mpf(0), mp.pi / 2, -mp.pi / 2, turn, turn - mp.pi, turn + mp.pi, mp.pi, -mp.pi})
    corners = [p for p in corners if -mp.pi <= p <= mp.pi]
    angular = mp.quad(
        lambda p: f(root * mp.cos(p), slope * mp.cos(p) + width * mp.sin(p)), corners, method="gauss-legendre"
    )
    radial = mp.quad(lambda q: q ** (degree + 1) * mp.exp(-q * q / 2), [0, 3, 8, 20])
    return angular * radial / (2 * mp.pi)


ONE = [
    (erf(x + 1) * x, False),
    (exp(x / 2) * erf(x), False),
    (x**2 * exp(-(x**2) / 3 + x), False),
    (cos(2 * x) ** 2 * x**2, False),
    (sin(x) * erf(x), False),
    (Max(0, x) ** 3, True),
    (Max(0, x - 1), True),
    (Abs(x) * x**2, True),
    (exp(x) * sign(x), True),
    (Piecewise((x, x > 0), (x / 10, True)) ** 2, True),
]


@pytest.mark.parametrize(("body", "kinks"), ONE, ids=[str(e) for e, _ in ONE])
def test_one_variable_to_twenty_digits(body: Expr, kinks: bool) -> None:
    found = closed(GaussianAverage(body, {(x, x): a}).doit())
    f, v = lambdify(x, body, "mpmath"), mp.mpf(AT[a].p) / AT[a].q
    direct = mp.quad(
        lambda p: mp.exp(-p * p / (2 * v)) / mp.sqrt(2 * mp.pi * v) * f(p), [-30, -9, 0, 1, 9, 30]
    )
    assert abs(found - direct) < mp.mpf(10) ** -20


TWO = [
    (x * y * erf(x) * erf(y / 2), False),
    (x**2 * sin(x) * sin(y), False),
    (exp(-(x**2) / 2 - x * y / 3) * y**2, False),
    (Max(0, x) ** 2 * y**2 * exp(y / 2), True),
    (erf(x) * erf(y), False),
    (erf(x) * exp(y) * y, False),
    (sign(x) * erf(y), True),
]
QUICK = [TWO[0]]


@pytest.mark.parametrize(
    ("body", "kink"),
    [pytest.param(*x, id=str(x[0]), marks=() if x in QUICK else pytest.mark.slow) for x in TWO],
)
def test_two_variables_to_twenty_digits(body: Expr, kink: bool) -> None:
    found = closed(GaussianAverage(body, BOTH).doit())
    assert abs(found - quadrature(body, kink)) < mp.mpf(10) ** -20


HOMOGENEOUS = [
    (Max(0, x) * Max(0, y), 2),
    (Max(0, x) ** 2 * Max(0, y) ** 2, 4),
    (Max(0, x) ** 3 * Max(0, y), 4),
    (Heaviside(x) * Heaviside(y), 0),
    (sign(x) * Abs(y) * x * y, 3),
    (Abs(x) * Abs(y) ** 3, 4),
]


@pytest.mark.parametrize(("body", "degree"), HOMOGENEOUS, ids=[str(e) for e, _ in HOMOGENEOUS])
def test_rectifiers_to_twenty_digits(body: Expr, degree: int) -> None:
    found = closed(GaussianAverage(body, BOTH).doit())
    assert abs(found - both_kinks(body, degree)) < mp.mpf(10) ** -20


def test_the_arcsine_and_arccosine_laws() -> None:
    """Williams (1998) for erf(x / sqrt 2) in its usual form; Cho and Saul (2009) for degree one."""
    from sympy import acos, asin, pi, sqrt

    found = GaussianAverage(erf(x / sqrt(2)) * erf(y / sqrt(2)), BOTH).doit()
    assert abs(closed(found - 2 / pi * asin(c / sqrt((1 + a) * (1 + b))))) < 1e-25
    angle = acos(c / sqrt(a * b))
    kernel = sqrt(a * b) / (2 * pi) * (sin(angle) + (pi - angle) * cos(angle))
    assert abs(closed(GaussianAverage(Max(0, x) * Max(0, y), BOTH).doit() - kernel)) < 1e-25


def test_signs_of_three_numbers_need_only_pairs() -> None:
    """<H(x) H(y) H(w)> = 1/8 + (asin + asin + asin) / 4 pi (Sheppard)."""
    from sympy import asin, pi

    w = Symbol("w", real=True)
    half = Rational(1, 2)
    cov = {(x, x): 1, (y, y): 1, (w, w): 1, (x, y): half, (x, w): -half / 2, (y, w): half / 3}
    found = GaussianAverage(Heaviside(x) * Heaviside(y) * Heaviside(w), cov).doit()
    assert (
        found - Rational(1, 8) - (asin(half) + asin(-half / 2) + asin(half / 3)) / (4 * pi)
    ).simplify() == 0


def test_hermite_polynomials_are_orthogonal() -> None:
    n, m = symbols("n m", integer=True, nonnegative=True)
    unit = {(x, x): 1, (x, y): c, (y, y): 1}
    found = GaussianAverage(hermite_prob(n, x) * hermite_prob(m, y), unit).doit()
    assert found in [KroneckerDelta(n, m) * factorial(k) * c**k for k in (n, m)]
    for i, j in product(range(4), repeat=2):
        explicit = GaussianAverage(hermite_prob(i, x) * hermite_prob(j, y), unit).doit()
        assert explicit.expand() == found.subs({n: i, m: j})


# -- polynomials against pairings ----------------------------------------------------------------------------


def pairings(letters: list[int], cov: list[list[Expr]]) -> Expr:
    """Return the average by Isserlis: the first letter is paired with each other one."""
    if not letters:
        return Rational(1)
    if len(letters) % 2:
        return Rational(0)
    first, rest = letters[0], letters[1:]
    return sum(cov[first][k] * pairings(rest[:i] + rest[i + 1 :], cov) for i, k in enumerate(rest))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(0, 2), max_size=6))
def test_polynomials_are_sums_over_pairings(letters: list[int]) -> None:
    names = symbols("x0:3", real=True)
    entries = [[Symbol(f"c{min(i, j)}{max(i, j)}") for j in range(3)] for i in range(3)]
    body = Rational(1)
    for k in letters:
        body *= names[k]
    cov = {(names[i], names[j]): entries[i][j] for i in range(3) for j in range(3)}
    assert (GaussianAverage(body, cov).doit() - pairings(letters, entries)).expand() == 0


# -- Price and Stein -----------------------------------------------------------------------------------------

parts = st.sampled_from([x, y, x * y, erf(x), exp(y / 3), sin(x + y), y**2, cos(x)])


@settings(max_examples=2, deadline=None)
@given(st.lists(parts, min_size=1, max_size=3), st.sampled_from([a, b, c]))
def test_price_is_the_derivative_of_the_closed_form(factors: list[Expr], entry: Symbol) -> None:
    body = Rational(1)
    for f in factors:
        body *= f
    folded = GaussianAverage(body, BOTH)
    direct = folded.doit()
    if direct.has(GaussianAverage):
        return
    with mp.workdps(40):
        gap = (folded.diff(entry).doit() - direct.diff(entry)).subs(AT).evalf(30, maxn=200)
        assert abs(complex(gap)) < 1e-20


@settings(max_examples=4, deadline=None)
@given(st.lists(parts, min_size=1, max_size=3), st.sampled_from([x, y]))
def test_stein_is_the_average_itself(factors: list[Expr], variable: Symbol) -> None:
    body = variable
    for f in factors:
        body *= f
    folded = GaussianAverage(body, BOTH)
    if folded.doit().has(GaussianAverage):
        return
    gap = (folded.stein(variable).doit() - folded.doit()).subs(AT).evalf(30, maxn=200)
    assert abs(complex(gap)) < 1e-20


@pytest.mark.slow
def test_stein_where_there_is_no_closed_form() -> None:
    body = x * tanh(x) * tanh(y)
    folded = GaussianAverage(body, BOTH)
    assert folded.doit() == folded
    traded = folded.stein(x)
    total = sum(
        closed(term / node) * quadrature(node.body)
        for term in traded.args
        for node in term.atoms(GaussianAverage)
    )
    assert abs(total - quadrature(body)) < mp.mpf(10) ** -18


def test_price_where_there_is_no_closed_form() -> None:
    price = GaussianAverage(tanh(x) * tanh(y), BOTH).diff(c)
    assert price == GaussianAverage((1 - tanh(x) ** 2) * (1 - tanh(y) ** 2), BOTH)
    step = Rational(1, 10**6)
    up, down = (quadrature(tanh(x) * tanh(y), at={**AT, c: AT[c] + k * step}) for k in (1, -1))
    rate = (up - down) / (2 * mp.mpf(step.p) / step.q)
    assert abs(quadrature(price.body) - rate) < mp.mpf(10) ** -10


def test_price_on_the_diagonal_halves() -> None:
    assert GaussianAverage(phi(x), {(x, x): a}).diff(a) == GaussianAverage(phi(x).diff(x, 2), {(x, x): a}) / 2


def test_price_follows_covariances_that_are_functions() -> None:
    C = Function("C")
    g = GaussianAverage(
        u(t) ** 2 * u(s) ** 2, {(u(t), u(t)): C(t, t), (u(t), u(s)): C(t, s), (u(s), u(s)): C(s, s)}
    )
    assert g.diff(C(t, s)).doit() == 4 * C(t, s)
    rate = g.diff(s).doit().expand() - g.doit().diff(s).expand()
    assert rate.doit().simplify() == 0


# -- structure -----------------------------------------------------------------------------------------------


def test_generic_functions_stay_folded_and_constants_come_out() -> None:
    folded = GaussianAverage(phi(x) * phi(y), BOTH)
    assert folded.doit() == folded
    assert (
        GaussianAverage(2 * a * phi(x) + x**2, BOTH).doit()
        == 2 * a * GaussianAverage(phi(x), {(x, x): a}) + a
    )
    apart = GaussianAverage(phi(x) * y**2, {(x, x): a, (y, y): b})
    assert apart.doit() == b * GaussianAverage(phi(x), {(x, x): a})


def test_variables_are_bound() -> None:
    folded = GaussianAverage(x * phi(y), BOTH)
    assert folded.subs(x, 3) == folded
    assert folded.diff(x) == 0
    assert folded.free_symbols == {a, b, c}
    assert folded.subs(c, 0).stein() == 0


def test_equal_times_make_one_variable() -> None:
    C = Function("C")
    two = GaussianAverage(u(t) * u(s), {(u(t), u(t)): C(t, t), (u(t), u(s)): C(t, s), (u(s), u(s)): C(s, s)})
    one = two.subs(s, t)
    assert one.variables == (u(t),)
    assert one.doit() == C(t, t)


def test_it_prints_folded() -> None:
    folded = GaussianAverage(phi(x) * phi(y), BOTH)
    assert str(folded) == "<phi(x)*phi(y)>_{x,y}"
    assert latex(folded).endswith(r"\right\rangle_{x,y}")


@pytest.mark.parametrize(
    ("pairs", "reason"),
    [
        ({(x, y): c, (y, y): b}, "variance of x is missing"),
        ({(x, x): a, (x, y): c, (y, x): b, (y, y): b}, "given as c and as b"),
        ({(x, x): -1}, "must not be negative"),
    ],
)
def test_impossible_covariances_are_refused(pairs: dict[tuple[Expr, Expr], Expr], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        GaussianAverage(x, pairs)


def test_stein_needs_a_gaussian_factor() -> None:
    with pytest.raises(ValueError, match="no factor"):
        GaussianAverage(phi(x), {(x, x): a}).stein()


def test_four_signs_have_no_closed_form_and_stay() -> None:
    assert GaussianAverage(erf(x) ** 4, {(x, x): a}).doit().has(GaussianAverage)


# -- from a theory -------------------------------------------------------------------------------------------


def test_an_average_over_sources_is_a_gaussian_integral() -> None:
    """In the first layer at initialisation h = u, so that Phi^1 is a function of the data kernel."""
    sources = mean_field(mlp(activation=phi)).sources
    found = gaussian(Average(phi(u(1, mu, t)) * phi(u(1, alpha, s))), sources)
    K = Function("K_x")
    assert found.covariance(u(1, mu, t), u(1, alpha, s)) in (K(mu, alpha), K(alpha, mu))
    assert gaussian(Average(u(2, 1, t) * u(2, 2, s)), sources).doit() in (
        Function("Phi")(1, 1, 2, t, s),
        Function("Phi")(1, 2, 1, s, t),
    )
    with pytest.raises(ValueError, match="not a Gaussian source"):
        gaussian(Average(Function("h")(1, mu, t)), sources)


# -- bound variables, covariances and Hermite polynomials ----------------------------------------------------


def test_a_substitution_does_not_capture_variables() -> None:
    """``<x sin(a x)>`` at a = x gave the average of ``x sin(x^2)``."""
    a, x = symbols("a x")
    average = GaussianAverage(x * sin(a * x), {(x, x): 1})
    assert average.subs(a, x).doit() == average.doit().subs(a, x) == x * exp(-(x**2) / 2)
    assert average.subs(x, a) == average.subs(symbols("b"), x) == average
    b = symbols("b")
    assert GaussianAverage(sin(a * b * x), {(x, x): 1}).subs(a * b, 2) == GaussianAverage(
        sin(2 * x), {(x, x): 1}
    )
    h = Function("h")
    of_field = GaussianAverage(h(t) * sin(a * h(t)), {(h(t), h(t)): 1})
    assert of_field.subs(a, h(t)).doit() == of_field.doit().subs(a, h(t))


def test_a_covariance_that_is_not_semidefinite_is_refused() -> None:
    """Its average of two signs was complex."""
    x, y, w = symbols("x y w")
    with pytest.raises(ValueError, match="must be positive semidefinite"):
        GaussianAverage(sign(x) * sign(y), {(x, x): 1, (y, y): 1, (x, y): 2})
    with pytest.raises(ValueError, match="must be positive semidefinite"):
        GaussianAverage(x * y, {(x, x): 0, (y, y): 1, (x, y): 1})
    low = Rational(-2, 3)  # every pair of the three has a positive determinant
    with pytest.raises(ValueError, match="must be positive semidefinite"):
        GaussianAverage(x * y * w, [x, y, w], [[1, low, low], [low, 1, low], [low, low, 1]])
    half = Rational(-1, 2)
    singular = [[1, half, half], [half, 1, half], [half, half, 1]]
    assert GaussianAverage(x * y, [x, y, w], singular).doit() == half
    assert GaussianAverage(x * y, {(x, x): 0.01, (y, y): 0.09, (x, y): 0.03}).doit() == 0.03


def test_hermite_polynomials_of_neighbouring_and_equal_orders() -> None:
    x, n = Symbol("x"), Symbol("n", integer=True, nonnegative=True)
    at_one = {(x, x): 1}
    assert GaussianAverage(hermite_prob(n, x) * hermite_prob(n + 1, x), at_one).doit() == 0
    assert GaussianAverage(hermite_prob(n, x) ** 2, at_one).doit() == factorial(n)


def test_a_covariance_of_another_variable_is_refused() -> None:
    x, y = symbols("x y")
    with pytest.raises(ValueError, match="y is not a variable of the average, whose variables are x"):
        GaussianAverage(x, {(x, x): 1}).covariance(y, x)
