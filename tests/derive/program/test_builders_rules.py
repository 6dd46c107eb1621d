"""Training rules and activations by name."""

from __future__ import annotations

import pytest
from sympy import (
    Abs,
    Dummy,
    Expr,
    Function,
    Heaviside,
    Integer,
    Lambda,
    Max,
    Min,
    Rational,
    Symbol,
    exp,
    limit,
    log,
    simplify,
    symbols,
    tanh,
)

from derive.program import (
    GradientDescent,
    GradientFlow,
    L,
    Momentum,
    MomentumFlow,
    P,
    Program,
    TrainedMatrix,
    TrainedVector,
    ell,
    entry_covariance,
    eta,
    mu,
    s,
    t,
    training_rule,
)
from derive.program.networks.options import NAMED, activation_of
from derive.program.rules import with_noise
from tests.derive.once import mlp

phi = Function("phi")
beta, lam, T, tau = symbols("beta lam T tau", positive=True)
h = Function("h")


def line(program: Program, name: str, site: Expr | int | None = None) -> Expr:
    """Return the right-hand side that defines a field at a layer."""
    found = [d for d in program.definitions if d.name == name and (site is None or d.lhs.args[0] == site)]
    assert len(found) == 1
    return found[0].rhs


def weight(program: Program, name: str) -> TrainedMatrix | TrainedVector:
    return next(w for w in program.trained() if w.name == name)


# -- training rules ------------------------------------------------------------------------------------------


def test_rules_by_name() -> None:
    assert training_rule() == GradientDescent(eta)
    assert training_rule(weight_decay=lam) == GradientDescent(eta, eta * lam)
    assert training_rule("flow", "mean", weight_decay=lam) == GradientFlow(1 / P, lam)
    assert training_rule(momentum=tau, weight_decay=lam) == Momentum(eta, tau, eta * lam)
    assert training_rule("flow", momentum=tau) == MomentumFlow(tau)
    assert training_rule(temperature=T) == GradientDescent(eta, diffusion=2 * eta * T)


def test_langevin_dynamics_is_that_of_the_paper() -> None:
    """K.1, K.7: e^{-lam (t+s)/beta} and C = (e^{2 lam min(t,s)/beta} - 1) e^{-lam (t+s)/beta}/lam."""
    rule = training_rule("flow", weight_decay=lam / beta, temperature=1 / beta)
    decayed = exp(-lam * (t + s) / beta)
    expected = decayed + (exp(2 * lam * Min(t, s) / beta) - 1) * decayed / lam
    assert simplify(entry_covariance(rule, t, s) - expected) == 0


def test_limits_of_rules() -> None:
    """Check the limits tau -> 0 and lam -> 0, which give the flow.

    Without momentum and with lam -> 0 plain steps remain.
    """
    lag, n = Symbol("lag", positive=True), Symbol("n", integer=True, positive=True)
    slow = training_rule("flow", momentum=tau).memory(s + lag, s)
    assert [limit(m, tau, 0, "+") for m in slow] == [1, 1]
    assert [m.subs(lam, 0) for m in training_rule("flow", weight_decay=lam).memory(t, s)] == [1, 1]
    assert [m.subs(lam, 0) for m in training_rule(weight_decay=lam).memory(t, s)] == [1, eta]
    heavy = training_rule(momentum=tau).memory(s + n, s)
    assert [m.subs(tau, 0) for m in heavy] == [1, eta]
    warm = entry_covariance(training_rule("flow", weight_decay=lam, temperature=T), t, s)
    assert simplify(warm.subs(T, 0) - exp(-lam * (t + s))) == 0
    assert simplify(limit(warm.subs(Min(t, s), s), lam, 0) - (1 + 2 * T * s)) == 0


def test_noise_is_the_same_for_weights_of_any_variance() -> None:
    """Noise of a rule counts in units of the initial variance, so the rule of each weight compensates."""
    rule = training_rule("flow", weight_decay=lam, temperature=T)
    program = mlp(L, phi, "flow", weight_decay=lam, temperature=T, init_variance="sigma", relative_widths="a")
    for name, size in (("W0", 1), ("W", Function("a")(ell)), ("w", 1)):
        w = weight(program, name)
        raw = w.initial.variance * size  # of W itself, before its factor 1/sqrt(N_l)
        assert simplify(raw * w.rule.noise(t, s) - rule.noise(t, s)) == 0
    assert with_noise(rule, Integer(1), "W") == rule
    cold = training_rule("flow")
    assert with_noise(cold, Integer(0), "W") == cold


# -- activations ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMED)
def test_slopes_are_derivatives(name: str) -> None:
    v = Dummy("v", real=True)
    one = activation_of(name)
    for at in (Rational(-7, 5), Rational(3, 10)):
        step = Rational(1, 10**6)
        rise = (one.phi(at + step) - one.phi(at - step)) / (2 * step)
        assert abs((rise - one.phi(v).diff(v).subs(v, at)).evalf()) < 1e-6
    assert one.linear == (name == "linear")


def test_activations_in_every_form() -> None:
    v = Symbol("v", real=True)
    forms = ("tanh", tanh, Lambda(v, tanh(v)), tanh(v), lambda x: tanh(x))
    programs = [mlp(2, a) for a in forms]
    assert all(program == programs[0] for program in programs)
    assert mlp(2, Lambda(v, v)) == mlp(2)
    assert activation_of("relu").phi(v).diff(v) == Heaviside(v)
    assert activation_of("abs").phi(v) == Abs(v)
    assert activation_of("softplus").phi(v) == log(1 + exp(v))
    assert line(mlp(2, "relu"), "h", ell + 1).atoms(Max) == {Max(0, h(ell, mu, t))}
