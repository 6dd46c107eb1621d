"""The expansion as text and LaTeX: operator words first, then what they are as time integrals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from sympy import Expr, Function, Symbol
from sympy.core.function import AppliedUndef

from derive.expansion.integrals import Group, groups, iterated_integral, time_integrals
from derive.expansion.linear import LinearExpansion
from derive.expansion.notation import LATEX, TEXT, Script
from derive.expansion.words import Memory, letters
from derive.program.words import alpha, mu, s, t
from derive.show import latex, text
from derive.show.text import wrap

COLUMNS = 110
INTEGRALS = 2
"""Up to this order entries are printed as time integrals; beyond, they fill pages."""

ENTRIES = {"H": (mu, alpha), "G": (), "A": (mu,), "B": (alpha,), "K": (mu, alpha)}


def render(expansion: LinearExpansion, format: str = "text") -> str:
    """All series, their letters and their time integrals.  Raises ValueError for an unknown format."""
    if format == "text":
        return _Text(expansion).render()
    if format == "latex":
        return _Latex(expansion).render()
    raise ValueError(f"format = {format!r}: must be 'text' or 'latex'")


class _Writer:
    """What both formats share; equations are pairs of strings."""

    script: Script

    def __init__(self, expansion: LinearExpansion) -> None:
        self.x = expansion
        self.symmetric = {v.rhs for v in expansion.closure.base if v.rhs != 0}
        self.theory = expansion.closure.theory
        orders = range(expansion.order + 1)
        self.names = {"K_x": "K^x", **{f"Delta{n}": rf"\Delta^{{({n})}}" for n in orders}}
        self.names |= {f"v_{n}": f"v^{{({n})}}" for n in orders}
        self.names |= {
            x + "_" * k: y + "'" * k for x, y in (("beta", r"\beta"), ("t", "t")) for k in range(1, 9)
        }

    # -- what each format supplies ---------------------------------------------------------------------

    def show(self, e: Expr) -> str:
        """An expression in the papers' notation."""
        raise NotImplementedError

    def power(self, n: int) -> str:
        """gamma0 to the n."""
        raise NotImplementedError

    def operator(self, name: str) -> str:
        """An operator at layer ell."""
        raise NotImplementedError

    # -- equations -------------------------------------------------------------------------------------

    def in_orders(self, parts: list[tuple[int, str]]) -> list[str]:
        """``a + gamma0^2 [b] + ...``, one string for each order."""
        return [f"{self.power(n)}{self.script.gap}{self.script.bracket(x)}" if n else x for n, x in parts]

    def series(self) -> Iterator[tuple[str, list[str]]]:
        """The operators as words."""
        for name, values in self.x.words.items():
            parts = [(n, self.script.sum_of_words(e, self.symmetric)) for n, e in enumerate(values) if e != 0]
            yield self.operator(name), self.in_orders(parts)
        tangent = [(n, p) for n, p in enumerate(self.x.tangent) if p]
        if tangent:
            shown = [(n, self.script.products(p, self.symmetric)) for n, p in tangent]
            yield self.operator("K"), self.in_orders(shown)

    def kernels(self) -> Iterator[tuple[str, list[str]]]:
        """What C and D remember."""
        for k in self.x.closure.kernels:
            if k.causal and k.definition != 0:
                yield self.show(k.entry), [self.show(k.definition)]

    def letters(self) -> Iterator[tuple[str, list[str]]]:
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

    def entries(self) -> Iterator[tuple[str, list[str]]]:
        """The order parameters as time integrals."""
        known = [*self.x.words, *(["K"] if any(self.x.tangent) else [])]
        for name, samples in ENTRIES.items():
            if name not in known:
                continue
            parts = []
            for n in self.orders():
                found = groups(self.x, name, n)
                if found:
                    parts.append((n, self.groups(found)))
            if self.x.order > INTEGRALS:
                parts.append((self.x.order, "..."))
            yield self.entry_of(name, samples), self.in_orders(parts)

    def entry_of(self, name: str, samples: tuple[Symbol, ...]) -> str:
        layer = () if name == "K" else (Symbol("ell", integer=True),)
        return self.show(Function(name)(*layer, *samples, t, s))

    def errors(self) -> Iterator[tuple[str, list[str]]]:
        """The equations of the error's coefficients."""
        for n in self.orders():
            found = groups(self.x, "f", n)
            if n and not found:
                continue
            rest = self.groups([replace(x, coefficient=-x.coefficient) for x in found])
            if n == 0:
                sign, rest = ("-", rest[1:]) if rest.startswith("-") else ("+", rest)
                rest = f"{self.show(Function('y')(mu))} {sign} {rest}"
            yield self.show(Function(f"Delta{n}")(mu, t)), [rest]

    def integrals(self) -> Iterator[tuple[str, list[str]]]:
        """What the integrals ``v`` stand for, as far as they occur: one example of each kind."""
        seen: dict[tuple[str, int, int], AppliedUndef] = {}
        for n in self.orders():
            for name in (*ENTRIES, "f"):
                if name in self.x.words or name == "f" or (name == "K" and any(self.x.tangent)):
                    for g in groups(self.x, name, n):
                        for v in g.expr.atoms(AppliedUndef):
                            if str(v.func).split("_")[0] == "v":
                                count = sum(bool(x.is_integer) for x in v.args)
                                seen.setdefault((str(v.func), count, len(v.args) - count), v)
        for (name, count, times), _ in sorted(seen.items(), key=lambda x: (x[0][2], x[0][1], x[0][0])):
            samples = [Symbol("beta" + "_" * k, **mu.assumptions0) for k in range(count)]
            v = Function(name)(*samples, *(t, s)[:times])
            yield self.show(v), [self.show(iterated_integral(self.x, v))]

    def orders(self) -> range:
        return range(min(self.x.order, INTEGRALS) + 1)


class _Text(_Writer):
    script = TEXT

    def show(self, e: Expr) -> str:
        return text(e, self.theory, self.names)

    def power(self, n: int) -> str:
        return TEXT.power("γ₀", n)

    def operator(self, name: str) -> str:
        return name if name == "K" else f"{name}^ℓ"

    def render(self) -> str:
        depth = self.x.closure.theory.program.depth
        lines = [
            f"Expansion in γ₀ to order {self.x.order}: a deep linear network with {depth} hidden layers",
            "",
            "Operators: products run over the time between, X∘Y multiplies entries, {X}_sym = X + Xᵀ.",
            "C[X] and D[X] remember X with the error Δ^(0), as C^ℓ and D^ℓ do; Cₙ[X] and Dₙ[X] with Δ^(n):",
        ]
        lines += self.block(self.kernels())
        lines.append("c = C[Kˣ] and d = D[11ᵀ]:")
        lines += self.block(self.letters())
        lines += ["", *self.block(self.series()), "", "Entries"]
        lines += self.block(self.entries())
        lines += [
            "",
            "Error",
            *self.block(self.errors()),
            "",
            "Time integrals",
            *self.block(self.integrals()),
        ]
        return "\n".join(lines)

    def block(self, equations: Iterator[tuple[str, list[str]]]) -> list[str]:
        lines = []
        for left, orders in equations:
            first, *others = orders or ["0"]
            lines.append(wrap(f"    {left} = {first}", COLUMNS, 10))
            lines += [wrap(f"        + {x}", COLUMNS, 12) for x in others]
        return lines


class _Latex(_Writer):
    script = LATEX

    def show(self, e: Expr) -> str:
        return latex(e, self.theory, self.names)

    def power(self, n: int) -> str:
        return rf"\gamma_0^{{{n}}}"

    def operator(self, name: str) -> str:
        return r"\boldsymbol{K}^{\mathrm{NTK}}" if name == "K" else rf"\boldsymbol{{{name}}}^{{\ell}}"

    def render(self) -> str:
        blocks = (
            self.kernels(),
            self.letters(),
            self.series(),
            self.entries(),
            self.errors(),
            self.integrals(),
        )
        rows = [r"\left\{\boldsymbol{X}\right\}_{\mathrm{sym}} &= \boldsymbol{X} + \boldsymbol{X}^{\top}"]
        rows += [
            " + ".join([f"{left} &= {(orders or ['0'])[0]}", *orders[1:]])
            for block in blocks
            for left, orders in block
        ]
        return "\\begin{align*}\n  " + " \\\\\n  ".join(rows) + "\n\\end{align*}"


__all__ = ["render"]
