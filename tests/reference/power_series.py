"""Expansion in gamma_0^2 to any order, exactly: the forward recursion run on truncated power series.

``dense_causal`` only adds and multiplies, so feeding it numbers of the form a_0 + a_1 x + ... + a_n x^n
(x = gamma_0^2) returns the Taylor coefficients of every order parameter without differencing or
symbols.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dense_causal import dense_causal
from .solution import Solution


class PowerSeries:
    """Truncated series a_0 + a_1 x + ... + a_n x^n.

    >>> x = PowerSeries([0, 1, 0])
    >>> ((1 + x) * (1 + x)).coefficients
    (1, 2, 1)
    """

    __slots__ = ("coefficients",)

    def __init__(self, coefficients: Sequence[Any]) -> None:
        self.coefficients = tuple(coefficients)

    def _lift(self, other: Any) -> tuple[Any, ...]:
        if isinstance(other, PowerSeries):
            return other.coefficients
        return (other, *([0] * (len(self.coefficients) - 1)))

    def __add__(self, other: Any) -> PowerSeries:
        if isinstance(other, np.ndarray):
            return NotImplemented  # NumPy then adds to each entry
        return PowerSeries([a + b for a, b in zip(self.coefficients, self._lift(other), strict=True)])

    def __neg__(self) -> PowerSeries:
        return PowerSeries([-a for a in self.coefficients])

    def __sub__(self, other: Any) -> PowerSeries:
        if isinstance(other, np.ndarray):
            return NotImplemented
        return PowerSeries([a - b for a, b in zip(self.coefficients, self._lift(other), strict=True)])

    def __rsub__(self, other: Any) -> PowerSeries:
        return PowerSeries([b - a for a, b in zip(self.coefficients, self._lift(other), strict=True)])

    def __mul__(self, other: Any) -> PowerSeries:
        if isinstance(other, np.ndarray):
            return NotImplemented
        if not isinstance(other, PowerSeries):
            return PowerSeries([a * other for a in self.coefficients])
        a, b = self.coefficients, other.coefficients
        return PowerSeries([sum(a[i] * b[n - i] for i in range(n + 1)) for n in range(len(a))])

    __radd__ = __add__
    __rmul__ = __mul__


def gamma_expansion(
    kernel: NDArray[Any], targets: NDArray[Any], weights: NDArray[Any], *, depth: int, order: int
) -> list[Solution]:
    """Return coefficients of gamma_0^0, gamma_0^2, ..., gamma_0^(2 order), one ``Solution`` for each.

    Arguments as in ``dense_causal``; float entries give float coefficients, mpmath or Fraction entries exact
    ones (object arrays). ``train_loss`` of a coefficient is meaningless (it is not linear); see
    ``loss_expansion``.

    >>> two_steps = np.array([[0, 0, 0], [0.25, 0, 0], [0.25, 0.25, 0]])
    >>> lazy, leading = gamma_expansion(np.eye(1), np.ones(1), two_steps, depth=1, order=1)
    >>> float(lazy.f[2, 0]), float(leading.f[2, 0])  # f(2) = 3/4 + gamma_0^2 3/128, by hand
    (0.75, 0.0234375)
    """
    x = PowerSeries([0, 1, *([0] * (order - 1))][: order + 1])
    full = dense_causal(
        np.asarray(kernel).astype(object),
        np.asarray(targets).astype(object),
        np.asarray(weights).astype(object),
        depth=depth,
        gamma0_squared=x,
        dtype=object,
    )
    exact = np.asarray(kernel).dtype == object

    def part(values: NDArray[Any], n: int) -> NDArray[Any]:
        flat = [
            v.coefficients[n] if isinstance(v, PowerSeries) else (v if n == 0 else 0) for v in values.ravel()
        ]
        return np.array(flat, dtype=object if exact else np.float64).reshape(values.shape)

    names = ("Phi", "G", "A", "B", "f", "error", "tangent_kernel")
    fields: list[dict[str, Any]] = [
        {name: part(getattr(full, name), n) for name in names} for n in range(order + 1)
    ]
    return [Solution(**field) for field in fields]


def loss_expansion(coefficients: Sequence[Solution]) -> NDArray[Any]:
    """Return coefficients of mean_mu Delta_mu(t)^2 in powers of gamma_0^2, shape (order + 1, T)."""
    errors = [c.error for c in coefficients]
    return np.array(
        [sum((errors[i] * errors[n - i]).mean(axis=1) for i in range(n + 1)) for n in range(len(errors))]
    )
