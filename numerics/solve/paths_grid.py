"""The grid of a flow whose answer carries noise: refined until what it misses is small beside the noise.

Every grid is solved from the same seeds, so most of the noise drops out of differences between grids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Diverged, NotConverged
from numerics.solve.grid import Grid, flow_grid
from numerics.solve.particles.accuracy import apart, rms, scale_of, spread_of
from numerics.solve.settle import MAX_NODES, PIECES

Array = NDArray[np.float64]
Watched = list[dict[str, Array]]

SHARE = 0.25
"""What a grid may miss, in standard errors."""

FEW = 8
"""Intervals of the coarsest grid, if there are more output times than that."""

SMOOTH, ROUGH = 4, 3
"""Orders of the integrator: for functions with a continuous derivative, and for others and for noise.

A path that meets a kink within a step is off in first order, either way; the average over paths keeps the
second order and no more, so a higher one would only cost stability."""


@dataclass(frozen=True)
class Settled:
    """A grid that contains the output times, and what to report of it."""

    grid: Grid
    notes: Mapping[str, Any]


def grids(times: Array, order: int) -> Iterator[Grid]:
    """Ever finer grids, the first ones through some of the output times alone; outputs are those there are.

    >>> [len(g.nodes) for g, _ in zip(grids(np.linspace(0.0, 1.0, 65), 2), range(3))]
    [13, 21, 37]
    """
    stride = 1
    while (len(times) - 1) // (2 * stride) >= FEW:
        stride *= 2
    while stride > 1:
        some = times[kept(len(times), stride)]
        yield flow_grid(some, step=float(np.max(np.diff(some))), order=order)
        stride //= 2
    longest = float(np.max(np.diff(times)))
    for pieces in PIECES:
        yield flow_grid(times, step=longest / pieces, order=order)


def kept(count: int, stride: int) -> NDArray[np.intp]:
    """Every ``stride``-th of the output times, and the last one."""
    return np.unique([*range(0, count, stride), count - 1])


def settle_paths(
    times: Array,
    attempt: Callable[[Grid], Watched],
    *,
    rtol: float,
    accuracy: float | None,
    smooth: bool,
    noisy: bool,
) -> Settled:
    """Refine until two grids differ by a share of the standard error, or by ``rtol`` if that is more.

    ``attempt`` gives what is watched, replica by replica.  Both are root mean squares over times and samples;
    differences count as far as they exceed their own noise, and as if the method were of second order only
    (of first, with noise).  With an ``accuracy`` the standard error counts as no larger than that.  Raises
    :class:`~numerics.errors.NotConverged` beyond MAX_NODES nodes.
    """
    order = SMOOTH if smooth else ROUGH
    before: tuple[float, Array, Watched] | None = None
    estimate = np.inf
    for grid in grids(times, order):
        if len(grid.nodes) > MAX_NODES:
            break
        step = float(np.max(np.diff(grid.nodes)))
        if before is not None and step > 0.9 * before[0]:
            continue
        at = grid.nodes[grid.outputs]
        try:
            found = attempt(grid)
        except Diverged:
            before = None  # an explicit integrator diverges when its step is too long
            continue
        if before is not None:
            coarser, common, other = before
            here = np.searchsorted(at, common)
            fine = [{k: x[here] for k, x in y.items()} for y in found]
            gain = (coarser / step) ** (1 if noisy else 2) - 1
            estimate, bound = (x / gain for x in apart(fine, other))
            spread = spread_of(found)
            error = max(rms(e) / scale_of(spread.mean[k]) for k, e in spread.stderr().items())
            allowed = SHARE * (error if accuracy is None else min(error, accuracy))
            if estimate <= max(rtol, allowed) and len(at) == len(times):
                notes = {
                    "grid_error": bound,
                    "time_nodes": len(grid.nodes),
                    "integrator": f"Adams-Bashforth, order {order}",
                }
                return Settled(grid, notes)
        before = step, at, found
    raise NotConverged(
        f"the flow needs more than {MAX_NODES} time nodes: the grid still misses {estimate:.1e} of the "
        f"largest error where solver.rtol = {rtol:.1e}; a larger rtol or a shorter training.time would do"
    )
