"""A theory without memory as arrays at one time: states, their motion, and averages over nodes.

The input is a theory reduced to states (:mod:`derive.reduce.memoryless`) with numbers for its symbols; the
method ``nodes`` integrates the states. A node is a point of a quadrature over the Gaussian initial values.
Random quantities have arrays of shape ``(*indices, nodes)``, others ``(*indices, 1)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from math import prod
from typing import Any

import numpy as np
from sympy import (
    Expr,
    Mul,
    Sum,
    Symbol,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response, is_random
from derive.calculus.symbols import t
from derive.reduce.memoryless import Markov, State
from numerics.errors import Unserved
from numerics.experiment.checks import finite_number, given_arrays
from numerics.experiment.given_data import require_shapes
from numerics.lowering.expressions import KnownArrays
from numerics.lowering.indices import (
    TIMES,
    Array,
    Axis,
    IndexSymbols,
    Places,
    RealNumber,
    axes_of,
    connected_groups,
    integer_of,
    literals_in,
    node_of,
    require_open_numbers,
    require_present,
)
from numerics.lowering.sizes import Extents
from numerics.names import MemberKey

RANK = 1e-12
"""Directions of the Gaussian variables with less than this share of the largest variance are left out."""


class System:
    """Equations of a theory without memory, with numbers for its symbols.

    Parameters
    ----------
    markov
        The theory, reduced to states.
    values, data
        Numbers by the names of symbols, and given arrays by name.

    Attributes
    ----------
    extents
        First value and number of values of each index.
    states, fields, scalars
        Equations of states, fields and scalars by name.
    start
        Indices of the Gaussian initial values, by name.
    names
        Names of quantities that differ between nodes (points of a quadrature over initial values).

    Raises
    ------
    Unserved
        For a theory that contains a field or scalar at time zero, a scalar at one value of an index, an index
        with two ranges, or a range whose bound contains another index.
    ValueError
        If ``values`` has no number for the size of an index, if a number is not finite, if ``data`` hold
        entries that are not finite real numbers, a kernel that is not symmetric positive semidefinite, or an
        array with another number of entries than its indices have values.
    """

    def __init__(self, markov: Markov, values: Mapping[str, RealNumber], data: Mapping[str, Any]) -> None:
        self.markov = markov
        self.values = {name: finite_number(f"values.{name}", x) for name, x in values.items()}
        self.data = given_arrays(markov.theory.program, data)
        require_shapes(markov.theory.program, self.data, self.values)
        self.extents = Extents(self.integer, self.values)
        self.random: dict[Expr, bool] = {}
        theory = markov.theory
        require_open_numbers(theory)
        require_present(theory)
        items: list[Any] = [*theory.equations, *theory.scalars, *theory.observables]
        for x in (*items, *theory.order_parameters, *markov.start):
            self.extents.add(r.limits for r in x.ranges)
        self.states: dict[MemberKey, State] = {node_of(x.symbol): x for x in markov.states}
        self.fields = {node_of(e.lhs): e for e in markov.fields}
        self.scalars = {node_of(e.lhs): e for e in theory.scalars}
        self.start: dict[MemberKey, IndexSymbols] = {}
        for u in markov.start:
            for y in (u.symbol, u.partner):
                self.start.setdefault(node_of(y), axes_of(y))
        self.names = frozenset(n[0] for n in (*self.start, *self.states, *self.fields))
        self.literals = literals_in(theory, self.integer)

    def integer(self, e: Any) -> int:
        """Return the integer value of the bound of a range, with numbers for its symbols."""
        bound = sympify(e)
        return integer_of(bound, {x.name: self.number(x) for x in bound.free_symbols})

    def number(self, x: Symbol) -> float:
        """Return the number of a symbol; raise ValueError if it has none."""
        if str(x) not in self.values:
            raise ValueError(f"values contains no number for {x}: give values[{str(x)!r}]")
        return self.values[str(x)]

    def shape(self, axes: IndexSymbols) -> tuple[int, ...]:
        """Return the number of values of each of the indices ``axes``, as the shape of an array."""
        return self.extents.shape(axes)

    def is_random(self, e: Expr) -> bool:
        """Return whether an expression differs between nodes, that is between initial values."""
        if e not in self.random:
            self.random[e] = is_random(e, self.names)
        return self.random[e]

    @cached_property
    def layout(self) -> list[tuple[MemberKey, tuple[int, ...], slice]]:
        """Name, shape and slice of each state in the vector of all states of one node.

        A node is a point of the quadrature over Gaussian initial values.
        """
        places, at = [], 0
        for n, x in self.states.items():
            shape = self.shape(axes_of(x.symbol))
            places.append((n, shape, slice(at, at + prod(shape))))
            at += prod(shape)
        return places

    @property
    def size(self) -> int:
        """Number of states of one node, all indices together.

        A node is a point of the quadrature over Gaussian initial values.
        """
        return self.layout[-1][2].stop if self.layout else 0

    @cached_property
    def root(self) -> dict[MemberKey, Array]:
        """Matrices that turn independent standard normal numbers into the Gaussian initial values.

        They have shapes ``(*indices, dimensions)``; correlated variables share numbers, independent ones do
        not.
        """
        links = [(node_of(u.symbol), node_of(u.partner)) for u in self.markov.start]
        blocks = [self.root_of(g) for g in connected_groups(self.start, links)]
        total, at = sum(next(iter(b.values())).shape[-1] for b in blocks), 0
        roots = {}
        for b in blocks:
            rank = next(iter(b.values())).shape[-1]
            for n, root in b.items():
                roots[n] = np.zeros((*root.shape[:-1], total))
                roots[n][..., at : at + rank] = root
            at += rank
        return roots

    def root_of(self, nodes: tuple[MemberKey, ...]) -> dict[MemberKey, Array]:
        """Return the matrices of a group of correlated initial values ``nodes``.

        They are the roots ``V sqrt(lambda)`` of the covariance ``V lambda V^T``, with the shape ``(*indices,
        rank)``: eigenvalues below the share RANK of the largest one are left out. Raises ValueError if the
        covariance has a negative eigenvalue that is not a rounding error.
        """
        counts = [prod(self.shape(self.start[n])) for n in nodes]
        ends = np.cumsum([0, *counts])
        c = np.zeros((ends[-1], ends[-1]))
        present = Present(self, {}, np.ones(1))
        for u in self.markov.start:
            a, b = node_of(u.symbol), node_of(u.partner)
            if a not in nodes:
                continue
            i, j = nodes.index(a), nodes.index(b)
            axes = (*axes_of(u.symbol), *axes_of(u.partner))
            block = np.broadcast_to(present.value(sympify(u.covariance), axes), (*self.shape(axes), 1))
            here, there = slice(*ends[i : i + 2]), slice(*ends[j : j + 2])
            c[here, there] = block.reshape(counts[i], counts[j])
            c[there, here] = c[here, there].T
        values, vectors = np.linalg.eigh((c + c.T) / 2)
        if values[0] < -1e-8 * max(values[-1], 1e-300):
            raise ValueError(
                f"the covariance of the initial values of {', '.join(sorted({n[0] for n in nodes}))} has "
                f"the negative eigenvalue {values[0]:.3g}: a covariance must be positive semidefinite"
            )
        kept = values > RANK * values[-1]
        flat = vectors[:, kept] * np.sqrt(values[kept])
        return {
            n: flat[ends[i] : ends[i + 1]].reshape(*self.shape(self.start[n]), -1)
            for i, n in enumerate(nodes)
        }


class Present(KnownArrays):
    """Values at one time: fields on all nodes, and averages over nodes, computed when they are needed.

    A node is a point of the quadrature over Gaussian initial values.

    Parameters
    ----------
    system
        Tables of the theory.
    start
        Gaussian initial values on the nodes.
    weights
        Weights of the nodes in averages.
    states
        Values of all states, ``(states, nodes)``; None if no state is used.
    time
        The time.
    """

    def __init__(
        self,
        system: System,
        start: Mapping[MemberKey, Array],
        weights: Array,
        states: Array | None = None,
        time: float = 0.0,
    ) -> None:
        first = system.extents.first
        super().__init__(system.values, system.data, dict(start), first, literals=system.literals)
        self.system, self.weights, self.time = system, weights, time
        if states is not None and len(states):
            for n, shape, where in system.layout:
                self.found[n] = states[where].reshape(*shape, -1)

    def motion(self) -> Array:
        """Return the right-hand sides of all equations of motion, shape ``(states, nodes)``.

        They are the states of the next step or, for a flow, the derivatives of the states with respect to
        time. A node is a point of the quadrature over Gaussian initial values.
        """
        rows = []
        for n, shape, _ in self.system.layout:
            x = self.system.states[n]
            value = self.value(x.motion.rhs, axes_of(x.symbol))
            rows.append(np.broadcast_to(value, (*shape, len(self.weights))).reshape(-1, len(self.weights)))
        return np.concatenate(rows) if rows else np.zeros((0, len(self.weights)))

    def array(self, node: MemberKey, x: Expr) -> Array:
        """Return the array of ``x``, a field, scalar or data, whose key (name, indices) is ``node``.

        It has an axis for each index of ``x`` that is not an integer, and the nodes of the quadrature as last
        axis, of length one if all nodes have one value. Raises ValueError if ``x`` has no value.
        """
        system = self.system
        # y(mu, 1) and y(1, mu) have the same key ("y", (1,)), but are different parts of one array. The key
        # of data with numbers among the arguments is therefore replaced by a key with the positions of the
        # numbers.
        if node[0] in system.data and node[1]:
            node = str(x.func(*(a if a.is_Integer else Symbol("_") for a in x.args))), ()
        if node not in self.found:
            e = system.fields.get(node) or system.scalars.get(node)
            if e is not None:
                axes = axes_of(e.lhs)
                value = np.asarray(self.value(e.rhs, axes))
                self.found[node] = np.broadcast_to(value, (*system.shape(axes), value.shape[-1]))
            elif str(x.func) in system.data:
                self.found[node] = self.data_now(str(x.func), x)[..., None]
            else:
                raise ValueError(
                    f"{x} has no value: it is not a field or scalar of the theory, and data does not "
                    f"contain {node[0]}. Give data[{node[0]!r}], or a named activation such as tanh if "
                    f"{node[0]} is an activation"
                )
        return self.found[node]

    def data_now(self, name: str, x: Expr) -> Array:
        """Return the values of the data ``name`` as read by ``x``, such as ``y(2, mu, t)``, at this step.

        Integers among the arguments of ``x`` and the time t select entries; the array keeps an axis for each
        other argument. Raises Unserved for data that depend on time if the theory is that of a flow, and
        ValueError for an array with another number of axes or one that ends before this step.
        """
        array = self.system.data[name]
        if array.ndim != len(x.args):
            raise ValueError(
                f"data[{name!r}] has shape {array.shape}, but must have one axis for each argument of {x}"
            )
        args = [a for a in x.args if not a.is_Integer]
        for axis in reversed([k for k, a in enumerate(x.args) if a.is_Integer]):
            place = self.position(name, axis, int(x.args[axis]), array.shape[axis])
            array = np.asarray(array.take(place, axis))
        if not x.has(t):
            return array
        if not self.system.markov.discrete:
            raise Unserved(
                f"{x} is given data that depend on the time, and such data are supported for rules in steps "
                "only"
            )
        for axis in reversed([k for k, a in enumerate(args) if a == t]):
            if not self.time < array.shape[axis]:
                raise ValueError(
                    f"data[{name!r}] has {array.shape[axis]} entries along an axis of times, and step "
                    f"{self.time:g} needs {self.time + 1:g}"
                )
            array = np.asarray(array.take(int(self.time), axis))
        return array

    def value(self, e: Expr, axes: IndexSymbols) -> Any:
        """Return the value of an expression, broadcastable to shape ``(*axes, nodes)``.

        A node is a point of the quadrature over Gaussian initial values.
        """
        sizes, ndim = self.system.extents.sizes, len(axes)
        value = np.asarray(self(e, {x: Axis(0, sizes[x], k, ndim) for k, x in enumerate(axes)}))
        return value.reshape((1,) * (ndim + 1 - value.ndim) + value.shape)

    def leaf(self, x: Expr, at: Places, given: Mapping[Expr, Any]) -> Any:
        """Return the array of a field, average or sum over its indices and the nodes, or a symbol's value.

        ``at`` maps its indices to axes of the result. A shifted index such as ``p + k`` is periodic.
        A node is a point of the quadrature over Gaussian initial values.
        """
        if isinstance(x, Average):
            value = self.value(x.body, tuple(at))
            full = np.broadcast_to(value, (*value.shape[:-1], len(self.weights)))
            return (full @ self.weights)[..., None]
        if isinstance(x, Sum):
            return self.total(x, tuple(at))
        if not isinstance(x, AppliedUndef) or isinstance(x, Response):
            return self.time if x == t else super().leaf(x, at, given)
        args = [a for a in x.args if not a.is_Integer and (a in at or a not in TIMES)]
        array = self.array(node_of(x), x)
        if array.ndim != len(args) + 1:
            raise ValueError(
                f"{x} has {len(args)} indices (integers and times do not count), but the array of its "
                f"values has {array.ndim - 1}: {x.func} must have the same number of indices wherever the "
                "theory contains it"
            )
        missing = [y for a in args for y in a.free_symbols if y not in at]
        if missing:
            raise Unserved(
                f"{x} has the index {missing[0]}, which is neither summed nor an index of the left-hand side"
            )
        return self.read(array, args, at)

    def total(self, x: Sum, axes: IndexSymbols) -> Array:
        """Return a sum over indices, broadcastable to shape ``(*axes, nodes)``.

        If no random factor has an index of ``axes``, the sum is the matrix product ``sum_i k[axes, i] x[i,
        nodes]`` of the deterministic factors k with the random factors x. Raises Unserved for limits that are
        not numbers, and for an index with two ranges. A node is a point of the quadrature over Gaussian
        initial values.
        """
        self.system.extents.add(x.limits)
        over = tuple(lim[0] for lim in x.limits)
        factors = Mul.make_args(x.function)
        moving = Mul(*[y for y in factors if self.system.is_random(y)])
        inner = tuple(y for y in over if y in moving.free_symbols)
        if moving == 1 or moving.free_symbols & set(axes):
            value = np.asarray(self.value(x.function, (*axes, *over)))
            full = np.broadcast_to(
                value, (*value.shape[: len(axes)], *self.system.shape(over), value.shape[-1])
            )
            summed: Array = full.sum(axis=tuple(range(len(axes), len(axes) + len(over))))
            return summed
        outer_only = tuple(y for y in over if y not in inner)
        known = Mul(*[y for y in factors if not self.system.is_random(y)])
        kernel = np.asarray(self.value(known, (*axes, *inner, *outer_only)))[..., 0]
        outer_shape = kernel.shape[: len(axes)]
        kernel = np.broadcast_to(kernel, (*outer_shape, *self.system.shape((*inner, *outer_only))))
        kernel = kernel.sum(axis=tuple(range(len(axes) + len(inner), kernel.ndim)))
        summand = np.asarray(self.value(moving, inner))
        summand = np.broadcast_to(summand, (*self.system.shape(inner), summand.shape[-1]))
        flat = kernel.reshape(prod(outer_shape), -1) @ summand.reshape(-1, summand.shape[-1])
        result: Array = flat.reshape(*outer_shape, -1)
        return result
