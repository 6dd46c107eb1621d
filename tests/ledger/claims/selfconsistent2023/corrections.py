"""Correct expressions for misprinted right-hand sides, by the names of the claims.

Each function has the name of the claim that it corrects, and the same letters; only the differing parts are
given.
"""

from __future__ import annotations

from sympy import Basic, Function, Heaviside, I, Integral, MatrixSymbol, S, Sum, Symbol, exp, sqrt

from tests.ledger.claims.selfconsistent2023 import (
    channels,
    decay,
    discrete,
    equilibrium,
    langevin,
    parametrisation,
    whitened,
)
from tests.ledger.claims.selfconsistent2023.convolution import (
    FILTER,
    THIRD,
    N,
    W,
    W_top,
    X,
    c,
    k,
    p,
    product,
    unit,
    w,
)
from tests.ledger.claims.selfconsistent2023.independence import back, chi_hat, form, xi_hat
from tests.ledger.claims.selfconsistent2023.nonlinear import average, past, phi, response, xi, z
from tests.ledger.claims.selfconsistent2023.notation import (
    A,
    B,
    Delta,
    G,
    L,
    P,
    alpha,
    ell,
    g,
    gamma0,
    h,
    mu,
    r,
    s,
    t,
    u,
)

# -- convolutions, biases, several outputs, parametrisations: G, H, I, N -------------------------------------


def g1_text() -> dict[str, Basic]:
    """Return the correct statement in the text at (G.1): the output, summed over positions."""
    return {"f": Sum(w(unit, p) * phi(h(L, mu, unit, p)), (unit, 1, N), (p, 1, X)) / (gamma0 * N)}


def g2() -> dict[str, Basic]:
    """Return the correct equation (G.2): z with one sum over units, that of the product."""
    return {"z": Sum(product(W_top(ell, k), g(ell + 1, mu, p - k, t)), FILTER)}


def g4() -> dict[str, Basic]:
    """Return the correct equation (G.4): z with phi(h) at the time of the update."""
    backward = Delta(alpha, s) * G(ell + 1, mu, p - k, alpha, c - k, t, s) * phi(h(ell, alpha, c, s))
    return {"z": xi(ell, mu, p, t) + past(backward, FILTER, THIRD)}


def g4_text() -> dict[str, Basic]:
    """Return the correct statement in the text at (G.4): chi as a sum over offsets."""
    return {"chi": Sum(product(W(ell, k), phi(h(ell, mu, p + k, t))), FILTER)}


def h2() -> dict[str, Basic]:
    """Return the correct equation (H.2): the velocity of a bias by g of the layer above."""
    return {"db": gamma0 * Sum(Delta(alpha, t) * g(ell + 1, alpha, t), (alpha, 1, P))}


def i3() -> dict[str, Basic]:
    """Return the correct equation (I.3): the tangent kernel by gradients, with gamma^2 = gamma0^2 N."""
    return {
        "K_gradients": gamma0**2
        * N
        * Sum(channels.grad(ell, mu, channels.c, alpha, channels.c_), (ell, 0, L))
    }


def n5() -> dict[str, Basic]:
    """Return the correct equation (N.5): z(ell) by g of the layer above."""
    power = -parametrisation.a(ell)
    return {"z": parametrisation.scaled(power, parametrisation.back(ell), g(ell + 1))}


# -- whitened data: F ----------------------------------------------------------------------------------------


def f15() -> dict[str, Basic]:
    """Return the correct equation (F.15): the backward operator, with the response of its own layer."""
    since = Heaviside(t - s) * whitened.error(s)
    return {"D": whitened.B(ell, t, s) + since * whitened.G(ell + 1, t, s)}


def f16_text() -> dict[str, Basic]:
    """Return the correct statement in the text at (F.16): responses on whitened data.

    The layer of the response B that C and D of layer ell determine.
    """
    return {"layer_of_B": ell - 1}


# -- weight decay: J -----------------------------------------------------------------------------------------


def j1_text() -> dict[str, Basic]:
    """Return the correct statement in the text at (J.1): the output at rest depends on the decay.

    The network has one linear hidden layer and one sample; the output is zero beyond a threshold of decay.
    """
    kernel, y = (Symbol(x, positive=True) for x in ("K", "y"))
    return {
        "rest": y - decay.lam / (gamma0 * sqrt(kernel)),
        "threshold": gamma0 * y * sqrt(kernel),
        "beyond": S.Zero,
    }


# -- independent backward matrices: O ------------------------------------------------------------------------


def o1() -> dict[str, Basic]:
    """Return the correct equation (O.1): the exponent on the left, with the conjugate of xi."""
    forward = form(chi_hat(mu), W(ell), phi(h(ell, mu)))
    return {"left": I / sqrt(N) * Sum(forward + form(g(ell + 1, mu), back(ell), xi_hat(mu)), (mu, 1, P))}


# -- Langevin dynamics: K ------------------------------------------------------------------------------------


def k4() -> dict[str, Basic]:
    """Return the correct equation (K.4): the field that W^l transposed gives, and its first field."""
    return {"field": z(ell, mu, t), "start": xi(ell, mu, t)}


def k5() -> dict[str, Basic]:
    """Return the correct equation (K.5): the field that the noise of W^l on phi(h^l) gives."""
    return {"field": langevin.chi_eps(ell + 1, mu, t)}


def k9() -> dict[str, Basic]:
    """Return the correct equation (K.9): saddle point in the responses to the noise.

    The derivative of the action in B_eps, without the covariance of the noise.
    """
    feature = average(phi(h(ell, mu, t)) * langevin.xihat_eps(ell, alpha, s))
    return {"B_eps": -langevin.A_eps(ell, mu, alpha, t, s) - I * feature}


def k13() -> dict[str, Basic]:
    """Return the correct equation (K.13): B_eps as a response to the noise."""
    pushed = response(g(ell + 1, mu, t), langevin.u_eps(ell + 1, alpha, s))
    return {"B_eps": langevin.C(t, s) * pushed}


def k14() -> dict[str, Basic]:
    """Return the correct equation (K.14): z, in which B multiplies phi(h)."""
    rate, feature = equilibrium.lam / equilibrium.beta, phi(h(ell, alpha, s))
    memory = exp(-rate * (t - s)) * Delta(alpha, s) * G(ell + 1, mu, alpha, t, s)
    since = langevin.B_eps(ell, mu, alpha, t, s) + memory
    start = r(ell, mu, t) + gamma0 * Integral(
        Sum(B(ell, mu, alpha, t, s) * feature, (alpha, 1, P)), (s, 0, t)
    )
    noise = langevin.r_eps(ell, mu, t) + gamma0 * Integral(Sum(since * feature, (alpha, 1, P)), (s, 0, t))
    return {"z": exp(-rate * t) * start + noise}


def k19() -> dict[str, Basic]:
    """Return the correct equation (K.19): the derivative of the action in the kernel of an inner layer."""
    above = average(equilibrium.hhat(ell + 1, mu) * equilibrium.hhat(ell + 1, alpha))
    return {"Phi": -above / (2 * equilibrium.lam) + equilibrium.Phihat(ell, mu, alpha) / 2}


def k20_text() -> dict[str, Basic]:
    """Return the correct statement in the text at (K.20): the conjugate kernel of the last layer."""
    strength = gamma0**2 * equilibrium.beta**2 / equilibrium.lam
    return {"Phihat_last": -strength * Delta(mu) * Delta(alpha)}


def k22() -> dict[str, Basic]:
    """Return the correct equation (K.22): conjugate kernel of the layer below.

    The conjugate kernel of a layer by its kernel ``Phi`` and by ``C = <h h^T>`` of the layer above.
    """
    below, above = MatrixSymbol("Phi", P, P), MatrixSymbol("C", P, P)
    return {"Phihat": below.inv() - equilibrium.lam * below.inv() * above * below.inv()}


def k23() -> dict[str, Basic]:
    """Return the correct equation (K.23): the conjugate kernel of a layer."""
    return k22()


# -- exact discrete time: M ----------------------------------------------------------------------------------


def m7() -> dict[str, Basic]:
    """Return the correct equation (M.7): the derivative of the action in B^L, with the opposite sign."""
    feature = average(phi(h(L, mu, t)) * discrete.xihat(alpha, s))
    return {"B": -A(L, mu, alpha, t, s) - I * feature / gamma0}


def m8() -> dict[str, Basic]:
    """Return the correct equation (M.8): responses, with their sources in place."""
    return {
        "A": response(phi(h(ell, mu, t)), r(ell, alpha, s)) / gamma0,
        "B": response(g(ell + 1, mu, t), u(ell + 1, alpha, s)) / gamma0,
    }


# -- Tensor Programs: N --------------------------------------------------------------------------------------


def n10_text() -> dict[str, Basic]:
    """Return the correct statement in the text at (N.10): the dotted part contains the gradient field.

    It does not contain the error.
    """
    return {"dot": gamma0 * Sum(A(t, s) * g(s), (s, 0, t - 1))}


def table_n1() -> dict[str, Basic]:
    """Return the correct Table N1: names of the gradients at h and at phi(h), and A by theta."""
    Z, dh, dx = (Function(x) for x in ("Z", "dh", "dx"))
    return {"g": Z(dh(t)), "z": Z(dx(t)), "A": Function("theta")(t, s) / gamma0}


# -- expansion in gamma0: P ----------------------------------------------------------------------------------


def p7_text() -> dict[str, Basic]:
    """Return the correct statement in the text at (P.7): the order of D that is not zero."""
    return {"order_of_D": S.Zero}
