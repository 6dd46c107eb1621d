"""Order gamma0^2 of the deep linear network: (16) and (P.2)-(P.5), without the terms O(gamma0^4).

``v(alpha, t)`` and ``vv(alpha, beta, t)`` stand for v_alpha(t) and v_{alpha beta}(t).
"""

from __future__ import annotations

from sympy import Basic, Expr, Function, Integral, Sum, Symbol

from tests.ledger.claims.selfconsistent2023.notation import (
    Delta,
    G,
    H,
    Kx,
    L,
    P,
    alpha,
    beta,
    ell,
    gamma0,
    mu,
    nu,
    s,
    t,
)

v = Function("v")
vv = Function("vv")
_SAMPLES = ((alpha, 1, P), (beta, 1, P))

# Operator words; c and d are C^(0) and D^(0), ones is the matrix 1 1^T over times.
c, c_T, d, d_T, H0, ones, K = (
    Symbol(name, commutative=False) for name in ("c", "c_T", "d", "d_T", "H0", "ones", "Kx")
)


def eq16() -> dict[str, Basic]:
    """Return the printed equation (16): K_{mu nu}(t, s)."""
    factor = gamma0**2 * L * (L + 1) / 2
    nested = vv(alpha, beta, t) + vv(beta, alpha, s)
    product = v(alpha, t) * v(beta, s)
    outer = Kx(mu, alpha) * Kx(nu, beta)
    return {
        "K": (L + 1) * Kx(mu, nu)
        + factor * Kx(mu, nu) * Sum(Kx(alpha, beta) * (nested + product), *_SAMPLES)
        + factor * (Sum(outer * nested, *_SAMPLES) + Sum(outer * product, *_SAMPLES))
    }


def eq16_text() -> dict[str, Basic]:
    """Return the statement in the text at (16): scaling of the relative change of the tangent kernel."""
    return {"relative_change": gamma0**2 * L}


def p2() -> dict[str, Basic]:
    """Return the printed equation (P.2): kernels at order gamma0^2, operator form.

    H and G of layer ell, and K in two parts: ``K_forward`` plus Kx (x) ``K_backward``.

    The symmetrizer {X, Y} is X Y + Y^T X^T; H0, ones and Kx are symmetric.
    """
    forward = c * d * H0 + H0 * d_T * c_T + c * ones * c_T
    backward = d * c * ones + ones * c_T * d_T + d * H0 * d_T
    depth = L * (L + 1) / 2
    return {
        "H": H0 + ell * gamma0**2 * forward,
        "G": ones + (L + 1 - ell) * gamma0**2 * backward,
        "K_forward": L * H0 + gamma0**2 * depth * (c * d * K + K * d_T * c_T + c * ones * c_T),
        "K_backward": gamma0**2 * depth * backward,
    }


def _single(index: Symbol, upper: Expr) -> Expr:
    time = Symbol("t_1", nonnegative=True)
    return Integral(Delta(index, time), (time, 0, upper))


def _nested(first: Symbol, second: Symbol, upper: Expr) -> Expr:
    outer, inner = Symbol("t_1", nonnegative=True), Symbol("t_2", nonnegative=True)
    return Integral(
        Delta(first, outer) * Integral(Delta(second, inner), (inner, 0, outer)), (outer, 0, upper)
    )


def p3() -> dict[str, Basic]:
    """Return the printed equation (P.3): kernels at order gamma0^2, time integrals.

    H_{mu nu}(t, s) and G(t, s) of layer ell, with the arrows carried out; mu is free in G, as printed.
    """
    outer = Kx(mu, alpha) * Kx(nu, beta)
    swapped = Kx(nu, alpha) * Kx(mu, beta)
    up = gamma0**2 * ell
    down = gamma0**2 * (L + 1 - ell)
    both = _nested(alpha, beta, t) + _nested(alpha, beta, s)
    return {
        "H": Kx(mu, nu)
        + up * Sum(outer * _nested(alpha, beta, t) + swapped * _nested(alpha, beta, s), *_SAMPLES)
        + up * Sum(outer * _single(alpha, t) * _single(beta, s), *_SAMPLES),
        "G": 1
        + down * Sum(Kx(alpha, beta) * both, *_SAMPLES)
        + down * Sum(Kx(mu, alpha) * _single(alpha, t) * _single(alpha, s), *_SAMPLES),
    }


def p4() -> dict[str, Basic]:
    """Return the printed equation (P.4): H_{mu nu}(t, s) and G(t, s) of layer ell."""
    outer = Kx(mu, alpha) * Kx(nu, beta)
    nested = vv(alpha, beta, t) + vv(beta, alpha, s)
    product = v(alpha, t) * v(beta, s)
    up = gamma0**2 * ell
    return {
        "H": Kx(mu, nu) + up * Sum(outer * nested, *_SAMPLES) + up * Sum(outer * product, *_SAMPLES),
        "G": 1 + gamma0**2 * (L + 1 - ell) * Sum(Kx(alpha, beta) * (nested + product), *_SAMPLES),
    }


def p5() -> dict[str, Basic]:
    """Return the printed equation (P.5): tangent kernel at order gamma0^2 from the layers.

    K_{mu alpha}(t, s): the sum over layers, and its expansion in H2(ell, ...) and G2(ell, ...).
    """
    second_h = Function("H2")
    second_g = Function("G2")
    layers = (ell, 1, L)
    return {
        "K": Sum(G(ell + 1, t, s) * H(ell, mu, alpha, t, s), (ell, 0, L)),
        "K_expanded": (L + 1) * Kx(mu, alpha)
        + gamma0**2 * Sum(second_h(ell, mu, alpha, t, s), layers)
        + gamma0**2 * Sum(second_g(ell, t, s) * Kx(mu, alpha), layers),
    }
