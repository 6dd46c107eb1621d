"""Which fields answer which sources within the step, read off the single-site equations of a theory."""

from __future__ import annotations

from collections.abc import Iterable

from sympy import Expr, Integral, Sum
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import s, t
from derive.theory import Equation


class Instant:
    """The relation "is computed from, at the same time" between the fields and sources of some equations.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> theory = mean_field(mlp())
    >>> now = Instant(theory.equations, {"h", "g"}, {"u", "r"})
    >>> now.reaches("h", "u"), now.reaches("h", "r")
    (True, False)
    """

    def __init__(self, equations: Iterable[Equation], fields: set[str], sources: set[str]) -> None:
        self.edges: dict[str, set[str]] = {}
        known = fields | sources
        for e in equations:
            if isinstance(e.lhs, AppliedUndef):
                self.edges.setdefault(e.name, set()).update(x for x in _now(e.rhs) if x in known)

    def reaches(self, field: str, source: str) -> bool:
        """Can ``field`` answer a push of ``source`` within the step?"""
        todo, seen = [field], set()
        while todo:
            name = todo.pop()
            if name == source:
                return True
            if name not in seen:
                seen.add(name)
                todo += self.edges.get(name, ())
        return False


def _now(e: Expr, inclusive: bool = False) -> set[str]:
    """Names of functions in ``e`` that are taken at the present time, also as the end of a sum."""
    if getattr(e, "is_averaged", False):
        return set()
    if isinstance(e, Sum | Integral):
        return _now(e.function, inclusive or any(lim[0] == s and lim[2] == t for lim in e.limits))
    own = set()
    if isinstance(e, AppliedUndef):
        at = e.args[-1] if e.args else None
        if at == t or (inclusive and at == s):
            own = {str(e.func)}
    return own.union(*[_now(x, inclusive) for x in e.args if isinstance(x, Expr)])
