"""Deep linear network on whitened data (F.15), (F.16): every kernel has its component along y only."""

from __future__ import annotations

from sympy import Basic, Function, Heaviside, Identity, Integral, MatrixSymbol, Sum, Symbol, exp, oo

from tests.ledger.claims.selfconsistent2023.notation import L, ell, gamma0, s, t

_Y = Symbol("y", positive=True)
error = Function("Delta")  # Delta(t)
A = Function("A_y")  # A_y(ell, t, s), and so on
B = Function("B_y")
_H = Function("H_y")
G = Function("G")
_C = Function("C")
_D = Function("D")
_h = Function("h_y")
_g = Function("g")
_u = Function("u_y")
_r = Function("r")


def f15() -> dict[str, Basic]:
    """Return the printed equation (F.15): fields h_y and g of a layer, and the operators C and D."""
    return {
        "h": _u(ell, t) + gamma0 * Integral(_C(ell, t, s) * _g(ell, s), (s, 0, oo)),
        "g": _r(ell, t) + gamma0 * Integral(_D(ell, t, s) * _h(ell, s), (s, 0, oo)),
        "C": A(ell - 1, t, s) + Heaviside(t - s) * _H(ell - 1, t, s) * error(s),
        "D": B(ell - 1, t, s) + Heaviside(t - s) * G(ell + 1, t, s) * error(s),
    }


def f16() -> dict[str, Basic]:
    """Return the printed equation (F.16): derivative of the error, and the error itself."""
    rate = Sum(G(ell + 1, t, t) * _H(ell, t, t), (ell, 0, L))
    return {"dDelta": -rate * error(t), "Delta": _Y * exp(-Integral(rate.subs(t, s), (s, 0, t)))}


def f16_text() -> dict[str, Basic]:
    """Return the statement in the text at (F.16): responses on whitened data.

    Responses as T x T matrices, and the layer of B if that of C and D is ell.
    """
    times = Symbol("T", integer=True, positive=True)
    c, d = MatrixSymbol("C", times, times), MatrixSymbol("D", times, times)
    one = Identity(times)
    return {
        "A": (one - gamma0**2 * c * d).inverse() * c,
        "B": (one - gamma0**2 * d * c).inverse() * d,
        "layer_of_B": ell,
    }
