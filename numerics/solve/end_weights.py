"""Weights of a sum over steps in place of an integral, order by order in the step, on a grid of the flow.

The term of order n is a derivative at the end minus that at the start, times a coefficient that ``derive``
finds. Derivatives are those of the polynomial through the nearest nodes that are known by then.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from derive.expansion.orders import WEIGHT, boundary_coefficients, named

Array = NDArray[np.float64]

NODES = 6
"""Through how many nodes the polynomial goes, where there are as many."""


def end_weights(nodes: Array, order: int) -> dict[str, Array]:
    """Tables ``(T, T)`` of the weights of orders 1, 2, ..., by the names that theories give them.

    >>> end_weights(np.array([0.0, 1.0, 2.0]), 1)["w__1"].round(12)[1:]
    array([[ 0.5, -0.5, -0. ],
           [ 0.5, -0. , -0.5]])
    """
    coefficients = boundary_coefficients(order)
    return {named(WEIGHT, n): float(b) * _slopes(nodes, n - 1) for n, b in enumerate(coefficients, 1)}


def _slopes(nodes: Array, degree: int) -> Array:
    """The derivative at each node minus that at the first, from nodes up to it."""
    found = np.zeros((len(nodes), len(nodes)))
    count = max(NODES, degree + 1)
    for i in range(1, len(nodes)):
        last, first = slice(max(0, i + 1 - count), i + 1), slice(0, min(i + 1, count))
        found[i, last] += derivative_weights(nodes[last], nodes[i], degree)
        found[i, first] -= derivative_weights(nodes[first], nodes[0], degree)
    return found


def derivative_weights(nodes: Array, at: float, degree: int) -> Array:
    """Weights of values at ``nodes`` in the derivative at a point; 0 where there are too few nodes.

    >>> derivative_weights(np.array([0.0, 1.0, 2.0]), 1.0, 2).round(12)
    array([ 1., -2.,  1.])
    """
    if degree >= len(nodes):
        return np.zeros(len(nodes))
    size = float(np.max(np.abs(nodes - at)))
    powers = np.vander((nodes - at) / size, increasing=True).T
    wanted = np.zeros(len(nodes))
    wanted[degree] = float(np.prod(np.arange(1.0, degree + 1))) / size**degree
    return np.asarray(np.linalg.solve(powers, wanted), dtype=np.float64)


__all__ = ["derivative_weights", "end_weights"]
