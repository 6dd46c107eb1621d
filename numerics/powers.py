"""Exponents: a straight line through the logarithms of measured values, with its standard error."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class Power:
    """``y = factor * x^exponent``; ``misfit`` is chi squared over the number of points less two."""

    exponent: float
    stderr: float
    factor: float
    misfit: float


def fitted_power(x: ArrayLike, y: ArrayLike, stderr: ArrayLike) -> Power:
    """The power law closest to ``y`` in standard errors.

    The error of the exponent is that which the errors of ``y`` give it.  Raises ValueError for fewer than
    three points, or for values that are not positive by more than their error, whose logarithm says nothing.

    >>> found = fitted_power([1, 2, 4], [3.0, 6.0, 12.0], [0.3, 0.6, 1.2])
    >>> round(found.exponent, 6), round(found.factor, 6), round(found.stderr, 3)
    (1.0, 3.0, 0.102)
    """
    xs, ys, errors = (np.asarray(v, dtype=float) for v in (x, y, stderr))
    if len(xs) < 3 or not (ys > errors).all() or not (errors > 0).all() or not (xs > 0).all():
        raise ValueError("a power needs three points or more, each larger than its error")
    relative = errors / ys
    rows = np.column_stack([np.log(xs), np.ones(len(xs))]) / relative[:, None]
    values = np.log(ys) / relative
    covariance = np.linalg.inv(rows.T @ rows)
    slope, offset = covariance @ rows.T @ values
    rest = values - rows @ [slope, offset]
    misfit = float(rest @ rest) / (len(xs) - 2)
    return Power(float(slope), float(np.sqrt(covariance[0, 0])), float(np.exp(offset)), misfit)
