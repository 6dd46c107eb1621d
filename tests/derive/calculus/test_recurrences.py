"""Layers and powers in recurrences: halves are refused and not rounded."""

from __future__ import annotations

import pytest
from sympy import Matrix, S, sqrt

from derive.calculus.recurrences import Layered, Recurrences, ValueGrid, Z, q
from derive.calculus.symbols import L, ell
from derive.errors import NotApplicable


@pytest.mark.parametrize("ring", [Layered(), ValueGrid(4)], ids=lambda x: type(x).__name__)
@pytest.mark.parametrize("layer", [ell + S.Half, L - S.Half, S.Half])
def test_half_a_layer_is_refused(ring: Layered | ValueGrid, layer: object) -> None:
    """``ell + 1/2`` was taken for ell."""
    assert ring.moved(ring.of(L * ell), ell + 1) == ring.of(L * ell) + ring.of(L)
    with pytest.raises(NotApplicable, match="is not a layer"):
        ring.moved(ring.of(L * ell), layer)


@pytest.mark.parametrize(
    ("factor", "inhomogeneity"), [(sqrt(q), S.One), (q, sqrt(ell)), (q, sqrt(Z)), (S.One, 1 / ell)]
)
def test_roots_are_refused(factor: object, inhomogeneity: object) -> None:
    """Exponents 1/2 were taken for 0, and the solution for 1/ell was 0."""
    with pytest.raises(NotApplicable, match=r"integer powers of q|not a product"):
        Recurrences().solve(Matrix([factor]), [inhomogeneity], 1, [S.Zero], (L, Z))
