"""Weight decay (J.1), (J.2)."""

from __future__ import annotations

from sympy import Basic, Function, Identity, Integral, MatrixSymbol, Ne, Sum, Symbol, exp, oo

from tests.ledger.claims.selfconsistent2023.nonlinear import Phi, chi, phi, xi
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

lam = Symbol("lam", positive=True)
q = Symbol("q", positive=True)
kappa = Symbol("kappa", positive=True)
K, f = Function("K"), Function("f")


def j1() -> dict[str, Basic]:
    """Return the printed equation (J.1): representer theorem with weight decay.

    The output's velocity, the degrees of rectifiers and of their powers, and the output at rest.

    ``K`` and ``k`` are the final tangent kernel on the samples and its column for another input.
    """
    kernel, column, target = MatrixSymbol("K", P, P), MatrixSymbol("k", P, 1), MatrixSymbol("y", P, 1)
    return {
        "df": Sum(Delta(alpha, t) * K(mu, alpha, t, t), (alpha, 1, P)) - lam * kappa * f(mu, t),
        "degree_of_rectifiers": L + 1,
        "degree_of_powers": (q ** (L + 1) - 1) / (q - 1),
        "f": column.T * (kernel + lam * kappa * Identity(P)).inv() * target,
    }


def j1_text() -> dict[str, Basic]:
    """Return the statement in the text at (J.1): the output at rest, said to hold for every gamma0 > 0."""
    return {"rest": Ne(f(mu, oo), 0)}


def j2() -> dict[str, Basic]:
    """Return the printed equation (J.2): fields, given chi and xi."""

    def kept(body: Basic) -> Basic:
        return gamma0 * Integral(exp(-lam * (t - s)) * Sum(body, (alpha, 1, P)), (s, 0, t))

    forward = Delta(alpha, s) * g(ell, alpha, s) * Phi(ell - 1, mu, alpha, t, s)
    backward = Delta(alpha, s) * phi(h(ell, alpha, s)) * G(ell + 1, mu, alpha, t, s)
    return {
        "h": exp(-lam * t) * chi(ell, mu, t) + kept(forward),
        "z": exp(-lam * t) * xi(ell, mu, t) + kept(backward),
    }


__all__ = ["j1", "j1_text", "j2"]
