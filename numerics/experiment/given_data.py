"""Checks of arrays and numbers given in Python against the indices of the program.

``checked_arrays`` returns float64 arrays of the shapes that the program reads, ``checked_numbers`` one number
for each name.  :class:`~numerics.experiment.problem.Problem` is made from both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from itertools import chain

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sympy import Expr, Function, Integer, Piecewise, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.intervals import BoundedParameter
from derive.calculus.symbols import IndexRange, expression, s, spelled, t
from derive.errors import ProgramError
from derive.program import Mean, Program
from derive.program.entrywise import vectors_by_entries
from derive.program.naming import range_errors
from derive.program.nonlinear import NonlinearRule
from derive.program.parts import gaussian, parameter
from derive.program.program import layers_of, stated_loss
from derive.program.shifted_constants import Slot, shifted_reads
from numerics.errors import SpecError
from numerics.experiment.checks import by_name, finite_number, precision_of, real_numbers, require_kernel
from numerics.experiment.integer_indices import Literals, literals_of, require_entries, require_literals

Array = NDArray[np.float64]


def checked_arrays(
    program: Program,
    arrays: Mapping[str, ArrayLike],
    times: int,
    sizes: Mapping[str, float],
    numbers: Mapping[str, float] | None = None,
) -> tuple[dict[str, Array], dict[str, float]]:
    """Return the arrays of a program as float64, and all sizes: ``sizes`` and those that follow from arrays.

    ``times`` is the number of times that are solved for, ``sizes`` are sizes given as numbers, by name, such
    as "P", and ``numbers`` those of other symbols, which the ends of sums may contain. The array of an
    attribute has one number for each unit of a finite sample that represents the population. Input vectors
    whose entries an entrywise rule reads are given as arrays (P, D); the result holds them and their kernel.

    Raises SpecError for an array that is missing or that the program does not read, for entries that are not
    finite real numbers or (except in kernels) whose squares overflow, for a shape that does not fit the
    indices, for a size that is not a positive integer, and for a kernel that is not symmetric positive
    semidefinite.

    >>> from derive.program import mlp
    >>> checked_arrays(mlp(2), {"K_x": [[1.0]], "y": [1.0, 2.0]}, 3, {})
    Traceback (most recent call last):
    numerics.errors.SpecError: arrays.y: has shape (2,), but arrays.K_x says P = 1 (accepted: shape (1,))
    """
    kernels, attributes = {x.kernel for x in program.given}, {x.name for x in program.attributes}
    arrays, vectors = _with_kernels(program, arrays)
    known = names_of_arrays(program)
    for name in arrays:
        if name not in known:
            raise _unknown_array(program, name, known)
    for name in sorted(known - set(arrays)):
        raise SpecError(
            f"arrays.{name}", None, "is missing", f"an array of numbers{or_a_weight(program, name)}"
        )
    for name, size in sizes.items():
        require_size(f"numbers.{name}", size)
    shapes = _Shapes(program, times, {k: (v, f"numbers.{k}") for k, v in sizes.items()})
    shapes.shifted = shifted_reads(program, {k: int(v) for k, v in sizes.items()})
    shapes.literals = literals = literals_in(program, sizes)
    shapes.numbers = dict(numbers or {})
    shifts = _shifted_times(program)
    checked = {}
    # Kernels come first (False before True), because they determine the number of samples.
    for name in sorted(arrays, key=lambda name: name not in kernels):
        value = shapes.checked(name, real_numbers(f"arrays.{name}", arrays[name]))
        if name in kernels:
            value = require_kernel(f"arrays.{name}", value, precision_of(arrays[name]))
        else:
            _require_squares(name, value)
        if name in attributes and value.ndim == 2 and value.shape[1] == 1:
            value = value[:, 0]
        if name in attributes and value.ndim != 1:
            raise SpecError(
                f"arrays.{name}", None, f"has shape {value.shape}", "one number for each unit, shape (units,)"
            )
        for axis, index in shifts.get(name, ()):
            _require_times(name, axis, index, value.shape, times)
        cut = name in program.tables or (
            program.rule.discrete and name in shapes.indices and name not in shifts
        )
        checked[name] = shapes.at_all_times(name, value) if cut else value
    lengths = {name: value.shape for name, value in checked.items()}
    for name in checked.keys() & shapes.indices.keys():
        shapes.compare(name, lengths[name])  # again, because later arrays may give sizes such as P in P + 1
    require_literals(literals, lengths)
    require_entries(shapes.shifted, literals, lengths)
    checked = {name: checked[name] for name in arrays} | vectors
    return checked, {k: float(n) for k, (n, _) in shapes.sizes.items()}


def require_shapes(
    program: Program, data: Mapping[str, Array], values: Mapping[str, float], times: int = 0
) -> None:
    """Raise SpecError if an array has another number of entries than the index at which it is read.

    ``data`` are arrays by name, ``values`` numbers by the names of symbols, which include sizes such as "P",
    and ``times`` is the number of times. Axes of times may be longer; with ``times=0`` they are not compared.
    An array with another number of axes than indices is not compared.
    Messages name arrays as ``data.NAME`` and numbers as ``values.NAME``.

    >>> from derive.program import mlp
    >>> require_shapes(mlp(2), {"y": np.ones(1)}, {"P": 2})
    Traceback (most recent call last):
    numerics.errors.SpecError: data.y: has shape (1,), but values.P says P = 2 (accepted: shape (2,))
    """
    extents = chain.from_iterable(_extents(program).values())
    named = {x.name for extent in extents for x in extent.count.free_symbols if isinstance(x, Symbol)}
    sizes = {name: value for name, value in values.items() if name in named and float(value).is_integer()}
    shapes = _Shapes(program, times, {k: (v, f"values.{k}") for k, v in sizes.items()}, prefix="data")
    shapes.shifted = shifted_reads(program, {k: int(v) for k, v in sizes.items()})
    shapes.literals = literals_in(program, sizes)
    shapes.numbers = dict(values)
    kernels = {x.kernel for x in program.given}
    for name in sorted(data, key=lambda name: name not in kernels):
        if data[name].ndim == len(shapes.indices.get(name, ())):
            shapes.compare(name, data[name].shape)


def _shifted_times(program: Program) -> dict[str, list[tuple[int, Expr]]]:
    """Return the axes of arrays that are read at shifted times, such as ``b(t - 1)``, by name.

    Each axis comes with the time at which it is read. Tables of training rules are left out, and quantities
    with cases, which may read an array at some times only.
    """
    kernels = {x.name: x.kernel for x in program.given}
    shifted: dict[str, list[tuple[int, Expr]]] = {}
    for e in (d.rhs for d in program.definitions if not d.rhs.has(Piecewise)):
        for use in sorted(e.atoms(AppliedUndef), key=spelled):
            name = str(use.func)
            if name in kernels or name in program.constants:
                times = [(k, a) for k, a in enumerate(use.args) if a.has(t, s) and not a.is_Symbol]
                shifted.setdefault(kernels.get(name, name), []).extend(times)
    return {name: times for name, times in shifted.items() if times}


def _require_times(name: str, axis: int, index: Expr, shape: tuple[int, ...], times: int) -> None:
    """Raise SpecError if an array has no entry at a shifted time, because times do not wrap around.

    ``index`` is the time at which the axis is read, such as ``t - 1``, in the definition of a quantity at the
    times t = 0, 1, ..., ``times - 1``.
    """
    ends = [index.xreplace({x: Integer(n) for x in (t, s)}) for n in (0, times - 1)]
    if not all(x.is_Integer for x in ends):
        return
    low, high = int(min(ends)), int(max(ends))
    if low < 0:
        reason = f"is read at {index}, whose smallest value is {low}, and its first entry is that of time 0"
        raise SpecError(f"arrays.{name}", None, reason, "an array that is read at times from 0 on")
    if axis < len(shape) and high >= shape[axis]:
        reason = f"has shape {shape}, but it is read at {index}, whose largest value is {high}"
        raise SpecError(f"arrays.{name}", None, reason, f"at least {high + 1} entries along axis {axis + 1}")


def _unknown_array(program: Program, name: str, known: set[str]) -> SpecError:
    """Return the error for an array that a program does not read; ``known`` are those that it reads."""
    kernel = next((x.kernel for x in program.given if x.name == name), None)
    if kernel is None:
        accepted = ", ".join(sorted(known)) or "no arrays"
        return SpecError(f"arrays.{name}", None, "is not an array of the program", accepted)
    reason = "holds the entries of a given vector, and no matrix on this vector has an entrywise rule"
    accepted = f"arrays.{kernel}, the means over entries of the products of two such vectors"
    return SpecError(f"arrays.{name}", None, reason, accepted)


def _with_kernels(
    program: Program, arrays: Mapping[str, ArrayLike]
) -> tuple[dict[str, ArrayLike], dict[str, Array]]:
    """Return the arrays with kernels ``x.x/D`` in place of input vectors x, and these vectors by name.

    Only vectors whose entries an entrywise training rule reads are replaced; others are given as kernels.
    Raises SpecError if such a vector is missing, if its kernel is given instead, and for an array without an
    axis for samples and one for entries.
    """
    kernels = {x.name: x.kernel for x in program.given}
    completed, vectors = dict(arrays), dict[str, Array]()
    for name, weight in vectors_by_entries(program).items():
        key, kernel = f"arrays.{name}", kernels[name]
        reason = f"{weight} moves by a rule whose steps depend on the entries of its inputs"
        if kernel in completed:
            raise SpecError(f"arrays.{kernel}", None, f"is given, and {reason}", f"{key}, the inputs (P, D)")
        if name not in completed:
            raise SpecError(key, None, f"is missing: {reason}", "the inputs (P, D)")
        x = vectors[name] = real_numbers(key, completed.pop(name))
        if x.ndim < 2 or x.shape[-1] < 1:
            raise SpecError(key, None, f"has shape {x.shape}", "the inputs (P, D)")
        flat = x.reshape(-1, x.shape[-1])
        completed[kernel] = (flat @ flat.T / x.shape[-1]).reshape(*x.shape[:-1], *x.shape[:-1])
    return completed, vectors


def or_a_weight(program: Program, name: str) -> str:
    """Return a hint for the message about a missing array: ``name`` may be meant as a vector of weights.

    The hint is empty unless the name occurs in the equation of a field or inside of a mean over units.
    """
    fields = {x.name for x in program.fields}
    vectors = [d.rhs for d in program.definitions if d.name in fields]
    vectors += [mean for d in program.definitions for mean in d.rhs.atoms(Mean)]
    used = {
        str(x.func) if isinstance(x, AppliedUndef) else str(x)
        for e in vectors
        for x in e.atoms(AppliedUndef, Symbol)
    }
    return f"; if {name} is a vector of weights, list it in weights or frozen" if name in used else ""


def names_of_arrays(program: Program) -> set[str]:
    """Return the names of the arrays that a program reads.

    For a given input vector the result holds the name of its kernel, not of the vector.
    """
    kernels, attributes = (x.kernel for x in program.given), (x.name for x in program.attributes)
    return {*program.constants, *kernels, *program.tables, *attributes}


def _require_squares(name: str, value: Array) -> None:
    """Raise SpecError for an array with numbers whose squares overflow, because errors are squared.

    The error names the array ``arrays.name``.
    """
    with np.errstate(over="ignore"):
        if not np.isfinite(np.vdot(value, value)):
            raise SpecError(f"arrays.{name}", None, "has squares that overflow", "numbers of order one")


def literals_in(program: Program, sizes: Mapping[str, float]) -> dict[Slot, Literals]:
    """Return the first index value and the integers that are read, for axes of arrays by (array, axis).

    Only axes that are read at integers, or at indices with a known first value, are included. An example is
    the second axis in ``y(mu, 2)``. ``sizes`` maps names of symbols of sizes to numbers.
    """
    return literals_of(_uses(program), _lowest(program, sizes), {x.kernel for x in program.given})


def checked_numbers(numbers: Mapping[Symbol | str, float]) -> dict[str, float]:
    """Return numbers by name; raise SpecError for one that is not a finite real number.

    The same holds for a name that is given twice with different values.

    >>> checked_numbers({"eta": 1})
    {'eta': 1.0}
    """
    named = by_name("numbers", numbers)
    return {name: finite_number(f"numbers.{name}", value) for name, value in named.items()}


def require_domain(program: Program, symbol: Symbol, value: float) -> None:
    """Raise SpecError for a number outside of the domain of its symbol.

    The check covers sizes that are not positive integers, negative numbers for a symbol that is positive or
    nonnegative, and zero where a definition divides by the symbol.
    """
    key = f"numbers.{symbol.name}"
    if symbol.is_integer:
        require_size(key, value)
    if symbol.is_nonnegative and value < 0:
        raise SpecError(key, value, "must not be negative", "a number >= 0")
    if value == 0 and any(_divides(d.rhs, symbol) for d in program.definitions):
        accepted = "a positive number" if symbol.is_nonnegative else "a number other than 0"
        raise SpecError(key, value, "is zero, and a definition divides by it", accepted)


def require_constants(program: Program, numbers: Mapping[Symbol, float]) -> None:
    """Raise SpecError for a number that makes a rate, a variance or a correlation invalid.

    ``numbers`` are inserted into each parameter of the training rules and weights of the program. The error
    names the first number in a parameter that is then refused, such as a variance that is negative.
    """
    weights = (*map(gaussian, program.matrices), *map(parameter, program.vectors))
    rules = {program.rule, *(w.rule for w in program.trained())}
    bounded = (y for rule in rules for y in getattr(rule, "bounded", ()))
    for x in (*rules, *weights, *filter(None, [program.descent]), *bounded):
        stated = {k.name: getattr(x, k.name) for k in fields(x)} if is_dataclass(x) else {}
        for name, e in stated.items():
            symbols = sorted((y for y in numbers if isinstance(e, Expr) and e.has(y)), key=spelled)
            if not symbols:
                continue
            try:
                changed = replace(x, **{name: e.xreplace({y: expression(numbers[y]) for y in symbols})})
                if isinstance(changed, BoundedParameter):
                    changed.require()
            except ProgramError as error:
                reason, _, accepted = str(error).partition(": must be ")
                raise SpecError(
                    f"numbers.{symbols[0]}", numbers[symbols[0]], f"gives {reason}", accepted
                ) from error


def require_ranges(program: Program, numbers: Mapping[Symbol, float]) -> None:
    """Raise SpecError for a number that leaves a range of an index empty or gives it a fraction as an end.

    Ranges of layers are not checked.
    """
    known = {x: expression(int(n) if float(n).is_integer() else n) for x, n in numbers.items()}
    ranges = [r for d in program.definitions for r in d.ranges]
    ranges += [r for m in map(gaussian, program.matrices) for r in m.others]
    ranges += [r for v in map(parameter, program.vectors) for r in v.indices]
    ranges += [
        IndexRange(index, *ends)
        for e in (*(d.rhs for d in program.definitions), *stated_loss(program))
        for total in e.atoms(Sum)
        for index, *ends in total.limits
        if len(ends) == 2
    ]
    between = layers_of(program)
    for r in (x for x in ranges if x.index not in between):
        symbols = sorted(
            (expression(r.lower).free_symbols | expression(r.upper).free_symbols) & {*known}, key=str
        )
        for reason in range_errors(r.subs(known)) if symbols else ():
            raise SpecError(
                f"numbers.{symbols[0]}",
                numbers[symbols[0]],
                f"is not a valid size: {reason}",
                "a number for which every range has values",
            )


def require_size(key: str, value: float) -> None:
    """Raise SpecError for a ``value`` that is not an integer of at least one; the error names ``key``."""
    if not (value.is_integer() and value >= 1):
        raise SpecError(key, value, "is not a size", "an integer >= 1")


def _divides(e: Expr, symbol: Symbol) -> bool:
    """Return whether the symbol occurs in the denominator of an expression."""
    return any(symbol == x for x in e.as_numer_denom()[1].free_symbols) if e.has(symbol) else False


@dataclass
class _Shapes:
    """Check of the shapes of arrays against the indices of a program.

    ``sizes`` holds, by the name of its symbol, each size known so far and the key that gave it; ``numbers``
    are those of other symbols; ``times`` is the number of times; ``shifted`` are axes that are read at
    shifted indices, with the lowest and highest value read; ``literals`` are axes that are read at integers.
    Messages name an array ``prefix.NAME``.
    """

    program: Program
    times: int
    sizes: dict[str, tuple[float, str]] = field(default_factory=dict)
    shifted: dict[Slot, tuple[int, int]] = field(default_factory=dict)
    literals: Mapping[Slot, Literals] = field(default_factory=dict)
    numbers: dict[str, float] = field(default_factory=dict)
    prefix: str = "arrays"

    def __post_init__(self) -> None:
        self.extents = _extents(self.program)
        self.indices = _indices(self.program)

    def checked(self, name: str, value: Array) -> Array:
        """Return the array with one axis for each index; an extra last axis of length one is dropped.

        Raise SpecError if the shape does not fit the indices. An array that no equation or rule of the
        program reads with indices, such as that of an attribute, is returned unchanged.
        """
        key, indices = f"{self.prefix}.{name}", self.indices.get(name)
        if indices is None:
            return value
        if value.ndim == len(indices) + 1 and value.shape[-1] == 1:
            value = value[..., 0]
        if value.ndim != len(indices) or value.size == 0:
            raise SpecError(key, None, f"has shape {value.shape}", self.accepted(name))
        self.compare(name, value.shape)
        return value

    def compare(self, name: str, shape: tuple[int, ...]) -> None:
        """Compare each axis of the array ``name`` with the values of its index.

        Axes that are read at shifted indices are left out. Raise SpecError if the shape does not fit.
        """
        for axis, index in enumerate(self.indices.get(name, ())):
            if (name, axis) not in self.shifted:
                self._match_size(name, axis, index, shape)

    def _match_size(self, name: str, axis: int, index: Expr, shape: tuple[int, ...]) -> None:
        """Record the length of an axis as the size of its index, or compare it with the known size.

        ``name`` is that of the array, ``index`` the index of the axis, and ``shape`` the shape of the array.
        Raise SpecError if the length differs from a known size, or if an axis of times is too short; it may
        be longer than needed. An axis that is read only at integers is not compared here.
        """
        key, size, shape_text = f"{self.prefix}.{name}", shape[axis], f"has shape {shape}, but"
        if index in (t, s):
            # Arrays indexed by the time s of an update need one entry less than those indexed by t, because
            # there is no update at the last time.
            needed = self.times - (index == s)
            if size < needed:
                raise SpecError(
                    key,
                    None,
                    f"{shape_text} the theory uses its entries at {needed} times",
                    f"at least {needed} entries along time",
                )
            return
        if isinstance(index, Integer):
            return
        extents = self.extents.get((name, axis), ())
        if len(extents) == 1 and isinstance(extents[0].count, Symbol):
            self.sizes.setdefault(extents[0].count.name, (size, key))
        needed, widest = self.largest(name, axis)
        if needed in (None, size):
            return
        if widest is None:
            first = self.literals[name, axis].first
            last = first + int(needed or 0) - 1
            reason = f"{shape_text} index {axis + 1} of {name} takes the values {first}..{last}"
        elif isinstance(widest.count, Integer):
            reason = f"{shape_text} the index {widest.index} takes {needed} values"
        elif isinstance(widest.count, Symbol):
            by = self.sizes[widest.count.name][1]
            reason = (
                f"has shape {shape}" if by == key else f"{shape_text} {by} says {widest.count} = {needed}"
            )
        else:
            reason = f"{shape_text} the index {widest.index} takes {widest.count} = {needed} values"
        raise SpecError(key, None, reason, self.accepted(name))

    def largest(self, name: str, axis: int) -> tuple[int | None, _Extent | None]:
        """Return the number of entries that an axis must have, and the index with this number of values.

        The number is None if it is not known. The index is None then, and if the axis is read at an integer
        beyond the values of all indices.
        """
        sizes = self.numbers | {x: n for x, (n, _) in self.sizes.items()}
        largest: tuple[int | None, _Extent | None] = None, None
        for extent in self.extents.get((name, axis), ()):
            count = _with_numbers(extent.count, sizes)
            if count.is_Integer and (largest[0] is None or count > largest[0]):
                largest = int(count), extent
        read = self.literals.get((name, axis), Literals())
        if largest[0] is not None and read.read and max(read.read) - read.first >= largest[0]:
            return max(read.read) - read.first + 1, None
        return largest

    def at_all_times(self, name: str, value: Array) -> Array:
        """Return an array, such as a table of a training rule, with one entry for each time on its time axes.

        Longer axes are cut. Shorter ones are extended by copies of their last entry, which no equation reads.
        """
        is_time = [x in (t, s) for x in self.indices[name]]
        longer = [
            (0, max(0, self.times - n) if timed else 0) for n, timed in zip(value.shape, is_time, strict=True)
        ]
        cut = tuple(slice(self.times if timed else None) for timed in is_time)
        return np.pad(value, longer, mode="edge")[cut]

    def accepted(self, name: str) -> str:
        """Return in words the shape that the array ``name`` must have, such as "shape (3, P)"."""
        axes = []
        for axis, index in enumerate(self.indices[name]):
            extents = self.extents.get((name, axis), ())
            needed = self.times if index in (t, s) else self.largest(name, axis)[0]
            axes.append(str(needed or (extents[0].count if extents else index)))
        return f"shape ({', '.join(axes)}{',' if len(axes) == 1 else ''})"


@dataclass(frozen=True)
class _Extent:
    """Index at which an axis of an array is read, and its number of values, an expression of sizes."""

    index: Symbol
    count: Expr


def _extents(program: Program) -> dict[Slot, tuple[_Extent, ...]]:
    """Return the indices at which each axis of an array is read, with numbers of values, by (array, axis).

    An index may have several ranges. Then the number counts from the lowest start of all its ranges to the
    end of the range in the definition, update or sum that reads the array. An end that contains another index
    counts at the last value of that index.
    """
    kernels = {x.name: x.kernel for x in program.given}
    lines = [(d.rhs, [(r.index, r.lower, r.upper) for r in d.ranges]) for d in program.definitions]
    every = [x for _, ranges in lines for x in ranges]
    lines += [
        (expression(u.coefficient), [(r.index, r.lower, r.upper) for r in u.over])
        for w in program.trained()
        for u in w.update.terms
    ]
    lowest: dict[Expr, Expr] = {}
    for index, lower, _ in every:
        low = lowest.setdefault(index, lower)
        if lower.is_Integer and low.is_Integer:
            lowest[index] = min(low, lower)
    extents: dict[Slot, dict[_Extent, None]] = {}
    for e, ranges in lines:
        for use, scope in _uses_in(e, {index: (lower, upper) for index, lower, upper in ranges}):
            name = str(use.func)
            arguments = (*use.args, *use.args) if name in kernels else use.args
            for axis, index in enumerate(arguments):
                if index in scope:
                    count = _count(index, lowest.get(index), scope)
                    extents.setdefault((kernels.get(name, name), axis), {})[_Extent(index, count)] = None
    for name, indices in _indices(program).items():
        for axis, index in enumerate(indices):
            spans = [upper - lower + 1 for x, lower, upper in every if x == index]
            if (name, axis) not in extents and spans:
                extents[name, axis] = {_Extent(index, spans[-1]): None}
    return {slot: tuple(found) for slot, found in extents.items()}


Scope = Mapping[Expr, tuple[Expr, Expr]]
"""First and last value of each index that an expression may contain."""


def _uses_in(e: Expr, scope: Scope) -> Iterator[tuple[AppliedUndef, Scope]]:
    """Yield each function of indices in an expression, with the ranges of the indices at its place.

    ``scope`` maps the free indices of the expression to their ranges (first value, last value). Inside of a
    sum the ranges of its indices are added. The second item of each pair is this mapping.
    """
    if isinstance(e, Sum):
        inner = {**scope, **{index: (lower, upper) for index, lower, upper in e.limits}}
        yield from _uses_in(e.function, inner)
        return
    if isinstance(e, AppliedUndef):
        yield e, scope
    for x in e.args:
        yield from _uses_in(x, scope)


def _count(index: Expr, lowest: Expr | None, scope: Scope) -> Expr:
    """Return the number of values of an index, from its lowest start to its end in ``scope``.

    ``lowest`` is the lowest start of all ranges of the index, if it has any.
    """
    lower, upper = scope[index]
    if lowest is not None:
        lower = min(lowest, lower) if lowest.is_Integer and lower.is_Integer else lower
    others = [x for x in scope if x != index]
    count: Expr = upper - lower + 1
    for _ in others:
        count = count.subs({x: scope[x][1] for x in others if count.coeff(x) == 1})
    return count


def _indices(program: Program) -> dict[str, tuple[Expr, ...]]:
    """Return the indices with which a program reads each array, one for each axis, by the name of the array.

    A kernel has the indices of its vector twice. If an array is read several times, the reading with the
    most symbols counts.
    """
    indices: dict[str, tuple[Expr, ...]] = {}
    for use in _uses(program):
        name, arguments = str(use.func), use.args
        if name not in indices or _plain(arguments) > _plain(indices[name]):
            indices[name] = arguments
    return indices


def _uses(program: Program) -> Iterator[AppliedUndef]:
    """Yield each use of a given array in a program, such as ``y(mu)``, sorted by its text.

    Attributes of units are left out. Uses in coefficients of updates come last. Coefficients of training
    rules are read at the time s in place of t. A given vector ``x(mu)`` is replaced by its kernel,
    ``K_x(mu, mu)``.
    """
    kernels = {x.name: x.kernel for x in program.given}
    rules = {w.rule for w in program.trained()}
    expressions = [d.rhs for d in program.definitions]
    for x in rules:
        # A rule with a `system` states its coefficients as functions of t. They are read at the times s of
        # updates, and therefore not at the last time, so that t is replaced by s.
        if hasattr(x, "system"):
            stated = x.coefficients if isinstance(x, NonlinearRule) else x.system.coefficients
            expressions += [e.xreplace({t: s}) for e in stated]
        else:
            expressions += [*x.memory(t, s), x.noise(t, s)]
    coefficients = [u.coefficient for w in program.trained() for u in w.update.terms]
    uses = (
        sorted((x for e in es for x in e.atoms(AppliedUndef)), key=spelled)
        for es in (expressions, coefficients)
    )
    for use in chain.from_iterable(uses):
        name, arguments = str(use.func), use.args
        if name in kernels:
            name, arguments = kernels[name], (*arguments, *arguments)
        elif name not in program.constants and name not in program.tables:
            continue
        yield Function(name)(*arguments)


def _with_numbers(e: Expr, numbers: Mapping[str, float]) -> Expr:
    """Return an expression with numbers in place of symbols, by name; whole numbers become integers."""
    known = {x: numbers[x.name] for x in e.free_symbols if x.name in numbers}
    result: Expr = e.xreplace(
        {x: expression(int(n) if float(n).is_integer() else n) for x, n in known.items()}
    )
    return result


def _lowest(program: Program, sizes: Mapping[str, float]) -> dict[Symbol, int]:
    """Return the first value of each index of a program, the lowest if an index has several ranges.

    ``sizes`` are numbers for the symbols of sizes, by name. An index whose first value is not an integer then
    is left out.
    """
    limits = [
        *((r.index, r.lower) for d in program.definitions for r in d.ranges),
        *((x[0], x[1]) for d in program.definitions for total in d.rhs.atoms(Sum) for x in total.limits),
    ]
    lowest: dict[Symbol, int] = {}
    for index, lower in limits:
        first = _with_numbers(lower, sizes).subs(lowest)
        if first.is_Integer:
            lowest[index] = min(lowest.get(index, int(first)), int(first))
    return lowest


def _plain(indices: tuple[Expr, ...]) -> int:
    """Return the number of indices that are symbols, not numbers or sums."""
    return sum(isinstance(x, Symbol) for x in indices)
