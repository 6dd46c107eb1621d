"""Tangent kernel of finite networks, from gradients of their outputs with respect to trained weights.

The gradient of an output with respect to a weight is a sum of outer products ``left right^T`` of vectors of
the network: a backward field, and the input of the weight.  The kernel of two outputs is the sum over weights
of the inner product of the gradient of one output at time t with the update at time s for a unit error of the
other output.  These are products of inner products of vectors of one network, so that means over networks
keep the correlations between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Self

import numpy as np
from numpy.typing import NDArray
from sympy import Expr
from sympy.core.function import AppliedUndef

from derive.program import Along, Outer, Program, TrainedMatrix, TrainedVector

from .correlations import CorrelationVector, ObservableAxis, Pair, Record, Wanted
from .formulas import Binder, members
from .network import StepNode, StepOrder
from .rows import Applied, Array, Bound, CurrentParameter, FieldOrNumber, Fixed, FormulaReaders, NetworkState
from .weights import entries_behind

NAME = "tangent_kernel"
"""Name of the measurement of the tangent kernel."""


@dataclass(frozen=True, eq=False)
class VectorRows:
    """One factor of each term of a gradient of outputs: vectors over units, or numbers, read together.

    A gradient with respect to a weight is a sum of terms, outer products of two vectors times a number.

    Attributes
    ----------
    bounds
        The different formulas of the factors. With a ``pair`` they are those of all vectors that it contains.
    at
        For each term of a gradient the position of its formula in ``bounds``.
    reading
        Functions that evaluate formulas on the state of the networks.
    side
        The vectors that are recorded during training; None if they are constant or measured in ``pair``.
    pair, site
        A measured correlation that contains all inner products of the vectors, and the position of their
        layer in it; ``pair`` is None if there is no such measurement.
    times
        Positions of the recorded times at which they are read; None for all.
    """

    bounds: tuple[Bound, ...]
    at: NDArray[np.intp]
    reading: FormulaReaders
    side: CorrelationVector | None
    pair: Pair | None = None
    site: int = 0
    times: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        reading: FormulaReaders,
        terms: Sequence[Bound],
        pairs: Iterable[Pair] = (),
        times: tuple[int, ...] | None = None,
    ) -> Self:
        """Return one factor of each term of a gradient, with the way in which it is read.

        ``terms`` are the formulas of the factor, one for each term. If one of the measured correlations
        ``pairs``, measured at the same ``times``, contains the inner products of all these vectors with each
        other, it is used. Otherwise the vectors are recorded, unless they are constant.
        """
        bounds = tuple(dict.fromkeys(terms))
        for pair in (x for x in pairs if x.times == times):
            for site, layer in enumerate(pair.layers() or [None]):
                grid = list(pair.first.sites.get(layer, {}).values())
                whole = isinstance(pair.first.rows.get(layer), slice)
                if pair.first is pair.second and whole and {*bounds} <= {*grid}:
                    at = np.array([grid.index(b) for b in terms])
                    return cls(tuple(grid), at, reading, None, pair, site, times)
        at = np.array([bounds.index(b) for b in terms])
        if all(isinstance(x, Fixed) for b in bounds for x in b.all_leaves()):
            return cls(bounds, at, reading, None, times=times)
        axes = (("row", tuple(range(len(bounds)))),)
        entries: dict[tuple[int, ...], Bound] = {(i,): b for i, b in enumerate(bounds)}
        side = CorrelationVector(axes, None, "units", {None: entries}, {None: reading.read(bounds)})
        return cls(bounds, at, reading, side, times=times)

    @cached_property
    def constant(self) -> Array:
        """Values of the formulas if they do not depend on the state of the networks, shape (rows, units).

        There is one row for each formula in ``bounds``. A formula of a number has one unit.
        """
        x = self.reading.read(self.bounds)(NetworkState({}))[0]
        return np.broadcast_to(x, (len(self.bounds), x.shape[-1]))

    def numbers(self, record: Record) -> Array:
        """Return the values of factors that are numbers, shape (networks, times, terms).

        There is one for each term of a gradient; ``record`` holds what was recorded during training. Constant
        factors have the shape (1, 1, terms).
        """
        if self.side is None:
            fixed: Array = self.constant[self.at, 0][None, None]
            return fixed
        values: Array = record.of(self.side, None, self.times)[..., 0][:, self.at].swapaxes(1, 2)
        return values

    def products(self, record: Record, measured: Mapping[str, Array], p: int, q: NDArray[np.intp]) -> Array:
        """Return inner products of the vector in term ``p`` at time t with those in terms ``q`` at time s.

        They are sums over units. Terms are given by their positions in the gradient of outputs by a weight.
        The shape is (networks, t, s, terms in ``q``); for constant vectors the first three axes have length
        one. ``measured`` holds measured correlations by name.
        """
        one, others = self.at[p], self.at[q]
        if self.pair is not None and (not self.pair.equal or (others == one).all()):
            return self._measured(record, measured[self.pair.name], one, others)
        rows, back = np.unique(others, return_inverse=True)
        if self.pair is None and self.side is None:
            known: Array = (self.constant[rows] @ self.constant[one])[None, None, None, back]
            return known
        vectors = record.of(*self._recorded, self.times)
        products: Array = vectors[:, one, None] @ vectors[:, rows].swapaxes(-1, -2)
        return np.moveaxis(products, 1, -1)[..., back]

    def _measured(self, record: Record, kernel: Array, one: int, others: NDArray[np.intp]) -> Array:
        """Return inner products of vector ``one`` with vectors ``others``, from a measured correlation.

        ``kernel`` is the correlation, an average over units; it is multiplied by the number of units, which
        is read from ``record``. Vectors are given by position in ``bounds``. The axes are (networks, t, s,
        others).
        """
        assert self.pair is not None
        kernel = kernel if self.pair.first.layer is None else kernel[:, self.site]
        kernel = kernel.reshape(*kernel.shape[:3], *[len(self.bounds)] * (1 if self.pair.equal else 2))
        kernel = kernel if self.pair.equal else kernel[..., one, :]
        products: Array = record.of(*self._recorded).shape[-1] * kernel[..., others]
        return products

    @property
    def _recorded(self) -> tuple[CorrelationVector, int | None]:
        """The recorded vector that holds these vectors, and their layer in it (None without layers)."""
        if self.pair is not None:
            layers: list[int | None] = [*self.pair.layers()] or [None]
            return self.pair.first, layers[self.site]
        assert self.side is not None
        return self.side, None


@dataclass(frozen=True, eq=False)
class WeightGradient:
    """Gradients of all outputs with respect to one weight, and its updates for a unit error.

    Both are sums of terms: a coefficient times an outer product of two vectors, or times one vector.

    Attributes
    ----------
    gradient, update
        Coefficients of the terms in the gradient and in the update.
    vectors
        The two vectors of an outer product, or the one vector, of each term.
    outputs
        For each term the position of its output among all outputs; terms are sorted by it.
    units
        Number by which products of gradients and updates are divided: the width N times the number that
        divides the updates of the weight (N for a matrix between layers, 1 for a vector).
    """

    gradient: VectorRows
    update: VectorRows
    vectors: tuple[VectorRows, ...]
    outputs: NDArray[np.intp]
    units: float

    @property
    def rows(self) -> tuple[VectorRows, ...]:
        """Coefficients and vectors that are read from the networks to compute gradients and updates."""
        return self.gradient, self.update, *self.vectors

    def add_to(self, kernel: Array, record: Record, measured: Mapping[str, Array], equal: bool) -> None:
        """Add the contribution of this weight to the tangent kernel ``kernel``, in place.

        The shape is (networks, t, s, output[, output']): the gradient is that of ``output`` at time t, and
        the update at time s is for a unit error of ``output'``. ``measured`` are measured correlations by
        name. If ``equal``, the two outputs are equal and have one axis.
        """
        gradient, update = self.gradient.numbers(record), self.update.numbers(record) / self.units
        present, first = np.unique(self.outputs, return_index=True)
        for p, output in enumerate(self.outputs):
            q = np.flatnonzero(self.outputs == output) if equal else np.arange(len(self.outputs))
            share = gradient[:, :, None, p, None] * update[:, None, :, q]
            for x in self.vectors:
                share = share * x.products(record, measured, p, q)
            if equal:
                kernel[..., output] += share.sum(axis=-1)
            else:
                kernel[..., output, present] += np.add.reduceat(share, first, axis=-1)


@dataclass(frozen=True, eq=False)
class TangentKernel:
    """Measurement of the tangent kernel of the finite networks of a program.

    Attributes
    ----------
    gradients
        Gradients with respect to each weight.
    outputs
        The error signals, which have the indices of the outputs.
    equal
        Whether only the kernel of each output with itself is measured.
    times
        Positions of the recorded times at which it is measured; None for all.
    """

    gradients: tuple[WeightGradient, ...]
    outputs: CorrelationVector
    equal: bool
    times: tuple[int, ...] | None = None

    @classmethod
    def of(
        cls,
        binder: Binder,
        network: StepOrder,
        wanted: Wanted,
        equal: bool = False,
        times: tuple[int, ...] | None = None,
    ) -> Self | None:
        """Return the measurement of the tangent kernel of a program.

        None if its updates are not gradients of outputs times errors (:func:`trained_by_gradients`).
        ``binder`` holds the program with its sizes, ``network`` the computations of a step, and ``wanted``
        the other measurements, of which correlations are used again. ``equal`` and ``times`` are as in the
        attributes.
        """
        program = binder.program
        weights = trained_by_gradients(binder, network)
        if not weights:
            return None
        error = str(_errors(program, weights[0].update.coefficient)[0].func)
        outputs, gradients = wanted.scalars[error], list[WeightGradient]()
        places = {key: k for k, key in enumerate(np.ndindex(*outputs.shape))}
        values = [sorted(v) for _, v in outputs.axes]
        for w in weights:
            scale = 1.0
            for env in members(w.initial, binder.values):
                if isinstance(w, TrainedMatrix):
                    scale = binder.sizes.scale(w.initial, env)
                terms = []
                for inner in binder.values.members(w.update.over, env):
                    (error_signal,) = _errors(program, w.update.coefficient)
                    output = binder.entry(error_signal, inner)
                    assert isinstance(output, FieldOrNumber)
                    spot = tuple(v.index(k) for v, k in zip(values, output.key[1], strict=True))
                    terms.append(
                        (places[spot], [binder.bind(e, inner) for e in _factors(program, w, error_signal)])
                    )
                if terms:
                    terms.sort(key=lambda x: x[0])
                    columns = zip(*(x for _, x in terms), strict=True)
                    rows = [VectorRows.of(network.reading, x, wanted.pairs, times) for x in columns]
                    at = np.array([output for output, _ in terms])
                    units = binder.sizes.width * scale
                    gradients.append(WeightGradient(rows[0], rows[1], tuple(rows[2:]), at, units))
        return cls(tuple(gradients), outputs, equal, times)

    @cached_property
    def sides(self) -> list[CorrelationVector]:
        """Vectors and numbers that must be recorded during training for the tangent kernel only."""
        return [x.side for w in self.gradients for x in w.rows if x.side is not None]

    def axes(self, times: tuple[float, ...]) -> tuple[ObservableAxis, ...]:
        """Return (name, values) of each axis of the array of :meth:`value`, without that of the networks.

        ``times`` are the recorded times.
        """
        times = times if self.times is None else tuple(times[k] for k in self.times)
        second = () if self.equal else tuple((f"{name}'", values) for name, values in self.outputs.axes)
        return (("t", times), ("s", times), *self.outputs.axes, *second)

    def value(self, record: Record, measured: Mapping[str, Array]) -> Array:
        """Return the tangent kernel of every network, from vectors and correlations measured in training.

        The shape is (networks, t, s, outputs...[, outputs...]). Entries are NaN for index values at which the
        program has no output.
        """
        count, twice = prod(self.outputs.shape), 1 if self.equal else 2
        times = record.times if self.times is None else len(self.times)
        kernel = np.zeros((record.networks, times, times, *[count] * twice))
        for w in self.gradients:
            w.add_to(kernel, record, measured, self.equal)
        there = [self.outputs.rows[None]] if None in self.outputs.rows else []
        for x in there:
            absent = np.ones(count, dtype=bool)
            absent[x] = False
            kernel[..., absent] = np.nan
            if not self.equal:
                kernel[..., absent, :] = np.nan
        return kernel.reshape(*kernel.shape[:3], *self.outputs.shape * twice)


def trained_by_gradients(binder: Binder, network: StepOrder) -> list[TrainedMatrix | TrainedVector]:
    """Return the weights on which outputs depend, if each moves along gradients of outputs times errors.

    An update is a coefficient times vectors. The error signal in the coefficient belongs to one output, and
    the other factors are the gradient of this output. The list is empty if a coefficient has several errors
    or none or is not linear in its error, if weights have different errors, if the update of a weight has
    several terms, and if a step multiplies by a trained matrix, other than that of the inputs, without its
    transpose, or by the transpose alone.
    """
    program, nodes = binder.program, _nodes(network)
    known = {str(a.func) for w in program.trained() for a in _errors(program, w.update.coefficient)}
    starts = [(name, key) for name in known for key in binder.domains.get(name, ())]
    behind = entries_behind(network, starts)
    leaves = [x for n in nodes if n.key in behind for x in n.rhs.all_leaves()]
    forward = {x.key[0] for x in leaves if isinstance(x, Applied | CurrentParameter)}
    weights = [w for w in program.trained() if w.name in forward]
    errors = [_errors(program, w.update.coefficient) for w in weights]
    if any(len(x) != 1 for x in errors) or len({str(a.func) for x in errors for a in x}) != 1:
        return []
    products = [x for n in nodes for x in n.rhs.all_leaves() if isinstance(x, Applied)]
    for w, (error,) in zip(weights, errors, strict=True):
        if len(w.update.terms) > 1 or (w.update.coefficient / error).has(error):
            return []
        ways = {x.transposed for x in products if x.key[0] == w.name}
        if isinstance(w, TrainedMatrix) and not w.initial.cols.given and ways not in ({True, False}, set()):
            return []
    return weights


def _nodes(network: StepOrder) -> list[StepNode]:
    """Return the formulas of all fields and numbers of a step after the first, at all index values."""
    return [n for task in (*network.later, *network.slopes) for n in task.nodes]


def _errors(program: Program, coefficient: Expr) -> list[AppliedUndef]:
    """Return the error signals in the coefficient of a weight's update.

    These are numbers of the program that have other indices than the time, such as Delta(mu, t).
    """
    atoms = sorted(coefficient.atoms(AppliedUndef), key=str)
    return [a for a in atoms if str(a.func) in program.scalars and len(a.args) > 1]


def _factors(program: Program, w: TrainedMatrix | TrainedVector, error: AppliedUndef) -> tuple[Expr, ...]:
    """Return the coefficients in the gradient of the weight ``w`` and in its update, and their vectors.

    The order is: coefficient of the gradient, coefficient of the update, then two vectors for an outer
    product or one for a vector of weights. The update is that for a unit error: ``error``, the error signal
    in its coefficient, is divided out. The coefficient of the gradient is the one that the update states;
    without it, it is that of the update for a unit error divided by the squared scale of the program.
    """
    update: Outer | Along = w.update
    moved = update.coefficient / error
    gradient = moved / program.scale**2 if update.gradient is None else update.gradient
    vectors = (update.left, update.right) if isinstance(update, Outer) else (update.vector,)
    return gradient, moved, *vectors
