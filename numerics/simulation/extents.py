"""Where the indices of constants start and end: read off the ranges of the indices in a program."""

from __future__ import annotations

from collections.abc import Iterator

from sympy import Expr, Integer, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.program import IndexRange, Outer, t
from derive.program.program import gaussian, parameter

from .formulas import Binder, indices

Ranges = tuple[IndexRange, ...]


def note_extents(binder: Binder, steps: int) -> None:
    """Tell ``binder.tables`` over which values each index of each constant runs, and check the arrays.

    An index ``a + k`` that adds two of them says only where the ring of the first begins; an index that is
    the time starts at 0.
    """
    tables, positions = binder.tables, {}
    for e, ranges in _contexts(binder):
        atoms = [a for a in e.atoms(AppliedUndef) if str(a.func) in tables.data]
        if not atoms:
            continue
        inner = tuple(IndexRange(*x) for total in e.atoms(Sum) for x in reversed(total.limits))
        columns = _columns(binder, ranges, inner)
        for atom in atoms:
            name = str(atom.func)
            positions[name] = len(atom.args)
            for j, arg in enumerate(atom.args):
                _note(binder, name, j, arg, columns, steps)
    for name, count in positions.items():
        if name not in binder.domains:
            tables.check(name, count)


def _note(
    binder: Binder, name: str, j: int, arg: Expr, columns: dict[Symbol, tuple[int, int]], steps: int
) -> None:
    if arg.atoms(AppliedUndef):
        return  # a function of numbers of the program, not of indices
    if arg.has(t):
        binder.tables.note(name, j, (0, steps), exact=False)
        return
    found = [x for x in columns if arg.has(x)]
    ringed = binder.program.given_of(name) is not None and not arg.is_Symbol
    if len(found) > 1 or (found and ringed):
        binder.tables.note(name, j, columns[found[0]], exact=False)
        return
    ends = [binder.values.integer(arg, {x: i for x in found}) for i in (columns[found[0]] if found else (0,))]
    binder.tables.note(name, j, (min(ends), max(ends)), exact=True)


def _columns(binder: Binder, ranges: Ranges, inner: Ranges) -> dict[Symbol, tuple[int, int]]:
    """The first and last value of each index, those of definitions before those of sums."""
    found: dict[Symbol, tuple[int, int]] = {}
    for env in binder.values.members((*ranges, *inner)):
        for x, i in env.items():
            low, high = found.get(x, (i, i))
            found[x] = (min(low, i), max(high, i))
    return found


def _contexts(binder: Binder) -> Iterator[tuple[Expr, Ranges]]:
    """Every expression of a program with the ranges of its indices, the most telling first."""
    program = binder.program
    for d in program.definitions:
        yield d.rhs, d.ranges
    for w in program.trained():
        family = indices(w.initial)
        for u in w.update.terms if isinstance(w.update, Outer) else (w.update,):
            vectors = (u.left, u.right) if isinstance(u, Outer) else (u.vector,)
            # of two indices that are added, the one that is summed over tells where a ring begins
            dependent = any(_depends(r, family) for r in u.over)
            for e in (u.coefficient, *vectors):
                yield sympify(e), (*family, *u.over) if dependent else (*u.over, *family)
    for m in map(gaussian, program.matrices):
        for e in (m.variance, m.rows.ratio, m.cols.ratio):
            yield sympify(e), indices(m)
    for v in map(parameter, program.vectors):
        for e in (v.variance, v.population.ratio):
            yield sympify(e), v.indices
    for x in program.fields:
        for key in binder.domains[x.name]:
            p = x.population.at(Integer(key[0])) if x.layered else x.population
            yield sympify(p.ratio), ()


def _depends(r: IndexRange, family: Ranges) -> bool:
    names = {x.index for x in family}
    return bool((sympify(r.lower).free_symbols | sympify(r.upper).free_symbols) & names)
