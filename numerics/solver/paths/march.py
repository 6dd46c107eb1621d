"""March of sampled paths: all populations of some replicas, in one causal sweep over the steps.

Replicas differ in their paths and in their kernels; they are marched side by side, so that the overhead of a
step is shared. Arrays of quantities have shape ``(replicas, steps, entries, samples)``, with their indices
flattened into ``entries``; averages are stored, where possible, in the order of the products that give them,
``(replicas, t, indices at t, s, indices at s)``. :mod:`numerics.solver.paths.solve` prepares a march and
collects its results.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import Any
from weakref import proxy

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from numerics.arrays import PathArray, transposed
from numerics.errors import SMALLER, Diverged, Unserved, remedy_at_start
from numerics.lowering.entries import EntrySum
from numerics.lowering.expressions import KnownArrays, TensorReader, arranged
from numerics.lowering.indices import TIMES, IndexSymbols, indices_of, node_of
from numerics.lowering.quantities import (
    PastSum,
    PathCorrelation,
    PathEntry,
    PathResponse,
    Quantity,
    QuantityTables,
)
from numerics.names import MemberKey
from numerics.solver.paths.causal_order import (
    Model,
    derivative_paths,
    group_of,
    involved,
    moves,
    size_of,
    sources_now,
)
from numerics.solver.paths.entries import EntryWeights
from numerics.solver.paths.exchange import Asymmetry, orbits_of
from numerics.solver.paths.gaussian import Growing, Latents, Room
from numerics.solver.paths.parity import flipped, paired

Array = NDArray[np.float64]
PastQuantity = tuple[MemberKey, bool]
"""Quantity in a sum over the past, and whether it is read at the present only."""

REPLICA, PATH = Symbol("replica"), Symbol("path")
"""Axes of replicas and of paths."""

DAMPING = 10
"""Ridge in Stein's lemma, in units of the number of entries of a source over the square of the number of
paths.

Noise of a response adds to the variance of the fields that read it, in proportion to the entries for each
path; a ridge lowers this noise and smooths responses. Ten was chosen by measuring (tanh and relu, L = 3, 200
entries, 2, 4 and 8 paths for each entry): from 5 to 20 the bias of kernels is at most 3.4 standard errors of
32 replicas, and with a ridge of 1/paths up to nine (docs/theory/nonlinear.md).
"""


ALL = slice(None)

PANEL = 4
"""Number of source times whose derivatives are stored together.

A larger number makes matrix products larger, and adds zeros to them.
"""


@dataclass(frozen=True)
class AverageRecipe:
    """Computation of an order parameter or scalar of a theory from averages over paths.

    ``axes`` are the times and indices of its array in memory, in order, and ``sizes`` the lengths of these
    axes, zero for a time. ``averages`` are the averages in its expression, and ``reading`` evaluates the
    expression from them. A sum over indices of averages is again a recipe, whose axes begin with the summed
    indices.
    """

    axes: IndexSymbols
    sizes: tuple[int, ...]
    averages: tuple[PathCorrelation | PathResponse | AverageRecipe, ...]
    reading: TensorReader

    def shape(self, late: slice, early: slice) -> tuple[int, ...]:
        """Return the lengths of the axes, without replicas, if t runs over ``late`` and s over ``early``."""
        counts = iter((late.stop - late.start, early.stop - early.start))
        return tuple([n or next(counts) for n in self.sizes])

    def at(self, late: slice, early: slice) -> tuple[slice, ...]:
        """Return slices that select t in ``late`` and s in ``early`` from the array of this order parameter.

        The first axis of the array is that of replicas; there is one slice for each axis.
        """
        times = iter((late, early))
        return (ALL, *[ALL if n else next(times) for n in self.sizes])


@dataclass
class PastTerm:
    """Term ``sum_s k(t, s) x(s)`` of a field, with a kernel k and a quantity x at times s up to t.

    The kernel has the indices of the field, the time s unless ``present``, the summed indices ``inner`` that
    x has too, and last ``gone`` summed indices that x does not have; ``sizes`` are the lengths of the summed
    ones, ``entries`` the number of entries of x at one time. ``reading`` evaluates the kernel. If
    ``present``, the sum is only s = t. If ``steady``, the kernel does not depend on t; ``total`` is then the
    sum over the steps before ``done``.
    """

    memory: PastSum
    reading: TensorReader
    present: bool
    steady: bool
    inner: IndexSymbols
    sizes: tuple[int, ...]
    gone: int
    entries: int
    done: int = 0
    total: Any = 0.0


SMALL = 2.0**-20
"""Change of an average for numerical derivatives of scalars."""

FEW_PATHS = 0.25
"""If fewer than this share of paths are not finite, the average has heavy tails; otherwise it diverges."""

HEAVY_TAILS = (
    ", because {} of {} paths are not finite: the distribution has tails too heavy to be sampled, or its "
    "mean does not exist, so that a smaller learning rate may not help; a function that grows more slowly "
    "would do"
)


class PathMarch:
    """State of replicas that are marched together.

    ``samples`` are the numbers of paths of the replicas, of which the largest is stored. Normal numbers are
    ``matched`` as in :class:`~numerics.solver.paths.gaussian.Latents`. ``ridge`` is that of Stein's lemma; if
    it is None, it is DAMPING times the number of entries of a group of sources at all steps, at most the
    number of paths, over the square of the number of paths. With ``asymmetry`` the march follows a
    perturbation that breaks a symmetry.

    With ``whole``, all quantities are computed and stored at all steps, also those that no later step or
    average reads. Two-time correlations that no step reads are computed after the last step, or not at all
    without ``kernels``; those in ``watched`` are computed at every step.

    Responses in ``jacobian`` are averages of derivatives along paths: along all of them, or along two if all
    of these responses are those of linear functions. The others come from Stein's lemma.
    The ridge of the lemma mixes entries of a response whose sources are nearly equal. It changes fields by
    less than the sampling noise, but single entries of a response by up to their full size. So some responses
    are computed twice: with the ridge for the steps, and without it, into ``single``, for the result. The
    second values of those in ``again`` are derivatives along ``carriers`` of the paths; those in ``undamped``
    come from the lemma without a ridge, and are NaN if a source is a linear function of others. The
    derivatives of ``again`` read responses from ``single``, because a derivative of a field contains their
    single entries.

    Arrays with an axis of paths are on the device of ``room``, averages and kernels in NumPy's memory.
    """

    def __init__(  # noqa: PLR0913, PLR0915 - all arrays of a march are allocated from the same sizes
        self,
        model: Model,
        known: KnownArrays,
        steps: int,
        samples: Sequence[int],
        seeds: Sequence[np.random.SeedSequence],
        *,
        matched: bool,
        ridge: float | None,
        jacobian: frozenset[MemberKey],
        whole: bool,
        room: Room,
        watched: Set[MemberKey] = frozenset(),
        again: frozenset[MemberKey] = frozenset(),
        carriers: int = 0,
        undamped: frozenset[MemberKey] = frozenset(),
        kernels: bool = True,
        asymmetry: Asymmetry | None = None,
    ) -> None:
        self.model, self.known, self.device = model, known, room.device
        self.tables = tables = model.tables
        self.steps, self.samples, self.replicas = steps, max(samples), len(seeds)
        paths = np.array(samples)
        known.first |= tables.extents.first
        known.literals |= tables.literals
        later = model.afterwards - watched
        entries = {n: e for n, e in tables.entries.items() if kernels or n not in later} | tables.scalars
        asked = {
            group_of(model, c.source)
            for n, e in tables.entries.items()
            for c in e.averages.values()
            if isinstance(c, PathResponse) and n not in jacobian
        }
        self.constant = {i for i, g in enumerate(model.groups) if not moves(model, g)} - asked
        still = {n for i in self.constant for n in model.groups[i]}
        needed = {*tables.quantities} if whole else model.needed(entries.values())
        quantities = {n: q for n, q in tables.quantities.items() if n in needed}
        sizes = {n: q.sizes for n, q in quantities.items()}
        sizes |= {n: x for n, (_, x) in tables.sources.items()}
        sizes |= {n: () for n in tables.attributes}
        past = model.read_later(entries.values())
        still |= {*tables.attributes}
        self.units = {n: units_of(tables, n, known.data) for n in sizes}
        self.random: dict[MemberKey, PathArray] = {
            n: _history(
                (self.replicas, steps, prod(x), self.paths(n)), n not in still and (whole or n in past), room
            )
            for n, x in sizes.items()
        }
        for n, name in tables.attributes.items():
            blocks = np.repeat(known.arrays[name], self.samples)
            self.random[n][:, 0] = self.device.put(np.tile(blocks, self.paths(n) // len(blocks)))
        self.arrays: dict[MemberKey, Array] = {}
        axes = {n: _axes(e) for n, e in entries.items()}
        shapes = [[steps if x in TIMES else tables.sizes[x] for x in axes[n]] for n in entries]
        ends = np.cumsum([self.replicas * prod(x) for x in shapes])
        # one array for all order parameters, because large arrays get large pages of memory, which are faster
        every = np.full(ends[-1], np.nan)
        for (n, e), shape, part in zip(entries.items(), shapes, np.split(every, ends[:-1]), strict=True):
            array = self.arrays[n] = part.reshape(self.replicas, *shape)
            if e.is_response:
                array[...] = 0.0
            known.found[n] = written(e, axes[n], array)
        self.averaged = {n: self._averaged(e, axes[n]) for n, e in entries.items()}
        self.orbits, self.asymmetry = orbits_of(tables, entries, axes, known.arrays), asymmetry
        self.terms = {
            (n, x): [self.term(q, m, known) for m in ms]
            for n, q in quantities.items()
            for x, ms in q.memories.items()
        }
        self.leaves_of = {n: [self._leaf(q, x) for x in q.function.leaves] for n, q in quantities.items()}
        self.functions = {n: q.function.compiled(self.device) for n, q in quantities.items()}
        self.covariance_of = {(a, b): self._covariance(a, b) for g in model.groups for a in g for b in g}
        self.weights = EntryWeights(self) if tables.weights else None
        children = [seed.spawn(len(tables.populations)) for seed in seeds]
        in_pairs = [x and not any(n % 4 for n in samples) for x in paired(model)]
        signed = flipped(model)
        self.groups: dict[int, Growing] = {}
        for k, population in enumerate(tables.populations):
            dimensions = steps * sum(size_of(model, i) for i in population.groups)
            latents = Latents(samples, dimensions, [x[k] for x in children], matched, room, in_pairs[k])
            for i in population.groups:
                count, times = size_of(model, i), 1 if i in self.constant else steps
                usual = DAMPING * np.minimum(count * steps, paths) / paths**2 if ridge is None else ridge
                damping = usual if i in asked else 0.0
                self.groups[i] = Growing(latents, count, times, i in signed, damping, room)
        if asymmetry is not None:
            asymmetry.share_pivots(self.groups)
        order = model.order
        self.mirrored_nodes = {n for n, e in tables.entries.items() if _is_symmetric(e)}
        first = {op[1]: op for op in reversed(order)}
        self.order = [op for op in order if op[1] not in later and (op[0] != "quantity" or op[1] in needed)]
        self.order = [op for op in self.order if op[1] not in self.mirrored_nodes or op == first[op[1]]]
        self.afterwards = [n for n in tables.entries if n in later and kernels]
        self.seen: dict[MemberKey, list[Any]] = {}
        count = derivative_paths(model, jacobian, self.samples)
        self.tangents = Tangents(self, jacobian, count) if jacobian else None
        self.undamped = undamped
        self.moments_of: dict[tuple[MemberKey, int], tuple[int, PathArray]] = {}
        self.responses_of: dict[tuple[MemberKey, int, bool], tuple[tuple[int, int], Array]] = {}
        self.single = {n: np.zeros_like(self.arrays[n]) for n in again | undamped}
        responses = {n: written(tables.entries[n], axes[n], x) for n, x in self.single.items()}
        arrays = known.found | responses
        unmixed = KnownArrays(known.values, known.data, arrays, known.first, literals=known.literals)
        self.present: dict[tuple[MemberKey, int], list[int]] = {}
        self.again = Tangents(self, again, carriers, unmixed) if again else None

    def run(self, *after: Callable[[int], None]) -> None:
        """March all steps; after each, call each function of ``after`` with the number of completed steps.

        Raises Diverged if an average is not finite.
        """
        for now in range(self.steps):
            self.add_last_step(now)
            for kind, node in self.order:
                if kind == "draw":
                    self.draw(node[1][0], now)
                elif kind == "quantity":
                    self.quantity(self.tables.quantities[node], now)
                elif kind == "response":
                    self.response(self.tables.entries[node], now)
                elif kind == "scalar":
                    self.average(self.tables.scalars[node], "now", now)
                else:
                    self.average(self.tables.entries[node], kind, now)
            for tangents in (self.tangents, self.again):
                if tangents is not None:
                    tangents.finish(now)
            if self.weights is not None:
                self.weights.advance(now)
            for call in after:
                call(now + 1)
        every = slice(0, self.steps)
        for n in self.afterwards:
            self.store(self.tables.entries[n], every, every, self.evaluated(self.averaged[n], every, every))

    def paths(self, node: MemberKey) -> int:
        """Return the number of paths of a field or source, given by its key (name, integer indices).

        It is ``samples`` times the number of units with given attributes in its population, and ``samples``
        for a population without attributes.
        """
        return self.units[node] * self.samples

    # -- sources ---------------------------------------------------------------------------------------

    def draw(self, index: int, now: int) -> None:
        """Draw the sources of block ``index`` at step ``now``, conditional on earlier values of their group.

        A block is a set of sources that are drawn at once; a group is the set of all sources correlated with
        them. Sources that are constant in time are drawn only at step 0, unless responses to them follow from
        Stein's lemma.
        """
        nodes = self.model.blocks[index]
        group = group_of(self.model, nodes[0])
        if group in self.constant and now:
            return
        blocks = [self.covariances(a, self.model.groups[group], now) for a in nodes]
        covariances = blocks[0] if len(nodes) == 1 else np.concatenate(blocks, axis=1)
        past, present = covariances[:, :, :now].reshape(*covariances.shape[:2], -1), covariances[:, :, now]
        # If the block is only a part of its group, its sources are also conditional on those sources of the
        # group that were drawn before in this step, which are therefore appended to the past.
        if present.shape[1] < present.shape[2]:
            start = sum(prod(self.tables.sources[n][1]) for n in self.model.before(nodes))
            past = np.concatenate([past, present[:, :, :start]], axis=2)
            present = present[:, :, start : start + present.shape[1]]
        values = self.groups[group].extend(past, present)
        at = 0
        for n in nodes:
            count = prod(self.tables.sources[n][1])
            self.random[n][:, now] = self._for_units(n, values[:, at : at + count])
            at += count

    def _for_units(self, node: MemberKey, values: PathArray) -> PathArray:
        """Return the drawn values of a source, repeated for each unit that has given attributes.

        ``values`` has shape (replicas, entries, samples), the result (replicas, entries, units times
        samples).
        """
        count = self.units[node]
        return values if count == 1 else self.device.namespace.tile(values, (1, 1, count))

    def _over_units(self, values: PathArray, paths: int) -> PathArray:
        """Return the mean of values over units with given attributes.

        The last axis of ``values`` has units times ``paths`` entries, that of the result ``paths``.
        """
        if values.shape[-1] == paths:
            return values
        blocks = values.reshape(*values.shape[:-1], -1, paths)
        return self.device.namespace.mean(blocks, axis=blocks.ndim - 2)

    def _covariance(self, a: MemberKey, b: MemberKey) -> tuple[TensorReader | None, bool]:
        """Return the reader of the covariance ``<a(t) b(s)>`` of two sources, and whether t is the time of a.

        If the theory states ``<b(t) a(s)>`` instead, that is returned with False. The axes are the indices of
        ``a``, a time, and the indices of ``b``. The result is (None, True) if the sources are independent.
        """
        sizes = self.tables.sizes
        if (a, b) in self.tables.covariances:
            c = self.tables.covariances[a, b]
            return TensorReader(self.known, c.expr, (*c.first, s, *c.second), sizes), True
        if (b, a) in self.tables.covariances:
            c = self.tables.covariances[b, a]
            return TensorReader(self.known, c.expr, (*c.second, t, *c.first), sizes), False
        return None, True

    def covariances(self, a: MemberKey, nodes: tuple[MemberKey, ...], now: int) -> Array:
        """Return ``<a(now) b(s)>`` of a source ``a`` with each source b in ``nodes``, for s = 0..now.

        The shape is (replicas, entries of ``a``, now + 1, entries of all b).
        """
        blocks, times = [], slice(0, now + 1)
        first = self.tables.sources[a][1]
        for b in nodes:
            second = self.tables.sources[b][1]
            reading, later = self.covariance_of[a, b]
            value = 0.0 if reading is None else reading(now, times) if later else reading(times, now)
            block = _broadcast(value, (self.replicas, *first, now + 1, *second))
            blocks.append(block.reshape(self.replicas, prod(first), now + 1, prod(second)))
        return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=3)

    # -- quantities ------------------------------------------------------------------------------------

    def quantity(self, q: Quantity, now: int) -> None:
        """Compute and store the field or function of fields ``q`` at step ``now``, on every path."""
        self.seen[q.node] = leaves = self.leaves(q, now)
        value = self.functions[q.node](*leaves)
        here = self.random[q.node][:, now]
        full = self.device.broadcast(value, (self.replicas, *q.sizes, self.paths(q.node)))
        here[...] = full.reshape(here.shape)

    def _leaf(self, q: Quantity, x: Expr) -> list[PastTerm] | EntrySum | TensorReader | PathArray:
        """Return the form in which a variable ``x`` in the expression of the quantity ``q`` is evaluated.

        It is a list of terms for a sum over the past, a weight with an entrywise rule times a vector, a
        reader of numbers that are equal on all paths, or the array of another quantity on the paths.
        """
        if x in q.entries:
            return q.entries[x]
        if x in q.memories:
            return self.terms[q.node, x]
        if not (isinstance(x, AppliedUndef) and self.tables.is_random(x)):
            return TensorReader(self.known, x, q.indices, self.tables.sizes)
        paths, symbols = self.random[self.tables.node(x)], indices_of(x)
        if self.tables.is_at_zero(x):
            paths = paths[:, :1]
        shaped = paths.reshape(*paths.shape[:2], *self.tables.size(symbols), paths.shape[-1])
        return arranged(shaped, (REPLICA, t, *symbols, PATH), (REPLICA, t, *q.indices, PATH))

    def leaves(self, q: Quantity, now: int) -> list[Any]:
        """Return the values at step ``now`` of all variables in the expression of the quantity ``q``.

        The variables are other quantities, sums over the past, weights times vectors, and numbers. Each value
        is broadcastable to (replicas, one axis for each index of q, paths).
        """
        values: list[Any] = []
        for x in self.leaves_of[q.node]:
            if isinstance(x, list):
                values.append(self.memory(q, x, now))
            elif isinstance(x, EntrySum):
                assert self.weights is not None
                values.append(self.weights.applied(x, q.indices, now))
            elif isinstance(x, TensorReader):
                value = x(now)
                values.append(self.device.put(value[..., None]) if np.ndim(value) else value)
            else:
                values.append(x[:, now if x.shape[1] > 1 else 0])
        return values

    def spread(self, values: PathArray, symbols: tuple[Symbol, ...], own: tuple[Symbol, ...]) -> PathArray:
        """Return values with the indices ``symbols``, reshaped to broadcast along the indices ``own``.

        ``values`` has shape (replicas, entries, ...), where entries are the values of ``symbols`` flattened;
        later axes are kept. ``symbols`` is a subset of ``own``, in any order. The result has one axis for
        each index in ``own``: of full length if the index is in ``symbols``, of length one otherwise.
        """
        shaped = values.reshape(len(values), *self.tables.size(symbols), *values.shape[2:])
        rest = range(values.ndim - 2)
        return arranged(shaped, (REPLICA, *symbols, *rest), (REPLICA, *own, *rest))

    def term(self, q: Quantity, m: PastSum, known: KnownArrays) -> PastTerm:
        """Return a term of a sum over the past in the field ``q``, prepared for evaluation in each step.

        ``m`` is the term, ``sum_s k(t, s) x(s)``; the order parameters and data in its kernel k are read from
        ``known``.
        """
        inner = tuple(x for x in m.symbols if x in m.over)
        gone = tuple(x for x in m.over if x not in m.symbols)
        time = () if m.reach == "now" else (s,)
        size = self.tables.size
        reading = TensorReader(known, m.kernel, (*q.indices, *time, *inner, *gone), self.tables.sizes)
        sizes, entries = size((*inner, *gone)), prod(size(m.symbols))
        return PastTerm(m, reading, not time, m.steady, inner, sizes, len(gone), entries)

    def pasts(
        self, q: Quantity, terms: Sequence[PastTerm], now: int, *, steady: bool
    ) -> dict[PastQuantity, Array]:
        """Return the kernels k(now, s) of a sum over the past in the field ``q``, by quantity multiplied.

        The keys are pairs of the key of the quantity and whether only s = now is read. Kernels that multiply
        the same quantity are added. Each has shape (replicas, entries of q, times s, entries of the
        quantity), with one entry of q if all are equal. Kernels that do not depend on t are included only if
        ``steady`` is true.
        """
        kernels: dict[PastQuantity, Array] = {}
        for term in terms:
            if term.steady and not steady:
                continue
            upto = now + 1 if term.memory.through else now
            times = slice(now if term.present else 0, upto)
            kernel, past = self.kernel(q, term, times, now), (term.memory.quantity, term.present)
            if past in kernels:
                long, short = sorted((kernels[past], kernel), key=lambda k: -k.shape[2])
                rows = max(long.shape[1], short.shape[1])
                kernel = np.broadcast_to(long, (len(long), rows, *long.shape[2:])).copy()
                kernel[:, :, : short.shape[2]] += short
            kernels[past] = kernel
        return kernels

    def kernel(self, q: Quantity, term: PastTerm, times: slice, now: int) -> Array:
        """Return the kernel k(now, s) of a term ``sum_s k(now, s) x(s)`` in a field ``q``, s in ``times``.

        The shape is (replicas, entries of q or 1, times, entries of x), where entries are the values of all
        indices, flattened.
        """
        indices, sizes, symbols = q.indices, q.sizes, term.memory.symbols
        value = np.asarray(term.reading(now, times))
        first, ndim = 1 + len(indices), 2 + len(indices) + len(term.sizes)
        if value.ndim == ndim - 1:
            value = np.expand_dims(value, first)
        if len(term.inner) == len(symbols) and all(n == 1 for n in value.shape[1:first]):
            sizes = (1,) * len(indices)
        count = times.stop - times.start
        full = _broadcast(value, (self.replicas, *sizes, count, *term.sizes))
        if term.gone:
            full = full.sum(axis=tuple(range(ndim - term.gone, ndim)))
        # `symbols` are the indices of the quantity that the kernel multiplies, and `term.inner` those that
        # are summed over. Any other index in `symbols` is also an index of the field q: the kernel gets a
        # second axis for it, in which it is diagonal.
        if len(term.inner) < len(symbols):
            left = list(term.inner)
            for x in symbols:
                if x not in left:
                    full = full[..., None] * _diagonal(1 + indices.index(x), full.ndim, self.tables.sizes[x])
                    left.append(x)
            axes = (*range(first + 1), *[first + 1 + left.index(x) for x in symbols])
            full = full.transpose(axes)
        return full.reshape(self.replicas, prod(sizes), count, term.entries)

    def memory(self, q: Quantity, terms: Sequence[PastTerm], now: int) -> Any:
        """Return ``sum_s k(now, s) x(s)``, the sum over the past in a field ``q``, from its ``terms``.

        The result is broadcastable to (replicas, one axis for each index of q, paths); it is 0.0 if nothing
        is summed.
        """
        total: Any = 0.0
        for (what, present), kernel in self.pasts(q, terms, now, steady=False).items():
            if kernel.shape[2]:
                more = self.applied(kernel, what, now if present else 0)
                total = more + total if np.ndim(total) else more
        for term in terms:
            if term.steady and term.memory.through:
                self.add_step(q, term, now)
            if term.done:
                total = term.total + total if np.ndim(total) else term.total
        if not np.ndim(total):
            return total
        sizes = q.sizes if total.shape[1] > 1 else [1] * len(q.sizes)
        return total.reshape(self.replicas, *sizes, total.shape[-1])

    def add_last_step(self, now: int) -> None:
        """Add the values of step ``now - 1`` to the running sums over the past that exclude the present.

        This is done before a value of step ``now`` replaces one of the last step: quantities that only
        running sums read are not stored for longer.
        """
        if now:
            for (node, _), terms in self.terms.items():
                for term in terms:
                    if term.steady and not term.memory.through:
                        self.add_step(self.tables.quantities[node], term, now - 1)

    def add_step(self, q: Quantity, term: PastTerm, step: int) -> None:
        """Add the values at a step to the running sum of a steady ``term`` in the field ``q``."""
        kernel = self.kernel(q, term, slice(step, step + 1), step)
        term.total = term.total + self.applied(kernel, term.memory.quantity, step)
        term.done = step + 1

    def applied(self, kernel: Array, what: MemberKey, start: int) -> PathArray:
        """Return ``sum_s k(s) x(s)`` for a kernel k from time ``start`` on and a field or source x on paths.

        ``what`` is the key (name, indices) of x. ``kernel`` has shape (replicas, rows, times, entries of x),
        the result (replicas, rows, paths).
        """
        past = self.random[what][:, start : start + kernel.shape[2]]
        rows = self.device.put(kernel.reshape(*kernel.shape[:2], -1))
        return rows @ past.reshape(self.replicas, -1, past.shape[-1])

    # -- averages --------------------------------------------------------------------------------------

    def _averaged(self, e: PathEntry, axes: tuple[Symbol, ...]) -> AverageRecipe:
        """Return how the order parameter or scalar ``e`` is computed from averages over paths.

        ``axes`` are the times and indices of its array in memory, in order.
        """
        inner = [self._averaged(x, (*x.indices[: len(x.args) - len(e.args)], *axes)) for x in e.sums.values()]
        reading = TensorReader(self.known, e.expr, axes, self.tables.sizes, (*e.averages, *e.sums))
        sizes = tuple(0 if x in TIMES else self.tables.sizes[x] for x in axes)
        return AverageRecipe(axes, sizes, (*e.averages.values(), *inner), reading)

    def average(self, e: PathEntry, kind: str, now: int) -> None:
        """Compute and store the scalar ``e``, or the order parameter ``e(t, s)`` at one step.

        ``kind`` is "row" for t = now and s < now, "column" for t < now and s = now, "now" for t = s = now.
        Each kind stores all of these values of a symmetric correlation (:meth:`mirrored`).
        """
        if e.node in self.mirrored_nodes:
            self.mirrored(e, now)
            return
        if kind in ("row", "column") and (now == 0 or not e.two_times):
            return
        here, before = slice(now, now + 1), slice(0, now)
        late, early = (before, here) if kind == "column" else (here, here if kind == "now" else before)
        self.store(e, late, early, self.evaluated(self.averaged[e.node], late, early))

    def evaluated(self, e: AverageRecipe, late: slice, early: slice) -> Array:
        """Return an order parameter or scalar ``e`` for t in ``late``, s in ``early``, averaged over paths.

        The first axis is that of replicas; the others are ``e.axes``, its times and indices.
        """
        return self.made(e, late, early, self.averages_in(e, late, early))

    def averages_in(self, e: AverageRecipe, late: slice, early: slice) -> list[Array]:
        """Return the averages over paths from which ``e``, an order parameter or scalar, is computed.

        They are those in its expression, in order, for t in ``late`` and s in ``early``; each has replicas on
        the first axis.
        """
        given: list[Array] = []
        for c in e.averages:
            if isinstance(c, AverageRecipe):
                extra = range(1, 1 + len(c.axes) - len(e.axes))
                given.append(self.evaluated(c, late, early).sum(axis=tuple(extra)))
            else:
                given.append(self.correlate(e, c, late, early))
        return given

    def made(self, e: AverageRecipe, late: slice, early: slice, given: Sequence[Array]) -> Array:
        """Return the order parameter or scalar ``e`` from values of the averages in its expression.

        ``given`` are the values of averages over paths, in the order in which ``e`` lists them. t runs over
        ``late`` and s over ``early``; the first axis of the result is that of replicas.
        """
        return _broadcast(e.reading(late, early, given), (self.replicas, *e.shape(late, early)))

    @property
    def cut(self) -> float:
        """Largest negative variance of a source, given the past, that was set to zero.

        It is relative to the variance of the source; the largest of all replicas and groups of sources.
        """
        return float(max((g.cut.max() for g in self.groups.values()), default=0.0))

    def rounding(self) -> float:
        """Return an estimate of the absolute rounding error of the scalars at the last step, largest of all.

        A scalar ``F(<X>)`` has about ``F' eps (<X^2> / paths)^(1/2)``. This is large if the slope F' is
        large: an output contains ``1/gamma0``.
        """
        largest, now = 0.0, slice(self.steps - 1, self.steps)
        for n in self.tables.scalars:
            e = self.averaged[n]
            given = self.averages_in(e, now, now)
            base = self.made(e, now, now, given)
            for k, average in enumerate(e.averages):
                moved = [*given[:k], given[k] + SMALL, *given[k + 1 :]]
                for c in average.averages if isinstance(average, AverageRecipe) else (average,):
                    if not isinstance(c, PathCorrelation):
                        continue
                    change = np.abs(self.made(e, now, now, moved) - base).max() / SMALL
                    for x in c.factors:
                        paths = self.random[x][:, -1:]
                        squares = self.device.namespace.einsum("rtis,rtis->rti", paths, paths)
                        change *= np.sqrt(self.device.take(squares).max())
                        change /= np.sqrt(paths.shape[-1])
                    largest = max(largest, float(np.finfo(float).eps * change / np.sqrt(self.samples)))
        return largest

    def mirrored(self, e: PathEntry, now: int) -> None:
        """Compute and store a symmetric correlation ``e``, ``<X(t) X(s)>`` of one field X, at step ``now``.

        It is computed for t = now and s <= now, and copied to t <= now and s = now with the indices
        exchanged.
        """
        recipe, late, early = self.averaged[e.node], slice(now, now + 1), slice(0, now + 1)
        row = self.store(e, late, early, self.evaluated(recipe, late, early))
        if now:
            half = row.ndim // 2
            column = row.transpose(0, *range(1 + half, row.ndim), *range(1, 1 + half))
            self.arrays[e.node][recipe.at(early, late)] = column

    def symmetric(self, e: PathEntry, late: slice, early: slice, full: Array) -> Array:
        """Return values ``full`` of ``e``, averaged over permutations of exchangeable index values.

        ``e`` is an order parameter or scalar; ``late`` and ``early`` are the times t and s of the values. If
        the march follows a perturbation that breaks this symmetry, the perturbation is added to the average
        (:class:`~numerics.solver.paths.exchange.Asymmetry`).
        """
        if e.node not in self.orbits:
            return full
        average = self.orbits[e.node].averaged(full)
        if self.asymmetry is None:
            return average
        return self.asymmetry.passed(e.node, late, early, full, average)

    def store(self, e: PathEntry, late: slice, early: slice, full: Array) -> Array:
        """Store values of ``e`` at times ``late`` x ``early``, averaged over symmetries, and return them.

        Raises Diverged if they are not finite.
        """
        if not np.isfinite(full.sum()):
            when = 1 + self.averaged[e.node].axes.index(t)
            finite = np.isfinite(full).all(axis=tuple(k for k in range(full.ndim) if k != when))
            step = late.start + int(np.argmin(finite))
            heavy = self._heavy_tails(e, step) if late.stop == late.start + 1 else ""
            remedy = SMALLER if step else remedy_at_start(full)
            said = f"{e.node[0]} is not finite at step {step}{heavy or '; ' + remedy}"
            raise Diverged(said, start=step == 0, step=step)
        full = self.symmetric(e, late, early, full)
        self.arrays[e.node][self.averaged[e.node].at(late, early)] = full
        return full

    def _heavy_tails(self, e: PathEntry, step: int) -> str:
        """Return a message if the average ``e`` is infinite at ``step`` because of a few paths only.

        This is so if the square of a quantity in ``e`` is not finite on less than the fraction FEW_PATHS of
        the paths. The result is "" otherwise.
        """
        for c in self.averaged[e.node].averages:
            if not isinstance(c, PathCorrelation):
                continue
            for node in c.factors:
                paths = np.asarray(self.device.take(self.random[node][:, step]))
                squares = np.where(np.isfinite(paths), paths, np.inf) ** 2
                wrong = ~np.isfinite(squares).all(axis=(0, 1))
                if 0 < wrong.sum() < FEW_PATHS * wrong.size:
                    return HEAVY_TAILS.format(int(wrong.sum()), wrong.size)
        return ""

    def correlate(
        self, e: AverageRecipe, c: PathCorrelation | PathResponse, late: slice, early: slice
    ) -> Array:
        """Return the average ``c`` over paths, such as ``<X(t) Y(s)>``, t in ``late``, s in ``early``.

        ``e`` is the order parameter or scalar whose expression contains it. The axes are replicas, and then
        those of ``e``, times and indices.
        """
        assert isinstance(c, PathCorrelation)
        x = self.random[c.first][:, late]
        if c.second is None:
            mean = self.device.take(self.device.namespace.mean(x, axis=3))
            return self.arranged(e, mean, c.first_symbols)
        y = self.random[c.second][:, late if c.one_time else early]
        # Two independent quantities may have different numbers of paths: one has `paths` paths for each unit
        # with given attributes, the other has `paths` in all. Only the first one is then averaged over units.
        paths = min(x.shape[-1], y.shape[-1])
        x, y = self._over_units(x, paths), self._over_units(y, paths)
        if c.one_time:
            each = self.device.take(x @ transposed(y)) / paths
            return self.arranged(e, each, (*c.first_symbols, *c.second_symbols))
        flat = self._products(*(z.reshape(self.replicas, -1, paths) for z in (x, y)))
        flat /= paths
        both = flat.reshape(*x.shape[:3], *y.shape[1:3])
        return self.arranged(e, both, c.first_symbols, c.second_symbols)

    def _products(self, x: PathArray, y: PathArray) -> Array:
        """Return ``sum_i x_ai y_bi`` for each replica, shape (replicas, a, b); i are the paths.

        The factor with fewer rows comes first in the product, which is up to twice as fast.
        """
        if x.shape[1] > y.shape[1]:
            return self._products(y, x).transpose(0, 2, 1)
        return self.device.take(x @ transposed(y))

    def arranged(
        self, e: AverageRecipe, values: Array, first: IndexSymbols, second: IndexSymbols | None = None
    ) -> Array:
        """Return averages with their axes in the order of the recipe ``e``, replicas first.

        ``values`` has shape (replicas, times t, entries), or (replicas, times t, entries, times s, entries)
        if there are ``second`` indices; ``first`` and ``second`` are the indices that are flattened into the
        entries. Raises ValueError if one of these is not an axis of ``e``.
        """
        lead = (t, *first) if second is None else (t, *first, s, *second)
        if lead != e.axes and {*lead} - {*e.axes}:
            raise ValueError(
                f"an average with the axes {lead} has an index that its order parameter, with the axes "
                f"{e.axes}, does not have"
            )
        more = () if second is None else (values.shape[3], *self.tables.size(second))
        shaped = values.reshape(*values.shape[:2], *self.tables.size(first), *more)
        return shaped if lead == e.axes else arranged(shaped, (REPLICA, *lead), (REPLICA, *e.axes))

    def response(self, e: PathEntry, now: int) -> None:
        """Compute and store the response ``e`` at step ``now`` to sources at times s < now, or s <= now.

        The second holds for responses that the theory does not mark as strictly causal.
        """
        count = now if e.causal == "strict" else now + 1
        if count == 0:
            return
        carried = self.tangents if self.tangents is not None and e.node in self.tangents.wanted else None
        late, early = slice(now, now + 1), slice(0, count)
        self.store(e, late, early, self.responded(e, carried, now, count))
        if e.node in self.single:
            part = self.averaged[e.node].at(late, early)
            again = None if e.node in self.undamped else self.again
            self.single[e.node][part] = self.responded(e, again, now, count, damped=False)
            if e.node in self.orbits:
                self.single[e.node][part] = self.orbits[e.node].averaged(self.single[e.node][part])

    def responded(
        self, e: PathEntry, carried: Tangents | None, now: int, count: int, *, damped: bool = True
    ) -> Array:
        """Return the response ``e`` at step ``now`` to sources at the first ``count`` times, replicas first.

        It is the average of the derivatives ``carried`` along paths. If these are None it follows from
        Stein's lemma, with a ridge added to the covariance if ``damped`` is true.
        """
        recipe, given = self.averaged[e.node], []
        for c in e.averages.values():
            assert isinstance(c, PathResponse)
            response = self.responding(c, carried, now, count, damped=damped)
            given.append(self.arranged(recipe, response, c.symbols, c.source_symbols))
        return self.made(recipe, slice(now, now + 1), slice(0, count), given)

    def read_now(self, what: MemberKey, group: int) -> list[int]:
        """Return the positions of the sources that the quantity ``what`` reads at its own time.

        The positions count the sources of a group at one step, one for each value of their indices. ``group``
        is the position of the group in ``model.groups``.
        """
        if (what, group) not in self.present:
            nodes, read = self.model.groups[group], sources_now(self.model, what, group)
            sizes = [prod(self.tables.sources[n][1]) for n in nodes]
            starts = accumulate(sizes, initial=0)
            some = [(k, m) for n, m, k in zip(nodes, sizes, starts, strict=False) if n in read]
            self.present[what, group] = [k + i for k, m in some for i in range(m)]
        return self.present[what, group]

    def moments(self, what: MemberKey, index: int, now: int) -> PathArray:
        """Return ``<X(now) z>`` for a quantity X, with the key ``what``, and normal numbers z of sources.

        ``index`` is the number of the group of sources. The values of a step are kept, because the responses
        to all sources of the group use them; if sources were drawn since, only the average with their normal
        numbers is added.
        """
        group = self.groups[index]
        step, moments = self.moments_of.get((what, index), (-1, None))
        if step == now and moments.shape[2] == group.width:
            return moments
        start = moments.shape[2] if step == now else 0
        added = group.moments(self._over_units(self.random[what][:, now], self.samples), start)
        moments = self.device.namespace.concatenate([moments, added], axis=2) if start else added
        self.moments_of[what, index] = now, moments
        return moments

    def by_stein(self, what: MemberKey, index: int, now: int, *, damped: bool) -> Array:
        """Return ``<d X(now) / d source>`` by Stein's lemma, for a quantity X and all sources of a group.

        ``what`` is the key of X, ``index`` the number of the group; a ridge is added to the covariance if
        ``damped``. The shape is (replicas, entries of X, times s times entries of the group). The times s are
        those before ``now``, and ``now`` itself for the sources that X reads at its own time. The values of a
        step are kept until more sources of the group are drawn.
        """
        group = self.groups[index]
        state, responses = self.responses_of.get((what, index, damped), ((-1, -1), None))
        if state != (now, group.count) or responses is None:
            # Stein's lemma is applied to past sources, and to those sources of this step that the quantity
            # reads. With all sources of this step, the response to a source that is constant in time would be
            # divided between past and present.
            present = [now * group.size + k for k in self.read_now(what, index)]
            moments = self.moments(what, index, now)
            responses = group.responses(moments, now * group.size, present, damped=damped)
            self.responses_of[what, index, damped] = (now, group.count), responses
        return responses

    def responding(
        self, c: PathResponse, carried: Tangents | None, now: int, count: int, *, damped: bool
    ) -> Array:
        """Return ``<d X(now) / d source(s)>`` for X and the source of ``c``, at the times s < ``count``.

        The shape is (replicas, 1, entries of X, count, entries of the source). It is the average of the
        derivatives ``carried`` along paths, or without them follows from Stein's lemma, with its ridge if
        ``damped``.
        """
        index = group_of(self.model, c.source)
        group, nodes = self.groups[index], self.model.groups[index]
        if carried is not None:
            responses = carried.mean(c.quantity, index, now, count)
        else:
            seen = self.by_stein(c.quantity, index, now, damped=damped)
            responses = np.zeros((*seen.shape[:2], count * group.size))
            both = min(seen.shape[2], responses.shape[2])
            responses[..., :both] = seen[..., :both]
        before = sum(prod(self.tables.sources[n][1]) for n in nodes[: nodes.index(c.source)])
        mine = slice(before, before + prod(self.tables.sources[c.source][1]))
        return responses.reshape(len(responses), 1, responses.shape[1], count, -1)[..., mine]


def units_of(tables: QuantityTables, node: MemberKey, data: Mapping[str, Any]) -> int:
    """Return the number of units for which a quantity is sampled separately: those with given attributes.

    It is the length of the attributes of its population, and 1 for a population without attributes.

    Raises ValueError for an attribute that ``data`` does not hold as a vector, and Unserved if attributes of
    one population have different lengths.
    """
    attributes = tables.attributes_of.get(node, ())
    for name in attributes:
        if name not in data or np.ndim(data[name]) != 1:
            raise ValueError(
                f"data must hold {name} as an array with one number for each unit of its population"
            )
    counts = {name: len(data[name]) for name in attributes}
    if len({*counts.values()}) > 1:
        raise Unserved(
            "the attributes of one population must have one number for each unit, but their lengths differ: "
            f"{counts}"
        )
    return max(counts.values(), default=1)


def _history(shape: tuple[int, ...], whole: bool, room: Room) -> PathArray:
    """Return an array of NaN for values at all steps, shape (replicas, steps, entries, paths).

    If ``whole`` is false, only one step is in memory: all steps are views of the same values.
    """
    history = room.take(*(shape if whole else (shape[0], 1, *shape[2:])))
    history[...] = np.nan
    return history if whole else room.device.overlaid(history, shape)


def _axes(e: PathEntry) -> IndexSymbols:
    """Return the axes of the array of an order parameter or scalar in memory.

    They are t, indices at t, s, indices at s, as the product over paths gives them, if these are all indices
    of ``e``; otherwise they are in the order in which ``e`` is written; if ``e`` depends on one time, t comes
    first.
    """
    for c in e.averages.values():
        if isinstance(c, PathCorrelation):
            both = c.second_symbols if c.one_time else (s, *c.second_symbols) if e.two_times else ()
            axes = (t, *c.first_symbols, *both)
        else:
            axes = (t, *c.symbols, s, *c.source_symbols)
        if len(axes) == len(e.args) and set(axes) == set(e.args):
            return axes
    return e.args if e.two_times else (t, *e.indices)


def written(e: PathEntry, axes: IndexSymbols, array: Array) -> Array:
    """Return the array of an order parameter ``e`` with its axes in the order of its arguments.

    The axes of ``array`` are replicas and then ``axes``. In the result, for example that of
    ``Phi(mu, alpha, t, s)``, replicas come last. It is a view.
    """
    return array.transpose(*(1 + axes.index(x) for x in e.args), 0)


def _is_symmetric(e: PathEntry) -> bool:
    """Return whether ``e`` is ``<X_i(t) X_j(s)>`` of one quantity X, for all pairs of its indices i and j.

    It is false for averages with equal indices, such as ``<X_i(t) X_i(s)>``.
    """
    c = e.averages.get(e.expr)
    return (
        isinstance(c, PathCorrelation)
        and c.two_times
        and c.first == c.second
        and len(_axes(e)) == 2 * (1 + len(c.first_symbols))
    )


def _broadcast(value: Any, shape: tuple[int, ...]) -> Array:
    """Return ``value`` as an array broadcast to ``shape``.

    A value that has this shape already is returned as it is, because :func:`numpy.broadcast_to` is slow.
    """
    if np.shape(value) == shape:
        return np.asarray(value)
    view: Array = np.broadcast_to(value, shape)
    return view


def _diagonal(axis: int, ndim: int, size: int) -> Array:
    """Return an identity matrix of this size along ``axis`` and a new last axis, after ``ndim`` axes.

    All other axes have length one.
    """
    return np.eye(size).reshape([size if k in (axis, ndim) else 1 for k in range(ndim + 1)])


# -- responses from derivatives by the sources along each path ----------------------------------------------


class Tangents:
    """Derivatives of quantities by sources along each path, which give the responses in ``wanted``.

    For a quantity and a group of sources, derivatives at step ``now`` have shape (replicas, entries of the
    quantity, (now + 1) times entries of the group, paths), where the third axis orders the sources by time.
    Derivatives that sums over the past read are stored in panels of ``PANEL`` source times, each from the
    first of these times on. They are carried along ``paths`` of the paths: the first ones, and their mirror
    images. Order parameters in the derivatives are read from ``unmixed`` if it is given, and from the march
    otherwise.
    """

    def __init__(
        self, march: PathMarch, wanted: frozenset[MemberKey], paths: int, unmixed: KnownArrays | None = None
    ) -> None:
        # a weak reference, because a cycle of references would keep all arrays in memory
        self.march: PathMarch = proxy(march)
        self.wanted, self.samples = wanted, paths
        model, tables = march.model, march.tables
        self.ways: dict[MemberKey, dict[int, None]] = {}
        for n in wanted:
            for c in tables.entries[n].averages.values():
                assert isinstance(c, PathResponse)
                group = group_of(model, c.source)
                for x in involved(model, c.quantity, group):
                    self.ways.setdefault(x, {})[group] = None
        self.kept = {m.quantity for q in tables.quantities.values() for ms in q.memories.values() for m in ms}
        self.panels: dict[tuple[MemberKey, int], list[PathArray]] = {}
        self.current: dict[tuple[MemberKey, int], tuple[int, PathArray]] = {}
        self.first: dict[tuple[MemberKey, int], PathArray | None] = {}
        """Derivatives at time zero of the fields whose values at time zero are read later."""
        self.device = march.device
        self.terms, self.readings = march.terms, {}
        if unmixed is not None:
            around = [tables.quantities[n] for n in self.ways]
            self.terms = {
                (q.node, x): [march.term(q, m, unmixed) for m in ms]
                for q in around
                for x, ms in q.memories.items()
            }
            self.readings = {
                (q.node, i): TensorReader(unmixed, x, q.indices, tables.sizes)
                for q in around
                for i, x in enumerate(q.function.leaves)
                if isinstance(march.leaves_of[q.node][i], TensorReader)
            }

    def size(self, group: int) -> int:
        """Return the number of random variables of a group of correlated sources at one time.

        Each source counts once for each value of its indices. ``group`` is the number of the group.
        """
        return self.march.groups[group].size

    def of(self, node: MemberKey, group: int, now: int) -> PathArray | None:
        """Return the derivatives of a quantity at step ``now`` by the sources of a group at times 0..now.

        The quantity is given by its key. The result is None if all derivatives vanish.
        """
        model = self.march.model
        if node in model.groups[group]:
            return self.unit(node, group, now)
        if group not in self.ways.get(node, {}):
            return None
        at, derivatives = self.current.get((node, group), (-1, None))
        if at != now:
            derivatives = self.step(self.march.tables.quantities[node], group, now)
            self.current[node, group] = now, derivatives
            if node in self.kept:
                self.keep(node, group, now, derivatives)
        return derivatives

    def finish(self, now: int) -> None:
        """Compute the derivatives of step ``now`` that later steps will read."""
        for node, groups in self.ways.items():
            for group in groups if node in self.kept else ():
                self.of(node, group, now)
        for node in self.march.model.read_at_zero if now == 0 else ():
            self.first.update({(node, group): self.of(node, group, 0) for group in self.ways.get(node, ())})

    def read(self, x: AppliedUndef, group: int, now: int) -> PathArray | None:
        """Return the derivatives of a field ``x``, read at step ``now`` or at time zero, by sources.

        The sources are those of a group at times 0..now. The result is None if all derivatives vanish;
        derivatives of a field at time zero are padded with zeros.
        """
        tables = self.march.tables
        if not tables.is_at_zero(x):
            return self.of(node_of(x), group, now)
        key = (tables.node(x), group)
        if key not in self.first:
            if now:
                return None
            self.first[key] = self.of(*key, now)
        derivatives = self.first[key]
        if derivatives is None or now == 0:
            return derivatives
        columns = (now + 1) * self.size(group)
        wider = self.device.zeros(*derivatives.shape[:2], columns, derivatives.shape[3])
        wider[:, :, : derivatives.shape[2]] = derivatives
        return wider

    def unit(self, node: MemberKey, group: int, now: int) -> PathArray:
        """Return the derivative of a source by the sources of its group at times 0..now.

        It is one for the same time and entry, and zero otherwise. The shape is (1, entries of the source,
        (now + 1) times entries of the group, 1).
        """
        size, count = self.size(group), self.march.random[node].shape[2]
        one = np.zeros((1, count, (now + 1) * size, 1))
        one[0, :, now * size :, 0] = np.eye(size)[self.columns(node, group)]
        return self.device.put(one)

    def keep(self, node: MemberKey, group: int, now: int, found: PathArray) -> None:
        """Store the derivatives ``found`` of a quantity by sources, for later sums over the past.

        ``node`` is the key of the quantity, ``group`` the number of the group of sources, and ``now`` the
        step.
        """
        march, size = self.march, self.size(group)
        panels = self.panels.setdefault((node, group), [])
        if now % PANEL == 0:
            times = min(PANEL, march.steps - now)
            shape = (march.replicas, march.steps - now, found.shape[1], times * size, found.shape[-1])
            panels.append(self.device.zeros(*shape))
        for k, panel in enumerate(panels):
            part = found[:, :, k * PANEL * size : (k + 1) * PANEL * size]
            panel[:, now - k * PANEL, :, : part.shape[2]] = part

    def carried(self, x: Any) -> Any:
        """Return values ``x`` on all paths, the last axis, for those paths only that carry derivatives.

        They are the first paths and their mirror images. Numbers, and values that are equal on all paths, are
        returned as they are.
        """
        whole = self.march.samples
        if self.samples == whole or not np.ndim(x) or x.shape[-1] == 1:
            return x
        halves = x.reshape(*x.shape[:-1], -1, 2, whole // 2)[..., : self.samples // 2]
        return halves.reshape(*x.shape[:-1], -1)

    def step(self, q: Quantity, group: int, now: int) -> PathArray:
        """Return the derivatives of the quantity ``q`` at step ``now`` by a group of sources (chain rule).

        ``d q / d source = sum_i (dq / dx_i) d x_i / d source`` over the leaves x_i of the expression of q.
        """
        march = self.march
        leaves = [self.carried(x) for x in march.seen[q.node]]
        for i in range(len(leaves)):
            if (q.node, i) in self.readings:
                value = self.readings[q.node, i](now)
                leaves[i] = self.device.put(value[..., None]) if np.ndim(value) else value
        columns = (now + 1) * self.size(group)
        entries = march.random[q.node].shape[2]
        paths = march.units[q.node] * self.samples
        total = self.device.zeros(march.replicas, entries, columns, paths)
        for i, x in enumerate(q.function.leaves):
            if x in q.memories:
                part, symbols = self.memory(q, x, group, now), q.indices
            elif isinstance(x, AppliedUndef) and march.tables.is_random(x):
                part, symbols = self.read(x, group, now), indices_of(x)
            else:
                continue
            if part is None:
                continue
            outer = q.function.partial(i, *leaves, on=self.device)
            spread = march.spread(part, symbols, q.indices)
            if np.ndim(outer):
                outer = outer.reshape(*([1] * (len(q.sizes) + 2 - outer.ndim)), *outer.shape)
                product = outer[..., None, :] * spread
            else:
                product = spread if outer == 1 else outer * spread
            whole = (march.replicas, *q.sizes, columns, paths)
            total += self.device.broadcast(product, whole).reshape(total.shape)
        return total

    def memory(self, q: Quantity, leaf: Expr, group: int, now: int) -> PathArray | None:
        """Return ``sum_s k(now, s) d x(s) / d source`` for a leaf of ``q`` that is a sum over the past.

        The sources are those of a group at times 0..now. The result is None if all derivatives vanish.
        """
        march, size = self.march, self.size(group)
        paths = march.units[q.node] * self.samples
        total: PathArray | None = None
        for m in q.memories[leaf]:
            if m.through:
                self.of(m.quantity, group, now)
        for (what, present), some in march.pasts(q, self.terms[q.node, leaf], now, steady=True).items():
            kernel = np.broadcast_to(some, (len(some), prod(q.sizes), *some.shape[2:]))
            if what in march.model.groups[group]:
                if total is None:
                    total = self.device.zeros(march.replicas, kernel.shape[1], (now + 1) * size, paths)
                self.add_sources(total, kernel, what, group, now if present else 0)
                continue
            for k, panel in enumerate(self.panels.get((what, group), [])):
                first = k * PANEL
                if present:
                    rows, past = kernel, panel[:, now - first : now - first + 1]
                else:
                    rows, past = kernel[:, :, first:], panel[:, : max(kernel.shape[2] - first, 0)]
                if rows.shape[2] == 0:
                    continue
                if total is None:
                    total = self.device.zeros(march.replicas, rows.shape[1], (now + 1) * size, paths)
                rows = self.device.put(rows.reshape(*rows.shape[:2], -1))
                flat = rows @ past.reshape(march.replicas, rows.shape[2], -1)
                shaped = flat.reshape(*flat.shape[:2], -1, paths)
                here = slice(first * size, min((first + PANEL) * size, (now + 1) * size))
                total[:, :, here] += shaped[:, :, : here.stop - here.start]
        return total

    def add_sources(self, total: PathArray, kernel: Array, what: MemberKey, group: int, start: int) -> None:
        """Add to ``total`` the derivatives of ``sum_s k(s) source(s)`` by the sources of a group.

        ``kernel`` k has shape (replicas, rows, times s, entries of the source). ``what`` is the key of the
        source, and ``start`` the first time s of the kernel.
        """
        columns = self.columns(what, group)
        for k in range(kernel.shape[2]):
            first = (start + k) * self.size(group)
            here = slice(first + columns.start, first + columns.stop)
            total[:, :, here] += self.device.put(np.ascontiguousarray(kernel[:, :, k]))[..., None]

    def columns(self, node: MemberKey, group: int) -> slice:
        """Return the positions of a source among all sources of its group at one time.

        Each source has one position for each value of its indices. ``node`` is the key of the source, and
        ``group`` the position of its group of correlated sources in ``model.groups``.
        """
        nodes, count = self.march.model.groups[group], self.march.random[node].shape[2]
        before = sum(self.march.random[n].shape[2] for n in nodes[: nodes.index(node)])
        return slice(before, before + count)

    def mean(self, what: MemberKey, group: int, now: int, count: int) -> Array:
        """Return the mean over paths of the derivatives of a quantity at step ``now`` by a group of sources.

        The sources are those at times before ``count``; ``what`` is the key of the quantity. The shape is
        (replicas, entries of ``what``, ``count`` times entries of the group).
        """
        march, size = self.march, self.size(group)
        means = np.zeros((march.replicas, march.random[what].shape[2], count * size))
        there = self.of(what, group, now)
        if there is not None:
            means[...] = self.device.take(self.device.namespace.mean(there[:, :, : count * size], axis=3))
        return means
