r"""The memory-free recursion of the loss, and what it drops (linear2025 appendix D.2).

Between two steps the error changes by what the last input does and by what is left of the earlier ones,

    v(t + 1) = v(t) - a(t) h0(t) - m(t) - n(t),    m(t) = sum_{s < t} (k(t + 1, s) - k(t, s)) h0(s),

where ``k(t, s)`` is the kernel in front of ``h0(s)`` in the network's function, ``a(t) = k(t + 1, t)``, and
``n`` the change of the function's source ``r0``.  At the first step there is no m, and n owes nothing to v.
The recursion takes every step for a first one: all that the first step does is proportional to ``C_v(0)``,
label noise aside, and so ``C_v(t + 1)`` follows from ``C_v(t)`` alone.  What it drops is the rest of ``<v(t
+ 1)^2>``, four groups of averages; polynomials in the depth where that is ``L`` (:class:`.EveryDepth`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sympy import Add, Eq, Expr, Function, Integer, Poly, S, cancel, factor, sympify

from derive.calculus.sums import gathered
from derive.calculus.symbols import eta, s, t
from derive.errors import NotApplicable
from derive.linear.form import SourceCombination
from derive.program.networks.random_data import sigma
from derive.program.nonlinear import require_linear_rules
from derive.scale.first_steps import exact_steps, first_step
from derive.show.conditions import ConditionalResult
from derive.show.latex import aligned_latex
from derive.theory import Theory

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
class MemoryFree(ConditionalResult):
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
        """Return what the recursion rests on."""
        known = "" if self.order is None else f", to the power {self.order} of the rate"
        return (
            "derived: the factor and the drive of the recursion, from the first step of an error of any size",
            "assumed: every step is a first step, so that only the error is remembered",
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
        if count.is_Integer:
            return power * start + self.drive * Add(*[self.factor**k for k in range(int(count))])
        return power * start + self.drive * (power - 1) / (self.factor - 1)


def memory_free(theory: Theory, step: int = 1, order: int | None = None) -> MemoryFree:
    """The memory-free recursion of a centred linear theory on isotropic data, and what it drops.

    A depth that is a number gives the terms exactly, or to a power ``order`` of the rate.  For the depth L
    an order is needed; each coefficient is then a polynomial in L.  Raises :class:`NotApplicable` where the
    error owes something to the weights from the start (not centred), where these decay or meet noise, where
    batches come again (the data remember), for a flow and several outputs.

    >>> from derive import isotropic, mean_field
    >>> found = memory_free(mean_field(isotropic(1, data="population", center=True)))
    >>> found.factor
    (4*eta**2*nu + eta**2 - 4*eta*nu + nu)/nu
    >>> for name in TERMS: print(name, "|", found.leading(name))
    growth of the kernel | -6*eta**3*gamma0**2
    growth of the weights' noise | -2*eta**3/nu**2
    memory of earlier inputs | 2*eta**2/nu
    correlation of weights and error | 2*eta**2/nu
    """
    require_linear_rules(theory.program, "the theory of early times")
    if step < 1:
        raise NotApplicable(f"step = {step}: the first step is exact; give 1 or more")
    depth = theory.program.depth
    if not depth.is_Integer and order is None:
        raise NotApplicable(f"the terms dropped at depth {depth} need an order in the rate: give order")
    recursion = _EarlyRecursion(theory, order)
    after = first_step(theory).after  # of an error of size one
    gain = factor(after.subs(sigma, 0))
    drive = factor(after - gain)
    return MemoryFree(theory, gain, drive, recursion.terms(step, gain, drive), step, order)


class _EarlyRecursion:
    def __init__(self, theory: Theory, order: int | None) -> None:
        self.theory = theory
        names = {e.name for e in theory.equations}
        if not {"v", "h0"} <= names or len(theory.order_parameter("C_v").symbol.args) != 2:
            raise NotApplicable("the recursion is that of one output on isotropic data")
        if "xi" not in names:
            raise NotApplicable(
                "not centred: the initial error owes something to the weights; give center=True"
            )
        self.exact = exact_steps(theory, None if order is None else (eta, order))
        rule = theory.program.rule
        if rule.memory(t, s)[0] != 1 or rule.noise(t, s) != 0:
            raise NotApplicable("weights that decay or meet noise move without an error")
        if rule.memory(t, s)[1].has(t, s):
            raise NotApplicable("updates enter with a factor that depends on the time: give a constant rate")
        if self.remembered():
            raise NotApplicable("samples that come again are remembered by the error: give fresh batches")

    def remembered(self) -> bool:
        """Does an input share with the one before anything but the error?  Not where batches are fresh."""
        error, earlier = (self.exact.form(Function(x)(k)) for x, k in (("v", S.One), ("h0", S.Zero)))
        return bool(self.exact.value(Function("C_h0")(S.One, S.Zero)) - self.exact.overlap(error, earlier))

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
        n: SourceCombination = self.source(now)
        grown = ((s, self.kernel(then, s) - self.kernel(now, s)) for s in map(Integer, range(step)))
        m = gathered((y, k * c) for s, k in grown for y, c in exact.form(Function("h0")(s)).items())
        n0 = self.source(S.Zero)
        share = exact.quotient(exact.overlap(n0, n0), exact.value(Function("C_h0")(S.Zero, S.Zero)))
        vh, hh, nn = exact.overlap(v, h0), exact.overlap(h0, h0), exact.overlap(n, n)
        terms = {
            KERNEL: (a - a0) * (-2 * vh) + (a * a - a0 * a0) * hh,
            NOISE: nn - share * hh,
            MEMORY: 2 * (-exact.overlap(v, m) + a * exact.overlap(h0, m) + exact.overlap(m, n))
            + exact.overlap(m, m),
            CORRELATION: 2 * (a * exact.overlap(h0, n) - exact.overlap(v, n)),
        }
        repeated = exact.number(gain) * exact.value(Function("C_v")(now, now)) + exact.number(drive)
        gap = exact.value(Function("C_v")(then, then)) - repeated - sum(terms.values(), exact.zero)
        if exact.trimmed(gap):
            raise NotApplicable("the terms found are not all that a step adds to a first step")
        return {x: self.shown(exact.trimmed(value)) for x, value in terms.items()}

    def kernel(self, now: Expr, past: Expr) -> Any:
        """What multiplies ``h0(past)`` in the network's function at time ``now``."""
        row = self.exact.row(Function("xi")(now))
        found = [self.exact.kernel(x, now, past) for x in row.actions if x.name == "h0" and x.reach]
        return sum(found, self.exact.zero)

    def source(self, now: Expr) -> SourceCombination:
        """How the function's own source changes in a step."""
        return gathered(
            (y, sign * c)
            for time, sign in ((now + 1, 1), (now, -1))
            for x in self.exact.row(Function("xi")(time)).sources
            for y, c in self.exact.acted(x, time).items()
        )


def _lowest(e: Expr) -> Expr:
    """The lowest power of the rate in a polynomial."""
    (power,), c = Poly(e.expand(), eta).terms()[-1]
    return factor(c) * eta**power
