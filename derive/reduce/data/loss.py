"""The loss as a sum over the sources of error: bias, limited width, limited data, label noise (eq. 13).

The error vector is linear in the sources of its population.  Each source enters one equation, from which
transfer functions carry it to the error, so the correlation function of the error is a sum of one
quadratic form for each source.  What a source stands for is told by what it came from: the target is a
vector that nobody trains, width is the randomness of a trained matrix, data that of one nobody trains.
Label noise is the part of the samples' own errors that comes from a vector.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sympy import Add, Eq, Expr, Integral, Sum, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.sums import addends
from derive.errors import NotApplicable
from derive.linear.transfer import Transfer, population, transfer, units
from derive.program.program import gaussian
from derive.program.training import TrainedMatrix
from derive.program.words import s, t
from derive.theory.theory import Equation, Source, Theory

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

    ``H_v_x(t, s)`` in it is the answer of v to a push of x (see :func:`.transfer`).  Raises
    :class:`NotApplicable` when the correlation is not of one field of one place.

    >>> from derive.theory import mean_field
    >>> from derive.reduce.data import absorb_factors
    >>> from derive.program.networks.isotropic import isotropic
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

    @property
    def into(self) -> str:
        return self.equation.name


class _Decomposition:
    """``depth`` counts how deep this one stands inside another, and keeps summation indices apart."""

    def __init__(self, theory: Theory, name: str, depth: int = 0) -> None:
        self.theory, self.program, self.depth = theory, theory.program, depth
        self.q = theory.order_parameter(name)
        self.average = next(iter(self.q.definition.atoms(Average)))
        fields = [
            a for a in self.average.atoms(AppliedUndef) if self.program.field_of(str(a.func)) is not None
        ]
        if {a.args[-1] for a in fields} != {t, s} or len(fields) != 2 or fields[0].func != fields[1].func:
            raise NotApplicable(f"{name} is not the correlation function of one field")
        self.now, self.past = sorted(fields, key=lambda a: bool(a.args[-1] == s))
        self.transfers: dict[str, Transfer] = {}

    @property
    def field(self) -> str:
        return str(self.now.func)

    def result(self) -> LossDecomposition:
        order = (BIAS, WIDTH, DATA, NOISE)
        found = [x for pair in self.pairs() for x in self.parts(*pair)]
        parts = tuple(sorted(found, key=lambda p: order.index(p.label)))
        return LossDecomposition(self.theory, self.q.symbol, parts, tuple(self.transfers.values()))

    # -- which sources ---------------------------------------------------------------------------------------

    def entries(self) -> Iterator[_Entry]:
        """What the population's equations contain besides its own fields."""
        rows = tuple(population(self.theory, self.field))
        names = {e.name for e in rows}
        known = {str(u.symbol.func) for u in self.theory.sources} | self.given
        for e in rows:
            for x in e.terms:
                for part in addends(x.expr):
                    atoms = part.atoms(AppliedUndef)
                    if any(str(a.func) in names for a in atoms):
                        continue
                    found = [a for a in atoms if str(a.func) in known]
                    stochastic = [a for a in found if str(a.func) not in self.given]
                    if len(stochastic or found) != 1:
                        raise NotApplicable(f"{part} in the equation of {e.name} is no source")
                    a = (stochastic or found)[0]
                    yield _Entry(e, a, part / a)

    @property
    def given(self) -> set[str]:
        return {x.name for x in self.program.attributes}

    def pairs(self) -> Iterator[tuple[_Entry, _Entry, Expr, str]]:
        """Pairs of entries that are correlated: covariance at the two times, label."""
        found = list(self.entries())
        for x in found:
            for y in found:
                if x.symbol == y.symbol and str(x.symbol.func) in self.given:
                    yield x, y, x.symbol * y.symbol, BIAS
                for u in self.theory.sources:
                    pair = (u.symbol.func, u.partner.func)
                    if pair == (x.symbol.func, y.symbol.func):
                        yield x, y, self.between(u, (x, y), u.symbol, u.partner, False), self.label(u)
                    elif pair == (y.symbol.func, x.symbol.func):
                        yield x, y, self.between(u, (x, y), u.partner, u.symbol, True), self.label(u)

    def label(self, u: Source) -> str:
        for m in self.program.matrices:
            if gaussian(m).name == u.matrix:
                return WIDTH if isinstance(m, TrainedMatrix) else DATA
        return BIAS

    # -- one part --------------------------------------------------------------------------------------------

    def parts(self, x: _Entry, y: _Entry, covariance: Expr, label: str) -> Iterator[Part]:
        """One part, or two if the samples' errors are in it and have label noise."""
        source = str(x.symbol.func)
        split = self.samples(covariance) if label == DATA and self.depth == 0 else ()
        for inner, value in split:
            noisy = inner.label == BIAS
            yield Part(NOISE if noisy else DATA, inner.source if noisy else source, self.form(x, y, value))
        if not split:
            yield Part(label, source, self.form(x, y, covariance))

    def samples(self, covariance: Expr) -> tuple[tuple[Part, Expr], ...]:
        """The covariance with the samples' own errors in it taken apart, if they have label noise."""
        for q in self.theory.correlations():
            hits = [a for a in covariance.atoms(AppliedUndef) if a.func == q.symbol.func]
            if hits:
                inner = _Decomposition(self.theory, q.name, self.depth + 1)
                found = inner.result().parts
                if any(p.label == BIAS for p in found):
                    self.transfers |= {f"{k} of {q.name}": v for k, v in inner.transfers.items()}
                    place = dict(zip(q.symbol.args, hits[0].args, strict=True))
                    return tuple((p, covariance.xreplace({hits[0]: p.expr.xreplace(place)})) for p in found)
        return ()

    def form(self, x: _Entry, y: _Entry, covariance: Expr) -> Expr:
        """``sum over s_1, s_2 of H(t, s_1) <x(s_1) y(s_2)> H(s, s_2)``, weighed as in the definition."""
        body = self.carried(x, self.now, 1) * covariance * self.carried(y, self.past, 2)
        limits = [(r[0], 1, r[1]) for e, i in ((x, 1), (y, 2)) for r in self.channels(e, i).values()]
        times = [(self.time(1), 0, t), (self.time(2), 0, s)]
        weight = self.average.args[0] / (self.now * self.past)
        value = (
            Sum(weight * body, *limits, *times)
            if self.program.rule.discrete
            else self.flow(weight * body, limits, times)
        )
        return self.q.definition.xreplace({self.average: value})

    @staticmethod
    def flow(body: Expr, limits: list[tuple[Expr, ...]], times: list[tuple[Expr, ...]]) -> Expr:
        return Integral(Sum(body, *limits) if limits else body, *times)

    def carried(self, x: _Entry, at: AppliedUndef, i: int) -> Expr:
        """The source's factor at its time, times the transfer function from there."""
        if x.into not in self.transfers:
            self.transfers[x.into] = transfer(self.theory, x.into)
        h = self.transfers[x.into].answer(self.field)
        names = self.channels(x, i)
        ends = [names[r.index][0] for r in x.equation.ranges if r.index in names]
        factor = x.factor.xreplace({k: v[0] for k, v in names.items()}).xreplace({t: self.time(i)})
        return factor * h.func(*at.args[:-1], *ends, at.args[-1], self.time(i))

    def between(
        self, u: Source, pair: tuple[_Entry, _Entry], one: AppliedUndef, two: AppliedUndef, swap: bool
    ) -> Expr:
        """A source's covariance at the two inner times, and at the inner indices."""
        names: dict[Expr, Expr] = {s if swap else t: self.time(1), t if swap else s: self.time(2)}
        for x, a, i in zip(pair, (one, two), (1, 2), strict=True):
            own = [y for y in a.args[:-1] if y not in units(self.theory)]
            names |= dict(zip(own, [v[0] for v in self.channels(x, i).values()], strict=True))
        return u.covariance.xreplace(names)

    def channels(self, x: _Entry, i: int) -> dict[Expr, tuple[Symbol, Expr]]:
        """For each index of the entry's equation, its inner name and its number."""
        own = [r for r in x.equation.ranges if r.index not in units(self.theory)]
        return {
            r.index: (Symbol(f"{r.index.name}_{self.level(i)}", **r.index.assumptions0), r.upper) for r in own
        }

    def level(self, i: int) -> int:
        return 2 * self.depth + i

    def time(self, i: int) -> Symbol:
        return Symbol(f"s_{self.level(i)}", **s.assumptions0)
