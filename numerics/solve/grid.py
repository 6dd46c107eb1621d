"""Time grids for the flow, and the weights with which past updates enter: explicit Adams-Bashforth of any order.

Stepping W(t_{n+1}) = W(t_n) + int of the polynomial through the last updates gives W(t_n) = W(0) + sum_{m<n} w_nm U_m.
Only past updates enter, so the discretised flow is as causal as gradient descent and one sweep solves it.  The first
steps are tiny and double in length while the order rises from one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]

ORDER = 4


@dataclass(frozen=True)
class Grid:
    """Nodes (T,), weights (T, T) strictly lower triangular, and where the output times sit among the nodes.

    ``settled`` is the first node after the short starting steps.
    """

    nodes: Array
    weights: Array
    outputs: NDArray[np.intp]
    order: int
    settled: int


def adams_weights(nodes: ArrayLike, order: int = ORDER) -> Array:
    """The table w[n, m] of Adams-Bashforth weights on an increasing grid; the order starts at one.

    >>> adams_weights([0.0, 1.0, 2.0, 3.0], order=2)[3]
    array([0.5, 1. , 1.5, 0. ])
    """
    t = np.asarray(nodes, dtype=float)
    w = np.zeros((len(t), len(t)))
    for n in range(len(t) - 1):
        last = np.arange(max(0, n + 1 - order), n + 1)
        h = t[n + 1] - t[n]
        x = (t[last] - t[n]) / h  # in units of the step, so that the moments stay of order one
        moments = 1.0 / np.arange(1, len(last) + 1)
        w[n + 1] = w[n]
        w[n + 1, last] += h * np.linalg.solve(np.vander(x, increasing=True).T, moments)
    return w


def flow_grid(times: ArrayLike, *, step: float, order: int = ORDER) -> Grid:
    """Nodes that contain ``times`` (increasing, from 0) with no step above ``step``, and their weights.

    The first step is cut into doubling pieces, the smallest ``step * 2**-m`` with m growing as the step shrinks, so
    that the first-order start does not show.

    >>> g = flow_grid([0.0, 1.0, 2.0], step=0.5)
    >>> g.nodes[g.outputs]
    array([0., 1., 2.])
    """
    t = np.asarray(times, dtype=float)
    pieces = [np.array([0.0])]
    for a, b in zip(t, t[1:], strict=False):
        count = max(1, int(np.ceil((b - a) / step * (1 - 1e-12))))
        pieces.append(a + (b - a) * np.arange(1, count + 1) / count)
    coarse = np.concatenate(pieces)
    coarse[np.searchsorted(coarse, t * (1 - 1e-14))] = t  # output times stay exact
    halvings = 2 * order + (order // 2) * max(0, int(np.ceil(np.log2(t[-1] / coarse[1] / 64))))
    start = coarse[1] * 2.0 ** -np.arange(halvings, 0, -1)
    nodes = np.concatenate([[0.0], start, coarse[1:]])
    outputs = np.searchsorted(nodes, t)
    return Grid(nodes, adams_weights(nodes, order), outputs, order, len(start) + 1)


def density(response: Array, equal_time: Array, grid: Grid) -> Array:
    """Turn discrete responses into densities at the output times.

    ``response`` has shape (T, ..., T), first and last axis times, and holds derivatives with respect to the value at
    one node; ``equal_time``, shape (out, ...), is the density's limit at s = t.  Dividing by a node's weight gives the
    density, except within ``order`` nodes of s = t and in the short starting steps, where weights are those of an end
    rule: there the density is interpolated between its regular part and its limit.
    """
    out = grid.outputs
    result = np.zeros((len(out), *response.shape[1:-1], len(out)))
    for a, n in enumerate(out):
        regular = np.arange(grid.settled + 1, n - grid.order + 1)
        smooth = response[n][..., regular] / grid.weights[n, regular]
        known = np.concatenate([smooth, equal_time[a][..., None]], axis=-1)
        at = np.concatenate([grid.nodes[regular], [grid.nodes[n]]])
        for b, m in enumerate(out[: a + 1]):
            near = np.argsort(np.abs(at - grid.nodes[m]), kind="stable")[:4]
            result[a, ..., b] = known[..., near] @ _lagrange(at[near], float(grid.nodes[m]))
    return result


def _lagrange(nodes: Array, x: float) -> Array:
    """Weights of the interpolating polynomial through ``nodes``, evaluated at ``x``."""
    values = np.ones(len(nodes))
    for j, a in enumerate(nodes):
        others = np.delete(nodes, j)
        values[j] = np.prod((x - others) / (a - others)) if len(others) else 1.0
    return values
