"""Tests of piecewise polynomials with point masses: their algebra and the refused operations."""

from __future__ import annotations

import pytest
from sympy import (
    Abs,
    DiracDelta,
    Expr,
    Heaviside,
    Max,
    Min,
    Piecewise,
    Rational,
    Symbol,
    integrate,
    sign,
    tanh,
)

from derive.calculus.jumps import Ambiguous, OtherKind, SignPolynomial, jumps, multiplied, slope

x = Symbol("x", real=True)
relu, leaky = Max(0, x), Piecewise((x, x > 0), (x / 10, True))


def rebuilt(found: SignPolynomial) -> Expr:
    return sum(
        (c * x**n * sign(x) ** s * (DiracDelta(x, m) if m >= 0 else 1) for (n, s, m), c in found.items()),
        Rational(0),
    )


FUNCTIONS = [
    relu,
    leaky,
    Min(x, 2 * x) ** 2,
    Abs(3 * x) * x - 1,
    sign(-2 * x) + x**3,
    Max(x, -x / 5),
    Heaviside(x) * (1 + x),
    (relu + x) ** 3,
    Piecewise((x**2, x < 0), (1, True)),
]


@pytest.mark.parametrize("body", FUNCTIONS, ids=str)
def test_values_are_those_of_the_function(body: Expr) -> None:
    found = rebuilt(jumps(body, x))
    for point in (Rational(-7, 3), Rational(-1, 2), Rational(1, 5), Rational(9, 4)):
        assert found.subs(x, point) == body.subs(x, point)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("body", [relu, leaky, Abs(x) * x], ids=str)
def test_derivatives_are_those_of_the_function(body: Expr, order: int) -> None:
    """Integrals with a test function, against integration by parts."""
    found = jumps(body, x)
    for _ in range(order):
        terms: SignPolynomial = {}
        for m, c in found.items():
            for new, k in slope(m).items():
                terms[new] = terms.get(new, 0) + c * k
        found = {m: c for m, c in terms.items() if c != 0}
    weight = (1 - x**2) ** 4 * (1 + x + x**2)
    direct = integrate((-1) ** order * body.rewrite(Piecewise) * weight.diff(x, order), (x, -1, 1))
    ours = Rational(0)
    for (n, s, m), c in found.items():
        if m >= 0:
            ours += c * (-1) ** m * weight.diff(x, m).subs(x, 0)
        else:
            ours += c * (
                integrate(x**n * weight, (x, 0, 1)) + (-1) ** s * integrate(x**n * weight, (x, -1, 0))
            )
    assert ours == direct


def test_powers_eat_point_masses() -> None:
    assert jumps(x * DiracDelta(x), x) == {}
    assert jumps(x * DiracDelta(x, 1), x) == {(0, 0, 0): -1}
    assert jumps(x**2 * DiracDelta(x, 3), x) == {(0, 0, 1): 6}
    assert jumps(DiracDelta(-3 * x, 1), x) == {(0, 0, 1): -Rational(1, 9)}


@pytest.mark.parametrize(
    "body",
    [
        Heaviside(x) * DiracDelta(x),
        sign(x) ** 2 * DiracDelta(x),
        Abs(x) * DiracDelta(x, 1),
        DiracDelta(x) ** 2,
        relu.diff(x) * relu.diff(x, 2),
    ],
    ids=str,
)
def test_jumps_on_point_masses_are_refused(body: Expr) -> None:
    with pytest.raises(Ambiguous, match="DiracDelta"):
        jumps(body, x)


def test_a_function_that_vanishes_outweighs_the_point_mass() -> None:
    assert multiplied([jumps(relu, x), jumps(relu.diff(x, 2), x)]) == {}
    assert jumps(x * sign(x) * DiracDelta(x), x) == {}


@pytest.mark.parametrize(
    "body", [Abs(x - 1), tanh(x), Max(0, x**3 - x), Max(0, x, 2 * x - 1), 1 / x], ids=str
)
def test_other_functions_are_left_to_others(body: Expr) -> None:
    with pytest.raises(OtherKind):
        jumps(body, x)
