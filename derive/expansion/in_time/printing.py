"""Error and loss as formulas in time, with letters for what they are made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sympy import Dummy, Expr, Function, Mul, Symbol, exp

from derive.program.words import gamma0, t
from derive.show import latex, text
from derive.show.text import wrap

if TYPE_CHECKING:
    from derive.expansion.in_time.series import InTime

COLUMNS = 110
tau = Symbol("tau", nonnegative=True)


def render(x: InTime, format: str = "text") -> str:
    """Modes, letters, error and loss.  Raises ValueError for an unknown format."""
    if format not in ("text", "latex"):
        raise ValueError(f"format = {format!r}: must be 'text' or 'latex'")
    return _text(x) if format == "text" else _latex(x)


Line = tuple[Expr, list[tuple[int, Expr]]]
"""A left-hand side, and the coefficients of powers of gamma0 that do not vanish."""


class _Letters:
    """What formulas are written in: the time in units of the rates, one letter for each exponential."""

    def __init__(self, x: InTime) -> None:
        self.x = x
        functions, scales = x.expressions.functions, x.expressions.scales
        self.time = t if scales.clock == 1 else tau
        several = len(functions.eigenvalues) > 1
        self.waves = [Symbol(f"e_{k}" if several else "e") for k in range(1, len(functions.eigenvalues) + 1)]
        self.renamed: dict[Any, Any] = dict(
            zip(functions.ring.symbols, (self.time, *self.waves), strict=False)
        )
        # letters of the field that stay letters: those of decays per step
        self.fixed: dict[Any, Expr] = {}
        for a, meaning in scales.names.items():
            if isinstance(a, Dummy):
                name = a.name if len(a.name) == 1 else f"{a.name[0]}_{a.name[1:]}"
                self.renamed[a] = Symbol(name)
                self.fixed[self.renamed[a]] = meaning
        kept = {} if self.fixed else scales.names
        self.expressions = replace(x.expressions, scales=replace(scales, names=kept))

    def definitions(self) -> Iterator[tuple[Expr, Expr]]:
        """Each letter and what it stands for."""
        expressions = self.expressions
        if self.time == tau:
            yield tau, Mul(expressions.scales.clock, t)
        yield from self.fixed.items()
        for k, e in enumerate(self.waves):
            powers = tuple(int(j == k) for j in range(len(self.waves)))
            number, factors = expressions.factored(
                expressions.functions.ring(expressions.functions.eigenvalue(powers))
            )
            value = Mul(number, *factors).xreplace(self.renamed)
            yield e, value**self.time if self.x.discrete else exp(value * self.time)

    def compact(self, f: Any, front: Expr) -> Expr:
        """A function as one product."""
        expressions = self.expressions
        number, factors = expressions.factored(f, time=True)
        shown = [y.xreplace(self.renamed).xreplace(dict(expressions.known)) for y in factors]
        return Mul(number, front, *shown)

    def lines(self) -> Iterator[Line]:
        """The error along each mode that has a target, and the loss."""
        x, expressions = self.x, self.expressions
        orders = range(x.order + 1)
        several = sum(m.target != 0 for m in x.modes) > 1
        for k, m in enumerate(x.modes):
            if m.target == 0:
                continue
            found = [(n, x.values.errors[n]) for n in orders]
            label = Function(f"Delta_{k + 1}" if several else "Delta")(t)
            yield (
                label,
                [
                    (n, self.compact(v.entries[k], expressions.factor_of(v.unit, v.damping)))
                    for n, v in found
                    if k in v.entries
                ],
            )
        losses = [(n, x.squared(n)) for n in orders]
        yield (
            Function("loss")(t),
            [
                (n, self.compact(f, expressions.factor_of(unit, damping) / x.samples))
                for n, (f, unit, damping) in losses
                if f
            ],
        )


def _text(x: InTime) -> str:
    letters, theory = _Letters(x), x.values.closure.theory
    lines = [f"In time, to order {x.order} in γ₀: a linear network of depth {x.depth}", ""]
    for k, m in enumerate(x.modes):
        target, count = text(m.target, theory), text(m.multiplicity, theory)
        kind = f"no target, {count} directions" if m.target == 0 else f"target {target}"
        lines.append(f"    mode {k}: eigenvalue {text(m.eigenvalue, theory)}, {kind}")
    lines.append("")
    lines += [f"    {text(a, theory)} = {text(b, theory)}" for a, b in letters.definitions()]
    for left, found in letters.lines():
        lines.append("")
        for j, (n, e) in enumerate(found):
            power = text(gamma0**n, theory) + " " if n else ""
            head = f"    {text(left, theory)} = " if j == 0 else "        + "
            lines.append(
                wrap(f"{head}{power}{'[' if n else ''}{text(e, theory)}{']' if n else ''}", COLUMNS, 12)
            )
    return "\n".join(lines)


def _latex(x: InTime) -> str:
    letters, theory = _Letters(x), x.values.closure.theory
    rows = [f"{latex(a, theory)} &= {latex(b, theory)}" for a, b in letters.definitions()]
    for left, found in letters.lines():
        name = str(left.func)
        shown = r"\left\langle \Delta^2 \right\rangle(t)" if name == "loss" else latex(left, theory)
        for j, (n, e) in enumerate(found):
            head = f"{shown} &= " if j == 0 else "&\\quad + "
            body = latex(e, theory)
            rows.append(head + (rf"\gamma_0^{{{n}}} \left[{body}\right]" if n else body))
    return "\\begin{align*}\n  " + " \\\\\n  ".join(rows) + "\n\\end{align*}"


__all__ = ["render"]
