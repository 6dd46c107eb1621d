"""Tangent kernel (4), fields (F.1), operators (F.2) and the closed matrix equations (15), (F.3), (F.4)."""

from __future__ import annotations

from sympy import Basic, Function, Heaviside, Identity, Integral, MatrixSymbol, S, Sum, Symbol, oo

from tests.ledger.claims.selfconsistent2023.notation import (
    A,
    B,
    Delta,
    G,
    H,
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


def eq4() -> dict[str, Basic]:
    """Return the printed equation (4): df_mu/dt from the tangent kernel, here K(mu, alpha, t, s)."""
    tangent = Function("K")
    return {"df": Sum(tangent(mu, alpha, t, t) * Delta(alpha, t), (alpha, 1, P))}


def eq4_text() -> dict[str, Basic]:
    """Return the statement in the text at (4): tangent kernel as a product of gradients of f.

    The inner product of the gradients of f at (mu, t) and (alpha, s).
    """
    return {"grad_f_grad_f": Sum(G(ell + 1, t, s) * H(ell, mu, alpha, t, s), (ell, 0, L))}


def f1() -> dict[str, Basic]:
    """Return the printed equation (F.1): h(ell, mu, t) and g(ell, t); the missing ds is supplied."""
    forward = A(ell - 1, mu, alpha, t, s) + Heaviside(t - s) * H(ell - 1, mu, alpha, t, s)
    backward = B(ell, alpha, t, s) + gamma0 * Heaviside(t - s) * G(ell + 1, t, s)
    past = (s, 0, oo)
    samples = (alpha, 1, P)
    return {
        "h": u(ell, mu, t) + gamma0 * Integral(Sum(forward * Delta(alpha, s) * g(ell, s), samples), past),
        "g": r(ell, t) + gamma0 * Integral(Sum(backward * Delta(alpha, s) * h(ell, alpha, s), samples), past),
    }


def f2() -> dict[str, Basic]:
    """Return the printed equation (F.2): operators C and D.

    Kernels C(ell, mu; t, s) and D(ell, mu; t, s) of the two operators.
    """
    forward = A(ell - 1, mu, alpha, t, s) + Heaviside(t - s) * H(ell - 1, mu, alpha, t, s)
    return {
        "C": Sum(forward * Delta(alpha, s), (alpha, 1, P)),
        "D": (B(ell, mu, t, s) + Heaviside(t - s) * G(ell + 1, t, s)) * Delta(mu, s),
    }


# Matrices over times (T) and over samples and times (P T); C maps the first space to the second.
_T = Symbol("T", integer=True, positive=True)
_C = MatrixSymbol("C", P * _T, _T)
_D = MatrixSymbol("D", _T, P * _T)
_H_BELOW = MatrixSymbol("H_below", P * _T, P * _T)
_G_ABOVE = MatrixSymbol("G_above", _T, _T)
_U = MatrixSymbol("u", P * _T, S.One)
_R = MatrixSymbol("r", _T, S.One)
_FORWARD = (Identity(P * _T) - gamma0**2 * _C * _D).inverse()
_BACKWARD = (Identity(_T) - gamma0**2 * _D * _C).inverse()


def f3() -> dict[str, Basic]:
    """Return the printed equation (F.3): the fields of one layer, as columns."""
    return {
        "h": _FORWARD * (_U + gamma0 * _C * _R),
        "g": _BACKWARD * (_R + gamma0 * _D * _U),
    }


def eq15() -> dict[str, Basic]:
    """Return the printed equation (15): H and G of one layer from ``H_below`` and ``G_above``."""
    return {
        "H": _FORWARD * (_H_BELOW + gamma0**2 * _C * _G_ABOVE * _C.T) * _FORWARD.T,
        "G": _BACKWARD * (_G_ABOVE + gamma0**2 * _D * _H_BELOW * _D.T) * _BACKWARD.T,
    }


def f4() -> dict[str, Basic]:
    """Return the printed equation (F.4): closed equations with the responses.

    The kernels of (15), with the responses A of the layer and B of the layer below (``B_below``).
    """
    return {**eq15(), "A": _FORWARD * _C, "B_below": _BACKWARD * _D}
