"""Correlations that the dynamics did not need, at the output times only, once the march is done.

The same rows as in the march, read for all times at once:

    C_ij = K_il C_lj + <u_i u_k> R_jk^T .

Nothing here has to be causal any more, so each is a few large matrix products, and two-time kernels of all
samples are held at output times alone.  A field that stands in another's equation at the same time is put in
first, so that only fields of few members are read at all times: :func:`needed` says which.

Responses of a flow as functions of two times.

What the march of a flow holds is the response to a source at one node: the density times that node's weight
only where the steps are even, since an explicit multistep rule read backwards is no consistent rule at its
start or where the step changes.  Sums over nodes do not feel this; single entries do.  So the densities are
solved for once the march is done, from the same rows with weights one and integrals in place of sums:

    rho_ik(t, s) = sum_l [l driven by k] g_l K_il(t, s) + sum_l int_s^t K_il(t, t') rho_lk(t', s) dt' ,

fields that stand in another's equation at the same time put in, with what drives them.

The integral runs over the polynomials through four nodes each, all of them between s and t; its error falls
as the fourth power of the step.
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
"""A field's sources and couplings, each with a number."""

BLOCKS = 8
"""In how many blocks of times the correlation of a field with itself is found."""


def opened(table: Table, i: FieldAtLayer, number: Callable[[Expr], float]) -> Opened:
    """The equation of ``i`` with the fields put in that stand in it at the same time, times a number."""
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
    """Is the kernel a number, the same for each member, at the present time?"""
    return c.kernel.reach == "now" and all(
        not m.coefficient.has(t, s) and all(f.tensor == DELTA for f in m.factors) for m in c.kernel.monomials
    )


def needed(table: Table, fields: Iterable[FieldAtLayer]) -> Iterator[Request]:
    """What a march must keep so that the correlations of ``fields`` can be found afterwards."""
    for i in fields:
        drives, couplings = opened(table, i, lambda e: 1.0)
        read = [c.field for _, c in couplings]
        partners = [k for own in drives for one, k in table.covariances if one == own]
        for f in read:
            yield from (Request("correlation", f, g, S.One) for g in read)
            yield from (Request("response", f, k, S.One) for k in partners)


class Afterwards:
    """Reads a finished march at the nodes ``at``.

    Blocks have their rows at output times and their columns at all nodes: shape (len(at) n_i, T n_j),
    time-major.  Traces run over the first ``count`` samples, or over all of them.
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
        self.pick = slice(None) if everywhere else at  # a slice copies nothing
        self.blocks: dict[tuple[FieldAtLayer, FieldAtLayer], Array] = {}
        self.finished: dict[tuple[FieldAtLayer, FieldAtLayer], Array] = {}
        self.traces: dict[FieldAtLayer, Array] = {}
        self.answers: dict[Request, Array] = {}
        self.last: tuple[Coupling, Array] | None = None
        self.rows: dict[FieldAtLayer, Opened] = {}

    def outputs(self, i: FieldAtLayer, j: FieldAtLayer, into: Array | None = None) -> Array:
        """``<x_i(t) x_j(s)>`` at output times t, s: shape (out, n_i, out, n_j), written ``into`` an array."""
        if (i, j) not in self.finished:  # each layer is the start of the next
            n, m, out = self.result.sizes[i], self.result.sizes[j], len(self.at)
            value = self.start(i, j, into)
            # of one field at s <= t alone, in blocks of times: it is symmetric, and later times add nothing
            blocks = list(pairwise(np.linspace(0, out, BLOCKS + 1 if i == j else 2).astype(int).tolist()))
            for left, right in self.parts(i, j):
                known = (self.at + 1) * (left.shape[1] // self.T)
                for low, high in blocks:
                    rows, cols, end = slice(low * n, high * n), slice(high * m), known[high - 1]
                    value[rows, cols] += left[rows, :end] @ right[cols, :end].T
            for low, high in blocks:
                value[: low * n, low * n : high * n] = value[low * n : high * n, : low * n].T
            self.finished[i, j] = value.reshape(out, n, out, m)
        return self.finished[i, j]

    def trace(self, i: FieldAtLayer) -> Array:
        """``sum_mu <x_i,mu(t) x_i,mu(s)>`` at output times: shape (out, out)."""
        if i not in self.traces:
            value = self.start_trace(i)
            for left, right in self.parts(i, i):
                value = value + self.traced(left, i) @ self.traced(right, i).T
            self.traces[i] = value
        return self.traces[i]

    def traced(self, block: Array, i: FieldAtLayer) -> Array:
        """The rows of a block whose samples are in the trace, one for each time."""
        out = len(self.at)
        return block.reshape(out, self.result.sizes[i], -1)[:, : self.count].reshape(out, -1)

    # -- rows at output times --------------------------------------------------------------------------

    def row(self, i: FieldAtLayer) -> Opened:
        """The equation of a field, opened once."""
        if i not in self.rows:
            self.rows[i] = opened(self.plan.table, i, self.result.number)
        return self.rows[i]

    def parts(self, i: FieldAtLayer, j: FieldAtLayer) -> Iterator[tuple[Array, Array]]:
        """Pairs of blocks whose products make up ``C_ij`` beyond the overlap of the sources themselves."""
        drives, couplings = self.row(i)
        for factor, c in couplings:
            yield factor * self.kernel(i, c), self.correlation(j, c.field)
        for own, gain in drives.items():
            for k in self.plan.partners(own):
                if self.plan.depends(j, k) and (right := self.response(j, k)) is not None:
                    yield gain * self.covariance(own, k), right

    def start_trace(self, i: FieldAtLayer) -> Array:
        """The trace of ``start(i, i)``, without pairs of samples where the covariance is a known kernel."""
        total = np.zeros((len(self.at), len(self.at)))
        for a, b, gain in self.overlaps(i, i):
            kernel = self.plan.table.covariances[a, b]
            indices = {*kernel.rows, *kernel.cols}
            for m in kernel.monomials:
                own = [f for f in m.factors if indices & set(f.indices)]
                q = self.plan.table.tensors.get(own[0].tensor) if len(own) == 1 else None
                if q is not None and q.kind == "correlation" and q.first == q.second:
                    rest = replace(m, factors=tuple(f for f in m.factors if f not in own))
                    bare = KernelRow((), (), (rest,), kernel.reach)
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
        """Pairs of correlated sources that stand in the two fields' equations, and the product of their
        gains.
        """
        for a, one in self.row(i)[0].items():
            for b, two in self.row(j)[0].items():
                if (a, b) in self.plan.table.covariances:
                    yield a, b, one * two

    def start(self, i: FieldAtLayer, j: FieldAtLayer, into: Array | None = None) -> Array:
        """The overlap of the two fields' own sources at output times: (out n_i, out n_j)."""
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
            else:  # memory that is written for the first time is slow: once, and not after zeros
                total[...] = value
        return total.reshape(out * n, out * m)

    def correlation(self, i: FieldAtLayer, j: FieldAtLayer) -> Array:
        """``<x_i(t) x_j(s)>``: t an output time, s any node."""
        rows = self.plan.rows
        if ((i, j) in rows or i == j) and (j, i) in rows:
            full = self.result.correlation(i, j)
            return full[self.pick].reshape(len(self.at) * full.shape[1], -1)
        if (i, j) not in self.blocks:
            self.blocks[i, j] = self.assembled(i, j)
        return self.blocks[i, j]

    def assembled(self, i: FieldAtLayer, j: FieldAtLayer) -> Array:
        """``C_ij`` from the equation of ``i`` and the complete correlations and responses of ``j``."""
        value = np.zeros((len(self.at) * self.result.sizes[i], self.T * self.result.sizes[j]))
        drives, couplings = self.row(i)
        for factor, c in couplings:
            full = self.result.correlation(c.field, j)
            value += factor * self.kernel(i, c) @ full.reshape(full.shape[0] * full.shape[1], -1)
        for own, gain in drives.items():
            for k in self.plan.partners(own):
                if self.plan.depends(j, k):
                    full = self.result.response(j, k)
                    flat = full.reshape(full.shape[0] * full.shape[1], -1)
                    value += gain * self.covariance(own, k) @ flat.T
                if (other := self.result.gains[j].get(k)) is not None:
                    value += gain * other * self.covariance(own, k)
        return value

    def response(self, i: FieldAtLayer, k: FieldAtLayer) -> Array | None:
        """``<d x_i(t)/d u_k(s)>``: t an output time, s any node; None where fields that are read answer not.

        What the source does at once, in the equation of ``i`` as it is opened, is left out.
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

    def answer(self, q: Request) -> Array:
        """A response with its direct part, which the march need not have found: shape (out, n_i, T, n_k)."""
        if (q.first, q.second) in self.result.responses:
            return self.result.tensor(q)[self.at]
        if q not in self.answers:
            shape = (len(self.at), self.result.sizes[q.first], self.T, self.result.widths[q.second])
            found = self.response(q.first, q.second)
            value = np.zeros(shape) if found is None else found.reshape(shape).copy()
            direct = self.row(q.first)[0].get(q.second, 0.0) * np.eye(shape[1], shape[3])
            value[np.arange(len(self.at)), :, self.at] += direct
            self.answers[q] = self.result.number(q.factor) * value
        return self.answers[q]

    # -- kernels and covariances as blocks -------------------------------------------------------------

    def kernel(self, i: FieldAtLayer, c: Coupling) -> Array:
        """The kernel of a coupling for all times s, zero where it does not reach; the last one is kept."""
        if self.last is None or self.last[0] is not c:
            self.last = (c, self.found(i, c))
        return self.last[1]

    def found(self, i: FieldAtLayer, c: Coupling) -> Array:
        """A kernel, worked out."""
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
        """``<u_a(t) u_b(s)>`` for all s."""
        kernel = self.plan.table.covariances[a, b]
        value = self.full(self.evaluate(kernel), kernel)
        return value.reshape(value.shape[0] * value.shape[1], -1)

    def full(self, value: Array, kernel: KernelRow, times: int | None = None) -> Array:
        """A kernel on all of its axes (t, rows, s, cols)."""
        rows, cols = (prod(self.result.extents[x] for x in side) for side in (kernel.rows, kernel.cols))
        return np.broadcast_to(value, (len(self.at), rows, self.T if times is None else times, cols))

    def evaluate(self, kernel: KernelRow, columns: NDArray[np.intp] | None = None) -> Array:
        """The kernel with axes (t, rows, s, cols); axes on which it does not depend have length one.

        ``columns`` picks the times s.
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
        """Axes (t, rows, s, cols) with the indices of a side as one; a side that is used is used in full."""
        have = dict(zip(used, value.shape, strict=True))
        sides = [side for side in (kernel.rows, kernel.cols) if have.keys() & set(side)]
        whole = have | {x: self.result.extents[x] for side in sides for x in side}
        full, r = [whole.get(x, 1) for x in axes], len(kernel.rows)
        value = np.broadcast_to(value.reshape([have.get(x, 1) for x in axes]), full)
        return value.reshape(full[0], prod(full[1 : 1 + r]), full[1 + r], prod(full[2 + r :]))

    def coefficient(
        self, m: Monomial, columns: NDArray[np.intp] | None
    ) -> Iterator[tuple[Array, list[Symbol]]]:
        """What depends on the times themselves, as a table over them."""
        times = np.arange(self.T) if columns is None else columns
        if m.coefficient.has(t, s):
            function = lambdify((t, s), m.coefficient.subs(dict(self.result.constants)), np)
            with np.errstate(all="ignore"):  # powers beyond s = t, which no kernel reads
                grid = function(self.at[:, None].astype(float), times[None, :].astype(float))
            yield np.broadcast_to(np.asarray(grid, dtype=float), (len(self.at), len(times))), [t, s]
        if m.strict:
            yield (self.at[:, None] != times[None, :]).astype(float), [t, s]
        if m.instant:
            yield (self.at[:, None] == times[None, :]).astype(float), [t, s]

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
            if f.indices[-2:] == (t, t):
                raise NotImplementedError(f"{f} at one time is not read after a march")
            count = len(self.plan.rows_of[q.first].indices)
            shape = [self.result.extents[x] for x in rest]
            array = self.tensor(f.tensor, columns)
            full = array.reshape(array.shape[0], *shape[:count], array.shape[2], *shape[count:])
            return full, [t, *rest[:count], s, *rest[count:]]
        if f.tensor == DELTA:
            return np.eye(self.result.extents[f.indices[0]]), list(f.indices)
        if f.indices in ((t, s), (t,), (s,)):
            array = self.data[name][self.at] if t in f.indices else self.data[name]
            return (array[..., pick] if s in f.indices else array), list(f.indices)
        return self.data[name], rest

    def tensor(self, n: FieldAtLayer, columns: NDArray[np.intp] | None) -> Array:
        """An order parameter, (out, n_i, nodes or columns, n_j)."""
        q = self.plan.table.tensors[n]
        if q.kind == "response":
            value = self.answer(q)
            return value if columns is None else value[:, :, columns]
        factor = self.result.number(q.factor)
        if columns is not None:
            value = self.outputs(q.first, q.second)
            return value if factor == 1.0 else factor * value
        return factor * self.correlation(q.first, q.second).reshape(
            len(self.at), self.result.sizes[q.first], self.T, self.result.sizes[q.second]
        )


SETTLED = 1e-13
MAX_SWEEPS = 100


def densities(
    result: March, nodes: Array, data: Mapping[str, Array]
) -> dict[tuple[FieldAtLayer, FieldAtLayer], Array]:
    """For every response (i, k) of the march the density ``rho_ik``, shape (T, n_i, T, n_k), zero for s > t.

    Its diagonal is the limit s -> t.  ``nodes`` are the times of the march, ``data`` what it was given, with
    ones in place of the integrator's weights: of ``w`` the flow's own memory is left.  On settled grids the
    densities, at s = 0 and s = t too, are about as accurate as the correlations that the march found: within
    a factor of three of their error, uniform or log output times (tests/numerics/solver/test_flow.py).
    Raises :class:`~numerics.errors.NotConverged` on a grid so coarse that a row does not settle.
    """
    plan, T = result.plan, len(nodes)
    table = plan.table
    found: dict[tuple[FieldAtLayer, FieldAtLayer], Array] = {}
    rows = replace(result, data=data, responses=found)
    for i, k in plan.responses:
        found[i, k] = np.zeros((T * result.sizes[i], T * rows.widths[k]))
    order = [x for x in plan.order if isinstance(x, CouplingRow | ResponseArray)]
    compiled = {
        id(c): rows.compile(c.kernel, "through" if c.kernel.reach == "past" else None)
        for i in plan.fields
        for c in table.row(i).couplings
    }
    equations = {r.field: opened(table, r.field, result.number) for r in table.fields}
    K: dict[int, Array] = {}

    def now(i: FieldAtLayer, step: int) -> slice:
        return slice(step * result.sizes[i], (step + 1) * result.sizes[i])

    for step, weights in enumerate(interval_weights(nodes)):
        upto = step + 1
        weighted: dict[tuple[FieldAtLayer, FieldAtLayer], Array] = {}
        for (i, k), a in found.items():
            n, m = result.sizes[i], rows.widths[k]
            if step:  # the row before is the first guess
                a[now(i, step), : step * m] = a[now(i, step - 1), : step * m]
            block = a[: upto * n, : upto * m].reshape(upto, n, upto, m)
            weighted[i, k] = (block * weights.T[:, None, :, None]).reshape(upto * n, upto * m)
        for _ in range(MAX_SWEEPS):  # rows at the same time enter through the end of the integral
            change = 0.0
            for quantity in order:
                if isinstance(quantity, CouplingRow):
                    c = plan.couplings[quantity]
                    K[id(c)] = compiled[id(c)](step)
                    continue
                i, j = quantity.first, quantity.second
                n, m = result.sizes[i], rows.widths[j]
                value = np.zeros((n, upto * m))
                for factor, c in equations[i][1]:
                    if (c.field, j) in found:
                        value += factor * K[id(c)] @ weighted[c.field, j]
                    if (gain := equations[c.field][0].get(j)) is not None:
                        value += factor * gain * K[id(c)]
                row = found[i, j][now(i, step), : upto * m]
                moved = np.max(np.abs(value - row)) / max(1.0, np.max(np.abs(value)))
                change = float(np.maximum(change, moved))  # nan if it is
                row[:] = value
                last = row.reshape(n, upto, m) * weights[:, step][:, None]
                weighted[i, j][step * n :] = last.reshape(n, upto * m)
            if change <= SETTLED:
                break
        else:
            raise NotConverged(
                f"the responses at t = {nodes[step]:.3g} did not settle: the time step is too long"
            )
    return {(i, k): a.reshape(T, result.sizes[i], T, -1) for (i, k), a in found.items()}


def interval_weights(nodes: Array) -> Iterator[Array]:
    """For n = 0, 1, ...: the weights (n + 1, n + 1) of nodes 0..n in the integrals from node m to node n.

    Row m uses only nodes m..n, and integrates polynomials of third degree exactly if there are four of them.

    >>> [w.tolist() for w in interval_weights(np.array([0.0, 1.0, 2.0]))][1]
    [[0.5, 0.5], [0.0, 0.0]]
    """
    settled = np.zeros((len(nodes), len(nodes)))  # over the cells whose four nodes are all known
    for n in range(len(nodes)):
        if n >= 3:
            four = np.arange(n - 3, n + 1)
            if n >= 4:
                settled[: n - 3, four] += integral_weights(nodes[four], nodes[n - 2], nodes[n - 1])
            settled[n - 3, four] = integral_weights(nodes[four], nodes[n - 3], nodes[n - 1])
        total = settled[: n + 1, : n + 1].copy()
        if n >= 3:
            total[: n - 2, four] += integral_weights(nodes[four], nodes[n - 1], nodes[n])
        for m in range(max(0, n - 2), n):
            total[m, m:] = integral_weights(nodes[m : n + 1], nodes[m], nodes[n])
        yield total
