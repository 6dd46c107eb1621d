"""A linear theory as rows of kernels: reduced where it has the form for it, and with the arrays of a grid."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial

import numpy as np
from numpy.typing import NDArray

from derive.errors import NotApplicable
from derive.linear.overlap import read_first
from derive.linear.projection import error_projected
from derive.reduce.data import LossDecomposition, loss_decomposition
from derive.theory import Theory
from numerics.experiment.problem import Problem
from numerics.experiment.theory import (
    Reduction,
)
from numerics.lowering.linear import lower
from numerics.lowering.table import Table
from numerics.names import (
    C_LEARNT,
    ERROR,
    FIELD,
    GRADIENT,
    OUTPUT,
)
from numerics.solver.grid import TimeGrid, tables_of

Array = NDArray[np.float64]
NamedArrays = dict[str, Array]


def simplest(theory: Theory) -> Theory:
    """The theory with outputs read in the first layer and projected on the error, as far as it has the form.

    Both change nothing but the time that a solution takes.
    """
    for reduction in (read_first, partial(error_projected, field=FIELD, error=ERROR)):
        with suppress(NotApplicable):
            theory = reduction(theory)
    return theory


REDUCTIONS: tuple[Reduction, ...] = (simplest,)
"""Made of every theory before it is marched, unless a test leaves them out."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """The theory of a structure, reduced, and its rows."""

    theory: Theory
    table: Table

    @cached_property
    def decomposition(self) -> LossDecomposition:
        """The test loss of random data by its causes."""
        return loss_decomposition(self.theory)


def reduced(problem: Problem, reductions: tuple[Reduction, ...]) -> Lowered:
    """The theory of a problem after ``reductions``, in steps, and its rows."""
    return _lowered(problem.stepped(*reductions))


@lru_cache(maxsize=64)
def _lowered(theory: Theory) -> Lowered:
    return Lowered(theory, lower(theory))


def unlabelled(problem: Problem, lowered: Lowered) -> str | None:
    """Return which fields, numbers and layers that results need a theory lacks; None if it has all."""
    theory = lowered.theory
    there = {e.name for e in (*theory.equations, *theory.scalars)}
    there |= {x.name for x in theory.order_parameters}
    lacking = ({FIELD, GRADIENT, OUTPUT, ERROR} if problem.seen else {C_LEARNT}) - there
    if lacking:
        return f"the theory has no {', '.join(sorted(lacking))}"
    fields = {r.field for r in lowered.table.fields}
    layers = range(1, (problem.depth or 0) + 1) if problem.seen else ()
    unlayered = [x for x in (FIELD, GRADIENT) if any((x, k) not in fields for k in layers)]
    return f"{' and '.join(unlayered)} of the theory have no layers" if unlayered else None


def arrays_on(problem: Problem, grid: TimeGrid | None, weights: Array | None = None) -> NamedArrays:
    """The arrays of the problem, and of a flow the tables of its memory, with other ``weights``."""
    if grid is None:
        return dict(problem.data)
    given = grid.weights if weights is None else weights
    return {**problem.arrays, **tables_of(problem.program, problem.numbers, grid.nodes, given)}
