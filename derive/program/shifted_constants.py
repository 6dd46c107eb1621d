"""Integers at which constants with shifted indices are evaluated, such as ``y(mu, p + 1)``.

Indices of fields, scalars and given vectors are periodic; arrays of constants are not, so that each value
that is used needs an entry. The numerics compares these values with the lengths of the arrays.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from sympy import Expr, Symbol
from sympy.concrete.summations import Sum
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, expression, s, t
from derive.program.parts import ranges_of_loss
from derive.program.program import Program

Slot = tuple[str, int]
"""The name of an array and the number of one of its axes, from 0."""


def shifted_reads(program: Program, sizes: Mapping[str, Any]) -> dict[Slot, tuple[int, int]]:
    """Return the lowest and the highest index at which an array of constants is used, if an index is shifted.

    Keys are pairs (name of the array, number of the axis): ``y(p + 1)`` for p = 1..3 uses axis 0 of y at 2 to
    4. ``sizes`` maps names of symbols to numbers. For a program with a loss, only the loss and the forward
    pass count; a derived error or gradient may contain ``y(p - 1)`` because an output is periodic. Terms
    multiplied by zero do not count, and neither do expressions that use the axis without a shifted index.
    Axes whose indices have unknown ends are left out.

    >>> from sympy import Function, Symbol
    >>> from derive.program import Definition, GradientDescent, Program
    >>> p, y, f = Symbol("p", integer=True), Function("y"), Function("f")
    >>> line = Definition(f(p, t), y(p + 1), (IndexRange(p, expression(1), expression(3)),))
    >>> program = Program("next", GradientDescent(1), (), (line,), scalars=("f",), constants=("y",))
    >>> shifted_reads(program, {})
    {('y', 0): (2, 4)}
    """
    extremes: dict[Slot, tuple[int, int]] = {}
    for e, ranges in _written(program):
        slots, indices = _shifted(e, {*program.constants})
        if not slots:
            continue
        numbers = {x: expression(sizes[x.name]) for x in _symbols(e, ranges) if x.name in sizes}
        for slot, value in _values(e.xreplace(numbers), ranges, numbers, slots, indices):
            low, high = extremes.get(slot, (value, value))
            extremes[slot] = min(low, value), max(high, value)
    return extremes


def _written(program: Program) -> list[tuple[Expr, tuple[IndexRange, ...]]]:
    """Return the expressions that the user wrote (not derived ones), with the ranges of their indices.

    They are the loss and the forward pass. For a program without a loss they are all definitions and the
    coefficients of updates.
    """
    lines = [(d.rhs, d.ranges) for d in program.definitions]
    if program.loss is None:
        return lines + [
            (expression(u.coefficient), u.over) for w in program.trained() for u in w.update.terms
        ]
    names, forward = _names(program.loss), set[str]()
    while names - forward:
        forward |= names
        names = {x for d in program.definitions if d.name in forward for x in _names(d.rhs)}
    written = [(d.rhs, d.ranges) for d in program.definitions if d.name in forward]
    return [*written, (program.loss, ranges_of_loss(program.definitions, program.loss))]


def _names(e: Expr) -> set[str]:
    """Return the names of the functions in an expression."""
    return {str(a.func) for a in e.atoms(AppliedUndef)}


def _symbols(e: Expr, ranges: tuple[IndexRange, ...]) -> set[Any]:
    """Return the symbols in an expression and in the ends of ranges."""
    symbols: set[Any] = e.free_symbols.union(
        *(expression(b).free_symbols for r in ranges for b in (r.lower, r.upper))
    )
    return symbols


def _shifted(e: Expr, constants: set[str]) -> tuple[set[Slot], set[Symbol]]:
    """Return the axes of constant arrays at which ``e`` has a shifted index, such as ``y(mu, p + 1)``.

    An axis is a pair (name of the array, number of the argument). The second value are the symbols in the
    shifted indices, here p. ``constants`` are the names of the arrays.
    """
    slots, indices = set(), set()
    for a in (a for a in e.atoms(AppliedUndef) if str(a.func) in constants):
        for k, x in enumerate(a.args):
            if not (x.is_Symbol or x.is_number or x.has(AppliedUndef, t, s)):
                slots.add((str(a.func), k))
                indices |= x.free_symbols
    return slots, indices


def _values(
    e: Expr,
    ranges: tuple[IndexRange, ...],
    numbers: Mapping[Any, Expr],
    slots: set[Slot],
    indices: set[Symbol],
) -> Iterator[tuple[Slot, int]]:
    """Yield pairs (axis, integer): the values of the index at which an axis of a constant array is used.

    The axes, pairs (name, number of the argument), are those in ``slots``, and ``indices`` the symbols in
    their shifted indices. These symbols take all values in ``ranges`` or in sums of ``e``; ``numbers`` are
    the values of symbols in the ends of ranges.
    """
    sums = [x for x in e.atoms(Sum) if any(limit[0] in indices for limit in x.limits)]
    free = [r for r in ranges if r.index in indices & e.free_symbols]
    for at in _members(free, numbers):
        here = e.subs(at)  # unlike xreplace, subs does not replace the bound indices of sums
        if sums:
            here = here.replace(lambda x: isinstance(x, Sum) and bool(indices & _over(x)), lambda x: x.doit())
        for a in here.atoms(AppliedUndef):
            for k, x in enumerate(a.args):
                if (str(a.func), k) in slots and x.is_Integer:
                    yield (str(a.func), k), int(x)


def _over(x: Sum) -> set[Any]:
    """Return the bound variables of a sum."""
    return {limit[0] for limit in x.limits}


def _members(ranges: list[IndexRange], known: Mapping[Any, Expr]) -> Iterator[dict[Any, Expr]]:
    """Yield every assignment of integers to the indices; nothing if an end of a range is not an integer.

    ``known`` are the values of symbols.
    """
    if not ranges:
        yield {}
        return
    first, *rest = ranges
    low, high = (expression(b).xreplace(dict(known)) for b in (first.lower, first.upper))
    if not (low.is_Integer and high.is_Integer):
        return
    for n in range(int(low), int(high) + 1):
        at = {first.index: expression(n)}
        for more in _members(rest, {**known, **at}):
            yield at | more
