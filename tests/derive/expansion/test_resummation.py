"""Radius of convergence and conformal maps: functions whose singularities are known."""

from __future__ import annotations

import mpmath
import pytest
from sympy import Expr, Float, Integer, Rational, Symbol, exp, log, series, sqrt, symbols

from derive.calculus.resummation import _scale
from derive.calculus.symbols import gamma0
from derive.expansion import PowerSeries, conformal, radius

z = Symbol("z")


def taylor(f: Expr, order: int) -> PowerSeries:
    expansion = series(f, z, 0, order + 1).removeO()
    return PowerSeries(tuple(expansion.coeff(z, n) for n in range(order + 1)), z)


def in_square(f: PowerSeries) -> PowerSeries:
    return PowerSeries(tuple(c for x in f.coefficients for c in (x, Integer(0)))[:-1], gamma0)


# -- the radius --------------------------------------------------------------------------------------------

NEAREST = {
    "pole": (1 / (1 - z / 3), 3, 0),
    "branch point": (sqrt(1 + 2 * z), Rational(1, 2), mpmath.pi),
    "logarithm": (log(1 + z) + exp(z), 1, mpmath.pi),
    "pair": (1 / (1 + z / 2 + z**2) + exp(-z), 1, mpmath.acos(-0.25)),
}


@pytest.mark.parametrize("name", NEAREST)
def test_the_nearest_singularity_is_found(name: str) -> None:
    f, distance, angle = NEAREST[name]
    found = radius(taylor(f, 8))
    assert abs(found.value - distance) <= max(2 * found.uncertainty, mpmath.mpf(10) ** -12), found
    assert found.uncertainty <= 0.2 * found.value, found
    assert abs(found.angle - angle) < 0.1, found


def test_a_pair_of_branch_points_is_found_roughly() -> None:
    """The bias of one over the order that the documentation states."""
    found = [radius(taylor(sqrt(1 + z**2 / 4 + z / 4), n)).value for n in (8, 10)]
    assert 2 < found[1] < found[0] < 2.7


def test_the_radius_is_in_the_variable_itself() -> None:
    f, *_ = NEAREST["branch point"]
    even, plain = radius(in_square(taylor(f, 8))), radius(taylor(f, 8))
    assert abs(even.value - mpmath.sqrt(plain.value)) < 1e-12
    assert even.distance == plain.distance


@pytest.mark.parametrize(("t", "order"), [("0.5", 6), ("1", 8), ("2", 6)])
def test_poles_of_the_whitened_two_layer_solution(t: str, order: int) -> None:
    """The derived solution is a quotient of entire functions of gamma0^2 at each time: a pair of poles."""
    from sympy import fraction, lambdify, together

    from derive.calculus.symbols import t as time
    from derive.reduce.whitened import norm
    from tests.derive.once import mean_field, mlp, two_layer, whitened

    solution = whitened(two_layer(mean_field(mlp(1, rule="flow")))).solution.rhs
    at = solution.subs({norm: 1, time: Rational(t)}).subs(gamma0, sqrt(z))
    below = lambdify(z, fraction(together(at))[1], "mpmath")
    with mpmath.workdps(50):
        value = lambdify(z, at, "mpmath")
        # a circle inside the nearest pole, by the trapezoidal rule: exact to 50 digits
        count, size = 192, mpmath.mpf("0.5")
        ring = [size * mpmath.expjpi(mpmath.mpf(2 * k + 1) / count) for k in range(count)]
        values = [value(x) for x in ring]
        c = [
            mpmath.re(sum(v / x**n for v, x in zip(values, ring, strict=True)) / count)
            for n in range(order + 1)
        ]
        found = radius(in_square(PowerSeries(tuple(Float(x, 50) for x in c), z)))
        start = found.distance * mpmath.expj(found.angle)
        exact = mpmath.findroot(below, start)
        assert abs(abs(exact) - found.distance) < 0.08 * abs(exact), (found, exact)
        assert abs(found.value - mpmath.sqrt(abs(exact))) <= 2 * found.uncertainty, (found, exact)


def test_series_that_tell_nothing() -> None:
    a = symbols("a")
    with pytest.raises(ValueError, match="contain a"):
        radius(PowerSeries((1, a, 1, 1, 1)))
    with pytest.raises(ValueError, match="from the 2 coefficients"):
        radius(PowerSeries((1, 1)))


# -- conformal maps ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("angle", [Rational(1, 3), Rational(1, 2), Rational(2, 3), Integer(1)])
def test_the_map_moves_the_singularities_to_the_circle(angle: Expr) -> None:
    """dz/dw vanishes on the unit circle at the image of the singularity, at the right distance and angle."""
    w = Symbol("w")
    shape = w * (1 - w) ** (-2 * angle) * (1 + w) ** (-2 * (1 - angle))
    corner = mpmath.expj(mpmath.acos(mpmath.mpf(1 - 2 * angle)))  # where d log z / dw = 0
    value = complex(shape.subs(w, complex(corner)).evalf() * _scale(Integer(3), angle))
    assert abs(abs(value) - 3) < 1e-9
    assert abs(abs(mpmath.arg(value)) - mpmath.pi * mpmath.mpf(angle)) < 1e-9


@pytest.mark.parametrize(
    ("f", "angle"),
    [
        (1 / sqrt(1 + z), Integer(1)),
        (log(1 + z) / z, Integer(1)),
        (sqrt(1 + z**2) + z / 10, Rational(1, 2)),
        (sqrt(1 + z + z**2), Rational(2, 3)),
    ],
)
def test_mapped_series_reach_beyond_the_circle(f: Expr, angle: Expr) -> None:
    """Errors fall with the order at twice the radius of convergence, where the plain series fails."""
    plain = taylor(f, 9)
    mapped = conformal(plain, 1, angle)
    exact = mpmath.mpf(f.subs(z, 2).evalf(20))
    errors = [abs(mapped.value(2, order) - exact) for order in (3, 6, 9)]
    assert errors[2] < errors[0] / 8
    assert errors[2] < 0.04 * abs(exact)
    assert abs(plain.expr.subs(z, 2) - exact) > 100 * errors[2]


def test_mapped_series_of_an_even_function() -> None:
    f = in_square(taylor(1 / sqrt(1 + z), 9)) * 1
    mapped = conformal(f, 1)
    assert abs(mapped.value(2) - 1 / mpmath.sqrt(5)) < 0.01
    assert mapped.value(0) == 1
    odd = PowerSeries((Integer(0), *f.coefficients))
    assert abs(conformal(odd, 1).value(2) - 2 / mpmath.sqrt(5)) < 0.02


def test_maps_are_exact_and_refuse_what_they_cannot_do() -> None:
    mapped = conformal(taylor(sqrt(1 + z), 5), 1)
    assert mapped.series.coefficients == (1, 2, 2, 2, 2, 2)
    for bad in ((0, 1), (1, 2), (1, -1)):
        with pytest.raises(ValueError, match="distance of the singularity must be positive"):
            conformal(taylor(sqrt(1 + z), 3), *bad)
    with pytest.raises(ValueError, match="must be >= 0"):
        conformal(taylor(sqrt(1 - z), 3), 1, 0).value(2)


@pytest.mark.parametrize("zero", [-1, -2, -3])
def test_coefficients_that_vanish_have_no_ratios(zero: int) -> None:
    coefficients = [2**n for n in range(7)]
    assert radius(PowerSeries(tuple(coefficients))).value == mpmath.mpf(1) / 2
    coefficients[zero] = 0
    with pytest.raises(ValueError, match="no method gives an estimate"):
        radius(PowerSeries(tuple(coefficients)))


@pytest.mark.parametrize(
    ("angle", "at"),
    [
        (Rational(1, 10), 50),
        (Rational(1, 2), 10**16),
        (1, 10**30),
        (0, Rational(99999, 10**5)),
        (1, Rational(1, 10**30)),
    ],
)
def test_the_map_reaches_every_positive_point(angle: Expr, at: Expr) -> None:
    """The root w of the map is found next to 0 and to 1; it ended in a TypeError."""
    mapped = conformal(PowerSeries((1, 1, 1), z), 1, angle)
    w = mapped.point(at)
    assert 0 < w <= 1
    with mpmath.workdps(60):
        w, a = mapped.point(at), mpmath.mpf(mapped.angle)
        back = (
            mpmath.mpf(_scale(Integer(1), angle).evalf(60)) * w * (1 - w) ** (-2 * a) * (1 + w) ** (2 * a - 2)
        )
        assert abs(back / mpmath.mpf(at) - 1) < 1e-9
    assert abs(mapped.value(at) - mapped.series.expr.subs(mapped.series.variable, w)) < 1e-8 * abs(
        mapped.value(at)
    )
