"""Units at the kink of one sample, in closed form: integrals over their place and their r.

While ``v(t) = int Delta0`` rises, a unit moves in one direction.  If that is towards the kink it arrives at a
``v`` that is proportional to its place, and goes on with the slope of the other side.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sympy import (
    Expr,
    Function,
    Integral,
    S,
    Sum,
    Symbol,
    exp,
    integrate,
    oo,
    pi,
    sign,
    simplify,
    solve,
    sqrt,
)
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.expansion.nonlinear.laws import OUTPUT
from derive.program.words import s, t

if TYPE_CHECKING:
    from derive.expansion.nonlinear.kinks import KinkExpansion

kappa = Symbol("kappa", integer=True, positive=True)

v, dv = Symbol("v", positive=True), Symbol("dv", positive=True)
away = Symbol("x", positive=True)
"""The distance from the kink at the start."""
size = Symbol("rho", positive=True)
"""The size of r."""


def closed_form(series: KinkExpansion, name: str) -> Expr:
    """What units at the kink add to ``G`` or ``f`` of one sample while ``v`` rises.

    ``v`` is at the earlier time and ``v + dv`` at the later one; for f, ``v`` is at t.  Raises KeyError for
    another name, :class:`NotApplicable` where both sides push units onto the kink, which then slide along it.

    >>> from derive.expansion.nonlinear.kinks import expand_kinks
    >>> from derive.theory import mean_field
    >>> from derive.program import mlp
    >>> series = expand_kinks(mean_field(mlp(1, "relu", "flow")))
    >>> closed_form(series, "G"), closed_form(series, "f")
    (sqrt(K_x)*(-dv - v)/pi, -K_x**(3/2)*v**2/(2*pi))
    """
    if name not in ("G", OUTPUT):
        raise KeyError(f"no closed form of {name!r}: there are G and {OUTPUT}")
    single = name == OUTPUT
    jump = series.jumps[name]
    body = jump.cases[(True,) if single else (True, True)]
    kernel = Symbol("K_x", positive=True)
    force = _force(series, kernel)
    total: Expr = S.Zero
    for side in (1, -1):
        for way in (1, -1):
            total += _half(series, body, side, way * size, force)
    density = series.density.replace(_is_kernel, lambda _: kernel)
    weight = exp(-(size**2) / 2) / sqrt(2 * pi)
    return simplify(density * integrate((total * weight).expand(), (size, 0, oo)))


def _is_kernel(e: Expr) -> bool:
    return isinstance(e, AppliedUndef) and str(e.func) == "K_x"


def _force(series: KinkExpansion, kernel: Expr) -> Expr:
    """What stands beside ``r sigma v`` in the equation of X with one sample; ``v`` integrates the error."""
    remembered = series.moved(kappa, False).function.replace(_is_kernel, lambda _: kernel)
    (inner,) = remembered.atoms(Integral, Sum)
    weight = series.bulk.site.weight
    return remembered / inner / (weight if isinstance(inner, Sum) else 1)


def _half(series: KinkExpansion, body: Expr, side: int, r: Expr, push: Expr) -> Expr:
    """The integral over the units on one side that have this r."""
    near, far = (series.above, series.below)[::side]
    force = push * r
    start = side * away
    inward = sign(force * near) == -side
    meets = solve(start + force * near * v, v)[0] if inward else None
    if meets is not None and sign(force * far) == side:
        raise NotApplicable(
            f"with slopes {series.above} and {series.below} units are pushed onto the kink from both sides"
        )

    def unit(crossed: bool, moved: Expr) -> tuple[Expr, Expr]:
        if crossed:
            return far, force * far * (moved - meets)
        return near, start + force * near * moved

    total: Expr = S.Zero
    if meets is None:
        segments = [((False, False), (S.Zero, oo))]
    else:
        first, last = (solve(meets - q, away)[0] for q in (v, v + dv))
        segments = [
            ((True, True), (S.Zero, first)),
            ((False, True), (first, last)),
            ((False, False), (last, oo)),
        ]
    for (early, late), (low, high) in segments:
        change = _in_place(body, unit(early, v), unit(late, v + dv), unit(False, v), r).expand()
        if change != 0:
            total += integrate(change, (away, low, high))
    return total


def _in_place(
    body: Expr, early: tuple[Expr, Expr], late: tuple[Expr, Expr], start: tuple[Expr, Expr], r: Expr
) -> Expr:
    """The jump with the unit's slope and place at both times put in."""
    sigma, X, Xbar, source = (Function(n) for n in ("sigma", "X", "Xbar", "r"))
    sample = next(q.args[0] for q in body.atoms(AppliedUndef) if str(q.func) == "sigma")
    return body.subs(
        {
            sigma(sample, t): early[0],
            sigma(sample, s): late[0],
            sigma(sample): start[0],
            X(t): early[1],
            Xbar(t): start[1],
            source(sample): r,
        },
        simultaneous=True,
    )


__all__ = ["closed_form"]
