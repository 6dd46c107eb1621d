"""Responses along the paths: derivatives of quantities by the sources, carried through every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sympy.core.function import AppliedUndef

from derive.program.expressions import t
from numerics.solve.particles.formulas import Jump, Node, indices_of, node_of
from numerics.solve.particles.reading import Memory, Model, Quantity, Responding

if TYPE_CHECKING:
    from numerics.solve.particles.march import March

Array = NDArray[np.float64]


def group_of(model: Model, source: Node) -> int:
    """The group that a source belongs to."""
    return next(i for i, g in enumerate(model.groups) if source in g)


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

    For a quantity and a group, ``blocks[s]`` holds the derivatives by the sources at time ``s``, shape
    ``(steps - s, entries, size of the group, samples)``; kept for quantities that sums over the past read.
    Derivatives vary less from path to path than what they are derivatives of: ``samples`` of the paths, the
    first ones of the sequence, carry them.
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
        self.blocks: dict[tuple[Node, int], list[Array]] = {}
        self.current: dict[tuple[Node, int], tuple[int, list[Array]]] = {}

    def of(self, node: Node, group: int, now: int) -> list[Any] | None:
        """Derivatives at this step by the sources at times ``0..now``; None if there are none."""
        model = self.march.model
        if node in model.groups[group]:
            return self.unit(node, group, now)
        if group not in self.ways.get(node, {}):
            return None
        at, found = self.current.get((node, group), (-1, []))
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

    def unit(self, node: Node, group: int, now: int) -> list[Any]:
        """A source by itself: one at the same time and index."""
        size = self.march.groups[group].size
        nodes = self.march.model.groups[group]
        before = sum(self.march.random[n].shape[1] for n in nodes[: nodes.index(node)])
        one = np.eye(size)[before : before + self.march.random[node].shape[1], :, None]
        return [None] * now + [one]

    def keep(self, node: Node, group: int, now: int, found: list[Array]) -> None:
        """Store the derivatives of this step for later sums over the past."""
        march = self.march
        blocks = self.blocks.setdefault((node, group), [])
        size = (march.random[node].shape[1], march.groups[group].size, self.samples)
        blocks.append(np.zeros((march.steps - now, *size)))
        for k, x in enumerate(found):
            if x is not None:
                blocks[k][now - k] = x

    def chosen(self, x: Any) -> Any:
        """The values on the paths that carry derivatives."""
        full = np.ndim(x) > 0 and np.shape(x)[-1] == self.march.samples
        return x[..., self.paths] if full else x

    def step(self, q: Quantity, group: int, now: int) -> list[Any]:
        """The chain rule at this step."""
        march = self.march
        leaves = [self.chosen(x) for x in march.leaves(q, now)]
        total: list[Any] = [None] * (now + 1)
        for i, x in enumerate(q.function.leaves):
            if x in q.memories:
                parts = [(self.memory(q, m, group, now), q.indices) for m in q.memories[x]]
            elif isinstance(x, AppliedUndef) and march.model.is_random(x):
                parts = [(self.of(node_of(x), group, now), indices_of(x))]
            else:
                continue
            parts = [p for p in parts if p[0] is not None and any(y is not None for y in p[0])]
            if not parts:
                continue
            outer = np.asarray(q.function.partial(i, *leaves), dtype=float)
            outer = np.broadcast_to(outer, (*q.sizes, outer.shape[-1] if outer.ndim else 1))
            outer = outer.reshape(-1, 1, outer.shape[-1])
            for part, symbols in parts:
                for k, y in enumerate(part or []):
                    if y is None:
                        continue
                    spread = march.spread(y, symbols, q.indices)
                    spread = np.broadcast_to(spread, (*q.sizes, *spread.shape[-2:])).reshape(-1, *y.shape[1:])
                    product = outer * spread
                    total[k] = product if total[k] is None else total[k] + product
        return total

    def memory(self, q: Quantity, m: Memory, group: int, now: int) -> list[Any] | None:
        """Derivatives of a sum over the past."""
        march = self.march
        if m.through:
            self.of(m.what, group, now)
        blocks = self.blocks.get((m.what, group))
        if not blocks:
            return None
        kernel = march.kernel(q, m, now)
        found: list[Any] = [None] * (now + 1)
        for k, block in enumerate(blocks):
            if m.time == t:
                rows, past = kernel, block[now - k : now - k + 1]
            else:
                rows, past = kernel[:, k:], block[: kernel.shape[1] - k]
            if rows.shape[1] == 0:
                continue
            flat = rows.reshape(len(rows), -1) @ past.reshape(rows.shape[1] * rows.shape[2], -1)
            found[k] = flat.reshape(len(rows), *block.shape[2:])
        return found

    def mean(self, what: Node, group: int, now: int, count: int) -> Array:
        """``<d what(now) / d source>`` for the sources at times before ``count``."""
        size = self.march.groups[group].size
        found = np.zeros((self.march.random[what].shape[1], count, size))
        for k, x in enumerate((self.of(what, group, now) or [])[:count]):
            if x is not None:
                found[:, k] = np.broadcast_to(x, (*x.shape[:2], self.samples)).mean(axis=2)
        return found.reshape(len(found), -1)
