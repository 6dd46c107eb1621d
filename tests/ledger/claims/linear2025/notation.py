"""Symbols and functions that the printed formulas are written with."""

from __future__ import annotations

from sympy import Expr, Function, Sum, Symbol

from derive.calculus.symbols import L, ell, eta, gamma0, s, t
from derive.program.networks.random_data import B, M, N, alpha, alpha_B, k, nu, sigma

D = Symbol("D", positive=True)
"""Number of features."""
P = Symbol("P", positive=True)
"""Number of samples."""

h, g, u, r, chi, xi = (Function(x) for x in ("h", "g", "u", "r", "chi", "xi"))  # (layer, time)
v, h0, Delta, xi0 = (Function(x) for x in ("v", "h0", "Delta", "xi0"))  # (time)
r0, u0, u_Delta, eps, w_star = (Function(x) for x in ("r0", "u0", "u_Delta", "eps", "w_star"))  # (time)  # noqa: N816 (symbol of the paper)
C_h, C_g, R_hr, R_gu = (Function(x) for x in ("C_h", "C_g", "R_hr", "R_gu"))  # (layer, t, s)
C_v, C_Delta, C_h0 = (Function(x) for x in ("C_v", "C_Delta", "C_h0"))  # (t, s)
R_h0r0, R_vu, R_vr, R_Delta = (Function(x) for x in ("R_h0r0", "R_vu", "R_vr", "R_Delta"))  # (t, s)
lamda, target, H = (Function(x) for x in ("lamda", "w_star", "H"))  # (k), (k), (k, t, s)


def earlier(body: Expr) -> Expr:
    """Return the sum of ``body`` over s < t."""
    return Sum(body, (s, 0, t - 1))


__all__ = [
    "B",
    "C_Delta",
    "C_g",
    "C_h",
    "C_h0",
    "C_v",
    "D",
    "Delta",
    "H",
    "L",
    "M",
    "N",
    "P",
    "R_Delta",
    "R_gu",
    "R_h0r0",
    "R_hr",
    "R_vr",
    "R_vu",
    "alpha",
    "alpha_B",
    "chi",
    "earlier",
    "ell",
    "eps",
    "eta",
    "g",
    "gamma0",
    "h",
    "h0",
    "k",
    "lamda",
    "nu",
    "r",
    "r0",
    "s",
    "sigma",
    "t",
    "target",
    "u",
    "u0",
    "u_Delta",
    "v",
    "w_star",
    "xi",
    "xi0",
]
