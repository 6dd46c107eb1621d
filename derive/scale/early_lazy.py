r"""Early and late steps of lazy networks: which losses that rise at first come down again.

At gamma0 -> 0 a centred network learns with a kernel K that stands still, ``v(t + 1) = v(t) - eta K h0(t)``,
and with fresh batches ``h0 = v + noise`` whose variance is a function q of ``C_v``.  An eigenvalue k of K
leaves ``x = (1 - eta k)^2`` of its share of the loss in a step; with averages over the spectrum of K,

    C_v(t) = <x^t> + sum_{s < t} eta^2 <k^2 x^(t - 1 - s)> q(C_v(s)).

Moments of the spectrum are read off the derived theory, q off its equation of h0.  That K stands still is
assumed; that the theory then gives the sum above is checked, step by step, when moments are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mpmath import cholesky, eigsy, matrix, mp, mpf, workdps
from sympy import (
    Add,
    Dummy,
    Expr,
    Float,
    Function,
    Integer,
    Poly,
    S,
    Symbol,
    cancel,
    factor,
    fraction,
    lambdify,
    limit,
    oo,
    solve,
    sqrt,
)

from derive.calculus.recurrences import in_depth
from derive.errors import NotApplicable
from derive.program.networks.isotropic import nu
from derive.program.words import L, eta, gamma0
from derive.scale.exact_steps import ExactSteps
from derive.theory.theory import Theory

k = Symbol("k", positive=True)
"""An eigenvalue of the kernel."""
SIZE = Dummy("c", positive=True)
"""``C_v`` as the argument of the noise."""
left = (1 - eta * k) ** 2
"""What a step leaves of an eigenvalue's share of the loss."""
PLAIN = 3
"""From this depth on the symbols of the noise are numbers while moments, which do not hold them, are read."""


@dataclass(frozen=True)
class LazySteps:
    """The spectrum of the lazy kernel by its moments ``<k>, <k^2>, ...``, and the noise of ``h0`` given C_v.

    Without noise ``C_v(t) = <x^t>``, the moments of a positive variable: ``C_v(t + 1)/C_v(t)`` never falls
    (Cauchy-Schwarz).  A loss that rises in one step then rises ever after, there is no recovery.
    """

    theory: Theory
    moments: tuple[Expr, ...]
    noise: Callable[[Expr], Expr]

    def average(self, e: Expr) -> Expr:
        """Of a polynomial in ``k``, over the spectrum.

        Raises :class:`NotApplicable` beyond the known moments.
        """
        total = S.Zero
        for (power,), c in Poly(e, k).terms():
            if power > len(self.moments):
                raise NotApplicable(f"needs moment {power} of the kernel; {len(self.moments)} are known")
            total += c * (self.moments[power - 1] if power else S.One)
        return total

    def loss(self, steps: int) -> Expr:
        """``C_v`` after that many steps; needs twice as many moments."""
        found = [S.One]
        for t in range(1, steps + 1):
            kicks = [
                eta**2 * self.average(k**2 * left ** (t - 1 - s)) * self.noise(found[s]) for s in range(t)
            ]
            found.append(Add(self.average(left**t), *kicks).expand())
        return found[steps]

    @cached_property
    def spread(self) -> Expr:
        """``<k^2> - <k>^2``; where it is zero the memory-free recursion is exact at every step."""
        return factor(self.moments[1] - self.moments[0] ** 2)

    @cached_property
    def slope(self) -> Expr:
        """How the noise of an input grows with the loss, ``dq/dC_v``."""
        return factor(self.noise(SIZE).diff(SIZE))

    @cached_property
    def first_rise(self) -> Expr:
        """The rate above which the first step raises the loss; label noise left out."""
        growth = self.average(left) + eta**2 * self.moments[1] * self.slope - 1
        return factor(solve(cancel(growth / eta), eta)[0])

    @cached_property
    def settles(self) -> Expr:
        r"""A function of k: the loss settles where its average is below 1, and ``eta k < 2`` everywhere.

        It is ``q' sum_t eta^2 k^2 x^t``: a kick to the loss comes back this many times in all.  With positive
        terms the sum for ``C_v`` settles if and only if this is below 1 (the renewal theorem).

        >>> from derive.theory import mean_field
        >>> from derive.program import isotropic
        >>> lazy_steps(mean_field(isotropic(1, data="online", center=True))).settles
        -eta*k/(alpha_B*(eta*k - 2))
        """
        return factor(self.slope * eta**2 * k**2 / (1 - left))

    @cached_property
    def ceiling(self) -> Expr:
        """A rate above which the loss never settles, at no spread of the spectrum; None of it without noise.

        :attr:`settles` is convex in k, so that its average is at least its value at ``<k>``, which is 1 here.
        Where nothing is noisy the loss settles if no eigenvalue is above ``2/eta``, and ``<k>`` is not
        above the largest.
        """
        if self.slope == 0:
            return 2 / self.moments[0]
        return factor(solve(self.settles.subs(k, self.moments[0]) - 1, eta)[0])

    @cached_property
    def widest(self) -> Expr:
        """The largest rate that settles over the one that first raises the loss, in the limit of much noise.

        Both rates are then small, and :attr:`settles` is linear in ``eta k``.
        """
        return factor(self.moments[1] / self.moments[0] ** 2)

    def spectrum(self, nodes: int | None = None, digits: int = 20) -> list[tuple[Float, Float]]:
        """Eigenvalues and weights that have the known moments: Gauss's rule for the spectrum.

        There are half as many as moments, or fewer: ``nodes``.  Raises :class:`NotApplicable` for moments
        that are no numbers, or of a spectrum of fewer points.

        >>> from sympy import Rational
        >>> three = LazySteps(None, tuple(Rational(1 + 3**n, 2) for n in range(1, 5)), lambda c: c * 0)
        >>> [(round(float(k), 6), round(float(w), 6)) for k, w in three.spectrum()]
        [(1.0, 0.5), (3.0, 0.5)]
        """
        count = len(self.moments) // 2 if nodes is None else nodes
        if any(not x.is_number for x in self.moments):
            raise NotApplicable("the spectrum of a kernel with symbols: give numbers for all of them")
        if not 1 <= count <= len(self.moments) // 2:
            raise NotApplicable(f"{count} nodes need {2 * count} moments; {len(self.moments)} are known")
        m = (S.One, *self.moments)
        with workdps(digits + 10 * count):
            H = matrix(count, count)
            K = matrix(count, count)
            for i in range(count):
                for j in range(count):
                    H[i, j], K[i, j] = _number(m[i + j]), _number(m[i + j + 1])
            try:
                R = cholesky(H)
            except ValueError:
                raise NotApplicable(f"the spectrum has fewer than {count} points: ask for fewer") from None
            inverse = R**-1
            values, vectors = eigsy(inverse * K * inverse.T)
            pairs = [(values[i], (vectors[0, i]) ** 2) for i in range(count)]
            return [(Float(str(v), digits), Float(str(w), digits)) for v, w in pairs]

    def largest_rate(self, nodes: int | None = None) -> Float:
        """The largest rate at which the lazy loss settles, from above; all symbols but the rate are numbers.

        With the eigenvalues of :meth:`spectrum` in place of the spectrum.  Every even derivative of
        :attr:`settles` in k is positive, so that Gauss's rule gives too small an average, and its largest
        eigenvalue is below the edge: more nodes, smaller rates.  One node gives :attr:`ceiling`.

        >>> from derive.theory import mean_field
        >>> from derive.program import isotropic
        >>> from derive.program.networks.isotropic import alpha_B
        >>> from sympy import Rational
        >>> numbers = {alpha_B: Rational(1, 4), nu: Rational(1, 2)}
        >>> theory = mean_field(isotropic(1, data="online", center=True)).map(lambda e: e.xreplace(numbers))
        >>> found = lazy_steps(theory, 3)
        >>> [round(float(found.largest_rate(n)), 4) for n in (1, 2, 3)], found.first_rise
        ([0.2, 0.1761, 0.1754], 2/15)
        """
        spectrum = self.spectrum(nodes)
        highest = 2 / max(v for v, _ in spectrum)
        if self.slope == 0:
            return highest
        total = lambdify(eta, Add(*[w * self.settles.subs(k, v) for v, w in spectrum]) - 1, "mpmath")
        low, high = Float(0), highest
        for _ in range(50):
            middle = (low + high) / 2
            low, high = (middle, high) if total(middle) < 0 else (low, middle)
        return Float(low)

    def wide(self, steps: Expr) -> Expr:
        """``C_v`` after any number of steps, a symbol or a number, of infinitely wide layers.

        Their spectrum is a point, and so every step is a first step.  Raises :class:`NotApplicable` where the
        widths are no single symbol that can go to infinity.
        """
        top = limit(self.spread, nu, oo)
        if top != 0:
            raise NotApplicable(f"the spread of the kernel tends to {top} with nu: there is no wide limit")
        mean = self.moments[0]
        F = left.subs(k, mean) + eta**2 * mean**2 * self.slope
        drive = eta**2 * mean**2 * self.noise(S.Zero)
        return F**steps + drive * (F**steps - 1) / (F - 1) if drive != 0 else F**steps

    def bound(self, steps: int) -> Expr:
        r"""How far the memory-free recursion is from ``C_v`` after that many steps, at most.

        With ``F`` the factor of the recursion, and ``V = <x^2> - <x>^2``, what a step drops is

            d_t = cov(x, x^t) + eta^2 q' sum_{s < t} cov(x, k^2 x^(t - 1 - s)) C_v(s).

        For ``eta k <= 2``, which is a condition on the spectrum, ``x <= 1``.  Then the first covariance is
        between 0 and ``t V`` (``x^t`` has slopes up to t), the others are at most ``sqrt(V <k^4>)`` in size
        (Cauchy-Schwarz), and ``C_v(s) <= (1 + eta^2 <k^2> q')^s``.  After T steps the errors add up
        to ``sum_t F^(T - 1 - t) d_t``.  Without noise they are positive: the recursion is a lower bound at
        every step.  Label noise is left out.  Needs four moments.
        """
        V = self.average(left**2) - self.average(left) ** 2
        beyond = eta**2 * self.moments[1] * self.slope
        F = self.average(left) + beyond
        total = S.Zero
        for t in range(1, steps):
            dropped = t * V
            if self.slope != 0:
                past = Add(*[(1 + beyond) ** s for s in range(t)])
                dropped += eta**2 * self.slope * sqrt(V * self.moments[3]) * past
            total += F ** (steps - 1 - t) * dropped
        return total


def lazy_steps(theory: Theory, steps: int = 2) -> LazySteps:
    """The lazy limit of a centred linear theory on fresh isotropic data, from its first steps.

    ``steps`` gives twice as many moments.  For the depth L the moment of order n is a polynomial of degree
    ``2 n - 1`` in L, found from numbers (:func:`.in_depth`).  Raises :class:`NotApplicable` if the theory's
    own steps are not those of a kernel that stands still: not centred, batches that come again, rules with
    memory.

    >>> from derive.theory import mean_field
    >>> from derive.program import isotropic
    >>> found = lazy_steps(mean_field(isotropic(data="online", center=True)), 1)
    >>> print(found.moments[0], "|", found.spread, "|", found.ceiling)
    L + 1 | L*(L + 1)*(2*L + 1)/(6*nu) | 2*alpha_B/((L + 1)*(alpha_B + 1))
    >>> print(found.widest)
    (2*L**2 + 6*L*nu + L + 6*nu)/(6*nu*(L + 1))
    """
    depth = theory.program.depth
    if depth.is_Integer:
        return _read(theory, steps)
    if depth != L:
        raise NotApplicable(f"depth {depth}: give L or a number")
    found: dict[int, LazySteps] = {}

    def at(n: int) -> LazySteps:
        if n not in found:
            here = theory if n < PLAIN else theory.map(lambda e: e.xreplace(plain))
            found[n] = _read(here.at_depth(n), steps)
        return found[n]

    in_noise = at(1).noise(SIZE).free_symbols - {SIZE}
    plain = {x: Integer(2) for x in in_noise}

    orders = range(1, 2 * steps + 1)
    moments = [factor(in_depth(lambda n, i=i: at(n).moments[i - 1], eta, degree=2 * i - 1)) for i in orders]  # type: ignore[misc]
    return LazySteps(theory, tuple(moments), at(1).noise)


def _read(theory: Theory, steps: int) -> LazySteps:
    names = {e.name for e in theory.equations}
    if not {"v", "h0", "xi"} <= names or len(theory.order_parameter("C_v").symbol.args) != 2:
        raise NotApplicable("the lazy steps are those of a centred network of one output on isotropic data")
    first = ExactSteps(theory, scaled={"w_star": SIZE})
    start = cancel(first.expr(first.value(Function("C_h0")(S.Zero, S.Zero))) - SIZE)

    def noise(size: Expr) -> Expr:
        return start.subs(SIZE, size)

    exact = ExactSteps(theory, order=(gamma0, 2))
    moments: tuple[Expr, ...] = ()
    for t in range(1, steps + 1):
        value = exact.expr(exact.value(Function("C_v")(Integer(t), Integer(t))))
        value = limit_at_zero(value)
        unknown = (Dummy("m"), Dummy("m"))
        expected = Poly(LazySteps(theory, (*moments, *unknown), noise).loss(t) - value, eta)
        solved = solve([expected.nth(2 * t - 1), expected.nth(2 * t)], unknown, dict=True)
        if not solved or any(cancel(c.subs(solved[0])) != 0 for c in expected.all_coeffs()):
            raise NotApplicable(f"step {t} of the lazy theory is not that of a kernel that stands still")
        moments += tuple(factor(solved[0][x]) for x in unknown)
    return LazySteps(theory, moments, noise)


def _number(x: Expr) -> Any:
    """To as many digits as are worked with."""
    p, q = fraction(x)
    return mpf(int(p)) / mpf(int(q)) if x.is_Rational else mpf(str(x.evalf(mp.dps)))


def limit_at_zero(value: Expr) -> Expr:
    """The limit of a rational function at ``gamma0 = 0``, which must be finite."""
    value = cancel(value)
    found = value.subs(gamma0, 0) if value.is_polynomial(gamma0) else limit(value, gamma0, 0)
    if found.has(oo, -oo, S.NaN, S.ComplexInfinity):
        raise NotApplicable("the lazy limit is infinite: of networks that are not centred")
    return found


__all__ = ["LazySteps", "k", "lazy_steps", "limit_at_zero"]
