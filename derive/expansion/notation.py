"""How words and their coefficients are written, in text and in LaTeX."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from sympy import Add, Expr, Mul, Poly, Rational
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.calculus.polynomials import factored
from derive.expansion.words import Memory, letters, terms, transposed
from derive.linear.operators import J
from derive.show import latex, text

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


@dataclass(frozen=True)
class Script:
    """Signs of one output format."""

    plain: Callable[[Expr], str]
    one: str
    data: Callable[[str], str]
    letter: Callable[[str, int], str]
    memory: Callable[[str, int, str], str]
    flipped: Callable[[str], str]
    symmetrized: Callable[[str], str]
    joint: str
    power: Callable[[str, int], str]
    fraction: Callable[[str, int], str]
    brackets: tuple[str, str]
    times: str
    gap: str
    summation: Callable[[str], str]
    weight: Callable[[str], str]

    # -- coefficients ----------------------------------------------------------------------------------

    def coefficient(self, c: Expr) -> str:
        """A positive coefficient in front of a word: nothing for 1, sums in parentheses."""
        number, rest = factored(c).as_coeff_Mul()
        assert isinstance(number, Rational)
        bases = [x.as_base_exp() for x in Mul.make_args(rest) if x != 1]
        bases.sort(key=lambda x: _simplicity(x[0]))
        shown = [self.factor(b, int(k)) for b, k in bases]
        if abs(number.p) != 1 or not shown:
            shown.insert(0, str(abs(number.p)))
        body = self.joint_of(shown)
        if number.q != 1:
            return self.fraction(body, number.q)
        return "" if body == "1" else body

    def factor(self, base: Expr, k: int) -> str:
        """A power; a sum in parentheses."""
        shown = f"({self.plain(base)})" if isinstance(base, Add) else self.plain(base)
        return shown if k == 1 else self.power(shown, k)

    def joint_of(self, factors: list[str]) -> str:
        """Factors side by side; a control word must not swallow the next letter."""
        out = ""
        for x in factors:
            swallowed = out[-1:].isalpha() and "\\" in out.rsplit("(", 1)[-1] and x[:1].isalpha()
            out += (" " if swallowed else "") + x
        return out

    # -- words -----------------------------------------------------------------------------------------

    def word(self, w: Expr) -> str:
        """A word; 1 if empty."""
        return self.joint.join(self.of_letter(x) for x in letters(w)) or "1"

    def of_letter(self, x: Expr) -> str:
        """A lower-case letter remembers a constant kernel; C[X] remembers the word X."""
        if isinstance(x, Transpose):
            return self.flipped(self.of_letter(x.args[0]))
        if x == J:
            return self.one
        if isinstance(x, Memory):
            if isinstance(x.body, Memory) or len(letters(x.body)) > 1:
                return self.memory(x.kernel, x.order, self.word(x.body))
            return self.letter(x.kernel.lower(), x.order)
        return self.data(str(x))

    def signed_sum(self, parts: Iterable[tuple[Expr, str]]) -> str:
        """``coefficient word + ...``."""
        out = ""
        for c, shown in parts:
            minus = factored(c).as_coeff_Mul()[0].is_negative
            out += ("-" if minus else "") if not out else (" - " if minus else " + ")
            out += self.gap.join(filter(None, (self.coefficient(c), shown))) or "1"
        return out or "0"

    def bracket(self, body: str) -> str:
        """In square brackets."""
        return f"{self.brackets[0]}{body}{self.brackets[1]}"

    def words(self, ws: list[Expr], symmetric: set[Expr]) -> list[str]:
        """Words with coefficient 1: a word and its transpose as one, memories of several words as one."""
        left, shown = list(ws), []
        while left:
            w = left.pop(0)
            x = letters(w)[0] if len(letters(w)) == 1 else None
            if isinstance(x, Memory) and len(letters(x.body)) > 1:
                alike = [y for y in left if remembers_like(x, y)]
                left = [y for y in left if y not in alike]
                bodies = " + ".join(self.words([x.body, *(y.args[2] for y in alike)], symmetric))
                shown.append(self.memory(x.kernel, x.order, bodies))
                continue
            other = transposed(w, symmetric)
            if other != w and other in left:
                left.remove(other)
                w = min(w, other, key=lambda x: sum(isinstance(y, Transpose) for y in letters(x)))
                shown.append(self.symmetrized(self.word(w)))
            else:
                shown.append(self.word(w))
        return shown

    def sum_of_words(self, e: Expr, symmetric: set[Expr]) -> str:
        """A sum of words, those with the same coefficient together."""
        together: dict[Expr, list[Expr]] = {}
        for c, w in terms(e):
            together.setdefault(c.expand(), []).append(w)
        shown = []
        for c, ws in together.items():
            parts = self.words(ws, symmetric)
            if c in (1, -1) or len(parts) == 1:
                shown += [(c, x) for x in parts]
            else:
                shown.append((c, self.bracket(" + ".join(parts))))
        return self.signed_sum(shown)

    def products(self, found: list[tuple[Expr, Expr, Expr]], symmetric: set[Expr]) -> str:
        """Products of two words, entry by entry: those with the same coefficient and a constant together."""
        together: dict[Expr, dict[tuple[str, Expr], list[Expr]]] = {}
        for c, a, b in found:
            side = ("right", b) if not b.has(Memory) else ("left", a)
            varying = a if side[0] == "right" else b
            together.setdefault(c.expand(), {}).setdefault(side, []).append(varying)
        shown = []
        for c, sides in together.items():
            parts = []
            for (place, fixed), ws in sides.items():
                body = self.words(ws, symmetric)
                many = self.bracket(" + ".join(body)) if len(body) > 1 else body[0]
                pair = (many, self.word(fixed)) if place == "right" else (self.word(fixed), many)
                parts.append(f" {self.times} ".join(pair))
            several = len(parts) > 1 and c not in (1, -1)
            shown.append((c, self.bracket(" + ".join(parts)) if several else " + ".join(parts)))
        return self.signed_sum(shown)


def _simplicity(base: Expr) -> tuple[bool, int, int, int, str]:
    """Simple factors come first."""
    p = Poly(base, *sorted(base.free_symbols, key=str))
    size = max(abs(int(c)) for c in p.coeffs())
    return isinstance(base, Add), p.total_degree(), len(p.gens), size, str(base)


def remembers_like(x: Memory, y: Expr) -> bool:
    """Is ``y`` a letter of the same kernel and error as ``x``, of another word?"""
    return isinstance(y, Memory) and y.args[:2] == x.args[:2] and len(letters(y.body)) > 1


def _tight(shown: str) -> str:
    return shown.replace(" + ", "+").replace(" - ", "-")


def _plain_text(e: Expr) -> str:
    return _tight(text(e)).replace(" ", "")


TEXT = Script(
    plain=_plain_text,
    one="11ᵀ",
    data=lambda name: {"K_x": "Kˣ"}.get(name, name),
    letter=lambda name, order: name + (str(order).translate(_LOWERED) if order else ""),
    memory=lambda name, order, body: f"{name}{str(order).translate(_LOWERED) if order else ''}[{body}]",
    flipped=lambda x: x + "ᵀ",
    symmetrized=lambda x: f"{{{x}}}_sym",
    joint=" ",
    power=lambda x, k: x + str(k).translate(_RAISED),
    fraction=lambda x, q: f"{x}/{q}",
    brackets=("[", "]"),
    times="∘",
    gap=" ",
    summation=lambda indices: f"Σ_{indices}",
    weight=lambda x: f"({x})" if "/" in x else x,
)

LATEX = Script(
    plain=lambda e: _tight(latex(e)),
    one=r"\boldsymbol{1}\boldsymbol{1}^{\top}",
    data=lambda name: {"K_x": r"\boldsymbol{K}^{x}"}.get(name, rf"\boldsymbol{{{name}}}"),
    letter=lambda name, order: rf"\boldsymbol{{{name}}}" + (f"_{{{order}}}" if order else ""),
    memory=lambda name, order, body: (
        rf"\mathcal{{{name}}}" + (f"_{{{order}}}" if order else "") + rf"\left[{body}\right]"
    ),
    flipped=lambda x: x + r"^{\top}",
    symmetrized=lambda x: rf"\left\{{{x}\right\}}_{{\mathrm{{sym}}}}",
    joint="",
    power=lambda x, k: f"{x}^{{{k}}}",
    fraction=lambda x, q: rf"\frac{{{x}}}{{{q}}}",
    brackets=(r"\left[", r"\right]"),
    times=r"\circ",
    gap=r"\,",
    summation=lambda indices: rf"\sum_{{{indices}}}",
    weight=lambda x: x,
)

__all__ = ["LATEX", "TEXT", "Script"]
