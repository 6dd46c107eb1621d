"""Best learning-rate schedule for descent on fresh batches of power-law data.

The signal and the response of the loss to noise fall as powers of time (:mod:`derive.scale.finite_batch`).
From these powers the module derives the schedule of T steps with the smallest final loss, and its powers of
T. If the label noise is larger than the loss and steps are small, the final loss is

    signal(tau) + strength int_0^tau eta(u) gain(u) du,   T = int_0^tau du/eta(u),

where ``u`` is the sum of all rates from a step to the end, and gain(u) is the fraction of the noise of that
step that remains at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Dummy, Expr, Symbol, factor, integrate, powsimp, simplify, solve

from derive.errors import NotApplicable
from derive.scale.finite_batch import BatchNoise
from derive.scale.mellin import power_in
from derive.show.conditions import ConditionalResult

T = Symbol("T", positive=True)
"""The number of steps."""


@dataclass(frozen=True)
class BestSchedule(ConditionalResult):
    """Schedule ``eta(t) ~ T^peak (1 - t/T)^decay``, with the final loss ``T^loss``.

    ``constant`` and ``constant_loss`` are the powers of T of the best constant rate. If ``peak`` is not
    negative, the rate is held at the edge of stability, and only its final decay is that of the schedule.
    """

    decay: Expr
    peak: Expr
    loss: Expr
    constant: Expr
    constant_loss: Expr

    def conditions(self) -> tuple[str, ...]:
        """Return the assumptions of the schedule."""
        return (
            f"assumed: {self.peak} < 0; else rates do not fall with T, but are held at the edge of stability",
            "assumed: gamma0 -> 0, N -> oo; the loss is below the variance of the labels at all late times",
            "assumed: steps are short beside the rates of all modes, so that sums over them are integrals",
            "derived: the powers of T, from the powers of signal and gain of descent on fresh batches",
        )


def best_schedule(noise: BatchNoise) -> BestSchedule:
    """Return the schedule with the smallest final loss.

    The rate at each value of u enters only the noise and the number of steps, so that with a Lagrange
    multiplier it is found separately for each u.

    Parameters
    ----------
    noise : BatchNoise
        Lazy loss of descent on fresh batches.

    Returns
    -------
    BestSchedule
        The schedule.

    Raises
    ------
    NotApplicable
        If the gain does not depend on late steps.

    Examples
    --------
    >>> from derive import mean_field, structured
    >>> from derive.scale.finite_batch import batch_noise
    >>> found = best_schedule(batch_noise(mean_field(structured(noise=True))))
    >>> print(found.decay, "|", found.peak, "|", found.loss)
    2*a - 1 | -(a*beta - a + 1)/(a*beta + 1) | -a*beta/(a*beta + 1)
    >>> print(found.constant, "|", found.constant_loss)
    -beta/(beta + 1) | -beta/(beta + 1)
    """
    values = {_p: -noise.signal.terms[0].power, _h: 1 + noise.gain.terms[0].power / 2}
    if not simplify(values[_h]).is_positive:
        raise NotApplicable(f"the gain falls as t**({noise.gain.terms[0].power}), and no late push matters")
    u, tau, rate, mu, x = (Dummy(n, positive=True) for n in ("u", "tau", "eta", "mu", "x"))
    gain = u ** (2 * _h - 2)
    (best,) = solve((rate * gain + mu / rate).diff(rate), rate)  # at each u; mu fixes the number of steps
    left, spent = (integrate(powsimp(e), (u, 0, tau)) for e in (1 / best, best * gain))
    (multiplier,) = solve(left - T, mu)
    spent, first = (simplify(e.subs(mu, multiplier)) for e in (spent, best.subs(u, tau)))
    # tau = T^x where signal and noise are equal
    (clock,) = solve(-_p * x - power_in(spent, tau) * x - power_in(spent, T), x)
    peak = power_in(first, tau) * clock + power_in(first, T)
    decay = power_in(best, u) / power_in(left, tau)
    y = Dummy("y")  # a constant rate T^y: its noise is the rate, its clock T^(1 + y)
    (constant,) = solve(-_p * (1 + y) - y, y)

    def powers(e: Expr) -> Expr:
        """Return a power of T with the powers of signal and gain substituted."""
        return factor(simplify(e.subs(values)))

    found = (decay, peak, -_p * clock, constant, constant)
    return BestSchedule(*map(powers, found))


_p, _h = Symbol("p", positive=True), Symbol("h", positive=True)
"""The signal falls as ``tau^-p``, the gain as ``u^(2 h - 2)``."""
