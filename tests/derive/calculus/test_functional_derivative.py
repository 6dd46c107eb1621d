"""Functional derivatives against ordinary ones: finite sums written out, one variable per function value."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import (
    Derivative,
    DiracDelta,
    Expr,
    Function,
    Integer,
    Integral,
    KroneckerDelta,
    Mul,
    Piecewise,
    S,
    Sum,
    Symbol,
    expand,
    log,
    oo,
    symbols,
)

from derive.program import IndexRange, L
from derive.theory.path_integral import functional_derivative

x, y, a, b = symbols("x y a b", nonnegative=True)
i, j, k, m, n = symbols("i j k m n", integer=True)
A, F, h, phi = (Function(name) for name in ("A", "F", "h", "phi"))


def test_bilinear_form() -> None:
    form = Sum(h(x) * A(x, y) * h(y), (x, 0, oo), (y, 0, oo))
    assert functional_derivative(form, A(a, b)) == h(a) * h(b)
    expected = Sum(A(a, y) * h(y), (y, 0, oo)) + Sum(A(x, a) * h(x), (x, 0, oo))
    assert functional_derivative(form, h(a)) == expected


def test_free_and_bound_names_do_not_mix() -> None:
    """The target may carry the very names that the integral binds."""
    form = Integral(h(x) * A(x, y) * h(y), (x, 0, oo), (y, 0, oo))
    fresh, same = functional_derivative(form, h(a)), functional_derivative(form, h(x))
    assert same.free_symbols == {x}
    assert same.subs(x, a).dummy_eq(fresh) or same.subs(x, a) == fresh


@pytest.mark.parametrize("target", [A(a, b), A(b, a), A(x, y), A(y, x)])
def test_repeated_occurrences_and_either_order_of_times(target: Expr) -> None:
    exchanged = A(*reversed(target.args))
    square = Sum(A(x, y) * A(y, x), (x, 0, oo), (y, 0, oo))
    assert functional_derivative(square, target) == 2 * exchanged
    assert functional_derivative(Sum(A(x, y) ** 3, (x, 0, oo), (y, 0, oo)), target) == 3 * target**2
    assert functional_derivative(Sum(A(y, x) * F(x, y), (x, 0, oo), (y, 0, oo)), target) == F(*exchanged.args)


def test_chain_rule() -> None:
    slope = functional_derivative(Sum(F(x) * phi(h(x)) * h(x), (x, 0, oo)), h(a))
    assert slope.expand() == (F(a) * phi(h(a)) + F(a) * h(a) * Derivative(phi(h(a)), h(a))).expand()


def test_products_and_powers_of_sums() -> None:
    total = Sum(h(x), (x, 0, oo))
    assert functional_derivative(total**2, h(a)) == 2 * total
    assert functional_derivative(total * Sum(F(x) * h(x), (x, 0, oo)), h(x)) == F(x) * total + Sum(
        F(x) * h(x), (x, 0, oo)
    )


def test_deltas_that_meet_no_sum_stay() -> None:
    assert functional_derivative(h(a), h(b)) == KroneckerDelta(a, b)
    assert functional_derivative(h(a), h(b), continuous=True) == DiracDelta(a - b)
    assert functional_derivative(h(a), h(a)) == 1
    assert functional_derivative(h(a), F(a)) == 0


def test_layer_families_meet_only_where_they_overlap() -> None:
    ell = Symbol("ell", integer=True)
    family = Sum(h(ell + 1) * F(ell), (ell, 1, L - 1))
    assert functional_derivative(family, h(ell), [IndexRange(ell, Integer(2), L)]) == F(ell - 1)
    assert functional_derivative(family, h(1)) == 0
    assert functional_derivative(family, h(L + 1)) == 0
    found = functional_derivative(family, F(ell), [IndexRange(ell, Integer(1), L)])
    assert found == Piecewise((h(ell + 1), L - ell >= 1), (S.Zero, True))


def test_limits_that_depend_on_the_other_time() -> None:
    form = Sum(A(x, y) * h(y), (x, 0, oo), (y, 0, x - 1))
    assert functional_derivative(form, A(a, b)) == Piecewise((h(b), a - b >= 1), (S.Zero, True))


def test_a_stretched_index_is_refused() -> None:
    with pytest.raises(NotImplementedError, match="of each of these pairs equal"):
        functional_derivative(Sum(h(2 * i) * F(i), (i, 0, 3)), h(k))


# -- property: equals the derivative of the sum written out --------------------------------------------------

SIZE = 3
FACTORS = [
    h(i),
    h(j),
    h(SIZE - 1 - i),
    A(i, j),
    A(j, i),
    A(i, i),
    F(j),
    h(i) ** 2,
    phi(h(j)),
    A(0, j),
    Integer(2),
]


def written_out(e: Expr) -> Expr:
    """Return every sum as its addends; limits are read from the last, which binds those before it."""

    def one(total: Sum) -> Expr:
        *inner, (v, lower, upper) = [tuple(lim) for lim in total.limits]
        body = Sum(total.function, *inner) if inner else total.function
        return sum((written_out(body.subs(v, n)) for n in range(int(lower), int(upper) + 1)), S.Zero)

    outermost = e.atoms(Sum) - {x for total in e.atoms(Sum) for x in total.function.atoms(Sum)}
    return e.xreplace({x: one(x) for x in outermost})


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.lists(st.sampled_from(FACTORS), min_size=1, max_size=4), min_size=1, max_size=3),
    st.booleans(),
    st.integers(0, SIZE - 1),
    st.integers(0, SIZE - 1),
)
def test_agrees_with_partial_derivatives_of_the_sum_written_out(
    addends: list[list[Expr]], triangular: bool, p: int, q: int
) -> None:
    upper = i - 1 if triangular else SIZE - 1
    e = sum((Sum(Mul(*factors), (j, 0, upper), (i, 0, SIZE - 1)) for factors in addends), S.Zero)
    written = written_out(e)
    for target, at in ((h(k), {k: p}), (A(k, m), {k: p, m: q})):
        known = [IndexRange(v, Integer(0), Integer(SIZE - 1)) for v in at]
        general = functional_derivative(e, target, known)
        assert (written_out(general.subs(at)) - written.diff(target.subs(at))).expand() == 0


def test_the_exponent_of_a_sum_is_differentiated() -> None:
    """The term of the exponent was left out."""
    base = Sum(F(x), (x, 0, 5))
    found = functional_derivative(base ** F(0), F(a))
    assert expand(found.subs(a, 0) - F(0) * base ** (F(0) - 1) - log(base) * base ** F(0)) == 0
    assert found.subs(a, 6) == 0
