"""Schedules as text of a file: coefficients of a training rule as expressions in the step, or time, t.

``0.2*min(1, (t + 1)/10)`` warms up in ten steps, ``0.1*(1 + cos(pi*t/100))/2`` decays as a cosine over a
hundred, and ``0.1*0.5**floor(t/30)`` halves every thirty.  Step t is the one from t to t + 1.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, lambdify

from derive.program import t
from numerics.errors import SpecError
from numerics.experiment.formulas import STEPWISE, SYMBOLIC, Reader

Array = NDArray[np.float64]

POINTS = 400
"""Number of intervals of a flow at whose ends a schedule is evaluated."""

EXAMPLE = '"0.2*min(1, (t + 1)/10)*(1 + cos(pi*t/100))/2"'


@lru_cache(maxsize=256)
def parse_schedule(key: str, text: str, end: float | None, steps: bool, accepted: str = "a number") -> Expr:
    """Return the expression in t that the text of a key stands for.

    Parameters
    ----------
    key
        The key of the file, which error messages name.
    text
        An expression in t, with the syntax of activations in h. Powers such as ``0.9**t`` are accepted too,
        and the function ``floor`` if ``steps``.
    end
        The number of steps, or the end time of a flow; None if the file does not give it.
    steps
        Whether t counts steps.
    accepted
        The numbers that the key takes, in words.

    Raises
    ------
    SpecError
        For a number in quotes, unsupported text, and an expression that is not a finite real number at some
        step, or at some time of a flow. Times of a flow are tested as
        :class:`~numerics.experiment.formulas.Reader` does with POINTS + 1 equally spaced ones. If ``end`` is
        None, only t = 0 is tested.

    Examples
    --------
    >>> parse_schedule("training.learning_rate", "0.1/(1 + t)", 100, steps=True)
    1/(10*(t + 1))
    """
    if _is_number(text):
        raise SpecError(key, text, "is a number in quotes", f"{accepted}; a number has no quotes")
    last = 0.0 if end is None else float(end)
    reader = Reader(
        key=key,
        variable=t,
        grid=(0.0,) if steps or not last else tuple(last * k / POINTS for k in range(POINTS + 1)),
        accepted=f"a number, or an expression in t such as {EXAMPLE}",
        finite="a function of all times of the training",
        functions={**SYMBOLIC, **STEPWISE} if steps else SYMBOLIC,
        powers_of_numbers=True,
    )
    schedule = reader.read(text)
    if steps and last:
        table = values_of(schedule, np.arange(last))
        if not np.isfinite(table).all():
            at = int(np.flatnonzero(~np.isfinite(table))[0])
            raise SpecError(key, text, reader.not_finite(text, at), reader.finite)
    return schedule


def _is_number(text: str) -> bool:
    """Return whether the text is a number, so that it is not an expression in t."""
    try:
        float(text)
    except ValueError:
        return False
    return True


def values_of(schedule: Expr, times: Array) -> Array:
    """Return the values of a schedule at times (T,), NaN where they are not real; they may be infinite.

    >>> values_of(t**2 / 4, np.array([0.0, 1.0, 2.0]))
    array([0.  , 0.25, 1.  ])
    """
    with np.errstate(all="ignore"):
        values = np.asarray(_function(schedule)(np.asarray(times, dtype=np.float64)))
    values = np.where(np.imag(values) == 0, np.real(values), np.nan)
    return np.array(np.broadcast_to(values, np.shape(times)), dtype=np.float64)


@lru_cache(maxsize=256)
def _function(schedule: Expr):  # type: ignore[no-untyped-def]
    """Return the schedule, an expression in t, as a compiled function of t."""
    return lambdify(t, schedule, ["numpy", "scipy"])
