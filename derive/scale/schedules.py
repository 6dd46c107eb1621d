"""The best schedule of the learning rate for descent on fresh batches of power-law data.

The signal and the response of the loss to noise fall as powers of time (:mod:`derive.scale.finite_batch`).
From these powers follow the schedule of T steps with the smallest loss at the end, and its powers of T.
While the noise of labels is above the loss and steps are short, the loss at the end is

    signal(tau) + strength int_0^tau eta(u) gain(u) du,   T = int_0^tau du/eta(u),

where ``u`` is the sum of all rates from a step to the end, and gain(u) the share of the noise of that step
that is left at the end.
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
    """The schedule ``eta(t) ~ T^peak (1 - t/T)^decay``, whose loss is ``T^loss``.

    ``constant`` and ``constant_loss`` are the powers of T of the best rate without a schedule.  Where
    ``peak`` is not negative, the rate is held at the edge of stability, and only its decay at the end is that
    of the schedule.
    """

    decay: Expr
    peak: Expr
    loss: Expr
    constant: Expr
    constant_loss: Expr

    def conditions(self) -> tuple[str, ...]:
        """Return what is assumed."""
        return (
            f"{self.peak} < 0; else rates do not fall with T, but are held at the edge of stability",
            "gamma0 -> 0, N -> oo; the loss is below the labels' variance at all late times",
            "steps are short beside the rates of all modes, so that sums over them are integrals",
        )


def best_schedule(noise: BatchNoise) -> BestSchedule:
    """Return the schedule that ends at the smallest loss.

    Rates at each place of the clock enter the noise and the number of steps alone, so that with a multiplier
    they are found place by place.

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
    (best,) = solve((rate * gain + mu / rate).diff(rate), rate)  # at each u, mu for the number of steps
    left, spent = (integrate(powsimp(e), (u, 0, tau)) for e in (1 / best, best * gain))
    (multiplier,) = solve(left - T, mu)
    spent, first = (simplify(e.subs(mu, multiplier)) for e in (spent, best.subs(u, tau)))
    # tau = T^x where signal and noise are alike
    (clock,) = solve(-_p * x - power_in(spent, tau) * x - power_in(spent, T), x)
    peak = power_in(first, tau) * clock + power_in(first, T)
    decay = power_in(best, u) / power_in(left, tau)
    y = Dummy("y")  # a constant rate T^y: its noise is the rate, its clock T^(1 + y)
    (constant,) = solve(-_p * (1 + y) - y, y)

    def powers(e: Expr) -> Expr:
        return factor(simplify(e.subs(values)))

    found = (decay, peak, -_p * clock, constant, constant)
    return BestSchedule(*map(powers, found))


_p, _h = Symbol("p", positive=True), Symbol("h", positive=True)
"""The signal falls as ``tau^-p``, the gain as ``u^(2 h - 2)``."""
