"""Exponents on power-law data: constants against sums over modes, conditions, refusals, speed."""

import mpmath as mp
import numpy as np
import pytest
from sympy import Function, Rational, Sum, Symbol, exp, expand, lambdify, simplify

from derive.calculus.symbols import L, eta, exact, gamma0, t
from derive.errors import NotApplicable
from derive.linear.lazy import lazy as lazy_samples
from derive.scale.modes import beta, capacity, on_power_law, pair_force, rate, rate_, tau
from derive.scale.power_laws import (
    batch_law,
    lazy_law,
    leading_law,
    rich_law,
    width_law,
)
from tests.derive.once import expand_linear, mean_field, mlp
from tests.derive.scale.derived import batches, modes, order, reduced, samples, width

T = Symbol("t", positive=True)


def lazy(*at, rule="flow", **options):
    return lazy_law(modes(rule), *at, order=order(), **options)


def leading(*at, **options):
    return leading_law(order(), *at, **options)


def rich(*at, **options):
    return rich_law(reduced(), modes(), *at, **options)


def finite_batch(*at, **options):
    return batch_law(batches(), *at, **options)


def finite_width(*at, **options):
    return width_law(width(), *at, **options)


@pytest.mark.parametrize("rule", ["flow", "gd"])
def test_the_lazy_kernel_of_modes_is_that_of_samples(rule):
    samples = lazy_samples(mean_field(mlp(rule=rule, loss="sum"))).error.rhs
    number = -samples.as_independent(*samples.atoms(type(samples.args[-1])))[0]
    assert simplify(modes(rule).kernel - number) == 0


@pytest.mark.parametrize("source", ["3/10", "3/2", "5/2"])
def test_the_lazy_constant_against_the_sum(source):
    mode = Symbol("k", integer=True, positive=True)
    e = on_power_law(modes().summand).subs({capacity: 2, beta: Rational(source), L: 2})
    f = lambdify(mode, e.subs(t, 3000).replace(Function("lamda"), lambda i: i**-2), "numpy")
    k, weight = _modes(12.0)
    b = float(Rational(source))
    summed = np.sum(weight * f(k)) + 1e12 ** (-2 * b) / (2 * b)
    assert float(lazy(2, source, 2).formula.subs(T, 3000)) == pytest.approx(summed, rel=3e-5)


def test_steps_are_the_flow_and_corrections():
    found = lazy(1, "1/2", 2, rule="gd").series.subs({eta: Rational(1, 5)})
    k, weight = _modes(9.0)
    at = 400
    summed = np.sum(weight * k**-2.0 * (1 - 0.4 * k**-2.0) ** (2 * at)) + 1e-9
    one = float(found.terms[0].at(Rational(at)))
    assert float(found.expr.subs(T, at)) == pytest.approx(summed, rel=1e-7)
    assert abs(one / summed - 1) > 1e-5  # the corrections count


def test_the_pair_sum_is_the_expansion_in_two_modes():
    """Order gamma0^2 of the loss with two modes, solved in time, is the sum over pairs."""
    pair = expand_linear(samples(), 2).in_time([1, 3], [2, 5])
    found, force = 2 * pair.loss(2), order().force
    rates, targets = (1, 3), (2, 5)
    total = 0
    for a, y in zip(rates, targets, strict=True):
        for b, z in zip(rates, targets, strict=True):
            at = {rate: a * (L + 1), rate_: b * (L + 1)}
            force_at = (force.strength * force.shape).subs(at)
            f = lambdify([tau, t, L], force_at * y**2 * z**2, "mpmath")
            total += _driven(f, a)
    assert total == pytest.approx(float(found.subs({L: 2, t: Rational(1, 3)})), rel=1e-10)


def _driven(force, a, depth=2, at=1 / 3):
    rate = a * (depth + 1)
    return float(
        -2 * mp.quad(lambda u: mp.exp(-rate * at) * mp.exp(-rate * (at - u)) * force(u, at, depth), [0, at])
    )


@pytest.mark.parametrize("source", ["3/10", "1/2", "7/10", "3/2"])
def test_the_leading_order_against_the_double_sum(source):
    """Both powers with their constants, by sums over pairs of modes and a quadrature in time."""
    b, depth, at = float(Rational(source)), 2, 3e4
    k, weight = _modes(12.0)
    rates, targets = 3 * k**-2.0, weight * k ** (-2 * b - 1)
    x, w = np.polynomial.legendre.leggauss(200)
    # times at even steps of the logarithm, from where nothing has happened yet
    span = np.log(at / 1e-6)
    u = np.exp(np.log(1e-6) + span * (x + 1) / 2)
    w = w * span / 2 * u
    V = np.array([np.sum(targets / rates * (1 - np.exp(-rates * s)) ** 2) for s in u])
    own = np.sum(targets * np.exp(-2 * rates * at) * rates)
    drive = np.array([np.sum(targets * (np.exp(-rates * s) - np.exp(-2 * rates * s))) for s in u])
    late = np.array([np.sum(targets * np.exp(-rates * (2 * at - s)) * (1 - np.exp(-rates * s))) for s in u])
    strength = float(order().force.strength.subs(L, depth))
    shape = 2 * np.sum(w * (own * V + late * drive))
    assert _shape_is(V, drive)
    exact_value = -2 * strength * shape
    found = float(leading(depth, source, 2).series.expr.subs(T, at))
    assert found == pytest.approx(exact_value, rel=2e-3)
    alone = float(leading(depth, source, 2).series.terms[0].at(at))
    if source == "7/10":
        assert abs(alone / exact_value - 1) > 0.02  # the second power counts


def _modes(decades, first=1000, nodes=200):
    """Return modes one by one, then as points of an integral over log k."""
    near = np.arange(1.0, first + 1)
    x, w = np.polynomial.legendre.leggauss(nodes)
    low, high = np.log(first + 0.5), decades * np.log(10.0)
    far = np.exp(low + (high - low) * (x + 1) / 2)
    return np.concatenate([near, far]), np.concatenate([np.ones(first), w * (high - low) / 2 * far])


def _shape_is(V, drive):
    """Require that the derived force has the form that the two sums above assume."""
    a, b = exp(-rate * tau), exp(-rate_ * tau)
    assumed = 2 * (rate / rate_ * a * (1 - b) ** 2 + (1 - a) * (b - b**2))
    assert simplify(expand(order().force.shape - assumed)) == 0
    return len(V) == len(drive)


def test_the_crossover_is_a_power_of_gamma0():
    when = order().crossover()
    assert simplify(gamma0 * when.diff(gamma0) / when + 2 / (1 - beta)) == 0
    values = {L: 2, capacity: 2, beta: Rational(1, 2), gamma0: Rational(1, 100)}
    at = when.subs(values)
    top = order().correction.subs(values).terms[0].at(at)
    assert float(
        gamma0.subs(values) ** 2 * top + order().lazy.expr.subs(values).subs(T, at)
    ) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize(
    ("depth", "source", "power"),
    [
        (1, "3/10", "-2/5"),
        pytest.param(2, "7/10", "2/5", marks=pytest.mark.slow),
        (3, "3/2", "3/2"),
        pytest.param(4, "1/2", 0, marks=pytest.mark.slow),
        (1, "5/2", "5/2"),
    ],
)
def test_exponents(depth, source, power):
    assert lazy(depth, source).exponent == Rational(source)
    assert leading(depth, source).exponent == Rational(power)
    b = Rational(source)
    assert rich(depth, source).exponent == ((depth + 1) * b / (1 + depth * b) if b < 1 else b)


def test_the_gain_of_a_batch_is_a_renewal_kernel():
    """Amplification is the sum of the gain; its tail is that of the sum over modes."""
    noise = batches()
    B = Symbol("B", positive=True)
    values = {L: 1, capacity: 2, B: 4, eta: Rational(1, 5)}
    k, weight = _modes(6.0, 300, 80)
    rate = 0.4 * k**-2.0
    gain = np.array([np.sum(weight * rate**2 * (1 - rate) ** (2 * n)) / 4 for n in range(1500)])
    found = float(noise.gain.subs(values).expr.subs(T, 1499))
    assert found == pytest.approx(gain[-1], rel=1e-4)
    total = float(_summed(noise.amplification.subs(values), k, weight))
    rest = gain[-1] * 1500 / 0.5  # a tail of power -3/2
    assert total == pytest.approx(gain.sum() + rest, rel=1e-3)


@pytest.mark.parametrize(("source", "within"), [("1/2", 0.01), ("5/2", 0.02)])
def test_the_power_with_batches_solves_the_renewal_equation(source, within):
    """Late losses of the equation itself, step by step, have the derived power and constant."""
    b, steps = float(Rational(source)), 2000
    k, weight = _modes(10.0, 200, 100)
    rate = 0.6 * k**-1.5
    n = np.arange(steps)
    logs = np.log1p(-rate)
    signal = np.array([weight * k ** (-1.5 * b - 1) @ np.exp(2 * m * logs) for m in n])
    gain = np.array([weight * rate**2 / 4 @ np.exp(2 * m * logs) for m in n])
    loss = signal.copy()
    for m in range(1, steps):
        loss[m] += gain[:m] @ loss[m - 1 :: -1]
    found = finite_batch(1, source, "3/2", learning_rate="3/10", batch=4)
    constant = float(found.constant)
    assert loss[1990] * 1990 ** float(found.exponent) == pytest.approx(constant, rel=within)
    power = np.log(loss[1990] / loss[995]) / np.log(2)
    assert abs(power + float(found.exponent)) < 0.02


def _summed(e, k, weight):
    """Return sums over modes as numbers."""
    return e.replace(
        lambda x: isinstance(x, Sum), lambda x: weight @ lambdify(x.limits[0][0], x.function, "numpy")(k)
    )


def test_the_variance_at_finite_width_against_its_double_integral():
    values = {L: 2, capacity: 2, beta: Rational(3, 2)}
    at = 1e4
    k, weight = _modes(9.0)
    rates = 3 * k**-2.0
    x, w = np.polynomial.legendre.leggauss(200)
    span = np.log(at / 1e-6)
    u = np.exp(np.log(1e-6) + span * (x + 1) / 2)
    w = w * span / 2 * u
    strength = 2 * 5 / 6  # of the words of G at order gamma0^2, checked below
    drive = lambda a: np.sum(weight * k ** (-4.0) * rates * np.exp(-rates * a))  # noqa: E731
    own = lambda a: np.sum(weight * k**-2.0 * np.exp(-rates * a))  # noqa: E731
    early = np.array([s * drive(s) * own(2 * at - s) for s in u])
    end = np.array([s * own(s) * drive(2 * at - s) for s in u])
    summed = strength * np.sum(w * (early + end))
    assert float(width().variance.subs(values).expr.subs(T, at).n(8)) == pytest.approx(summed, rel=2e-3)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: lazy(0, 1), "depth = 0"),
        (lambda: lazy("1.5", 1), "depth = 3/2"),
        (lambda: lazy(1, -1), "source = -1"),
        (lambda: lazy(1, "__import__('os')"), "must be a number"),
        (lambda: leading(1, "1/2", task="easy"), "makes the task 'hard'"),
        (lambda: leading(1, 1), "logarithm"),
        (lambda: finite_width(1, 1, 2), "logarithm"),
        (lambda: finite_width(1, 2, 1), "capacity = 1"),
        (lambda: finite_batch(1, 2, "1/2"), "capacity = 1/2"),
        (lambda: finite_batch(1, "3/2", 2), "two powers of t are equal"),
        (lambda: rich(1, 1), "logarithm"),
        (lambda: leading(task="soft"), "must be 'hard'"),
        (lambda: pair_force(mean_field(mlp(rule="flow", loss="mean"))), "summed loss"),
        (lambda: pair_force(mean_field(mlp(loss="sum"))), "in gradient flow"),
    ],
)
def test_refusals(call, says):
    with pytest.raises((ValueError, NotApplicable), match=says):
        call()


@pytest.fixture(scope="module")
def beside_two():
    """Return the constant of the rich law on either side of source two."""
    return [float(rich(1, b, 2).constant.subs(gamma0, 1)) for b in ("199/100", "201/100")]


@pytest.mark.slow
def test_the_rich_constant_is_smooth_at_source_two(beside_two):
    found = float(rich(1, 2, 2).constant.subs(gamma0, 1))
    assert found == pytest.approx(sum(beside_two) / 2, rel=1e-4)


def test_numbers_are_exact():
    assert exact("source", 0.3) == exact("source", "0.3") == Rational(3, 10)
