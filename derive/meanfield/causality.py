"""Does a response reach its own time?  Worked out from the program, not assumed.

``<d a(t) / d r(s)>`` has an ``s = t`` part exactly when, at one site and within one step, ``a`` is computed from the
field that carries ``r``.  Whether it is depends in turn on which responses have an equal-time part, so the least
solution is found by iteration: start from none and add what is forced.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Expr, S
from sympy.core.function import AppliedUndef

from derive.program.expressions import Product, t
from derive.program.program import Program


@dataclass(frozen=True)
class Use:
    """One use of a Gaussian matrix: it (or its transpose) applied to ``vector`` gives part of the field ``gives``."""

    matrix: str
    transposed: bool
    gives: str
    vector: Expr


def equal_time_pairs(program: Program, uses: list[Use]) -> set[tuple[str, bool]]:
    """The uses, as ``(matrix, transposed)``, whose vector responds within the step to the opposite use's source."""
    reached: set[tuple[str, bool]] = set()
    while True:
        graph = _graph(program, uses, reached)
        new = {
            (use.matrix, use.transposed)
            for use in uses
            for other in uses
            if other.matrix == use.matrix and _couples(program, use, other) and _reaches(graph, use.vector, other.gives)
        }
        if new <= reached:
            return reached
        reached |= new


def _couples(program: Program, use: Use, other: Use) -> bool:
    """Opposite uses respond to each other; equal ones only if the matrix is correlated with its transpose."""
    if use.transposed != other.transposed:
        return True
    from derive.program.program import gaussian

    return any(gaussian(m).name == use.matrix and gaussian(m).symmetry != 0 for m in program.matrices)


def _graph(program: Program, uses: list[Use], reached: set[tuple[str, bool]]) -> dict[str, set[str]]:
    """Which fields of one site enter which at the same time: directly, or through a response at equal time."""
    graph: dict[str, set[str]] = {x.name: set() for x in program.fields}
    for d in program.definitions:
        if d.name in graph and not d.evolves:
            direct = d.rhs.replace(lambda e: isinstance(e, Product), lambda _: S.Zero)
            graph[d.name] |= _fields_now(program, direct)
    for use in uses:
        for other in uses:
            if other.matrix == use.matrix and _couples(program, use, other) and (use.matrix, use.transposed) in reached:
                graph[use.gives] |= _fields_now(program, other.vector)
    return graph


def _fields_now(program: Program, e: Expr) -> set[str]:
    return {
        str(a.func) for a in e.atoms(AppliedUndef) if program.field_of(str(a.func)) is not None and a.args[-1] == t
    }


def _reaches(graph: dict[str, set[str]], vector: Expr, goal: str) -> bool:
    """Is ``goal`` computed, at the same time and site, on the way to ``vector``?"""
    todo = [str(a.func) for a in vector.atoms(AppliedUndef) if str(a.func) in graph]
    seen: set[str] = set()
    while todo:
        name = todo.pop()
        if name == goal:
            return True
        if name not in seen:
            seen.add(name)
            todo += graph[name]
    return False
