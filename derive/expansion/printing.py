"""The linear expansion as text and LaTeX: operator words first, then what they are as time integrals."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from sympy import Add, Expr, Function, Mul, Poly, Rational, Symbol
from sympy.core.function import AppliedUndef
from sympy.functions.elementary.complexes import transpose as Transpose

from derive.calculus.recurrences import factored
from derive.calculus.symbols import alpha, ell, mu, s, t
from derive.expansion.expansion import Block, printed
from derive.expansion.integrals import Group, groups, iterated_integral, time_integrals
from derive.expansion.words import LinearSeries, Memory, letters, terms, transposed
from derive.linear.operators import J
from derive.show import latex, text

INTEGRALS = 2
"""Up to this order entries are printed as time integrals; beyond, they fill pages."""

ENTRIES = {"H": (mu, alpha), "G": (), "A": (mu,), "B": (alpha,), "K": (mu, alpha)}


def render(series: LinearSeries, format: str = "text") -> str:
    """All series, their letters and their time integrals.  Raises ValueError for an unknown format."""
    x = _Writer(series, LATEX if format == "latex" else TEXT)
    depth = x.theory.program.depth
    head = (
        f"Expansion in γ₀ to order {series.order}: a deep linear network with {depth} hidden layers\n\n"
        "Operators: products run over the time between, X∘Y multiplies entries, {X}_sym = X + Xᵀ.\n"
        "C[X] and D[X] remember X with the error Δ^(0), as C^ℓ and D^ℓ do; Cₙ[X] and Dₙ[X] with Δ^(n)."
    )
    symmetric = [
        (r"\left\{\boldsymbol{X}\right\}_{\mathrm{sym}}", [r"\boldsymbol{X} + \boldsymbol{X}^{\top}"])
    ]
    blocks: dict[str, Block] = {
        "Kernels": [*(symmetric if format == "latex" else []), *x.kernels()],
        "c = C[Kˣ] and d = D[11ᵀ]": x.letters(),
        "Operators": x.series(),
        "Entries": x.entries(),
        "Error": x.errors(),
        "Time integrals": x.integrals(),
    }
    return printed(format, head, blocks)


class _Writer:
    """The equations of an expansion as pairs: a left-hand side, and one string for each order."""

    def __init__(self, series: LinearSeries, script: Script) -> None:
        self.x, self.script = series, script
        self.symmetric = {v.rhs for v in series.closure.base if v.rhs != 0}
        self.theory = series.closure.theory
        self.known = [*series.words, *(["K"] if any(series.tangent) else [])]
        self.orders = range(min(series.order, INTEGRALS) + 1)
        self.names = {"K_x": "K^x"}
        for n in range(series.order + 1):
            self.names |= {f"Delta{n}": rf"\Delta^{{({n})}}", f"v_{n}": f"v^{{({n})}}"}
        for k in range(1, 9):
            self.names |= {"beta" + "_" * k: r"\beta" + "'" * k, "t" + "_" * k: "t" + "'" * k}

    def show(self, e: Expr) -> str:
        """An expression in the papers' notation."""
        return self.script.shown(e, self.theory, self.names)

    def in_orders(self, parts: list[tuple[int, str]]) -> list[str]:
        """``a + gamma0^2 [b] + ...``, one string for each order; 0 if there are none."""
        shown = [
            f"{self.script.power(self.script.gamma, n)}{self.script.gap}{self.script.bracket(x)}" if n else x
            for n, x in parts
        ]
        return shown or ["0"]

    def series(self) -> Block:
        """The operators as words."""
        for name, values in self.x.words.items():
            parts = [(n, self.script.sum_of_words(e, self.symmetric)) for n, e in enumerate(values) if e != 0]
            yield self.script.operator(name), self.in_orders(parts)
        tangent = [(n, p) for n, p in enumerate(self.x.tangent) if p]
        if tangent:
            shown = [(n, self.script.products(p, self.symmetric)) for n, p in tangent]
            yield self.script.operator("K"), self.in_orders(shown)

    def kernels(self) -> Block:
        """What C and D remember."""
        for k in self.x.closure.kernels:
            if k.causal and k.definition != 0:
                yield self.show(k.entry), [self.show(k.definition)]

    def letters(self) -> Block:
        """The entries of the shortest letters."""
        for name in ("C", "D"):
            found = self.x.words.get(name, [])
            small = [x for x in found[0].atoms(Memory)] if found and found[0] != 0 else []
            for x in small:
                if x.order == 0 and len(letters(x.body)) == 1:
                    row, col = (mu, None) if name == "C" else (None, alpha)
                    e = time_integrals(self.x, x, row, col)
                    sample = mu if name == "C" else alpha
                    yield self.show(Function(name.lower())(sample, t, s)), [self.show(e)]

    def groups(self, found: list[Group]) -> str:
        """Coefficients, sums over samples, and the rest in the order of the paper."""
        parts: list[tuple[Expr, str]] = []
        for c, same in groupby(found, key=lambda x: x.coefficient):
            bodies = [self.body(x) for x in same]
            bare = len(bodies) == 1 or c in (1, -1)
            parts += [(c, x) for x in bodies] if bare else [(c, self.script.bracket(" + ".join(bodies)))]
        return self.script.signed_sum(parts)

    def body(self, x: Group) -> str:
        samples = "".join(self.show(r.index) for r in x.samples)
        parts = [] if x.weight == 1 else [self.script.weight(self.show(x.weight))]
        parts += [self.script.summation(samples)] if samples else []
        parts += map(self.show, x.outer)
        inner = [" ".join(map(self.show, factors)) for factors in x.inner]
        parts.append(self.script.bracket(" + ".join(inner)) if len(inner) > 1 else inner[0])
        return " ".join(filter(None, parts))

    def entries(self) -> Block:
        """The order parameters as time integrals."""
        for name, samples in ENTRIES.items():
            if name not in self.known:
                continue
            parts = []
            for n in self.orders:
                found = groups(self.x, name, n)
                if found:
                    parts.append((n, self.groups(found)))
            if self.x.order > INTEGRALS:
                parts.append((self.x.order, "..."))
            yield self.entry_of(name, samples), self.in_orders(parts)

    def entry_of(self, name: str, samples: tuple[Symbol, ...]) -> str:
        layer = () if name == "K" else (ell,)
        return self.show(Function(name)(*layer, *samples, t, s))

    def errors(self) -> Block:
        """The equations of the error's coefficients."""
        for n in self.orders:
            found = groups(self.x, "f", n)
            if n and not found:
                continue
            rest = self.groups([replace(x, coefficient=-x.coefficient) for x in found])
            if n == 0:
                sign, rest = ("-", rest[1:]) if rest.startswith("-") else ("+", rest)
                rest = f"{self.show(Function('y')(mu))} {sign} {rest}"
            yield self.show(Function(f"Delta{n}")(mu, t)), [rest]

    def integrals(self) -> Block:
        """What the integrals ``v`` stand for, as far as they occur: one example of each kind."""
        seen: dict[tuple[str, int, int], AppliedUndef] = {}
        for n in self.orders:
            for name in (*ENTRIES, "f"):
                if name in (*self.known, "f"):
                    for g in groups(self.x, name, n):
                        for v in g.expr.atoms(AppliedUndef):
                            if str(v.func).split("_")[0] == "v":
                                count = sum(bool(x.is_integer) for x in v.args)
                                seen.setdefault((str(v.func), count, len(v.args) - count), v)
        for (name, count, times), _ in sorted(seen.items(), key=lambda x: (x[0][2], x[0][1], x[0][0])):
            samples = [Symbol("beta" + "_" * k, **mu.assumptions0) for k in range(count)]
            v = Function(name)(*samples, *(t, s)[:times])
            yield self.show(v), [self.show(iterated_integral(self.x, v))]


_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")
_LOWERED = str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉")


@dataclass(frozen=True)
class Script:
    """Signs of one output format."""

    shown: Callable[..., str]
    plain: Callable[[Expr], str]
    gamma: str
    operator: Callable[[str], str]
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
    shown=text,
    plain=_plain_text,
    gamma="γ₀",
    operator=lambda name: name if name == "K" else f"{name}^ℓ",
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
    shown=latex,
    plain=lambda e: _tight(latex(e)),
    gamma=r"\gamma_0",
    operator=lambda name: (
        r"\boldsymbol{K}^{\mathrm{NTK}}" if name == "K" else rf"\boldsymbol{{{name}}}^{{\ell}}"
    ),
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

__all__ = ["LATEX", "TEXT", "Script", "render"]
