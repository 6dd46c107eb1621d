"""Linear theories as rows of kernels: reductions that save time, lowering, and arrays on a time grid.

The input is a problem; the output is a table (:mod:`numerics.lowering.table`) with the reduced theory. The
march of linear theories uses it.
"""

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
    """Return the theory after two reductions that save time, as far as they apply.

    Outputs are written as averages over the first layer instead of the last one, and fields are projected on
    the error. The solution stays the same.
    """
    for reduction in (read_first, partial(error_projected, field=FIELD, error=ERROR)):
        with suppress(NotApplicable):
            theory = reduction(theory)
    return theory


REDUCTIONS: tuple[Reduction, ...] = (simplest,)
"""Reductions of every theory before it is marched, unless a test leaves them out."""


@dataclass(frozen=True, eq=False)
class Lowered:
    """A linear theory, and its ``table``: the same equations as sums over the past with explicit kernels.

    The march of linear theories takes the table.
    """

    theory: Theory
    table: Table

    @cached_property
    def decomposition(self) -> LossDecomposition:
        """Decomposition of the test loss of random data by causes: bias, width, data, label noise."""
        return loss_decomposition(self.theory)


def reduced(problem: Problem, reductions: tuple[Reduction, ...]) -> Lowered:
    """Return the theory of a problem after ``reductions``, in discrete steps.

    It is returned together with its table, the form of the equations that the march of linear theories takes.
    """
    return _lowered(problem.stepped(*reductions))


@lru_cache(maxsize=64)
def _lowered(theory: Theory) -> Lowered:
    """Return a linear theory together with its table, the form of the equations that the march takes.

    Results are cached.
    """
    return Lowered(theory, lower(theory))


def unlabelled(problem: Problem, lowered: Lowered) -> str | None:
    """Return a message if the theory lacks fields, scalars or order parameters that a result needs.

    The message names them. It also names fields that do not exist at every layer from 1 to the depth. The
    result is None if nothing is missing.
    """
    theory = lowered.theory
    names = {e.name for e in (*theory.equations, *theory.scalars)}
    names |= {x.name for x in theory.order_parameters}
    missing = ({FIELD, GRADIENT, OUTPUT, ERROR} if problem.seen else {C_LEARNT}) - names
    if missing:
        return f"the theory has no {', '.join(sorted(missing))}"
    fields = {r.field for r in lowered.table.fields}
    layers = range(1, (problem.depth or 0) + 1) if problem.seen else ()
    unlayered = [x for x in (FIELD, GRADIENT) if any((x, k) not in fields for k in layers)]
    return f"{' and '.join(unlayered)} of the theory have no layers" if unlayered else None


def arrays_on(problem: Problem, grid: TimeGrid | None, weights: Array | None = None) -> NamedArrays:
    """Return the arrays of a problem, and the tables of its memory, by name.

    The tables, such as the weights ``"w"`` of past updates, are functions of one or two times. Those of a
    flow are computed on its time grid; ``weights`` (T, T) replace the integration weights of the grid in
    them. ``grid`` is None for a rule in steps, which has tables only if its memory has no closed form.
    """
    if grid is None:
        return dict(problem.data)
    given = grid.weights if weights is None else weights
    return {**problem.arrays, **tables_of(problem.program, problem.numbers, grid.nodes, given)}
