"""Expressions evaluated on arrays: compiled functions of leaves, and readers that look up the leaves.

A leaf is a field, an order parameter, a sum or a symbol. :class:`KnownArrays` looks leaves up among numbers,
data and arrays of the solution; :class:`TensorReader` prepares this for one expression that is read at many
times. Sampled paths, quadrature and observables of all solvers use them.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from sympy import (
    Add,
    Derivative,
    DiracDelta,
    Dummy,
    Expr,
    Float,
    KroneckerDelta,
    Piecewise,
    Subs,
    Sum,
    Symbol,
)
from sympy import Eq as Equal
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average, Response
from derive.calculus.symbols import ell, s, spelled, t
from derive.program.shifted_constants import Slot
from derive.program.spectral import SpectralEntry, sigma
from derive.theory import Equation
from numerics.arrays import CPU, Device, namespace_of, permuted
from numerics.errors import Unserved
from numerics.experiment.integer_indices import Literals, index_of_axis
from numerics.lowering.indices import (
    TIMES,
    Array,
    Axis,
    IndexSymbols,
    Places,
    axes_of,
    node_at_zero,
    node_of,
    require_fixed_limits,
)
from numerics.lowering.spectral import coefficients
from numerics.names import MemberKey


def arranged(a: Array, labels: Sequence[Hashable], indices: Sequence[Hashable]) -> Array:
    """Return an array whose axes are named ``labels`` with axes in the order of ``indices``.

    Each label must be among the indices. Indices without a label become axes of length one. A label that
    occurs twice selects the diagonal.
    """
    place = {x: k for k, x in enumerate(labels)}
    kept = [place[x] for x in indices if x in place]
    if len(place) == len(labels):
        value: Array = permuted(a, tuple(kept))
    else:
        letters = {x: chr(97 + k) for k, x in enumerate(indices)}
        result = "".join(letters[labels[k]] for k in kept)
        value = namespace_of(a).einsum(f"{''.join(letters[x] for x in labels)}->{result}", a)
    if len(kept) == len(indices):
        return value
    shape = iter(value.shape)
    return value.reshape([next(shape) if x in place else 1 for x in indices])


def leaves_of(e: Expr) -> tuple[Expr, ...]:
    """Return the leaves of an expression: fields, order parameters, sums, averages and symbols.

    Symbols come first, so that numbers are multiplied before arrays.
    """
    return tuple(sorted(_leaves(e), key=lambda x: (not isinstance(x, Symbol), spelled(x))))


def _leaves(e: Expr) -> set[Expr]:
    """Return the leaves of an expression as a set.

    A leaf is a symbol, field, order parameter, sum or average in an expression.
    """
    if isinstance(e, AppliedUndef | Sum | Average | Response | Symbol | SpectralEntry):
        return {e}
    return {x for arg in e.args for x in _leaves(arg)}


@lru_cache(maxsize=1024)
def _slot(i: int) -> Dummy:
    """Return the symbol that replaces leaf number ``i`` of an expression when it is compiled.

    The symbols are the same for all expressions, so that equal expressions are compiled once. A leaf is a
    symbol, field, order parameter, sum or average in an expression.
    """
    return Dummy(f"x{i}", real=True)


class UnseenJump(Unserved):
    """Raised for the derivative of a function that may jump, which sampled paths cannot average."""


class CompiledFunction:
    """Expression as a function of its leaves, with partial derivatives.

    A leaf is a symbol, field, order parameter, sum or average in an expression.

    Parameters
    ----------
    expr
        The expression.

    Attributes
    ----------
    leaves
        The arguments of the function, in their order.
    slots
        Symbols that stand for the leaves.

    Raises
    ------
    Unserved
        If the expression contains the derivative of a function without an expression, such as an activation
        that has only a name.
    """

    def __init__(self, expr: Expr) -> None:
        self.expr = expr
        self.leaves = leaves_of(expr)
        self.slots = tuple(map(_slot, range(len(self.leaves))))
        body = expr.xreplace(dict(zip(self.leaves, self.slots, strict=True)))
        self.body = body.replace(KroneckerDelta, lambda a, b: Piecewise((1, Equal(a, b)), (0, True)))
        if self.body.has(Subs, Derivative):
            raise Unserved(
                f"{expr} contains a derivative that SymPy cannot evaluate, for example of a function "
                "without an expression; use a named function such as tanh"
            )
        self._compiled: dict[tuple[int, Device], Callable[..., Any]] = {}
        self._derivatives: dict[int, Expr] = {}

    def __call__(self, *values: Any) -> Any:
        """Return the value of the expression; ``values`` are arrays for its leaves, in their order."""
        return self.compiled(CPU)(*values)

    def partial(self, i: int, *values: Any, on: Device = CPU) -> Any:
        """Return the value of the derivative with respect to leaf ``i``, for values of all leaves.

        A leaf is a symbol, field, order parameter, sum or average in an expression.
        """
        return self.compiled(on, i)(*values)

    def derivative(self, i: int) -> Expr:
        """Return the derivative with respect to leaf ``i``, an expression in ``slots``.

        The symbols ``slots`` stand for the leaves. A leaf is a symbol, field, order parameter, sum or average
        in an expression. Raises UnseenJump if the derivative has a delta function, or if the expression is
        piecewise in the leaf.
        """
        if i not in self._derivatives:
            self._derivatives[i] = self.body.diff(self.slots[i])
        e = self._derivatives[i]
        if e.has(DiracDelta) or any(x.has(self.slots[i]) for x in self.body.atoms(Piecewise)):
            raise UnseenJump(
                f"{self.expr} jumps or contains cases (Piecewise), and sampled paths cannot average the "
                "delta function that its derivative may contain: use a continuous function without cases, "
                "or another method (solver.method)"
            )
        return e

    def compiled(self, on: Device, i: int = -1) -> Callable[..., Any]:
        """Return the expression as a function of arrays on a device, whose arguments are its leaves.

        If i >= 0 it is the derivative with respect to leaf ``i``. A leaf is a symbol, field, order parameter,
        sum or average in an expression.
        """
        if (i, on) not in self._compiled:
            self._compiled[i, on] = on.function(self.slots, self.body if i < 0 else self.derivative(i))
        return self._compiled[i, on]


@lru_cache(maxsize=1024)
def function(e: Expr) -> CompiledFunction:
    """Return an expression as a function of its leaves; equal expressions are compiled once.

    A leaf is a symbol, field, order parameter, sum or average in an expression.
    """
    return CompiledFunction(e)


@dataclass
class KnownArrays:
    """Arrays that are equal for all paths: numbers, data, and order parameters and scalars known so far.

    Attributes
    ----------
    values
        Numbers by the names of symbols.
    data
        Data by name: arrays, or functions of the values of their indices and times.
    found
        Order parameters and scalars, with the axes of their indices and times in order, and the replicas as
        the last axis.
    """

    values: Mapping[str, float]
    data: Mapping[str, Any]
    found: dict[MemberKey, Array] = field(default_factory=dict)
    first: dict[Symbol, int] = field(default_factory=dict)
    """First values of the indices that do not start at 1."""
    functions: dict[Expr, CompiledFunction] = field(default_factory=dict)
    literals: dict[Slot, Literals] = field(default_factory=dict)
    """Axes of data that are read at integers."""

    @cached_property
    def arrays(self) -> dict[str, Array]:
        """The given data as arrays by name; data that are functions, not arrays, are left out."""
        return {k: np.asarray(v, dtype=float) for k, v in self.data.items() if not callable(v)}

    def __call__(self, e: Expr, at: Places, given: Mapping[Expr, Any] | None = None) -> Any:
        """Return the value of an expression: a number, or an array with the replicas as last axis.

        ``at`` gives for each index or time either one position (from 0) in the stored arrays, or the axis of
        the result along which its positions lie. ``given`` are leaves with known values, which have the axis
        of the replicas too; averages and responses in the expression must be among them. A leaf is a symbol,
        field, order parameter, sum or average in an expression.
        """
        f = self.functions.get(e)
        if f is None:
            f = self.functions[e] = function(e)
        return f(*[self.leaf(x, at, given or {}) for x in f.leaves])

    def leaf(self, x: Expr, at: Places, given: Mapping[Expr, Any]) -> Any:
        """Return the value of one leaf: a number, or an array with the replicas along the last axis.

        ``at`` gives the position, or the axis of positions, of each index and time. ``given`` are leaves with
        known values. A leaf is a symbol, field, order parameter, sum or average in an expression. Raises
        Unserved for an average or response that is not in ``given``.
        """
        if x in given:
            return given[x]
        if isinstance(x, Symbol):
            return self._symbol(x, at)
        if isinstance(x, Sum):
            return self._sum(x, at, given)
        if isinstance(x, SpectralEntry):
            return self._spectral(x, at, given)
        if isinstance(x, AppliedUndef):
            return self._applied(x, at)
        raise Unserved(
            f"{x} cannot be evaluated: expressions may contain numbers, indices, fields, order parameters, "
            "scalars, given data, sums, and functions of these"
        )

    def _symbol(self, x: Symbol, at: Places) -> Any:
        """Return the values of a symbol: those of an index, or the number of a parameter.

        If ``x`` is an index or time in ``at``, the result holds its values (positions plus its first value)
        at the positions that ``at`` gives, with a last axis of length one for the replicas. Any other symbol
        has one number, its entry in ``values``. Raises ValueError if ``values`` has no entry for it.
        """
        if x in at:  # x is an index: positions count from 0, its values often from 1
            return np.asarray(_array(at[x]), dtype=float)[..., None] + self.start(x)
        if x.name not in self.values:
            raise ValueError(f"values contains no number for {x}: give values[{x.name!r}]")
        return float(self.values[x.name])

    def _applied(self, x: AppliedUndef, at: Places) -> Any:
        """Return the values of an order parameter, scalar or given data such as ``K_x(mu, alpha)``.

        ``at`` gives the position, or the axis of positions, of each index and time among the arguments of
        ``x``. The replicas are the last axis. Raises ValueError if ``x`` has no value, or if the array of
        data does not have one axis for each argument.
        """
        node = node_of(x)
        array = self.found[node] if node in self.found else self.at_zero(x)
        if array is not None:
            return self.read(array, [a for a in x.args if not a.is_Integer], at)
        name = node[0]
        if name not in self.data:
            raise ValueError(
                f"{x} has no value: it is not a field, order parameter or scalar of the theory, and data "
                f"does not contain {name}. Give data[{name!r}], or a named activation such as tanh if "
                f"{name} is an activation"
            )
        if callable(self.data[name]):
            args = [_array(at[a]) + self.start(a) if a in at else int(a) for a in x.args]
            return np.vectorize(self.data[name], otypes=[float])(*args)[..., None]
        if self.arrays[name].ndim != len(x.args):
            raise ValueError(
                f"data[{name!r}] has shape {self.arrays[name].shape}, but must have one axis for each "
                f"argument of {x}"
            )
        return self.read(self.arrays[name], x.args, at, name)[..., None]

    def at_zero(self, x: AppliedUndef) -> Array | None:
        """Return the array at time zero of a quantity whose time argument is zero, such as ``f(mu, 0)``.

        It has no axis of times. The result is None if the argument is not zero, or if the quantity is not yet
        known.
        """
        array = self.found.get(node_at_zero(x) or ("", ()))
        integers = sum(bool(a.is_Integer) for a in x.args)
        if array is None or array.ndim != len(x.args) - integers + 2:
            return None
        return array[..., 0, :]

    def start(self, x: Symbol) -> int:
        """Return the value of an index or time that belongs to the first entry of its axis: 0 for times.

        It is 1 for an index unless another value is known.
        """
        return 0 if x in TIMES else self.first.get(x, 1)

    def read(self, array: Array, args: Sequence[Expr], at: Places, name: str = "") -> Any:
        """Return the entries of an array at the arguments ``args`` of a function.

        ``at`` gives the position, or the axis of positions, of each index and time in the arguments. A
        shifted index such as ``p + k`` is periodic. Integers among the arguments are values of an index of
        the data called ``name``.
        """
        places = [
            self.position(name, k, int(a), n) if a.is_Integer else self.place(a, at, n)
            for k, (a, n) in enumerate(zip(args, array.shape, strict=False))
        ]
        axes = [x.axis for x in places if isinstance(x, Axis)]
        if len(set(axes)) < len(axes) or any(isinstance(x, np.ndarray) for x in places):
            return array[tuple(map(_array, places))]
        value = array[tuple(slice(x.start, x.stop) if isinstance(x, Axis) else x for x in places)]
        if axes != sorted(axes):
            order = sorted(range(len(axes)), key=axes.__getitem__)
            value = value.transpose(*order, *range(len(axes), value.ndim))
        ndim = next((x.ndim for x in places if isinstance(x, Axis)), 0)
        if len(axes) == ndim:
            return value
        shape = iter(value.shape)
        return value.reshape(*[next(shape) if k in axes else 1 for k in range(ndim)], *shape)

    def place(self, a: Expr, at: Places, size: int | None = None) -> Any:
        """Return where an argument of a function is read along an axis of an array with this ``size``.

        The result is a position (from 0), an array of positions, or an :class:`Axis`. A shifted argument such
        as ``p + k`` is periodic and needs ``size``. Raise Unserved for an index that is not in ``at``, and
        for a shifted time.
        """
        if a in at:
            return at[a]
        shift, parts = a.as_coeff_add()
        total: Any = int(shift) - self._start_of_axis(a)
        for part in parts:
            factor, x = part.as_coeff_Mul()
            if x not in at or x in TIMES or size is None:
                raise Unserved(
                    f"the argument {a} of a function is not supported: an argument must be an integer, an "
                    "index, or a sum of integers and indices. Each index must belong to the equation or to "
                    "a sum that contains the function. A time must not be shifted, as in t + 1"
                )
            total = total + int(factor) * (_array(at[x]) + self.start(x))
        return total % size

    def _start_of_axis(self, a: Expr) -> int:
        """Return the index value of the first entry along the axis of a shifted argument such as ``p + k``.

        It is the first value of the index ``p``, or 1 if no such index is found.
        """
        index = index_of_axis(a, self.first)
        return 1 if index is None else self.first[index]

    def position(self, name: str, axis: int, value: int, size: int) -> int:
        """Return the position (from 0) along an axis of given data that belongs to the integer ``value``.

        ``name`` is that of the data, ``axis`` the number of the axis, ``size`` its length. Raises ValueError
        if the axis has no such entry.
        """
        return self.literals.get((name, axis), Literals()).position(name, value, size)

    def _sum(self, x: Sum, at: Places, given: Mapping[Expr, Any]) -> Any:
        """Return the value of a sum, with the replicas along the last axis.

        ``at`` gives the position, or the axis of positions, of each index that is not summed over. Sums over
        layers are added term by term. Any other sum runs along an axis of an array, whose first entry must
        belong to the lower bound. Raises Unserved for bounds that are not numbers.
        """
        index, low, high = x.limits[-1]
        require_fixed_limits(index, low, high, self.values)
        first, last = self.bound(low), self.bound(high)
        body = Sum(x.function, *x.limits[:-1]) if len(x.limits) > 1 else x.function
        if index == ell:
            return sum((self(body.subs(index, i), at, given) for i in range(first, last + 1)), 0.0)
        self.first[index] = first
        ndim = max((v.ndim for v in at.values() if isinstance(v, Axis)), default=0)
        wider = {k: v._replace(ndim=ndim + 1) if isinstance(v, Axis) else v for k, v in at.items()}
        wider[index] = Axis(0, last - first + 1, ndim, ndim + 1)
        inner = {k: v if np.ndim(v) == 0 else v[..., None, :] for k, v in given.items()}
        value = np.asarray(self(body, wider, inner))
        # If the axis of the index has length one or is missing, the summand does not depend on the index, or
        # there is one term. The summand is then multiplied by the number of terms.
        if value.ndim < 2 or value.shape[-2] == 1:
            return (last - first + 1) * (value if value.ndim < 2 else value[..., 0, :])
        return value.sum(axis=-2)

    def _spectral(self, x: SpectralEntry, at: Places, given: Mapping[Expr, Any]) -> Any:
        """Return the entries of a function of the singular values of a gradient matrix.

        ``at`` must give an axis of positions for both indices, those of the rows and columns of the matrix,
        because the singular values need all entries. Raises Unserved otherwise.
        """
        places = [at.get(index) for index in x.places]
        if not all(isinstance(place, Axis) for place in places):
            raise Unserved(
                f"{x} is an entry of a function of a matrix over samples. The function needs the matrix of "
                f"all samples, but the theory uses {x} at single samples"
            )
        axes = [place.axis for place in places if isinstance(place, Axis)]
        sizes = [place.stop - place.start for place in places if isinstance(place, Axis)]
        matrices = []
        for e in x.matrices:
            value = np.asarray(self(e, at, given), dtype=float)
            shape = list(value.shape)
            for axis, size in zip(axes, sizes, strict=True):
                shape[axis] = size
            matrices.append(np.moveaxis(np.broadcast_to(value, shape), axes, (-2, -1)))
        F = x.F.xreplace({e: self._number_in(e, at, given) for e in _leaves(x.F) if e != sigma})
        return np.moveaxis(coefficients(F, *np.broadcast_arrays(*matrices)), (-2, -1), axes)

    def _number_in(self, e: Expr, at: Places, given: Mapping[Expr, Any]) -> Float:
        """Return the value of a parameter in a function of singular values, such as an exponent.

        ``at`` gives the position, or the axis of positions, of each index and time. ``given`` are parts of
        expressions with known values. Raises Unserved if the parameter has more than one value.
        """
        values = np.unique(np.ravel(self.leaf(e, at, given)))
        if len(values) != 1:
            raise Unserved(
                f"the parameter {e} of a function of singular values must be one number, but it has several "
                "values"
            )
        return Float(values[0])

    def bound(self, e: Expr) -> int:
        """Return the integer value of the lower or upper bound of a sum, such as ``P - 1``."""
        return int(np.ravel(self(e, {}))[0])


def _array(place: Any) -> Any:
    """Return the positions that ``place`` stands for.

    An axis gives an array of its positions; a single position is returned unchanged.
    """
    return place.positions if isinstance(place, Axis) else place


class TensorReader:
    """Evaluation of one expression on arrays, prepared for many calls at different times.

    The result has the replicas as first axis, then ``axes``. Times t and s that are among the axes are read
    as slices, other times as single positions. A leaf is a symbol, field, order parameter, sum or average in
    an expression.

    Parameters
    ----------
    known
        Numbers, data, and the order parameters and scalars, whose arrays are kept without a copy.
    e
        The expression.
    axes
        Indices and times that are axes of the result, in this order.
    sizes
        Number of values of each index in ``axes``.
    given
        Leaves whose arrays are arguments of each call.
    """

    def __init__(
        self,
        known: KnownArrays,
        e: Expr,
        axes: Sequence[Symbol],
        sizes: Mapping[Symbol, int],
        given: Iterable[Expr] = (),
    ) -> None:
        self.known, self.axes, self.sizes = known, tuple(axes), sizes
        self.given = tuple(given)
        f = function(e)
        self.function = None if f.leaves == (e,) else f.compiled(CPU)
        self.leaves = [self._leaf(x) for x in f.leaves]

    def __call__(self, late: Any, early: Any = None, given: Sequence[Array] = ()) -> Any:
        """Return the value of the expression at t = ``late`` and s = ``early``.

        Both times are positions (from 0), or slices if they are axes of the result. ``early`` is not needed
        if the expression does not contain s. ``given`` holds the arrays of the leaves that are arguments of
        each call, in their order. The result can be broadcast to ``(replicas, *axes)``.
        """
        values: list[Any] = []
        for leaf in self.leaves:
            if type(leaf) is float:
                values.append(leaf)
            elif type(leaf) is int:
                values.append(given[leaf])
            elif type(leaf) is tuple:
                array, places = leaf
                at = tuple([late if x == "t" else early if x == "s" else x for x in places])
                values.append(array[at])
            else:
                values.append(self._looked_up(leaf, late, early))
        return self.function(*values) if self.function else values[0]

    def _leaf(self, x: Expr) -> Any:
        """Return how a leaf of the expression is evaluated at each call.

        - A float is the value of the leaf.
        - An integer is its position among the arrays that are arguments of each call.
        - A tuple is an array and the index into it, in which names stand for times.
        - An expression is evaluated anew at each call.

        A leaf is a symbol, field, order parameter, sum or average in an expression.
        """
        if x in self.given:
            return self.given.index(x)
        if isinstance(x, Symbol) and x not in (*self.axes, *TIMES):
            return float(self.known.leaf(x, {}, {}))
        if not isinstance(x, AppliedUndef):
            return x
        node = node_of(x)
        array, labels = self.known.found.get(node), [a for a in x.args if not a.is_Integer]
        first: Any = slice(None)
        if array is None:
            array = self.known.at_zero(x)
        if array is None:
            array, labels, first = self.known.arrays.get(node[0]), list(x.args), None
        if array is None or array.ndim != len(labels) + (first is not None) or len(set(labels)) < len(labels):
            return x
        if not all(a in self.axes or a in TIMES for a in labels):
            return x
        fixed = [a for a in labels if a not in self.axes]
        order = [*fixed, *(a for a in self.axes if a in labels)]
        lead = () if first is None else (array.ndim - 1,)
        view = array.transpose(*lead, *(labels.index(a) for a in order))
        there = [a.name if a in TIMES else slice(0, self.sizes[a]) for a in self.axes]
        along = [x if a in labels else None for a, x in zip(self.axes, there, strict=True)]
        return view, [first, *(a.name for a in fixed), *along]

    def _looked_up(self, x: Expr, late: Any, early: Any) -> Any:
        """Return the value of a leaf that is evaluated anew at each call, such as a sum.

        ``late`` is the time t and ``early`` the time s, each a position or a slice. A leaf is a symbol,
        field, order parameter, sum or average in an expression.
        """
        at: dict[Symbol, Any] = {t: late, s: early}
        for k, a in enumerate(self.axes):
            where = at[a] if a in TIMES else slice(0, self.sizes[a])
            at[a] = Axis(where.start, where.stop, k, len(self.axes))
        value = np.asarray(self.known.leaf(x, at, {}))
        if not value.ndim:
            return value
        value = value.transpose(-1, *range(value.ndim - 1))
        return value.reshape(len(value), *[1] * (len(self.axes) + 1 - value.ndim), *value.shape[1:])


def layers_written_out(e: Expr) -> Expr:
    """Return an expression with sums over layers written as a sum of their terms, one for each layer."""

    def terms(x: Sum) -> Expr:
        index, low, high = next(lim for lim in x.limits if lim[0] == ell)
        rest = [lim for lim in x.limits if lim[0] != ell]
        layers = [x.function.subs(index, i) for i in range(int(low), int(high) + 1)]
        return Add(*[Sum(y, *rest) if rest else y for y in layers])

    result: Expr = e.replace(lambda x: isinstance(x, Sum) and any(lim[0] == ell for lim in x.limits), terms)
    return result


def observable(  # noqa: PLR0913 - arrays, numbers and ranges come from different owners
    e: Equation,
    arrays: Mapping[MemberKey, Array],
    values: Mapping[str, float],
    data: Mapping[str, Any],
    axes: IndexSymbols | None = None,
    first: Mapping[Symbol, int] | None = None,
    literals: Mapping[Slot, Literals] | None = None,
    sizes: Mapping[Any, int] | None = None,
) -> Array:
    """Evaluate the right-hand side of the equation of an observable at all pairs of times.

    Parameters
    ----------
    e
        The equation.
    arrays
        Order parameters and scalars by name, with the axes of their arguments and the replicas last.
    values, data
        Numbers by the names of symbols, and given arrays by name.
    axes
        Indices and times that the result has as axes; by default those of the left-hand side, then t and s.
    first
        First values of indices, 1 by default.
    literals
        Axes of given arrays that are read at integers, with the index value of their first entry.
    sizes
        Numbers of values of those indices that are not an axis of any array in the equation.

    Returns
    -------
    array
        Values along ``axes``, with the replicas as last axis.
    """
    known = KnownArrays(values, data, dict(arrays), dict(first or {}), literals=dict(literals or {}))
    body, axes = layers_written_out(e.rhs), (*axes_of(e.lhs), t, s) if axes is None else axes
    sizes = dict(sizes or {})
    for x in body.atoms(AppliedUndef):
        node = node_of(x)
        array = arrays[node][..., 0] if node in arrays else known.arrays.get(node[0])
        if array is not None:
            args = [a for a in x.args if not a.is_Integer] if node in arrays else x.args
            sizes |= zip(args, array.shape, strict=True)
    shape = [sizes[x] for x in axes]
    places = {x: Axis(0, n, k, len(axes)) for k, (x, n) in enumerate(zip(axes, shape, strict=True))}
    value = np.atleast_1d(known(body, places))
    return np.broadcast_to(value, (*shape, value.shape[-1]))
