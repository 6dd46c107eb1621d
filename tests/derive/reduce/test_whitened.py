"""Whitened data, one hidden layer: (F.8)-(F.14) and the closed form of the learning curve."""

from __future__ import annotations

import mpmath
import pytest
from sympy import (
    Function,
    I,
    Integer,
    KroneckerDelta,
    Rational,
    Symbol,
    atanh,
    binomial,
    cosh,
    exp,
    integrate,
    limit,
    log,
    oo,
    simplify,
    sinh,
    sqrt,
    tanh,
)

from derive.errors import NotApplicable
from derive.program import GradientFlow, Parametrization, alpha, eta, gamma0, mu, t
from derive.reduce.closed_forms import separable
from derive.reduce.whitened import (
    eliminate,
    n,
    norm,
    output,
    series_radius,
    whitened_deep,
    whitened_limits,
    whitened_steps,
)
from tests.derive.once import isotropic, mean_field, mlp, moment_steps, two_layer, whitened
from tests.derive.programs import hidden_layer
from tests.numerics.renaming import with_names

H, G, Delta = (Function(x)(t) for x in ("H_y", "G", "Delta"))
y, f = norm, output
root = sqrt(1 + gamma0**2 * y**2)


@pytest.fixture(scope="module")
def w():
    return whitened(two_layer(mean_field(mlp(1, rule="flow"))))


def test_samples_stay_along_the_targets(w):
    """H grows along y y^T only, Delta stays along y (text above F.8)."""
    forms = {e.lhs: e.rhs for e in w.tensors}
    assert forms[Function("H")(mu, alpha, t)] == KroneckerDelta(mu, alpha) + (H - 1) * n(mu) * n(alpha)
    assert forms[Function("Delta")(mu, t)] == Delta * n(mu)


def test_scalar_system_f8_and_its_start(w):
    rate = {e.lhs.args[0]: e.rhs for e in w.scalar}
    assert simplify(rate[H] - 2 * gamma0**2 * Delta * (y - Delta)) == 0
    assert simplify(rate[G] - 2 * gamma0**2 * Delta * (y - Delta)) == 0
    assert simplify(rate[Delta] + (H + G) * Delta) == 0
    assert [e.rhs for e in w.initial] == [1, 1, y]


def test_conserved_quantities_f9_f10(w):
    balance, hyperbola = w.invariants
    assert balance == H - G
    assert simplify(hyperbola - (H * G - gamma0**2 * (y - Delta) ** 2) - gamma0**2 * y**2) == 0
    assert [e.rhs for e in w.eliminated] == [sqrt(1 + gamma0**2 * (y - Delta) ** 2)] * 2


def test_one_dimensional_equation_f11(w):
    assert simplify(w.error.rhs + 2 * sqrt(1 + gamma0**2 * (y - Delta) ** 2) * Delta) == 0
    assert simplify(w.output.rhs - 2 * sqrt(1 + gamma0**2 * f**2) * (y - f)) == 0


def test_time_to_reach_an_output_f12(w):
    printed = (
        atanh((1 + gamma0**2 * y * f) / (root * sqrt(1 + gamma0**2 * f**2))) / root - atanh(1 / root) / root
    ) / 2
    with mpmath.workdps(40):
        for g, target, part in ((0.5, 1, 0.3), (2, 1.5, 0.9), (0.01, 3, 0.99), (20, 0.7, 0.5)):
            now = {gamma0: mpmath.mpf(g), y: mpmath.mpf(target), f: mpmath.mpf(target) * mpmath.mpf(part)}
            by_quadrature = mpmath.quad(
                lambda x, now=now: 1 / (2 * (now[y] - x) * mpmath.sqrt(1 + now[gamma0] ** 2 * x**2)),
                mpmath.linspace(0, now[f], 9),
            )
            assert abs(mpmath.mpf(w.time.rhs.subs(now).evalf(40)) - by_quadrature) < 1e-25
            assert abs(mpmath.mpf(printed.subs(now).evalf(40)) - by_quadrature) < 1e-25


def test_time_differentiates_back(w):
    assert simplify(w.motion.elapsed.diff(f) * w.output.rhs) == 1
    assert simplify(w.motion.elapsed.subs(f, 0)) == 0


@pytest.mark.slow
def test_learning_curve_in_closed_form(w):
    """F.12 inverted; not in the paper."""
    curve = w.solution.rhs
    rate = w.error.rhs.subs(Delta, curve)
    with mpmath.workdps(30):
        for g, target, time in (("0.001", 2, "1.5"), (3, "1.5", "0.2")):
            now = {gamma0: Rational(g), y: Rational(target), t: Rational(time)}
            assert abs((curve.diff(t) - rate).subs(now).evalf(30)) < 1e-25
            reached = (y - curve).subs(now).evalf(40)
            assert abs(w.time.rhs.subs(now | {f: reached}).evalf(30) - now[t]) < 1e-20
    assert simplify(curve.subs(t, 0)) == y
    angle = 2 * root * t
    assert simplify(curve - y * root**2 / (gamma0**2 * y**2 + cosh(angle) + root * sinh(angle))) == 0


def test_both_limits_f13_f14(w):
    ends = whitened_limits(w)
    assert ends.lazy.rhs == -2 * Delta
    assert ends.lazy_solution.rhs == y * exp(-2 * t)
    assert ends.power == 1
    assert simplify(ends.rich.rhs + 2 * gamma0 * (y - Delta) * Delta) == 0
    assert (ends.unstable, ends.stable) == ((0,), (y,))


def test_learning_time_carries_a_logarithm(w):
    """(F.14 text) states tau ~ 1/gamma0; from f = 0 the time is longer by a logarithm."""
    ends = whitened_limits(w)
    assert simplify(ends.learning_time - log(2 * gamma0 * f * y / (y - f)) / (2 * gamma0 * y)) == 0
    assert ends.effective_start == 1 / (2 * gamma0)
    assert limit((gamma0 * ends.learning_time).subs({f: 1, y: 2}), gamma0, oo) == oo
    for g in (10**3, 10**6):
        now = {gamma0: g, y: 2, f: 1}
        exact, leading = (x.subs(now).evalf(40) for x in (w.time.rhs, ends.learning_time))
        assert abs(exact / leading - 1) < Rational(3, g)


@pytest.mark.slow
def test_series_radius_is_one_over_f(w):
    """(F.12 text) prints 1/y, the smallest radius over all f < y; for given f it is 1/f."""
    found = series_radius(w)
    assert set(found.singular) == {I / f, -I / f}
    assert set(found.removable) == {I / y, -I / y}
    assert (found.radius, found.uniform) == (1 / f, 1 / y)
    x = Symbol("x", positive=True)
    terms = [binomial(Rational(-1, 2), k) * integrate(x ** (2 * k) / (2 - x), (x, 0, 1)) for k in (20, 21)]
    assert abs(float(terms[1] / terms[0]) + 1) < 0.1  # at f = 1, y = 2: ratio -f^2 = -1, where 1/y means -4


def test_time_as_a_logarithm(w):
    weight, growth = w.motion.weight, w.motion.growth
    now = {gamma0: Rational(3, 2), y: 2, f: 1}
    assert abs((weight * log(growth) - w.motion.elapsed).subs(now).evalf(25)) < 1e-20


# -- the pieces ------------------------------------------------


def test_what_leaves_the_targets_is_refused():
    with pytest.raises(NotApplicable, match="for samples orthogonal to the targets"):
        whitened(two_layer(mean_field(mlp(1, bias=True, rule="flow"))))
    with pytest.raises(NotApplicable, match="sample_weights"):
        whitened(two_layer(mean_field(mlp(1, rule="flow", sample_weights=True))))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"objective": "logistic"}, "each index of a sample must occur once"),
        ({"objective": "hinge"}, "each index of a sample must occur once"),
        ({"outputs": 2}, "have several directions"),
        ({"activation": "quadratic"}, "not linear"),
    ],
    ids=["logistic", "hinge", "outputs", "quadratic"],
)
def test_samples_that_are_no_indices_of_vectors_are_refused(options, reason):
    """Errors that are not a linear function of outputs differ with the basis, and so do several targets."""
    with pytest.raises(NotApplicable, match=reason):
        whitened_deep(mean_field(mlp(1, **options)))


def test_random_data_are_not_whitened():
    """They have no samples, and the theory came back unchanged under the title "whitened data"."""
    with pytest.raises(NotApplicable, match="random data have neither"):
        whitened_deep(mean_field(isotropic(2, data="full-batch")))


def test_general_data_is_not_whitened():
    phi = Function("phi")
    with pytest.raises(NotApplicable, match="averages that are not moments"):
        whitened(two_layer(mean_field(mlp(1, phi, rule="flow"))))


def test_elimination_needs_enough_invariants():
    a, b = Function("a")(t), Function("b")(t)
    assert eliminate((a**2 - b,), {a: -1, b: 1}, b) == {a: -sqrt(b)}
    with pytest.raises(NotApplicable):
        eliminate((), {a: 1, b: 1}, b)


@pytest.mark.slow
def test_separable_refuses_what_it_cannot_integrate():
    x = Symbol("x", positive=True)
    with pytest.raises(NotApplicable, match="exactly one expression with x"):
        separable(1 - x, x, Rational(0), t)
    with pytest.raises(NotApplicable, match="exactly one expression with x"):
        separable(sqrt(1 + x**3) * (1 - x), x, Rational(0), t)
    with pytest.raises(NotApplicable, match="two simple poles"):
        separable(sqrt(1 + x**2), x, Rational(0), t)
    found = separable(3 * sqrt(x**2 + 4) * (5 - x), x, Rational(1), t)
    assert abs(found.solution.subs(t, 0).evalf(20) - 1) < 1e-15
    assert abs((found.solution.diff(t) - found.rate.subs(x, found.solution)).subs(t, 0.05).evalf(20)) < 1e-12
    assert not found.solution.has(tanh)


def test_exact_steps_with_decay_forget_along_the_targets():
    """Hand derivation of one step: H_y decays by (1 - eta lam)**2, and the targets increase it."""
    lam = Symbol("lam", positive=True)
    found = whitened_steps(moment_steps(mean_field(mlp(1, loss="sum", weight_decay=lam))))
    kept = 1 - eta * lam
    cross = gamma0**2 * (y - Delta)  # <h g> along the targets is gamma0 f
    told = kept**2 * H + 2 * kept * eta * cross * Delta + eta**2 * gamma0**2 * Delta**2 * G
    assert (found.step[H] - told).expand() == 0


def test_degrees_of_invariants_are_positive_integers():
    with pytest.raises(NotApplicable, match=r"whitened\(degree=2.5\): the degree must be an integer >= 1"):
        whitened(two_layer(mean_field(mlp(1, rule="flow"))), 2.5)


def test_limits_in_gamma0_need_the_symbol():
    """With a number the minimum of an empty sequence or a PolynomialError was raised."""
    solved = whitened(mean_field(hidden_layer(GradientFlow(), Parametrization(Integer(2)))))
    for function in (series_radius, whitened_limits):
        with pytest.raises(NotApplicable, match="does not contain the symbol gamma0"):
            function(solved)


def test_samples_of_other_names_are_rotated(w):
    """Only data called K_x and y were known, and other programs were refused for untrue reasons."""
    program = mlp(1, rule="flow")
    found = whitened(mean_field(with_names(program, {"y": "Y", "K_x": "S", "f": "out", "Delta": "err"})))
    renamed = found.solution.xreplace({Function("err")(t): Function("Delta")(t)})
    assert renamed == w.solution
