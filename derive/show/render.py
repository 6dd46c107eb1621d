"""A theory as text, LaTeX, srepr or JSON."""

from __future__ import annotations

from collections.abc import Mapping

from sympy import Expr
from sympy.core.function import AppliedUndef

from derive.program.training import GradientDescent, GradientFlow, Momentum, MomentumFlow, Multistep
from derive.program.words import IndexRange
from derive.show.arranged import tight
from derive.show.data import as_json, as_srepr
from derive.show.latex import PaperLatex
from derive.show.notation import LAYER, notation
from derive.show.sections import SHOW, Entry, Section, Show, View
from derive.show.text import PaperText, width, wrap
from derive.theory.theory import Theory

FORMATS = ("text", "latex", "srepr", "json")
COLUMNS = 100
LONG = 400  # LaTeX right-hand sides longer than this get a line for each term


def render(
    theory: Theory,
    show: Show = "all",
    format: str = "text",
    names: str | Mapping[str, str] | None = None,
) -> str:
    r"""``theory`` (its part ``show``) in one of ``FORMATS``, in the notation of selfconsistent2023 eq. 13.

    ``names`` overrides the notation: a name of ``NOTATIONS`` or a mapping from a name to its LaTeX.  Ends
    of a layer family that are members of it under base cases are shown as one equation.  LaTeX comes as
    ``align*`` environments, srepr and JSON as described in :mod:`derive.show.data`.  Raises
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


# -- text ----------------------------------------------------------------------------------------------


def headline(theory: Theory, printer: PaperText) -> str:
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


def _rule(theory: Theory, printer: PaperText) -> str:
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


def text_section(section: Section, printer: PaperText) -> str:
    """A title and its entries: right-hand sides aligned, notes in their own column where there is room."""
    shared = _shared_layers(section)
    title = section.title if shared is None else f"{section.title} ({_text_layers(shared, printer)})"
    rows = [(*_text_sides(x, printer), _text_note(x, printer, shared is None)) for x in section.entries]
    left = max((width(r[0]) for r in rows if width(r[0]) <= COLUMNS // 3), default=0)
    room = max((width(r[2]) for r in rows if left + 5 + width(r[2]) + width(r[3]) + 2 <= COLUMNS), default=0)
    lines = [title]
    for lhs, sign, rhs, note in rows:
        head = f"  {lhs}{' ' * max(0, left - width(lhs))} {sign} "
        indent = min(width(head), left + 5)
        body = wrap(head + rhs, COLUMNS, indent)
        last = width(body.rsplit("\n", 1)[-1])
        if note:
            gap = max(2, indent + room + 2 - last) if "\n" not in body else 2
            if last + gap + width(note) > COLUMNS:
                gap = 2
            fits = last + gap + width(note) <= COLUMNS
            body += " " * gap + note if fits else "\n" + " " * max(indent, COLUMNS - width(note)) + note
        lines.append(body)
    return "\n".join(lines)


def _text_sides(entry: Entry, printer: PaperText) -> tuple[str, str, str]:
    rhs = printer.equation(entry.terms)
    if entry.process:
        return f"{{{printer.indexed(entry.lhs[0], bare=True)}}}", "~", f"GP(0, {rhs})"
    if len(entry.lhs) > 1 or entry.terms == (0,):
        return " = ".join(_bare(x, printer) for x in entry.lhs), "=", rhs
    lhs = entry.lhs[0]
    return (lhs if isinstance(lhs, str) else printer.doprint(lhs)), "=", rhs


def _shared_layers(section: Section) -> IndexRange | None:
    """The layers of every entry, where they are the same."""
    ranges = {x.layers for x in section.entries}
    return ranges.pop() if len(ranges) == 1 else None


def _text_layers(r: IndexRange, printer: PaperText) -> str:
    return "{} = {}..{}".format(*(tight(printer.doprint(x)) for x in (r.index, r.lower, r.upper)))


def _text_note(entry: Entry, printer: PaperText, layers: bool) -> str:
    notes = [_text_layers(entry.layers, printer)] if layers and entry.layers is not None else []
    if entry.causal:
        notes.append(f"0 unless s {'<' if entry.causal == 'strict' else '≤'} t")
    return f"({'; '.join(notes)})" if notes else ""


def _bare(lhs: Expr | str, printer: PaperText | PaperLatex) -> str:
    """The left-hand side of ``A^0 = 0``: a layered order parameter without its other indices."""
    if isinstance(lhs, AppliedUndef) and LAYER in printer.names.roles_of(lhs):
        return printer.indexed(lhs, bare=True)
    return lhs if isinstance(lhs, str) else str(printer.doprint(lhs))


# -- LaTeX ---------------------------------------------------------------------------------------------


def latex_section(section: Section, printer: PaperLatex) -> str:
    """One ``align*`` environment, its title as a comment."""
    rows = " \\\\\n".join("  " + latex_entry(x, printer) for x in section.entries)
    return f"\\begin{{align*}} % {section.title}\n{rows}\n\\end{{align*}}"


def latex_entry(entry: Entry, printer: PaperLatex) -> str:
    """One row: ``lhs &= rhs &&layers``."""
    rhs = printer.equation(entry.terms)
    if entry.process:
        left, right = rf"\{{{printer.indexed(entry.lhs[0], bare=True)}\}}", rf"\sim \mathcal{{GP}}(0, {rhs})"
    elif len(entry.lhs) > 1 or entry.terms == (0,):
        left, right = " = ".join(_bare(x, printer) for x in entry.lhs), f"= {rhs}"
    else:
        lhs = entry.lhs[0]
        left, right = (lhs if isinstance(lhs, str) else printer.doprint(lhs)), f"= {rhs}"
    notes = []
    if (r := entry.layers) is not None:
        index, low, high = (tight(printer.doprint(x)) for x in (r.index, r.lower, r.upper))
        notes.append(rf"{index} = {low},\dots,{high}")
    if entry.causal:
        notes.append("s < t" if entry.causal == "strict" else r"s \le t")
    if len(rhs) > LONG:
        right = right.replace(rhs, printer.broken(entry.terms))
    separator = r";\ "
    return f"{left} &{right}" + (f" && {separator.join(notes)}" if notes else "")


__all__ = ["COLUMNS", "FORMATS", "SHOW", "Show", "render"]
