"""Numbers for averages that multiply random weights, such as ``Mean(h**2)`` in ``Mean(h**2) * W @ x``.

A theory replaces a matrix product, a vector of weights and an update by Gaussian sources, responses and
memories. :func:`with_numbers` takes a program and gives a scalar, such as ``average_1(mu, t)``, to each
average in an update, and to each average in a term with a matrix product or a vector of weights. Solvers need
these averages as numbers. Every :class:`~derive.program.program.Program` is written in this form.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from itertools import count
from typing import Any

from sympy import Expr, Function, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange, expression, primed, spelled, t
from derive.program.language import Mean, Product, terms
from derive.program.parts import Definition, Parts, gaussian, parameter, ranges_of_family
from derive.program.training import TrainedMatrix, TrainedVector

AveragePattern = tuple[Expr, tuple[tuple[Expr, Expr], ...]]
"""An average with standard indices, and the first and last values of these indices."""


def with_numbers(program: Parts) -> Parts:
    """Return the program with scalars for averages in terms with random weights, and in updates.

    A term with random weights contains a matrix product or a vector of weights. Such an average is replaced
    by its scalar in all definitions. The same object is returned if the program has no such average.
    """
    numbers = _NamedAverages(program)
    vectors = [parameter(v) for v in program.vectors]
    for d in program.definitions:
        for part in terms(d.rhs) if d.rhs.has(Mean) else ():
            if part.has(Product) or any(v.uses(part) for v in vectors):
                numbers.written(part, d.ranges, new=True)
    matrices, updated_vectors = (tuple(map(numbers.updated, x)) for x in (program.matrices, program.vectors))
    if not numbers.are_needed:
        return program
    named = numbers.definitions.values()
    new = tuple(d for d in named if d not in program.definitions)
    definitions = (
        d if d in named else replace(d, rhs=numbers.written(d.rhs, d.ranges)) for d in program.definitions
    )
    return replace(
        program,
        definitions=(*new, *definitions),
        scalars=(*(d.name for d in new), *program.scalars),
        matrices=matrices,
        vectors=updated_vectors,
    )


def number_of(mean: Mean, ranges: Iterable[IndexRange], name: str) -> Definition:
    """Return the definition of a scalar called ``name`` as the average ``mean``.

    The scalar is a function of the time t and of those indices of the average that have one of the
    ``ranges``. The order of the indices is that of :func:`_runs`.
    """
    runs = _runs(mean, ranges)
    return Definition(Function(name)(*(r.index for r in runs), t), mean, runs)


def _runs(mean: Mean, ranges: Iterable[IndexRange]) -> tuple[IndexRange, ...]:
    """Return those of the ``ranges`` whose indices an average has, in the order of its functions' arguments.

    Functions with more arguments come first. Indices that occur as numbers only, such as c in
    ``Mean(exp(c*h(mu, t)))``, come last.
    """
    known = {r.index: r for r in ranges if r.index in mean.free_symbols}
    atoms = sorted(mean.atoms(AppliedUndef), key=lambda a: (-len(a.args), str(a)))
    places = (x for a in atoms for arg in a.args for x in sorted(arg.free_symbols, key=spelled))
    numbers = sorted(known, key=spelled)
    return tuple(known[x] for x in dict.fromkeys((*places, *numbers)) if x in known)


def _pattern(mean: Mean, runs: Iterable[IndexRange]) -> AveragePattern:
    """Return an average with standard letters for the indices of ``runs``, and the ends of these ranges.

    Averages with equal results differ in the names of these indices only.
    """
    runs = tuple(runs)
    slots = {r.index: Symbol(f"_{k}", integer=True) for k, r in enumerate(runs)}
    ends = ((expression(r.lower).xreplace(slots), expression(r.upper).xreplace(slots)) for r in runs)
    return mean.xreplace(slots), tuple(ends)


def _names(program: Parts) -> set[str]:
    """Return the names of a program that a new scalar must not have.

    They are those of the quantities of its theory, of weights and of given vectors, and the symbols in
    definitions and in the coefficients of updates.
    """
    weights = {gaussian(m).name for m in program.matrices} | {parameter(v).name for v in program.vectors}
    symbols = {x.name for d in program.definitions for x in d.rhs.free_symbols}
    coefficients = [expression(u.coefficient) for w in program.trained() for u in w.update.terms]
    symbols |= {x.name for e in coefficients for x in e.free_symbols}
    return {*program.names_in_theory, *weights, *symbols, *(x.name for x in program.given)}


class _NamedAverages:
    """Scalars that stand for averages: those of a program, and new ones.

    ``definitions`` maps averages with standard indices to the definitions of their scalars. ``are_needed`` is
    whether an average was found that needs a scalar. ``first`` maps second indices, such as ``alpha``, to the
    first, ``mu``.
    """

    def __init__(self, program: Parts) -> None:
        """Find the scalars of the program that are averages."""
        self.program = program
        self.first = {primed(r.index): r.index for d in program.definitions for r in d.ranges}
        self.are_needed = False
        self.definitions: dict[AveragePattern, Definition] = {}
        for d in program.definitions:
            if d.name in program.scalars and isinstance(d.rhs, Mean) and not d.evolves:
                runs = _runs(d.rhs, d.ranges)
                if d.lhs.args == (*(r.index for r in runs), t):
                    self.definitions.setdefault(_pattern(d.rhs, runs), d)

    @cached_property
    def taken(self) -> set[str]:
        """The names that a new scalar cannot have."""
        return _names(self.program)

    def written(self, e: Any, ranges: tuple[IndexRange, ...], *, new: bool = False) -> Expr:
        """Return an expression with scalars in place of averages, the innermost first.

        ``ranges`` are those of the indices of the expression. An average without a scalar gets a new one if
        ``new`` is true; otherwise it stays as it is.
        """
        e = expression(e)
        if not e.has(Mean):
            return e
        inner = (*ranges, *(IndexRange(*limits) for limits in getattr(e, "limits", ())))
        parts = [self.written(x, inner, new=new) if isinstance(x, Expr) else x for x in e.args]
        e = e.func(*parts)
        return self._number(e, ranges, new) if isinstance(e, Mean) else e

    def _number(self, mean: Mean, ranges: tuple[IndexRange, ...], new: bool) -> Expr:
        """Return the scalar that stands for an average, or the average if it has none and ``new`` is false.

        If ``new``, an average without a scalar gets one. Averages with the same :func:`_pattern`, which
        differ in the names of indices only, have the same scalar.
        """
        runs = _runs(mean, ranges)
        pattern = _pattern(mean, runs)
        self.are_needed |= new
        if new and pattern not in self.definitions:
            name = next(x for x in map("average_{}".format, count(1)) if x not in self.taken)
            self.taken.add(name)
            # The definition of the scalar has the index mu in place of its primed form alpha, over which an
            # update is summed, unless the average contains both. Other primed indices are replaced in the
            # same way.
            letters = {r.index: self.first[r.index] for r in runs if r.index in self.first}
            letters = {x: y for x, y in letters.items() if y not in mean.atoms(Symbol)}
            renamed = [r.renamed(letters.get(r.index, r.index)) for r in runs]
            self.definitions[pattern] = number_of(mean.xreplace(letters), renamed, name)
        if pattern not in self.definitions:
            return mean
        return self.definitions[pattern].lhs.func(*(r.index for r in runs), t)

    def updated(self, weight: Any) -> Any:
        """Return a weight with scalars in place of all averages in its update; missing scalars are defined.

        A weight without an update is returned unchanged.
        """
        if not isinstance(weight, TrainedMatrix | TrainedVector):
            return weight
        return replace(weight, update=self._update(weight.update, ranges_of_family(weight.initial)))

    def _update(self, u: Any, family: tuple[IndexRange, ...]) -> Any:
        """Return an update with scalars in place of averages; ``family`` are the ranges of its weight."""
        more = tuple(self._update(x, family) for x in getattr(u, "more", ()))
        alone = replace(u, more=()) if more else u
        alone = alone.map(lambda e: self.written(e, (*u.over, *family), new=True))
        return replace(alone, more=more) if more else alone
