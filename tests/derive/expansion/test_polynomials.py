"""Sums of polynomials over layers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import QQ, Expr, S, Symbol, expand, factor_list, prod
from sympy.polys.polyerrors import CoercionFailed

from derive import mean_field, mlp
from derive.calculus.recurrences import GridTooSmall, Layered, ValueGrid, factored, prime_factors
from derive.calculus.symbols import L, ell
from derive.expansion.operator_words import linear_series
from derive.linear.closure import linear_closure

NUMBERS, a = Layered(), Symbol("a")
coefficients = st.lists(st.integers(-9, 9), min_size=1, max_size=6)


@given(coefficients, st.integers(0, 8), st.integers(0, 8))
def test_a_sum_over_layers_is_the_sum_of_its_values(cs: list[int], lower: int, count: int) -> None:
    p = NUMBERS.of(sum(c * ell**k for k, c in enumerate(cs)))
    found = NUMBERS.expr(NUMBERS.summed(p, lower, ell))
    by_hand = sum(c * n**k for n in range(lower, lower + count) for k, c in enumerate(cs))
    assert found.subs(ell, lower + count - 1) == by_hand


@given(coefficients)
@settings(max_examples=25)
def test_a_sum_solves_its_recursion_with_symbolic_ends(cs: list[int]) -> None:
    p = NUMBERS.of(sum(c * ell**k * L for k, c in enumerate(cs)))
    total = NUMBERS.expr(NUMBERS.summed(p, ell, L))
    step = total.subs(ell, ell + 1) - total + NUMBERS.expr(p)
    assert expand(step) == 0
    assert expand(total.subs(ell, L + 1)) == 0


@pytest.mark.parametrize("power", range(12))
def test_power_sums(power: int) -> None:
    total = NUMBERS.expr(NUMBERS.summed(NUMBERS.of(ell**power), 1, ell))
    assert total.subs(ell, 7) == sum(k**power for k in range(1, 8))


def test_layers_are_moved() -> None:
    p = NUMBERS.of(ell**2 * L)
    assert NUMBERS.expr(NUMBERS.moved(p, ell - 1)) == expand((ell - 1) ** 2 * L)
    assert NUMBERS.expr(NUMBERS.moved(p, L + 1)) == expand((L + 1) ** 2 * L)


@pytest.mark.parametrize("layer", [ell + 1, ell - 2, L + 1, L, S(0), S(9)])
@pytest.mark.parametrize("e", [L * ell + ell**2 / 3 - 1, a * ell + L, ell**3 * L])
def test_values_on_a_grid_are_the_polynomial(e: Expr, layer: Expr) -> None:
    grid, ring = ValueGrid(5, [a]), Layered([a])
    p, q = grid.of(e), ring.of(e)
    assert grid.expr(p) == expand(e)
    assert grid.expr(grid.moved(p, layer)) == ring.expr(ring.moved(q, layer))
    assert grid.expr(grid.summed(p, 2, layer)) == ring.expr(ring.summed(q, 2, layer))
    with pytest.raises(GridTooSmall):
        grid.of(ell**3) * grid.of(L**3)


def test_what_cancels_on_a_grid_is_zero() -> None:
    grid = ValueGrid(3)
    for e in (ell * L - 1, ell + L, ell**3):
        assert not grid.of(e) + grid.of(-e)
        assert grid.of(e) + grid.of(1 - e) is grid.one


def test_words_have_no_coefficient_that_vanishes() -> None:
    found = linear_series(linear_closure(mean_field(mlp(rule="flow"))), 4).sums
    assert all(c for parts in found.values() for words in parts for c in words.values())


def test_what_vanishes_at_small_whole_numbers_need_not_have_factors() -> None:
    p = expand(ell * (ell - 1) * (ell - 2) + 7 * L * (L - 1) * (L - 2))
    assert [(f.as_expr(), k) for f, k in prime_factors(p)[1]] == factor_list(p)[1] == [(p, 1)]


def test_what_is_left_after_lines_is_factored_as_sympy_does() -> None:
    ring = NUMBERS.ring
    x, y = ring.gens[:2]
    for p in (3 * (x + 2) * (y - x + 1) ** 2 * (x**3 * y + 7 * x + 5) / 4, -(x**2 + y + 1) * (2 * x * y + 3)):
        number, found = prime_factors(p)
        assert expand(number * prod(f.as_expr() ** k for f, k in found) - p.as_expr()) == 0
        expected = dict(factor_list(p.as_expr())[1])
        assert {abs(f.as_expr().subs({ell: 50, L: 31})) ** k for f, k in found} == {
            abs(f.subs({ell: 50, L: 31})) ** k for f, k in expected.items()
        }


@given(coefficients)
@settings(max_examples=25)
def test_factored_is_the_same_polynomial(cs: list[int]) -> None:
    e = expand(sum(c * ell**k * (L + 1) / 6 for k, c in enumerate(cs)))
    assert expand(factored(e) - e) == 0


def test_what_is_no_polynomial_is_refused() -> None:
    with pytest.raises((ValueError, CoercionFailed)):
        NUMBERS.of(1 / ell)
    with pytest.raises((ValueError, CoercionFailed)):
        NUMBERS.of(Symbol("x"))
    assert NUMBERS.ring.domain == QQ
