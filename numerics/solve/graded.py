"""The flow on power-law data, to times very much longer than its fastest rate.

The flow is taken as an integrator with weights ``w(t, s)`` has it, on a grid whose steps grow with the time,
``t = tau (exp(x) - 1)`` at even ``x``, by the trapezoidal rule: stable at any step, so that modes that have
been learnt do not bound it.  Its errors are even powers of the step in x, which halving removes one by one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import make_interp_spline

from numerics.compile.lower import lower
from numerics.compile.table import Node
from numerics.errors import Diverged, NotConverged
from numerics.experiment import Experiment
from numerics.experiment.numbers import numbers_of, spectrum_of
from numerics.experiment.theory import Variant, discretised
from numerics.solve.implicit import RESOLVED
from numerics.solve.march import March, march
from numerics.solve.memory import memory_tables

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]
Values = dict[Node, Array]

FIRST, MOST = 48, 1600
"""Steps of the coarsest grid, and the most that a grid may have."""

LOSS: Node = ("C_v", None)
KEPT = ("C_v", "C_h0", "C_h", "C_g")
"""Order parameters that a result holds."""


def solve_graded(
    experiment: Experiment, progress: Progress | None = None, variant: Variant | None = None
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The contract's variables by name, and notes: the estimated relative error of the loss, the steps taken.

    Grids are halved until the loss, extrapolated from the last few of them, changes at no output time by more
    than the share ``solver.rtol`` (as long as it is above RESOLVED of the first); how many of them is chosen
    so that it changes least, as the coarsest may be of no use.  The estimate is this change, which is larger
    than the error that is left, and what the equations of a step were off by.  Raises
    :class:`~numerics.errors.NotConverged` if MOST steps do not do.
    """
    theory = discretised(experiment, variant).at_depth(experiment.depth)
    table, spectrum = lower(theory), spectrum_of(experiment)
    assert spectrum is not None
    times, rtol = experiment.times, experiment.solver.rtol
    # where steps begin to grow: some early time, on which no result depends; features move by gamma0 a time
    fastest = float(spectrum.attributes["lamda"].max()) * max(1.0, experiment.spec.network.gamma0)
    tau = 1 / ((experiment.depth + 1) * fastest)
    wanted = tuple(n for n in table.tensors if n[0] in KEPT)
    at = np.log1p(times / tau)

    def run(steps: int) -> tuple[Values, float]:
        x = np.linspace(0.0, at[-1], steps + 1)
        nodes = tau * np.expm1(x)
        result = march(
            table,
            steps=steps + 1,
            constants=numbers_of(experiment),
            data=memory_tables(experiment, nodes, trapezoid(nodes)),
            wanted=wanted,
            watched=(LOSS,),
            units=spectrum,
            implicit=max(1e-3 * rtol, 1e-11),
            progress=progress,
        )
        return {n: _read(result, n, x, at) for n in wanted}, result.residual

    row: list[Values] = []
    steps, estimate, best = FIRST // 2, np.inf, 0
    while estimate > rtol:
        steps *= 2
        if steps > MOST:
            raise NotConverged(
                f"the flow needs more than {MOST} time steps: the error estimate is {estimate:.1e} where "
                f"solver.rtol = {rtol:.1e}; a larger rtol would do"
            )
        before = row
        try:
            found, residual = run(steps)
        except (Diverged, NotConverged):  # the grid is too coarse
            row = []
            continue
        row = _extrapolated(found, before)
        if before:
            changes = [_change(old[LOSS], new[LOSS]) for old, new in zip(before, row, strict=False)]
            best = int(np.argmin(changes))
            estimate = changes[best] + residual
    noise = (experiment.data and experiment.data.noise) or 0.0
    values = _labelled(row[best], experiment.depth)
    loss = np.diagonal(values["C_v"]) + noise**2
    notes = {"error_estimate": estimate, "time_nodes": steps + 1, "integrator": "trapezoidal, extrapolated"}
    return {"train_loss": loss, "test_loss": loss} | values, notes


def _read(result: March, n: Node, x: Array, at: Array) -> Array:
    """An order parameter at the output times, by splines in x; on the diagonal of its logarithm."""
    full = result.tensor(n)[:, 0, :, 0]
    value: Array = full
    for _ in range(2):
        value = make_interp_spline(x, value, k=5)(at).T
    np.fill_diagonal(value, np.exp(make_interp_spline(x, _log(np.diagonal(full)), k=5)(at)))
    return value


def _extrapolated(found: Values, before: list[Values]) -> list[Values]:
    """One more row of Romberg's table, whose k-th entry is free of the first k even powers of the step.

    On the diagonal it is the logarithm that is extrapolated.
    """
    row = [found]
    for k, old in enumerate(before, 1):
        last, row = row[-1], [*row, {}]
        for n, a in last.items():
            row[-1][n] = a + (a - old[n]) / (4**k - 1)
            new, coarse = _log(np.diagonal(a)), _log(np.diagonal(old[n]))
            np.fill_diagonal(row[-1][n], np.exp(new + (new - coarse) / (4**k - 1)))
    return row


def _log(diagonal: Array) -> Array:
    """What is left of nothing is not resolved, and its logarithm is some number."""
    value: Array = np.log(np.maximum(diagonal, RESOLVED**2 * diagonal[0]))
    return value


def _change(old: Array, new: Array) -> float:
    """The largest relative change of the loss."""
    before, after = np.diagonal(old), np.diagonal(new)
    return float(np.max(np.abs(after - before) / (before + RESOLVED * before[0])))


def _labelled(found: dict[Node, Array], depth: int) -> dict[str, Array]:
    values: dict[str, Array] = {}
    for name in KEPT:
        if (name, None) in found:
            values[name] = found[name, None]
        elif (name, 1) in found:
            values[name] = np.stack([found[name, k] for k in range(1, depth + 1)])
    return values


def trapezoid(nodes: Array) -> Array:
    """The table w[n, m] of the trapezoidal rule from 0 to each node.

    >>> trapezoid(np.array([0.0, 1.0, 3.0])).tolist()
    [[0.0, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5, 1.5, 1.0]]
    """
    half = np.diff(nodes) / 2
    w = np.zeros((len(nodes), len(nodes)))
    for n, h in enumerate(half, 1):
        w[n] = w[n - 1]
        w[n, n - 1 : n + 1] += h
    return w
