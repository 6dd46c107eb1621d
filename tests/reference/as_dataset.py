"""A reference solution with the axes and names of a result file, for ``numerics.verification.compare``."""

from __future__ import annotations

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike

from .solution import Solution


def as_dataset(solution: Solution, times: ArrayLike) -> xr.Dataset:
    """Return Phi, G, A, B, tangent_kernel, error, train_loss on the time axis ``times``."""
    times = np.asarray(times, dtype=float)
    depth, samples = len(solution.Phi), solution.error.shape[1]
    two = ("layer", "time", "time_")
    return xr.Dataset(
        {
            "train_loss": ("time", solution.train_loss),
            "error": (("time", "sample"), solution.error),
            "Phi": ((*two, "sample", "sample_"), solution.Phi),
            "G": (two, solution.G),
            "A": ((*two, "sample"), solution.A),
            "B": ((*two, "sample"), solution.B),
            "tangent_kernel": (("time", "time_", "sample", "sample_"), solution.tangent_kernel),
        },
        coords={
            "layer": np.arange(1, depth + 1),
            "time": times,
            "time_": times,
            "sample": np.arange(samples),
            "sample_": np.arange(samples),
        },
    )
