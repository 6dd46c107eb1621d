"""Kernel rows at one time, read from the arrays that a march fills, and iteration of implicit steps.

:class:`Rows` compiles the products of a :class:`~numerics.lowering.table.KernelRow` once into views and
factors; calling the result only multiplies.

:func:`iterate_step` iterates a step whose quantities depend on each other, accelerated by Anderson's method:
modes that are learnt fast make plain iteration diverge for any step, but they are few directions, and mixing
the last sweeps removes them. The linear march uses both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from math import comb, prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol, lambdify, sympify

from derive.calculus.symbols import s, t
from numerics.errors import NotConverged
from numerics.lowering.operations import UnitSum, order_parameter
from numerics.lowering.table import DELTA, Factor, FieldAtLayer, KernelRow, Monomial, Reach, Table

Array = NDArray[np.float64]
KernelView = Callable[[int, int, int], Array]
RowAtStep = Callable[[int], Array]


class _Read(NamedTuple):
    """Values of a factor of a kernel at t = step and low <= s < high, as functions of (step, low, high).

    ``view`` returns an array whose axes are named by ``labels``; ``flat`` returns the same as a matrix
    ``(rows, times * columns)``, and is None if there is no such form. The values of the factor are these
    times ``number``.
    """

    view: KernelView
    labels: list[Symbol]
    flat: KernelView | None = None
    number: float = 1.0


@dataclass(frozen=True)
class Rows:
    """Arrays of the fields and order parameters of a linear theory, which a march fills step by step.

    ``constants`` are the numbers of symbols, ``data`` the given arrays by name; T is ``steps``.
    ``correlations`` and ``responses`` are ``(T n_i, T n_j)``, times before members, by pairs of keys (name,
    layer), with n_i members of field i. ``scalars`` and ``hoisted`` (products that depend on s and not on t)
    are ``(T, ...)`` with an axis for each index, order parameters ``sums`` over units ``(T n_i, T n_j)``.
    ``extents`` is the number of values of each index; ``tables`` are functions of both times, ``(T, T)``, and
    ``numbers`` values of coefficients, both cached.
    """

    table: Table
    steps: int
    constants: Mapping[Symbol, float]
    data: Mapping[str, Array]
    correlations: dict[tuple[FieldAtLayer, FieldAtLayer], Array] = field(default_factory=dict)
    responses: dict[tuple[FieldAtLayer, FieldAtLayer], Array] = field(default_factory=dict)
    scalars: dict[str, Array] = field(default_factory=dict)
    hoisted: dict[FieldAtLayer, Array] = field(default_factory=dict)
    sums: dict[FieldAtLayer, Array] = field(default_factory=dict)
    numbers: dict[Expr, float] = field(default_factory=dict)
    tables: dict[Expr, Array] = field(default_factory=dict)

    @cached_property
    def extents(self) -> dict[Symbol, int]:
        """Number of values of each index; raises ValueError if a size has no number."""
        return {x: whole(x, top, self.constants) for x, top in self.table.extents.items()}

    @cached_property
    def unit(self) -> Array:
        """Array of ones over the times s, which gives an axis of times to kernels that do not depend on s."""
        return np.ones(self.steps)

    @cached_property
    def sizes(self) -> dict[FieldAtLayer, int]:
        """Number of members of each field, the product of the sizes of its indices."""
        return {r.field: prod(self.shape(r.indices)) for r in self.table.fields}

    @cached_property
    def widths(self) -> dict[FieldAtLayer, int]:
        """Number of members of each source, the product of the sizes of its indices."""
        return {u: prod(self.shape(indices)) for u, indices in self.table.source_indices.items()}

    def number(self, e: Expr) -> float:
        """Return a coefficient as a number; raise ValueError if a symbol in it has no value."""
        if e not in self.numbers:
            value = with_numbers(e, self.constants)
            if not value.is_number:
                missing = ", ".join(sorted(map(str, value.free_symbols)))
                raise ValueError(f"the coefficient {e} needs a number for {missing}")
            self.numbers[e] = float(value)
        return self.numbers[e]

    def shape(self, indices: tuple[Symbol, ...]) -> tuple[int, ...]:
        """Return the number of values of each of these indices."""
        return tuple(self.extents[x] for x in indices)

    def pair(self, i: FieldAtLayer, j: FieldAtLayer) -> Array:
        """Return the correlation of two fields at all times, shape ``(T n_i, T n_j)``.

        n_i and n_j are the numbers of members of the fields. If only the correlation of j with i is stored,
        its transpose is returned.
        """
        return self.correlations[i, j] if (i, j) in self.correlations else self.correlations[j, i].T

    def sum_members(self, tensor: FieldAtLayer) -> tuple[int, int]:
        """Return the shape (n_i, n_j) of an order parameter that sums over units, at one pair of times.

        ``tensor`` is its key (name, layer). n_i and n_j are the numbers of members of its two fields, or of
        its field and source: the products of the sizes of their indices.
        """
        q = self.table.tensors[tensor]
        return self.sizes[q.first], (self.widths if q.kind == "response" else self.sizes)[q.second]

    def sum_at(self, tensor: FieldAtLayer, step: int) -> Array:
        """Return an order parameter that sums over units at t = ``step``, s = 0..step, as a view.

        ``tensor`` is its key (name, layer). The shape is ``(n_i, (step + 1) n_j)``, with n_i and n_j as in
        :meth:`sum_members`: the numbers of members of its two fields, or of its field and its source.
        """
        n, m = self.sum_members(tensor)
        return self.sums[tensor][step * n : (step + 1) * n, : (step + 1) * m]

    def compile(self, kernel: KernelRow, reach: Reach | None = None) -> RowAtStep:
        """Return a function that evaluates row t of a kernel k(t, s) at a given step t.

        The row has shape ``(rows, times * cols)``. Its times s are those of ``reach`` ("past", "through",
        "now" or "start"), by default those at which the kernel multiplies a field. The row may be a view of
        stored arrays.
        """
        reach = kernel.reach if reach is None else reach
        past = self._total(kernel, kernel.at("past"))
        if reach == "past":
            return lambda step: past(step, 0, step)
        now = self._total(kernel, kernel.at("now"), present=True)
        if reach == "now":
            return lambda step: now(step, step, step + 1)
        if reach == "start":
            return lambda step: past(step, 0, 1) if step else now(0, 0, 1)
        return lambda step: np.concatenate([past(step, 0, step), now(step, step, step + 1)], axis=1)

    def _total(self, kernel: KernelRow, monomials: Iterable[Monomial], present: bool = False) -> KernelView:
        """Compile the sum of products in a kernel k(t, s) as a function of (step, low, high).

        The function returns the values at t = step and low <= s < high, shape ``(rows, times * cols)``.
        ``monomials`` are the products. If ``present`` is true the times s may include t.
        """
        n, p = prod(self.shape(kernel.rows)), prod(self.shape(kernel.cols))
        terms = [x for m in monomials if (x := self._term(kernel, m, present))]
        if not terms:
            return lambda step, low, high: np.zeros((n, (high - low) * p))
        first, more = terms[0], terms[1:]

        def total(step: int, low: int, high: int) -> Array:
            value = first(step, low, high)
            for term in more:
                value = value + term(step, low, high)
            return value

        return total if more else first

    def _term(self, kernel: KernelRow, m: Monomial, present: bool) -> KernelView | None:
        """Compile a product ``m`` in a kernel k(t, s) as a function of (step, low, high); None if it is zero.

        The function returns the values at t = step and low <= s < high. If ``present`` is true s may include
        t.
        """
        reads = [self._read(f, present) for f in m.factors]
        factors = [x for x in reads if x is not None]
        if len(factors) < len(reads):
            return None
        if not any(s in x.labels for x in factors):
            unit = self.unit
            factors.append(_Read(lambda step, low, high: unit[low:high], [s]))
        value, number = self._product(factors, kernel), prod(x.number for x in factors)
        if m.coefficient in self.numbers or not m.coefficient.has(t, s):
            number *= self.number(m.coefficient)
            return value if number == 1.0 else lambda step, low, high: number * value(step, low, high)
        table, n, p = self._times(m), prod(self.shape(kernel.rows)), prod(self.shape(kernel.cols))

        def weighted(step: int, low: int, high: int) -> Array:
            full = value(step, low, high).reshape(n, high - low, p) * table[step, low:high, None]
            return number * full.reshape(n, -1)

        return weighted

    def _times(self, m: Monomial) -> Array:
        """Return the coefficient of a product, a function of both times, as a table of shape ``(T, T)``."""
        expr = with_numbers(m.coefficient, self.constants)
        if expr.free_symbols - {t, s}:
            self.number(expr.subs({t: 1, s: 0}))  # raises ValueError, which names the symbol without a number
        if expr not in self.tables:
            times = np.arange(self.steps, dtype=float)
            with np.errstate(all="ignore"):  # values at s > t may be infinite, but no row reads them
                values = lambdify((t, s), expr, np)(times[:, None], times)
            self.tables[expr] = np.array(
                np.broadcast_to(np.asarray(values, dtype=float), (self.steps, self.steps))
            )
        return self.tables[expr]

    def _product(self, factors: list[_Read], kernel: KernelRow) -> KernelView:
        """Compile the product of factors of a kernel k(t, s) as a function of (step, low, high).

        The function returns the values at t = step and low <= s < high, shape ``(rows, times * cols)``.
        Indices that are not axes of the kernel are summed over.
        """
        axes, n = [*kernel.rows, s, *kernel.cols], prod(self.shape(kernel.rows))
        first, *others = sorted(factors, key=lambda x: len(x.labels))
        number, flat = first.view, others[0].flat if len(others) == 1 else None
        if first.labels == axes and first.flat is not None and not others:
            return first.flat
        if flat is not None and others[0].labels == [*first.labels, *axes] and len(first.labels) == 1:
            return lambda step, low, high: (number(step, low, high) @ flat(step, low, high)).reshape(n, -1)
        have = {x for f in factors for x in f.labels}
        views = [f.view for f in factors]
        product = multiplied([f.labels for f in factors], [x for x in axes if x in have])
        if have >= {*axes}:
            return lambda step, low, high: product(*[view(step, low, high) for view in views]).reshape(n, -1)
        spread = tuple(slice(None) if x in have else None for x in axes)
        counts = [0 if x == s else self.extents[x] for x in axes]

        def value(step: int, low: int, high: int) -> Array:
            product_values = product(*[view(step, low, high) for view in views])[spread]
            return np.broadcast_to(product_values, [x or high - low for x in counts]).reshape(n, -1)

        return value

    def _read(self, f: Factor, present: bool) -> _Read | None:
        """Return the functions that read a factor ``f`` of a kernel, as a :class:`_Read`; None if it is zero.

        They return its values at t = step and low <= s < high. If ``present`` is true the times s may include
        t.
        """
        name, _ = f.tensor
        samples = [x for x in f.indices if x not in (t, s)]
        if f.tensor in self.hoisted:
            table = self.hoisted[f.tensor]
            return _Read(lambda step, low, high: table[low:high], [s, *samples])
        if name in self.scalars:
            values = self.scalars[name]
            if t in f.indices:
                return _Read(lambda step, low, high: values[step], samples)
            return _Read(lambda step, low, high: values[low:high], [s, *samples])
        if f.tensor in self.table.tensors:
            return self._tensor(f, samples, present)
        if f.tensor == DELTA:
            identity = np.eye(self.extents[f.indices[0]])
            return _Read(lambda step, low, high: identity, samples)
        return self._constant(f, samples)

    def _constant(self, f: Factor, samples: list[Symbol]) -> _Read:
        """Return the functions that read given data, or a table over times, ``f``, as a :class:`_Read`.

        Data that do not depend on time have the axes ``samples``, which are the indices of the factor.
        """
        constant = self.data[f.tensor[0]]
        if f.indices == (t, s):
            return _Read(lambda step, low, high: constant[step, low:high], [s])
        if f.indices == (t,):
            return _Read(lambda step, low, high: constant[step], [])
        if f.indices == (s,):
            return _Read(lambda step, low, high: constant[low:high], [s])
        return _Read(lambda step, low, high: constant, samples)

    def _tensor(self, f: Factor, samples: list[Symbol], present: bool) -> _Read | None:
        """Return the functions that read row t of an order parameter ``f``; None if it is zero.

        The result is a :class:`_Read`. ``samples`` are the indices of the factor without its times. The axes
        of the values are the indices of its first field, s, and those of its second one; without s if the
        factor is at equal times (t, t). If ``present`` is true the times s may include t.
        """
        q, now = order_parameter(self.table, f.tensor), f.indices[-2:] == (t, t)
        i, j = self.table.tensors[f.tensor].first, self.table.tensors[f.tensor].second
        response = self.table.tensors[f.tensor].kind == "response"
        count = len(self.table.row(i).indices)
        shapes = self.shape(tuple(samples[:count])), self.shape(tuple(samples[count:]))
        n, m = self.sizes[i], (self.widths if response else self.sizes)[j]
        array: Array | None
        if isinstance(q.array, UnitSum):
            array = self.sums[f.tensor]
        else:
            array = self.responses.get((i, j)) if response else self.pair(i, j)
        gain = (self.number(q.direct) if now or present else 0.0) * np.eye(n, m)
        direct = gain.any()
        if array is None and not direct:
            return None  # the response is zero, because the field does not depend on the source

        held, alone = (gain, True) if array is None else (array, False)

        def flat(step: int, low: int, high: int) -> Array:
            return held[step * n : (step + 1) * n, low * m : high * m]

        def instant(step: int, low: int, high: int) -> Array:
            return gain if alone else gain + flat(step, step, step + 1)

        read = instant if now or direct else flat

        def view(step: int, low: int, high: int) -> Array:
            return read(step, low, high).reshape((*shapes[0], *(() if now else (high - low,)), *shapes[1]))

        labels = [*samples[:count], *([] if now else [s]), *samples[count:]]
        return _Read(view, labels, None if now else read, self.number(q.factor))


def with_numbers(e: Expr, constants: Mapping[Symbol, float]) -> Expr:
    """Return an expression with the numbers of ``constants`` in place of its symbols."""
    return e.xreplace({x: sympify(constants[x]) for x in e.free_symbols if x in constants})


def multiplied(labels: list[list[Symbol]], kept: list[Symbol]) -> Callable[..., Array]:
    """Return a function that multiplies arrays, and sums over all axes that are not in ``kept``.

    ``labels`` are the names of the axes of each array, and ``kept`` those of the result, in order.

    >>> from sympy.abc import a, b
    >>> multiplied([[b], [a, b]], [a])(np.array([1.0, 2.0]), np.eye(2)).tolist()
    [1.0, 2.0]
    """
    if len(labels) == 1 and sorted(labels[0], key=str) == sorted(kept, key=str):
        order = [labels[0].index(x) for x in kept]
        return lambda a: a.transpose(order)
    if len(labels) == 2 and min(map(len, labels)) == 1:
        first = len(labels[0]) == 1
        v, a = labels if first else labels[::-1]
        if a == [*kept, *v]:
            return (lambda v, a: a @ v) if first else (lambda a, v: a @ v)
        if a == [*v, *kept] and len(a) == 2:
            return (lambda v, a: v @ a) if first else (lambda a, v: v @ a)
    letters: dict[Symbol, str] = {}
    for x in (x for each in labels for x in each):
        letters.setdefault(x, chr(ord("a") + len(letters)))
    inputs, result = ["".join(letters[x] for x in each) for each in labels], [letters[x] for x in kept]
    return partial(np.einsum, f"{','.join(inputs)}->{''.join(result)}", optimize=len(labels) > 2)


def whole(index: Symbol, top: Expr, constants: Mapping[Symbol, float]) -> int:
    """Return the number of values of an index that runs from 1 to its upper end ``top``.

    Raises ValueError if ``top`` has no number with the values of ``constants``.
    """
    value = with_numbers(top, constants)
    if not value.is_number:
        raise ValueError(
            f"the upper end {top} of the index {index} has no number: give a number for each symbol in {top}"
        )
    return int(value)


SWEEPS, KEPT = 120, 10
"""Largest number of sweeps of an implicit step, and number of last sweeps that Anderson's method mixes."""

FAST = 0.1
"""Ratio of successive changes below which sweeps are not mixed."""

LAST, SMOOTH = 5, 12
"""Number of last steps from which the next is extrapolated, and first step at which this is done."""

STALLED, ROUNDING = 12, 1e-7
"""Changes below ROUNDING count as rounding errors after STALLED sweeps without progress."""

RESOLVED = 1e-12
"""Correlations at equal times that are below this share of the largest one so far count as zero."""


class StepIteration:
    """Iteration of successive implicit steps of a march until each converges to a tolerance.

    ``peaks`` are the largest sizes of each block of values so far, ``residual`` is the largest number that
    :func:`iterate_step` has returned for a step so far.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance, self.residual = tolerance, 0.0
        self.peaks: list[float] = []

    def step(self, blocks: list[Array], sweep: Callable[[], None]) -> None:
        """Iterate one step until it converges; ``sweep`` computes its ``blocks`` of values once more.

        The blocks are views from :func:`values_at`.
        """
        self.peaks = self.peaks or [0.0] * len(blocks)
        floors = [p * RESOLVED ** (0.5 if x.ndim else 1.0) for p, x in zip(self.peaks, blocks, strict=True)]
        self.residual = max(self.residual, iterate_step(blocks, sweep, self.tolerance, floors))
        self.peaks = [max(p, _size(x)) for p, x in zip(self.peaks, blocks, strict=True)]


def values_at(step: int, rows: Rows) -> list[Array]:
    """Return views of the values that a step computes, and that this step or the next one may read.

    For order parameters that sum over units, each entry at equal times is also a separate block, an array
    without axes, because it may be much smaller than the rest of its row.
    """
    views: list[Array] = []
    n, m = rows.sizes, rows.widths
    for (i, j), a in rows.correlations.items():
        views.append(a[step * n[i] : (step + 1) * n[i], : (step + 1) * n[j]])
        if i != j:
            views.append(a[: (step + 1) * n[i], step * n[j] : (step + 1) * n[j]].T)
    for (i, k), a in rows.responses.items():
        views.append(a[step * n[i] : (step + 1) * n[i], : (step + 1) * m[k]])
    for tensor in rows.sums:
        row, now = rows.sum_at(tensor, step), step * rows.sum_members(tensor)[1]
        views.append(row[0] if len(row) == 1 else row)
        views += [x[k : k + 1].reshape(()) for x in row for k in range(now, len(x))]
    return views + [a[step : step + 1] for a in (*rows.scalars.values(), *rows.hoisted.values())]


def extrapolate(now: Array, before: list[Array]) -> None:
    """Extrapolate a block of values to the present step, by the polynomial through those of the last steps.

    ``now`` is written; ``before`` holds the same block at earlier steps, the latest first. ``x(t, s)`` is
    smooth in t at fixed ``t - s``, also if it has a kink at s = t, and is extrapolated so. At the first times
    s it is extrapolated in t at fixed s.

    >>> rows = [np.arange(0.0, t + 1) + t * t for t in range(8)]
    >>> guess = np.empty(8)
    >>> extrapolate(guess, rows[6:3:-1])
    >>> np.allclose(guess, rows[7])
    True
    """
    size = now.shape[-1] - before[0].shape[-1]
    parts = [-((-1.0) ** k) * comb(len(before), k) for k in range(1, len(before) + 1)]
    if not size:  # a block without an axis of times s, such as a scalar
        now[...] = sum(c * x for c, x in zip(parts, before, strict=True))
        return
    # Extrapolate along t at fixed s for the first times s, and at fixed t - s for later ones: in the
    # integrals, time s = 0 has another weight than later times.
    first = min((len(parts) + 1) * size, before[-1].shape[-1])
    now[..., :first] = sum(c * x[..., :first] for c, x in zip(parts, before, strict=True))
    now[..., first:] = sum(
        c * x[..., first - k * size :] for k, (c, x) in enumerate(zip(parts, before, strict=True), 1)
    )


def iterate_step(
    blocks: list[Array], sweep: Callable[[], None], tolerance: float, floors: list[float] | None = None
) -> float:
    """Repeat ``sweep``, which rewrites ``blocks`` (views), to convergence; return the last relative change.

    The iteration ends if a sweep changes no block by more than the share ``tolerance`` of its size, if the
    next sweep is expected to do so, if changes are rounding errors, or if a value is not finite. A sweep that
    reduces the change to less than FAST times the one before is not mixed with earlier ones; the first sweep
    counts as such a sweep. If two such
    sweeps follow each other, with changes ``c_1`` and ``c_2``, the next change is expected to be ``c_2**2 /
    c_1``; this number is returned, without the sweep, if it is at most ``tolerance``. Other sweeps are mixed
    (Anderson): of the last points ``x_k`` with changes ``r_k`` the next point is ``x - dX p``, where p
    minimises ``|r - dR p|``.

    The size of a block is the largest absolute value of its entries, or its number in ``floors`` if that is
    larger, or 1 if both are zero. Raises :class:`~numerics.errors.NotConverged` after SWEEPS sweeps, or if
    numbers overflow in the mixing.

    >>> x = np.array([0.0])
    >>> def sweep() -> None:
    ...     x[:] = 3 - 2 * x
    >>> iterate_step([x], sweep, 1e-12) <= 1e-12
    True
    >>> x.round(12).tolist()
    [1.0]
    """
    floors = floors or [0.0] * len(blocks)
    sizes: list[float] = []
    points: list[Array] = []
    changes: list[Array] = []
    best, since, last, mixing = np.inf, 0, np.inf, True
    for _ in range(SWEEPS):
        before = [x.copy() for x in blocks]
        sweep()
        gaps = [x - y for x, y in zip(blocks, before, strict=True)]
        now = [max(_size(x), y) or 1.0 for x, y in zip(blocks, floors, strict=True)]
        change = float(np.max([_size(x) / y for x, y in zip(gaps, now, strict=True)]))
        if not np.isfinite(change):
            return change  # not finite; the march will report that the dynamics has diverged
        best, since = (change, 0) if change < best / 2 else (best, since + 1)
        if change <= tolerance or (best < ROUNDING and since > STALLED):
            return change
        sizes = sizes or now
        # If plain iteration converges fast, no mixing with earlier iterates (Anderson) is needed.
        if change < FAST * last:
            if not mixing and change**2 <= tolerance * last:
                return change**2 / last
            points, changes, last, mixing = [], [], change, False
            continue
        last, mixing = change, True
        points = [*points, _joined(blocks, sizes)][-KEPT:]
        changes = [*changes, _joined(gaps, sizes)][-KEPT:]
        mixed = points[-1]
        if len(points) > 1:
            steps = np.diff(np.stack(changes), axis=0).T
            try:
                parts = np.linalg.lstsq(steps, changes[-1], rcond=1e-14)[0]
            except np.linalg.LinAlgError:
                raise NotConverged(
                    "numbers overflow in the iteration of an implicit time step, because the step is too "
                    "long or because the flow diverges: use a shorter training.time"
                ) from None
            mixed = mixed - np.diff(np.stack(points), axis=0).T @ parts
        at = 0
        for x, size in zip(blocks, sizes, strict=True):
            x[...] = size * mixed[at : at + x.size].reshape(x.shape)
            at += x.size
    raise NotConverged(
        f"the iteration of an implicit time step did not converge in {SWEEPS} sweeps to the relative change "
        f"{tolerance:.1e}: use a larger solver.rtol or a shorter training.time"
    )


def _size(x: Array) -> float:
    """Return the largest absolute value of the entries; zero for an empty array."""
    return float(np.abs(x).max(initial=0.0))


def _joined(blocks: list[Array], sizes: list[float]) -> Array:
    """Return all blocks as one vector; the entries of each block are divided by its size."""
    return np.concatenate([(x / size).ravel() for x, size in zip(blocks, sizes, strict=True)])
