"""Single-site exponents, action and saddle point (appendix A.1.2) at zero source, times 0..T-1.

``site_*`` give the exponent of each single-site function and, under the field's name, the value that its
delta functions impose on the field. Hats: ``Dhat``, ``h0hat``, ``xi0hat`` belong to Delta, h0 and xi^0.
``average(a, b)`` is the average over the site that has the fields a and b; sums over identical sites are
replaced by sizes over D.
"""

from __future__ import annotations

from sympy import Basic, Expr, Function, I, KroneckerDelta, S, Sum, Symbol

from tests.ledger.claims.linear2025.notation import (
    C_Delta,
    C_g,
    C_h,
    C_h0,
    C_v,
    Delta,
    L,
    R_Delta,
    R_gu,
    R_h0r0,
    R_hr,
    R_vu,
    alpha,
    chi,
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
    v,
    w_star,
    xi,
    xi0,
)

T = Symbol("T", integer=True, positive=True)
average = Function("average")
Dhat, h0hat, xi0hat = (Function(x) for x in ("Dhat", "h0hat", "xi0hat"))  # (time)
chihat, xihat = Function("chihat"), Function("xihat")  # (layer, time)
Chat_v, Chat_h0, Chat_Delta = (Function(x) for x in ("Chat_v", "Chat_h0", "Chat_Delta"))  # (t, s)
Chat_h, Chat_g = Function("Chat_h"), Function("Chat_g")  # (layer, t, s)
lnZ_Delta, Z_0, lnZ = Symbol("lnZ_Delta"), Symbol("Z_0"), Function("lnZ")  # lnZ(ell)  # noqa: N816 (symbols of the paper)


def _both(body: Expr) -> Expr:
    return Sum(body, (t, 0, T - 1), (s, 0, T - 1))


def _gaussian(hat: type[Function], covariance: Expr, *layer: Expr) -> Expr:
    return -hat(*layer, t) * hat(*layer, s) * covariance / 2


def _imposed(hat: Expr, field: Expr, memory: Expr) -> Expr:
    """Return the term of a delta function: i hat(t) (delta(t - s) field(s) - memory)."""
    return I * hat * (KroneckerDelta(t, s) * field - memory)


def site_samples() -> dict[str, Basic]:
    """Return the printed equations (50) and (51): single-site function of the errors."""
    return {
        "exponent": _both(
            _gaussian(Dhat, C_v(t, s))
            + _imposed(Dhat(t), Delta(s), R_vu(t, s) * Delta(s))
            - Chat_Delta(t, s) * Delta(t) * Delta(s) / 2
        )
    }


def site_features() -> dict[str, Basic]:
    """Return the printed equation (52): single-site function of the features."""
    return {
        "exponent": _both(
            _gaussian(h0hat, C_Delta(t, s) / alpha)
            + _gaussian(xi0hat, C_g(1, t, s) / (gamma0**2 * nu))
            + _imposed(h0hat(t), h0(s), R_Delta(t, s) * v(s))
            + _imposed(xi0hat(t), xi0(s), R_gu(1, t, s) * h0(s) / gamma0)
        ),
        "v": w_star(t) - xi0(t) - eta * earlier(C_g(1, t, s) * h0(s)),
    }


def site_first() -> dict[str, Basic]:
    """Return the printed equation (53): single-site function of the first layer."""
    return {
        "exponent": _both(
            _gaussian(chihat, C_h0(t, s), S.One)
            + _gaussian(xihat, C_g(2, t, s), S.One)
            + _imposed(chihat(1, t), chi(1, s), R_h0r0(t, s) * g(1, s) / (nu * gamma0))
            + _imposed(xihat(1, t), xi(1, s), R_gu(2, t, s) * h(1, s))
        ),
        "h": chi(1, t) + eta * gamma0 * earlier(C_h0(t, s) * g(1, s)),
        "g": xi(1, t) + eta * gamma0 * earlier(C_g(2, t, s) * h(1, s)),
    }


def site_inner() -> dict[str, Basic]:
    """Return the printed equation (54): single-site functions of inner layers.

    The single-site function of an inner layer, with the field h^1 that it prints in the memory of g^ell.
    """
    return {
        "exponent": _both(
            _gaussian(chihat, C_h(ell - 1, t, s), ell)
            + _gaussian(xihat, C_g(ell + 1, t, s), ell)
            + _imposed(chihat(ell, t), chi(ell, s), R_hr(ell - 1, t, s) * g(ell, s))
            + _imposed(xihat(ell, t), xi(ell, s), R_gu(ell + 1, t, s) * h(ell, s))
        ),
        "h": chi(ell, t) + eta * gamma0 * earlier(C_h(ell - 1, t, s) * g(ell, s)),
        "g": xi(ell, t) + eta * gamma0 * earlier(C_g(ell + 1, t, s) * h(1, s)),
    }


def site_last() -> dict[str, Basic]:
    """Return the printed equation (55): single-site function of the last layer; g^L(0) is standard normal."""
    return {
        "exponent": _both(
            _gaussian(chihat, C_h(L - 1, t, s), L)
            + _imposed(chihat(L, t), chi(L, s), R_hr(L - 1, t, s) * g(L, s))
        ),
        "h": chi(L, t) + eta * gamma0 * earlier(C_h(L - 1, t, s) * g(L, s)),
        "g": xi(L, 0) + eta * gamma0 * earlier(h(L, s)),
    }


def f57() -> dict[str, Basic]:
    """Return the printed equation (57): the action; ``Z_0`` stands without its logarithm."""
    layers = Sum(_both(C_h(ell, t, s) * Chat_h(ell, t, s) + C_g(ell, t, s) * Chat_g(ell, t, s)), (ell, 1, L))
    return {
        "S": -_both(C_v(t, s) * Chat_v(t, s) + alpha * C_Delta(t, s) * Chat_Delta(t, s)) / 2
        - nu / 2 * layers
        + _both(R_vu(t, s) * R_Delta(s, t))
        + _both(R_h0r0(t, s) * R_gu(1, s, t)) / gamma0
        + nu * Sum(_both(R_hr(ell, t, s) * R_gu(ell + 1, s, t)), (ell, 1, L - 1))
        - alpha * lnZ_Delta
        - Z_0
        - nu * Sum(lnZ(ell), (ell, 1, L))
    }


def f58() -> dict[str, Basic]:
    """Return the printed equation (58): derivatives dS/dChat(t, s) by the name of Chat."""

    def slope(value: Expr, field: Expr, weight: Expr) -> Expr:
        return weight * (-value + average(field, field.subs(t, s))) / 2

    return {
        "Chat_v": slope(C_v(t, s), v(t), S.One),
        "Chat_h0": slope(C_h0(t, s), h0(t), S.One),
        "Chat_Delta": slope(C_Delta(t, s), Delta(t), alpha),
        "Chat_h": slope(C_h(ell, t, s), h(ell, t), nu),
        "Chat_g": slope(C_h(ell, t, s), g(ell, t), nu),
    }


def f59() -> dict[str, Basic]:
    """Return the printed equation (59): saddle point, responses.

    Derivatives dS/dR(s, t) by the name of R; the last two are R_hr(ell, s, t) and R_gu(ell + 1, s, t).
    """
    return {
        "R_vu": R_Delta(t, s) + I * average(Delta(t), Dhat(s)),
        "R_Delta": R_vu(t, s) + I * average(v(t), h0hat(s)),
        "R_h0r0": (R_gu(1, t, s) + I * average(g(1, t), xihat(1, s))) / gamma0,
        "R_gu1": (R_h0r0(t, s) + I * average(h0(t), Function("chi0hat")(s))) / gamma0,
        "R_hr": nu * (R_gu(ell + 1, t, s) + I * average(g(ell + 1, t), xihat(ell + 1, s))),
        "R_gu": nu * (R_hr(ell, t, s) + I * average(h(ell, t), chihat(ell, s))),
    }


def f60() -> dict[str, Basic]:
    """Return the printed equation (60): conjugates at the saddle point."""
    return {x: S.Zero for x in ("Chat_Delta", "Chat_v", "Chat_h", "Chat_g")}
