"""Which responses reach their own time, found from the single-site equations that the path integral leaves.

Within one step a field is a function of the fields and sources of the same time and site.  The derivative
of a vector in a source at equal time is a sum over chains of derivatives of these functions; where no chain
leads from the source to the vector, the response starts one step later.  A response at equal time is itself
a link: ``chi_a(t) = u_a(t) + R(t, t) b(t) + past``.  So the set is built up from none until nothing is added.
"""

from __future__ import annotations

from sympy import Dummy, Expr
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import t
from derive.program.words import Mean, Product
from derive.theory.path_integral.action import Action, Response


def instant_responses(action: Action) -> frozenset[str]:
    """The names of the responses that are there at ``s = t``.

    >>> from derive.program import isotropic, mlp
    >>> from derive.theory.path_integral import path_integral
    >>> [sorted(instant_responses(path_integral(p)._action)) for p in (mlp(2), isotropic(1))]
    [[], ['R_Delta', 'R_h0r0']]
    """
    return _Step(action).found()


class _Step:
    """One step of one site: every field, and every product, is a variable of its own."""

    def __init__(self, action: Action) -> None:
        self.action = action
        program = action.reading.program
        self.variables: dict[str, Dummy] = {x.name: Dummy(x.name) for x in program.fields}
        self.products = {str(x.primal.func): Dummy(str(x.primal.func)) for x in action.legs}
        self.links: dict[Dummy, list[Expr]] = {}
        for d in action.reading.definitions:
            if d.name in self.variables and not d.evolves:  # a rate moves its field only later
                self.links.setdefault(self.variables[d.name], []).append(self.written(d.rhs))

    def written(self, e: Expr) -> Expr:
        """An expression in the variables of the step; averages and what is past do not vary with it."""

        def product(x: Expr) -> Expr:
            uses = (a for xs in self.action.reading.products.values() for a in xs if a.product == x)
            use = next(uses, None)
            leg = None if use is None else next(y for y in self.action.legs if y.use.same_use(use))
            return Dummy("constant") if leg is None else self.products[str(leg.primal.func)]

        e = e.replace(lambda x: isinstance(x, Mean), lambda x: Dummy("average"))
        e = e.replace(lambda x: isinstance(x, Product), product)
        now = {
            a: v for a in e.atoms(AppliedUndef) if (v := self.variables.get(str(a.func))) and a.args[-1] == t
        }
        return e.xreplace(now)

    def found(self) -> frozenset[str]:
        names: set[str] = set()
        while True:
            links = {x: list(rows) for x, rows in self.links.items()}
            for q in self.action.responses.values():
                if str(q.symbol.func) in names:
                    at = self.products[str(q.leg.primal.func)]
                    links.setdefault(at, []).append(self.written(q.other.body))
            new = {str(q.symbol.func) for q in self.action.responses.values() if self.reaches(q, links)}
            if new <= names:
                return frozenset(names)
            names |= new

    def reaches(self, q: Response, links: dict[Dummy, list[Expr]]) -> bool:
        """Is there a chain of derivatives from the source of ``q`` to its vector?"""
        goal = self.products[str(q.other.primal.func)]
        known = {*self.variables.values(), *self.products.values()}
        todo, seen = [self.written(q.leg.body)], set[Dummy]()
        while todo:
            e = todo.pop()
            for x in sorted(e.free_symbols & known - seen, key=str):
                if e.diff(x) == 0:
                    continue
                if x == goal:
                    return True
                seen.add(x)
                todo += links.get(x, [])
        return False
