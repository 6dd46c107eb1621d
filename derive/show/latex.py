r"""LaTeX printer of expressions: ``H(ell, mu, alpha, t, s)`` becomes ``H^{\ell}_{\mu\alpha}(t,s)``.

:class:`PaperLatex` extends SymPy's printer by the notation (:mod:`derive.show.notation`) and the order of
factors (:mod:`derive.show.arranged`) of the papers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from sympy import Expr, Pow, Sum, Symbol
from sympy.core.function import AppliedUndef
from sympy.printing.latex import LatexPrinter

from derive.errors import NotApplicable
from derive.show.arranged import (
    Arranged,
    ArrangedTerm,
    Loop,
    as_bound,
    join,
    nested_sources,
    past_time,
    present_first,
    shifted,
    with_distinct_variables,
    without_spaces,
)
from derive.show.notation import Declares, Name, Notation, as_expression, notation

DOTS = {1: r"\dot", 2: r"\ddot"}


class PaperLatex(Arranged, LatexPrinter):
    """SymPy's LaTeX printer with the notation of the papers for indices, sums and factors.

    Parameters
    ----------
    names : Notation
        The symbols of names and the roles of arguments.
    """

    left, right = r"\left[", r"\right]"
    open_average, close_average = r"\left\langle ", r" \right\rangle"
    process = (r"\{%s\}", r"\sim", r"\mathcal{GP}(0, %s)")

    def __init__(self, names: Notation) -> None:
        """Set the notation: the symbol of each name, and which arguments are layers, samples or times."""
        super().__init__({"inv_trig_style": "full"})
        self.names = names

    def _print(self, expr: Any, **kwargs: Any) -> str:
        """Return the LaTeX of an expression, by its method ``_paper_<class>`` if there is one.

        Other expressions are printed by methods ``_print_<class>``, of SymPy or of this class.
        """
        method = getattr(self, f"_paper_{type(expr).__name__}", None)
        return str(method(expr) if method is not None else super()._print(expr, **kwargs))

    def _paper_Entries(self, expr: Any) -> str:
        matrix, now, past, *member = expr.args
        places = (*member, *present_first((now, past)))
        return f"c_{{{self._print(matrix)}}}({','.join(map(self._print, places))})"

    def _paper_Response(self, expr: Any) -> str:
        body, sources = nested_sources(expr)
        order = f"^{{{len(sources)}}}" if len(sources) > 1 else ""
        below = r"\, ".join(rf"\delta {self._print(x)}" for x in sources)
        return rf"\frac{{\delta{order} {self.varied(body)}}}{{{below}}}"

    def _paper_Hatted(self, expr: Any) -> str:
        return self.indexed(expr.args[0], hat=True)

    def _print_Relational(self, expr: Any) -> str:
        return str(super()._print_Relational(as_bound(expr)))

    def _print_Heaviside(self, expr: Any, exp: str | None = None) -> str:
        text = rf"\Theta\left({self._print(expr.args[0])}\right)"
        return text if exp is None else f"{text}^{{{exp}}}"

    def _print_Symbol(self, expr: Symbol, style: str = "plain") -> str:
        name = self.names.name(expr.name)
        return self.marked(Name(name.base, lower=name.lower), (), ())

    def _print_Function(self, expr: Any, exp: str | None = None) -> str:
        if not isinstance(expr, AppliedUndef):
            return str(super()._print_Function(expr, exp))
        if self.names.is_activation(expr):
            name = self.marked(self.names.name(str(expr.func)), (), ())
            text = name + "(" + ",".join(map(self._print, expr.args)) + ")"
        else:
            text = self.indexed(expr)
        return text if exp is None else f"{text}^{{{exp}}}"

    def _paper_ImaginaryUnit(self, expr: Any) -> str:
        return r"\sqrt{-1}" if "i" in self.names.letters else "i"

    def _print_ExpBase(self, expr: Any, exp: str | None = None) -> str:
        if "e" not in self.names.letters:
            return str(super()._print_ExpBase(expr, exp))
        text = rf"\exp\left({self._print(expr.args[0])}\right)"
        return text if exp is None else f"{text}^{{{exp}}}"

    def _print_Exp1(self, expr: Any, exp: str | None = None) -> str:
        if "e" not in self.names.letters:
            return str(super()._print_Exp1(expr, exp))
        return r"\exp\left(1\right)"

    def marked(self, name: Name, layers: Sequence[str], samples: Sequence[str]) -> str:
        """Return a name with superscripts, its own and layers, and subscripts, its own and samples.

        Parameters
        ----------
        name : Name
            The name with its own superscript and subscript.
        layers, samples : sequence of str
            The printed indices.

        Returns
        -------
        str
            The LaTeX of the symbol without times.
        """
        above = ",".join(filter(None, (name.upper, *layers)))
        below = ",".join(samples) if shifted(samples) else beside(samples)
        under = ",".join(filter(None, (name.lower, below)))
        base = (
            f"{{{name.base}}}" if (above and "^" in name.base) or (under and "_" in name.base) else name.base
        )
        return base + (f"^{{{above}}}" if above else "") + (f"_{{{under}}}" if under else "")

    def dotted(self, atom: AppliedUndef, order: int) -> str:
        r"""Return a derivative of an activation with its argument, such as ``\dot{\phi}(h)``.

        The first and second derivative have dots over the name, others the order in brackets as superscript.

        Parameters
        ----------
        atom : AppliedUndef
            The activation at its argument.
        order : int
            The order of the derivative.

        Returns
        -------
        str
            The LaTeX of the derivative.
        """
        name = self.names.name(str(atom.func))
        if order in DOTS:
            mark = self.marked(replace(name, base=f"{DOTS[order]}{{{name.base}}}"), (), ())
        else:
            mark = self.marked(name, (f"({order})",), ())
        return f"{mark}({self._print(atom.args[0])})"

    def rate(self, variable: str, body: str, partial: bool) -> str:
        r"""Return a derivative with the function behind the fraction, such as ``\frac{d}{dt} h(t)``.

        Parameters
        ----------
        variable, body : str
            The printed variable and function.
        partial : bool
            Whether the derivative is partial.

        Returns
        -------
        str
            The LaTeX of the derivative.
        """
        d = r"\partial " if partial else "d"
        return rf"\frac{{{d.strip()}}}{{{d}{variable}}} {body}"

    def _print_Pow(self, expr: Pow) -> str:
        negative = expr.exp.is_Rational and expr.exp.is_negative
        if negative and expr.exp.is_Integer and expr.base.is_Symbol:
            return f"{self._print(expr.base)}^{{{self._print(expr.exp)}}}"
        # Negative integer powers of a symbol, such as x**-2, were handled above. All other powers with a
        # negative rational exponent are written as a fraction here. SymPy's method passes 1/(1 + x)**2 on as
        # a product, which this printer writes as a power again.
        if negative:
            return rf"\frac{{1}}{{{self._print(expr.base**-expr.exp)}}}"
        return str(super()._print_Pow(expr))

    def over(self, p: ArrangedTerm, top: str, under: str, factors: int) -> str:
        """Return the constant in front of a term, a fraction, in LaTeX.

        Parameters
        ----------
        p : ArrangedTerm
            The term whose constant is the fraction; not used in LaTeX.
        top, under : str
            The printed numerator and denominator.
        factors : int
            Number of factors of the denominator; not used in LaTeX.

        Returns
        -------
        str
            The LaTeX of the fraction.
        """
        return rf"\frac{{{top}}}{{{under}}}"

    def bracketed(self, text: str) -> str:
        """Return a text in round brackets.

        Parameters
        ----------
        text : str
            The LaTeX inside.

        Returns
        -------
        str
            The LaTeX with brackets.
        """
        return rf"\left({text}\right)"

    def broken(self, terms: Sequence[Expr]) -> str:
        """Return the right-hand side of a long equation with one term on each line.

        Parameters
        ----------
        terms : sequence of Expr
            The terms of the right-hand side.

        Returns
        -------
        str
            The LaTeX of several lines of an ``align`` environment.
        """
        pieces = join(list(terms), self.names)
        lines = [self.added(pieces[:1])]
        lines += [("- " if p.negative else "+ ") + self.unsigned(p) for p in pieces[1:]]
        return " \\\\\n    &\\quad ".join(lines)

    def unlimited(self, x: Expr) -> str:
        """Return a sum or integral without bounds in SymPy's form.

        Parameters
        ----------
        x : Expr
            The sum or integral.

        Returns
        -------
        str
            The LaTeX of the sum.
        """
        kind = "Sum" if isinstance(x, Sum) else "Integral"
        return str(getattr(LatexPrinter, f"_print_{kind}")(self, x))

    def loop(self, loops: list[Loop]) -> str:
        r"""Return one sign for sums with the same bounds, or the sign of an integral.

        A sum over past times is written as ``\sum_{s<t}`` or ``\sum_{s\le t}``.

        Parameters
        ----------
        loops : list of Loop
            Neighbouring sums with equal bounds, or one integral.

        Returns
        -------
        str
            The LaTeX of the sign with its bounds.
        """
        x = loops[0]
        i = ",".join(self._print(y.index) for y in loops)
        low, high = without_spaces(self._print(x.lower)), without_spaces(self._print(x.upper))
        if x.integral:
            return rf"\int_{_braced(low)}^{_braced(high)} d{i}\,"
        if past := past_time(x):
            present = self._print(x.upper + int(past == "<"))
            return rf"\sum_{{{i}<{present}}}" if past == "<" else rf"\sum_{{{i}\le {present}}}"
        return rf"\sum_{{{i}={low}}}^{{{high}}}"


def _braced(text: str) -> str:
    """Return a text in braces unless it is one character."""
    return text if len(text) == 1 else f"{{{text}}}"


def beside(words: Sequence[str]) -> str:
    """Return printed indices side by side, with a space between a LaTeX command and a following letter."""
    swallow = [a.startswith("\\") and a[-1].isalpha() and b[:1].isalpha() for a, b in pairwise(words)]
    return "".join(w + " " * x for w, x in zip(words, [*swallow, False], strict=False))


def latex(expr: Any, theory: Declares | None = None, names: str | Mapping[str, str] | None = None) -> str:
    r"""Return the LaTeX of an expression in the notation of the papers.

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
        The LaTeX without dollar signs.

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
    >>> print(latex(Function("H")(ell - 1, mu, alpha, t, s)))
    H^{\ell-1}_{\mu\alpha}(t,s)
    >>> print(latex(Function("H")(ell - 1, mu, alpha, t, s), names={"H": "K"}))
    K^{\ell-1}_{\mu\alpha}(t,s)
    """
    return PaperLatex(notation(theory, names)).doprint(as_expression(expr, "latex"))


def aligned_latex(equations: Iterable[Any], theory: Declares | None = None) -> str:
    r"""Return equations in an aligned environment, as a notebook shows them.

    Parameters
    ----------
    equations : iterable of Eq
        The equations, or other objects with the attributes ``lhs`` and ``rhs``.
    theory : Theory, optional
        As for :func:`latex`.

    Returns
    -------
    str
        The LaTeX of a display.

    Raises
    ------
    NotApplicable
        If one of the equations has no sides.

    Examples
    --------
    >>> from sympy import Eq, Function
    >>> from derive.program import t
    >>> print(aligned_latex([Eq(Function("h")(t), t, evaluate=False)]))
    $$\begin{aligned}h(t) &= t\end{aligned}$$
    """
    equations = tuple(equations)
    wrong = [e for e in equations if not (hasattr(e, "lhs") and hasattr(e, "rhs"))]
    if wrong:
        raise NotApplicable(
            f"aligned_latex takes equations with two sides, not {wrong[0]!r}: write Eq(lhs, rhs, "
            "evaluate=False), which SymPy does not evaluate to true or false"
        )
    sides = (with_distinct_variables([e.lhs, e.rhs]) for e in equations)
    rows = r" \\ ".join(f"{latex(lhs, theory)} &= {latex(rhs, theory)}" for lhs, rhs in sides)
    return rf"$$\begin{{aligned}}{rows}\end{{aligned}}$$"
