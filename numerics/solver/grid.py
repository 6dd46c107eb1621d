"""Time grids of a flow, and weights of past updates by explicit Adams-Bashforth integration of any order.

Integrating the polynomial through the last updates gives W(t_n) = W(0) + sum_{m<n} w_nm U_m. Only past
updates enter, so that the discretised flow is as causal as gradient descent and one sweep solves it. The
first steps are tiny and double in length while the order rises from one. Explicit solvers of flows
use these grids.
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
"""Order of Adams-Bashforth integration."""

NODES = 6
"""Largest number of nodes through which :func:`end_weights` lays a polynomial."""


@dataclass(frozen=True)
class Age:
    """Slowed time x of a flow, ``dx / dt = 1 / min(tau + t, most)``, in which steps are equal.

    Equal steps of x are steps of length ``tau dx`` in t at first, if ``tau`` is below ``most``; they grow
    with ``tau + t``, and their largest length is ``most dx``. x is 0 at t = 0.

    >>> age = Age(1.0, 10.0)
    >>> age.of(np.array([0.0, 9.0, 19.0])).round(3), age.back(age.of(np.array([3.0, 30.0]))).round(9)
    (array([0.   , 2.303, 3.303]), array([ 3., 30.]))
    """

    tau: float
    most: float = np.inf

    @property
    def grown(self) -> float:
        """Time t from which on steps have their largest length; infinite if ``most`` is."""
        return max(self.most - self.tau, 0.0)

    def of(self, times: Array) -> Array:
        """Return the slowed time x at these times t."""
        early = np.log1p(np.minimum(times, self.grown) / self.tau)
        return np.asarray(early + np.maximum(times - self.grown, 0.0) / self.most)

    def back(self, x: Array) -> Array:
        """Return the times t at these values of the slowed time x."""
        early = np.minimum(x, np.log1p(self.grown / self.tau))
        late = (x - early) * self.most if self.grown < np.inf else 0.0
        return np.asarray(self.tau * np.expm1(early) + late)


@dataclass(frozen=True)
class TimeGrid:
    """Time grid with its weights of integration and the output times.

    Attributes
    ----------
    nodes : numpy.ndarray
        Time nodes, shape ``(T,)``.
    weights : numpy.ndarray
        Weights of the updates in the integral from 0 to each node, shape ``(T, T)``: lower triangular, and
        strictly so for an explicit rule. Empty with an ``age``, because the weights are then computed during
        the march.
    outputs : numpy.ndarray
        Positions of the output times among the nodes, shape ``(outputs,)``. Empty with an ``age``, where
        ``read`` is used, and in refinement of the trapezoidal rule, where results are read in another way.
    order : int
        Order of the integration.
    age : Age or None
        Slowed time in which steps have equal length.
    read : numpy.ndarray or None
        Weights of values at nodes in the values at output times, shape ``(outputs, T)``; None without an
        ``age``.
    """

    nodes: Array
    weights: Array
    outputs: NDArray[np.intp]
    order: int
    age: Age | None = None
    read: Array | None = None

    @property
    def step(self) -> float:
        """Length of the longest time step, in the slowed time ``age`` if the grid has one."""
        return float(np.max(np.diff(self.nodes if self.age is None else self.age.of(self.nodes))))

    def once(self, a: Array) -> Array:
        """Return a function of one time at the output times, from its values at the nodes (first axis)."""
        return a[self.outputs] if self.read is None else np.tensordot(self.read, a, 1)

    def twice(self, a: Array) -> Array:
        """Return a function of two times at the output times, from its values at nodes (last two axes)."""
        if self.read is None:
            return a[..., self.outputs[:, None], self.outputs]
        return np.asarray(self.read @ a @ self.read.T)


def adams_weights(nodes: ArrayLike, order: int = ORDER) -> Array:
    """Return the weights w[n, m] of update m in the integral to node n, by Adams-Bashforth integration.

    ``nodes`` are increasing times, and the integral begins at the first of them. The order of the rule rises
    from one to ``order`` in the first steps.

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
    """Return weights that integrate the polynomial through ``nodes`` from ``a`` to ``b``.

    Gauss's rule is applied to Lagrange polynomials, which keeps rounding errors small if nodes are close
    together, as they are at the start of a flow.

    >>> integral_weights(np.array([0.0, 1.0, 2.0]), 0.0, 2.0).round(12).tolist()
    [0.333333333333, 1.333333333333, 0.333333333333]
    """
    points, shares = _gauss(len(nodes) // 2 + 1)
    x = 0.5 * (a + b) + 0.5 * (b - a) * points
    weights: Array = 0.5 * (b - a) * (shares @ lagrange(nodes, x))
    return weights


def lagrange(nodes: Array, x: Array) -> Array:
    """Return the Lagrange polynomials of ``nodes`` at each ``x``, shape ``(x, nodes)``.

    >>> lagrange(np.array([0.0, 1.0]), np.array([0.25, 2.0])).tolist()
    [[0.75, 0.25], [-1.0, 2.0]]
    """
    same = np.eye(len(nodes), dtype=bool)
    factors = (x[:, None, None] - nodes) / np.where(same, 1.0, nodes[:, None] - nodes)
    values: Array = np.prod(np.where(same, 1.0, factors), axis=2)
    return values


@lru_cache(maxsize=32)
def _gauss(count: int) -> tuple[Array, Array]:
    """Return nodes and weights of the Gauss-Legendre quadrature with ``count`` nodes on [-1, 1]."""
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return nodes, weights


def aged_grid(times: Array, age: Age, *, step: float, order: int) -> TimeGrid:
    """Return a grid to the last of ``times`` with steps of at most ``step`` in the slowed time of ``age``.

    ``times`` are the output times, increasing from 0. The first steps are shorter, as many as integration of
    ``order`` needs (:func:`flow_grid`). The grid has no weights. Values at output times are read by a cubic
    spline, whose error is smaller than that of steps of order two or three.

    >>> g = aged_grid(np.array([0.0, 30.0, 100.0]), Age(1.0), step=0.25, order=2)
    >>> len(g.nodes), g.once(np.log1p(g.nodes)).round(4)
    (24, array([0.    , 3.434 , 4.6151]))
    """
    from scipy.interpolate import make_interp_spline  # imported here because it is slow and seldom used

    at = age.of(times)
    even = flow_grid(at[[0, -1]], step=step, order=order).nodes
    nodes = age.back(even)
    nodes[-1] = times[-1]
    read = np.asarray(make_interp_spline(even, np.eye(len(even)), k=3)(at))
    return TimeGrid(nodes, np.zeros_like(read[:0]), np.arange(0), order, age, read)


def flow_grid(times: ArrayLike, *, step: ArrayLike, order: int = ORDER) -> TimeGrid:
    """Return a grid that contains ``times`` (increasing, from 0) with steps of at most ``step``.

    ``times`` has at least two entries. ``step`` is a number, or one for each interval between ``times``. The
    first step has the length of ``times[1]`` divided by the smallest number of equal steps of at most
    ``step``. It is cut into doubling pieces. The smallest piece is the first step times ``2**-m``, so that
    the error of the first-order start is negligible; from order two on, m is larger if the first step is
    shorter than 1/64 of the last time. Later steps at most double (a step after a first interval of one step
    may be four times the last piece), because a polynomial must not be extrapolated far beyond its nodes.
    ``order`` is that of the Adams-Bashforth weights of the grid. Raises ValueError for fewer than two times,
    for times that are not finite or do not increase from 0, for a step that is not positive, and for several
    steps whose number is not that of the intervals.

    >>> g = flow_grid([0.0, 1.0, 2.0], step=0.5)
    >>> g.nodes[g.outputs]
    array([0., 1., 2.])
    """
    t = np.asarray(times, dtype=float)
    if t.ndim != 1 or len(t) < 2 or t[0] != 0 or not np.all(np.diff(t) > 0) or t[-1] == np.inf:
        shown = np.array2string(t, threshold=8)
        raise ValueError(f"times = {shown}: must be two or more finite increasing numbers, the first 0")
    if np.size(step) not in (1, len(t) - 1) or not np.all(np.asarray(step, dtype=float) > 0):
        raise ValueError(
            f"step = {step!r}: must be a positive number, or one positive number for each interval between "
            "times"
        )
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
    """Return nodes from ``a`` (excluded) to ``b`` (included): steps double, and are equal afterwards.

    The first step is at most twice ``last``, the length of the step before ``a``. Steps are at most ``step``
    long. The result is empty if ``b`` is not above ``a``.
    """
    if b <= a:
        return np.empty(0)
    ramp = []
    while a + 4 * last < b and 2 * last < (b - a) / _count(b - a, step):
        last = 2 * last
        a = a + last
        ramp.append(a)
    count = _count(b - a, min(step, 2 * last))
    even = a + (b - a) * np.arange(1, count + 1) / count
    even[-1] = b  # exactly, so that output times are nodes
    return np.concatenate([ramp, even])


def _count(length: float, step: float) -> int:
    """Return the smallest number of equal steps of at most ``step`` that make up a length."""
    return max(1, int(np.ceil(length / step * (1 - 1e-12))))


def trapezoid(nodes: Array) -> Array:
    """Return the weights w[n, m] of the trapezoidal rule from the first node to node n.

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
    """Return tables of a sum over time steps minus the integral over time, order by order in the step.

    The tables (T, T) are those of orders 1 to ``order`` in the step, at the time nodes ``nodes``, by the
    names that theories expanded in the step give them (``"w__1"`` for order 1). Row n times the values of a
    function at the nodes is the term of that order at node n: a derivative at node n minus that at the first
    node, times a coefficient that ``derive`` computes (Euler-Maclaurin). Derivatives at node n are those of
    the polynomial through the nearest nodes up to n, those at the first node of the polynomial through the
    first nodes.

    >>> end_weights(np.array([0.0, 1.0, 2.0]), 1)["w__1"].round(12)[1:]
    array([[ 0.5, -0.5, -0. ],
           [ 0.5, -0. , -0.5]])
    """
    from derive.expansion.orders import WEIGHT, boundary_coefficients, named  # slow and seldom used

    coefficients = boundary_coefficients(order)
    return {named(WEIGHT, n): float(b) * _slopes(nodes, n - 1) for n, b in enumerate(coefficients, 1)}


def _slopes(nodes: Array, degree: int) -> Array:
    """Return the weights of values at nodes in a derivative at each node minus that at the first node.

    ``degree`` is the order of the derivative. Only values at nodes up to the present one have weights.
    """
    weights = np.zeros((len(nodes), len(nodes)))
    count = max(NODES, degree + 1)
    for i in range(1, len(nodes)):
        last, first = slice(max(0, i + 1 - count), i + 1), slice(0, min(i + 1, count))
        weights[i, last] += derivative_weights(nodes[last], nodes[i], degree)
        weights[i, first] -= derivative_weights(nodes[first], nodes[0], degree)
    return weights


def derivative_weights(nodes: Array, at: float, degree: int) -> Array:
    """Return the weights of values at ``nodes`` in the derivative of order ``degree`` at the point ``at``.

    They are zero if there are too few nodes for this order.

    >>> derivative_weights(np.array([0.0, 1.0, 2.0]), 1.0, 2).round(12)
    array([ 1., -2.,  1.])
    """
    if degree >= len(nodes):
        return np.zeros(len(nodes))
    size = float(np.max(np.abs(nodes - at)))
    powers = np.vander((nodes - at) / size, increasing=True).T
    # The weights must be exact for the powers ((x - at)/size)^k. At x = at the derivative of order `degree`
    # is nonzero only for k = degree.
    derivatives = np.zeros(len(nodes))
    derivatives[degree] = float(np.prod(np.arange(1.0, degree + 1))) / size**degree
    return np.asarray(np.linalg.solve(powers, derivatives), dtype=np.float64)


def tables_of(
    program: Program, numbers: Mapping[Symbol, float], nodes: Array, weights: Array
) -> dict[str, Array]:
    """Return the functions of one or two times by which the past enters a flow, as arrays at the time nodes.

    They are the decay of initial weights, such as ``"m"``, and the weights of past updates, such as ``"w"``,
    by the names that theories give them. ``weights`` (T, T) are the weights of past updates in the integrator
    without decay or momentum. ``numbers`` are the values of the symbols of the program. Rules in steps have
    such tables only if their memory has no closed form.

    >>> from derive.program import P, mlp
    >>> flow = mlp(1, rule="flow", weight_decay=2)
    >>> tables = tables_of(flow, {P: 1}, np.array([0.0, 1.0]), np.array([[0.0, 0.0], [1.0, 0.0]]))
    >>> tables["m"].round(3), tables["w"][1].round(3)
    (array([1.   , 0.135]), array([0.135, 0.   ]))
    """
    memory: dict[str, Array] = {}
    for _, tables in tables_of_program(program):
        memory |= tables.values(numbers, nodes, weights)
    return memory


def system_of(rule: TrainingRule, numbers: Mapping[Symbol, float]) -> tuple[Array, Array]:
    """Return ``A`` (n, n) and ``b`` (n,) of the equation of motion ``z' = A z + rate b U`` of a rule.

    The state z holds the weight first, then velocities; U is the update.

    >>> from derive.program import GradientFlow
    >>> [x.tolist() for x in system_of(GradientFlow(decay=sympify(2)), {})]
    [[[-2.0]], [1.0]]
    """
    system, rate = rule.system, sympify(getattr(rule, "rate", 1))  # type: ignore[attr-defined]
    A, b = system.matrix.subs(dict(numbers)), [(x / rate).subs(dict(numbers)) for x in system.input]
    return np.array(A, dtype=float), np.array(b, dtype=float)


def is_noisy(rule: TrainingRule) -> bool:
    """Return whether a training rule adds noise to the weights."""
    return bool(rule.noise(t, s) != 0)
