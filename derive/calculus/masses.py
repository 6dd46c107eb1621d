"""Point masses integrated out: a Gaussian on a hyperplane is a Gaussian."""

from __future__ import annotations

from sympy import (
    Add,
    DiracDelta,
    Dummy,
    Expr,
    ImmutableDenseMatrix,
    Mul,
    Poly,
    Pow,
    S,
    cancel,
    exp,
    pi,
    sign,
    sqrt,
)
from sympy.matrices import MatrixBase

from derive.calculus.jumps import Ambiguous

Part = tuple[Expr, Expr, tuple[Expr, ...], MatrixBase]
"""A number, and an average that it multiplies: body, variables and covariance."""


def conditioned(factors: list[Expr], variables: tuple[Expr, ...], C: MatrixBase) -> list[Part] | None:
    """``<prod factors>`` without the first of its point masses; None if that is not of a linear form.

    ``delta(l)`` is the density of ``l`` at zero, and conditions the rest on ``l = 0``.  A derivative of it is
    integrated by parts.  Raises :class:`~derive.calculus.jumps.Ambiguous` for a jump, or a second point
    mass, where the first one sits.

    >>> from sympy.abc import x, y
    >>> conditioned([DiracDelta(x), y**2], (x, y), ImmutableDenseMatrix([[1, 1], [1, 3]]))
    [(sqrt(2)/(2*sqrt(pi)), y**2, (y,), Matrix([[2]]))]
    """
    slots = tuple(Dummy(f"x{i}", real=True) for i in range(len(variables)))
    body = Mul(*factors).xreplace(dict(zip(variables, slots, strict=True)))
    back = dict(zip(slots, variables, strict=True))
    for x in Mul.make_args(body):
        if isinstance(x, Pow) and x.base.has(DiracDelta):
            raise Ambiguous(f"{x.xreplace(back)} has no meaning")
    mass = next((x for x in Mul.make_args(body) if isinstance(x, DiracDelta)), None)
    if mass is None or not mass.args[0].is_polynomial(*slots):
        return None
    line = Poly(mass.args[0], *slots)
    if line.total_degree() != 1:
        return None
    a, m = ImmutableDenseMatrix([line.coeff_monomial(x) for x in slots]), line.coeff_monomial(1)
    across = (C * a).applyfunc(cancel)
    v = cancel((a.T * across)[0])
    if v == 0:
        raise Ambiguous(f"{mass.xreplace(back)}, where the argument does not vary")
    rest, order = body / mass, int(mass.args[1]) if len(mass.args) > 1 else 0
    if order:
        changed = _by_parts(rest, DiracDelta(mass.args[0], order - 1), slots, a, across / v)
        return [(c / v if i == 0 else c, e.xreplace(back), variables, C) for i, (c, e) in enumerate(changed)]
    lead = next(i for i, p in enumerate(a) if p != 0)
    solved = -(m + sum(p * x for p, x in zip(a, slots, strict=True) if x != slots[lead])) / a[lead]
    kept = [i for i in range(len(slots)) if i != lead]
    left = (C - across * across.T / v).applyfunc(cancel).extract(kept, kept)
    moved = {slots[i]: slots[i] - across[i] * m / v for i in kept}
    moved |= {slots[i]: -across[i] * m / v for k, i in enumerate(kept) if left[k, k] == 0}
    value = _on_hyperplane(rest, {slots[lead]: solved}, moved, mass, back)
    density = exp(-(m**2) / (2 * v)) / sqrt(2 * pi * v)
    return [(density, value.xreplace(back), tuple(variables[i] for i in kept), left)]


def _by_parts(
    rest: Expr, mass: Expr, slots: tuple[Expr, ...], a: MatrixBase, share: MatrixBase
) -> list[tuple[Expr, Expr]]:
    """``<delta' F> = <l delta F> / v - sum_j <l x_j> <delta dF/dx_j> / v``; the first not yet divided."""
    parts = [(S.One, Add(*[p * x for p, x in zip(a, slots, strict=True)]) * mass * rest)]
    parts += [(-c, mass * rest.diff(x)) for x, c in zip(slots, share, strict=True) if c != 0]
    return parts


def _on_hyperplane(
    rest: Expr, solved: dict[Expr, Expr], moved: dict[Expr, Expr], mass: Expr, back: dict[Expr, Expr]
) -> Expr:
    """What else is multiplied, where the point mass sits.  A factor that vanishes there outweighs a jump."""

    def there(e: Expr) -> Expr:
        return e.subs(solved).subs(moved, simultaneous=True)

    factors = Mul.make_args(rest)
    smooth = there(Mul(*[x for x in factors if not x.has(sign, DiracDelta)]))
    if smooth == 0 or smooth.expand() == 0:
        return S.Zero
    for x in factors:
        for jump in x.atoms(sign, DiracDelta):
            if cancel(there(jump.args[0])) == 0:
                product = (jump * mass).xreplace(back)
                raise Ambiguous(f"{product} depends on how the jump is rounded")
    return smooth * there(Mul(*[x for x in factors if x.has(sign, DiracDelta)]))
