"""Document model of printed results: titled sections of equations, written as text or LaTeX.

A mean-field theory, or its fluctuations, is printed as a list of sections. The model does not depend on the
kind of result.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from sympy import Expr
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange
from derive.show.arranged import with_distinct_variables, without_spaces
from derive.show.latex import PaperLatex
from derive.show.notation import LAYER
from derive.show.text import PaperText, width, wrap

COLUMNS = 100
LONG = 400  # a right-hand side of more characters of LaTeX has one line for each term


@dataclass(frozen=True)
class DisplayedEquation:
    """Printed equation ``lhs = sum of terms``, or the law of a Gaussian process ``{lhs} ~ GP(0, terms)``.

    Parameters
    ----------
    lhs : tuple of Expr
        The left-hand sides; several share one right-hand side (``A^0 = B^L = 0``).
    terms : tuple of Expr
        The terms of the right-hand side, in their order.
    layers : IndexRange, optional
        The layers for which the equation holds.
    process : bool
        Whether the equation is the law of a Gaussian process, the field ``lhs[0]``, with covariance
        ``terms``.
    causal : str
        Times at which the left-hand side is not zero: "strict" for s < t, another text for s <= t, and the
        empty text for all times.
    """

    lhs: tuple[Expr, ...]
    terms: tuple[Expr, ...]
    layers: IndexRange | None = None
    process: bool = False
    causal: str = ""

    def readable(self) -> DisplayedEquation:
        """Return the same equation with bound variables renamed if they are also free in it.

        Returns
        -------
        DisplayedEquation
            The renamed equation.
        """
        written = with_distinct_variables([*self.lhs, *self.terms])
        n = len(self.lhs)
        return replace(self, lhs=tuple(written[:n]), terms=tuple(written[n:]))


@dataclass(frozen=True)
class Section:
    """Equations under a title.

    Parameters
    ----------
    title : str
        The title.
    entries : tuple of DisplayedEquation
        The equations.
    """

    title: str
    entries: tuple[DisplayedEquation, ...]


def text_section(section: Section, printer: PaperText) -> str:
    """Return a section as text: a title, then equations with aligned right-hand sides.

    The title contains the range of layers if all equations have the same one. Notes on the times at which an
    equation holds, such as ``(0 unless s < t)``, stand in a column of their own if they fit, otherwise behind
    the equation or on a line of their own. Lines are broken at ``COLUMNS`` characters where possible.
    """
    ranges = {x.layers for x in section.entries}
    # if all entries hold for the same range of layers, the title states it once
    shared = ranges.pop() if len(ranges) == 1 else None
    title = section.title if shared is None else f"{section.title} ({_text_layers(shared, printer)})"
    rows = [(*_sides(x, printer), _text_note(x, printer, shared is None)) for x in section.entries]
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


def _sides(entry: DisplayedEquation, printer: PaperText | PaperLatex) -> tuple[str, str, str]:
    """Return the printed left-hand side, relation sign and right-hand side of an equation.

    The law of a Gaussian process has the sides ``{field}`` and ``GP(0, terms)``, with the sign ``~``.
    """
    entry = entry.readable()
    rhs = printer.equation(entry.terms)
    if entry.process:
        lhs, sign, process = printer.process
        return lhs % printer.indexed(entry.lhs[0], bare=True), sign, process % rhs
    if len(entry.lhs) > 1 or entry.terms == (0,):
        return " = ".join(_bare(x, printer) for x in entry.lhs), "=", rhs
    return str(printer.doprint(entry.lhs[0])), "=", rhs


def _bare(lhs: Expr, printer: PaperText | PaperLatex) -> str:
    """Return a printed left-hand side of an equation such as ``A^0 = 0``.

    A layered order parameter is written without its other indices.
    """
    if isinstance(lhs, AppliedUndef) and LAYER in printer.names.roles_of(lhs):
        return printer.indexed(lhs, bare=True)
    return str(printer.doprint(lhs))


def _bounds(r: IndexRange, printer: PaperText | PaperLatex) -> list[str]:
    """Return the printed index, lower bound and upper bound of a range."""
    return [without_spaces(printer.doprint(x)) for x in (r.index, r.lower, r.upper)]


def _text_layers(r: IndexRange, printer: PaperText) -> str:
    """Return a range of layers as text, such as ``ℓ = 1..L``."""
    return "{} = {}..{}".format(*_bounds(r, printer))


def _text_note(entry: DisplayedEquation, printer: PaperText, layers: bool) -> str:
    """Return the note behind an equation: its layers if ``layers`` is true, and its condition on times.

    An equation without either has an empty note.
    """
    notes = [_text_layers(entry.layers, printer)] if layers and entry.layers is not None else []
    if entry.causal:
        notes.append(f"0 unless s {'<' if entry.causal == 'strict' else '≤'} t")
    return f"({'; '.join(notes)})" if notes else ""


def latex_section(section: Section, printer: PaperLatex) -> str:
    """Return a section as one ``align*`` environment with the title as a comment."""
    rows = " \\\\\n".join("  " + _latex_entry(x, printer) for x in section.entries)
    return f"\\begin{{align*}} % {section.title}\n{rows}\n\\end{{align*}}"


def _latex_entry(entry: DisplayedEquation, printer: PaperLatex) -> str:
    """Return an equation as a row ``lhs &= rhs && note`` of an ``align*`` environment.

    The note states layers and the condition on times. A right-hand side of more than ``LONG`` characters has
    one term on each line.
    """
    entry = entry.readable()
    left, sign, right = _sides(entry, printer)
    notes = []
    if entry.layers is not None:
        notes.append(r"{} = {},\dots,{}".format(*_bounds(entry.layers, printer)))
    if entry.causal:
        notes.append("s < t" if entry.causal == "strict" else r"s \le t")
    rhs = printer.equation(entry.terms)
    if len(rhs) > LONG:
        right = right.replace(rhs, printer.broken(entry.terms))
    separator = r";\ "
    return f"{left} &{sign} {right}" + (f" && {separator.join(notes)}" if notes else "")
