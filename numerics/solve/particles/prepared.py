"""A theory read for given numbers and marched by one replica after another."""

from __future__ import annotations

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
from numerics.solve.particles.order import order_of
from numerics.solve.particles.reading import Model, Responding
from numerics.solve.particles.tangents import group_of, kind_of

Array = NDArray[np.float64]
Responses = Literal["auto", "stein", "jacobian"]

FEWEST = 256
"""Samples that a search for the right number begins with, or twice the entries of the sources."""

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
        self.layout = Layout(theory, {str(k): v for k, v in (values or {}).items()})
        self.model = model = Model(self.layout)
        self.order = order_of(model)
        self.chosen = _responses(model, responses, steps)
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

    def runs(
        self,
        samples: int,
        seeds: Sequence[np.random.SeedSequence],
        *,
        matched: bool = True,
        ridge: float | None = None,
        carriers: int | None = None,
        progress: Callable[[int], None] | None = None,
        finished: Callable[[March], None] | None = None,
    ) -> Iterator[dict[Node, Array]]:
        """One solution for each seed, by names and layers; a scalar has its time first.

        ``progress`` is called with the steps done so far, ``finished`` with the march of each replica.
        """
        for number, seed in enumerate(seeds):
            known = Known(self.layout.values, self.data)
            march = March(
                self.model,
                self.order,
                known,
                self.steps,
                samples,
                seed,
                matched=matched,
                ridge=1 / samples if ridge is None else ridge,
                carriers=min(samples, carriers or samples),
                jacobian=frozenset(n for n, how in self.chosen.items() if how == "jacobian"),
            )
            with np.errstate(over="ignore", invalid="ignore"):
                march.run(None if progress is None else _counted(progress, number * self.steps))
            self.ranks = {
                name_of(n): (march.groups[i].rank, self.steps * march.groups[i].size)
                for i, g in enumerate(self.model.groups)
                for n in g
            }
            if finished is not None:
                finished(march)
            del march  # the paths of one replica at a time
            found = known.found | _observables(self.model, known, self.steps)
            yield {n: np.moveaxis(x, -1, 0) if n in self.model.scalars else x for n, x in found.items()}


def _counted(progress: Callable[[int], None], before: int) -> Callable[[int], None]:
    return lambda step: progress(before + step)


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


def _observables(model: Model, known: Known, steps: int) -> dict[Node, Array]:
    """Observables (tangent kernels) from the order parameters, at all times."""
    found: dict[Node, Array] = {}
    for node, symbol, expr in model.observables:
        args = tuple(x for x in symbol.args if not x.is_Integer)
        sizes = [steps if x in (t, s) else model.sizes[x] for x in args]
        at = {
            x: np.arange(n).reshape([-1 if j == k else 1 for j in range(len(args))])
            for k, (x, n) in enumerate(zip(args, sizes, strict=True))
        }
        found[node] = np.broadcast_to(known(expr, at), sizes).copy()
    return found
