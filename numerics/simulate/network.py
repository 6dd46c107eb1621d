"""Train one finite deep linear network and record its fields.

``gd`` takes exact simultaneous steps; ``flow`` integrates dW/dt (see ``flow.py``). Nothing of the
mean-field theory enters: explicit float64 matrices, an explicit forward and backward pass at every
step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .flow import integrate
from .guard import check_finite
from .parameters import Parameters, add, backward, draw_parameters, forward, output, velocity
from .record import History, Recorder

Array = NDArray[np.float64]


def inputs_from_kernel(kernel: Array) -> Array:
    """Inputs x, shape (P, D) with D = rank, such that x x^T/D = kernel.

    Only the kernel matters: W^0 is Gaussian, so networks on any inputs with this kernel have the same law.
    Raises ``ValueError`` if the kernel is not symmetric positive semidefinite.

    >>> x = inputs_from_kernel(np.array([[2.0, 1.0], [1.0, 2.0]]))
    >>> bool(np.allclose(x @ x.T / x.shape[1], [[2.0, 1.0], [1.0, 2.0]]))
    True
    """
    kernel = np.asarray(kernel, dtype=float)
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1] or not np.allclose(kernel, kernel.T):
        raise ValueError(f"kernel of shape {kernel.shape}: must be a symmetric matrix")
    values, vectors = np.linalg.eigh((kernel + kernel.T) / 2)
    top = max(float(values[-1]), 0.0)
    cutoff = len(values) * np.finfo(float).eps * top
    if values[0] < -1e3 * cutoff:
        raise ValueError(f"kernel has the eigenvalue {values[0]:.3g}: must be positive semidefinite")
    kept = values > cutoff
    if not kept.any():
        return np.zeros((len(kernel), 1))
    return np.asarray(vectors[:, kept] * np.sqrt(values[kept] * kept.sum()))


@dataclass(frozen=True)
class Schedule:
    """When to record, and what lies between: ``steps`` exact updates, or a flow through ``times``."""

    rule: str
    rate: float
    times: Array

    @staticmethod
    def create(rule: str, rate: float, steps: int | None, times: Sequence[float] | Array | None) -> Schedule:
        """Refuses (``ValueError``) a rule that does not exist and a schedule that does not fit the rule."""
        if not np.isfinite(rate) or rate <= 0:
            raise ValueError(f"rate = {rate}: must be finite and > 0")
        if rule == "gd":
            if steps is None or steps < 1 or times is not None:
                raise ValueError(f"rule 'gd' takes steps >= 1 and no times (steps = {steps})")
            return Schedule("gd", float(rate), np.arange(steps + 1, dtype=float))
        if rule == "flow":
            if times is None or steps is not None:
                raise ValueError("rule 'flow' takes times and no steps")
            grid = np.asarray(times, dtype=float)
            if grid.ndim != 1 or len(grid) < 2 or grid[0] != 0.0 or not np.all(np.diff(grid) > 0):
                raise ValueError("times must start at 0 and increase strictly")
            return Schedule("flow", float(rate), grid)
        raise ValueError(f"rule = {rule!r}: must be 'gd' or 'flow'")


def train_network(
    inputs: Array,
    targets: Array,
    *,
    depth: int,
    gamma0: float,
    width: int,
    rate: float,
    steps: int | None = None,
    times: Sequence[float] | Array | None = None,
    rule: str = "gd",
    rng: int | np.random.Generator,
    tolerance: float = 1e-7,
) -> History:
    """Train one network, ``width`` N and ``depth`` L hidden layers; return its fields at the recorded times.

    ``inputs`` (P,D), ``targets`` (P,). ``rate`` multiplies the sum over samples (for the mean loss pass
    rate/P). gd: ``steps`` updates, recorded at t = 0..steps. flow: recorded at ``times`` (the first is
    0), the estimated integration error of the outputs kept below ``tolerance``
    (``History.integration_error``). Raises ``ValueError`` on impossible arguments,
    ``numerics.errors.Diverged`` naming the step.

    >>> run = train_network(np.eye(2), np.ones(2), depth=2, gamma0=1.0, width=8, rate=0.1, steps=3, rng=0)
    >>> run.h.shape, run.g.shape, run.f.shape
    ((2, 4, 2, 8), (2, 4, 8), (4, 2))
    """
    x, y = check_data(inputs, targets)
    if depth < 1 or width < 1:
        raise ValueError(f"depth = {depth}, width = {width}: both must be >= 1")
    if not np.isfinite(gamma0) or gamma0 <= 0:
        raise ValueError(f"gamma0 = {gamma0}: must be finite and > 0")
    schedule = Schedule.create(rule, rate, steps, times)
    start = draw_parameters(x.shape[1], depth, width, gamma0, np.random.default_rng(rng))
    return run(start, x, y, schedule, tolerance=tolerance)


def run(
    start: Parameters,
    inputs: Array,
    targets: Array,
    schedule: Schedule,
    *,
    tolerance: float = 1e-7,
    refinement: int | None = None,
) -> History:
    """Train from the weights ``start``, which are overwritten by gd and left alone by flow.

    ``refinement`` fixes the flow's substeps (see ``flow.integrate``) instead of checking them.
    """
    if schedule.rule == "flow":
        return integrate(
            start, inputs, targets, schedule.times, schedule.rate, tolerance=tolerance, refinement=refinement
        )
    recorder = Recorder.create(start, inputs, targets, schedule.times)
    last = len(schedule.times) - 1
    for step in range(last + 1):
        fields, gradients = forward(start, inputs), backward(start)
        f = output(start, fields)
        check_finite(f, targets, f"step {step}")
        recorder.store(step, fields, gradients, f)
        if step < last:
            add(start, [(schedule.rate, velocity(fields, gradients, targets - f, start.gamma0))])
    return recorder.history()


def check_data(inputs: Array, targets: Array) -> tuple[Array, Array]:
    """Inputs (P,D), targets (P,) as float64; ``ValueError`` for shapes that do not fit, nan or inf."""
    x, y = np.asarray(inputs, dtype=float), np.asarray(targets, dtype=float)
    if x.ndim != 2 or y.shape != (len(x),):
        raise ValueError(f"inputs {x.shape} and targets {y.shape}: must be (P, D) and (P,)")
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise ValueError("inputs and targets must be finite")
    return x, y
