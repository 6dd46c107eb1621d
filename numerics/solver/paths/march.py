"""Some replicas together: all populations marched through the steps, in one causal sweep.

Replicas differ in their paths and in their kernels; they are marched side by side, so that what the
interpreter does in a step is done once for all of them.  Arrays of quantities have shape ``(replicas, steps,
entries, samples)``, their indices flattened into ``entries``; arrays of averages have the replicas last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any
from weakref import proxy

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray
from sympy import Expr, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from numerics.errors import AT_START, SMALLER, Diverged
from numerics.solver.paths.gaussian import Growing, Latents, Room
from numerics.solver.paths.reading import (
    Correlation,
    Entry,
    Memory,
    Model,
    Op,
    Quantity,
    Responding,
    group_of,
    involved,
    read_later,
    size_of,
)
from numerics.tensors import Axis, Known, Node, arranged, indices_of, node_of

Array = NDArray[np.float64]
Past = tuple[Node, bool]
"""What a sum over the past runs over: a quantity, and whether it is read at the present alone."""

REPLICA = Symbol("replica")
"""The axis of replicas."""

DAMPING = 10
"""The ridge of Stein's lemma, times the entries of a source over the square of the paths.

Noise of responses adds to the variance of what they drive, as much as there are entries for each path; a
ridge takes from it and smooths responses.  Ten was chosen by measuring (tanh and relu, L = 3, 200 entries,
2, 4 and 8 paths each): from 5 to 20 the bias of kernels is at most 3.4 standard errors of 32 replicas, where
a ridge of 1/paths leaves up to nine (docs/theory/nonlinear.md).
"""


PANEL = 4
"""Source times whose derivatives are kept together: products with them are larger, zeros in them more."""


class March:
    """The state of some replicas; ``whole`` keeps all quantities at all steps, those that none reads too."""

    def __init__(
        self,
        model: Model,
        order: list[Op],
        known: Known,
        steps: int,
        samples: int,
        seeds: list[np.random.SeedSequence],
        *,
        matched: bool,
        ridge: float | None,
        jacobian: frozenset[Node],
        whole: bool,
        room: Room,
    ) -> None:
        self.model, self.order, self.known = model, order, known
        self.steps, self.samples, self.replicas = steps, samples, len(seeds)
        known.first |= model.first
        sizes = {n: q.sizes for n, q in model.quantities.items()}
        sizes |= {n: x for n, (_, x) in model.sources.items()}
        past = read_later(model)
        self.random: dict[Node, Array] = {
            n: _history((self.replicas, steps, prod(x), samples), whole or n in past, room)
            for n, x in sizes.items()
        }
        for n, e in (*model.entries.items(), *model.scalars.items()):
            shape = [*(steps if x in (t, s) else model.sizes[x] for x in e.args), self.replicas]
            known.found[n] = np.zeros(shape) if e.is_response else np.full(shape, np.nan)
        asked = {
            group_of(model, c.source)
            for n, e in model.entries.items()
            for c in e.averages.values()
            if isinstance(c, Responding) and n not in jacobian
        }
        self.groups: dict[int, list[Growing]] = {i: [] for i in range(len(model.groups))}
        for seed in seeds:
            children = seed.spawn(len(model.populations))
            for child, members in zip(children, model.populations, strict=True):
                dimensions = steps * sum(size_of(model, i) for i in members)
                latents = Latents(samples, dimensions, child, matched, room)
                for i in members:
                    flipped = i == members[-1]
                    count = size_of(model, i)
                    own = DAMPING * min(count * steps, samples) / samples**2 if ridge is None else ridge
                    damping = own if i in asked else 0.0
                    self.groups[i].append(Growing(latents, count, steps, flipped, damping, room))
        self.symmetric = {n: pairs for n, e in model.entries.items() if (pairs := _pairs(e))}
        self.done: dict[Node, int] = {}
        self.kernels: dict[tuple[Node, Expr], tuple[int, dict[Past, Array]]] = {}
        self.tangents = Tangents(self, jacobian) if jacobian else None

    def run(self, progress: Callable[[int], None] | None = None) -> None:
        """All steps, counted by ``progress``.  Raises Diverged at the first average that is not finite."""
        for now in range(self.steps):
            for kind, node in self.order:
                if kind == "draw":
                    self.draw(node[1][0], now)
                elif kind == "quantity":
                    self.quantity(self.model.quantities[node], now)
                elif kind == "response":
                    self.response(self.model.entries[node], now)
                elif kind == "scalar":
                    self.average(self.model.scalars[node], "now", now)
                else:
                    self.average(self.model.entries[node], kind, now)
            if self.tangents is not None:
                self.tangents.finish(now)
            if progress is not None:
                progress(now + 1)

    # -- sources ---------------------------------------------------------------------------------------

    def draw(self, index: int, now: int) -> None:
        """The sources of a group at this step, given their past."""
        nodes = self.model.groups[index]
        past = np.concatenate([self.covariances(a, nodes, now, range(now)) for a in nodes], axis=1)
        here = range(now, now + 1)
        present = np.concatenate([self.covariances(a, nodes, now, here) for a in nodes], axis=1)
        for i, growing in enumerate(self.groups[index]):
            values = growing.extend(past[i], present[i])
            at = 0
            for n in nodes:
                count = prod(self.model.sources[n][1])
                self.random[n][i, now] = values[at : at + count]
                at += count

    def covariances(self, a: Node, nodes: tuple[Node, ...], now: int, times: range) -> Array:
        """``<a(now) b(times)>``: replicas, entries of ``a``, and times and then entries of each ``b``."""
        blocks = []
        for b in nodes:
            first, second = self.model.sources[a][1], self.model.sources[b][1]
            shape = (*first, len(times), *second)
            if (a, b) in self.model.covariances:
                c = self.model.covariances[a, b]
                at: dict[Symbol, Any] = {t: now, s: _during(times, len(first), len(shape))}
                symbols = (*c.first, None, *c.second)
            elif (b, a) in self.model.covariances:
                c = self.model.covariances[b, a]
                at = {s: now, t: _during(times, len(first), len(shape))}
                symbols = (*c.second, None, *c.first)
            else:
                blocks.append(np.zeros((self.replicas, prod(first), len(times), prod(second))))
                continue
            for k, x in enumerate(symbols):
                if x is not None:
                    at[x] = Axis(0, shape[k], k, len(shape))
            block = self.leading(self.known(c.expr, at), shape)
            blocks.append(block.reshape(self.replicas, prod(first), len(times), prod(second)))
        joined = blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=3)
        return joined.reshape(*joined.shape[:2], -1)

    def leading(self, value: Any, shape: tuple[int, ...]) -> Array:
        """What is known, with the replicas first, broadcast to ``(replicas, *shape)``."""
        full = _broadcast(value, (*shape, self.replicas))
        return full.transpose(len(shape), *range(len(shape)))

    # -- quantities ------------------------------------------------------------------------------------

    def quantity(self, q: Quantity, now: int) -> None:
        """A field or a function of fields at this step, on every path."""
        value = q.function(*self.leaves(q, now))
        here = self.random[q.node][:, now]
        here[...] = _broadcast(value, (self.replicas, *q.sizes, self.samples)).reshape(here.shape)

    def leaves(self, q: Quantity, now: int) -> list[Any]:
        """What the expression of ``q`` is made of, each broadcastable to ``(replicas, *sizes, samples)``."""
        found: list[Any] = []
        for x in q.function.leaves:
            if x in q.memories:
                found.append(self.memory(q, x, now))
            elif isinstance(x, AppliedUndef) and self.model.is_random(x):
                found.append(self.spread(self.random[node_of(x)][:, now], indices_of(x), q.indices))
            else:
                value = np.asarray(self.known(x, self.places(q.indices, now, 0)))
                if value.ndim:  # replicas last, or alone
                    lacking = len(q.sizes) + 1 - value.ndim
                    value = value.transpose(-1, *range(value.ndim - 1))
                    value = value.reshape(len(value), *[1] * lacking, *value.shape[1:], 1)
                found.append(value)
        return found

    def spread(self, values: Array, symbols: tuple[Symbol, ...], own: tuple[Symbol, ...]) -> Array:
        """``values`` of replicas with indices ``symbols``, broadcastable along the indices ``own``."""
        shaped = values.reshape(len(values), *self.model.size(symbols), *values.shape[2:])
        if symbols == own:
            return shaped
        rest = tuple(range(1 + len(symbols), shaped.ndim))
        there = [x for x in own if x in symbols]
        shaped = shaped.transpose(0, *[1 + symbols.index(x) for x in there], *rest)
        new = [self.model.sizes[x] if x in symbols else 1 for x in own]
        return shaped.reshape(len(values), *new, *values.shape[2:])

    def places(self, own: tuple[Symbol, ...], now: int, extra: int) -> dict[Symbol, Any]:
        """Positions of the indices ``own`` along the first axes, with ``extra`` axes after them."""
        ndim = len(own) + extra
        at: dict[Symbol, Any] = {x: Axis(0, self.model.sizes[x], k, ndim) for k, x in enumerate(own)}
        at[t] = now
        return at

    def pasts(self, q: Quantity, leaf: Expr, now: int) -> dict[Past, Array]:
        """The kernels of a sum over the past by what they multiply; terms on the same quantity are added.

        Each has shape ``(replicas, entries of q, times, entries of what)``.
        """
        at, found = self.kernels.get((q.node, leaf), (-1, {}))
        if at == now:
            return found
        found = {}
        for m in q.memories[leaf]:
            kernel, past = self.kernel(q, m, now), (m.what, m.time == t)
            if past in found:
                long, short = sorted((found[past], kernel), key=lambda k: -k.shape[2])
                kernel = long.copy()
                kernel[:, :, : short.shape[2]] += short
            found[past] = kernel
        self.kernels[q.node, leaf] = now, found
        return found

    def kernel(self, q: Quantity, m: Memory, now: int) -> Array:
        """The kernel of one term, ``(replicas, entries of q, times, entries of what)``."""
        times = range(now, now + 1) if m.time == t else range(now + 1 if m.through else now)
        own, over = q.indices, m.over
        ndim = len(own) + 1 + len(over)
        at = self.places(own, now, 1 + len(over))
        if m.time != t:
            at[m.time] = _during(times, len(own), ndim)
        for k, x in enumerate(over):
            at[x] = Axis(0, self.model.sizes[x], len(own) + 1 + k, ndim)
        sizes, inner = q.sizes, self.model.size(over)
        full = self.leading(self.known(m.kernel, at), (*sizes, len(times), *inner))
        start = len(own) + 2
        gone = tuple(start + k for k, x in enumerate(over) if x not in m.symbols)
        if gone:
            full = full.sum(axis=gone)
        left = [x for x in over if x in m.symbols]
        # an index of what that is not summed is one of q's own: a diagonal
        for x in m.symbols:
            if x not in over:
                full = full[..., None] * _diagonal(1 + own.index(x), full.ndim, self.model.sizes[x])
                left.append(x)
        axes = (*range(start), *[start + left.index(x) for x in m.symbols])
        flat: Array = full.transpose(axes).reshape(
            self.replicas, prod(sizes), len(times), prod(self.model.size(m.symbols))
        )
        return flat

    def memory(self, q: Quantity, leaf: Expr, now: int) -> Any:
        """A sum over the past."""
        total: Any = 0.0
        for (what, present), kernel in self.pasts(q, leaf, now).items():
            count = kernel.shape[2]
            if count == 0:
                continue
            past = self.random[what][:, now : now + 1] if present else self.random[what][:, :count]
            rows = kernel.reshape(*kernel.shape[:2], -1)
            total = total + rows @ past.reshape(self.replicas, -1, self.samples)
        return total.reshape(self.replicas, *q.sizes, self.samples) if np.ndim(total) else total

    # -- averages --------------------------------------------------------------------------------------

    def average(self, e: Entry, kind: str, now: int) -> None:
        """An order parameter at times (now, past), (past, now) or (now, now), or a scalar."""
        if kind in ("row", "column") and (now == 0 or not e.two_times):
            return
        if e.node in self.symmetric:
            self.mirrored(e, now)
            return
        here, before = range(now, now + 1), range(now)
        late, early = (before, here) if kind == "column" else (here, here if kind == "now" else before)
        self.store(e, late, early, self.averages(e, late, early))

    def averages(self, e: Entry, late: range, early: range) -> dict[Expr, Any]:
        """The averages in ``e``, and sums over indices of averages, axes (indices of ``e``, late, early,
        replicas)."""
        found: dict[Expr, Any] = {a: self.correlate(e, c, late, early) for a, c in e.averages.items()}
        for x, inner in e.sums.items():
            extra = len(inner.indices) - len(e.indices)
            value = self.evaluated(inner, late, early, self.averages(inner, late, early))
            found[x] = value.sum(axis=tuple(range(extra)))
        return found

    @property
    def cut(self) -> float:
        """The most that was taken from a covariance to make it positive, relative to a variance."""
        return max((g.cut for group in self.groups.values() for g in group), default=0.0)

    def rounding(self) -> float:
        """What rounding leaves in the scalars: of ``c <X>`` about ``c eps (<X^2> / paths)^(1/2)``.

        That is much where c is large: an output carries ``1/gamma0``.
        """
        found, now = 0.0, range(self.steps - 1, self.steps)
        for e in self.model.scalars.values():
            inner = [(x, c) for x, y in e.sums.items() for c in y.averages.values()]
            averages = [(a, c) for a, c in (*e.averages.items(), *inner) if isinstance(c, Correlation)]
            nothing = {a: np.zeros(1) for a in (*e.averages, *e.sums)}
            base = self.evaluated(e, now, now, nothing)
            for a, c in averages:
                change = np.abs(self.evaluated(e, now, now, nothing | {a: np.ones(1)}) - base).max()
                for n in (c.first, c.second) if c.second else (c.first,):
                    change *= np.sqrt(np.einsum("rtis,rtis->rti", self.random[n], self.random[n]).max())
                    change /= np.sqrt(self.samples)
                found = max(found, float(np.finfo(float).eps * change / np.sqrt(self.samples)))
        return found

    def mirrored(self, e: Entry, now: int) -> None:
        """``<X(t) X(s)>`` at this step: row, column and diagonal from one product."""
        if self.done.get(e.node) == now:
            return
        self.done[e.node] = now
        ((a, c),) = e.averages.items()
        late, early = range(now, now + 1), range(now + 1)
        self.store(e, late, early, {a: self.correlate(e, c, late, early)})
        if now:
            array, pairs = self.known.found[e.node], self.symmetric[e.node]
            array[..., :now, now, :] = array[..., now, :now, :].transpose(*pairs, -2, -1)

    def store(self, e: Entry, late: range, early: range, averages: Mapping[Expr, Any]) -> None:
        """Put ``e``, computed from its averages, at times ``late`` x ``early``."""
        full = self.evaluated(e, late, early, averages)
        if not np.isfinite(full).all():
            start = late[-1] == 0
            said = f"{e.node[0]} is not finite at step {late[-1]}; {AT_START if start else SMALLER}"
            raise Diverged(said, start=start)
        array = self.known.found[e.node]
        if e.two_times:
            array[..., late[0] : late[-1] + 1, early[0] : early[-1] + 1, :] = full
        else:
            array[..., late[0], :] = full[..., 0, 0, :]

    def evaluated(self, e: Entry, late: range, early: range, averages: Mapping[Expr, Any]) -> Array:
        """The expression of ``e``, axes (indices of ``e``, late, early, replicas)."""
        own = e.indices
        ndim = len(own) + 2
        at: dict[Symbol, Any] = {x: Axis(0, self.model.sizes[x], k, ndim) for k, x in enumerate(own)}
        at[t], at[s] = _during(late, len(own), ndim), _during(early, len(own) + 1, ndim)
        value = self.known(e.expr, at, averages)
        return _broadcast(value, (*self.model.size(own), len(late), len(early), self.replicas))

    def correlate(self, e: Entry, c: Correlation | Responding, late: range, early: range) -> Array:
        """An average with axes (indices of ``e``, late, early, replicas)."""
        assert isinstance(c, Correlation)
        x = self.random[c.first][:, late[0] : late[-1] + 1]
        if c.second is None:
            return self.arranged(e, x.mean(axis=3)[..., None], c.first_symbols, ())
        y = self.random[c.second][:, early[0] : early[-1] + 1]
        flat = _products(*(z.reshape(self.replicas, -1, self.samples) for z in (x, y)))
        both = flat.reshape(self.replicas, len(late), -1, len(early), y.shape[2]) / self.samples
        return self.arranged(e, both.transpose(0, 1, 2, 4, 3), c.first_symbols, c.second_symbols)

    def arranged(
        self, e: Entry, values: Array, first: tuple[Symbol, ...], second: tuple[Symbol, ...]
    ) -> Array:
        """``(replicas, late, entries [, entries], early)`` as (indices of ``e``, late, early, replicas)."""
        late, early = values.shape[1], values.shape[-1]
        shaped = values.reshape(len(values), late, *self.model.size(first), *self.model.size(second), early)
        if {*first, *second} - {*e.indices}:
            raise ValueError(f"an average in {e.node[0]} carries an index that {e.node[0]} does not have")
        return arranged(shaped, (REPLICA, t, *first, *second, s), (*e.indices, t, s, REPLICA))

    def response(self, e: Entry, now: int) -> None:
        """A response at this step to the past (and, unless it is strict, to the present)."""
        count = now if e.causal == "strict" else now + 1
        if count == 0:
            return
        averages = {}
        for a, c in e.averages.items():
            assert isinstance(c, Responding)
            averages[a] = self.arranged(e, self.responding(e, c, now, count), c.symbols, c.source_symbols)
        self.store(e, range(now, now + 1), range(count), averages)

    def responding(self, e: Entry, c: Responding, now: int, count: int) -> Array:
        """``<d X(now) / d source(s < count)>``, axes (replicas, 1, entries of X, of the source, s)."""
        index = group_of(self.model, c.source)
        nodes = self.model.groups[index]
        if self.tangents is not None and e.node in self.tangents.wanted:
            found = self.tangents.mean(c.what, index, now, count)
        else:
            what = self.random[c.what][:, now]
            half = self.samples // 2
            sources = [self.random[n][:, :count, :, :half] for n in nodes]
            x = sources[0] if len(nodes) == 1 else np.concatenate(sources, axis=2)
            replicas = zip(self.groups[index], what, x, strict=True)
            found = np.stack([g.responses(v, u.reshape(-1, half)) for g, v, u in replicas])
        before = sum(prod(self.model.sources[n][1]) for n in nodes[: nodes.index(c.source)])
        mine = slice(before, before + prod(self.model.sources[c.source][1]))
        shaped = found.reshape(*found.shape[:2], count, -1)[..., mine]
        return shaped.transpose(0, 1, 3, 2)[:, None]


def _history(shape: tuple[int, ...], whole: bool, room: Room) -> Array:
    """Room for values at all steps (axis 1), or where those of other steps are not kept, for one step."""
    found = room.take(*(shape if whole else (shape[0], 1, *shape[2:])))
    found.fill(np.nan)
    return found if whole else as_strided(found, shape, (found.strides[0], 0, *found.strides[2:]))


def _pairs(e: Entry) -> tuple[int, ...]:
    """If ``e`` is the average of a product of one quantity with itself: its axes with the two exchanged."""
    c = e.averages.get(e.expr)
    if not isinstance(c, Correlation) or c.first != c.second:
        return ()
    one, other = c.first_symbols, c.second_symbols
    swapped = dict(zip((*one, *other), (*other, *one), strict=True))
    if len(set(swapped)) != 2 * len(c.first_symbols) or set(swapped) != set(e.indices):
        return ()
    return tuple(e.indices.index(swapped[x]) for x in e.indices)


def _products(x: Array, y: Array) -> Array:
    """``sum_i x_ai y_bi`` of each replica; products are up to twice as fast with the shorter matrix first."""
    if x.shape[1] > y.shape[1]:
        return _products(y, x).transpose(0, 2, 1)
    return np.asarray(x @ y.transpose(0, 2, 1))


def _during(times: range, axis: int, ndim: int) -> Axis:
    return Axis(times.start, times.stop, axis, ndim)


def _broadcast(value: Any, shape: tuple[int, ...]) -> Array:
    """:func:`numpy.broadcast_to`, which takes long to find that there is nothing to do."""
    if np.shape(value) == shape:
        return np.asarray(value)
    found: Array = np.broadcast_to(value, shape)
    return found


def _diagonal(axis: int, ndim: int, size: int) -> Array:
    """One where the index at ``axis`` equals that of a new last axis."""
    return np.eye(size).reshape([size if k in (axis, ndim) else 1 for k in range(ndim + 1)])


# -- responses along the paths: derivatives by the sources, carried through every step -----------------------


class Tangents:
    """Derivatives of the quantities that the responses ``wanted`` need, by the groups that they ask for.

    For a quantity and a group, derivatives at a step have shape ``(replicas, entries, times and then size of
    the group, paths)``; those of quantities that sums over the past read are kept in panels of ``PANEL``
    source times, each from the first of these times on.
    """

    def __init__(self, march: March, wanted: frozenset[Node]) -> None:
        self.march: March = proxy(march)  # a circle would keep all arrays until the collector comes by
        self.wanted, self.samples = wanted, march.samples
        model = march.model
        self.ways: dict[Node, dict[int, None]] = {}
        for n in wanted:
            for c in model.entries[n].averages.values():
                assert isinstance(c, Responding)
                group = group_of(model, c.source)
                for x in involved(model, c.what, group):
                    self.ways.setdefault(x, {})[group] = None
        self.kept = {m.what for q in model.quantities.values() for ms in q.memories.values() for m in ms}
        self.panels: dict[tuple[Node, int], list[Array]] = {}
        self.current: dict[tuple[Node, int], tuple[int, Array]] = {}

    def size(self, group: int) -> int:
        """How many entries a group has at one time."""
        return self.march.groups[group][0].size

    def of(self, node: Node, group: int, now: int) -> Array | None:
        """Derivatives at this step by the sources at times ``0..now``; None if there are none."""
        model = self.march.model
        if node in model.groups[group]:
            return self.unit(node, group, now)
        if group not in self.ways.get(node, {}):
            return None
        at, found = self.current.get((node, group), (-1, None))
        if at != now:
            found = self.step(model.quantities[node], group, now)
            self.current[node, group] = now, found
            if node in self.kept:
                self.keep(node, group, now, found)
        return found

    def finish(self, now: int) -> None:
        """Have the derivatives of this step that later sums over the past read."""
        for node, groups in self.ways.items():
            for group in groups if node in self.kept else ():
                self.of(node, group, now)

    def unit(self, node: Node, group: int, now: int) -> Array:
        """A source by itself: one at the same time and index."""
        size, own = self.size(group), self.march.random[node].shape[2]
        nodes = self.march.model.groups[group]
        before = sum(self.march.random[n].shape[2] for n in nodes[: nodes.index(node)])
        one = np.zeros((1, own, (now + 1) * size, 1))
        one[0, :, now * size :, 0] = np.eye(size)[before : before + own]
        return one

    def keep(self, node: Node, group: int, now: int, found: Array) -> None:
        """Store the derivatives of this step for later sums over the past."""
        march, size = self.march, self.size(group)
        panels = self.panels.setdefault((node, group), [])
        if now % PANEL == 0:
            times = min(PANEL, march.steps - now)
            shape = (march.replicas, march.steps - now, found.shape[1], times * size, self.samples)
            panels.append(np.zeros(shape))
        for k, panel in enumerate(panels):
            part = found[:, :, k * PANEL * size : (k + 1) * PANEL * size]
            panel[:, now - k * PANEL, :, : part.shape[2]] = part

    def step(self, q: Quantity, group: int, now: int) -> Array:
        """The chain rule at this step."""
        march = self.march
        leaves = march.leaves(q, now)
        columns = (now + 1) * self.size(group)
        entries = march.random[q.node].shape[2]
        total = np.zeros((march.replicas, entries, columns, self.samples))
        for i, x in enumerate(q.function.leaves):
            if x in q.memories:
                part, symbols = self.memory(q, x, group, now), q.indices
            elif isinstance(x, AppliedUndef) and march.model.is_random(x):
                part, symbols = self.of(node_of(x), group, now), indices_of(x)
            else:
                continue
            if part is None:
                continue
            outer = np.asarray(q.function.partial(i, *leaves), dtype=float)
            spread = march.spread(part, symbols, q.indices)
            if outer.ndim:
                outer = outer.reshape(*([1] * (len(q.sizes) + 2 - outer.ndim)), *outer.shape)
                product = outer[..., None, :] * spread
            else:
                product = spread if outer == 1 else outer * spread
            whole = (march.replicas, *q.sizes, columns, self.samples)
            total += np.broadcast_to(product, whole).reshape(total.shape)
        return total

    def memory(self, q: Quantity, leaf: Expr, group: int, now: int) -> Array | None:
        """Derivatives of a sum over the past."""
        march, size = self.march, self.size(group)
        total: Array | None = None
        for m in q.memories[leaf]:
            if m.through:
                self.of(m.what, group, now)
        for (what, present), kernel in march.pasts(q, leaf, now).items():
            for k, panel in enumerate(self.panels.get((what, group), [])):
                first = k * PANEL
                if present:
                    rows, past = kernel, panel[:, now - first : now - first + 1]
                else:
                    rows, past = kernel[:, :, first:], panel[:, : max(kernel.shape[2] - first, 0)]
                if rows.shape[2] == 0:
                    continue
                if total is None:
                    total = np.zeros((march.replicas, rows.shape[1], (now + 1) * size, self.samples))
                rows = rows.reshape(*rows.shape[:2], -1)
                flat = rows @ past.reshape(march.replicas, rows.shape[2], -1)
                shaped = flat.reshape(*flat.shape[:2], -1, self.samples)
                here = slice(first * size, min((first + PANEL) * size, (now + 1) * size))
                total[:, :, here] += shaped[:, :, : here.stop - here.start]
        return total

    def mean(self, what: Node, group: int, now: int, count: int) -> Array:
        """``<d what(now) / d source>`` for the sources at times before ``count``, replicas first."""
        march, size = self.march, self.size(group)
        found = np.zeros((march.replicas, march.random[what].shape[2], count * size))
        there = self.of(what, group, now)
        if there is not None:
            found[...] = there[:, :, : count * size].mean(axis=3)
        return found
