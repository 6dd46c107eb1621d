"""Exponents (main text, appendix B)."""

from __future__ import annotations

from sympy import Basic, Integer, Symbol

from derive.program.expressions import L

beta = Symbol("beta", positive=True)
"""Exponent of the loss of a linear model, L ~ t^(-beta)."""


def f21() -> dict[str, Basic]:
    """Decay exponents of the loss at infinite width: hard tasks, easy tasks."""
    return {"hard": 2 * beta / (1 + beta), "easy": beta}


def f70() -> dict[str, Basic]:
    """Powers of nu in the largest stable rate: mean field, NTK."""
    return {"mean field": Integer(0), "ntk": 1 - 1 / L}
