"""Gradient independence (O.1) for any activation."""

from __future__ import annotations

from sympy import Basic, Function, S, Sum

from tests.ledger.claims.selfconsistent2023.nonlinear import K_x, Phi
from tests.ledger.claims.selfconsistent2023.notation import Delta, G, L, P, alpha, ell, mu, t

_dot, _chi_hat, _xi_hat = (Function(x) for x in ("dot", "chi_hat", "xi_hat"))


def o1() -> dict[str, Basic]:
    """Logarithm of the average, at one time each: ``dot`` is the inner product over units."""
    forward = _dot(_chi_hat(mu), _chi_hat(alpha)) * Phi(ell, mu, alpha)
    backward = _dot(_xi_hat(mu), _xi_hat(alpha)) * G(ell + 1, mu, alpha)
    return {"log": -Sum(forward + backward, (mu, 1, P), (alpha, 1, P)) / 2}


def o1_text() -> dict[str, Basic]:
    """Responses of the ansatz, and the velocity of the outputs by (4) that goes with it."""
    inner = Sum(G(ell + 1, mu, alpha, t, t) * Phi(ell, mu, alpha, t, t), (ell, 1, L - 1))
    kernel = Phi(L, mu, alpha, t, t) + inner + G(1, mu, alpha, t, t) * K_x(mu, alpha)
    return {"A": S.Zero, "B": S.Zero, "df": Sum(kernel * Delta(alpha, t), (alpha, 1, P))}


__all__ = ["o1", "o1_text"]
