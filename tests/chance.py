"""Comparison of sampled numbers with expected ones: one rule for all tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from numerics.stats import bound

LEVEL = 1e-3
"""The chance that a test fails of which everything is true, whatever the correlations of its numbers are."""


def excess(z: Any, dof: Any = np.inf) -> float:
    """Return the largest ``|z|`` over a bound that the largest of so many exceeds with chance `LEVEL`.

    The bound is Sidak's. A result above 1 means a difference. ``z`` holds distances in standard errors, of
    any shape; if one is nan the result is nan, which passes no comparison, and for an empty array it is 0.
    ``dof`` holds the degrees of freedom of the standard errors, one number or one for each: one less than
    the number of runs (of the smaller of two groups).
    """
    distances = np.abs(np.ravel(np.asarray(z)))
    return float((distances / bound(distances.size, LEVEL, dof)).max(initial=0.0))


def in_errors(gap: Any, error: Any) -> np.ndarray:
    """Return distances in units of standard errors; where the error is zero, values must be equal to 1e-9."""
    gap, error = np.broadcast_arrays(np.abs(np.asarray(gap)), np.asarray(error))
    exact = error < 1e-12
    assert gap[exact].max(initial=0.0) < 1e-9
    return np.asarray(gap[~exact] / error[~exact])
