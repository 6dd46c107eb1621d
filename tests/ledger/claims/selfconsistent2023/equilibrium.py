"""Langevin dynamics at equilibrium (K.17)-(K.23).

Without times: ``h(ell, mu)``, ``Phi(ell, mu, alpha)``, conjugates ``fhat(mu)``, ``hhat(ell, mu)``,
``Phihat``; the loss of a sample is ``loss(f(mu), y(mu))``, matrices over samples are P x P.
"""

from __future__ import annotations

from sympy import Basic, Expr, Function, I, MatrixExpr, MatrixSymbol, Rational, Sum, Symbol

from tests.ledger.claims.selfconsistent2023.nonlinear import Phi, average, phi
from tests.ledger.claims.selfconsistent2023.notation import Delta, L, P, alpha, ell, gamma0, h, mu

lam, beta = Symbol("lam", positive=True), Symbol("beta", positive=True)
Phihat, f, fhat, hhat, loss, y = (Function(n) for n in ("Phihat", "f", "fhat", "hhat", "loss", "y"))
ONE, BOTH = (mu, 1, P), ((mu, 1, P), (alpha, 1, P))
_HALF = Rational(1, 2)


def _prior(layer: Expr) -> Expr:
    return Sum(hhat(layer, mu) * Phi(layer - 1, mu, alpha) * hhat(layer, alpha), *BOTH) / (2 * lam)


def _conjugate(layer: Expr) -> Expr:
    return Sum(phi(h(layer, mu)) * Phihat(layer, mu, alpha) * phi(h(layer, alpha)), *BOTH) / 2


def _constraint(layer: Expr) -> Expr:
    return I * Sum(hhat(layer, mu) * h(layer, mu), ONE)


def _algebra() -> Expr:
    """Return the action per N without the integrals over fields."""
    return (
        -(gamma0**2) * beta * Sum(loss(f(mu), y(mu)), ONE)
        - gamma0 * Sum(fhat(mu) * f(mu), ONE)
        + Sum(fhat(mu) * Phi(L, mu, alpha) * fhat(alpha), *BOTH) / (2 * lam)
        + Sum(Phi(ell, mu, alpha) * Phihat(ell, mu, alpha), *BOTH, (ell, 1, L)) / 2
    )


def k17() -> dict[str, Basic]:
    """Return the printed equation (K.17): posterior of the outputs.

    The exponent per N in front of the integrals over fields, and the exponent in the integral of layer ell.
    """
    return {"exponent": _algebra(), "Z": -_prior(ell) - _conjugate(ell) + _constraint(ell)}


def k18() -> dict[str, Basic]:
    """Return the printed equation (K.18): the action, ``lnZ(ell)`` being the log of an integral of (K.17)."""
    return {"S": _algebra() + Sum(Function("lnZ")(ell), (ell, 1, L))}


def k19() -> dict[str, Basic]:
    """Return the printed equation (K.19): saddle point at equilibrium.

    Derivatives of the action; ``Phihat_last`` has the kernel of layer ell in print.
    """

    def kernel(layer: Expr) -> Expr:
        return _HALF * Phi(ell, mu, alpha) - _HALF * average(phi(h(layer, mu)) * phi(h(layer, alpha)))

    above = average(hhat(ell + 1, mu) * hhat(ell + 1, alpha))
    return {
        "f": gamma0 * fhat(mu) - gamma0**2 * beta * Delta(mu),
        "fhat": -gamma0 * f(mu) + Sum(Phi(L, mu, alpha) * fhat(alpha), (alpha, 1, P)) / lam,
        "Phi_last": fhat(mu) * fhat(alpha) / (2 * lam) + _HALF * Phihat(L, mu, alpha),
        "Phihat_last": kernel(L),
        "Phi": -_HALF * above + _HALF * Phihat(ell, mu, alpha),
        "Phihat": kernel(ell),
    }


def k20() -> dict[str, Basic]:
    """Return the printed equation (K.20): the output."""
    return {"f": beta / lam * Sum(Phi(L, mu, alpha) * Delta(alpha), (alpha, 1, P))}


def k20_text() -> dict[str, Basic]:
    """Return the statement in the text at (K.20): the conjugate kernel of the last layer."""
    return {"Phihat_last": -(gamma0**2) * beta**2 / (2 * lam) * Delta(mu) * Delta(alpha)}


def k21() -> dict[str, Basic]:
    """Return the printed equation (K.21): the exponent in the integral of the last layer."""
    pushed = Sum(Delta(mu) * phi(h(L, mu)), ONE) ** 2
    return {"Z": -_prior(L) + gamma0**2 * beta**2 / (2 * lam) * pushed + _constraint(L)}


def _recursion() -> MatrixExpr:
    below, above = MatrixSymbol("Phi", P, P), MatrixSymbol("C", P, P)
    return lam * below.inv() - lam**2 * below.inv() * above * below.inv()


def k22() -> dict[str, Basic]:
    """Return the printed equation (K.22): conjugate kernel of the layer below.

    The conjugate kernel of layer L - 1 by its kernel ``Phi`` and by ``C = <h h^T>`` of layer L.
    """
    return {"Phihat": _recursion()}


def k23() -> dict[str, Basic]:
    """Return the printed equation (K.23): recursion of the conjugate kernels.

    The kernel of a layer, and the conjugate of that below by its kernel ``Phi`` and ``C = <h h^T>``.
    """
    return {"Phi": average(phi(h(ell, mu)) * phi(h(ell, alpha))), "Phihat": _recursion()}


__all__ = ["k17", "k18", "k19", "k20", "k20_text", "k21", "k22", "k23"]
