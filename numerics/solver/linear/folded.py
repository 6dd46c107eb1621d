"""Linear march with low-rank compression of the distant past (folding).

Row t of an array is a combination of earlier rows, with kernels that are such rows themselves:

    x(t, .) = sum_s k(t, s) m(s, .)

Over the times before ``first``, the rows of a block of later steps span few dimensions if they are smooth in
t. With an orthonormal basis Q of these, ``x = c Q`` and ``k = d Q`` there, and c = d (Q m Q^T): the block
needs only Q m Q^T of those times. So arrays are folded, ``[Q, 1] m [Q, 1]^T``, the block is marched with a
short past, and its rows are unfolded.

This is exact if ``Q m`` lies in the span of Q for all coordinates of k. The neglected part is ``k Q^T (Q m)
(1 - Q^T Q)``; the image ``Q m`` of the basis is stored to compute it. The basis begins with the span of the
last rows, and is extended by images of random kernels as large as the last ones. After the block, the
neglected part is measured with the kernels that were computed; if it is too large, the block is marched again
with an extended basis. No property of the rows is assumed; if they need a larger basis than there is room
for, the march continues without folding.

All rows are of single fields. Fields with many members are read only at the present time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from derive.calculus.symbols import s, t
from numerics.lowering.operations import (
    CorrelationArray,
    CouplingRow,
    CovarianceRow,
    EvaluateRow,
    MarchStep,
    MultiplyRow,
    ResponseArray,
    TwoTimeArray,
)
from numerics.lowering.table import KernelRow
from numerics.solver.linear.plan import Plan
from numerics.solver.linear.rows import Rows
from numerics.solver.linear.steps import StepArrays

Array = NDArray[np.float64]
LeftRow = CouplingRow | CovarianceRow
OrientedArray = tuple[TwoTimeArray, bool]
"""Stored array, and whether its transpose is meant."""
WorkItem = TypeVar("WorkItem")
WorkResult = TypeVar("WorkResult")

ROOM = 160
"""Length of folded arrays: dimensions of the basis, times that are not folded, and steps of the block
together."""
NEAR, SHORTEST = 16, 32
"""Number of times before a block that are not folded, and smallest number of steps of a block."""
FIRST, BLOCK = 112, 1.5
"""Number of steps of the first block; ratio of the steps of later blocks to the positions before them."""
ROUNDING = 6e-14
"""Singular values of the last rows below this share of the size of arrays count as rounding errors."""
NEGLECT = 2e-13
"""Largest neglected part of a row, relative to the size of its array; half of it is rounding."""
GUESSED = 1e-12
"""Largest neglected part of the sum of all products with random kernels, tested before a block is marched."""
GROWTH = 4.0
"""Assumed growth of the coordinates of kernels from the last rows to the next block."""
SKETCH, REST = 80, 24
"""Numbers of random combinations of rows: for the first basis, and for its extensions."""
SAMPLES, REPEATS = 4, 3
"""Number of rows of each kernel that are tested in a block, and largest number of extensions of its basis."""


def _outside(basis: Array, rows: Array) -> Array:
    """Return rows minus their projections on a basis, whose rows are orthonormal."""
    out: Array = rows - (rows @ basis.T) @ basis
    return out


def _directions(sketch: Array, rounding: float) -> Array:
    """Return an orthonormal basis of the span of the rows of ``sketch``, as rows.

    Directions with a singular value of at most ``rounding`` times the root of the number of rows are left
    out.
    """
    Q, R = np.linalg.qr(sketch.T)
    _, size, V = np.linalg.svd(R.T)
    out: Array = V[: np.count_nonzero(size > rounding * np.sqrt(len(sketch)))] @ Q.T
    return out


def _joined(basis: Array, directions: Array) -> Array:
    """Return an orthonormal basis of the span of ``basis`` and ``directions``, which begins with ``basis``.

    Basis vectors are rows. ``directions`` are rows that are nearly orthogonal to the basis and to each other.
    """
    return np.concatenate([basis, np.linalg.qr(_outside(basis, directions).T)[0].T])


@cache
def _blas() -> ThreadpoolController:
    """Return the controller of the threads of the BLAS library."""
    return ThreadpoolController().select(user_api="blas")


def _kernels_of(plan: Plan) -> Iterator[KernelRow]:
    """Yield the kernels that a march evaluates.

    They are those of the couplings in the equations of fields, and all covariances of sources.
    """
    yield from (c.kernel for i in plan.fields for c in plan.rows_of[i].couplings)
    yield from plan.table.covariances.values()


def foldable(plan: Plan, rows: Rows) -> bool:
    """Return whether the march of a plan can be folded: whether its distant past can be compressed.

    Each product in a kernel may contain at most one factor at time s, others at the present time t; all rows
    must be of fields and sources with a single member, without attributes of units; and no coefficient or
    given array in a kernel, and no equation of a scalar, may depend on time explicitly.
    """
    table, clocks = plan.table, {t, s}
    if plan.sums or any(r.unit for r in table.fields) or any(x.expression.has(t) for x in table.scalars):
        return False
    marched = {i for pair in plan.rows for i in pair} | {i for i, _ in plan.responses}
    if any(rows.sizes[i] > 1 for i in marched) or any(rows.widths[k] > 1 for _, k in plan.responses):
        return False
    monomials = [m for k in _kernels_of(plan) for m in k.monomials]
    factors = [f for m in monomials for f in m.factors] + [f for h in table.hoisted for f in h.factors]
    computed = {*table.tensors, *((x.name, None) for x in table.scalars), *(x.tensor for x in table.hoisted)}
    return (
        not any(m.coefficient.has(t, s) for m in monomials)
        and not any(clocks & set(f.indices) for f in factors if f.tensor not in computed)
        and all(sum(s in f.indices for f in m.factors) <= 1 for m in monomials)
    )


class Folded:
    """March of a linear theory with low-rank compression (folding) of the distant past.

    The rows of two-time arrays over the times before ``first`` are represented by their coordinates in an
    orthonormal basis Q of few dimensions, ``basis``, shape (dimensions, first). Later times keep a position
    of their own. ``solution`` holds the two-time arrays (T, T) at all times, ``stack`` the same arrays with
    the distant past in coordinates of Q, on which the operations of a step run. ``images`` are the products
    of Q with the arrays. Steps before ``start`` are complete, and the function ``after`` was called for those
    before ``reported``.
    """

    def __init__(
        self, march_step: MarchStep, rows: Rows, functions: Mapping[str, Callable[..., Any]] | None = None
    ) -> None:
        self.solution: dict[TwoTimeArray, Array] = {
            CorrelationArray(i, j): a for (i, j), a in rows.correlations.items()
        }
        self.solution |= {ResponseArray(i, k): a for (i, k), a in rows.responses.items()}
        self.rows, self.T = rows, rows.steps
        room = min(self.T, ROOM)
        folded = Rows(rows.table, room, rows.constants, rows.data, numbers=rows.numbers)
        self.stack = StepArrays(march_step, folded, room, functions, times=False).make()
        self.marched = set(march_step.arrays)
        self.lists = [(rows.scalars[x], a) for x, a in folded.scalars.items()]
        self.lists += [(rows.hoisted[x], a) for x, a in folded.hoisted.items()]
        kernels = [x.kernel for x in march_step.operations if isinstance(x, EvaluateRow)]
        read = {f.tensor for k in kernels for m in k.monomials for f in m.factors if s in f.indices}
        self.functions = [a for x, a in folded.scalars.items() if (x, None) in read]
        self.functions += [a for x, a in folded.hoisted.items() if x in read]
        self.operands = sorted({self._operand(x) for x in self.stack.products}, key=str)
        self.size = dict.fromkeys(self.solution, 0.0)
        self.samples: dict[LeftRow, list[Array]] = {x.left: [] for x in self.stack.products}
        # `kept` is the number of times at the beginning that are not folded: 1 if some product reads values
        # at time 0 alone, else 0. If it is 1, time 0 has a basis vector, and thus a position, of its own.
        self.kept = int(self.stack.first)
        self.basis: Array = np.empty((0, 0))
        self.images: dict[OrientedArray, Array] = {}
        self.first = self.start = self.reported = 0
        self.folds = self.added = self.repeated = 0
        self.neglected = 0.0
        most = max([NEAR, *[a[0].size for a in self.functions]])
        self.random, self.drawn = np.random.default_rng(0).normal(size=40_009 + SKETCH * most), 0
        self.threads = 1
        self.pool: ThreadPoolExecutor | None = None

    def run(self, after: Callable[[int], None]) -> int:
        """March, and call ``after`` with the number of each step when its values at equal times are known.

        Returns the number of completed steps. It is smaller than the number of all steps if the basis that
        represents the distant past would become too large for the arrays, or stays inaccurate after REPEATS
        extensions; the march then continues without compression.
        """
        blas = _blas()
        self.threads = max([x["num_threads"] for x in blas.info()], default=1)
        with blas.limit(limits=1), ThreadPoolExecutor(self.threads) as pool:
            self.pool = pool if self.threads > 1 else None
            while self._march(after):
                if self.start == self.T or not self._fold(self.start):
                    break
        return self.start

    def _march(self, after: Callable[[int], None]) -> bool:
        """March the next block of steps, with the distant past given by coordinates in a basis.

        Products of kernels with arrays have a part outside of the span of the basis, which the march
        neglects. This part is measured after the block. If it is too large, the basis is extended and the
        block is marched again. ``after`` is called once with each step. Returns False if the basis that is
        needed is too large for the arrays, or if REPEATS extensions do not suffice.
        """
        for again in range(REPEATS + 1):
            before = self._position(self.start)
            steps = max(SHORTEST, int(BLOCK * before)) if before else FIRST
            stop = min(self.T, self.start + min(steps, self.stack.size - before))
            for rows in self.samples.values():
                rows.clear()
            for step in range(self.start, stop):
                self.stack.step(self._position(step))
                if step >= self.reported:
                    after(step)
                    self.reported = step + 1
                if step >= stop - NEAR and (stop - 1 - step) % (NEAR // SAMPLES) == 0:
                    for x, rows in self.samples.items():
                        rows.append(self.stack.values[x].past.copy())
            neglected = self._neglected_rows()
            worst = float(np.sqrt((neglected**2).sum(axis=1)).max(initial=0.0))
            if not worst > NEGLECT:
                break
            if again == REPEATS:
                return False
            self._extend(_directions(neglected, NEGLECT / 4))
            if self._position(self.start) + SHORTEST > self.stack.size:
                return False
            self._load()
            self.repeated += 1
        self.neglected = max(self.neglected, worst)
        self._in_parallel(lambda key: self._unfold(key, stop), self.solution)
        new, end = self._position(self.start), self._position(stop)
        for values, folded in self.lists:
            values[self.start : stop] = folded[new:end]
        self.start = stop
        return True

    def _position(self, step: int) -> int:
        """Return the position of a time step on the axes of the compressed arrays.

        These axes have the coordinates of the distant past in the basis first, and then one position for each
        later time.
        """
        return len(self.basis) + step - self.first

    def _stored(self, key: TwoTimeArray) -> TwoTimeArray:
        """Return the key under which a two-time array is stored.

        A correlation may be stored only as that with its two fields exchanged, which is its transpose; a
        response has one form.
        """
        if key in self.solution or isinstance(key, ResponseArray):
            return key
        return key.exchanged

    def _operand(self, x: MultiplyRow) -> OrientedArray:
        """Return the key of the stored right factor of the product ``x``, and whether it is transposed."""
        key = self._stored(x.right)
        return key, key.first != key.second and x.transposed != (key != x.right)

    def _in_parallel(
        self, function: Callable[[WorkItem], WorkResult], items: Iterable[WorkItem]
    ) -> list[WorkResult]:
        """Return the results of ``function`` for all ``items``, in parallel threads if there are several."""
        every = list(items)
        if self.pool is None:
            return [function(x) for x in every]
        parts = [every[k :: self.threads] for k in range(self.threads)]

        def work(part: list[WorkItem]) -> list[WorkResult]:
            with np.errstate(all="ignore"):
                return [function(x) for x in part]

        results = list(self.pool.map(work, parts))
        return [results[k % self.threads][k // self.threads] for k in range(len(every))]

    # -- from the stack to the solution ----------------------------------------------------------------

    def _unfold(self, key: TwoTimeArray, stop: int) -> None:
        """Write the steps of the present block, before ``stop``, of the array ``key`` to the solution.

        The values at distant times are computed from their coordinates in the basis.
        """
        first, start, r, Q = self.first, self.start, len(self.basis), self.basis
        low, end = self._position(start), self._position(stop)
        X, a = self.solution[key], self.stack.arrays[key]
        X[start:stop, first:stop] = a[low:end, r:end]
        np.matmul(a[low:end, :r], Q, out=X[start:stop, :first])
        if isinstance(key, CorrelationArray) and key.exchanged in self.marched:
            X[first:start, start:stop] = a[r:low, low:end]
            same = key == key.exchanged
            X[:first, start:stop] = X[start:stop, :first].T if same else Q.T @ a[:r, low:end]
        seen = X[start : stop : NEAR // SAMPLES, :stop]
        self.size[key] = max(self.size[key], float(seen.max(initial=0.0)), -float(seen.min(initial=0.0)))

    def _neglected_rows(self) -> Array:
        """Return the part of the products of kernels and arrays that the compression of the past neglects.

        The row of a kernel at one of the last steps is multiplied by an array over the distant past. The
        result holds the products minus their projections on the basis, one in each row, divided by the
        typical norm of a row of the array that the product fills (:meth:`_scaled`).
        """
        r = len(self.basis)
        if not r:
            return np.empty((0, 0))
        products = [
            np.concatenate([a[:, :r] for a in self.samples[x.left]]) @ self.images[self._operand(x)] / scale
            for x, scale in self._scaled(self.first)
        ]
        return _outside(self.basis, np.concatenate(products)) if products else np.empty((0, 0))

    # -- from the solution to the stack ----------------------------------------------------------------

    def _fold(self, stop: int) -> bool:
        """Compress all times before ``stop - NEAR`` into coordinates of a new basis, before step ``stop``.

        The basis is extended, at most REPEATS times, until products with random kernels, as large as those of
        the last steps, lie in its span up to a tolerance. Returns False if the basis is too large for the
        arrays.
        """
        old, first = len(self.basis), stop - NEAR
        # The first D positions are folded: the coordinates of distant times in the old basis, and then one
        # position for each time between these times and `first`.
        D = self._position(first)
        kernels = {x: np.concatenate([a[:, :D] for a in rows]) for x, rows in self.samples.items()}
        U = self._span(kernels, first, stop)
        if len(U) > self.stack.size - NEAR - SHORTEST:
            return False
        self.images = dict(
            self._in_parallel(lambda x: (x, self._image_of_new_basis(x, U, first)), self.operands)
        )
        self.basis = np.concatenate([U[:, :old] @ self.basis, U[:, old:]], axis=1)
        self.first = first
        self.folds += 1
        kernels = {x: a @ U.T for x, a in kernels.items()}
        for _ in range(REPEATS):
            neglected = np.zeros((REST, first))
            for x, scale in self._scaled(first):
                neglected += (
                    self._random_kernels(kernels[x.left], scale) @ self.images[self._operand(x)][: len(U)]
                )
            more = _directions(_outside(self.basis, neglected), GUESSED)
            if not len(more):
                break
            self._extend(more)
            if len(self.basis) > self.stack.size - NEAR - SHORTEST:
                return False
        self._load()
        return True

    def _span(self, kernels: Mapping[LeftRow, Array], first: int, stop: int) -> Array:
        """Return an orthonormal basis for the times before ``first``, to compress them before step ``stop``.

        It spans the last rows of all arrays, and their products with random kernels that are as large as the
        last ones. ``kernels`` are sampled rows of kernels. The basis vectors are rows in the D present
        coordinates of these times, shape ``(dimensions, D)``.
        """
        D, end = self._position(first), self._position(stop)
        count = min(SKETCH, len(self.basis) + REST) if len(self.basis) else SKETCH
        drawn, sketch = 1, self._random(count, 1) * (self.stack.unit[:D] / np.sqrt(first))
        for rows, size in self._last(D, end):
            sketch += (self._random(count, len(rows)) / (size * np.sqrt(first))) @ rows
            drawn += len(rows)
        if not np.isfinite(sketch).all():
            # The dynamics have diverged. A basis of ROOM vectors does not fit into the folded arrays, so that
            # `_fold` rejects it and the march goes on without folding.
            return np.eye(ROOM)
        U = np.zeros((self.kept, D))
        np.fill_diagonal(U, 1.0)
        U = _joined(U, _directions(_outside(U, sketch), ROUNDING))
        # A row of the sketch is a sum, with random factors, of `drawn` rows that the basis must span. Its
        # part outside of the basis, divided by sqrt(drawn), estimates the part of one of these rows that
        # folding neglects.
        outside = np.sqrt((_outside(U, sketch) ** 2).sum(axis=1) / drawn)
        self.neglected = max(self.neglected, float(outside.max()))
        for _ in range(REPEATS):
            neglected = np.zeros((REST, D))
            for x, scale in self._scaled(first):
                a = self.stack.arrays[x.right][:D, :D]
                neglected += (
                    self._random_kernels(kernels[x.left] @ U.T, scale) @ U @ (a.T if x.transposed else a)
                )
            # The bound is half of GUESSED, the bound of a later test, because each direction that only the
            # later test adds costs a product over all times.
            more = _directions(_outside(U, neglected), GUESSED / 2)
            if not len(more):
                break
            U = _joined(U, more)
        return U

    def _last(self, D: int, end: int) -> Iterator[tuple[Array, float]]:
        """Yield the rows that the basis of the distant past must span, with the size of their array.

        Each item is a pair: rows over the first ``D`` positions of the compressed arrays, and the largest
        absolute entry of the array that they are from. Of a two-time array the rows are those at the
        positions ``D`` to ``end``, its last time steps, and at time 0 if that is read separately. A function
        of one time is a row too.
        """
        for key, a in self.stack.arrays.items():
            if size := self.size[self._stored(key)]:
                yield a[D:end, :D], size
                yield a[: self.kept, :D], size
        for a in self.functions:
            if size := float(np.abs(a[:D]).max()):
                yield a[:D].reshape(D, -1).T, size

    def _random(self, rows: int, columns: int) -> Array:
        """Return an array of standard normal numbers, shape ``(rows, columns)``.

        They are consecutive numbers of one stored sequence, which begin at another place in each call.
        """
        self.drawn = (self.drawn + 1009) % (len(self.random) - rows * columns)
        out: Array = self.random[self.drawn : self.drawn + rows * columns].reshape(rows, columns)
        return out

    def _random_kernels(self, kernel: Array, scale: float) -> Array:
        """Return REST random rows like those of a kernel, divided by ``scale``.

        Each coordinate is normal; before the division its standard deviation is GROWTH times the largest
        absolute value of this coordinate in the rows of ``kernel``.
        """
        size: Array = np.abs(kernel).max(axis=0) * (GROWTH / scale)
        return self._random(REST, kernel.shape[1]) * size

    def _scaled(self, first: int) -> Iterator[tuple[MultiplyRow, float]]:
        """Yield the products of a step whose result is not zero, each with the typical size of its result.

        The size is the norm of one row over the times before ``first``: the largest entry times
        ``sqrt(first)``.
        """
        for x in self.stack.products:
            if size := self.size[self._stored(x.target)]:
                yield x, size * float(np.sqrt(first))

    def _image_of_new_basis(self, x: OrientedArray, U: Array, first: int) -> Array:
        """Return the product of a new basis of the distant past with array ``x``, shape (dimensions, first).

        It is computed from the product of the old basis with ``x``. ``U`` are the new basis vectors in the
        present coordinates, and ``first`` is the number of times that the new basis represents.
        """
        key, transposed = x
        old, before = len(self.basis), self.first
        X, a = self.solution[key], self.stack.arrays[key]
        if transposed:
            X, a = X.T, a.T
        out = np.empty((len(U), first))
        if before:
            out[:, :before] = U[:, :old] @ self.images[x]
            out[:, :before] += U[:, old:] @ X[before:first, :before]
        D = self._position(first)
        np.matmul(U, a[:D, old:D], out=out[:, before:])
        return out

    def _extend(self, directions: Array) -> None:
        """Extend the basis of the distant past by the rows ``directions``.

        Their products with the arrays in ``images`` are computed too.
        """
        old, self.basis = len(self.basis), _joined(self.basis, directions)
        directions = self.basis[old:]
        for x, a in self._in_parallel(lambda x: (x, self._image(directions, x)), self.operands):
            self.images[x] = np.concatenate([self.images[x], a])
        self.added += len(directions)

    def _image(self, rows: Array, x: OrientedArray) -> Array:
        """Return the product of ``rows``, over the compressed times before ``first``, with the array ``x``.

        Blocks of responses that are zero by causality are left out.
        """
        key, transposed = x
        n = self.first
        X, out = self.solution[key][:n, :n], np.empty((len(rows), n))
        if isinstance(key, CorrelationArray):
            np.matmul(rows, X.T if transposed else X, out=out)
            return out
        # The response at t to a source at s is zero for t < s, so that a block of times s needs only times t
        # from its first time on. For a transposed array, a block of times t needs only times s up to its last
        # time.
        for low, high in pairwise((0, n // 4, n // 2, 3 * n // 4, n)):
            if transposed:
                np.matmul(rows[:, :high], X[low:high, :high].T, out=out[:, low:high])
            else:
                np.matmul(rows[:, low:], X[low:, low:high], out=out[:, low:high])
        return out

    def _load(self) -> None:
        """Fill the compressed arrays from the solution at all times.

        The values at distant times are replaced by their coordinates in the basis; those at later times are
        copied. This is done for functions of one time and of two.
        """
        r = len(self.basis)
        self.stack.unit[:r] = self.basis.sum(axis=1)
        self.stack.unit[r:] = 1.0
        for values, folded in self.lists:
            folded[:r] = np.tensordot(self.basis, values[: self.first], axes=1)
            folded[r : r + self.start - self.first] = values[self.first : self.start]
        self._in_parallel(self._load_one, self.solution)

    def _load_one(self, key: TwoTimeArray) -> None:
        """Compute the folded form of one two-time array m from the solution, ``[Q, 1] m [Q, 1]^T``.

        Q is the basis of the distant past, and 1 stands for the recent times, which are not folded.
        """
        Q, r, first, stop = self.basis, len(self.basis), self.first, self.start
        near = slice(r, r + stop - first)
        X, a = self.solution[key], self.stack.arrays[key]
        a[:] = 0.0
        if (key, False) in self.images:
            a[:r, :r] = self.images[key, False] @ Q.T
        elif (key, True) in self.images:
            a[:r, :r] = Q @ self.images[key, True].T
        else:  # no product has the array on its right: only values at time 0 or recent ones are read
            a[: self.kept, :r] = X[: self.kept, :first] @ Q.T
            a[:r, : self.kept] = Q @ X[:first, : self.kept]
        a[near, :r] = X[first:stop, :first] @ Q.T
        exchanged = isinstance(key, CorrelationArray) and key.exchanged in self.marched
        if isinstance(key, CorrelationArray) and exchanged:
            a[:r, near] = a[near, :r].T if key == key.exchanged else Q @ X[:first, first:stop]
        a[near, near] = X[first:stop, first:stop]
        if isinstance(key, CorrelationArray) and exchanged and key != key.exchanged:
            self.stack.arrays[key.exchanged][:] = a.T
