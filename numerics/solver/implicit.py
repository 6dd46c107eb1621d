"""A step whose quantities need each other: repeated sweeps, accelerated by Anderson's method.

What is learnt fast stays learnt whatever the rest of the step is, so that plain repetition need not converge,
however short the step.  Few directions do not, and mixing the last sweeps removes them.
"""

from __future__ import annotations

from collections.abc import Callable
from math import comb

import numpy as np
from numpy.typing import NDArray

from numerics.errors import NotConverged
from numerics.solver.rows import Rows

Array = NDArray[np.float64]

SWEEPS, KEPT = 120, 10
"""The most sweeps of a step, and how many of the last ones are mixed."""

FAST = 0.1
"""Sweeps that shrink changes by this factor are not mixed."""

LAST, SMOOTH = 5, 12
"""How many of the last steps are continued, from which step on."""

STALLED, ROUNDING = 12, 1e-7
"""After how many sweeps without progress a change below ROUNDING is put down to rounding."""

RESOLVED = 1e-12
"""Correlations at equal times that are below this share of the largest one so far count as zero."""


class Settling:
    """Steps settled one after another: how large each block has been, and by how much sweeps still changed
    one when they were stopped.
    """

    def __init__(self, tolerance: float) -> None:
        self.tolerance, self.residual = tolerance, 0.0
        self.peaks: list[float] = []

    def step(self, blocks: list[Array], sweep: Callable[[], None]) -> None:
        """One more step, whose ``blocks`` are those of :func:`found_at`."""
        self.peaks = self.peaks or [0.0] * len(blocks)
        floors = [p * RESOLVED ** (0.5 if x.ndim else 1.0) for p, x in zip(self.peaks, blocks, strict=True)]
        self.residual = max(self.residual, settle_step(blocks, sweep, self.tolerance, floors))
        self.peaks = [max(p, _size(x)) for p, x in zip(self.peaks, blocks, strict=True)]


def found_at(step: int, rows: Rows) -> list[Array]:
    """Views of all that a step finds out and a later operation of it, or of the next, may read.

    Sums at equal times, which may be much smaller than the rest of their row, are there once more, without
    axes.
    """
    found: list[Array] = []
    n, m = rows.sizes, rows.widths
    for (i, j), a in rows.correlations.items():
        found.append(a[step * n[i] : (step + 1) * n[i], : (step + 1) * n[j]])
        if i != j:
            found.append(a[: (step + 1) * n[i], step * n[j] : (step + 1) * n[j]].T)
    for (i, k), a in rows.responses.items():
        found.append(a[step * n[i] : (step + 1) * n[i], : (step + 1) * m[k]])
    for a in rows.sums.values():
        found += [a[step, : step + 1], a[step, step : step + 1].reshape(())]
    return found + [a[step : step + 1] for a in (*rows.scalars.values(), *rows.hoisted.values())]


def continued(now: Array, before: list[Array]) -> None:
    """Guess a block from those of the last steps (the latest first), by the polynomial through them.

    ``x(t, s)`` is smooth along ``t - s``, whatever it does at s = t; at the first times along t.

    >>> rows = [np.arange(0.0, t + 1) + t * t for t in range(8)]
    >>> guess = np.empty(8)
    >>> continued(guess, rows[6:3:-1])
    >>> np.allclose(guess, rows[7])
    True
    """
    size = now.shape[-1] - before[0].shape[-1]
    parts = [-((-1.0) ** k) * comb(len(before), k) for k in range(1, len(before) + 1)]
    if not size:  # it has no time but the present
        now[...] = sum(c * x for c, x in zip(parts, before, strict=True))
        return
    first = min((len(parts) + 1) * size, before[-1].shape[-1])  # weights of time 0 are others
    now[..., :first] = sum(c * x[..., :first] for c, x in zip(parts, before, strict=True))
    now[..., first:] = sum(
        c * x[..., first - k * size :] for k, (c, x) in enumerate(zip(parts, before, strict=True), 1)
    )


def settle_step(
    blocks: list[Array], sweep: Callable[[], None], tolerance: float, floors: list[float] | None = None
) -> float:
    """Repeat ``sweep``, which rewrites ``blocks`` (views), until the next one would change no block by more
    than the share ``tolerance`` of its size, or until changes are rounding errors; returns that change.

    Sweeps without mixing between that shrink changes by FAST and more go on doing so: after changes of size
    ``c_1`` and ``c_2`` the next one is ``c_2**2 / c_1``.

    The size of a block is its largest entry, or its number in ``floors`` where that is larger: what is below
    counts as zero.  Raises :class:`~numerics.errors.NotConverged` after SWEEPS sweeps.

    >>> x = np.array([0.0])
    >>> def sweep() -> None:
    ...     x[:] = 3 - 2 * x
    >>> settle_step([x], sweep, 1e-12) <= 1e-12
    True
    >>> x.round(12).tolist()
    [1.0]
    """
    floors = floors or [0.0] * len(blocks)
    sizes: list[float] = []
    points: list[Array] = []
    changes: list[Array] = []
    best, since, last, mixing = np.inf, 0, np.inf, True
    for _ in range(SWEEPS):
        before = [x.copy() for x in blocks]
        sweep()
        gaps = [x - y for x, y in zip(blocks, before, strict=True)]
        now = [max(_size(x), y) or 1.0 for x, y in zip(blocks, floors, strict=True)]
        change = float(np.max([_size(x) / y for x, y in zip(gaps, now, strict=True)]))
        if not np.isfinite(change):
            return change  # runaway dynamics, which the march reports
        best, since = (change, 0) if change < best / 2 else (best, since + 1)
        if change <= tolerance or (best < ROUNDING and since > STALLED):
            return change
        sizes = sizes or now
        if change < FAST * last:  # sweeps alone do it
            if not mixing and change**2 <= tolerance * last:
                return change**2 / last
            points, changes, last, mixing = [], [], change, False
            continue
        last, mixing = change, True
        points = [*points, _joined(blocks, sizes)][-KEPT:]
        changes = [*changes, _joined(gaps, sizes)][-KEPT:]
        mixed = points[-1]
        if len(points) > 1:
            steps = np.diff(np.stack(changes), axis=0).T
            try:
                parts = np.linalg.lstsq(steps, changes[-1], rcond=1e-14)[0]
            except np.linalg.LinAlgError:
                break  # sweeps that overflow
            mixed = mixed - np.diff(np.stack(points), axis=0).T @ parts
        at = 0
        for x, size in zip(blocks, sizes, strict=True):
            x[...] = size * mixed[at : at + x.size].reshape(x.shape)
            at += x.size
    raise NotConverged(f"the equations of a step did not settle in {SWEEPS} sweeps")


def _size(x: Array) -> float:
    return float(np.abs(x).max(initial=0.0))


def _joined(blocks: list[Array], sizes: list[float]) -> Array:
    """All blocks in one, each in units of its size."""
    return np.concatenate([(x / size).ravel() for x, size in zip(blocks, sizes, strict=True)])
