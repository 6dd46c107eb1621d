"""What is true in place of misprinted right-hand sides, by the names of the claims; only what differs.

Each function has the name of the claim that it corrects, and its letters.
"""

from __future__ import annotations

from sympy import Basic, I, Sum, sqrt

from tests.ledger.claims.selfconsistent2023 import channels, langevin, parametrisation
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
from tests.ledger.claims.selfconsistent2023.nonlinear import past, phi, xi, z
from tests.ledger.claims.selfconsistent2023.notation import (
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
    s,
    t,
)

# -- convolutions, biases, several outputs, parametrisations: G, H, I, N -------------------------------------


def g1_text() -> dict[str, Basic]:
    """The output, summed over positions."""
    return {"f": Sum(w(unit, p) * phi(h(L, mu, unit, p)), (unit, 1, N), (p, 1, X)) / (gamma0 * N)}


def g2() -> dict[str, Basic]:
    """z with one sum over units, that of the product."""
    return {"z": Sum(product(W_top(ell, k), g(ell + 1, mu, p - k, t)), FILTER)}


def g4() -> dict[str, Basic]:
    """z with phi(h) at the time of the update."""
    backward = Delta(alpha, s) * G(ell + 1, mu, p - k, alpha, c - k, t, s) * phi(h(ell, alpha, c, s))
    return {"z": xi(ell, mu, p, t) + past(backward, FILTER, THIRD)}


def g4_text() -> dict[str, Basic]:
    """chi as a sum over offsets."""
    return {"chi": Sum(product(W(ell, k), phi(h(ell, mu, p + k, t))), FILTER)}


def h2() -> dict[str, Basic]:
    """The velocity of a bias by g of the layer above."""
    return {"db": gamma0 * Sum(Delta(alpha, t) * g(ell + 1, alpha, t), (alpha, 1, P))}


def i3() -> dict[str, Basic]:
    """The tangent kernel by gradients, with gamma^2 = gamma0^2 N."""
    return {
        "K_gradients": gamma0**2
        * N
        * Sum(channels.grad(ell, mu, channels.c, alpha, channels.c_), (ell, 0, L))
    }


def n5() -> dict[str, Basic]:
    """z(ell) by g of the layer above."""
    power = -parametrisation.a(ell)
    return {"z": parametrisation.scaled(power, parametrisation.back(ell), g(ell + 1))}


# -- independent backward matrices: O ------------------------------------------------------------------------


def o1() -> dict[str, Basic]:
    """The exponent on the left, with the conjugate of xi."""
    forward = form(chi_hat(mu), W(ell), phi(h(ell, mu)))
    return {"left": I / sqrt(N) * Sum(forward + form(g(ell + 1, mu), back(ell), xi_hat(mu)), (mu, 1, P))}


# -- Langevin dynamics: K ------------------------------------------------------------------------------------


def k4() -> dict[str, Basic]:
    """The field that W^l transposed gives, and its first field."""
    return {"field": z(ell, mu, t), "start": xi(ell, mu, t)}


def k5() -> dict[str, Basic]:
    """The field that the noise of W^l on phi(h^l) gives."""
    return {"field": langevin.chi_eps(ell + 1, mu, t)}
