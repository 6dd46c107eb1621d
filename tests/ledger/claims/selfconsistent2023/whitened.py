"""Deep linear network on whitened data (F.15), (F.16): every kernel has its component along y only."""

from __future__ import annotations

from sympy import Basic, Function, Heaviside, Identity, Integral, MatrixSymbol, Sum, Symbol, exp, oo

from tests.ledger.claims.selfconsistent2023.notation import L, ell, gamma0, s, t

_Y = Symbol("y", positive=True)
_error = Function("Delta")  # Delta(t)
_A = Function("A_y")  # A_y(ell, t, s), and so on
_B = Function("B_y")
_H = Function("H_y")
_G = Function("G")
_C = Function("C")
_D = Function("D")
_h = Function("h_y")
_g = Function("g")
_u = Function("u_y")
_r = Function("r")


def f15() -> dict[str, Basic]:
    """Fields h_y and g of a layer, and the operators C and D."""
    return {
        "h": _u(ell, t) + gamma0 * Integral(_C(ell, t, s) * _g(ell, s), (s, 0, oo)),
        "g": _r(ell, t) + gamma0 * Integral(_D(ell, t, s) * _h(ell, s), (s, 0, oo)),
        "C": _A(ell - 1, t, s) + Heaviside(t - s) * _H(ell - 1, t, s) * _error(s),
        "D": _B(ell - 1, t, s) + Heaviside(t - s) * _G(ell + 1, t, s) * _error(s),
    }


def f16() -> dict[str, Basic]:
    """Derivative of the error, and the error itself."""
    rate = Sum(_G(ell + 1, t, t) * _H(ell, t, t), (ell, 0, L))
    return {"dDelta": -rate * _error(t), "Delta": _Y * exp(-Integral(rate.subs(t, s), (s, 0, t)))}


def f16_text() -> dict[str, Basic]:
    """Responses that are said to belong to the same layer as C and D, as T x T matrices."""
    times = Symbol("T", integer=True, positive=True)
    c, d = MatrixSymbol("C", times, times), MatrixSymbol("D", times, times)
    one = Identity(times)
    return {
        "A": (one - gamma0**2 * c * d).inverse() * c,
        "B": (one - gamma0**2 * d * c).inverse() * d,
    }
