"""Correlations that the dynamics did not need, at the output times only, once the march is done.

The same rows as in the march, read for all times at once:

    C_ij = K_il C_lj + <u_i u_k> R_jk^T .

Nothing here has to be causal any more, so each is a few large matrix products, and two-time kernels of all
samples are held at output times alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol

from derive.program.expressions import s, t
from numerics.compile.table import Factor, Kernel, Node
from numerics.solve.march import March

Array = NDArray[np.float64]


class Afterwards:
    """Reads a finished march at the nodes ``at``.

    Blocks have their rows at output times and their columns at all nodes: shape (len(at) n_i, T n_j),
    time-major.
    """

    def __init__(
        self, result: March, data: dict[str, Array], constants: dict[Symbol, float], at: NDArray[np.intp]
    ) -> None:
        self.result, self.data, self.constants, self.at = result, data, constants, at
        self.plan, self.T = result.plan, result.steps
        everywhere = len(at) == self.T
        self.pick = slice(None) if everywhere else at  # a slice copies nothing
        self.past = np.arange(self.T)[None, :] < at[:, None]
        self.blocks: dict[tuple[Node, Node], Array] = {}
        self.finished: dict[tuple[Node, Node], Array] = {}
        self.traces: dict[Node, Array] = {}

    def outputs(self, i: Node, j: Node) -> Array:
        """``<x_i(t) x_j(s)>`` for t, s both output times: shape (out, n_i, out, n_j)."""
        if (i, j) not in self.finished:  # each layer is the start of the next
            n, m, out = self.result.sizes[i], self.result.sizes[j], len(self.at)
            value = np.array(self.start(i, j).transpose(0, 2, 1, 3)).reshape(out * n, out * m)
            for left, right in self.parts(i, j):
                value += left @ right.T
            self.finished[i, j] = value.reshape(out, n, out, m)
        return self.finished[i, j]

    def trace(self, i: Node) -> Array:
        """``sum_mu <x_i,mu(t) x_i,mu(s)>`` at output times: shape (out, out)."""
        if i not in self.traces:
            out = len(self.at)
            value = self.start_trace(i)
            for left, right in self.parts(i, i):
                value = value + left.reshape(out, -1) @ right.reshape(out, -1).T
            self.traces[i] = value
        return self.traces[i]

    # -- rows at output times --------------------------------------------------------------------------

    def parts(self, i: Node, j: Node) -> Iterator[tuple[Array, Array]]:
        """Pairs of blocks whose products make up ``C_ij`` beyond the overlap of the sources themselves."""
        row = self.plan.rows_of[i]
        for c in row.couplings:
            yield self.kernel(i, c.field), self.correlation(j, c.field)
        for k in self.plan.partners(row.source):
            if self.plan.depends(j, k):
                yield self.covariance(row.source, k), self.response(j, k)

    def start_trace(self, i: Node) -> Array:
        """The trace of ``start(i, i)``, without pairs of samples where the covariance is a known kernel."""
        own = self.plan.rows_of[i].source
        if own is None or (own, own) not in self.plan.table.covariances:
            return np.zeros((len(self.at), len(self.at)))
        kernel = self.plan.table.covariances[own, own]
        total = np.zeros((len(self.at), len(self.at)))
        for m in kernel.monomials:
            q = self.plan.table.tensors.get(m.factors[0].tensor) if len(m.factors) == 1 else None
            if q is not None and q.kind == "correlation" and q.first == q.second and kernel.row is not None:
                total += self.number(m.coefficient) * self.trace(q.first)
            else:
                part = self.evaluate(replace(kernel, monomials=(m,)), columns=self.at)
                total += np.einsum("tasa->ts", part)
        return total

    def start(self, i: Node, j: Node) -> Array:
        """The overlap of the two fields' own sources at output times: (out, out, n_i, n_j)."""
        a, b = self.plan.rows_of[i].source, self.plan.rows_of[j].source
        n, m, out = self.result.sizes[i], self.result.sizes[j], len(self.at)
        if a is None or b is None or (a, b) not in self.plan.table.covariances:
            return np.zeros((out, out, n, m))
        kernel = self.plan.table.covariances[a, b]
        value = self.evaluate(kernel, columns=self.at)
        return np.broadcast_to(value, (out, n, out, m)).transpose(0, 2, 1, 3)

    def correlation(self, i: Node, j: Node) -> Array:
        """``<x_i(t) x_j(s)>``: t an output time, s any node."""
        rows = self.plan.rows
        if ((i, j) in rows or i == j) and (j, i) in rows:
            full = self.result.correlation(i, j)
            return full[self.pick].reshape(len(self.at) * full.shape[1], -1)
        if (i, j) not in self.blocks:
            self.blocks[i, j] = self.assembled(i, j)
        return self.blocks[i, j]

    def assembled(self, i: Node, j: Node) -> Array:
        """``C_ij`` from the equation of ``i`` and the complete correlations and responses of ``j``."""
        row, other = self.plan.rows_of[i], self.plan.rows_of[j]
        value = np.zeros((len(self.at) * self.result.sizes[i], self.T * self.result.sizes[j]))
        for c in row.couplings:
            full = self.result.correlation(c.field, j)
            value += self.kernel(i, c.field) @ full.reshape(full.shape[0] * full.shape[1], -1)
        for k in self.plan.partners(row.source):
            if self.plan.depends(j, k):
                full = self.result.response(j, k)
                value += self.covariance(row.source, k) @ full.reshape(full.shape[0] * full.shape[1], -1).T
            if other.source == k:
                value += self.covariance(row.source, k)
        return value

    def response(self, i: Node, k: Node) -> Array:
        """``<d x_i(t)/d u_k(s)>``: t an output time, s any node."""
        if (i, k) in self.result.responses:
            full = self.result.response(i, k)
            return full[self.pick].reshape(len(self.at) * full.shape[1], -1)
        value: Array | None = None
        for c in self.plan.rows_of[i].couplings:
            K = self.kernel(i, c.field)
            if (c.field, k) in self.result.responses:
                full = self.result.response(c.field, k)
                part = K @ full.reshape(full.shape[0] * full.shape[1], -1)
                value = part if value is None else value + part
            if self.plan.rows_of[c.field].source == k:
                value = K if value is None else value + K
        assert value is not None, f"{i} does not respond to {k}"
        return value

    # -- kernels and covariances as blocks -------------------------------------------------------------

    def kernel(self, i: Node, j: Node) -> Array:
        """``K_ij(t, s)``, zero for s >= t."""
        kernel = next(c.kernel for c in self.plan.rows_of[i].couplings if c.field == j)
        value = self.evaluate(kernel) * self.past[:, None, :, None]
        n, m = self.result.sizes[i], self.result.sizes[j]
        return np.broadcast_to(value, (len(self.at), n, self.T, m)).reshape(len(self.at) * n, self.T * m)

    def covariance(self, a: Node | None, b: Node) -> Array:
        """``<u_a(t) u_b(s)>`` for all s."""
        assert a is not None
        kernel = self.plan.table.covariances[a, b]
        value = self.evaluate(kernel)
        sizes = [self.samples if x is not None else 1 for x in (kernel.row, kernel.col)]
        shape = (len(self.at), sizes[0], self.T, sizes[1])
        return np.broadcast_to(value, shape).reshape(shape[0] * shape[1], -1)

    @property
    def samples(self) -> int:
        return int(self.data["y"].shape[0])

    def evaluate(self, kernel: Kernel, columns: NDArray[np.intp] | None = None) -> Array:
        """The kernel with axes (t, row, s, col); axes on which it does not depend have length one.

        ``columns`` picks the times s.
        """
        axes: list[Symbol | None] = [t, kernel.row, s, kernel.col]
        total: Array | None = None
        for m in kernel.monomials:
            letters: dict[Symbol, str] = {}
            arrays, inputs = [], []
            for f in m.factors:
                array, names = self.read(f, columns)
                arrays.append(array)
                inputs.append("".join(letters.setdefault(x, chr(97 + len(letters))) for x in names))
            used = [x for x in axes if x in letters]
            subscripts = f"{','.join(inputs)}->{''.join(letters[x] for x in used if x is not None)}"
            value = np.einsum(subscripts, *arrays, optimize=True) if arrays else np.ones(())
            shape = iter(value.shape)
            part = value.reshape([next(shape) if x in letters else 1 for x in axes])
            coefficient = self.number(m.coefficient)
            part = part if coefficient == 1 else coefficient * part
            total = part if total is None else total + part
        return np.zeros((1, 1, 1, 1)) if total is None else total

    def read(self, f: Factor, columns: NDArray[np.intp] | None) -> tuple[Array, list[Symbol]]:
        """A factor with the names of its axes; times t at outputs, s at all nodes or at ``columns``."""
        pick = slice(None) if columns is None else columns
        name = f.tensor[0]
        rest = [x for x in f.indices if x not in (t, s)]
        if f.tensor in self.result.hoisted:
            return self.result.hoisted[f.tensor][pick], [s, *rest]
        if name in self.result.scalars:
            present = t in f.indices
            return self.result.scalars[name][self.at if present else pick], [t if present else s, *rest]
        if f.tensor in self.plan.table.tensors:
            q = self.plan.table.tensors[f.tensor]
            array = self.tensor(f.tensor, columns)
            first = rest[: int(self.plan.rows_of[q.first].index is not None)]
            squeezed = array.reshape(
                [
                    d
                    for d, keep in zip(array.shape, (1, len(first), 1, len(rest) - len(first)), strict=True)
                    if keep
                ]
            )
            return squeezed, [t, *first, s, *rest[len(first) :]]
        if f.indices == (t, s):
            return self.data[name][self.at][:, pick], [t, s]
        return self.data[name], rest

    def tensor(self, n: Node, columns: NDArray[np.intp] | None) -> Array:
        """An order parameter, (out, n_i, nodes or columns, n_j)."""
        q = self.plan.table.tensors[n]
        if q.kind == "response":
            if (q.first, q.second) not in self.result.responses:
                return np.zeros((len(self.at), self.result.sizes[q.first], self.T, 1))
            return self.number(q.factor) * self.result.response(q.first, q.second)[self.at]
        if columns is not None:
            return self.outputs(q.first, q.second)
        return self.correlation(q.first, q.second).reshape(
            len(self.at), self.result.sizes[q.first], self.T, self.result.sizes[q.second]
        )

    def number(self, e: Expr) -> float:
        return float(e.subs(self.constants))
