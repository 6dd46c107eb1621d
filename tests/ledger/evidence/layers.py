"""Recursions from layer to layer and their limit in layer time, solved as they are derived.

One evaluator reads any of the derived equations (sums over times and layers, integrals over layer time) and
sweeps over them until nothing changes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from operator import mul
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Eq, Expr, Heaviside, Integral, KroneckerDelta, Mul, Pow, Sum, Symbol, exp, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, L, ell, s, t
from derive.depth import CrossLayer, LayerTime
from derive.depth.layers import tau, tau_
from derive.theory import Equation, Term

Array = NDArray[np.float64]
Known = Mapping[str, Callable[..., Any]]
Env = dict[Symbol, Any]
Rule = Callable[[Env], Any]


@dataclass
class Solution:
    """Values of functions on layers ``0..depth`` (or nodes of layer time) and times ``0..steps-1``.

    ``table[name, number of arguments]``; ``grid`` says that the layers are nodes of [0, 1].
    """

    depth: int
    steps: int
    values: Mapping[Symbol, float]
    known: Known
    grid: bool
    slots: Mapping[tuple[str, int], int]
    table: dict[tuple[str, int], Array] = field(default_factory=dict)
    sweeps: int = 0
    compiled: dict[Expr, Rule] = field(default_factory=dict)
    entries: dict[Expr, list[Rule]] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Array:
        """Return the values of ``name``; raise KeyError with the known names if there are none."""
        found = [v for (n, _), v in self.table.items() if n == name]
        if not found:
            raise KeyError(f"no {name}; there are {', '.join(n for n, _ in self.table)}")
        return found[0]

    def array(self, a: AppliedUndef) -> Array:
        """Return the array of an applied function, zero at first."""
        key = str(a.func), len(a.args)
        if key not in self.table:
            layers = self.slots.get(key, 0)
            shape = (self.depth + 1,) * layers + (self.steps,) * (len(a.args) - layers)
            self.table[key] = np.zeros(shape)
        return self.table[key]

    # -- evaluation ------------------------------------------------------------------------------------------

    def value(self, e: Any, env: Env) -> Any:
        """Return the value of ``e`` at the indices of ``env``."""
        if e not in self.compiled:
            self.compiled[e] = self.compile(sympify(e))
        return self.compiled[e](env)

    def compile(self, e: Expr) -> Rule:  # noqa: PLR0911 (one return for each kind of expression)
        """Return the rule that computes ``e``, with the kinds of its parts looked up once."""
        if e.is_Number:
            number = float(e)
            return lambda env: number
        if e.is_Symbol:
            fixed = float(self.depth) if e == L else self.values.get(e)
            return lambda env: env.get(e, fixed)
        if isinstance(e, Sum):
            return self.total(e)
        if isinstance(e, Integral):
            return self.integral(e)
        if isinstance(e, AppliedUndef):
            return self.applied(e)
        parts = [self.compile(x) for x in e.args]
        if isinstance(e, Add):
            return lambda env: sum(f(env) for f in parts)
        if isinstance(e, Mul):
            return lambda env: reduce(mul, [f(env) for f in parts])
        if isinstance(e, Pow):
            return lambda env: parts[0](env) ** parts[1](env)
        if isinstance(e, KroneckerDelta):
            return lambda env: np.equal(parts[0](env), parts[1](env)).astype(float)
        if isinstance(e, Heaviside):
            return lambda env: np.heaviside(parts[0](env), 0.5)
        if isinstance(e, exp):
            return lambda env: np.exp(parts[0](env))
        raise TypeError(f"{e} is not evaluated here")

    def layer(self, e: Expr) -> Rule:
        """Return the rule that gives a layer (a node, on the grid) as an index."""
        if self.grid and not e.free_symbols:
            node = round(float(e) * self.depth)
            return lambda env: node
        return self.compile(e)

    def places(self, a: AppliedUndef) -> list[Rule]:
        """Return the rules of the indices of an applied function."""
        n = self.slots.get((str(a.func), len(a.args)), 0)
        return [self.layer(x) if i < n else self.compile(x) for i, x in enumerate(a.args)]

    def applied(self, a: AppliedUndef) -> Rule:
        """Return the rule of an entry; outside of its range, where sums have no terms, any entry is valid."""
        name = str(a.func)
        if name in self.known:
            function, parts = self.known[name], [self.compile(x) for x in a.args]
            return lambda env: function(*[f(env) for f in parts])
        array, at = self.array(a), self.places(a)
        last = [m - 1 for m in array.shape]

        def entry(env: Env) -> Any:
            found = (np.asarray(f(env), dtype=int) for f in at)
            return array[tuple(np.minimum(np.maximum(x, 0), m) for x, m in zip(found, last, strict=True))]

        return entry

    def total(self, e: Sum) -> Rule:
        """Return the rule of a sum."""
        *inner, (index, lower, upper) = e.limits
        body = self.compile(Sum(e.function, *inner) if inner else e.function)
        ends = self.compile(lower), self.compile(upper)

        def run(env: Env) -> Any:
            low, high = (f(env) for f in ends)
            first, last = int(np.min(low)), int(np.max(high))
            if last - first > self.steps:  # layers: one more axis is faster than a loop
                xs = np.arange(first, last + 1)
                low, high = (np.asarray(x)[..., None] for x in (low, high))
                inside = np.logical_and(low <= xs, xs <= high)
                return np.where(inside, body({**_deeper(env), index: xs}), 0.0).sum(axis=-1)
            out: Any = 0.0
            for x in range(first, last + 1):
                inside = np.logical_and(low <= x, x <= high)
                if np.any(inside):
                    out = out + np.where(inside, body({**env, index: x}), 0.0)
            return out

        return run

    def integral(self, e: Integral) -> Rule:
        """Return the rule of an integral: the trapezoidal rule over nodes."""
        ((index, lower, upper),) = e.limits
        body, bounds = self.compile(e.function), (self.layer(lower), self.layer(upper))
        xs = np.arange(self.depth + 1)

        def run(env: Env) -> Any:
            low, high = (np.asarray(f(env))[..., None] for f in bounds)
            ends = 0.5 * (np.equal(xs, low).astype(float) + np.equal(xs, high).astype(float))
            weight = np.where(np.logical_and(low <= xs, xs <= high), 1.0 - ends, 0.0) / self.depth
            return (weight * body({**_deeper(env), index: xs})).sum(axis=-1)

        return run

    def assign(self, lhs: AppliedUndef, rhs: Expr, env: Env) -> float:
        """Set ``lhs`` to ``rhs``; return the change."""
        array = self.array(lhs)
        if lhs not in self.entries:
            self.entries[lhs] = self.places(lhs)
        new = np.asarray(self.value(rhs, env))
        index = tuple(np.asarray(f(env), dtype=int) for f in self.entries[lhs])
        old = array[index]
        new = np.broadcast_to(new, np.broadcast_shapes(new.shape, old.shape))
        if new.shape != old.shape:
            raise ValueError(f"{lhs} has indices that its equation does not")
        array[index] = new
        return float(np.max(np.abs(new - old), initial=0.0))

    def axes(self, symbols: Iterable[Symbol], spans: Mapping[Symbol, range]) -> Env:
        """Return one array axis for each index; indices without a span are times."""
        chosen = list(dict.fromkeys(symbols))
        env: Env = {}
        for i, x in enumerate(chosen):
            values = np.asarray(spans.get(x, range(self.steps)))
            env[x] = values.reshape([-1 if j == i else 1 for j in range(len(chosen))])
        return env

    def sweep(
        self, rows: Iterable[Callable[[], float]], tolerance: float = 1e-13, most: int = 400
    ) -> Solution:
        """Evaluate all rows until nothing changes; raise RuntimeError if that does not happen."""
        todo = list(rows)
        for self.sweeps in range(1, most + 1):
            if max(row() for row in todo) < tolerance:
                return self
        raise RuntimeError(f"still changing after {most} sweeps")


def _deeper(env: Env) -> Env:
    """Return the same indices with one more axis at the end."""
    return {k: np.asarray(v)[..., None] for k, v in env.items()}


def solve_layers(
    cross: CrossLayer, depth: int, steps: int, values: Mapping[Symbol, float], known: Known | None = None
) -> Solution:
    """Solve the recursions of a network with ``depth`` layers: up and down, all equations at each layer.

    A layer of one equation needs the same or the next layer of the others, so that a pass through the layers
    settles one time step; equation by equation it would settle one layer.
    """
    equations = [*cross.responses, *[_family(cross, e) for e in (*cross.correlations, *cross.scalars)]]
    slots: dict[tuple[str, int], int] = {}
    for e in equations:
        key = str(e.lhs.func), len(e.lhs.args)
        slots[key] = max(slots.get(key, 0), _layers(e))
    found = Solution(depth, steps, values, known or {}, False, slots)
    rows = [_row(found, e) for e in equations]

    def through(layers: Iterable[int]) -> float:
        change = 0.0
        for x in layers:
            for span, run in rows:
                if x in span:
                    change = max(change, run(x))
        return change

    up = range(depth + 1)
    return found.sweep([lambda: through(up), lambda: through(up[::-1])])


def _layers(e: Equation) -> int:
    return sum(any(x.has(r.index) for r in e.ranges) for x in e.lhs.args[:2])


def _family(cross: CrossLayer, e: Eq) -> Equation:
    """Return a correlation as an equation for all layers."""
    layered = bool(e.lhs.args) and e.lhs.args[0].has(ell)
    q = next((q for q in cross.theory.order_parameters if q.name == str(e.lhs.func)), None)
    own = next((r for r in q.ranges if r.index == ell), None) if q is not None else None
    low, high = (own.lower, own.upper) if own is not None else (sympify(1), L)
    ranges = (IndexRange(ell, low, high),) if layered else ()
    return Equation(e.lhs, (Term.local(e.rhs, "definition"),), ranges)


def _row(found: Solution, e: Equation) -> tuple[range, Callable[[int], float]]:
    """Return the layers of an equation, and the function that evaluates it at one of them.

    Equations without layers are evaluated at both ends.
    """
    spans = {
        r.index: range(int(found.value(r.lower, {})), int(found.value(r.upper, {})) + 1) for r in e.ranges
    }
    symbols = [x for a in e.lhs.args for x in sorted(a.free_symbols, key=str) if x in spans or x in (t, s)]
    rest = found.axes([x for x in symbols if x != ell], spans)
    if ell in spans:
        return spans[ell], lambda x: found.assign(e.lhs, e.rhs, {**rest, ell: x})
    ends = range(0, found.depth + 1, max(found.depth, 1))
    return ends, lambda _: found.assign(e.lhs, e.rhs, rest)


def solve_layer_time(
    limit: LayerTime, nodes: int, steps: int, values: Mapping[Symbol, float], known: Known | None = None
) -> Solution:
    """Solve the integral equations on ``nodes`` intervals of layer time."""
    equations = [*limit.integrals, *limit.correlations, *limit.scalars]
    slots = {(str(e.lhs.func), len(e.lhs.args)): sum(x.has(tau, tau_) for x in e.lhs.args) for e in equations}
    found = Solution(nodes, steps, values, known or {}, True, slots)
    spans = {tau: range(nodes + 1), tau_: range(nodes + 1)}

    def row(e: Eq) -> Callable[[], float]:
        symbols = [x for a in e.lhs.args for x in sorted(a.free_symbols, key=str)]
        env = found.axes(symbols, spans)
        return lambda: found.assign(e.lhs, e.rhs, env)

    return found.sweep([row(e) for e in equations])


def extrapolated(values: list[Array]) -> Array:
    """Return the limit of values at n, 2n, 4n, ... intervals by Richardson extrapolation.

    The error is a power series in 1/n.
    """
    rows, order = values, 1
    while len(rows) > 1:
        rows = [(2**order * b - a) / (2**order - 1) for a, b in pairwise(rows)]
        order += 1
    return rows[0]
