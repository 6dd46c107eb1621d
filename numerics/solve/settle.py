"""Shorten the step of a flow until its answer has settled."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Diverged, NotConverged
from numerics.solve.grid import ORDER, Grid, flow_grid

Array = NDArray[np.float64]
T = TypeVar("T")

PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Into how many steps the longest output interval is cut, in turn."""

MAX_NODES = 2000
"""Time nodes beyond which a flow is reported as not converged: the cost of a march grows with their cube."""


def settle(
    times: Array,
    rtol: float,
    attempt: Callable[[Grid], tuple[Array, T]],
    size: Callable[[Array], float] = lambda value: float(np.max(np.abs(value))),
) -> tuple[Grid, T, dict[str, Any]]:
    """Call ``attempt(grid)`` on ever finer grids until its first result, at the output times, changes within
    ``rtol``.

    The change is relative to ``size`` of the result, that of its largest entry, and turned into an estimate
    of the error as if the method were of second order only, which is on the safe side.  Returns the last
    grid, the second result and what to report. Raises :class:`~numerics.errors.NotConverged` beyond MAX_NODES
    nodes.
    """
    order = ORDER if rtol >= 1e-7 else ORDER + 2
    longest = float(np.max(np.diff(times)))
    coarse: Array | None = None
    before = estimate = np.inf
    for pieces in PIECES:
        grid = flow_grid(times, step=longest / pieces, order=order)
        if len(grid.nodes) > MAX_NODES:
            break
        step = float(np.max(np.diff(grid.nodes)))
        if step > 0.9 * before:
            continue  # steps that grow from a short start may not reach the longest one allowed
        ratio, before = before / step, step
        try:
            value, found = attempt(grid)
        except Diverged:
            coarse = None  # an explicit integrator diverges when its step is too long
            continue
        if coarse is not None:
            estimate = float(np.max(np.abs(value - coarse))) / size(value) / (ratio**2 - 1)
            if estimate <= rtol:
                notes = {
                    "error_estimate": estimate,
                    "time_nodes": len(grid.nodes),
                    "integrator": f"Adams-Bashforth, order {order}",
                }
                return grid, found, notes
        coarse = value
    raise NotConverged(
        f"the flow needs more than {MAX_NODES} time nodes: the error estimate is {estimate:.1e} where "
        f"solver.rtol = {rtol:.1e}; a larger rtol or a shorter training.time would do"
    )
