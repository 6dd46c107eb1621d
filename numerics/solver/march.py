"""The linear causal march: one sweep forward in time solves a linear theory to rounding error.

Walks the operations of a :class:`~numerics.solver.plan.Plan` at each step, as
:class:`~numerics.solver.steps.Steps` has made them.  Where fields are single and kernels no more than sums of
order parameters, :mod:`~numerics.solver.folded` takes the same steps much faster.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol

from numerics.compile.lower import Node, Request, Table
from numerics.errors import diverged_at
from numerics.experiment.numbers import Spectrum
from numerics.results import RUNAWAY
from numerics.solver.folded import Folded
from numerics.solver.plan import Plan
from numerics.solver.rows import LAST, SMOOTH, Rows, Settling, continued, found_at
from numerics.solver.steps import Steps, foldable

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, kw_only=True)
class March(Rows):
    """The solution: full two-time arrays of what was needed or asked for.

    ``correlation(i, j)`` and ``response(i, k)`` have shape ``(T, n_i, T, n_j)``; scalars ``(T, n)``.
    ``gains`` are the numbers with which sources drive fields.  ``residual`` is the largest relative change
    that the last sweep of an implicit step made.
    """

    plan: Plan
    gains: dict[Node, dict[Node, float]]
    residual: float = 0.0

    def correlation(self, i: Node, j: Node) -> Array:
        """``<x_i(t) x_j(s)>``; symmetric completion where only one triangle was marched."""
        if (i, j) in self.correlations:
            a = self.correlations[i, j]
            return a.reshape(self.steps, self.sizes[i], self.steps, self.sizes[j])
        a = self.correlations[j, i]
        return a.reshape(self.steps, self.sizes[j], self.steps, self.sizes[i]).transpose(2, 3, 0, 1)

    def response(self, i: Node, k: Node) -> Array:
        """``<d x_i(t) / d u_k(s)>``, without the part by which a source drives its own field."""
        a = self.responses[i, k]
        return a.reshape(self.steps, self.sizes[i], self.steps, -1)

    def tensor(self, n: Node | Request) -> Array:
        """An order parameter by its name and layer, or what was asked for; a response with its direct part,
        if it has one.
        """
        if not isinstance(n, Request) and n in self.sums:
            return self.sums[n][:, None, :, None]
        q = n if isinstance(n, Request) else self.plan.table.tensors[n]
        factor = self.number(q.factor)
        if q.kind == "correlation":
            return factor * self.correlation(q.first, q.second)
        a, m = self.sizes[q.first], self.widths[q.second]
        found = np.zeros((self.steps, a, self.steps, m))
        if (q.first, q.second) in self.responses:
            found += self.response(q.first, q.second)
        gain = self.gains[q.first].get(q.second, 0.0)
        np.einsum("taub->tuab", found)[np.arange(self.steps), np.arange(self.steps)] += gain * np.eye(a, m)
        return factor * found


def march(
    table: Table,
    *,
    steps: int,
    constants: Mapping[Symbol, float],
    data: Mapping[str, Array] | None = None,
    wanted: tuple[Node | Request, ...] = (),
    watched: tuple[Node, ...] = (),
    units: Spectrum | None = None,
    implicit: float | None = None,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    progress: Progress | None = None,
) -> March:
    """Solve the theory in ``table`` for times 0..steps-1.

    ``constants`` gives every symbol a number, the extents of indices (P, C) among them; ``data`` every
    constant tensor an array with an axis for each index: kernels ``(P, P)``, targets ``(P,)`` or ``(P, C)``,
    memory weights ``w`` as a ``(steps, steps)`` strictly lower triangular table.  ``wanted`` are order
    parameters to keep besides those that the dynamics needs, by name or as what they are.  ``units`` gives
    the attributes of fields that live on units, ``functions`` what scalars contain of given functions of the
    time and of scalars; one of the time alone is an array in ``data``.  With ``implicit`` sums over the past
    hold the present too, and a step is repeated until it changes by no more than this share (or
    :class:`~numerics.errors.NotConverged`).
    Raises :class:`~numerics.errors.Diverged` with the step when a scalar, or a correlation in ``watched`` at
    equal times, runs away, and ValueError for a symbol without a number.
    """
    plan = Plan(table, (*wanted, *watched))
    if implicit is not None:
        plan = plan.through()
    arrays = {k: np.asarray(v, dtype=float) for k, v in (data or {}).items()}
    rows = March(plan.table, steps, constants, arrays, plan=plan, gains={})
    taken = Steps(plan, rows, steps, units, functions)
    rows.gains.update(taken.gains)
    check, settled = _check(taken, watched), Settling(implicit or 0.0)
    with np.errstate(all="ignore"):  # runaway dynamics are reported below, with the step
        first = 0 if implicit is not None else _folded(rows, watched, progress)
        for step in range(first, steps):
            if implicit is None:
                taken.step(step)
            else:
                _predict(step, rows)
                settled.step(found_at(step, rows), lambda: taken.step(step))  # noqa: B023
            check(step)
            if progress is not None:
                progress(step + 1, steps)
    return replace(rows, residual=settled.residual)


def _folded(rows: March, watched: tuple[Node, ...], progress: Progress | None) -> int:
    """Take the steps that a folded march can take, and return how many."""
    if not foldable(rows.plan, rows):
        return 0
    folded = Folded(rows.plan, rows)
    bound = _bound(rows)

    def after(step: int) -> None:
        for x in watched:
            q = rows.table.tensors[x]
            if not np.all(np.abs(folded.stack.equal(q.first, q.second)) < bound):
                raise diverged_at(step, x[0])
        if progress is not None:
            progress(step + 1, rows.steps)

    return folded.run(after)


def _predict(step: int, rows: Rows) -> None:
    """A first guess of a step: what the last ones found, continued."""
    count = min(step, LAST if step >= SMOOTH else 1)
    earlier = [found_at(step - k, rows) for k in range(1, count + 1)]
    for now, *before in zip(found_at(step, rows), *earlier, strict=True):
        if now.ndim and before:
            continued(now, before)


def _bound(rows: Rows) -> float:
    sizes = [float(np.abs(v).max()) for k, v in rows.data.items() if k != "w"]
    return RUNAWAY * max([1.0, *sizes])


def _check(taken: Steps, watched: tuple[Node, ...]) -> Callable[[int], None]:
    """What raises :class:`~numerics.errors.Diverged` after a step in which something ran away."""
    rows, bound = taken.rows, _bound(taken.rows)
    y = rows.data.get("y", np.zeros(1))
    channels = y.shape[1] if y.ndim == 2 else 1
    largest = np.sqrt(RUNAWAY * max(1.0, channels * float(np.mean(y**2))) / channels)

    def check(step: int) -> None:
        for name, a in rows.scalars.items():
            if not np.abs(a[step]).max() < largest:  # no loss is beyond the bound of results before
                raise diverged_at(step, name)
        for x in watched:
            q = rows.table.tensors[x]
            value = rows.sums[x][step, step] if x in rows.sums else taken.equal(q.first, q.second)
            if not np.all(np.abs(value) < bound):
                raise diverged_at(step, x[0])

    return check
