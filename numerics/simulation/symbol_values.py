"""Values of symbols in a simulation: numbers, functions, indices, constants, sizes of populations.

:class:`Values` sorts what a user gives, :class:`Tables` reads constants at indices, :class:`PopulationSizes`
gives the number of units at a width, and :func:`given_vectors` makes inputs from kernels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Integer, Lambda, Symbol, sympify
from sympy.core.function import FunctionClass

from derive.calculus.symbols import IndexValues
from derive.program import GaussianMatrix, GivenVector, IndexRange, Population, Program
from derive.program.entrywise import vectors_by_entries
from numerics.errors import SpecError, require_memory
from numerics.experiment.checks import (
    ROUNDING,
    by_name,
    finite_number,
    precision_of,
    real_numbers,
    require_kernel,
)

from .rows import PopulationAtLayer

Array = NDArray[np.float64]


class Missing(ValueError):
    """Error for a field, weight or constant that a formula uses at index values where it has no value."""


@dataclass(frozen=True)
class Values:
    """Numbers for symbols and SymPy functions for activations, by name."""

    numbers: Mapping[str, float]
    functions: Mapping[str, Callable[..., Expr]]

    @staticmethod
    def of(given: Mapping[Any, Any]) -> Values:
        """Return numbers and functions by name, from values whose keys are symbols, functions or their names.

        Raise ValueError for a value that is neither a finite number nor a function, and for a name with two
        different values.

        >>> from sympy import tanh
        >>> v = Values.of({Symbol("P"): 3, "phi": tanh})
        >>> v.integer(Symbol("P") - 1, {}), sorted(v.functions)
        (2, ['phi'])
        """
        numbers: dict[str, float] = {}
        functions: dict[str, Callable[..., Expr]] = {}
        for name, value in by_name("values", given).items():
            if isinstance(value, FunctionClass | Lambda) or (callable(value) and not _is_number(value)):
                functions[name] = value
            elif _is_number(value):
                number = finite_number(f"values.{name}", value)
                numbers[name] = value if isinstance(value, int) else number
            else:
                raise ValueError(f"values[{name!r}] = {value!r}: must be a number, or a function of SymPy")
        return Values(numbers, functions)

    def integer(self, e: Any, env: IndexValues) -> int:
        """Return the integer value of ``e`` for the index values ``env``.

        Raise ``ValueError`` if a symbol has no value or the result is not an integer.
        """
        if isinstance(e, Integer):
            return int(e)
        if e in env:
            return env[e]
        e, table = sympify(e), {}
        for x in e.free_symbols:
            if x not in env and x.name not in self.numbers:
                raise ValueError(f"no value for {x}, which {e} needs: give values[{x.name!r}]")
            number = env[x] if x in env else self.numbers[x.name]
            table[x] = Integer(int(number)) if float(number).is_integer() else sympify(number)
        value = float(e.xreplace(table))
        if not math.isfinite(value) or abs(value - round(value)) > 1e-9:
            raise ValueError(f"{e} = {value}: must be an integer")
        return round(value)

    def members(
        self, ranges: tuple[IndexRange, ...], env: IndexValues | None = None
    ) -> Iterator[dict[Symbol, int]]:
        """Yield every combination of values of the indices of ``ranges``, as a mapping from symbol to value.

        The bounds of a range may depend on the indices before it. The values of other indices in ``env`` are
        part of each mapping.
        """
        known = dict(env or {})
        if not ranges:
            yield known
            return
        first, rest = ranges[0], ranges[1:]
        lower, upper = self.integer(first.lower, known), self.integer(first.upper, known)
        for i in range(lower, upper + 1):
            yield from self.members(rest, {**known, first.index: i})


@dataclass
class Tables:
    """Data that the user gave for the constants of a program, and how the program uses their indices.

    A constant is an array, a mapping or a function. The first entry of an array belongs to the lower
    bound of the range of its index, or to the lowest integer that the program uses as this index if that
    is less. Without a range it belongs to 1, or to this integer if that is less. Mappings have the
    indices as keys (an integer, or a tuple of integers); functions take them as arguments. Ranges below
    are by name and position of the index.

    Attributes
    ----------
    data
        The constants.
    seen
        Range (first, last) of an index whose values are exactly known. The array has one entry for each value
        from the lowest to the highest of this range and of the integers used as this index. If the index is
        also shifted, the array may be longer.
    loose
        Range (first, last) of an index that may be periodic, or that counts time steps.
    """

    data: Mapping[str, Any]
    seen: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    loose: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    literals: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Lowest and highest integer index at each position."""
    shifts: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Range of the index at positions where it is shifted."""
    reads: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    """Lowest and highest index at which a constant is read, at positions whose index is shifted."""

    def note_literal(self, name: str, position: int, value: int) -> None:
        """Record that a program uses a constant with the integer ``value`` as index.

        ``name`` is that of the constant, and ``position`` the position of the index among its arguments.
        """
        low, high = self.literals.get((name, position), (value, value))
        self.literals[name, position] = min(low, value), max(high, value)

    def first(self, name: str, position: int) -> int:
        """Return the index value to which the first entry of the array of a constant belongs.

        ``name`` is that of the constant, and ``position`` the position of the index among its arguments.
        """
        extent = self.extent(name, position) or (1, 1)
        return min(extent[0], self.literals.get((name, position), extent)[0])

    def note_shift(self, name: str, position: int, values: tuple[int, int]) -> None:
        """Record that a program uses a constant with a shifted index, such as a + 1.

        ``values`` are the first and last value of the index a. ``name`` is that of the constant, and
        ``position`` the position of the index among its arguments.
        """
        low, high = self.shifts.get((name, position), values)
        self.shifts[name, position] = min(low, values[0]), max(high, values[1])

    def note(self, name: str, position: int, values: tuple[int, int], *, exact: bool) -> None:
        """Record that a program uses a constant at an index that runs over ``values`` (first, last).

        ``name`` is that of the constant, and ``position`` the position of the index among its arguments. If
        not ``exact``, the index may be periodic or count time steps, and the length of an array is not
        checked.
        """
        table = self.seen if exact else self.loose
        low, high = table.get((name, position), values)
        table[name, position] = (min(low, values[0]), max(high, values[1]))

    def extent(self, name: str, position: int) -> tuple[int, int] | None:
        """Return the first and last value of an index of a constant.

        For a shifted index such as a + 1 they are those of a. None if the program does not determine them.
        ``name`` is that of the constant, and ``position`` the position of the index among its arguments.
        """
        slot = (name, position)
        return self.seen.get(slot, self.loose.get(slot, self.shifts.get(slot)))

    def at(self, name: str, indices: tuple[int, ...], wraps: tuple[bool, ...]) -> Any:
        """Return the value of the constant ``name`` at the given indices.

        ``wraps`` says for each index whether it is periodic; such an index is moved into its range first.
        Raise Missing for a mapping without this entry, and for an index outside of an array. If the program
        also shifts the index at this position, as in a + 1, an index outside of the array is taken modulo
        its length and does not raise, because the value is then multiplied by zero.
        """
        value = self.data[name]
        indices = tuple(
            periodic(i, *x) if wrap and (x := self.extent(name, j)) is not None else i
            for j, (i, wrap) in enumerate(zip(indices, wraps, strict=True))
        )
        if callable(value):
            return value(*indices)
        if isinstance(value, Mapping):
            key = indices[0] if len(indices) == 1 and indices not in value else indices
            if key not in value:
                raise Missing(f"data[{name!r}] has no entry {key}")
            return value[key]
        array = np.asarray(value, dtype=float)
        offsets = []
        for j, i in enumerate(indices):
            offset = i - self.first(name, j)
            # A value at a shifted index beyond the range is multiplied by zero, so that any entry will do.
            if (name, j) in self.shifts:
                offset %= array.shape[j]
            if j >= array.ndim or not 0 <= offset < array.shape[j]:
                raise Missing(f"data[{name!r}] of shape {array.shape}: {name}{indices} lies outside of it")
            offsets.append(offset)
        return array[tuple(offsets)]

    def check(self, name: str, positions: int) -> None:
        """Raise ``ValueError`` if the shape of a constant's array does not fit the ranges of its indices.

        ``positions`` is the number of indices of the constant ``name``.
        """
        value = self.data[name]
        if callable(value) or isinstance(value, Mapping):
            return
        shape = real_numbers(f"data.{name}", value).shape
        if len(shape) < positions:
            raise ValueError(
                f"data[{name!r}] of shape {shape}: must have one axis for each index of {name}, at least "
                f"{positions}"
            )
        for j in range(positions):
            extent, first = self.seen.get((name, j)), self.first(name, j)
            last = self.literals.get((name, j), (first, first))[1]
            if (name, j) in self.reads:
                self.require_entries(name, j, shape, first)
                continue
            if extent is None and last - first >= shape[j]:
                raise ValueError(
                    f"data[{name!r}] of shape {shape}: index {j + 1} of {name} is read at {last}, so axis "
                    f"{j + 1} of the array must have at least {last - first + 1} entries"
                )
            if extent is not None:
                extent = first, max(extent[1], last)
            if extent is not None and shape[j] != extent[1] - extent[0] + 1:
                raise ValueError(
                    f"data[{name!r}] of shape {shape}: index {j + 1} of {name} runs over "
                    f"{extent[0]}..{extent[1]}, so axis {j + 1} of the array must have "
                    f"{extent[1] - extent[0] + 1} entries"
                )

    def require_entries(self, name: str, j: int, shape: tuple[int, ...], first: int) -> None:
        """Raise ``ValueError`` if an array has no entry for some value that a shifted index takes.

        ``shape`` is that of the array of the constant ``name``, ``j`` the axis of the index, and ``first``
        the index value of the first entry.
        """
        low, high = self.reads.get((name, j), (first, first))
        if low < first or high - first >= shape[j]:
            needed = (
                f"the index must be at least {first}"
                if low < first
                else f"axis {j + 1} of the array must have at least {high - first + 1} entries"
            )
            raise ValueError(
                f"data[{name!r}] of shape {shape}: index {j + 1} of {name} takes values {low}..{high} and "
                f"the first entry is at the value {first}, so {needed}"
            )


def periodic(i: int, low: int, high: int) -> int:
    """Return ``i`` moved into the range low..high by a multiple of the period ``high - low + 1``.

    >>> [periodic(i, 1, 3) for i in (0, 1, 3, 4, -1)]
    [3, 1, 3, 1, 2]
    """
    return low + (i - low) % (high - low + 1)


def _is_number(value: Any) -> bool:
    """Return whether the value is an integer or float of Python, or a number of NumPy or SymPy."""
    if isinstance(value, int | float | np.number):
        return True
    return bool(getattr(value, "is_number", False))


NumberEvaluator = Callable[[Any, IndexValues], float]


@dataclass
class PopulationSizes:
    """Numbers of units of the populations of a program at width N.

    A population has round(ratio N) units; a given population (that of the user's input vectors) has as many
    as these have entries, D.

    Attributes
    ----------
    width
        The width N.
    number
        Function that evaluates an expression such as a ratio.
    values
        Numbers and functions for symbols.
    given
        The size D of each given population.
    """

    width: int
    number: NumberEvaluator
    values: Values
    given: Mapping[str, int] = field(default_factory=dict)

    def place(self, p: Population, env: IndexValues) -> PopulationAtLayer:
        """Return the pair (name of a population, its layer) for the index values ``env``.

        The layer is None for a population without layers, or whose layers share their units.
        """
        site = None if p.shared or p.site is None else self.values.integer(p.site, env)
        return p.name, site

    def ratio(self, p: Population, env: IndexValues) -> float:
        """Return the size of a population divided by the width N, for index values ``env``."""
        return self.number(sympify(p.ratio), env)

    def size(self, p: Population, env: IndexValues) -> int:
        """Return the number of units of a population for the index values ``env``.

        Raises ``ValueError`` if it is zero, if a vector does not fit in memory, or if the size of a
        population of input vectors is unknown.
        """
        if p.given:
            if p.name not in self.given:
                raise ValueError(
                    f"the size of the given population {p.name} is unknown, because the program has no given "
                    "vector on it"
                )
            return self.given[p.name]
        ratio = self.ratio(p, env)
        require_memory(8 * ratio * self.width, ("width", self.width), f"for {p.name}", "a smaller width")
        n = round(ratio * self.width)
        if n < 1:
            reason = f"population {p.name} has {ratio:g} * {self.width} units: must be at least one"
            raise SpecError("width", self.width, reason, "a larger width")
        return n

    def scale(self, m: GaussianMatrix, env: IndexValues) -> float:
        """Return the number by which the variance and the updates of the entries of a matrix are divided.

        It is the width N, unless a side of the matrix ``m`` is a population of input vectors (a given one).
        Of input vectors only the inner products per unit x.x/D are known, and the number is D/ratio: then a
        product has the covariance variance * ratio * K_x for data of any dimension D. Raise ``ValueError``
        for a matrix between two given populations.
        """
        ends = [p for p in (m.rows, m.cols) if p.given]
        if len(ends) > 1:
            raise ValueError(f"matrix {m.name} goes from one given population to another: not supported")
        if not ends:
            return float(self.width)
        return self.size(ends[0], env) / self.ratio(ends[0], env)


def given_vectors(program: Program, data: Mapping[str, Any]) -> dict[str, Array]:
    """Return the input vectors of a program by name, as arrays whose last axis counts components.

    ``data[name]`` holds the vectors v themselves, (P, D) or (P, positions, D); ``data[kernel]`` their inner
    products per unit, (P, P) or (P, positions, P, positions), of which a square root is taken.  Raises
    ``ValueError`` if there is neither or both, and for a kernel if several vectors are on one population, or
    if a training rule depends on single entries of the inputs.
    """
    vectors, by_entries = {}, vectors_by_entries(program)
    for v in program.given:
        if (v.name in data) == (v.kernel in data):
            raise ValueError(
                f"give one of data[{v.name!r}] (vectors) and data[{v.kernel!r}] (their kernel), not both"
            )
        if v.kernel in data and v.name in by_entries:
            raise ValueError(
                f"data[{v.kernel!r}]: {by_entries[v.name]} has a training rule whose steps depend on "
                f"the entries of its inputs; give data[{v.name!r}], the vectors"
            )
        rivals = [w.name for w in program.given if w.population.name == v.population.name and w != v]
        if v.kernel in data and rivals:
            raise ValueError(
                f"{v.name} and {', '.join(rivals)} are vectors on {v.population.name}: give the vectors "
                "themselves, because a kernel of one of them does not determine their inner products"
            )
        vectors[v.name] = _vectors(v, data)
    return vectors


def given_sizes(program: Program, vectors: Mapping[str, Array]) -> dict[str, int]:
    """Return the number of components D of the input vectors on each given population, by its name.

    Raises ``ValueError`` if vectors on one population differ in this number.
    """
    sizes: dict[str, int] = {}
    for v in program.given:
        size = vectors[v.name].shape[-1]
        if sizes.setdefault(v.population.name, size) != size:
            raise ValueError(f"data[{v.name!r}]: vectors on {v.population.name} must all have {size} entries")
    return sizes


def _vectors(v: GivenVector, data: Mapping[str, Any]) -> Array:
    """Return the input vectors ``v``, ``(..., D)``, from data or from a square root of their kernel.

    D is the number of components. Raises ValueError for vectors without components, and for a kernel that is
    not symmetric and positive semidefinite.
    """
    if v.name in data:
        x = real_numbers(f"data.{v.name}", data[v.name])
        if x.ndim < 1 or x.shape[-1] < 1:
            raise ValueError(
                f"data[{v.name!r}] of shape {x.shape}: the last axis must hold the entries of a vector, one "
                "or more"
            )
        return x
    key = f"data.{v.kernel}"
    kernel = real_numbers(key, data[v.kernel])
    kernel = require_kernel(key, kernel, max(precision_of(data[v.kernel]), ROUNDING))
    half = kernel.shape[: kernel.ndim // 2]
    count = int(np.prod(half, dtype=int))
    root = inputs_from_kernel(kernel.reshape(count, count))
    return root.reshape(*half, root.shape[-1])


def inputs_from_kernel(kernel: Array) -> Array:
    """Return inputs x with the kernel x x^T/D = kernel.

    Parameters
    ----------
    kernel : array, shape (P, P)
        Symmetric positive semidefinite kernel.

    Returns
    -------
    array, shape (P, D)
        Inputs, where D is the rank of the kernel; one column of zeros for a kernel that is zero.

    Raises
    ------
    ValueError
        If the kernel is not symmetric positive semidefinite.

    Notes
    -----
    W^0 is Gaussian, so that networks on any inputs with this kernel have the same distribution, unless a
    training rule depends on single entries of W^0, as that of Adam.

    Examples
    --------
    >>> x = inputs_from_kernel(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> bool(np.allclose(x @ x.T / x.shape[1], [[2.0, 1.0], [1.0, 2.0]]))
    True
    """
    numbers = real_numbers("kernel", kernel)
    if numbers.ndim != 2:
        raise SpecError("kernel", str(kernel), f"has shape {numbers.shape}", "a matrix of shape (P, P)")
    values, vectors = np.linalg.eigh(require_kernel("kernel", numbers, ROUNDING))
    top = max(float(values[-1]), 0.0)
    cutoff = len(values) * np.finfo(float).eps * top
    kept = values > cutoff
    if not kept.any():
        return np.zeros((len(kernel), 1))
    return np.asarray(vectors[:, kept] * (np.sqrt(values[kept]) * np.sqrt(kept.sum())))
