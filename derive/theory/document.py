"""Theory as a document: selection and order of its equations, and their text, LaTeX, srepr and JSON.

Text and LaTeX are titled lists of equations. In JSON every expression is ``{"text", "latex", "srepr"}``. The
list ``equations`` contains the equations as derived, with the origin of each term. In the list ``families``
the separate equations of first and last layers are part of the layer families; ``base_cases`` are the values
of order parameters beyond their range of layers with which this holds. The srepr text is a Python dictionary
of lists of pairs ``(lhs, rhs)``, to be evaluated in :func:`namespace`. `Theory.render` uses the module.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

import sympy
from sympy import Add, Expr, S, Sum, Symbol, sympify
from sympy.core.symbol import Str
from sympy.functions.elementary.piecewise import ExprCondPair
from sympy.printing.repr import ReprPrinter

from derive.calculus.averages import Average, Response
from derive.calculus.pairs import Copy, EntryStep, PairMean
from derive.calculus.symbols import IndexRange, ell, s, t
from derive.errors import NotApplicable
from derive.program.language import Mean, Product
from derive.program.spectral import SpectralEntry
from derive.show.arranged import ordered as in_order
from derive.show.arranged import with_distinct_variables
from derive.show.document import COLUMNS, DisplayedEquation, Section, latex_section, text_section
from derive.show.latex import PaperLatex
from derive.show.notation import notation
from derive.show.text import PaperText, wrap
from derive.theory.applications import read
from derive.theory.data import Equation, OrderParameter, Source, TheoryData
from derive.theory.families import Families, families
from derive.theory.nonlinear_rules import laws
from derive.theory.path_integral import PathIntegral, path_integral
from derive.theory.path_integral.action import Entries, Partition

FORMATS = ("text", "latex", "srepr", "json")
Show = Literal["single-site", "order-parameters", "responses", "action", "saddle-point", "all"]
SHOW: tuple[str, ...] = get_args(Show)
PATH_INTEGRAL = ("action", "saddle-point")
"""Parts that a reduced theory does not have, because they are those of the program."""


def render(
    theory: TheoryData, show: Show = "all", format: str = "text", names: str | Mapping[str, str] | None = None
) -> str:
    """Return a part of a theory in one of ``FORMATS``, in the notation of selfconsistent2023 eq. 13.

    ``show`` is the part; ``"all"`` includes the action and the saddle point only if the theory is not
    reduced, because both are those of the program. ``names`` overrides the notation, except in srepr: a name
    of ``NOTATIONS`` or a mapping from a name to its LaTeX. In text and LaTeX the separate equation of a first
    or last layer is shown as part of its layer family, if base cases make it a member: values of order
    parameters beyond their range of layers. LaTeX consists of ``align*`` environments; srepr and JSON have
    the form of the module's description. Raises ValueError if the part, the format or the notation is
    unknown, and NotApplicable for the action or the saddle point of a reduced theory.

    >>> from derive import mean_field, mlp
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
    """Return a summary of a theory: its program, the names of its quantities, and how to show the equations.

    >>> from derive import mean_field, mlp
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
    parts = '", "'.join(View(theory).names[1:])
    how = (
        f'All of it: .render(), or a part: .render("{SHOW[0]}"), "{parts}"; as "latex", "srepr" or "json": '
        f'.render("all", "latex").  One: .equation("{first}"), .explain("{first}").'
    )
    head = wrap(headline(theory, PaperText(notation(theory))), COLUMNS, 2)
    return "\n".join([head, *(wrap(x, COLUMNS, 20) for x in rows), *textwrap.wrap(how, COLUMNS)])


# -- text ----------------------------------------------------------------------------------------------


def headline(theory: TheoryData, printer: PaperText) -> str:
    """Return the first line of a document: program, depth, training rule and reduction, in words.

    It ends with the ranges of indices, such as ``mu = 1..P``, that the printed sums leave out.
    """
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
    """Return the training rule in words: its name, rate, momentum, decay and diffusion.

    A rate of one, and the others if they are zero, are left out. Without trained weights the text is
    "discrete time" or "continuous time".
    """
    rule = theory.program.rule
    if not any(True for _ in theory.program.trained()):
        return "discrete time" if rule.discrete else "continuous time"
    rate = getattr(rule, "rate", 1)
    at = "" if rate == 1 else f" at rate {printer.doprint(rate)}"
    extras = [(n, getattr(rule, n, 0)) for n in ("momentum", "decay", "diffusion")]
    more = "".join(f", {n} {printer.doprint(x)}" for n, x in extras if x != 0)
    label = getattr(rule, "label", "") or getattr(rule, "name", "") or type(rule).__name__
    return label + at + more


TITLES = {
    "sources": "Gaussian sources",
    "families": "Single-site process",
    "laws": "Steps of the training rule, of the gradient A of one entry",
    "scalars": "Outputs",
    "order_parameters": "Order parameters",
    "responses": "Response functions",
    "base_cases": "Base cases",
    "observables": "Tangent kernel",
    "action": "Action",
    "saddle_point": "Saddle point",
    "weights": "Covariance of weights, in units of the initial variance",
}
"""Titles of the sections, by key and in order.

``families`` are the equations in which first and last layers are part of the layer families.
"""

PARTS: dict[str, tuple[str, ...]] = {
    "single-site": ("sources", "equations", "families", "laws", "base_cases"),
    "order-parameters": ("scalars", "order_parameters", "observables"),
    "responses": ("responses",),
    "action": ("action", "weights"),
    "saddle-point": ("saddle_point", "weights"),
}
PARTS["all"] = tuple(
    dict.fromkeys(PARTS["single-site"] + ("scalars", "order_parameters", "responses", "observables"))
)


@dataclass(frozen=True)
class View:
    """Theory with the other data of a printed document: joined layer families, and the path integral.

    Both are computed when they are used first. Methods return the equations of each section of the document.
    """

    theory: TheoryData

    @cached_property
    def families(self) -> Families:
        """Equations in which the separate equations of first and last layers are part of the layer families.

        The base cases, such as ``H(0, ..) = K_x``, are included: values of order parameters at layers beyond
        their range.
        """
        return families(self.theory)

    @cached_property
    def ordered(self) -> frozenset[Symbol]:
        """Indices whose ranges are printed, beside the range of layers.

        They number fields computed one after another, as the steps of a recurrent network, or have different
        ranges in several equations of one quantity.
        """
        fields = {x.name for x in self.theory.program.fields if x.ordered}
        ordered_definitions = [d for d in self.theory.program.definitions if d.name in fields]
        shown = {r.index for d in ordered_definitions for r in d.ranges if d.lhs.args[0].has(r.index)}
        ranges: dict[tuple[str, Symbol], set[IndexRange]] = {}
        for e in (*self.theory.equations, *self.theory.scalars):
            for r in e.ranges:
                if e.symbol.has(r.index):
                    ranges.setdefault((e.name, r.index), set()).add(r)
        return frozenset(shown | {index for (_, index), several in ranges.items() if len(several) > 1})

    @cached_property
    def route(self) -> PathIntegral:
        """Path-integral derivation of the program of the theory.

        Raises NotApplicable for a reduced theory, because the path integral has no reduction.
        """
        if self.theory.reduction:
            raise NotApplicable(
                "the action and the saddle point are those of a program without reductions, and the theory "
                f"has the reduction {self.theory.reduction!r}: print those of mean_field(theory.program)"
            )
        return path_integral(self.theory.program)

    def parts(self, show: str) -> dict[str, Sequence[Any]]:
        """Return the equations, sources and order parameters to print, by the name of their section.

        ``show`` says which part of the theory is printed, such as "responses". Names are keys of ``TITLES``,
        and "equations" for the equations as derived, which have no title. For ``show`` "all" the action and
        the saddle point are included only if the theory is not reduced.
        """
        keys = PARTS[show]
        if not laws(self.theory.program):
            keys = tuple(x for x in keys if x != "laws")
        if show == "all" and not self.theory.reduction:
            keys += ("action", "saddle_point", "weights")
        return {k: self.items(k) for k in keys}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parts, except "all" and, for a reduced theory, those in ``PATH_INTEGRAL``."""
        left_out = ("all", *(PATH_INTEGRAL if self.theory.reduction else ()))
        return tuple(x for x in SHOW if x not in left_out)

    def other_parts(self) -> str:
        """Return a line of LaTeX that names other parts; a notebook shows it below the equations."""
        first, *others = [x for x in self.names if x not in ("single-site", "saddle-point")]
        calls = [f'.render("{first}")', *(f'"{x}"' for x in (*others, "all"))]
        names = ", ".join(rf"\texttt{{{x}}}" for x in calls)
        return f"\\begin{{gather*}} % Other parts\n  {names}\n\\end{{gather*}}"

    def items(self, key: str) -> Sequence[Any]:
        """Return the equations, sources or order parameters of the section ``key`` of the printed document.

        ``key`` is a key of ``TITLES``, such as "responses" or "action", or "equations" for those as derived.
        """
        computed: dict[str, Callable[[], Sequence[Any]]] = {
            "order_parameters": self.theory.correlations,
            "responses": self.theory.responses,
            "weights": self.weights,
            "families": lambda: self.families.equations,
            "laws": self.laws,
            "action": self.action,
            "saddle_point": self.saddle_point,
        }
        if key in computed:
            return computed[key]()
        return getattr(self.families if key in ("base_cases", "observables") else self.theory, key)  # type: ignore[no-any-return]

    def laws(self) -> list[DisplayedEquation]:
        """Return the equations of training rules that are not linear in gradients, such as Adam or Muon."""
        return [DisplayedEquation((e.lhs,), (e.rhs,)) for e in laws(self.theory.program)]

    def action(self) -> list[DisplayedEquation]:
        """Return as printed equations the action and the exponent of each single-site integral.

        The action is printed as S and is divided by N. The exponent of a population is printed as minus its
        Hamiltonian.
        """
        sites = {-Symbol(f"Hcal_{name}"): e for name, e in self.route.single_site.items()}
        exponents = {Symbol("S"): self.route.action, **sites}
        return [DisplayedEquation((name,), _addends(without_single_sums(e))) for name, e in exponents.items()]

    def saddle_point(self) -> list[DisplayedEquation]:
        """Return the stationarity conditions of the action as equations for order parameters."""
        conditions = self.route.saddle_point
        return [
            DisplayedEquation((e.lhs,), tuple(map(_numbers_in_front, _addends(e.rhs)))) for e in conditions
        ]

    def weights(self) -> list[DisplayedEquation]:
        """Return for matrices with entries that change in time the covariance of an entry at two times.

        Only matrices whose covariance is abbreviated by a symbol in the action are included.
        """
        exponents = (self.route.action, *self.route.single_site.values())
        abbreviated = {(x.args[0], len(x.args) > 3) for e in exponents for x in e.atoms(Entries)}
        uses = {x.matrix.name: x.canonical() for x in read(self.theory.program).uses}
        equations = []
        for m, members_differ in sorted(abbreviated, key=str):
            use = uses[str(m)]
            head = Entries(m, t, s, *((use.member,) if members_differ else ()))
            equations.append(DisplayedEquation((head,), _addends(use.entries(t, s))))
        return equations

    def sections(self, show: str) -> list[Section]:
        """Return the titled sections of equations to print, without empty ones.

        ``show`` says which part of the theory is printed, such as "responses" or "all".
        """
        parts = self.parts(show)
        if "sources" in parts:
            parts["sources"] = self.families.sources
        sections = (Section(TITLES[k], tuple(self.entries(k, parts[k]))) for k in TITLES if k in parts)
        return [x for x in sections if x.entries]

    def entries(self, key: str, items: Sequence[Any]) -> Iterator[DisplayedEquation]:
        """Yield the equations, sources or order parameters ``items`` of the section ``key`` in printed form.

        Base cases with the value zero share one printed equation, and so do weights with equal covariances,
        and steps of training rules that are equal.
        """
        if key == "base_cases":
            yield from (displayed(e) for e in items if e.rhs != 0)
            if zero := tuple(e.lhs for e in items if e.rhs == 0):
                yield DisplayedEquation(zero, (S.Zero,))
        elif key in ("weights", "laws"):
            for terms in dict.fromkeys(x.terms for x in items):
                yield DisplayedEquation(tuple(y for x in items if x.terms == terms for y in x.lhs), terms)
        else:
            yield from (displayed(x, self.ordered) for x in items)


def displayed(x: Any, ordered: frozenset[Symbol] = frozenset()) -> DisplayedEquation:
    """Return an equation, a source or an order parameter in the form in which it is printed.

    ``ordered`` are further indices whose range is printed like a range of layers (see
    :attr:`View.ordered`).
    """
    if isinstance(x, DisplayedEquation):
        return x
    layers = next((r for r in x.ranges if r.index == ell or r.index in ordered), None)
    if isinstance(x, Equation):
        terms = [y.expr for y in x.terms]
        if len(terms) == 1:
            terms = list(terms[0].as_ordered_terms()) if terms[0].is_Add else terms
        if all(y.kind == "definition" for y in x.terms):
            terms = in_order(terms)
        equation = DisplayedEquation((x.lhs,), tuple(terms), layers)
    elif isinstance(x, OrderParameter):
        equation = DisplayedEquation((x.symbol,), (x.definition,), layers, causal=x.causal)
    else:
        process = x.symbol.func == x.partner.func
        lhs = x.symbol if process else Average(x.symbol * x.partner)
        equation = DisplayedEquation((lhs,), (sympify(x.covariance),), layers, process)
    return of_one_member(equation)


def of_one_member(entry: DisplayedEquation) -> DisplayedEquation:
    """Return a printed equation whose range of layers is a single layer as the equation of that layer.

    Other equations are returned unchanged.
    """
    layers = entry.layers
    if layers is None or layers.lower != layers.upper:
        return entry
    lhs, terms = ([y.subs(layers.index, layers.lower) for y in ys] for ys in (entry.lhs, entry.terms))
    return replace(entry, lhs=tuple(lhs), terms=tuple(terms), layers=None)


def without_single_sums(e: Expr) -> Expr:
    """Return an expression in which each sum over a single value of its index is replaced by its summand."""

    def member(x: Sum) -> Expr:
        values = {i: a for i, a, b in x.limits if a == b}
        rest = [limits for limits in x.limits if limits[0] not in values]
        inner = Sum(x.function, *rest) if rest else x.function
        return inner.subs(values)

    return e.replace(lambda x: isinstance(x, Sum) and any(a == b for _, a, b in x.limits), member)


def _numbers_in_front(e: Expr) -> Expr:
    """Return ``e`` with the numerical factors of averages in front: ``<2 x>`` becomes ``2 <x>``."""

    def average(x: Expr) -> Expr:
        number, body = x.args[0].as_coeff_Mul()
        return number if body == 1 or number == 0 else number * Average(body)

    return e.replace(lambda x: isinstance(x, Average), average)


def _addends(e: Expr) -> tuple[Expr, ...]:
    """Return the terms of a sum in the order in which they are printed."""
    return tuple(in_order(list(e.as_ordered_terms()))) if e.is_Add else (e,)


# -- data ---

ASSUMED = (
    (), ("positive",), ("nonnegative",), ("real",), ("integer",), ("integer", "nonnegative"),
    ("integer", "positive"),
)  # fmt: skip
"""Assumptions that symbols are made with; SymPy's ``assumptions0`` adds all that follow from them."""


def namespace() -> dict[str, Any]:
    """Return the namespace in which srepr text is evaluated: SymPy's names and this package's classes."""
    classes = (Average, Entries, Response, Mean, Partition, Product, ExprCondPair)
    ours = {x.__name__: x for x in (*classes, Copy, EntryStep, PairMean, SpectralEntry, Str)}
    return {k: v for k, v in vars(sympy).items() if not k.startswith("_")} | ours


def as_srepr(view: View, show: str) -> str:
    """Return a part of a theory as text of a Python dictionary, which SymPy evaluates again.

    The dictionary maps names of sections to lists of pairs (left-hand side, right-hand side). ``show`` is the
    part, such as "responses" or "all".
    """
    blocks = []
    for key, items in view.parts(show).items():
        rows = "".join(f"        ({_srepr(a)}, {_srepr(b)}),\n" for a, b in map(_sides, items))
        blocks.append(f"    {key!r}: [\n{rows}    ],\n" if rows else f"    {key!r}: [],\n")
    return "{\n" + "".join(blocks) + "}"


class _Repr(ReprPrinter):
    """Printer of srepr that writes only the assumptions with which a symbol was made.

    Assumptions that SymPy derives from these are left out. A symbol with assumptions that are not in
    ``ASSUMED`` is written with all of its assumptions.
    """

    def _print_Symbol(self, expr: Symbol) -> str:
        if type(expr) is not Symbol:
            return str(super()._print_Symbol(expr))
        for assumed in ASSUMED:
            if Symbol(expr.name, **dict.fromkeys(assumed, True)) == expr:
                return f"Symbol({', '.join([repr(expr.name), *(f'{x}=True' for x in assumed)])})"
        return str(super()._print_Symbol(expr))


def _srepr(e: Expr) -> str:
    """Return the srepr text of an expression."""
    return str(_Repr().doprint(e))


def _sides(item: Any) -> tuple[Expr, Expr]:
    """Return the left-hand and right-hand side of an equation, source or order parameter.

    For a source they are the average of the two fields and its covariance, for an order parameter its symbol
    and its definition, and for a printed equation its first left-hand side and the sum of its terms.
    """
    if isinstance(item, Equation):
        return item.lhs, item.rhs
    if isinstance(item, Source):
        return Average(item.symbol * item.partner), item.covariance
    if isinstance(item, OrderParameter):
        return item.symbol, item.definition
    return item.lhs[0], Add(*item.terms)


def as_json(view: View, show: str, text: PaperText, latex: PaperLatex) -> str:
    """Return a part of a theory as the text of one JSON object with a list of equations for each section.

    The object also contains the program's name, training rule and depth, the reduction, and ``show``.
    ``show`` is the part, such as "responses" or "all"; ``text`` and ``latex`` are the printers.
    """
    program = view.theory.program
    out: dict[str, Any] = {
        "program": program.name,
        "rule": type(program.rule).__name__,
        "depth": str(program.depth),
        "reduction": view.theory.reduction,
        "show": show,
    }
    out |= {key: [plain_item(x, text, latex) for x in items] for key, items in view.parts(show).items()}
    return json.dumps(out, indent=2, ensure_ascii=False)


def _left(x: Any) -> tuple[Expr, ...]:
    """Return the expressions on the left-hand side of an equation, source or order parameter.

    For a source they are the two correlated fields.
    """
    if isinstance(x, DisplayedEquation):
        return x.lhs
    if isinstance(x, Equation):
        return (x.lhs,)
    return (x.symbol, x.partner) if isinstance(x, Source) else (x.symbol,)


def plain_item(x: Any, text: PaperText, latex: PaperLatex) -> dict[str, Any]:
    """Return an equation, source or order parameter as a dictionary of strings and lists, for JSON.

    Each expression is ``{"text", "latex", "srepr"}``. In text and LaTeX of the right-hand side of an equation
    common factors of terms are taken out.
    """
    others = [sympify(e) for e in _left(x)]

    def written(e: Any) -> dict[str, str]:
        e = sympify(e)
        (shown,) = with_distinct_variables([*others, e])[len(others) :]
        return {"text": text.doprint(shown), "latex": latex.doprint(shown), "srepr": _srepr(e)}

    def added(terms: Sequence[Expr]) -> dict[str, str]:
        shown = with_distinct_variables([*others, *terms])[len(others) :]
        return {"text": text.equation(shown), "latex": latex.equation(shown), "srepr": _srepr(Add(*terms))}

    if isinstance(x, DisplayedEquation):
        return {"lhs": written(x.lhs[0]), "rhs": added(x.terms)}
    ranges = [{"index": r.index.name, "lower": str(r.lower), "upper": str(r.upper)} for r in x.ranges]
    if isinstance(x, Equation):
        origins = [{"kind": y.kind, "matrix": y.matrix, "rule": y.rule} for y in x.terms]
        terms = [y.expr for y in x.terms]
        each = [written(e) | origin for e, origin in zip(terms, origins, strict=True)]
        return {"lhs": written(x.lhs), "rhs": added(terms), "ranges": ranges, "terms": each}
    keys = ("symbol", "partner", "covariance") if isinstance(x, Source) else ("symbol", "definition")
    named: dict[str, Any] = {k: written(getattr(x, k)) for k in keys}
    if isinstance(x, Source):
        return named | {"ranges": ranges, "matrix": x.matrix}
    return named | {"kind": x.kind, "causal": x.causal, "ranges": ranges}
