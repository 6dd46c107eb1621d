"""Online descent on structured data, mode by mode (section 4, appendix E); names as in :mod:`.full_batch`."""

from __future__ import annotations

from sympy import Basic, Expr, Function, KroneckerDelta, Sum, Symbol

from tests.ledger.claims.linear2025 import full_batch
from tests.ledger.claims.linear2025.notation import (
    B,
    C_Delta,
    C_g,
    C_h0,
    C_v,
    H,
    M,
    N,
    R_gu,
    R_h0r0,
    earlier,
    ell,
    eps,
    eta,
    g,
    gamma0,
    h,
    k,
    lamda,
    r,
    s,
    sigma,
    t,
    target,
    u,
    u_Delta,
)

_v, _h0, _r0, _u0, _ut0 = (Function(x) for x in ("v", "h0", "r0", "u0", "ut0"))  # (k, t)
_s1 = Symbol("s_1", integer=True, nonnegative=True)


def _kernel(later: Expr, past: Expr, rate: Expr) -> Expr:
    return R_gu(1, later, past) / gamma0 + rate * C_g(1, later, past)


def f19() -> dict[str, Basic]:
    """Return the printed equation (19): the error along a mode; ``ut0`` is the noise of the data."""
    return {"v": earlier(H(k, t, s) * (target(k) - _r0(k, s) - _ut0(k, s)))}


def f107() -> dict[str, Basic]:
    """Return the printed equation (107): single-site equations of a mode, and of the batch."""
    return {
        "h0": _u0(k, t) + lamda(k) * _v(k, t),
        "Delta": u_Delta(t) + sigma * eps(t),
        "v": target(k) - _r0(k, t) + _r0(k, 0) - earlier(_kernel(t, s, eta) * _h0(k, s)),
        "cov_u0": lamda(k) / B * C_Delta(t, s) * KroneckerDelta(s, t),
        "cov_u_Delta": C_v(t, s),
        "cov_r0": C_g(1, t, s) / (N * gamma0**2),
    }


def f108() -> dict[str, Basic]:
    """Return the printed equation (108): correlations as sums over modes."""
    average = Function("average")
    return {
        "C_v": Sum(lamda(k) * average(_v(k, t), _v(k, s)), (k, 1, M)),
        "C_h0": Sum(average(_h0(k, t), _h0(k, s)), (k, 1, M)),
    }


def f109() -> dict[str, Basic]:
    """Return the printed equation (109): responses as sums over modes."""
    response = Function("response")
    return {
        "R_h0r0": Sum(response(_h0(k, t), _r0(k, s)), (k, 1, M)),
        "R_vu": Sum(lamda(k) * response(_v(k, t), _u0(k, s)), (k, 1, M)),
    }


def f110() -> dict[str, Basic]:
    """Return the printed equation (110): the error along a mode through its transfer function."""
    noise = Sum(_kernel(s, _s1, 1) * _u0(k, _s1), (_s1, 0, s - 1))
    return {"v": earlier(H(k, t, s) * (target(k) - _r0(k, s) - noise))}


def f111() -> dict[str, Basic]:
    """Return the printed equation (111): the transfer function, ``(k, t, s)`` on the left."""
    memory = Sum(_kernel(t, _s1, eta) * H(k, _s1, s), (_s1, 0, t - 1))
    return {"H": KroneckerDelta(s, t) - lamda(k) * memory}


def f111_text() -> dict[str, Basic]:
    """Return the statement in the text at (111): the layers."""
    first = R_h0r0(t, s) / (N * gamma0) + eta * gamma0 * C_h0(t, s)
    inner = full_batch.f11()
    return {
        "h1": u(1, t) + earlier(first * g(1, s)),
        "h": inner["h"],
        "gL": r(ell, t) + eta * gamma0 * earlier(h(ell, s)),
        "g": inner["g"],
    }
