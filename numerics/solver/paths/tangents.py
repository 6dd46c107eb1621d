"""Responses along the paths: derivatives of quantities by the sources, carried through every step."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr
from sympy.core.function import AppliedUndef

from numerics.solver.paths.reading import Model, Quantity, Responding
from numerics.tensors.leaves import Jump, Node, indices_of, node_of

if TYPE_CHECKING:
    from numerics.solver.paths.march import March

Array = NDArray[np.float64]

PANEL = 4
"""Source times whose derivatives are kept together: products with them are larger, zeros in them more."""


def group_of(model: Model, source: Node) -> int:
    """The group that a source belongs to."""
    return next(i for i, g in enumerate(model.groups) if source in g)


def size_of(model: Model, group: int) -> int:
    """How many entries a group has at one time."""
    return sum(prod(model.sources[n][1]) for n in model.groups[group])


def involved(model: Model, what: Node, group: int) -> dict[Node, None]:
    """The quantities on the way from a group to ``what``, in no particular order."""
    upstream: dict[Node, None] = {}
    todo = [what]
    while todo:
        n = todo.pop()
        if n in model.quantities and n not in upstream:
            upstream[n] = None
            todo += model.feeds(model.quantities[n])
    feels = {n for n in model.groups[group]}
    while True:
        more = {n for n in upstream if n not in feels and feels & set(model.feeds(model.quantities[n]))}
        if not more:
            return {n: None for n in upstream if n in feels}
        feels |= more


def kind_of(model: Model, c: Responding) -> str:
    """``linear``, ``smooth`` or ``jumps``: the functions on the way from a source to what responds."""
    group = group_of(model, c.source)
    way = involved(model, c.what, group)
    feels = {*way, *model.groups[group]}
    linear = True
    for n in way:
        q = model.quantities[n]
        for i, x in enumerate(q.function.leaves):
            if x not in q.memories and not (
                isinstance(x, AppliedUndef) and model.is_random(x) and node_of(x) in feels
            ):
                continue
            try:
                slope = q.function.derivative(i)
            except Jump:
                return "jumps"
            moving = {
                s for s, y in zip(q.function.slots, q.function.leaves, strict=True) if model.is_random(y)
            }
            linear = linear and not slope.free_symbols & moving
    return "linear" if linear else "smooth"


class Tangents:
    """Derivatives of the quantities that the responses ``wanted`` need, by the groups that they ask for.

    For a quantity and a group, derivatives at a step have shape ``(replicas, entries, times and then size of
    the group, paths)``; those of quantities that sums over the past read are kept in panels of ``PANEL``
    source times, each from the first of these times on.  Derivatives vary less from path to path than what
    they are derivatives of: ``samples`` of the paths, the first ones of the sequence, carry them.
    """

    def __init__(self, march: March, wanted: frozenset[Node], samples: int) -> None:
        self.march, self.wanted, self.samples = march, wanted, samples
        half = np.arange(samples // 2)
        self.paths = np.concatenate([half, march.samples // 2 + half])  # the mirrored ones with them
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

    def chosen(self, x: Any) -> Any:
        """The values on the paths that carry derivatives."""
        full = np.ndim(x) > 0 and np.shape(x)[-1] == self.march.samples
        return x[..., self.paths] if full and self.samples < self.march.samples else x

    def step(self, q: Quantity, group: int, now: int) -> Array:
        """The chain rule at this step."""
        march = self.march
        leaves = [self.chosen(x) for x in march.leaves(q, now)]
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
