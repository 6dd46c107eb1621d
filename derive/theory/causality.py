"""Does a response reach its own time?  Worked out from the program, not assumed.

``<d a(t) / d r(s)>`` has an ``s = t`` part exactly when, at one site and within one step, ``a`` is computed
from the field that carries ``r``.  Whether it is depends in turn on which responses have an equal-time part,
so the least solution is found by iteration: start from none and add what is forced.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from sympy import Derivative, Dummy, Expr, Integral, Sum
from sympy.core.function import AppliedUndef

from derive.program.parts import gaussian
from derive.program.program import Program
from derive.program.words import Product, t
from derive.theory.data import Equation


@dataclass(frozen=True)
class Use:
    """One use of a Gaussian matrix: it, or its transpose, applied to ``vector`` enters ``gives``."""

    matrix: str
    transposed: bool
    gives: str
    vector: Expr

    @property
    def key(self) -> tuple[str, bool, Expr]:
        """The product, whichever field it enters."""
        return self.matrix, self.transposed, self.vector


Pair = tuple[tuple[str, bool, Expr], tuple[str, bool, Expr]]


def equal_time_pairs(program: Program, uses: Iterable[Use]) -> set[Pair]:
    """The pairs of products, by key, where the first vector responds within the step to the second source."""
    coupled = [(a, b) for a in uses for b in uses if _couple(program, a, b)]
    reached: set[Pair] = set()
    while True:
        graph = _graph(program, coupled, reached)
        new = {
            (a.key, b.key) for a, b in coupled if _at_once(program, b) and _reaches(graph, a.vector, b.gives)
        }
        if new <= reached:
            return reached
        reached |= new


def _couple(program: Program, a: Use, b: Use) -> bool:
    """Opposite uses respond to each other; equal ones only if the matrix is correlated with its transpose."""
    if a.matrix != b.matrix:
        return False
    symmetric = any(m.name == a.matrix and m.symmetry != 0 for m in map(gaussian, program.matrices))
    return a.transposed != b.transposed or symmetric


def _at_once(program: Program, use: Use) -> bool:
    """Does the product enter its field within the step?  A rate of change moves the field only later."""
    return any(
        d.name == use.gives and not d.evolves and any(_is_of(use, x) for x in d.products())
        for d in program.definitions
    )


def _is_of(use: Use, product: Product) -> bool:
    name = str(product.matrix.func) if product.matrix.args else str(product.matrix)
    return (name, product.transposed) == (use.matrix, use.transposed)


def _graph(program: Program, coupled: list[tuple[Use, Use]], reached: set[Pair]) -> dict[str, set[str]]:
    """Which fields of one site enter which at the same time: directly, or by a response at equal time."""
    graph: dict[str, set[str]] = {x.name: set() for x in program.fields}
    for d in program.definitions:
        if d.name in graph and not d.evolves:
            # what multiplies a product acts at once; what is inside one acts by its source and responses
            direct = d.rhs.replace(lambda e: isinstance(e, Product), lambda _: Dummy("product"))
            graph[d.name] |= _fields_now(program, direct)
    for a, b in coupled:
        if (a.key, b.key) in reached and _at_once(program, a):
            graph[a.gives] |= _fields_now(program, b.vector)
    return graph


def _fields_now(program: Program, e: Expr) -> set[str]:
    atoms = e.atoms(AppliedUndef)
    return {str(a.func) for a in atoms if program.field_of(str(a.func)) is not None and a.args[-1] == t}


def _reaches(graph: dict[str, set[str]], vector: Expr, goal: str) -> bool:
    """Is ``goal`` computed, at the same time and site, on the way to ``vector``?"""
    return any(reaches(graph, str(a.func), goal) for a in vector.atoms(AppliedUndef) if str(a.func) in graph)


# -- of a theory ---------------------------------------------------------------------------------------------


def computed_now(equations: Iterable[Equation], names: Collection[str]) -> dict[str, set[str]]:
    """For each field, which of ``names`` its equation takes at the present time, also as the end of a sum."""
    found: dict[str, set[str]] = {}
    for e in equations:
        own = found.setdefault(e.name, set())
        if not isinstance(e.lhs, Derivative):
            for x in e.terms:
                own |= _at_once_in(x.expr, names)
    return found


def reaches(now: Mapping[str, Collection[str]], start: str, goal: str) -> bool:
    """Is ``goal`` computed, by the relation :func:`computed_now`, on the way to ``start``?

    >>> reaches({"h": {"u"}, "z": {"h"}}, "z", "u")
    True
    """
    todo, seen = [start], set()
    while todo:
        name = todo.pop()
        if name == goal:
            return True
        if name not in seen:
            seen.add(name)
            todo += now.get(name, ())
    return False


def _at_once_in(e: Expr, names: Collection[str]) -> set[str]:
    """Names that enter ``e`` at the present time, sums that include it counted, integrals not."""
    if isinstance(e, Integral) or getattr(e, "is_averaged", False):
        return set()
    if isinstance(e, Sum):
        return _at_once_in(e.function.xreplace({v: upper for v, _, upper in e.limits if upper == t}), names)
    if isinstance(e, AppliedUndef) and str(e.func) in names and e.args[-1] == t:
        return {str(e.func)}
    return set().union(*[_at_once_in(x, names) for x in e.args]) if e.args else set()
