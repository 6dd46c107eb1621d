"""The linear network: Lemma 4.3, Prop. 4.4, Thm. 4.1, (11) and D.3.

``Gamma_ab(ell, k, t, s)`` is the paper's Gamma_{t,s,a,b}(ell/L, k/L), ``Gamma_aU(ell, t)`` and ``Gamma_aV``
its members s = -1, and ``C_a(ell, t, s)`` its C_{t,s,a}(ell/L); in layer time ``tau``, ``tau_`` stand for p,
q.
"""

from __future__ import annotations

from collections.abc import Callable

from sympy import Basic, Expr, Function, Heaviside, Integral, KroneckerDelta, S, Sum, Symbol, sqrt

from derive.calculus.symbols import L, ell, s, t

alpha, gamma = Symbol("alpha", real=True), Symbol("gamma", real=True)
k = Symbol("k", integer=True)
s_, t_1, s_1 = (Symbol(n, nonnegative=True) for n in ("s_", "t_1", "s_1"))
tau, tau_, tau_1 = (Symbol(n, nonnegative=True) for n in ("tau", "tau_", "tau_1"))


def G(a: int, b: int | str) -> Callable[..., Expr]:
    """Return the function Gamma with these two kinds."""
    found: Callable[..., Expr] = Function(f"Gamma_{a}{b}")
    return found


def C(a: int) -> Callable[..., Expr]:
    """Return the function C of this kind."""
    found: Callable[..., Expr] = Function(f"C_{a}")
    return found


def _past(body: Expr) -> Expr:
    return Sum(body, (s_, 0, t - 1))


def lemma43() -> dict[str, Basic]:
    """Return the printed Lemma 4.3 and Lemma C.1: recursions of Gamma and C.

    Gamma_0b(ell, k, t, s), Gamma_1b(ell - 1, k, t, s), C_0(ell, t, s) and C_1.
    """
    return _recursion(S.One, S.One / L, S.One)


def d3() -> dict[str, Basic]:
    """Return the printed equation (D.3): Gamma for any alpha and gamma, without the covariances."""
    found = _recursion(L ** (S.Half - alpha), L ** (-alpha - gamma), L ** (gamma - S.Half))
    return {n: x for n, x in found.items() if n.startswith("Gamma")}


def _recursion(indicator: Expr, weight: Expr, inside: Expr) -> dict[str, Basic]:
    found: dict[str, Basic] = {}
    for b in (0, 1):
        jump = indicator * KroneckerDelta(t, s) * KroneckerDelta(k, ell)
        up = inside * G(0, 1)(ell - 1, ell, t, s_) - C(0)(ell, t, s_)
        down = inside * G(1, 0)(ell, ell, t, s_) - C(1)(ell, t, s_)
        found[f"Gamma_0{b}"] = (
            G(0, b)(ell - 1, k, t, s) + (jump if b == 0 else 0) + weight * _past(G(1, b)(ell, k, s_, s) * up)
        )
        found[f"Gamma_1{b}"] = (
            G(1, b)(ell, k, t, s)
            + (jump if b == 1 else 0)
            + weight * _past(G(0, b)(ell - 1, k, s_, s) * down)
        )
    for a, layer in ((0, ell - 1), (1, ell)):
        total = S.Zero
        for end in "UV":
            total += G(a, end)(layer, t) * G(a, end)(layer, s)
        for b in (0, 1):
            body = G(a, b)(layer, k, t, t_1) * C(b)(k, t_1, s_1) * G(a, b)(layer, k, s, s_1) / L
            total += Sum(body, (k, 1, L), (t_1, 0, t), (s_1, 0, s))
        found[f"C_{a}"] = total
    return found


def prop44() -> dict[str, Basic]:
    """Return the printed Prop. 4.4 and Prop. C.2: infinite depth.

    The limit of infinite depth: Gamma_ab(tau, tau_, t, s) and C_a(tau, t, s).
    """
    found: dict[str, Basic] = {}
    for b in (0, 1):
        up = G(0, 1)(tau_1, tau_1, t, s_) - C(0)(tau_1, t, s_)
        down = G(1, 0)(tau_1, tau_1, t, s_) - C(1)(tau_1, t, s_)
        now = KroneckerDelta(t, s)
        found[f"Gamma_0{b}"] = (now * Heaviside(tau - tau_) if b == 0 else S.Zero) + Integral(
            _past(G(1, b)(tau_1, tau_, s_, s) * up), (tau_1, 0, tau)
        )
        found[f"Gamma_1{b}"] = (now * Heaviside(tau_ - tau) if b == 1 else S.Zero) + Integral(
            _past(G(0, b)(tau_1, tau_, s_, s) * down), (tau_1, tau, 1)
        )
    for a in (0, 1):
        total = S.Zero
        for end in "UV":
            total += G(a, end)(tau, t) * G(a, end)(tau, s)
        for b in (0, 1):
            body = G(a, b)(tau, tau_, t, t_1) * C(b)(tau_, t_1, s_1) * G(a, b)(tau, tau_, s, s_1)
            total += Sum(Integral(body, (tau_, 0, 1)), (t_1, 0, t), (s_1, 0, s))
        found[f"C_{a}"] = total
    return found


def thm41() -> dict[str, Basic]:
    """Return the printed Thm. 4.1: the kernel of x^L."""
    return {"kernel": C(1)(S.One, t, s)}


def eq11() -> dict[str, Basic]:
    """Return the printed equation (11): b(ell + 1), c(ell) and f_1 of the first step, and <x_0^l|x_0^l>."""
    b, c, chi, start = (Function(n) for n in ("b", "c", "chi", "C_x"))
    m = Symbol("m", integer=True)
    return {
        "b": L ** (-2 * alpha) * Sum(b(m) + c(m), (m, 1, ell)),
        "c": (1 + L ** (-2 * alpha)) * c(ell - 1),
        "f": Sum(L ** (-alpha - gamma) * (b(m) + c(m)), (m, 1, L)) * chi(0),
        "norm": (1 + L ** (-2 * alpha)) ** ell * start(0, 0, 0),
    }


def eq3() -> dict[str, Basic]:
    """Return the printed equation (3): first step at width one.

    tau of the scalar network, and the factor of one layer after the step.
    """
    return first_step(read_by_gradient=False)


def first_step(*, read_by_gradient: bool) -> dict[str, Basic]:
    """Return tau and the factor of one layer of (3).

    The gradient has the factor V of the output (``read_by_gradient``) or, as printed, lacks it.
    """
    V, x0, xL, y, W = (Symbol(n, real=True) for n in ("V", "x0", "xL", "y", "W"))
    M = Function("M")
    rate = (V * xL - y) * x0 * (V if read_by_gradient else 1)
    return {"tau": rate, "factor": 1 + W / sqrt(L) - rate * M(L, ell) / L}


def def_e1() -> dict[str, Basic]:
    """Return the printed Def. E.1: the nonlinear limit.

    The bracket of the backward equation, with V_1c = <MS(phi') phi'> and V_11 = <phi' phi'>.
    """
    V_1c, V_11 = Function("V_1c"), Function("V_11")
    return {
        "forward": V_11(tau, t, s) * (G(0, 1)(tau, tau, t, s) - C(0)(tau, t, s)),
        "backward": V_1c(tau, t, s) * G(1, 0)(tau, tau, t, s) - V_11(tau, t, s) * C(1)(tau, t, s),
    }


__all__ = ["d3", "def_e1", "eq3", "eq11", "first_step", "lemma43", "prop44", "thm41"]
