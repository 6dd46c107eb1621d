"""Memory-free recursion of the loss, and the terms that it neglects (linear2025 appendix D.2).

Between two steps the error changes by the last input and by the memory of earlier ones,

    v(t + 1) = v(t) - a(t) h0(t) - m(t) - n(t),    m(t) = sum_{s < t} (k(t + 1, s) - k(t, s)) h0(s),

where ``k(t, s)`` is the kernel of ``h0(s)`` in the network's function, ``a(t) = k(t + 1, t)``, and ``n`` is
the change of the function's source ``r0``. At the first step m vanishes, and n does not depend on v. The
recursion treats every step as a first one: apart from label noise, the change in the first step is
proportional to the initial loss ``C_v(0) = <v(0)^2>``, so that ``C_v(t + 1)`` follows from ``C_v(t)`` alone.
The neglected part of ``<v(t + 1)^2>`` consists of four groups of averages; they are polynomials in the depth
if that is ``L`` (:class:`.EveryDepth`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from sympy import Add, Eq, Expr, Function, Integer, Poly, S, cancel, factor

from derive.calculus.sums import gathered
from derive.calculus.symbols import converted, eta, s, t
from derive.errors import NotApplicable, require_integer
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
"""Names of the neglected terms: contributions of ``a(t) - a(0)`` with ``<v h0>`` and ``<h0^2>``; ``<n^2>``
without the part proportional to ``C_h0`` as at the first step; all averages with m; ``<v n>`` and ``<h0
n>``."""

SHORT = 60
"""Number of terms of a numerator from which on it is not factored, because that takes long."""


@dataclass(frozen=True, repr=False)
class MemoryFree(ConditionalResult):
    """Memory-free recursion ``C_v(t + 1) = factor C_v(t) + drive`` of the loss, with its neglected terms.

    Parameters
    ----------
    theory : Theory
        Theory of which the recursion is an approximation.
    factor : Expr
        Factor of the loss in one step.
    drive : Expr
        Part that label noise adds in one step.
    dropped : Mapping[str, Expr]
        Four neglected terms in the step from ``step``, by name: ``growth of the kernel``, ``growth of the
        weights' noise``, ``memory of earlier inputs`` and ``correlation of weights and error``. They sum to
        ``C_v(step + 1) - factor C_v(step) - drive`` with the exact C_v.
    step : int
        Step at which the neglected terms are evaluated.
    order : int | None
        Highest power of the learning rate in ``dropped``; None if they are exact.
    """

    theory: Theory
    factor: Expr
    drive: Expr
    dropped: Mapping[str, Expr]
    step: int = 1
    order: int | None = None

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about the recursion of the loss.

        Returns
        -------
        tuple[str, ...]
            Sentences that begin with "derived: " or "assumed: ".
        """
        up_to_order = "" if self.order is None else f", up to the power {self.order} of the learning rate"
        return (
            "derived: the factor of the loss and the constant from label noise, from the first step with an "
            "initial error of any size",
            "assumed: every step changes the loss as a first step does, so that a step depends on the error "
            "but not on earlier steps",
            f"derived: all terms that this assumption neglects in the step from t = {self.step}{up_to_order}",
        )

    def _repr_latex_(self) -> str:
        size = Function("C_v")
        after = self.factor * size(t, t) + self.drive
        return aligned_latex([Eq(size(t + 1, t + 1), after, evaluate=False)], self.theory)

    @cached_property
    def error(self) -> Expr:
        """Error of one step of the recursion: the exact loss minus that of the recursion after the step.

        It is the sum of the neglected terms.
        """
        return cancel(Add(*self.dropped.values()))

    def leading(self, name: str | None = None) -> Expr:
        """Return one neglected term, or the sum of all, to the lowest power of the learning rate.

        Parameters
        ----------
        name : str | None, optional
            Name of the neglected term; the sum of all by default.

        Returns
        -------
        Expr
            Lowest power with its coefficient.

        Raises
        ------
        KeyError
            If there is no term of that name.
        """
        return _lowest(self.error if name is None else self.dropped[name])

    def loss(self, steps: int | Expr, start: Expr = S.One) -> Expr:
        """Return the loss ``C_v`` after a number of steps of ``C_v(t + 1) = factor C_v(t) + drive``.

        Parameters
        ----------
        steps : int | Expr
            Number of steps; a symbol is allowed.
        start : Expr, optional
            Initial value ``C_v(0)``.

        Returns
        -------
        Expr
            ``C_v`` after the steps.

        Raises
        ------
        ValueError
            If ``steps`` is a number that is negative or not an integer.
        """
        count = converted(steps)
        if count.is_number:
            require_integer("steps", steps, 0)
        power = self.factor**count
        if count.is_Integer:
            return power * start + self.drive * Add(*[self.factor**k for k in range(int(count))])
        return power * start + self.drive * (power - 1) / (self.factor - 1)


def memory_free(theory: Theory, step: int = 1, order: int | None = None) -> MemoryFree:
    """Return the memory-free recursion of a theory, and the terms that it neglects.

    Parameters
    ----------
    theory : Theory
        Centred linear theory on isotropic data, with fields called ``v``, ``h0`` and ``xi`` as in
        :func:`.isotropic`.
    step : int, optional
        Step at which the neglected terms are evaluated, 1 or later.
    order : int | None, optional
        Highest power of the learning rate in the neglected terms; by default they are exact. A symbolic depth
        L needs one; coefficients are then polynomials in L.

    Returns
    -------
    MemoryFree
        The recursion.

    Raises
    ------
    NotApplicable
        If the error depends on the initial weights (not centred), if these decay or receive noise, if the
        learning rate depends on the time, for momentum, if batches are repeated (samples then have a memory),
        for a flow, for several outputs, for data that are not isotropic, and for a symbolic depth without an
        order.
    ValueError
        If the step is below 1 or not an integer, or if the order is negative or not an integer.

    Examples
    --------
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
    step = require_integer("step", step, 1)
    order = None if order is None else require_integer("order", order, 0)
    depth = theory.program.depth
    if not depth.is_Integer and order is None:
        raise NotApplicable(
            f"the neglected terms at depth {depth} are expanded in the learning rate: give order, the "
            "highest power of the learning rate, such as order=3"
        )
    recursion = _EarlyRecursion(theory, order)
    after = first_step(theory).after  # C_v after one step, for C_v(0) = 1; it is gain + drive
    gain = factor(after.subs(sigma, 0))
    drive = factor(after - gain)
    return MemoryFree(theory, gain, drive, recursion.terms(step, gain, drive), step, order)


class _EarlyRecursion:
    """Evaluation of the terms that the recursion ``C_v(t + 1) = factor C_v(t) + drive`` of the loss neglects.

    The exact first steps of the theory are used. ``order`` is the highest power of the learning rate that is
    kept, or None for exact results.
    """

    def __init__(self, theory: Theory, order: int | None) -> None:
        self.theory = theory
        names = {e.name for e in theory.equations}
        if not {"v", "h0"} <= names or len(theory.order_parameter("C_v").symbol.args) != 2:
            raise NotApplicable("the memory-free recursion needs a theory of one output on isotropic data")
        if "xi" not in names:
            raise NotApplicable(
                "the network is not centred, so that its initial error depends on the initial weights: "
                "give center=True"
            )
        self.exact = exact_steps(theory, None if order is None else (eta, order))
        rule = theory.program.rule
        if rule.memory(t, s)[0] != 1 or rule.noise(t, s) != 0:
            raise NotApplicable(
                "weights with decay or noise change even if the error is zero, which the memory-free "
                "recursion neglects"
            )
        if rule.memory(t, s)[1].has(t, s):
            raise NotApplicable(
                "the factor of an update in the weights depends on the time, as with momentum or a "
                "schedule: use gradient descent with a constant learning rate"
            )
        if self.remembered():
            raise NotApplicable(
                "the error depends on earlier steps because samples are reused: give fresh batches, by "
                "data='online'"
            )

    def remembered(self) -> bool:
        """Return whether samples are reused, so that the inputs h0 of steps 0 and 1 share samples.

        With fresh batches ``C_h0(1, 0)`` equals the correlation of ``v(1)`` and ``h0(0)``. Both are compared.
        """
        error, earlier = (self.exact.form(Function(x)(k)) for x, k in (("v", S.One), ("h0", S.Zero)))
        difference = self.exact.value(Function("C_h0")(S.One, S.Zero)) - self.exact.overlap(error, earlier)
        return bool(self.exact.expr(difference) != 0)

    def shown(self, x: Any) -> Expr:
        """Return a coefficient of the exact steps as a SymPy expression, factored if it has few terms."""
        e = self.exact.expr(x)
        return factor(e) if len(getattr(x, "numer", x)) < SHORT else e

    def terms(self, step: int, gain: Expr, drive: Expr) -> dict[str, Expr]:
        """Return the neglected terms of the step from ``step``, by their names ``TERMS``.

        ``gain`` and ``drive`` are factor and constant of the recursion. Raises NotApplicable unless
        the terms sum to the difference between the recursion and the exact step.
        """
        exact = self.exact
        now, then = Integer(step), Integer(step + 1)
        a, a0 = self.kernel(then, now), self.kernel(S.One, S.Zero)
        v, h0 = (exact.form(Function(x)(now)) for x in ("v", "h0"))
        n: SourceCombination = self.source(now)
        kernel_changes = ((s, self.kernel(then, s) - self.kernel(now, s)) for s in map(Integer, range(step)))
        m = gathered((y, k * c) for s, k in kernel_changes for y, c in exact.form(Function("h0")(s)).items())
        n0 = self.source(S.Zero)
        ratio = exact.quotient(exact.overlap(n0, n0), exact.value(Function("C_h0")(S.Zero, S.Zero)))
        vh, hh, nn = exact.overlap(v, h0), exact.overlap(h0, h0), exact.overlap(n, n)
        terms = {
            KERNEL: (a - a0) * (-2 * vh) + (a * a - a0 * a0) * hh,
            NOISE: nn - ratio * hh,
            MEMORY: 2 * (-exact.overlap(v, m) + a * exact.overlap(h0, m) + exact.overlap(m, n))
            + exact.overlap(m, m),
            CORRELATION: 2 * (a * exact.overlap(h0, n) - exact.overlap(v, n)),
        }
        repeated = exact.number(gain) * exact.value(Function("C_v")(now, now)) + exact.number(drive)
        gap = exact.value(Function("C_v")(then, then)) - repeated - sum(terms.values(), exact.zero)
        if exact.expr(exact.trimmed(gap)) != 0:
            raise NotApplicable(
                f"the four neglected terms ({', '.join(terms)}) do not sum to the difference between the "
                "loss after the exact step and that of the memory-free recursion"
            )
        return {x: self.shown(exact.trimmed(value)) for x, value in terms.items()}

    def kernel(self, now: Expr, past: Expr) -> Any:
        """Return k(now, past): the factor of the input ``h0(past)`` in the network's function xi at ``now``.

        It is the sum of the kernels of all memory terms of h0 in the equation of xi, as a coefficient of the
        exact steps.
        """
        row = self.exact.row(Function("xi")(now))
        factors = [self.exact.kernel(x, now, past) for x in row.actions if x.name == "h0" and x.reach]
        return sum(factors, self.exact.zero)

    def source(self, now: Expr) -> SourceCombination:
        """Return the change of the Gaussian source of the network's function xi in the step from ``now``.

        The result maps each source to its coefficient.
        """
        return gathered(
            (y, sign * c)
            for time, sign in ((now + 1, 1), (now, -1))
            for x in self.exact.row(Function("xi")(time)).sources
            for y, c in self.exact.contribution(x, time).items()
        )


def _lowest(e: Expr) -> Expr:
    """Return the term with the lowest power of the learning rate in a polynomial; 0 for the polynomial 0."""
    (power,), c = Poly(e.expand(), eta).terms()[-1]
    return factor(c) * eta**power
