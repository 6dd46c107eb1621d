"""Gradient flow of one finite network: classical fourth-order Runge-Kutta, checked by halving the step.

A one-step method with its own error control, deliberately unlike the multistep rule of the theory's solver.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from numerics.errors import NotConverged

from .guard import check_finite
from .parameters import Parameters, Velocity, add, backward, forward, output, velocity
from .record import History, Recorder

Array = NDArray[np.float64]

#: Largest substep before any refinement, in units of the time in which the error at hand relaxes.
ACCURACY = 0.25
#: Largest substep in units of 1/(rate x largest tangent-kernel eigenvalue); the method is stable up to 2.78.
STABILITY = 1.0
#: Halvings tried before the tolerance is given up.
MAX_REFINEMENT = 64


def integrate(
    start: Parameters,
    inputs: Array,
    targets: Array,
    times: Array,
    rate: float,
    *,
    tolerance: float = 1e-7,
    refinement: int | None = None,
) -> History:
    """Fields at ``times`` under dW/dt = rate x velocity, from the weights ``start`` (not changed).

    Each interval between recorded times is cut into equal substeps, chosen from the network's tangent
    kernel K at its beginning: at most STABILITY/(rate x its largest eigenvalue), and at most
    ACCURACY/refinement in units of |Delta|/(rate |K Delta|) (late in training the fast modes are gone
    and longer steps are as accurate). With ``refinement`` None the run is repeated with halved substeps
    until two runs differ, in the outputs and in the fields relative to their size, by less than 15 x
    ``tolerance``: a fourth-order method's error is then below ``tolerance``. Raises
    ``numerics.errors.NotConverged`` when MAX_REFINEMENT does not suffice.
    """
    if refinement is not None:
        return _pass(start.copy(), inputs, targets, times, rate, refinement)
    level, error = 1, np.inf
    coarse = _pass(start.copy(), inputs, targets, times, rate, level)
    while level < MAX_REFINEMENT:
        level *= 2
        fine = _pass(start.copy(), inputs, targets, times, rate, level)
        error = _difference(coarse, fine) / 15.0
        if error <= tolerance:
            return replace(fine, integration_error=error)
        coarse = fine
    raise NotConverged(f"flow of a finite network: integration error {error:.2g}, wanted {tolerance:.2g}")


def _difference(coarse: History, fine: History) -> float:
    """Largest change of outputs and fields, each relative to its own size (outputs: at least 1)."""
    worst = float(np.abs(fine.f - coarse.f).max() / max(1.0, float(np.abs(fine.f).max())))
    for old, new in zip((coarse.h, coarse.g), (fine.h, fine.g), strict=True):
        worst = max(worst, float(np.abs(new - old).max() / max(1e-300, float(np.abs(new).max()))))
    return worst


def _pass(
    p: Parameters, inputs: Array, targets: Array, times: Array, rate: float, refinement: int
) -> History:
    recorder = Recorder.create(p, inputs, targets, times)
    for index, time in enumerate(times):
        fields, gradients = forward(p, inputs), backward(p)
        f = output(p, fields)
        check_finite(f, targets, f"time {time:.6g} (output {index})")
        recorder.store(index, fields, gradients, f)
        if index == len(times) - 1:
            break
        length = float(times[index + 1] - time)
        fastest, current = relaxation_rates(fields, gradients, targets - f)
        needed = refinement * max(current / ACCURACY, fastest / STABILITY)
        substeps = max(1, int(np.ceil(rate * length * needed)))
        for _ in range(substeps):
            _runge_kutta_step(p, inputs, targets, rate * length / substeps)
    return recorder.history(np.nan, refinement)


def relaxation_rates(fields: list[Array], gradients: list[Array], error: Array) -> tuple[float, float]:
    """Largest eigenvalue of the equal-time tangent kernel K, and |K Delta|/|Delta| for the error at hand.

    K = sum_{l=0}^{L} (g^{l+1} . g^{l+1}/N) (h^l h^{l T}/N) with the last gradient factor 1.
    """
    norms = [float(g @ g) / len(g) for g in gradients] + [1.0]
    kernel = np.zeros((len(error), len(error)))
    for norm, field in zip(norms, fields, strict=True):
        kernel += norm * (field @ field.T) / field.shape[1]
    size = float(np.linalg.norm(error))
    current = float(np.linalg.norm(kernel @ error)) / size if size > 0 else 0.0
    return float(np.linalg.eigvalsh(kernel)[-1]), current


def _slope(p: Parameters, inputs: Array, targets: Array) -> Velocity:
    fields = forward(p, inputs)
    return velocity(fields, backward(p), targets - output(p, fields), p.gamma0)


def _runge_kutta_step(p: Parameters, inputs: Array, targets: Array, step: float) -> None:
    """One classical step, in place: each stage replaces the displacement of the stage before it."""
    k1 = _slope(p, inputs, targets)
    add(p, [(step / 2, k1)])
    k2 = _slope(p, inputs, targets)
    add(p, [(-step / 2, k1), (step / 2, k2)])
    k3 = _slope(p, inputs, targets)
    add(p, [(-step / 2, k2), (step, k3)])
    k4 = _slope(p, inputs, targets)
    add(p, [(step / 6, k1), (step / 3, k2), (step / 3 - step, k3), (step / 6, k4)])
