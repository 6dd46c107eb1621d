"""Several output channels (appendix G)."""

from __future__ import annotations

from sympy import Basic, Function, Sum, Symbol

from derive.program.networks.random_data import c
from tests.ledger.claims.linear2025.notation import ell, eta, gamma0, s, t

c2 = Symbol("c_", integer=True, positive=True)
"""The channel summed over."""
N_c = Symbol("N_c", integer=True, positive=True)

_h, _g, _chi, _xi = (Function(x) for x in ("h", "g", "chi", "xi"))  # (layer, channel, time)
_C_h, _C_g = (Function(x) for x in ("C_h", "C_g"))  # (layer, channel, channel, t, s)


def f121() -> dict[str, Basic]:
    """Return the printed equation (121): updates, several outputs.

    Coefficients of g h^T (or of h, for the readout) in one step, in units of the printed square roots.
    """
    return {"W0": eta * gamma0, "W": -eta * gamma0, "w": eta * gamma0}


def f123() -> dict[str, Basic]:
    """Return the printed equation (123): fields in terms of products with the initial matrices."""
    sums = (c2, 1, N_c), (s, 0, t - 1)
    return {
        "h": _chi(ell, c, t) + eta * gamma0 * Sum(_C_h(ell - 1, c, c2, t, s) * _g(ell, c2, s), *sums),
        "g": _xi(ell, c, t) + eta * gamma0 * Sum(_C_g(ell + 1, c, c2, t, s) * _h(ell, c2, s), *sums),
    }


def f125() -> dict[str, Basic]:
    """Return the printed equation (125): responses across channels."""
    response = Function("response")
    v, Delta, u0, u_Delta, r, u = (Function(x) for x in ("v", "Delta", "u0", "u_Delta", "r", "u"))
    return {
        "R_vu": response(v(c, t), u0(c2, s)),
        "R_Delta": response(Delta(c, t), u_Delta(c2, s)),
        "R_hr": response(_h(ell, c, t), r(ell, c2, s)),
        "R_gu": response(_g(ell, c, t), u(ell, c2, s)),
    }
