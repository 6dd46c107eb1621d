"""Programs in a user's own words: variances and shifts on sampled paths against networks of three widths."""

from __future__ import annotations

import numpy as np
import pytest

from tests.chance import excess
from tests.numerics.fluctuations.programs import Posed, distances
from tests.numerics.zoo import CASES


@pytest.mark.parametrize(
    ("name", "paths", "count"),
    [
        ("stream", 128, 400),
        *(
            pytest.param(name, paths, 4000, marks=pytest.mark.slow)
            for name, paths in (
                ("cubic", 1024),
                ("normalised", 1024),
                ("several outputs", 1024),
                ("logistic", 1024),
                ("zero readout", 1024),
                ("weighted in time", 1024),
                ("renamed", 1024),
                ("two populations", 1024),
                ("in sequence", 512),
            )
        ),
    ],
)
def test_programs_after_one_step(name: str, paths: int, count: int) -> None:
    """All numbers of a program and all correlations of its vectors, at both times and between them."""
    c = CASES[name]
    far, degrees = distances(
        Posed(c.make(), c.numbers, c.arrays, 1), dict.fromkeys((16, 32, 64), count), paths
    )
    found = excess(
        np.concatenate([x.ravel() for x in far.values()]),
        np.concatenate([x.ravel() for x in degrees.values()]),
    )
    assert len(far) >= 8
    assert found <= 1
