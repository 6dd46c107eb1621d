"""The largest learning rate that a deep linear network bears, rich and lazy (linear2025 appendix B, eq. 70).

Rich: the power comes from the dominant balance of the theory, the number in front from the end of training,
where aligned weights of rank one have the sharpness that every other minimum has at least.  Lazy: the kernel
does not move, and the law of its eigenvalues follows from the responses.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import (
    Expr,
    Poly,
    Symbol,
    exp,
    expand_log,
    factor,
    limit,
    log,
    oo,
    powdenest,
    simplify,
    solve,
    sqrt,
)

from derive.errors import NotApplicable
from derive.program.networks.isotropic import nu
from derive.program.program import Program
from derive.program.words import eta
from derive.scale.first_steps import first_step
from derive.scale.largest_rate_aligned import aligned
from derive.scale.largest_rate_balance import dominant_balance
from derive.theory import Theory, mean_field

REGIMES = ("rich", "lazy")

RICH = (
    "derived: at this rate updates balance every field; what the random start gives is smaller, term by term",
    "derived: aligned weights of rank one stay so, and s^2/strength of any two weights keep their distance",
    "derived: of all aligned networks that have learnt the target the balanced one has the least sharpness",
    "assumed: training ends aligned and balanced, the more so the smaller `neglected` is",
    "assumed: there are steps enough to leave the start, where the loss rests longer for larger gamma0",
)
LAZY = (
    "derived: as gamma0 -> 0 the error follows a kernel that does not move; its first two moments",
    "assumed: eigenvalues of the kernel of wide layers form a semicircle (it has their mean and variance)",
    "assumed: gamma0 -> 0 before the number of steps grows, so that no catapult moves the kernel",
)


@dataclass(frozen=True)
class LargestRate:
    """The largest learning rate, ``prefactor * nu**exponent`` to leading order.

    ``rate`` may hold more: of lazy networks also the first correction of limited width.  ``neglected`` is the
    size of what was left out, beside one.  ``crossover`` is the width nu at which the leading orders of rich
    and lazy training meet; None where they do not depend on it.  ``assumptions`` says of each step whether it
    is derived.
    """

    regime: str
    rate: Expr
    exponent: Expr
    prefactor: Expr
    neglected: Expr
    crossover: Expr | None
    assumptions: tuple[str, ...]


def largest_rate(source: Theory | Program, regime: str = "rich") -> LargestRate:
    """The largest learning rate of a deep linear network on the loss of the population, in closed form.

    ``regime`` is ``"rich"`` (gamma0 -> oo) or ``"lazy"`` (gamma0 -> 0, wide layers; for other widths see
    :func:`.lazy_kernel`).  The rate is the one above which nothing that has learnt the target is stable; the
    power of nu is the same for any criterion that does not look at the start, as gamma0 and nu drop out of
    the balanced equations.  Raises :class:`NotApplicable` for what the two reductions refuse, and ValueError
    for another regime.

    >>> from derive.program import isotropic
    >>> ntk = isotropic(data="population", center=True, parametrization="ntk")
    >>> found = largest_rate(ntk)
    >>> found.exponent, found.prefactor, found.crossover
    (L/(L + 1), 2/(gamma0**(2*L/(L + 1))*(L + 1)), gamma0**2)
    >>> largest_rate(ntk, "lazy").prefactor
    2/(L + 1)
    """
    if regime not in REGIMES:
        raise ValueError(f"regime = {regime!r}: must be one of {', '.join(REGIMES)}")
    theory = source if isinstance(source, Theory) else mean_field(source)
    rich, lazy = _rich(theory), _lazy(theory)
    rate, neglected = rich if regime == "rich" else lazy
    wide = simplify(limit(lazy[0], nu, oo))
    leading = rich[0] if regime == "rich" else wide
    power = _power(leading, nu)
    return LargestRate(
        regime=regime,
        rate=rate,
        exponent=power,
        prefactor=simplify(powdenest(leading / nu**power, force=True)),
        neglected=neglected,
        crossover=_meeting(rich[0], wide),
        assumptions=RICH if regime == "rich" else LAZY,
    )


def _rich(theory: Theory) -> tuple[Expr, Expr]:
    end, balance = aligned(theory.program), dominant_balance(theory)
    rest = _plain(end.rate / balance.rate)
    if any(_power(rest, x) != 0 for x in balance.rate.free_symbols - theory.program.depth.free_symbols):
        raise NotApplicable(f"the balance gives the rate {balance.rate}, the end of training {end.rate}")
    return rest * balance.rate, balance.neglected


def _lazy(theory: Theory) -> tuple[Expr, Expr]:
    """Two over the end of a semicircle with the moments of the kernel; the sizes of its two parts."""
    step = first_step(theory)
    if step.degree != 2:
        raise NotApplicable("the first step of a network that is not centred is not its kernel alone")
    growth = Poly(step.growth_factor, eta)
    mean, square = -growth.nth(1) / 2, growth.nth(2)
    spread = factor(square - mean**2)
    return 2 / (factor(mean) + 2 * sqrt(spread)), sqrt(spread) / mean


def _plain(e: Expr) -> Expr:
    return simplify(powdenest(e, force=True))


def _power(e: Expr, x: Symbol) -> Expr:
    """The power of ``x`` in a product of powers."""
    return simplify(expand_log(log(e), force=True).diff(x) * x)


def _meeting(one: Expr, other: Expr) -> Expr | None:
    """The width at which two products of powers are equal."""
    power = _power(one / other, nu)
    if power == 0:
        return None
    (at,) = solve(expand_log(log(one / other), force=True), log(nu))
    return simplify(powdenest(exp(at), force=True))
