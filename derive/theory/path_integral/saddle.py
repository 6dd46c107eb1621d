"""Saddle point, auxiliary Gaussian fields and single-site equations, all by functional differentiation
(D.33-D.43).

A derivative of ``ln Z`` is the single-site average of the derivative of its exponent.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sympy import Add, Eq, Expr, I, Integral, Inverse, MatrixSymbol, Mul, Piecewise, Pow, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.averages import Response as Pushed
from derive.calculus.functional import functional_derivative
from derive.program.words import IndexRange, mu, s, t
from derive.theory.data import Source, Term
from derive.theory.names import primed_apart, symmetric
from derive.theory.path_integral.action import Action, Correlation, Response
from derive.theory.path_integral.fields import Entry, Leg, over
from derive.theory.path_integral.weights import covariance


class SaddlePoint:
    """The stationarity conditions of an action, solved one by one."""

    def __init__(self, action: Action) -> None:
        self.action = action
        program = action.reading.program
        fields = {x.name for x in program.fields} | {x.name for x in program.attributes}
        hats = {str(y.func) for x in action.variables for y in (x.primal, x.hat)}
        self.random = frozenset(fields | hats)
        self.hats = frozenset(str(x.hat.func) for x in action.variables)
        self.order = symmetric(action.reading.registry.found.values(), action.reading.program.given)

    def variation(self, target: AppliedUndef, ranges: tuple[IndexRange, ...]) -> tuple[Expr, Expr]:
        """``delta S / delta target``: the algebraic part, and the part from the single-site integrals."""
        sites = tuple((p, self.action.weighted(p)) for p in self.action.sites)
        return self.varied(self.action.algebraic, sites, target, ranges)

    def varied(
        self,
        algebra: Expr,
        sites: Iterable[tuple[str, Expr]],
        target: AppliedUndef,
        ranges: tuple[IndexRange, ...],
    ) -> tuple[Expr, Expr]:
        """The same for a part of the action, the exponents as often as there are units: the derivative of
        ``ln Z`` is an average.
        """
        averages = [averaged(functional_derivative(x, target, ranges), self.random) for _, x in sites]
        return functional_derivative(algebra, target, ranges).expand(), Add(*averages)

    @staticmethod
    def solved(unknown: AppliedUndef, condition: tuple[Expr, Expr]) -> Eq:
        """A stationarity condition solved for ``unknown``."""
        algebra, sites = condition
        slope = algebra.coeff(unknown)
        if slope == 0 or (algebra - slope * unknown).expand() != 0:
            raise ValueError(f"the condition {algebra} + {sites} = 0 does not fix {unknown}")
        return Eq(unknown, _divided(-sites, slope), evaluate=False)

    def correlation(self, q: Correlation) -> Eq:
        """``C = <a b>``, from varying the conjugate."""
        return self.solved(q.symbol, self.variation(q.conjugate, q.ranges))

    def conjugate(self, q: Correlation) -> Eq:
        """``Chat`` as an average of two hatted fields, from varying C."""
        return self.solved(q.conjugate, self.variation(q.symbol, q.ranges))

    def response(self, q: Response) -> Eq:
        """``A = -i <a hat>`` in units of the scale, from varying its conjugate in the term that the two
        share.

        Each product of mixed inner products is linearised by variables of its own; those of equal inner
        products agree.
        """
        return self.solved(q.symbol, self.varied(q.algebra, q.sites, q.conjugate, q.ranges))

    def equations(self) -> tuple[Eq, ...]:
        """Every condition: correlations, their conjugates, responses."""
        found: list[Eq] = []
        for q in self.action.correlations.values():
            found += [self.correlation(q), self.conjugate(q)]
        return (*found, *(self.response(a) for a in self.action.responses.values()))

    def vanished(self, q: Correlation) -> Eq:
        """``Chat = 0``: its condition averages two hatted fields and nothing else, see
        :func:`hatted_correlator`.

        Raises ValueError if that is not so.
        """

        def zero(e: Average) -> Expr:
            factors = [
                x for f in Mul.make_args(e.body) for x in ([f.base] * f.exp if isinstance(f, Pow) else [f])
            ]
            if len(factors) != 2 or any(str(x.func) not in self.hats for x in factors):
                raise ValueError(f"the conjugate of {q.symbol} is not an average of two hatted fields: {e}")
            return S.Zero

        condition = self.conjugate(q)
        averages = {e: zero(e) for e in condition.rhs.atoms(Average)}
        return Eq(q.conjugate, condition.rhs.xreplace(averages), evaluate=False)

    # -- auxiliary Gaussian fields ---------------------------------------------------------------------------

    def sources(self) -> Iterator[Source]:
        """Gaussian fields whose average of ``exp(-i sum hat source)`` is the quadratic part of the exponents
        (D.38, D.39).

        Their covariance is minus the second derivative of that part.
        """
        everything = self.action.variables
        for i, x in enumerate(everything):
            slope = functional_derivative(self.action.exponent(x.home, "quadratic"), x.hat, x.limits)
            for y in (z for z in everything[i:] if z.home == x.home):
                yield from self.covariance(x, y, slope)

    def covariance(self, x: Leg | Entry, y: Leg | Entry, slope: Expr) -> Iterator[Source]:
        """The covariance of two auxiliary fields, if any; ``slope``: the derivative in the first."""
        b = y.past(x.use.indices if isinstance(x, Entry) else x.use.vector.indices)
        ranges = (*x.limits, *(r for r in b.limits if r not in x.limits))
        value = self.order((-functional_derivative(slope, b.hat, ranges)).expand()).expand()
        if value != 0 and (x is y or x.source != y.source):
            matrix = x.use.initial.name if isinstance(x, Entry) else x.use.matrix.name
            yield Source(x.source, b.source, value, ranges, matrix)

    # -- single-site equations -------------------------------------------------------------------------------

    def single_site(self, leg: Leg | Entry) -> list[Term]:
        """The delta function left by the integral over a hatted field (D.40): its field as a sum of terms."""
        home = leg.home
        constraint = self.variation_of("constraint", home, leg)
        slope = constraint.coeff(leg.primal)
        gaussian = functional_derivative(self.coupling(leg), leg.hat, leg.limits)
        name = leg.use.initial.name if isinstance(leg, Entry) else leg.use.matrix.name
        terms = [Term.local((-gaussian / slope).expand(), "source", name, "auxiliary Gaussian field")]
        if isinstance(leg, Leg) and covariance(leg.use) == 0:  # nothing random: its updates are all there is
            return []
        if isinstance(leg, Leg):
            for piece in self.action.sites[home]:
                if piece.kind == "response" and piece.matrix == name:
                    force = functional_derivative(piece.expr, leg.hat, leg.limits)
                    if force != 0:
                        expr = _tidy(_divided(-force, slope), leg.use.indices)
                        terms.append(
                            Term.local(expr, "response", name, "saddle point of the mixed inner product")
                        )
        return terms

    def variation_of(self, kind: str, home: str, leg: Leg | Entry) -> Expr:
        """The derivative of one kind of exponent in the hatted field of ``leg``."""
        return functional_derivative(self.action.exponent(home, kind), leg.hat, leg.limits)

    def coupling(self, leg: Leg | Entry) -> Expr:
        """``-i sum hat source``: how the auxiliary field enters in place of the quadratic form."""
        return over(-I * leg.hat * leg.source, leg.limits, (t,), self.action.discrete)

    def pushed(self, q: Response, equation: Eq) -> Expr:
        """``-i <a hat>`` as the response of a to the source: the hatted field is a derivative in the source.

        The source enters the exponent through ``coupling``, so ``d exp/d source = slope * hat * exp``;
        integrated over the fields this gives ``<a hat> = <d a / d source> / slope`` (Stein's lemma without
        an inverse, D.43).
        """
        past = q.other.past(q.leg.use.indices)
        slope = functional_derivative(self.coupling(q.other), past.source, past.limits) / past.hat

        def turn(e: Average) -> Expr:
            rest = Mul(*[x for x in Mul.make_args(e.body) if x != past.hat])
            if rest == e.body:
                raise ValueError(f"{e} does not contain the hatted field {past.hat}")
            return Average(Pushed(rest, past.source)) / slope

        return equation.rhs.xreplace({e: turn(e) for e in equation.rhs.atoms(Average)})


def hatted_correlator() -> tuple[Expr, Expr]:
    """``<hat hat^T>`` for hatted fields with covariance C: as a formula in ``M = <u u^T>``, and its value.

    Shift the field by j: the exponent becomes ``-(1/2)(u + j)^T C^{-1} (u + j)``, and ``<hat hat^T>`` is
    minus the second derivative of its average in j.  It vanishes because u has covariance C (D.35, D.36,
    D.41).

    >>> hatted_correlator()
    (C**(-1) - C**(-1)*M*C**(-1), 0)
    """
    n = Symbol("n", integer=True, positive=True)
    covariance, moment = MatrixSymbol("C", n, n), MatrixSymbol("M", n, n)
    formula = Inverse(covariance) - Inverse(covariance) * moment * Inverse(covariance)
    return formula, formula.subs(moment, covariance).doit()


def averaged(e: Expr, random: frozenset[str]) -> Expr:
    """The single-site average of an expression, taken inside cases and sums."""
    if e == 0:
        return e
    if isinstance(e, Add):
        return Add(*[averaged(x, random) for x in e.args])
    if isinstance(e, Piecewise):
        return Piecewise(*[(averaged(x, random), c) for x, c in e.args])
    if isinstance(e, Mul) and any(isinstance(x, Piecewise) for x in e.args):
        case = next(x for x in e.args if isinstance(x, Piecewise))
        rest = Mul(*[x for x in e.args if x is not case])
        return averaged(Piecewise(*[(rest * x, c) for x, c in case.args]), random)
    return Average(e).linear(random)


def _divided(e: Expr, by: Expr) -> Expr:
    """``e / by``, inside sums, integrals and cases."""
    if isinstance(e, Add):
        return Add(*[_divided(x, by) for x in e.args])
    if isinstance(e, Sum | Integral):
        return e.func(_divided(e.function, by), *e.limits)
    if isinstance(e, Piecewise):
        return Piecewise(*[(_divided(x, by), c) for x, c in e.args])
    inner = [x for x in Mul.make_args(e) if isinstance(x, Sum | Integral | Piecewise)]
    if len(inner) == 1 and e != inner[0]:
        rest = Mul(*[x for x in Mul.make_args(e) if x is not inner[0]])
        return _divided(inner[0], by / rest)
    return (e / by).expand()


def _tidy(e: Expr, taken: tuple[Symbol, ...]) -> Expr:
    """Bound variables called as elsewhere: the past time s, samples alpha where mu is the free one."""
    names = {}
    for v in (lim[0] for x in e.atoms(Sum, Integral) for lim in x.limits):
        plain = Symbol(v.name.rstrip("'"), **v.assumptions0)
        if plain in (s, t):
            names[v] = s
        else:
            names[v] = primed_apart(plain, taken) if plain in (*taken, mu) else plain
    return e.xreplace(names)
