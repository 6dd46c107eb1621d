"""Online descent on isotropic data (appendix D); names as in :mod:`.full_batch`."""

from __future__ import annotations

from sympy import Basic, KroneckerDelta

from derive.ledger.linear2025.claims import full_batch
from derive.ledger.linear2025.claims.notation import (
    C_Delta,
    C_v,
    Delta,
    alpha_B,
    eps,
    s,
    sigma,
    t,
    u0,
    u_Delta,
    v,
)


def f97() -> dict[str, Basic]:
    """The averaged input and its noise."""
    return {"h0": u0(t) + v(t), "cov_u0": C_Delta(t, s) * KroneckerDelta(s, t) / alpha_B}


def f98() -> dict[str, Basic]:
    """The error on a sample; the covariance is printed without times."""
    return {"Delta": u_Delta(t) + sigma * eps(t), "cov_u_Delta": C_v(t, s)}


def f98_text() -> dict[str, Basic]:
    """Second moment of the averaged input."""
    return {"C_h0": C_v(t, t) + C_Delta(t, t) / alpha_B}


def f100() -> dict[str, Basic]:
    """All single-site equations."""
    return {
        **full_batch.f65(),
        "Delta": u_Delta(t) + sigma * eps(t),
        "h0": u0(t) + v(t),
        "cov_eps": KroneckerDelta(s, t),
        "cov_u0": C_Delta(t, s) * KroneckerDelta(s, t) / alpha_B,
    }


def f101() -> dict[str, Basic]:
    """Responses."""
    found = full_batch.f66()
    return {x: found[x] for x in ("R_vu", "R_h0r0", "R_hr", "R_gu")}


__all__ = ["Delta", "f97", "f98", "f98_text", "f100", "f101"]
