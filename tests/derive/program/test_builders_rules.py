"""Training rules and activations by name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest
from sympy import (
    Abs,
    Dummy,
    Expr,
    Function,
    Heaviside,
    Integer,
    Lambda,
    Matrix,
    Max,
    Min,
    Rational,
    S,
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
    LinearRule,
    Momentum,
    MomentumFlow,
    Multistep,
    P,
    Program,
    ProgramError,
    TrainedMatrix,
    TrainedVector,
    TrainingRule,
    ell,
    entry_covariance,
    eta,
    mu,
    rmsprop,
    s,
    sign_descent,
    t,
    training_rule,
)
from derive.program.entrywise import A, Entrywise
from derive.program.language import P_train
from derive.program.networks import network, normalised, recurrent, recurrent_task
from derive.program.networks.options import NAMED, activation_of
from derive.program.outer_steps import outer_products
from derive.program.rules import with_noise
from derive.program.spectral import Spectral, sigma
from derive.theory import mean_field
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


LINEAR = LinearRule(Matrix([[1, eta * tau], [0, tau]]), Matrix([eta, 1]))
OF_MEAN: dict[str, tuple[TrainingRule, TrainingRule]] = {
    "descent": (GradientDescent(eta, decay=lam), GradientDescent(eta / P, decay=lam)),
    "flow": (GradientFlow(diffusion=T), GradientFlow(1 / P, diffusion=T)),
    "momentum": (Momentum(eta, tau), Momentum(eta / P, tau)),
    "velocity": (MomentumFlow(tau), MomentumFlow(tau, 1 / P)),
    "multistep": (Multistep(left="m"), Multistep(1 / P, left="m")),
    "linear rule": (LINEAR, LinearRule(LINEAR.A, LINEAR.b / P)),
    "sign": (sign_descent(eta), sign_descent(eta)),
    "rmsprop": (rmsprop(eta, epsilon=lam), rmsprop(eta, epsilon=lam).of_gradient(1 / P)),
    "singular values": (Spectral(eta, tanh(sigma)), Spectral(eta, tanh(sigma / P))),
}


@pytest.mark.parametrize("name", OF_MEAN)
def test_the_mean_loss_divides_the_gradient_of_every_rule(name: str) -> None:
    """A rule object was trained by the summed loss."""
    rule, of_mean = OF_MEAN[name]
    given = "gd" if isinstance(rule, Spectral) else rule
    one = mlp(2, "tanh", given, "mean", rules={"W": rule})
    assert weight(one, "W").rule == of_mean
    assert weight(one, "W0").rule == (of_mean if given == rule else GradientDescent(eta / P))
    assert weight(mlp(2, "tanh", given, rules={"W": rule}), "W").rule == rule


def test_builders_divide_the_gradient_of_rule_objects_alike() -> None:
    named, rule = GradientDescent(eta / P), GradientDescent(eta)
    for build in (partial(recurrent, 2), partial(recurrent_task, 2), partial(normalised, 1)):
        assert build(rule=rule, loss="mean").rule == build(rule="gd", loss="mean").rule == named
    weighted = mlp(2, rule=rule, loss="mean", sample_weights=True)
    assert weighted.rule == GradientDescent(eta / P_train)
    for loss in ("foo", ["sum"]):
        with pytest.raises(ProgramError, match=r"^loss = .*: must be 'sum' or 'mean'$"):
            mlp(2, rule=rule, loss=loss)


def test_steps_with_a_constant_are_no_outer_products() -> None:
    """The constant 1 was refused as a vector without a population."""
    program = mlp(2, "tanh", Entrywise(eta, A**2 - 1))
    assert outer_products(program) is program
    assert mean_field(program).sources


def test_a_rule_of_a_user_refuses_the_mean_loss_or_takes_a_factor() -> None:
    with pytest.raises(ProgramError, match=r"has no method of_gradient\(factor\)"):
        mlp(2, rule=Plain(), loss="mean")
    assert mlp(2, rule=Plain()).rule == Plain()


@dataclass(frozen=True)
class Plain:
    """Training rule of a user."""

    discrete: bool = True

    def memory(self, time: Expr, past: Expr) -> tuple[Expr, Expr]:
        """Return the factors of the initial weight and of a past update."""
        return S.One, eta

    def noise(self, time: Expr, past: Expr) -> Expr:
        """Return the covariance of the noise."""
        return S.Zero


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


@pytest.mark.parametrize("kind", [tuple, list])
def test_rules_as_pairs_are_for_the_mean_loss_as_those_of_a_mapping(kind: type) -> None:
    """Rules that were given as pairs kept the learning rate of the summed loss."""
    own = {"W": GradientDescent(eta)}
    rates = [
        {w.name: w.rule.rate for w in network(2, "tanh", loss="mean", rules=rules).trained()}
        for rules in (own, kind(own.items()))
    ]
    assert rates[0] == rates[1] == dict.fromkeys(("W0", "W", "w"), eta / P)
