"""The linear causal march: one sweep forward in time solves a linear theory to rounding error.

Walks the operations of a :class:`~numerics.solver.plan.Plan` at each step.  Arrays are time-major, ``(T n, T
m)`` for fields with n and m samples, so that everything known before t is a leading block and a row is one
matrix product.

With x_i(t) = g_i u_i(t) + sum_l sum_s K_il(t, s) x_l(s), rows follow from earlier rows:

    response     R_ik(t, s) = g_i [i driven by k] delta_ts + sum_l K_il(t, .) R_lk(., s)
    correlation  C_ij(t, s) = g_i sum_k <u_i(t) u_k(.)> R_jk(s, .)^T + sum_l K_il(t, .) C_lj(., s)

the first term of the second line being Stein's lemma.  Where fields are single and kernels no more than sums
of order parameters, :mod:`~numerics.solver.folded` takes the same steps much faster.

Fields on units that are told apart by attributes (modes with their eigenvalues), in a linear march.

Kernels are the same for all units up to functions of the attributes, so that at every unit a field is

    x(t) = b(t) + sum_u sum_s a_u(t, s) u(s),

b what it has without sources, a_u its response to the source u.  These are marched for all units at once,
``(T, T, n)`` for a source and ``(T, n)`` without; correlations are kept only as sums over units.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, S, Symbol, lambdify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from numerics.compile.lower import Coupling, Factor, FieldRow, Node, Reach, Request, Table
from numerics.errors import diverged_at
from numerics.experiment.numbers import Spectrum
from numerics.results import RUNAWAY
from numerics.solver.folded import Folded
from numerics.solver.plan import Plan
from numerics.solver.rows import LAST, SMOOTH, Row, Rows, Settling, continued, found_at, times_of
from numerics.solver.stacked import stackable
from numerics.tensors import arranged

Array = NDArray[np.float64]


class Units:
    """The fields of ``plan`` on units, up to the step that has been marched.

    ``kernels`` are the rows of this step by field and number of the coupling.
    """

    def __init__(
        self,
        plan: Plan,
        rows: Rows,
        kernels: Mapping[tuple[Node, int], Array],
        steps: int,
        spectrum: Spectrum,
    ) -> None:
        self.plan, self.rows, self.kernels = plan, rows, kernels
        self.spectrum, self.n = spectrum, len(spectrum.counts)
        self.fields: list[FieldRow] = [r for r in plan.table.fields if r.unit]
        self.at = {r.field: k for k, r in enumerate(self.fields)}
        self.constant = {r.field: self.value(r.constant) for r in self.fields}
        self.gain = {(r.field, u): self.value(g) for r in self.fields for u, g in r.drives}
        self.factor = {(r.field, k): self.value(c.unit) for r, k, c in self.couplings()}
        self.sources = [u for u in plan.table.source_indices if any(plan.feels(i, u) for i in self.at)]
        self.long = {c.field for _, _, c in self.couplings() if c.kernel.reach in ("past", "through")}
        self.long |= {plan.table.tensors[q].second for q in plan.sums if self.correlates(q)}
        self.b = {i: np.zeros((self.length(i, steps), self.n)) for i in self.at}
        self.a = {
            (i, u): np.zeros((self.length(i, steps), steps, self.n))
            for i in self.at
            for u in self.sources
            if plan.feels(i, u)
        }
        tensors = {q: plan.table.tensors[q] for q in plan.sums}
        self.weights = {
            n: self.value(q.factor * q.unit) * spectrum.counts
            for n, q in tensors.items()
            if q.unit is not None
        }
        self.C = {u: np.zeros((steps, steps)) for u in self.sources}
        self.covariance = {
            u: rows.compile(kernel, "now" if kernel.local else "through")
            for u in self.sources
            if (kernel := plan.table.covariances.get((u, u))) is not None
        }
        self.known = dict.fromkeys(self.sources, 0)
        for q in plan.sums:
            for pair in plan.source_pairs(plan.table.tensors[q]):
                if pair[0] != pair[1]:
                    raise ValueError(f"sources {pair} on units correlate, which the march does not serve")

    def couplings(self) -> Iterator[tuple[FieldRow, int, Coupling]]:
        """All couplings between fields on units."""
        for r in self.fields:
            for k, c in enumerate(r.couplings):
                yield r, k, c

    def correlates(self, tensor: Node) -> bool:
        """Is the sum over units one of a correlation?"""
        return self.plan.table.tensors[tensor].kind == "correlation"

    def length(self, i: Node, steps: int) -> int:
        """Times that are kept of a field: all, or only the start and the present."""
        return steps if i in self.long else min(2, steps)

    def place(self, i: Node, step: int) -> int:
        """Where a field's values at ``step`` are kept."""
        return step if i in self.long else min(step, 1)

    def value(self, e: Expr) -> Array:
        """A function of attributes at all units."""
        e = e.subs(dict(self.rows.constants))
        atoms = sorted(e.atoms(AppliedUndef), key=str)
        left = e.xreplace(dict.fromkeys(atoms, S.One)).free_symbols
        if left:
            raise ValueError(f"{e} needs a number for {sorted(map(str, left))}")
        found = lambdify(atoms, e, "numpy")(*[self.spectrum.attributes[str(x.func)] for x in atoms])
        return np.broadcast_to(np.asarray(found, dtype=float), (self.n,))

    # -- a step ----------------------------------------------------------------------------------------

    def step(self, step: int) -> None:
        """All fields at one time: what comes from the past, and then a small system at each unit."""
        left = self.present(step)
        fixed = np.stack([self.constant[i] + self.past(step, i, None)[0] for i in self.at])
        for i, x in zip(self.at, _solved(left, fixed[:, None]), strict=True):
            self.b[i][self.place(i, step)] = x[0]
        for u in self.sources:
            answers = np.zeros((len(self.at), step + 1, self.n))
            for i, k in self.at.items():
                if (i, u) in self.a:
                    answers[k] = self.past(step, i, u)
                if (i, u) in self.gain:
                    answers[k, step] += self.gain[i, u]
            for i, x in zip(self.at, _solved(left, answers), strict=True):
                if (i, u) in self.a:
                    self.a[i, u][self.place(i, step), : step + 1] = x

    def past(self, step: int, i: Node, u: Node | None) -> Array:
        """What earlier times contribute to the answer of ``i`` to ``u`` (None: to its part without sources),
        ``(times, n)``.
        """
        total = np.zeros((1 if u is None else step + 1, self.n))
        for k, c in enumerate(self.plan.rows_of[i].couplings):
            if u is not None and (c.field, u) not in self.a:
                continue
            earlier = self.b[c.field] if u is None else self.a[c.field, u]
            K = self.kernels[i, k][0]
            if c.kernel.reach in ("past", "through") and step > 0:
                if u is None:
                    total[0] += self.factor[i, k] * (K[:step] @ earlier[:step])
                else:
                    flat = earlier.reshape(len(earlier), -1)[:step, : step * self.n]
                    total[:step] += self.factor[i, k] * (K[:step] @ flat).reshape(step, self.n)
            elif c.kernel.reach == "start" and step > 0:
                if u is None:
                    total[0] += self.factor[i, k] * K[0] * earlier[0]
                else:
                    total[0] += self.factor[i, k] * K[0] * earlier[0, 0]
        return total

    def present(self, step: int) -> Array:
        """``1 - M``, M the couplings at equal time between the fields, ``(fields, fields, n)``."""
        left = np.repeat(np.eye(len(self.at))[:, :, None], self.n, axis=2)
        for r, k, c in self.couplings():
            if c.kernel.reach != "past" and (c.kernel.reach != "start" or step == 0):
                left[self.at[r.field], self.at[c.field]] -= (
                    self.factor[r.field, k] * self.kernels[r.field, k][0, -1]
                )
        return left

    # -- sums over units -------------------------------------------------------------------------------

    def total(self, step: int, tensor: Node) -> Array:
        """A tensor that sums over units, at ``t = step`` and s = 0..step."""
        q = self.plan.table.tensors[tensor]
        weight = self.weights[tensor]
        i, j, at, end = q.first, q.second, self.place(q.first, step), step + 1
        if q.kind == "response":
            row: Array = self.a[i, j][at, :end] @ weight if (i, j) in self.a else np.zeros(end)
            return row
        total: Array = self.b[j][:end] @ (weight * self.b[i][at])
        for u, _ in self.plan.source_pairs(q):
            last = step + self.plan.at_once(i, u)
            if last == 0:
                continue
            local = self.covariances(u, last)
            own = self.a[i, u][at, :last] * weight
            C = self.C[u][:last, :last]
            seen = np.diagonal(C)[:, None] * own if local else C @ own
            total += self.a[j, u].reshape(len(self.a[j, u]), -1)[:end, : last * self.n] @ seen.ravel()
        return total

    def covariances(self, u: Node, last: int) -> bool:
        """Fill in the covariance of a source before the time ``last``; is it there at equal time only?"""
        local = self.plan.table.covariances[u, u].local
        for k in range(self.known[u], last):
            row = self.covariance[u](k)[0]
            self.C[u][k, k + 1 - len(row) : k + 1] = self.C[u][k + 1 - len(row) : k + 1, k] = row
        self.known[u] = max(self.known[u], last - 1)  # the last row may be that of a step under way
        return local


def _solved(left: Array, right: Array) -> Array:
    """The solution of ``left @ x = right`` at each unit; ``right`` is (fields, times, n)."""
    x = np.linalg.solve(np.moveaxis(left, -1, 0), np.moveaxis(right, -1, 0))
    return np.ascontiguousarray(np.moveaxis(x, 0, -1))


Progress = Callable[[int, int], None]


class Source(NamedTuple):
    """What a field gets from one of its sources: that is correlated with ``partner``, which another feels.

    ``local``: at equal times only.  ``response`` and ``direct`` are how the other field answers the partner,
    by way of others and at once.
    """

    own: Node
    partner: Node
    local: bool
    gain: float
    response: Array | None
    direct: float | None


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
    sweep = _Sweep(table, steps, constants, data or {}, wanted, watched, units, implicit, functions)
    return sweep.run(progress)


class _Sweep:
    def __init__(
        self,
        table: Table,
        steps: int,
        constants: Mapping[Symbol, float],
        data: Mapping[str, Array],
        wanted: tuple[Node | Request, ...],
        watched: tuple[Node, ...] = (),
        units: Spectrum | None = None,
        implicit: float | None = None,
        functions: Mapping[str, Callable[..., Any]] | None = None,
    ) -> None:
        self.table, self.T, self.implicit = table, steps, implicit
        self.plan = Plan(table, (*wanted, *watched))
        if implicit is not None:
            self.plan = self.plan.through()
            self.table = table = self.plan.table
        self.watched, self.settled = watched, Settling(implicit or 0.0)
        self.arrays = {k: np.asarray(v, dtype=float) for k, v in data.items()}
        self.rows = rows = March(table, steps, constants, self.arrays, plan=self.plan, gains={})
        self.R, self.C, self.n, self.m, self.gains = (
            rows.responses,
            rows.correlations,
            rows.sizes,
            rows.widths,
            rows.gains,
        )
        self.now: dict[tuple[Node, Node], Array] = {}
        self.scalars, self.hoisted, self.sums = rows.scalars, rows.hoisted, rows.sums
        self.scalars |= {x.name: np.zeros((steps, *rows.shape(x.indices))) for x in table.scalars}
        self.hoisted |= {h.tensor: np.zeros((steps, *rows.shape(h.rows))) for h in table.hoisted}
        self.sums |= {n: np.zeros((steps, steps)) for n in self.plan.sums}
        self.gains |= {r.field: {k: rows.number(g) for k, g in r.drives} for r in table.fields if not r.unit}
        for i, k in self.plan.responses:
            self.R[i, k] = np.zeros((steps * self.n[i], steps * self.m[k]))
        for i, j in (*self.plan.rows, *self.plan.diagonals):
            if (i, j) not in self.C and (j, i) not in self.C and self.kept(i, j):
                self.C[i, j] = np.zeros((steps * self.n[i], steps * self.n[j]))
        self.K: dict[tuple[Node, int], Array] = {}
        self.couplings = {
            r.field: [(at, c.field, c.kernel.reach) for at, c in enumerate(r.couplings)] for r in table.fields
        }
        self.compiled = {
            (r.field, n): rows.compile(c.kernel) for r in table.fields for n, c in enumerate(r.couplings)
        }
        self.covariances: dict[tuple[Node, Node, Reach], Row] = {}
        self.recent: dict[tuple[Node, Node, Reach], Array] = {}
        self.found: dict[tuple[Node, Node], list[Source]] = {}
        self.units = Units(self.plan, rows, self.K, steps, units) if units else None
        given, known = dict(constants), tuple((functions or {}).items())
        self.functions = {
            x.name: _compiled((t, *x.arguments), x.expression.subs(given), known) for x in table.scalars
        }
        sizes = [float(np.abs(v).max()) for k, v in self.arrays.items() if k != "w"]
        self.bound = RUNAWAY * max([1.0, *sizes])
        y = self.arrays.get("y", np.zeros(1))
        channels = y.shape[1] if y.ndim == 2 else 1
        self.largest = np.sqrt(RUNAWAY * max(1.0, channels * float(np.mean(y**2))) / channels)

    def kept(self, i: Node, j: Node) -> bool:
        """A pair of which only the equal-time value is read needs no two-time array."""
        return (i, j) in self.plan.rows or (j, i) in self.plan.rows

    def run(self, progress: Progress | None) -> March:
        operations = {
            "kernel": self.kernel,
            "response": self.response,
            "past": self.past,
            "now": self.present_value,
            "scalar": self.scalar,
            "hoist": self.hoist,
            "units": self.on_units,
            "sum": self.sum,
        }
        with np.errstate(all="ignore"):  # runaway dynamics are reported below, with the step
            for step in range(self.fast(progress), self.T):

                def sweep(step: int = step) -> None:
                    self.recent.clear()
                    for kind, i, j in self.plan.order:
                        operations[kind](step, i, j)

                if self.implicit is None:
                    sweep()
                else:
                    self.predict(step)
                    self.settled.step(found_at(step, self.rows), sweep)
                self.check(step)
                if progress is not None:
                    progress(step + 1, self.T)
        return replace(self.rows, residual=self.settled.residual)

    def fast(self, progress: Progress | None) -> int:
        """Take the steps that a folded march can take, and return how many."""
        if self.implicit is not None or not stackable(self.table, self.plan, self.n, self.m):
            return 0
        folded = Folded(self.plan, self.rows.number, self.C, self.R, self.T)

        def after(step: int) -> None:
            for x in self.watched:
                q = self.table.tensors[x]
                if not abs(folded.stack.equal(q.first, q.second)) < self.bound:
                    raise diverged_at(step, x[0])
            if progress is not None:
                progress(step + 1, self.T)

        return folded.run(after)

    def predict(self, step: int) -> None:
        """A first guess of a step: what the last ones found, continued."""
        count = min(step, LAST if step >= SMOOTH else 1)
        earlier = [found_at(step - k, self.rows) for k in range(1, count + 1)]
        for now, *before in zip(found_at(step, self.rows), *earlier, strict=True):
            if now.ndim and before:
                continued(now, before)

    def check(self, step: int) -> None:
        for name, a in self.scalars.items():
            if not np.all(np.abs(a[step]) < self.largest):  # no loss is beyond the bound of results before
                raise diverged_at(step, name)
        for x in self.watched:
            q = self.table.tensors[x]
            value = self.sums[x][step, step] if x in self.sums else self.now[q.first, q.second]
            if not np.all(np.abs(value) < self.bound):
                raise diverged_at(step, x[0])

    # -- the operations of a step ----------------------------------------------------------------------

    def kernel(self, step: int, i: Node, at: Node) -> None:
        n = at[1] or 0
        self.K[i, n] = self.compiled[i, n](step)

    def response(self, step: int, i: Node, k: Node) -> None:
        n, m = self.n[i], self.m[k]
        row = self.R[i, k][step * n : (step + 1) * n]
        row[:] = 0.0
        for at, field, reach in self.couplings[i]:
            K = self.K[i, at]
            low, high = times_of(reach, step)
            if (field, k) in self.R:
                p = self.n[field]
                row[:, : high * m] += K @ self.R[field, k][low * p : high * p, : high * m]
            if (gain := self.gains[field].get(k)) is not None:
                row[:, low * m : high * m] += gain * K

    def past(self, step: int, i: Node, j: Node) -> None:
        """``C_ij(t, s)`` for s < t."""
        if step == 0:
            return
        value = np.zeros((self.n[i], step * self.n[j]))
        for at, field, reach in self.couplings[i]:
            p = self.n[field]
            low, high = times_of(reach, step)
            C = self.rows.pair(field, j)[low * p : high * p]
            value += self.K[i, at] @ C[:, : step * self.n[j]]
        for x in self.sources(i, j):
            if x.local:
                continue  # there is none between different times
            row = self.covariance(x, step, "past")
            if x.response is not None:
                value += x.gain * (row @ x.response[: value.shape[1], : row.shape[1]].T)
            if x.direct is not None:
                value += x.gain * x.direct * row
        self.store(step, i, j, value)

    def now_value(self, step: int, i: Node, j: Node) -> Array:
        """``C_ij(t, t)``."""
        n, m = self.n[i], self.n[j]
        value = np.zeros((n, m))
        now = slice(step * m, (step + 1) * m)
        for at, field, reach in self.couplings[i]:
            K = self.K[i, at]
            if reach == "now":
                value += K @ self.equal(field, j)
                continue
            p = self.n[field]
            low, high = times_of(reach, step)
            value += K @ self.rows.pair(j, field)[now, low * p : high * p].T
        for x in self.sources(i, j):
            present, q = x.gain * self.covariance(x, step, "now"), self.m[x.partner]
            if x.response is not None:
                R = x.response[now, : (step + 1) * q]
                value += present @ R[:, step * q :].T
                if step and not x.local:
                    value += x.gain * (self.covariance(x, step, "past") @ R[:, : step * q].T)
            if x.direct is not None:
                value += x.direct * present
        return value

    def present_value(self, step: int, i: Node, j: Node) -> None:
        value = self.now_value(step, i, j)
        self.now[i, j] = value
        n, m = self.n[i], self.n[j]
        if (i, j) in self.C:
            self.C[i, j][step * n : (step + 1) * n, step * m : (step + 1) * m] = value
        elif (j, i) in self.C:
            self.C[j, i][step * m : (step + 1) * m, step * n : (step + 1) * n] = value.T

    def scalar(self, step: int, i: Node, _: Node) -> None:
        row = next(x for x in self.table.scalars if x.name == i[0])
        arguments: list[Any] = [step]
        for _stand_in, a, b in row.averages:
            arguments.append(self.average(a, b, row.indices))
        for _stand_in, f in row.inputs:
            arguments.append(arranged(self.present(f, step), f.indices, row.indices))
        self.scalars[row.name][step] = self.functions[row.name](*arguments)

    def hoist(self, step: int, i: Node, _: Node) -> None:
        h = next(x for x in self.table.hoisted if x.tensor == i)
        operands: list[Any] = []
        labels: dict[Symbol, int] = {}
        for f in h.factors:
            a = self.present(f, step)
            operands += [a, [labels.setdefault(x, len(labels)) for x in f.indices if x != s]]
        self.hoisted[i][step] = np.einsum(*operands, [labels[x] for x in h.rows], optimize=True)

    def on_units(self, step: int, i: Node, _: Node) -> None:
        assert self.units is not None
        self.units.step(step)

    def sum(self, step: int, i: Node, _: Node) -> None:
        assert self.units is not None
        self.sums[i][step, : step + 1] = row = self.units.total(step, i)
        self.sums[i][: step + 1, step] = row if self.table.tensors[i].kind == "correlation" else 0.0
        self.sums[i][step, step] = row[step]

    # -- looking things up -----------------------------------------------------------------------------

    def sources(self, i: Node, j: Node) -> list[Source]:
        """The sources of ``i`` with those that they are correlated with and that ``j`` feels."""
        if (i, j) not in self.found:
            self.found[i, j] = [self.source(i, j, own, k) for own, k in self.plan.terms(i, j)]
        return self.found[i, j]

    def source(self, i: Node, j: Node, own: Node, k: Node) -> Source:
        local = self.table.covariances[own, k].local
        return Source(own, k, local, self.gains[i][own], self.R.get((j, k)), self.gains[j].get(k))

    def covariance(self, x: Source, step: int, reach: Reach) -> Array:
        """``<u_own(t) u_partner(s)>`` for s < t, or at s = t; evaluated once a sweep."""
        key = x.own, x.partner, reach
        if key not in self.covariances:
            self.covariances[key] = self.rows.compile(self.table.covariances[x.own, x.partner], reach)
        if key not in self.recent:
            self.recent[key] = self.covariances[key](step)
        return self.recent[key]

    def store(self, step: int, i: Node, j: Node, value: Array) -> None:
        """Write a row, or its mirror image where the array holds the pair the other way round."""
        n, m = self.n[i], self.n[j]
        rows, cols = slice(step * n, (step + 1) * n), slice(0, step * m)
        if (i, j) in self.C:
            self.C[i, j][rows, cols] = value
            if i == j:
                self.C[i, j][cols, rows] = value.T
        else:
            self.C[j, i][cols, rows] = value.T

    def equal(self, a: Node, b: Node) -> Array:
        """``C_ab(t, t)`` at this step."""
        return self.now[a, b] if (a, b) in self.now else self.now[b, a].T

    def average(self, a: Factor, b: Factor, indices: tuple[Symbol, ...]) -> Array:
        """``<x_a x_b>`` at this step, with an axis for each of ``indices``."""
        shape = (*self.rows.shape(a.indices), *self.rows.shape(b.indices))
        return arranged(self.equal(a.tensor, b.tensor).reshape(shape), (*a.indices, *b.indices), indices)

    def present(self, f: Factor, step: int) -> Array:
        """A tensor at the present time, or a constant one."""
        name = f.tensor[0]
        return self.scalars[name][step] if name in self.scalars else self.arrays[name]


@lru_cache(maxsize=256)
def _compiled(
    arguments: tuple[Symbol, ...], expression: Expr, known: tuple[tuple[str, Callable[..., Any]], ...]
) -> Callable[..., Any]:
    """An expression as a function of its arguments; ``known`` are functions that it contains, by name."""
    function: Callable[..., Any] = lambdify(arguments, expression, [dict(known), "numpy"])
    return function
