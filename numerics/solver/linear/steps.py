"""The steps of a linear march: every operation of a plan made into a function of the step beforehand.

With x_i(t) = g_i u_i(t) + sum_l sum_s K_il(t, s) x_l(s), rows follow from earlier rows:

    response     R_ik(t, s) = g_i [i driven by k] delta_ts + sum_l K_il(t, .) R_lk(., s)
    correlation  C_ij(t, s) = g_i sum_k <u_i(t) u_k(.)> R_jk(s, .)^T + sum_l K_il(t, .) C_lj(., s)

the first term of the second line being Stein's lemma.  Arrays are time-major, ``(T n, T m)`` for fields with
n and m members, so that everything known before t is a leading block.  Those with the same first field and as
many columns stand stacked, so that a kernel's row multiplies them in one product.

Times are positions.  A position need not be a time: :mod:`~numerics.solver.linear.folded` lets some stand for
coordinates of all that is long past, ``unit`` being those of a row of ones.  Position 0 is time 0 where that
is read (``first``).  That is possible where kernels are linear in what has the time s and all rows are those
of single fields (:func:`foldable`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import pairwise
from math import inf
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol, lambdify

from derive.calculus.symbols import s, t
from numerics.lowering.expressions import arranged
from numerics.lowering.table import Factor, FieldAtLayer, KernelRow, Reach, ScalarRow
from numerics.solver.linear.plan import Plan
from numerics.solver.linear.rows import Rows, multiplied

Array = NDArray[np.float64]
TwoTimeKey = tuple[Literal["C", "R"], FieldAtLayer, FieldAtLayer]
"""A correlation of two fields, or the response of a field to a source."""
Left = tuple[Literal["K", "U"], FieldAtLayer, Any]
"""What stands left in a product: the kernel of a field's coupling, or the covariance of two sources."""
Step = Callable[[int], None]

LONG = 256
"""Rows from which on products leave out the blocks of responses that are zero."""


@dataclass(frozen=True)
class RowProduct:
    """``left(t, .) right(., s)`` as a part of the row of ``result``."""

    left: Left
    right: TwoTimeKey
    transposed: bool
    result: TwoTimeKey


class _AdjacentProducts(NamedTuple):
    """Arrays of a field that stand next to each other, and what is filled in with their products.

    ``rights`` are ``(number of them, T p, T m)``, ``targets`` ``(number of them, T n, T m)``; the first
    coupling ``begins`` rows.  ``triangular``: all are responses.
    """

    rights: Array
    targets: Array
    begins: bool
    triangular: bool
    p: int
    m: int


class _Source(NamedTuple):
    """What a field gets from one of its sources: that is correlated with another, ``size`` wide, which the
    other field feels by way of others (``response``) and at once (``direct``).

    ``past`` and ``now`` fill in the covariance, where this is the first to read it; the present is read where
    the other field feels the source ``at_once``.
    """

    left: Left
    past: Step | None
    now: Step | None
    at_once: bool
    local: bool
    gain: float
    response: Array | None
    direct: float
    size: int


def _blocks(at: int) -> Iterator[tuple[int, int]]:
    """Times in blocks; responses are zero before the first time of a block."""
    return pairwise((0, at // 4, at // 2, 3 * at // 4, at))


class OnUnits(Protocol):
    """Fields that live on units, as :class:`~numerics.solver.linear.march.Units` steps them."""

    def step(self, step: int, fields: tuple[FieldAtLayer, ...]) -> None:
        """Some of them, which need each other, at one time."""

    def total(self, step: int, tensor: FieldAtLayer) -> Array:
        """A sum over units at this time and s = 0..step."""


class StepArrays:
    """All quantities at ``size`` positions, in the order of ``plan``.

    Fills the arrays of ``rows``, which it makes; operations are there after :meth:`make`.  ``left`` and
    ``here`` are the rows of kernels and covariances of the present step, before the present and at it (no
    entry for kernels that are zero there).
    ``functions`` gives what scalars contain of given functions; ``times``: all positions are times.  Where
    they are not, there are few, and correlations are held both ways round.
    """

    def __init__(
        self,
        plan: Plan,
        rows: Rows,
        size: int,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        times: bool = True,
    ) -> None:
        self.long, self.twice = LONG if times else inf, not times
        self.plan, self.rows, self.table, self.size = plan, rows, plan.table, size
        self.n, self.m = rows.sizes, rows.widths
        fields = [r for r in self.table.fields if not r.unit]
        self.gains = {r.field: {k: rows.number(g) for k, g in r.drives} for r in fields}
        self.first = any(c.kernel.reach == "start" for r in self.table.fields for c in r.couplings)
        self.unit = rows.unit
        self.at = 0
        self.left: dict[Left, Array] = {}
        self.here: dict[Left, Array] = {}
        self.now: dict[tuple[FieldAtLayer, FieldAtLayer], Array] = {}
        self.read: set[tuple[Left, Reach]] = set()
        self.arrays: dict[TwoTimeKey, Array] = {}
        self.stacks: list[Array] = []
        self.place: dict[TwoTimeKey, tuple[int, int]] = {}
        self.products: list[RowProduct] = []
        self._allocate()
        self.kernels: dict[tuple[FieldAtLayer, int], Array] = {}
        self.given = tuple((functions or {}).items())
        self.steps: list[Step] = []

    def make(self, units: OnUnits | None = None) -> StepArrays:
        """Make all operations, those on ``units`` too; returns itself."""
        self.units = units
        self.functions = {x.name: self._function(x) for x in self.table.scalars}
        make: dict[str, Callable[[FieldAtLayer, FieldAtLayer], Step]] = {
            "kernel": self._kernel,
            "now": self._now,
            "scalar": self._scalar,
            "hoist": self._hoist,
            "units": self._on_units,
            "sum": self._sum,
        }
        kinds: dict[str, Literal["C", "R"]] = {"response": "R", "past": "C"}
        for batch in self.plan.batches:
            kind, one, other = batch[0]
            if kind in kinds:
                self.steps.append(self._rows(one, [(kinds[x], i, j) for x, i, j in batch]))
            else:
                self.steps.append(make[kind](one, other))
        return self

    def step(self, at: int) -> None:
        """All quantities at position ``at``, from those before."""
        self.at = at
        for one in self.steps:
            one(at)

    # -- arrays ----------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        """Arrays of a field stand next to each other, those of the same second field at the same place."""
        rows, table, size = self.rows, self.table, self.size
        held: list[TwoTimeKey] = [("R", i, k) for i, k in self.plan.responses]
        for i, j in self.plan.rows:
            if self.twice or ("C", j, i) not in held:
                held.append(("C", i, j))
        groups: dict[tuple[str, FieldAtLayer, int], list[TwoTimeKey]] = {}
        for key in sorted(held, key=lambda x: str((x[0], x[2]))):
            kind = key[0] if size * self._width(key) > self.long else ""  # few rows: one product
            groups.setdefault((kind, key[1], self._width(key)), []).append(key)
        for (_, field, width), keys in groups.items():
            stack = np.zeros((len(keys), size * self.n[field], size * width))
            for place, key in enumerate(keys):
                self.arrays[key], self.place[key] = stack[place], (len(self.stacks), place)
            self.stacks.append(stack)
        for kind, i, j in held:
            a = self.arrays[kind, i, j]
            (rows.responses if kind == "R" else rows.correlations)[i, j] = a
            if kind == "C" and i != j and ("C", j, i) not in held:
                self.arrays[kind, j, i] = a.T
        rows.scalars.update({x.name: np.zeros((size, *rows.shape(x.indices))) for x in table.scalars})
        rows.hoisted.update({h.tensor: np.zeros((size, *rows.shape(h.rows))) for h in table.hoisted})
        rows.sums.update({n: np.zeros((size, size)) for n in self.plan.sums})

    def mirror(self, i: FieldAtLayer, j: FieldAtLayer) -> Array | None:
        """Where the transpose of a correlation is held, unless that is a view of it."""
        return self.arrays["C", j, i] if i == j or (self.twice and (j, i) in self.plan.rows) else None

    def equal(self, a: FieldAtLayer, b: FieldAtLayer) -> Callable[[int], Array]:
        """``C_ab(t, t)`` as a function of the position, once it is known there."""
        n, m, now, array = self.n[a], self.n[b], self.now, self.arrays.get(("C", a, b))
        if array is not None:
            return lambda at: array[at * n : (at + 1) * n, at * m : (at + 1) * m]
        if (a, b) in self.plan.diagonals:
            return lambda at: now[a, b]
        return lambda at: now[b, a].T

    # -- what stands left ------------------------------------------------------------------------------

    def _row(self, key: Left, kernel: KernelRow, reach: Reach) -> Step:
        """Fill in ``left[key]`` and ``here[key]``, as far as the kernel reaches."""
        left, here = self.left, self.here
        before = self.rows.compile(kernel, "past") if reach in ("past", "through") else None
        present = (
            None if reach == "past" else self.rows.compile(kernel, "start" if reach == "start" else "now")
        )

        def step(at: int) -> None:
            if before is not None:
                left[key] = before(at)
            if present is not None:
                here[key] = present(at)

        return step

    def _kernel(self, i: FieldAtLayer, place: FieldAtLayer) -> Step:
        """The row of a coupling."""
        n, kernels = place[1] or 0, self.kernels
        row, c = self.plan.rows_of[i], self.plan.rows_of[i].couplings[n]
        if row.unit:
            evaluate = self.rows.compile(c.kernel)

            def on_units(at: int) -> None:
                kernels[i, n] = evaluate(at)

            return on_units
        key: Left = ("K", i, n)
        fill, here = self._row(key, c.kernel, c.kernel.reach), self.here
        if c.kernel.reach == "past":
            return fill

        def step(at: int) -> None:
            fill(at)
            if not np.count_nonzero(here[key]):
                del here[key]  # as most responses at equal times

        return step

    def _covariance(self, own: FieldAtLayer, k: FieldAtLayer, reach: Reach) -> Step | None:
        """The row of a covariance, filled in by the first operation that reads it."""
        key: Left = ("U", own, k)
        if (key, reach) in self.read:
            return None
        self.read.add((key, reach))
        return self._row(key, self.table.covariances[own, k], reach)

    def _sources(self, i: FieldAtLayer, j: FieldAtLayer, now: bool) -> Iterator[_Source]:
        """The sources of ``i`` with those that they are correlated with and that ``j`` feels."""
        for own, k in self.plan.terms(i, j):
            local = self.table.covariances[own, k].local
            if local and not now:
                continue  # there is none between different times
            yield _Source(
                ("U", own, k),
                None if local else self._covariance(own, k, "past"),
                self._covariance(own, k, "now") if now and self.plan.at_once(j, k) else None,
                self.plan.at_once(j, k),
                local,
                self.gains[i][own],
                self.arrays.get(("R", j, k)),
                self.gains[j].get(k, 0.0),
                self.m[k],
            )

    # -- rows ------------------------------------------------------------------------------------------

    def _runs(
        self,
        i: FieldAtLayer,
        targets: list[TwoTimeKey],
        field: FieldAtLayer,
        begun: set[TwoTimeKey],
        apart: bool,
    ) -> list[_AdjacentProducts]:
        """The arrays of ``field`` that a kernel of ``i`` multiplies, beside those of ``i`` that it fills in.

        ``apart``: responses and correlations are.
        """
        groups: list[tuple[list[TwoTimeKey], tuple[object, ...]]] = []
        for key in sorted(targets, key=lambda x: self.place.get(x, (0, 0))):
            if (right := (key[0], field, key[2])) not in self.arrays:
                continue
            one, other = self.place.get(right), self.place.get(key)
            mark: tuple[object, ...] = ()
            if one is not None and other is not None:
                mark = (one[0], other[0], other[1] - one[1], key not in begun, apart and key[0])
                if groups and groups[-1][1] == mark:
                    kind, _, last = groups[-1][0][-1]
                    if self.place[kind, field, last][1] == one[1] - 1:
                        groups[-1][0].append(key)
                        continue
            groups.append(([key], mark))
        runs = []
        for keys, mark in groups:
            (kind, _, second), count = keys[0], len(keys)
            rights, ours = self.arrays[kind, field, second][None], self.arrays[keys[0]][None]
            if mark:
                rights, ours = self._together((kind, field, second), count), self._together(keys[0], count)
            begins = keys[0] not in begun
            runs.append(
                _AdjacentProducts(rights, ours, begins, kind == "R", self.n[field], self._width(keys[0]))
            )
        return runs

    def _together(self, first: TwoTimeKey, count: int) -> Array:
        stack, place = self.place[first]
        return self.stacks[stack][place : place + count]

    def _rows(self, i: FieldAtLayer, targets: list[TwoTimeKey]) -> Step:
        """Rows of arrays of ``i``: responses for s <= t, correlations for s < t."""
        n, left, here, long, width = self.n[i], self.left, self.here, self.long, self._width
        past: list[tuple[Left, list[_AdjacentProducts]]] = []
        present: list[tuple[Left, Reach, list[_AdjacentProducts], Callable[..., Array]]] = []
        gains: list[tuple[Left, Reach, float, Array, int]] = []
        begun: set[TwoTimeKey] = set()
        for at, c in enumerate(self.plan.rows_of[i].couplings):
            key: Left = ("K", i, at)
            reach, summed = c.kernel.reach, c.kernel.reach in ("past", "through")
            if summed:
                past.append((key, self._runs(i, targets, c.field, begun, self.size * self.n[c.field] > long)))
            if reach != "past":
                times = np.multiply if n == self.n[c.field] == 1 else np.matmul
                present.append((key, reach, self._runs(i, targets, c.field, begun, True), times))
            for x in targets:
                if (right := (x[0], c.field, x[2])) in self.arrays and summed:
                    self.products.append(RowProduct(key, right, False, x))
                    begun.add(x)
                if x[0] == "R" and (gain := self.gains[c.field].get(x[2])):
                    gains.append((key, reach, gain, self.arrays[x], self.m[x[2]]))
        empty = [(self.arrays[x], width(x)) for x in targets if x not in begun]
        now = [(self.arrays[x], width(x)) for x in targets if x[0] == "R" and present]
        sources = [self._source_terms(i, x[2]) for x in targets if x[0] == "C"]

        def step(at: int) -> None:
            low, high = at * n, (at + 1) * n
            for array, m in empty:
                array[low:high, : at * m] = 0.0
            for array, m in now:
                array[low:high, at * m : (at + 1) * m] = 0.0
            for key, runs in past:
                K = left[key]
                for rights, ours, begins, triangular, p, m in runs:
                    for first, last in _blocks(at) if triangular and at * p >= long else ((0, at),):
                        block = rights[:, first * p : at * p, first * m : last * m]
                        row = ours[:, low:high, first * m : last * m]
                        if begins:
                            np.matmul(K[:, first * p :], block, out=row)
                        else:
                            row += K[:, first * p :] @ block
            for key, reach, gain, array, m in gains:
                if reach in ("past", "through"):
                    row = array[low:high, : at * m]
                    row += left[key] if gain == 1.0 else gain * left[key]
                if reach != "past" and (c := here.get(key)) is not None:
                    first = 0 if reach == "start" else at
                    array[low:high, first * m : (first + 1) * m] += gain * c
            for key, reach, runs, times in present:
                if (c := here.get(key)) is not None:
                    first = 0 if reach == "start" else at
                    for rights, ours, _, response, p, m in runs:
                        end = (first + 1) * m if response else at * m
                        ours[:, low:high, :end] += times(c, rights[:, first * p : (first + 1) * p, :end])
            for add in sources:
                add(at)

        return step

    def _width(self, key: TwoTimeKey) -> int:
        return self.m[key[2]] if key[0] == "R" else self.n[key[2]]

    def _source_terms(self, i: FieldAtLayer, j: FieldAtLayer) -> Step:
        """What ``C_ij(t, s)``, s < t, has from the sources of ``i``, and its transpose."""
        target, left, long = self.arrays["C", i, j], self.left, self.long
        n, m, mirror = self.n[i], self.n[j], self.mirror(i, j)
        sources = list(self._sources(i, j, now=False))
        for x in sources:
            if x.response is not None:
                self.products.append(RowProduct(x.left, ("R", j, x.left[2]), True, ("C", i, j)))

        def step(at: int) -> None:
            end = at * m
            row = target[at * n : (at + 1) * n, :end]
            for key, covariance, _, _, _, gain, response, direct, q in sources:
                if covariance is not None:
                    covariance(at)
                u = left[key] if gain == 1.0 else gain * left[key]
                if response is not None and end < long:
                    row += u @ response[:end, : at * q].T  # `dot` would copy
                elif response is not None:
                    for low, high in _blocks(at):
                        block = response[low * m : end, low * q : high * q]
                        row[:, low * m :] += u[:, low * q : high * q] @ block.T
                if direct:
                    row += u if direct == 1.0 else direct * u
            if mirror is not None:
                mirror[:end, at * n : (at + 1) * n] = row.T

        return step

    def _now(self, i: FieldAtLayer, j: FieldAtLayer) -> Step:
        """``C_ij(t, t)``."""
        left, here, now = self.left, self.here, self.now
        n, m = self.n[i], self.n[j]
        terms = []
        for at, c in enumerate(self.plan.rows_of[i].couplings):
            array, reach, p = self.arrays.get(("C", j, c.field)), c.kernel.reach, self.n[c.field]
            equal = self.equal(c.field, j) if reach != "past" else None
            key: Left = ("K", i, at)
            terms.append((key, array, equal, reach, p))
        sources = list(self._sources(i, j, now=True))
        pair, mirror = self.arrays.get(("C", i, j)), self.mirror(i, j)

        every = 0 if n == 1 else slice(None)

        def single(at: int) -> None:
            total: Any = 0.0
            for key, array, equal, reach, _ in terms:
                if reach in ("past", "through") and array is not None:
                    total += left[key][every].dot(array[at, :at])
                if equal is not None and (c := here.get(key)) is not None:
                    start = array if reach == "start" and at else None
                    total += c[every, 0] * (equal(at) if start is None else start[at : at + 1, :1]).item()
            for key, past, present, at_once, local, gain, response, direct, _ in sources:
                if past is not None:
                    past(at)
                if present is not None:
                    present(at)
                answer: Any = 0.0
                if at_once:
                    u = here[key][every, 0]
                    answer = direct * u
                    if response is not None:
                        answer += u * response.item(at, at)
                if response is not None and not local:
                    answer += left[key][every].dot(response[at, :at])
                total += gain * answer
            if pair is None:
                now[i, j] = np.reshape(total, (n, 1))
            elif n == 1:
                pair[at, at] = total
                if mirror is not None:
                    mirror[at, at] = total
            else:
                pair[at * n : (at + 1) * n, at] = total

        if {m, *(x[4] for x in terms), *(x.size for x in sources)} == {1}:
            return single

        def step(at: int) -> None:
            value = np.zeros((n, m))
            for key, array, equal, reach, p in terms:
                if reach in ("past", "through") and array is not None:
                    value += left[key] @ array[at * m : (at + 1) * m, : at * p].T
                if equal is not None and (c := here.get(key)) is not None:
                    if reach == "start" and at and array is not None:
                        value += c.dot(array[at * m : (at + 1) * m, :p].T)
                    else:
                        value += c.dot(equal(at))
            for key, past, present, at_once, local, gain, response, direct, q in sources:
                if past is not None:
                    past(at)
                if present is not None:
                    present(at)
                answer = direct * here[key] if direct else None
                if response is not None:
                    row = response[at * m : (at + 1) * m, : (at + 1) * q]
                    if at_once:
                        seen = here[key].dot(row[:, at * q :].T)
                        answer = seen if answer is None else answer + seen
                    if not local:
                        seen = left[key].dot(row[:, : at * q].T)
                        answer = seen if answer is None else answer + seen
                if answer is not None:
                    value += answer if gain == 1.0 else gain * answer
            if pair is None:
                now[i, j] = value
            else:
                pair[at * n : (at + 1) * n, at * m : (at + 1) * m] = value

        return step

    # -- scalars, products that are there once a step, and sums over units -------------------------------

    def _function(self, x: ScalarRow) -> Callable[..., Any]:
        """A scalar as a function of the time and of its arguments, compiled once for all constants."""
        given = {t, *x.arguments}
        free = tuple(sorted(x.expression.free_symbols - given, key=str))
        function = _compiled((*free, t, *x.arguments), x.expression, self.given)
        return partial(function, *(self._counted(y, x.indices) for y in free))

    def _counted(self, x: Symbol, indices: tuple[Symbol, ...]) -> Any:
        """A number, or 1, 2, ... along its own axis for one of the ``indices`` themselves."""
        if x not in indices:
            return self.rows.number(x)
        shape = [-1 if y == x else 1 for y in indices]
        return np.arange(1.0, self.rows.extents[x] + 1).reshape(shape)

    def _scalar(self, i: FieldAtLayer, _: FieldAtLayer) -> Step:
        row = next(x for x in self.table.scalars if x.name == i[0])
        function, values = self.functions[row.name], self.rows.scalars[row.name]
        averages = [self._average(a, b, row.indices) for _, a, b in row.averages]
        inputs = [(self._present(f), _arrangement(f.indices, row.indices)) for _, f in row.inputs]

        def step(at: int) -> None:
            found = [average(at) for average in averages]
            values[at] = function(at, *found, *(arrange(value(at)) for value, arrange in inputs))

        return step

    def _average(self, a: Factor, b: Factor, indices: tuple[Symbol, ...]) -> Callable[[int], Array]:
        """``<x_a x_b>`` at equal times, with an axis for each of ``indices``."""
        shape = (*self.rows.shape(a.indices), *self.rows.shape(b.indices))
        equal, arrange = self.equal(a.tensor, b.tensor), _arrangement((*a.indices, *b.indices), indices)
        return lambda at: arrange(equal(at).reshape(shape))

    def _present(self, f: Factor) -> Callable[[int], Array]:
        """A tensor at the present time, or a constant one."""
        name = f.tensor[0]
        if name in self.rows.scalars:
            values = self.rows.scalars[name]
            return lambda at: values[at]
        constant = self.rows.data[name]
        return lambda at: constant

    def _hoist(self, i: FieldAtLayer, _: FieldAtLayer) -> Step:
        h = next(x for x in self.table.hoisted if x.tensor == i)
        values, present = self.rows.hoisted[i], [self._present(f) for f in h.factors]
        product = multiplied([[x for x in f.indices if x != s] for f in h.factors], list(h.rows))

        def step(at: int) -> None:
            values[at] = product(*[value(at) for value in present])

        return step

    def _on_units(self, i: FieldAtLayer, _: FieldAtLayer) -> Step:
        units, fields = self.units, self.plan.units_of(i)
        assert units is not None
        return lambda at: units.step(at, fields)

    def _sum(self, i: FieldAtLayer, _: FieldAtLayer) -> Step:
        units, total = self.units, self.rows.sums[i]
        assert units is not None
        correlation = self.table.tensors[i].kind == "correlation"

        def step(at: int) -> None:
            total[at, : at + 1] = row = units.total(at, i)
            total[: at + 1, at] = row if correlation else 0.0
            total[at, at] = row[at]

        return step


def _arrangement(labels: tuple[Symbol, ...], indices: tuple[Symbol, ...]) -> Callable[[Array], Array]:
    """:func:`~numerics.lowering.expressions.arranged`, which does nothing to what is arranged already."""
    return (lambda a: a) if labels == indices else lambda a: arranged(a, labels, indices)


def kernels_of(plan: Plan) -> Iterator[KernelRow]:
    """All covariances, and the kernels that are read."""
    yield from (c.kernel for i in plan.fields for c in plan.rows_of[i].couplings)
    yield from plan.table.covariances.values()


def foldable(plan: Plan, rows: Rows) -> bool:
    """Are kernels linear in what has a time s, and are all rows those of single fields?

    What they are functions of besides is there at the present time.
    """
    table, clocks = plan.table, {t, s}
    if plan.sums or any(r.unit for r in table.fields) or any(x.expression.has(t) for x in table.scalars):
        return False
    marched = {i for pair in plan.rows for i in pair} | {i for i, _ in plan.responses}
    if any(rows.sizes[i] > 1 for i in marched) or any(rows.widths[k] > 1 for _, k in plan.responses):
        return False
    monomials = [m for k in kernels_of(plan) for m in k.monomials]
    factors = [f for m in monomials for f in m.factors] + [f for h in table.hoisted for f in h.factors]
    found = {*table.tensors, *((x.name, None) for x in table.scalars), *(x.tensor for x in table.hoisted)}
    return (
        not any(m.coefficient.has(t, s) for m in monomials)
        and not any(clocks & set(f.indices) for f in factors if f.tensor not in found)
        and all(sum(s in f.indices for f in m.factors) <= 1 for m in monomials)
    )


@lru_cache(maxsize=256)
def _compiled(
    arguments: tuple[Symbol, ...], expression: Expr, known: tuple[tuple[str, Callable[..., Any]], ...]
) -> Callable[..., Any]:
    """An expression as a function of its arguments; ``known`` are functions that it contains, by name."""
    # the module itself: by its name SymPy would import all of NumPy's
    function: Callable[..., Any] = lambdify(arguments, expression, [dict(known), np])
    return function
