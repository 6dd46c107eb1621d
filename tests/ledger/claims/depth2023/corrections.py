"""Correct expressions for right-hand sides that are wrong in our copy, by the names of the claims."""

from __future__ import annotations

from sympy import Basic, S

from derive.calculus.symbols import s, t
from tests.ledger.claims.depth2023.linear import C, first_step


def thm41() -> dict[str, Basic]:
    """Return the correct Thm. 4.1: the kernel of x^L, that of the forward pass."""
    return {"kernel": C(0)(S.One, t, s)}


def eq3() -> dict[str, Basic]:
    """Return the correct equation (3): tau and the factor of one layer, with the gradient's own V."""
    return first_step(read_by_gradient=True)
