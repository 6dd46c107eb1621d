"""What must hold of a solved flow: its error estimate keeps to rtol, and small steps of descent come to it.

Descent in exact steps is another program with another theory, which knows nothing of integrators.  Its loss
is that of the flow plus a series in the length of the steps, of which halving removes one power at a time.
"""

from __future__ import annotations

import numpy as np
import xarray as xr

from numerics.errors import Diverged
from numerics.experiment import Experiment
from numerics.solver import solve
from numerics.verification.identities import descent
from numerics.verification.report import Check

FEWEST, MOST = 32, 512
"""Steps of descent up to the time at which it is compared."""

SHARE = 0.5
"""The loss of that time, as a share of its start: halfway down, where most happens."""

SETTLED = 1e-3
"""How well the series in the length of the steps is to be known, relative to the loss."""


def settled(experiment: Experiment, theory: xr.Dataset) -> list[Check]:
    """The solver's own estimate."""
    if experiment.training.rule != "flow":
        return []
    estimate, basis = float(theory.attrs["error_estimate"]), f"rtol, {theory.attrs['time_nodes']} nodes"
    name = "flow: error by refinement"
    return [Check("solution", name, estimate, 0, experiment.solver.rtol, basis, upper=True)]


def small_steps(experiment: Experiment, theory: xr.Dataset) -> list[Check]:
    """The training loss halfway down, from descent in 32, 64, ... steps, extrapolated to none.

    Allowed is what the last halving changed, and what the flow may be off.
    """
    if experiment.training.rule != "flow":
        return []
    end = halfway(theory)
    value, missed, steps = extrapolated(experiment, end)
    changes = {"training.time": end, "training.points": 3, "training.grid": "uniform"}
    flow = solve(experiment.replace(changes), kernels="none")
    expected, first = float(flow.train_loss[-1]), float(flow.train_loss[0])
    allowed = missed + 2 * experiment.solver.rtol * first
    name = f"train loss at t = {end:.4g}, from descent"
    return [Check("solution", name, value, expected, allowed, f"up to {steps} steps, -> 0")]


def halfway(theory: xr.Dataset) -> float:
    """The time at which the training loss has fallen to SHARE, or its last."""
    loss, times = theory.train_loss.to_numpy(), theory.time.to_numpy()
    below = np.flatnonzero(loss <= SHARE * loss[0])
    if not len(below):
        return float(times[-1])
    k = max(1, int(below[0]))
    return float(np.interp(-SHARE * loss[0], -loss[k - 1 : k + 1], times[k - 1 : k + 1]))


def extrapolated(experiment: Experiment, end: float) -> tuple[float, float, int]:
    """The training loss at ``end`` without the length of steps, what is not known of it, the most steps."""
    row: list[float] = []
    count, missed, value = FEWEST, np.inf, np.nan
    tau = experiment.training.momentum
    while count <= MOST:
        if tau and end / count >= tau:  # a velocity that is gone within a step is another network
            count *= 2
            continue
        try:
            found = [float(solve(descent(experiment, end, count), kernels="none").train_loss[-1])]
        except Diverged:
            found, row = [], []
        if found:
            for k, old in enumerate(row, 1):
                found.append(found[-1] + (found[-1] - old) / (2**k - 1))
            if row:
                missed = abs(found[-1] - row[-1])
            value, row = found[-1], found
            if missed <= SETTLED * abs(value):
                break
        count *= 2
    return value, missed, min(count, MOST)
