"""A step whose quantities need each other: repeated sweeps, accelerated by Anderson's method.

What is learnt fast stays learnt whatever the rest of the step is, so that plain repetition need not converge,
however short the step.  Few directions do not, and mixing the last sweeps removes them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from numerics.errors import NotConverged

Array = NDArray[np.float64]

SWEEPS, KEPT = 120, 10
"""The most sweeps of a step, and how many of the last ones are mixed."""

STALLED, ROUNDING = 12, 1e-7
"""After how many sweeps without progress a change below ROUNDING is put down to rounding."""


def settle_step(blocks: list[Array], sweep: Callable[[], None], tolerance: float) -> None:
    """Repeat ``sweep``, which rewrites ``blocks`` (views), until it changes no block by more than the share
    ``tolerance`` of its largest entry, or until changes are rounding errors.

    Raises :class:`~numerics.errors.NotConverged` after SWEEPS sweeps.

    >>> x = np.array([0.0])
    >>> def sweep() -> None:
    ...     x[:] = 3 - 2 * x
    >>> settle_step([x], sweep, 1e-12)
    >>> x.round(12).tolist()
    [1.0]
    """
    sizes: list[float] = []
    points: list[Array] = []
    changes: list[Array] = []
    best, since = np.inf, 0
    for _ in range(SWEEPS):
        before = [x.copy() for x in blocks]
        sweep()
        gaps = [x - y for x, y in zip(blocks, before, strict=True)]
        now = [float(np.abs(x).max(initial=0.0)) for x in blocks]
        shares = [np.abs(x).max(initial=0.0) / (size or 1.0) for x, size in zip(gaps, now, strict=True)]
        change = float(np.max(shares))
        if not np.isfinite(change):
            return  # runaway dynamics, which the march reports
        best, since = (change, 0) if change < best / 2 else (best, since + 1)
        if change <= tolerance or (best < ROUNDING and since > STALLED):
            return
        sizes = sizes or [size or 1.0 for size in now]
        points = [*points, _joined(blocks, sizes)][-KEPT:]
        changes = [*changes, _joined(gaps, sizes)][-KEPT:]
        mixed = points[-1]
        if len(points) > 1:
            steps = np.diff(np.stack(changes), axis=0).T
            parts = np.linalg.lstsq(steps, changes[-1], rcond=1e-14)[0]
            mixed = mixed - np.diff(np.stack(points), axis=0).T @ parts
        at = 0
        for x, size in zip(blocks, sizes, strict=True):
            x[...] = size * mixed[at : at + x.size].reshape(x.shape)
            at += x.size
    raise NotConverged(f"the equations of a step did not settle in {SWEEPS} sweeps")


def _joined(blocks: list[Array], sizes: list[float]) -> Array:
    """All blocks in one, each in units of its size."""
    return np.concatenate([(x / size).ravel() for x, size in zip(blocks, sizes, strict=True)])
