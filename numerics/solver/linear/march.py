"""Linear causal march: one sweep forward in time solves a linear theory to rounding error.

It runs the operations of a :class:`~numerics.lowering.operations.MarchStep` at each step, as bound to arrays
by :class:`~numerics.solver.linear.steps.StepArrays`. For many steps, and if kernels are linear in the factors
at time s and multiply single fields, :mod:`~numerics.solver.linear.folded` takes the same steps much faster.

Units with attributes are, for example, modes with their eigenvalues. Kernels are equal for all units up to
functions of the attributes, so that the field at every unit is

    x(t) = b(t) + sum_u sum_s a_u(t, s) u(s),

with b its part without sources and a_u its response to the source u. These are marched for all units
together, as arrays ``(T, c, T, m, n)`` for a source of m members and ``(T, c, n)`` for b, where the field has
c members at each of n units (one for each value of its own indices); the first axis has two entries if only
the start and the present are read. Correlations are stored only as sums over units.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, S, Symbol, lambdify
from sympy.core.function import AppliedUndef

from numerics.errors import diverged_at
from numerics.experiment.numbers import Spectrum
from numerics.lowering.operations import (
    CorrelationArray,
    CouplingRow,
    CovarianceRow,
    MarchStep,
    ResponseArray,
    StepUnits,
    SumUnits,
    UnitEquation,
    UnitTerm,
)
from numerics.lowering.table import FieldAtLayer, Request, Table
from numerics.names import TARGETS
from numerics.progress import Progress
from numerics.results import RUNAWAY
from numerics.solver.linear.folded import Folded, foldable
from numerics.solver.linear.operations import written
from numerics.solver.linear.plan import Plan
from numerics.solver.linear.rows import LAST, SMOOTH, Rows, StepIteration, extrapolate, values_at
from numerics.solver.linear.steps import StepArrays, StepValues

Array = NDArray[np.float64]

FOLDED = 240
"""Smallest number of steps with folding; for fewer steps folding takes more time than it saves."""


class Units:
    """Fields on units with attributes: given constants of each unit, such as the eigenvalue of a mode.

    It computes the fields at all units, step by step in the march, as a part without sources and a response
    to each source. ``values`` are the rows of the kernels at the present step.
    """

    def __init__(
        self,
        march_step: MarchStep,
        rows: Rows,
        values: Mapping[CouplingRow | CovarianceRow, StepValues],
        spectrum: Spectrum,
    ) -> None:
        self.rows, self.values = rows, values
        self.spectrum, self.n = spectrum, len(spectrum.counts)
        self.members, self.widths = rows.sizes, rows.widths
        solves = [x for x in march_step.operations if isinstance(x, StepUnits)]
        sums = [x for x in march_step.operations if isinstance(x, SumUnits)]
        self.equations = [x for solve in solves for x in solve.equations]
        self.constant = {x.field: self.value(x.constant) for x in self.equations}
        self.gain = {(x.field, u): self.value(g) for x in self.equations for u, g in x.drives}
        self.factor = {y: self.value(y.factor) for x in self.equations for y in x.terms}
        self.sources = list(dict.fromkeys(u for x in self.equations for u in x.responds))
        terms = [y for x in self.equations for y in x.terms]
        self.long = {y.left.other for y in terms if y.times == "past"}
        self.long |= {x.array.second for x in sums if isinstance(x.array, CorrelationArray)}
        steps = rows.steps
        held = {x.field: (self.length(x.field, steps), self.members[x.field]) for x in self.equations}
        self.b = {i: np.zeros((*shape, self.n)) for i, shape in held.items()}
        self.a = {
            (x.field, u): np.zeros((*held[x.field], steps, self.widths[u], self.n))
            for x in self.equations
            for u in x.responds
        }
        self.weights = {x.target: self.value(x.weight) * spectrum.counts for x in sums}
        self.C = {u: np.zeros((steps * m, steps * m)) for u in self.sources for m in [self.widths[u]]}
        self.covariance = {
            y.source: rows.compile(y.covariance, "now" if y.covariance.local else "through")
            for x in sums
            for y in x.sources
        }
        self.known = dict.fromkeys(self.sources, 0)

    def length(self, i: FieldAtLayer, steps: int) -> int:
        """Return the number of times stored for field ``i``: all, or only the start and the present.

        All are stored if a kernel reads the field at earlier times, or a correlation needs them.
        """
        return steps if i in self.long else min(2, steps)

    def place(self, i: FieldAtLayer, step: int) -> int:
        """Return the position on the axis of times at which values of field ``i`` at ``step`` are stored.

        It is ``step`` if the field is stored at all times. If only the start and the present are stored, it
        is 0 at step 0 and 1 at all later steps.
        """
        return step if i in self.long else min(step, 1)

    def value(self, e: Expr) -> Array:
        """Return the values at all units of ``e``, a function of their attributes, shape ``(n,)``.

        Attributes are given constants of each unit, such as the eigenvalue of a mode. Raises ValueError for a
        symbol without a number.
        """
        e = e.subs(dict(self.rows.constants))
        atoms = sorted(e.atoms(AppliedUndef), key=str)
        missing = e.xreplace(dict.fromkeys(atoms, S.One)).free_symbols
        if missing:
            raise ValueError(f"the coefficient {e} needs a number for {', '.join(sorted(map(str, missing)))}")
        values = lambdify(atoms, e, np)(*[self.spectrum.attributes[str(x.func)] for x in atoms])
        return np.broadcast_to(np.asarray(values, dtype=float), (self.n,))

    # -- a step ----------------------------------------------------------------------------------------

    def step(self, step: int, operation: StepUnits) -> None:
        """Compute fields at one time by a small linear system at each unit.

        The system is ``(1 - M) x = (contributions of the past and of other fields) + gains``. M are the
        couplings of the fields at equal time, and a gain is the coefficient of a source in the equation of a
        field. It is solved for the response to each source, and for the part of the fields without sources,
        in which the constant term of the equation takes the place of the gain.
        """
        places, left = self.places(operation.equations), self.present(step, operation.equations)
        fixed = np.concatenate(
            [
                self.constant[x.field] + self.contributed(step, x, None, places)[:, 0, 0]
                for x in operation.equations
            ]
        )
        now = _solved(left, fixed[:, None])[:, 0]
        for i, members in places.items():
            self.b[i][self.place(i, step)] = now[members]
        for u in self.sources:
            m = self.widths[u]
            right = np.zeros((len(left), step + 1, m, self.n))
            for x in operation.equations:
                if (x.field, u) in self.a:
                    right[places[x.field]] = self.contributed(step, x, u, places)
                if (x.field, u) in self.gain:
                    right[places[x.field], step] += np.eye(m)[:, :, None] * self.gain[x.field, u]
            now = _solved(left, right.reshape(len(left), -1, self.n)).reshape(right.shape)
            for i, members in places.items():
                if (i, u) in self.a:
                    self.a[i, u][self.place(i, step), :, : step + 1] = now[members]

    def places(self, equations: tuple[UnitEquation, ...]) -> dict[FieldAtLayer, slice]:
        """Return the positions of each field among the unknowns of the linear system at one unit."""
        ends = np.cumsum([self.members[x.field] for x in equations])
        return {
            x.field: slice(end - self.members[x.field], end) for x, end in zip(equations, ends, strict=True)
        }

    def contributed(
        self, step: int, equation: UnitEquation, u: FieldAtLayer | None, fields: Collection[FieldAtLayer]
    ) -> Array:
        """Return the contributions of earlier times, and of other fields at this time, to a field.

        They contribute to the response to the source ``u``, or to the part without sources if ``u`` is None.
        The shape is ``(members of the field, times, members of u, n)``; if ``u`` is None, the second and
        third axis have length one. Fields in ``fields``, which are unknown at this time, are excluded at it.
        """
        times, m = (1, 1) if u is None else (step + 1, self.widths[u])
        total = np.zeros((self.members[equation.field], times, m, self.n))
        flat = total.reshape(len(total), -1)
        for x in equation.terms:
            field, row, factor = x.left.other, self.values[x.left], self.factor[x]
            if u is not None and (field, u) not in self.a:
                continue
            earlier = self.b[field] if u is None else self.a[field, u]
            rows = earlier.reshape(len(earlier), self.members[field], -1)
            if x.times == "past":
                if step > 0:
                    width = self.n if u is None else step * m * self.n
                    before = rows.reshape(-1, rows.shape[2])[: step * self.members[field], :width]
                    product = (row.past @ before).reshape(len(total), -1, self.n)
                    total.reshape(len(total), -1, self.n)[:, : product.shape[1]] += factor * product
            elif row.present is None:
                continue
            elif self.is_present(x, step):
                if field not in fields:
                    now = rows[self.place(field, step), :, : flat.shape[1]]
                    total += factor * (row.present @ now).reshape(total.shape)
            else:
                first = row.present @ rows[0, :, : m * self.n]
                total[:, 0] += factor * first.reshape(len(total), m, self.n)
        return total

    def is_present(self, x: UnitTerm, step: int) -> bool:
        """Return whether the term ``x`` of an equation reads its field at the present time ``step``.

        This is also so for a term that reads the field at time 0, if ``step`` is 0.
        """
        return x.times == "now" or (x.times == "start" and step == 0)

    def present(self, step: int, equations: tuple[UnitEquation, ...]) -> Array:
        """Return the matrix ``1 - M`` of the linear system for the fields at one time at each unit.

        M are the coefficients with which the fields in ``equations`` read each other at the same time. The
        shape is ``(unknowns, unknowns, n)`` for n units; an unknown is one member of a field.
        """
        places = self.places(equations)
        size = sum(self.members[x.field] for x in equations)
        left = np.repeat(np.eye(size)[:, :, None], self.n, axis=2)
        for equation in equations:
            for x in equation.terms:
                now = self.values[x.left].present
                if x.left.other in places and self.is_present(x, step) and now is not None:
                    left[places[equation.field], places[x.left.other]] -= self.factor[x] * now[:, :, None]
        return left

    # -- sums over units -------------------------------------------------------------------------------

    def total(self, step: int, operation: SumUnits) -> Array:
        """Return an order parameter that sums over units, at ``t = step`` and s = 0..step.

        At each unit, b_i is the part of field i without sources, a_iu is the response of field i to the
        source u, and C_u is the covariance of this source. With the weight w_n of unit n, which counts equal
        units, a correlation of fields i and j is ``sum_n w_n (b_i(t) b_j(s) + sum_u a_iu(t, :) C_u a_ju(s,
        :)^T)``. Its shape is ``(n_i, times, n_j)`` for fields of n_i and n_j members. A response to the
        source u is ``sum_n w_n a_iu(t, s)``.
        """
        weight, i, j = self.weights[operation.target], operation.array.first, operation.array.second
        at, end, n = self.place(i, step), step + 1, self.members[i]
        if isinstance(operation.array, ResponseArray):
            zeros = np.zeros((n, end, self.widths[j]))
            row: Array = self.a[i, j][at, :, :end] @ weight if (i, j) in self.a else zeros
            return row
        p = self.members[j]
        total: Array = (self.b[j][:end].reshape(end * p, self.n) @ (weight * self.b[i][at]).T).T
        for x in operation.sources:
            u, last = x.source, step + x.present
            if last == 0:
                continue
            self.evaluate_covariance(u, last)
            size = last * self.widths[u]
            response = (self.a[i, u][at, :, :last] * weight).reshape(n, size, self.n)
            if x.covariance.local:
                product = self.times_local(u, response)
            else:
                product = self.C[u][:size, :size] @ response
            earlier = self.a[j, u].reshape(len(self.a[j, u]) * p, -1)[: end * p, : size * self.n]
            total += (earlier @ product.reshape(n, -1).T).T
        return total.reshape(n, end, p)

    def times_local(self, u: FieldAtLayer, response: Array) -> Array:
        """Return the product of the covariance of source ``u`` with a response to it, at equal times.

        The covariance must be zero between different times, so that only its values at equal times are used.
        The result has the axes (members of the field, times of u, members of u, units); ``response`` has the
        same, in which times and members of u may be joined.
        """
        steps, m = self.rows.steps, self.widths[u]
        equal_time = np.einsum("tctd->tcd", self.C[u].reshape(steps, m, steps, m))
        each = response.reshape(len(response), -1, m, self.n)
        product: Array = np.einsum("tcd,itdn->itcn", equal_time[: each.shape[1]], each)
        return product

    def evaluate_covariance(self, u: FieldAtLayer, last: int) -> None:
        """Compute the rows of the covariance of source ``u`` at all times before ``last``."""
        m = self.widths[u]
        for k in range(self.known[u], last):
            row, now, end = self.covariance[u](k), slice(k * m, (k + 1) * m), (k + 1) * m
            begin = end - row.shape[1]
            self.C[u][now, begin:end], self.C[u][begin:end, now] = row, row.T
        # the last row is computed again at the next call, because its step may be unfinished
        self.known[u] = max(self.known[u], last - 1)


def _solved(left: Array, right: Array) -> Array:
    """Return the solution x of ``left @ x = right`` at each unit, which is the last axis.

    ``left`` has shape (unknowns, unknowns, n), ``right`` (unknowns, columns, n).
    """
    x = np.linalg.solve(np.moveaxis(left, -1, 0), np.moveaxis(right, -1, 0))
    return np.ascontiguousarray(np.moveaxis(x, 0, -1))


@dataclass(frozen=True, kw_only=True)
class March(Rows):
    """Solution: two-time arrays of all quantities that were computed.

    ``correlation(i, j)`` and ``response(i, j)`` have shape ``(T, n_i, T, n_j)``; scalars have the time first,
    and then an axis for each index. ``gains`` holds by field the coefficient of each source in its equation.
    ``residual`` is the largest relative change with which the iteration of an implicit step ended, and 0
    without implicit steps.
    """

    plan: Plan
    gains: dict[FieldAtLayer, dict[FieldAtLayer, float]]
    residual: float = 0.0

    def correlation(self, i: FieldAtLayer, j: FieldAtLayer) -> Array:
        """Return ``<x_i(t) x_j(s)>``, shape (T, n_i, T, n_j), for fields with these keys.

        Raises KeyError for a correlation that was not computed.
        """
        if (i, j) in self.correlations:
            a = self.correlations[i, j]
            return a.reshape(self.steps, self.sizes[i], self.steps, self.sizes[j])
        a = self.correlations[j, i]
        return a.reshape(self.steps, self.sizes[j], self.steps, self.sizes[i]).transpose(2, 3, 0, 1)

    def response(self, i: FieldAtLayer, k: FieldAtLayer) -> Array:
        """Return ``<d x_i(t) / d u_k(s)>``, shape (T, n_i, T, n_k), without its direct part.

        The direct part is that by which a source drives its own field. Raises KeyError for a
        response that was not computed.
        """
        a = self.responses[i, k]
        return a.reshape(self.steps, self.sizes[i], self.steps, -1)

    def tensor(self, n: FieldAtLayer | Request) -> Array:
        """Return an order parameter by its key (name, layer), or by a request, shape (T, n_i, T, n_j).

        Responses include the direct part, by which a source drives its own field.
        """
        if not isinstance(n, Request) and n in self.sums:
            first, second = self.sum_members(n)
            return self.sums[n].reshape(self.steps, first, self.steps, second)
        q = n if isinstance(n, Request) else self.plan.table.tensors[n]
        factor = self.number(q.factor)
        if q.kind == "correlation":
            return factor * self.correlation(q.first, q.second)
        a, m = self.sizes[q.first], self.widths[q.second]
        response = np.zeros((self.steps, a, self.steps, m))
        if (q.first, q.second) in self.responses:
            response += self.response(q.first, q.second)
        gain = self.gains[q.first].get(q.second, 0.0)
        times = np.arange(self.steps)
        np.einsum("taub->tuab", response)[times, times] += gain * np.eye(a, m)
        return factor * response


def march(  # noqa: PLR0913 - independent options, most of them of special theories
    table: Table,
    *,
    steps: int,
    constants: Mapping[Symbol, float],
    data: Mapping[str, Array] | None = None,
    wanted: tuple[FieldAtLayer | Request, ...] = (),
    watched: tuple[FieldAtLayer, ...] = (),
    units: Spectrum | None = None,
    implicit: float | None = None,
    functions: Mapping[str, Callable[..., Any]] | None = None,
    progress: Progress | None = None,
) -> March:
    """Solve the theory in ``table`` for times 0..steps-1.

    ``constants`` gives every symbol a number, including the sizes of indices (P, C); ``data`` gives every
    constant tensor an array with an axis for each index: kernels ``(P, P)``, targets ``(P,)`` or ``(P, C)``,
    memory weights ``w`` as a ``(steps, steps)`` strictly lower triangular table. ``wanted`` and ``watched``
    are order parameters to compute besides those that the dynamics needs. ``units`` gives the attributes of
    units, ``functions`` the given functions of time and scalars; a function of time only is an array in
    ``data``. With ``implicit`` sums over the past include the present, so that ``w`` has a diagonal, and a
    step is repeated until it changes by at most this share, or by rounding errors only;
    :class:`~numerics.errors.NotConverged` is raised if it does not. ``progress`` is called with the completed
    steps and their total. Raises :class:`~numerics.errors.Diverged` with the step if a scalar, or a
    correlation in ``watched`` at equal times, diverges, and ValueError for a symbol without a number.
    """
    plan = planned(table, (*wanted, *watched))
    if implicit is not None:
        plan = plan.through()
    arrays = {k: np.asarray(v, dtype=float) for k, v in (data or {}).items()}
    rows = March(plan.table, steps, constants, arrays, plan=plan, gains={})
    rows.gains.update(
        {r.field: {k: rows.number(g) for k, g in r.drives} for r in plan.table.fields if not r.unit}
    )
    operations = written(plan)
    runner = StepArrays(operations, rows, steps, functions)
    check, iteration = _check(runner, watched), StepIteration(implicit or 0.0)
    with np.errstate(all="ignore"):  # overflow needs no warning, because ``check`` reports it with the step
        first = 0 if implicit is not None else _folded(rows, operations, watched, functions, progress)
        if first < steps:
            runner.make(Units(operations, rows, runner.values, units) if units else None)
        for step in range(first, steps):
            if implicit is None:
                runner.step(step)
            else:
                _predict(step, rows)
                iteration.step(values_at(step, rows), partial(runner.step, step))
            check(step)
            if progress is not None:
                progress(step + 1, steps)
    return replace(rows, residual=iteration.residual)


@lru_cache(maxsize=64)
def planned(table: Table, wanted: tuple[FieldAtLayer | Request, ...]) -> Plan:
    """Return which quantities a step of the march of the theory ``table`` computes, and their order.

    ``wanted`` are order parameters to compute besides those that the dynamics needs. Results are cached.
    """
    return Plan(table, wanted)


def _folded(
    rows: March,
    operations: MarchStep,
    watched: tuple[FieldAtLayer, ...],
    functions: Mapping[str, Callable[..., Any]] | None,
    progress: Progress | None,
) -> int:
    """Take the first steps with low-rank compression of the past (folding), if the theory allows it.

    Returns their number, which is 0 if the theory cannot be folded or has few steps.
    """
    if rows.steps < FOLDED or not foldable(rows.plan, rows):
        return 0
    folded = Folded(operations, rows, functions)
    check = _check(folded.stack, watched)

    def after(step: int) -> None:
        check(step)
        if progress is not None:
            progress(step + 1, rows.steps)

    return folded.run(after)


def _predict(step: int, rows: Rows) -> None:
    """Write initial values of all quantities of an implicit step, extrapolated from the steps before.

    They are the first guess of the iteration that solves the step.
    """
    count = min(step, LAST if step >= SMOOTH else 1)
    earlier = [values_at(step - k, rows) for k in range(1, count + 1)]
    for now, *before in zip(values_at(step, rows), *earlier, strict=True):
        if now.ndim and before:
            extrapolate(now, before)


def _bound(rows: Rows) -> float:
    """Return the absolute value above which a correlation counts as diverged.

    It is RUNAWAY times the largest absolute entry of the data, or RUNAWAY if no entry exceeds one. The
    weights ``w`` of past updates do not count as data.
    """
    sizes = [float(np.abs(v).max()) for k, v in rows.data.items() if k != "w"]
    return RUNAWAY * max([1.0, *sizes])


def _check(runner: StepArrays, watched: tuple[FieldAtLayer, ...]) -> Callable[[int], None]:
    """Return a function that raises :class:`~numerics.errors.Diverged` for a step whose values are too large.

    It tests all scalars, and the correlations in ``watched`` at equal times.
    """
    rows, bound = runner.rows, _bound(runner.rows)
    y = rows.data.get(TARGETS, np.zeros(1))
    channels = y.shape[1] if y.ndim == 2 else 1
    largest = np.sqrt(RUNAWAY * max(1.0, channels * float(np.mean(y**2))) / channels)
    pairs = {x: rows.table.tensors[x] for x in watched if x not in rows.sums}
    equal = {x: runner.equal(q.first, q.second) for x, q in pairs.items()}

    def present(x: FieldAtLayer) -> Array:
        return rows.sum_at(x, runner.at)[:, runner.at * rows.sum_members(x)[1] :]

    def check(step: int) -> None:
        for name, a in rows.scalars.items():
            # For the mean square loss, `largest` is the root mean square of all errors at the largest loss
            # that a result may contain.
            if _beyond(a[runner.at], largest):
                raise diverged_at(step, name)
        for x in watched:
            value = present(x) if x in rows.sums else equal[x](runner.at)
            if _beyond(value, bound):
                raise diverged_at(step, x[0])

    return check


def _beyond(values: Array, bound: float) -> bool:
    """Return whether the absolute value of some entry reaches a bound, or is not finite."""
    flat = values.ravel()
    # If the sum of squares is below the squared bound, every entry is below the bound, and the maximum is not
    # needed.
    if flat.dot(flat) < bound**2:
        return False
    return not np.abs(flat).max() < bound
