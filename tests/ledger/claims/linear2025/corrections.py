"""Correct expressions for misprinted right-hand sides, by the names of the claims.

Each function has the name of the claim that it corrects, and the same letters; only the differing parts are
given.
"""

from __future__ import annotations

from sympy import Basic, Expr, Function, I, Integral, Sum, oo, sqrt

from tests.ledger.claims.linear2025 import residual
from tests.ledger.claims.linear2025.action import average, chihat, xi0hat
from tests.ledger.claims.linear2025.notation import (
    C_g,
    D,
    N,
    earlier,
    ell,
    eta,
    g,
    gamma0,
    h,
    h0,
    nu,
    s,
    t,
    xi,
)

# -- the network: factors of products and updates ------------------------------------------------------------


def f4() -> dict[str, Basic]:
    """Return the correct equation (4): the update of the first layer."""
    return {"W0": eta * gamma0 / sqrt(D)}


def f5() -> dict[str, Basic]:
    """Return the correct equation (5): the product with the weights of the first layer."""
    return {"h1": 1 / sqrt(D)}


def f26() -> dict[str, Basic]:
    """Return the correct equation (26): the product with the weights of the first layer."""
    return f5()


def f122() -> dict[str, Basic]:
    """Return the correct equation (122): the product with the weights of the first layer."""
    return f5()


def f120() -> dict[str, Basic]:
    """Return the correct equation (120): the error vector of several outputs."""
    return {"v": -sqrt(D) / (N * gamma0)}


def f121() -> dict[str, Basic]:
    """Return the correct equation (121): the sign of the inner update."""
    return {"W": eta * gamma0}


# -- averages and single sites -------------------------------------------------------------------------------


def f45() -> dict[str, Basic]:
    """Return the correct equation (45): responses of the first matrix, with their factor -i."""
    return {"R_gu1": -I * average(g(1, t), chihat(1, s)), "R_h0r0": -I * average(h0(t), xi0hat(s))}


def site_inner() -> dict[str, Basic]:
    """Return the correct equation (54): the memory of g^l, with h^l."""
    return {"g": xi(ell, t) + eta * gamma0 * earlier(C_g(ell + 1, t, s) * h(ell, s))}


def f61() -> dict[str, Basic]:
    """Return the correct equation (61): auxiliary Gaussian fields.

    Covariances of the auxiliary fields, and the left side of the fourth line.
    """
    first = C_g(1, t, s) / (gamma0**2 * nu)
    return {"cov_r0": first, "cov_r": C_g(ell + 1, t, s), "left": first}


# -- residual networks ---------------------------------------------------------------------------------------


def _rate_of_h() -> Expr:
    """Return the rate in layer time of h, whose response includes s = t."""
    response = Sum(residual.R_hr(residual.tau, t, s) * residual.g(residual.tau, s), (s, 0, t))
    memory = earlier(residual.C_h(residual.tau, t, s) * residual.g(residual.tau, s))
    noise = residual.beta0 * residual.u(residual.tau, t)
    return noise + residual.beta0**2 * (response + eta * gamma0 * memory)


def eq17() -> dict[str, Basic]:
    """Return the correct equation (17): the rate in layer time of h."""
    return {"h": _rate_of_h()}


def eq89() -> dict[str, Basic]:
    """Return the correct equation (89): the rate in layer time of h."""
    return {"h": _rate_of_h()}


def eq94() -> dict[str, Basic]:
    """Return the correct equation (94): correlations in layer time, with the contributions of u^1 and r^L."""
    tau, tau_, t_1, s_1 = residual.tau, residual.tau_, residual.t_1, residual.s_1

    def of(x: str) -> Expr:
        over = (t_1, 0, oo), (s_1, 0, oo)
        first, last = Function(f"R_{x}u_1"), Function(f"R_{x}r_L")
        up, down = Function(f"R_{x}u"), Function(f"R_{x}r")
        ends = first(tau, t, t_1) * first(tau, s, s_1) * residual.C_h0(t_1, s_1)
        ends += last(tau, t, t_1) * last(tau, s, s_1)
        body = up(tau, tau_, t, t_1) * up(tau, tau_, s, s_1) * residual.C_h(tau_, t_1, s_1)
        body += down(tau, tau_, t, t_1) * down(tau, tau_, s, s_1) * residual.C_g(tau_, t_1, s_1)
        return Sum(ends, *over) + residual.beta0**2 * Sum(Integral(body, (tau_, 0, 1)), *over)

    return {"C_h": of("h"), "C_g": of("g")}
