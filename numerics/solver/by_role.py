"""Variables of a result by the roles of quantities: kernels to keep, names, means over replicas.

The input are arrays by name and layer, as solvers compute them; the output are the variables of a result,
with standard errors if there are replicas. Sampled paths, quadrature, the lazy limit, long times and the
reference solver use it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerics.experiment.problem import Problem
from numerics.names import (
    BACKWARD_RESPONSE,
    ERROR,
    FEATURE_KERNEL,
    GRADIENT_KERNEL,
    LINEAR_KERNEL,
    OUTPUT,
    RESPONSES,
    MemberKey,
)
from numerics.results import LOSSES, STDERR
from numerics.results.predictions import one_sample_kernel, split
from numerics.results.program_names import numbers_of_author
from numerics.solver.grid import TimeGrid
from numerics.solver.method import KeptKernels, MethodResult
from numerics.stats import Spread, jackknife

Array = NDArray[np.float64]


ROOM = 2.0**31
"""Largest estimated memory, in bytes, for which ``auto`` keeps the kernels or their traces."""

KERNEL_LABELS = {"K": "tangent_kernel", LINEAR_KERNEL: FEATURE_KERNEL}
"""Names in a result, by name in the theory, of kernels for which the two names differ."""


def kept(problem: Problem, keep: KeptKernels) -> KeptKernels:
    """Return which kernels a result keeps: "full" (all pairs of samples), "trace" (traces) or "none".

    ``keep`` is one of these, which is returned as it is, or ``"auto"``. For ``"auto"`` the result is the
    first of the three for which the estimated memory is at most ROOM bytes.
    """
    if keep != "auto":
        return keep
    times, outputs = len(problem.times), problem.outputs
    kernels = 4 * (problem.depth or 1) + 1
    copies = 4  # arrays in memory at once: mean, squared deviation, the present replica, and the result
    traces = 8.0 * copies * kernels * times**2
    pairs = traces * (problem.sample_count * outputs) ** 2
    return "full" if pairs <= ROOM else "trace" if traces <= ROOM else "none"


@dataclass
class Replicas:
    """Results of several replicas, collected to give the variables of a result with standard errors.

    ``kernels`` collects the order parameters by name, and ``numbers`` the scalars of a program that are
    neither its output nor its error: each accumulates mean and standard error over replicas. ``scalars`` is a
    list with one array for each replica: errors and outputs, stacked along the first axis.
    """

    kernels: Spread = field(default_factory=Spread)
    numbers: Spread = field(default_factory=Spread)
    scalars: list[Array] = field(default_factory=list)

    def averaged(self, problem: Problem) -> dict[str, Array]:
        """Return the variables of a result by name: means over replicas, and standard errors ``*_stderr``.

        Losses are computed from the errors and outputs averaged over replicas, and not by averaging the
        losses of replicas. If the outputs of r replicas have the standard deviation s and the loss has the
        second derivative ``l''`` by the output, the mean of the losses is too large by ``l'' s^2 / 2``, which
        may exceed a small loss. The loss of the mean outputs is too large by ``l'' s^2 / (2 r)``; the
        jackknife subtracts this estimate. The result is not negative, unless the loss of the mean outputs is.
        """
        spread = Spread()
        for x in self.scalars:
            spread.add(scalar_variables(problem, x))
        values = by_variable(problem, self.kernels.mean()) | spread.mean()
        errors = by_variable(problem, self.kernels.stderr()) | spread.stderr()
        values |= self.numbers.mean()
        errors |= self.numbers.stderr()
        values |= {name + STDERR: x for name, x in errors.items()}
        names = [name for name in LOSSES if name in values]

        def losses(replicas: Array) -> Array:
            first = replicas[0]
            # If all replicas are equal, their differences from the first one are exactly zero, and the mean
            # has no rounding error.
            mean = first + (replicas - first).mean(axis=0)
            variables = scalar_variables(problem, mean)
            return np.stack([variables[name] for name in names])

        if not names:
            return values
        scalars = np.stack(self.scalars)
        value, error, _ = jackknife(losses, scalars)
        value = np.maximum(value, np.minimum(losses(scalars), 0.0))
        for name, x, e in zip(names, value, error, strict=True):
            values |= {name: x, name + STDERR: e}
        return values


def scalar_variables(problem: Problem, scalars: Array) -> dict[str, Array]:
    """Return losses, errors and outputs of training and test points, by the names of variables of a result.

    ``scalars[0]`` are the errors and ``scalars[1]`` the outputs of all points; each has times on its first
    axis and points on the next.
    """
    return split(problem, {"error": scalars[0], OUTPUT: scalars[1]}, nonlinear=problem.by_sample)


def labelled_result(
    problem: Problem, arrays: Mapping[MemberKey, Array], keep: KeptKernels, notes: dict[str, Any]
) -> MethodResult:
    """Return the result of a method: the variables by name, and ``notes`` that become its attributes.

    ``arrays`` are order parameters, errors and outputs by key (name, layer). ``keep`` states which kernels
    the result holds: "full", "trace", "none" or "auto".
    """
    keep = kept(problem, keep)
    return MethodResult(labelled(problem, arrays, keep), {"kernels": keep, **notes})


def labelled(problem: Problem, arrays: Mapping[MemberKey, Array], keep: str) -> dict[str, Array]:
    """Return the variables of a result, by name, from the arrays of a solution by key (name, layer).

    The arrays are order parameters, with their times on the last axes, and scalars such as errors and
    outputs, with time on the first axis. ``keep`` states which kernels the result holds: "full", "trace" or
    "none".
    """
    scalars = scalar_variables(problem, np.stack([arrays[ERROR, ()], arrays[OUTPUT, ()]]))
    numbers = numbers_of_author(problem, arrays)
    return by_variable(problem, reduced(problem, arrays, keep)) | scalars | numbers


def reduced(
    problem: Problem,
    arrays: Mapping[MemberKey, Array],
    keep: str,
    grid: TimeGrid | None = None,
    leading: int = 0,
) -> dict[str, Array]:
    """Return the order parameters that a result keeps, by name of the variable and layer, as in "Phi 2".

    ``arrays`` are order parameters by key (name, layer), with ``leading`` axes of replicas first and times
    last. ``keep`` is "full", "trace" or "none" (an empty result). Traces, as "Phi_trace 2", are sums over
    training samples (and positions and outputs), not divided by their number; gradient kernels without
    samples are kept as they are. For a flow the results are read at the output times of its ``grid``; with
    None they are at the times of the arrays. Responses are kept only if ``keep`` is "full" and there is no
    grid.
    """
    single = RESPONSES if keep == "full" and grid is None else ()
    of_layers = problem.program.roles.field is not None
    labels = {x: x for x in (FEATURE_KERNEL, GRADIENT_KERNEL, *single)} if of_layers else {}
    if of_layers and not any(name == FEATURE_KERNEL and k for name, k in arrays):
        labels[LINEAR_KERNEL] = FEATURE_KERNEL
    seen, kernels = slice(problem.seen), {}
    for (name, k), x in arrays.items() if keep != "none" else ():
        label = labels.get(name) if k else "tangent_kernel" if name == "K" else None
        if label is None:
            continue
        x, pairs = x if grid is None else grid.twice(x), x.ndim - leading - 2
        if keep == "trace" and pairs and (label != GRADIENT_KERNEL or problem.by_sample):
            # The two sides of a kernel have the same axes: samples, of which only those of training are
            # taken, and then positions and outputs, if the kernel has them.
            side = (seen, *[slice(None)] * (pairs // 2 - 1))
            entries: tuple[Any, ...] = (..., *side, *side, slice(None), slice(None))
            equal = "mpc"[: pairs // 2]
            x = np.einsum(f"...{equal}{equal}ts->...ts", x[entries])
            label += "_trace"
        kernels[f"{label} {k[0]}" if k else label] = x
    return kernels


def by_variable(problem: Problem, kernels: Mapping[str, Array]) -> dict[str, Array]:
    """Return kernels as variables of a result, by name, with axes (layers, t, s, other indices).

    ``kernels`` holds the array of each variable at each layer under a name such as "Phi 2" (:func:`reduced`),
    with times last. A kernel without a layer, such as the tangent kernel, has no axis of layers. A layer that
    ``kernels`` lacks is filled with zero for the response B, and with NaN for other variables. Examples are
    both responses at the last layer, and kernels of vectors that are not defined at all layers. Samples are
    cut to those of training.
    """
    values: dict[str, Array] = {}
    layers = range(1, (problem.depth or 1) + 1)
    for key, x in kernels.items():
        label, _, layer = key.partition(" ")
        if not layer:
            values[label] = one_sample_kernel(np.moveaxis(x, (-2, -1), (0, 1)), problem.program)
        elif label not in values:
            missing = np.full(x.shape, 0.0 if label == BACKWARD_RESPONSE else np.nan)
            every = np.stack([kernels.get(f"{label} {k}", missing) for k in layers])
            values[label] = np.moveaxis(every, (-2, -1), (1, 2))
    return split(problem, values, nonlinear=problem.by_sample)
