"""Exponents (main text, appendix B)."""

from __future__ import annotations

from sympy import Basic, Integer, Symbol, sqrt

from derive.program.builders.isotropic import nu
from derive.program.expressions import L, eta, gamma0

beta = Symbol("beta", positive=True)
"""Exponent of the loss of a linear model, L ~ t^(-beta)."""


def f14_text() -> dict[str, Basic]:
    """Factor of the features' updates in both parametrisations; the NTK's gamma is ``gamma0`` here."""
    return {"mean field": eta * gamma0, "ntk": eta * gamma0 / sqrt(nu)}


def f21() -> dict[str, Basic]:
    """Decay exponents of the loss at infinite width: hard tasks, easy tasks."""
    return {"hard": 2 * beta / (1 + beta), "easy": beta}


def f70() -> dict[str, Basic]:
    """Powers of nu in the largest stable rate: mean field, NTK."""
    return {"mean field": Integer(0), "ntk": 1 - 1 / L}


def f70_text() -> dict[str, Basic]:
    """The same for gamma0 << 1."""
    return {"mean field": Integer(0), "ntk": Integer(0)}
