"""Gradient independence (O.1) for any activation."""

from __future__ import annotations

from sympy import Basic, Function, I, S, Sum, Symbol, sqrt

from tests.ledger.claims.selfconsistent2023.nonlinear import K_x, Phi, phi, xi
from tests.ledger.claims.selfconsistent2023.notation import Delta, G, L, P, alpha, ell, g, h, mu, t

N = Symbol("N", integer=True, positive=True)
W, back = Function("W"), Function("W_tilde")
dot, form, chi_hat, xi_hat = (Function(x) for x in ("dot", "form", "chi_hat", "xi_hat"))


def o1() -> dict[str, Basic]:
    """Return the printed equation (O.1): average with an independent backward matrix.

    Exponent on the left and logarithm of its average, at one time each.

    ``dot`` is the inner product over units, and ``form(a, M, b)`` is a^T M b; the sample of chi_hat on the
    left is supplied.
    """
    exponent = form(chi_hat(mu), W(ell), phi(h(ell, mu))) + form(g(ell + 1, mu), back(ell), xi(ell, mu))
    forward = dot(chi_hat(mu), chi_hat(alpha)) * Phi(ell, mu, alpha)
    backward = dot(xi_hat(mu), xi_hat(alpha)) * G(ell + 1, mu, alpha)
    return {
        "left": I / sqrt(N) * Sum(exponent, (mu, 1, P)),
        "log": -Sum(forward + backward, (mu, 1, P), (alpha, 1, P)) / 2,
    }


def o1_text() -> dict[str, Basic]:
    """Return the statement in the text at (O.1): independent backward matrices and the ansatz A = B = 0.

    Responses of the ansatz, and the velocity of the outputs by (4) that goes with it.
    """
    inner = Sum(G(ell + 1, mu, alpha, t, t) * Phi(ell, mu, alpha, t, t), (ell, 1, L - 1))
    kernel = Phi(L, mu, alpha, t, t) + inner + G(1, mu, alpha, t, t) * K_x(mu, alpha)
    return {"A": S.Zero, "B": S.Zero, "df": Sum(kernel * Delta(alpha, t), (alpha, 1, P))}


__all__ = ["N", "W", "back", "chi_hat", "form", "o1", "o1_text", "xi_hat"]
