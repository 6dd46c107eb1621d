"""Factors of a parameter, wherever they stand."""

import pytest
from sympy import Function, Integral, S, Sum, oo
from sympy.abc import k, s, t, x

from derive.errors import NotApplicable
from derive.reduce.data import at_limit

f, g = Function("f"), Function("g")


def test_a_factor_before_a_sum_goes_in():
    assert at_limit(Sum(x * f(k), (k, 0, 2)) / x, x, oo) == Sum(f(k), (k, 0, 2))
    nested = Integral(Sum((1 + x) * f(k) * g(s), (k, 0, 2)), (s, 0, t)) / x
    assert at_limit(nested, x, oo) == Integral(Sum(f(k) * g(s), (k, 0, 2)), (s, 0, t))
    assert at_limit(Sum(f(k), (k, 0, 2)) / x, x, oo) == 0


def test_powers_may_be_spread_over_two_sums():
    e = Sum(x * f(k), (k, 0, 2)) * Sum(g(s) / x, (s, 0, 3))
    assert at_limit(e, x, oo).doit().expand() == (Sum(f(k), (k, 0, 2)) * Sum(g(s), (s, 0, 3))).doit().expand()


def test_an_index_of_the_same_name_is_another():
    e = x * k * Sum(f(k) / (x * (1 + k / x)), (k, 0, 1))
    assert at_limit(e, x, oo).doit() == k * (f(0) + f(1))


@pytest.mark.parametrize(
    ("e", "reason"),
    [
        (Sum(x * f(k), (k, 0, 2)), "no finite limit"),
        (x * Sum(f(k), (k, 0, 2)), "no finite limit"),
        (Sum(f(k + x), (k, 0, 2)) / x, "may stand in other factors only"),
        (Sum(f(k), (k, 0, x)) / x, "the bounds"),
    ],
)
def test_other_dependence_is_refused(e, reason):
    with pytest.raises(NotApplicable, match=reason):
        at_limit(e, x, oo)
    assert at_limit(S.Zero, x, oo) == 0
