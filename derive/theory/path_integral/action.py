"""Order parameters, their conjugates, and the action (selfconsistent2023 D.27-D.32).

Inner products of two vectors become correlations C, enforced by a conjugate Chat.  Products of two mixed
inner products ``(hat . b)(a . hat)`` are linearised by a pair of responses, each the conjugate of the other,

    exp(N k A' B') = extremum over A, B of exp(N k (-A B + A B' + B A')),
    A' = -i a.xihat per unit,  B' = -i b.chihat per unit.

After that the units decouple: the action is algebra plus one single-site integral a population.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from sympy import Add, Expr, Function, I, Integral, Mul, Sum, Symbol, log, sympify
from sympy.core.function import AppliedUndef

from derive.program.words import IndexRange, ell, s, t
from derive.theory.applications import Application, Reading
from derive.theory.path_integral.average import Pairing, pairings, parameter_pairings
from derive.theory.path_integral.fields import Entry, Leg, hatted, over
from derive.theory.path_integral.weights import matrix_memory
from derive.theory.tangent import tangent_kernel


class Partition(Expr):
    """``Partition(name, exponent)``: the integral of ``exp(exponent)`` over the fields of one unit.

    Layers do not meet in the exponent; ``Partition(name, exponent, ell)`` is the factor of layer ell.
    """

    is_commutative = True

    def __new__(cls, name: Any, exponent: Expr, *layer: Expr) -> Partition:
        return cast(Partition, Expr.__new__(cls, Symbol(str(name)), exponent, *layer))

    @property
    def exponent(self) -> Expr:
        """The exponent of the single-site weight."""
        return self.args[1]

    def _latex(self, printer: Any, *_: Any) -> str:
        layer = f"^{{{printer._print(self.args[2])}}}" if len(self.args) > 2 else ""
        return rf"\mathcal{{Z}}{layer}_{{\mathrm{{{self.args[0]}}}}}"

    def _sympystr(self, printer: Any, *_: Any) -> str:
        return f"Z{f'^{printer._print(self.args[2])}' if len(self.args) > 2 else ''}_{self.args[0]}"


@dataclass(frozen=True)
class Piece:
    """One part of a single-site exponent: ``constraint``, ``quadratic``, ``response`` or ``conjugate``.

    ``ratio`` is the number of such units over N, in the indices of the part.
    """

    kind: str
    expr: Expr
    ratio: Expr
    matrix: str = ""

    @property
    def weighted(self) -> Expr:
        """The part as often as there are units."""
        return _inside(self.ratio, self.expr)


@dataclass(frozen=True)
class Correlation:
    """``C = (1/n) a.b`` and its conjugate."""

    symbol: AppliedUndef
    conjugate: AppliedUndef
    product: Expr
    population: str
    ranges: tuple[IndexRange, ...]


@dataclass(frozen=True)
class Response:
    """``A = -(i/n) a.hat`` in units of the program's scale: the vector of ``leg`` meets the hatted field of
    ``other``.

    ``conjugate`` is the response with which it shares a term ``-strength A B`` of the action (it may be A
    itself); ``algebra`` is that term and ``sites`` what the pair adds to single-site exponents.
    """

    symbol: AppliedUndef
    conjugate: AppliedUndef
    leg: Leg
    other: Leg
    ranges: tuple[IndexRange, ...]
    algebra: Expr
    sites: tuple[tuple[str, Expr], ...]


@dataclass
class Action:
    """``algebraic + sum over populations of ratio * ln Z``, and what it depends on."""

    reading: Reading
    legs: tuple[Leg, ...]
    entries: tuple[Entry, ...]
    terms: list[Expr] = field(default_factory=list)
    sites: dict[str, list[Piece]] = field(default_factory=dict)
    ratios: dict[str, Expr] = field(default_factory=dict)
    correlations: dict[str, Correlation] = field(default_factory=dict)
    responses: dict[str, Response] = field(default_factory=dict)
    elsewhere: dict[str, tuple[str, int, Application]] = field(default_factory=dict)

    @property
    def discrete(self) -> bool:
        """Do times count steps?"""
        return self.reading.program.rule.discrete

    @property
    def variables(self) -> tuple[Leg | Entry, ...]:
        """Everything that brings a hatted field."""
        return (*self.legs, *self.entries)

    @property
    def algebraic(self) -> Expr:
        """Order parameters times conjugates."""
        return Add(*self.terms)

    def exponent(self, population: str, *kinds: str) -> Expr:
        """The single-site exponent of a population, or its parts of some kinds."""
        return Add(*[x.expr for x in self.sites[population] if not kinds or x.kind in kinds])

    def weighted(self, population: str) -> Expr:
        """The exponent of all units of a population, per N."""
        return Add(*[x.weighted for x in self.sites[population]])

    def expr(self) -> Expr:
        """The action per N."""
        return Add(self.algebraic, *[self.free_energy(p) for p in self.sites])

    def free_energy(self, population: str) -> Expr:
        """The units of a population: each layer counts its own where they are not equally many."""
        ratio, exponent = self.ratios[population], self.exponent(population)
        if ell not in ratio.free_symbols:
            return ratio * log(Partition(population, exponent))
        return Sum(ratio * log(Partition(population, exponent, ell)), (ell, 1, self.reading.program.depth))

    # -- building it -----------------------------------------------------------------------------------------

    def build(self) -> Action:
        """All of it, from the program's uses."""
        for x in self.variables:
            limits = x.limits
            expr = over(I * x.hat * x.primal, limits, (t,), self.discrete)
            self.add(x.home, Piece("constraint", expr, x.ratio))
        for p in pairings(self.legs):
            self.covariance(p) if p.sources else self.response_pair(p)
        for strength, a, b, limits in parameter_pairings(self.entries):
            expr = over(-strength / 2 * a.hat * b.hat, limits, (t, s), self.discrete)
            self.add(a.home, Piece("quadratic", expr, a.ratio, a.use.initial.name))
        self.constrain_correlations()
        return self

    def add(self, population: str, piece: Piece) -> None:
        """One more piece of a single-site exponent."""
        self.sites.setdefault(population, []).append(piece)
        self.ratios.setdefault(population, self.ratio(population))

    def ratio(self, population: str) -> Expr:
        """Units of the population over N."""
        fields = (x.population for x in self.reading.program.fields)
        ends = (p for x in self.legs for p in (x.use.matrix.rows, x.use.matrix.cols))
        found = next(p for p in (*ends, *fields) if p.name == population)
        return found.ratio if found.site is None else found.at(ell).ratio

    def covariance(self, p: Pairing) -> None:
        """``(hat.hat)(a.b)``: the inner product of the vectors becomes a correlation."""
        at = 0 if p.first.vectors == (p.a.body, p.b.body) else 1
        hats = (p.first, p.second)[1 - at]
        correlation = self.reading.registry.correlation(p.a.use.vector, p.b.use.vector)
        strength = -p.strength / 2 * p.ratios[at]
        body = strength * correlation * Mul(*hats.vectors)
        expr = over(body, p.limits, (t, s), self.discrete)
        self.add(hats.population, Piece("quadratic", expr, p.ratios[1 - at], p.a.use.matrix.name))

    def response_pair(self, p: Pairing) -> None:
        """``(hat.b)(a.hat)``: two responses, each the conjugate of the other."""
        scale = self.reading.program.scale
        one = self.symbol(p.a, p.b, t, s)  # the vector of a meets the hatted field of b
        two = self.symbol(p.b, p.a, s, t)
        k = p.strength / 2 * p.ratios[0] * p.ratios[1]
        algebra = over(-k * scale**2 * one * two, p.limits, (t, s), self.discrete)
        self.terms.append(algebra)
        sites = []
        for weight, vector, hat in ((two, p.a.body, p.b.hat), (one, p.b.body, p.a.hat)):
            at = 0 if set(p.first.vectors) == {vector, hat} else 1
            home = (p.first, p.second)[at].population
            body = -I * k / p.ratios[at] * scale * weight * vector * hat
            expr = over(body, p.limits, (t, s), self.discrete)
            piece = Piece("response", expr, p.ratios[at], p.a.use.matrix.name)
            self.add(home, piece)
            sites.append((home, piece.weighted))
        self.record(p.a, p.other, algebra, tuple(sites))
        self.record(p.other, p.a, algebra, tuple(sites))

    def record(self, leg: Leg, other: Leg, algebra: Expr, sites: tuple[tuple[str, Expr], ...]) -> None:
        """Remember a response under its own name, its vector at t and its source at s."""
        past = other.past(leg.use.indices)
        symbol = self.symbol(leg, past, t, s)
        if str(symbol) not in self.responses:
            conjugate = self.symbol(past, leg, s, t)
            ranges = (
                *leg.limits,
                *past.ranges,
                *(leg.use.summed if leg.body != leg.use.vector.plain else ()),
            )
            self.responses[str(symbol)] = Response(symbol, conjugate, leg, other, ranges, algebra, sites)

    def symbol(self, leg: Leg, other: Leg, time: Expr, past: Expr) -> AppliedUndef:
        """The response of the vector of ``leg`` at ``time`` to the source of ``other`` at ``past``.

        A vector taken elsewhere than at its own indices, such as ``phi(h(ell, mu, a + k, t))``, has a
        variable of its own, see :meth:`called`.
        """
        name, site = self.reading.response_name(leg.use, other.use)
        sites = () if site is None else (site,)
        v = leg.use.vector
        if v.plain != v.body:
            first = next(x for x in self.legs if x.source.func == leg.source.func).use
            self.elsewhere[f"{name}_used"] = (name, len(sites), first)
            name = f"{name}_used"
            sites = (*sites, *[r.index for r in leg.use.summed])
        return Function(name)(*sites, *v.indices, *other.use.vector.indices, time, past)

    def called(self, e: Expr) -> Expr:
        """Responses of vectors taken elsewhere, as values of the one response function of that vector."""

        def final(x: AppliedUndef) -> Expr:
            name, sites, use = self.elsewhere[str(x.func)]
            members = [r.index for r in use.summed]
            split = sites + len(members)
            end = split + len(use.vector.indices)
            values = dict(zip((*members, *use.vector.indices), x.args[sites:end], strict=True))
            taken = [y.xreplace(values) for y in use.vector.arguments]
            return Function(name)(*x.args[:sites], *taken, *x.args[end:])

        return e.replace(lambda x: isinstance(x, AppliedUndef) and str(x.func) in self.elsewhere, final)

    def constrain_correlations(self) -> None:
        """``n C Chat - Chat a.b`` for every correlation met, and for those that the notation names."""
        for use in self.reading.uses:
            if use.trained is not None:
                matrix_memory(self.reading, use, use.trained)
        tangent_kernel(self.reading)
        self.reading.registry.name_all()
        for q in self.reading.registry.found.values():
            conjugate = Function(hatted(q.name))(*q.symbol.args)
            product = q.definition.args[0]
            place = self.reading.program.site_of(product)
            home, c = place.name, sympify(place.ratio)
            self.correlations[q.name] = Correlation(q.symbol, conjugate, product, home, q.ranges)
            self.terms.append(over(c * q.symbol * conjugate, q.ranges, (t, s), self.discrete))
            expr = over(-conjugate * product, q.ranges, (t, s), self.discrete)
            self.add(home, Piece("conjugate", expr, c))


def _inside(factor: Expr, e: Expr) -> Expr:
    """A factor multiplied into a sum or integral, whose indices it may contain."""
    return e.func(_inside(factor, e.function), *e.limits) if isinstance(e, Sum | Integral) else factor * e
