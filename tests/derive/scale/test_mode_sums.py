"""Sums over modes at late times: against the sums themselves, at high precision."""

import mpmath as mp
import numpy as np
import pytest
from sympy import Rational, S, exp, lambdify, oo, simplify, symbols, zeta

from derive.errors import NotApplicable
from derive.scale.mellin import convolution, euler, mode_sum, moment, unit

x, y = symbols("x y", positive=True)


def summed(F, a, b, at, digits=25):
    """Return the sum itself, by Euler and Maclaurin."""
    a, b, f = S(a), S(b), lambdify(y, F, "mpmath")
    with mp.workdps(digits):
        a, b = mp.mpf(a.p) / a.q, mp.mpf(b.p) / b.q
        return mp.nsum(lambda k: k**-a * f(at * k**-b), [1, mp.inf], method="e")


EXPONENTIAL = [
    (exp(-2 * y), 3, 2),
    ((1 - exp(-y)) ** 2, Rational(1, 2), 2),
    ((1 - exp(-y)) / y, 2, 2),
    (y * exp(-y) - y**2 * exp(-3 * y), Rational(2, 3), 2),
]


@pytest.mark.parametrize(("F", "a", "b"), EXPONENTIAL)
def test_exponential_sums_are_exact_beyond_all_powers(F, a, b):
    found = mode_sum(F, y, a, b, x)
    assert found.error == -oo
    exact = summed(F, a, b, 2000)
    assert abs(found.expr.subs(x, 2000).n(25) / exact - 1) < 1e-12


@pytest.mark.parametrize(
    ("F", "a", "b"), [(1 / (1 + y) ** 2, 2, Rational(3, 2)), (y / (1 + 2 * y) ** 2, 2, 2)]
)
@pytest.mark.parametrize("terms", [1, 3])
def test_algebraic_tails_leave_the_power_that_is_said(F, a, b, terms):
    found = mode_sum(F, y, a, b, x, terms=terms)
    left = [abs(summed(F, a, b, at, 30) - found.expr.subs(x, at).n(30)) for at in (200, 400)]
    # no larger than the power that is left out
    assert left[1] <= left[0] * 2 ** float(found.error) * 1.1 or left[1] < 1e-18


@pytest.mark.parametrize(("F", "a", "b"), [((1 - exp(-y)) ** 2, 1, 2), (1 / (1 + y), 3, 2)])
def test_a_logarithm_where_powers_meet(F, a, b):
    found = mode_sum(F, y, a, b, x, terms=6)
    assert {p.logs for p in found.terms} >= {0, 1}
    assert abs(found.expr.subs(x, 2000).n(25) / summed(F, a, b, 2000) - 1) < 1e-12


def test_a_sum_that_diverges_is_refused():
    with pytest.raises(NotApplicable, match="must converge at large k"):
        mode_sum(exp(-y), y, 1, 2, x)


def test_symbols_leave_conditions():
    alpha, beta = symbols("alpha beta", positive=True)
    found = mode_sum((1 - exp(-y)) ** 2, y, alpha * (beta - 1) + 1, alpha, x)
    assert {simplify(p.power) for p in found.terms} == {1 - beta, 0}
    assert found.conditions.subs({alpha: 2, beta: 1}) == False  # noqa: E712  (a SymPy boolean)
    assert found.sorted({beta: 1 / (1 + y)}).terms[0].power == 1 - beta
    assert found.sorted({beta: 1 + y}).terms[0].coefficient == zeta(alpha * (beta - 1) + 1)
    with pytest.raises(NotApplicable, match="is known to be larger"):
        found.sorted()


def test_another_form_is_refused():
    with pytest.raises(NotApplicable, match="must be a constant times"):
        mode_sum(1 / (1 + y**2), y, 2, 2, x)


def test_moments_are_integrals_where_these_converge():
    F = exp(-y) - exp(-2 * y)
    # sum of k^-7 F(k^-2 x): the integral over x of x times it
    one = sum(k ** -mp.mpf(7) * k**4 * (1 - mp.mpf(1) / 4) for k in range(1, 20000))
    assert abs(moment(F, y, 7, 2, 1).n(15) - one) < 1e-8


@pytest.mark.parametrize(("a", "less", "early"), [("5/2", 1, 1), ("7/2", 1, 1), ("5/2", 1, 2), ("7/2", 0, 1)])
def test_products_of_sums_over_time_leave_the_power_that_is_said(a, less, early):
    """The remainder falls as the first omitted moment, compared with quadrature of the sums."""
    a = Rational(a)
    found = convolution((exp(-y), 2), (exp(-y), a), y, 1, x, less=less, early=early)

    k = np.arange(1, 1001.0)
    nodes, weights = np.polynomial.legendre.leggauss(120)
    low, high = np.log(1000.5), np.log(1e12)
    far = np.exp(low + (high - low) * (nodes + 1) / 2)
    k, count = np.append(k, far), np.append(np.ones(1000), weights * (high - low) / 2 * far)

    def left(at):
        u = np.concatenate([b + (c - b) * (nodes + 1) / 2 for b, c in ((0, 1), (1, 8), (8, at))])
        w = np.concatenate([(c - b) / 2 * weights for b, c in ((0, 1), (1, 8), (8, at))])
        D = np.array([np.sum(count * k ** -float(a) * np.exp(-z / k)) for z in u])
        W = 1 / (2 * at - less * u)  # the sum over k^-2 exp(-z/k) beyond all powers
        return abs(w @ (D * W) - float(found.expr.subs(x, at)))

    if found.error == -oo:
        assert left(60) < 1e-7
    else:
        assert left(80) < 1.15 * left(40) * 2 ** float(found.error)


def test_products_whose_powers_meet_are_refused():
    with pytest.raises(NotApplicable, match="logarithm"):
        convolution((exp(-y), 2), (exp(-y), 2), y, 1, x, less=1)


def test_eulers_integrals():
    for q, r, less in ((0.5, 1.5, 1), (0.25, -0.25, 0.5), (0.75, 0.75, 1)):
        found = mp.quad(lambda z, q=q, r=r, less=less: z**q * (2 - less * z) ** r, [0, 1])
        assert abs(euler(Rational(q), Rational(r), Rational(less)).n(15) - found) < 1e-6
    assert unit(S(1) / 2, S.Zero) == Rational(2, 3)
