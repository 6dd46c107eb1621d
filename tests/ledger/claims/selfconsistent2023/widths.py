"""Layers of different widths a_l N and initial variances sigma_l^2 (D.46)-(D.55).

Matrices over samples and times are written entry by entry; ``tilde_A`` and ``tilde_B`` are the rescaled
responses of (D.55).
"""

from __future__ import annotations

from sympy import Basic, Function, Heaviside, I, Integral, Sum, Symbol, oo, sqrt

from tests.ledger.claims.selfconsistent2023.nonlinear import (
    K_x,
    Phi,
    average,
    chi,
    phi,
    response,
    slope,
    xi,
    z,
)
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

a, sigma = Function("a"), Function("sigma")
tilde_A, tilde_B = Function("tilde_A"), Function("tilde_B")
N = Symbol("N", integer=True, positive=True)
_SAMPLES = (alpha, 1, P)
_EVER = (s, 0, oo)


def d46() -> dict[str, Basic]:
    """Return the printed equation (D.46): backward recursion with different widths.

    z of layer ell, ``product(M, v)`` being M v without a factor; the widths are a(ell) N.
    """
    product = Function("product")
    return {"z": product(Function("W_top")(ell), g(ell + 1, mu, t)) / sqrt(a(ell + 1) * N)}


def d47() -> dict[str, Basic]:
    """Return the printed equation (D.47): update of an inner matrix with different widths.

    Velocity of W(ell), ``outer(v, w)`` being v w^T, with gamma = gamma0 sqrt(N).
    """
    outer = Function("outer")
    moves = Sum(Delta(mu, t) * outer(g(ell + 1, mu, t), phi(h(ell, mu, t))), (mu, 1, P))
    return {"dW": gamma0 * sqrt(N) / (sqrt(a(ell) * N) * sqrt(a(ell + 1) * N)) * moves}


def d48() -> dict[str, Basic]:
    """Return the printed equation (D.48): fields given chi and xi, gamma = gamma0 sqrt(N)."""
    forward = Delta(alpha, s) * g(ell, alpha, s) * Phi(ell - 1, mu, alpha, t, s)
    backward = Delta(alpha, s) * phi(h(ell, alpha, s)) * G(ell + 1, mu, alpha, t, s)
    rate = gamma0 / sqrt(a(ell))
    return {
        "h": chi(ell, mu, t) + rate * Sum(Integral(forward, (s, 0, t)), _SAMPLES),
        "z": xi(ell, mu, t) + rate * Sum(Integral(backward, (s, 0, t)), _SAMPLES),
    }


def d49() -> dict[str, Basic]:
    """Return the printed equation (D.49): the tangent kernel."""
    inner = Sum(G(ell + 1, mu, alpha, t, s) * Phi(ell, mu, alpha, t, s), (ell, 1, L - 1))
    return {"K": Phi(L, mu, alpha, t, s) + inner + G(1, mu, alpha, t, s) * K_x(mu, alpha)}


# One time and one pair of samples at a time: vectors over units, dot(v, w) their inner product.
_dot, _chi_hat, _xi_hat, _g, _chi = (Function(x) for x in ("dot", "chi_hat", "xi_hat", "g", "chi"))


def d50() -> dict[str, Basic]:
    """Return the printed equation (D.50): average over a matrix between different widths.

    Logarithm of the average for one matrix, at one time each: ``dot`` is the inner product over units.
    """
    own = _dot(_chi_hat(mu), _chi_hat(mu)) * Phi(ell, mu, alpha)
    back = _dot(_xi_hat(mu), _xi_hat(mu)) * G(ell + 1, mu, alpha)
    cross = A(ell, mu, alpha) * _dot(_chi(mu), _g(alpha))
    samples = ((mu, 1, P), (alpha, 1, P))
    return {
        "log": -(sigma(ell) ** 2) / 2 * Sum(own + back, *samples)
        - I * sigma(ell) ** 2 * sqrt(a(ell) / a(ell + 1)) * Sum(cross, *samples)
    }


def d51() -> dict[str, Basic]:
    """Return the printed equation (D.51): action with different widths.

    The action; order parameters and ln Z of a layer have the factor a(ell).
    """
    Tr, lnZ = Function("Tr"), Function("lnZ")
    hats = {x: Function(f"hat_{x}") for x in ("Phi", "G")}
    body = Tr(hats["Phi"](ell), Phi(ell)) + Tr(G(ell), hats["G"](ell)) - Tr(A(ell), B(ell)) + lnZ(ell)
    return {"S": Sum(a(ell) * body, (ell, 1, L))}


def d53() -> dict[str, Basic]:
    """Return the printed equation (D.53): kernels, responses and covariances; B before it is redefined."""
    return {
        "Phi": average(phi(h(ell, mu, t)) * phi(h(ell, alpha, s))),
        "G": average(g(ell, mu, t) * g(ell, alpha, s)),
        "A": response(phi(h(ell, mu, t)), r(ell, alpha, s)),
        "B": sigma(ell) ** 2 * sqrt(a(ell + 1) / a(ell)) * response(g(ell + 1, mu, t), u(ell + 1, alpha, s)),
        **covariances(),
    }


def covariances() -> dict[str, Basic]:
    """Return the covariances of u and r that are given below (D.53)."""
    return {
        "cov_u": sigma(ell - 1) ** 2 * Phi(ell - 1, mu, alpha, t, s),
        "cov_r": sigma(ell) ** 2 * G(ell + 1, mu, alpha, t, s),
    }


def d54() -> dict[str, Basic]:
    """Return the printed equation (D.54): fields with different widths and variances.

    Fields, B redefined as the response itself; the missing ds is supplied, the missing error is not.
    """
    rate = gamma0 / sqrt(a(ell)) * Heaviside(t - s)
    forward = (
        sigma(ell - 1) ** 2 * sqrt(a(ell - 1) / a(ell)) * A(ell - 1, mu, alpha, t, s)
        + rate * Phi(ell - 1, mu, alpha, t, s)
    ) * _driven()
    backward = (
        sigma(ell) ** 2 * sqrt(a(ell + 1) / a(ell)) * B(ell, mu, alpha, t, s)
        + rate * G(ell + 1, mu, alpha, t, s)
    ) * phi(h(ell, alpha, s))
    return {
        "h": u(ell, mu, t) + Integral(Sum(forward, _SAMPLES), _EVER),
        "z": r(ell, mu, t) + Integral(Sum(backward, _SAMPLES), _EVER),
    }


def _driven() -> Basic:
    return slope(h(ell, alpha, s)) * z(ell, alpha, s)


def d54_text() -> dict[str, Basic]:
    """Return the statement in the text at (D.54): scaling of the responses with the widths.

    The responses in units in which they do not scale with widths: ``tilde_A`` and ``tilde_B``.
    """
    return {
        "tilde_A": sqrt(a(ell)) / gamma0 * A(ell, mu, alpha, t, s),
        "tilde_B": sqrt(a(ell + 1)) / gamma0 * B(ell, mu, alpha, t, s),
    }


def d55() -> dict[str, Basic]:
    """Return the printed equation (D.55): fields in the units of (D.54)."""
    since = Heaviside(t - s)
    forward = (
        sigma(ell - 1) ** 2 * tilde_A(ell - 1, mu, alpha, t, s) + since * Phi(ell - 1, mu, alpha, t, s)
    ) * _driven()
    backward = (sigma(ell) ** 2 * tilde_B(ell, mu, alpha, t, s) + since * G(ell + 1, mu, alpha, t, s)) * phi(
        h(ell, alpha, s)
    )
    rate = gamma0 / sqrt(a(ell))
    return {
        "h": u(ell, mu, t) + rate * Integral(Sum(forward, _SAMPLES), _EVER),
        "z": r(ell, mu, t) + rate * Integral(Sum(backward, _SAMPLES), _EVER),
    }
