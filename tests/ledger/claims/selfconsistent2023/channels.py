"""Several outputs (I.1)-(I.5): vectors of C entries are written with the channel after the sample.

``g(ell, mu, c, t)``, ``G(ell, mu, c, alpha, c_, t, s)``, ``A(ell, mu, alpha, c_, t, s)``, ``B(ell, mu, c,
alpha, t, s)``.
"""

from __future__ import annotations

from sympy import Basic, Function, Heaviside, KroneckerDelta, Sum, Symbol, oo

from tests.ledger.claims.selfconsistent2023.nonlinear import (
    K_x,
    Phi,
    average,
    chi,
    past,
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

C, c, c_ = (Symbol(x, integer=True, positive=True) for x in ("C", "c", "c_"))
CHANNELS = (c_, 1, C)
K, grad, product = Function("K"), Function("grad_grad"), Function("product")


def i1() -> dict[str, Basic]:
    """Return the printed equation (I.1): velocity of the outputs."""
    kernel = K(mu, c, alpha, c_, t, t)
    return {"df": Sum(kernel * Delta(alpha, c_, t), CHANNELS, (alpha, 1, P))}


def i2() -> dict[str, Basic]:
    """Return the printed equation (I.2): backward fields, ``product(M, v)`` being M v/sqrt(N)."""
    back = product(Function("W_top")(ell), g(ell + 1, mu, c, t))
    return {"g": slope(h(ell, mu, t)) * back}


def i3() -> dict[str, Basic]:
    """Return the printed equation (I.3): tangent kernel of several outputs.

    The tangent kernel: as a product of gradients of the outputs, and by kernels.
    """
    inner = Sum(G(ell + 1, mu, c, alpha, c_, t, s) * Phi(ell, mu, alpha, t, s), (ell, 1, L - 1))
    return {
        "K_gradients": Sum(grad(ell, mu, c, alpha, c_), (ell, 0, L)),
        "K": Phi(L, mu, alpha, t, s) * KroneckerDelta(c, c_)
        + inner
        + G(1, mu, c, alpha, c_, t, s) * K_x(mu, alpha),
    }


def i4() -> dict[str, Basic]:
    """Return the printed equation (I.4): fields with several outputs.

    Fields, with chi and xi and the sample mu in the last phi as printed.
    """
    forward = A(ell - 1, mu, alpha, c_, t, s) + Heaviside(t - s) * Delta(alpha, c_, s) * Phi(
        ell - 1, mu, alpha, t, s
    )
    kernel = Sum(G(ell + 1, mu, c, alpha, c_, t, s) * Delta(alpha, c_, s), CHANNELS)
    backward = B(ell, mu, c, alpha, t, s) + Heaviside(t - s) * kernel
    return {
        "h": chi(ell, mu, t) + past(forward * g(ell, alpha, c_, s), CHANNELS, upper=oo),
        "z": xi(ell, mu, c, t) + past(backward * phi(h(ell, mu, t)), upper=oo),
        "g": slope(h(ell, mu, t)) * z(ell, mu, c, t),
    }


def i5() -> dict[str, Basic]:
    """Return the printed equation (I.5): kernels and responses."""
    return {
        "Phi": average(phi(h(ell, mu, t)) * phi(h(ell, alpha, s))),
        "G": average(g(ell, mu, c, t) * g(ell, alpha, c_, s)),
        "A": response(phi(h(ell, mu, t)), r(ell, alpha, c_, s)) / gamma0,
        "B": response(g(ell, mu, c, t), u(ell, alpha, s)) / gamma0,
    }
