"""Correlations and response densities computed after a march, at output times.

Correlations that the dynamics did not need follow from the rows of the march, read for all times at once:

    C_ij = K_il C_lj + <u_i u_k> R_jk^T .

Causality is not needed any more, so that each is a few large matrix products, and two-time kernels of all
samples are stored at output times only. A field in the equation of another at the same time, with a constant
coefficient, is first replaced by its own equation. Only the fields that remain, which often have few members
(values of their indices), are then read at all times; :func:`needed` lists their correlations and responses.

Responses of a flow are densities in s. The march stores the response to a source at one node. It is the
density times the weight of that node only for equal steps, because an explicit multistep rule read backwards
is not consistent at its start or where the step changes. Sums over nodes are not affected; single entries
are. The densities are therefore computed after the march, from the same rows with weights one and integrals
in place of sums:

    rho_ik(t, s) = sum_l [l driven by k] g_l K_il(t, s) + sum_l int_s^t K_il(t, t') rho_lk(t', s) dt' .

The integral is that of polynomials through four nodes, all between s and t; its error falls as the fourth
power of the step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from math import prod

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, S, Symbol, lambdify

from derive.calculus.symbols import s, t
from numerics.errors import NotConverged
from numerics.lowering.operations import CouplingRow, ResponseArray
from numerics.lowering.table import DELTA, Coupling, Factor, FieldAtLayer, KernelRow, Monomial, Request, Table
from numerics.solver.grid import integral_weights
from numerics.solver.linear.march import March

Array = NDArray[np.float64]
Opened = tuple[dict[FieldAtLayer, float], list[tuple[float, Coupling]]]
"""Sources and couplings of a field, each with a number."""

BLOCKS = 8
"""Number of blocks of times in which the correlation of a field with itself is computed."""


def opened(table: Table, i: FieldAtLayer, number: Callable[[Expr], float]) -> Opened:
    """Return the equation of field ``i``, with fields that it reads at the same time replaced where possible.

    A field that it reads at the same time, with a coefficient that depends on neither times nor indices, is
    replaced by its own equation. The result is a pair: the coefficient of each source by its key, and a list
    of couplings (terms ``sum_s k(t, s) x(s)`` with fields x), each with a constant factor. Couplings at
    the same time with other coefficients stay in the list. ``number`` evaluates a coefficient.
    """
    row = table.row(i)
    drives = {u: number(g) for u, g in row.drives}
    couplings: list[tuple[float, Coupling]] = []
    for c in row.couplings:
        if not _is_number(c):
            couplings.append((1.0, c))
            continue
        factor = sum(number(m.coefficient) for m in c.kernel.monomials)
        more, others = opened(table, c.field, number)
        for u, g in more.items():
            drives[u] = drives.get(u, 0.0) + factor * g
        couplings += [(factor * x, other) for x, other in others]
    return drives, couplings


def _is_number(c: Coupling) -> bool:
    """Return whether a coupling is a constant times its field at the present time.

    A coupling is a term with a field x in the equation of a field, which may be x itself. The constant
    depends on neither times nor indices.
    """
    return c.kernel.reach == "now" and all(
        not m.coefficient.has(t, s) and all(f.tensor == DELTA for f in m.factors) for m in c.kernel.monomials
    )


def needed(table: Table, fields: Iterable[FieldAtLayer]) -> Iterator[Request]:
    """Yield the quantities that a march must compute for correlations that are computed after it.

    The correlation of each of ``fields`` with itself then follows from them. For a field, whose equation is
    taken from :func:`opened`, they are the correlations of all pairs of fields in this equation, and the
    responses of these fields to all sources that are correlated with a source in this equation.
    """
    for i in fields:
        drives, couplings = opened(table, i, lambda e: 1.0)
        read = [c.field for _, c in couplings]
        partners = [k for source in drives for one, k in table.covariances if one == source]
        for f in read:
            yield from (Request("correlation", f, g, S.One) for g in read)
            yield from (Request("response", f, k, S.One) for k in partners)


class OutputCorrelations:
    """Correlations and responses computed from a finished march, at the positions ``at`` of output times.

    ``at`` is in increasing order. Blocks are arrays with rows at output times and columns at all nodes: shape
    (len(at) n_i, T n_j), time-major. Traces are sums over the first ``count`` samples, or over all of them if
    ``count`` is None. Fields and sources are given by keys (name, layer).
    """

    def __init__(
        self,
        result: March,
        at: NDArray[np.intp],
        count: int | None = None,
    ) -> None:
        self.result, self.data, self.at, self.count = result, result.data, at, count
        self.plan, self.T = result.plan, result.steps
        everywhere = len(at) == self.T
        # a slice for all times, because it makes no copy of an array
        self.pick = slice(None) if everywhere else at
        self.blocks: dict[tuple[FieldAtLayer, FieldAtLayer], Array] = {}
        self.finished: dict[tuple[FieldAtLayer, FieldAtLayer], Array] = {}
        self.traces: dict[FieldAtLayer, Array] = {}
        self.full_responses: dict[Request, Array] = {}
        self.last: tuple[Coupling, Array] | None = None
        self.rows: dict[FieldAtLayer, Opened] = {}

    def outputs(self, i: FieldAtLayer, j: FieldAtLayer, into: Array | None = None) -> Array:
        """Return the correlation ``<x_i(t) x_j(s)>`` of fields at output times, shape (out, n_i, out, n_j).

        It is the covariance of the sources in both equations plus the sum of the :meth:`products`. The
        correlation of a field with itself is computed at s <= t in blocks of times, because it is symmetric.
        The result is cached. The first call writes it to the array ``into`` of the same shape, if one is
        given; a later call returns the cached array and does not use ``into``.
        """
        if (i, j) not in self.finished:  # correlations are cached, because those of the next layer read them
            n, m, out = self.result.sizes[i], self.result.sizes[j], len(self.at)
            value = self.source_covariance(i, j, into)
            # For i = j the correlation is symmetric, so that s <= t suffice: times t are divided into BLOCKS
            # blocks, and each is computed with all s up to its end. Otherwise there is one block.
            blocks = list(pairwise(np.linspace(0, out, BLOCKS + 1 if i == j else 2).astype(int).tolist()))
            for left, right in self.products(i, j):
                known = (self.at + 1) * (left.shape[1] // self.T)
                for low, high in blocks:
                    rows, cols, end = slice(low * n, high * n), slice(high * m), known[high - 1]
                    value[rows, cols] += left[rows, :end] @ right[cols, :end].T
            for low, high in blocks:
                value[: low * n, low * n : high * n] = value[low * n : high * n, : low * n].T
            self.finished[i, j] = value.reshape(out, n, out, m)
        return self.finished[i, j]

    def trace(self, i: FieldAtLayer) -> Array:
        """Return ``sum_mu <x_i,mu(t) x_i,mu(s)>`` at output times, shape (out, out).

        The sum is over the first ``count`` samples, or over all of them if ``count`` is None.
        """
        if i not in self.traces:
            value = self.source_trace(i)
            for left, right in self.products(i, i):
                value = value + self.traced(left, i) @ self.traced(right, i).T
            self.traces[i] = value
        return self.traces[i]

    def traced(self, block: Array, i: FieldAtLayer) -> Array:
        """Return the rows of an array that belong to the samples in a trace, joined to one row for each time.

        ``block`` has a row for each output time and member of field ``i``; the first ``count`` members at
        each time are kept. The result has shape (output times, count times columns).
        """
        out = len(self.at)
        return block.reshape(out, self.result.sizes[i], -1)[:, : self.count].reshape(out, -1)

    # -- rows at output times --------------------------------------------------------------------------

    def row(self, i: FieldAtLayer) -> Opened:
        """Return the equation of field ``i`` as :func:`opened` gives it; cached.

        The result is a pair of the coefficients of sources, and the couplings to fields with constant
        factors.
        """
        if i not in self.rows:
            self.rows[i] = opened(self.plan.table, i, self.result.number)
        return self.rows[i]

    def products(self, i: FieldAtLayer, j: FieldAtLayer) -> Iterator[tuple[Array, Array]]:
        """Yield pairs of matrices (left, right) whose products ``left right^T`` are terms of ``C_ij``.

        The last term, the covariance of the sources in both equations, is not among them. Each matrix has
        rows at output times and columns at all time nodes.
        """
        drives, couplings = self.row(i)
        for factor, c in couplings:
            yield factor * self.kernel(i, c), self.correlation(j, c.field)
        for source, gain in drives.items():
            for k in self.plan.partners(source):
                if self.plan.depends(j, k) and (right := self.response(j, k)) is not None:
                    yield gain * self.covariance(source, k), right

    def source_trace(self, i: FieldAtLayer) -> Array:
        """Return the trace of the covariance of the sources in field ``i`` at output times, (out, out).

        If a covariance is the correlation of a field with itself, times a factor without indices, only the
        :meth:`trace` of that correlation is computed, and not its entries for all pairs of samples.
        """
        total = np.zeros((len(self.at), len(self.at)))
        for a, b, gain in self.overlaps(i, i):
            kernel = self.plan.table.covariances[a, b]
            indices = {*kernel.rows, *kernel.cols}
            for m in kernel.monomials:
                indexed = [f for f in m.factors if indices & set(f.indices)]
                q = self.plan.table.tensors.get(indexed[0].tensor) if len(indexed) == 1 else None
                if q is not None and q.kind == "correlation" and q.first == q.second:
                    others = replace(m, factors=tuple(f for f in m.factors if f not in indexed))
                    bare = KernelRow((), (), (others,), kernel.reach)
                    number = self.evaluate(bare, columns=self.at)[:, 0, :, 0]
                    total += gain * self.result.number(q.factor) * number * self.trace(q.first)
                else:
                    part = self.evaluate(replace(kernel, monomials=(m,)), columns=self.at)
                    full = self.full(part, kernel, len(self.at))[:, : self.count, :, : self.count]
                    total += gain * np.einsum("tasa->ts", full)
        return total

    def overlaps(
        self, i: FieldAtLayer, j: FieldAtLayer
    ) -> Iterator[tuple[FieldAtLayer, FieldAtLayer, float]]:
        """Yield the pairs of correlated sources in the equations of fields ``i`` and ``j``.

        Each item is (a, b, number): a source in the equation of i, one in that of j, and the product of their
        coefficients.
        """
        for a, first_gain in self.row(i)[0].items():
            for b, second_gain in self.row(j)[0].items():
                if (a, b) in self.plan.table.covariances:
                    yield a, b, first_gain * second_gain

    def source_covariance(self, i: FieldAtLayer, j: FieldAtLayer, into: Array | None = None) -> Array:
        """Return the covariance of the sources in the equations of two fields, shape (out n_i, out n_j).

        Both times are output times. The result is written to the array ``into``, of shape (out, n_i, out,
        n_j), if it is given.
        """
        n, m, out = self.result.sizes[i], self.result.sizes[j], len(self.at)
        total = np.empty((out, n, out, m)) if into is None else into
        overlaps = list(self.overlaps(i, j))
        if not overlaps:
            total[...] = 0.0
        for k, (a, b, gain) in enumerate(overlaps):
            value = self.evaluate(self.plan.table.covariances[a, b], columns=self.at)
            value = value if gain == 1.0 else gain * value
            if k:
                total += value
            else:  # written, not added to zeros, because the first write to new memory is slow
                total[...] = value
        return total.reshape(out * n, out * m)

    def correlation(self, i: FieldAtLayer, j: FieldAtLayer) -> Array:
        """Return the correlation ``<x_i(t) x_j(s)>`` at output times t and all time nodes s.

        It is a matrix of shape (output times n_i, nodes n_j), with n_i members of field i. It is read from
        the march if that has stored both C_ij and C_ji at s < t, and is computed by :meth:`assembled`
        otherwise.
        """
        rows = self.plan.rows
        if ((i, j) in rows or i == j) and (j, i) in rows:
            full = self.result.correlation(i, j)
            return full[self.pick].reshape(len(self.at) * full.shape[1], -1)
        if (i, j) not in self.blocks:
            self.blocks[i, j] = self.assembled(i, j)
        return self.blocks[i, j]

    def assembled(self, i: FieldAtLayer, j: FieldAtLayer) -> Array:
        """Return the correlation ``C_ij`` at output times t and all time nodes s, as a matrix.

        It follows from the equation of field ``i`` and from correlations and responses that the march has
        stored, ``C_ij = sum_l K_il C_lj + sum_k g <u_i u_k> (R_jk + g')^T``, with kernels K, sources u, and
        their coefficients g and g' in the equations of i and j.
        """
        value = np.zeros((len(self.at) * self.result.sizes[i], self.T * self.result.sizes[j]))
        drives, couplings = self.row(i)
        for factor, c in couplings:
            full = self.result.correlation(c.field, j)
            value += factor * self.kernel(i, c) @ full.reshape(full.shape[0] * full.shape[1], -1)
        for source, gain in drives.items():
            for k in self.plan.partners(source):
                if self.plan.depends(j, k):
                    full = self.result.response(j, k)
                    flat = full.reshape(full.shape[0] * full.shape[1], -1)
                    value += gain * self.covariance(source, k) @ flat.T
                if (other := self.result.gains[j].get(k)) is not None:
                    value += gain * other * self.covariance(source, k)
        return value

    def response(self, i: FieldAtLayer, k: FieldAtLayer) -> Array | None:
        """Return the response ``<d x_i(t)/d u_k(s)>`` at output times t and all nodes s; None if it is zero.

        It is a matrix of shape (output times n_i, nodes n_k). The direct part, by which the source drives the
        field at the same time, is not included.
        """
        if (i, k) in self.result.responses and not any(_is_number(c) for c in self.plan.rows_of[i].couplings):
            full = self.result.response(i, k)
            return full[self.pick].reshape(len(self.at) * full.shape[1], -1)
        value: Array | None = None
        for factor, c in self.row(i)[1]:
            K = factor * self.kernel(i, c)
            if (c.field, k) in self.result.responses:
                full = self.result.response(c.field, k)
                part = K @ full.reshape(full.shape[0] * full.shape[1], -1)
                value = part if value is None else value + part
            if (gain := self.result.gains[c.field].get(k)) is not None:
                value = gain * K if value is None else value + gain * K
        return value

    def full_response(self, q: Request) -> Array:
        """Return the response that ``q`` defines, shape (output times, n_i, nodes, n_k).

        It includes the direct part, by which the source drives the field at the same time. It is computed
        here if the march has not stored it.
        """
        if (q.first, q.second) in self.result.responses:
            return self.result.tensor(q)[self.at]
        if q not in self.full_responses:
            shape = (len(self.at), self.result.sizes[q.first], self.T, self.result.widths[q.second])
            indirect = self.response(q.first, q.second)
            value = np.zeros(shape) if indirect is None else indirect.reshape(shape).copy()
            direct = self.row(q.first)[0].get(q.second, 0.0) * np.eye(shape[1], shape[3])
            value[np.arange(len(self.at)), :, self.at] += direct
            self.full_responses[q] = self.result.number(q.factor) * value
        return self.full_responses[q]

    # -- kernels and covariances as blocks -------------------------------------------------------------

    def kernel(self, i: FieldAtLayer, c: Coupling) -> Array:
        """Return the kernel k(t, s) of a term ``sum_s k(t, s) x(s)``, ``c``, in the equation of field ``i``.

        It is a matrix with rows at output times t and columns at all time nodes s, and zero at times s that
        the sum does not contain. The last result is cached.
        """
        if self.last is None or self.last[0] is not c:
            self.last = (c, self.kernel_block(i, c))
        return self.last[1]

    def kernel_block(self, i: FieldAtLayer, c: Coupling) -> Array:
        """Compute the kernel k(t, s) of a term ``sum_s k(t, s) x(s)``, ``c``, in the equation of field ``i``.

        It is a matrix with rows at output times t and columns at all time nodes s, and zero at times s that
        the sum does not contain.
        """
        nodes = np.arange(self.T)[None, :]
        reached = {
            "past": nodes < self.at[:, None],
            "through": nodes <= self.at[:, None],
            "now": nodes == self.at[:, None],
            "start": np.broadcast_to(nodes == 0, (len(self.at), self.T)),
        }[c.kernel.reach]
        full = self.full(self.evaluate(c.kernel), c.kernel)
        value: Array = np.where(reached[:, None, :, None], full, 0.0)
        return value.reshape(len(self.at) * self.result.sizes[i], -1)

    def covariance(self, a: FieldAtLayer, b: FieldAtLayer) -> Array:
        """Return the covariance ``<u_a(t) u_b(s)>`` of two sources at output times t and all time nodes s.

        It is a matrix of shape (output times n_a, nodes n_b).
        """
        kernel = self.plan.table.covariances[a, b]
        value = self.full(self.evaluate(kernel), kernel)
        return value.reshape(value.shape[0] * value.shape[1], -1)

    def full(self, value: Array, kernel: KernelRow, times: int | None = None) -> Array:
        """Return values of a kernel with all axes (t, rows, s, columns), repeated along those of length one.

        Rows and columns are the joined indices of the kernel on both sides. t runs over output times;
        ``times`` is the number of times s, by default that of all time nodes.
        """
        rows, cols = (prod(self.result.extents[x] for x in side) for side in (kernel.rows, kernel.cols))
        return np.broadcast_to(value, (len(self.at), rows, self.T if times is None else times, cols))

    def evaluate(self, kernel: KernelRow, columns: NDArray[np.intp] | None = None) -> Array:
        """Return the values of a kernel, or covariance, with axes (t, rows, s, cols).

        Axes on which it does not depend have length one. The times t are output times. ``columns`` are the
        positions of the times s: None for all nodes, or the output times ``at`` and no others, because
        correlations between two output times are stored for these only.
        """
        axes = [t, *kernel.rows, s, *kernel.cols]
        total: Array | None = None
        for m in kernel.monomials:
            letters: dict[Symbol, str] = {}
            arrays, inputs = [], []
            for array, names in [*(self.read(f, columns) for f in m.factors), *self.coefficient(m, columns)]:
                arrays.append(array)
                inputs.append("".join(letters.setdefault(x, chr(97 + len(letters))) for x in names))
            used = [x for x in axes if x in letters]
            subscripts = f"{','.join(inputs)}->{''.join(letters[x] for x in used)}"
            value = np.einsum(subscripts, *arrays, optimize=True) if arrays else np.ones(())
            part = self.folded(value, used, axes, kernel)
            if not m.coefficient.has(t, s):
                coefficient = self.result.number(m.coefficient)
                part = part if coefficient == 1 else coefficient * part
            total = part if total is None else total + part
        return np.zeros((1, 1, 1, 1)) if total is None else total

    def folded(self, value: Array, used: list[Symbol], axes: list[Symbol], kernel: KernelRow) -> Array:
        """Return an array of kernel values with the four axes (t, indices of rows, s, indices of columns).

        ``used`` are the indices and times that are the axes of ``value``; ``axes`` are all axes of the
        kernel, in order. The indices of rows are joined to one axis, and so are those of columns. If the
        values depend on one of the indices of rows, they are repeated along the others; if on none, the axis
        has length one. The same holds for columns.
        """
        have = dict(zip(used, value.shape, strict=True))
        sides = [side for side in (kernel.rows, kernel.cols) if have.keys() & set(side)]
        whole = have | {x: self.result.extents[x] for side in sides for x in side}
        full, r = [whole.get(x, 1) for x in axes], len(kernel.rows)
        value = np.broadcast_to(value.reshape([have.get(x, 1) for x in axes]), full)
        return value.reshape(full[0], prod(full[1 : 1 + r]), full[1 + r], prod(full[2 + r :]))

    def coefficient(
        self, m: Monomial, columns: NDArray[np.intp] | None
    ) -> Iterator[tuple[Array, list[Symbol]]]:
        """Yield the factors of a product ``m`` in a kernel that depend only on the times t and s, as tables.

        They are its coefficient, if that depends on times, and zeros and ones that select s = t, or that
        exclude it. Values at s > t are not set to zero. Each table comes with the names of its axes. t runs
        over the output times; ``columns`` are the positions of the times s, by default all nodes.
        """
        times = np.arange(self.T) if columns is None else columns
        if m.coefficient.has(t, s):
            function = lambdify((t, s), m.coefficient.subs(dict(self.result.constants)), np)
            with np.errstate(all="ignore"):  # values at s > t may be infinite, but no kernel reads them
                grid = function(self.at[:, None].astype(float), times[None, :].astype(float))
            yield np.broadcast_to(np.asarray(grid, dtype=float), (len(self.at), len(times))), [t, s]
        if m.strict:
            yield (self.at[:, None] != times[None, :]).astype(float), [t, s]
        if m.instant:
            yield (self.at[:, None] == times[None, :]).astype(float), [t, s]

    def read(self, f: Factor, columns: NDArray[np.intp] | None) -> tuple[Array, list[Symbol]]:
        """Return the values of a factor ``f`` of a kernel, and the names of their axes.

        The factor is a scalar, a stored product, given data, an order parameter, or a Kronecker delta. The
        time t runs over output times, s over the positions ``columns`` (see :meth:`evaluate`), by default all
        time nodes. Raises NotImplementedError for an order parameter at equal times (t, t), which the march
        does not store.
        """
        pick = slice(None) if columns is None else columns
        name = f.tensor[0]
        indices = [x for x in f.indices if x not in (t, s)]
        if f.tensor in self.result.hoisted:
            return self.result.hoisted[f.tensor][pick], [s, *indices]
        if name in self.result.scalars:
            present = t in f.indices
            return self.result.scalars[name][self.at if present else pick], [t if present else s, *indices]
        if f.tensor in self.plan.table.tensors:
            q = self.plan.table.tensors[f.tensor]
            if f.indices[-2:] == (t, t):
                raise NotImplementedError(
                    f"correlations of the output are not computed: a kernel contains {name} at equal times, "
                    "which the linear march does not keep"
                )
            count = len(self.plan.rows_of[q.first].indices)
            shape = [self.result.extents[x] for x in indices]
            array = self.tensor(f.tensor, columns)
            full = array.reshape(array.shape[0], *shape[:count], array.shape[2], *shape[count:])
            return full, [t, *indices[:count], s, *indices[count:]]
        if f.tensor == DELTA:
            return np.eye(self.result.extents[f.indices[0]]), list(f.indices)
        if f.indices in ((t, s), (t,), (s,)):
            array = self.data[name][self.at] if t in f.indices else self.data[name]
            return (array[..., pick] if s in f.indices else array), list(f.indices)
        return self.data[name], indices

    def tensor(self, n: FieldAtLayer, columns: NDArray[np.intp] | None) -> Array:
        """Return the order parameter with key ``n`` (name, layer), with axes (t, members, s, members).

        t runs over output times. If ``columns`` is None, s runs over all time nodes. Otherwise ``columns``
        must be the positions ``at`` of the output times, and s runs over these.
        """
        q = self.plan.table.tensors[n]
        if q.kind == "response":
            value = self.full_response(q)
            return value if columns is None else value[:, :, columns]
        factor = self.result.number(q.factor)
        if columns is not None:
            value = self.outputs(q.first, q.second)
            return value if factor == 1.0 else factor * value
        return factor * self.correlation(q.first, q.second).reshape(
            len(self.at), self.result.sizes[q.first], self.T, self.result.sizes[q.second]
        )


CONVERGED = 1e-13
"""Relative change at which the iteration of a row of densities has converged."""
MAX_SWEEPS = 100
"""Largest number of sweeps of a row of densities."""


def densities(
    result: March, nodes: Array, data: Mapping[str, Array]
) -> dict[tuple[FieldAtLayer, FieldAtLayer], Array]:
    """Return the density ``rho_ik`` of every response (i, k) of the march, shape (T, n_i, T, n_k).

    It is zero for s > t, and its diagonal is the limit s -> t. ``nodes`` are the times of the march, ``data``
    its arrays with ones for the weights of the integrator, so that ``w`` holds only the memory of the flow.
    With an integrator of order four the error of the densities, also at s = 0 and s = t, falls as the fourth
    power of the step, for uniform or log output times (tests/numerics/solver/test_flow.py). Raises
    :class:`~numerics.errors.NotConverged` if the iteration of a row does not converge because the grid is too
    coarse.
    """
    solver = _DensitySolver(result, data)
    for step, weights in enumerate(interval_weights(nodes)):
        if not solver.row(step, weights):
            raise NotConverged(
                f"the iteration for the responses at t = {nodes[step]:.3g} did not converge, because the "
                "time step is too long: use a smaller solver.rtol, which makes the steps shorter"
            )
    T, sizes = len(nodes), result.sizes
    return {(i, k): a.reshape(T, sizes[i], T, -1) for (i, k), a in solver.densities.items()}


class _DensitySolver:
    """Solver of the integral equations of response densities, row by row in time.

    ``densities`` are the arrays ``(T n_i, T n_k)``; ``weighted`` the same times the weights of the integral.
    """

    def __init__(self, result: March, data: Mapping[str, Array]) -> None:
        self.result, self.plan = result, result.plan
        self.densities: dict[tuple[FieldAtLayer, FieldAtLayer], Array] = {}
        rows = replace(result, data=data, responses=self.densities)
        for i, k in self.plan.responses:
            size = result.steps * result.sizes[i], result.steps * rows.widths[k]
            self.densities[i, k] = np.zeros(size)
        table = self.plan.table
        self.order = [x for x in self.plan.order if isinstance(x, CouplingRow | ResponseArray)]
        couplings = [c for i in self.plan.fields for c in table.row(i).couplings]
        self.compiled = {
            id(c): rows.compile(c.kernel, "through" if c.kernel.reach == "past" else None) for c in couplings
        }
        self.equations = {r.field: opened(table, r.field, result.number) for r in table.fields}
        self.kernels: dict[int, Array] = {}
        self.weighted: dict[tuple[FieldAtLayer, FieldAtLayer], Array] = {}

    def row(self, step: int, weights: Array) -> bool:
        """Compute the densities at one time t, and return whether their iteration converged.

        ``weights`` (step + 1, step + 1) are those of :func:`interval_weights`. The densities at t depend on
        each other, because the integral over past times ends at t. They are therefore iterated.
        """
        self._begin(step, weights)
        return any(self._sweep(step, weights) <= CONVERGED for _ in range(MAX_SWEEPS))

    def _now(self, i: FieldAtLayer, step: int) -> slice:
        """Return the slice of the rows of field ``i`` at time ``step`` in arrays of shape (T n_i, T n_k)."""
        return slice(step * self.result.sizes[i], (step + 1) * self.result.sizes[i])

    def _begin(self, step: int, weights: Array) -> None:
        """Set first guesses of the response densities at time ``step``, those of the time before.

        The products of the densities at all times so far and the ``weights`` (step + 1, step + 1) of the
        integral are stored in ``weighted``; ``densities`` are not multiplied.
        """
        count = step + 1
        for (i, k), a in self.densities.items():
            n, m = self.result.sizes[i], self.result.widths[k]
            if step:
                a[self._now(i, step), : step * m] = a[self._now(i, step - 1), : step * m]
            block = a[: count * n, : count * m].reshape(count, n, count, m)
            self.weighted[i, k] = (block * weights.T[:, None, :, None]).reshape(count * n, count * m)

    def _sweep(self, step: int, weights: Array) -> float:
        """Compute all response densities at time ``step`` once, and return their largest change.

        The change of a density is relative to its largest absolute value, or to one if that is smaller.
        ``weights`` (step + 1, step + 1) are those of the integral over earlier times. Sweeps are repeated
        until the densities converge.
        """
        change, count = 0.0, step + 1
        for quantity in self.order:
            if isinstance(quantity, CouplingRow):
                c = self.plan.couplings[quantity]
                self.kernels[id(c)] = self.compiled[id(c)](step)
                continue
            i, j = quantity.first, quantity.second
            n, m = self.result.sizes[i], self.result.widths[j]
            value = np.zeros((n, count * m))
            for factor, c in self.equations[i][1]:
                if (c.field, j) in self.densities:
                    value += factor * self.kernels[id(c)] @ self.weighted[c.field, j]
                if (gain := self.equations[c.field][0].get(j)) is not None:
                    value += factor * gain * self.kernels[id(c)]
            row = self.densities[i, j][self._now(i, step), : count * m]
            moved = np.max(np.abs(value - row)) / max(1.0, np.max(np.abs(value)))
            change = float(np.maximum(change, moved))  # unlike max, this is NaN if ``moved`` is NaN
            row[:] = value
            last = row.reshape(n, count, m) * weights[:, step][:, None]
            self.weighted[i, j][step * n :] = last.reshape(n, count * m)
        return change


def interval_weights(nodes: Array) -> Iterator[Array]:
    """Yield the weights of nodes 0..n in the integrals from node m to node n, for n = 0, 1, ...

    The arrays have shape (n + 1, n + 1). Row m uses only nodes m..n. It integrates polynomials of third
    degree exactly if these are at least four nodes, and otherwise the polynomial through all of them.

    >>> [w.tolist() for w in interval_weights(np.array([0.0, 1.0, 2.0]))][1]
    [[0.5, 0.5], [0.0, 0.0]]
    """
    # Row m of `final` holds the weights of the integral from node m over those intervals between nodes whose
    # cubic polynomial already has its final four nodes, so that later nodes do not change it.
    final = np.zeros((len(nodes), len(nodes)))
    for n in range(len(nodes)):
        if n >= 3:
            four = np.arange(n - 3, n + 1)
            if n >= 4:
                final[: n - 3, four] += integral_weights(nodes[four], nodes[n - 2], nodes[n - 1])
            final[n - 3, four] = integral_weights(nodes[four], nodes[n - 3], nodes[n - 1])
        total = final[: n + 1, : n + 1].copy()
        if n >= 3:
            total[: n - 2, four] += integral_weights(nodes[four], nodes[n - 1], nodes[n])
        for m in range(max(0, n - 2), n):
            total[m, m:] = integral_weights(nodes[m : n + 1], nodes[m], nodes[n])
        yield total
