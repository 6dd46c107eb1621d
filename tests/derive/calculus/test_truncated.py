"""Rational functions up to a power of a symbol: every power that they state as exact is."""

import random

import pytest
from sympy import QQ, Symbol

from derive.calculus.truncated import Truncated, TruncatedField
from derive.errors import NotApplicable

a, x = Symbol("a", positive=True), Symbol("x", positive=True)
LAST = 2


def results(last: int, seed: int) -> tuple[TruncatedField, list[Truncated]]:
    """Return sums, products and quotients, drawn at random, of which powers up to ``last`` are kept."""
    draw, field = random.Random(seed), TruncatedField(QQ.frac_field(a, x), 1, last)
    kept = [
        field.from_sympy(sum(draw.randint(1, 5) * a**k * x**k for k in range(low, low + 4)))
        for low in (-2, 0, 1)
    ]
    for _ in range(4):
        y, z = (draw.choice(kept) for _ in range(2))
        kept.append((y / z if draw.random() < 0.5 else y * z) + 1)
    return field, kept


@pytest.mark.parametrize("seed", range(8))
def test_stated_powers_of_results_do_not_depend_on_dropped_ones(seed: int) -> None:
    (field, few), (_, many) = (results(last, seed) for last in (LAST, 8))
    for y, z in zip(few, many, strict=True):
        known = min(y.known, LAST)
        assert z.known >= known
        assert field.cut(y.value, int(known)) == field.cut(z.value, int(known))


def test_a_division_by_the_symbol_loses_a_power() -> None:
    field = TruncatedField(QQ.frac_field(a, x), 1, LAST)
    kept = field.one / field.from_sympy(1 - a * x) / field.from_sympy(x)
    assert (kept.known, field.to_sympy(kept).expand()) == (LAST - 1, 1 / x + a + a**2 * x)


def test_a_divisor_of_which_nothing_is_known_is_refused() -> None:
    field = TruncatedField(QQ.frac_field(a, x), 1, LAST)
    dropped = field.from_sympy(x**3) * field.one
    assert isinstance(dropped, Truncated)
    assert (dropped.known, bool(dropped)) == (LAST, True)
    with pytest.raises(NotApplicable, match="known up to order 2 in x"):
        field.one / dropped
    with pytest.raises(ZeroDivisionError):
        field.one / field.zero
