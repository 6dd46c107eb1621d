"""Points of the Sobol sequence with scrambled bits: from a generator of random numbers to uniform numbers.

They are those of ``scipy.stats.qmc.Sobol``, without the import of ``scipy.stats``, which takes longer than
most solutions.  Sampled paths, moving nodes and the reference solver draw from them.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BITS = 30
"""Binary digits of a point."""

TABLE = "stats/_sobol_direction_numbers.npz"
"""The file of direction numbers (Joe and Kuo) in SciPy's package."""


def uniform_points(count: int, dimensions: int, rng: np.random.Generator) -> Array:
    """Return the first ``count`` points, their digits scrambled, shape ``(dimensions, count)``.

    >>> uniform_points(4, 2, np.random.default_rng(0)).shape
    (2, 4)
    """
    powers = 2 ** np.arange(BITS, dtype=np.uint32)
    shift = rng.integers(2, size=(dimensions, BITS), dtype=np.uint32) @ powers
    lower = np.tril(rng.integers(2, size=(dimensions, BITS, BITS), dtype=np.uint32))
    lower[:, range(BITS), range(BITS)] = 1
    bits = (count - 1).bit_length()
    digits = (directions(dimensions)[:, :bits, None] >> np.arange(BITS - 1, -1, -1, dtype=np.uint32)) & 1
    products = digits.astype(np.float32) @ lower.astype(np.float32).swapaxes(1, 2)
    scrambled = (products.astype(np.uint32) & 1) @ powers[::-1]
    points = np.empty((dimensions, 2**bits), dtype=np.uint32)
    points[:, 0] = shift
    for k in range(bits):  # in the order of the reflected Gray code
        n = 2**k
        points[:, n : 2 * n] = points[:, :n][:, ::-1] ^ scrambled[:, k, None]
    return np.asarray(points[:, :count] * 2.0**-BITS)


@lru_cache(maxsize=8)
def directions(dimensions: int) -> NDArray[np.uint32]:
    """Return the direction numbers, of which points are sums modulo two, shape ``(dimensions, BITS)``.

    Point ``i`` is the one before it plus number ``k``, where 2**k is the largest power of two that divides i.
    Raises ValueError for more dimensions than the table has.
    """
    table, first = _table()
    if dimensions > len(table):
        raise ValueError(f"dimensions = {dimensions}: the Sobol sequence has at most {len(table)} dimensions")
    found = np.zeros((dimensions, BITS), dtype=np.int64)
    found[:, : first.shape[1]] = first[:dimensions]
    found[0] = 1
    degrees = np.array([int(p).bit_length() - 1 for p in table[:dimensions]])
    for m in np.unique(degrees[1:]):
        own = np.flatnonzero(degrees == m)
        own = own[own > 0]
        for j in range(m, BITS):
            value = found[own, j - m].copy()
            for k in range(m):
                taken = (table[own] >> (m - 1 - k)) & 1
                value ^= taken * (found[own, j - k - 1] << (k + 1))
            found[own, j] = value
    return np.asarray(found << np.arange(BITS - 1, -1, -1), dtype=np.uint32)


@lru_cache(maxsize=1)
def _table() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return primitive polynomials, as binary numbers, and the first direction numbers of each dimension."""
    package = find_spec("scipy")
    assert package is not None
    assert package.submodule_search_locations is not None
    with np.load(Path(package.submodule_search_locations[0], TABLE)) as file:
        return file["poly"].astype(np.int64), file["vinit"].astype(np.int64)
