"""The error's own equation at each order of the expansion."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Diverged
from numerics.solve.march import RUNAWAY

Array = NDArray[np.float64]


def volterra(w: Array, K: Array, drive: Array, n: int) -> Array:
    """``x(t) = drive(t) - K sum_s w(t, s) x(s)``, step by step.

    ``w`` is (T, T) and strictly lower triangular, ``drive`` (T, P); ``n`` is the order, for the message.
    Raises :class:`~numerics.errors.Diverged` where x grows beyond RUNAWAY times the drive.
    """
    out = np.zeros_like(drive)
    bound = RUNAWAY * max(float(np.max(np.abs(drive))), 1e-300)
    for step in range(len(drive)):
        out[step] = drive[step] - K @ (w[step, :step] @ out[:step])
        if not np.all(np.abs(out[step]) < bound):
            raise Diverged(f"Delta at order {n} diverged at step {step}")
    return out


__all__ = ["volterra"]
