"""The linear causal march: one sweep forward in time solves a linear theory to rounding error.

Walks the operations of a :class:`~numerics.solve.plan.Plan` at each step.  Arrays are time-major, ``(T n, T
m)`` for fields with n and m samples, so that everything known before t is a leading block and a row is one
matrix product.

With x_i(t) = g_i u_i(t) + sum_l sum_s K_il(t, s) x_l(s), rows follow from earlier rows:

    response     R_ik(t, s) = g_i [i driven by k] delta_ts + sum_l K_il(t, .) R_lk(., s)
    correlation  C_ij(t, s) = g_i sum_k <u_i(t) u_k(.)> R_jk(s, .)^T + sum_l K_il(t, .) C_lj(., s)

the first term of the second line being Stein's lemma.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol, lambdify

from derive.program.expressions import s
from numerics.compile.table import Factor, Node, Table
from numerics.errors import Diverged
from numerics.solve.plan import Plan
from numerics.solve.rows import Rows, View

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

RUNAWAY = 1e8
"""A scalar this many times larger than the largest constant of the data has left every basin we know of."""


@dataclass(frozen=True)
class March:
    """The solution: full two-time arrays of what was needed or asked for.

    ``correlation(i, j)`` and ``response(i, k)`` have shape ``(T, n_i, T, n_j)``; scalars ``(T, n)``.
    """

    plan: Plan
    steps: int
    sizes: dict[Node, int]
    correlations: dict[tuple[Node, Node], Array]
    responses: dict[tuple[Node, Node], Array]
    scalars: dict[str, Array]
    hoisted: dict[Node, Array]

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

    def tensor(self, n: Node) -> Array:
        """An order parameter by its name and layer."""
        q = self.plan.table.tensors[n]
        return (
            self.correlation(q.first, q.second)
            if q.kind == "correlation"
            else self.response(q.first, q.second)
        )


def march(
    table: Table,
    *,
    steps: int,
    samples: int,
    constants: Mapping[Symbol, float],
    data: Mapping[str, Array],
    wanted: tuple[Node, ...] = (),
    progress: Progress | None = None,
) -> March:
    """Solve the theory in ``table`` for times 0..steps-1.

    ``constants`` gives every symbol a number; ``data`` every constant tensor an array: kernels ``(P, P)``,
    vectors ``(P,)``, memory weights ``w`` as a ``(steps, steps)`` strictly lower triangular
    table.  ``wanted`` names order parameters to keep besides those that the dynamics needs.  Raises
    :class:`~numerics.errors.Diverged` naming the step when a scalar runs away.
    """
    return _Sweep(table, steps, samples, constants, data, wanted).run(progress)


class _Sweep:
    def __init__(
        self,
        table: Table,
        steps: int,
        samples: int,
        constants: Mapping[Symbol, float],
        data: Mapping[str, Array],
        wanted: tuple[Node, ...],
    ) -> None:
        self.table, self.T = table, steps
        self.plan = Plan(table, wanted)
        self.data = {k: np.asarray(v, dtype=float) for k, v in data.items()}
        self.n = {r.field: (samples if r.index is not None else 1) for r in table.fields}
        self.R: dict[tuple[Node, Node], Array] = {}
        self.C: dict[tuple[Node, Node], Array] = {}
        self.now: dict[tuple[Node, Node], Array] = {}
        self.scalars = {x.name: np.zeros((steps, samples if x.index else 1)) for x in table.scalars}
        self.hoisted = {h.tensor: np.zeros((steps, samples)) for h in table.hoisted}
        self.rows = Rows(
            table, constants, self.data, samples, self.n, self.C, self.R, self.scalars, self.hoisted
        )
        self.m = {k: self.rows.width(k) for k in table.source_index}
        self.gain = {r.field: self.rows.number(r.gain) for r in table.fields}
        for i, k in self.plan.responses:
            self.R[i, k] = np.zeros((steps * self.n[i], steps * self.m[k]))
        for i, j in (*self.plan.rows, *self.plan.diagonals):
            if (i, j) not in self.C and (j, i) not in self.C and self.kept(i, j):
                self.C[i, j] = np.zeros((steps * self.n[i], steps * self.n[j]))
        self.K: dict[tuple[Node, Node], Array] = {}
        self.inclusive = {(r.field, c.field): c.kernel.inclusive for r in table.fields for c in r.couplings}
        self.compiled = {
            (r.field, c.field): self.rows.compile(c.kernel, self.n[c.field])
            for r in table.fields
            for c in r.couplings
        }
        self.covariances: dict[tuple[Node, Node], View] = {}
        self.functions = {
            x.name: lambdify(
                [*[a for a, *_ in x.averages], *[a for a, _ in x.inputs]],
                x.expression.subs(dict(constants)),
            )
            for x in table.scalars
        }
        self.bound = RUNAWAY * max([1.0, *[float(np.abs(v).max()) for k, v in self.data.items() if k != "w"]])

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
        }
        with np.errstate(all="ignore"):  # runaway dynamics are reported below, with the step
            for step in range(self.T):
                for kind, i, j in self.plan.order:
                    operations[kind](step, i, j)
                self.check(step)
                if progress is not None:
                    progress(step + 1, self.T)
        return March(self.plan, self.T, self.n, self.C, self.R, self.scalars, self.hoisted)

    def check(self, step: int) -> None:
        for name, a in self.scalars.items():
            if not np.all(np.abs(a[step]) < self.bound):
                raise Diverged(f"{name} diverged at step {step}")

    # -- the operations of a step ----------------------------------------------------------------------

    def kernel(self, step: int, i: Node, j: Node) -> None:
        self.K[i, j] = self.compiled[i, j](step, step + self.inclusive[i, j])

    def response(self, step: int, i: Node, k: Node) -> None:
        n, m = self.n[i], self.m[k]
        row = self.R[i, k][step * n : (step + 1) * n]
        for c in self.plan.rows_of[i].couplings:
            K = self.K[i, c.field]
            before = K.shape[1] // self.n[c.field]
            if (c.field, k) in self.R:
                row[:, : before * m] += K @ self.R[c.field, k][: K.shape[1], : before * m]
            if self.plan.rows_of[c.field].source == k:
                row[:, : before * m] += self.gain[c.field] * K

    def past(self, step: int, i: Node, j: Node) -> None:
        """``C_ij(t, s)`` for s < t."""
        if step == 0:
            return
        n, m = self.n[i], self.n[j]
        value = np.zeros((n, step * m))
        for c in self.plan.rows_of[i].couplings:
            K = self.K[i, c.field]
            value += K @ self.rows.correlation(c.field, j)[: K.shape[1], : step * m]
        own = self.plan.rows_of[i].source
        for k in self.plan.partners(own):
            if not self.relevant(j, k):
                continue
            cov = self.gain[i] * self.covariance(own, k)(step, step)
            if (j, k) in self.R:
                value += cov @ self.R[j, k][: step * m, : step * self.m[k]].T
            if self.plan.rows_of[j].source == k:
                value += self.gain[j] * cov
        self.store(step, i, j, value)

    def now_value(self, step: int, i: Node, j: Node) -> Array:
        """``C_ij(t, t)``."""
        n, m = self.n[i], self.n[j]
        value = np.zeros((n, m))
        for c in self.plan.rows_of[i].couplings:
            K = self.K[i, c.field]
            value += K @ self.rows.correlation(c.field, j)[: K.shape[1], step * m : (step + 1) * m]
        own = self.plan.rows_of[i].source
        for k in self.plan.partners(own):
            if not self.relevant(j, k):
                continue
            cov = self.gain[i] * self.covariance(own, k)(step, step + 1)
            if (j, k) in self.R:
                value += cov @ self.R[j, k][step * m : (step + 1) * m, : (step + 1) * self.m[k]].T
            if self.plan.rows_of[j].source == k:
                value += self.gain[j] * cov[:, step * self.m[k] :]
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
        arguments: list[Any] = []
        for _stand_in, a, b in row.averages:
            arguments.append(self.equal_time(a, b, row.index))
        for _stand_in, name in row.inputs:
            arguments.append(self.scalars[name][step] if name in self.scalars else self.data[name])
        self.scalars[row.name][step] = self.functions[row.name](*arguments)

    def hoist(self, step: int, i: Node, _: Node) -> None:
        h = next(x for x in self.table.hoisted if x.tensor == i)
        operands: list[Any] = []
        labels: dict[Symbol, int] = {}
        for f in h.factors:
            a = self.present(f, step)
            operands += [a, [labels.setdefault(x, len(labels)) for x in f.indices if x != s]]
        self.hoisted[i][step] = np.einsum(*operands, [labels[h.row]], optimize=True)

    # -- looking things up -----------------------------------------------------------------------------

    def relevant(self, j: Node, k: Node) -> bool:
        return (j, k) in self.R or self.plan.rows_of[j].source == k

    def covariance(self, a: Node | None, b: Node) -> View:
        """The row ``<u_a(t) u_b(s)>``, compiled when it is first read."""
        assert a is not None
        if (a, b) not in self.covariances:
            self.covariances[a, b] = self.rows.compile(self.table.covariances[a, b], self.m[b])
        return self.covariances[a, b]

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

    def equal_time(self, a: Node, b: Node, index: Symbol | None) -> Array:
        value = self.now[a, b] if (a, b) in self.now else self.now[b, a].T
        if index is None:
            return value.reshape(())
        return np.diagonal(value) if value.shape[0] == value.shape[1] > 1 else value.reshape(-1)

    def present(self, f: Factor, step: int) -> Array:
        """A tensor at the present time, or a constant one."""
        name = f.tensor[0]
        return self.scalars[name][step] if name in self.scalars else self.data[name]
