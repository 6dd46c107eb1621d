"""Sums over modes at late times: against the sums themselves, at high precision."""

import mpmath as mp
import pytest
from sympy import Rational, S, exp, lambdify, oo, simplify, symbols, zeta

from derive.errors import NotApplicable
from derive.scale.mellin import mode_sum, moment

x, y = symbols("x y", positive=True)


def summed(F, a, b, at, digits=25):
    """The sum itself, by Euler and Maclaurin."""
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
    with pytest.raises(NotApplicable, match="diverges at large k"):
        mode_sum(exp(-y), y, 1, 2, x)


def test_symbols_leave_conditions():
    alpha, beta = symbols("alpha beta", positive=True)
    found = mode_sum((1 - exp(-y)) ** 2, y, alpha * (beta - 1) + 1, alpha, x)
    assert {simplify(p.power) for p in found.terms} == {1 - beta, 0}
    assert found.conditions.subs({alpha: 2, beta: 1}) == False  # noqa: E712  (a SymPy boolean)
    assert found.sorted({beta: 1 / (1 + y)}).terms[0].power == 1 - beta
    assert found.sorted({beta: 1 + y}).terms[0].coefficient == zeta(alpha * (beta - 1) + 1)
    with pytest.raises(NotApplicable, match="largest is open"):
        found.sorted()


def test_another_form_is_refused():
    with pytest.raises(NotApplicable, match="is no sum of"):
        mode_sum(1 / (1 + y**2), y, 2, 2, x)


def test_moments_are_integrals_where_these_converge():
    F = exp(-y) - exp(-2 * y)
    # sum of k^-7 F(k^-2 x): the integral over x of x times it
    one = sum(k ** -mp.mpf(7) * k**4 * (1 - mp.mpf(1) / 4) for k in range(1, 20000))
    assert abs(moment(F, y, 7, 2, 1).n(15) - one) < 1e-8
