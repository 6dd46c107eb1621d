"""Check that the coefficients of training rules are finite at all times of a problem.

The coefficients are expressions in the time.  Rules in steps are checked at each step.  Flows are checked on
a grid of times, and between its points at zeros of denominators and of arguments of logarithms.  Problems are
checked before anything runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, Pow, Symbol, cos, log, sin, tan

from derive.program import Program, t
from numerics.experiment.memory import MotionCoefficients

Array = NDArray[np.float64]

POINTS = 400
"""Number of intervals of a flow at whose ends coefficients are evaluated."""

GOLDEN, SEARCH_STEPS = 0.3819660112501051, 60
"""Place of a time between two of a grid, as a share of their distance, and steps of a search between them."""

FAR, NEAR, GROWTH = 1e-6, 1e-9, 1.2
"""Two distances from a zero of a denominator, in units of the last time, and the smallest factor by which a
coefficient with a pole there grows between them: a logarithm grows by 1.5."""


def not_finite(
    program: Program, numbers: Mapping[Symbol, float], arrays: Mapping[str, Any], times: Array
) -> tuple[Expr, float] | None:
    """Return a coefficient of a training rule and a time at which it is not a finite real number.

    Coefficients that do not depend on time, or that contain symbols without numbers, are not checked.

    Parameters
    ----------
    program
        The program whose rules are checked.
    numbers
        Values of symbols.
    arrays
        Values of functions of the time, by name, at each step.
    times
        The steps, or the times of a flow (T,). At the last step no coefficient is read.

    Returns
    -------
    tuple or None
        The coefficient as an expression in t and the first such time; None if no such coefficient is found.
    """
    rules = dict.fromkeys([program.rule, *(w.rule for w in program.trained())])
    systems = [x.system for x in rules if hasattr(x, "system")]
    known = {t, *numbers}
    for e in dict.fromkeys(e for x in systems for e in x.coefficients):
        if not e.has(t) or e.free_symbols - known:
            continue
        read = MotionCoefficients(numbers, arrays, program.rule.discrete)
        value = quiet(read.function(e))
        at = _first_bad(e, value, read, times)
        if at is not None:
            return e, at
    return None


def _first_bad(
    e: Expr, value: Callable[[Array], Array], read: MotionCoefficients, times: Array
) -> float | None:
    """Return the first time at which a coefficient of a training rule is not finite, or None.

    ``e`` is the coefficient, and ``value`` the function that maps times to its values; ``read`` makes such
    functions. Steps are tested except the last of the ``times`` (T,). For a flow a grid is tested, and zeros
    of denominators and of arguments of logarithms at which the coefficient grows without bound.
    """
    grid, zeros = times_read(times, read.discrete), list[float]()
    if not read.discrete:
        zeros = [x for x in _zeros_below(e, read, grid) if _grows(value, x, float(times[-1]))]
    bad = ~np.isfinite(value(grid))
    return min([*zeros, *map(float, grid[bad])], default=None)


def times_read(times: Array, discrete: bool) -> Array:
    """Return the times at which coefficients of a rule are checked, for the ``times`` (T,) of a problem.

    They are all steps except the last, at which no step begins, or for a flow (``discrete`` is false) a
    uniform grid together with the times of the flow.
    """
    if discrete:
        return times[:-1]  # a coefficient belongs to a step, and none begins at the last time
    return np.union1d(np.linspace(0.0, times[-1], POINTS + 1), times)


def with_extremes(value: Callable[[Array], Array], grid: Array) -> Array:
    """Return the times ``grid`` (T,) and the times of local extremes between them, ascending.

    ``value`` maps times to values. It is evaluated at these times and at one time between each two. Local
    minima and maxima of these values are refined by ternary search; a pulse between two of the times is not
    found.
    """
    times = np.union1d(grid, grid[:-1] + GOLDEN * np.diff(grid))
    y = value(times)
    extremes = [grid]
    for measure in (1.0, -1.0):
        size = measure * y
        before, here, after = size[:-2], size[1:-1], size[2:]
        lowest = (here <= before) & (here <= after) & ((here < before) | (here < after))
        k = np.flatnonzero(lowest) + 1
        low, high = times[k - 1], times[k + 1]
        for _ in range(SEARCH_STEPS if len(k) else 0):
            left, right = low + (high - low) / 3, high - (high - low) / 3
            smaller = measure * value(left) <= measure * value(right)
            low, high = np.where(smaller, low, left), np.where(smaller, right, high)
        extremes.append(low)
    return np.unique(np.concatenate(extremes))


def _zeros_below(coefficient: Expr, read: MotionCoefficients, grid: Array) -> Iterator[float]:
    """Yield times at which a denominator or the argument of a logarithm in a coefficient may be zero.

    They are the zeros between changes of sign, and the minima of the absolute value, which need not be zero,
    between the times ``grid``. ``read`` makes functions of the time from expressions.
    """
    from scipy.optimize import brentq, minimize_scalar  # slow to import, and seldom needed

    coefficient = coefficient.replace(tan, lambda x: sin(x) / cos(x))
    below = [x.base for x in coefficient.atoms(Pow) if x.exp.is_negative] + [
        x.args[0] for x in coefficient.atoms(log)
    ]
    for part in (x for x in below if x.has(t)):
        value = quiet(read.function(part))

        def value_at(x: float, value: Callable[[Array], Array] = value) -> float:
            """Return the value of the denominator or argument at one time x."""
            return float(value(np.array([x]))[0])

        y = value(grid)
        for k in np.flatnonzero(y[:-1] * y[1:] < 0):
            yield float(brentq(value_at, grid[k], grid[k + 1], xtol=1e-15))
        size = np.abs(y)
        lowest = (size[1:-1] <= size[:-2]) & (size[1:-1] <= size[2:])
        for k in np.flatnonzero(lowest & (y[:-2] * y[2:] > 0)):
            ends, options = (grid[k], grid[k + 2]), {"xatol": 1e-12}
            minimum = minimize_scalar(
                lambda x: abs(value_at(x)), bounds=ends, method="bounded", options=options
            )
            yield float(minimum.x)


def _grows(value: Callable[[Array], Array], zero: float, last: float) -> bool:
    """Return whether a coefficient grows without bound towards the time ``zero``, from at least one side.

    ``value`` maps times to its values. A side counts if the absolute value at the distance NEAR is larger
    than GROWTH times that at the distance FAR, or infinite, or not defined (NaN), as that of ``t log(t)``
    at negative times. Distances are in units of the ``last`` time.
    """
    far, near = (np.abs(value(zero + last * np.array([-x, x]))) for x in (FAR, NEAR))
    return bool(np.any(~np.isfinite(near) | (near > GROWTH * far)))


def quiet(function: Callable[[Array], Array]) -> Callable[[Array], Array]:
    """Return the same function of times, with warnings of NumPy switched off during the call."""

    def values(times: Array) -> Array:
        with np.errstate(all="ignore"):
            return function(times)

    return values
