"""Exponents (main text, appendix B, appendix E.1)."""

from __future__ import annotations

from sympy import Basic, Function, Integer, Symbol, exp, sqrt

from derive.calculus.symbols import L, eta, gamma0, t
from derive.program.networks.random_data import nu
from tests.ledger.claims.linear2025.notation import C_g, R_gu, k, lamda, target

beta = Symbol("beta", positive=True)
"""Exponent of the loss of a linear model, L ~ t^(-beta)."""
chi = Symbol("chi", positive=True)
"""The kernel grows as t^(chi - 1)."""


def f14_text() -> dict[str, Basic]:
    """Return the statement in the text at (14): features' updates in two parametrisations.

    Factor of the features' updates in both parametrisations; the NTK's gamma is ``gamma0`` here.
    """
    return {"mean field": eta * gamma0, "ntk": eta * gamma0 / sqrt(nu)}


def f21() -> dict[str, Basic]:
    """Return the printed equation (21): decay of the loss on power-law features.

    Decay exponents of the loss at infinite width: hard tasks, easy tasks.
    """
    return {"hard": 2 * beta / (1 + beta), "easy": beta}


def f70() -> dict[str, Basic]:
    """Return the printed equation (70): powers of nu in the largest stable rate: mean field, NTK."""
    return {"mean field": Integer(0), "ntk": 1 - 1 / L}


def f70_text() -> dict[str, Basic]:
    """Return the statement in the text at (70): largest stable rate, lazy regime.

    Powers of nu in the largest stable rate for gamma0 << 1: mean field, NTK.
    """
    return {"mean field": Integer(0), "ntk": Integer(0)}


def f112() -> dict[str, Basic]:
    """Return the printed equation (112): gradient flow of a mode.

    Rate of change of the error along a mode in gradient flow, and the kernel in it.
    """
    K, v = Function("K")(t), Function("v")(k, t)
    return {"dv": -lamda(k) * K * v, "K": C_g(1, t, t) + R_gu(1, t, t) / gamma0}


def f113() -> dict[str, Basic]:
    """Return the printed equation (113): growth of the kernel, without constants."""
    return {"K": 1 + gamma0**2 * t ** (chi - 1)}


def f114() -> dict[str, Basic]:
    """Return the printed equation (114): the error along a mode, without constants."""
    return {"v": exp(-lamda(k) * (t + gamma0**2 * t**chi)) * target(k)}


def f114_text() -> dict[str, Basic]:
    """Return the statement in the text at (114): the power of time with which the kernel must scale."""
    return {"power": 1 - beta * chi}


def f115() -> dict[str, Basic]:
    """Return the printed equation (115): the exponent of hard tasks."""
    return {"chi": 2 / (1 + beta)}


def f116() -> dict[str, Basic]:
    """Return the printed equation (116): decay exponents of the loss: hard tasks, easy tasks."""
    return {"hard": 2 * beta / (1 + beta), "easy": beta}
