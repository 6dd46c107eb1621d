"""Products of tensors, two at a time, against einsum of all at once."""

from __future__ import annotations

import numpy as np
import pytest
from sympy import symbols

from numerics.solver.depth.layer_grid import Contraction

SIZES = dict(zip("abcdexy", (2, 3, 4, 2, 3, 5, 4), strict=True))


@pytest.mark.parametrize(
    "subscripts",
    [
        "ab,bc->ac",
        "xay,xyb->xab",
        "xya,xab,xyc->xyb",
        "xyab,xbc,xydc->xyad",
        "xa,xyab->xyb",
        "xa,xa->x",
        "xabc,xbcd->dxa",
        "xaa,ab->xb",
        "x,ab->xab",
        "xab,xc->x",
        "xyabe,xbed->yxad",
        "ab->ba",
    ],
)
def test_pairs_are_the_whole(subscripts: str) -> None:
    rng = np.random.default_rng(0)
    inputs, out = subscripts.split("->")
    letters = {k: symbols(k) for k in SIZES}
    operands = [rng.normal(size=[SIZES[k] for k in names]) for names in inputs.split(",")]
    found = Contraction.of(
        [[letters[k] for k in names] for names in inputs.split(",")],
        [letters[k] for k in out],
        {letters[k]: n for k, n in SIZES.items()},
    )
    calls = [operands[0], *((lambda a=a: a) for a in operands[1:])]
    np.testing.assert_allclose(found(calls), np.einsum(subscripts, *operands), atol=1e-13)


def test_no_operands_are_one() -> None:
    assert Contraction.of([], [], {})([]) == 1.0
