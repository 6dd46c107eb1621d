"""Which equations a reader sees, in which order: a theory as titled lists of entries, before any notation."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from sympy import Eq, Expr, S, Sum, Symbol, sympify

from derive.program.words import IndexRange, ell, s, t
from derive.show.layout import ordered as in_order
from derive.theory.families import Families, families
from derive.theory.theory import Equation, OrderParameter, Source, Theory

Show = Literal["single-site", "order-parameters", "responses", "action", "saddle-point", "all"]
SHOW: tuple[str, ...] = get_args(Show)


@dataclass(frozen=True)
class Entry:
    """``lhs = sum of terms`` for the layers of ``layers``; of a ``process``, ``{lhs} ~ GP(0, terms)``.

    Several left-hand sides share one right-hand side (``A^0 = B^L = 0``).  ``causal`` is as in
    OrderParameter.
    """

    lhs: tuple[Expr | str, ...]
    terms: tuple[Expr, ...]
    layers: IndexRange | None = None
    process: bool = False
    causal: str = ""


@dataclass(frozen=True)
class Section:
    """Entries under a title."""

    title: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class View:
    """A theory, with its families joined and its path integral taken when somebody asks."""

    theory: Theory

    @cached_property
    def families(self) -> Families:
        """Families with their ends and base cases."""
        return families(self.theory)

    @cached_property
    def ordered(self) -> frozenset[Symbol]:
        """The indices that ordered fields are run through."""
        fields = {x.name for x in self.theory.program.fields if x.ordered}
        own = [d for d in self.theory.program.definitions if str(d.lhs.func) in fields]
        return frozenset(r.index for d in own for r in d.ranges if d.lhs.args[0].has(r.index))

    @cached_property
    def route(self) -> Any:
        """The path-integral derivation of the same program."""
        from derive.theory.path_integral import path_integral

        return path_integral(self.theory.program)

    def sections(self, show: str) -> list[Section]:
        """The sections of one part of the theory, or of all of it."""
        parts = {
            "single-site": (self.sources, self.process, self.base_cases),
            "order-parameters": (self.outputs, self.correlations, self.observables),
            "responses": (self.responses,),
            "action": (self.action, self.weights),
            "saddle-point": (self.saddle_point, self.weights),
            "all": (
                self.sources, self.process, self.outputs, self.correlations, self.responses, self.base_cases,
                self.observables,
                *(() if self.theory.reduction else (self.action, self.saddle_point, self.weights)),
            ),
        }  # fmt: skip
        return [x for x in (part() for part in parts[show]) if x.entries]

    def sources(self) -> Section:
        """The Gaussian sources with their covariances."""
        return Section("Gaussian sources", tuple(_source(u, self.ordered) for u in self.families.sources))

    def process(self) -> Section:
        """The single-site equations."""
        return Section(
            "Single-site process", tuple(_equation(e, self.ordered) for e in self.families.equations)
        )

    def outputs(self) -> Section:
        """The deterministic numbers that a step recomputes."""
        return Section("Outputs", tuple(map(_equation, self.theory.scalars)))

    def correlations(self) -> Section:
        """Correlation functions."""
        return Section(
            "Order parameters", tuple(_parameter(q, self.ordered) for q in self.theory.correlations())
        )

    def responses(self) -> Section:
        """Response functions."""
        return Section(
            "Response functions", tuple(_parameter(q, self.ordered) for q in self.theory.responses())
        )

    def observables(self) -> Section:
        """What else follows, such as the tangent kernel."""
        return Section("Tangent kernel", tuple(map(_equation, self.families.observables)))

    def base_cases(self) -> Section:
        """Values beyond the ends of families, those that vanish in one entry."""
        cases = self.families.base_cases
        kept = tuple(_equation(e) for e in cases if e.rhs != 0)
        zero = tuple(e.lhs for e in cases if e.rhs == 0)
        return Section("Base cases", (*kept, *((Entry(zero, (S.Zero,)),) if zero else ())))

    def action(self) -> Section:
        """The exponent of the path integral, per unit, and that of a single site (minus its Hamiltonian)."""
        exponents = {-Symbol(f"Hcal_{name}"): _settled(e) for name, e in self.route.single_site.items()}
        return Section(
            "Action", tuple(_anything({Symbol("S"): _settled(self.route.action), **exponents}, ""))
        )

    def saddle_point(self) -> Section:
        """Its stationarity conditions."""
        entries = _anything(self.route.saddle_point, "0")
        return Section("Saddle point", tuple(replace(e, terms=tuple(map(_drawn, e.terms))) for e in entries))

    def weights(self) -> Section:
        """What the action keeps folded: how an entry of a random matrix, unlearned, covaries with itself in
        time, in units of its initial variance."""
        from derive.theory.applications import read
        from derive.theory.path_integral.average import Entries

        exponents = (self.route.action, *self.route.single_site.values())
        folded = {x.args[0] for e in exponents for x in e.atoms(Entries)}
        found = {str(x.matrix.name): x.entries(t, s) for x in read(self.theory.program).uses}
        alike: dict[Expr, list[Expr]] = {}
        for m in sorted(folded, key=str):
            alike.setdefault(found[str(m)], []).append(Entries(m, t, s))
        entries = (Entry(tuple(lhs), _addends(rhs)) for rhs, lhs in alike.items())
        return Section("Covariance of weights, in units of the initial variance", tuple(entries))


def _layers(ranges: Iterable[IndexRange], ordered: frozenset[Symbol] = frozenset()) -> IndexRange | None:
    """The range of layers, or of what takes their place in a network that is tied over depth."""
    return next((r for r in ranges if r.index == ell or r.index in ordered), None)


def _at_single(entry: Entry) -> Entry:
    """A family of one member as that member."""
    r = entry.layers
    if r is None or r.lower != r.upper:
        return entry
    lhs = tuple(x if isinstance(x, str) else x.subs(r.index, r.lower) for x in entry.lhs)
    return Entry(lhs, tuple(x.subs(r.index, r.lower) for x in entry.terms), None, entry.process, entry.causal)


def _equation(e: Equation, ordered: frozenset[Symbol] = frozenset()) -> Entry:
    terms = [x.expr for x in e.terms]
    if len(terms) == 1:
        terms = list(terms[0].as_ordered_terms()) if terms[0].is_Add else terms
    if all(x.kind == "definition" for x in e.terms):
        terms = in_order(terms)
    return _at_single(Entry((e.lhs,), tuple(terms), _layers(e.ranges, ordered)))


def _parameter(q: OrderParameter, ordered: frozenset[Symbol] = frozenset()) -> Entry:
    return _at_single(Entry((q.symbol,), (q.definition,), _layers(q.ranges, ordered), causal=q.causal))


def _source(u: Source, ordered: frozenset[Symbol] = frozenset()) -> Entry:
    terms = (sympify(u.covariance),)
    if u.symbol.func == u.partner.func:
        return _at_single(Entry((u.symbol,), terms, _layers(u.ranges, ordered), process=True))
    from derive.calculus.averages import Average

    return _at_single(Entry((Average(u.symbol * u.partner),), terms, _layers(u.ranges, ordered)))


def _anything(x: Any, name: Expr | str) -> Iterator[Entry]:
    """Entries of an equation, an expression (called ``name``), or a collection (a mapping names its own)."""
    if isinstance(x, Equation):
        yield _equation(x)
    elif isinstance(x, Eq):
        yield Entry((x.lhs,), _addends(x.rhs))
    elif isinstance(x, Mapping):
        for key, value in x.items():
            yield from _anything(value, key if isinstance(key, Expr | str) else str(key))
    elif isinstance(x, Iterable):
        for value in x:
            yield from _anything(value, name)
    elif isinstance(x, OrderParameter):
        yield _parameter(x)
    else:
        yield Entry((name,), _addends(sympify(x)))


def _settled(e: Expr) -> Expr:
    """Sums over one member as that member."""

    def member(x: Sum) -> Expr:
        values = {i: a for i, a, b in x.limits if a == b}
        rest = [limits for limits in x.limits if limits[0] not in values]
        inner = Sum(x.function, *rest) if rest else x.function
        return inner.subs(values)

    return e.replace(lambda x: isinstance(x, Sum) and any(a == b for _, a, b in x.limits), member)


def _drawn(e: Expr) -> Expr:
    """Numbers drawn out of averages."""
    from derive.calculus.averages import Average

    def average(x: Expr) -> Expr:
        number, body = x.args[0].as_coeff_Mul()
        return number if body == 1 or number == 0 else number * Average(body)

    return e.replace(lambda x: isinstance(x, Average), average)


def _addends(e: Expr) -> tuple[Expr, ...]:
    return tuple(in_order(list(e.as_ordered_terms()))) if e.is_Add else (e,)


__all__ = ["SHOW", "Entry", "Section", "Show", "View"]
