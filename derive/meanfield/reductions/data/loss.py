"""The loss as a sum over the sources of error: bias, limited width, limited data, label noise (eq. 13).

The error vector is linear in the sources of its population.  Each source enters one equation, from which
transfer functions carry it to the error, so the correlation function of the error is a sum of one
quadratic form for each source.  What a source stands for is told by what it came from: the target is a
vector that nobody trains, width is the randomness of a trained matrix, data that of one nobody trains.  Label noise
is the part of the samples' own errors that comes from a vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Add, Eq, Expr, Integral, S, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.meanfield.averages import Average
from derive.meanfield.names import primed
from derive.meanfield.reductions.data.transfer import Transfer, addends, population, transfer, units
from derive.meanfield.reductions.projection import NotApplicable
from derive.meanfield.theory import Equation, Source, Theory
from derive.program.expressions import IndexRange, s, t
from derive.program.program import gaussian
from derive.program.training import TrainedMatrix

BIAS, WIDTH, DATA, NOISE = "bias", "limited width", "limited data", "label noise"


@dataclass(frozen=True)
class Part:
    """The part of a correlation function that comes from ``source``; ``label`` says what that stands for."""

    label: str
    source: str
    expr: Expr


@dataclass(frozen=True)
class LossDecomposition:
    """``correlation = sum of parts``, with the transfer functions that occur in them.

    The loss is the correlation function at ``s = t``.
    """

    theory: Theory
    correlation: Expr
    parts: tuple[Part, ...]
    transfers: tuple[Transfer, ...]

    @property
    def eq(self) -> Eq:
        """The identity."""
        return Eq(self.correlation, Add(*[p.expr for p in self.parts]), evaluate=False)

    def part(self, label: str) -> Expr:
        """All that carries this label; zero if nothing does."""
        return Add(*[p.expr for p in self.parts if p.label == label])


def loss_decomposition(theory: Theory, name: str = "C_v") -> LossDecomposition:
    """Take a correlation function of a linear theory apart by the sources that it comes from.

    ``H_v_from_x(t, s)`` in it is the answer of v to a push of x (see :func:`.transfer`).  Raises
    :class:`NotApplicable` when the correlation is not of one field of one place.

    >>> from derive.meanfield import mean_field
    >>> from derive.meanfield.reductions.data import absorb_factors
    >>> from derive.program.builders.isotropic import isotropic
    >>> parts = loss_decomposition(absorb_factors(mean_field(isotropic(noise=True)), "r0", "u0"))
    >>> [p.label for p in parts.parts]
    ['bias', 'limited width', 'limited data', 'label noise']
    """
    return _Decomposition(theory, name).result()


@dataclass(frozen=True)
class _Entry:
    """A source's entry into an equation, with the factor in front of it."""

    equation: Equation
    symbol: AppliedUndef
    factor: Expr


class _Decomposition:
    def __init__(self, theory: Theory, name: str) -> None:
        self.theory, self.program = theory, theory.program
        self.q = theory.order_parameter(name)
        averages = self.q.definition.atoms(Average)
        fields = [
            a for x in averages for a in x.atoms(AppliedUndef) if self.program.field_of(str(a.func)) is not None
        ]
        if len({a.func for a in fields}) != 1 or len(averages) != 1:
            raise NotApplicable(f"{name} is not the correlation function of one field")
        self.field = str(fields[0].func)
        self.average = next(iter(averages))
        now = [a for a in fields if a.args[-1] == t]
        past = [a for a in fields if a.args[-1] == s]
        self.now, self.past = now[0], past[0] if past else now[0].xreplace({t: s})
        self.rows = tuple(population(theory, self.field))
        self.transfers: dict[str, Transfer] = {}

    def result(self) -> LossDecomposition:
        parts = tuple(x for u in self.pairs() for x in self.parts(*u))
        return LossDecomposition(self.theory, self.q.symbol, parts, tuple(self.transfers.values()))

    # -- which sources ---------------------------------------------------------------------------------------

    def entries(self) -> Iterator[_Entry]:
        own = {u.symbol.func for u in self.theory.sources}
        given = {x.name for x in self.program.attributes}
        names = {e.name for e in self.rows}
        for e in self.rows:
            for x in e.terms:
                for part in addends(x.expr):
                    atoms = part.atoms(AppliedUndef)
                    if any(str(a.func) in names for a in atoms):
                        continue
                    found = [a for a in atoms if a.func in own] or [a for a in atoms if str(a.func) in given]
                    if len(found) != 1:
                        raise NotApplicable(f"{part} in the equation of {e.name} is no source")
                    yield _Entry(e, found[0], part / found[0])

    def pairs(self) -> Iterator[tuple[_Entry, _Entry, Expr, str]]:
        """Pairs of entries with their covariance and the label of the first."""
        found = list(self.entries())
        for x in found:
            for y in found:
                if x.symbol.func == y.symbol.func and str(x.symbol.func) in {
                    a.name for a in self.program.attributes
                }:
                    yield x, y, x.symbol**2, BIAS
                for u in self.theory.sources:
                    if (u.symbol.func, u.partner.func) == (x.symbol.func, y.symbol.func):
                        yield x, y, self.covariance(u), self.label(u)
                    elif (u.partner.func, u.symbol.func) == (x.symbol.func, y.symbol.func):
                        yield x, y, self.covariance(u).xreplace({t: s, s: t}), self.label(u)

    @staticmethod
    def covariance(u: Source) -> Expr:
        return u.covariance

    def label(self, u: Source) -> str:
        if any(gaussian(m).name == u.matrix for m in self.program.matrices):
            trained = any(m.name == u.matrix and isinstance(m, TrainedMatrix) for m in self.program.matrices)
            return WIDTH if trained else DATA
        return BIAS

    # -- one part --------------------------------------------------------------------------------------------

    def parts(self, x: _Entry, y: _Entry, covariance: Expr, label: str) -> list[Part]:
        source = str(x.symbol.func)
        whole = Part(label, source, self.form(x, y, covariance))
        if label != DATA:
            return [whole]
        split = [
            Part(DATA if p.label == DATA else NOISE, source if p.label == DATA else p.source, expr)
            for p, expr in self.noise(x, y, covariance)
        ]
        return split or [whole]

    def noise(self, x: _Entry, y: _Entry, covariance: Expr) -> list[tuple[Part, Expr]]:
        """The data's part split by what the samples' own errors come from; empty if by nothing."""
        for q in self.theory.correlations():
            hits = [a for a in covariance.atoms(AppliedUndef) if a.func == q.symbol.func]
            if not hits:
                continue
            inner = _Decomposition(self.theory, q.name)
            found = inner.result()
            if any(p.label == BIAS for p in found.parts):
                self.transfers |= {f"{inner.field}.{k}": v for k, v in inner.transfers.items()}
                split = []
                for p in found.parts:
                    value = _deeper(p.expr).xreplace(dict(zip(q.symbol.args, hits[0].args, strict=True)))
                    split.append((p, self.form(x, y, covariance.xreplace({hits[0]: value}))))
                return split
        return []

    def form(self, x: _Entry, y: _Entry, covariance: Expr) -> Expr:
        """``sum over s_1, s_2 of H(t, s_1) <x(s_1) y(s_2)> H(s, s_2)``, averaged as the definition says."""
        first, second = (Symbol(f"s_{i}", **s.assumptions0) for i in (1, 2))
        body = (x.factor.xreplace({t: first}) * y.factor.xreplace({t: second})).xreplace({})
        doubles = {r.index: primed(r.index) for r in y.equation.ranges if r.index not in units(self.theory)}
        body = x.factor.xreplace({t: first}) * y.factor.xreplace(doubles).xreplace({t: second})
        body *= self.answer(x, self.now, first) * self.answer(y, self.past, second, doubles)
        body *= _times(covariance, first, second)
        own = {r.index: _inner(r.index) for r in x.equation.ranges if r.index not in units(self.theory)}
        other = {primed(i): _inner(primed(i)) for i in own}
        del own, other
        weight = self.average.body / (self.now * self.past if self.now != self.past else self.now**2)
        value = self.over(x, y, body, first, second, doubles)
        return self.q.definition.xreplace({self.average: _into(weight, value)})

    def answer(
        self, x: _Entry, at: AppliedUndef, time: Symbol, doubles: dict[Symbol, Symbol] | None = None
    ) -> Expr:
        into = x.equation.name
        if into not in self.transfers:
            self.transfers[into] = transfer(self.theory, into)
        h = self.transfers[into].answer(self.field)
        ends = h.args[len(at.args) - 1 : -2]
        del doubles, ends
        return h.func(*at.args[:-1], *h.args[len(at.args) - 1 : -2], at.args[-1], time)

    def over(
        self,
        x: _Entry,
        y: _Entry,
        body: Expr,
        first: Symbol,
        second: Symbol,
        doubles: dict[Symbol, Symbol],
    ) -> Expr:
        kind = Sum if self.program.rule.discrete else Integral
        return kind(body, (first, 0, self.now.args[-1]), (second, 0, self.past.args[-1]))


def _times(e: Expr, first: Symbol, second: Symbol) -> Expr:
    keep = {t: Symbol("_t"), s: Symbol("_s")}
    return e.xreplace(keep).xreplace({keep[t]: first, keep[s]: second})


def _into(weight: Expr, value: Expr) -> Expr:
    return value.func(weight * value.function, *value.limits) if weight != 1 else value


def _inner(x: Symbol) -> Symbol:
    return Symbol(f"{x.name}_1", **x.assumptions0)


def _deeper(e: Expr) -> Expr:
    return e


__all__ = ["IndexRange", "LossDecomposition", "Part", "S", "loss_decomposition"]
