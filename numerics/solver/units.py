"""Fields on units that are told apart by attributes (modes with their eigenvalues), in a linear march.

Kernels are the same for all units up to functions of the attributes, so that at every unit a field is

    x(t) = b(t) + sum_u sum_s a_u(t, s) u(s),

b what it has without sources, a_u its response to the source u.  These are marched for all units at once,
``(T, T, n)`` for a source and ``(T, n)`` without; correlations are kept only as sums over units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, S, lambdify
from sympy.core.function import AppliedUndef

from numerics.compile.table import Coupling, FieldRow, Node
from numerics.experiment.numbers import Spectrum
from numerics.solver.plan import Plan
from numerics.solver.rows import Rows

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


__all__ = ["Units"]
