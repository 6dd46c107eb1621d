"""Expansion of nonlinear networks in gamma0: (P.6)-(P.26).

``u``, ``r``, ``h``, ``z`` are vectors over sample and time of layer ell, multiplied entry by entry;
``h_n(k)`` is h^{ell,k}, and ``C(k, x)`` the operator C^{ell,k} acting on x.  ``mean(x, y)`` is <x y^T> over
the unperturbed sources, ``fixed(k, x, y)`` the k-th derivative of <x y^T> in gamma0 at 0 for unperturbed
sources, ``hessian_u(M, x, y)`` the trace of M with <d^2/du du^T x y^T>; kernels multiply entry by entry.

Our copy of the paper never has three dots on phi: where a third derivative belongs it reads two (the fourth
is phi^(4)).  The claims take those as three.
"""

from __future__ import annotations

from sympy import Basic, Derivative, Expr, Function, Heaviside, Rational, Sum, Symbol

from tests.ledger.claims.selfconsistent2023.notation import Delta, L, alpha, ell, gamma0, mu, s, t

u, r, h, z, F = (Symbol(x) for x in ("u", "r", "h", "z", "F"))
phi, transpose, mean, fixed, C, D = (Function(x) for x in ("phi", "transpose", "mean", "fixed", "C", "D"))
h_n, z_n, g_n, Phi, G, hessian_u, hessian_r = (
    Function(x) for x in ("h_n", "z_n", "g_n", "Phi", "G", "hessian_u", "hessian_r")
)
C_total, D_total = Function("C_total"), Function("D_total")
A_n, B_n, Phi_n, G_n, C_n, D_n = (Function(x) for x in ("A_n", "B_n", "Phi_n", "G_n", "C_n", "D_n"))
Kx = Symbol("Kx")
HALF = Rational(1, 2)


def slope(order: int = 1, at: Expr = u) -> Expr:
    """Return the derivative phi^(order)(u)."""
    return Derivative(phi(at), (at, order))


def both(x: Expr) -> Expr:
    """Return x + transpose(x)."""
    return x + transpose(x)


def p6() -> dict[str, Basic]:
    """Return the printed equation (P.6): h and z; C and D hold all orders."""
    return {"h": u + gamma0 * C_total(slope(1, h) * z), "z": r + gamma0 * D_total(phi(h))}


def p7_text() -> dict[str, Basic]:
    """Return the statement in the text at (P.7): the order of D with simple time dependence.

    Up to this order D is said to depend on time through v_alpha and v_{alpha beta} only.
    """
    return {"order_of_D": Rational(1)}


def p8() -> dict[str, Basic]:
    """Return the printed equation (P.8): z - r to order gamma0^3."""
    one = D(0, slope() * h_n(1)) + D(1, phi(u))
    two = D(0, slope() * h_n(2)) + D(0, slope(2) * h_n(1) ** 2) + D(1, slope() * h_n(1)) + D(2, phi(u))
    return {"z": gamma0 * D(0, phi(u)) + gamma0**2 * one + gamma0**3 * two}


def p9() -> dict[str, Basic]:
    """Return the printed equation (P.9): the first three orders of z and h.

    Coefficients of z and h; ``h2``, ``h3`` in the first forms, ``h2_written``, ``h3_written`` in the second.
    """
    first = slope() * z_n(1) + slope(2) * h_n(1) * r
    long = (
        slope() * z_n(2)
        + slope(2) * h_n(1) * z_n(1)
        + HALF * slope(3) * h_n(1) ** 2 * r
        + slope(2) * h_n(2) * r
    )
    return {
        "z1": D(0, phi(u)),
        "z2": D(0, slope() * h_n(1)) + D(1, phi(u)),
        "z3": D(0, HALF * slope(2) * h_n(1) ** 2 + slope() * h_n(2)) + D(1, slope() * h_n(1)) + D(2, phi(u)),
        "h1": C(0, slope() * r),
        "h2": C(1, g_n(1)) + C(0, g_n(2)),
        "h2_written": C(0, first) + C(1, long),
        "h3": C(0, g_n(2)) + C(1, g_n(1)) + C(2, g_n(0)),
        "h3_written": C(0, long) + C(1, long),
    }


def p10() -> dict[str, Basic]:
    """Return the printed equation (P.10): Phi^1 to order gamma0^3.

    Phi^1. Two printed averages lack one of their two vectors: the first is read with phi(u), the second left
    out.
    """
    one, half = slope() * h_n(1), slope(2) * h_n(2)
    three = slope() * h_n(3) + slope(2) * h_n(1) * h_n(2) + slope(3) * h_n(1) ** 3 / 6
    two = slope() * h_n(2) + HALF * slope(2) * h_n(1) ** 2
    return {
        "Phi": mean(phi(u), phi(u))
        + gamma0 * (mean(one, phi(u)) + mean(phi(u), one))
        + gamma0**2 * mean(one, one)
        + gamma0**2 / 2 * (mean(half, phi(u)) + mean(half, phi(u)))
        + gamma0**3 * (mean(three, phi(u)) + mean(phi(u), three))
        + gamma0**3 * (mean(two, one) + mean(one, two))
    }


def p11() -> dict[str, Basic]:
    """Return the printed equation (P.11): Phi^ell, by induction."""
    return {"Phi": Phi(ell, 0) + gamma0**2 * Phi(ell, 2)}


def p12() -> dict[str, Basic]:
    """Return the printed equation (P.12): Phi^{ell+1} for given sources.

    Phi^{ell+1} for given sources u^{ell+1}, written for ell; perturbed sources in the first average.
    """
    one, half = slope() * h_n(1), slope(2) * h_n(2)
    return {
        "Phi": mean(phi(u), phi(u))
        + gamma0**2 * mean(one, one)
        + gamma0**2 / 2 * (mean(half, phi(u)) + mean(phi(u), half))
    }


def p14() -> dict[str, Basic]:
    """Return the printed equation (P.14): <F> for u with covariance Phi^ell and r with G^{ell+2}."""
    return {
        "average": mean(F, 1)
        + gamma0**2 / 2 * hessian_u(Phi(ell - 1, 2), F, 1)
        + gamma0**2 / 2 * hessian_r(G(ell + 1, 2), F, 1),
        "cov_u": Phi(ell, 0) + gamma0**2 * Phi(ell, 2),
        "cov_r": G(ell + 2, 0) + gamma0**2 * G(ell + 2, 2),
    }


def p15() -> dict[str, Basic]:
    """Return the printed equation (P.15): Phi^{ell+1}, written for ell."""
    return {
        "Phi": mean(phi(u), phi(u))
        + gamma0**2 / 2 * hessian_u(Phi(ell - 1, 2), phi(u), phi(u))
        + gamma0**2 / 2 * fixed(2, phi(h), phi(h))
    }


def p16() -> dict[str, Basic]:
    """Return the printed equation (P.16): the first order of G^L: the same average twice."""
    one = mean(slope() * r, slope() * z_n(1) + slope(2) * h_n(1) * r)
    return {"G1": one + one}


def p16_text() -> dict[str, Basic]:
    """Return the statement in the text at (P.16): the first order of G, whatever phi."""
    return {"G1": Rational(0)}


def p17() -> dict[str, Basic]:
    """Return the printed equation (P.17): the third order of G^L."""
    pairs = ((3, 0), (0, 3), (2, 1), (1, 2))
    return {"G3": sum((mean(g_n(a), g_n(b)) for a, b in pairs), start=Rational(0))}


def p18() -> dict[str, Basic]:
    """Return the printed equation (P.18): g^{L,2}."""
    return {
        "g2": slope() * z_n(2) + slope(2) * (h_n(2) * r + h_n(1) * z_n(1)) + HALF * slope(3) * h_n(1) ** 2
    }


def p19() -> dict[str, Basic]:
    """Return the printed equation (P.19): g^{L,3}."""
    return {
        "g3": slope() * z_n(3)
        + slope(2) * (h_n(3) * r + h_n(2) * z_n(1) + h_n(1) * z_n(2))
        + HALF * slope(3) * (2 * h_n(1) * h_n(2) * r + h_n(1) ** 2 * z_n(1))
        + slope(4) * h_n(1) ** 3 * r / 6
    }


def p19_text() -> dict[str, Basic]:
    """Return the statement in the text at (P.19): G^ell in P.5, the unnumbered display."""
    return {
        "G": mean(slope() * r, slope() * r)
        + gamma0**2 / 2 * mean(slope(), slope()) * G(ell + 1, 2)
        + gamma0**2 / 2 * fixed(2, slope(1, h) * r, slope(1, h) * r)
    }


def p20() -> dict[str, Basic]:
    """Return the printed equation (P.20): the second order of Phi^ell."""
    return {"Phi2": HALF * fixed(2, phi(h), phi(h)) + HALF * hessian_u(Phi(ell - 1, 2), phi(u), phi(u))}


def p21() -> dict[str, Basic]:
    """Return the printed equation (P.21): orders of phi(h) and g; the operators at order zero.

    phi(h) and g to the orders printed; C^{ell,0} and D^{ell,0} with A, B and kernels of their orders.
    """
    move = C(0, g_n(0))
    past = Heaviside(t - s) * Delta(alpha, s)
    return {
        "phi": phi(u)
        + gamma0 * slope() * move
        + gamma0**2 * slope() * C(0, g_n(1))
        + gamma0**2 / 2 * slope(2) * move**2,
        "g": slope() * r + gamma0 * slope(2) * move * r + gamma0 * slope() * D(0, phi(u)),
        "C0": A_n(ell - 1, 1, mu, alpha, t, s) + past * Phi_n(ell - 1, 0, mu, alpha, t, s),
        "D0": B_n(ell, 1, mu, alpha, t, s) + past * Phi_n(ell - 1, 0, mu, alpha, t, s),
    }


def p22() -> dict[str, Basic]:
    """Return the printed equation (P.22): Phi^ell."""
    move = C(0, g_n(0))
    second = (
        mean(slope() * move, slope() * move)
        + both(mean(slope() * C(0, slope(2) * move * r), phi(u)))
        + both(mean(slope() * C(0, slope() * D(0, phi(u))), phi(u)))
        + HALF * both(mean(slope(2) * move**2, phi(u)))
        + HALF * hessian_u(Phi(ell - 1, 2), phi(u), phi(u))
    )
    return {"Phi": Phi(ell, 0) + gamma0**2 * second}


def p22_text() -> dict[str, Basic]:
    """Return the statement in the text at (P.22): growth of Phi^{ell,2} with the layer."""
    return {"Phi2": ell}


def p23() -> dict[str, Basic]:
    """Return the printed equation (P.23): G^ell with the kernel above moved.

    G^ell in two forms; the average of g g^T is over unperturbed sources, with h and z at all orders.
    """
    base = fixed(0, slope(1, h) * z, slope(1, h) * z) + gamma0**2 / 2 * fixed(
        2, slope(1, h) * z, slope(1, h) * z
    )
    return {
        "G": base + gamma0**2 / 2 * hessian_r(G(ell + 1, 2), slope() * r, slope() * r),
        "G_written": base + gamma0**2 / 2 * G(ell + 1, 2) * mean(slope(), slope()),
    }


def p23_text() -> dict[str, Basic]:
    """Return the statement in the text at (P.23): growth of G^{ell,2} from the last layer down."""
    return {"G2": L + 1 - ell}


def p24() -> dict[str, Basic]:
    """Return the printed equation (P.24): g^ell to second order."""
    move = C(0, g_n(0))
    return {
        "g": slope() * r
        + gamma0 * slope() * (D(0, phi(u)) + gamma0 * D(0, slope() * move))
        + gamma0 * slope(2) * (move + gamma0 * C(0, g_n(1))) * r
    }


def p25() -> dict[str, Basic]:
    """Return the printed equation (P.25): G^ell."""
    move = C(0, g_n(0))
    back = slope() * D(0, phi(u))
    second = (
        mean(back, back)
        + mean(slope(2) * move, slope(2) * move)
        + both(mean(slope() * D(0, slope() * move), g_n(0)))
        + both(mean(slope(2) * C(0, slope(2) * move), g_n(0)))
        + HALF * G(ell + 1, 2) * mean(slope(), slope())
    )
    return {"G": G(ell, 0) + gamma0**2 * second}


def p26() -> dict[str, Basic]:
    """Return the printed equation (P.26): the second order of the tangent kernel."""
    layers = (ell, 1, L - 1)
    return {
        "K2": Phi(L, 2)
        + Sum(G(ell, 0) * Phi(ell, 2), layers)
        + Sum(G(ell, 2) * Phi(ell, 0), layers)
        + G(1, 2) * Kx
    }


def p26_text() -> dict[str, Basic]:
    """Return the statement in the text at (P.26): relative change of the tangent kernel grows as L.

    Scaling of the second order of the tangent kernel relative to the first.
    """
    return {"relative_change": gamma0**2 * L}
