"""Tests of powers of |gamma0| from a theory: the unit at the kink, its effects, one sample in closed form."""

from __future__ import annotations

from typing import Any

import pytest
from sympy import Abs, Function, Max, Rational, S, Symbol, exp, integrate, oo, pi, sqrt, tanh

from derive.calculus.symbols import L, mu, t
from derive.errors import NotApplicable
from derive.expansion.nonlinear.kinks import X, dv, expand_kinks, kappa, r, sigma, v
from tests.derive.once import mean_field, mlp

x = Symbol("x", real=True)
K = Symbol("K_x", positive=True)


def series(activation: Any = "relu", rule: str = "flow") -> Any:
    return expand_kinks(mean_field(mlp(1, activation, rule)))


def test_the_unit_obeys_the_equation_of_h() -> None:
    """Its push is the theory's: K_x, the rule's weight and the error."""
    for rule in ("gd", "flow"):
        place, slope, *_ = series(rule=rule).equations
        assert place.lhs == X(t)
        assert place.rhs.has(Function("K_x"), Function("Delta0"), sigma, r)
        assert place.rhs.has(Symbol("eta", positive=True)) == (rule == "gd")
        here = slope.rhs.subs(mu, kappa)
        assert [here.subs(X(t), number) for number in (1, -1)] == [1, 0]


def test_which_powers_there_are() -> None:
    """G at |gamma0|, Phi at gamma0^2; with phi(0) not zero, the unit's own Phi too."""
    found = series().jumps
    assert {name: j.order for name, j in found.items()} == {"Phi": 2, "G": 1, "f": 1}
    assert (True, True) not in found["Phi"].cases
    raised = series(Abs(x) + 1).jumps["Phi"]
    assert raised.order == 2
    assert (True, True) in raised.cases


@pytest.mark.parametrize("rule", ["gd", "flow"])
def test_one_sample_in_closed_form(rule: str) -> None:
    """G loses sqrt(K) max(v, v')/pi and f loses K^(3/2) v^2/(2 pi): counted by hand, and measured."""
    found = series(rule=rule)
    assert (found.one_sample("G") + sqrt(K) * (v + dv) / pi).expand() == 0
    assert (found.one_sample("f") + K ** Rational(3, 2) * v**2 / (2 * pi)).expand() == 0


def test_one_sample_with_a_leak() -> None:
    """Slopes a and b: units of r < 0 cross at v = x/(K |r| a), so that G changes by b^2 - a^2 or ab - a^2."""
    a, b, rho = S.One, Rational(1, 10), Symbol("rho", positive=True)
    early, late = K * rho * a * v, K * rho * a * (v + dv)
    falling = early * (b**2 - a**2) + (late - early) * (a * b - a**2)
    # r > 0 takes units from below up across the kink: slopes change places
    early, late = K * rho * b * v, K * rho * b * (v + dv)
    rising = early * (a**2 - b**2) + (late - early) * (a * b - b**2)
    normal = exp(-(rho**2) / 2)
    expected = integrate(rho**2 * (falling + rising) * normal, (rho, 0, S.Infinity)) / (2 * pi * sqrt(K))
    assert (series(Max(x, x / 10)).one_sample("G") - expected).simplify() == 0


def test_what_is_refused() -> None:
    for phi in (tanh(x), Abs(x - 1), Abs(x) ** 3, Abs(x) * x + Abs(x), Function("phi")):
        with pytest.raises(NotApplicable, match="must be piecewise linear"):
            series(phi)
    with pytest.raises(NotApplicable, match="from both sides"):
        series(Abs(x)).one_sample("G")
    with pytest.raises(IndexError, match="known for orders 0 to 1"):
        series().coefficient("G", 2)
    with pytest.raises(KeyError, match="no series"):
        series().coefficient("A", 0)
    with pytest.raises(KeyError, match="no closed form"):
        series().one_sample("Phi")


def test_rendering() -> None:
    shown = series().render()
    assert "X(t) = x + Σ_β K^x_βκ ∫_0^t dt' Δ^(0)_β(t') σ_β(t') r_β" in shown
    assert "[Φ_μα(t,s)]_1 = 0" in shown
    assert r"\bar X(t)" in series().render("latex")
    with pytest.raises(ValueError, match="must be"):
        series().render("html")


def test_deep_networks_have_no_closed_form_of_one_sample() -> None:
    """The source of h moves: the sign of the velocity was undecided, and the contribution zero."""
    deep = expand_kinks(mean_field(mlp(L, "relu", "flow")))
    for name in ("G", "f"):
        assert deep.layer(name) != 0
        with pytest.raises(NotApplicable, match=rf"one_sample\('{name}'\): with several hidden layers"):
            deep.one_sample(name)
    with pytest.raises(KeyError, match="kink to 'X'; there are contributions to Phi, G, f, A, B"):
        deep.layer("X")


def test_each_series_has_all_powers_that_are_known() -> None:
    found = series()
    assert {name: found.series(name).order for name in found.names} == found.known
    assert found.series("Phi").coefficients[2] == found.coefficient("Phi", 2) != 0
    assert found.error_estimate("Phi") != 0
    assert found.truncate(1).error_estimate("Phi") == oo
