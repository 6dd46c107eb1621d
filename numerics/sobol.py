"""Scrambled Sobol points: uniform numbers of low discrepancy from a generator of random numbers.

They are equal to those of ``scipy.stats.qmc.Sobol``, which spawns its generator from the given one. This
module exists because the import of ``scipy.stats`` takes longer than most solutions. Normal numbers are made
from these points (:func:`numerics.stats.normal_points`) for the reference solver, the method with moving
nodes (:mod:`numerics.solver.quadrature`), expansions and corrections of finite width. Sampled paths use only
the direction numbers of this module, and scramble them by themselves.
"""

from __future__ import annotations

from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

BITS = 30
"""Number of binary digits of a point."""

TABLE = "stats/_sobol_direction_numbers.npz"
"""File of direction numbers (Joe and Kuo) in the package of SciPy."""


def uniform_points(count: int, dimensions: int, rng: np.random.Generator) -> Array:
    """Return the first ``count`` points of the scrambled Sobol sequence, shape ``(dimensions, count)``.

    Numbers are in [0, 1), and ``rng`` scrambles the sequence. With ``rng = generator.spawn(1)[0]`` the points
    are those of ``scipy.stats.qmc.Sobol(dimensions, rng=generator)``. Raises ValueError for more dimensions
    than the table of SciPy has.

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
    # In the order of the Gray code, the number of points is doubled by a copy of all points so far in reverse
    # order. In each dimension, all points of the copy are combined (xor) with one direction number.
    for k in range(bits):
        n = 2**k
        points[:, n : 2 * n] = points[:, :n][:, ::-1] ^ scrambled[:, k, None]
    return np.asarray(points[:, :count] * 2.0**-BITS)


@lru_cache(maxsize=8)
def directions(dimensions: int) -> NDArray[np.uint32]:
    """Return the direction numbers of the Sobol sequence, shape ``(dimensions, BITS)``.

    Point ``i`` is the previous point plus (modulo two) direction number ``k``, where 2**k is the largest
    power of two that divides i. Raises ValueError if the table of SciPy has fewer dimensions.
    """
    table, first = _table()
    if dimensions > len(table):
        raise ValueError(f"dimensions = {dimensions}: the Sobol sequence has at most {len(table)} dimensions")
    numbers = np.zeros((dimensions, BITS), dtype=np.int64)
    numbers[:, : first.shape[1]] = first[:dimensions]
    numbers[0] = 1
    degrees = np.array([int(p).bit_length() - 1 for p in table[:dimensions]])
    # Recurrence of integers v_j, for a primitive polynomial of degree m in which a_k is the coefficient of
    # x^(m-1-k): v_j = v_(j-m) xor sum_k a_k 2^(k+1) v_(j-k-1), where the sum is by xor over k = 0..m-1. The
    # direction numbers are the integers v_j, shifted to the left.
    for m in np.unique(degrees[1:]):
        rows = np.flatnonzero(degrees == m)
        rows = rows[rows > 0]
        for j in range(m, BITS):
            value = numbers[rows, j - m].copy()
            for k in range(m):
                bit = (table[rows] >> (m - 1 - k)) & 1
                value ^= bit * (numbers[rows, j - k - 1] << (k + 1))
            numbers[rows, j] = value
    return np.asarray(numbers << np.arange(BITS - 1, -1, -1), dtype=np.uint32)


@lru_cache(maxsize=1)
def _table() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return primitive polynomials, shape (dimensions,), and initial direction numbers, (dimensions, n).

    The binary digits of an integer are the coefficients of a polynomial. A dimension has at most n initial
    numbers; the rest of its row is zero. Both arrays are read from a file of SciPy.
    """
    package = find_spec("scipy")
    assert package is not None
    assert package.submodule_search_locations is not None
    with np.load(Path(package.submodule_search_locations[0], TABLE)) as file:
        return file["poly"].astype(np.int64), file["vinit"].astype(np.int64)
