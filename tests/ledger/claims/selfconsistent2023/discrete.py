"""Exact discrete time (M.1)-(M.8), at unit learning rate.

A printed sum over all times runs over ``0..T``; ``dot(a, b)`` is the inner product of two vectors, and ``i``
a unit.
"""

from __future__ import annotations

from sympy import Basic, Expr, Function, Heaviside, I, Rational, Sum, Symbol

from tests.ledger.claims.selfconsistent2023.nonlinear import Phi, average, kernels, phi, response
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
T = Symbol("T", integer=True, nonnegative=True)
i = Symbol("i", integer=True, positive=True)
w, z, f, fhat, xihat, dot = (Function(x) for x in ("w", "z", "f", "fhat", "xihat", "dot"))
Phihat, Ghat = Function("Phihat"), Function("Ghat")

ONE, OTHER = ((mu, 1, P), (t, 0, T)), ((alpha, 1, P), (s, 0, T))
_HALF = Rational(1, 2)


def m1() -> dict[str, Basic]:
    """Return the printed equation (M.1): output in discrete time.

    The output by the readout of each unit i, ``w(i, t)`` and ``h(L, mu, i, t)``, and by the kernel.
    """
    here, past = phi(h(L, mu, i, t)), phi(h(L, alpha, i, s))
    readout = w(i, 0) + gamma0 * Sum(Delta(alpha, s) * past, (alpha, 1, P), (s, 0, t - 1))
    start = Sum(w(i, 0) * here, (i, 1, N)) / (N * gamma0)
    return {
        "f_by_units": Sum(readout * here, (i, 1, N)) / (N * gamma0),
        "f": start + Sum(Delta(alpha, s) * Phi(L, mu, alpha, t, s), (s, 0, t - 1), (alpha, 1, P)),
    }


def m3() -> dict[str, Basic]:
    """Return the printed equation (M.3): the log of the average over the readout."""
    hats = Sum(dot(xihat(mu, t), xihat(alpha, s)), *ONE, *OTHER)
    outputs = Sum(fhat(mu, t) * fhat(alpha, s) * Phi(L, mu, alpha, t, s), *ONE, *OTHER)
    mixed = Sum(fhat(mu, t) * dot(phi(h(L, mu, t)), xihat(alpha, s)), *ONE, *OTHER)
    return {"log": -hats / 2 - N / (2 * gamma0**2) * outputs - mixed / gamma0}


def m4() -> dict[str, Basic]:
    """Return the printed equation (M.4): action in discrete time.

    The action per N; times and layer of Phi and G_hat in the third line are supplied.
    """
    place = (mu, alpha, t, s)
    outputs = Sum(fhat(mu, t) * fhat(alpha, s) * Phi(L, *place), *ONE, *OTHER)
    since = Heaviside(t - s) * Delta(alpha, s) * Phi(L, *place)
    pairs = (
        Phi(ell, *place) * Phihat(ell, *place)
        + G(ell, *place) * Ghat(ell, *place)
        - A(ell, *place) * B(ell, *place)
    )
    return {
        "S": I * Sum(fhat(mu, t) * f(mu, t), *ONE)
        - outputs / (2 * gamma0**2)
        - I * Sum(fhat(mu, t) * A(L, *place), *ONE, *OTHER)
        - I * Sum(fhat(mu, t) * since, *ONE, *OTHER)
        + Sum(pairs, *ONE, *OTHER, (ell, 1, L))
        + Function("lnZ")(L)
    }


def m5() -> dict[str, Basic]:
    """Return the printed equation (M.5): derivatives of the action in f and in i f_hat."""
    place = (L, mu, alpha, t, s)
    return {
        "f": I * fhat(mu, t),
        "i_fhat": f(mu, t)
        + Sum(Phi(*place) * I * fhat(alpha, s), *OTHER) / gamma0**2
        - Sum(A(*place), *OTHER)
        - Sum(Heaviside(t - s) * Delta(alpha, s) * Phi(*place), *OTHER),
    }


def m6() -> dict[str, Basic]:
    """Return the printed equation (M.6): the derivative of the action in A^L."""
    return {"A": -B(L, mu, alpha, t, s) - I * fhat(mu, t)}


def m7() -> dict[str, Basic]:
    """Return the printed equation (M.7): response of the features to the readout.

    The derivative of the action in B^L, and the response that follows from it (its d supplied).
    """
    here = phi(h(L, mu, t))
    return {
        "B": -A(L, mu, alpha, t, s) + I * average(here * xihat(alpha, s)) / gamma0,
        "A": response(here, r(L, alpha, s)) / gamma0,
    }


def m8() -> dict[str, Basic]:
    """Return the printed equation (M.8): complete theory in discrete time.

    The closed system: covariances, fields, kernels, responses and outputs.
    """

    def all_times(body: Expr) -> Expr:
        return gamma0 * Sum(body, *OTHER)

    since = Heaviside(t - s) * Delta(alpha, s)
    forward = A(ell - 1, mu, alpha, t, s) + since * Phi(ell - 1, mu, alpha, t, s)
    backward = B(ell, mu, alpha, t, s) + since * G(ell + 1, mu, alpha, t, s)
    recent = Sum(Phi(L, mu, alpha, t, s) * Delta(alpha, s), (alpha, 1, P), (s, 0, t - 1))
    return {
        "f": recent + Sum(A(L, mu, alpha, t, s), *OTHER),
        "cov_u": Phi(ell - 1, mu, alpha, t, s),
        "cov_r": G(ell + 1, mu, alpha, t, s),
        "h": u(ell, mu, t) + all_times(forward * g(ell, alpha, s)),
        "z": r(ell, mu, t) + all_times(backward * phi(h(ell, alpha, s))),
        **kernels(),
        "A": response(phi(h(ell, mu, t)), u(ell, alpha, s)) / gamma0,
        "B": response(g(ell + 1, mu, t), r(ell + 1, alpha, s)) / gamma0,
    }


__all__ = ["m1", "m3", "m4", "m5", "m6", "m7", "m8"]
