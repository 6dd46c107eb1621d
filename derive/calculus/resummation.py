"""Where a power series ends, seen from its coefficients, and how to go on.

The radius of convergence is the distance of the nearest singularity from 0.  Three estimates of it are made:
from ratios of coefficients (one real singularity), from 2x2 determinants of them (a complex pair), and from
the poles of Padé approximants.  If the singularity is known, a conformal map moves it to the unit circle.
All of this is done in ``z = variable**step``, the square of gamma0 for an even series.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import mpmath
from sympy import Expr, Integer, Symbol, binomial, sympify

from derive.calculus.series import DegeneratePade, PowerSeries, pade

w = Symbol("w")
"""The variable of a mapped series."""

DOUBLET = mpmath.mpf(10) ** -6
"""A pole this close to a zero, relative to its size, cancels it (a Froissart doublet) and says nothing."""


@dataclass(frozen=True)
class Radius:
    """The singularity nearest to 0: its distance in ``variable``, and how far estimates of that differ.

    ``distance`` and ``angle`` place it in the plane of ``z = variable**step`` (angle 0: on the positive axis,
    pi: on the negative one; a pair has the angles +- ``angle``).  ``method`` is the one that was taken.
    """

    value: mpmath.mpf
    uncertainty: mpmath.mpf
    distance: mpmath.mpf
    angle: mpmath.mpf
    method: str


def radius(series: PowerSeries, digits: int = 40) -> Radius:
    """The radius of convergence, estimated from coefficients that are numbers.

    Each method is applied to all coefficients and to all but the last.  Of the two methods that agree best,
    the one that changes less is taken: one may settle on something that is not there, but two rarely on the
    same.  ``uncertainty`` is that change plus the difference of the two; it is too small for a pair of branch
    points, whose distance comes out too large by a share of one over the order.  Raises ValueError for
    symbols in the coefficients, fewer than four in ``variable**step``, and a series that terminates.

    >>> from sympy import Rational
    >>> exact = PowerSeries(tuple(c for k in range(7) for c in (Rational(-4, 1) ** k, 0)))  # 1 / (1 + 4 z)
    >>> found = radius(exact)
    >>> print(mpmath.nstr(found.value), mpmath.nstr(found.angle), found.method)
    0.5 3.14159 ratios
    """
    if free := set().union(*[c.free_symbols for c in series.coefficients]):
        raise ValueError(
            f"the coefficients contain {', '.join(sorted(map(str, free)))}: put in numbers first"
        )
    with mpmath.workdps(digits):
        known = [mpmath.mpf(c.evalf(digits)) for c in series.steps()]
        found: dict[str, tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]] = {}
        for name, method in METHODS.items():
            last, before = method(known), method(known[:-1])
            if last is not None and before is not None:
                found[name] = (abs(last), abs(last - before), abs(mpmath.arg(last)))
        if not found:
            raise ValueError(f"no estimate from {len(known)} coefficients: {series}")
        pairs = [(abs(found[a][0] - found[b][0]), a, b) for a, b in combinations(found, 2)]
        apart, *both = min(pairs, key=lambda x: x[0]) if pairs else (mpmath.mpf(0), *found)
        name = min(both, key=lambda x: found[x][1] / found[x][0])
        distance, change, angle = found[name]
        change = change + apart
        value = distance ** (mpmath.mpf(1) / series.step)
        return Radius(value, value * change / distance / series.step, distance, angle, name)


ComplexEstimate: TypeAlias = "mpmath.mpc | None"


def ratios(c: Sequence[mpmath.mpf]) -> ComplexEstimate:
    """Domb and Sykes: ``c[k] / c[k-1] = (1 + (p - 1) / k) / z0`` near a singularity ``(1 - z / z0)**-p``.

    Two ratios give z0.  None where a coefficient vanishes.
    """
    if len(c) < 3 or c[-2] == 0 or c[-3] == 0:
        return None
    k = len(c) - 1
    inverse = k * c[k] / c[k - 1] - (k - 1) * c[k - 1] / c[k - 2]
    return None if inverse == 0 else mpmath.mpc(1 / inverse)


def determinants(c: Sequence[mpmath.mpf]) -> ComplexEstimate:
    """Mercer and Roberts: a pair ``z0 exp(+-i angle)`` from ``c[k-1] c[k+1] - c[k]**2``; or None."""
    if len(c) < 4:
        return None
    a, b, d, e = c[-4:]
    above, below = b * e - d * d, a * d - b * b
    if below == 0 or above / below <= 0 or d == 0:
        return None
    growth = mpmath.sqrt(above / below)
    cosine = (b * growth / d + e / (d * growth)) / 2
    return mpmath.expj(mpmath.acos(cosine)) / growth if abs(cosine) <= 1 else None


def poles(c: Sequence[mpmath.mpf]) -> ComplexEstimate:
    """The pole nearest to 0 of the Padé approximant nearest to the diagonal, doublets left out."""
    order = len(c) - 1
    n = (order + 1) // 2
    try:
        above, below = pade([sympify(x, strict=True) for x in c], order - n, n)
    except (DegeneratePade, ValueError):
        return None
    zeros = _roots(above)
    found = [p for p in _roots(below) if not any(abs(p - x) < DOUBLET * abs(p) for x in zeros)]
    return min(found, key=abs, default=None)


def _roots(coefficients: Sequence[Expr]) -> list[mpmath.mpc]:
    """The roots of a polynomial, lowest power first."""
    values = [mpmath.mpf(x) for x in coefficients]
    while values and values[-1] == 0:
        values.pop()
    if len(values) < 2:
        return []
    return list(mpmath.polyroots(values[::-1], maxsteps=500, extraprec=400))


METHODS: dict[str, Callable[[Sequence[mpmath.mpf]], ComplexEstimate]] = {
    "ratios": ratios,
    "determinants": determinants,
    "poles": poles,
}


@dataclass(frozen=True)
class Mapped:
    """A series in the variable w of a conformal map; see :func:`conformal`.

    ``series`` is in ``w``, ``distance`` and ``angle`` (in units of pi) say where the singularity is in z.
    """

    original: PowerSeries
    series: PowerSeries
    distance: Expr
    angle: Expr

    def point(self, z: Expr | float) -> mpmath.mpf:
        """The w of a positive z, between 0 and 1.  Raises ValueError where the map does not reach."""
        target = mpmath.mpf(sympify(z, strict=True).evalf(mpmath.mp.dps))
        if target < 0 or (self.angle == 0 and target >= mpmath.mpf(self.distance)):
            raise ValueError(f"z = {z}: the map reaches from 0 up to the singularity on the positive axis")
        if target == 0:
            return mpmath.mpf(0)
        size, at = mpmath.mpf(_scale(self.distance, self.angle).evalf(mpmath.mp.dps)), mpmath.mpf(self.angle)

        def gap(x: mpmath.mpf) -> mpmath.mpf:
            return (
                mpmath.log(size * x / target) - 2 * at * mpmath.log(1 - x) - 2 * (1 - at) * mpmath.log(1 + x)
            )

        edge = mpmath.mpf(10) ** (-mpmath.mp.dps // 2)
        return mpmath.findroot(gap, (edge * min(1, target / size), 1 - edge), solver="anderson")

    def value(self, variable: Expr | float, order: int | None = None) -> mpmath.mpf:
        """The resummed value at a positive value of the variable, from terms up to w**order (all)."""
        given = sympify(variable, strict=True)
        x = self.point(given**self.original.step)
        terms = self.series.truncate(self.series.order if order is None else order).coefficients
        total = mpmath.polyval([mpmath.mpf(c.evalf(mpmath.mp.dps)) for c in reversed(terms)], x)
        return total * mpmath.mpf(given.evalf(mpmath.mp.dps)) ** self.original.lowest


def _scale(distance: Expr, angle: Expr) -> Expr:
    """The factor of the map that puts the singularities at ``distance``."""
    return sympify(4 * distance * angle**angle * (1 - angle) ** (1 - angle))


def conformal(series: PowerSeries, distance: Expr | float, angle: Expr | float = 1) -> Mapped:
    r"""Re-expand around the same point in a variable in which the known singularities lie on the unit circle.

    They are at ``z = distance * exp(+-i pi angle)``: a pair, or one on the negative axis for ``angle = 1``.
    The plane of z cut from them straight to infinity is the image of the unit disk under

        z(w) = 4 d a^a (1-a)^(1-a)  w (1-w)^(-2a) (1+w)^(-2(1-a)),

    so the series in w converges in all of the cut plane, if the cuts hold all singularities.  Exact for a
    rational ``angle``.  Raises ValueError for an angle beyond 0 to 1 or a distance that is not positive.

    >>> from sympy import sqrt, series as taylor, Rational
    >>> z = Symbol("z")
    >>> f = taylor(sqrt(1 + z), z, 0, 5).removeO()
    >>> g = conformal(PowerSeries(tuple(f.coeff(z, n) for n in range(5)), z), 1)
    >>> print(g.series)  # (1 + w) / (1 - w)
    1 + 2*w + 2*w**2 + 2*w**3 + 2*w**4 + O(w**5)
    >>> print(mpmath.nstr(g.value(8), 4))  # far outside the circle of convergence; exact: 3
    2.875
    """
    d, a = sympify(distance, strict=True), sympify(angle, strict=True)
    if not (0 <= a <= 1) or not d > 0:
        raise ValueError(
            f"distance = {distance}, angle = {angle}: must be positive, and from 0 to 1 (times pi)"
        )
    known = series.steps()
    order = len(known) - 1
    size = _scale(d, a)

    def binomials(power: Expr, sign: int) -> PowerSeries:
        return PowerSeries(tuple(binomial(power, k) * sign**k for k in range(order + 1)), w)

    shape = binomials(-2 * a, -1) * binomials(-2 * (1 - a), 1)
    z = PowerSeries((Integer(0), *[size * c for c in shape.coefficients[:order]]), w)
    power = PowerSeries((Integer(1), *[Integer(0)] * order), w)
    total = power * known[0]
    for c in known[1:]:
        power = power * z
        total = total + power * c
    return Mapped(series, total, d, a)
