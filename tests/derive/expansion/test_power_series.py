"""Tests of power series objects: known orders, arithmetic, values, and quality of the error estimate."""

from __future__ import annotations

from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import (
    Expr,
    Function,
    Poly,
    Rational,
    S,
    Symbol,
    exp,
    latex,
    log,
    oo,
    series,
    sin,
    sqrt,
    srepr,
    symbols,
    sympify,
    tan,
)

from derive.calculus.series import solved_series
from derive.calculus.symbols import gamma0
from derive.errors import NotApplicable
from derive.expansion import DegeneratePade, PowerSeries

a, b, t = symbols("a b t")
numbers = st.fractions(-5, 5, max_denominator=7)
lists = st.lists(numbers, min_size=1, max_size=6)


def made(values: list[Fraction]) -> PowerSeries:
    return PowerSeries(tuple(Rational(x.numerator, x.denominator) for x in values))


def taylor(f: Expr, order: int) -> PowerSeries:
    expansion = series(f, gamma0, 0, order + 1).removeO()
    return PowerSeries(tuple(expansion.coeff(gamma0, n) for n in range(order + 1)))


# -- known orders -------------------------------------------------------------------------------------------


def test_coefficients_and_truncation() -> None:
    f = PowerSeries((1, a, b))
    assert [f.coefficient(n) for n in range(3)] == [1, a, b]
    assert f.truncate(1) == PowerSeries((1, a))
    assert f.order == 2
    for n in (-1, 3):
        with pytest.raises(IndexError, match="known for orders 0 to 2"):
            f.coefficient(n)
        with pytest.raises(IndexError, match="known for orders 0 to 2"):
            f.truncate(n)


def test_what_it_is_made_of_is_checked() -> None:
    with pytest.raises(ValueError, match="at least the coefficient of order 0"):
        PowerSeries(())
    with pytest.raises(ValueError, match=r"coefficients\[1\] = gamma0: must not contain gamma0"):
        PowerSeries((1, gamma0))
    with pytest.raises(ValueError, match="an expression of one symbol"):
        PowerSeries((1,), a * b)
    with pytest.raises(ValueError, match="cannot combine a series in"):
        PowerSeries((1,)) + PowerSeries((1,), a)
    with pytest.raises(ValueError, match="contains gamma0"):
        PowerSeries((1,)) * gamma0
    with pytest.raises(ValueError, match="cannot divide"):
        1 / PowerSeries((0, 1))


@pytest.mark.parametrize(
    ("coefficients", "step", "lowest"),
    [
        ((1, 0, a), 2, 0),
        ((1, a, b), 1, 0),
        ((0, 1, 0, a, 0, b), 2, 1),
        ((1, 0, 0, 1, 0, 0, 1), 3, 0),
        ((1, 0, 0), 1, 0),
        ((0, 0), 1, 0),
        ((1, 0, a, 1), 1, 0),
    ],
)
def test_the_step_is_found(coefficients: tuple[Expr, ...], step: int, lowest: int) -> None:
    f = PowerSeries(coefficients)
    assert (f.step, f.lowest) == (step, lowest)


def test_inverse_variables() -> None:
    nu = Symbol("nu", positive=True)
    f = PowerSeries((1, 0, a), 1 / nu)
    assert f.expr == 1 + a / nu**2
    assert f.lambdify(modules="math")(2.0, 8.0) == 3.0
    assert (f * f).coefficient(2) == 2 * a


def test_words_do_not_commute() -> None:
    x, y = symbols("x y", commutative=False)
    assert (PowerSeries((1, x)) * PowerSeries((1, y, 0))).truncate(1) == PowerSeries((1, x + y))
    assert (PowerSeries((x, 1)) * PowerSeries((y, 0))).coefficient(0) == x * y
    assert (PowerSeries((y, 1)) * PowerSeries((x, 0))).coefficient(0) == y * x


# -- arithmetic --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("examples", [10, pytest.param(60, marks=pytest.mark.slow)])
def test_products_and_sums_are_those_of_polynomials(examples: int) -> None:
    settings(max_examples=examples, deadline=None)(given(lists, lists)(compare_with_polynomials))()


def compare_with_polynomials(p: list[Fraction], q: list[Fraction]) -> None:
    f, g = made(p), made(q)
    known = min(f.order, g.order)
    for found, exact in ((f * g, f.expr * g.expr), (f + g, f.expr + g.expr), (f - g, f.expr - g.expr)):
        assert found.order == known
        expected = Poly(exact, gamma0)
        assert [found.coefficient(n) for n in range(known + 1)] == [
            expected.coeff_monomial(gamma0**n) for n in range(known + 1)
        ]


@given(lists.filter(lambda p: p[0] != 0))
@settings(max_examples=20, deadline=None)
def test_quotients_undo_products(p: list[Fraction]) -> None:
    f = made(p)
    one = PowerSeries((1, *[0] * f.order))
    assert f / f == one
    assert f * f**-1 == 1 / f * f == one
    assert f**3 / f**2 == f


def test_numbers_mix_with_series() -> None:
    f = PowerSeries((1, a))
    assert 2 * f + 1 == PowerSeries((3, 2 * a))
    assert 1 - f == PowerSeries((0, -a))
    assert f / 2 == PowerSeries((S.Half, a / 2))
    assert (f - f).powers() == ()


def test_cancelled_coefficients_are_zero() -> None:
    """Parity is seen from the coefficients, so sums that cancel must be zero."""
    f = PowerSeries((1, a + b, 0))
    g = PowerSeries((1, -a - b, 0))
    assert (f * g).step == 2


# -- values ------------------------------------------------------------------------------------------------


def test_arrays_keep_their_shape() -> None:
    grid = np.linspace(0, 1, 5)
    assert PowerSeries((2,)).lambdify()(grid).shape == (5,)
    f = PowerSeries((exp(-t), 0, 3)).lambdify(t)
    assert f(0.5, grid).shape == (5,)
    assert f(grid[:, None], grid).shape == (5, 5)
    np.testing.assert_allclose(
        f(grid[:, None], grid), np.exp(-grid) + 3 * grid[:, None] ** 2, rtol=1e-15, atol=0
    )
    constant = PowerSeries((2, 0, 3)).lambdify(t)
    assert constant(grid[:, None], grid).shape == (5, 5)
    assert PowerSeries((0,)).lambdify(t)(0.0, grid).shape == (5,)
    assert isinstance(f(0.5, 0.5), float)


def test_values_to_high_precision() -> None:
    f = PowerSeries((exp(-t), 0, Rational(1, 3))).lambdify(modules="mpmath")
    with mpmath.workdps(40):
        x = mpmath.mpf(1) / 7
        assert abs(f(x, x) - mpmath.exp(-x) - x**2 / 3) < mpmath.mpf(10) ** -38


def test_values_need_every_symbol() -> None:
    with pytest.raises(ValueError, match="needs a among its symbols"):
        PowerSeries((a, t)).lambdify(t)
    with pytest.raises(ValueError, match=r"cannot evaluate f\(t\)"):
        PowerSeries((Function("f")(t),)).lambdify()


@given(lists, st.floats(-2, 2))
@settings(max_examples=25, deadline=None)
def test_values_are_the_polynomial(p: list[Fraction], x: float) -> None:
    expected = sum(float(c) * x**n for n, c in enumerate(p))
    scale = sum(abs(float(c)) * abs(x) ** n for n, c in enumerate(p))
    assert abs(made(p).lambdify(modules="math")(x) - expected) <= 1e-14 * scale


# -- truncation errors -------------------------------------------------------------------------------------

KNOWN = {
    "pole": 1 / (1 - gamma0**2),
    "alternating": 1 / (1 + gamma0**2),
    "branch point": 1 / sqrt(1 + gamma0**2),
    "logarithm": log(1 + gamma0**2) + 1,
    # its coefficient of order 8 is a tenth of those around it
    "complex pair": 1 / (1 - Rational(8, 5) * gamma0 + gamma0**2),
    "tangent": tan(gamma0),
    "entire": exp(-3 * gamma0**2),
    "odd and even": exp(gamma0) / (2 - gamma0),
}


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("order", [6, 8])
def test_the_estimate_is_of_the_right_size(name: str, order: int) -> None:
    """Inside the region of convergence: no less than a third of the true remainder, nor far above it."""
    f = KNOWN[name]
    found = taylor(f, order)
    estimate = found.error_estimate()
    missed = abs(float((f - found.expr).subs(gamma0, S.Half).evalf(40)))
    claimed = float(estimate.subs(gamma0, S.Half).evalf())
    assert missed / 3 <= claimed <= 40 * missed, (missed, claimed)


def test_the_estimate_sees_through_one_small_coefficient() -> None:
    """1, 1, 1, 0.001: the last ratio alone would promise far too much."""
    f = PowerSeries((1, 1, 1, Rational(1, 1000)))
    assert f.error_estimate().subs(gamma0, Rational(1, 2)) >= Rational(1, 16)


def test_the_estimate_ends_with_the_circle_of_convergence() -> None:
    assert taylor(KNOWN["pole"], 6).error_estimate().subs(gamma0, 1) == oo
    assert PowerSeries((a,)).error_estimate() == oo


@pytest.mark.parametrize("known", [(0,), (0, 0), (1, 0), (1, a, 0, 0), (a, 2, 0), (0, 0, 1, 1)])
def test_the_estimate_is_infinite_where_the_coefficients_do_not_determine_it(known: tuple[Expr, ...]) -> None:
    """Zeros as last coefficients say nothing about later ones: the error was stated as 0."""
    estimate = PowerSeries(known).error_estimate()
    if known in ((a, 2, 0), (0, 0, 1, 1)):
        assert 0 < estimate.subs({a: 1, gamma0: Rational(1, 10)}) < oo
    else:
        assert estimate == oo
    of_symbols = PowerSeries((1, a)).error_estimate()
    assert of_symbols.subs({a: 0, gamma0: S.Half}) == oo
    assert PowerSeries((a, 1)).error_estimate().subs({a: 0, gamma0: S.Half}) == oo


def test_the_estimate_with_symbols_in_the_coefficients() -> None:
    f = PowerSeries((1, 0, a, 0, a**2))
    value = f.error_estimate().subs({a: -S.Half, gamma0: S.Half})
    assert value == Rational(1, 8) ** 3 / (1 - Rational(1, 8))


# -- Padé approximants -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("m", "n"), [(0, 2), (1, 1), (2, 1), (1, 2), (2, 2), (3, 0)])
def test_approximants_agree_with_the_series(m: int, n: int) -> None:
    f = taylor(exp(gamma0) / (2 - gamma0) + sin(gamma0), 4)
    again = series(f.pade(m, n), gamma0, 0, m + n + 1).removeO()
    assert (again - f.truncate(m + n).expr).expand() == 0


def test_approximants_are_in_the_square_of_an_even_variable() -> None:
    exact = (1 + a * gamma0**2) / (1 + b * gamma0**2)
    f = taylor(exact, 4)
    assert (f.pade(1, 1) - exact).simplify() == 0
    assert taylor(gamma0 * KNOWN["alternating"], 5).pade(0, 1) == gamma0 / (1 + gamma0**2)


def test_approximants_that_are_not_there() -> None:
    f = PowerSeries((1, 1, 1, 1, 1))
    with pytest.raises(DegeneratePade, match=r"\[2/2\]"):
        f.pade(2, 2)
    with pytest.raises(ValueError, match=r"\[3/2\]: needs 6 coefficients of the series; there are 5"):
        f.pade(3, 2)
    with pytest.raises(ValueError, match="degrees of numerator and denominator must not be negative"):
        f.pade(-1, 2)


# -- plain SymPy -------------------------------------------------------------------------------------------


def test_printing() -> None:
    f = PowerSeries((a, 0, b - 1))
    assert str(f) == "a + gamma0**2*(b - 1) + O(gamma0**4)"
    shown = f._repr_latex_()
    assert r"\left(b - 1\right) \gamma_{0}^{2} + O\left(\gamma_{0}^{4}\right)" in shown
    assert latex(f.expr)
    assert sympify(srepr(f.expr)) == f.expr
    assert str(PowerSeries((1, -a))) == "1 - a*gamma0 + O(gamma0**2)"


def test_arguments_of_a_compiled_series_are_different_symbols() -> None:
    """The symbol of the variable was a duplicate argument, a SyntaxError."""
    for symbols_ in ((gamma0, a), (a, a)):
        with pytest.raises(ValueError, match="must be different symbols without gamma0"):
            PowerSeries((1, a)).lambdify(*symbols_)


def test_division_by_zero_is_refused() -> None:
    """It gave complex infinity in every coefficient."""
    hidden = (a + 1) ** 2 - a**2 - 2 * a - 1
    for divisor in (0, hidden, PowerSeries((0, 1)), PowerSeries((hidden, 1))):
        with pytest.raises(ValueError, match="cannot divide"):
            PowerSeries((1, a)) / divisor


@pytest.mark.parametrize("factor", [sqrt(a), exp(a), exp(b), sqrt(2), sympify("pi")])
def test_unknowns_of_equations_that_are_not_rational_are_refused(factor: Expr) -> None:
    with pytest.raises(NotApplicable, match=r"of b = .* is not a rational function"):
        solved_series({b: 1 + t * factor * b}, t, 2)
    with pytest.raises(NotApplicable, match="a denominator of the equations vanishes"):
        solved_series({b: 1 / (t * a)}, t, 2)
