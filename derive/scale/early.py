r"""Early training of lazy and of memory-free networks (linear2025 appendix D.2).

Lazy.  At gamma0 -> 0 a centred network learns with a kernel K that stands still, ``v(t + 1) = v(t) - eta K
h0(t)``, and with fresh batches ``h0 = v + noise`` whose variance is a function q of ``C_v``.  An eigenvalue k
of K leaves ``x = (1 - eta k)^2`` of its share of the loss in a step; with averages over the spectrum of K,

    C_v(t) = <x^t> + sum_{s < t} eta^2 <k^2 x^(t - 1 - s)> q(C_v(s)).

Moments of the spectrum are read off the derived theory, q off its equation of h0.  That K stands still is
assumed; that the theory then gives the sum above is checked, step by step, when moments are read.

Memory-free.  Between two steps the error changes by what the last input does and by what is left of the
earlier ones,

    v(t + 1) = v(t) - a(t) h0(t) - m(t) - n(t),    m(t) = sum_{s < t} (k(t + 1, s) - k(t, s)) h0(s),

where ``k(t, s)`` is the kernel in front of ``h0(s)`` in the network's function, ``a(t) = k(t + 1, t)``, and
``n`` the change of the function's source ``r0``.  At the first step there is no m, and n owes nothing to v.
The recursion takes every step for a first one: all that the first step does is proportional to ``C_v(0)``,
label noise aside, and so ``C_v(t + 1)`` follows from ``C_v(t)`` alone.  What it drops is the rest of ``<v(t
+ 1)^2>``, four groups of averages.

Both are polynomials in the depth where that is ``L``: see :class:`.EveryDepth`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mpmath import cholesky, eigsy, matrix, mp, mpf, workdps
from sympy import (
    Add,
    Dummy,
    Eq,
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
    sympify,
)
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Average
from derive.calculus.symbols import eta, gamma0, t
from derive.errors import NotApplicable
from derive.program.networks.random_data import nu, sigma
from derive.scale.first_steps import EveryDepth, ExactSteps, Form, add_to, first_step
from derive.show.latex import aligned_latex
from derive.theory import Theory

# -- lazy ---------------------------------------------------------------------------------------------------

k = Symbol("k", positive=True)
"""An eigenvalue of the kernel."""
SIZE = Dummy("c", positive=True)
"""``C_v`` as the argument of the noise."""
left = (1 - eta * k) ** 2
"""What a step leaves of an eigenvalue's share of the loss."""


@dataclass(frozen=True)
class LazySteps:
    """The spectrum of the lazy kernel by its moments ``<k>, <k^2>, ...``, and the noise of ``h0`` given C_v.

    Without noise ``C_v(t) = <x^t>``, the moments of a positive variable: ``C_v(t + 1)/C_v(t)`` never falls
    (Cauchy-Schwarz).  A loss that rises in one step then rises ever after, there is no recovery.
    """

    theory: Theory
    moments: tuple[Expr, ...]
    noise: Callable[[Expr], Expr]

    def conditions(self) -> tuple[str, ...]:
        """What the moments rest on, in words, and of each whether it is derived or assumed."""
        known = len(self.moments)
        return (
            f"derived: moments 1 to {known}, from {known // 2} steps of the theory as gamma0 -> 0",
            "derived: these steps are those of a kernel that stands still; assumed: so are all later ones",
            "assumed: gamma0 -> 0 before the number of steps grows, so that no catapult moves the kernel",
        )

    def _repr_latex_(self) -> str:
        return aligned_latex(Eq(Average(k**n), m, evaluate=False) for n, m in enumerate(self.moments, 1))

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
        for n in range(1, steps + 1):
            kicks = [
                eta**2 * self.average(k**2 * left ** (n - 1 - m)) * self.noise(found[m]) for m in range(n)
            ]
            found.append(Add(self.average(left**n), *kicks).expand())
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
        >>> from derive.program.networks.random_data import alpha_B
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
        for n in range(1, steps):
            dropped = n * V
            if self.slope != 0:
                past = Add(*[(1 + beyond) ** m for m in range(n)])
                dropped += eta**2 * self.slope * sqrt(V * self.moments[3]) * past
            total += F ** (steps - 1 - n) * dropped
        return total


def lazy_steps(theory: Theory, steps: int = 2) -> LazySteps:
    """The lazy limit of a centred linear theory on fresh isotropic data, from its first steps.

    ``steps`` gives twice as many moments.  For the depth L the moment of order n is a polynomial of degree
    ``2 n - 1`` in L.  Raises :class:`NotApplicable` if the theory's own steps are not those of a kernel that
    stands still: not centred, batches that come again, rules with memory.

    >>> from derive.theory import mean_field
    >>> from derive.program import isotropic
    >>> found = lazy_steps(mean_field(isotropic(data="online", center=True)), 1)
    >>> print(found.moments[0], "|", found.spread, "|", found.ceiling)
    L + 1 | L*(L + 1)*(2*L + 1)/(6*nu) | 2*alpha_B/((L + 1)*(alpha_B + 1))
    >>> print(found.widest)
    (2*L**2 + 6*L*nu + L + 6*nu)/(6*nu*(L + 1))
    """
    names = {e.name for e in theory.equations}
    if not {"v", "h0", "xi"} <= names or len(theory.order_parameter("C_v").symbol.args) != 2:
        raise NotApplicable("the lazy steps are those of a centred network of one output on isotropic data")
    number = theory.program.depth.is_Integer

    def exact(order: tuple[Symbol, int], **scaled: Symbol) -> ExactSteps:
        return (ExactSteps if number else EveryDepth)(theory, scaled=scaled, order=order)

    first = exact((eta, 0), w_star=SIZE)
    start = cancel(first.expr(first.value(Function("C_h0")(S.Zero, S.Zero))) - SIZE)

    def noise(size: Expr) -> Expr:
        return start.subs(SIZE, size)

    read = exact((gamma0, 2) if number else (eta, 2 * steps))
    moments: tuple[Expr, ...] = ()
    for n in range(1, steps + 1):
        value = limit_at_zero(read.expr(read.value(Function("C_v")(Integer(n), Integer(n)))))
        unknown = (Dummy("m"), Dummy("m"))
        expected = Poly(LazySteps(theory, (*moments, *unknown), noise).loss(n) - value, eta)
        solved = solve([expected.nth(2 * n - 1), expected.nth(2 * n)], unknown, dict=True)
        if not solved or any(cancel(c.subs(solved[0])) != 0 for c in expected.all_coeffs()):
            raise NotApplicable(f"step {n} of the lazy theory is not that of a kernel that stands still")
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


# -- memory-free --------------------------------------------------------------------------------------------

KERNEL = "growth of the kernel"
NOISE = "growth of the weights' noise"
MEMORY = "memory of earlier inputs"
CORRELATION = "correlation of weights and error"
TERMS = (KERNEL, NOISE, MEMORY, CORRELATION)
"""What is dropped: all that ``a(t) - a(0)`` does; ``<n^2>`` beyond its share of ``C_h0``; every average with
m; ``<v n>`` and ``<h0 n>``."""

SHORT = 60
"""Numbers of terms above which a numerator is not factored."""


@dataclass(frozen=True)
class MemoryFree:
    """``C_v(t + 1) = factor C_v(t) + drive``, and the four terms that this drops in the step from ``step``.

    ``drive`` is what label noise adds.  ``dropped`` adds up to ``C_v(step + 1) - factor C_v(step) -
    drive``; with ``order`` it is known to that power of the rate only.
    """

    theory: Theory
    factor: Expr
    drive: Expr
    dropped: Mapping[str, Expr]
    step: int = 1
    order: int | None = None

    def conditions(self) -> tuple[str, ...]:
        """What the recursion rests on, in words, and of each whether it is derived or assumed."""
        known = "" if self.order is None else f", to the power {self.order} of the rate"
        return (
            "derived: the factor and the drive, those of the first step from an error of any size",
            "assumed: every step is a first step: nothing is remembered but the error",
            f"derived: all that this drops in the step from {self.step}{known}",
        )

    def _repr_latex_(self) -> str:
        size = Function("C_v")
        after = self.factor * size(t, t) + self.drive
        return aligned_latex([Eq(size(t + 1, t + 1), after, evaluate=False)], self.theory)

    @cached_property
    def error(self) -> Expr:
        """What one step of the recursion misses: the sum of the terms."""
        return cancel(Add(*self.dropped.values()))

    def leading(self, name: str | None = None) -> Expr:
        """The lowest power of the rate in a dropped term, or in their sum.

        Raises KeyError for a name that is none of them.
        """
        return _lowest(self.error if name is None else self.dropped[name])

    def loss(self, steps: int | Expr, start: Expr = S.One) -> Expr:
        """``C_v`` after that many steps of the recursion, a number or a symbol, from ``C_v(0) = start``."""
        count = sympify(steps, strict=True)
        power = self.factor**count
        if self.drive == 0:
            return power * start
        if count.is_Integer:
            return power * start + self.drive * Add(*[self.factor**k for k in range(int(count))])
        return power * start + self.drive * (power - 1) / (self.factor - 1)


def memory_free(theory: Theory, step: int = 1, order: int | None = None) -> MemoryFree:
    """The memory-free recursion of a centred linear theory on isotropic data, and what it drops.

    A depth that is a number gives the terms exactly, or to a power ``order`` of the rate.  For the depth L
    an order is needed; each coefficient is then a polynomial in L.  Raises :class:`NotApplicable` where the
    error owes something to the weights from the start (not centred), where batches come again (the data
    remember), for a flow and several outputs.

    >>> from derive.theory import mean_field
    >>> from derive.program import isotropic
    >>> found = memory_free(mean_field(isotropic(1, data="population", center=True)))
    >>> found.factor
    (4*eta**2*nu + eta**2 - 4*eta*nu + nu)/nu
    >>> for name in TERMS: print(name, "|", found.leading(name))
    growth of the kernel | -6*eta**3*gamma0**2
    growth of the weights' noise | -2*eta**3/nu**2
    memory of earlier inputs | 2*eta**2/nu
    correlation of weights and error | 2*eta**2/nu
    """
    if step < 1:
        raise NotApplicable(f"step = {step}: the first step is exact; give 1 or more")
    depth = theory.program.depth
    if not depth.is_Integer and order is None:
        raise NotApplicable(f"the terms dropped at depth {depth} need an order in the rate: give order")
    recursion = _Recursion(theory, order)
    after = first_step(theory).after  # of an error of size one
    gain = factor(after.subs(sigma, 0))
    drive = factor(after - gain)
    return MemoryFree(theory, gain, drive, recursion.terms(step, gain, drive), step, order)


class _Recursion:
    def __init__(self, theory: Theory, order: int | None) -> None:
        self.theory = theory
        names = {e.name for e in theory.equations}
        if not {"v", "h0"} <= names or len(theory.order_parameter("C_v").symbol.args) != 2:
            raise NotApplicable("the recursion is that of one output on isotropic data")
        if "xi" not in names:
            raise NotApplicable(
                "not centred: the initial error owes something to the weights; give center=True"
            )
        power = None if order is None else (eta, order)
        if power and not theory.program.depth.is_Integer:
            self.exact: ExactSteps = EveryDepth(theory, order=power)
        else:
            self.exact = ExactSteps(theory, order=power)
        if self.remembered():
            raise NotApplicable("samples that come again are remembered by the error: give fresh batches")

    def remembered(self) -> bool:
        """Does an input share with the one before anything but the error?  Not where batches are fresh."""
        error, earlier = (self.exact.form(Function(x)(k)) for x, k in (("v", S.One), ("h0", S.Zero)))
        return bool(self.exact.value(_at("C_h0", S.One, S.Zero)) - self.exact.overlap(error, earlier))

    def shown(self, x: Any) -> Expr:
        """In factors, if it is short."""
        e = self.exact.expr(x)
        return factor(e) if len(getattr(x, "numer", x)) < SHORT else e

    def terms(self, step: int, gain: Expr, drive: Expr) -> dict[str, Expr]:
        """The averages that a step adds beyond those of a first step; they must be all that it adds."""
        exact = self.exact
        now, then = Integer(step), Integer(step + 1)
        a, a0 = self.kernel(then, now), self.kernel(S.One, S.Zero)
        v, h0 = (exact.form(Function(x)(now)) for x in ("v", "h0"))
        n: Form = self.source(now)
        m: Form = {}
        for s in map(Integer, range(step)):
            add_to(m, exact.form(Function("h0")(s)), self.kernel(then, s) - self.kernel(now, s))
        n0 = self.source(S.Zero)
        share = exact.quotient(exact.overlap(n0, n0), exact.value(_at("C_h0", S.Zero, S.Zero)))
        vh, hh, nn = exact.overlap(v, h0), exact.overlap(h0, h0), exact.overlap(n, n)
        terms = {
            KERNEL: (a - a0) * (-2 * vh) + (a * a - a0 * a0) * hh,
            NOISE: nn - share * hh,
            MEMORY: 2 * (-exact.overlap(v, m) + a * exact.overlap(h0, m) + exact.overlap(m, n))
            + exact.overlap(m, m),
            CORRELATION: 2 * (a * exact.overlap(h0, n) - exact.overlap(v, n)),
        }
        repeated = exact.number(gain) * exact.value(_at("C_v", now, now)) + exact.number(drive)
        gap = exact.value(_at("C_v", then, then)) - repeated - sum(terms.values(), exact.zero)
        if exact.trimmed(gap):
            raise NotApplicable("the terms found are not all that a step adds to a first step")
        return {x: self.shown(exact.trimmed(value)) for x, value in terms.items()}

    def kernel(self, now: Expr, past: Expr) -> Any:
        """What multiplies ``h0(past)`` in the network's function at time ``now``."""
        row = self.exact.row(Function("xi")(now))
        found = [self.exact.kernel(x, now, past) for x in row.actions if x.name == "h0" and x.reach]
        return sum(found, self.exact.zero)

    def source(self, now: Expr) -> Form:
        """How the function's own source changes in a step."""
        found: Form = {}
        for time, sign in ((now + 1, 1), (now, -1)):
            for x in self.exact.row(Function("xi")(time)).sources:
                add_to(found, self.exact.acted(x, time), self.exact.number(Integer(sign)))
        return found


def _at(name: str, one: Expr, two: Expr) -> AppliedUndef:
    return Function(name)(one, two)


def _lowest(e: Expr) -> Expr:
    """The lowest power of the rate in a polynomial."""
    (power,), c = Poly(e.expand(), eta).terms()[-1]
    return factor(c) * eta**power
