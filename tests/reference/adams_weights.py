"""Weights of explicit Adams-Bashforth quadrature on any increasing grid, in exact rational arithmetic.

A flow dW/dt = U(t) is stepped as W(t_{n+1}) = W(t_n) + sum_j beta_{n,j} U(t_{n-j}), where beta_{n,j} is the
integral over [t_n, t_{n+1}] of the Lagrange polynomial through the last p_n nodes. The first step is
Euler's (p_0 = 1); the order is raised by one each step until p_n = order. Summing the steps gives
W(t) = W(0) + sum_{s<t} w(t,s) U(s).
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def step_weights(nodes: Sequence[Fraction], start: Fraction, end: Fraction) -> list[Fraction]:
    """Return the integrals over [start, end] of the Lagrange polynomials of ``nodes``.

    >>> [str(b) for b in step_weights([Fraction(1), Fraction(0)], Fraction(1), Fraction(2))]
    ['3/2', '-1/2']
    """
    weights = []
    for j, node in enumerate(nodes):
        coefficients = [Fraction(1)]  # lowest power first
        for i, other in enumerate(nodes):
            if i == j:
                continue
            scale = 1 / (node - other)
            shifted = [Fraction(0), *coefficients]
            lowered = [-other * c for c in coefficients] + [Fraction(0)]
            coefficients = [scale * (a + b) for a, b in zip(shifted, lowered, strict=True)]
        weights.append(
            sum(
                (c * (end ** (k + 1) - start ** (k + 1)) / (k + 1) for k, c in enumerate(coefficients)),
                Fraction(0),
            )
        )
    return weights


def adams_weights_exact(times: Sequence[Fraction], order: int) -> list[list[Fraction]]:
    """Return w(t,s) as nested lists of fractions, strictly lower triangular.

    >>> times = [Fraction(k) for k in range(5)]
    >>> [str(w) for w in adams_weights_exact(times, 2)[4]]
    ['1/2', '1', '1', '3/2', '0']
    """
    if order < 1:
        raise ValueError(f"order = {order}: must be >= 1")
    if any(b <= a for a, b in pairwise(times)):
        raise ValueError("times must increase strictly")
    count = len(times)
    rows = [[Fraction(0)] * count]
    for n in range(count - 1):
        used = list(range(n, max(-1, n - order), -1))
        row = list(rows[n])
        betas = step_weights([times[s] for s in used], times[n], times[n + 1])
        for s, beta in zip(used, betas, strict=True):
            row[s] += beta
        rows.append(row)
    return rows


def adams_weights(times: Sequence[float], order: int) -> Array:
    """Return w(t,s), shape (T, T), for the float grid ``times``, exact until the last rounding.

    >>> adams_weights([0.0, 1.0, 2.0], 1).tolist()
    [[0.0, 0.0, 0.0], [1.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    """
    exact = adams_weights_exact([Fraction(float(t)) for t in times], order)
    return np.array([[float(w) for w in row] for row in exact])


def step_sum_weights(steps: int, rate: float) -> Array:
    """Return the weights of gradient descent: w(t,s) = rate for s < t, shape (steps + 1, steps + 1).

    >>> step_sum_weights(2, 0.5).tolist()
    [[0.0, 0.0, 0.0], [0.5, 0.0, 0.0], [0.5, 0.5, 0.0]]
    """
    return np.tril(np.full((steps + 1, steps + 1), float(rate)), -1)
