"""One replica: all populations marched together through the steps, in one causal sweep.

Arrays of quantities have shape ``(steps, entries, samples)``, their indices flattened into ``entries``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol
from sympy.core.function import AppliedUndef

from derive.program.expressions import s, t
from numerics.errors import Diverged
from numerics.solve.particles.formulas import Known, Node, indices_of, node_of
from numerics.solve.particles.gaussian import Growing, Latents
from numerics.solve.particles.order import Op
from numerics.solve.particles.reading import Correlation, Entry, Memory, Model, Quantity, Responding
from numerics.solve.particles.tangents import Tangents

Array = NDArray[np.float64]
Integers = NDArray[np.int_]


class March:
    """The state of one replica."""

    def __init__(
        self,
        model: Model,
        order: list[Op],
        known: Known,
        steps: int,
        samples: int,
        seed: np.random.SeedSequence,
        *,
        matched: bool,
        ridge: float,
        jacobian: frozenset[Node],
        carriers: int,
    ) -> None:
        self.model, self.order, self.known = model, order, known
        self.steps, self.samples = steps, samples
        known.first |= model.first
        self.random: dict[Node, Array] = {
            n: np.full((steps, prod(q.sizes), samples), np.nan) for n, q in model.quantities.items()
        }
        for n, (_, sizes) in model.sources.items():
            self.random[n] = np.full((steps, prod(sizes), samples), np.nan)
        for n, e in (*model.entries.items(), *model.scalars.items()):
            shape = [steps if x in (t, s) else model.sizes[x] for x in e.args]
            known.found[n] = np.zeros(shape) if e.is_response else np.full(shape, np.nan)
        self.groups: dict[int, Growing] = {}
        for children, members in zip(seed.spawn(len(model.populations)), model.populations, strict=True):
            counts = {i: sum(prod(model.sources[n][1]) for n in model.groups[i]) for i in members}
            latents = Latents(samples, steps * sum(counts.values()), children, matched)
            for i in members:
                self.groups[i] = Growing(latents, counts[i], steps, i == members[-1], ridge)
        self.tangents = Tangents(self, jacobian, carriers) if jacobian else None

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
        past = np.concatenate([self.covariances(a, nodes, now, np.arange(now)) for a in nodes])
        present = np.concatenate([self.covariances(a, nodes, now, np.array([now])) for a in nodes])
        values = self.groups[index].extend(past, present)
        at = 0
        for n in nodes:
            count = prod(self.model.sources[n][1])
            self.random[n][now] = values[at : at + count]
            at += count

    def covariances(self, a: Node, nodes: tuple[Node, ...], now: int, times: Integers) -> Array:
        """``<a(now) b(times)>``; rows are entries of ``a``, columns times and then entries of each ``b``."""
        blocks = []
        for b in nodes:
            first, second = self.model.sources[a][1], self.model.sources[b][1]
            shape = (*first, len(times), *second)
            if (a, b) in self.model.covariances:
                c = self.model.covariances[a, b]
                at = {t: now, s: _along(times, len(first), len(shape))}
                symbols = (*c.first, None, *c.second)
            elif (b, a) in self.model.covariances:
                c = self.model.covariances[b, a]
                at = {s: now, t: _along(times, len(first), len(shape))}
                symbols = (*c.second, None, *c.first)
            else:
                blocks.append(np.zeros((prod(first), len(times), prod(second))))
                continue
            for k, x in enumerate(symbols):
                if x is not None:
                    at[x] = _along(np.arange(shape[k]), k, len(shape))
            block = np.broadcast_to(self.known(c.expr, at), shape)
            blocks.append(block.reshape(prod(first), len(times), prod(second)))
        joined = np.concatenate(blocks, axis=2)
        return joined.reshape(len(joined), -1)

    # -- quantities ------------------------------------------------------------------------------------

    def quantity(self, q: Quantity, now: int) -> None:
        """A field or a function of fields at this step, on every path."""
        value = q.function(*self.leaves(q, now))
        shape = (*q.sizes, self.samples)
        self.random[q.node][now] = np.broadcast_to(value, shape).reshape(-1, self.samples)

    def leaves(self, q: Quantity, now: int) -> list[Any]:
        """What the expression of ``q`` is made of, each broadcastable to ``(*sizes, samples)``."""
        found = []
        for x in q.function.leaves:
            if x in q.memories:
                found.append(sum((self.memory(q, m, now) for m in q.memories[x]), 0.0))
            elif isinstance(x, AppliedUndef) and self.model.is_random(x):
                found.append(self.spread(self.random[node_of(x)][now], indices_of(x), q.indices))
            else:
                found.append(self.known(x, self.places(q.indices, now, 1)))
        return found

    def spread(self, values: Array, symbols: tuple[Symbol, ...], own: tuple[Symbol, ...]) -> Array:
        """``values`` with indices ``symbols``, broadcastable along the indices ``own``."""
        shaped = values.reshape(*self.model.size(symbols), *values.shape[1:])
        if symbols == own:
            return shaped
        rest = tuple(range(len(symbols), shaped.ndim))
        there = [x for x in own if x in symbols]
        shaped = shaped.transpose(*[symbols.index(x) for x in there], *rest)
        new = [self.model.sizes[x] if x in symbols else 1 for x in own]
        return shaped.reshape(*new, *[values.shape[1:][i] for i in range(len(rest))])

    def places(self, own: tuple[Symbol, ...], now: int, extra: int) -> dict[Symbol, Any]:
        """Positions of the indices ``own`` along the first axes, with ``extra`` axes after them."""
        ndim = len(own) + extra
        at: dict[Symbol, Any] = {
            x: _along(np.arange(self.model.sizes[x]), k, ndim) for k, x in enumerate(own)
        }
        at[t] = now
        return at

    def kernel(self, q: Quantity, m: Memory, now: int) -> Array:
        """The kernel of a sum over the past, ``(entries of q, times, entries of what)``."""
        times = np.array([now]) if m.time == t else np.arange(now + 1 if m.through else now)
        own, over = q.indices, m.over
        ndim = len(own) + 1 + len(over)
        at = self.places(own, now, 1 + len(over))
        if m.time != t:
            at[m.time] = _along(times, len(own), ndim)
        for k, x in enumerate(over):
            at[x] = _along(np.arange(self.model.sizes[x]), len(own) + 1 + k, ndim)
        sizes, inner = q.sizes, self.model.size(over)
        full = np.broadcast_to(self.known(m.kernel, at), (*sizes, len(times), *inner))
        gone = tuple(len(own) + 1 + k for k, x in enumerate(over) if x not in m.symbols)
        full = full.sum(axis=gone)
        left = [x for x in over if x in m.symbols]
        # an index of what that is not summed is one of q's own: a diagonal
        for x in m.symbols:
            if x not in over:
                full = full[..., None] * _diagonal(own.index(x), full.ndim, self.model.sizes[x])
                left.append(x)
        start = len(own) + 1
        axes = (*range(start), *[start + left.index(x) for x in m.symbols])
        flat: Array = full.transpose(axes).reshape(prod(sizes), len(times), prod(self.model.size(m.symbols)))
        return flat

    def memory(self, q: Quantity, m: Memory, now: int) -> Any:
        """A sum over the past."""
        kernel = self.kernel(q, m, now)
        count = kernel.shape[1]
        if count == 0:
            return 0.0
        past = self.random[m.what][now : now + 1] if m.time == t else self.random[m.what][:count]
        flat = kernel.reshape(len(kernel), -1) @ past.reshape(-1, self.samples)
        return flat.reshape(*q.sizes, self.samples)

    # -- averages --------------------------------------------------------------------------------------

    def average(self, e: Entry, kind: str, now: int) -> None:
        """An order parameter at times (now, past), (past, now) or (now, now), or a scalar."""
        if kind in ("row", "column") and (now == 0 or s not in e.args):
            return
        single = s not in e.args
        late, early = (
            (np.arange(now), np.array([now])) if kind == "column" else (np.array([now]), np.arange(now))
        )
        if kind == "now":
            late = early = np.array([now])
        self.store(e, late, early, self.averages(e, late, early, single))

    def averages(self, e: Entry, late: Integers, early: Integers, single: bool) -> dict[Expr, Any]:
        """The averages in ``e``, and sums over indices of averages, axes (indices of ``e``, late, early)."""
        found: dict[Expr, Any] = {a: self.correlate(e, c, late, early, single) for a, c in e.averages.items()}
        for x, inner in e.sums.items():
            extra = len(inner.indices) - len(e.indices)
            value = self.evaluated(inner, late, early, self.averages(inner, late, early, single))
            found[x] = value.sum(axis=tuple(range(extra)))
        return found

    def store(self, e: Entry, late: Integers, early: Integers, averages: Mapping[Expr, Any]) -> None:
        """Put ``e``, computed from its averages, at times ``late`` x ``early``."""
        full = self.evaluated(e, late, early, averages)
        if not np.isfinite(full).all():
            raise Diverged(
                f"{e.node[0]} is not finite at step {late.max()}: a smaller learning rate is needed"
            )
        array = self.known.found[e.node]
        if s in e.args:
            array[..., late[0] : late[-1] + 1, early[0] : early[-1] + 1] = full
        else:
            array[..., late[0]] = full[..., 0, 0]

    def evaluated(self, e: Entry, late: Integers, early: Integers, averages: Mapping[Expr, Any]) -> Array:
        """The expression of ``e``, axes (indices of ``e``, late, early)."""
        own = e.indices
        ndim = len(own) + 2
        at: dict[Symbol, Any] = {
            x: _along(np.arange(self.model.sizes[x]), k, ndim) for k, x in enumerate(own)
        }
        at[t], at[s] = _along(late, len(own), ndim), _along(early, len(own) + 1, ndim)
        value = self.known(e.expr, at, averages)
        return np.broadcast_to(value, (*self.model.size(own), len(late), len(early)))

    def correlate(
        self, e: Entry, c: Correlation | Responding, late: Integers, early: Integers, single: bool
    ) -> Array:
        """An average with axes (indices of ``e``, late, early)."""
        assert isinstance(c, Correlation)
        x = self.random[c.first][late[0] : late[-1] + 1]
        if c.second is None:
            mean = x.mean(axis=2)[:, :, None]
            return self.arranged(e, mean, c.first_symbols, ())
        y = self.random[c.second][early[0] : early[-1] + 1]
        flat = x.reshape(-1, self.samples) @ y.reshape(-1, self.samples).T / self.samples
        both = flat.reshape(len(late), -1, len(early), y.shape[1]).transpose(0, 1, 3, 2)
        return self.arranged(e, both, c.first_symbols, c.second_symbols)

    def arranged(
        self, e: Entry, values: Array, first: tuple[Symbol, ...], second: tuple[Symbol, ...]
    ) -> Array:
        """``(late, entries [, entries], early)`` with axes (indices of ``e``, late, early)."""
        late, early = values.shape[0], values.shape[-1]
        shaped = values.reshape(late, *self.model.size(first), *self.model.size(second), early)
        letters = {x: chr(97 + k) for k, x in enumerate(dict.fromkeys((*first, *second)))}
        if set(letters) - set(e.indices):
            raise ValueError(f"an average in {e.node[0]} carries an index that {e.node[0]} does not have")
        inner = "".join(letters[x] for x in (*first, *second))
        there = [x for x in e.indices if x in letters]
        found: Array = np.einsum(f"Y{inner}Z->{''.join(letters[x] for x in there)}YZ", shaped)
        return found.reshape(*[self.model.sizes[x] if x in letters else 1 for x in e.indices], late, early)

    def response(self, e: Entry, now: int) -> None:
        """A response at this step to the past (and, unless it is strict, to the present)."""
        count = now if e.causal == "strict" else now + 1
        if count == 0:
            return
        averages = {}
        for a, c in e.averages.items():
            assert isinstance(c, Responding)
            averages[a] = self.arranged(e, self.responding(e, c, now, count), c.symbols, c.source_symbols)
        self.store(e, np.array([now]), np.arange(count), averages)

    def responding(self, e: Entry, c: Responding, now: int, count: int) -> Array:
        """``<d X(now) / d source(s < count)>``, axes (1, entries of X, entries of the source, s)."""
        index = next(i for i, g in enumerate(self.model.groups) if c.source in g)
        nodes = self.model.groups[index]
        if self.tangents is not None and e.node in self.tangents.wanted:
            found = self.tangents.mean(c.what, index, now, count)
        else:
            found = self.groups[index].responses(self.random[c.what][now], count * self.groups[index].size)
        before = sum(prod(self.model.sources[n][1]) for n in nodes[: nodes.index(c.source)])
        mine = slice(before, before + prod(self.model.sources[c.source][1]))
        return found.reshape(len(found), count, -1)[:, :, mine].transpose(0, 2, 1)[None]


def _along(values: Integers, axis: int, ndim: int) -> Integers:
    """``values`` along one of ``ndim`` axes."""
    return values.reshape([-1 if k == axis else 1 for k in range(ndim)])


def _diagonal(axis: int, ndim: int, size: int) -> Array:
    """One where the index at ``axis`` equals that of a new last axis."""
    return np.eye(size).reshape([size if k in (axis, ndim) else 1 for k in range(ndim + 1)])
