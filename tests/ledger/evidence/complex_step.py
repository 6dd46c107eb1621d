"""Derivatives of small networks to rounding error, by one complex step for each entry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
_STEP = 1e-30

EXACT = 1e-11
"""Rounding of sums of some hundred numbers of order one."""


def derivative(function: Callable[[NDArray[Any]], NDArray[Any]], at: Array) -> Array:
    """``d function/d at``, shape of the value followed by that of ``at``.

    >>> derivative(np.sin, np.array([0.0]))
    array([[1.]])
    """
    columns = []
    for place in np.ndindex(*at.shape):
        moved = at.astype(complex)
        moved[place] += 1j * _STEP
        columns.append(np.asarray(function(moved)).imag / _STEP)
    found = np.stack(columns, axis=-1)
    return np.asarray(found.reshape(*found.shape[:-1], *at.shape))


def slope(h: Array) -> Array:
    """tanh'(h)."""
    return np.asarray(1 - np.tanh(h) ** 2)
