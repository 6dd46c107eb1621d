"""The nonlinear expansion as text and LaTeX: fields, what is static, order parameters, the error."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sympy import Add, Expr, Function, S

from derive.program.words import alpha, ell, mu, s, t
from derive.show import latex, text
from derive.show.text import wrap

if TYPE_CHECKING:
    from derive.expansion.nonlinear.expansion import NonlinearExpansion

COLUMNS = 110
LONGEST = 45
"""An entry with more terms than this is counted, not printed."""


def render(expansion: NonlinearExpansion, format: str = "text") -> str:
    """All series.  Raises ValueError for an unknown format."""
    if format not in ("text", "latex"):
        raise ValueError(f"format = {format!r}: must be 'text' or 'latex'")
    return _Writer(expansion, format).render()


class _Writer:
    def __init__(self, expansion: NonlinearExpansion, format: str) -> None:
        self.x, self.latex = expansion, format == "latex"
        self.orders = range(expansion.order + 1)
        self.names = {f"Delta{n}": rf"\Delta^{{({n})}}" for n in self.orders} | {"K_x": "K^x"}
        self.names |= {f"D{n}_now": rf"\bar{{D}}_{{{n}}}" for n in self.orders}
        for base, shown in (("beta", r"\beta"), ("t", "t")):
            self.names |= {base + "_" * k: shown + "'" * k for k in range(1, 9)}

    def show(self, e: Expr) -> str:
        """An expression in the papers' notation."""
        return (latex if self.latex else text)(e, self.x.theory, self.names)

    def fields(self) -> Iterator[tuple[str, Expr]]:
        """The fields as far as the kernels at this order need them."""
        for name in ("h", "z", "g"):
            for n in self.orders:
                yield self.label(name, n, (mu, t)), self.x.field(name, n)

    def label(self, name: str, n: int, rest: tuple[Expr, ...]) -> str:
        layer = () if name in ("K", "f", "Delta") else (ell,)
        whole = self.show(Function(name)(*layer, *rest))
        return rf"\left[{whole}\right]_{{{n}}}" if self.latex else f"[{whole}]_{n}"

    def static(self) -> Iterator[tuple[str, Expr]]:
        """The recursions over layers of what does not depend on time."""
        for e in self.x.recursions(0):
            if not str(e.lhs.func).startswith("f"):
                yield self.show(e.lhs), e.rhs

    def entries(self) -> Iterator[tuple[str, Expr]]:
        """The order parameters, the tangent kernel and the error."""
        for name in ("Phi", "G", "A", "B", "K", "Delta"):
            if name in ("A", "B") and not self.x.forests(name, 0):
                continue
            for n in self.orders:
                rest = (mu, t) if name == "Delta" else (mu, alpha, t, s)
                yield self.label(name, n, rest), self.x.coefficient(name, n)

    def body(self, e: Expr) -> list[str]:
        """A sum, one string for each term."""
        terms = Add.make_args(e)
        if len(terms) > LONGEST:
            return [rf"\text{{{len(terms)} terms}}" if self.latex else f"{len(terms)} terms"]
        shown = [self.show(x) for x in sorted(terms, key=lambda x: (len(str(x)), str(x)))]
        return shown or [self.show(S.Zero)]

    def render(self) -> str:
        blocks = (("Fields", self.fields()), ("Static", self.static()), ("Coefficients", self.entries()))
        if self.latex:
            rows = []
            for _, block in blocks:
                for left, e in block:
                    first, *rest = self.body(e)
                    rows.append(f"{left} &= {first}")
                    rows += [rf"&\quad {x if x.startswith('-') else '+ ' + x}" for x in rest]
            return "\\begin{align*}\n  " + " \\\\\n  ".join(rows) + "\n\\end{align*}"
        depth = self.x.theory.program.depth
        lines = [
            f"Expansion in γ₀ to order {self.x.order}: {self.x.theory.program.name}, {depth} hidden layers, "
            f"φ(x) = {self.x.activation.expr}",
            "",
            "[X]_n is the coefficient of γ₀ⁿ.  u and r are the sources at γ₀ = 0, which rest; averages are",
            "over them.  C₀, D₀ stand beside Δ^(0) and an update's weight in the kernels of h and z, D̄₀",
            "is what D has at equal times.  v_αβ..(t) are iterated integrals of Δ^(0), or sums.",
        ]
        for title, block in blocks:
            lines += ["", title]
            for left, e in block:
                first, *rest = self.body(e)
                lines.append(wrap(f"    {left} = {first}", COLUMNS, 10))
                lines += [wrap(f"        {x if x.startswith('-') else '+ ' + x}", COLUMNS, 12) for x in rest]
        return "\n".join(lines)


__all__ = ["render"]
