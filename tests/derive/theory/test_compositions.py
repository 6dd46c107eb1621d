"""Options put together in one network: the theory is what one writes down by hand for two hidden layers.

Each expectation below was derived on paper from the network's own update rule, term by term: what the initial
matrix gives (a Gaussian field and a response), what its updates give (an overlap), what is added beside it.
"""

import pytest
from sympy import Expr, Function, S, Sum, Symbol, sqrt

from derive.calculus.sums import normal_form
from derive.program import P, alpha, ell, eta, gamma0, mu, s, t
from derive.theory.routes import check_routes
from tests.derive.once import convolution, feedback_alignment, isotropic, mean_field, mlp, recurrent

phi, K, Phi, G, A, B, Delta = (Function(n) for n in ("phi", "K_x", "Phi", "G", "A", "B", "Delta"))
h, z, g, u, r, b = (Function(n) for n in ("h", "z", "g", "u", "r", "b"))
lam, beta, T = (Symbol(n, positive=True) for n in ("lambda", "beta", "T"))
C = Symbol("C", integer=True, positive=True)
c, c_ = (Symbol(n, integer=True, positive=True) for n in ("c", "c_"))

samples, channels = (alpha, 1, P), (c_, 1, C)
past, present = (s, 0, t - 1), (s, 0, t)


def slope(x):
    return phi(x).diff(x)


def equation(theory, name: str, layer: int) -> Expr:
    """The right-hand side of one field of one layer."""
    found = [e for e in theory.at_depth(2).equations if e.name == name and e.lhs.args[0] == layer]
    assert len(found) == 1
    return found[0].rhs


def covariance(theory, name: str, layer: int) -> Expr:
    """The covariance of one source of one layer with itself."""
    found = [x for x in theory.at_depth(2).sources if str(x.symbol.func) == name]
    found = [x for x in found if x.symbol.args[0] == layer and x.partner.func == x.symbol.func]
    assert len(found) == 1
    return found[0].covariance


def same(left: Expr, right: Expr) -> bool:
    return bool((normal_form(left) - normal_form(right)).expand() == 0)


def test_residual_bias_decay_and_channels():
    """W(t) = q^t W(0) + eta sum_s q^{t-1-s} U(s), q = 1 - eta lambda; h2 = h1 + beta W phi(h1) + b2."""
    program = mlp(2, phi, outputs=C, bias=True, branch=beta, weight_decay=lam)
    check_routes(program)
    theory = mean_field(program)
    q = 1 - eta * lam
    aged = eta * q ** (t - s - 1) * Delta(alpha, c_, s)
    forward = (
        h(1, mu, t)
        + beta * u(2, mu, t)
        + Sum(
            gamma0 * beta * q**t * q**s * A(1, mu, alpha, c_, t, s) * g(2, alpha, c_, s),
            samples,
            channels,
            past,
        )
        + Sum(gamma0 * beta**2 * aged * Phi(1, mu, alpha, t, s) * g(2, alpha, c_, s), samples, channels, past)
        + b(2, mu, t)
        + Sum(gamma0 * aged * g(2, alpha, c_, s), samples, channels, past)
    )
    assert same(equation(theory, "h", 2), forward)
    backward = (
        r(1, mu, c, t)
        + Sum(gamma0 * q**t * q**s * B(1, mu, c, alpha, t, s) * phi(h(1, alpha, s)), samples, present)
        + Sum(
            gamma0 * beta * aged * G(2, mu, c, alpha, c_, t, s) * phi(h(1, alpha, s)), samples, channels, past
        )
    )
    assert same(equation(theory, "z", 1), backward)
    assert same(equation(theory, "g", 1), g(2, mu, c, t) + beta * slope(h(1, mu, t)) * z(1, mu, c, t))
    assert same(covariance(theory, "u", 2), q**t * q**s * Phi(1, mu, alpha, t, s))
    assert same(covariance(theory, "b", 2), q**t * q**s)


def test_convolution_and_bias():
    """h2(p) = sum_k W_k phi(h1(p + k)) + b2: shared filters and a bias shared by all positions."""
    S_, R = (Symbol(n, integer=True, positive=True) for n in "SR")
    program = convolution(2, phi, positions=S_, receptive=R, bias=True)
    check_routes(program)
    theory = mean_field(program)
    p, k = Symbol("p", integer=True, positive=True), Symbol("k", integer=True)
    names = {
        x.name: x for e in theory.equations for a in e.rhs.free_symbols | e.lhs.free_symbols for x in [a]
    }
    names |= {x.name: x for e in theory.equations for a in e.rhs.atoms(Sum) for x in a.variables}
    p, k, p_ = names["p"], names["k"], names["p_"]
    offsets, positions = (k, -R, R), (p_, 1, S_)
    forward = (
        u(2, mu, p, t)
        + Sum(
            gamma0 * A(1, mu, p + k, alpha, p_, t, s) * g(2, alpha, p_ - k, s),
            offsets,
            samples,
            positions,
            past,
        )
        + Sum(
            eta * gamma0 * Delta(alpha, s) * Phi(1, mu, p + k, alpha, p_ + k, t, s) * g(2, alpha, p_, s),
            offsets,
            samples,
            positions,
            past,
        )
        + b(2, mu, p, t)
        + Sum(eta * gamma0 * Delta(alpha, s) * g(2, alpha, p_, s), samples, positions, past)
    )
    assert same(equation(theory, "h", 2), forward)
    assert same(covariance(theory, "u", 2), Sum(Phi(1, mu, p + k, alpha, p_ + k, t, s), offsets))
    assert same(covariance(theory, "b", 2), S.One)


def test_unequal_widths_variances_and_momentum():
    """Layer l has a_l N units; W of layer 1 has variance sigma_1^2/(a_1 N); Q' = m Q + U, W' = W + eta Q'."""
    m = Symbol("m", positive=True)
    a, sigma = Function("a"), Function("sigma")
    program = mlp(2, phi, relative_widths="a", init_variance="sigma", momentum=m)
    check_routes(program)
    theory = mean_field(program)
    heavy = sum(m**j for j in range(3))  # what an update has become after three steps
    weight = eta * (m ** (t - s) - 1) / (m - 1)
    assert (weight.subs(s, t - 3) - eta * heavy).simplify() == 0
    forward = (
        u(2, mu, t)
        + Sum(gamma0 * sigma(1) ** 2 * A(1, mu, alpha, t, s) * g(2, alpha, s), samples, past)
        + Sum(
            gamma0 * weight * Delta(alpha, s) * Phi(1, mu, alpha, t, s) * g(2, alpha, s) / sqrt(a(2)),
            samples,
            past,
        )
    )
    assert same(equation(theory, "h", 2), forward)
    assert same(covariance(theory, "u", 2), sigma(1) ** 2 * Phi(1, mu, alpha, t, s))


def test_residual_network_with_fixed_feedback():
    """Feedback that is no transpose gives no response in either direction; the branch keeps its factor."""
    program = feedback_alignment(2, phi, branch=beta)
    check_routes(program)
    theory = mean_field(program)
    forward = (
        h(1, mu, t)
        + beta * u(2, mu, t)
        + Sum(
            eta * gamma0 * beta**2 * Delta(alpha, s) * Phi(1, mu, alpha, t, s) * g(2, alpha, s), samples, past
        )
    )
    assert same(equation(theory, "h", 2), forward)
    assert equation(theory, "z", 1) == r(1, mu, t)
    assert theory.responses() == ()


def test_tied_weights_and_bias():
    """One matrix and one bias at every depth: each update of either is felt everywhere."""
    program = recurrent(2, phi, bias=True)
    check_routes(program)
    theory = mean_field(program)
    family = next(e for e in theory.equations if str(e.lhs) == "h(k + 1, mu, t)")
    k = next(x for x in family.lhs.free_symbols if x.name == "k")
    k_ = Symbol("k_", **k.assumptions0)
    aged = eta * gamma0 * Delta(alpha, s)
    forward = (
        Function("u_W")(k, mu, t)
        + Function("b")(k + 1, mu, t)
        + Sum(
            gamma0 * Function("R_phi_r_W")(k, mu, k_, alpha, t, s) * g(k_ + 1, alpha, s),
            (k_, 1, 1),
            samples,
            past,
        )
        + Sum(aged * Phi(k, mu, k_, alpha, t, s) * g(k_ + 1, alpha, s), (k_, 1, 1), samples, past)
        + Sum(aged * g(k_, alpha, s), (k_, 1, 2), samples, past)
    )
    assert same(family.rhs, forward)


def test_residual_online_centred_and_channels():
    """A fresh batch X(t): h0 = X^T Delta/alpha_B is noise plus v of the same step."""
    program = isotropic(2, data="online", branch=beta, center=True, outputs=C)
    check_routes(program)
    theory = mean_field(program)
    nu, alpha_B = (Symbol(n, positive=True) for n in ("nu", "alpha_B"))
    v, xi, u0, R = (Function(n) for n in ("v", "xi", "u0", "R_Delta"))
    found = {str(e.lhs): e.rhs for e in theory.equations}
    assert same(found["v(c, t)"], Function("w_star")(c, t) - xi(c, t) + xi(c, 0))
    assert same(found["h0(c, t)"], u0(c, t) / alpha_B + Sum(R(c, c_, t, t) * v(c_, t), channels))
    C_h, C_g, hr, gu = (Function(n) for n in ("C_h", "C_g", "R_hr", "R_gu"))
    forward = (
        h(1, c, t)
        + beta * u(2, c, t)
        + Sum(beta * hr(1, c, c_, t, s) * g(2, c_, s), channels, present)
        + Sum(beta**2 * eta * gamma0 * C_h(1, c, c_, t, s) * g(2, c_, s), channels, past)
    )
    assert same(equation(theory, "h", 2), forward)
    backward = (
        g(2, c, t)
        + beta * r(1, c, t)
        + Sum(beta * gu(2, c, c_, t, s) * h(1, c_, s), channels, past)
        + Sum(beta**2 * eta * gamma0 * C_g(2, c, c_, t, s) * h(1, c_, s), channels, past)
    )
    assert same(equation(theory, "g", 1), backward)
    assert nu in covariance_of(theory, "r0").free_symbols


def covariance_of(theory, name: str) -> Expr:
    return next(x.covariance for x in theory.sources if str(x.symbol.func) == name)


@pytest.mark.parametrize("dropped", ["bias", "branch", "weight_decay", "outputs"])
def test_leaving_an_option_out_changes_the_theory(dropped):
    """The expectations above would notice a missing option."""
    options = {"outputs": C, "bias": True, "branch": beta, "weight_decay": lam}
    whole = mean_field(mlp(2, phi, **options))
    less = mean_field(mlp(2, phi, **{k: v for k, v in options.items() if k != dropped}))
    assert not same(equation(whole, "h", 2), equation(less, "h", 2))
    assert ell not in equation(whole, "h", 2).free_symbols
