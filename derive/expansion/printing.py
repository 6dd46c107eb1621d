"""Printed form of a linear expansion: words, entries as time integrals, and recursions of higher orders.

`LinearExpansion.render` uses it. Equations are pairs of a left-hand side and one string for each order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import groupby

from sympy import Expr, Function, Indexed, Rational, S, Symbol, transpose
from sympy.core.function import AppliedUndef
from sympy.polys.rings import PolyElement, PolyRing

from derive.calculus.recurrences import prime_factors
from derive.calculus.symbols import L, alpha, ell, mu, s, t
from derive.errors import NotApplicable
from derive.expansion.errors import ERROR, OUTPUT, ErrorLaw
from derive.expansion.expansion import PrintedBlock, printed
from derive.expansion.integrals import Group, groups, is_constant, iterated_integral, time_integrals
from derive.expansion.operator_words import (
    TANGENT,
    LetterTexts,
    LinearSeries,
    Memory,
    Transposes,
    Word,
    layer_products,
    letters,
)
from derive.expansion.order_recursions import OperatorTerm, laws
from derive.linear.operators import J, operator
from derive.show import PaperLatex, PaperText, latex, notation, text
from derive.show.latex import beside

INTEGRALS = 2
"""Highest order at which entries are printed as time integrals; higher orders fill pages."""

SHOWN = 4
"""Highest order whose words are printed if not all orders have words."""

ENTRIES = {"H": (mu, alpha), "G": (), "A": (mu,), "B": (alpha,), "K": (mu, alpha)}


def render(series: LinearSeries, format: str = "text") -> str:
    """Return a linear expansion as text or LaTeX: operator words, letters, integrals.

    An operator word is a product of kernels, its letters.

    Parameters
    ----------
    series : LinearSeries
        Linear expansion.
    format : {"text", "latex"}
        Format.

    Returns
    -------
    str
        The equations.

    Raises
    ------
    ValueError
        If the format is another one.
    """
    x = _EquationWriter(series, LATEX if format == "latex" else TEXT)
    depth = x.theory.program.depth
    head = (
        f"Expansion in γ₀ to order {series.order}: a deep linear network with {depth} hidden layers\n\n"
        "Operators: products sum over the time between, X∘Y multiplies entries, {X}_sym = X + Xᵀ.\n"
        "C[X] and D[X] are the memory of X in C^ℓ and D^ℓ with the error Δ^(0); Cₙ[X] and Dₙ[X] with Δ^(n)."
    )
    if series.order > series.written:
        head += "\nXₙ is the coefficient of γ₀ⁿ in X; f_μ(t) is the entry of f at (μ, t) and t."
    symmetric = [
        (r"\left\{\boldsymbol{X}\right\}_{\mathrm{sym}}", [r"\boldsymbol{X} + \boldsymbol{X}^{\top}"])
    ]
    blocks: dict[str, PrintedBlock] = {
        "Kernels": [*(symmetric if format == "latex" else []), *x.kernels()],
        "c = C[Kˣ] and d = D[11ᵀ]": x.letters(),
        "Operators": x.series(),
        "Entries": x.entries(),
        "Error": x.errors(),
        "Time integrals": x.integrals(),
    }
    if series.order > series.written:
        blocks |= {"Words that are not printed": x.counted(), "Order n in terms of lower orders": x.laws()}
    return printed(format, head, blocks)


class _EquationWriter:
    """Writer of a linear expansion's equations as pairs: left-hand side, texts of the orders or terms."""

    def __init__(self, series: LinearSeries, script: Script) -> None:
        self.x, self.script = series, script
        self.words = Words(script, (v.rhs for v in series.closure.base if v.rhs != 0))
        self.theory = series.closure.theory
        self.known = [x for x in series.sums if x != OUTPUT and (x != TANGENT or any(series.sums[x]))]
        self.orders = range(min(series.order, INTEGRALS) + 1)
        self.last = series.order if series.order == series.written else SHOWN
        names = {"K_x": "K^x"}
        for n in range(series.written + 1):
            names |= {
                f"Delta{n}": rf"\Delta^{{({n})}}",
                f"v_{n}": f"v^{{({n})}}",
                f"f{n}": f"f^{{({n})}}",
            }
        self.printer = script.printer(notation(self.theory, names))

    def show(self, e: Expr) -> str:
        """Return an expression as text or LaTeX in the notation of the papers."""
        return str(self.printer.doprint(e))

    def in_orders(self, parts: list[tuple[int, str]]) -> list[str]:
        """Return the text of each term of a series ``a + gamma0^2 [b] + ...``.

        ``parts`` are pairs (order, text of the coefficient). The result is ["0"] without any.
        """
        shown = [
            f"{self.script.power(self.script.gamma, n)}{self.script.gap}{self.script.bracket(x)}" if n else x
            for n, x in parts
        ]
        return shown or ["0"]

    def series(self) -> PrintedBlock:
        """Yield (name, texts) of each operator: its coefficients, order by order, as sums of operator words.

        In a series beyond order 8, the orders above 4 are printed as dots.
        """
        for name in self.known:
            write = self.words.products if name == TANGENT else self.words.total
            orders = [(n, write(e)) for n, e in enumerate(self.x.sums[name][: self.last + 1]) if e]
            if self.last < self.x.order:
                orders.append((self.x.order, "..."))
            yield self.script.operator(name), self.in_orders(orders)

    def counted(self) -> PrintedBlock:
        """Yield (operator, sentence) with the number of operator words at orders too long to print."""
        for name in self.known:
            counts = [(n, len(e)) for n, e in enumerate(self.x.sums[name]) if e and n > self.last]
            shown = ", ".join(f"{count} words at order {n}" for n, count in counts)
            if len(counts) > 1:
                (m, before), (n, last) = counts[-2:]
                shown += f", about {round(last / before)} times as many each {n - m} orders further"
            yield self.script.operator(name), [self.script.prose(shown)]

    def laws(self) -> PrintedBlock:
        """Yield (left-hand side, terms) of the recursion of each operator at a symbolic order n in gamma0.

        The tangent kernel, the values of operators just beyond the ends of the network, and the equation of
        the error follow.
        """
        known = laws(self.x.closure)
        for name, law in known.items():
            left = self.at_order(operator(name, L if name == OUTPUT else ell), iter("n"))
            yield left, [*map(self.term, law)]
        parts = []
        for limits, *pair in layer_products(self.x.closure):
            factors = [
                J if x is None else operator(str(x.func), *x.args[: str(x.func) in known]) for x in pair
            ]
            shown = self.term((S.One, 0, tuple(factors)), f" {self.script.times} ")
            if limits:
                first, last = map(self.script.plain, limits)
                shown = f"{self.script.summation(f'{{{self.script.plain(ell)}={first}..{last}}}')} {shown}"
            parts.append(shown)
        if parts:
            yield self.script.placed(TANGENT, "n", ""), parts
        for e in self.x.closure.base:
            start = "0" if e.rhs == 0 else self.words.of_letter(e.rhs)
            yield self.script.placed(str(e.lhs.args[0]), "", self.script.plain(e.lhs.args[1])), [start]
        yield self.show(Function(ERROR)(mu, t)), [self.show(ErrorLaw.of(self.theory).body)]

    def term(self, x: OperatorTerm, joint: str | None = None) -> str:
        """Return the text of one term in a recursion: a sum over the orders of its operators.

        ``x`` is (number, power of gamma0, operators); the orders add up to n minus this power. ``joint`` is
        the text between two operators, by default that of an operator product.
        """
        c, power, factors = x
        total = f"n-{power}" if power else "n"
        count = sum(len(y.atoms(Indexed)) + len(y.atoms(Memory)) for y in factors)
        names = "ijklm"[:count] if count > 1 else [total]
        left = iter(names)
        shown = (self.script.joint if joint is None else joint).join(self.at_order(y, left) for y in factors)
        if count > 1:
            shown = f"{self.script.summation('{' + '+'.join(names) + '=' + total + '}')} {shown}"
        return self.words.signed_sum([(c, shown)])

    def at_order(self, x: Expr, orders: Iterator[str]) -> str:
        """Return the text of an operator with a letter for its order, the next one of ``orders``.

        A memory takes two letters, for the orders of the error and of its correlation. Operators that do not
        depend on gamma0 have no order.
        """
        if isinstance(x, transpose):
            return self.script.flipped(self.at_order(x.args[0], orders))
        if not isinstance(x, Memory | Indexed):
            return self.words.of_letter(x)
        n = next(orders)
        if isinstance(x, Memory):
            body = self.at_order(x.body, orders)
            return self.script.placed(x.kernel, n, "") + self.script.bracket(body)
        return self.script.placed(str(x.args[0]), n, self.script.plain(x.args[1]))

    def kernels(self) -> PrintedBlock:
        """Yield (kernel, definition) of C and D: responses plus the error times correlations."""
        for k in self.x.closure.kernels:
            if k.causal and k.definition != 0:
                yield self.show(k.entry), [self.show(k.definition)]

    def letters(self) -> PrintedBlock:
        """Yield (c or d, time integral) for the short names c and d in the printed operator words.

        They are the memories of a data kernel, or of the kernel 1, with the error at order 0: terms of the
        kernels C and D.
        """
        for name in ("C", "D"):
            small = self.x.expr(name, 0).atoms(Memory) if name in self.x.sums else []
            for x in small:
                if x.order == 0 and len(letters(x.body)) == 1:
                    row, col = (mu, None) if name == "C" else (None, alpha)
                    e = time_integrals(self.x, x, row, col)
                    sample = mu if name == "C" else alpha
                    yield self.show(Function(name.lower())(sample, t, s)), [self.show(e)]

    def groups(self, terms: list[Group]) -> str:
        """Return the text of one entry of an operator, given as a sum of groups of time integrals.

        Equal coefficients of neighbouring groups, except 1 and -1, are written once, before brackets.
        """
        parts: list[tuple[Expr, str]] = []
        for c, same in groupby(terms, key=lambda x: x.coefficient):
            bodies = [self.body(x) for x in same]
            bare = len(bodies) == 1 or c in (1, -1)
            parts += [(c, x) for x in bodies] if bare else [(c, self.script.bracket(" + ".join(bodies)))]
        return self.words.signed_sum(parts)

    def body(self, x: Group) -> str:
        """Return the text of a group of time integrals: weight, sum over samples, factors.

        The coefficient of the group is left out.
        """
        samples = "".join(self.show(r.index) for r in x.samples)
        weight = self.show(x.weight)
        shown = self.script.bracket(weight) if x.weight.is_Add else self.script.weight(weight)
        parts = [] if x.weight == 1 else [shown]
        parts += [self.script.summation(samples)] if samples else []
        parts += map(self.show, x.outer)
        inner = [" ".join(map(self.show, factors)) for factors in x.inner]
        parts.append(self.script.bracket(" + ".join(inner)) if len(inner) > 1 else inner[0])
        return " ".join(filter(None, parts))

    def entries(self) -> PrintedBlock:
        """Yield (order parameter, orders): its entries as time integrals of the error, order by order.

        Orders above 2, and those that cannot be written so, are printed as dots. Orders that vanish are left
        out.
        """
        for name, samples in ENTRIES.items():
            if name not in self.known:
                continue
            written = [(n, self.written(name, n)) for n in self.orders]
            parts = [(n, "..." if x is None else self.groups(x)) for n, x in written if x != []]
            if self.x.order > INTEGRALS:
                parts.append((self.x.order, "..."))
            layer = () if name == "K" else (ell,)
            yield self.show(Function(name)(*layer, *samples, t, s)), self.in_orders(parts)

    def written(self, name: str, n: int) -> list[Group] | None:
        """Return an operator's entry of order n in gamma0 as time integrals of the error.

        Returns None if the entry cannot be written so; an example is a response with momentum.
        """
        try:
            return groups(self.x, name, n)
        except NotApplicable:
            return None

    def errors(self) -> PrintedBlock:
        """Yield (error, terms) for each order of the error up to 2, as an equation in time integrals.

        If the error is not an affine function of the output with a number as slope, its order is given by
        orders of the output, whose equation in time integrals follows. Orders above 0 at which the output
        vanishes are left out.
        """
        law = ErrorLaw.of(self.theory)
        for n in self.orders:
            terms = groups(self.x, OUTPUT, n)
            if n and not terms:
                continue
            error = self.show(Function(f"Delta{n}")(mu, t))
            if law.affine and law.slope(1).is_Number:
                rest = self.groups([replace(x, coefficient=law.slope(1) * x.coefficient) for x in terms])
                if n == 0:
                    sign, rest = ("-", rest[1:]) if rest.startswith("-") else ("+", rest)
                    rest = f"{self.show(law.order([S.Zero]))} {sign} {rest}"
                yield error, [rest]
                continue
            lower = [Function(f"f{k}")(mu, t) if groups(self.x, OUTPUT, k) else S.Zero for k in range(n + 1)]
            yield error, [self.show(law.order(lower))]
            yield self.show(lower[n]), [self.groups(terms)]

    def integrals(self) -> PrintedBlock:
        """Yield (v, definition) for each kind of iterated integral ``v`` of the error that is printed.

        A kind is a name with a number of samples and of times.
        """
        seen: dict[tuple[str, int, int], AppliedUndef] = {}
        for n in self.orders:
            for name in (*ENTRIES, OUTPUT):
                if name in (*self.known, OUTPUT):
                    for g in self.written(name, n) or []:
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
_INDICES = str.maketrans("ijklmn", "ᵢⱼₖₗₘₙ")


@dataclass(frozen=True, eq=False)
class Script:
    """Symbols and spellings of one output format, text or LaTeX.

    Functions take the text of an expression and add indices, powers, brackets or transposition.
    """

    printer: type[PaperLatex | PaperText]
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
    tight: str
    summation: Callable[[str], str]
    placed: Callable[[str, str, str], str]
    prose: Callable[[str], str]
    weight: Callable[[str], str]

    def bracket(self, body: str) -> str:
        """Return text in square brackets."""
        return f"{self.brackets[0]}{body}{self.brackets[1]}"


class Words:
    """Writer of coefficients and operator words as text or LaTeX, with a cache.

    A word is a product of letters, which are operators.
    """

    def __init__(self, script: Script, symmetric: Iterable[Expr] = ()) -> None:
        self.script, self.spelled, self.flipped = script, LetterTexts(), Transposes(symmetric)
        self.numbers: dict[Expr | PolyElement, tuple[bool, str]] = {}
        self.letters: dict[Expr, str] = {}
        self.symbols: dict[PolyRing, list[str]] = {}

    # -- coefficients ----------------------------------------------------------------------------------

    def coefficient(self, c: Expr | PolyElement) -> str:
        """Return the text of the absolute value of a coefficient in front of a word, empty for 1."""
        return self.signed(c)[1]

    def signed(self, c: Expr | PolyElement) -> tuple[bool, str]:
        """Return (is negative, text of the absolute value) of a coefficient before a word; empty for 1."""
        if c not in self.numbers:
            self.numbers[c] = self._signed(c)
        return self.numbers[c]

    def _signed(self, c: Expr | PolyElement) -> tuple[bool, str]:
        """Return (is negative, text of the absolute value) of a coefficient, factored; no cache is used."""
        number, prime_powers = prime_factors(c)
        assert isinstance(number, Rational)
        size = {p: _simplicity(p) for p, _ in prime_powers}
        alike = Counter(size.values())
        order = sorted(prime_powers, key=lambda x: (size[x[0]], str(x[0]) if alike[size[x[0]]] > 1 else ""))
        shown = [self.factor(p, k) for p, k in order]
        if abs(number.p) != 1 or not shown:
            shown.insert(0, str(abs(number.p)))
        body = beside(shown)
        if number.q != 1:
            return number.is_negative, self.script.fraction(body, number.q)
        return number.is_negative, "" if body == "1" else body

    def factor(self, p: PolyElement, k: int) -> str:
        """Return the text of ``p**k`` for a polynomial p.

        A sum stands in parentheses with positive terms first.
        """
        if p.ring not in self.symbols:
            self.symbols[p.ring] = [self.script.plain(x) for x in p.ring.symbols]
        names = self.symbols[p.ring]
        parts = sorted(p.terms(), key=lambda x: x[1] < 0)
        signs = ("-" if c < 0 else "+" for _, c in parts)
        body = "".join(sign + self.monomial(names, *x) for sign, x in zip(signs, parts, strict=True))
        shown = f"({body[1:]})" if len(parts) > 1 else body[1:]
        return shown if k == 1 else self.script.power(shown, k)

    def monomial(self, names: list[str], powers: tuple[int, ...], c: int) -> str:
        """Return the text of ``c * product of names**powers``, without the sign of c."""
        shown = [x if m == 1 else self.script.power(x, m) for x, m in zip(names, powers, strict=True) if m]
        number = [str(abs(c))] if abs(c) != 1 or not shown else []
        return self.script.tight.join([*number, *shown])

    # -- words -----------------------------------------------------------------------------------------

    def word(self, w: Word) -> str:
        """Return the text of an operator word, its letters (kernels) from left to right; 1 if it is empty."""
        return self.script.joint.join(map(self.of_letter, w)) or "1"

    def of_letter(self, x: Expr) -> str:
        """Return the text of a letter, one operator in a word, from the cache.

        The memory of a constant kernel (the kernel times the error) is written as the lower-case name c or d.
        """
        if x not in self.letters:
            self.letters[x] = self._of_letter(x)
        return self.letters[x]

    def _of_letter(self, x: Expr) -> str:
        """Return the text of a letter, one operator in a word, without the cache."""
        if isinstance(x, transpose):
            return self.script.flipped(self.of_letter(x.args[0]))
        if x == J:
            return self.script.one
        if isinstance(x, Memory):
            if isinstance(x.body, Memory) or len(letters(x.body)) > 1:
                return self.script.memory(x.kernel, x.order, self.word(tuple(letters(x.body))))
            return self.script.letter(x.kernel.lower(), x.order)
        return self.script.data(str(x))

    def signed_sum(self, parts: Iterable[tuple[Expr | PolyElement, str]]) -> str:
        """Return the text of the sum of ``coefficient * text`` over the pairs, with signs between terms."""
        out: list[str] = []
        for c, shown in parts:
            minus, number = self.signed(c)
            out.append(("-" if minus else "") if not out else (" - " if minus else " + "))
            out.append(self.script.gap.join(filter(None, (number, shown))) or "1")
        return "".join(out) or "0"

    def words(self, ws: Iterable[Word]) -> list[str]:
        """Return the texts of operator words that have the same coefficient, some of them joined.

        A word X and its transpose share the text ``{X}_sym``, which stands for ``X + X^T``. Words that are
        one memory of a product are joined into the memory of a sum if kernel and order of the error agree.
        """
        left, shown = dict.fromkeys(ws), []
        alike: dict[tuple[str, int], list[Word]] = {}
        for w in left:
            if len(w) == 1 and isinstance(w[0], Memory) and len(letters(w[0].body)) > 1:
                alike.setdefault((w[0].kernel, w[0].order), []).append(w)
        done: set[Word] = set()
        for w in left:
            if w in done:
                continue
            if len(w) == 1 and isinstance(w[0], Memory) and len(letters(w[0].body)) > 1:
                same = alike[w[0].kernel, w[0].order]
                done.update(same)
                bodies = self.words(tuple(letters(x.body)) for (x,) in same)
                shown.append(self.script.memory(w[0].kernel, w[0].order, " + ".join(bodies)))
                continue
            other = self.flipped.word(w)
            if other != w and other in left:
                done.add(other)
                w = min(w, other, key=lambda x: sum(isinstance(y, transpose) for y in x))
                shown.append(self.script.symmetrized(self.word(w)))
            else:
                shown.append(self.word(w))
        return shown

    def total(self, coefficients: Mapping[Word, PolyElement]) -> str:
        """Return the text of a sum of operator words.

        Words with the same coefficient are put in brackets, unless it is 1 or -1.
        """
        together: dict[PolyElement, list[Word]] = {}
        for w in sorted(coefficients, key=lambda w: (len(w), self.spelled.word(w))):
            together.setdefault(coefficients[w], []).append(w)
        shown: list[tuple[PolyElement, str]] = []
        for c, ws in together.items():
            parts = self.words(ws)
            if c in (1, -1) or len(parts) == 1:
                shown += [(c, x) for x in parts]
            else:
                shown.append((c, self.script.bracket(" + ".join(parts))))
        return self.signed_sum(shown)

    def products(self, coefficients: Mapping[tuple[Word, Word], PolyElement]) -> str:
        """Return the text of a sum of entrywise products of two operator words, as in the tangent kernel.

        ``coefficients`` maps pairs of words to polynomials. Products with the same coefficient and a common
        word are put in one bracket. The common word is the second one if it has no error, otherwise the first
        one.
        """
        together: dict[PolyElement, dict[tuple[str, Word], list[Word]]] = {}
        for (a, b), c in coefficients.items():
            side = ("right", b) if all(map(is_constant, b)) else ("left", a)
            varying = a if side[0] == "right" else b
            together.setdefault(c, {}).setdefault(side, []).append(varying)
        shown = []
        for c, sides in together.items():
            parts = []
            for (place, fixed), ws in sides.items():
                body = self.words(ws)
                many = self.script.bracket(" + ".join(body)) if len(body) > 1 else body[0]
                pair = (many, self.word(fixed)) if place == "right" else (self.word(fixed), many)
                parts.append(f" {self.script.times} ".join(pair))
            several = len(parts) > 1 and c not in (1, -1)
            shown.append((c, self.script.bracket(" + ".join(parts)) if several else " + ".join(parts)))
        return self.signed_sum(shown)


def _simplicity(p: PolyElement) -> tuple[bool, int, int, int]:
    """Return a sort key of a polynomial factor, smaller for simpler ones, which are printed first.

    Single terms come before sums, then low degree, few variables and small coefficients.
    """
    size = max(abs(int(c)) for c in p.coeffs())
    variables = sum(any(x) for x in zip(*p.monoms(), strict=True))
    return len(p) > 1, max(map(sum, p.monoms())), variables, size


def _raised(layer: str) -> str:
    """Return the text of a layer as upper index; empty if there is no layer."""
    return "" if not layer else f"^{layer}" if len(layer) == 1 else f"^{{{layer}}}"


def _tight(shown: str) -> str:
    """Return text without the spaces around plus and minus signs."""
    return shown.replace(" + ", "+").replace(" - ", "-")


TEXT = Script(
    printer=PaperText,
    plain=lambda e: text(e).replace(" ", ""),
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
    tight="",
    summation=lambda indices: f"Σ_{indices}",
    placed=lambda name, order, layer: (
        name + (order.translate(_INDICES) if "-" not in order else f"_{{{order}}}") + _raised(layer)
    ),
    prose=str,
    weight=lambda x: f"({x})" if "/" in x else x,
)

LATEX = Script(
    printer=PaperLatex,
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
    tight=" ",
    summation=lambda indices: rf"\sum_{{{indices}}}",
    placed=lambda name, order, layer: "".join(
        [rf"{{\boldsymbol{{{name}}}", f"_{{{order}}}" * bool(order), f"^{{{layer}}}" * bool(layer), "}"]
    ),
    prose=lambda x: rf"\text{{{x}}}",
    weight=lambda x: x,
)
