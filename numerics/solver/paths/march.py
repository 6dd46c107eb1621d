"""March of sampled paths: all populations of some replicas, in one causal sweep over the steps.

Replicas differ in their paths and in their kernels; they are marched side by side, so that the overhead of a
step is shared. Arrays of quantities have shape ``(replicas, steps, entries, samples)``, with their indices
flattened into ``entries``; averages are stored in the order of the products that give them, ``(replicas, t,
indices at t, s, indices at s)``. :mod:`numerics.solver.paths.solve` prepares a march and collects its
results.
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
    Quantity,
    QuantityTables,
    Responding,
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
"""The ridge of Stein's lemma, times the entries of a source over the square of the paths.

Noise of responses adds to the variance of what they drive, as much as there are entries for each path; a
ridge takes from it and smooths responses.  Ten was chosen by measuring (tanh and relu, L = 3, 200 entries,
2, 4 and 8 paths each): from 5 to 20 the bias of kernels is at most 3.4 standard errors of 32 replicas, where
a ridge of 1/paths leaves up to nine (docs/theory/nonlinear.md).
"""


ALL = slice(None)

PANEL = 4
"""Number of source times whose derivatives are stored together.

A larger number makes matrix products larger, and adds zeros to them.
"""


@dataclass(frozen=True)
class AverageRecipe:
    """Computation of an order parameter or scalar: its axes in memory, its averages, and its expression.

    A sum over indices of averages is another recipe, whose axes begin with those indices. ``sizes`` are those
    of the axes, and zero for times.
    """

    axes: IndexSymbols
    sizes: tuple[int, ...]
    averages: tuple[PathCorrelation | Responding | AverageRecipe, ...]
    reading: TensorReader

    def shape(self, late: slice, early: slice) -> tuple[int, ...]:
        """Return the sizes of the axes for these times."""
        counts = iter((late.stop - late.start, early.stop - early.start))
        return tuple([n or next(counts) for n in self.sizes])

    def at(self, late: slice, early: slice) -> tuple[slice, ...]:
        """Return the slices of these times in the array, replicas first."""
        times = iter((late, early))
        return (ALL, *[ALL if n else next(times) for n in self.sizes])


@dataclass
class PastTerm:
    """Term of a sum over the past: a kernel along the indices of the field, time, and a quantity.

    The kernel has ``gone`` further indices, over which only it is summed. If the kernel does not depend on t,
    ``total`` is the sum over the steps before ``done``.
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
    ", because {} of {} paths are not: this average has tails too heavy to be sampled, or does not exist, so "
    "that a smaller learning rate may not help; a function that grows more slowly would do"
)


class PathMarch:
    """State of replicas that are marched together.

    ``whole`` keeps all quantities at all steps, also those that no step reads. Order parameters that no step
    needs are computed at the end, except those that are ``watched``.

    Responses in ``jacobian`` are averages of derivatives along all paths, the others come from Stein's lemma.
    A ridge in the lemma mixes entries of a response whose sources are nearly equal. It changes fields by less
    than the noise, and single entries by up to their full size. So responses in ``again`` come from the lemma
    for the steps, and a second time, into ``single``, from derivatives along ``carriers`` of the paths; those
    in ``undamped`` from the lemma without a ridge, NaN if a source is determined by others. These derivatives
    read responses from ``single``, because a derivative of a field contains their single entries.

    Arrays with an axis of paths lie on the device of ``room``, averages and kernels in NumPy's memory.
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
            if isinstance(c, Responding) and n not in jacobian
        }
        self.constant = {i for i, g in enumerate(model.groups) if not moves(model, g)} - asked
        still = {n for i in self.constant for n in model.groups[i]}
        sizes = {n: q.sizes for n, q in tables.quantities.items()}
        sizes |= {n: x for n, (_, x) in tables.sources.items()}
        sizes |= {n: () for n in tables.attributes}
        past = model.read_later
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
        every = np.full(ends[-1], np.nan)  # a single array, because it has large pages of memory
        for (n, e), shape, part in zip(entries.items(), shapes, np.split(every, ends[:-1]), strict=True):
            array = self.arrays[n] = part.reshape(self.replicas, *shape)
            if e.is_response:
                array[...] = 0.0
            known.found[n] = written(e, axes[n], array)
        self.averaged = {n: self._averaged(e, axes[n]) for n, e in entries.items()}
        self.orbits, self.asymmetry = orbits_of(tables, entries, axes, known.arrays), asymmetry
        self.terms = {
            (n, x): [self.term(q, m, known) for m in ms]
            for n, q in tables.quantities.items()
            for x, ms in q.memories.items()
        }
        self.leaves_of = {
            n: [self._leaf(q, x) for x in q.function.leaves] for n, q in tables.quantities.items()
        }
        self.functions = {n: q.function.compiled(self.device) for n, q in tables.quantities.items()}
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
        self.order = [op for op in order if op[1] not in later]
        self.order = [op for op in self.order if op[1] not in self.mirrored_nodes or op == first[op[1]]]
        self.afterwards = [n for n in tables.entries if n in later and kernels]
        self.seen: dict[MemberKey, list[Any]] = {}
        count = derivative_paths(model, jacobian, self.samples)
        self.tangents = Tangents(self, jacobian, count) if jacobian else None
        self.undamped = undamped
        self.moments_of: dict[Responding, tuple[int, PathArray]] = {}
        self.single = {n: np.zeros_like(self.arrays[n]) for n in again | undamped}
        own = {n: written(tables.entries[n], axes[n], x) for n, x in self.single.items()}
        found = known.found | own
        unmixed = KnownArrays(known.values, known.data, found, known.first, literals=known.literals)
        self.present: dict[tuple[MemberKey, int], list[int]] = {}
        self.again = Tangents(self, again, carriers, unmixed) if again else None

    def run(self, *after: Callable[[int], None]) -> None:
        """March all steps, and call each of ``after`` with the number of completed steps.

        Raises Diverged if a value is not finite.
        """
        for now in range(self.steps):
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
        """Return the number of paths of a quantity: ``samples`` for each unit with its own attributes."""
        return self.units[node] * self.samples

    # -- sources ---------------------------------------------------------------------------------------

    def draw(self, index: int, now: int) -> None:
        """Draw the sources of a block at this step, conditional on earlier ones of its group."""
        nodes = self.model.blocks[index]
        group = group_of(self.model, nodes[0])
        if group in self.constant and now:
            return
        blocks = [self.covariances(a, self.model.groups[group], now) for a in nodes]
        found = blocks[0] if len(nodes) == 1 else np.concatenate(blocks, axis=1)
        past, present = found[:, :, :now].reshape(*found.shape[:2], -1), found[:, :, now]
        if (
            present.shape[1] < present.shape[2]
        ):  # other sources of the group are drawn separately at this step
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
        """Return the values of a source on all its paths; units with different attributes share them."""
        count = self.units[node]
        return values if count == 1 else self.device.namespace.tile(values, (1, 1, count))

    def _over_units(self, values: PathArray, paths: int) -> PathArray:
        """Return the mean over units, such that ``paths`` values remain."""
        if values.shape[-1] == paths:
            return values
        blocks = values.reshape(*values.shape[:-1], -1, paths)
        return self.device.namespace.mean(blocks, axis=blocks.ndim - 2)

    def _covariance(self, a: MemberKey, b: MemberKey) -> tuple[TensorReader | None, bool]:
        """Return ``<a(t) b(s)>`` along the indices of a, a time, and those of b; and whether a is later."""
        sizes = self.tables.sizes
        if (a, b) in self.tables.covariances:
            c = self.tables.covariances[a, b]
            return TensorReader(self.known, c.expr, (*c.first, s, *c.second), sizes), True
        if (b, a) in self.tables.covariances:
            c = self.tables.covariances[b, a]
            return TensorReader(self.known, c.expr, (*c.second, t, *c.first), sizes), False
        return None, True

    def covariances(self, a: MemberKey, nodes: tuple[MemberKey, ...], now: int) -> Array:
        """Return ``<a(now) b(s)>`` for s up to now: replicas, entries of ``a``, s, entries of each ``b``."""
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
        """Compute a field or a function of fields at this step, on every path."""
        self.seen[q.node] = leaves = self.leaves(q, now)
        value = self.functions[q.node](*leaves)
        here = self.random[q.node][:, now]
        full = self.device.broadcast(value, (self.replicas, *q.sizes, self.paths(q.node)))
        here[...] = full.reshape(here.shape)

    def _leaf(self, q: Quantity, x: Expr) -> list[PastTerm] | EntrySum | TensorReader | PathArray:
        """Return how a leaf of ``q`` is read: a sum over the past, a weight, a known array, or paths."""
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
        """Return the leaves of ``q``, each broadcastable to ``(replicas, *sizes, samples)``."""
        found: list[Any] = []
        for x in self.leaves_of[q.node]:
            if isinstance(x, list):
                found.append(self.memory(q, x, now))
            elif isinstance(x, EntrySum):
                assert self.weights is not None
                found.append(self.weights.applied(x, q.indices, now))
            elif isinstance(x, TensorReader):
                value = x(now)
                found.append(self.device.put(value[..., None]) if np.ndim(value) else value)
            else:
                found.append(x[:, now if x.shape[1] > 1 else 0])
        return found

    def spread(self, values: PathArray, symbols: tuple[Symbol, ...], own: tuple[Symbol, ...]) -> PathArray:
        """Return ``values`` on the axes ``own``: those in ``symbols`` at full size, others of size one.

        ``symbols`` are the indices that the values have, a subset of ``own``; the replica axis comes first.
        """
        shaped = values.reshape(len(values), *self.tables.size(symbols), *values.shape[2:])
        rest = range(values.ndim - 2)
        return arranged(shaped, (REPLICA, *symbols, *rest), (REPLICA, *own, *rest))

    def term(self, q: Quantity, m: PastSum, known: KnownArrays) -> PastTerm:
        """Return a term of a sum over the past, its kernel read from ``known``."""
        inner = tuple(x for x in m.symbols if x in m.over)
        gone = tuple(x for x in m.over if x not in m.symbols)
        time = () if m.reach == "now" else (s,)
        size = self.tables.size
        reading = TensorReader(known, m.kernel, (*q.indices, *time, *inner, *gone), self.tables.sizes)
        steady = bool(time) and t not in m.kernel.free_symbols
        sizes, entries = size((*inner, *gone)), prod(size(m.symbols))
        return PastTerm(m, reading, not time, steady, inner, sizes, len(gone), entries)

    def pasts(
        self, q: Quantity, terms: Sequence[PastTerm], now: int, *, steady: bool
    ) -> dict[PastQuantity, Array]:
        """Return the kernels of a sum over the past by quantity; terms of the same quantity are added.

        Each has shape ``(replicas, entries of q, times, entries of the quantity)``, or one entry of q for
        all. Terms whose kernel does not depend on t are included only if ``steady``.
        """
        found: dict[PastQuantity, Array] = {}
        for term in terms:
            if term.steady and not steady:
                continue
            upto = now + 1 if term.memory.through else now
            times = slice(now if term.present else 0, upto)
            kernel, past = self.kernel(q, term, times, now), (term.memory.what, term.present)
            if past in found:
                long, short = sorted((found[past], kernel), key=lambda k: -k.shape[2])
                rows = max(long.shape[1], short.shape[1])
                kernel = np.broadcast_to(long, (len(long), rows, *long.shape[2:])).copy()
                kernel[:, :, : short.shape[2]] += short
            found[past] = kernel
        return found

    def kernel(self, q: Quantity, term: PastTerm, times: slice, now: int) -> Array:
        """Return the kernel of a term: replicas, entries of q (or one), times, entries of the quantity."""
        own, sizes, symbols = q.indices, q.sizes, term.memory.symbols
        value = np.asarray(term.reading(now, times))
        first, ndim = 1 + len(own), 2 + len(own) + len(term.sizes)
        if value.ndim == ndim - 1:
            value = np.expand_dims(value, first)
        if len(term.inner) == len(symbols) and all(n == 1 for n in value.shape[1:first]):
            sizes = (1,) * len(own)
        count = times.stop - times.start
        full = _broadcast(value, (self.replicas, *sizes, count, *term.sizes))
        if term.gone:
            full = full.sum(axis=tuple(range(ndim - term.gone, ndim)))
        if len(term.inner) < len(symbols):  # an index of the quantity that is not summed is an index of q
            left = list(term.inner)
            for x in symbols:
                if x not in left:
                    full = full[..., None] * _diagonal(1 + own.index(x), full.ndim, self.tables.sizes[x])
                    left.append(x)
            axes = (*range(first + 1), *[first + 1 + left.index(x) for x in symbols])
            full = full.transpose(axes)
        return full.reshape(self.replicas, prod(sizes), count, term.entries)

    def memory(self, q: Quantity, terms: Sequence[PastTerm], now: int) -> Any:
        """Return ``sum_s k(now, s) x(s)``, broadcastable to ``(replicas, *sizes, paths)``."""
        total: Any = 0.0
        for (what, present), kernel in self.pasts(q, terms, now, steady=False).items():
            if kernel.shape[2]:
                more = self.applied(kernel, what, now if present else 0)
                total = more + total if np.ndim(total) else more
        for term in terms:
            upto = now + 1 if term.memory.through else now
            if term.steady and term.done < upto:
                kernel = self.kernel(q, term, slice(term.done, upto), now)
                term.total = term.total + self.applied(kernel, term.memory.what, term.done)
                term.done = upto
            if term.done:
                total = term.total + total if np.ndim(total) else term.total
        if not np.ndim(total):
            return total
        sizes = q.sizes if total.shape[1] > 1 else [1] * len(q.sizes)
        return total.reshape(self.replicas, *sizes, total.shape[-1])

    def applied(self, kernel: Array, what: MemberKey, start: int) -> PathArray:
        """Return a kernel times the values of a quantity at times from ``start`` on, summed."""
        past = self.random[what][:, start : start + kernel.shape[2]]
        rows = self.device.put(kernel.reshape(*kernel.shape[:2], -1))
        return rows @ past.reshape(self.replicas, -1, past.shape[-1])

    # -- averages --------------------------------------------------------------------------------------

    def _averaged(self, e: PathEntry, axes: tuple[Symbol, ...]) -> AverageRecipe:
        """Return the recipe of an order parameter or scalar."""
        inner = [self._averaged(x, (*x.indices[: len(x.args) - len(e.args)], *axes)) for x in e.sums.values()]
        reading = TensorReader(self.known, e.expr, axes, self.tables.sizes, (*e.averages, *e.sums))
        sizes = tuple(0 if x in TIMES else self.tables.sizes[x] for x in axes)
        return AverageRecipe(axes, sizes, (*e.averages.values(), *inner), reading)

    def average(self, e: PathEntry, kind: str, now: int) -> None:
        """Compute an order parameter at times (now, past), (past, now) or (now, now), or a scalar."""
        if e.node in self.mirrored_nodes:
            self.mirrored(e, now)
            return
        if kind in ("row", "column") and (now == 0 or not e.two_times):
            return
        here, before = slice(now, now + 1), slice(0, now)
        late, early = (before, here) if kind == "column" else (here, here if kind == "now" else before)
        self.store(e, late, early, self.evaluated(self.averaged[e.node], late, early))

    def evaluated(self, e: AverageRecipe, late: slice, early: slice) -> Array:
        """Return an order parameter or scalar at times ``late`` x ``early``, replicas first."""
        return self.made(e, late, early, self.averages_in(e, late, early))

    def averages_in(self, e: AverageRecipe, late: slice, early: slice) -> list[Array]:
        """Return the averages from which an order parameter or scalar is computed."""
        given: list[Array] = []
        for c in e.averages:
            if isinstance(c, AverageRecipe):
                extra = range(1, 1 + len(c.axes) - len(e.axes))
                given.append(self.evaluated(c, late, early).sum(axis=tuple(extra)))
            else:
                given.append(self.correlate(e, c, late, early))
        return given

    def made(self, e: AverageRecipe, late: slice, early: slice, given: Sequence[Array]) -> Array:
        """Return an order parameter or scalar from its averages."""
        return _broadcast(e.reading(late, early, given), (self.replicas, *e.shape(late, early)))

    @property
    def cut(self) -> float:
        """Largest part removed from a covariance to make it positive, relative to a variance."""
        return float(max((g.cut.max() for g in self.groups.values()), default=0.0))

    def rounding(self) -> float:
        """Return the rounding error of scalars, of ``F(<X>)`` about ``F' eps (<X^2> / paths)^(1/2)``.

        It is large if the slope is large: an output contains ``1/gamma0``.
        """
        found, now = 0.0, slice(self.steps - 1, self.steps)
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
                    for x in (c.first, c.second) if c.second else (c.first,):
                        paths = self.random[x]
                        squares = self.device.namespace.einsum("rtis,rtis->rti", paths, paths)
                        change *= np.sqrt(self.device.take(squares).max())
                        change /= np.sqrt(paths.shape[-1])
                    found = max(found, float(np.finfo(float).eps * change / np.sqrt(self.samples)))
        return found

    def mirrored(self, e: PathEntry, now: int) -> None:
        """Compute ``<X(t) X(s)>`` at this step: row, column and diagonal from one product."""
        own, late, early = self.averaged[e.node], slice(now, now + 1), slice(0, now + 1)
        row = self.store(e, late, early, self.evaluated(own, late, early))
        if now:
            half = row.ndim // 2
            column = row.transpose(0, *range(1 + half, row.ndim), *range(1, 1 + half))
            self.arrays[e.node][own.at(early, late)] = column

    def symmetric(self, e: PathEntry, late: slice, early: slice, full: Array) -> Array:
        """Return an average over paths, also over the exchangeable values of its indices."""
        if e.node not in self.orbits:
            return full
        found = self.orbits[e.node].averaged(full)
        if self.asymmetry is None:
            return found
        return self.asymmetry.passed(e.node, late, early, full, found)

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
        """Return a message if few of the paths of an average are not finite; empty if many are."""
        for c in self.averaged[e.node].averages:
            if not isinstance(c, PathCorrelation):
                continue
            for node in (c.first, c.second) if c.second else (c.first,):
                paths = np.asarray(self.device.take(self.random[node][:, step]))
                squares = np.where(np.isfinite(paths), paths, np.inf) ** 2
                wrong = ~np.isfinite(squares).all(axis=(0, 1))
                if 0 < wrong.sum() < FEW_PATHS * wrong.size:
                    return HEAVY_TAILS.format(int(wrong.sum()), wrong.size)
        return ""

    def correlate(
        self, e: AverageRecipe, c: PathCorrelation | Responding, late: slice, early: slice
    ) -> Array:
        """Return an average along the axes of ``e``, replicas first."""
        assert isinstance(c, PathCorrelation)
        x = self.random[c.first][:, late]
        if c.second is None:
            mean = self.device.take(self.device.namespace.mean(x, axis=3))
            return self.arranged(e, mean, c.first_symbols)
        y = self.random[c.second][:, early]
        paths = min(x.shape[-1], y.shape[-1])  # independent quantities are averaged over units separately
        x, y = self._over_units(x, paths), self._over_units(y, paths)
        flat = self._products(*(z.reshape(self.replicas, -1, paths) for z in (x, y)))
        flat /= paths
        both = flat.reshape(*x.shape[:3], *y.shape[1:3])
        return self.arranged(e, both, c.first_symbols, c.second_symbols)

    def _products(self, x: PathArray, y: PathArray) -> Array:
        """Return ``sum_i x_ai y_bi`` of each replica; the shorter factor first is up to twice as fast."""
        if x.shape[1] > y.shape[1]:
            return self._products(y, x).transpose(0, 2, 1)
        return self.device.take(x @ transposed(y))

    def arranged(
        self, e: AverageRecipe, values: Array, first: IndexSymbols, second: IndexSymbols | None = None
    ) -> Array:
        """Return ``(replicas, late, entries [, early, entries])`` along the axes of ``e``, replicas first."""
        lead = (t, *first) if second is None else (t, *first, s, *second)
        if lead != e.axes and {*lead} - {*e.axes}:
            raise ValueError(f"an average carries an index of {lead} that what it is for does not have")
        more = () if second is None else (values.shape[3], *self.tables.size(second))
        shaped = values.reshape(*values.shape[:2], *self.tables.size(first), *more)
        return shaped if lead == e.axes else arranged(shaped, (REPLICA, *lead), (REPLICA, *e.axes))

    def response(self, e: PathEntry, now: int) -> None:
        """Compute a response at this step to the past (and, unless it is strict, to the present)."""
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
        """Return a response from ``carried`` derivatives, or by Stein's lemma, along its axes."""
        own, given = self.averaged[e.node], []
        for c in e.averages.values():
            assert isinstance(c, Responding)
            found = self.responding(c, carried, now, count, damped=damped)
            given.append(self.arranged(own, found, c.symbols, c.source_symbols))
        return self.made(own, slice(now, now + 1), slice(0, count), given)

    def read_now(self, what: MemberKey, group: int) -> list[int]:
        """Return the positions, among entries of a group at one step, that a quantity reads at its time."""
        if (what, group) not in self.present:
            nodes, read = self.model.groups[group], sources_now(self.model, what, group)
            sizes = [prod(self.tables.sources[n][1]) for n in nodes]
            starts = accumulate(sizes, initial=0)
            some = [(k, m) for n, m, k in zip(nodes, sizes, starts, strict=False) if n in read]
            self.present[what, group] = [k + i for k, m in some for i in range(m)]
        return self.present[what, group]

    def moments(self, c: Responding, group: Growing, now: int) -> PathArray:
        """Return moments of a responding quantity with the normal numbers of a group.

        Damped and undamped responses of a step share them.
        """
        step, found = self.moments_of.get(c, (-1, None))
        if step != now:
            found = group.moments(self._over_units(self.random[c.what][:, now], self.samples))
            self.moments_of[c] = now, found
        return found

    def responding(
        self, c: Responding, carried: Tangents | None, now: int, count: int, *, damped: bool
    ) -> Array:
        """Return ``<d X(now) / d source(s < count)>``, axes (replicas, 1, entries of X, s, of the source)."""
        index = group_of(self.model, c.source)
        group, nodes = self.groups[index], self.model.groups[index]
        if carried is not None:
            found = carried.mean(c.what, index, now, count)
        else:
            # of the sources of this step the lemma takes only those in the value, because a source that is
            # constant in time would otherwise take a part of the response to its past
            present = [now * group.size + k for k in self.read_now(c.what, index)]
            seen = group.responses(self.moments(c, group, now), now * group.size, present, damped=damped)
            found = np.zeros((*seen.shape[:2], count * group.size))
            both = min(seen.shape[2], found.shape[2])
            found[..., :both] = seen[..., :both]
        before = sum(prod(self.tables.sources[n][1]) for n in nodes[: nodes.index(c.source)])
        mine = slice(before, before + prod(self.tables.sources[c.source][1]))
        return found.reshape(len(found), 1, found.shape[1], count, -1)[..., mine]


def units_of(tables: QuantityTables, node: MemberKey, data: Mapping[str, Any]) -> int:
    """Return the number of units with different attributes on which a quantity is defined.

    Raises ValueError for an attribute without numbers, and Unserved if attributes of one population have
    different numbers of values.
    """
    attributes = tables.attributes_of.get(node, ())
    for name in attributes:
        if name not in data or np.ndim(data[name]) != 1:
            raise ValueError(f"data must hold {name}, one number for each unit")
    counts = {name: len(data[name]) for name in attributes}
    if len({*counts.values()}) > 1:
        raise Unserved(f"attributes of the same units have different lengths: {counts}")
    return max(counts.values(), default=1)


def _history(shape: tuple[int, ...], whole: bool, room: Room) -> PathArray:
    """Return an array for values at all steps (axis 1), or for one step if ``whole`` is false."""
    found = room.take(*(shape if whole else (shape[0], 1, *shape[2:])))
    found[...] = np.nan
    return found if whole else room.device.overlaid(found, shape)


def _axes(e: PathEntry) -> IndexSymbols:
    """Return the axes of ``e`` in memory: in the order of the product of paths, or as they are written."""
    for c in e.averages.values():
        if isinstance(c, PathCorrelation):
            found = (t, *c.first_symbols, *((s, *c.second_symbols) if e.two_times else ()))
        else:
            found = (t, *c.symbols, s, *c.source_symbols)
        if len(found) == len(e.args) and set(found) == set(e.args):
            return found
    return e.args if e.two_times else (t, *e.indices)


def written(e: PathEntry, axes: IndexSymbols, array: Array) -> Array:
    """Return an array with these axes, replicas first, with its axes as written and replicas last."""
    return array.transpose(*(1 + axes.index(x) for x in e.args), 0)


def _is_symmetric(e: PathEntry) -> bool:
    """Return whether ``e`` is the average of a product of one quantity with itself, at any two indices."""
    c = e.averages.get(e.expr)
    return (
        isinstance(c, PathCorrelation)
        and c.first == c.second
        and len(_axes(e)) == 2 * (1 + len(c.first_symbols))
    )


def _broadcast(value: Any, shape: tuple[int, ...]) -> Array:
    """Return :func:`numpy.broadcast_to`, which is slow also for arrays that have the shape already."""
    if np.shape(value) == shape:
        return np.asarray(value)
    found: Array = np.broadcast_to(value, shape)
    return found


def _diagonal(axis: int, ndim: int, size: int) -> Array:
    """Return one where the index at ``axis`` equals that of a new last axis, and zero elsewhere."""
    return np.eye(size).reshape([size if k in (axis, ndim) else 1 for k in range(ndim + 1)])


# -- responses along the paths: derivatives by the sources, carried through every step -----------------------


class Tangents:
    """Derivatives along the paths of the quantities for the responses ``wanted``, by groups of sources.

    For a quantity and a group, derivatives at a step have shape ``(replicas, entries, times and then size of
    the group, paths)``. Those of quantities in sums over the past are stored in panels of ``PANEL`` source
    times, each from the first of these times on. They are carried along ``paths`` of the paths: the first
    ones, and their mirror images. Order parameters are those of ``unmixed``, if it is given.
    """

    def __init__(
        self, march: PathMarch, wanted: frozenset[MemberKey], paths: int, unmixed: KnownArrays | None = None
    ) -> None:
        self.march: PathMarch = proxy(march)  # a reference cycle would keep all arrays in memory
        self.wanted, self.samples = wanted, paths
        model, tables = march.model, march.tables
        self.ways: dict[MemberKey, dict[int, None]] = {}
        for n in wanted:
            for c in tables.entries[n].averages.values():
                assert isinstance(c, Responding)
                group = group_of(model, c.source)
                for x in involved(model, c.what, group):
                    self.ways.setdefault(x, {})[group] = None
        self.kept = {m.what for q in tables.quantities.values() for ms in q.memories.values() for m in ms}
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
        """Return the number of entries of a group at one time."""
        return self.march.groups[group].size

    def of(self, node: MemberKey, group: int, now: int) -> PathArray | None:
        """Return derivatives at this step by the sources at times ``0..now``; None if they vanish."""
        model = self.march.model
        if node in model.groups[group]:
            return self.unit(node, group, now)
        if group not in self.ways.get(node, {}):
            return None
        at, found = self.current.get((node, group), (-1, None))
        if at != now:
            found = self.step(self.march.tables.quantities[node], group, now)
            self.current[node, group] = now, found
            if node in self.kept:
                self.keep(node, group, now, found)
        return found

    def finish(self, now: int) -> None:
        """Compute the derivatives of this step that later sums over the past read."""
        for node, groups in self.ways.items():
            for group in groups if node in self.kept else ():
                self.of(node, group, now)
        for node in self.march.model.read_at_zero if now == 0 else ():
            self.first.update({(node, group): self.of(node, group, 0) for group in self.ways.get(node, ())})

    def read(self, x: AppliedUndef, group: int, now: int) -> PathArray | None:
        """Return derivatives at this step of a field, which may be read at time zero."""
        tables = self.march.tables
        if not tables.is_at_zero(x):
            return self.of(node_of(x), group, now)
        key = (tables.node(x), group)
        if key not in self.first:
            if now:
                return None
            self.first[key] = self.of(*key, now)
        found = self.first[key]
        if found is None or now == 0:
            return found
        columns = (now + 1) * self.size(group)
        wider = self.device.zeros(*found.shape[:2], columns, found.shape[3])
        wider[:, :, : found.shape[2]] = found
        return wider

    def unit(self, node: MemberKey, group: int, now: int) -> PathArray:
        """Return the derivative of a source by itself: one at the same time and index."""
        size, own = self.size(group), self.march.random[node].shape[2]
        one = np.zeros((1, own, (now + 1) * size, 1))
        one[0, :, now * size :, 0] = np.eye(size)[self.columns(node, group)]
        return self.device.put(one)

    def keep(self, node: MemberKey, group: int, now: int, found: PathArray) -> None:
        """Store the derivatives of this step for later sums over the past."""
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
        """Return values on the paths that carry derivatives; a value equal on all paths stays single."""
        whole = self.march.samples
        if self.samples == whole or not np.ndim(x) or x.shape[-1] == 1:
            return x
        halves = x.reshape(*x.shape[:-1], -1, 2, whole // 2)[..., : self.samples // 2]
        return halves.reshape(*x.shape[:-1], -1)

    def step(self, q: Quantity, group: int, now: int) -> PathArray:
        """Return the derivatives of a quantity at this step by the chain rule.

        ``d q / d source = sum_i (dq / dx_i) d x_i / d source`` over the leaves x_i of its expression.
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
        """Return the derivatives of a sum over the past, ``sum_s k(now, s) d x(s) / d source``."""
        march, size = self.march, self.size(group)
        paths = march.units[q.node] * self.samples
        total: PathArray | None = None
        for m in q.memories[leaf]:
            if m.through:
                self.of(m.what, group, now)
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
        """Add the derivatives of a sum over sources themselves, the first of them at time ``start``."""
        columns = self.columns(what, group)
        for k in range(kernel.shape[2]):
            first = (start + k) * self.size(group)
            here = slice(first + columns.start, first + columns.stop)
            total[:, :, here] += self.device.put(np.ascontiguousarray(kernel[:, :, k]))[..., None]

    def columns(self, node: MemberKey, group: int) -> slice:
        """Return the positions of the entries of a source among those of its group."""
        nodes, own = self.march.model.groups[group], self.march.random[node].shape[2]
        before = sum(self.march.random[n].shape[2] for n in nodes[: nodes.index(node)])
        return slice(before, before + own)

    def mean(self, what: MemberKey, group: int, now: int, count: int) -> Array:
        """Return ``<d what(now) / d source>`` for the sources at times before ``count``, replicas first."""
        march, size = self.march, self.size(group)
        found = np.zeros((march.replicas, march.random[what].shape[2], count * size))
        there = self.of(what, group, now)
        if there is not None:
            found[...] = self.device.take(self.device.namespace.mean(there[:, :, : count * size], axis=3))
        return found
