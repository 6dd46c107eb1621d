"""Nodes and weights that invert Laplace transforms at given times.

    f(t) = 1/(2 pi i) int exp(z t) F(z) dz = 2 Re sum_k weight_k(t) F(z_k) + O(exp(-B n))

at n rates z_k on a hyperbola ``z = mu (1 + sin(i u - alpha))`` around the negative axis, by the trapezoidal
rule. One hyperbola serves all times of an interval ``(t_1/RATIO, t_1)``, with the ``alpha`` and ``mu`` of
fastest convergence (Weideman and Trefethen, Math. Comp. 76, 1341, 2007). The value at time 0 is a limit of
large z.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
ComplexArray = NDArray[np.complex128]

RATIO = 8.0
"""Largest ratio of the last to the first time of a hyperbola."""

START = 1e4, 4
"""At time 0: ratio of the smallest rate of the contour to the largest rate of the theory, and number of
rates.

Each rate is twice the next smaller one."""


@dataclass(frozen=True)
class Inversion:
    """Inversion ``f(times) = 2 Re(weights @ F(rates))`` of a Laplace transform F.

    ``rates`` (n,) lie above the real axis, except those for time 0, which are real and positive and come
    first, in decreasing order. ``weights`` have shape (times, n). ``anchors`` are the positions of the
    rates nearest to the positive real axis, one for each hyperbola.
    """

    rates: ComplexArray
    weights: ComplexArray
    anchors: tuple[int, ...]

    def once(self, values: ComplexArray) -> Array:
        """Return f at the times, shape (times,), from values of its transform F at the rates."""
        return np.asarray(2 * (self.weights @ values).real)

    def twice(self, values: ComplexArray) -> Array:
        """Return f(t, s) at all pairs of times, shape (times, times), from its transform at pairs of rates.

        ``values`` have shape (n, 2 n). The first axis are the rates for t; the second are the rates for s,
        followed by their complex conjugates.
        """
        right = np.concatenate([self.weights, self.weights.conj()], axis=1)
        return np.asarray(2 * (self.weights @ values @ right.T).real)


def inversion(times: Array, fastest: float, count: int) -> Inversion:
    """Return the inversion at increasing times, with ``count`` rates on the upper half of every hyperbola.

    The first of the ``times`` may be 0. ``fastest`` is the largest rate of the theory, which is used for
    time 0 only.

    >>> contour = inversion(np.array([0.0, 0.5, 3.0, 100.0]), 1.0, 24)
    >>> values = contour.once(1 / (contour.rates + 1))
    >>> float(np.abs(values - np.exp([0.0, -0.5, -3.0, -100.0])).max()) < 1e-9
    True
    """
    rates: list[ComplexArray] = []
    blocks: list[tuple[NDArray[np.intp], ComplexArray]] = []
    anchors: list[int] = []
    for group in groups(times):
        if times[group[0]] == 0:
            group_rates, weights = _start(fastest)
        else:
            group_rates, weights = _hyperbola(times[group], count)
            anchors.append(sum(map(len, rates)))
        rates.append(group_rates)
        blocks.append((group, weights))
    all_rates = np.concatenate(rates)
    all_weights, at = np.zeros((len(times), len(all_rates)), dtype=complex), 0
    for group, weights in blocks:
        all_weights[group, at : at + weights.shape[1]] = weights
        at += weights.shape[1]
    return Inversion(all_rates, all_weights, tuple(anchors))


def groups(times: Array) -> list[NDArray[np.intp]]:
    """Return groups of positions of times; one contour inverts the Laplace transform at all times of a group.

    The last time of a group is at most RATIO times the first; time 0 is a group by itself. ``times``
    increase.
    """
    positions: list[list[int]] = []
    for i, time in enumerate(times):
        first = times[positions[-1][0]] if positions else 0.0
        if first > 0 and time <= RATIO * first:
            positions[-1].append(i)
        else:
            positions.append([i])
    return [np.array(x) for x in positions]


def _start(fastest: float) -> tuple[ComplexArray, ComplexArray]:
    """Return the rates z and weights that give ``f(0)`` from its Laplace transform F(z).

    f(0) is the limit of z F(z) at large z. It is extrapolated, in powers of 1/z, from rates that are large
    multiples of the largest rate of the theory, ``fastest``. The weights have shape (1, rates).
    """
    least, count = START
    z = fastest * least * 2.0 ** np.arange(count)[::-1]
    powers = np.vander(z[-1] / z, increasing=True)
    return z.astype(complex), (np.linalg.inv(powers)[:1] * z / 2).astype(complex)


def _hyperbola(times: Array, count: int) -> tuple[ComplexArray, ComplexArray]:
    """Return ``count`` rates on the upper half of a hyperbola, and their weights for the given times.

    The rates go from the real axis outwards. ``times`` are positive, and the last one is at most RATIO
    times the first. The weights have shape (times, rates).
    """
    alpha, width = _shape()
    step = width / count
    size = (4 * np.pi * alpha - np.pi**2) / width * count / times[-1]
    u = step * (np.arange(count) + 0.5)
    z = size * (1 + np.sin(1j * u - alpha))
    slope = size * 1j * np.cos(1j * u - alpha)
    return z, step / (2j * np.pi) * np.exp(times[:, None] * z) * slope


@lru_cache(maxsize=1)
def _shape() -> tuple[float, float]:
    """Return two parameters of the hyperbola ``z = mu (1 + sin(i u - alpha))`` of fastest convergence.

    They are the angle alpha, and the product of the number of rates z and the distance of adjacent rates in
    u.
    """
    alpha = np.linspace(np.pi / 4, np.pi / 2, 2001)[1:-1]
    width = np.arccosh(
        ((np.pi - 2 * alpha) * RATIO + 4 * alpha - np.pi) / ((4 * alpha - np.pi) * np.sin(alpha))
    )
    best = int(np.argmax((np.pi**2 - 2 * np.pi * alpha) / width))
    return float(alpha[best]), float(width[best])
