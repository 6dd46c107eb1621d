"""Langevin dynamics (K.2)-(K.16); its equilibrium (K.17)-(K.23) is in ``equilibrium``.

``C(t, s)`` is the covariance of the noise in one weight, whose formula is (K.7); sources and responses of the
noise are ``u_eps``, ``r_eps``, ``A_eps``, ``B_eps``.
"""

from __future__ import annotations

from sympy import Abs, Basic, Expr, Function, I, Integral, Min, S, Sum, Symbol, exp, oo, sqrt

from tests.ledger.claims.selfconsistent2023.equilibrium import (
    beta,
    k17,
    k18,
    k19,
    k20,
    k20_text,
    k21,
    k22,
    k23,
    lam,
)
from tests.ledger.claims.selfconsistent2023.nonlinear import K_x, Phi, average, phi, response, xi
from tests.ledger.claims.selfconsistent2023.notation import (
    A,
    B,
    Delta,
    G,
    L,
    P,
    alpha,
    ell,
    g,
    gamma0,
    h,
    mu,
    r,
    s,
    t,
    u,
)

N = Symbol("N", integer=True, positive=True)
x = Symbol("x", nonnegative=True)
tau = Symbol("tau", nonnegative=True)
C, K, outer, dot = (Function(n) for n in ("C", "K", "outer", "dot"))
u_eps, r_eps, A_eps, B_eps = (Function(f"{n}_eps") for n in ("u", "r", "A", "B"))
chi_eps, xi_eps, chihat_eps, xihat_eps = (Function(f"{n}_eps") for n in ("chi", "xi", "chihat", "xihat"))
BOTH = ((mu, 1, P), (alpha, 1, P))


def k2() -> dict[str, Basic]:
    """Return the printed equation (K.2): weights with an integrating factor.

    Coefficients of dt and d epsilon in ``d[W exp(lambda t/beta)]``; ``outer(a, b)`` is a b^T.
    """
    grown = exp(lam * t / beta)
    move = Sum(Delta(mu, t) * outer(g(ell + 1, mu, t), phi(h(ell, mu, t))), (mu, 1, P))
    return {"dt": grown * gamma0 / sqrt(N) * move, "noise": sqrt(2 / beta) * grown}


def k3() -> dict[str, Basic]:
    """Return the printed equation (K.3): evolution of the output by Ito's rule.

    The output's velocity, sums over all weights 0..L; ``dg_dh(ell, mu, t)`` is the paper's r.
    """
    bend = average(Function("dg_dh")(ell + 1, mu, t)) * average(phi(h(ell, mu, t)) ** 2)
    feature = average(Function("z")(ell, mu, t) * phi(h(ell, mu, t)))
    return {
        "df": Sum(Delta(alpha, t) * K(mu, alpha, t, t), (alpha, 1, P))
        - lam / beta * Sum(feature, (ell, 0, L))
        + Sum(bend, (ell, 0, L)) / beta
    }


def k4() -> dict[str, Basic]:
    """Return the printed equation (K.4): fields with decay and noise.

    The left side of the second equation, with the first field on its right side.
    """
    return {"field": Function("z")(ell + 1, mu, t), "start": xi(ell + 1, mu, t)}


def k5() -> dict[str, Basic]:
    """Return the printed equation (K.5): fields from the Brownian motion.

    The printed name of the field that the noise of W^l on phi(h^l) makes.
    """
    return {"field": chi_eps(ell, mu, t)}


def k7() -> dict[str, Basic]:
    """Return the printed equation (K.7): average over the Brownian motion.

    The covariance of the noise as integral, in closed form and at late times; the log of the average.
    """
    rate = lam / beta
    both = 2 / beta * Integral(exp(-rate * (t + s - 2 * x)), (x, 0, Min(t, s)))
    done = exp(-rate * (t + s)) * (exp(2 * rate * Min(t, s)) - 1) / lam
    now, then = chihat_eps(ell + 1, mu, t), chihat_eps(ell + 1, alpha, s)
    body = (
        dot(now, then) * Phi(ell, mu, alpha, t, s)
        + dot(xihat_eps(ell, mu, t), xihat_eps(ell, alpha, s)) * G(ell + 1, mu, alpha, t, s)
        + 2 * I * dot(now, g(ell + 1, alpha, s)) * A_eps(ell, mu, alpha, t, s)
    )
    return {
        "integral": both,
        "C": done,
        "C_late": exp(-rate * Abs(t - s)) / lam,
        "log": -Integral(done * Sum(body, *BOTH), (s, 0, oo), (t, 0, oo)) / 2,
    }


def k9() -> dict[str, Basic]:
    """Return the printed equation (K.9): derivatives of the action in A_eps and B_eps."""
    back = average(chihat_eps(ell + 1, mu, t) * g(ell + 1, alpha, s))
    feature = average(phi(h(ell, mu, t)) * xihat_eps(ell, alpha, s))
    return {
        "A_eps": -B_eps(ell, mu, alpha, t, s) - I * C(t, s) * back,
        "B_eps": -A_eps(ell, mu, alpha, t, s) - I * C(t, s) * feature,
    }


def k10() -> dict[str, Basic]:
    """Return the printed equation (K.10): covariance of u_eps in the layer above."""
    return {"cov_u_eps": C(t, s) * Phi(ell, mu, alpha, t, s)}


def k11() -> dict[str, Basic]:
    """Return the printed equation (K.11): covariance of r_eps."""
    return {"cov_r_eps": C(t, s) * G(ell + 1, mu, alpha, t, s)}


def k12() -> dict[str, Basic]:
    """Return the printed equation (K.12): Brownian fields and their responses.

    Brownian fields, at the layer above and at this one; products over times and samples spelled out.

    Here A_eps and B_eps are not yet divided by gamma0.
    """
    forward = Sum(A_eps(ell + 1, mu, alpha, t, s) * g(ell + 1, alpha, s), (alpha, 1, P))
    backward = Sum(B_eps(ell, alpha, mu, s, t) * phi(h(ell, alpha, s)), (alpha, 1, P))
    return {
        "chi_eps": u_eps(ell + 1, mu, t) + Integral(forward, (s, 0, oo)),
        "xi_eps": r_eps(ell, mu, t) + Integral(backward, (s, 0, oo)),
    }


def k13() -> dict[str, Basic]:
    """Return the printed equation (K.13): responses to the noise.

    Responses: A_eps of the layer above, and B_eps without its transposition; C is symmetric.
    """
    return {
        "A_eps": C(t, s) * response(phi(h(ell, mu, t)), r_eps(ell, alpha, s)),
        "B_eps": C(t, s) * response(g(ell + 1, mu, t), u(ell + 1, alpha, s)),
    }


def k14() -> dict[str, Basic]:
    """Return the printed equation (K.14): covariances and fields."""

    def past(body: Expr) -> Expr:
        return gamma0 * Integral(Sum(body, (alpha, 1, P)), (s, 0, t))

    kept, since = exp(-lam * t / beta), exp(-lam * (t - s) / beta) * Delta(alpha, s)
    forward, backward = (ell - 1, mu, alpha, t, s), (ell, mu, alpha, t, s)
    above = G(ell + 1, mu, alpha, t, s)
    return {
        "cov_u": Phi(*forward),
        "cov_r": above,
        "cov_u_eps": C(t, s) * Phi(*forward),
        "cov_r_eps": C(t, s) * above,
        "h": kept * (u(ell, mu, t) + past(A(*forward) * g(ell, alpha, s)))
        + u_eps(ell, mu, t)
        + past((A_eps(*forward) + since * Phi(*forward)) * g(ell, alpha, s)),
        "z": kept * (r(ell, mu, t) + past(B(*backward) * g(ell, alpha, s)))
        + r_eps(ell, mu, t)
        + past((B_eps(*backward) + since * above) * phi(h(ell, alpha, s))),
    }


# -- weak feature learning, long times ----------------------------------------------------------------------

_X, _Y = Symbol("x", real=True), Symbol("y", real=True)
H, Z, gaussian = (Function(n) for n in ("H", "Z", "gaussian"))


def _gaussian(body: Expr, layer: Expr) -> Expr:
    """Return the average over the fields of one layer at lag tau.

    It is ``gaussian(F(x, y), <x x>, <x y>, <y y>)``.
    """
    variances = H(layer, mu, mu, S.Zero), H(layer, mu, alpha, tau), H(layer, alpha, alpha, S.Zero)
    return gaussian(body, *variances)


def _late() -> Expr:
    return exp(-lam * tau / beta) / lam


def k15() -> dict[str, Basic]:
    """Return the printed equation (K.15): stationary kernels, forward.

    Covariances of h in the first layer and in the layer above, and the kernel of a layer, at lag tau.
    """
    return {
        "H_first": _late() * K_x(mu, alpha),
        "H": _late() * Phi(ell, mu, alpha, tau),
        "Phi": _gaussian(phi(_X) * phi(_Y), ell),
    }


def k16() -> dict[str, Basic]:
    """Return the printed equation (K.16): stationary kernels, backward.

    Covariances of z in the last layer and in an inner one, and the backward kernel, at lag tau.
    """
    slopes = phi(_X).diff(_X) * phi(_Y).diff(_Y)
    return {
        "Z_last": _late(),
        "Z": _late() * G(ell + 1, mu, alpha, tau),
        "G": _gaussian(slopes, ell) * Z(ell, mu, alpha, tau),
    }


__all__ = [
    "k2",
    "k3",
    "k4",
    "k5",
    "k7",
    "k9",
    "k10",
    "k11",
    "k12",
    "k13",
    "k14",
    "k15",
    "k16",
    "k17",
    "k18",
    "k19",
    "k20",
    "k20_text",
    "k21",
    "k22",
    "k23",
]
