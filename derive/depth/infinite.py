"""The first correction to infinite depth, as equations in layer time.

A residual network of L layers differs from its limit by ``L**order`` times functions of layer time, which
obey linear equations.  Two things make them: sums over layers are not integrals, layers are not at one
place (1/L), and terms vanish in the limit (more than 1/L where branches are smaller than 1/sqrt(L)).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

from sympy import Add, Eq, Expr, Function, Heaviside, Integral, Mul, S, Sum, sympify
from sympy.core.function import AppliedUndef

from derive.depth.layer_time import (
    LayerTime,
    Scaling,
    between,
    direction,
    layer_time,
    layers_of,
    neighbour,
)
from derive.depth.powers import tau, tau_
from derive.depth.rescale import relabelled
from derive.depth.shifts import (
    FIRST,
    HALF,
    SLOPE,
    Cuts,
    Parts,
    Reader,
    crossings,
    delta,
    on_side,
    power,
)
from derive.errors import NotApplicable
from derive.linear.system import CrossLayer
from derive.program.words import L, ell
from derive.theory.theory import Equation

STEPS = S.NegativeOne
"""The power of L with which layers are steps and not an integral."""


@dataclass(frozen=True)
class FirstCorrection:
    """Equations of the limit and of what L**order multiplies.

    ``system`` holds both, and the derivatives by layer time that they need: ``first_X`` is the coefficient of
    ``L**order`` in X, ``slope_X`` the derivative by tau of X in the limit, ``X_above`` and ``X_below`` are
    the values of X at ``tau_ = tau`` from either side, ``ddloss`` is the derivative of a given function
    ``dloss(t, f)`` by f.
    """

    limit: LayerTime
    order: Expr
    system: LayerTime

    @cached_property
    def equations(self) -> Mapping[str, Eq]:
        """Every equation of ``system`` by the name on its left."""
        whole = (*self.system.integrals, *self.system.correlations, *self.system.scalars)
        return {str(e.lhs.func): e for e in whole}

    def first(self, name: str) -> Eq:
        """The equation of the correction to ``name``.  Raises KeyError if there is none."""
        found = self.equations
        if FIRST + name not in found:
            have = sorted(n.removeprefix(FIRST) for n in found if n.startswith(FIRST))
            raise KeyError(f"no correction to {name}; there are those to {', '.join(have)}")
        return found[FIRST + name]


def first_correction(cross: CrossLayer, scaling: Scaling | None = None) -> FirstCorrection:
    """Expand a rescaled system (see :mod:`derive.depth.rescale`) about infinite depth.

    ``order`` comes out: the largest power of L among what the limit drops and 1/L.  Raises
    :class:`~derive.errors.NotApplicable` for a scaling without a limit, for one in
    which responses vanish (rescale by the branch), and for powers of L that cannot be compared.

    >>> from sympy import sqrt
    >>> from derive.theory import mean_field
    >>> from derive.depth import cross_layer, rescale
    >>> from derive.program.networks.infinite_depth import depth_program
    >>> found = first_correction(rescale(cross_layer(mean_field(depth_program())), 1 / sqrt(L)))
    >>> found.order
    -1
    >>> found.first("f")
    Eq(first_f(t), first_R_xV(1, t))
    """
    return _Correction(aligned(cross), scaling or Scaling()).result()


def aligned(cross: CrossLayer) -> CrossLayer:
    """Sources relabelled so that answers at equal layers read ``X(ell + a, ell)``."""
    names = {f"R_{e.name}{p.name}": p.name for e in cross.theory.equations for p in cross.pushes}
    shifts: dict[str, Expr] = {}
    for e in (*cross.responses, *cross.correlations, *cross.scalars):
        for x in e.rhs.atoms(AppliedUndef):
            source = names.get(str(x.func))
            if source and len(x.args) >= 4 and x.args[0].has(ell) and x.args[1].has(ell):
                shift = ell - x.args[1]
                if shifts.setdefault(source, shift) != shift:
                    raise NotApplicable(f"{x.func} is read at equal layers in two ways")
    return relabelled(cross, {n: x for n, x in shifts.items() if x != 0}) if any(shifts.values()) else cross


class _Correction:
    def __init__(self, cross: CrossLayer, scaling: Scaling) -> None:
        self.cross, self.scaling = cross, scaling
        self.limit = layer_time(cross, scaling)
        if self.limit.vanishing:
            gone = ", ".join(self.limit.vanishing)
            raise NotApplicable(f"{gone} vanish in the limit: divide them by the branch's factor before")
        self.ends = [e for e in cross.responses if neighbour(e) is None]
        self.moving = [e for e in cross.responses if neighbour(e) is not None]
        known = {str(e.lhs.func) for e in (*cross.responses, *cross.correlations, *cross.scalars)}
        layers = layers_of(cross)
        self.slots = {n: layers.get(n, 0) for n in known}
        self.cuts = Cuts(self.moving, self.slots).found
        self.reader = Reader(self.slots, self.cuts)
        self.order = self.largest()

    def result(self) -> FirstCorrection:
        starts = {str(e.lhs.func): self.terms(e.rhs) for e in self.ends if str(e.lhs.func) in self.moved}
        slopes, firsts = [], []
        for e in self.moving:
            slope, first = self.recursion(e, starts)
            slopes.append(slope)
            firsts.append(first)
        for e in self.ends:
            if str(e.lhs.func) not in self.moved:
                firsts.append(self.row(e.lhs, self.coefficient(self.terms(e.rhs))))
        correlations = [self.row(e.lhs, self.coefficient(self.terms(e.rhs))) for e in self.cross.correlations]
        scalars = [self.row(e.lhs, self.coefficient(self.terms(e.rhs))) for e in self.cross.scalars]
        rates = [self.slope(e) for e in self.limit.correlations if e.lhs.args and e.lhs.args[0] == tau]
        whole = replace(
            self.limit,
            integrals=(*self.limit.integrals, *slopes, *firsts),
            correlations=(*self.limit.correlations, *rates, *correlations),
            scalars=(*self.limit.scalars, *scalars),
        )
        return FirstCorrection(self.limit, self.order, _needed(whole))

    @cached_property
    def moved(self) -> set[str]:
        return {str(e.lhs.func) for e in self.moving}

    # -- powers of L -----------------------------------------------------------------------------------------

    def largest(self) -> Expr:
        """The largest power of L that the equations have beside the limit."""
        found = STEPS
        rows = [(e.rhs, S.Zero) for e in (*self.ends, *self.cross.correlations, *self.cross.scalars)]
        for e in self.moving:
            rows += [(x.expr, S.One) for x in e.terms if x.expr != neighbour(e) and delta(x.expr) is None]
            rows += [(d[0], S.Zero) for x in e.terms if (d := delta(x.expr)) is not None]
        for order in {order for e, extra in rows for order, _ in self.terms(e, extra)} - {S.Zero}:
            gap = (order - found).expand()
            if gap.is_positive:
                found = order
            elif not gap.is_nonpositive:
                raise NotApplicable(f"which is larger, L**({order}) or L**({found})?")
        return found

    def terms(self, e: Expr, extra: Expr = S.Zero) -> list[tuple[Expr, Parts]]:
        """Powers of L (and ``extra``) and what they multiply."""
        found = []
        for x in Add.make_args(self.scaling(e).expand()):
            for y in _split(x):
                order, rest = power(y)
                found.append((self.scaling(order + extra).expand().simplify(), self.reader.parts(rest)))
        return found

    def coefficient(self, terms: list[tuple[Expr, Parts]]) -> Expr:
        """What ``L**order`` multiplies."""
        total = S.Zero
        for order, x in terms:
            if order == 0:
                total += x.linear + (x.shift if self.order == STEPS else S.Zero)
            elif (order - self.order).expand() == 0:
                total += x.limit
        return total

    def row(self, lhs: Expr, rhs: Expr) -> Eq:
        """An equation whose left side stands at ``ell``, or at no layer."""
        n = self.slots[str(lhs.func)]
        at = [tau if x.has(ell) else tau_ for x in lhs.args[:n]]
        return Eq(Function(FIRST + str(lhs.func))(*at, *lhs.args[n:]), rhs, evaluate=False)

    # -- recursions ------------------------------------------------------------------------------------------

    def recursion(self, e: Equation, starts: Mapping[str, list[tuple[Expr, Parts]]]) -> tuple[Eq, Eq]:
        """The derivative in the limit, and the correction as an integral equation."""
        next_one, up = neighbour(e), direction(e) == 1
        name, n = str(e.lhs.func), self.slots[str(e.lhs.func)]
        p = int(e.lhs.args[0] - ell)
        inside = next(r for r in e.ranges if r.index == ell)
        low, high = int(inside.lower), int(inside.upper - L)
        own, rest = (tau, tau_)[:n], e.lhs.args[n:]
        added = [x.expr for x in e.terms if x.expr != next_one]
        jumps = [(x, found) for x in added if (found := delta(x)) is not None]
        smooth = self.terms(Add(*[x for x in added if delta(x) is None]), extra=S.One)
        rate = Add(*[x.limit for order, x in smooth if order == 0])
        slope = Function(SLOPE + name)(*own, *rest)

        total = self.coefficient(starts[name])
        for _, (coefficient, _d) in jumps:
            side = Heaviside(tau - tau_) if up else Heaviside(tau_ - tau)
            total += self.coefficient(self.terms(coefficient)) * side
        body = self.coefficient(smooth).xreplace({tau: between})
        if body != 0:
            limits = (between, S.Zero, tau) if up else (between, tau, S.One)
            total += Integral(body, limits)
        if self.order == STEPS:
            near, far = (HALF - low, HALF - p) if up else (HALF + high, HALF + p)
            total += near * self.reader.at_layer(rate, tau, S.Zero if up else S.One) + far * rate
            firsts = crossings(added, self.slots, self.cuts)
            if firsts:
                step = Heaviside(tau - tau_) if up else Heaviside(tau_ - tau)
                jump = self.reader.jump(rate, firsts, "ell")
                total += Add(*[step * x for x in Add.make_args(jump.expand(deep=False))])
        derivative = Eq(slope, rate if up else -rate, evaluate=False)
        return derivative, Eq(Function(FIRST + name)(*own, *rest), total, evaluate=False)

    # -- derivatives -----------------------------------------------------------------------------------------

    def slope(self, e: Eq) -> Eq:
        """A correlation of the limit differentiated by layer time."""
        rhs = S.Zero
        for x in Add.make_args(e.rhs):
            rhs += self.differentiated(x)
        return Eq(Function(SLOPE + str(e.lhs.func))(*e.lhs.args), rhs, evaluate=False)

    def differentiated(self, e: Expr) -> Expr:
        if isinstance(e, Sum):
            return Add(*[Sum(x, *e.limits) for x in Add.make_args(self.differentiated(e.function)) if x != 0])
        if isinstance(e, Integral):
            body = e.function
            jump = on_side(body, "_above", self.slots, tau) - on_side(body, "_below", self.slots, tau)
            inner = self.differentiated(body)
            return (Integral(inner, *e.limits) if inner != 0 else S.Zero) + (
                jump if _crosses(body) else S.Zero
            )
        if isinstance(e, Add):
            return Add(*[self.differentiated(x) for x in e.args])
        if isinstance(e, Mul):
            rows = [Mul(*e.args[:i], self.differentiated(x), *e.args[i + 1 :]) for i, x in enumerate(e.args)]
            return Add(*rows)
        if e.is_Pow and e.exp == 2:
            return 2 * e.base * self.differentiated(e.base)
        if isinstance(e, AppliedUndef) and e.args and e.args[0] == tau:
            if self.slots.get(str(e.func)) == 2 and e.args[1] == tau:
                raise NotApplicable(f"{e}: the derivative of a value at equal layers")
            return Function(f"{SLOPE}{e.func}")(*e.args)
        if e.has(tau):
            raise NotApplicable(f"{e} has no derivative by layer time here")
        return S.Zero


def _crosses(body: Expr) -> bool:
    return any(x.args[:2] == (tau, tau_) for x in body.atoms(AppliedUndef))


def _split(e: Expr) -> list[Expr]:
    """A sum over times and layers of a sum as several."""
    if isinstance(e, Sum):
        return [e.func(x, *e.limits) for x in Add.make_args(sympify(e.function).expand())]
    return [e]


def _needed(whole: LayerTime) -> LayerTime:
    """Without derivatives that nothing reads."""
    rows = (*whole.integrals, *whole.correlations, *whole.scalars)
    while True:
        read = {_bare(x) for e in rows for x in e.rhs.atoms(AppliedUndef)}
        kept = tuple(e for e in rows if not str(e.lhs.func).startswith(SLOPE) or str(e.lhs.func) in read)
        if len(kept) == len(rows):
            break
        rows = kept
    names = {str(e.lhs.func) for e in rows}

    def only(items: tuple[Eq, ...]) -> tuple[Eq, ...]:
        return tuple(e for e in items if str(e.lhs.func) in names)

    return replace(
        whole,
        integrals=only(whole.integrals),
        correlations=only(whole.correlations),
        scalars=only(whole.scalars),
    )


def _bare(x: AppliedUndef) -> str:
    return str(x.func).removesuffix("_above").removesuffix("_below")


__all__ = ["FIRST", "FirstCorrection", "aligned", "first_correction"]
