"""Exponents of power laws: fits of one power, and local slopes of curves with error and drift.

A single straight line through the logarithms of a curve mixes times with different slopes.
:func:`local_slopes` gives each time its own slope, from a cubic through the points around it.  The drift is
the change of the slope with time.  The difference between the slopes of the cubic and of a parabola is
an estimate of the error that the window makes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from numerics.errors import require_whole

Array = NDArray[np.float64]


@dataclass(frozen=True)
class LocalSlopes:
    """Local slopes of a curve ``y(t)`` with their errors and drift.

    At each ``time``, ``slope = d log y / d log t``, ``error`` is its error, and ``drift = d slope / d log
    t``. A loss that falls as ``t^-beta`` has the slope ``-beta``; ``exponent`` is minus the slope.
    """

    time: Array
    slope: Array
    error: Array
    drift: Array

    @property
    def exponent(self) -> Array:
        """Minus the slope, the power by which a loss falls."""
        return -self.slope

    def at(self, time: float) -> tuple[float, float]:
        """Return the slope nearest to ``time``, and its error.

        Nearest is meant in log t. Raises ValueError for a time before the first or after the last slope.
        """
        if not self.time[0] <= time <= self.time[-1]:
            raise ValueError(
                f"time = {time:g}: must be from {self.time[0]:g} to {self.time[-1]:g}, the times of the "
                "first and the last slope"
            )
        k = int(np.argmin(np.abs(np.log(self.time / time))))
        return float(self.slope[k]), float(self.error[k])

    def limit(self) -> tuple[float, float]:
        """Return the limit of the slope at late times and its error, by Aitken's rule.

        The slope is taken to converge as a power of time.  The rule extrapolates the slopes a, b, c at equal
        distances in log t over the last half of the curve in log t: ``c + (c - b)^2 / ((b - a) - (c - b))``.
        The error is half of the extrapolated difference plus the propagated errors of the slopes.  If the
        differences do not shrink, or change sign, the last slope is returned where they are at most twice the
        sum of the errors; otherwise ValueError is raised, because the slope then has no known limit.
        """
        x = np.log(self.time)
        end = x[-1]
        at = np.array([(x[0] + end) / 2, (x[0] + 3 * end) / 4, end])
        a, b, c = np.interp(at, x, self.slope)
        error = np.interp(at, x, self.error)
        first, last = b - a, c - b
        if abs(last) >= abs(first) or first * last <= 0:
            if max(abs(first), abs(last)) <= 2 * error.sum():  # the slope changes no more than its errors
                return float(c), float(error[2] + abs(last))
            raise ValueError(
                f"the slopes {a:.4f}, {b:.4f}, {c:.4f} at three times do not converge: give a longer curve"
            )
        added = last**2 / (first - last)
        amplification = (1 + abs(last / (first - last))) ** 2
        return float(c + added), float(abs(added) / 2 + amplification * error.max())


def local_slopes(
    time: ArrayLike, values: ArrayLike, errors: ArrayLike | None = None, *, window: int = 5
) -> LocalSlopes:
    """Return slopes of ``log values`` over ``log time``, each from ``window // 2`` neighbours on both sides.

    The first and the last ``window // 2`` times have no slope. ``errors`` are the absolute errors of the
    values, taken to be independent; without them the values are exact.  The error of a slope is the
    propagated error of the values plus the difference between the slopes of a cubic and a parabola, which is
    larger than the error of the cubic for a smooth curve and a small window.

    Raises ValueError for a window that is not an odd integer of at least 5, for fewer points than the window,
    for times that do not increase or are not positive, for values that are not positive, for negative errors
    or another number of them, and for numbers that are not finite.

    >>> t = np.geomspace(10, 1e5, 9)
    >>> found = local_slopes(t, 3 * t**-0.5 + 2 / t)
    >>> found.slope.round(3), bool((found.error < 0.01).all())
    (array([-0.531, -0.518, -0.51 , -0.506, -0.503]), True)
    >>> "{:.3f} +- {:.3f}".format(*found.limit())
    '-0.500 +- 0.012'
    """
    t, y = np.asarray(time, float), np.asarray(values, float)
    sigma = np.asarray(0.0 if errors is None else errors, float)
    if sigma.shape not in ((), y.shape):
        raise ValueError(
            f"errors has shape {sigma.shape}, values {y.shape}: must be one number, or one for each value"
        )
    sigma = np.broadcast_to(sigma, y.shape)
    _checked(t, y, sigma, window)
    x, z, half = np.log(t), np.log(y), window // 2
    rows = []
    for k in range(half, len(t) - half):
        part = slice(k - half, k + half + 1)
        near = x[part] - x[k]
        parabola, cubic = (np.linalg.pinv(np.vander(near, n, increasing=True)) for n in (3, 4))
        handed = np.sqrt(np.sum((cubic[1] * sigma[part] / y[part]) ** 2))
        slope = cubic[1] @ z[part]
        rows.append((t[k], slope, handed + abs(parabola[1] @ z[part] - slope), 2 * cubic[2] @ z[part]))
    return LocalSlopes(*np.array(rows).T)


def _checked(t: Array, y: Array, sigma: Array, window: int) -> None:
    """Raise ValueError for a curve, errors or a window from which local slopes cannot be computed.

    Times must be positive and increase, values positive and finite, and errors ``sigma`` not negative. The
    window must be odd, 5 or more, and not longer than the curve.
    """
    require_whole("window", window, 5, "must be odd, and 5 or more")
    if window % 2 == 0:
        raise ValueError(f"window = {window}: must be odd, and 5 or more")
    if t.ndim != 1 or t.shape != y.shape:
        raise ValueError(f"time has shape {t.shape}, values {y.shape}: must be two lists of equal length")
    if len(t) < window:
        raise ValueError(
            f"the curve has {len(t)} points, fewer than the window = {window} of a fit: give more points, or "
            "a smaller odd window of at least 5"
        )
    if not (np.all(t > 0) and np.all(np.diff(t) > 0) and np.all(np.isfinite(t))):
        raise ValueError("time: must be positive and finite, and increase")
    if not np.all(np.isfinite(y)) or not np.all(y > 0):
        raise ValueError("values: must be positive and finite; leave out the other points of the curve")
    if not np.all((sigma >= 0) & np.isfinite(sigma)):
        raise ValueError("errors: must be finite, and 0 or more")


@dataclass(frozen=True)
class Window:
    """Interval of time in which a curve follows one power law.

    ``name`` names the power law, ``start`` and ``end`` are the first and the last time.
    """

    name: str
    start: float
    end: float

    @property
    def decades(self) -> float:
        """Length of the window in powers of ten of time."""
        return float(np.log10(self.end / self.start))


def regimes(found: LocalSlopes, slopes: Mapping[str, float], tolerance: float = 0.02) -> tuple[Window, ...]:
    """Return the windows of time in which a curve has one of the given slopes, in the order of time.

    ``slopes`` maps the name of each power law to its slope. A slope fits within ``tolerance`` plus the error
    of the local slope.  Where several fit, the nearest counts; where none fits, there is no window. A window
    joins successive times; one time alone gives a window whose start is its end. Raises ValueError without
    slopes, for a slope that is not finite, and for a negative tolerance.

    >>> t = np.geomspace(1, 1e8, 81)
    >>> for w in regimes(local_slopes(t, 1 / (t**0.3 + 1e-3 * t)), {"slow": -0.3, "fast": -1.0}):
    ...     print(w.name, f"{w.start:.0e} {w.end:.0e}")
    slow 2e+00 1e+02
    fast 3e+06 6e+07
    """
    if not slopes or not np.isfinite([*slopes.values()]).all():
        raise ValueError(f"slopes = {dict(slopes)}: must be one finite slope or more, by name")
    if not tolerance >= 0:
        raise ValueError(f"tolerance = {tolerance:g}: must be 0 or more")
    names = list(slopes)
    gaps = np.abs(found.slope[:, None] - np.array([slopes[n] for n in names]))
    best = np.argmin(gaps, axis=1)
    fits = gaps[np.arange(len(best)), best] <= tolerance + found.error
    now = np.where(fits, best, -1)
    stretches = np.split(np.arange(len(now)), np.flatnonzero(np.diff(now)) + 1)
    ends = [(now[k[0]], *map(float, found.time[k[[0, -1]]])) for k in stretches]
    return tuple(Window(names[n], start, end) for n, start, end in ends if n >= 0)


ROUNDING = 1e-12
"""Relative difference of logarithms that may be rounding errors of the numbers."""


@dataclass(frozen=True)
class PowerFit:
    """Fit ``y = factor * x^exponent``, with the standard error ``stderr`` of the exponent.

    ``misfit`` is chi squared divided by (number of points - 2).
    """

    exponent: float
    stderr: float
    factor: float
    misfit: float


def fitted_power(x: ArrayLike, y: ArrayLike, stderr: ArrayLike) -> PowerFit:
    """Return the power law that minimises chi squared of ``log y``, with the standard error of its exponent.

    ``stderr`` are the standard errors of ``y``, and the error of the exponent follows from these alone.
    Raises ValueError for arrays of different lengths, for fewer than three points, for numbers that are not
    finite, for ``x`` or errors that are not positive, for values that are not larger than their error,
    because their logarithm is not determined, and if all ``x`` are equal.

    >>> found = fitted_power([1, 2, 4], [3.0, 6.0, 12.0], [0.3, 0.6, 1.2])
    >>> round(found.exponent, 6), round(found.factor, 6), round(found.stderr, 3)
    (1.0, 3.0, 0.102)
    """
    xs, ys, errors = (np.asarray(v, dtype=float) for v in (x, y, stderr))
    if xs.ndim != 1 or ys.shape != xs.shape or errors.shape not in ((), xs.shape):
        raise ValueError(
            f"x has shape {xs.shape}, y {ys.shape} and stderr {errors.shape}: x and y must be lists of equal "
            "length, and stderr a list of this length or one number"
        )
    known = np.isfinite(xs) & np.isfinite(ys) & np.isfinite(errors) & (ys > errors) & (errors > 0) & (xs > 0)
    if len(xs) < 3 or not known.all():
        raise ValueError(
            "a power law needs three points or more, with positive x, positive errors, and values that are "
            "larger than their errors, all finite: leave out the other points"
        )
    across, up, weights = np.log(xs), np.log(ys), ys / errors
    if np.ptp(across) <= ROUNDING * max(1.0, float(np.abs(across).max())):
        raise ValueError(
            f"all points are at x = {xs[0]:g} and determine no exponent: a power law needs different x"
        )
    # The mean of the logarithms of x is subtracted, because the fit would lose digits if these logarithms
    # were large and nearly equal.
    middle = across.mean()
    (slope, height), covariance = np.polyfit(across - middle, up, 1, w=weights, cov="unscaled")
    residual = weights * (up - slope * (across - middle) - height)
    misfit = float(residual @ residual) / (len(xs) - 2)
    factor = float(np.exp(height - slope * middle))
    return PowerFit(float(slope), float(np.sqrt(covariance[0, 0])), factor, misfit)
