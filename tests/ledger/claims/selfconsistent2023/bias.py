"""Trainable biases (H.1)-(H.3)."""

from __future__ import annotations

from sympy import Basic, Function, Heaviside, Sum, oo

from tests.ledger.claims.selfconsistent2023.nonlinear import Phi, past, phi
from tests.ledger.claims.selfconsistent2023.notation import (
    A,
    B,
    Delta,
    G,
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

product = Function("product")
W, b = Function("W"), Function("b")


def h1() -> dict[str, Basic]:
    """Return the printed equation (H.1): h of the layer above, ``product(M, v)`` being M v/sqrt(N)."""
    return {"h": product(W(ell), phi(h(ell, mu, t))) + b(ell, t)}


def h2() -> dict[str, Basic]:
    """Return the printed equation (H.2): velocity of ``b(ell)``: the last two expressions of the chain."""
    return {
        "db_before": gamma0 * Sum(Delta(alpha, t) * g(ell + 1, alpha, t), (alpha, 1, P)),
        "db": gamma0 * Sum(Delta(alpha, t) * g(ell, alpha, t), (alpha, 1, P)),
    }


def h3() -> dict[str, Basic]:
    """Return the printed equation (H.3): covariances and fields; u holds the bias at the start."""
    since = Heaviside(t - s) * Delta(alpha, s)
    forward = A(ell - 1, mu, alpha, t, s) + since * Phi(ell - 1, mu, alpha, t, s)
    backward = B(ell, mu, alpha, t, s) + since * G(ell + 1, mu, alpha, t, s)
    return {
        "cov_u": Phi(ell - 1, mu, alpha, t, s) + 1,
        "cov_r": G(ell + 1, mu, alpha, t, s),
        "h": u(ell, mu, t)
        + past(forward * g(ell, alpha, s), upper=oo)
        + past(Delta(alpha, s) * g(ell, alpha, s)),
        "z": r(ell, mu, t) + past(backward * phi(h(ell, alpha, s)), upper=oo),
    }
