"""A theory read for given numbers and marched by replicas, some of them side by side."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from derive.theory import Theory
from numerics.solve.direct.layout import Layout, Number
from numerics.solve.particles.formulas import Jump, Known, Node
from numerics.solve.particles.march import March
from numerics.solve.particles.order import Op, order_of
from numerics.solve.particles.reading import Model, Responding
from numerics.solve.particles.tangents import group_of, kind_of, size_of

Array = NDArray[np.float64]
Responses = Literal["auto", "stein", "jacobian"]

FEWEST = 256
"""Samples that a search for the right number begins with, or twice the entries of the sources."""

MEMORY = 2**29
"""Bytes up to which replicas are marched side by side."""

FEW = 24
"""Entries of a source up to which derivatives along paths cost no more than Stein's lemma for their error."""

LAST: deque[tuple[Theory, dict[str, Number], Model, list[Op]]] = deque(maxlen=8)
"""Theories read last."""


class Prepared:
    """A theory read for given numbers, ready to be solved by replicas.

    ``methods`` says how each response is found, ``entries`` how many entries a source has at most to which
    Stein's lemma is applied; ``ranks`` is that of the last replica.
    """

    def __init__(
        self,
        theory: Theory,
        *,
        steps: int,
        values: Mapping[Symbol | str, Number] | None = None,
        data: Mapping[str, Any] | None = None,
        responses: Responses = "auto",
    ) -> None:
        self.steps, self.data = steps, data or {}
        self.model, self.order = _read(theory, {str(k): v for k, v in (values or {}).items()})
        self.chosen = _responses(self.model, responses, steps)
        self.methods = {name_of(n): how for n, how in self.chosen.items()}
        self.noisy = theory.program.rule.noise(t, s) != 0
        self.ranks: dict[str, tuple[int, int]] = {}

    @property
    def entries(self) -> int:
        """The most entries, steps times indices, of a source to which Stein's lemma is applied; or zero."""
        model = self.model
        asked = {
            group_of(model, c.source)
            for n, how in self.chosen.items()
            if how == "stein"
            for c in model.entries[n].averages.values()
            if isinstance(c, Responding)
        }
        sizes = [sum(prod(model.sources[n][1]) for n in model.groups[i]) for i in asked]
        return self.steps * max(sizes, default=0)

    @property
    def enough(self) -> int:
        """Samples that a search for the right number begins with."""
        return int(max(FEWEST, 2 ** np.ceil(np.log2(max(2 * self.entries, 1)))))

    @property
    def smooth(self) -> bool:
        """Has every function on the way a continuous derivative?"""
        model = self.model
        for q in model.quantities.values():
            for i, x in enumerate(q.function.leaves):
                if x in q.memories or (isinstance(x, AppliedUndef) and model.is_random(x)):
                    try:
                        q.function.derivative(i)
                    except Jump:
                        return False
        return True

    def bytes(self, samples: int) -> int:
        """About how much memory a replica takes."""
        model = self.model
        counts = [prod(q.sizes) for q in model.quantities.values()]
        groups = [self.steps * sum(prod(model.sources[n][1]) for n in g) for g in model.groups]
        tables = [
            prod(self.steps if x in (t, s) else model.sizes[x] for x in e.args)
            for e in model.entries.values()
        ]
        paths = samples * (self.steps * sum(counts) + 3 * sum(groups))
        return 8 * (paths + 3 * sum(n**2 for n in groups) + sum(tables))

    def derivatives(self, carriers: int) -> int:
        """About how much memory derivatives along ``carriers`` paths of a replica take."""
        if "jacobian" not in self.chosen.values():
            return 0
        counts = [prod(q.sizes) for q in self.model.quantities.values()]
        size = max(size_of(self.model, i) for i in range(len(self.model.groups)))
        return 8 * carriers * self.steps**2 * sum(counts) * size

    def runs(
        self,
        samples: int,
        seeds: Sequence[np.random.SeedSequence],
        *,
        matched: bool | None = None,
        ridge: float | None = None,
        carriers: int | None = None,
        progress: Callable[[int], None] | None = None,
        finished: Callable[[March, int], None] | None = None,
    ) -> Iterator[dict[Node, Array]]:
        """One solution for each seed, by names and layers; a scalar has its time first.

        As many replicas are marched side by side as MEMORY holds; which ones changes none of them.
        ``progress`` is called with the steps done so far, ``finished`` with the march of each replica and its
        number in it.
        """
        carriers = min(samples, carriers or samples)
        jacobian = frozenset(n for n, how in self.chosen.items() if how == "jacobian")
        together = max(1, MEMORY // (self.bytes(samples) + self.derivatives(carriers)))
        for start in range(0, len(seeds), together):
            known = Known(self.model.layout.values, self.data)
            march = March(
                self.model,
                self.order,
                known,
                self.steps,
                samples,
                list(seeds[start : start + together]),
                matched=not self.noisy if matched is None else matched,
                ridge=ridge,
                carriers=carriers,
                jacobian=jacobian,
            )
            count = march.replicas
            with np.errstate(over="ignore", invalid="ignore"):
                march.run(None if progress is None else _counted(progress, start * self.steps, count))
            self.ranks = {
                name_of(n): (march.groups[i][-1].rank, self.steps * march.groups[i][-1].size)
                for i, g in enumerate(self.model.groups)
                for n in g
            }
            if finished is not None:
                for i in range(count):
                    finished(march, i)
            del march  # the paths of these replicas
            side = known.found | _observables(self.model, known, self.steps, count)
            for i in range(count):
                found = {n: np.ascontiguousarray(x[..., i]) for n, x in side.items()}
                yield {n: np.moveaxis(x, -1, 0) if n in self.model.scalars else x for n, x in found.items()}


def _read(theory: Theory, values: dict[str, Number]) -> tuple[Model, list[Op]]:
    """The tables of a theory and the order of a step; those of the last few theories are kept."""
    for known, numbers, model, order in LAST:
        if known is theory and numbers == values:
            return model, order
    model = Model(Layout(theory, values))
    order = order_of(model)
    LAST.appendleft((theory, values, model, order))
    return model, order


def _counted(progress: Callable[[int], None], before: int, count: int) -> Callable[[int], None]:
    return lambda step: progress(before + count * step)


def name_of(n: Node) -> str:
    """A node as it is written: ``Phi(2)``."""
    return f"{n[0]}{''.join(f'({k})' for k in n[1])}"


def _responses(model: Model, asked: Responses, steps: int) -> dict[Node, str]:
    """How each response is found."""
    chosen: dict[Node, str] = {}
    for n, e in model.entries.items():
        ways = [c for c in e.averages.values() if isinstance(c, Responding)]
        if not ways:
            continue
        kinds = {kind_of(model, c) for c in ways}
        if asked == "jacobian" and "jumps" in kinds:
            raise ValueError(f"{name_of(n)}: a function on the way jumps, take responses = 'stein' or 'auto'")
        groups = [model.groups[group_of(model, c.source)] for c in ways]
        entries = steps * max(sum(prod(model.sources[x][1]) for x in g) for g in groups)
        along = kinds == {"linear"} or ("jumps" not in kinds and entries <= FEW)
        chosen[n] = "jacobian" if asked == "jacobian" or (asked == "auto" and along) else "stein"
    return chosen


def _observables(model: Model, known: Known, steps: int, replicas: int) -> dict[Node, Array]:
    """Observables (tangent kernels) from the order parameters, at all times."""
    found: dict[Node, Array] = {}
    for node, symbol, expr in model.observables:
        args = tuple(x for x in symbol.args if not x.is_Integer)
        sizes = [steps if x in (t, s) else model.sizes[x] for x in args]
        at = {
            x: np.arange(n).reshape([-1 if j == k else 1 for j in range(len(args))])
            for k, (x, n) in enumerate(zip(args, sizes, strict=True))
        }
        found[node] = np.broadcast_to(known(expr, at), (*sizes, replicas)).copy()
    return found
