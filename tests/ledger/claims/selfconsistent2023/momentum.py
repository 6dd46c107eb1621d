"""Momentum (L.2), (L.3); the paper's t' is ``x`` here and its t'' is ``s``."""

from __future__ import annotations

from sympy import Basic, Expr, Integral, Sum, Symbol, exp

from tests.ledger.claims.selfconsistent2023.nonlinear import Phi, chi, phi, xi
from tests.ledger.claims.selfconsistent2023.notation import (
    Delta,
    G,
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

tau = Symbol("tau", positive=True)
x = Symbol("x", real=True)


def l2() -> dict[str, Basic]:
    """Return the printed equation (L.2): weights with momentum.

    The integrand, and the weight of the update at s after the inner integral.
    """
    kernel = exp(-(x - s) / tau) / tau
    return {"kernel": kernel, "memory": Integral(kernel, (x, s, t))}


def l3() -> dict[str, Basic]:
    """Return the printed equation (L.3): fields with momentum.

    h of the layer above, and z, given chi and xi; the second dt'' in z is left out.
    """

    def twice(body: Expr) -> Expr:
        summed = Sum(body, (alpha, 1, P))
        return gamma0 / tau * Integral(Integral(exp(-(x - s) / tau) * summed, (s, 0, x)), (x, 0, t))

    forward = Delta(alpha, s) * g(ell + 1, alpha, s) * Phi(ell, mu, alpha, t, s)
    backward = Delta(alpha, s) * phi(h(ell, alpha, s)) * G(ell + 1, mu, alpha, t, s)
    return {
        "h": chi(ell + 1, mu, t) + twice(forward),
        "z": xi(ell, mu, t) + twice(backward),
    }


__all__ = ["l2", "l3"]
