"""Weights whose rule acts on each entry, on sampled paths: arrays over pairs of paths.

An entry of a matrix belongs to a path of each of two populations. The array V of the trained change starts at
zero and obeys the rule of the weight,

    V(t + 1) = (1 - decay) V(t) + rate inside Q_t,

with the step Q_t that the rule computes from the gradient and its states, and a function ``inside`` of time
that the theory states. A unit reads ``(1/S) sum_j V_ij v_j``. Arrays have S^2 entries for S paths, D S for D
given coordinates, and S for a vector of weights. They are updated in blocks of rows that stay in the cache of
the processor.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING, Any
from weakref import proxy

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol

from numerics.arrays import CPU
from numerics.errors import NotConverged, Unserved
from numerics.lowering.entries import EntryArray, EntryRule, EntrySum, EntryVector, GradientTerm
from numerics.lowering.expressions import TensorReader, arranged

if TYPE_CHECKING:
    from numerics.solver.paths.march import PathMarch

Array = NDArray[np.float64]

BLOCK = 2**15
"""Number of entries that are updated at once, so that they and their states stay in the cache."""

CANCELLED, VISIBLE = 1e-13, 1e-3
"""Two thresholds of the test for gradients that vanish by symmetry.

Ratio of a gradient to the sum of the sizes of its terms below which it is rounding; size of a step above
which such a gradient is an error."""

UNIT = Symbol("unit")
"""Axis of paths, or of coordinates."""


class EntryWeights:
    """All weights with entrywise rules, of replicas that are marched together: arrays over pairs of paths.

    Raises Unserved for a march on another device than the CPU.
    """

    def __init__(self, march: PathMarch) -> None:
        if march.device != CPU:
            raise Unserved('weights with an entrywise rule, such as Adam, need solver.device = "cpu"')
        self.march: PathMarch = proxy(march)
        self.arrays = [_EntryWeight(self.march, x) for x in march.tables.weights]
        self.factors: dict[tuple[EntrySum, tuple[Symbol, ...]], TensorReader] = {}

    def advance(self, now: int) -> None:
        """Update every weight by one step, with the gradients at step ``now``."""
        for x in self.arrays:
            x.advance(now)

    def applied(self, x: EntrySum, indices: tuple[Symbol, ...], now: int) -> Array:
        """Return a term of a field: the trained change V of a weight times a vector v, on each path.

        The product is averaged over the units of v. ``x`` states the weight, the vector, and other factors
        and sums of the term. ``indices`` are those of the field, and ``now`` is the step. The result is
        broadcastable to (replicas, one axis for each index, paths).
        """
        key, march, axes = (x, indices), self.march, (*indices, *x.over)
        if key not in self.factors:
            self.factors[key] = TensorReader(march.known, x.factor, axes, march.tables.sizes)
        factor = np.asarray(self.factors[key](now))
        weight = self.arrays[x.array]
        value, symbols = weight.applied(x, now)
        value = arranged(value, ("replica", *symbols, UNIT), ("replica", *axes, UNIT))
        product: Array = value * (factor[..., None] if factor.ndim else factor)
        if x.own is not None:
            beside = weight.values(x.own, now)
            product = product * arranged(beside, ("replica", *x.own.symbols, UNIT), ("replica", *axes, UNIT))
        if not x.over:
            return product
        sizes = march.tables.size(x.over)
        whole = (*product.shape[: 1 + len(indices)], *sizes, product.shape[-1])
        total: Array = np.broadcast_to(product, whole).sum(
            axis=tuple(range(1 + len(indices), len(whole) - 1))
        )
        return total


class _EntryWeight:
    """One weight with an entrywise rule: the trained changes of its entries, and the states of its rule.

    The arrays have shape ``(replicas, members, paths, partners)``: members are values of the weight's own
    indices, and partners are paths of the other population or given coordinates, or one for a vector.
    """

    def __init__(self, march: PathMarch, array: EntryArray) -> None:
        self.march, self.array, self.rule = march, array, EntryRule.of(array.rule)
        sizes, known = march.tables.sizes, march.known
        self.members = march.tables.size(array.indices)
        row_paths, column_paths = (max(map(march.paths, nodes), default=1) for nodes in array.nodes)
        partners = known.arrays[array.given].shape[-1] if array.given else column_paths
        shape = (march.replicas, prod(self.members), row_paths, partners)
        self.V, self.states = np.zeros(shape), [np.zeros(shape) for _ in range(self.rule.states)]
        self.kernels = [TensorReader(known, x.kernel, (*array.indices, *x.over), sizes) for x in array.terms]
        motion = (array.rule.rate, array.rule.decay, array.inside)
        self.motion = [TensorReader(known, x, array.indices, sizes) for x in motion]
        self.numbers = [TensorReader(known, x, array.indices, sizes) for x in self.rule.numbers]

    def applied(self, x: EntrySum, now: int) -> tuple[Array, tuple[Symbol, ...]]:
        """Return the trained change of the weight times a vector, and the indices of the product.

        The product is the average over the paths (or coordinates) j of the vector v of ``V_ij v_j``, for each
        path i; its shape is ``(replicas, *indices, paths)``. ``x`` states the vector and whether V is
        transposed; if it has no vector the weight itself is returned. ``now`` is the step.
        """
        V, indices = self.V, self.array.indices
        if x.vector is None:
            return V[..., 0].reshape(len(V), *self.members, -1), indices
        values = self.values(x.vector, now)  # (replicas or 1, *symbols, j), with the sum over j below
        symbols = x.vector.symbols
        more = tuple(y for y in symbols if y not in indices)
        order = (*indices, *more)
        full = arranged(values, ("replica", *symbols, UNIT), ("replica", *order, UNIT))
        shape = (len(full), *self.members, *self.march.tables.size(more), full.shape[-1])
        rows = np.broadcast_to(full, shape).reshape(len(full), prod(self.members), -1, full.shape[-1])
        W = V if x.transposed else V.swapaxes(2, 3)
        product = rows @ W / W.shape[2]
        return product.reshape(len(V), *self.members, *self.march.tables.size(more), -1), order

    def values(self, v: EntryVector, now: int) -> Array:
        """Return a vector at step ``now``: paths of a field, or given data.

        The shape is ``(replicas or 1, *indices, paths or coordinates)``.
        """
        march = self.march
        if v.given:
            array = march.known.arrays[v.node[0]]
            at: list[Any] = [slice(None)] * array.ndim
            for axis, value in v.fixed:
                at[axis] = march.known.position(v.kernel, axis, value, array.shape[axis])
            if v.time_axis is not None:
                at[v.time_axis] = now
            data: Array = array[tuple(at)][None]
            return data
        paths = march.random[v.node][:, now]
        field_paths: Array = paths.reshape(len(paths), *march.tables.size(v.symbols), paths.shape[-1])
        return field_paths

    def sides(self, x: GradientTerm, reader: TensorReader, now: int) -> tuple[Array, Array | None]:
        """Return the factors (left, right) of a term of the gradient of all entries, for rows and columns.

        Each has shape ``(replicas or 1, members, summed, units)``, where ``summed`` counts the values of the
        indices of the sum, such as samples. If the right factor is given data, its first axis has length one,
        and its last axis counts coordinates. The gradient of entry ij is the sum of the products
        ``left[summed, i] right[summed, j]``. The second factor is None for a weight that is a vector. ``x``
        is the term, ``reader`` evaluates its kernel, and ``now`` is the step.
        """
        kernel = np.asarray(reader(now, now))
        left = self._along(x.own, x, now)
        left = left * (kernel[..., None] if kernel.ndim else kernel)
        return self._flat(left, x), None if x.other is None else self._flat(self._along(x.other, x, now), x)

    def _along(self, v: EntryVector, x: GradientTerm, now: int) -> Array:
        """Return the values of the vector ``v`` at step ``now``, with axes (replicas, indices, units).

        The indices are those of the weight, and then those over which the term ``x`` of its gradient sums; an
        index that v does not have is an axis of length one.
        """
        axes = (*self.array.indices, *x.over)
        return arranged(self.values(v, now), ("replica", *v.symbols, UNIT), ("replica", *axes, UNIT))

    def _flat(self, values: Array, x: GradientTerm) -> Array:
        """Return ``values`` with the axes (replicas, values of the weight's indices, summed indices, units).

        The indices of the weight are joined to one axis, and so are those over which the term ``x`` of its
        gradient sums.
        """
        whole = (*self.members, *self.march.tables.size(x.over))
        full = np.broadcast_to(values, (len(values), *whole, values.shape[-1]))
        return full.reshape(len(full), prod(self.members), -1, full.shape[-1])

    def advance(self, now: int) -> None:
        """Update every entry by one step, with the gradients at step ``now``, in blocks of rows."""
        pairs = [self.sides(x, r, now) for x, r in zip(self.array.terms, self.kernels, strict=True)]
        rate, decay, inside = (self._number(x, now) for x in self.motion)
        numbers = [self._number(x, now) for x in self.numbers]
        for replica in range(len(self.V)):
            for member in range(self.V.shape[1]):
                at = (replica, member)
                left, right = self._joined(pairs, at)
                scale = _at(rate, at) * _at(inside, at)
                if at == (0, 0) and len(left) > 1:
                    self._require_gradient(left, right, [_at(x, at) for x in numbers], now)
                self._move(at, left, right, (scale, _at(decay, at)), [_at(x, at) for x in numbers])

    def _number(self, reader: TensorReader, now: int) -> Array:
        """Return the value of a coefficient of the rule at step ``now``, shape (replicas or 1, members).

        ``reader`` evaluates the coefficient. Members are values of the weight's own indices.
        """
        value = np.asarray(reader(now, now), dtype=float)
        value = value.reshape(1) if not value.ndim else value
        lead = len(value)
        return np.broadcast_to(value, (lead, *self.members)).reshape(lead, -1)

    @staticmethod
    def _joined(pairs: list[tuple[Array, Array | None]], at: tuple[int, int]) -> tuple[Array, Array | None]:
        """Return two matrices whose product ``left^T right`` is the gradient of all entries of a weight.

        ``pairs`` are the two factors of each term of the gradient (:meth:`sides`). ``at`` is the pair
        (replica, member) for which the gradient is returned. The second matrix is None for a weight that is a
        vector.
        """
        left = np.concatenate([_of(x, at) for x, _ in pairs])
        if pairs[0][1] is None:
            return left, None
        return left, np.concatenate([_of(y, at) for _, y in pairs if y is not None])

    def _require_gradient(self, left: Array, right: Array | None, numbers: list[float], now: int) -> None:
        """Raise NotConverged if a gradient is only rounding and the rule still makes a visible step.

        ``left`` and ``right`` are the factors of the gradient, ``numbers`` the constants of the rule. Only
        the first block of rows is tested, and the states are those of the first replica and member.
        """
        rows = next(_blocks(self.V.shape[2:]))
        part = left[:, rows]
        gradient = part.sum(axis=0)[:, None] if right is None else part.T @ right
        one = np.ones(len(left)) if right is None else np.abs(right).max(axis=1)
        largest = float(np.abs(gradient).max())
        if not 0 < largest < CANCELLED * float(np.abs(part).max(axis=1) @ one):
            return
        *_, step = self.rule.function(gradient, *[x[0, 0][rows] for x in self.states], *numbers)
        if np.abs(step).max() > VISIBLE:
            raise NotConverged(
                f"the gradient of {self.array.weight} at step {now} is only a rounding error of "
                f"{largest:.1e}, for example because it is zero by symmetry, and {self.array.rule.name} "
                "makes a step from it; use samples that are not mirror images of each other, or a larger "
                "epsilon if the rule has one"
            )

    def _move(
        self,
        at: tuple[int, int],
        left: Array,
        right: Array | None,
        motion: tuple[float, float],
        numbers: list[float],
    ) -> None:
        """Update the entries of one replica and member, ``at``, by the rule.

        ``left`` has shape (summed, rows), ``right`` (summed, columns); ``left^T right`` is the gradient. For
        a vector ``right`` is None, and the gradient is the sum of ``left``. ``motion`` is the pair of the
        factor of a step and the weight decay, ``numbers`` the constants of the rule.
        """
        V, (scale, decay) = self.V[at], motion
        for rows in _blocks(V.shape):
            part = left[:, rows]
            gradient = part.sum(axis=0)[:, None] if right is None else part.T @ right
            old = [x[at][rows] for x in self.states]
            *new, step = self.rule.function(gradient, *old, *numbers)
            for x, value in zip(old, new, strict=True):
                x[...] = value
            here = V[rows]
            if decay:
                here *= 1 - decay
            here += scale * step


def _of(values: Array, at: tuple[int, int]) -> Array:
    """Return ``values[replica, member]`` for the pair ``at`` = (replica, member), an array.

    A first axis of length one serves all replicas.
    """
    replica, member = at
    member_values: Array = values[min(replica, len(values) - 1), member]
    return member_values


def _at(values: Array, at: tuple[int, int]) -> float:
    """Return ``values[replica, member]`` for the pair ``at`` = (replica, member), as a number.

    A first axis of length one serves all replicas.
    """
    replica, member = at
    return float(values[min(replica, len(values) - 1), member])


def _blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """Yield ranges of rows of an array of this shape, with about BLOCK entries in each."""
    size = max(1, BLOCK // shape[1])
    for first in range(0, shape[0], size):
        yield slice(first, min(first + size, shape[0]))
