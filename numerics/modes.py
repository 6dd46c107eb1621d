"""Power-law spectra, and sums over very many modes from few of them.

What a mode does is an analytic function of its number k that changes little while k changes by a few per
cent.  So the sum over a stretch of modes is done by Gauss's rule for sums over integers, the rule that is
exact for polynomials in k of degree below twice the number of nodes; the nodes are modes at numbers that are
no integers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Spectrum:
    """Attributes of units by name, each ``(n,)``, and how often each counts in sums over units, ``(n,)``."""

    attributes: Mapping[str, Array]
    counts: Array


NODES = 10
"""Nodes of a stretch.  Its error is the 20th power of half its relative length, over the binomial (20 10)."""

STRETCH = 1.5
"""The ratio of the largest to the smallest eigenvalue of a stretch, or of their numbers if these differ
more."""


def power_law(capacity: float, source: float, modes: int, *, every: bool = False) -> Spectrum:
    """Eigenvalues ``lamda = k^-capacity`` and targets ``w_star^2 lamda = k^(-capacity source - 1)``.

    With ``every`` each mode stands for itself; without, stretches of modes have NODES representatives.

    >>> spectrum = power_law(1.5, 1.0, 100_000)
    >>> len(spectrum.counts), round(float(spectrum.counts.sum()), 6)
    (338, 100000.0)
    """
    if every:
        k, counts = np.arange(1.0, modes + 1), np.ones(modes)
    else:
        pieces = list(_stretches(modes, STRETCH ** (1 / max(capacity, 1.0))))
        k, counts = (np.concatenate([x[i] for x in pieces]) for i in (0, 1))
    eigenvalues = k**-capacity
    return Spectrum(
        {"lamda": eigenvalues, "w_star": np.sqrt(k ** (-capacity * source - 1) / eigenvalues)}, counts
    )


def _stretches(modes: int, ratio: float) -> list[tuple[Array, Array]]:
    found, first = [], 1
    while first <= modes:
        count = min(modes + 1 - first, max(1, int(first * (ratio - 1))))
        found.append(gauss_sum(first, count, NODES))
        first += count
    return found


def gauss_sum(first: int, count: int, nodes: int) -> tuple[Array, Array]:
    """Nodes and weights for sums over the integers ``first .. first + count - 1``.

    Gauss's rule of the discrete measure, from the recurrence of its orthogonal polynomials (those of
    Chebyshev and Gram), exact for polynomials of degree ``2 nodes - 1``; all integers if they are no more.

    >>> k, weights = gauss_sum(5, 1000, 4)
    >>> round(float(weights @ k**7) / sum(n**7 for n in range(5, 1005)), 12)
    1.0
    """
    if count <= nodes:
        return first + np.arange(float(count)), np.ones(count)
    n = np.arange(1.0, nodes)
    off = 0.5 * n * np.sqrt((count**2 - n**2) / (4 * n**2 - 1))
    x, vectors = np.linalg.eigh(np.diag(off, 1) + np.diag(off, -1))
    return first + (count - 1) / 2 + x, count * vectors[0] ** 2


__all__ = ["Spectrum", "gauss_sum", "power_law"]
