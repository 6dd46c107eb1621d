"""The modified equation: the differential equation whose solution passes through the iterates of a map.

A map ``x -> x + eta m_1(x) + eta^2 m_2(x) + ...`` (a step of descent: ``m_1`` the flow, and nothing else)
is the time-eta map of ``dx/dt = F_0 + eta F_1 + eta^2 F_2 + ...``.  With L the derivative along the
right-hand side the latter is exp(eta L); comparing powers of eta gives one F after the other (backward
error analysis).  The series is asymptotic: for maps that are not linear it converges for no eta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sympy import Add, Derivative, Eq, Expr, Rational, Symbol, factorial, latex, simplify, sympify

from derive.calculus.series import PowerSeries
from derive.program.words import eta, t

Coefficients = tuple[Expr, ...]


@dataclass(frozen=True)
class ModifiedEquation:
    """``dx/dt = rates[x]`` as power series in the step ``variable``; the step itself is ``map``."""

    map: Mapping[Expr, Expr]
    rates: Mapping[Expr, PowerSeries]
    variable: Symbol

    @property
    def order(self) -> int:
        """The highest power of the step that is known."""
        return min(x.order for x in self.rates.values())

    def coefficient(self, n: int) -> dict[Expr, Expr]:
        """The vector field of order n: 0 is the flow.  Raises IndexError beyond the order."""
        return {x: rate.coefficient(n) for x, rate in self.rates.items()}

    def truncate(self, n: int) -> ModifiedEquation:
        """The equation up to order n only.  Raises IndexError beyond the order."""
        cut = {x: rate.truncate(n) for x, rate in self.rates.items()}
        return ModifiedEquation(self.map, cut, self.variable)

    def drift(self, quantity: Expr) -> PowerSeries:
        """How fast a function of the unknowns changes.  What the flow conserves starts at order 1 or later.

        >>> from sympy import symbols
        >>> q, p = symbols("q p")
        >>> circle = modified_equation({q: q + eta * p, p: p - eta * q}, 3)
        >>> circle.drift(q**2 + p**2).coefficients
        (0, p**2 + q**2, 0, -p**2/2 - q**2/2)
        """
        slopes = {x: quantity.diff(x) for x in self.rates}
        orders = range(self.order + 1)
        total = [Add(*[slopes[x] * r.coefficient(n) for x, r in self.rates.items()]) for n in orders]
        return PowerSeries(tuple(x.expand() for x in total), self.variable)

    @property
    def odes(self) -> tuple[Eq, ...]:
        """The truncated equations."""
        return tuple(
            Eq(Derivative(x, t) if x.has(t) else Symbol(f"d{x}/dt"), r.expr, evaluate=False)
            for x, r in self.rates.items()
        )

    def render(self, format: str = "text") -> str:
        """One equation a line, as ``text`` or ``latex``.  Raises ValueError for another format."""
        if format not in ("text", "latex"):
            raise ValueError(f"format = {format!r}: must be one of text, latex")
        if format == "text":
            return "\n".join(f"d{x}/dt = {r}" for x, r in self.rates.items())
        right = {x: r._repr_latex_().removeprefix("$\\displaystyle ")[:-1] for x, r in self.rates.items()}
        rows = [rf"\frac{{d}}{{dt}} {latex(x)} &= {y}" for x, y in right.items()]
        return "\\begin{align*}\n  " + " \\\\\n  ".join(rows) + "\n\\end{align*}"

    def __str__(self) -> str:
        return self.render()


def modified_equation(step: Mapping[Expr, Expr], order: int, variable: Symbol = eta) -> ModifiedEquation:
    """The modified equation of the map ``x -> step[x]``, up to ``order`` in ``variable``.

    Raises ValueError for a negative order, a map that moves at step zero, and one that is no polynomial in
    the step.

    >>> from sympy import Function, Symbol
    >>> x, f = Symbol("x"), Function("f")
    >>> modified_equation({x: x + eta * f(x)}, 1).coefficient(1)
    {x: -f(x)*Derivative(f(x), x)/2}
    >>> modified_equation({x: x - eta * x}, 3).rates[x].coefficients  # log(1 - eta)/eta
    (-x, -x/2, -x/3, -x/4)
    """
    if order < 0:
        raise ValueError(f"order = {order}: must not be negative; 0 is the flow")
    names = list(step)
    moved = {x: _powers(sympify(step[x], strict=True) - x, variable, order + 1) for x in names}
    for x, c in moved.items():
        if simplify(c[0]) != 0:
            raise ValueError(f"{x} -> {step[x]}: must not move when {variable} = 0; it moves by {c[0]}")
    fields: list[dict[Expr, Expr]] = []
    known: dict[tuple[int, int], dict[Expr, Expr]] = {}

    def repeated(j: int, m: int) -> dict[Expr, Expr]:
        """The part of order m of ``(F . d/dx)^j x``; it contains fields up to order m."""
        if j == 1:
            return fields[m]
        if (j, m) not in known:
            known[j, m] = {
                x: Add(*[_along(fields[k], repeated(j - 1, m - k)[x]) for k in range(m + 1)]).expand()
                for x in names
            }
        return known[j, m]

    for n in range(order + 1):
        carried = [(Rational(1, factorial(j)), repeated(j, n + 1 - j)) for j in range(2, n + 2)]
        fields.append({x: (moved[x][n + 1] - Add(*[c * d[x] for c, d in carried])).expand() for x in names})
    return ModifiedEquation(
        dict(step), {x: PowerSeries(tuple(f[x] for f in fields), variable) for x in names}, variable
    )


def _along(field: Mapping[Expr, Expr], e: Expr) -> Expr:
    """The derivative of ``e`` along a vector field."""
    return Add(*[e.diff(x) * v for x, v in field.items()])


def _powers(e: Expr, variable: Symbol, order: int) -> Coefficients:
    """The coefficients of a polynomial in the step, powers from 0 to ``order``."""
    e = e.expand()
    found = tuple(e.coeff(variable, n) for n in range(order + 1))
    beyond = (e - Add(*[c * variable**n for n, c in enumerate(found)])).expand()
    if any(c.has(variable) for c in found) or (beyond != 0 and not e.is_polynomial(variable)):
        raise ValueError(f"{e} is no polynomial in the step {variable}")
    return found


__all__ = ["ModifiedEquation", "modified_equation"]
