"""Tests of combined options against a hand derivation of the smallest case."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sympy import (
    Derivative,
    Dummy,
    Expr,
    Function,
    Integral,
    KroneckerDelta,
    Min,
    Rational,
    S,
    Sum,
    Symbol,
    exp,
    sqrt,
    symbols,
)
from sympy.core.function import AppliedUndef

from derive.calculus.sums import normal_form
from derive.program import L, P, Program, alpha, eta, gamma0, mu, s, t
from derive.theory import Average, Theory
from derive.theory.routes import check_routes
from tests.derive.once import (
    convolution,
    feedback_alignment,
    isotropic,
    mean_field,
    mlp,
    perceptron,
    recurrent,
)

phi = Function("phi")
X, S_, C = (Symbol(n, integer=True, positive=True) for n in "XSC")
beta, lam, T, tau = symbols("beta lam T tau", positive=True)
c, c_, p, p_ = (Symbol(n, integer=True, positive=True) for n in ("c", "c_", "p", "p_"))
k, k_ = symbols("k k_", integer=True)
h, g, z, u, r, b = (Function(n) for n in ("h", "g", "z", "u", "r", "b"))
A, B, Phi, G, Delta, K_x = (Function(n) for n in ("A", "B", "Phi", "G", "Delta", "K_x"))
rho = Symbol("rho", positive=True)
ratio = Symbol("kappa", positive=True)

# -- hand derivations, two hidden layers ---------------------------------------------------------------------


def past(body: Expr, *limits: Any, inclusive: bool = False) -> Expr:
    return Sum(body, *limits, (s, 0, t if inclusive else t - 1))


def same(theory: Theory, name: str, site: Expr | int | None, expected: Expr) -> None:
    assert normal_form((theory.equation(name, site).rhs - expected).expand()) == 0


def covariance(theory: Theory, source: Expr) -> Expr:
    return next(x.covariance for x in theory.sources if x.symbol == source)


def slope(e: Expr) -> Expr:
    slot = Dummy()
    return Derivative(phi(slot), slot).subs(slot, e)


COMPOSITIONS: dict[str, Callable[[], Program]] = {
    "residual, bias, decay, channels": lambda: mlp(
        L, phi, branch=beta, bias=True, weight_decay=lam, outputs=C
    ),
    "convolution, bias": lambda: convolution(L, phi, positions=X, receptive=S_, bias=True),
    "widths, variances, momentum": lambda: mlp(
        L, phi, "flow", relative_widths="a", init_variance="sigma", momentum=tau
    ),
    "channels, noise": lambda: mlp(L, phi, "flow", outputs=C, weight_decay=lam, temperature=T),
    "feedback alignment, residual": lambda: feedback_alignment(L, phi, branch=beta),
    "recurrent, bias": lambda: recurrent(2, phi, bias=True),
    "residual, online, centred, channels": lambda: isotropic(
        L, data="online", branch=beta, center=True, outputs=C
    ),
}


def two(name: str) -> Theory:
    """Return the theory of two layers."""
    return mean_field(COMPOSITIONS[name]()).at_depth(2)


@pytest.mark.parametrize(
    "name",
    [
        x if x == "feedback alignment, residual" else pytest.param(x, marks=pytest.mark.slow)
        for x in COMPOSITIONS
    ],
)
def test_both_routes_agree(name: str) -> None:
    """At any depth."""
    assert check_routes(COMPOSITIONS[name]()) == []


samples, channels = (alpha, 1, P), (c_, 1, C)


def test_residual_with_bias_decay_and_channels() -> None:
    theory = two("residual, bias, decay, channels")
    left = 1 - eta * lam
    both, kept = left**t * left**s, gamma0 * eta * left ** (t - s - 1)
    g2 = g(2, alpha, c_, s)
    responses = both * beta * gamma0 * A(1, mu, alpha, c_, t, s) * g2
    moved = kept * Delta(alpha, c_, s) * (beta**2 * Phi(1, mu, alpha, t, s) + 1) * g2
    stream = h(1, mu, t) + beta * u(2, mu, t) + b(2, mu, t)
    same(theory, "h", 2, stream + past(responses + moved, samples, channels))
    back = both * gamma0 * B(1, mu, c, alpha, t, s) * phi(h(1, alpha, s))
    learnt = kept * beta * Delta(alpha, c_, s) * G(2, mu, c, alpha, c_, t, s) * phi(h(1, alpha, s))
    same(
        theory,
        "z",
        1,
        r(1, mu, c, t) + past(back, samples, inclusive=True) + past(learnt, samples, channels),
    )
    same(theory, "g", 1, g(2, mu, c, t) + beta * slope(h(1, mu, t)) * z(1, mu, c, t))
    same(theory, "g", 2, slope(h(2, mu, t)) * z(2, mu, c, t))
    read = kept * Delta(alpha, c, s) * phi(h(2, alpha, s))
    same(theory, "z", 2, r(2, mu, c, t) + past(read, samples))
    assert normal_form(covariance(theory, u(2, mu, t)) - both * Phi(1, mu, alpha, t, s)) == 0
    assert normal_form(covariance(theory, b(2, mu, t)) - both) == 0
    assert normal_form(covariance(theory, r(2, mu, c, t)) - both * KroneckerDelta(c, c_)) == 0


def test_convolution_with_bias() -> None:
    """G.4 with the response of one filter's offset to the same offset, and H.2 summed over positions."""
    theory = two("convolution, bias")
    offsets, places = (k, -S_, S_), (p_, 1, X)
    error = eta * gamma0 * Delta(alpha, s)
    first = A(1, mu, p + k, alpha, p_, t, s) * g(2, alpha, p_ - k, s)
    learnt = Phi(1, mu, p + k, alpha, p_ + k, t, s) * g(2, alpha, p_, s)
    same(
        theory,
        "h",
        2,
        u(2, mu, p, t)
        + b(2, mu, p, t)
        + past(gamma0 * first + error * learnt, offsets, samples, places)
        + past(error * g(2, alpha, p_, s), samples, places),
    )
    back = B(1, mu, p - k, alpha, p_, t, s) * phi(h(1, alpha, p_ + k, s))
    learnt = G(2, mu, p - k, alpha, p_, t, s) * phi(h(1, alpha, p_ + k, s))
    same(
        theory,
        "z",
        1,
        r(1, mu, p, t)
        + past(gamma0 * back, offsets, samples, places, inclusive=True)
        + past(error * learnt, offsets, samples, places),
    )
    found = covariance(theory, u(2, mu, p, t))
    assert normal_form(found - Sum(Phi(1, mu, p + k, alpha, p_ + k, t, s), offsets)) == 0
    assert covariance(theory, b(2, mu, p, t)) == 1  # the same at all positions, unlike the readout
    assert covariance(theory, r(2, mu, p, t)) == KroneckerDelta(p, p_)


def test_widths_and_variances_with_momentum() -> None:
    """D.54 with the memory of L.2; the printed r of layer 1 is sqrt(a_1/a_2) times ours."""
    a, sigma = Function("a"), Function("sigma")
    theory = two("widths, variances, momentum")
    kept = gamma0 * (1 - exp(-(t - s) / tau))
    g2 = g(2, alpha, s)
    body = sigma(1) ** 2 * gamma0 * A(1, mu, alpha, t, s) * g2
    moved = kept / sqrt(a(2)) * Delta(alpha, s) * Phi(1, mu, alpha, t, s) * g2
    same(theory, "h", 2, u(2, mu, t) + Integral(Sum(body + moved, samples), (s, 0, t)))
    share = sqrt(a(1)) / sqrt(a(2))
    h1 = phi(h(1, alpha, s))
    body = share * sigma(1) ** 2 * a(2) / a(1) * gamma0 * B(1, mu, alpha, t, s) * h1
    moved = kept / sqrt(a(1)) * Delta(alpha, s) * G(2, mu, alpha, t, s) * h1
    same(theory, "z", 1, share * r(1, mu, t) + Integral(Sum(body + moved, samples), (s, 0, t)))
    spread = covariance(theory, r(1, mu, t)) * share**2
    assert normal_form(spread - sigma(1) ** 2 * G(2, mu, alpha, t, s)) == 0
    assert covariance(theory, u(2, mu, t)) == sigma(1) ** 2 * Phi(1, mu, alpha, t, s)


def test_channels_with_langevin_noise() -> None:
    """I.4 with the entries of K.4, K.7: exp(-lam(t + s)) from the start, T (...)/lam from the noise."""
    theory = two("channels, noise")
    entries = exp(-lam * (t + s)) * (1 + T * (exp(2 * lam * Min(t, s)) - 1) / lam)
    kept = gamma0 * exp(-lam * (t - s))
    g2 = g(2, alpha, c_, s)

    def written(e: Expr) -> Expr:  # responses reach into the past only
        return e.replace(Min, lambda *_: s).expand()

    body = entries * gamma0 * A(1, mu, alpha, c_, t, s) * g2
    body += kept * Delta(alpha, c_, s) * Phi(1, mu, alpha, t, s) * g2
    expected = u(2, mu, t) + Integral(Sum(body, samples, channels), (s, 0, t))
    assert normal_form(written(theory.equation("h", 2).rhs) - written(expected)) == 0
    found = covariance(theory, u(2, mu, t)) / Phi(1, mu, alpha, t, s)
    numbers = {lam: Rational(1, 2), T: Rational(1, 3), t: 2, s: Rational(3, 4)}
    assert abs((found - entries).subs(numbers).evalf()) < 1e-12
    top = covariance(theory, r(2, mu, c, t))
    assert abs((top.subs(c_, c) - entries).subs(numbers).evalf()) < 1e-12
    assert top.subs({c: 1, c_: 2}) == 0


def test_residual_with_feedback_alignment() -> None:
    """No responses: nothing learnt or at first is common to V and W; V never moves."""
    theory = two("feedback alignment, residual")
    assert theory.responses() == ()
    learnt = beta**2 * eta * gamma0 * Delta(alpha, s) * Phi(1, mu, alpha, t, s) * g(2, alpha, s)
    same(theory, "h", 2, h(1, mu, t) + beta * u(2, mu, t) + past(learnt, samples))
    assert theory.equation("z", 1).rhs == r(1, mu, t)
    assert theory.equation("g", 1).rhs == g(2, mu, t) + beta * slope(h(1, mu, t)) * z(1, mu, t)
    (omega,) = [e for e in theory.equations if str(e.lhs.func) == "omega"]
    read = eta * gamma0 * Delta(alpha, s) * phi(h(2, alpha, s))
    start = next(x.expr for x in omega.terms if x.kind == "source")
    assert normal_form(omega.rhs - start - past(read, samples)) == 0
    assert not theory.equation("z", 2).rhs.has(Sum)
    assert covariance(theory, u(2, mu, t)) == Phi(1, mu, alpha, t, s)
    assert covariance(theory, r(1, mu, t)) == G(2, mu, alpha, t, s)


def test_tied_weights_with_bias() -> None:
    """Two steps of depth: W is used once each way (k = 1), b at both depths, trained through both."""
    theory = mean_field(COMPOSITIONS["recurrent, bias"]())
    error = eta * gamma0 * Delta(alpha, s)
    biased = past(error * g(k_, alpha, s), samples, (k_, 1, 2))
    e = theory.equation("h", 1)
    start = sum(x.expr for x in e.terms if x.kind == "source")
    learnt = past(error * K_x(mu, alpha) * g(1, alpha, s), samples)
    assert normal_form(e.rhs - start - learnt - biased) == 0
    (e,) = [e for e in theory.equations if e.lhs == h(k + 1, mu, t)]
    source = sum(x.expr for x in e.terms if x.kind == "source")
    (response,) = [x.expr for x in e.terms if x.kind == "response"]
    inner = (samples, (k_, 1, 1))
    learnt = past(error * Phi(k, mu, k_, alpha, t, s) * g(k_ + 1, alpha, s), *inner)
    assert normal_form(e.rhs - source - response - learnt - biased) == 0
    (average,) = {x.func for x in response.atoms(AppliedUndef) if str(x.func).startswith("R")}
    expected = past(gamma0 * average(k, mu, k_, alpha, t, s) * g(k_ + 1, alpha, s), *inner)
    assert normal_form(response - expected) == 0
    drawn = [x for x in theory.sources if x.matrix == "b"]
    assert {x.covariance for x in drawn} == {S.One}  # one vector: the same at both depths
    assert len(drawn) == 3


def test_residual_online_centred_and_channels() -> None:
    """A fresh batch X(t): h0 = X^T Delta/alpha_B is noise plus v of the same step."""
    theory = two("residual, online, centred, channels")
    nu, alpha_B = (Symbol(n, positive=True) for n in ("nu", "alpha_B"))
    v, xi, u0, R = (Function(n) for n in ("v", "xi", "u0", "R_Delta"))
    same(theory, "v", None, Function("w_star")(c, t) - xi(c, t) + xi(c, 0))
    same(theory, "h0", None, u0(c, t) / alpha_B + Sum(R(c, c_, t, t) * v(c_, t), channels))
    C_h, C_g, hr, gu = (Function(n) for n in ("C_h", "C_g", "R_hr", "R_gu"))
    back = past(beta * hr(1, c, c_, t, s) * g(2, c_, s), channels, inclusive=True)
    learnt = past(beta**2 * eta * gamma0 * C_h(1, c, c_, t, s) * g(2, c_, s), channels)
    same(theory, "h", 2, h(1, c, t) + beta * u(2, c, t) + back + learnt)
    both = beta * gu(2, c, c_, t, s) + beta**2 * eta * gamma0 * C_g(2, c, c_, t, s)
    same(theory, "g", 1, g(2, c, t) + beta * r(1, c, t) + past(both * h(1, c_, s), channels))
    assert nu in next(x.covariance for x in theory.sources if x.name == "r0").free_symbols


def test_a_perceptron_with_a_teacher() -> None:
    """Z forwards on v and v_star, backwards on Delta; |samples| = alpha |features|."""
    theory = mean_field(perceptron())
    y, q, v, v_star, h_star = (Function(n) for n in ("y", "q", "v", "v_star", "h_star"))
    C_v, C_D, C_vs = (Function(n) for n in ("C_v", "C_Delta", "C_vv_star"))
    ours, teachers, back = (Function(n) for n in ("u_Z_v", "u_Z_v_star", "r"))
    same(theory, "v", None, Function("w")(t) + past(eta * q(s)))
    same(theory, "h", None, ours(t) + past(Function("R_vr")(t, s) * Delta(s)))
    same(theory, "h_star", None, teachers(t) + past(Function("R_v_star_r")(t, s) * Delta(s)))  # R is 0
    same(theory, "Delta", None, y(t) - h(t))
    same(theory, "y", None, h_star(t))
    one, two = (Function(f"R_Delta_{x.__name__}")(t, s) for x in (ours, teachers))
    same(theory, "q", None, back(t) + past(ratio * (one * v(s) + two * v_star(s)), inclusive=True))
    found = {(x.symbol, x.partner): x.covariance for x in theory.sources}
    assert found[ours(t), ours(s)] == C_v(t, s)
    assert found[ours(t), teachers(s)] == C_vs(t, s)
    assert found[back(t), back(s)] == ratio * C_D(t, s)


def test_a_perceptron_on_a_mixture() -> None:
    """The mean enters through two numbers: its overlap with v, and that of labels with errors."""
    theory = mean_field(perceptron("mixture", Function("loss")))
    y, m, v, M, F = (Function(n) for n in ("y", "m", "v", "M", "F"))
    u_, r_ = Function("u"), Function("r")
    same(theory, "h", None, M(t) * y(t) + u_(t) + past(Function("R_vr")(t, s) * Delta(s)))
    push = past(ratio * Function("R_Deltau")(t, s) * v(s), inclusive=True)
    same(theory, "q", None, F(t) * m(t) + r_(t) + push)
    numbers = {str(e.lhs.func): e.rhs for e in theory.scalars}
    assert numbers == {"M": Average(m(t) * v(t)), "F": ratio * Average(y(t) * Delta(t))}
    assert {x.covariance for x in theory.sources if x.matrix == "m_0"} == {rho}


@pytest.mark.parametrize("dropped", ["bias", "branch", "weight_decay", "outputs"])
def test_leaving_an_option_out_changes_the_theory(dropped: str) -> None:
    """The expectations above would notice a missing option."""
    options = {"outputs": C, "bias": True, "branch": beta, "weight_decay": lam}
    less = mean_field(mlp(L, phi, **{k: v for k, v in options.items() if k != dropped})).at_depth(2)
    with pytest.raises(AssertionError):
        same(less, "h", 2, two("residual, bias, decay, channels").equation("h", 2).rhs)
