"""Nonlinear networks: single-site equations (13), (D.44), two layers (D.21), (E.1), kernels and responses.

Fields and kernels carry samples: ``h(ell, mu, t)``, ``Phi(ell, mu, alpha, t, s)``.  ``average(x)`` stands for
the single-site average of x, ``response(x, r)`` for the average of the derivative of x in r, and
``cov_u(ell)`` for the covariance of ``u(ell, mu, t)`` with ``u(ell, alpha, s)``.
"""

from __future__ import annotations

from sympy import Basic, Derivative, Expr, Function, Integral, S, Sum

from tests.ledger.claims.selfconsistent2023.notation import (
    A,
    B,
    Delta,
    G,
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

K_x, Phi, z, phi, xi, chi = (Function(x) for x in ("K_x", "Phi", "z", "phi", "xi", "chi"))
average, response = Function("average"), Function("response")


def past(body: Expr, *sums: tuple[object, ...], upper: Expr = t) -> Expr:
    """Return ``gamma0 int_0^upper ds sum_alpha body``, with further sums inside."""
    return gamma0 * Integral(Sum(body, *sums, (alpha, 1, P)), (s, 0, upper))


def slope(field: Expr) -> Expr:
    """Return phi'(field)."""
    return Derivative(phi(field), field)


def kernels(*index: Expr) -> dict[str, Basic]:
    """Return ``Phi`` and ``G`` as averages.

    The fields carry ``index`` between the layer and the sample and time.
    """
    first, second = h(ell, mu, *index[:1], t), h(ell, alpha, *index[1:], s)
    return {
        "Phi": average(phi(first) * phi(second)),
        "G": average(g(ell, mu, *index[:1], t) * g(ell, alpha, *index[1:], s)),
    }


def eq12() -> dict[str, Basic]:
    """Return the printed equation (12): the kernels."""
    return kernels()


def eq13() -> dict[str, Basic]:
    """Return the printed equation (13): covariances of the sources, and the fields."""
    forward = A(ell - 1, mu, alpha, t, s) + Delta(alpha, s) * Phi(ell - 1, mu, alpha, t, s)
    backward = B(ell, mu, alpha, t, s) + Delta(alpha, s) * G(ell + 1, mu, alpha, t, s)
    above = h(ell, alpha, s)
    return {
        "cov_u": Phi(ell - 1, mu, alpha, t, s),
        "cov_r": G(ell + 1, mu, alpha, t, s),
        "h": u(ell, mu, t) + past(forward * z(ell, alpha, s) * slope(above)),
        "z": r(ell, mu, t) + past(backward * phi(above)),
    }


def eq14() -> dict[str, Basic]:
    """Return the printed equation (14): responses."""
    return {
        "A": response(phi(h(ell, mu, t)), r(ell, alpha, s)) / gamma0,
        "B": response(g(ell + 1, mu, t), u(ell + 1, alpha, s)) / gamma0,
    }


def algorithm_1() -> dict[str, Basic]:
    """Return the printed Algorithm 1: responses as the algorithm estimates them."""
    return {
        "A": response(phi(h(ell, mu, t)), r(ell, alpha, s)),
        "B": response(g(ell + 1, mu, t), u(ell + 1, alpha, s)),
    }


def d24_text() -> dict[str, Basic]:
    """Return the statement in the text at (D.24): the response of g to u at equal time.

    It is that of ``g(ell + 1, mu, t)`` to ``u(ell + 1, alpha, t)``, if h(t) depends on s < t only.
    """
    return {"B_equal_time": S.Zero}


def d21() -> dict[str, Basic]:
    """Return the printed equation (D.21): complete theory of two layers.

    Two layers: h and z of the only hidden layer; its kernels; df/dt.
    """
    above = h(1, alpha, s)
    return {
        "cov_u": K_x(mu, alpha),
        "cov_r": S.One,
        "h": u(1, mu, t) + past(z(1, alpha, s) * slope(above) * K_x(mu, alpha) * Delta(alpha, s)),
        "z": r(1, mu, t) + past(phi(above) * Delta(alpha, s)),
        "Phi": average(phi(h(1, mu, t)) * phi(h(1, alpha, s))),
        "G": average(z(1, mu, t) * z(1, alpha, s) * slope(h(1, mu, t)) * slope(h(1, alpha, s))),
        "df": _velocity(Phi(1, mu, alpha, t, t) + G(1, mu, alpha, t, t) * K_x(mu, alpha)),
    }


def _velocity(kernel: Expr) -> Expr:
    return Sum(kernel * Delta(alpha, t), (alpha, 1, P))


def d44() -> dict[str, Basic]:
    """Return the printed equation (D.44): the closed system; covariances are those of (13)."""
    driven = z(ell, alpha, s) * slope(h(ell, alpha, s))
    return {
        "h_chi": chi(ell, mu, t) + past(Delta(alpha, s) * Phi(ell - 1, mu, alpha, t, s) * driven),
        "z_xi": xi(ell, mu, t) + past(Delta(alpha, s) * G(ell + 1, mu, alpha, t, s) * phi(h(ell, alpha, s))),
        **eq13(),
        **kernels(),
        **eq14(),
    }


def e1() -> dict[str, Basic]:
    """Return the printed equation (E.1): two layers as differential equations.

    Two layers as differential equations; kernels at equal times, and how h and z start.
    """
    now = h(1, alpha, t)
    kernel = G(1, mu, alpha, t, t) * K_x(mu, alpha) + Phi(1, mu, alpha, t, t)
    return {
        "dh": gamma0 * Sum(Delta(alpha, t) * K_x(mu, alpha) * slope(now) * z(1, alpha, t), (alpha, 1, P)),
        "dz": gamma0 * Sum(Delta(alpha, t) * phi(now), (alpha, 1, P)),
        "Phi": average(phi(h(1, mu, t)) * phi(now)),
        "G": average(z(1, mu, t) * z(1, alpha, t) * slope(h(1, mu, t)) * slope(now)),
        "dDelta": -_velocity(kernel),
        "cov_h": K_x(mu, alpha),
        "cov_z": S.One,
    }


def n10() -> dict[str, Basic]:
    """Return the printed equation (N.10): the process of Tensor Programs.

    A product and its two parts ``hat(v)`` and ``dot(v)`` for one sample a step. Here ``Z(v)`` denotes the
    entries of a vector; x, dh, dx are vectors and chi(s) is minus the error.
    """
    hat, dot, Z, E = (Function(n) for n in ("hat", "dot", "Z", "E"))
    W, x, dh, dx = (Function(n) for n in ("W", "x", "dh", "dx"))
    W_top, error = Function("W_top"), Function("chi")
    forward, backward = W(x(t)), W_top(dh(t))
    return {
        "h": hat(forward) + dot(forward) - Sum(error(s) * Z(dh(s)) * E(Z(x(s)) * Z(x(t))), (s, 0, t - 1)),
        "dx": hat(backward) + dot(backward) - Sum(error(s) * Z(x(s)) * E(Z(dh(t)) * Z(dh(s))), (s, 0, t - 1)),
        "cov_hat_W": E(Z(x(t)) * Z(x(s))),
        "cov_hat_W_top": E(Z(dh(t)) * Z(dh(s))),
        "dx_is": dx(t),
    }


def n10_text() -> dict[str, Basic]:
    """Return the statement in the text at (N.10): the dotted part of ``W x_t``, one sample a step.

    The value of the dotted part of ``W x_t``; one sample a step.
    """
    return {"dot": Sum(Delta(s) * A(t, s), (s, 0, t - 1))}


def table_n1() -> dict[str, Basic]:
    """Return the printed Table N1: names in Tensor Programs and here.

    Tensor-program names of h, chi, g, xi, Phi, G, A (and B), Delta; ``Z(v)`` as in (N.10).
    """
    Z, E, W, W_top = (Function(n) for n in ("Z", "E", "W", "W_top"))
    x, dh, dx, fields = (Function(n) for n in ("x", "dh", "dx", "h"))
    return {
        "h": Z(fields(t)),
        "chi": Z(W(x(t))),
        "g": Z(dx(t)),
        "xi": Z(W_top(dh(t))),
        "Phi": E(Z(x(t)) * Z(x(s))),
        "G": E(Z(dh(t)) * Z(dh(s))),
        "A": Function("theta")(t, s),
        "Delta": -Function("chi")(t),
    }


__all__ = [
    "K_x",
    "Phi",
    "algorithm_1",
    "average",
    "d21",
    "d24_text",
    "d44",
    "e1",
    "eq12",
    "eq13",
    "eq14",
    "kernels",
    "n10",
    "n10_text",
    "past",
    "phi",
    "response",
    "slope",
    "table_n1",
    "xi",
    "z",
]
