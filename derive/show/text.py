"""Plain text for a terminal, in the same notation and order as the LaTeX: ``H^{ℓ-1}_μα(t,s)``."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sympy import Derivative, Expr, Integral, Pow, Product, Sum, Symbol, default_sort_key
from sympy.core.function import AppliedUndef
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.str import StrPrinter

from derive.calculus.averages import Response
from derive.show.arranged import (
    Arranged,
    ArrangedTerm,
    Loop,
    past_time,
    present_first,
    pushed,
    shifted,
    solved,
    tight,
)
from derive.show.notation import Declares, Name, Notation, as_expression, notation, raised, unicode_name

DOTS = {1: "\u0307", 2: "\u0308"}
OPEN, CLOSE = "([{⟨", ")]}⟩"


class PaperText(Arranged, StrPrinter):
    """SymPy's string printer with the papers' way of writing indices, sums and factors."""

    printmethod = "_paper_text"  # the classes' own one-line forms are for debugging
    open_average, close_average = "⟨", "⟩"
    process = ("{%s}", "~", "GP(0, %s)")

    def __init__(self, names: Notation) -> None:
        super().__init__()
        self.names = names

    def emptyPrinter(self, expr: Any) -> str:
        own = getattr(expr, "_sympystr", None)
        return str(own(self)) if own is not None else str(super().emptyPrinter(expr))

    _print_Basic = _print_Partition = emptyPrinter  # the path integral's, not SymPy's set partition

    def _print_Entries(self, expr: Any) -> str:
        matrix, now, past, *member = expr.args
        places = (*member, *present_first((now, past)))
        return f"c_{self.base(matrix.name)}({','.join(map(self._print, places))})"

    def _print_Pi(self, expr: Any) -> str:
        return "π"

    def _print_ImaginaryUnit(self, expr: Any) -> str:
        return "√(-1)" if "i" in self.names.letters else "i"

    def _print_Relational(self, expr: Any) -> str:
        expr = solved(expr)
        sign = {"<=": "≤", ">=": "≥", "!=": "≠", "==": "="}.get(expr.rel_op, expr.rel_op)
        return f"{tight(self._print(expr.lhs))} {sign} {tight(self._print(expr.rhs))}"

    def _print_Piecewise(self, expr: Any) -> str:
        cases = [
            f"{self._print(value)} {'otherwise' if where == True else 'if ' + self._print(where)}"  # noqa: E712
            for value, where in expr.args
        ]
        return "{" + "; ".join(cases) + "}"

    def base(self, name: str) -> str:
        """A name and its lower mark."""
        return self.marked(replace(self.names.name(name), upper=""), (), ())

    def _print_Symbol(self, expr: Symbol) -> str:
        return self.base(expr.name)

    def _print_Infinity(self, expr: Any) -> str:
        return "∞"

    def _print_Function(self, expr: Any) -> str:
        if isinstance(expr, AppliedUndef) and not self.names.is_activation(expr):
            return self.indexed(expr)
        name = self.base(str(expr.func)) if isinstance(expr, AppliedUndef) else expr.func.__name__
        return name + "(" + ", ".join(map(self._print, expr.args)) + ")"

    def marked(self, name: Name, layers: Sequence[str], samples: Sequence[str]) -> str:
        apart = shifted(samples) or any(map(_is_long, samples))
        above = ",".join(filter(None, (unicode_name(name.upper), *layers)))
        under = ",".join(filter(None, (unicode_name(name.lower), ("," if apart else "").join(samples))))
        under = f"{{{under}}}" if apart else braced(under)
        above = f"{{{above}}}" if len(above) > 1 else above
        return unicode_name(name.base) + (f"^{above}" if above else "") + (f"_{under}" if under else "")

    def dotted(self, atom: AppliedUndef, order: int) -> str:
        mark = DOTS.get(order, f"^({order})")
        return f"{self.base(str(atom.func))}{mark}({self._print(atom.args[0])})"

    def rate(self, variable: str, body: str, partial: bool) -> str:
        d = "∂" if partial else "d"
        return f"{d}/{d}{variable} {body}"

    def _print_Response(self, expr: Any) -> str:
        body, sources = pushed(expr)
        order = raised(len(sources)) if len(sources) > 1 else ""
        return f"δ{order}{self.varied(body)}/{''.join(f'δ{self._print(x)}' for x in sources)}"

    def _print_Hatted(self, expr: Any) -> str:
        return self.indexed(expr.args[0], hat=True)

    def _print_ParameterElement(self, expr: Any) -> str:
        return f"{unicode_name(expr.latex_head)}[{', '.join(map(self._print, expr.args))}]"

    def parenthesize(self, item: Any, level: int, strict: bool = False) -> str:
        """Sums, products and rates of change get brackets below a power, as products do."""
        open_ended = isinstance(item, Sum | Integral | Product | Derivative | Response)
        if open_ended and level > PRECEDENCE["Mul"] and self.activation_slope(item) is None:
            return self.bracketed(self._print(item))
        return str(super().parenthesize(item, level, strict))

    def _print_Pow(self, expr: Pow, rational: bool = False) -> str:
        if expr.exp.is_Integer:
            return str(self.parenthesize(expr.base, PRECEDENCE["Pow"])) + raised(int(expr.exp))
        if expr.exp.is_Rational:
            root = f"√{self.parenthesize(expr.base, PRECEDENCE['Pow'])}" if expr.exp.q == 2 else ""
            if root:
                above = root if abs(expr.exp.p) == 1 else root + raised(abs(int(expr.exp.p)))
                return above if expr.exp.is_positive else f"1/{above}"
            return str(super()._print_Pow(expr, rational))
        return self.power(self.parenthesize(expr.base, PRECEDENCE["Pow"]), expr.exp)

    def _print_exp(self, expr: Any) -> str:
        if "e" in self.names.letters:  # an index, which the number would be taken for
            return f"exp({self._print(expr.args[0])})"
        return self.power("e", expr.args[0])

    def _print_Exp1(self, expr: Any) -> str:
        return "exp(1)" if "e" in self.names.letters else "e"

    def power(self, base: str, exponent: Expr) -> str:
        """A symbolic power: short exponents bare, others in braces and without spaces around signs."""
        above = tight(self._print(exponent))
        return f"{base}^{above}" if len(above) == 1 else f"{base}^{{{above}}}"

    def _print_KroneckerDelta(self, expr: Any) -> str:
        marks = [tight(self._print(x)) for x in expr.args]
        return f"δ_{{{','.join(marks)}}}" if any(len(x) > 2 for x in marks) else f"δ_{''.join(marks)}"

    def _print_Min(self, expr: Any) -> str:
        return f"min({','.join(map(self._print, sorted(expr.args, key=str)))})"

    def _print_Max(self, expr: Any) -> str:
        return f"max({', '.join(map(self._print, sorted(expr.args, key=default_sort_key)))})"

    def _print_Heaviside(self, expr: Any) -> str:
        return f"Θ({self._print(expr.args[0])})"

    def _print_DiracDelta(self, expr: Any) -> str:
        return f"δ({self._print(expr.args[0])})"

    def over(self, p: ArrangedTerm, top: str, under: str, factors: int) -> str:
        text = f"{top}/{under if factors == 1 else f'({under})'}"
        return f"({text})" if p.loops or p.inside or p.tail else text

    def unlimited(self, x: Expr) -> str:
        bound = ",".join(self._print(limits[0]) for limits in x.limits)
        return f"{'Σ' if isinstance(x, Sum) else '∫'}_{{{bound}}} {self.factor(x.function)}"

    def _print_Product(self, expr: Any) -> str:
        """A product over times, ``Π_{k=0..t-1} (1 - λ(k))``."""
        bounds = (
            f"{self._print(k)}={tight(self._print(a))}..{tight(self._print(b))}" for k, a, b in expr.limits
        )
        body = self._print(expr.function)
        return f"Π_{{{','.join(bounds)}}} " + (f"({body})" if expr.function.is_Add else body)

    def stated(self, x: Loop) -> bool:
        """Does the head of the document say how far an index runs?  An index of its own runs over samples."""
        ranges = {index: (low, high) for index, low, high in self.names.ranges}
        mine = (x.lower, x.upper)
        return ranges[x.index] == mine if x.index in ranges else x.upper.is_Symbol and mine in ranges.values()

    def loop(self, loops: list[Loop]) -> str:
        """A sum or an integral; a sum over a range that the document states shows its index only."""
        x, indices = loops[0], [self._print(y.index) for y in loops]
        i, low, high = ",".join(indices), tight(self._print(x.lower)), tight(self._print(x.upper))
        if x.integral:
            return f"∫_{low}^{high} d{i}" if len(high) == 1 else f"∫_{low}^{{{high}}} d{i}"
        if past := past_time(x):
            return f"Σ_{{{i}{'<' if past == '<' else '≤'}{self._print(x.upper + int(past == '<'))}}}"
        if all(map(self.stated, loops)):
            return f"Σ_{{{i}}}" if any(map(_is_long, indices)) else f"Σ_{''.join(indices)}"
        return f"Σ_{{{i}={low}..{high}}}"


def width(text: str) -> int:
    """Columns that ``text`` takes: marks over letters take none."""
    return sum(1 for c in text if not unicodedata.combining(c))


def _is_long(index: str) -> bool:
    """Is an index a word, whose letters could be taken for indices?"""
    return index[:2].isalpha() and len(index) > 1


def braced(mark: str) -> str:
    """A lower mark, in braces if it has a mark of its own."""
    return f"{{{mark}}}" if "_" in mark and not mark.startswith("{") else mark


def wrap(text: str, columns: int, indent: int) -> str:
    """``text`` in lines of at most ``columns``, broken as far outside all brackets as possible.

    A break before a sign is better than one between factors, and that is better than one inside round
    brackets.  Later lines start at ``indent``, two further for each bracket that is still open and for a
    break inside a product; the term after a broken one starts a line.

    >>> print(wrap("a = b + [c + d] e", 12, 4))
    a = b
        + [c + d] e
    >>> print(wrap("a = b [(1 - c) d + (1 - c) e] f + g", 20, 4))
    a = b [(1 - c) d
          + (1 - c) e] f
        + g
    """
    lines: list[str] = []
    head, still_open, inside = "", "", False
    while True:
        room, near = columns - len(head), text[: 4 * columns]  # a line, whatever marks there are over letters
        end = _term_ends(near, still_open) if still_open or inside else None
        if end is not None and width(near[:end]) <= room:
            found: tuple[int, str, bool] | None = end, "", False
        elif width(near) <= room:
            break
        else:
            found = _break(text, room, still_open, 0 if lines else indent)
        if found is None:
            break
        at, still_open, inside = found
        lines.append(head + text[:at])
        head = " " * (indent + 2 * (len(still_open) + inside))
        text = text[at + 1 :]
    return "\n".join([*lines, head + text])


def _break(text: str, columns: int, still_open: str, start: int) -> tuple[int, str, bool] | None:
    """The best place to break (the last of equals), the brackets open there, and is it in a product?"""
    column = 0
    best: tuple[int, tuple[int, str, bool]] | None = None
    for i, c in enumerate(text):
        still_open = _opened(still_open, c)
        column += not unicodedata.combining(c)
        if column > columns:
            break
        if c != " " or i <= start or not text[:i].strip() or text[i - 1] in "+-=≤≥&" or text[i + 1] in "=≤≥":
            continue
        new_part = _signed(text, i) or text[i - 1] == ";" or (text[i - 1] == "," and not still_open)
        cost = 3 * len(still_open) + 3 * sum(x in "(⟨" for x in still_open) + (0 if new_part else 4)
        cost -= text[i - 1] == ";"
        if best is None or cost <= best[0]:
            best = (cost, (i, still_open, not new_part))
    return None if best is None else best[1]


def _term_ends(text: str, still_open: str) -> int | None:
    """Where the next term starts, outside all brackets."""
    for i, c in enumerate(text):
        still_open = _opened(still_open, c)
        if i > 0 and not still_open and _signed(text, i):
            return i
    return None


def _signed(text: str, i: int) -> bool:
    return text[i : i + 3] in (" + ", " - ", " & ")


def _opened(still_open: str, c: str) -> str:
    """The open brackets after one more character."""
    return still_open + c if c in OPEN else still_open[:-1] if c in CLOSE else still_open


def text(expr: Any, theory: Declares | None = None, names: str | Mapping[str, str] | None = None) -> str:
    """A single expression in one line of plain text.

    >>> from sympy import Function
    >>> from derive.program import alpha, ell, mu, s, t
    >>> print(text(Function("Phi")(ell - 1, mu, alpha, t, s)))
    Φ^{ℓ-1}_μα(t,s)
    """
    return PaperText(notation(theory, names)).doprint(as_expression(expr, "text"))
