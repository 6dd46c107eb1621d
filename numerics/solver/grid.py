"""Time grids for the flow, and the weights with which past updates enter: explicit Adams-Bashforth of any
order.

Stepping W(t_{n+1}) = W(t_n) + int of the polynomial through the last updates gives
W(t_n) = W(0) + sum_{m<n} w_nm U_m.
Only past updates enter, so the discretised flow is as causal as gradient descent and one sweep solves
it.  The first steps are tiny and double in length while the order rises from one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sympy import Symbol, sympify

from derive.calculus.symbols import s, t
from derive.program import Program, TrainingRule
from numerics.experiment.memory import tables_of_program

Array = NDArray[np.float64]

ORDER = 4

NODES = 6
"""Through how many nodes the polynomial of :func:`end_weights` goes, where there are as many."""


@dataclass(frozen=True)
class Age:
    """The clock of a flow that slows down: ``dx / dt = 1 / min(tau + t, most)``.

    Even steps of x are ``tau dx`` long at first, grow with the age, and are ``most dx`` long in the end.

    >>> age = Age(1.0, 10.0)
    >>> age.of(np.array([0.0, 9.0, 19.0])).round(3), age.back(age.of(np.array([3.0, 30.0]))).round(9)
    (array([0.   , 2.303, 3.303]), array([ 3., 30.]))
    """

    tau: float
    most: float = np.inf

    @property
    def grown(self) -> float:
        """The time from which steps do not grow."""
        return max(self.most - self.tau, 0.0)

    def of(self, times: Array) -> Array:
        """x at these times."""
        early = np.log1p(np.minimum(times, self.grown) / self.tau)
        return np.asarray(early + np.maximum(times - self.grown, 0.0) / self.most)

    def back(self, x: Array) -> Array:
        """The times at x."""
        early = np.minimum(x, np.log1p(self.grown / self.tau))
        late = (x - early) * self.most if self.grown < np.inf else 0.0
        return np.asarray(self.tau * np.expm1(early) + late)


@dataclass(frozen=True)
class TimeGrid:
    """Nodes (T,), weights (T, T) strictly lower triangular, where the output times sit among the nodes.

    With an ``age`` steps are even by its clock, weights are found while the flow is marched, and output times
    need not be nodes: ``read`` (outputs, T) are the weights of values at nodes in those at output times.
    """

    nodes: Array
    weights: Array
    outputs: NDArray[np.intp]
    order: int
    age: Age | None = None
    read: Array | None = None

    @property
    def step(self) -> float:
        """The longest step, by the clock of its age if it has one."""
        return float(np.max(np.diff(self.nodes if self.age is None else self.age.of(self.nodes))))

    def once(self, a: Array) -> Array:
        """A function of the time at nodes (first axis), at the output times."""
        return a[self.outputs] if self.read is None else np.tensordot(self.read, a, 1)

    def twice(self, a: Array) -> Array:
        """A function of two times at nodes (last axes), at the output times."""
        if self.read is None:
            return a[..., self.outputs[:, None], self.outputs]
        return np.asarray(self.read @ a @ self.read.T)


def adams_weights(nodes: ArrayLike, order: int = ORDER) -> Array:
    """The table w[n, m] of Adams-Bashforth weights on an increasing grid; the order starts at one.

    >>> adams_weights([0.0, 1.0, 2.0, 3.0], order=2)[3]
    array([0.5, 1. , 1.5, 0. ])
    """
    t = np.asarray(nodes, dtype=float)
    w = np.zeros((len(t), len(t)))
    for n in range(len(t) - 1):
        last = np.arange(max(0, n + 1 - order), n + 1)
        w[n + 1] = w[n]
        w[n + 1, last] += integral_weights(t[last], t[n], t[n + 1])
    return w


def integral_weights(nodes: Array, a: float, b: float) -> Array:
    """Weights that integrate the polynomial through ``nodes`` from ``a`` to ``b``.

    Gauss's rule on Lagrange's products: as good as exact where the nodes crowd together, as they do at the
    start.

    >>> integral_weights(np.array([0.0, 1.0, 2.0]), 0.0, 2.0).round(12).tolist()
    [0.333333333333, 1.333333333333, 0.333333333333]
    """
    points, shares = _gauss(len(nodes) // 2 + 1)
    x = 0.5 * (a + b) + 0.5 * (b - a) * points
    weights: Array = 0.5 * (b - a) * (shares @ lagrange(nodes, x))
    return weights


def lagrange(nodes: Array, x: Array) -> Array:
    """The polynomials that are one at a node and zero at the others, at each ``x``: ``(x, nodes)``.

    >>> lagrange(np.array([0.0, 1.0]), np.array([0.25, 2.0])).tolist()
    [[0.75, 0.25], [-1.0, 2.0]]
    """
    same = np.eye(len(nodes), dtype=bool)
    factors = (x[:, None, None] - nodes) / np.where(same, 1.0, nodes[:, None] - nodes)
    found: Array = np.prod(np.where(same, 1.0, factors), axis=2)
    return found


_gauss = lru_cache(maxsize=32)(np.polynomial.legendre.leggauss)


def aged_grid(times: Array, age: Age, *, step: float, order: int) -> TimeGrid:
    """Nodes up to the last of ``times`` with no step above ``step`` by the clock of ``age``.

    What a cubic spline misses at other times is less than what steps of the orders two and three do.

    >>> g = aged_grid(np.array([0.0, 30.0, 100.0]), Age(1.0), step=0.25, order=2)
    >>> len(g.nodes), g.once(np.log1p(g.nodes)).round(4)
    (24, array([0.    , 3.434 , 4.6151]))
    """
    from scipy.interpolate import make_interp_spline  # slow to import, and seldom needed

    at = age.of(times)
    even = flow_grid(at[[0, -1]], step=step, order=order).nodes
    nodes = age.back(even)
    nodes[-1] = times[-1]
    read = np.asarray(make_interp_spline(even, np.eye(len(even)), k=3)(at))
    return TimeGrid(nodes, np.zeros_like(read[:0]), np.arange(0), order, age, read)


def flow_grid(times: ArrayLike, *, step: ArrayLike, order: int = ORDER) -> TimeGrid:
    """Nodes that contain ``times`` (increasing, from 0) with no step above ``step``, and their weights.

    ``step`` is a number, or one for each interval between ``times``.  The first step is cut into doubling
    pieces, the smallest ``step * 2**-m`` with m growing as the step shrinks, so that the first-order start
    does not show.  Later steps at most double too: a polynomial is not extrapolated far beyond its nodes.

    >>> g = flow_grid([0.0, 1.0, 2.0], step=0.5)
    >>> g.nodes[g.outputs]
    array([0., 1., 2.])
    """
    t = np.asarray(times, dtype=float)
    steps = np.broadcast_to(np.asarray(step, dtype=float), len(t) - 1)
    first = t[1] / _count(t[1], steps[0])
    halvings = 2 * order + (order // 2) * max(0, int(np.ceil(np.log2(t[-1] / first / 64))))
    pieces = [np.array([0.0]), first * 2.0 ** -np.arange(halvings, 0, -1), np.array([first])]
    last = first
    for (a, b), most in zip(pairwise(t), steps, strict=True):
        inner = _cut(max(a, first), b, float(most), last)
        pieces.append(inner)
        last = float(inner[-1] - (inner[-2] if len(inner) > 1 else max(a, first))) if len(inner) else last
    nodes = np.concatenate(pieces)
    outputs = np.searchsorted(nodes, t)
    return TimeGrid(nodes, adams_weights(nodes, order), outputs, order)


def _cut(a: float, b: float, step: float, last: float) -> Array:
    """Nodes from ``a`` (left out) to ``b``: even steps, after doubling ones where ``last`` is shorter."""
    if b <= a:
        return np.empty(0)
    ramp = []
    while a + 4 * last < b and 2 * last < (b - a) / _count(b - a, step):
        last = 2 * last
        a = a + last
        ramp.append(a)
    count = _count(b - a, min(step, 2 * last))
    even = a + (b - a) * np.arange(1, count + 1) / count
    even[-1] = b  # output times stay exact
    return np.concatenate([ramp, even])


def _count(length: float, step: float) -> int:
    return max(1, int(np.ceil(length / step * (1 - 1e-12))))


def trapezoid(nodes: Array) -> Array:
    """The table w[n, m] of the trapezoidal rule from 0 to each node.

    >>> trapezoid(np.array([0.0, 1.0, 3.0])).tolist()
    [[0.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 1.5, 1.0]]
    """
    half = np.diff(nodes) / 2
    w = np.zeros((len(nodes), len(nodes)))
    for n, h in enumerate(half, 1):
        w[n] = w[n - 1]
        w[n, n - 1 : n + 1] += h
    return w


def end_weights(nodes: Array, order: int) -> dict[str, Array]:
    """Tables ``(T, T)`` of the weights of a sum over steps in place of an integral, of orders 1, 2, ... in
    the step, by the names that theories give them.

    The term of order n is a derivative at the end minus that at the start, times a coefficient that
    ``derive`` finds.  Derivatives are those of the polynomial through the nearest nodes that are known by
    then.

    >>> end_weights(np.array([0.0, 1.0, 2.0]), 1)["w__1"].round(12)[1:]
    array([[ 0.5, -0.5, -0. ],
           [ 0.5, -0. , -0.5]])
    """
    from derive.expansion.orders import WEIGHT, boundary_coefficients, named  # slow to import, seldom needed

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


def tables_of(
    program: Program, numbers: Mapping[Symbol, float], nodes: Array, weights: Array
) -> dict[str, Array]:
    """Return the memory of a flow at the nodes, by the names that theories give its tables.

    ``weights`` (T, T) are those of the integrator, with which a flow without memory of its own would do.

    >>> from derive.program import P, mlp
    >>> flow = mlp(1, rule="flow", weight_decay=2)
    >>> tables = tables_of(flow, {P: 1}, np.array([0.0, 1.0]), np.array([[0.0, 0.0], [1.0, 0.0]]))
    >>> tables["m"].round(3), tables["w"][1].round(3)
    (array([1.   , 0.135]), array([0.135, 0.   ]))
    """
    found: dict[str, Array] = {}
    for _, tables in tables_of_program(program):
        found |= tables.values(numbers, nodes, weights)
    return found


def system_of(rule: TrainingRule, numbers: Mapping[Symbol, float]) -> tuple[Array, Array]:
    """``A`` (n, n) and ``b`` (n,) of a flow ``z' = A z + rate b U``, with the weight first.

    >>> from derive.program import GradientFlow
    >>> [x.tolist() for x in system_of(GradientFlow(decay=sympify(2)), {})]
    [[[-2.0]], [1.0]]
    """
    system, rate = rule.system, sympify(getattr(rule, "rate", 1))  # type: ignore[attr-defined]
    A, b = system.matrix.subs(dict(numbers)), [(x / rate).subs(dict(numbers)) for x in system.input]
    return np.array(A, dtype=float), np.array(b, dtype=float)


def is_noisy(rule: TrainingRule) -> bool:
    """Return whether noise enters the weights of a flow."""
    return bool(rule.noise(t, s) != 0)
