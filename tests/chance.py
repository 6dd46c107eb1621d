"""How far numbers that chance made may be from what is expected: one rule for all tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from numerics.stats import bound

LEVEL = 1e-3
"""The chance that a test fails of which everything is true, whatever the correlations of its numbers are."""


def excess(z: Any, dof: Any = np.inf) -> float:
    """The largest ``|z|`` over what the largest of so many exceeds with chance `LEVEL` (Sidak): not above 1.

    ``z``: distances in standard errors, of any shape; one that is nan makes the answer nan, which passes no
    comparison, and of none the answer is 0.  ``dof``: the degrees of freedom of the standard errors, which
    are one less than the runs that they come from (the fewer of two groups), one number or one for each.
    """
    distances = np.abs(np.ravel(np.asarray(z)))
    return float((distances / bound(distances.size, LEVEL, dof)).max(initial=0.0))


def in_errors(gap: Any, error: Any) -> np.ndarray:
    """Distances in standard errors where there are any; what has none has to be equal, to 1e-9."""
    gap, error = np.broadcast_arrays(np.abs(np.asarray(gap)), np.asarray(error))
    exact = error < 1e-12
    assert gap[exact].max(initial=0.0) < 1e-9
    return np.asarray(gap[~exact] / error[~exact])
