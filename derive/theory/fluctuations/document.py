"""Fluctuations as a document: order parameters, the exponent of one unit and its derivatives, in sections.

Text and LaTeX are titled lists of equations in the notation of the mean-field theory, with a hat over
conjugate fields. JSON has the same sections, with each expression as ``{"text", "latex", "srepr"}``.
`Fluctuations.render` uses the module.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import combinations_with_replacement, product
from typing import Any, Literal, get_args

from sympy import Add, Expr, Piecewise, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.sums import substitute
from derive.calculus.symbols import IndexRange, ell
from derive.show.document import COLUMNS, DisplayedEquation, Section, latex_section, text_section
from derive.show.latex import PaperLatex
from derive.show.notation import notation
from derive.show.text import PaperText, wrap
from derive.theory import document
from derive.theory.data import Equation, OrderParameter, Term, TheoryData
from derive.theory.fluctuations.coefficients import (
    FeedbackElement,
    Influence,
    NoiseElement,
    ParameterElement,
    Propagator,
    ScaledCovariance,
    ShiftElement,
    feedback,
    influence,
    noise,
    shift_source,
)
from derive.theory.fluctuations.data import FluctuatingParameter, FluctuationData
from derive.theory.fluctuations.hats import Hatted
from derive.theory.fluctuations.one_unit import indices_and_times, with_other_indices

FORMATS = ("text", "latex", "json")
FluctuationPart = Literal[
    "process", "order-parameters", "exponent", "influences", "noise", "feedback", "shift", "all"
]
PARTS: tuple[str, ...] = get_args(FluctuationPart)

TITLES = {
    "process": "Fields of one unit, products of weights and vectors among them",
    "order-parameters": "Order parameters: averages over units, and functions of them",
    "exponent": "Exponent of one unit, as far as order parameters stand in it",
    "influences": "Influences: derivatives of the exponent of one unit by order parameters",
    "noise": "Noise of averages over units, N times a covariance",
    "feedback": "Feedback: derivatives of order parameters by each other",
    "shift": "Sources of shifts of the mean, N times",
}
"""Titles of the sections of a document, by part and in order."""


def render(fluctuations: FluctuationData, show: FluctuationPart = "all", format: str = "text") -> str:
    """Return fluctuations, or the part ``show`` of them, as text, LaTeX or JSON.

    ``"all"`` excludes the sources of shifts, which are long. Raises ValueError if the part or the format is
    unknown.
    """
    if show not in PARTS:
        raise ValueError(f"show = {show!r}: must be one of {', '.join(PARTS)}")
    if format not in FORMATS:
        raise ValueError(f"format = {format!r}: must be one of {', '.join(FORMATS)}")
    view = FluctuationView(fluctuations)
    names = notation(view.declared)
    shown = [x for x in TITLES if x == show or (show == "all" and x != "shift")]
    text, latex = PaperText(names), PaperLatex(names)
    if format == "json":
        program = fluctuations.program
        out: dict[str, Any] = {"program": program.name, "depth": str(program.depth), "show": show}
        for key in shown:
            items = view.section(key).entries
            out[key.replace("-", "_")] = [document.plain_item(x, text, latex) for x in items]
        return json.dumps(out, indent=2, ensure_ascii=False)
    sections = [x for x in map(view.section, shown) if x.entries]
    if format == "latex":
        return "\n".join(latex_section(x, latex) for x in sections)
    head = wrap(document.headline(view.declared, text), COLUMNS, 2)
    return "\n\n".join([head, *(text_section(x, text) for x in sections)])


def summary(fluctuations: FluctuationData) -> str:
    """Return a summary of fluctuations: names of order parameters and fields, and how to show the rest."""
    kinds: dict[str, list[str]] = {}
    for q in fluctuations.parameters:
        when = {"strict": " for s < t", "past": " for s <= t", "now": " at s = t"}.get(q.causal, "")
        kinds.setdefault(f"{q.kind}s", []).append(f"{q.symbol}{when}")
    kinds["fields"] = [str(e.symbol) for e in (*fluctuations.products, *fluctuations.definitions)]
    rows = [f"  {kind:16}  {', '.join(dict.fromkeys(x))}" for kind, x in kinds.items()]
    view = FluctuationView(fluctuations)
    head = "Fluctuations of networks with N units.  "
    head += document.headline(view.declared, PaperText(notation(view.declared)))
    first = fluctuations.parameters[0].name if fluctuations.parameters else ""
    parts = '", "'.join(x for x in PARTS if x != "all")
    how = (
        f'All of it: .render(), or a part: .render("{parts}"); as "latex" or "json": .render("all", "latex").'
    )
    how += f'  One: .influence("{first}"), .explain("{first}").'
    lines = [wrap(head, COLUMNS, 2), *(wrap(x, COLUMNS, 20) for x in rows), *textwrap.wrap(how, COLUMNS)]
    return "\n".join(lines)


def namespace() -> dict[str, Any]:
    """Return the namespace in which the srepr text of fluctuations is evaluated."""
    kinds = (FeedbackElement, Hatted, Influence, NoiseElement, ParameterElement, Propagator)
    ours = {x.__name__: x for x in (*kinds, ScaledCovariance, ShiftElement)}
    return document.namespace() | ours


@dataclass(frozen=True)
class FluctuationView:
    """Fluctuations of a program, as sections of printed equations."""

    fluctuations: FluctuationData

    @cached_property
    def declared(self) -> TheoryData:
        """Order parameters and equations of one unit as a theory, which defines the printed notation."""
        averages = [q for q in self.fluctuations.parameters if q.kind in ("correlation", "response")]
        others = [q for q in self.fluctuations.parameters if q not in averages]
        numbers = tuple(Equation(q.symbol, (Term.local(_value(q)),), q.ranges) for q in others)
        fluctuating = [e for e, q in zip(numbers, others, strict=True) if q.kind != "observable"]
        return TheoryData(
            program=self.fluctuations.program,
            sources=self.fluctuations.sources,
            equations=(*self.fluctuations.products, *self.fluctuations.definitions),
            order_parameters=tuple(OrderParameter(q.symbol, q.unit, q.kind, q.ranges) for q in averages),
            scalars=tuple(fluctuating),
            observables=tuple(e for e in numbers if e not in fluctuating),
        )

    def section(self, key: str) -> Section:
        """Return a titled section of the document; ``key``, such as "noise", is a key of ``TITLES``."""
        entries = getattr(self, f"_{key.replace('-', '_')}")()
        members = (document.of_one_member(x) for x in entries)
        return Section(
            TITLES[key],
            tuple(replace(x, terms=tuple(map(document.without_single_sums, x.terms))) for x in members),
        )

    def _process(self) -> Iterator[DisplayedEquation]:
        """Yield the equations of the fields of one unit at infinite width, and their Gaussian sources."""
        for u in self.fluctuations.sources:
            yield document.displayed(u)
        for e in (*self.fluctuations.products, *self.fluctuations.definitions):
            yield document.displayed(e)

    def _order_parameters(self) -> Iterator[DisplayedEquation]:
        """Yield the order parameters with their definitions."""
        for q in self.fluctuations.parameters:
            yield DisplayedEquation((q.symbol,), _terms(_value(q)), _layers(q), causal=_causal(q))

    def _exponent(self) -> Iterator[DisplayedEquation]:
        """Yield for each population the exponent E of one unit, printed as minus its Hamiltonian.

        The fields of the unit have the weight exp(E).
        """
        homes: dict[str, list[Expr]] = {}
        for x in self.fluctuations.terms:
            homes.setdefault(x.home.name, []).append(x.whole)
        for name, terms in homes.items():
            yield DisplayedEquation((-Symbol(f"Hcal_{name}"),), tuple(terms))

    def _influences(self) -> Iterator[DisplayedEquation]:
        """Yield the derivatives by order parameters of the exponent of the path integral over one unit."""
        for q in self.fluctuations.parameters:
            each = influence(self.fluctuations, q)
            for name, e in each.items():
                head = Influence(q.symbol) if len(each) == 1 else Influence(q.symbol, Symbol(name))
                yield DisplayedEquation((head,), _terms(e), _layers(q), causal=_causal(q))

    def _noise(self) -> Iterator[DisplayedEquation]:
        """Yield N times the covariances of averages over units at fixed order parameters, unless zero.

        There is one equation for each pair of order parameters.
        """
        for q, p in combinations_with_replacement(self.fluctuations.parameters, 2):
            yield from _pair(NoiseElement, q, p, noise(self.fluctuations, q, p))

    def _feedback(self) -> Iterator[DisplayedEquation]:
        """Yield the derivatives of one order parameter by another one with all others fixed, unless zero."""
        for q, p in product(self.fluctuations.parameters, repeat=2):
            yield from _pair(FeedbackElement, q, p, feedback(self.fluctuations, q, p))

    def _shift(self) -> Iterator[DisplayedEquation]:
        """Yield for each order parameter the source of the shifts of means at order 1/N, unless zero."""
        for q in self.fluctuations.parameters:
            if (e := shift_source(self.fluctuations, q, expanded=False).whole) != 0:
                yield DisplayedEquation((ShiftElement(q.symbol),), _terms(e), _layers(q))


def _pair(
    kind: type[ParameterElement], q: FluctuatingParameter, p: FluctuatingParameter, e: Expr
) -> Iterator[DisplayedEquation]:
    """Yield the equation of a matrix element of q and p, such as ``kappa[q, p] = e``, unless e is zero.

    q and p are order parameters and ``kind`` is the class of the element. An index of p with a single value,
    such as a single layer, is replaced by this value.
    """
    if e != 0:
        other = with_other_indices(p, indices_and_times(q))
        single = {r.index: r.lower for r in other.ranges if r.lower == r.upper}
        lhs = kind(q.symbol, other.symbol.xreplace(single))
        yield DisplayedEquation((lhs,), _terms(substitute(e, single)), _layers(q))


def _value(q: FluctuatingParameter) -> Expr:
    """Return the definition of an order parameter: an average, plus a function of other ones."""
    fixed, unit = q.unit.as_independent(AppliedUndef, as_Add=False)
    return fixed * Average(unit) + q.function if unit != 0 else q.function


def _terms(e: Expr) -> tuple[Expr, ...]:
    """Return the terms of a sum for printing; terms with case distinctions are last."""
    return tuple(sorted(Add.make_args(e), key=lambda x: x.has(Piecewise)))


def _layers(q: FluctuatingParameter) -> IndexRange | None:
    """Return the range of layers of an order parameter; None for one without a layer index."""
    return next((r for r in q.ranges if r.index == ell), None)


def _causal(q: FluctuatingParameter) -> str:
    """Return the causality of a response for printing: "strict", "past", or empty if only s = t exists.

    It is also empty for an order parameter that is not a response.
    """
    return "" if q.causal == "now" else q.causal
