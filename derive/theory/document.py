"""A theory as a document: which equations a reader sees, in which order, and as data for other programs.

Text and LaTeX are titled lists of entries.  In JSON every expression is ``{"text", "latex", "srepr"}``;
``equations`` are as derived, with the origin of each term, and ``families`` the same with ends joined under
``base_cases``.  srepr is the text of a Python dictionary of lists of pairs ``(lhs, rhs)``, to be evaluated in
:func:`namespace`.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import sympy
from sympy import Add, Eq, Expr, S, Sum, Symbol, sympify
from sympy.functions.elementary.piecewise import ExprCondPair
from sympy.printing.repr import ReprPrinter

from derive.calculus.averages import Average, Response
from derive.calculus.symbols import IndexRange, ell, s, t
from derive.program.training import GradientDescent, GradientFlow, Momentum, MomentumFlow, Multistep
from derive.program.words import Mean, Product
from derive.show.arranged import ordered as in_order
from derive.show.document import COLUMNS, Entry, Section, latex_section, text_section
from derive.show.latex import PaperLatex
from derive.show.notation import notation
from derive.show.text import PaperText, wrap
from derive.theory.applications import read
from derive.theory.data import Equation, OrderParameter, Source, TheoryData
from derive.theory.families import Families, families
from derive.theory.path_integral import PathIntegral, path_integral
from derive.theory.path_integral.action import Entries, Partition

FORMATS = ("text", "latex", "srepr", "json")
Show = Literal["single-site", "order-parameters", "responses", "action", "saddle-point", "all"]
SHOW: tuple[str, ...] = get_args(Show)


def render(
    theory: TheoryData,
    show: Show = "all",
    format: str = "text",
    names: str | Mapping[str, str] | None = None,
) -> str:
    r"""``theory`` (its part ``show``) in one of ``FORMATS``, in the notation of selfconsistent2023 eq. 13.

    ``names`` overrides the notation: a name of ``NOTATIONS`` or a mapping from a name to its LaTeX.  Ends
    of a layer family that are members of it under base cases are shown as one equation.  LaTeX comes as
    ``align*`` environments, srepr and JSON as said above.  Raises
    ValueError for an unknown part, format or notation.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> print(render(mean_field(mlp()), "responses"))
    Deep linear network, L hidden layers, gradient descent at rate η; μ, α = 1..P
    <BLANKLINE>
    Response functions (ℓ = 1..L-1)
      A^ℓ_μ(t,s) = γ₀⁻¹ ⟨δh^ℓ_μ(t)/δr^ℓ(s)⟩          (0 unless s < t)
      B^ℓ_α(t,s) = γ₀⁻¹ ⟨δg^{ℓ+1}(t)/δu^{ℓ+1}_α(s)⟩  (0 unless s < t)
    """
    if show not in SHOW:
        raise ValueError(f"show = {show!r}: must be one of {', '.join(SHOW)}")
    if format not in FORMATS:
        raise ValueError(f"format = {format!r}: must be one of {', '.join(FORMATS)}")
    names_ = notation(theory, names)
    view = View(theory)
    if format == "json":
        return as_json(view, show, PaperText(names_), PaperLatex(names_))
    if format == "srepr":
        return as_srepr(view, show)
    sections = view.sections(show)
    if format == "latex":
        return "\n".join(latex_section(x, PaperLatex(names_)) for x in sections)
    printer = PaperText(names_)
    return "\n\n".join(
        [wrap(headline(theory, printer), COLUMNS, 2), *(text_section(x, printer) for x in sections)]
    )


def summary(theory: TheoryData) -> str:
    """What the theory is of, what it consists of by name, and how to see the rest.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> print(summary(mean_field(mlp())))
    Deep linear network, L hidden layers, gradient descent at rate η; μ, α = 1..P
      fields            h(ell, mu, t), g(ell, t)
      Gaussian sources  u(ell, mu, t), r(ell, t)
      outputs           f(mu, t), Delta(mu, t)
      order parameters  H(ell, mu, alpha, t, s), G(ell, t, s)
      responses         A(ell, mu, t, s), B(ell, alpha, t, s)
      observables       K(mu, alpha, t, s)
      symbols           L, P, eta, gamma0
    All of it: .render(), or a part: .render("single-site"), "order-parameters", "responses", "action",
    "saddle-point"; as "latex", "srepr" or "json": .render("all", "latex").  One: .equation("h"),
    .explain("h").
    """
    named = {
        "fields": [e.symbol for e in families(theory).equations],
        "Gaussian sources": [u.symbol for u in families(theory).sources],
        "outputs": [e.symbol for e in theory.scalars],
        "order parameters": [q.symbol for q in theory.correlations()],
        "responses": [q.symbol for q in theory.responses()],
        "observables": [e.lhs for e in theory.observables],
        "symbols": list(theory.symbols),
    }
    rows = [f"  {k:16}  {', '.join(map(str, dict.fromkeys(x)))}" for k, x in named.items() if x]
    first = theory.equations[0].name if theory.equations else theory.scalars[0].name
    parts = '", "'.join(x for x in SHOW[1:] if x != "all")
    how = (
        f'All of it: .render(), or a part: .render("{SHOW[0]}"), "{parts}"; as "latex", "srepr" or "json": '
        f'.render("all", "latex").  One: .equation("{first}"), .explain("{first}").'
    )
    head = wrap(headline(theory, PaperText(notation(theory))), COLUMNS, 2)
    return "\n".join([head, *(wrap(x, COLUMNS, 20) for x in rows), *textwrap.wrap(how, COLUMNS)])


# -- text ----------------------------------------------------------------------------------------------


def headline(theory: TheoryData, printer: PaperText) -> str:
    """What is trained, and how; then the ranges that sums over samples leave out."""
    program = theory.program
    words = [program.name[:1].upper() + program.name[1:]]
    if any(x.layered for x in program.fields):
        words.append(f"{printer.doprint(program.depth)} hidden layer{'' if program.depth == 1 else 's'}")
    words.append(_rule(theory, printer))
    if theory.reduction:
        words.append(theory.reduction)
    ranges: dict[tuple[Expr, Expr], list[str]] = {}
    for index, low, high in printer.names.ranges:
        ranges.setdefault((low, high), []).append(printer.doprint(index))
    shown = [f"{', '.join(x)} = {printer.doprint(a)}..{printer.doprint(b)}" for (a, b), x in ranges.items()]
    return ", ".join(words) + "".join(f"; {x}" for x in shown)


def _rule(theory: TheoryData, printer: PaperText) -> str:
    rule = theory.program.rule
    if not any(True for _ in theory.program.trained()):
        return "discrete time" if rule.discrete else "continuous time"
    rate = getattr(rule, "rate", 1)
    at = "" if rate == 1 else f" at rate {printer.doprint(rate)}"
    kinds = {
        GradientDescent: "gradient descent",
        GradientFlow: "gradient flow",
        Momentum: "gradient descent with momentum",
        MomentumFlow: "gradient flow with momentum",
        Multistep: "multistep gradient flow",
    }
    extras = [(n, getattr(rule, n, 0)) for n in ("momentum", "decay", "diffusion")]
    more = "".join(f", {n} {printer.doprint(x)}" for n, x in extras if x != 0)
    return kinds.get(type(rule), type(rule).__name__) + at + more


@dataclass(frozen=True)
class View:
    """A theory, with its families joined and its path integral taken when somebody asks."""

    theory: TheoryData

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
    def route(self) -> PathIntegral:
        """The path-integral derivation of the same program."""

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

    def average(x: Expr) -> Expr:
        number, body = x.args[0].as_coeff_Mul()
        return number if body == 1 or number == 0 else number * Average(body)

    return e.replace(lambda x: isinstance(x, Average), average)


def _addends(e: Expr) -> tuple[Expr, ...]:
    return tuple(in_order(list(e.as_ordered_terms()))) if e.is_Add else (e,)


# -- data ---

PARTS: dict[str, tuple[str, ...]] = {
    "single-site": ("sources", "equations", "families", "base_cases"),
    "order-parameters": ("scalars", "order_parameters", "observables"),
    "responses": ("responses",),
    "action": ("action", "weights"),
    "saddle-point": ("saddle_point", "weights"),
    "all": (
        "sources", "equations", "families", "base_cases", "scalars", "order_parameters", "responses",
        "observables", ), }  # fmt: skip


ASSUMED = (
    (), ("positive",), ("nonnegative",), ("real",), ("integer",), ("integer", "nonnegative"),
    ("integer", "positive"),
)  # fmt: skip
"""Assumptions that symbols are made with; SymPy's ``assumptions0`` adds all that follow from them."""


def namespace() -> dict[str, Any]:
    """The names that srepr text is written in: SymPy's, and this package's expression classes."""
    ours = {x.__name__: x for x in (Average, Entries, Response, Mean, Partition, Product, ExprCondPair)}
    return {k: v for k, v in vars(sympy).items() if not k.startswith("_")} | ours


def parts(view: View, show: str) -> dict[str, Sequence[Any]]:
    """The items of a theory under the keys of both formats."""
    theory = view.theory
    made: dict[str, Callable[[], Sequence[Any]]] = {
        "sources": lambda: theory.sources,
        "equations": lambda: theory.equations,
        "families": lambda: view.families.equations,
        "base_cases": lambda: view.families.base_cases,
        "scalars": lambda: theory.scalars,
        "order_parameters": theory.correlations,
        "responses": theory.responses,
        "observables": lambda: view.families.observables,
        "action": lambda: view.action().entries,
        "saddle_point": lambda: view.saddle_point().entries,
        "weights": lambda: [replace(x, lhs=(y,)) for x in view.weights().entries for y in x.lhs],
    }
    keys = PARTS[show]
    if show == "all" and not theory.reduction:
        keys += ("action", "saddle_point", "weights")
    return {k: made[k]() for k in keys}


def as_srepr(view: View, show: str) -> str:
    """A Python dictionary, one pair a line."""
    blocks = []
    for key, items in parts(view, show).items():
        rows = "".join(f"        ({_srepr(a)}, {_srepr(b)}),\n" for a, b in map(_sides, items))
        blocks.append(f"    {key!r}: [\n{rows}    ],\n" if rows else f"    {key!r}: [],\n")
    return "{\n" + "".join(blocks) + "}"


class _Repr(ReprPrinter):
    """SymPy's srepr, in which a symbol has the assumptions that make it, not all that follow from them."""

    def _print_Symbol(self, expr: Symbol) -> str:
        if type(expr) is not Symbol:
            return str(super()._print_Symbol(expr))
        for assumed in ASSUMED:
            if Symbol(expr.name, **dict.fromkeys(assumed, True)) == expr:
                return f"Symbol({', '.join([repr(expr.name), *(f'{x}=True' for x in assumed)])})"
        return str(super()._print_Symbol(expr))


def _srepr(e: Expr | str) -> str:
    return repr(e) if isinstance(e, str) else str(_Repr().doprint(e))


def _sides(item: Any) -> tuple[Expr | str, Expr]:
    if isinstance(item, Equation):
        return item.lhs, item.rhs
    if isinstance(item, Source):
        return Average(item.symbol * item.partner), item.covariance
    if isinstance(item, OrderParameter):
        return item.symbol, item.definition
    return item.lhs[0], Add(*item.terms)


def as_json(view: View, show: str, text: PaperText, latex: PaperLatex) -> str:
    """One JSON object."""
    theory = view.theory
    program = theory.program
    writer = _Json(text, latex)
    out: dict[str, Any] = {
        "program": program.name,
        "rule": type(program.rule).__name__,
        "depth": str(program.depth),
        "reduction": theory.reduction,
        "show": show,
    }
    out |= {key: [writer.item(x) for x in items] for key, items in parts(view, show).items()}
    return json.dumps(out, indent=2, ensure_ascii=False)


class _Json:
    """Items of a theory as plain dictionaries."""

    def __init__(self, text: PaperText, latex: PaperLatex) -> None:
        self.text, self.latex = text, latex

    def expr(self, e: Expr | str) -> dict[str, str]:
        if isinstance(e, str):
            return {"text": e, "latex": e, "srepr": repr(e)}
        e = sympify(e)
        return {"text": self.text.doprint(e), "latex": self.latex.doprint(e), "srepr": _srepr(e)}

    def sum(self, terms: Sequence[Expr]) -> dict[str, str]:
        """A right-hand side: printed with common factors taken out, its srepr the plain sum."""
        return {
            "text": self.text.equation(terms),
            "latex": self.latex.equation(terms),
            "srepr": _srepr(Add(*terms)),
        }

    @staticmethod
    def ranges(ranges: Iterable[IndexRange]) -> list[dict[str, str]]:
        return [{"index": r.index.name, "lower": str(r.lower), "upper": str(r.upper)} for r in ranges]

    def item(self, x: Any) -> dict[str, Any]:
        if isinstance(x, Equation):
            return {
                "lhs": self.expr(x.lhs),
                "rhs": self.sum([y.expr for y in x.terms]),
                "ranges": self.ranges(x.ranges),
                "terms": [
                    self.expr(y.expr) | {"kind": y.kind, "matrix": y.matrix, "rule": y.rule} for y in x.terms
                ],
            }
        if isinstance(x, Source):
            sides = {"symbol": x.symbol, "partner": x.partner, "covariance": x.covariance}
            named = {k: self.expr(v) for k, v in sides.items()}
            return named | {"ranges": self.ranges(x.ranges), "matrix": x.matrix}
        if isinstance(x, OrderParameter):
            sides = {"symbol": x.symbol, "definition": x.definition}
            kind = {"kind": x.kind, "causal": x.causal}
            return {k: self.expr(v) for k, v in sides.items()} | kind | {"ranges": self.ranges(x.ranges)}
        assert isinstance(x, Entry)
        return {"lhs": self.expr(x.lhs[0]), "rhs": self.sum(x.terms)}
