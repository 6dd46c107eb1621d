"""Linear networks of finite width on power-law data, in population gradient flow, beside the solved theory.

At gamma0 = 4 the kernel is large early, so that few modes and short times show the slope of a hard task.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import zeta

from numerics.experiment.numbers import power_law
from tests.ledger.evidence.base import Evidence, Finding, agrees, conclude, contradicts
from tests.ledger.evidence.isotropic_rates import Descent
from tests.ledger.evidence.scaling_exponents import CAPACITY, losses, solved

Array = NDArray[np.float64]

TASK, GAMMA = 0.25, 4.0
COUNT, TIME = 200, 6.0
WIDTHS, NETWORKS = (64, 128), 12
STEP, STABLE = 0.02, 0.8
"""The longest Runge-Kutta step, and its length times C_g^1(t,t)."""
CLOSE, MANY = 3.0, 5.0
"""Standard errors within which the theory must be, and by which the printed slope must be off."""


def two_layers() -> Evidence:
    """Check (21), (116): networks have the theory's slopes, above the printed one for two hidden layers."""
    findings: list[Finding] = []
    words, slopes = [], {}
    for depth in (1, 2):
        theory = solved(depth, TASK, GAMMA, COUNT, TIME)
        times, seen = theory.time[-2:], np.log(theory.loss[-2:])
        runs = [
            np.log([losses_of(depth, width, times, NETWORKS * n + k) for k in range(NETWORKS)])
            for n, width in enumerate(WIDTHS)
        ]
        losses_at, spread = _extrapolated(runs)
        for k, gap in enumerate((losses_at - seen) / spread):
            findings.append(agrees(f"L = {depth}, t = {times[k]:.2f}: z of the loss, theory", gap, CLOSE))
        slope, error = _extrapolated([_slope(x, times) for x in runs])
        expected = float(_slope(seen, times))
        findings.append(
            agrees(f"L = {depth}: slope minus theory", float(slope) - expected, CLOSE * float(error))
        )
        slopes[depth] = float(slope), float(error)
        words.append(f"L = {depth}: {slope:.4f} +- {error:.4f} ({expected:.4f})")
    (one, first), (two, second) = slopes.values()
    printed = losses("hard", TASK)
    for where, value in printed.items():
        findings.append(contradicts(f"L = 2: slope minus {where}", two - value, second, by=MANY))
    findings.append(
        contradicts("slope of L = 2 minus L = 1", two - one, float(np.hypot(first, second)), by=MANY)
    )
    return conclude(
        "scaling_networks:two_layers",
        f"beta = {TASK}, gamma0 = {GAMMA:g}: slopes of networks (of the theory) between t = {times[0]:.2f} "
        f"and {times[1]:.2f}, {'; '.join(words)}; printed {printed['(21)']:.3f} for both.",
        *findings,
    )


def _slope(loss: Array, times: Array) -> Array:
    """Return the local slope from logarithms of losses of COUNT modes at two times (the last axis).

    Modes beyond the last are counted as not learnt yet, so that the slope is at most that with them.
    """
    whole = np.log(np.exp(loss) + zeta(CAPACITY * TASK + 1, COUNT + 1))
    return np.asarray((whole[..., 0] - whole[..., 1]) / np.log(times[1] / times[0]))


def losses_of(depth: int, width: int, times: Array, seed: int, share: float = 1.0) -> Array:
    """Return the loss of one network on COUNT modes at ``times``; ``share`` shortens the steps."""
    data = power_law(CAPACITY, TASK, COUNT, every=True).attributes
    net = Descent.drawn(depth, width, data["w_star"], data["lamda"], GAMMA, seed)
    now, found = 0.0, []
    for time in times:
        while now < time:
            g = net.above()
            dt = min(share * min(STEP, STABLE * width / float(g @ g)), time - now)
            net = _runge_kutta(net, dt)
            now = time if dt == time - now else now + dt
        found.append(float(np.sum(net.eigen * (net.target - net.learnt()) ** 2)))
    return np.array(found)


def _runge_kutta(net: Descent, dt: float) -> Descent:
    """Return the network after one step of the classical fourth-order method."""
    total, here = _after(net, 0.0, None), net
    for ahead, share in ((0.5, 1 / 6), (0.5, 1 / 3), (1.0, 1 / 3), (0.0, 1 / 6)):
        slopes = here.slopes(here.target - here.learnt())
        total = _after(total, share * dt, slopes)
        here = _after(net, ahead * dt, slopes)
    return total


def _after(net: Descent, dt: float, slopes: tuple[list[Array], Array] | None) -> Descent:
    if slopes is None:
        return net
    W = [a + dt * b for a, b in zip(net.W, slopes[0], strict=True)]
    return Descent(W, net.w + dt * slopes[1], net.target, net.eigen, net.gamma)


def _extrapolated(runs: list[Array]) -> tuple[Array, Array]:
    """Return means over networks at 1/N -> 0 on the line through both widths, with standard errors."""
    small, large = WIDTHS
    share = small / (large - small)
    means = [x.mean(axis=0) for x in runs]
    errors = [x.std(axis=0, ddof=1) / np.sqrt(len(x)) for x in runs]
    limit = means[1] + share * (means[1] - means[0])
    return limit, np.hypot((1 + share) * errors[1], share * errors[0])


__all__ = ["losses_of", "two_layers"]
