"""Fluctuations of deep linear networks with feature learning to order gamma0^2: one sample, in flow.

From the Taylor coefficients of the ascent of the output (:mod:`derive.scale.fluctuations.ascent`) the module
derives N Cov of the error and of the tangent kernel at all times, in powers of gamma0 with the number of
layers as a symbol. With one sample ``d tau/dt = Delta = y - F(tau)``, so that perturbations of the
coefficients of F change the time tau that a network has reached.
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


@dataclass(frozen=True)
class FeatureLearning(ConditionalResult):
    """N Cov of error and tangent kernel of a linear network in powers of gamma0.

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
        """Return the assumptions of the series.

        Returns
        -------
        tuple[str, ...]
            Assumptions as sentences.
        """
        return (
            "derived: means and N Cov of the coefficients of the ascent of the output, which every network "
            "follows at the speed of its error, as long as there is one sample",
            "derived: with a symbolic depth, polynomials through exact values that two more depths confirm",
            "assumed: gamma0 y is small beside the root of K_x; the next orders are left out",
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
        """Return the coefficient of ``gamma0^(2 order)`` in ``a`` (order 1) or ``b`` (order 2)."""
        n = 2 * order + 1
        return self.ascent.means[n] * K_x ** (order + 1) * y ** (2 * order) / self.rate**n

    @cached_property
    def _means(self) -> tuple[RichnessSeries, RichnessSeries]:
        """Series of ``sigma`` and ``Delta/y``: ``d sigma/dx = 1 - sigma - a sigma^3/6 - ...``."""
        first = 1 - _w
        second = _forced(-_cubic * first**3 * QQ(1, 6))
        third = _forced(-_cubic * first**2 * second * QQ(1, 2) - _quintic * first**5 * QQ(1, 120))
        sigma = [first, second, third]
        return sigma, [_slope(e) for e in sigma]

    # -- perturbations ---------------------------------------------------------------------------------------

    @cached_property
    def _shifts(self) -> dict[int, RichnessSeries]:
        """Changes of sigma by a perturbation ``sigma^m/m!`` of F: ``-Delta int sigma^m/(m! Delta)``."""
        return {m: self._moved(m) for m in range(int(self.centred), ORDER + 1)}

    def _moved(self, m: int) -> RichnessSeries:
        """Return the change of sigma by one perturbation."""
        sigma, error = self._means
        inverse = _inverse(error)
        inside = _times(_power(sigma, m), inverse)
        integral = [_integral(e * QQ(1, factorial(m))) for e in inside]
        return [-e for e in _times(error, integral)]

    @cached_property
    def error_responses(self) -> dict[int, RichnessSeries]:
        """Responses of the error to each coefficient of the ascent, in units of ``(y/k)^m``."""
        return {m: [_slope(e) for e in moved] for m, moved in self._shifts.items()}

    @cached_property
    def kernel_responses(self) -> dict[int, RichnessSeries]:
        """Responses of the tangent kernel to each coefficient, in units of ``(y/k)^(m - 1)``."""
        sigma, _ = self._means
        curvature = [RING.zero, _cubic * sigma[0], _cubic * sigma[1] + _quintic * sigma[0] ** 3 * QQ(1, 6)]
        found: dict[int, RichnessSeries] = {}
        for m, shift in self._shifts.items():
            moved = _times(curvature, shift)
            if m:
                own = [e * QQ(1, factorial(m - 1)) for e in _power(sigma, m - 1)]
                moved = [a + b for a, b in zip(own, moved, strict=True)]
            found[m] = moved
        return found

    # -- covariances -----------------------------------------------------------------------------------------

    def _covariance(self, responses: dict[int, RichnessSeries], less: int, highest: int) -> dict[int, Expr]:
        """Return N Cov by powers of gamma0, at two times.

        A perturbation of ``c_m`` has the size ``gamma0^(m - 1) K_x^((m + 1)/2) (y/k)^(m - less)``.
        """
        found: dict[int, Expr] = {}
        for m, left in responses.items():
            for n, right in responses.items():
                if (m + n) % 2 or m + n > ORDER:
                    continue
                scale = self.ascent.covariance(m, n) * K_x ** S((m + n + 2) // 2)
                scale *= (y / self.rate) ** (m + n - 2 * less)
                for i, a in enumerate(left):
                    for j, b in enumerate(right):
                        power = m + n - 2 + 2 * (i + j)
                        if power <= highest and a and b:
                            value = scale * self._at(a, t) * self._at(b, s)
                            found[power] = found.get(power, S.Zero) + value
        return dict(sorted(found.items()))

    def _at(self, e: PolyElement, time: Expr) -> Expr:
        """Return a polynomial at a time, with the coefficients of the mean ascent."""
        powers = (self.rate * time, exp(-self.rate * time), self._small(1), self._small(2))
        terms = (S(c) * Mul(*[x**n for x, n in zip(powers, ns, strict=True)]) for ns, c in e.terms())
        return Add(*terms)

    def error_covariance(self) -> dict[int, Expr]:
        """Return N Cov of the error at the times t and s, by powers of gamma0 up to 2.

        Returns
        -------
        dict[int, Expr]
            Coefficients from order -2 on, or from 0 on for centred outputs.
        """
        return self._covariance(self.error_responses, 0, 2)

    def kernel_covariance(self) -> dict[int, Expr]:
        """Return N Cov of the tangent kernel at two times, by powers of gamma0 up to 2.

        Returns
        -------
        dict[int, Expr]
            Coefficients.
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
        parts = self._covariance(ends, 1, 2)
        return Add(*[factor(value) * gamma0**power for power, value in parts.items()])


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
        For steps, and for networks that are not linear.
    """
    require_type(program, Program, "feature_learning", "a program")
    if program.rule.discrete:
        raise NotApplicable("the series in gamma0 is that of a flow")
    now, start = error_slopes(program)
    if now != -1 or start not in (0, 1):
        raise NotApplicable(
            f"the error falls by {-now} times the output and rises by {start} times its start"
        )
    return FeatureLearning(program, ascent_coefficients(program, ORDER), start == 1)


# -- polynomials in x and exp(-x) ----------------------------------------------------------------------------


def _slope(e: PolyElement) -> PolyElement:
    """Return ``d/dx``."""
    found = RING.zero
    for (n, j, *rest), c in e.terms():
        found += _term(c * -j, n, j, rest)
        found += _term(c * n, n - 1, j, rest) if n else 0
    return found


def _term(c: Any, n: int, j: int, rest: Any) -> PolyElement:
    """Return ``c x^n w^j`` times the coefficients of the mean ascent to the powers ``rest``."""
    return RING.from_dict({(n, j, *rest): c}) if c else RING.zero


def _integral(e: PolyElement) -> PolyElement:
    """Return the integral from 0 to x."""
    found = RING.zero
    for (n, j, *rest), c in e.terms():
        if j == 0:
            found += _term(c / (n + 1), n + 1, 0, rest)
            continue
        for i in range(n + 1):
            found -= _term(c * factorial(n) / (factorial(i) * QQ(j) ** (n - i + 1)), i, j, rest)
        found += _term(c * factorial(n) / QQ(j) ** (n + 1), 0, 0, rest)
    return found


def _forced(e: PolyElement) -> PolyElement:
    """Return the solution of ``z' = -z + e`` with initial value zero."""
    return _w * _integral(_shifted(e, -1))


def _shifted(e: PolyElement, powers: int) -> PolyElement:
    """Return a polynomial times a power of w, of either sign."""
    return RING.from_dict({(n, j + powers, *rest): c for (n, j, *rest), c in e.terms()})


def _times(a: RichnessSeries, b: RichnessSeries) -> RichnessSeries:
    """Return the product of two series."""
    return [sum((a[i] * b[n - i] for i in range(n + 1)), RING.zero) for n in range(len(a))]


def _power(a: RichnessSeries, n: int) -> RichnessSeries:
    """Return a power of a series."""
    found: RichnessSeries = [RING.one, *[RING.zero] * (len(a) - 1)]
    for _ in range(n):
        found = _times(found, a)
    return found


def _inverse(a: RichnessSeries) -> RichnessSeries:
    """Return the inverse of a series that begins with w."""
    if a[0] != _w:
        raise NotApplicable("the lazy error must decay exponentially, as that of one sample in a flow does")
    found: RichnessSeries = [_shifted(RING.one, -1)]
    for n in range(1, len(a)):
        rest = sum((a[k] * found[n - k] for k in range(1, n + 1)), RING.zero)
        found.append(_shifted(-rest, -1))
    return found


def _at_end(e: PolyElement) -> PolyElement:
    """Return the limit of late times, which must be finite."""
    left = RING.from_dict({powers: c for powers, c in e.terms() if powers[1] <= 0})
    if any(powers[0] or powers[1] for powers in left.monoms()):
        raise NotApplicable("a perturbation grows with time")
    return left
