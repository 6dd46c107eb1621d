"""From averages over modes to sums over them: the dimension-free form of a theory (linear2025 eq. 107-109).

A program on modes counts their number M as the reference size.  Each average over the modes is one over M
times a sum, so order parameters that average over them are replaced by sums, with the unit's index written
out, and M drops out of the equations.
"""

from __future__ import annotations

from dataclasses import replace

from sympy import Expr, Function, Integer, Sum, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.errors import NotApplicable
from derive.program.program import Program
from derive.program.words import IndexRange, Population
from derive.theory.theory import Equation, OrderParameter, Source, Theory


def mode_sums(theory: Theory, size: Symbol | None = None) -> Theory:
    """The theory with averages over the population that carries attributes written as sums over its units.

    ``size`` is the reference size as it stands in the program, by default the symbol M.  Raises
    :class:`NotApplicable` if the program has no attributes, or if the size does not drop out.

    >>> from derive.theory import mean_field
    >>> from derive.reduce.data import absorb_factors
    >>> from derive.program.networks.structured import structured
    >>> theory = mode_sums(absorb_factors(mean_field(structured()), "r0", "u0"))
    >>> print(theory.order_parameter("C_h0").definition)
    Sum(<h0(k, s)*h0(k, t)>, (k, 1, M))
    """
    if not theory.program.attributes:
        raise NotApplicable("the units of no population are told apart: there are no modes to sum over")
    return _Modes(theory, size or Symbol("M", integer=True, positive=True)).theory()


class _Modes:
    def __init__(self, theory: Theory, size: Symbol) -> None:
        self.old, self.program, self.size = theory, theory.program, size
        self.place = self.program.attributes[0].population
        self.unit = self.index()
        self.over = IndexRange(self.unit, Integer(1), size * sympify(self.place.ratio))
        on = self.place.name
        self.own = {x.name for x in self.program.fields if x.population.name == on}
        self.own |= {str(u.symbol.func) for u in theory.sources if self.lives(u)}
        self.sums = {q.symbol.func for q in theory.order_parameters if self.averages(q)}

    def index(self) -> Symbol:
        names = {x.name for x in self.program.attributes}
        atoms = [a for d in self.program.definitions for a in d.rhs.atoms(AppliedUndef)]
        found = {a.args[0] for a in atoms if str(a.func) in names}
        if len(found) != 1:
            raise NotApplicable(f"the unit has several names: {', '.join(sorted(map(str, found)))}")
        return found.pop()

    def lives(self, u: Source) -> bool:
        """Does the source enter equations of the modes?"""
        here = [e for e in self.old.equations if _population(self.program, e.name) == self.place]
        return any(u.symbol.func == a.func for e in here for a in e.rhs.atoms(AppliedUndef))

    def averages(self, q: OrderParameter) -> bool:
        return any(str(a.func) in self.own for a in q.definition.atoms(AppliedUndef))

    def theory(self) -> Theory:
        new = replace(
            self.old,
            sources=tuple(map(self.source, self.old.sources)),
            equations=tuple(map(self.equation, self.old.equations)),
            scalars=tuple(map(self.equation, self.old.scalars)),
            order_parameters=tuple(map(self.order_parameter, self.old.order_parameters)),
            observables=(),
            reduction=f"{self.old.reduction}, sums over modes".strip(", "),
        )
        left = [e for e in (*new.equations, *new.scalars) if e.rhs.has(self.size)]
        if left or any(u.covariance.has(self.size) for u in new.sources):
            raise NotApplicable(
                f"the number of modes {self.size} does not drop out of {left[0].lhs if left else 'a source'}"
            )
        return new

    # -- pieces ----------------------------------------------------------------------------------------------

    def summed(self, e: Expr) -> Expr:
        """Averages over modes are sums over their number."""
        number = self.size * sympify(self.place.ratio)
        e = sympify(e).replace(
            lambda x: isinstance(x, AppliedUndef) and x.func in self.sums, lambda x: x / number
        )
        return self.indexed(e)

    def indexed(self, e: Expr) -> Expr:
        """Fields and sources of the modes with the unit as first index."""
        return e.replace(
            lambda x: isinstance(x, AppliedUndef) and str(x.func) in self.own and x.args[:1] != (self.unit,),
            lambda x: Function(str(x.func))(self.unit, *x.args),
        )

    def source(self, u: Source) -> Source:
        here = str(u.symbol.func) in self.own
        return replace(
            u,
            symbol=self.indexed(u.symbol),
            partner=self.indexed(u.partner),
            covariance=self.summed(u.covariance),
            ranges=(*((self.over,) if here else ()), *u.ranges),
        )

    def equation(self, e: Equation) -> Equation:
        here = e.name in self.own
        terms = tuple(x.rewrite(self.summed) for x in e.terms)
        return replace(
            e, lhs=self.indexed(e.lhs), terms=terms, ranges=(*((self.over,) if here else ()), *e.ranges)
        )

    def order_parameter(self, q: OrderParameter) -> OrderParameter:
        if q.symbol.func not in self.sums:
            return q
        average = next(iter(q.definition.atoms(Average)))
        body = Average(self.indexed(average.body))
        return replace(q, definition=Sum(q.definition.xreplace({average: body}), self.over.limits))


def _population(program: Program, field: str) -> Population | None:
    x = program.field_of(field)
    return None if x is None else x.population
