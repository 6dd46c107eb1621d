"""Width parametrisations (N.3)-(N.9): scales N^-a, initial variances N^-b, rate N^-c, gamma N^d.

``a(ell)`` and ``b(ell)`` belong to the weights W^0 .. w^L. Every value is the exponent of N in the printed
formula; ``N.8`` and the texts state conditions on the exponents.
"""

from __future__ import annotations

from sympy import Basic, Function, Rational, S, Symbol

from tests.ledger.claims.selfconsistent2023.notation import L, ell

a, b = Function("a"), Function("b")
c, d = Symbol("c"), Symbol("d")
scaled, back, g = Function("scaled"), Function("W_top"), Function("g")
free = Symbol("a")
HALF = Rational(1, 2)


def n2_text() -> dict[str, Basic]:
    """Return the statement in the text at (N.2): the output scale that allows feature learning.

    The power of N in gamma that allows stable feature learning.
    """
    return {"d": HALF}


def n3() -> dict[str, Basic]:
    """Return the printed equation (N.3): the power of N in the covariance of h^1, times K^x."""
    return {"h1_h1": -2 * a(0) - b(0)}


def n4() -> dict[str, Basic]:
    """Return the printed equation (N.4): size of the fields.

    The power of N in the covariance of h of the layer above, times Phi(ell).
    """
    return {"h_h": 1 - 2 * a(ell) - b(ell)}


def n4_text() -> dict[str, Basic]:
    """Return the statement in the text at (N.4): backward field of the last layer.

    The power of N in g^L, written with dh^{L+1}/dh^L and with w phi'.
    """
    return {"g_of_slope": a(L) + b(L) / 2, "g_of_w": b(L) / 2}


def n5() -> dict[str, Basic]:
    """Return the printed equation (N.5): z(ell) as printed: ``scaled(x, M, v)`` is N^x M v."""
    return {"z": scaled(-a(ell), back(ell), g(ell))}


def n6() -> dict[str, Basic]:
    """Return the printed equation (N.6): size of the pre-gradients.

    The power of N in the covariance of z(ell), times G of the layer above.
    """
    return {"z_z": 1 - 2 * a(ell) - b(ell)}


def n7() -> dict[str, Basic]:
    """Return the printed equation (N.7): size of the tangent kernel.

    Powers of N in the tangent kernel: last, inner and first term, before the common N^-c.
    """
    return {"last": 1 - 2 * a(L), "inner": 1 - 2 * a(ell), "first": -2 * a(0)}


def n8() -> dict[str, Basic]:
    """Return the printed equation (N.8): outputs that move in time of order one.

    The exponents that must vanish for outputs to move in time of order one.
    """
    return {"inner": 2 * a(ell) + c - 1, "first": 2 * a(0) + c}


def n8_text() -> dict[str, Basic]:
    """Return the statement in the text at (N.8): the first layer's scale.

    Exponents of the scales for a given c: first layer, other layers.
    """
    return {"a0": -c / 2, "a": (1 - c) / 2}


def n9() -> dict[str, Basic]:
    """Return the printed equation (N.9): size of the change of the fields.

    The power of N in the memory of h of the layer above, and in dW/dt in the display before.
    """
    return {"h": d - c - 2 * a(ell) + HALF, "dW": d - c - a(ell) - HALF}


def n9_text() -> dict[str, Basic]:
    """Return the statement in the text at (N.9): parametrisations that learn features.

    The one-parameter family of solutions, by ``free``; its member with a rate of order one.
    """
    return {
        "a": free,
        "b": 1 - 2 * free,
        "c": 1 - 2 * free,
        "d": HALF,
        "a0": free - HALF,
        "b0": 1 - 2 * free,
        "rate_of_order_one": S.Zero,
        "output_at_start": -HALF,
    }
