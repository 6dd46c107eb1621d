"""Alignment of kernels: the cosine of the angle between them, of a theory and of networks, with errors.

Kernels are stacked over runs along the first axis: independent replicas of a theory, or networks.  The last
``axes`` axes belong to the kernel; those between are carried along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Alignment:
    """Cosines, their standard errors, and their standard deviation from run to run."""

    value: Array
    stderr: Array
    spread: Array


def cosine(first: Array, second: Array, axes: int = 2) -> Array:
    """``Tr A B^T / (|A| |B|)`` over the last ``axes`` axes; nan for a kernel of zeros.

    >>> float(cosine(np.eye(2), np.ones((2, 2))).round(4))
    0.7071
    """
    over = tuple(range(-axes, 0))
    dot, one, two = ((a * b).sum(over) for a, b in ((first, second), (first, first), (second, second)))
    with np.errstate(invalid="ignore"):
        found: Array = dot / np.sqrt(one * two)
    return found


def alignment(first: Array, second: Array, axes: int = 2) -> Alignment:
    """Alignment of the means over the runs of each side.

    Errors are those of leaving out one run at a time, on either side; the bias that the scatter of a mean
    has on the cosine, of order 1/runs, goes with them.  A side of one run is taken to be exact; a side with
    as many runs as the other is still independent of it (see :func:`change` for one that is not).
    """
    whole = cosine(first.mean(0), second.mean(0), axes)
    one = _left_out(lambda x: cosine(x.mean(0), second.mean(0), axes), first)
    two = _left_out(lambda x: cosine(first.mean(0), x.mean(0), axes), second)
    return _jackknifed(whole, one, two)


def change(first: Array, second: Array, axes: int = 2) -> Alignment:
    """Alignment of two kernels of the same runs, such as the initial and the final one: means over runs."""
    whole = cosine(first.mean(0), second.mean(0), axes)
    both = np.stack([first, second], axis=1)
    parts = _left_out(lambda x: cosine(x[:, 0].mean(0), x[:, 1].mean(0), axes), both)
    return _jackknifed(whole, parts)


def each(theory: Array, networks: Array, axes: int = 2) -> Alignment:
    """Alignment of each of the ``networks`` with the mean of ``theory``: the mean over the networks.

    A network's kernel scatters by 1/sqrt(N) about its mean, so that this is below one by order 1/N.
    """
    found = cosine(theory.mean(0), networks, axes)
    parts = _left_out(lambda x: cosine(x.mean(0), networks, axes).mean(0), theory)
    from_theory = _jackknifed(found.mean(0), parts)
    spread = found.std(0, ddof=1) if len(found) > 1 else np.full(found.shape[1:], np.nan)
    return Alignment(from_theory.value, np.hypot(from_theory.stderr, spread / np.sqrt(len(networks))), spread)


def _left_out(function: Callable[[Array], Array], runs: Array) -> Array | None:
    """``function`` without each of the runs; None if there is one only."""
    n = len(runs)
    return None if n < 2 else np.stack([function(np.delete(runs, i, axis=0)) for i in range(n)])


def _jackknifed(whole: Array, *sides: Array | None) -> Alignment:
    value, variance = np.array(whole, dtype=float), np.zeros(np.shape(whole))
    spread = np.zeros(np.shape(whole))
    for parts in sides:
        if parts is None:
            continue
        n = len(parts)
        value = value + (n - 1) * (whole - parts.mean(0))
        here = (n - 1) * ((parts - parts.mean(0)) ** 2).mean(0)
        variance = variance + here
        spread = np.sqrt(spread**2 + here * n)
    return Alignment(value, np.sqrt(variance), spread)
