"""What is true in place of misprinted right-hand sides, by the names of the claims; only what differs.

Each function has the name of the claim that it corrects, and its letters.
"""

from __future__ import annotations

from sympy import Basic, sqrt

from tests.ledger.claims.linear2025.notation import D, N, eta, gamma0

# -- the network: factors of products and updates ------------------------------------------------------------


def f4() -> dict[str, Basic]:
    """The update of the first layer."""
    return {"W0": eta * gamma0 / sqrt(D)}


def f5() -> dict[str, Basic]:
    """The product with the weights of the first layer."""
    return {"h1": 1 / sqrt(D)}


def f26() -> dict[str, Basic]:
    """The product with the weights of the first layer."""
    return f5()


def f122() -> dict[str, Basic]:
    """The product with the weights of the first layer."""
    return f5()


def f120() -> dict[str, Basic]:
    """The error vector of several outputs."""
    return {"v": -sqrt(D) / (N * gamma0)}


def f121() -> dict[str, Basic]:
    """The sign of the inner update."""
    return {"W": eta * gamma0}
