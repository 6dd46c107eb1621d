"""Convolutional networks (G.1)-(G.6): positions a, b, c are ``p``, ``p_``, ``p__``, offsets ``k``.

Fields are ``h(ell, mu, p, t)``, kernels ``Phi(ell, mu, p, alpha, p_, t, s)``.  A sum over positions runs over
1..X, one over the filter over -S..S.
"""

from __future__ import annotations

from sympy import Basic, Expr, Function, Sum, Symbol, oo, sqrt

from tests.ledger.claims.selfconsistent2023.nonlinear import Phi, average, past, phi, response, slope, z
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

X, S = (Symbol(x, integer=True, positive=True) for x in ("X", "S"))
p, p_, c = (Symbol(x, integer=True, positive=True) for x in ("p", "p_", "p__"))
k = Symbol("k", integer=True)
N, T = (Symbol(x, integer=True, positive=True) for x in ("N", "T"))
W, W_top, w, chi, xi = (Function(x) for x in ("W", "W_top", "w", "chi", "xi"))
product = Function("product")

FILTER, POSITIONS, THIRD = (k, -S, S), (p_, 1, X), (c, 1, X)
unit = Symbol("i", integer=True, positive=True)


def g1() -> dict[str, Basic]:
    """Return the printed equation (G.1): convolutional layer.

    h of the layer above at position p, ``product(M, v)`` being M v/sqrt(N).
    """
    return {"h": Sum(product(W(ell, k), phi(h(ell, mu, p + k, t))), FILTER)}


def g1_text() -> dict[str, Basic]:
    """Return the statement in the text at (G.1): output of a convolutional network.

    The output with its free position, fields at unit i: ``h(L, mu, i, p)``, and ``w(i, p)``.
    """
    last = Symbol("L", integer=True, positive=True)
    return {"f": Sum(w(unit, p) * phi(h(last, mu, unit, p)), (unit, 1, N)) / (gamma0 * N)}


def g2() -> dict[str, Basic]:
    """Return the printed equation (G.2): backward recursion of a convolution.

    z at position p; the printed sum over the units j of the layer above stands outside the product.
    """
    j = Symbol("j", integer=True, positive=True)
    back = product(W_top(ell, k), g(ell + 1, mu, p - k, t))
    return {"z": Sum(back, FILTER, (j, 1, N))}


def g3() -> dict[str, Basic]:
    """Return the printed equation (G.3): velocity of a filter at offset k; ``outer(a, b)`` is a b^T."""
    outer = Function("outer")
    move = Delta(mu, t) * outer(g(ell + 1, mu, p, t), phi(h(ell, mu, p + k, t)))
    return {"dW": gamma0 / sqrt(N) * Sum(move, (mu, 1, P), (p, 1, X))}


def g4() -> dict[str, Basic]:
    """Return the printed equation (G.4): fields of a convolution under training.

    h of the layer above, and z, given chi and xi; the last phi(h) is printed without a time.
    """
    forward = Delta(alpha, s) * Phi(ell, mu, p + k, alpha, c + k, t, s) * g(ell + 1, alpha, c, s)
    backward = Delta(alpha, s) * G(ell + 1, mu, p - k, alpha, c - k, t, s) * phi(h(ell, alpha, c))
    return {
        "h": chi(ell + 1, mu, p, t) + past(forward, FILTER, THIRD),
        "z": xi(ell, mu, p, t) + past(backward, FILTER, THIRD),
    }


def g4_text() -> dict[str, Basic]:
    """Return the statement in the text at (G.4): chi of the layer above."""
    return {"chi": product(W(ell), phi(h(ell, mu, p, t)))}


def g6() -> dict[str, Basic]:
    """Return the printed equation (G.6): theory of a convolutional network.

    Covariances, fields, kernels and responses; the times of Phi and G in the memory are supplied.
    """
    field = z(ell, alpha, p_, s) * slope(h(ell, alpha, p_, s))
    third = z(ell, alpha, c, s) * slope(h(ell, alpha, c, s))
    responses = A(ell - 1, mu, p, alpha, p_, t, s) * field
    memory = Delta(alpha, s) * Phi(ell - 1, mu, p + k, alpha, c + k, t, s) * third
    back = B(ell, mu, p, alpha, p_, t, s) * phi(h(ell, alpha, p_, s))
    backward = Delta(alpha, s) * G(ell + 1, mu, p - k, alpha, c - k, t, s) * phi(h(ell, alpha, c, s))
    return {
        **covariances(),
        "h": u(ell, mu, p, t) + past(responses, POSITIONS) + past(memory, FILTER, THIRD),
        "z": r(ell, mu, p, t) + past(back, POSITIONS, upper=oo) + past(backward, FILTER, THIRD),
        "Phi": average(phi(h(ell, mu, p, t)) * phi(h(ell, alpha, p_, s))),
        "G": average(g(ell, mu, p, t) * g(ell, alpha, p_, s)),
        "A": response(phi(h(ell, mu, p, t)), r(ell, alpha, p_, s)) / gamma0,
        "B": response(g(ell + 1, mu, p, t), u(ell + 1, alpha, p_, s)) / gamma0,
    }


def covariances() -> dict[str, Basic]:
    """Return the covariances in the first line of (G.6)."""
    return {
        "cov_u": Phi(ell - 1, mu, p, alpha, p_, t, s),
        "cov_r": G(ell + 1, mu, p, alpha, p_, t, s),
    }


def g6_text() -> dict[str, Basic]:
    """Return the statement in the text at (G.6): size of the theory of a convolutional network.

    The size that replaces P, and the growth of time, with |S| the number of offsets.
    """
    size: Expr = 2 * S + 1
    return {"samples": P * size, "time": P**3 * size**3 * T**3}


__all__ = ["covariances", "g1", "g1_text", "g2", "g3", "g4", "g4_text", "g6", "g6_text"]
