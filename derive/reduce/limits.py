"""Both ends in gamma0 of the solved two-layer dynamics, and how far its series reaches (eq. F.13, F.14,
F.12 text).

Each statement is a limit of the one remaining equation or of its exact integral.  For the lazy limit of
deeper networks see :mod:`derive.linear.lazy`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import (
    Abs,
    Derivative,
    Dummy,
    Eq,
    Expr,
    Poly,
    Pow,
    Rational,
    Symbol,
    atanh,
    exp,
    factor,
    limit,
    log,
    oo,
    roots,
    simplify,
    solve,
)

from derive.errors import NotApplicable
from derive.program.words import gamma0, t
from derive.reduce.separable import Separable
from derive.reduce.whitened import Whitened, norm, output


@dataclass(frozen=True)
class Limits:
    """Both ends of the whitened two-layer dynamics.

    ``lazy`` is the equation of the error at gamma0 = 0 and ``lazy_solution`` its solution (F.13).  At large
    gamma0 the rate grows like ``gamma0^power``; ``rich`` is the equation to leading order (F.14),
    ``unstable`` and ``stable`` its rest points for the output.  ``learning_time`` is the time to reach f to
    leading order in large gamma0 and ``effective_start`` the output from which the limiting equation takes
    just as long.
    """

    lazy: Eq
    lazy_solution: Eq
    power: Expr
    rich: Eq
    unstable: tuple[Expr, ...]
    stable: tuple[Expr, ...]
    learning_time: Expr
    effective_start: Expr


def whitened_limits(w: Whitened) -> Limits:
    """Both limits in gamma0 of the solved two-layer theory.

    >>> from derive.theory import mean_field
    >>> from derive.reduce.two_layer import two_layer
    >>> from derive.reduce.whitened import whitened
    >>> from derive.program import mlp
    >>> ends = whitened_limits(whitened(two_layer(mean_field(mlp(1, rule="flow")))))
    >>> print(ends.rich.rhs, "|", ends.learning_time, "|", ends.effective_start)
    -2*gamma0*(y - Delta(t))*Delta(t) | log(2*f*gamma0*y/(-f + y))/(2*gamma0*y) | 1/(2*gamma0)
    """
    rate, delta = w.output.rhs, w.error.lhs.args[0]
    power = _power(rate)
    leading = factor(limit(rate / gamma0**power, gamma0, oo))
    rests = {p: leading.diff(output).subs(output, p) for p in sorted(roots(Poly(leading, output)), key=str)}
    weight, growth = growth_of(w.motion)
    weight, grown = _leading(weight), factor(_leading(growth))
    start = Dummy("start", positive=True)
    limiting = _approach(leading, rests, start)
    begins = solve(limit(limiting * start, start, 0) / start - grown, start)
    return Limits(
        lazy=Eq(w.error.lhs, w.error.rhs.subs(gamma0, 0), evaluate=False),
        lazy_solution=Eq(delta, simplify(w.solution.rhs.subs(gamma0, 0).rewrite(exp)), evaluate=False),
        power=power,
        rich=Eq(Derivative(delta, t), (-leading * gamma0**power).subs(output, norm - delta), evaluate=False),
        unstable=tuple(p for p, slope in rests.items() if slope.is_positive),
        stable=tuple(p for p, slope in rests.items() if slope.is_negative),
        learning_time=weight * log(grown),
        effective_start=begins[0],
    )


def growth_of(motion: Separable) -> tuple[Expr, Expr]:
    """Write the time to reach x as ``weight * log(growth)``: ``atanh z = log((1 + z)/(1 - z))/2``."""
    weight, difference = motion.elapsed.as_independent(atanh, as_Add=False)
    growth: Expr = Rational(1)
    for x in difference.as_ordered_terms():
        sign, z = x.as_coeff_Mul()
        if z.func != atanh:
            raise NotApplicable(f"{motion.elapsed} is no difference of inverse hyperbolic tangents")
        growth *= ((1 + z.args[0]) / (1 - z.args[0])) ** sign
    return weight / 2, growth


def _power(e: Expr) -> Expr:
    """The power of gamma0 with which ``e`` grows."""
    return simplify(limit(gamma0 * e.diff(gamma0) / e, gamma0, oo))


def _leading(e: Expr) -> Expr:
    """Leading order in large gamma0."""
    small = Dummy("epsilon", positive=True)
    inside = e.subs(gamma0, 1 / small)
    return simplify(inside.as_leading_term(small)).subs(small, 1 / gamma0)


def _approach(rate: Expr, rests: dict[Expr, Expr], start: Expr) -> Expr:
    """``exp(slope * time)`` on the way from ``start`` to f, for a rate with simple rest points: ``1/rate``
    in partial fractions; ``slope`` is that of the first rest point."""
    first = next(iter(rests.values()))
    value: Expr = Rational(1)
    for p, slope in rests.items():
        value *= ((output - p) / (start - p)) ** simplify(first / slope)
    return value


# -- how far the series in gamma0 reaches ------------------------------------------------


@dataclass(frozen=True)
class Radius:
    """Where the time to reach f is singular as a function of complex gamma0.

    ``singular`` are its singularities, ``removable`` the points where only the formula is, ``radius`` that
    of the series at gamma0 = 0 for fixed f, ``uniform`` the smallest over all f on the way.
    """

    singular: tuple[Expr, ...]
    removable: tuple[Expr, ...]
    radius: Expr
    uniform: Expr


def series_radius(w: Whitened) -> Radius:
    """The radius of convergence in gamma0 of the exact time to reach f.

    Singular points of ``int dx/rate`` come from singular points of 1/rate that reach an end of the path, or
    that meet each other; the latter are on the sheet of the series only if the path runs between them.
    Where a square root of the formula vanishes without the integral noticing, the formula is even in that
    root.

    >>> from derive.theory import mean_field
    >>> from derive.reduce.two_layer import two_layer
    >>> from derive.reduce.whitened import whitened
    >>> from derive.program import mlp
    >>> print(series_radius(whitened(two_layer(mean_field(mlp(1, rule="flow"))))).radius)
    1/f
    """
    elapsed, coupling = w.motion.elapsed, Symbol("_gamma")
    if any(p.has(gamma0) for p in solve(w.output.rhs, output)):
        raise NotApplicable(f"a rest point of df/dt = {w.output.rhs} moves with gamma0")
    singular: set[Expr] = set()
    removable: set[Expr] = set()
    for radicand in {p.base for p in elapsed.atoms(Pow) if abs(p.exp) == Rational(1, 2)}:
        at = solve(radicand.subs(gamma0, coupling), coupling)
        root = Dummy("root")
        here = elapsed.xreplace({radicand ** Rational(k, 2): root**k for k in (1, -1)})
        odd = simplify(here - here.subs(root, -root))
        (removable if odd == 0 else singular).update(at)
    radius = min((simplify(Abs(p)) for p in singular), key=lambda r: r.subs({output: 1, norm: 2}))
    return Radius(_sorted(singular), _sorted(removable), radius, limit(radius, output, norm, "-"))


def _sorted(points: set[Expr]) -> tuple[Expr, ...]:
    return tuple(sorted(points, key=str))
