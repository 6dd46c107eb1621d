"""The expansion as text and LaTeX: operator words first, then what they are as time integrals."""

from __future__ import annotations

from collections.abc import Callable

from sympy import Eq, Expr, Function, Symbol, factor, latex
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.expansion.integrals import iterated_integral, time_integrals
from derive.expansion.linear import LinearExpansion
from derive.expansion.words import Memory, letters, terms, transposed
from derive.meanfield.reductions.operators import J
from derive.meanfield.reductions.projection import NotApplicable
from derive.printing import latex as paper_latex
from derive.printing import text as paper_text
from derive.program.expressions import alpha, mu, t

Letter = Callable[[Expr], str]


def render(expansion: LinearExpansion, format: str = "text") -> str:
    """All series, their letters and their time integrals.  Raises ValueError for an unknown format."""
    if format == "text":
        return _text(expansion)
    if format == "latex":
        return _latex(expansion)
    raise ValueError(f"format = {format!r}: must be 'text' or 'latex'")


# -- words -----------------------------------------------------------------------------------------------------------


def letter_text(x: Expr) -> str:
    """A letter in plain text: c for the memory of K^x in C, with the error's order as subscript unless zero."""
    if isinstance(x, Transpose):
        return letter_text(x.args[0]) + "ᵀ"
    if x == J:
        return "11ᵀ"
    if isinstance(x, Memory):
        sub = "" if x.order == 0 else "₀₁₂₃₄₅₆₇₈₉"[x.order] if x.order < 10 else f"_{x.order}"
        if len(letters(x.body)) == 1 and not isinstance(x.body, Memory):
            return x.kernel.lower() + sub
        return f"{x.kernel}{sub}[{word_text(x.body)}]"
    return {"K_x": "Kˣ"}.get(str(x), str(x))


def word_text(w: Expr) -> str:
    """A word in plain text."""
    return " ".join(letter_text(x) for x in letters(w)) or "1"


def letter_latex(x: Expr) -> str:
    """A letter in LaTeX."""
    if isinstance(x, Transpose):
        return letter_latex(x.args[0]) + r"^{\top}"
    if x == J:
        return r"\boldsymbol{1}\boldsymbol{1}^{\top}"
    if isinstance(x, Memory):
        sub = "" if x.order == 0 else f"_{{{x.order}}}"
        if len(letters(x.body)) == 1 and not isinstance(x.body, Memory):
            return rf"\boldsymbol{{{x.kernel.lower()}}}{sub}"
        return rf"\mathcal{{{x.kernel}}}{sub}[{word_latex(x.body)}]"
    return {"K_x": r"\boldsymbol{K}^{x}"}.get(str(x), rf"\boldsymbol{{{x}}}")


def word_latex(w: Expr) -> str:
    """A word in LaTeX."""
    return "".join(letter_latex(x) for x in letters(w)) or "1"


def grouped(expansion: LinearExpansion, e: Expr) -> list[tuple[Expr, Expr, bool]]:
    """Terms as (coefficient, word, plus its transpose)."""
    symmetric = {v.rhs for v in expansion.closure.base if v.rhs != 0}
    left = dict((w, c) for c, w in terms(e))
    out: list[tuple[Expr, Expr, bool]] = []
    while left:
        w, c = next(iter(left.items()))
        del left[w]
        flipped = transposed(w, symmetric)
        both = flipped != w and flipped in left and (left[flipped] - c).expand() == 0
        if both:
            del left[flipped]
            w = min(w, flipped, key=lambda x: sum(isinstance(y, Transpose) for y in letters(x)))
        out.append((factor(c), w, both))
    return out


def _sum_text(expansion: LinearExpansion, e: Expr) -> str:
    parts = []
    for c, w, both in grouped(expansion, e):
        word = f"({word_text(w)} + transpose)" if both else word_text(w)
        parts.append(word if c == 1 else f"{_poly_text(c)} {word}")
    return " + ".join(parts) or "0"


def _poly_text(c: Expr) -> str:
    shown = str(c).replace("**", "^").replace("*", " ").replace("ell", "ℓ")
    return f"({shown})" if c.is_Add else shown


def _sum_latex(expansion: LinearExpansion, e: Expr) -> str:
    parts = []
    for c, w, both in grouped(expansion, e):
        word = rf"\left({word_latex(w)} + \mathrm{{transpose}}\right)" if both else word_latex(w)
        number = latex(c, symbol_names={Symbol("ell", integer=True): r"\ell"})
        parts.append(word if c == 1 else (rf"\left({number}\right)" if c.is_Add else number) + r"\," + word)
    return " + ".join(parts) or "0"


# -- entries ---------------------------------------------------------------------------------------------------------


def _entries(expansion: LinearExpansion) -> list[tuple[str, Expr, Expr]]:
    """Name, left-hand side and coefficient as time integrals, where a word separates in t and s."""
    found = []
    for name, row, col in (("H", mu, alpha), ("G", None, None)):
        if name not in expansion.series:
            continue
        for n in range(1, expansion.order + 1):
            e = expansion.series[name][n]
            if e == 0:
                continue
            try:
                value = time_integrals(expansion, e, row, col)
            except NotApplicable:
                continue
            found.append((name, Symbol(f"{name}^({n})"), value))
    return found


def error_equation(expansion: LinearExpansion, n: int) -> Eq:
    """The equation of the error at order n: minus the output at that order, in time integrals.

    The part with ``v<n>`` is linear in the error sought: a linear Volterra equation driven by the rest.
    """
    delta = Function(f"Delta{n}")(mu, t)
    f = time_integrals(expansion, expansion.output[n], mu, None, t, t)
    start = Function("y")(mu) if n == 0 else 0
    return Eq(delta, start - f, evaluate=False)


def _text(expansion: LinearExpansion) -> str:
    lines = [f"Expansion in γ₀ to order {expansion.order}: layer ℓ of a deep linear network with L hidden layers", ""]
    lines += ["Operators (c and d: memory of Kˣ and of 1 with the lazy error Δ⁽⁰⁾; ᵀ swaps the two times)"]
    for k in expansion.closure.kernels:
        if k.causal and k.definition != 0:
            lines.append(f"  {paper_text(k.entry)} = {paper_text(k.definition, expansion.closure.theory)}")
    lines.append("")
    for name, series in expansion.series.items():
        parts = [f"γ₀^{n} [ {_sum_text(expansion, e)} ]" if n else _sum_text(expansion, e) for n, e in enumerate(series) if e != 0]
        lines += [f"{name}^ℓ = {parts[0]}", *[f"      + {x}" for x in parts[1:]], ""]
    for n, products in enumerate(expansion.tangent):
        if products:
            terms_ = [f"{_poly_text(c)} [{word_text(a)}]∘[{word_text(b)}]" for c, a, b in products]
            lines.append(f"K^({n}) = " + " + ".join(terms_))
    lines += ["", "Time integrals: v_αβ(t) = ∫₀ᵗ ds Δ⁽⁰⁾_α(s) v_β(s), v_α(t) = ∫₀ᵗ ds Δ⁽⁰⁾_α(s)"]
    for name, lhs, value in _entries(expansion):
        del name
        lines.append(f"{lhs} = {value}")
    for n in range(expansion.order + 1):
        if expansion.output[n] != 0:
            try:
                e = error_equation(expansion, n)
            except NotApplicable:
                continue
            lines.append(f"{e.lhs} = {e.rhs}")
    return "\n".join(lines)


def _latex(expansion: LinearExpansion) -> str:
    lines = []
    for name, series in expansion.series.items():
        parts = [
            (rf"\gamma_0^{{{n}}}\left[{_sum_latex(expansion, e)}\right]" if n else _sum_latex(expansion, e))
            for n, e in enumerate(series)
            if e != 0
        ]
        lines.append(rf"\boldsymbol{{{name}}}^{{\ell}} &= " + " + ".join(parts))
    for n, products in enumerate(expansion.tangent):
        if products:
            terms_ = [rf"{latex(c)}\,[{word_latex(a)}]\circ[{word_latex(b)}]" for c, a, b in products]
            lines.append(rf"\boldsymbol{{K}}^{{({n})}} &= " + " + ".join(terms_))
    for _, lhs, value in _entries(expansion):
        lines.append(rf"{latex(lhs)} &= {paper_latex(value)}")
    v1, v2 = Function("v")(alpha, t), Function("v")(alpha, Symbol("beta", integer=True, positive=True), t)
    lines += [rf"{paper_latex(v)} &= {paper_latex(iterated_integral(expansion, v))}" for v in (v1, v2)]
    body = " \\\\\n  ".join(lines)
    return "\\begin{align*}\n  " + body + "\n\\end{align*}"
