"""Depth factors at order gamma0^2 as ``derive.expansion`` finds them."""

from __future__ import annotations

from functools import lru_cache

from sympy import Expr

from derive.calculus.symbols import ell
from derive.expansion import LinearExpansion, expand_linear
from derive.program import L
from tests.derive.once import mean_field, mlp
from tests.ledger.evidence.explicit import words


@lru_cache(maxsize=1)
def expansion() -> LinearExpansion:
    """Return the engine's expansion, for symbolic depth and layer."""
    return expand_linear(mean_field(mlp(rule="flow")))


def layer_factors(name: str, layer: int, depth: int) -> tuple[float, float]:
    """Return the factors in front of the nested integrals and of the products of H^l or G^l.

    >>> layer_factors("H", 2, 2), layer_factors("G", 2, 2)
    ((4.0, 5.0), (2.0, 1.0))
    """
    found = {_kind(word): c.subs({ell: layer, L: depth}) for c, word in words(expansion().words[name][2])}
    return float(found["CD"]), float(found["C" if name == "H" else "D"])


def tangent_factors(depth: int) -> list[float]:
    """Return the factors in front of each term of the tangent kernel at order gamma0^2.

    >>> set(tangent_factors(2))
    {6.0}
    """
    return [float(c.subs(L, depth)) for c, *_ in expansion().tangent[2]]


def _kind(word: tuple[Expr, ...]) -> str:
    """Return which of the operators C and D occur in a word."""
    text = " ".join(map(str, word))
    return "".join(k for k in "CD" if f"{k}0" in text)
