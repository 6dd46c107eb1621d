"""Solve an experiment on a deep linear network: derive its theory, march it, label the result."""

from __future__ import annotations

import time as clock
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from derive.meanfield.theory import Theory
from numerics.compile.lower import lower
from numerics.compile.table import Node
from numerics.errors import Diverged, NotConverged
from numerics.experiment import Experiment
from numerics.results import dataset
from numerics.solve.afterwards import Afterwards
from numerics.solve.grid import ORDER, Grid, density, flow_grid
from numerics.solve.march import March, march
from numerics.solve.observables import evaluate
from numerics.theory import constants_of, solvable

Array = NDArray[np.float64]
Kernels = Literal["full", "trace", "none"]
Progress = Callable[[int, int], None]

PIECES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
"""Into how many steps the longest output interval is cut, in turn."""

MAX_NODES = 2000
"""Time nodes beyond which a flow is reported as not converged: the cost grows with their cube."""


def solve(experiment: Experiment, *, kernels: Kernels = "full", progress: Progress | None = None) -> xr.Dataset:
    """The nonperturbative mean-field solution of ``experiment``.

    ``gd`` is solved exactly, step by step.  ``flow`` takes ever shorter steps until Delta at every output time has settled
    to ``solver.rtol`` (relative to the largest Delta; the estimate presumes no more than second order).  ``kernels``: ``full`` keeps Phi, A, B and
    the tangent kernel for all pairs of samples, ``trace`` the sample traces of Phi and the tangent kernel, ``none``
    neither.  Raises :class:`~numerics.errors.Diverged` with the step, and :class:`~numerics.errors.NotConverged` when a
    flow needs more than MAX_NODES nodes.
    """
    started = clock.perf_counter()
    if experiment.training.rule == "gd":
        values, notes = _steps(experiment, kernels, progress), {}
    else:
        values, notes = _flow(experiment, kernels, progress)
    return dataset(
        values,
        times=experiment.times,
        spec=experiment.text,
        method="linear causal march",
        seed=experiment.solver.seed,
        wall_time_s=clock.perf_counter() - started,
        **notes,
    )


# -- one march -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A march with the theory and data that it solved."""

    theory: Theory
    result: March
    data: dict[str, Array]
    experiment: Experiment

    @property
    def depth(self) -> int:
        """Number of hidden layers."""
        return self.experiment.depth


def _march(
    experiment: Experiment, steps: int, weights: Array | None, progress: Progress | None
) -> Run:
    theory = solvable(experiment.depth, experiment.training.rule, experiment.training.loss)
    data = {"K_x": experiment.kernel, "y": experiment.targets}
    if weights is not None:
        data["w"] = weights
    layers = range(1, experiment.depth + 1)
    wanted: tuple[Node, ...] = tuple(("G", k) for k in layers)
    result = march(
        lower(theory),
        steps=steps,
        samples=len(experiment.targets),
        constants=constants_of(experiment),
        data=data,
        wanted=wanted,
        progress=progress,
    )
    return Run(theory, result, data, experiment)


def _steps(experiment: Experiment, kernels: Kernels, progress: Progress | None) -> dict[str, Array]:
    count = len(experiment.times)
    run = _march(experiment, count, None, progress)
    return _values(run, kernels, np.arange(count), None)


def _flow(
    experiment: Experiment, kernels: Kernels, progress: Progress | None
) -> tuple[dict[str, Array], dict[str, object]]:
    """Shorten the step until the errors Delta have settled to ``rtol``."""
    times, rtol = experiment.times, experiment.solver.rtol
    order = ORDER if rtol >= 1e-7 else ORDER + 2
    longest = float(np.max(np.diff(times)))
    coarse: Array | None = None
    estimate, ratio = np.inf, 1.0
    for pieces, previous in zip(PIECES, (1, *PIECES), strict=False):
        grid = flow_grid(times, step=longest / pieces, order=order)
        if len(grid.nodes) > MAX_NODES:
            break
        try:
            run = _march(experiment, len(grid.nodes), grid.weights, progress)
        except Diverged:
            coarse = None  # an explicit integrator diverges when its step is too long
            continue
        error = run.result.scalars["Delta"][grid.outputs]
        if coarse is not None:
            ratio = pieces / previous
            estimate = float(np.max(np.abs(error - coarse)) / np.max(np.abs(error))) / (ratio**2 - 1)
            if estimate <= rtol:
                notes = {
                    "error_estimate": estimate,
                    "time_nodes": len(grid.nodes),
                    "integrator": f"Adams-Bashforth, order {order}",
                }
                return _values(run, kernels, grid.outputs, grid), notes
        coarse = error
    raise NotConverged(
        f"the flow needs more than {MAX_NODES} time nodes: the error estimate is {estimate:.1e} where "
        f"solver.rtol = {rtol:.1e}; a larger rtol or a shorter training.time would do"
    )


# -- labelled values -----------------------------------------------------------------------------------------------


def _values(run: Run, kernels: Kernels, at: NDArray[np.intp], grid: Grid | None) -> dict[str, Array]:
    """The contract's variables at the nodes ``at``."""
    error = run.result.scalars["Delta"][at]
    values: dict[str, Array] = {"error": error, "train_loss": np.mean(error**2, axis=1)}
    layers = range(1, run.depth + 1)
    pick = np.ix_(at, at)
    G = {k: run.result.correlation(("g", k), ("g", k))[:, 0, :, 0][pick] for k in layers}
    values["G"] = np.stack([G[k] for k in layers])
    if kernels == "none":
        return values
    after = Afterwards(run.result, run.data, constants_of(run.experiment), at)
    nodes = [("h", k) for k in layers]
    if kernels == "trace":
        # every term of the tangent kernel has one sample-indexed factor, so the trace goes through to it
        traces = [after.trace(x) for x in nodes]
        values["Phi_trace"] = np.stack(traces)
        single = {"K_x": np.trace(run.data["K_x"]).reshape(1, 1)}
        H = {("H", k): traces[k - 1][None, None] for k in layers}
        values["tangent_kernel_trace"] = _tangent(run, H, G, single)[:, :, 0, 0]
        return values
    full = [after.outputs(x, x) for x in nodes]
    values["Phi"] = np.stack([x.transpose(0, 2, 1, 3) for x in full])
    values["tangent_kernel"] = _tangent(run, {("H", k): full[k - 1].transpose(1, 3, 0, 2) for k in layers}, G, run.data)
    values |= _responses(run, after, grid)
    return values


def _tangent(run: Run, H: dict[Node, Array], G: dict[int, Array], data: dict[str, Array]) -> Array:
    tensors: dict[Node, Array] = H | {("G", k): x for k, x in G.items()}
    return evaluate(run.theory.observables[0], tensors, data, constants_of(run.experiment))


def _responses(run: Run, after: Afterwards, grid: Grid | None) -> dict[str, Array]:
    """A^l (and A^L, which enters f) and B^l, over gamma0; for the flow as densities in s."""
    at = after.at
    error = run.result.scalars["Delta"][at]
    scale = float(run.experiment.network.gamma0)

    def read(i: Node, k: Node) -> Array:
        full = run.result.response(i, k)[..., 0]
        return (full[at][..., at] if grid is None else density(full, after.equal_time(i, k)[..., 0], grid)) / scale

    A = [read(("h", k), ("r", k)).transpose(0, 2, 1) for k in range(1, run.depth + 1)]
    B = [read(("g", k), ("u_p", k))[:, 0, :, None] * error[None] for k in range(2, run.depth + 1)]
    return {"A": np.stack(A), "B": np.stack([*B, np.zeros_like(A[0])])}


__all__ = ["MAX_NODES", "Run", "solve"]
