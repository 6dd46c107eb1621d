"""From the saddle point to a complete theory: causality bounds sums, trained weights add their memory."""

from __future__ import annotations

from dataclasses import replace

from sympy import Add, Expr, Integral, KroneckerDelta, Mul, S, Sum
from sympy.core.function import AppliedUndef, Derivative

from derive.calculus.averages import Average
from derive.program.program import Definition
from derive.program.words import IndexRange, Mean, ell, s, t, terms
from derive.theory.applications import Application, Parameter, earlier
from derive.theory.data import Equation, OrderParameter, Term, TheoryData
from derive.theory.path_integral.action import Response
from derive.theory.path_integral.average import unfolded
from derive.theory.path_integral.causality import instant_responses
from derive.theory.path_integral.fields import Entry, Leg
from derive.theory.path_integral.saddle import SaddlePoint
from derive.theory.path_integral.weights import matrix_memory, vector_memory
from derive.theory.tangent import tangent_kernel


class Assembly:
    """Writes the program's definitions with every product replaced by its single-site form."""

    def __init__(self, saddle: SaddlePoint) -> None:
        self.saddle = saddle
        self.action = saddle.action
        self.reading = saddle.action.reading
        self.program = self.reading.program
        self.instant = instant_responses(self.action)
        self.fixed = {str(q.symbol.func) for q in self.action.responses.values() if not self._reaches(q)}

    def theory(self) -> TheoryData:
        """The theory in the same form as that of the conditioning rule."""
        equations: list[Equation] = []
        scalars: list[Equation] = []
        for d in self.reading.definitions:
            (scalars if d.name in self.program.scalars else equations).append(self.equation(d))
        return TheoryData(
            program=self.program,
            sources=tuple(
                replace(u, covariance=unfolded(u.covariance, self.action.legs)) for u in self.saddle.sources()
            ),
            equations=tuple(equations),
            order_parameters=self.order_parameters(),
            scalars=tuple(scalars),
            observables=tangent_kernel(self.reading),
        )

    def order_parameters(self) -> tuple[OrderParameter, ...]:
        """Definitions as the saddle point gives them."""
        found = []
        for q in self.action.correlations.values():
            found.append(OrderParameter(q.symbol, self.saddle.correlation(q).rhs, "correlation", q.ranges))
        for a in self.action.responses.values():
            if str(a.symbol.func) not in self.fixed:
                definition = self.saddle.pushed(a, self.saddle.response(a))
                found.append(self.at_home(a, definition))
        return tuple(found)

    def at_home(self, a: Response, definition: Expr) -> OrderParameter:
        """A response as a function of its vector's own indices."""
        v = a.leg.use.vector
        symbol = a.symbol
        if v.plain != v.body:
            moved = dict(zip(v.arguments, v.indices, strict=True))
            symbol = self.action.called(symbol).xreplace(moved)
            definition = definition.xreplace(moved)
        extents = [self.reading.registry.extent(v, n) for n in range(len(v.ranges))]
        own = tuple(IndexRange(i, *x) for i, x in zip(v.indices, extents, strict=True))
        others = a.other.past(a.leg.use.indices).ranges
        ranges = (*a.leg.use.layers, *own, *others)
        return OrderParameter(symbol, definition, "response", ranges, self.causal(a))

    def causal(self, q: Response) -> str:
        """Does the response reach its own time?"""
        return "past" if str(q.symbol.func) in self.instant else "strict"

    def _reaches(self, q: Response) -> bool:
        """A vector made of given vectors alone responds to nothing; a matrix of one step to no other step."""
        moves = any(self.program.field_of(str(a.func)) is not None for a in q.leg.body.atoms(AppliedUndef))
        return moves and (not q.leg.use.matrix.fresh or str(q.symbol.func) in self.instant)

    # -- equations -------------------------------------------------------------------------------------------

    def equation(self, d: Definition) -> Equation:
        """A definition with its products and parameters replaced."""
        found: list[Term] = []
        for part in terms(d.rhs):
            found += self.part(d, part)
        return Equation(Derivative(d.lhs, t) if d.evolves else d.lhs, tuple(found), d.ranges)

    def part(self, d: Definition, part: Expr) -> list[Term]:
        """One addend."""
        for a in self.reading.products[d]:
            if part.has(a.product):
                factor = (part.function if isinstance(part, Sum) else part) / a.product
                return [x.times(factor) for x in self.product(a)]
        for p in self.reading.parameters[d]:
            if part.has(p.member):
                return [x.times(part / p.member) for x in self.parameter(p)]
        expr = part.replace(lambda e: isinstance(e, Mean), lambda e: Average(e.args[0]))
        return [Term.local(expr, rule="as defined")]

    def product(self, a: Application) -> list[Term]:
        """``M(t) a(t)``: what is left of the initial matrix, and the updates."""
        leg = next(x for x in self.action.legs if x.use.same_use(a))
        found = []
        for x in self.saddle.single_site(leg):
            expr = self.action.called(unfolded(_at(self.cut(x.expr), leg, a), self.action.legs))
            expr = earlier(expr) if x.kind == "response" else expr
            if expr != 0:
                found.append(self.structured(x.put(expr)))
        return [*found, *([matrix_memory(self.reading, a, a.trained)] if a.trained else [])]

    def parameter(self, p: Parameter) -> list[Term]:
        """A vector parameter: initial value and updates."""
        entry: Entry = next(x for x in self.action.entries if x.source == p.source())
        found = list(self.saddle.single_site(entry))
        if p.trained is not None:
            found.append(vector_memory(p, p.trained))
        return found

    def structured(self, term: Term) -> Term:
        """A term of a stationarity condition as a kernel on a field: its random factors are the field."""
        e, reach = term.expr, ""
        limits: list[tuple[Expr, Expr, Expr]] = []
        while isinstance(e, Sum | Integral):
            for v, low, up in map(tuple, e.limits):
                if v == s:
                    reach = "flow" if isinstance(e, Integral) else "past" if up == t else "strict"
                else:
                    limits.append((v, low, up))
            e = e.function
        random = [
            x
            for x in Mul.make_args(e)
            if any(str(a.func) in self.saddle.random for a in x.atoms(AppliedUndef))
        ]
        over = tuple(IndexRange(*x) for x in limits)
        kernel = Mul(*[x for x in Mul.make_args(e) if x not in random])
        found = Term(term.kind, Mul(*random), S.One, kernel, over, reach, term.matrix, term.rule)
        return found if random else term

    # -- causality -------------------------------------------------------------------------------------------

    def cut(self, e: Expr) -> Expr:
        """Sums over all times, cut where the response in them vanishes."""
        if isinstance(e, Add):
            return Add(*[self.cut(x) for x in e.args])
        names = {str(a.func) for a in e.atoms(AppliedUndef)} & {
            str(q.symbol.func) for q in self.action.responses.values()
        }
        if names & self.fixed:
            return S.Zero
        if not names:
            return e
        (name,) = names
        last = t if name in self.instant or not self.action.discrete else t - 1
        return _collapsed(_bounded(e, last))


def _bounded(e: Expr, last: Expr) -> Expr:
    """The sum or integral over the past up to ``last``."""
    if isinstance(e, Mul):
        return Mul(*[_bounded(x, last) for x in e.args])
    if not isinstance(e, Sum | Integral):
        return e
    limits = [(v, lo, last if v == s else up) for v, lo, up in map(tuple, e.limits)]
    return e.func(_bounded(e.function, last), *limits)


def _collapsed(e: Expr) -> Expr:
    """A sum over the past whose terms hold a matrix of one step only: nothing, or that step."""
    if isinstance(e, Mul):
        return Mul(*[_collapsed(x) for x in e.args])
    if not isinstance(e, Sum) or not e.function.has(KroneckerDelta(t, s)):
        return e
    rest = [tuple(lim) for lim in e.limits if lim[0] != s]
    if len(rest) < len(e.limits):
        if next(lim[2] for lim in e.limits if lim[0] == s) != t:
            return S.Zero
        now = e.function.xreplace({s: t})
        return Sum(now, *rest) if rest else now
    return e.func(_collapsed(e.function), *e.limits)


def _at(e: Expr, leg: Leg, a: Application) -> Expr:
    """From the matrix's own index to the member that the definition uses, with the definition's indices."""
    names = dict(zip(leg.use.vector.indices, a.vector.indices, strict=True))
    shift = {ell: ell + (a.member - leg.use.member)} if a.layers and a.member != leg.use.member else {}
    return e.xreplace({**names, **shift})
