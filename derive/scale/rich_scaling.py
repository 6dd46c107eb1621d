"""Power laws of the rich regime, with their constants, first corrections, and when they hold.

The closed equations of :mod:`derive.scale.rich_ansatz` on power-law data.  With the integral of the kernel
for a clock every mode runs through the same profile, so that sums over modes are powers of the clock; powers
and constants are what makes both sides of the equation of the singular values alike.

What is derived: everything after the ansatz.  What is assumed: that kernels are of rank one in time, at
leading order.  :mod:`derive.scale.rich_dropped` finds what was left out to be smaller by powers of time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sympy import (
    Add,
    Eq,
    Expr,
    Function,
    Integral,
    Mul,
    S,
    Sum,
    Symbol,
    expand_power_base,
    factor,
    oo,
    powdenest,
    powsimp,
    simplify,
    solve,
)

from derive.calculus.symbols import exact
from derive.errors import NotApplicable
from derive.program.words import L
from derive.program.words import t as moment
from derive.scale.rich_ansatz import RankOne, kappa, phi, rank_one, sigma
from derive.scale.rich_corrections import Correction, Powers
from derive.scale.rich_profiles import argument, missing, mode_sum, product_transform, profile, x
from derive.scale.scaling_lazy import alpha, beta
from derive.scale.scaling_lazy import time as t

k = Symbol("k", positive=True)
I_F, I_v = Symbol("I_F", positive=True), Symbol("I_v", positive=True)
"""Moments of the share learnt of a mode, squared, and of the share left, squared."""

HARD, EASY = "hard", "easy"


@dataclass(frozen=True)
class RichScaling:
    """Late times of gradient flow on power-law data in the rich regime.

    ``loss = constant t^-exponent``, ``kernel = C_g(1,t,t)``, both with their powers of gamma0; ``clock`` is
    the integral of the kernel, ``profile`` the share learnt of a mode as a function of ``x = lamda clock``.
    Constants contain two moments of the profile, ``I_F`` and ``I_v``: ``moments`` are their definitions,
    ``values`` their closed forms, and :attr:`formula` has their names.  ``task`` is ``"hard"`` (beta < 1) or
    ``"easy"``; there the kernel has stopped growing.  ``conditions`` says in words when this holds.
    """

    reduced: RankOne
    task: str
    depth: Expr
    source: Expr
    capacity: Expr
    growth: Expr
    exponent: Expr
    named: Expr
    named_kernel: Expr
    named_clock: Expr
    profile: Expr
    moments: tuple[Eq, ...]
    values: Mapping[Symbol, Expr]
    corrections: tuple[Correction, ...]
    conditions: tuple[str, ...]

    @property
    def constant(self) -> Expr:
        """What stands in front of ``t^-exponent``, moments in closed form."""
        return self.named.xreplace(dict(self.values))

    @property
    def loss(self) -> Expr:
        """The leading term."""
        return self.constant * t**-self.exponent

    @property
    def formula(self) -> Expr:
        """The same with the names of the moments.

        >>> print(rich_scaling(task="easy").formula)
        I_v/(alpha*gamma0**(2*L*beta/(L + 1))*t**beta*zeta(alpha*beta - alpha + 1)**(L*beta/(L + 1)))
        """
        return self.named * t**-self.exponent

    @property
    def regime(self) -> str:
        """Always ``"rich"``."""
        return "rich"

    @property
    def kernel(self) -> Expr:
        """``C_g(1,t,t)``, with its constant."""
        return self.named_kernel.xreplace(dict(self.values))

    @property
    def clock(self) -> Expr:
        """The integral of the kernel, with its constant."""
        return self.named_clock.xreplace(dict(self.values))

    @property
    def slowness(self) -> Expr:
        """The q of the profile: the kernel grows as ``clock^(2 q)``."""
        return simplify(self.growth / (1 + self.growth) / 2)

    @property
    def outgrown(self) -> Expr:
        """The time at which the large singular values are one, and the random start is forgotten.

        >>> from derive.program.words import gamma0
        >>> outgrown = rich_scaling().outgrown
        >>> print((gamma0 * outgrown.diff(gamma0) / outgrown).simplify())
        2/(beta - 1)
        """
        if self.growth == 0:
            raise NotApplicable("easy tasks: the kernel stops growing, at a number that gamma0 decides")
        return tidied((self.named_kernel / t**self.growth) ** (-1 / self.growth)).xreplace(dict(self.values))

    def corrected(self, *, start: Any = None) -> Expr:
        """The loss with its first corrections; ``start`` is the value of kappa, without which they are left
        out where they need it.
        """
        return self.loss * (1 + Add(*[c.size for c in self._kept(start)]))

    def slope(self, *, start: Any = None) -> Expr:
        """``-d log(loss)/d log(t)`` with the first corrections."""
        return self.exponent - Add(*[c.power * c.size for c in self._kept(start)])

    def _kept(self, start: Any) -> list[Correction]:
        kept = [c for c in self.corrections if c.known or (start is not None and c.size.has(kappa))]
        put = {} if start is None else {kappa: exact("start", start)}
        return [Correction(c.name, c.size.subs(put), c.power, c.known) for c in kept]

    def crossover(self, before: Expr) -> Expr:
        """The time at which the power meets another one, ``before = c t^-e``, such as the lazy loss.

        Raises :class:`NotApplicable` if ``before`` is no power of t or the two have the same power.
        """
        power = simplify(-t * before.diff(t) / before)
        front = powsimp(before * t**power)
        if power.has(t) or front.has(t):
            raise NotApplicable(f"{before} is no power of {t}")
        if simplify(power - self.exponent) == 0:
            raise NotApplicable(f"both losses fall as {t}^-({power}): they do not cross")
        return tidied((self.named / front) ** (1 / (self.exponent - power))).xreplace(dict(self.values))


def rich_scaling(
    depth: Any = L, source: Any = beta, capacity: Any = alpha, *, task: str | None = None
) -> RichScaling:
    """The power laws of the rich regime; each argument is a number or a symbol.

    ``task`` (``hard``: source below 1, or ``easy``) is needed where the source is a symbol, and is ``hard``
    if left out.  Raises ValueError for a depth below 1 and for sources or capacities that are not positive,
    :class:`NotApplicable` for a source of 1, where there are logarithms.

    >>> found = rich_scaling()
    >>> print(found.exponent)
    beta*(L + 1)/(L*beta + 1)
    >>> print(rich_scaling(2, "3/10").exponent, rich_scaling(2, "3/2").exponent)
    9/16 3/2
    """
    depth, source, capacity = exact("depth", depth), exact("source", source), exact("capacity", capacity)
    for name, value, least in (("depth", depth, 1), ("source", source, 0), ("capacity", capacity, 0)):
        if value.is_number and not (value >= least if name == "depth" else value > least):
            bound = "at least 1" if name == "depth" else "positive"
            raise ValueError(f"{name} = {value}: must be {bound}")
    if source.is_number:
        if source == 1:
            raise NotApplicable(
                "source = 1: the norm of the target grows as a logarithm, and so does the kernel"
            )
        found = HARD if source < 1 else EASY
        if task not in (None, found):
            raise ValueError(f"task = {task!r}: at source = {source} it is {found!r}")
        task = found
    task = task or HARD
    if task not in (HARD, EASY):
        raise ValueError(f"task = {task!r}: must be 'hard' or 'easy'")
    return _Rich(depth, source, capacity, task).found()


def tidied(e: Expr) -> Expr:
    """Powers of products as products of powers, each with a simple exponent."""
    e = powdenest(expand_power_base(powdenest(e, force=True), force=True), force=True)
    found = S.One
    for power_of in Mul.make_args(e):
        base, power = power_of.as_base_exp()
        if base.is_Pow and base.exp == -1:
            base, power = base.base, -power
        for part in Mul.make_args(factor(base)):
            found *= part ** factor(simplify(power))
    return found


class _Rich:
    def __init__(self, depth: Expr, source: Expr, capacity: Expr, task: str) -> None:
        self.depth, self.source, self.capacity, self.task = depth, source, capacity, task
        self.reduced = rank_one()
        self.targets()
        self.closure()

    # -- what is read off the closed equations ---------------------------------------------------------------

    def targets(self) -> None:
        """Powers of k in the squares of targets, plain and weighed by the eigenvalue, times -1."""
        eigen = k**-self.capacity
        weighed = k ** (-self.capacity * self.source - 1)
        self.plain = simplify(-k * (weighed / eigen).diff(k) * eigen / weighed)
        self.weighed = simplify(-k * weighed.diff(k) / weighed)

    def closure(self) -> None:
        """``v = w - b phi`` with ``b = sigma^n``, and ``sigma^2 = c sum phi^2 + start``."""
        one, big = self.reduced, sigma(moment)
        index = one.modes.lhs.expr.args[0]
        b = -one.learnt.rhs.coeff(phi(index, moment))
        rate = one.modes.rhs.expand().coeff(phi(index, moment))
        lamda = Function("lamda")(index)
        if simplify(rate + lamda * b**2) != 0 or simplify(one.kernel.rhs - b**2) != 0:
            raise NotApplicable(f"a mode is not driven by the square of {b}")
        self.height = simplify(big * b.diff(big) / b).subs(L, self.depth)
        (total,) = [y for y in Add.make_args(one.norm.rhs) if y.has(Sum)]
        self.front, squares = total.as_independent(Sum)
        self.start = one.norm.rhs - total
        if squares.function != phi(index, moment) ** 2:
            raise NotApplicable(f"{squares} is not the squared norm of what modes have learnt")

    # -- powers and constants --------------------------------------------------------------------------------

    def found(self) -> RichScaling:
        """``b = B X^q``; ``sigma^2 = b^(2/n)`` and ``sigma^2 = c b^-2 sum (w F)^2`` have one power and one
        constant."""
        q, B = self.unknown()
        learnt = mode_sum(self.plain, self.capacity, product_transform(q, q, argument))
        _, decay, _ = mode_sum(self.weighed, self.capacity, S.Zero)
        values = {
            I_F: product_transform(q, q, -learnt[1]),
            I_v: missing(q, q, -decay),
        }
        whole = B.xreplace(values)
        speed = 1 / (1 - 2 * q)
        named_clock = tidied((B**2 * (1 - 2 * q) * t) ** speed)
        clock = named_clock.xreplace(values)
        named = I_v / self.capacity * (B**2 * (1 - 2 * q)) ** (decay * speed)
        return RichScaling(
            reduced=self.reduced,
            task=self.task,
            depth=self.depth,
            source=self.source,
            capacity=self.capacity,
            growth=simplify(2 * q * speed).factor(),
            exponent=simplify(-decay * speed).factor(),
            named=tidied(named),
            named_kernel=tidied(B**2 * named_clock ** (2 * q)),
            named_clock=named_clock,
            profile=profile(q),
            moments=self.moments(q, -learnt[1], -decay),
            values=values,
            corrections=tuple(self.corrections(q, whole, clock, learnt)),
            conditions=self.conditions(),
        )

    def moments(self, q: Expr, learnt: Expr, left: Expr) -> tuple[Eq, ...]:
        F = Function("F")(x)
        return (
            Eq(I_F, Integral(x ** (learnt - 1) * F**2, (x, 0, oo)), evaluate=False),
            Eq(I_v, Integral(x ** (left - 1) * (1 - F) ** 2, (x, 0, oo)), evaluate=False),
        )

    def unknown(self) -> tuple[Expr, Expr]:
        """The power q and the constant B of ``b = B X^q``, the latter with the name of its moment."""
        q = Symbol("q", real=True)
        rise = 2 / self.height + 2  # of b in b^(2/n) b^2
        _, power, rest = mode_sum(self.plain, self.capacity, S.Zero)
        if self.task == EASY:  # all that there is to learn has been learnt
            power, size = S.Zero, rest
        else:
            size = I_F / self.capacity
        (value,) = solve(q * rise - power, q)
        return simplify(value).factor(), (self.front * size) ** simplify(1 / rise)

    def corrections(self, q: Expr, B: Expr, clock: Expr, learnt: tuple[Expr, Expr, Expr]) -> list[Correction]:
        """The next terms of the equation of the singular values, and what they do to the loss."""
        constant, power, rest = learnt
        if self.task == EASY:
            powers = Powers(q, clock, self.height, self.source, None)
            own = powers.correction("modes are still to be learnt", simplify(-power), constant / rest, True)
        else:
            powers = Powers(q, clock, self.height, self.source, power)
            own = powers.correction("the modes are no continuum", power, rest / constant, True)
        gap, start = simplify(2 * q / self.height), self.start / B ** (2 / self.height)
        return [own, powers.correction("the start of training", gap, start, False)]

    def conditions(self) -> tuple[str, ...]:
        if self.task == HARD:
            return (
                "0 < beta < 1",
                "sigma^2 >> 1: training has outgrown the random start",
                "clock >> 1 and clock << (number of modes)^alpha: the modes learnt are many, and not all",
                "gradient flow on the population's loss, infinitely wide layers, no label noise",
            )
        return (
            "beta > 1",
            "gamma0 |w_star| >> 1: training has outgrown the random start",
            "1 << clock << (number of modes)^alpha",
            "gradient flow on the population's loss, infinitely wide layers, no label noise",
        )


__all__ = ["Correction", "RichScaling", "alpha", "beta", "rich_scaling", "t"]
