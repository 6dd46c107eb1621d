"""Averages over the data and the initial matrices (appendix A.1.2), times 0..T-1.

``dot(a, b)`` is the product of two vectors of one network, ``average(a, b)`` the same over their size.
Hats as in :mod:`.action`.
"""

from __future__ import annotations

from sympy import Basic, Expr, Function, I, Sum

from tests.ledger.claims.linear2025.action import Dhat, T, average, chihat, h0hat, xi0hat, xihat
from tests.ledger.claims.linear2025.notation import (
    C_Delta,
    C_g,
    C_h,
    C_h0,
    C_v,
    D,
    Delta,
    N,
    P,
    alpha,
    ell,
    g,
    gamma0,
    h,
    h0,
    nu,
    s,
    t,
    v,
)

dot = Function("dot")


def _both(body: Expr) -> Expr:
    return Sum(body, (t, 0, T - 1), (s, 0, T - 1))


def _square(a: Expr, b: Expr) -> Expr:
    return dot(a, a.subs(t, s)) * dot(b, b.subs(t, s))


def f34() -> dict[str, Basic]:
    """Return the printed equation (34): squares of both terms of (33)."""
    first = -_square(Dhat(t), v(t)) / (2 * D)
    return {"exponent": _both(first - D / (2 * P) * _square(h0hat(t), Delta(t)) / P)}


def f35() -> dict[str, Basic]:
    """Return the printed equation (35): the cross term, with the times as printed."""
    return {"exponent": -_both(dot(Dhat(t), Delta(t)) * dot(v(t), h0hat(s))) / P}


def f36() -> dict[str, Basic]:
    """Return the printed equation (36): responses of the data."""
    return {"R_vu": -I * average(v(t), h0hat(s)), "R_Delta": -I * average(Delta(t), Dhat(s))}


def f42() -> dict[str, Basic]:
    """Return the printed equation (42): average over the first matrix, correlations.

    Squares of both terms of (41); ``bracket`` is the printed name of the overlap of g^1.
    """
    first = -_square(chihat(1, t), h0(t)) / (2 * D)
    second = -D / (2 * N * gamma0**2) * _square(xi0hat(t), g(1, t)) / N
    return {"exponent": _both(first + second), "bracket": C_h0(t, s)}


def f43() -> dict[str, Basic]:
    """Return the printed equation (43): the cross term."""
    return {"exponent": -_both(dot(chihat(1, t), g(1, s)) * dot(h0(t), xi0hat(s))) / (N * gamma0)}


def f45() -> dict[str, Basic]:
    """Return the printed equation (45): responses of the first matrix."""
    return {"R_gu1": average(g(1, t), chihat(1, s)), "R_h0r0": average(h0(t), xi0hat(s))}


def f47() -> dict[str, Basic]:
    """Return the printed equation (47): an inner matrix."""
    squares = _square(chihat(ell + 1, t), h(ell, t)) + _square(xihat(ell, t), g(ell + 1, t))
    cross = dot(chihat(ell + 1, t), g(ell + 1, s)) * dot(h(ell, t), xihat(ell, s))
    return {"exponent": _both(-squares / (2 * N) - cross / N)}


def f48() -> dict[str, Basic]:
    """Return the printed equation (48): responses of an inner matrix."""
    return {
        "R_hr": -I * average(h(ell, t), xihat(ell, s)),
        "R_gu": -I * average(g(ell + 1, t), chihat(ell + 1, s)),
    }


def f61() -> dict[str, Basic]:
    """Return the printed equation (61): auxiliary Gaussian fields.

    Covariances of the auxiliary fields by name; ``left`` is the left side of the fourth line.
    """
    return {
        "cov_u_Delta": C_v(t, s),
        "cov_u0": C_Delta(t, s) / alpha,
        "cov_u": C_h(ell - 1, t, s),
        "cov_r0": C_h(ell - 1, t, s) / (gamma0**2 * nu),
        "cov_r": Function("C_0")(ell + 1, t, s),
        "left": C_g(1, t, s) / gamma0 ** (2 * nu),
    }
