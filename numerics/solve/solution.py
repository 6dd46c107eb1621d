"""What a march of a linear theory found."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol

from numerics.compile.table import Node, Request
from numerics.solve.plan import Plan

Array = NDArray[np.float64]


@dataclass(frozen=True)
class March:
    """The solution: full two-time arrays of what was needed or asked for.

    ``correlation(i, j)`` and ``response(i, k)`` have shape ``(T, n_i, T, n_j)``; scalars ``(T, n)``.
    ``residual`` is the largest relative change that the last sweep of an implicit step made.
    """

    plan: Plan
    steps: int
    sizes: dict[Node, int]
    widths: dict[Node, int]
    gains: dict[Node, dict[Node, float]]
    number: Callable[[Expr], float]
    extents: dict[Symbol, int]
    correlations: dict[tuple[Node, Node], Array]
    responses: dict[tuple[Node, Node], Array]
    scalars: dict[str, Array]
    hoisted: dict[Node, Array]
    sums: dict[Node, Array] = field(default_factory=dict)
    residual: float = 0.0

    def correlation(self, i: Node, j: Node) -> Array:
        """``<x_i(t) x_j(s)>``; symmetric completion where only one triangle was marched."""
        if (i, j) in self.correlations:
            a = self.correlations[i, j]
            return a.reshape(self.steps, self.sizes[i], self.steps, self.sizes[j])
        a = self.correlations[j, i]
        return a.reshape(self.steps, self.sizes[j], self.steps, self.sizes[i]).transpose(2, 3, 0, 1)

    def response(self, i: Node, k: Node) -> Array:
        """``<d x_i(t) / d u_k(s)>``, without the part by which a source drives its own field."""
        a = self.responses[i, k]
        return a.reshape(self.steps, self.sizes[i], self.steps, -1)

    def tensor(self, n: Node | Request) -> Array:
        """An order parameter by its name and layer, or what was asked for; a response with its direct part,
        if it has one.
        """
        if not isinstance(n, Request) and n in self.sums:
            return self.sums[n][:, None, :, None]
        q = n if isinstance(n, Request) else self.plan.table.tensors[n]
        factor = self.number(q.factor)
        if q.kind == "correlation":
            return factor * self.correlation(q.first, q.second)
        a, m = self.sizes[q.first], self.widths[q.second]
        found = np.zeros((self.steps, a, self.steps, m))
        if (q.first, q.second) in self.responses:
            found += self.response(q.first, q.second)
        gain = self.gains[q.first].get(q.second, 0.0)
        np.einsum("taub->tuab", found)[np.arange(self.steps), np.arange(self.steps)] += gain * np.eye(a, m)
        return factor * found
