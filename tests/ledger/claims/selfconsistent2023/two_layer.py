"""The two-layer linear network (F.5)-(F.14)."""

from __future__ import annotations

from sympy import Basic, Function, Integral, KroneckerDelta, S, Sum, Symbol, atanh, exp, sqrt

from tests.ledger.claims.selfconsistent2023.notation import Delta, Kx, P, alpha, beta, gamma0, mu, s, t

# One layer only: fields and kernels carry no layer index and one time.
_h = Function("h")
_g = Function("g")
_H = Function("H")
_G = Function("G")
_GH = Function("gh")  # gh(mu, t) = <g(t) h_mu(t)>
_Y = Function("y")  # y(mu)

# Whitened data: components along the targets.
y = Symbol("y", positive=True)
f = Symbol("f", positive=True)
H_y = Function("H_y")(t)
G_t = Function("G")(t)
error = Function("Delta")(t)


def f5() -> dict[str, Basic]:
    """Return the printed equation (F.5): dh_mu/dt and dg/dt."""
    return {
        "dh": gamma0 * _g(t) * Sum(Kx(mu, beta) * Delta(beta, t), (beta, 1, P)),
        "dg": gamma0 * Sum(Delta(beta, t) * _h(beta, t), (beta, 1, P)),
    }


def f6() -> dict[str, Basic]:
    """Return the printed equation (F.6): dH_{mu alpha}/dt and dG/dt with gh(mu, t) the average of g h_mu."""
    return {
        "dH": gamma0 * Sum(Kx(mu, beta) * Delta(beta, t), (beta, 1, P)) * _GH(alpha, t)
        + gamma0 * _GH(mu, t) * Sum(Delta(beta, t) * Kx(beta, alpha), (beta, 1, P)),
        "dG": 2 * gamma0 * Sum(_GH(beta, t) * Delta(beta, t), (beta, 1, P)),
    }


def f7() -> dict[str, Basic]:
    """Return the printed equation (F.7): dH_{mu alpha}/dt, dG/dt and dDelta_mu/dt, closed."""
    output = {index: _Y(index) - Delta(index, t) for index in (mu, alpha, beta)}
    return {
        "dH": gamma0**2 * Sum(Kx(mu, beta) * Delta(beta, t), (beta, 1, P)) * output[alpha]
        + gamma0**2 * output[mu] * Sum(Delta(beta, t) * Kx(beta, alpha), (beta, 1, P)),
        "dG": 2 * gamma0**2 * Sum(output[beta] * Delta(beta, t), (beta, 1, P)),
        "dDelta": -Sum((_H(mu, beta, t) + _G(t) * Kx(mu, beta)) * Delta(beta, t), (beta, 1, P)),
    }


def f7_text() -> dict[str, Basic]:
    """Return the statement in the text at (F.7): values at t = 0 of H_{mu alpha}, G and Delta_mu."""
    return {"H": KroneckerDelta(mu, alpha), "G": S.One, "Delta": _Y(mu)}


def f8() -> dict[str, Basic]:
    """Return the printed equation (F.8): derivatives of H_y, G and Delta, whitened data."""
    return {
        "dH_y": 2 * gamma0**2 * error * (y - error),
        "dG": 2 * gamma0**2 * error * (y - error),
        "dDelta": -(H_y + G_t) * error,
    }


def f9() -> dict[str, Basic]:
    """Return the printed equation (F.9): derivatives of H_y and Delta after balancing."""
    return {"dH_y": 2 * gamma0**2 * error * (y - error), "dDelta": -2 * H_y * error}


def f10() -> dict[str, Basic]:
    """Return the printed equation (F.10): conservation law.

    The conserved quantity, half its derivative as printed, and the final H_y quoted below it.
    """
    gain = 2 * gamma0**2 * H_y * error * (y - error)
    return {
        "conserved": H_y**2 - gamma0**2 * (y - error) ** 2,
        "half_derivative": gain - gain,
        "H_y_final": sqrt(1 + gamma0**2 * y**2),
    }


def f11() -> dict[str, Basic]:
    """Return the printed equation (F.11): derivatives of Delta, and of f as a symbol."""
    return {
        "dDelta": -2 * sqrt(1 + gamma0**2 * (error - y) ** 2) * error,
        "df": 2 * sqrt(1 + gamma0**2 * f**2) * (y - f),
    }


def f12() -> dict[str, Basic]:
    """Return the printed equation (F.12): twice the time to reach f: as an integral and in closed form."""
    root_y = sqrt(1 + gamma0**2 * y**2)
    root_f = sqrt(1 + gamma0**2 * f**2)
    return {
        "integral": Integral(1 / ((y - s) * sqrt(1 + gamma0**2 * s**2)), (s, 0, f)),
        "closed": atanh((1 + gamma0**2 * y * f) / (root_y * root_f)) / root_y - atanh(1 / root_y) / root_y,
    }


def f12_text() -> dict[str, Basic]:
    """Return the statement in the text at (F.12): radius of convergence in gamma0."""
    return {"radius": 1 / y}


def f13() -> dict[str, Basic]:
    """Return the printed equation (F.13): lazy limit: derivative of Delta, and Delta up to a factor."""
    return {"dDelta": -2 * error, "Delta": exp(-2 * t)}


def f14() -> dict[str, Basic]:
    """Return the printed equation (F.14): rich limit of the derivative of Delta."""
    return {"dDelta": -2 * gamma0 * (y - error) * error}


def f14_text() -> dict[str, Basic]:
    """Return the statement in the text at (F.14): scaling of the time to learn with gamma0."""
    return {"time": 1 / gamma0}
