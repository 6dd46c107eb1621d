"""Checks that each index in a program has a range where it stands.

A line of a program may contain an index only if the index runs there: it is an index of the defined quantity
or of the weight, or it is summed in the line. A program written by :meth:`derive.program.Network.train` has
this property. In a program that is written out by hand, an index without a range would be taken for a
parameter, and the theory would not be that of any network.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sympy import Expr, Symbol

from derive.calculus.symbols import IndexRange, expression, spelled, t
from derive.errors import ProgramError
from derive.program.language import GaussianMatrix, GaussianVector
from derive.program.naming import calls_in
from derive.program.parts import gaussian, parameter, ranges_of_family
from derive.program.program import Program
from derive.program.training import Outer


def require_ranges(program: Program) -> None:
    """Check that each index in definitions, updates and numbers of a program has a range where it stands.

    Numbers are variances, symmetries, the scale and the depth. Raises ProgramError for the first index that
    has no range.

    >>> from dataclasses import replace
    >>> from derive.program import mlp
    >>> program = mlp(1)
    >>> first, *others = program.matrices
    >>> single = replace(first, update=replace(first.update, over=()))
    >>> require_ranges(replace(program, matrices=(single, *others)))
    Traceback (most recent call last):
        ...
    derive.errors.ProgramError: the update of W0 contains the index alpha, which has no range there: sum ...
    """
    for message in _messages(program):
        raise ProgramError(message)


def _messages(program: Program) -> Iterator[str]:
    """Yield a message for each index that stands where it has no range, in the order of the program.

    Definitions, updates, variances, symmetries, the scale and the depth are read; the loss is not.
    """
    ranged = _Ranged(program)
    for d in program.definitions:
        for x in ranged.free(d.rhs, d.ranges):
            yield (
                f"{d.lhs} = {d.rhs} contains the index {x}, which has no range there: use an index of "
                f"{d.name}, or write a Sum over {x}"
            )
    for w in program.trained():
        for u in w.update.terms:
            sides = (u.left, u.right) if isinstance(u, Outer) else (u.vector,)
            for part in (u.coefficient, u.gradient or 0, u.outside, *sides):
                for x in ranged.free(part, (*ranges_of_family(w.initial), *u.over)):
                    yield (
                        f"the update of {w.name} contains the index {x}, which has no range there: sum over "
                        f"it, as in over=(IndexRange({x}, 1, P),)"
                    )
    yield from _messages_on_numbers(program, ranged)


def _messages_on_numbers(program: Program, ranged: _Ranged) -> Iterator[str]:
    """Yield a message for each index without a range in a variance, a symmetry, the scale or the depth.

    In a variance or symmetry the indices of the family of weights have a range.
    """
    weights: list[GaussianMatrix | GaussianVector] = [gaussian(m) for m in program.matrices]
    weights += [parameter(v) for v in program.vectors]
    for w in weights:
        numbers = {"variance": w.variance}
        if isinstance(w, GaussianMatrix):
            numbers["symmetry"] = w.symmetry
        for what, value in numbers.items():
            for x in ranged.free(value, ranges_of_family(w)):
                yield (
                    f"the {what} of {w.name} is {value}, which contains the index {x}: must be a number, or "
                    "depend on the indices of a family of weights only"
                )
    for what, value in (("scale", program.scale), ("depth", program.depth)):
        for x in ranged.free(value, ()):
            yield f"{what} = {value} contains the index {x}: must be the same number for all values of {x}"


class _Ranged:
    """The indices of a program, and which of them stand in an expression without a range.

    An index is a symbol that has a range somewhere in the program, or that stands in the expression of a
    definition as an argument of a field, a scalar, a given vector or a constant. The time, symbols in the
    depth and in the ends of ranges are not indices unless they have a range.
    """

    def __init__(self, program: Program) -> None:
        ranges = [r for d in program.definitions for r in d.ranges]
        ranges += [r for w in program.trained() for u in w.update.terms for r in u.over]
        ranges += [r for m in program.matrices for r in ranges_of_family(gaussian(m))]
        ranges += [r for v in program.vectors for r in ranges_of_family(parameter(v))]
        self.indices = {r.index for r in ranges}
        # A symbol without any range, such as nu in x(nu), is an index because it is an argument of a quantity
        # in `names`. A size, such as the depth L in h(L, mu, t), is an argument too and is excluded below.
        # Attributes are not in `names`: the unit k of lamda(k) has no range, because equations hold for each
        # unit.
        names = {x.name for x in program.fields} | {x.name for x in program.given}
        names |= {*program.scalars, *program.constants}
        calls = {a for d in program.definitions for a in calls_in(expression(d.rhs)) if str(a.func) in names}
        sizes = expression(program.depth).free_symbols | {t}
        sizes |= {x for r in ranges for end in (r.lower, r.upper) for x in expression(end).free_symbols}
        self.indices |= {x for a in calls for place in a.args for x in place.free_symbols} - sizes

    def free(self, e: Expr | int, ranges: Iterable[IndexRange]) -> list[Symbol]:
        """Return the indices in ``e`` that are neither summed in it nor in ``ranges``, sorted by name."""
        return sorted((expression(e).free_symbols & self.indices) - {r.index for r in ranges}, key=spelled)
