"""The network as printed: factors in front of products with weights and data, and of their updates.

Keys name the defined quantity: ``h1`` and ``h`` for the first and the other layers; ``W0``, ``W`` and ``w``
for the updates, in units of g h^T (of h for the readout).
"""

from __future__ import annotations

from sympy import Basic, sqrt

from tests.ledger.claims.linear2025.notation import D, N, P, eta, gamma0


def f4() -> dict[str, Basic]:
    """Return the printed equation (4): updates, printed for every layer alike."""
    return {"W0": eta * gamma0 / sqrt(N), "W": eta * gamma0 / sqrt(N)}


def f5() -> dict[str, Basic]:
    """Return the printed equation (5): averaged vectors, printed for every layer alike."""
    return {"h0": sqrt(D) / P, "h1": 1 / sqrt(N), "h": 1 / sqrt(N), "g": 1 / sqrt(N)}


def f25() -> dict[str, Basic]:
    """Return the printed equation (25): updates."""
    return {"W0": eta * gamma0 / sqrt(D), "W": eta * gamma0 / sqrt(N), "w": eta * gamma0}


def f26() -> dict[str, Basic]:
    """Return the printed equation (26): averaged vectors, errors, error vector."""
    return {**f5(), "Delta": 1 / sqrt(D), "v": -sqrt(D) / (N * gamma0)}


def f28() -> dict[str, Basic]:
    """Return the printed equation (28): factors of products with initial weights.

    The products are xi^0 (with a minus in v), chi^1, chi^l, xi^l.
    """
    return {"v": -sqrt(D) / (N * gamma0), "h1": 1 / sqrt(D), "h": 1 / sqrt(N), "g": 1 / sqrt(N)}


def f120() -> dict[str, Basic]:
    """Return the printed equation (120): error and backward vectors of several outputs."""
    return {"v": -1 / (N * gamma0), "g": 1 / sqrt(N)}


def f122() -> dict[str, Basic]:
    """Return the printed equation (122): averaged vectors of several outputs."""
    found = f5()
    return {x: found[x] for x in ("h0", "h1", "h")}
