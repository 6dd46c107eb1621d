"""Full-batch descent: single-site equations, covariances, responses (main text, A.1.1, A.2, A.3).

Names of the entries: the field on the left, ``h1`` and ``h`` for the first and the inner layers;
``cov_u`` for the covariance of the source u, and so on.
"""

from __future__ import annotations

from sympy import Basic, Expr, Function, KroneckerDelta, S, Sum, Symbol

from tests.ledger.claims.linear2025.notation import (
    C_Delta,
    C_g,
    C_h,
    C_h0,
    C_v,
    Delta,
    R_Delta,
    R_gu,
    R_h0r0,
    R_hr,
    R_vr,
    R_vu,
    alpha,
    chi,
    earlier,
    ell,
    eps,
    eta,
    g,
    gamma0,
    h,
    h0,
    nu,
    r,
    r0,
    s,
    sigma,
    t,
    u,
    u0,
    u_Delta,
    v,
    w_star,
    xi,
    xi0,
)

_s1, _s2 = (Symbol(x, integer=True, nonnegative=True) for x in ("s_1", "s_2"))


def _inner() -> dict[str, Basic]:
    return {
        "h": u(ell, t) + earlier((R_hr(ell - 1, t, s) + eta * gamma0 * C_h(ell - 1, t, s)) * g(ell, s)),
        "g": r(ell, t) + earlier((R_gu(ell + 1, t, s) + eta * gamma0 * C_g(ell + 1, t, s)) * h(ell, s)),
        "cov_u": C_h(ell - 1, t, s),
        "cov_r": C_g(ell + 1, t, s),
    }


def _first() -> Expr:
    return u(1, t) + earlier((R_h0r0(t, s) / (nu * gamma0) + eta * gamma0 * C_h0(t, s)) * g(1, s))


def losses() -> dict[str, Basic]:
    """Return the printed equations (10) and (68): test and training loss."""
    return {"test": C_v(t, t) + sigma**2, "train": C_Delta(t, t)}


def f11() -> dict[str, Basic]:
    """Return the printed equation (11): inner layers, 1 < ell < L."""
    return _inner()


def f13() -> dict[str, Basic]:
    """Return the printed equation (13): three parts of the test loss, and the loss."""
    sums = (_s1, 0, t - 1), (_s2, 0, t - 1)
    back = R_vr(t, _s1) * R_vr(t, _s2)
    parts: dict[str, Expr] = {
        "bias": Sum(back, *sums),
        "limited width": Sum(back * C_g(1, _s1, _s2), *sums) / (nu * gamma0**2),
        "limited data": Sum(R_vu(t, _s1) * R_vu(t, _s2) * C_Delta(_s1, _s2), *sums) / alpha,
    }
    return {**parts, "loss": sum(parts.values(), S.Zero)}


def f14() -> dict[str, Basic]:
    """Return the printed equation (14): the first layer."""
    return {"h1": _first()}


def f15() -> dict[str, Basic]:
    """Return the printed equation (15): the response of the errors; ``(t, s)`` on the left."""
    return {
        "R_Delta": KroneckerDelta(s, t) + Sum(R_vu(t, _s1) * R_Delta(_s1, s), (_s1, 0, t - 1)) / alpha,
    }


def a26_text() -> dict[str, Basic]:
    """Return the statement in the text at (26): fields in terms of products with the initial matrices."""
    return {
        "h": chi(ell + 1, t) + eta * gamma0 * earlier(C_h(ell, t, s) * g(ell + 1, s)),
        "g": xi(ell, t) + eta * gamma0 * earlier(C_g(ell + 1, t, s) * h(ell, s)),
        "v": w_star(t) - xi0(t) - eta * earlier(C_g(1, t, s) * h0(s)),
    }


def f62() -> dict[str, Basic]:
    """Return the printed equations (62) and (63): equation of the errors.

    The error on a sample; the printed sum runs over all t', but responses to later times vanish.
    """
    return {"Delta": u_Delta(t) + earlier(R_vu(t, s) * Delta(s)), "cov_u_Delta": C_v(t, s)}


def f65() -> dict[str, Basic]:
    """Return the printed equation (65): all single-site equations."""
    learnt = earlier((R_gu(1, t, s) / gamma0 + eta * gamma0 * C_g(1, t, s)) * h0(s))
    return {
        "v": w_star(t) - r0(t) - learnt,
        "Delta": u_Delta(t) + earlier(R_vu(t, s) * Delta(s)) / alpha + sigma * eps(t),
        "h0": u0(t) + earlier(R_Delta(t, s) * v(s)),
        "h1": _first(),
        **_inner(),
        "cov_r0": C_g(1, t, s) / (nu * gamma0**2),
        "cov_u_Delta": C_v(t, s),
        "cov_eps": S.One,
        "cov_u0": C_Delta(t, s) / alpha,
        "cov_u1": C_h0(t, s),
    }


def f66() -> dict[str, Basic]:
    """Return the printed equations (12), (64) and (66): responses of inner layers.

    The arguments of each response; ``response(a, b) = <da/db>``.
    """
    response = Function("response")
    return {
        "R_Delta": response(Delta(t), u_Delta(s)),
        "R_vu": response(v(t), u0(s)),
        "R_h0r0": response(h0(t), r0(s)),
        "R_hr": response(h(ell, t), r(ell, s)),
        "R_gu": response(g(ell, t), u(ell, s)),
    }


def f67() -> dict[str, Basic]:
    """Return the printed equations (67) and (102): the averaged products; ``average(a, b) = <a b>``."""
    average = Function("average")
    return {
        "C_v": average(v(t), v(s)),
        "C_Delta": average(Delta(t), Delta(s)),
        "C_h0": average(h0(t), h0(s)),
        "C_h": average(h(ell, t), h(ell, s)),
        "C_g": average(g(ell, t), g(ell, s)),
    }


def f69() -> dict[str, Basic]:
    """Return the printed equation (69): centred error vector.

    The centred error vector in terms of xi^0, the product with the initial matrix.
    """
    return {"v": w_star(t) - xi0(t) + xi0(0) + eta * earlier(C_g(1, t, s) * h0(s))}


def f69_text() -> dict[str, Basic]:
    """Return the statement in the text at (69): the centred error vector in the mean field."""
    return {
        "v": w_star(t)
        - r0(t)
        + r0(0)
        - earlier(R_gu(1, t, s) * h0(s)) / gamma0
        - eta * earlier(C_g(1, t, s) * h0(s))
    }
