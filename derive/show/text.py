"""Plain-text printer of expressions for a terminal: ``H^{ℓ-1}_μα(t,s)``, and line breaking of equations.

Notation and order of factors are the same as in LaTeX (:mod:`derive.show.latex`).
"""

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
    as_bound,
    nested_sources,
    past_time,
    present_first,
    shifted,
    without_spaces,
)
from derive.show.notation import Declares, Name, Notation, as_expression, notation, superscript, unicode_name

DOTS = {1: "\u0307", 2: "\u0308"}
OPEN, CLOSE = "([{⟨", ")]}⟩"


class PaperText(Arranged, StrPrinter):
    """SymPy's string printer with the notation of the papers for indices, sums and factors.

    Parameters
    ----------
    names : Notation
        The symbols of names and the roles of arguments.
    """

    # Name of the method by which an expression prints itself. With SymPy's default, _sympystr, the debugging
    # output that expression classes define would come before the methods of this printer.
    printmethod = "_paper_text"
    open_average, close_average = "⟨", "⟩"
    process = ("{%s}", "~", "GP(0, %s)")

    def __init__(self, names: Notation) -> None:
        """Set the notation: the symbol of each name, and which arguments are layers, samples or times."""
        super().__init__()
        self.names = names

    def emptyPrinter(self, expr: Any) -> str:
        """Return the text of an expression for whose class this printer has no method.

        The text is that of the method ``_sympystr`` of the expression if it has one, otherwise SymPy's.

        Parameters
        ----------
        expr : Any
            The expression.

        Returns
        -------
        str
            The text.
        """
        method = getattr(expr, "_sympystr", None)
        return str(method(self)) if method is not None else str(super().emptyPrinter(expr))

    # Expressions go to `emptyPrinter` if this printer has a method neither for their class nor for one of its
    # base classes except Basic. Partition, a class of the path integral, goes there too: SymPy's printer
    # would take it for its set partition of the same name.
    _print_Basic = _print_Partition = emptyPrinter

    def _print_Entries(self, expr: Any) -> str:
        matrix, now, past, *member = expr.args
        places = (*member, *present_first((now, past)))
        return f"c_{self.base(matrix.name)}({','.join(map(self._print, places))})"

    def _print_Pi(self, expr: Any) -> str:
        return "π"

    def _print_ImaginaryUnit(self, expr: Any) -> str:
        return "√(-1)" if "i" in self.names.letters else "i"

    def _print_Relational(self, expr: Any) -> str:
        expr = as_bound(expr)
        sign = {"<=": "≤", ">=": "≥", "!=": "≠", "==": "="}.get(expr.rel_op, expr.rel_op)
        return f"{without_spaces(self._print(expr.lhs))} {sign} {without_spaces(self._print(expr.rhs))}"

    def _print_Piecewise(self, expr: Any) -> str:
        cases = [
            f"{self._print(value)} {'otherwise' if where == True else 'if ' + self._print(where)}"  # noqa: E712
            for value, where in expr.args
        ]
        return "{" + "; ".join(cases) + "}"

    def base(self, name: str) -> str:
        """Return a printed name with its subscript, but without its superscript.

        Parameters
        ----------
        name : str
            The name in the theory.

        Returns
        -------
        str
            The text.
        """
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
        """Return a printed name with its superscript and layers above, and its subscript and samples below.

        Parameters
        ----------
        name : Name
            The name with its own superscript and subscript.
        layers, samples : sequence of str
            The printed indices.

        Returns
        -------
        str
            The text of the symbol without times.
        """
        is_separated = shifted(samples) or any(map(_is_long, samples))
        above = ",".join(filter(None, (unicode_name(name.upper), *layers)))
        under = ",".join(
            filter(None, (unicode_name(name.lower), ("," if is_separated else "").join(samples)))
        )
        under = f"{{{under}}}" if is_separated else braced(under)
        above = f"{{{above}}}" if len(above) > 1 else above
        return unicode_name(name.base) + (f"^{above}" if above else "") + (f"_{under}" if under else "")

    def dotted(self, atom: AppliedUndef, order: int) -> str:
        """Return a derivative of an activation with its argument, such as ``φ̇(h)``.

        The first and second derivative have dots over the name, others ``^(order)`` behind it.

        Parameters
        ----------
        atom : AppliedUndef
            The activation at its argument.
        order : int
            The order of the derivative.

        Returns
        -------
        str
            The text of the derivative.
        """
        mark = DOTS.get(order, f"^({order})")
        return f"{self.base(str(atom.func))}{mark}({self._print(atom.args[0])})"

    def rate(self, variable: str, body: str, partial: bool) -> str:
        """Return a derivative ``d/d variable body``.

        Parameters
        ----------
        variable, body : str
            The printed variable and function.
        partial : bool
            Whether the derivative is partial.

        Returns
        -------
        str
            The text of the derivative.
        """
        d = "∂" if partial else "d"
        return f"{d}/{d}{variable} {body}"

    def _print_Response(self, expr: Any) -> str:
        body, sources = nested_sources(expr)
        order = superscript(len(sources)) if len(sources) > 1 else ""
        return f"δ{order}{self.varied(body)}/{''.join(f'δ{self._print(x)}' for x in sources)}"

    def _print_Hatted(self, expr: Any) -> str:
        return self.indexed(expr.args[0], hat=True)

    def _print_ParameterElement(self, expr: Any) -> str:
        return f"{unicode_name(expr.latex_head)}[{', '.join(map(self._print, expr.args))}]"

    def parenthesize(self, item: Any, level: int, strict: bool = False) -> str:
        """Return the text of an operand, in brackets where its precedence requires them.

        As the base of a power, a derivative (except one of an activation), a response, an integral, and a sum
        or product over an index are put in brackets.

        Parameters
        ----------
        item : Any
            The operand.
        level : int
            The precedence of the surrounding operation.
        strict : bool
            If true, an operand whose precedence equals ``level`` gets no brackets, as in SymPy.

        Returns
        -------
        str
            The text.
        """
        open_ended = isinstance(item, Sum | Integral | Product | Derivative | Response)
        if open_ended and level > PRECEDENCE["Mul"] and self.activation_slope(item) is None:
            return self.bracketed(self._print(item))
        return str(super().parenthesize(item, level, strict))

    def _print_Pow(self, expr: Pow, rational: bool = False) -> str:
        if expr.exp.is_Integer:
            return str(self.parenthesize(expr.base, PRECEDENCE["Pow"])) + superscript(int(expr.exp))
        if expr.exp.is_Rational and expr.exp.q == 2:
            root = f"√{self.parenthesize(expr.base, PRECEDENCE['Pow'])}"
            above = root if abs(expr.exp.p) == 1 else root + superscript(abs(int(expr.exp.p)))
            return above if expr.exp.is_positive else f"1/{above}"
        return self.power(self.parenthesize(expr.base, PRECEDENCE["Pow"]), expr.exp)

    def runs_on(self, x: Expr, is_preceded: bool, is_followed: bool) -> bool:
        """Return whether the printed factor ``x`` is misread beside other factors of its term.

        It is so if x is the inverse of a root, such as ``1/√x``, or if a factor behind it could be in the
        denominator of a derivative or a response, or in their body.

        Parameters
        ----------
        x : Expr
            The factor.
        is_preceded, is_followed : bool
            Whether other parts of the term stand before and behind it.

        Returns
        -------
        bool
            True if the factor needs brackets.
        """
        if isinstance(x, Pow):
            inverse_root = x.exp.is_Rational and x.exp.q == 2 and x.exp.is_negative
            return bool(inverse_root) and (is_preceded or is_followed)
        is_derivative = isinstance(x, Derivative) and self.activation_slope(x) is None
        return is_followed and (is_derivative or isinstance(x, Response))

    def _print_exp(self, expr: Any) -> str:
        if "e" in self.names.letters:  # e^x would be misread as a power of the program's symbol e
            return f"exp({self._print(expr.args[0])})"
        return self.power("e", expr.args[0])

    def _print_Exp1(self, expr: Any) -> str:
        return "exp(1)" if "e" in self.names.letters else "e"

    def power(self, base: str, exponent: Expr) -> str:
        """Return a symbolic power; an exponent of more than one character is in braces.

        Parameters
        ----------
        base : str
            The printed base.
        exponent : Expr
            The exponent.

        Returns
        -------
        str
            The text.
        """
        above = without_spaces(self._print(exponent))
        return f"{base}^{above}" if len(above) == 1 else f"{base}^{{{above}}}"

    def _print_KroneckerDelta(self, expr: Any) -> str:
        marks = [without_spaces(self._print(x)) for x in expr.args]
        return f"δ_{{{','.join(marks)}}}" if any(len(x) > 2 for x in marks) else f"δ_{''.join(marks)}"

    def _print_Min(self, expr: Any) -> str:
        return f"min({','.join(map(self._print, sorted(expr.args, key=str)))})"

    def _print_Max(self, expr: Any) -> str:
        return f"max({', '.join(map(self._print, sorted(expr.args, key=default_sort_key)))})"

    def _print_Heaviside(self, expr: Any) -> str:
        return f"Θ({self._print(expr.args[0])})"

    def _print_DiracDelta(self, expr: Any) -> str:
        order = expr.args[1] if len(expr.args) > 1 else 0
        primes = "'" * int(order) if order in (0, 1, 2, 3) else f"^({order})"
        return f"δ{primes}({self._print(expr.args[0])})"

    def over(self, p: ArrangedTerm, top: str, under: str, factors: int) -> str:
        """Return the constant in front of a term, a fraction, as text ``top/under``.

        Parameters
        ----------
        p : ArrangedTerm
            The term in which the fraction stands.
        top, under : str
            The printed numerator and denominator.
        factors : int
            Number of factors of the denominator. More than one are put in brackets.

        Returns
        -------
        str
            The text of the fraction, in brackets if other factors of the term follow.
        """
        text = f"{top}/{under if factors == 1 else f'({under})'}"
        return f"({text})" if p.loops or p.inside or p.tail else text

    def unlimited(self, x: Expr) -> str:
        """Return a sum or integral without bounds, such as ``∫_{x} f(x)``.

        Parameters
        ----------
        x : Expr
            The sum or integral.

        Returns
        -------
        str
            The text.
        """
        bound = ",".join(self._print(limits[0]) for limits in x.limits)
        return f"{'Σ' if isinstance(x, Sum) else '∫'}_{{{bound}}} {self.factor(x.function)}"

    def _print_Product(self, expr: Any) -> str:
        """Return a product over an index, such as a time: ``Π_{k=0..t-1} (1 - λ(k))``.

        A matrix applied to a vector, whose class has the same name, prints itself.
        """
        if not isinstance(expr, Product):
            return self.emptyPrinter(expr)
        bounds = (
            f"{self._print(k)}={without_spaces(self._print(a))}..{without_spaces(self._print(b))}"
            for k, a, b in expr.limits
        )
        body = self._print(expr.function)
        return f"Π_{{{','.join(bounds)}}} " + (f"({body})" if expr.function.is_Add else body)

    def stated(self, x: Loop) -> bool:
        """Return whether the bounds of a sum are known from the first line of the document.

        That line states ranges of indices, such as ``mu = 1..P``. The bounds of another index are known if an
        index in that line has the same bounds and the upper one is a symbol, such as P.

        Parameters
        ----------
        x : Loop
            The sum over the index.

        Returns
        -------
        bool
            True if the bounds need not be printed.
        """
        ranges = {index: (low, high) for index, low, high in self.names.ranges}
        bounds = (x.lower, x.upper)
        return (
            ranges[x.index] == bounds
            if x.index in ranges
            else x.upper.is_Symbol and bounds in ranges.values()
        )

    def loop(self, loops: list[Loop]) -> str:
        """Return the sign of a sum or an integral.

        A range stated in the first line of the document is not repeated, and a sum over past times is written
        as ``Σ_{s<t}`` or ``Σ_{s≤t}``.

        Parameters
        ----------
        loops : list of Loop
            Neighbouring sums with equal bounds, or one integral.

        Returns
        -------
        str
            The text of one sign with its bounds.
        """
        x, indices = loops[0], [self._print(y.index) for y in loops]
        i, low, high = (
            ",".join(indices),
            without_spaces(self._print(x.lower)),
            without_spaces(self._print(x.upper)),
        )
        if x.integral:
            return f"∫_{low}^{high} d{i}" if len(high) == 1 else f"∫_{low}^{{{high}}} d{i}"
        if past := past_time(x):
            return f"Σ_{{{i}{'<' if past == '<' else '≤'}{self._print(x.upper + int(past == '<'))}}}"
        if all(map(self.stated, loops)):
            return f"Σ_{{{i}}}" if any(map(_is_long, indices)) else f"Σ_{''.join(indices)}"
        return f"Σ_{{{i}={low}..{high}}}"


def width(text: str) -> int:
    """Return the number of columns of a text; combining marks take none."""
    return sum(1 for c in text if not unicodedata.combining(c))


def _is_long(index: str) -> bool:
    """Return whether a printed index begins with two letters, so that it could be read as two indices."""
    return index[:2].isalpha() and len(index) > 1


def braced(mark: str) -> str:
    """Return a printed subscript, in braces if it contains a subscript itself: ``a_b`` becomes ``{a_b}``."""
    return f"{{{mark}}}" if "_" in mark and not mark.startswith("{") else mark


def wrap(text: str, columns: int, indent: int) -> str:
    """Break ``text`` into lines of at most ``columns`` columns.

    A break before a sign, outside of brackets or inside of one square bracket, is preferred to one between
    factors outside of brackets, and this to one inside of round brackets. Later lines start at ``indent``,
    two columns further for each open bracket and for a break inside of a product. The term after a broken one
    starts a new line. Text without a position for a break is not divided and can be longer.

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
        # `near` is the part of the text that can matter for one line: 4 * columns characters fill it, also if
        # each letter has up to three combining marks, which have no width.
        room, near = columns - len(head), text[: 4 * columns]
        end = _term_ends(near, still_open) if still_open or inside else None
        if end is not None and width(near[:end]) <= room:
            position: tuple[int, str, bool] | None = end, "", False
        elif width(near) <= room:
            break
        else:
            position = _break(text, room, still_open, 0 if lines else indent)
        if position is None:
            break
        at, still_open, inside = position
        lines.append(head + text[:at])
        head = " " * (indent + 2 * (len(still_open) + inside))
        text = text[at + 1 :]
    return "\n".join([*lines, head + text])


def _break(text: str, columns: int, still_open: str, start: int) -> tuple[int, str, bool] | None:
    """Return the best position for a line break in the first ``columns`` columns of a line of text.

    Returns None if the text has no position at which it may be broken.

    The tuple is (position, brackets that are open there, whether the break is between factors). The position
    is that of a space, which the break replaces. ``still_open`` are the brackets open at the beginning of
    ``text``, and positions up to ``start`` are excluded. Of equally good positions the last one is taken.
    """
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
    """Return the position of the space before the first sign outside of brackets, or None.

    The next term begins there; position 0 does not count. ``still_open`` are the brackets that are open at
    the beginning of ``text``.
    """
    for i, c in enumerate(text):
        still_open = _opened(still_open, c)
        if i > 0 and not still_open and _signed(text, i):
            return i
    return None


def _signed(text: str, i: int) -> bool:
    """Return whether a sign (plus, minus or ``&``) between spaces follows; ``i`` is the space before it."""
    return text[i : i + 3] in (" + ", " - ", " & ")


def _opened(still_open: str, c: str) -> str:
    """Return the brackets that are open after the character ``c`` of a text.

    ``still_open`` are those open before it; both are texts of opening brackets, the innermost last.
    """
    return still_open + c if c in OPEN else still_open[:-1] if c in CLOSE else still_open


def text(expr: Any, theory: Declares | None = None, names: str | Mapping[str, str] | None = None) -> str:
    """Return an expression as one line of plain text in the notation of the papers.

    Parameters
    ----------
    expr : Expr
        The expression; text is refused.
    theory : Theory, optional
        A theory whose declarations say which arguments are layers, samples and times; by default these roles
        are guessed from the arguments.
    names : str or mapping, optional
        Notation: ``"papers"`` (the default), ``"plain"`` (every symbol is formed from its name), or a
        mapping from names to LaTeX, which replaces symbols of the papers.

    Returns
    -------
    str
        The text.

    Raises
    ------
    NotApplicable
        If ``expr`` is text, has a method ``render``, as a theory has, or cannot be converted by SymPy.
    ValueError
        If there is no notation with the name ``names``, or if the mapping is not one of text to text.

    Examples
    --------
    >>> from sympy import Function
    >>> from derive.program import alpha, ell, mu, s, t
    >>> print(text(Function("Phi")(ell - 1, mu, alpha, t, s)))
    Φ^{ℓ-1}_μα(t,s)
    """
    return PaperText(notation(theory, names)).doprint(as_expression(expr, "text"))
