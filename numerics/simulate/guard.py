"""Stop a run that has left the region where its numbers mean anything."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Diverged

#: An output this many times larger than the largest target (or 1) counts as diverged.
LIMIT = 1e6


def check_finite(f: NDArray[np.float64], targets: NDArray[np.float64], where: str) -> None:
    """Raise ``numerics.errors.Diverged`` naming ``where`` if an output is not finite or has exploded."""
    largest = float(np.abs(f).max()) if np.isfinite(f).all() else np.inf
    if largest > LIMIT * max(1.0, float(np.abs(targets).max())):
        raise Diverged(f"a finite network diverged at {where}: largest |f| = {largest:.3g}; lower the rate")
