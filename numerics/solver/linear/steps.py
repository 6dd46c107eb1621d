"""Runner of a march in NumPy: every operation of a step is bound to its arrays before the first step.

:mod:`numerics.lowering.operations` defines the operations. Arrays are time-major, ``(T n, T m)`` for fields
with n and m members, so that all values before t are a leading block. Arrays with the same first field and
the same number of columns are stacked: successive products with the same row on the left become one product,
and so do the terms of one correlation at equal time.

Times are positions in the arrays. A position need not be a time: in :mod:`~numerics.solver.linear.folded`
some positions are coordinates of the distant past. :class:`StepArrays` has the attributes ``unit``, the
coordinates of a row of ones, and ``first``, which is true if a product reads time 0; position 0 is then that
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import groupby, pairwise
from math import inf
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol, lambdify

from derive.calculus.symbols import s, t
from numerics.lowering.expressions import arranged
from numerics.lowering.operations import (
    AddRow,
    ClearRow,
    CorrelationArray,
    EvaluateRow,
    EvaluateScalar,
    MarchStep,
    MirrorRow,
    MultiplyFactors,
    MultiplyRow,
    Operation,
    ResponseArray,
    StepUnits,
    SumUnits,
    TwoTimeArray,
)
from numerics.lowering.table import Factor, FieldAtLayer, Hoisted, Reach, ScalarRow
from numerics.solver.linear.rows import Rows, multiplied

Array = NDArray[np.float64]
RowOperation = ClearRow | MultiplyRow | AddRow
Step = Callable[[int], None]

LONG = 256
"""Smallest number of rows for which products skip the blocks of responses that are zero."""


class StepValues:
    """Values of the row of a kernel or covariance at the present step.

    ``past`` has shape ``(n, t m)``, for the times s < t. ``present`` is the value at t, or at time 0 if that
    is read, shape ``(n, m)``; it is None if it is zero.
    """

    __slots__ = ("past", "present")

    def __init__(self) -> None:
        self.past: Array = np.empty((0, 0))
        self.present: Array | None = None


class _AdjacentProducts(NamedTuple):
    """Products of one row with several arrays, which are stored next to each other and computed at once.

    ``rights`` are the right factors ``(count, T p, T m)``, and ``targets`` the arrays ``(count, T n, T m)``
    whose rows at the present time are filled. A right factor has ``p`` rows and ``m`` columns at each pair of
    times. If ``begins`` is true the products overwrite the rows, otherwise they are added. ``triangular`` is
    true if all targets are responses, which vanish at s > t. ``times`` are the times s at which the rows are
    filled.
    """

    rights: Array
    targets: Array
    begins: bool
    triangular: bool
    times: Reach
    p: int
    m: int


@dataclass
class _EqualTimeTerms:
    """Terms of a correlation at equal time: products of a kernel row, a number, and a right factor.

    ``past`` are products with rows of two-time arrays over earlier times. ``present`` are products with such
    rows at one time: time 0 if the last item of the tuple is true, and the present otherwise. ``equal`` are
    products with correlations at equal time; ``alone`` are kernel rows without a right factor. ``widths`` are
    the numbers of columns of the right factors at one time.
    """

    past: list[tuple[StepValues, float, Array, int]] = field(default_factory=list)
    present: list[tuple[StepValues, float, Array, int, bool]] = field(default_factory=list)
    equal: list[tuple[StepValues, float, Callable[[int], Array]]] = field(default_factory=list)
    alone: list[tuple[StepValues, float]] = field(default_factory=list)
    widths: set[int] = field(default_factory=set)


def _blocks(at: int) -> Iterator[tuple[int, int]]:
    """Yield four ranges (start, stop) of the times before ``at``, in which responses are multiplied.

    Responses to sources in a range are zero before its start, so that products with them begin at the start.
    """
    return pairwise((0, at // 4, at // 2, 3 * at // 4, at))


class OnUnits(Protocol):
    """Interface of the solution of fields on units with attributes.

    Attributes are given constants of each unit, such as the eigenvalue of a mode.
    :class:`~numerics.solver.linear.march.Units` implements it.
    """

    def step(self, step: int, operation: StepUnits) -> None:
        """Compute a group of coupled fields at one time."""

    def total(self, step: int, operation: SumUnits) -> Array:
        """Return a sum over units at this time and s = 0..step, shape ``(n_i, times, n_j)``."""


class StepArrays:
    """Arrays of all quantities at ``size`` positions, filled by the operations of ``march_step``.

    It allocates and fills the arrays of ``rows``; :meth:`make` binds the operations. ``values`` are the rows
    of kernels and covariances of the present step. ``functions`` are the given functions of scalars, such as
    the slope of the loss at the output. ``times`` states that all positions are times; if not, there are few
    positions, and correlations are stored for both orders of their fields.
    """

    def __init__(
        self,
        march_step: MarchStep,
        rows: Rows,
        size: int,
        functions: Mapping[str, Callable[..., Any]] | None = None,
        times: bool = True,
    ) -> None:
        self.long, self.twice = LONG if times else inf, not times
        self.march_step, self.rows, self.size = march_step, rows, size
        self.operations = march_step.operations
        self.n, self.m = rows.sizes, rows.widths
        products = [x for x in self.operations if isinstance(x, MultiplyRow)]
        self.products = [x for x in products if x.of_past]
        self.first = any(x.over == "start" for x in products)
        self.unit = rows.unit
        self.at = 0
        evaluated = [x.target for x in self.operations if isinstance(x, EvaluateRow)]
        self.values = {x: StepValues() for x in evaluated}
        self.arrays: dict[TwoTimeArray, Array] = {}
        self.now: dict[CorrelationArray, StepValues] = {}
        self.stacks: list[Array] = []
        self.place: dict[TwoTimeArray, tuple[int, int]] = {}
        self._allocate()
        self.given = tuple((functions or {}).items())
        self.steps: list[Step] = []

    def make(self, units: OnUnits | None = None) -> StepArrays:
        """Prepare the functions that run the operations of a step on the arrays; return the object itself.

        ``units`` runs the operations on units with attributes (given constants of each unit); None if there
        are none.
        """
        self.units = units
        for _, group in groupby(self.operations, _together):
            self.steps += self._bound(list(group))
        return self

    def step(self, at: int) -> None:
        """Compute all quantities at position ``at`` from earlier ones."""
        self.at = at
        for one in self.steps:
            one(at)

    def _bound(self, group: list[Operation]) -> Iterator[Step]:
        """Yield functions of the position (of the time step) that run a group of successive operations.

        The group is one operation, or products with the same row on the left, or the terms of one correlation
        at equal time; one function runs the whole group. Nothing is yielded for a copy between two views of
        the same array.
        """
        first = group[0]
        if isinstance(first, RowOperation) and _is_at_equal_time(first):
            yield self._equal_time([x for x in group if isinstance(x, RowOperation)])
        elif isinstance(first, MultiplyRow) and not first.transposed:
            products = [x for x in group if isinstance(x, MultiplyRow)]
            yield (self._past_products if first.over == "past" else self._present_products)(products)
        elif not isinstance(first, MirrorRow) or self._is_copied(first.source):
            yield self._one(first)

    def _one(self, operation: Operation) -> Step:  # noqa: PLR0911 - one return for each kind of operation
        """Return the function that runs one operation of a step.

        Its argument is the position of the time step.
        """
        match operation:
            case EvaluateRow():
                return self._evaluate(operation)
            case ClearRow():
                return self._clear(operation)
            case MultiplyRow():
                return self._transposed_product(operation)
            case AddRow():
                return self._add(operation)
            case MirrorRow():
                return self._mirror(operation)
            case EvaluateScalar():
                return self._scalar(operation.row)
            case MultiplyFactors():
                return self._factors(operation.product)
            case StepUnits():
                return self._on_units(operation)
            case SumUnits():
                return self._sum(operation)

    # -- arrays ----------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        """Allocate all arrays of a march: two-time functions, scalars, stored products, sums over units."""
        rows, size = self.rows, self.size
        stored: dict[TwoTimeArray, None] = {}
        for x in self.march_step.arrays:
            if self.twice or isinstance(x, ResponseArray) or x.exchanged not in stored:
                stored[x] = None
        self._stack(stored)
        for x in stored:
            pairs = rows.responses if isinstance(x, ResponseArray) else rows.correlations
            pairs[x.first, x.second] = self.arrays[x]
            if isinstance(x, CorrelationArray) and x.exchanged not in self.arrays:
                self.arrays[x.exchanged] = self.arrays[x].T
        for y in self.operations:
            match y:
                case EvaluateScalar(row):
                    rows.scalars[row.name] = np.zeros((size, *rows.shape(row.indices)))
                case MultiplyFactors(product):
                    rows.hoisted[product.tensor] = np.zeros((size, *rows.shape(product.rows)))
                case SumUnits(target):
                    n, m = rows.sum_members(target.tensor)
                    rows.sums[target.tensor] = np.zeros((size * n, size * m))
        for written in {x.target for x in self.operations if isinstance(x, RowOperation)}:
            if isinstance(written, CorrelationArray) and written not in self.arrays:
                self.now[written] = StepValues()

    def _stack(self, keys: Iterable[TwoTimeArray]) -> None:
        """Allocate the two-time arrays ``keys`` in common blocks of memory, to join their products.

        Arrays with the same first field and the same number of columns are next to each other: correlations
        and then responses, each in the order of their second field or source. Long arrays of the two kinds
        are in separate blocks.
        """
        groups: dict[tuple[object, FieldAtLayer, int], list[TwoTimeArray]] = {}
        for key in sorted(keys, key=lambda x: (isinstance(x, ResponseArray), str(x.second))):
            # Arrays with more than `self.long` columns are stacked by kind, responses and correlations apart,
            # so that products can skip the zeros of responses at s > t.
            is_long = self.size * self._width(key) > self.long
            kind = type(key) if is_long else None
            groups.setdefault((kind, key.first, self._width(key)), []).append(key)
        for (_, i, width), group in groups.items():
            stack = np.zeros((len(group), self.size * self.n[i], self.size * width))
            for place, key in enumerate(group):
                self.arrays[key], self.place[key] = stack[place], (len(self.stacks), place)
            self.stacks.append(stack)

    def _width(self, x: TwoTimeArray) -> int:
        """Return the number of columns of a two-time array at each time s.

        It is the number of members of its second field or source: values of its indices.
        """
        return (self.m if isinstance(x, ResponseArray) else self.n)[x.second]

    def equal(self, a: FieldAtLayer, b: FieldAtLayer) -> Callable[[int], Array]:
        """Return ``C_ab(t, t)`` of fields ``a`` and ``b`` as a function of the position.

        The function is valid after the correlation is computed at that position.
        """
        key, n, m = CorrelationArray(a, b), self.n[a], self.n[b]
        if (array := self.arrays.get(key)) is not None:
            return lambda at: array[at * n : (at + 1) * n, at * m : (at + 1) * m]
        if key in self.now:
            return partial(_known, self.now[key])
        exchanged = self.now[key.exchanged]
        return lambda at: _known(exchanged, at).T

    # -- rows of kernels and covariances ---------------------------------------------------------------

    def _evaluate(self, operation: EvaluateRow) -> Step:
        """Return the function that evaluates the row of a kernel or covariance at a position.

        A present value of zero, as of most responses, is stored as None.
        """
        row, evaluate = self.values[operation.target], self.rows.compile(operation.kernel, operation.times)

        def before(at: int) -> None:
            row.past = evaluate(at)

        def present(at: int) -> None:
            value = evaluate(at)
            row.present = value if np.count_nonzero(value) else None

        return before if operation.times == "past" else present

    # -- rows of arrays --------------------------------------------------------------------------------

    def _runs(self, products: list[MultiplyRow], separate: bool) -> list[_AdjacentProducts]:
        """Return the products of one kernel row with several two-time arrays, joined where this is possible.

        Products whose right factors are adjacent in memory, and whose results are so too, become one product.
        If ``separate`` is true, products that give responses and those that give correlations are not joined.
        """
        groups: list[tuple[list[MultiplyRow], tuple[object, ...]]] = []
        for x in sorted(products, key=lambda product: self.place.get(product.target, (0, 0))):
            right, target = self.place.get(x.right), self.place.get(x.target)
            mark: tuple[object, ...] = ()
            if right is not None and target is not None:
                distance = target[1] - right[1]
                mark = (right[0], target[0], distance, x.begins, x.times, separate and type(x.target))
                last = groups[-1][0][-1] if groups and groups[-1][1] == mark else None
                if last is not None and self.place[last.right][1] == right[1] - 1:
                    groups[-1][0].append(x)
                    continue
            groups.append(([x], mark))
        runs = []
        for run, mark in groups:
            first, count = run[0], len(run)
            rights, targets = self.arrays[first.right][None], self.arrays[first.target][None]
            if mark:
                rights, targets = self._adjacent(first.right, count), self._adjacent(first.target, count)
            triangular = isinstance(first.target, ResponseArray)
            p, m = self.n[first.right.first], self._width(first.target)
            runs.append(_AdjacentProducts(rights, targets, first.begins, triangular, first.times, p, m))
        return runs

    def _adjacent(self, first: TwoTimeArray, count: int) -> Array:
        """Return a view of ``count`` two-time arrays that are stored next to each other, from ``first`` on.

        The view has the number of the array on its first axis.
        """
        stack, place = self.place[first]
        return self.stacks[stack][place : place + count]

    def _past_products(self, products: list[MultiplyRow]) -> Step:
        """Return the function of the position t that computes ``X(t, :t) += left(t, :t) @ right(:t, :t)``.

        X is the two-time array that a product fills. ``left`` is the row of a kernel, the same for all
        products, and ``right`` a two-time array. A product that is the first term of a row of X overwrites
        the row.
        """
        first, long = products[0], self.long
        row, n, p = self.values[first.left], self.n[first.target.first], self.n[first.right.first]
        runs = self._runs(products, self.size * p > long)

        def step(at: int) -> None:
            low, high, K = at * n, (at + 1) * n, row.past
            for rights, targets, begins, triangular, _, p, m in runs:
                for start, stop in _blocks(at) if triangular and at * p >= long else ((0, at),):
                    block = rights[:, start * p : at * p, start * m : stop * m]
                    target = targets[:, low:high, start * m : stop * m]
                    if begins:
                        np.matmul(K[:, start * p :], block, out=target)
                    else:
                        target += K[:, start * p :] @ block

        return step

    def _present_products(self, products: list[MultiplyRow]) -> Step:
        """Return the function of the position t that computes ``X(t, s) += left(t, t) @ right(t, s)``.

        X is the two-time array that a product fills. ``left`` is the value of a kernel at the present time t,
        and ``right`` a two-time array. For a kernel that is read at time 0 only, ``left(t, 0) @ right(0, s)``
        is added instead.
        """
        first = products[0]
        row, n, start = self.values[first.left], self.n[first.target.first], first.over == "start"
        times = np.multiply if n == self.n[first.right.first] == 1 else np.matmul
        runs = self._runs(products, True)

        def step(at: int) -> None:
            if (c := row.present) is not None:
                now = 0 if start else at
                for rights, targets, _, _, columns, p, m in runs:
                    end = m if columns == "start" else (at + 1) * m if columns == "through" else at * m
                    right = rights[:, now * p : (now + 1) * p, :end]
                    targets[:, at * n : (at + 1) * n, :end] += times(c, right)

        return step

    def _transposed_product(self, operation: MultiplyRow) -> Step:
        """Return the function of the position t that adds a product with a response to a correlation.

        ``C(t, :t) += gain * left(t, :t) @ R(:t, :t)^T``. ``left`` is the row of a covariance of sources, and
        R a response.
        """
        target, response = self.arrays[operation.target], self.arrays[operation.right]
        row, gain, long = self.values[operation.left], self.rows.number(operation.gain), self.long
        n, m, q = self.n[operation.target.first], self._width(operation.target), self._width(operation.right)

        def step(at: int) -> None:
            end = at * m
            into = target[at * n : (at + 1) * n, :end]
            u = row.past if gain == 1.0 else gain * row.past
            if end < long:
                into += u @ response[:end, : at * q].T  # not numpy.dot, which copies the transpose
                return
            for low, high in _blocks(at):
                into[:, low * m :] += u[:, low * q : high * q] @ response[low * m : end, low * q : high * q].T

        return step

    def _add(self, operation: AddRow) -> Step:
        """Return the function of the position t that computes ``X(t, s) += gain * left(t, s)``.

        X is the two-time array that ``operation`` fills, ``left`` the row of a kernel or covariance, and
        ``gain`` a number. The times s are those of the operation: the past, the present or time 0.
        """
        target, row = self.arrays[operation.target], self.values[operation.left]
        n, m = self.n[operation.target.first], self._width(operation.target)
        gain, start = self.rows.number(operation.gain), operation.times == "start"

        def before(at: int) -> None:
            into = target[at * n : (at + 1) * n, : at * m]
            into += row.past if gain == 1.0 else gain * row.past

        def present(at: int) -> None:
            if row.present is not None:
                now = 0 if start else at
                target[at * n : (at + 1) * n, now * m : (now + 1) * m] += gain * row.present

        return before if operation.times == "past" else present

    def _clear(self, operation: ClearRow) -> Step:
        """Return the function of the position t that sets ``X(t, s) = 0`` in a two-time array X.

        ``operation`` states the array, and the times s: the past, s < t, or the present, s = t.
        """
        n, m = self.n[operation.target.first], self._width(operation.target)
        target, past = self.arrays[operation.target], operation.times == "past"

        def step(at: int) -> None:
            columns = slice(0, at * m) if past else slice(at * m, (at + 1) * m)
            target[at * n : (at + 1) * n, columns] = 0.0

        return step

    def _is_copied(self, x: CorrelationArray) -> bool:
        """Return whether the correlation with fields exchanged is stored separately, not as a view of ``x``.

        It is also true for the correlation of a field with itself, whose column is a copy of its row.
        """
        return x == x.exchanged or (x in self.place and x.exchanged in self.place)

    def _mirror(self, operation: MirrorRow) -> Step:
        """Return the function of the position t that copies ``C_ij(t, s)`` to ``C_ji(s, t)``."""
        source, target = self.arrays[operation.source], self.arrays[operation.source.exchanged]
        n, m = self.n[operation.source.first], self.n[operation.source.second]
        past = operation.times == "past"

        def step(at: int) -> None:
            columns = slice(0, at * m) if past else slice(at * m, (at + 1) * m)
            target[columns, at * n : (at + 1) * n] = source[at * n : (at + 1) * n, columns].T

        return step

    # -- correlations at equal time --------------------------------------------------------------------

    def _terms(self, operations: list[RowOperation]) -> _EqualTimeTerms:
        """Return the terms of a correlation at equal time, with the arrays that they read.

        Each of ``operations`` except a ClearRow adds one term, a product of a kernel row with an array or the
        row itself.
        """
        terms = _EqualTimeTerms()
        for x in operations:
            if isinstance(x, ClearRow):
                continue
            row, number = self.values[x.left], self.rows.number(x.gain)
            if isinstance(x, AddRow):
                terms.alone.append((row, number))
                continue
            p = self._width(x.right) if x.transposed else self.n[x.right.first]
            terms.widths.add(p)
            if not x.transposed:
                terms.equal.append((row, number, self.equal(x.right.first, x.right.second)))
            elif x.over == "past":
                terms.past.append((row, number, self.arrays[x.right], p))
            else:
                terms.present.append((row, number, self.arrays[x.right], p, x.over == "start"))
        return terms

    def _equal_time(self, operations: list[RowOperation]) -> Step:
        """Return the function of the position t that computes a correlation at equal time, shape (n, m).

        It is the sum of the terms of the operations: ``gain * left(t, s) @ right(t, s)^T`` with rows of a
        two-time array, ``gain * left(t, t) @ C_kj(t, t)``, and ``gain * left(t, t)``.
        """
        target = operations[0].target
        assert isinstance(target, CorrelationArray)
        terms, n, m = self._terms(operations), self.n[target.first], self._width(target)
        pair, known = self.arrays.get(target), self.now.get(target)
        if {m, *terms.widths} == {1}:
            return _single_equal_time(terms, n, pair, known)

        def step(at: int) -> None:
            value = np.zeros((n, m))
            for row, number, array, p in terms.past:
                product = row.past @ array[at * m : (at + 1) * m, : at * p].T
                value += product if number == 1.0 else number * product
            for row, number, equal in terms.equal:
                if row.present is not None:
                    value += number * row.present.dot(equal(at))
            for row, number, array, p, start in terms.present:
                if row.present is not None:
                    now = 0 if start else at
                    seen = array[at * m : (at + 1) * m, now * p : (now + 1) * p]
                    value += number * row.present.dot(seen.T)
            for row, number in terms.alone:
                if row.present is not None:
                    value += row.present if number == 1.0 else number * row.present
            if pair is not None:
                pair[at * n : (at + 1) * n, at * m : (at + 1) * m] = value
            elif known is not None:
                known.present = value

        return step

    # -- scalars, products that are computed once a step, and sums over units ----------------------------

    def _function(self, x: ScalarRow) -> Callable[..., Any]:
        """Return the function that evaluates the equation of a scalar.

        Its arguments are the time, and then the values of ``x.arguments``, such as averages and given data.
        The function is compiled once for all values of the constants.
        """
        given = {t, *x.arguments}
        free = tuple(sorted(x.expression.free_symbols - given, key=str))
        function = _compiled((*free, t, *x.arguments), x.expression, self.given)
        return partial(function, *(self._counted(y, x.indices) for y in free))

    def _counted(self, x: Symbol, indices: tuple[Symbol, ...]) -> Any:
        """Return the number that replaces the symbol ``x`` in the expression of a scalar.

        For one of ``indices`` it is the array 1, 2, ... along the axis of that index; for another symbol it
        is its given value.
        """
        if x not in indices:
            return self.rows.number(x)
        shape = [-1 if y == x else 1 for y in indices]
        return np.arange(1.0, self.rows.extents[x] + 1).reshape(shape)

    def _scalar(self, row: ScalarRow) -> Step:
        """Return the function that evaluates a scalar at a position and stores its values."""
        function, values = self._function(row), self.rows.scalars[row.name]
        averages = [self._average(a, b, row.indices) for _, a, b in row.averages]
        inputs = [(self._present(f), _arrangement(f.indices, row.indices)) for _, f in row.inputs]

        def step(at: int) -> None:
            means = [average(at) for average in averages]
            values[at] = function(at, *means, *(arrange(value(at)) for value, arrange in inputs))

        return step

    def _average(self, a: Factor, b: Factor, indices: tuple[Symbol, ...]) -> Callable[[int], Array]:
        """Return ``<x_a(t) x_b(t)>`` of fields ``a`` and ``b`` as a function of the position of the time t.

        The function returns an array with the axes ``indices``.
        """
        shape = (*self.rows.shape(a.indices), *self.rows.shape(b.indices))
        equal, arrange = self.equal(a.tensor, b.tensor), _arrangement((*a.indices, *b.indices), indices)
        return lambda at: arrange(equal(at).reshape(shape))

    def _present(self, f: Factor) -> Callable[[int], Array]:
        """Return a function of the position of a time that returns the values of the factor ``f`` at it.

        The factor is a scalar, or given data that do not depend on time.
        """
        name = f.tensor[0]
        if name in self.rows.scalars:
            values = self.rows.scalars[name]
            return lambda at: values[at]
        constant = self.rows.data[name]
        return lambda at: constant

    def _factors(self, h: Hoisted) -> Step:
        """Return the function of the position that computes a product ``h`` of scalars and data at one time.

        The product does not depend on t in the kernels that contain it, so that its value at each time s is
        stored.
        """
        values, present = self.rows.hoisted[h.tensor], [self._present(f) for f in h.factors]
        product = multiplied([[x for x in f.indices if x != s] for f in h.factors], list(h.rows))

        def step(at: int) -> None:
            values[at] = product(*[value(at) for value in present])

        return step

    def _on_units(self, operation: StepUnits) -> Step:
        """Return the function of the position t that computes coupled fields at each unit.

        The units have attributes: given constants of each unit, such as the eigenvalue of a mode.
        """
        units = self.units
        assert units is not None
        return lambda at: units.step(at, operation)

    def _sum(self, operation: SumUnits) -> Step:
        """Return the function of the position t that computes an order parameter as a sum over units.

        It is computed at all s <= t. For a correlation the values with t and s exchanged are filled too, by
        symmetry.
        """
        units, total = self.units, self.rows.sums[operation.target.tensor]
        assert units is not None
        n, m = self.rows.sum_members(operation.target.tensor)
        correlation = isinstance(operation.array, CorrelationArray)

        def step(at: int) -> None:
            row = units.total(at, operation).reshape(n, -1)
            if correlation:
                total[: (at + 1) * m, at * n : (at + 1) * n] = row.T
            total[at * n : (at + 1) * n, : (at + 1) * m] = row

        return step


def _is_at_equal_time(x: RowOperation) -> bool:
    """Return whether an operation fills a correlation at equal time s = t."""
    return x.times == "now" and isinstance(x.target, CorrelationArray)


def _together(x: Operation) -> object:
    """Return a key by which successive operations are grouped: those with equal keys run as one.

    They are the terms of one correlation at equal time, or products with the same row on the left.
    """
    if isinstance(x, RowOperation) and _is_at_equal_time(x):
        return x.target
    if isinstance(x, MultiplyRow) and not x.transposed:
        return x.left, x.over
    return x


def _known(values: StepValues, at: int) -> Array:
    """Return the value of a correlation at equal time that is stored in ``values`` for the present step only.

    The position ``at`` is not used.
    """
    assert values.present is not None
    return values.present


def _single_equal_time(terms: _EqualTimeTerms, n: int, pair: Array | None, known: StepValues | None) -> Step:
    """Return the function of the position t that computes the correlation ``C_ij(t, t)``, shape (n, 1).

    It is the sum of ``terms``, products of a kernel row and a factor, where all factors have one column; n is
    the number of members of field i. The value is written to the two-time array ``pair``, or to ``known`` if
    there is no array.
    """
    members = 0 if n == 1 else slice(None)

    def step(at: int) -> None:
        total: Any = 0.0 if n == 1 else np.zeros(n)
        for row, number, array, _ in terms.past:
            total += number * row.past[members].dot(array[at, :at])
        for row, number, equal in terms.equal:
            if row.present is not None:
                total += number * row.present[members, 0] * equal(at).item()
        for row, number, array, _, start in terms.present:
            if row.present is not None:
                total += number * row.present[members, 0] * array.item(at, 0 if start else at)
        for row, number in terms.alone:
            if row.present is not None:
                total += number * row.present[members, 0]
        if pair is None:
            assert known is not None
            known.present = np.reshape(total, (n, 1))
        elif n == 1:
            pair[at, at] = total
        else:
            pair[at * n : (at + 1) * n, at] = total

    return step


def _arrangement(labels: tuple[Symbol, ...], indices: tuple[Symbol, ...]) -> Callable[[Array], Array]:
    """Return a function that takes an array with the axes ``labels`` and gives it the axes ``indices``.

    The axes are transposed; an index that is not in ``labels`` becomes an axis of length one.
    """
    return (lambda a: a) if labels == indices else lambda a: arranged(a, labels, indices)


@lru_cache(maxsize=256)
def _compiled(
    arguments: tuple[Symbol, ...], expression: Expr, known: tuple[tuple[str, Callable[..., Any]], ...]
) -> Callable[..., Any]:
    """Compile an expression as a function of its arguments; the compiled function is cached.

    ``known`` are pairs of the name of a given function in the expression, such as the slope of the loss, and
    its implementation.
    """
    # lambdify gets the module np and not the string "numpy", for which SymPy would import all names of NumPy
    function: Callable[..., Any] = lambdify(arguments, expression, [dict(known), np])
    return function
