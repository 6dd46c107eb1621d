"""A theory read for given numbers and marched by one replica after another."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol
from sympy.core.function import AppliedUndef

from derive.meanfield.theory import Theory
from derive.program.expressions import s, t
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

LAST: deque[tuple[Theory, dict[str, Number], Model, list[Op]]] = deque(maxlen=8)
"""Theories read last."""

FEW = 24
"""Entries of a source up to which derivatives along paths cost no more than Stein's lemma for their error."""


class Prepared:
    """A theory read for given numbers, ready to be solved by one replica after another.

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
        return self.steps * max((size_of(model, i) for i in asked), default=0)

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

    def bytes(self, samples: int, carriers: int = 0) -> int:
        """About how much memory a replica takes, ``carriers`` of whose paths carry derivatives."""
        model, steps = self.model, self.steps
        counts = [prod(q.sizes) for q in model.quantities.values()]
        groups = [size_of(model, i) for i in range(len(model.groups))]
        tables = [
            prod(steps if x in (t, s) else model.sizes[x] for x in e.args) for e in model.entries.values()
        ]
        paths = steps * samples * (sum(counts) + 3 * sum(groups))
        squares = 3 * sum((steps * g) ** 2 for g in groups)
        derivatives = carriers * steps**2 * sum(counts) * max(groups)
        return 8 * (paths + squares + sum(tables) + derivatives)

    def together(self, samples: int, carriers: int) -> int:
        """How many replicas are marched side by side: what MEMORY holds."""
        return max(1, MEMORY // self.bytes(samples, carriers))

    def runs(
        self,
        samples: int,
        seeds: Sequence[np.random.SeedSequence],
        *,
        matched: bool = True,
        ridge: float | None = None,
        carriers: int | None = None,
        progress: Callable[[int], None] | None = None,
        finished: Callable[[March, int], None] | None = None,
    ) -> Iterator[dict[Node, Array]]:
        """One solution for each seed, by names and layers; a scalar has its time first.

        ``progress`` is called with the steps done so far, ``finished`` with the march of each replica and its
        number among those that were marched together.
        """
        carried = min(samples, carriers or samples)
        jacobian = frozenset(n for n, how in self.chosen.items() if how == "jacobian")
        together = self.together(samples, carried if jacobian else 0)
        for start in range(0, len(seeds), together):
            known = Known(self.model.layout.values, self.data)
            march = March(
                self.model,
                self.order,
                known,
                self.steps,
                samples,
                list(seeds[start : start + together]),
                matched=matched,
                ridge=1 / samples if ridge is None else ridge,
                carriers=carried,
                jacobian=jacobian,
            )
            with np.errstate(over="ignore", invalid="ignore"):
                march.run(
                    None if progress is None else _counted(progress, start * self.steps, march.replicas)
                )
            self.ranks = {
                name_of(n): (march.groups[i][-1].rank, self.steps * march.groups[i][-1].size)
                for i, g in enumerate(self.model.groups)
                for n in g
            }
            side = known.found | _observables(self.model, known, self.steps, march.replicas)
            for i in range(march.replicas):
                if finished is not None:
                    finished(march, i)
            count = march.replicas
            del march, known  # their paths before the next ones
            for i in range(count):
                one = {n: x[..., i] for n, x in side.items()}
                yield {n: np.moveaxis(x, -1, 0) if n in self.model.scalars else x for n, x in one.items()}


def _counted(progress: Callable[[int], None], before: int, replicas: int) -> Callable[[int], None]:
    return lambda step: progress(before + step * replicas)


def _read(theory: Theory, values: Mapping[str, Number]) -> tuple[Model, list[Op]]:
    """The tables of a theory and the order of a step; those of the last few theories are kept."""
    for known, numbers, model, order in LAST:
        if known is theory and numbers == values:
            return model, order
    model = Model(Layout(theory, values))
    LAST.appendleft((theory, dict(values), model, order_of(model)))
    return model, LAST[0][-1]


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
