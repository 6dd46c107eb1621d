"""Degrees of entrywise rules in the gradient, and powers of their steps."""

from dataclasses import replace

import pytest
from sympy import Abs, Max, Min, Rational, S, Symbol, sign, symbols, tanh

from derive.errors import NotApplicable
from derive.program import Entrywise, adam, adamw, lion, rmsprop, sign_descent, t
from derive.program.entrywise import A
from derive.reduce.homogeneous import NotHomogeneous
from derive.scale.power_counting import N, one_power
from derive.scale.rule_degrees import is_linear, rule_degrees, step_powers

eta, epsilon, beta, lam, v = symbols("eta epsilon beta lambda v", positive=True)
m = Symbol("m", real=True)
MOMENTUM = Entrywise(eta, m, ((m, beta * m + A),))
CLIPPED = Entrywise(eta, Max(-epsilon, Min(A, epsilon)))


@pytest.mark.parametrize(
    ("rule", "degree", "units"),
    [
        (Entrywise(eta, A), 1, {}),
        (MOMENTUM, 1, {}),
        (sign_descent(eta), 0, {}),
        (adam(eta, epsilon=epsilon), 0, {epsilon: 1}),
        (adamw(eta, lam, Symbol("b", positive=True), beta, epsilon), 0, {epsilon: 1}),
        (rmsprop(eta, epsilon=epsilon), 0, {epsilon: 1}),
        (rmsprop(eta, epsilon=0), 0, {}),
        (lion(eta), 0, {}),
        (CLIPPED, 1, {epsilon: 1}),
        (Entrywise(eta, tanh(A / epsilon)), 0, {epsilon: 1}),
        (Entrywise(eta, A**3), 3, {}),
        (Entrywise(eta, A / (v**2 + epsilon), ((v, v + A**2),)), -3, {epsilon: 4}),
    ],
    ids=[
        "descent",
        "momentum",
        "sign",
        "adam",
        "adamw",
        "rmsprop",
        "rmsprop-without-epsilon",
        "lion",
        "clipped",
        "bounded",
        "cubic",
        "inverse",
    ],
)
def test_degrees_follow_from_the_law(rule, degree, units):
    found = rule_degrees(rule)
    assert found.degree == degree
    assert found.parameters == units
    assert is_linear(rule) == (rule.Q in (A, m))


def test_states_have_degrees_of_their_own():
    assert {str(x): p for x, p in rule_degrees(adam(eta, epsilon=epsilon)).states.items()} == {"m": 1, "v": 2}


@pytest.mark.parametrize("rule", [adam(eta), Entrywise(eta, tanh(A)), Entrywise(eta, A + A**3)])
def test_rules_with_numbers_in_units_of_the_gradient_have_no_degree(rule):
    with pytest.raises(NotHomogeneous, match="must be a symbol"):
        rule_degrees(rule)


@pytest.mark.parametrize("rule", [Entrywise(eta, A**2), Entrywise(eta, v, ((v, v + A**2),))])
def test_steps_must_be_odd(rule):
    with pytest.raises(NotApplicable, match="is not odd in the gradient"):
        rule_degrees(rule)


def powers_of(rule, gradients, small=0):
    """Return powers of the steps, with epsilon of the power ``small``."""
    put = {epsilon: N ** S(small)}
    whole = replace(rule, Q=rule.Q.subs(put), states=tuple((x, e.subs(put)) for x, e in rule.states))
    return step_powers(whole, gradients, one_power)


@pytest.mark.parametrize("power", [-2, Rational(-1, 2), 1])
@pytest.mark.parametrize(
    "rule",
    [MOMENTUM, sign_descent(eta), lion(eta), adam(eta, epsilon=epsilon), CLIPPED, Entrywise(eta, A**3)],
)
def test_steps_have_the_degree_of_the_rule(rule, power):
    """If epsilon scales as the gradient does; two steps, so that states have a past."""
    gradients = (S(power), S(power))
    assert powers_of(rule, gradients, power) == (rule_degrees(rule).degree * power,) * 2


def test_a_large_epsilon_makes_steps_linear_and_a_small_one_is_as_none():
    rule = adam(eta, epsilon=epsilon)
    assert powers_of(rule, (S(-1), S(-1)), 0) == (-1, -1)
    assert powers_of(rule, (S(-2), S(-2)), -1) == (-1, -1)
    assert powers_of(rule, (S(-1), S(-1)), -5) == (0, 0)


def test_states_remember_larger_gradients():
    """Gradients that fall by 1/N leave a momentum, and a root of the mean square, of the first."""
    rule = adam(eta, epsilon=epsilon)
    assert powers_of(rule, (S(0), S(-1)), -3) == (0, 0)
    assert powers_of(rmsprop(eta, epsilon=epsilon), (S(0), S(-1)), -3) == (0, -1)
    assert powers_of(lion(eta), (S(0), S(-1))) == (0, 0)


def test_gradients_that_vanish_make_no_step():
    rule = adam(eta, epsilon=epsilon)
    assert powers_of(rule, (None, S(0)), 0) == (None, 0)
    assert powers_of(sign_descent(eta), (None,)) == (None,)


def test_unknown_powers_are_refused():
    x = Symbol("x", real=True)
    with pytest.raises(NotApplicable, match="cannot be decided which"):
        powers_of(adam(eta, epsilon=epsilon), (x,), 0)
    with pytest.raises(NotApplicable, match="is zero or may grow"):
        powers_of(Entrywise(eta, tanh(A)), (S(1),))
    with pytest.raises(NotApplicable, match="powers whose exponent is a number"):
        powers_of(Entrywise(eta, sign(A) * Abs(A) ** x), (-S(1),))
    with pytest.raises(NotApplicable, match="different powers"):
        powers_of(CLIPPED, (S(1),), 0)


def test_schedules_inside_a_rule_are_numbers():
    rule = Entrywise(eta, A / (1 + t) + A)
    assert rule_degrees(rule).degree == 1
    assert powers_of(rule, (S(-1), S(-1))) == (-1, -1)
