"""Best learning-rate schedule for descent on fresh batches of power-law data.

The signal and the response of the loss to noise fall as powers of time (:mod:`derive.scale.finite_batch`).
From these powers the module derives the schedule of T steps with the smallest final loss, and its powers of
T. If the label noise is larger than the loss and steps are small, the final loss is

    signal(tau) + strength int_0^tau eta(u) gain(u) du,   T = int_0^tau du/eta(u),

where ``u`` is the sum of the learning rates from a step to the end, ``tau`` is the sum of all of them, and
gain(u) is the fraction of the noise of that step that remains at the end.
"""

from __future__ import annotations

from dataclasses import dataclass

from sympy import Dummy, Expr, Symbol, factor, integrate, powsimp, simplify, solve

from derive.errors import NotApplicable
from derive.scale.finite_batch import BatchNoise
from derive.scale.mellin import power_in
from derive.show.conditions import ConditionalResult

T = Symbol("T", positive=True)
"""Number of steps of the schedule."""


@dataclass(frozen=True, repr=False)
class BestSchedule(ConditionalResult):
    """Schedule ``eta(t) ~ T^peak (1 - t/T)^decay`` of T steps, whose final loss is ``~ T^loss``.

    ``constant`` and ``constant_loss`` are the powers of T of the best constant rate and of its final
    loss. If ``peak`` is not negative, the rate does not fall with T but is held at the edge of stability,
    and only its decay at the end of training is that of the schedule.
    """

    decay: Expr
    peak: Expr
    loss: Expr
    constant: Expr
    constant_loss: Expr

    def conditions(self) -> tuple[str, ...]:
        """Return the derived and assumed statements about noise, rates and powers of T, as sentences."""
        return (
            f"assumed: {self.peak} < 0; otherwise learning rates do not fall with the number of steps T, but "
            "are held at the edge of stability",
            "assumed: gamma0 -> 0, N -> oo; at late times the loss is below the variance of the label noise",
            "assumed: steps are short compared with the times in which modes are learnt, so that sums over "
            "steps are integrals",
            "derived: the powers of T, from the powers of time of signal and gain for fresh batches",
        )


def best_schedule(noise: BatchNoise) -> BestSchedule:
    """Return the schedule of T steps with the smallest final loss, as powers of T.

    The label noise is assumed to be larger than the loss, and steps to be small. With u the sum of the
    learning rates from a step to the end, the rate at each u enters only the noise and the number of steps,
    so that with a Lagrange multiplier it is found separately for each u.

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
        If there is no label noise, or if the effect of the noise of a step on the loss t steps later is not
        known to fall more slowly than ``t^-2``.

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
    if noise.label == 0:
        raise NotApplicable(
            "the best schedule balances label noise with the signal, and the theory has no label noise: "
            "derive the theory of a program with label noise, such as structured(noise=True); without label "
            "noise, the noise of batches falls with the loss, and batch_law gives the power of the loss at a "
            "constant learning rate"
        )
    values = {_p: -noise.signal.terms[0].power, _h: 1 + noise.gain.terms[0].power / 2}
    if not simplify(values[_h]).is_positive:
        raise NotApplicable(
            "no schedule is derived: the effect of the batch noise of a step on the loss t steps later "
            f"falls as t**({noise.gain.terms[0].power}), and must fall more slowly than t**(-2)"
        )
    u, tau, rate, mu, x = (Dummy(n, positive=True) for n in ("u", "tau", "eta", "mu", "x"))
    gain = u ** (2 * _h - 2)
    # u is the sum of the learning rates from a step to the end. The best rate at each u minimises the noise,
    # rate * gain, plus mu times the number of steps, 1/rate, both per unit of u. The Lagrange multiplier mu
    # is found below from the given number of steps T.
    (best,) = solve((rate * gain + mu / rate).diff(rate), rate)
    step_count, noise_sum = (integrate(powsimp(e), (u, 0, tau)) for e in (1 / best, best * gain))
    (multiplier,) = solve(step_count - T, mu)
    noise_sum, first = (simplify(e.subs(mu, multiplier)) for e in (noise_sum, best.subs(u, tau)))
    # If the sum tau of all rates is T^x, the signal is T^(-p x), where p is `_p`. The exponent x is that for
    # which the noise is the same power of T.
    (tau_power,) = solve(-_p * x - power_in(noise_sum, tau) * x - power_in(noise_sum, T), x)
    peak = power_in(first, tau) * tau_power + power_in(first, T)
    decay = power_in(best, u) / power_in(step_count, tau)
    # A constant rate is T^y with an unknown y. The noise is then proportional to T^y, and the signal to the
    # power -p of the sum of all rates, T^(1 + y). Both are made equal below.
    y = Dummy("y")
    (constant,) = solve(-_p * (1 + y) - y, y)

    def powers(e: Expr) -> Expr:
        """Return an exponent of T with the derived exponents of signal and gain substituted."""
        return factor(simplify(e.subs(values)))

    exponents = (decay, peak, -_p * tau_power, constant, constant)
    return BestSchedule(*map(powers, exponents))


_p, _h = Symbol("p", positive=True), Symbol("h", positive=True)
"""The signal falls as ``tau^-p``, the gain as ``u^(2 h - 2)``."""
