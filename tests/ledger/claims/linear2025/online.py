"""Online descent on isotropic data (appendix D); names as in :mod:`.full_batch`."""

from __future__ import annotations

from sympy import Basic, Integer, KroneckerDelta

from tests.ledger.claims.linear2025 import full_batch
from tests.ledger.claims.linear2025.notation import (
    C_Delta,
    C_h0,
    C_v,
    Delta,
    L,
    alpha_B,
    eps,
    eta,
    gamma0,
    nu,
    s,
    sigma,
    t,
    u0,
    u_Delta,
    v,
)


def f97() -> dict[str, Basic]:
    """Return the printed equation (97): the averaged input and its noise."""
    return {"h0": u0(t) + v(t), "cov_u0": C_Delta(t, s) * KroneckerDelta(s, t) / alpha_B}


def f98() -> dict[str, Basic]:
    """Return the printed equation (98): the error on a sample; the covariance is printed without times."""
    return {"Delta": u_Delta(t) + sigma * eps(t), "cov_u_Delta": C_v(t, s)}


def f98_text() -> dict[str, Basic]:
    """Return the statement in the text at (98): second moment of the averaged input."""
    return {"C_h0": C_v(t, t) + C_Delta(t, t) / alpha_B}


def f100() -> dict[str, Basic]:
    """Return the printed equation (100): all single-site equations."""
    return {
        **full_batch.f65(),
        "Delta": u_Delta(t) + sigma * eps(t),
        "h0": u0(t) + v(t),
        "cov_eps": KroneckerDelta(s, t),
        "cov_u0": C_Delta(t, s) * KroneckerDelta(s, t) / alpha_B,
    }


def f101() -> dict[str, Basic]:
    """Return the printed equation (101): responses."""
    found = full_batch.f66()
    return {x: found[x] for x in ("R_vu", "R_h0r0", "R_hr", "R_gu")}


def f103() -> dict[str, Basic]:
    """Return the printed equation (103): early responses and gradient correlations, online.

    The response at later times, and the increase of C_g^1 in a step, beyond C_g^2 and in all (two forms).
    """
    squares = L * (L + 1) * (2 * L + 1) / 6
    return {
        "R_gu": eta * gamma0 * L,
        "gain of one layer": 4 * eta**2 * L**2 * gamma0**2 * C_h0(t, t),
        "gain": eta**2 * C_h0(t, t) * squares,
        "gain in the end": eta**2 * gamma0**2 * squares * C_h0(t, t),
    }


def f104() -> dict[str, Basic]:
    """Return the printed equation (104): the factor of the loss in a step."""
    squares = L * (L + 1) * (2 * L + 1) / 6
    by_width = eta**2 * squares / nu + eta**2 * squares / (nu * alpha_B)
    return {"growth": (1 - L * eta) ** 2 + eta**2 * L**2 / alpha_B + by_width}


def f105() -> dict[str, Basic]:
    """Return the printed equation (105): the rate above which the loss rises."""
    per_width = (L + 1) * (2 * L + 1) / (6 * L)
    return {"rate": 2 / (1 + 1 / alpha_B + per_width / nu + per_width / (alpha_B * nu)) / L}


def f105_text() -> dict[str, Basic]:
    """Return the statement in the text at (105): the factor in the caption of figure 9."""
    noise = 1 / alpha_B + 1 / nu + Integer(2) / (alpha_B * nu)
    return {"growth": (1 - eta * L) ** 2 + eta**2 * L**2 * noise}


__all__ = ["Delta", "f97", "f98", "f98_text", "f100", "f101", "f103", "f104", "f105", "f105_text"]
