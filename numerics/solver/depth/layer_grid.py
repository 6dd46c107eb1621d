"""Equations in layer time on a grid of layers, solved in one sweep forward in time.

At each time t the rows R(., ., t, s <= t) of responses and C(., t, s <= t) of correlations follow from
earlier rows and from each other; the dots are layer times. The part of a step that depends on itself is a
Volterra equation in layer time, solved by iteration. Integrals over layer time are trapezoidal sums over
cells. Responses that jump at tau = ``tau_`` have two values there, and each cell takes that of its own side,
so that the error is a series in the squared spacing. :mod:`numerics.solver.depth.solve` extrapolates it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Symbol, lambdify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from numerics.errors import Diverged, NotConverged
from numerics.lowering.layer_time import (
    LAYER_TIMES,
    LayerProduct,
    LayerRow,
    LayerTable,
    NotLowered,
    Read,
    Span,
    present_names,
    reads_across,
)
from numerics.progress import Progress

Array = NDArray[np.float64]
TensorOrLookup = Array | Callable[[], Array]
"""A tensor, or a callable that returns it."""

FEW_TERMS = 20_000
"""Largest number of terms of a product that is faster without NumPy's conversion to matrix products."""


@dataclass(frozen=True)
class Contraction:
    """Product of tensors summed over axes (einsum), in a fixed order of pairwise products.

    ``out`` names the axes of the result.

    >>> import sympy
    >>> i, j, k = sympy.symbols("i j k")
    >>> pair = Contraction.of([[i, j], [j, k]], [i, k], {i: 2, j: 3, k: 2})
    >>> pair([np.ones((2, 3)), np.ones((3, 2))])
    array([[3., 3.],
           [3., 3.]])
    """

    out: tuple[Expr, ...]
    axes: tuple[list[int], ...]
    target: list[int]
    path: list[Any]
    products: tuple[tuple[tuple[int, ...], tuple[list[int], ...], list[int]], ...] = ()
    """Order of the contraction as pairwise products.

    Each is given by the positions of its operands, from the last one on, their axes, and the axes left."""
    largest: float = 0.0
    """Number of terms of the largest of these products."""

    @classmethod
    def of(
        cls, operands: Sequence[Sequence[Expr]], out: Sequence[Expr], sizes: Mapping[Expr, int]
    ) -> Contraction:
        """Return the contraction of operands to the axes ``out``, in the cheapest order that is found.

        ``operands`` are the names of the axes of each tensor, and ``sizes`` the lengths of all axes.
        """
        labels: dict[Expr, int] = {}
        axes = tuple([labels.setdefault(x, len(labels)) for x in o] for o in operands)
        target, given = [labels[x] for x in out], list[Any]()
        for o, axis_labels in zip(operands, axes, strict=True):
            given += [np.broadcast_to(0.0, [sizes[x] for x in o]), axis_labels]
        path = np.einsum_path(*given, target, optimize="greedy")[0] if operands else []
        products: list[tuple[tuple[int, ...], tuple[list[int], ...], list[int]]] = []
        waiting, largest = list(axes), 0.0
        lengths = {label: sizes[x] for x, label in labels.items()}
        for step in path[1:]:
            places = tuple(sorted(step, reverse=True))
            taken = tuple(waiting.pop(k) for k in places)
            every = set(chain(*taken))
            left = sorted(every & {*target, *chain(*waiting)}) if waiting else target
            waiting.append(left)
            products.append((places, taken, left))
            largest = max(largest, prod(lengths[x] for x in every))
        return cls(tuple(out), axes, target, path, tuple(products), largest)

    def __call__(self, operands: Sequence[TensorOrLookup]) -> Array:
        """Return the contraction of these tensors, which have the axes for which the order was chosen.

        A function without arguments in place of a tensor is called first. The result is 1 without tensors.
        """
        tensors = [a() if callable(a) else a for a in operands]
        if not tensors:
            return np.ones(())
        if self.largest > FEW_TERMS:
            given: list[Any] = [x for pair in zip(tensors, self.axes, strict=True) for x in pair]
            return np.asarray(np.einsum(*given, self.target, optimize=self.path))
        for places, taken, left in self.products:
            given = [x for k, labels in zip(places, taken, strict=True) for x in (tensors.pop(k), labels)]
            tensors.append(np.einsum(*given, left))
        return np.asarray(tensors[0])


Known = Mapping[str, "Callable[..., Any] | Array"]

CONVERGED = 1e-12
"""Relative change of rows at which the iteration of a step has converged."""
SWEEPS = 200
"""Largest number of sweeps of a step."""
LARGEST = 1e12
"""Absolute value of an entry from which on a row counts as diverged."""


@dataclass
class LayerGrid:
    """Solution on ``layers`` cells of layer time, for ``steps`` times.

    ``values`` holds the tensors by name, with the axes: layer times (nodes), data indices, times t, s.
    Responses are zero at s > t. If a response jumps at tau = ``tau_``, its entries at tau = ``tau_`` in
    ``values`` are the limits from tau > ``tau_``. ``under`` holds the limits from tau < ``tau_``; its arrays
    have one axis of layer times.
    """

    layers: int
    steps: int
    values: dict[str, Array]
    under: dict[str, Array] = field(default_factory=dict)

    @property
    def nodes(self) -> Array:
        """Layer times of the nodes, from 0 to 1, shape (layers + 1,)."""
        return np.linspace(0.0, 1.0, self.layers + 1)

    def __getitem__(self, name: str) -> Array:
        return self.values[name]


def solve_layer_grid(
    table: LayerTable,
    *,
    layers: int,
    steps: int,
    constants: Mapping[Symbol, float],
    extents: Mapping[str, int] | None = None,
    known: Known | None = None,
    progress: Progress | None = None,
) -> LayerGrid:
    """Solve the equations of ``table`` on ``layers`` cells of layer time, for times 0..steps-1.

    ``constants`` gives a number to every symbol, and ``extents`` the number of values of every data index, by
    the part of its name before an underscore: the key "mu" is for ``mu`` and ``mu_1``. ``known`` are arrays
    by data indices and times, and functions of time, or of time and scalars; a function of time that
    equations read at s gets an array of times. ``progress`` is called with the completed steps and their
    total. Raises :class:`~numerics.errors.Diverged` with the step, :class:`~numerics.errors.NotConverged` if
    the iteration of a step does not converge, ValueError for a symbol without a number, and ArithmeticError
    if a response at equal time is not zero where a sum assumes it.
    """
    return _Grid(table, layers, steps, constants, extents or {}, known or {}).run(progress)


def needed_bytes(table: LayerTable, layers: int, steps: int, extents: Mapping[str, int]) -> int:
    """Return the bytes of memory of all tensors of a solution on ``layers`` cells for ``steps`` times.

    The second values at equal layer times of tensors that jump there are not counted. ``extents`` is the
    number of values of each data index, as :func:`solve_layer_grid` takes it.
    """
    grid = _Sizes(layers, steps, extents)
    return sum(8 * prod(grid.extent(x) for x in row.axes) for group in table.groups for row in group)


class _Sizes:
    """Lengths of the axes of arrays on a grid of layer time.

    It holds the number of nodes of layer time, of times, and of values of each data index.
    """

    def __init__(self, layers: int, steps: int, extents: Mapping[str, int]) -> None:
        self.n, self.T, self.extents = layers, steps, extents

    def extent(self, x: Expr) -> int:
        """Return the length of an axis, given by its symbol: layer time, time, or data index."""
        if x in LAYER_TIMES:
            return self.n + 1
        if x in (t, s):
            return self.T
        return self.extents[str(x).partition("_")[0]]


class _Grid(_Sizes):
    """Solver of the equations of correlations and responses on one grid of layer time, step by step.

    The equations, and the numbers and data in them, are given by ``table``, ``constants`` and ``known``.
    """

    def __init__(
        self,
        table: LayerTable,
        layers: int,
        steps: int,
        constants: Mapping[Symbol, float],
        extents: Mapping[str, int],
        known: Known,
    ) -> None:
        super().__init__(layers, steps, extents)
        self.table, self.constants, self.known = table, dict(constants), known
        self.values: dict[str, Array] = {}
        self.under: dict[str, Array] = {}
        for row in (r for g in table.groups for r in g):
            shape = tuple(self.extent(x) for x in row.axes)
            self.values[row.name] = np.zeros(shape)
            if row.jumps:
                self.under[row.name] = np.zeros(shape[1:])
        every = {p for g in table.groups for row in g for p in row.products}
        self.numbers = {
            p: self.number(p) for p in every if not p.number.has(t, s, *(x.index for x in p.spans))
        }
        self.contractions: dict[tuple[LayerProduct, bool], Contraction] = {}

    def run(self, progress: Progress | None) -> LayerGrid:
        """Solve all steps and return the solution; ``progress`` is called with each completed step."""
        with np.errstate(all="ignore"):
            for now in range(self.T):
                for group in self.table.groups:
                    self.iterate(group, now)
                if progress is not None:
                    progress(now + 1, self.T)
        self.check_equal_times()
        return LayerGrid(self.n, self.T, self.values, self.under)

    def iterate(self, group: tuple[LayerRow, ...], now: int) -> None:
        """Compute the tensors of a group at time ``now``, by iteration until they converge.

        The tensors of a group may depend on each other, or on themselves, at the same time. Raises Diverged
        if an entry is not finite or reaches LARGEST, and NotConverged after SWEEPS sweeps.
        """
        names = {row.name for row in group}
        rows = [_Assign(self, row, names, now) for row in group]
        for _ in range(SWEEPS):
            change = [row() for row in rows]
            if not np.all(np.isfinite(change)):
                name = group[int(np.argmin(np.isfinite(change)))].name
                raise Diverged(
                    f"{name} diverged at step {now} on {self.n} cells of layer time: a smaller learning "
                    "rate or more cells may help"
                )
            if max(change) <= CONVERGED or not any(row.moving for row in rows):
                return
        raise NotConverged(
            f"the iteration of {group[0].name} does not converge within {SWEEPS} sweeps at step {now}: a "
            "smaller learning rate may help"
        )

    # -- products --------------------------------------------------------------------------------------------

    def contraction(
        self, p: LayerProduct, axes: list[Expr], now: int, x: Symbol | None, b: Symbol | None, jump: bool
    ) -> tuple[Contraction, list[TensorOrLookup]]:
        """Return how a product of tensors ``p`` is summed over its indices at step ``now``, and its operands.

        ``x`` is the layer time over which the product is integrated, None without an integral; the sum over x
        is not carried out. ``b`` is the layer time at which the product jumps, None without a jump. The axes
        of the result are x, b, and then those of ``axes`` that the product has. If ``jump`` is true, b is no
        axis of the result: it is set equal to x, or to tau without an integral, and a response that jumps
        there has its value for tau < ``tau_``.
        """
        at_jump = b if jump else None
        pairs = list(self.factors(p, now, at_jump))
        lead = [y for y in (x, None if jump else b) if y is not None]
        # a layer time in `lead` must have an axis: if no factor depends on it, a factor of ones is added
        for y in lead:
            if not any(y in names for _, names in pairs):
                pairs.append((np.ones(self.n + 1), [y]))
        if (p, jump) not in self.contractions:
            have = {y for _, names in pairs for y in names}
            out = [*lead, *(y for y in axes if y in have and y not in lead)]
            whole = list(self.factors(p, self.T - 1, at_jump))
            sizes = {
                y: size
                for a, names in (*whole, *pairs[len(whole) :])
                for y, size in zip(names, _array(a).shape, strict=True)
            }
            self.contractions[p, jump] = Contraction.of([names for _, names in pairs], out, sizes)
        return self.contractions[p, jump], [a for a, _ in pairs]

    def factors(
        self, p: LayerProduct, now: int, at_jump: Symbol | None
    ) -> Iterator[tuple[TensorOrLookup, list[Expr]]]:
        """Yield the factors of a product ``p`` at step ``now``: pairs of an array and the names of its axes.

        An array may instead be a function without arguments that returns it, if its values change during the
        iteration of the step. ``at_jump`` is None, or a layer time that is set equal to the integrated one,
        or to tau without an integral; a response jumps there.
        """
        # `ends` holds the number of values of the free time s, now + 1, and of each index of a sum. If an
        # index of a sum is also called s, its number is used for s.
        ends = {s: now + 1} | {x.index: self.reach(x, now) for x in p.spans}
        onto = p.layer or LAYER_TIMES[0]
        for r in p.reads:
            yield self.read(r, now, ends, at_jump, onto)
        for a, b in p.equal:
            rows, cols = (ends[y] if y in ends else self.extent(y) for y in (a, b))
            yield np.eye(rows, cols), [a, b]
        if p not in self.numbers:
            names = [y for y in dict.fromkeys((s, *(z.index for z in p.spans))) if p.number.has(y)]
            function = lambdify([t, *names], p.number.subs(self.constants), "numpy")
            grids = np.ix_(*(np.arange(float(ends[y])) for y in names))
            yield np.broadcast_to(function(float(now), *grids), [ends[y] for y in names]), names
        for c in p.calls:
            yield (lambda c=c: np.asarray(self.called(c, now), dtype=float)), []  # type: ignore[misc]

    def read(
        self, r: Read, now: int, ends: Mapping[Symbol, int], at_jump: Symbol | None, onto: Symbol
    ) -> tuple[TensorOrLookup, list[Expr]]:
        """Return the values of the tensor ``r`` in a product at step ``now``, with the names of their axes.

        ``ends`` is the number of times over which each time index runs. The layer time ``at_jump``, if it is
        not None, is replaced by the layer time ``onto``; a tensor that jumps where the two are equal then has
        the values for tau < ``tau_``.
        """
        if r.name not in self.values:
            return self.given(r, now, ends)
        names = [onto if x == at_jump else x for x in r.args if isinstance(x, Symbol) and x != t]
        times = tuple(
            now if x == t else int(x) if x.is_number else slice(ends.get(x)) for x in r.args[r.layers :]
        )
        whole = self.values[r.name]
        if r.layers == 2 and r.args[0] == r.args[1]:
            below = r.side == -1 and r.name in self.under
            diagonal = self.under[r.name] if below else np.moveaxis(np.diagonal(whole), -1, 0)
            if r.args[0].is_number:
                return diagonal[(round(float(r.args[0]) * self.n), *times)], names
            return diagonal[(slice(None), *times)], names[1:]
        if r.name in self.under:
            under, (a, b) = self.under[r.name], r.args[:2]
            if at_jump is not None and at_jump in (a, b):
                return under[(slice(None), *times)], [onto, *names[2:]]
            # This function of two layer times a and b, from 0 to 1, jumps at a = b. On the edge a = 0 (or b =
            # 1) all points have a < b, except the corner a = b. The corner gets the value for a < b.
            if a == 0 or b == 1:
                end = 0 if a == 0 else self.n
                side = (whole[0] if a == 0 else whole[:, -1])[(slice(None), *times)]
                return (lambda: _with_end(side, under[(slice(None), *times)], end)), names
        layers = tuple(round(float(x) * self.n) if x.is_number else slice(None) for x in r.args[: r.layers])
        return whole[(*layers, *times)], names

    def given(self, r: Read, now: int, ends: Mapping[Symbol, int]) -> tuple[TensorOrLookup, list[Expr]]:
        """Return the given data ``r`` in a product at step ``now``, with the names of their axes.

        They are an array over data indices and times, or a function of one time, which is evaluated. ``ends``
        is the number of times over which each time index runs; t itself is set to ``now``. Raises NotLowered
        for a function of arguments other than t or s alone.
        """
        value = self.known[r.name]
        if not callable(value):
            cut = tuple(now if x == t else slice(ends.get(x)) for x in r.args)
            return np.asarray(value, dtype=float)[cut], [x for x in r.args if x != t]
        if r.args == (t,):
            return np.asarray(value(now), dtype=float), []
        if r.args == (s,):
            return np.asarray(value(np.arange(now + 1)), dtype=float), [s]
        raise NotLowered(f"the given function {r.name}{r.args} must be a function of the time t or s alone")

    def called(self, c: AppliedUndef, now: int) -> Any:
        """Return the value of a given function of time and scalars at step ``now``.

        An example is the slope of the loss as a function of the output.
        """
        args = [now if x == t else self.values[str(x.func)][now] for x in c.args]
        function = self.known[str(c.func)]
        assert callable(function)
        return function(*args)

    def jump_layer(self, p: LayerProduct) -> tuple[Symbol, bool] | None:
        """Return where the integrand of a product jumps as a function of the integrated layer time.

        The result is None if it does not jump. Otherwise it is a pair: the other layer time in the response
        that jumps where the two layer times are equal, and whether the integrated one is the first of the
        two. Raises NotLowered if it jumps at two layer times.
        """
        jumps = set()
        for r in p.reads:
            a = r.args[: r.layers]
            if r.name not in self.under or a[0] == a[1]:
                continue
            if p.layer in a and all(isinstance(y, Symbol) for y in a):
                jumps.add((a[1], True) if a[0] == p.layer else (a[0], False))
        if len(jumps) > 1:
            raise NotLowered(
                f"the integrand {p} over layer time jumps at two layer times; at most one jump is supported"
            )
        return jumps.pop() if jumps else None

    # -- sizes and numbers -----------------------------------------------------------------------------------

    def reach(self, x: Span, now: int) -> int:
        """Return the number of values of the summed index ``x`` at step ``now``.

        An index of times runs up to ``now``, or to the step before; a data index has all of its values.
        """
        return now + int(x.present) if x.upper.has(t, s) else self.extent(x.index)

    def number(self, p: LayerProduct) -> float:
        """Return the numerical factor of a product; raise ValueError if a symbol in it has no value."""
        value = p.number.subs(self.constants)
        if not value.is_number:
            missing = ", ".join(sorted(str(x) for x in value.free_symbols))
            raise ValueError(
                f"the factor {p.number} of a term contains {missing}: give a number for each symbol"
            )
        return float(value)

    def check_equal_times(self) -> None:
        """Raise ArithmeticError if a response does not vanish at equal time where a sum assumes that it does.

        Sums over times that begin at s + 1 or end at s - 1 assume it.
        """
        for p in (p for g in self.table.groups for row in g for p in row.products):
            for x in (x for x in p.spans if x.late):
                for r in p.reads:
                    if (
                        set(r.args[-2:]) == {x.index, s}
                        and np.einsum("...tt->...t", self.values[r.name]).any()
                    ):
                        raise ArithmeticError(
                            f"the response {r.name} is not zero at equal times, but a sum over times in the "
                            "theory assumes that it is zero"
                        )


class _Assign:
    """Assignment of one tensor at one step, which the iteration of the step repeats until it converges.

    ``moving`` are the products in its equation that read tensors of its group at this step, and therefore
    change during the iteration; ``still`` is the sum of the other products. ``above`` is the array of the
    present values of the tensor. If the tensor jumps at equal layer times tau = ``tau_``, the diagonal of
    ``above`` has the values for tau > ``tau_``, and ``below`` those for tau < ``tau_``.
    """

    def __init__(self, grid: _Grid, row: LayerRow, group: set[str], now: int) -> None:
        self.grid, self.row, self.now = grid, row, now
        axes = [x for x in row.axes if x != t]
        shape = tuple(now + 1 if x == s else grid.extent(x) for x in axes)
        at = (..., now, slice(now + 1)) if s in row.axes else (..., now)
        self.above = grid.values[row.name][at]
        self.below = grid.under[row.name][at] if row.jumps else None
        self.moving: list[StepTerm] = []
        self.still = np.zeros(shape), np.zeros(shape[1:]) if row.jumps else None
        for p in row.products:
            if any(x.upper.has(t, s) and grid.reach(x, now) == 0 for x in p.spans):
                continue
            term = StepTerm(grid, p, axes, now)
            if group & set(present_names(p)):
                self.moving.append(term)
            else:
                term(*self.still)

    def __call__(self) -> float:
        """Compute the tensor at this step, store it, and return its relative change.

        The change is relative to the largest entry of the partial sums of its products, to which rounding
        errors are relative. It is infinite if an entry reaches LARGEST or is not finite.
        """
        above, below = (None if a is None else a.copy() for a in self.still)
        assert above is not None
        sizes = [_largest(above, below)]
        for term in self.moving:
            term(above, below)
            sizes.append(_largest(above, below))
        change = _largest(above - self.above)
        self.above[...] = above
        if self.row.symmetric:
            self.grid.values[self.row.name][..., : self.now + 1, self.now] = self.exchanged(above)
        if below is not None and self.below is not None:
            change = max(change, _largest(below - self.below))
            self.below[...] = below
        if not sizes[-1] < LARGEST:
            return np.inf
        return change / max(sizes) if change else 0.0

    def exchanged(self, value: Array) -> Array:
        """Return a correlation ``<x_i(t) y_j(s)>`` at one t as ``<y_j(s) x_i(t)>``, with j before i.

        The axes of ``value`` are layer times, data indices of both fields, and s; the data indices of the two
        fields change places.
        """
        first, count = self.row.layers, len(self.row.axes) - self.row.layers - 2
        half = count // 2
        order = [*range(first), *range(first + half, first + count), *range(first, first + half)]
        return value.transpose([*order, first + count])


def _largest(*arrays: Array | None) -> float:
    """Return the largest absolute value of all entries, zero if there are none; None counts as no array."""
    return float(np.max([np.max(np.abs(a), initial=0.0) for a in arrays if a is not None]))


def _with_end(side: Array, under: Array, corner: int) -> Array:
    """Return the values of a response along an edge of the square of layer times, with the corner replaced.

    The corner, at index ``corner``, gets the value for tau < ``tau_``, which ``under`` holds along the
    diagonal.
    """
    side = side.copy()
    side[corner] = under[corner]
    return side


def _array(a: TensorOrLookup) -> Array:
    """Return an array; if ``a`` is a function without arguments, return the array that it returns."""
    return a() if callable(a) else a


class StepTerm:
    """Product of tensors in the equation of one tensor at one step of time.

    The product may be integrated over a layer time. A call adds its value to the array of that tensor.
    """

    def __init__(self, grid: _Grid, p: LayerProduct, axes: list[Expr], now: int) -> None:
        self.p, self.n = p, grid.n
        self.number = grid.numbers.get(p, 1.0)
        self.jump_layer = grid.jump_layer(p) if p.layer else None
        b = None if self.jump_layer is None else self.jump_layer[0]
        self.plain = grid.contraction(p, axes, now, p.layer, b, False)
        self.jump = None if b is None else grid.contraction(p, axes, now, p.layer, b, True)
        names = list(self.plain[0].out)
        if p.bound == "all":
            names = names[1:]
        elif p.layer is not None:
            names = [LAYER_TIMES[0], *names[1:]]
        if self.jump and self.jump[0].out[1:] != self.plain[0].out[2:]:
            raise NotLowered(
                f"the product {p} is not supported: at the layer time where its response jumps it has other "
                "indices than elsewhere"
            )
        self.across = None
        if any(reads_across(x, p, grid.under) for x in p.reads):
            rest = [x for x in axes if x != LAYER_TIMES[1]]
            self.across = grid.contraction(p, rest, now, None, LAYER_TIMES[1], True)
        self.at: tuple[Any, ...] = tuple(now if p.present and x == s else slice(None) for x in axes)
        present = [x for x in axes if not (p.present and x == s)]
        self.present = present
        self.order = [names.index(x) for x in present if x in names]
        self.missing = tuple(None if x not in names else slice(None) for x in present)

    def __call__(self, above: Array, below: Array | None) -> None:
        """Add the product to ``above``, and its diagonal tau = ``tau_`` for tau < ``tau_`` to ``below``.

        ``below`` is None for a tensor that does not jump at tau = ``tau_``.
        """
        product = self.integral() if self.p.layer else self.plain[0](self.plain[1])
        value = self.number * product.transpose(self.order)[self.missing]
        if below is None:
            above[self.at] += value
            return
        value = np.broadcast_to(value, above[self.at].shape)
        if self.across is not None:
            below[self.at[1:]] += self.from_below()
        elif self.p.step != 1:
            below[self.at[1:]] += np.moveaxis(np.diagonal(value), -1, 0)
        if self.p.step:
            over = np.tri(self.n + 1)
            side = over if self.p.step == 1 else 1.0 - over
            value = value * side.reshape(side.shape + (1,) * (value.ndim - 2))
        above[self.at] += value

    def from_below(self) -> Array:
        """Return this product of tensors along the diagonal tau = ``tau_``, with values for tau < ``tau_``.

        It is used for a product that contains a response that jumps at equal layer times.
        """
        assert self.across is not None
        contraction, operands = self.across
        names, axes = list(contraction.out), [x for x in self.present if x != LAYER_TIMES[1]]
        value = contraction(operands).transpose([names.index(x) for x in axes if x in names])
        return self.number * value[tuple(None if x not in names else slice(None) for x in axes)]

    def integral(self) -> Array:
        """Return the integral of this product of tensors over its integrated layer time.

        The numerical factor of the product is not included. The integral is computed by the trapezoidal rule
        in each cell of the grid. It runs over all layer times, or from 0 to each node, or from each node to
        1; in the last two cases the first axis is that of the nodes. If the integrand jumps at a node, each
        cell beside it has the value of its own side of the jump.
        """
        value = self.plain[0](self.plain[1])
        cells = 0.5 * (value[:-1] + value[1:])
        if self.jump is not None and self.jump_layer is not None:
            under = self.jump[0](self.jump[1])
            jump = 0.5 * (under - np.moveaxis(np.diagonal(value), -1, 0))
            c = np.arange(self.n)
            if self.jump_layer[1]:
                cells[c, c + 1] += jump[1:]
            else:
                cells[c, c] += jump[:-1]
        cells /= self.n
        if self.p.bound == "all":
            total: Array = cells.sum(axis=0)
            return total
        total = np.zeros_like(value)
        if self.p.bound == "below":
            np.cumsum(cells, axis=0, out=total[1:])
        else:
            total[:-1] = np.cumsum(cells[::-1], axis=0)[::-1]
        return total
