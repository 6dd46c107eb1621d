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
from numerics.numbers import numbers_of, spectrum_of
from numerics.solve.march import March, march
from numerics.solve.memory import memory_tables
from numerics.theory import discretised

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

FIRST, MOST = 48, 1600
"""Steps of the coarsest grid, and the most that a grid may have."""

RESOLVED = 1e-12
"""Losses below this share of the first one are not resolved."""

KEPT = ("C_v", "C_h0", "C_h", "C_g")
"""Order parameters that a result holds."""


def solve_graded(
    experiment: Experiment, progress: Progress | None = None
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The contract's variables by name, and notes: the estimated relative error of the loss, the steps taken.

    Grids are halved until the loss, extrapolated from all of them, changes at no output time by more than the
    share ``solver.rtol`` (as long as it is above RESOLVED of the first).  Raises
    :class:`~numerics.errors.NotConverged` if MOST steps do not do.
    """
    theory = discretised(experiment).at_depth(experiment.depth)
    table, spectrum = lower(theory), spectrum_of(experiment)
    assert spectrum is not None
    times, rtol = experiment.times, experiment.solver.rtol
    tau = 1 / ((experiment.depth + 1) * float(spectrum.attributes["lamda"].max()))
    wanted = tuple(n for n in table.tensors if n[0] in KEPT)
    at = np.log1p(times / tau)

    def run(steps: int) -> dict[Node, Array]:
        x = np.linspace(0.0, at[-1], steps + 1)
        nodes = tau * np.expm1(x)
        result = march(
            table,
            steps=steps + 1,
            constants=numbers_of(experiment),
            data=memory_tables(experiment, nodes, trapezoid(nodes)),
            wanted=wanted,
            watched=(("C_v", None),),
            units=spectrum,
            implicit=max(1e-3 * rtol, 1e-11),
            progress=progress,
        )
        return {n: _read(result, n, x, at) for n in wanted}

    row: list[dict[Node, Array]] = []
    steps, estimate = FIRST // 2, np.inf
    while estimate > rtol:
        steps *= 2
        if steps > MOST:
            raise NotConverged(
                f"the flow needs more than {MOST} time steps: the error estimate is {estimate:.1e} where "
                f"solver.rtol = {rtol:.1e}; a larger rtol would do"
            )
        before = row
        try:
            row = _extrapolated(run(steps), before)
        except (Diverged, NotConverged):  # the grid is too coarse
            row = []
            continue
        if before:
            old, new = (np.diagonal(x[-1]["C_v", None]) for x in (before, row))
            estimate = float(np.max(np.abs(new - old) / (old + RESOLVED * old[0])))
    noise = (experiment.data and experiment.data.noise) or 0.0
    values = _labelled(row[-1], experiment.depth)
    loss = np.diagonal(values["C_v"]) + noise**2
    notes = {"error_estimate": estimate, "time_nodes": steps + 1, "integrator": "trapezoidal, extrapolated"}
    return {"train_loss": loss, "test_loss": loss} | values, notes


def _read(result: March, n: Node, x: Array, at: Array) -> Array:
    """An order parameter at the output times, by splines in x; on the diagonal of its logarithm."""
    full = result.tensor(n)[:, 0, :, 0]
    value: Array = full
    for _ in range(2):
        value = make_interp_spline(x, value, k=5)(at).T
    np.fill_diagonal(value, np.exp(make_interp_spline(x, np.log(np.diagonal(full)), k=5)(at)))
    return value


def _extrapolated(found: dict[Node, Array], before: list[dict[Node, Array]]) -> list[dict[Node, Array]]:
    """One more row of Romberg's table, whose k-th entry is free of the first k even powers of the step."""
    row = [found]
    for k, old in enumerate(before, 1):
        row.append({n: a + (a - old[n]) / (4**k - 1) for n, a in row[-1].items()})
    return row


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
