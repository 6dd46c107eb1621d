"""How different the layers of an infinitely deep network are, from its solution in layer time.

The squared distance between the stream at two layer times is derived (:func:`derive.depth.infinite`); here
its integrals over sources are done on the cells of a solution.  An answer may jump inside, at the layer where
it is given: each cell takes the values of its own side.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol

from derive.calculus.symbols import s, t
from derive.depth import LayerTime
from derive.depth.infinite import Diversity, diversity, tau_2
from derive.depth.layers import tau, tau_
from numerics.compile.layered import LayerTable, NotLowered, Product, Read, lower_layer_time, products_of
from numerics.solver.depth import extrapolated
from numerics.solver.layer_grid import Known, LayerGrid, solve_layer_grid

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LayerDistances:
    """``squares[t, i, j]`` is ``<(x(tau_i) - x(tau_j))**2>`` at time t, between ``nodes``; ``error``
    estimates how wrong the layer grid makes them.
    """

    nodes: Array
    squares: Array
    error: float
    derived: Diversity

    def slopes(self, node: int) -> tuple[Array, Array]:
        """Distances ahead of a node, and for each doubling of the distance by which power its root grows.

        The feature-diversity exponent kappa is one minus that, as the distance goes to zero; shape (steps,
        doublings), nan where layers do not differ at all.
        """
        steps = [2**k for k in range(int(np.log2(len(self.nodes) - 1 - node)) + 1)]
        found = np.stack([self.squares[:, node, node + k] for k in steps], axis=1)
        with np.errstate(all="ignore"):
            slopes = 0.5 * np.log2(found[:, 1:] / found[:, :-1])
        return np.array(steps) / (len(self.nodes) - 1), slopes


def layer_distances(
    limit: LayerTime,
    name: str,
    *,
    layers: int,
    steps: int,
    constants: dict[Symbol, float],
    known: Known | None = None,
    extents: dict[str, int] | None = None,
) -> LayerDistances:
    """Distances between layers of the field whose correlation is ``name``; data indices are at the first.

    Solves the limit on ``layers``, three quarters and half as many cells and extrapolates to the nodes that
    all have.  Raises what :func:`~numerics.solver.layer_grid.solve_layer_grid` does.

    >>> from derive.program.networks.residual import depth_program
    >>> from derive.theory import mean_field
    >>> from derive.depth import gamma_c_recursion, layer_time
    >>> found = layer_distances(layer_time(gamma_c_recursion(mean_field(depth_program()))), "C_0",
    ...     layers=16, steps=1, constants={}, known={"xi": lambda t: 1.0, "dloss": lambda t, f: f})
    >>> bool(abs(found.squares[0, 0, -1] - (np.e - 1)) < 1e-6)  # a Brownian motion of rate C(tau) = exp(tau)
    True
    """
    derived = diversity(limit, name)
    table = lower_layer_time(limit)
    runs = []
    for part in (Fraction(1, 2), Fraction(3, 4), Fraction(1)):
        run = solve_layer_grid(
            table,
            layers=int(layers * part),
            steps=steps,
            constants=constants,
            extents=extents,
            known=known,
        )
        two = _TwoPoint(run, derived, table, constants).matrix()
        node = np.arange(0, run.layers + 1, 4 * run.layers // layers)  # those that all grids have
        own = two[:, node, node]
        squares = own[:, :, None] + own[:, None, :] - 2 * two[:, node[:, None], node]
        runs.append({"squares": squares})
    found = extrapolated(layers, runs, ())
    return LayerDistances(
        np.linspace(0.0, 1.0, layers // 4 + 1),
        found["squares"],
        found.errors["squares"],
        derived,
    )


class _TwoPoint:
    """``<x(tau, t) x(tau_2, t)>`` on the nodes of a solution."""

    def __init__(
        self, run: LayerGrid, derived: Diversity, table: LayerTable, constants: dict[Symbol, float]
    ) -> None:
        self.run, self.constants = run, constants
        lhs = derived.two_point.lhs
        data = lhs.args[2:-2]
        same = dict(zip(data[len(data) // 2 :], data, strict=False))
        names = {row.name: row.layers for group in table.groups for row in group}
        self.products = list(products_of(derived.two_point.rhs.xreplace(same), names))

    def matrix(self) -> Array:
        """Axes: time, layer, second layer."""
        n = self.run.layers + 1
        found = np.zeros((self.run.steps, n, n))
        for now in range(self.run.steps):
            for p in self.products:
                if all(x.upper not in (t - 1, s - 1) or now for x in p.spans):
                    found[now] += float(p.number.subs(self.constants)) * self.product(p, now)
        return found

    def product(self, p: Product, now: int) -> Array:
        if p.calls or p.equal or p.step or p.present:
            raise NotLowered(f"{p} is no product of answers and correlations")
        ends = {x.index: now + int(x.present) if x.upper.has(t, s) else None for x in p.spans}
        labels: dict[Expr, int] = {tau: 0, tau_2: 1}
        if p.layer is None:
            return self.summed(p, now, ends, labels, 0)
        left, right = (self.summed(p, now, ends, labels, side) for side in (1, -1))
        cells = 0.5 * (left[:, :, :-1] + right[:, :, 1:])
        value: Array = cells.sum(axis=2) / self.run.layers
        return value

    def summed(
        self, p: Product, now: int, ends: dict[Symbol, int | None], labels: dict[Expr, int], side: int
    ) -> Array:
        """Summed over times and data; the layer of the source is the last axis.  ``side`` is 1 for the values
        just after a node of it, -1 for those just before.
        """
        given: list[Any] = []
        for r in p.reads:
            array, names = self.tensor(r, now, ends, side)
            given += [array, [labels.setdefault(x, len(labels)) for x in names]]
        out = [0, 1] + ([labels.setdefault(p.layer, len(labels))] if p.layer is not None else [])
        for axis in (0, 1):
            given += [np.ones(self.run.layers + 1), [axis]]
        value: Array = np.einsum(*given, out, optimize="greedy")
        return value

    def tensor(
        self, r: Read, now: int, ends: dict[Symbol, int | None], side: int
    ) -> tuple[Array, list[Expr]]:
        whole = self.run[r.name]
        if r.name in self.run.under and side == 1 and tau_ in r.args:
            whole = whole.copy()
            node = np.arange(self.run.layers + 1)
            whole[node, node] = self.run.under[r.name]
        at = tuple(
            now if x in (t, s) else round(float(x) * self.run.layers) if x.is_number else slice(ends.get(x))
            for x in r.args
        )
        return whole[at], [x for x in r.args if isinstance(x, Symbol) and x not in (t, s)]
