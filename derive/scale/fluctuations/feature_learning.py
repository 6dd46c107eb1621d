"""Fluctuations of deep linear networks with feature learning to order gamma0^2: one sample, in flow.

From the Taylor coefficients of the ascent of the output (:mod:`derive.scale.fluctuations.ascent`) the module
derives N Cov of the error and of the tangent kernel at all times, in powers of gamma0 with the number of
layers as a symbol. With one sample ``d tau/dt = Delta = y - F(tau)``, where Delta is the error, y the target
and F the output, so that perturbations of the coefficients of F change the time tau that a network has
reached.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import factorial
from typing import Any

from sympy import QQ, Add, Eq, Expr, Function, Mul, S, Symbol, exp, factor
from sympy.polys.rings import PolyElement, ring

from derive.calculus.symbols import gamma0, s, t
from derive.errors import NotApplicable, require_type
from derive.program.program import Program
from derive.scale.fluctuations.ascent import AscentCoefficients, ascent_coefficients
from derive.scale.fluctuations.lazy import error_slopes
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex

K_x, y = Symbol("K_x", positive=True), Symbol("y", real=True)
"""The kernel of the input with itself, and the target."""
RING, _x, _w, _cubic, _quintic = ring("x,w,a,b", QQ)
"""Polynomials in the time x in units of the inverse kernel, in ``w = exp(-x)`` with powers of either sign,
and in the coefficients of the mean ascent, ``F/y = sigma + a sigma^3/6 + b sigma^5/120`` for ``sigma = k
tau/y``."""
ORDER = 4
"""Coefficients m and n of the ascent are used for m + n up to this."""

RichnessSeries = list[PolyElement]
"""Coefficients of powers of ``gamma0^2``."""


@dataclass(frozen=True, repr=False)
class FeatureLearning(ConditionalResult):
    """N times the covariances (N Cov) of error and tangent kernel of a linear network in powers of gamma0.

    Parameters
    ----------
    program : Program
        Network and its training, in flow on one sample.
    ascent : AscentCoefficients
        Means and N Cov of the Taylor coefficients of the ascent of the output.
    centred : bool
        Whether initial outputs are subtracted.
    """

    program: Program
    ascent: AscentCoefficients
    centred: bool

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about the series in gamma0.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        return (
            "derived: means and N Cov of the Taylor coefficients of gradient ascent of the output; with one "
            "sample every network follows this ascent, at the speed of its error",
            "derived: for a symbolic depth, polynomials through exact values that two more depths confirm",
            "assumed: gamma0 y is small compared with the root of K_x; higher orders in gamma0 are neglected",
            "assumed: the width goes to infinity first; leading order in 1/N",
        )

    def _repr_latex_(self) -> str:
        name = Function("V")(S.Infinity)
        return aligned_latex([Eq(name, self.kernel_variance_at_end(), evaluate=False)])

    # -- the mean --------------------------------------------------------------------------------------------

    @cached_property
    def rate(self) -> Expr:
        """Initial tangent kernel of infinite width, which is the rate of the lazy error."""
        return self.ascent.means[1] * K_x

    def _small(self, order: int) -> Expr:
        """Return the coefficient of gamma0^2 in ``a`` (``order`` 1) or of gamma0^4 in ``b`` (``order`` 2).

        The mean output F as a function of the scaled ascent time sigma is ``F/y = sigma + a sigma^3/6 + b
        sigma^5/120``, where y is the target. sigma is the integral of the error over time, in units of
        ``y/k`` with the initial tangent kernel k.
        """
        n = 2 * order + 1
        return self.ascent.means[n] * K_x ** (order + 1) * y ** (2 * order) / self.rate**n

    @cached_property
    def _means(self) -> tuple[RichnessSeries, RichnessSeries]:
        """Series in gamma0^2 of the scaled ascent time sigma and of the error ``Delta/y``, at infinite width.

        sigma is the integral of the error over time, in units of ``y/k``, and x is time times k, the initial
        kernel. Then ``Delta/y = d sigma/dx = 1 - sigma - a sigma^3/6 - ...``, where a, of order gamma0^2, is
        a Taylor coefficient of the mean output. Coefficients are polynomials in x and ``exp(-x)``.
        """
        first = 1 - _w
        second = _forced(-_cubic * first**3 * QQ(1, 6))
        third = _forced(-_cubic * first**2 * second * QQ(1, 2) - _quintic * first**5 * QQ(1, 120))
        sigma = [first, second, third]
        return sigma, [_slope(e) for e in sigma]

    # -- perturbations ---------------------------------------------------------------------------------------

    @cached_property
    def _shifts(self) -> dict[int, RichnessSeries]:
        """Changes of the scaled ascent time sigma by perturbations of the output F, by the order m.

        F is the output as a function of the ascent time tau, the integral of the error over time. The scaled
        ascent time is ``sigma = k tau/y``, with the initial tangent kernel k and the target y. The
        perturbation of order m is ``sigma^m/m!``, a change of the Taylor coefficient ``c_m`` of F. The change
        of sigma is ``-Delta int sigma^m/(m! Delta)``, where Delta is the error.
        """
        return {m: self._shift(m) for m in range(int(self.centred), ORDER + 1)}

    def _shift(self, m: int) -> RichnessSeries:
        """Return the change of the scaled ascent time sigma by a perturbation ``sigma^m/m!`` of the output F.

        It is a series in gamma0^2, whose coefficients are polynomials in x, the scaled time, and ``exp(-x)``.
        """
        sigma, error = self._means
        inverse = _inverse(error)
        integrand = _times(_power(sigma, m), inverse)
        integral = [_integral(e * QQ(1, factorial(m))) for e in integrand]
        return [-e for e in _times(error, integral)]

    @cached_property
    def error_responses(self) -> dict[int, RichnessSeries]:
        """Responses of the error to a change of the factor of ``tau^m/m!`` in the output F, by m.

        They are series in gamma0^2, in units of ``(y/k)^m``, where y is the target and k the initial tangent
        kernel. tau is the integral of the error over time.
        """
        return {m: [_slope(e) for e in shifts] for m, shifts in self._shifts.items()}

    @cached_property
    def kernel_responses(self) -> dict[int, RichnessSeries]:
        """Responses of the tangent kernel to a change of the factor of ``tau^m/m!`` in the output F, by m.

        They are series in gamma0^2, in units of ``(y/k)^(m - 1)``, where y is the target and k the initial
        kernel. tau is the integral of the error over time.
        """
        sigma, _ = self._means
        curvature = [RING.zero, _cubic * sigma[0], _cubic * sigma[1] + _quintic * sigma[0] ** 3 * QQ(1, 6)]
        by_coefficient: dict[int, RichnessSeries] = {}
        for m, shift in self._shifts.items():
            change = _times(curvature, shift)
            if m:
                direct = [e * QQ(1, factorial(m - 1)) for e in _power(sigma, m - 1)]
                change = [a + b for a, b in zip(direct, change, strict=True)]
            by_coefficient[m] = change
        return by_coefficient

    # -- covariances -----------------------------------------------------------------------------------------

    def _covariance(self, responses: dict[int, RichnessSeries], less: int, highest: int) -> dict[int, Expr]:
        """Return N Cov of a quantity at the times t and s: coefficients by powers of gamma0.

        Powers up to ``highest`` are included. ``responses`` are the responses of the quantity to the factors
        of ``tau^m/m!`` in the output, by m. A change of ``c_m`` by one has the size
        ``gamma0^(m - 1) K_x^((m + 1)/2) (y/k)^(m - less)`` in the units of the responses, where y is the
        target, k the initial tangent kernel, and ``less`` is 0 for the error and 1 for the kernel.
        """
        by_power: dict[int, Expr] = {}
        for m, first in responses.items():
            for n, second in responses.items():
                if (m + n) % 2 or m + n > ORDER:
                    continue
                scale = self.ascent.covariance(m, n) * K_x ** S((m + n + 2) // 2)
                scale *= (y / self.rate) ** (m + n - 2 * less)
                for i, a in enumerate(first):
                    for j, b in enumerate(second):
                        power = m + n - 2 + 2 * (i + j)
                        if power <= highest and a and b:
                            value = scale * self._at(a, t) * self._at(b, s)
                            by_power[power] = by_power.get(power, S.Zero) + value
        return dict(sorted(by_power.items()))

    def _at(self, e: PolyElement, time: Expr) -> Expr:
        """Return a polynomial in x and ``exp(-x)`` as an expression in time, with ``x = k time``.

        k is the initial tangent kernel. The other two variables of the polynomial get their values from the
        mean ascent of the output.
        """
        powers = (self.rate * time, exp(-self.rate * time), self._small(1), self._small(2))
        terms = (S(c) * Mul(*[x**n for x, n in zip(powers, ns, strict=True)]) for ns, c in e.terms())
        return Add(*terms)

    def error_covariance(self) -> dict[int, Expr]:
        """Return N times the covariance over networks of the errors at the times t and s.

        Returns
        -------
        dict[int, Expr]
            The coefficient of gamma0^n by n, up to n = 2. The lowest n is 0 if initial outputs are subtracted
            (``centred``), else -2.
        """
        return self._covariance(self.error_responses, 0, 2)

    def kernel_covariance(self) -> dict[int, Expr]:
        """Return N times the covariance over networks of the tangent kernels at the times t and s.

        Returns
        -------
        dict[int, Expr]
            The coefficient of gamma0^n by n, for n = 0 and 2.
        """
        return self._covariance(self.kernel_responses, 1, 2)

    def kernel_variance_at_end(self) -> Expr:
        """Return N times the variance of the tangent kernel at the end of training.

        Returns
        -------
        Expr
            Variance to order gamma0^2.

        Examples
        --------
        >>> from derive.program import mlp
        >>> print(feature_learning(mlp(1, rule="flow")).kernel_variance_at_end())
        4*K_x**2 - 4*K_x*gamma0**2*y**2
        """
        ends = {m: [_at_end(e) for e in series] for m, series in self.kernel_responses.items()}
        by_power = self._covariance(ends, 1, 2)
        return Add(*[factor(value) * gamma0**power for power, value in by_power.items()])


def feature_learning(program: Program) -> FeatureLearning:
    """Return the fluctuations of a linear network on one sample to order gamma0^2.

    Parameters
    ----------
    program : Program
        Linear network in gradient flow with square losses, at a number of layers or at the depth ``L``; for
        centred outputs see :func:`derive.program.centring.centred`.

    Returns
    -------
    FeatureLearning
        Covariances.

    Raises
    ------
    NotApplicable
        For steps, for networks that are not linear, for an error other than ``y - f`` or, with centred
        outputs, ``y - f + f(0)``, and as :func:`derive.scale.fluctuations.ascent.ascent_coefficients`.
    """
    require_type(program, Program, "feature_learning", "a program")
    if program.rule.discrete:
        raise NotApplicable(
            "the series in gamma0 is derived for gradient flow and not for steps: give a program with "
            "rule='flow'"
        )
    now, start = error_slopes(program)
    if now != -1 or start not in (0, 1):
        raise NotApplicable(
            f"the error must be y - f, or y - f + f(0) for centred outputs; its derivatives are {now} by f "
            f"and {start} by f(0)"
        )
    return FeatureLearning(program, ascent_coefficients(program, ORDER), start == 1)


# -- polynomials in x and exp(-x) ----------------------------------------------------------------------------


def _slope(e: PolyElement) -> PolyElement:
    """Return the derivative ``d/dx`` of a polynomial in x and ``w = exp(-x)``."""
    derivative = RING.zero
    for (n, j, *other_powers), c in e.terms():
        derivative += _term(c * -j, n, j, other_powers)
        derivative += _term(c * n, n - 1, j, other_powers) if n else 0
    return derivative


def _term(c: Any, n: int, j: int, other_powers: Any) -> PolyElement:
    """Return the monomial ``c x^n w^j`` in the ring of polynomials in x and ``w = exp(-x)``.

    ``other_powers`` are the exponents of the two other variables, the coefficients of the mean ascent.
    """
    return RING.from_dict({(n, j, *other_powers): c}) if c else RING.zero


def _integral(e: PolyElement) -> PolyElement:
    """Return the integral of a polynomial in x and ``w = exp(-x)`` from 0 to x."""
    integral = RING.zero
    for (n, j, *other_powers), c in e.terms():
        if j == 0:
            integral += _term(c / (n + 1), n + 1, 0, other_powers)
            continue
        for i in range(n + 1):
            integral -= _term(c * factorial(n) / (factorial(i) * QQ(j) ** (n - i + 1)), i, j, other_powers)
        integral += _term(c * factorial(n) / QQ(j) ** (n + 1), 0, 0, other_powers)
    return integral


def _forced(e: PolyElement) -> PolyElement:
    """Return the solution of ``dz/dx = -z + e`` with ``z(0) = 0``, a polynomial in x and ``w = exp(-x)``."""
    return _w * _integral(_shifted(e, -1))


def _shifted(e: PolyElement, powers: int) -> PolyElement:
    """Return a polynomial in x and ``w = exp(-x)`` times ``w^powers``; ``powers`` may be negative."""
    return RING.from_dict({(n, j + powers, *other_powers): c for (n, j, *other_powers), c in e.terms()})


def _times(a: RichnessSeries, b: RichnessSeries) -> RichnessSeries:
    """Return the product of two series in gamma0^2, to the order of the series.

    A series is a list of coefficients, which are polynomials in x and ``exp(-x)``.
    """
    return [sum((a[i] * b[n - i] for i in range(n + 1)), RING.zero) for n in range(len(a))]


def _power(a: RichnessSeries, n: int) -> RichnessSeries:
    """Return the n-th power of a series in gamma0^2, a list of polynomials in x and ``exp(-x)``."""
    power_: RichnessSeries = [RING.one, *[RING.zero] * (len(a) - 1)]
    for _ in range(n):
        power_ = _times(power_, a)
    return power_


def _inverse(a: RichnessSeries) -> RichnessSeries:
    """Return one over a series in gamma0^2, whose first coefficient must be ``w = exp(-x)``.

    ``a`` has one polynomial in x and w for each order. Raises NotApplicable for another first coefficient.
    """
    if a[0] != _w:
        raise NotApplicable("the lazy error must decay exponentially, as that of one sample in a flow does")
    inverse: RichnessSeries = [_shifted(RING.one, -1)]
    for n in range(1, len(a)):
        remainder = sum((a[k] * inverse[n - k] for k in range(1, n + 1)), RING.zero)
        inverse.append(_shifted(-remainder, -1))
    return inverse


def _at_end(e: PolyElement) -> PolyElement:
    """Return the limit of a polynomial in x and ``exp(-x)`` for x -> oo.

    Raises NotApplicable if the polynomial grows with x.
    """
    remaining = RING.from_dict({powers: c for powers, c in e.terms() if powers[1] <= 0})
    if any(powers[0] or powers[1] for powers in remaining.monoms()):
        raise NotApplicable(
            "the response of the tangent kernel to a change of a Taylor coefficient of the output under "
            "gradient ascent grows with time, so that its final value does not exist"
        )
    return remaining
