r"""Small steps: the theory of gradient descent in powers of its rate, around that of the flow.

Descent sums over past steps where the flow integrates, and by Euler and Maclaurin

    eta sum_{s<t} F(s) = int_0^t F ds + sum_n b_n eta^n [F^(n-1)(t) - F^(n-1)(0)],

with b_n the Taylor coefficients of z/(e^z - 1): shifting by a step is exp(eta d/dt), and the sum over steps
its geometric series.  So to each order a past update counts with other weights.  Everything in a linear
theory that depends on time is made of such sums, one inside the other, of functions that are smooth; hence
the theory of descent is that of the flow with weights that are a power series in the rate.

A map ``x -> x + eta m_1(x) + eta^2 m_2(x) + ...`` (a step of descent: ``m_1`` the flow, and nothing else) is
the time-eta map of a differential equation, the modified one, ``dx/dt = F_0 + eta F_1 + eta^2 F_2 + ...``.
With L the derivative along the right-hand side the latter is exp(eta L); comparing powers of eta gives one F
after the other (backward error analysis).  The series is asymptotic: for maps that are not linear it
converges for no eta.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sympy import (
    Add,
    Derivative,
    Dummy,
    Eq,
    Expr,
    Function,
    Integral,
    KroneckerDelta,
    Rational,
    S,
    Sum,
    Symbol,
    factorial,
    latex,
    simplify,
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.series import PowerSeries
from derive.calculus.symbols import eta, s, t
from derive.errors import NotApplicable
from derive.expansion.expansion import Expansion
from derive.expansion.orders import TheorySeries, named
from derive.theory import Equation, Term, Theory

WEIGHT = "w"
"""The weights with which past updates count."""


def boundary_coefficients(order: int) -> tuple[Expr, ...]:
    """b_1 ... b_order: what the derivatives at both ends of a sum over steps count.

    >>> boundary_coefficients(4)
    (-1/2, 1/12, 0, -1/720)
    """
    z = Dummy("z")
    steps = PowerSeries(tuple(Rational(1, factorial(n + 1)) for n in range(order + 1)), z)  # of (e^z - 1)/z
    return (steps**-1).coefficients[1:]


def weights(order: int) -> tuple[Eq, ...]:
    """What a sum with the weights of each order means, for a smooth function F.

    >>> for e in weights(2): print(e.rhs)
    Integral(F(s), (s, 0, t))
    F(0)/2 - F(t)/2
    Derivative(F(t), t)/12 - Subs(Derivative(F(s), s), s, 0)/12
    """
    F = Function("F")
    found = [Eq(_weighed(0, F), Integral(F(s), (s, 0, t)), evaluate=False)]
    for n, b in enumerate(boundary_coefficients(order), 1):
        slope = Derivative(F(s), s, n - 1) if n > 1 else F(s)
        found.append(Eq(_weighed(n, F), b * (slope.subs(s, t) - slope.subs(s, 0)), evaluate=False))
    return tuple(found)


def _weighed(n: int, F: Function) -> Expr:
    return Sum(Function(named(WEIGHT, n))(t, s) * F(s), (s, 0, t))


def expand_step_size(theory: Theory, order: int, rate: Symbol = eta) -> TheorySeries:
    """The theory of descent, linear and without fresh noise, in powers of the rate, up to ``order``.

    The order zero is the theory of the flow (its rule ``multistep``: weights ``w`` stand for the integral);
    t is rate times steps.  Raises :class:`NotApplicable` where updates decay or gain momentum within few
    steps, so that the rate enters in another way than as the weight of past updates, and where noise is
    drawn at each step; and ValueError for a negative order.

    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> gd = expand_step_size(mean_field(mlp(1)), 1)
    >>> print(gd.equations(1)[1].rhs)
    Sum(gamma0*Delta(alpha, s)*h(1, alpha, s)*w__1(t, s), (alpha, 1, P), (s, 0, t)) + ...
    """
    if order < 0:
        raise ValueError(f"order = {order}: must not be negative; 0 is the flow")
    for u in theory.sources:
        if any({t, s} <= set(d.args) for d in u.covariance.atoms(KroneckerDelta)):
            raise NotApplicable(f"{u.symbol} is drawn anew at each step: such noise has no flow without it")
        if u.covariance.has(rate) or _counts_steps(u.covariance):
            raise NotApplicable(f"the covariance of {u.symbol} depends on {rate}: {u.covariance}")

    def equation(e: Equation) -> Equation:
        return replace(e, terms=tuple(_weighted(x, rate) for x in e.terms))

    scaled = Theory(
        program=theory.program,
        sources=theory.sources,
        equations=tuple(map(equation, theory.equations)),
        order_parameters=theory.order_parameters,
        scalars=tuple(map(equation, theory.scalars)),
        reduction=theory.reduction,
    )
    return TheorySeries(theory, scaled, rate, Dummy("eta", positive=True), order, frozenset({WEIGHT}))


def _counts_steps(e: Expr) -> bool:
    """Does it depend on the number of steps, other than by functions of the times?"""
    return bool(e.replace(lambda a: isinstance(a, AppliedUndef), lambda _: S.One).has(t, s))


def _weighted(x: Term, rate: Symbol) -> Term:
    """A sum over past steps with the rate as weight: with the weights of the flow in its place."""
    body = x.coefficient * x.kernel
    kept = body / rate
    if not body.has(rate) and not x.field.has(rate):
        return x
    if x.reach != "strict" or x.field.has(rate) or kept.has(rate) or _counts_steps(kept):
        raise NotApplicable(f"{x.expr} is no sum over past updates that count with the weight {rate}")
    return replace(x, coefficient=S.One, kernel=kept * Function(WEIGHT)(t, s))


# -- the modified equation -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModifiedEquation(Expansion):
    """``dx/dt = rates[x]`` as power series in the step ``small``; the step itself is ``map``."""

    map: Mapping[Expr, Expr]
    rates: Mapping[Expr, PowerSeries]
    small: Symbol
    order: int

    @property
    def variable(self) -> Symbol:
        """The step."""
        return self.small

    @property
    def names(self) -> tuple[str, ...]:
        """The unknowns."""
        return tuple(self._named)

    def coefficient(self, name: str, n: int) -> Expr:
        """How fast an unknown changes at order n: 0 is the flow.

        Raises KeyError for what is none of the unknowns, IndexError beyond the order.
        """
        if name not in self._named:
            raise self.unknown(name)
        return self._named[name].coefficient(n)

    @property
    def _named(self) -> dict[str, PowerSeries]:
        return {str(x.func if isinstance(x, AppliedUndef) else x): rate for x, rate in self.rates.items()}

    def conditions(self) -> tuple[str, ...]:
        """What was assumed."""
        return ("the map is a polynomial in the step; its series is asymptotic, unless the map is linear",)

    def truncate(self, n: int) -> ModifiedEquation:
        """The equation up to order n only.  Raises IndexError beyond the order."""
        cut = {x: rate.truncate(n) for x, rate in self.rates.items()}
        return replace(self, rates=cut, order=n)

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
    >>> modified_equation({x: x + eta * f(x)}, 1).coefficient("x", 1)
    -f(x)*Derivative(f(x), x)/2
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
        dict(step), {x: PowerSeries(tuple(f[x] for f in fields), variable) for x in names}, variable, order
    )


def _along(field: Mapping[Expr, Expr], e: Expr) -> Expr:
    """The derivative of ``e`` along a vector field."""
    return Add(*[e.diff(x) * v for x, v in field.items()])


def _powers(e: Expr, variable: Symbol, order: int) -> tuple[Expr, ...]:
    """The coefficients of a polynomial in the step, powers from 0 to ``order``."""
    e = e.expand()
    found = tuple(e.coeff(variable, n) for n in range(order + 1))
    beyond = (e - Add(*[c * variable**n for n, c in enumerate(found)])).expand()
    if any(c.has(variable) for c in found) or (beyond != 0 and not e.is_polynomial(variable)):
        raise ValueError(f"{e} is no polynomial in the step {variable}")
    return found


__all__ = ["ModifiedEquation", "boundary_coefficients", "expand_step_size", "modified_equation", "weights"]
