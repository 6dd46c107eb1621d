"""Estimates of means and variances at finite width from samples of networks, with standard errors.

Input are observables of many independent networks and control variates, statistics of the initial weights
whose mean is exactly zero at every width.  Output are ``N Var``, ``N Cov`` and ``N (mean - limit)`` with
errors, and the coefficients of their expansion in 1/N.  The tests of the derived corrections of finite
width use them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Estimate:
    """Estimated values and their standard errors, arrays of one shape."""

    value: Array
    error: Array

    def distance(self, expected: Any) -> Array:
        """Return the distance from the expected values in standard errors."""
        return np.asarray((self.value - expected) / self.error)


@dataclass(frozen=True)
class Samples:
    """Observables of independent networks of one width.

    Attributes
    ----------
    width : int
        Number of units N of a hidden layer (of features for isotropic data).
    values : dict of str to ndarray
        Each of shape (count, ...), usually (count, time, ...).
    controls : ndarray, shape (count, k)
        Statistics with mean zero at this width, exactly.
    rounding : float
        Relative rounding error of the values, a lower bound of the relative errors of all estimates.
    """

    width: int
    values: dict[str, Array]
    controls: Array = field(repr=False)
    rounding: float = float(np.finfo(float).eps)

    @property
    def count(self) -> int:
        """Number of networks."""
        return len(self.controls)

    @cached_property
    def _regression(self) -> tuple[Array, Array]:
        """Orthonormal basis of the centred controls (count, k), and their means in this basis (k,)."""
        scale = self.controls.std(axis=0)
        controls = self.controls[:, scale > 0] / scale[scale > 0]
        mean = controls.mean(axis=0)
        size, directions = np.linalg.eigh((controls - mean).T @ (controls - mean))
        kept = size > 1e-10 * size.max(initial=0.0)  # redundant controls
        directions = directions[:, kept] / np.sqrt(size[kept])
        return (controls - mean) @ directions, mean @ directions

    def mean_of(self, samples: Array) -> Estimate:
        """Estimate the mean of an array (count, ...), with the controls taken out by regression."""
        estimate, size = self._mean(samples), np.sqrt((samples.astype(float) ** 2).mean(axis=0))
        return Estimate(estimate.value, np.hypot(estimate.error, self.rounding * size))

    def _mean(self, samples: Array) -> Estimate:
        """Estimate the mean of an array (count, ...) with its statistical error alone."""
        flat = samples.reshape(self.count, -1).astype(float)
        basis, control_means = self._regression
        coefficients = basis.T @ flat
        mean = flat.mean(axis=0)
        residual = flat - mean
        residual -= basis @ coefficients
        degrees = self.count - 1 - basis.shape[1]
        variance = np.einsum("ij,ij->j", residual, residual) / (degrees * self.count)
        value = mean - control_means @ coefficients
        shape = samples.shape[1:]
        return Estimate(value.reshape(shape), np.sqrt(variance).reshape(shape))

    def mean(self, name: str) -> Estimate:
        """Estimate the mean of an observable."""
        return self.mean_of(self.values[name])

    def scaled_shift(self, name: str, limit: Any) -> Estimate:
        """Estimate ``N (mean - limit)``, with the limit of infinite width given."""
        mean = self.mean(name)
        return Estimate(self.width * (mean.value - limit), self.width * mean.error)

    def scaled_variance(self, name: str) -> Estimate:
        """Estimate ``N Var`` of an observable."""
        return self.scaled_covariance(self.values[name], self.values[name])

    def scaled_covariance(self, first: Array, second: Array) -> Estimate:
        """Estimate ``N Cov`` of two arrays (count, ...), entry by entry.

        The estimated means lower a variance by the square of their error, which is added again.
        """
        means = self._mean(first), self._mean(second)
        parts = [x - mean.value for x, mean in zip((first, second), means, strict=True)]
        estimate = self._mean(parts[0] * parts[1])
        size = [np.sqrt((x.astype(float) ** 2).mean(axis=0)) for x in (first, second, *parts)]
        rounding = self.rounding * (size[0] * size[3] + size[1] * size[2])
        bias = means[0].error * means[1].error if first is second else 0.0
        error = np.hypot(estimate.error, rounding)
        return Estimate(self.width * (estimate.value + bias), self.width * error)


def expansion_in_width(
    widths: Sequence[int], estimates: Sequence[Estimate], degree: int | None = None
) -> Estimate:
    """Fit ``sum_k c_k / N^k`` to estimates at several widths by weighted least squares.

    Parameters
    ----------
    widths : sequence of int
        Widths N, at least ``degree + 1`` different ones.
    estimates : sequence of Estimate
        One for each width, arrays of one shape.
    degree : int, optional
        Highest power of 1/N, by default ``len(widths) - 1``.

    Returns
    -------
    Estimate
        The coefficients, shape (degree + 1, ...).  With the means themselves as estimates, coefficient 0 is
        the limit of infinite width and coefficient 1 the scaled shift.
    """
    degree = len(widths) - 1 if degree is None else degree
    powers = (1.0 / np.asarray(widths, dtype=float))[:, None] ** np.arange(degree + 1)
    scale = np.abs(powers).max(axis=0)
    values = np.stack([x.value.ravel() for x in estimates])
    errors = np.stack([x.error.ravel() for x in estimates])
    errors = np.where(errors.max(axis=0) > 0, errors, 1.0)
    design = (powers / scale) / errors.T[:, :, None]
    inverse = np.linalg.pinv(design)
    coefficients = np.einsum("xkw,wx->kx", inverse, values / errors) / scale[:, None]
    deviation = np.sqrt((inverse**2).sum(axis=2)).T / scale[:, None]
    shape = (degree + 1, *estimates[0].value.shape)
    return Estimate(coefficients.reshape(shape), deviation.reshape(shape))
