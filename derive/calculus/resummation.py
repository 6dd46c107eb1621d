"""Radius of convergence of a power series from its coefficients, and resummation beyond it.

The radius is the distance of the nearest singularity from 0. Three methods estimate it: ratios of
coefficients (one real singularity), 2x2 determinants of coefficients (a complex pair), and poles of Padé
approximants. If the singularity is known, a conformal map moves it to the unit circle. All methods use
``z = variable**step``, the square of gamma0 for an even series.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import mpmath
from sympy import Expr, Integer, Symbol, binomial, sympify

from derive.calculus.series import DegeneratePade, PowerSeries, pade
from derive.calculus.symbols import converted

w = Symbol("w")
"""The variable of a mapped series."""

DOUBLET = mpmath.mpf(10) ** -6
"""Relative distance below which a pole and a zero cancel (a Froissart doublet); such poles are ignored."""


@dataclass(frozen=True)
class Radius:
    """Estimate of the radius of convergence and the location of the nearest singularity.

    Parameters
    ----------
    value : mpf
        The radius in the variable of the series.
    uncertainty : mpf
        The error estimate of ``value``.
    distance, angle : mpf
        The singularity in the plane of ``z = variable**step``, in polar coordinates: angle 0 is the positive
        axis, pi the negative one; a complex pair is at plus and minus ``angle``.
    method : str
        The method whose estimate was taken: ratios, determinants or poles.
    """

    value: mpmath.mpf
    uncertainty: mpmath.mpf
    distance: mpmath.mpf
    angle: mpmath.mpf
    method: str


def radius(series: PowerSeries, digits: int = 40) -> Radius:
    """Estimate the radius of convergence from numerical coefficients.

    Each method is applied to all coefficients and to all but the last. Of the two methods that agree best,
    the one that changes less is taken, because one method may converge to a false singularity, but two rarely
    to the same one. ``uncertainty`` is that change plus the difference of the two methods, or the change
    alone if only one method applies, converted from ``variable**step`` to the variable. It is too small for a
    pair of branch points, where the relative error of the distance is of order one over the number of
    coefficients.

    Parameters
    ----------
    series : PowerSeries
        A series with real numbers as coefficients.
    digits : int
        Decimal digits of the computation.

    Returns
    -------
    Radius
        The estimate.

    Raises
    ------
    ValueError
        If coefficients contain symbols, or if no method gives an estimate (at least three coefficients in
        ``variable**step`` are needed).

    Examples
    --------
    >>> from sympy import Rational
    >>> exact = PowerSeries(tuple(c for k in range(7) for c in (Rational(-4, 1) ** k, 0)))  # 1 / (1 + 4 z)
    >>> found = radius(exact)
    >>> print(mpmath.nstr(found.value), mpmath.nstr(found.angle), found.method)
    0.5 3.14159 ratios
    """
    if free := set().union(*[c.free_symbols for c in series.coefficients]):
        raise ValueError(
            f"the coefficients contain {', '.join(sorted(map(str, free)))}: substitute numbers for these "
            "symbols first"
        )
    with mpmath.workdps(digits):
        known = [mpmath.mpf(c.evalf(digits)) for c in series.steps()]
        estimates: dict[str, tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]] = {}
        for name, method in METHODS.items():
            last, before = method(known), method(known[:-1])
            if last is not None and before is not None:
                estimates[name] = (abs(last), abs(last - before), abs(mpmath.arg(last)))
        if not estimates:
            raise ValueError(
                f"no method gives an estimate of the radius of convergence from the {len(known)} "
                f"coefficients of {series}; with more coefficients a method may give one"
            )
        pairs = [(abs(estimates[a][0] - estimates[b][0]), a, b) for a, b in combinations(estimates, 2)]
        difference, *both = min(pairs, key=lambda x: x[0]) if pairs else (mpmath.mpf(0), *estimates)
        name = min(both, key=lambda x: estimates[x][1] / estimates[x][0])
        distance, change, angle = estimates[name]
        change = change + difference
        value = distance ** (mpmath.mpf(1) / series.step)
        return Radius(value, value * change / distance / series.step, distance, angle, name)


ComplexEstimate: TypeAlias = "mpmath.mpc | None"


def ratios(c: Sequence[mpmath.mpf]) -> ComplexEstimate:
    """Estimate the singularity z0 of a series next to 0 by the ratio method of Domb and Sykes.

    ``c`` are the coefficients. Near a singularity ``(1 - z / z0)**-p``, ``c[k] / c[k-1] = (1 + (p - 1) / k) /
    z0``; the last two ratios give z0, which is real. None if there are fewer than three coefficients, if one
    of the last three is zero, or if z0 is infinite.
    """
    if len(c) < 3 or 0 in c[-3:]:
        return None
    k = len(c) - 1
    inverse = k * c[k] / c[k - 1] - (k - 1) * c[k - 1] / c[k - 2]
    return None if inverse == 0 else mpmath.mpc(1 / inverse)


def determinants(c: Sequence[mpmath.mpf]) -> ComplexEstimate:
    """Estimate a pair of singularities ``z0 exp(+-i angle)`` of a series by the method of Mercer and Roberts.

    ``c`` are the coefficients. The method uses ``c[k-1] c[k+1] - c[k]**2`` for the last two k. Returns the
    singularity of the pair with an imaginary part >= 0. None if there are fewer than four coefficients, if
    the last but one is zero, or if no real z0 and angle solve the equations of the method.
    """
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
    """Return the pole nearest to 0 of the near-diagonal Padé approximant of a series with coefficients ``c``.

    Poles that a zero cancels nearly (Froissart doublets) are left out. The result is None if no pole is left
    or the approximant does not exist.
    """
    order = len(c) - 1
    n = (order + 1) // 2
    try:
        above, below = pade([converted(x) for x in c], order - n, n)
    except (DegeneratePade, ValueError):
        return None
    zeros = _roots(above)
    kept = [p for p in _roots(below) if not any(abs(p - x) < DOUBLET * abs(p) for x in zeros)]
    return min(kept, key=abs, default=None)


def _roots(coefficients: Sequence[Expr]) -> list[mpmath.mpc]:
    """Return the roots of a polynomial with numerical coefficients, the constant term first."""
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
    """A power series re-expanded in the variable w of a conformal map, see :func:`conformal`.

    The map takes w to ``z = variable**step``, the power in which the original series proceeds.

    Parameters
    ----------
    original : PowerSeries
        The series before the map.
    series : PowerSeries
        The series in ``w`` of the original series over ``variable**lowest``, its lowest power.
    distance : Expr
        The distance of the singularity from 0 in z.
    angle : Expr
        The angle of the singularity in units of pi.
    """

    original: PowerSeries
    series: PowerSeries
    distance: Expr
    angle: Expr

    def point(self, z: Expr | float) -> mpmath.mpf:
        """Return the point w that the conformal map takes to z.

        Parameters
        ----------
        z : Expr or float
            A number >= 0, below the singularity on the positive axis if there is one.

        Returns
        -------
        mpf
            A number between 0 and 1; 0 for z = 0.

        Raises
        ------
        ValueError
            If z is negative, or not below the singularity on the positive axis.
        """
        target = mpmath.mpf(converted(z).evalf(mpmath.mp.dps))
        if target < 0 or (self.angle == 0 and target >= mpmath.mpf(self.distance)):
            below = f", and below the singularity at {self.distance}" if self.angle == 0 else ""
            raise ValueError(f"z = {z}: must be >= 0{below}")
        if target == 0:
            return mpmath.mpf(0)
        digits = mpmath.mp.dps
        size, at = (mpmath.mpf(x.evalf(digits)) for x in (_scale(self.distance, self.angle), self.angle))

        def gap(y: mpmath.mpf) -> mpmath.mpf:
            """Return ``log z(w) - log z`` at ``w = exp(y)/(1 + exp(y))``, which is zero at the point wanted.

            z(w) is the conformal map, and z the value to which it must take w. The result increases with y. A
            w near 1, for a large z, is resolved by y and not by w.
            """
            tail = mpmath.log1p(mpmath.exp(-abs(y)))
            # log w and log(1 - w) for w = exp(y)/(1 + exp(y)), without overflow at large |y|.
            log_w, log_rest = min(y, 0) - tail, -max(y, 0) - tail
            log_sum = mpmath.log1p(mpmath.exp(log_w))
            return mpmath.log(size / target) + log_w - 2 * at * log_rest - 2 * (1 - at) * log_sum

        low, high = mpmath.mpf(-1), mpmath.mpf(1)
        while gap(low) > 0:
            low *= 2
        while gap(high) < 0:
            high *= 2
        # The root of `gap` is found by bisection, in which each step halves the interval. Faster methods fail
        # for a singularity on the positive axis (angle 0), because `gap` is then flat at large y.
        steps = mpmath.mp.prec + int(mpmath.log(high - low, 2))
        root = mpmath.findroot(gap, (low, high), solver="bisect", maxsteps=steps, verify=False)
        return 1 / (1 + mpmath.exp(-root))

    def value(self, variable: Expr | float, order: int | None = None) -> mpmath.mpf:
        """Return the resummed value at a value of the variable.

        Parameters
        ----------
        variable : Expr or float
            The value of the variable of the original series, with ``variable**step >= 0``.
        order : int, optional
            The highest power of w that is summed; all by default.

        Returns
        -------
        mpf
            The value.

        Raises
        ------
        ValueError
            If ``variable**step`` is negative, or not below the singularity on the positive axis.
        IndexError
            If ``order`` is negative or beyond the order of the series in w.
        """
        given = converted(variable)
        x = self.point(given**self.original.step)
        terms = self.series.truncate(self.series.order if order is None else order).coefficients
        total = mpmath.polyval([mpmath.mpf(c.evalf(mpmath.mp.dps)) for c in reversed(terms)], x)
        return total * mpmath.mpf(given.evalf(mpmath.mp.dps)) ** self.original.lowest


def _scale(distance: Expr, angle: Expr) -> Expr:
    """Return the prefactor ``4 d a^a (1-a)^(1-a)`` of the conformal map, see :func:`conformal`."""
    return sympify(4 * distance * angle**angle * (1 - angle) ** (1 - angle))


def conformal(series: PowerSeries, distance: Expr | float, angle: Expr | float = 1) -> Mapped:
    """Re-expand a series in a variable in which its known singularities lie on the unit circle.

    The old variable is ``z = variable**step``, such as gamma0^2 for an even series, and the new one w.

    Parameters
    ----------
    series : PowerSeries
        The series.
    distance : Expr or float
        The distance d of the singularities from 0 in z, a positive number.
    angle : Expr or float
        The angle a in units of pi, a number from 0 to 1: singularities are at ``z = d exp(+-i pi a)``, one
        on the negative axis for a = 1, one on the positive axis for a = 0.

    Returns
    -------
    Mapped
        The series in w; exact for a rational ``angle``.

    Raises
    ------
    ValueError
        If the angle is not between 0 and 1, or the distance is not positive.

    Notes
    -----
    The plane of z with straight cuts from the singularities to infinity is the image of the unit disk under

        z(w) = 4 d a^a (1-a)^(1-a)  w (1-w)^(-2a) (1+w)^(-2(1-a)),

    so the series in w converges in the whole cut plane if the cuts contain all singularities.

    Examples
    --------
    >>> from sympy import sqrt, series as taylor, Rational
    >>> z = Symbol("z")
    >>> f = taylor(sqrt(1 + z), z, 0, 5).removeO()
    >>> g = conformal(PowerSeries(tuple(f.coeff(z, n) for n in range(5)), z), 1)
    >>> print(g.series)  # (1 + w) / (1 - w)
    1 + 2*w + 2*w**2 + 2*w**3 + 2*w**4 + O(w**5)
    >>> print(mpmath.nstr(g.value(8), 4))  # far outside the circle of convergence; exact: 3
    2.875
    """
    d, a = converted(distance), converted(angle)
    if not (0 <= a <= 1) or not d > 0:
        raise ValueError(
            f"distance = {distance}, angle = {angle}: the distance of the singularity must be positive, and "
            "its angle, in units of pi, from 0 to 1"
        )
    known = series.steps()
    order = len(known) - 1
    size = _scale(d, a)

    def binomials(power: Expr, sign: int) -> PowerSeries:
        """Return the series of ``(1 + sign w)^power`` in the mapped variable w; ``sign`` is 1 or -1."""
        return PowerSeries(tuple(binomial(power, k) * sign**k for k in range(order + 1)), w)

    shape = binomials(-2 * a, -1) * binomials(-2 * (1 - a), 1)
    z = PowerSeries((Integer(0), *[size * c for c in shape.coefficients[:order]]), w)
    power = PowerSeries((Integer(1), *[Integer(0)] * order), w)
    total = power * known[0]
    for c in known[1:]:
        power = power * z
        total = total + power * c
    return Mapped(series, total, d, a)
