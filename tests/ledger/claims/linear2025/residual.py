"""Residual networks of linear2025 as printed, at finite depth and in the limit of infinite depth.

The equations are the fields (71)-(74), cross-layer responses (73), (75), the decomposition (76)-(82), and the
infinite-depth limit (17), (83)-(95).

Functions are called as the engine calls them: ``C_h(ell, t, s)``, cross-layer ``R_hu(ell, k, t, s)``, and in
layer time ``R_hu(tau, tau_, t, s)``; h^0, C_h^0, R_hr^0, r^0 are ``h0``, ``C_h0``, ``R_h0r0``, ``r0`` with
the paper's own normalisation of r^0.
"""

from __future__ import annotations

from sympy import Basic, DiracDelta, Expr, Function, Integral, KroneckerDelta, S, Sum, Symbol, oo

from derive.calculus.symbols import L, ell, eta, gamma0, s, t

nu = Symbol("nu", positive=True)
beta = Symbol("beta", positive=True)
beta0 = Symbol("beta0", positive=True)
k, k_ = (Symbol(n, integer=True) for n in ("k", "k_"))
s_, t_1, s_1 = (Symbol(n, nonnegative=True) for n in ("s_", "t_1", "s_1"))
tau, tau_ = (Symbol(n, nonnegative=True) for n in ("tau", "tau_"))

h0, h, g, u, r, r0, w_star = (Function(n) for n in ("h0", "h", "g", "u", "r", "r0", "w_star"))
C_h0, C_h, C_g, R_h0r0, H = (Function(n) for n in ("C_h0", "C_h", "C_g", "R_h0r0", "H"))
R_hu, R_hr, R_gu, R_gr = (Function(n) for n in ("R_hu", "R_hr", "R_gu", "R_gr"))


def _past(body: Expr, index: Symbol = s) -> Expr:
    """Return the sum over strictly earlier times, which is printed everywhere."""
    return Sum(body, (index, 0, t - 1))


def eq17() -> dict[str, Basic]:
    """Return the printed equation (17): the rate in layer time of h(tau, t); ``u(tau, t)`` is du/dtau."""
    bracket = R_hr(tau, t, s) + eta * gamma0 * C_h(tau, t, s)
    return {
        "h": beta0 * u(tau, t) + beta0**2 * _past(bracket * g(tau, s)),
        "noise": DiracDelta(tau - tau_) * C_h(tau, t, s),
    }


def eq72() -> dict[str, Basic]:
    """Return the printed equation (72): chi(ell, t) and xi(ell, t)."""
    return {
        "chi": u(ell, t) + _past(R_hr(ell - 1, t, s) * g(ell, s)),
        "xi": r(ell, t) + _past(R_gu(ell + 1, t, s) * h(ell, s)),
    }


def eq73() -> dict[str, Basic]:
    """Return the printed equation (73): recursions of the cross-layer responses.

    The display has no legible tag. ``s`` stands for t', ``s_`` for t''.
    """
    first = R_h0r0(t, s_) / (nu * gamma0) + eta * gamma0 * C_h0(t, s_)
    up = R_hr(ell, t, s_) + eta * gamma0 * beta * C_h(ell, t, s_)
    down = R_gu(ell + 1, t, s_) + eta * gamma0 * beta * C_g(ell + 1, t, s_)
    now = KroneckerDelta(s, t)
    return {
        "hu_1": KroneckerDelta(1, k) * now + _past(first * R_gu(1, 1, s_, s), s_),
        "hr_1": _past(first * R_gr(1, k, s_, s), s_),
        "hu": R_hu(ell, k, t, s) + beta * _past(up * R_gu(ell + 1, k, s_, s), s_),
        "hr": R_hr(ell, k, t, s) + beta * _past(up * R_gr(ell + 1, k, s_, s), s_),
        "gu_L": eta * gamma0 * _past(R_hu(L, k, s_, s), s_),
        "gr_L": KroneckerDelta(L, k) * now + eta * gamma0 * _past(R_hr(L, k, s_, s), s_),
        "gu": R_gu(ell + 1, k, t, s)
        + beta * KroneckerDelta(ell, k) * now
        + beta * _past(down * R_hu(ell, k, s_, s), s_),
        "gr": R_gr(ell + 1, k, t, s)
        + beta * KroneckerDelta(ell, k) * now
        + beta * _past(down * R_hr(ell, k, s_, s), s_),
    }


def eq74() -> dict[str, Basic]:
    """Return the printed equation (74): the single-site equations."""
    return {
        "h0": w_star(t) - r0(t) - _past((R_gu(1, t, s) / gamma0 + eta * C_g(1, t, s)) * h0(s)),
        "h_1": u(1, t) + _past((R_h0r0(t, s) / (nu * gamma0) + eta * gamma0 * C_h0(t, s)) * g(1, s)),
        "h": h(ell, t)
        + beta * u(ell + 1, t)
        + beta * _past((R_hr(ell, t, s) + eta * gamma0 * beta * C_h(ell, t, s)) * g(ell + 1, s)),
        "g_L": r(L, t) + eta * gamma0 * _past(h(L, s)),
        "g": g(ell + 1, t)
        + beta * r(ell, t)
        + beta * _past((R_gu(ell + 1, t, s) + eta * gamma0 * beta * C_g(ell + 1, t, s)) * h(ell, s)),
        "<r0 r0>": C_g(1, t, s) / (gamma0**2 * nu),
        "<u u>": C_h(ell, t, s),
        "<r r>": C_g(ell + 1, t, s),
    }


def _everything(x: type[Function], y: type[Function], time: Symbol) -> Expr:
    """Return the sum over all layers and times of the responses to two families of sources."""
    body = x(ell, k, time, s_) * u(k, s_) + y(ell, k, time, s_) * r(k, s_)
    return Sum(body, (k, 1, L), (s_, 0, oo))


def eq76() -> dict[str, Basic]:
    """Return the printed equation (76): h(ell, t)."""
    return {"h": _everything(R_hu, R_hr, t)}


def eq77() -> dict[str, Basic]:
    """Return the printed equation (77): g(ell, t)."""
    return {"g": _everything(R_gu, R_gr, t)}


def _pair(x: type[Function], y: type[Function]) -> Expr:
    """Return a correlation as printed: the sum over k' multiplies by the number of layers."""
    over = ((k, 1, L), (k_, 1, L), (t_1, 0, oo), (s_1, 0, oo))
    up = x(ell, k, t, t_1) * x(ell, k, s, s_1) * C_h(k - 1, t_1, s_1)
    down = y(ell, k, t, t_1) * y(ell, k, s, s_1) * C_g(k + 1, t_1, s_1)
    return Sum(up, *over) + Sum(down, *over)


def eq78() -> dict[str, Basic]:
    """Return the printed equation (78): C_h(ell, t, s)."""
    return {"C_h": _pair(R_hu, R_hr)}


def eq79() -> dict[str, Basic]:
    """Return the printed equation (79): C_g(ell, t, s)."""
    return {"C_g": _pair(R_gu, R_gr)}


def eq80() -> dict[str, Basic]:
    """Return the printed equation (80): C_h0(t, s)."""
    body = H(t, t_1) * H(s, s_1) * (1 + C_g(1, t_1, s_1) / (nu * gamma0**2))
    return {"C_h0": Sum(body, (t_1, 0, oo), (s_1, 0, oo))}


def eq81() -> dict[str, Basic]:
    """Return the printed equation (81): the transfer function H(t, s)."""
    bracket = R_gu(1, t, s_) / gamma0 + eta * C_g(1, t, s_)
    return {"H": KroneckerDelta(t, s) + _past(bracket * H(s_, s), s_)}


def eq82() -> dict[str, Basic]:
    """Return the printed equation (82): the loss."""
    return {"loss": C_h0(t, t)}


def eq83() -> dict[str, Basic]:
    """Return the printed equation (83): order in L of the responses to u(k), k > 1."""
    return {"dh/du": beta0 * L ** (-S.Half), "dg/du": beta0 * L ** (-S.Half)}


def eq84() -> dict[str, Basic]:
    """Return the printed equation (84): order in L of the responses to r(k), k < L."""
    return {"dh/dr": beta0 * L ** (-S.Half), "dg/dr": beta0 * L ** (-S.Half)}


def eq89() -> dict[str, Basic]:
    """Return the printed equation (89): rates in layer time of h and g, with white noise u and r."""
    up = R_hr(tau, t, s) + eta * gamma0 * C_h(tau, t, s)
    down = R_gu(tau, t, s) + eta * gamma0 * C_g(tau, t, s)
    return {
        "h": beta0 * u(tau, t) + beta0**2 * _past(up * g(tau, s)),
        "g": -beta0 * r(tau, t) - beta0**2 * _past(down * h(tau, s)),
    }


def eq90() -> dict[str, Basic]:
    """Return the printed equation (90): covariances of the noises."""
    step = DiracDelta(tau - tau_)
    return {"<u u>": step * C_h(tau, t, s), "<r r>": step * C_g(tau, t, s)}


def eq93() -> dict[str, Basic]:
    """Return the printed equation (93): responses as differential equations.

    Rates in layer time of the responses; the kernels are printed with t' where t'' is summed over.
    """
    bracket = R_hr(tau, t, s) + eta * gamma0 * C_h(tau, t, s)
    now = KroneckerDelta(t, s)

    def memory(x: type[Function]) -> Expr:
        return beta0 * _past(bracket * x(tau, s_, s), s_)

    return {
        "R_hu": now + memory(R_gu),
        "R_hr": memory(R_gr),
        "R_gu": -memory(R_hu),
        "R_gr": -now - memory(R_hr),
    }


def eq94() -> dict[str, Basic]:
    """Return the printed equation (94): correlations in layer time."""

    def pair(x: type[Function], y: type[Function]) -> Expr:
        body = x(tau, tau_, t, t_1) * x(tau, tau_, s, s_1) * C_h(tau_, t_1, s_1)
        body += y(tau, tau_, t, t_1) * y(tau, tau_, s, s_1) * C_g(tau_, t_1, s_1)
        return Sum(Integral(body, (tau_, 0, 1)), (t_1, 0, oo), (s_1, 0, oo))

    return {"C_h": pair(R_hu, R_hr), "C_g": pair(R_gu, R_gr)}


def eq95() -> dict[str, Basic]:
    """Return the printed equation (95): the loss."""
    return {"loss": C_h(S.Zero, t, t)}
