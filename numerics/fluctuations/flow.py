"""Fluctuations of flows: those of shorter and shorter steps, extrapolated to steps of length zero.

A flow in steps is a network whose weights are sums of past updates with the weights of an integrator, here
the Runge-Kutta method of fourth order.  The stages of a step are times of such a network: each reads the
updates of earlier stages.  Corrections at the ends of steps have errors of the fourth power of the step.
"""

from __future__ import annotations

import time as clock
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Diverged, NotConverged, SpecError
from numerics.experiment.problem import Problem
from numerics.fluctuations.corrections import WidthCorrections, corrections
from numerics.fluctuations.expanded_problem import lowered, size_growth
from numerics.fluctuations.march import LinearMarch
from numerics.fluctuations.methods import AdjointMethod
from numerics.fluctuations.plan import SECONDS, WidthPlan
from numerics.fluctuations.variables import VariableBuilder
from numerics.progress import Progress
from numerics.solver.grid import Age, TimeGrid, is_noisy
from numerics.solver.method import KeptKernels

Array = NDArray[np.float64]

STAGES = np.array([[0.0, 0.0, 0.0, 0.0], [0.5, 0.0, 0.0, 0.0], [0.0, 0.5, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
"""Runge-Kutta matrix: weights of earlier stages in each stage; its row sums are the times of the stages."""

ENDS = np.array([1.0, 2.0, 2.0, 1.0]) / 6
"""Weights of the stages in a step."""

ORDER = 4

DEGREE = 5
"""Degree of the splines between the ends of steps; their error falls faster than that of the steps."""

STEPS = (3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Numbers of steps of the grids of a flow."""

SETTLED = 1e-3
"""Estimated relative error at which extrapolated variances have converged."""

POOR = 0.1
"""Estimated relative error above which the shifts of a flow are left out."""

MEANS = 4600
"""Largest number of order parameters for which means are computed, in about twenty seconds."""

UNEVEN = 4.0
"""Ratio of the longest to the shortest output interval above which the first one is a time scale."""

GROWN = 4.0
"""Largest ratio of the longest to the first step, because longer explicit steps are unstable."""

SAFE = 2.0
"""Ratio of estimated errors to the change by the extrapolation."""

SHORT = 1e-6
"""Step from which the initial rate is computed, relative to the last time."""


@dataclass(frozen=True)
class StageGrid:
    """Grid of Runge-Kutta steps.

    Attributes
    ----------
    grid
        The times of all stages and of the end, and the weights of updates.
    ends
        The positions of the ends of steps among them, the start included.
    places
        The ends of steps on the axis along which steps are even.
    """

    grid: TimeGrid
    ends: NDArray[np.intp]
    places: Array

    def read(self, values: Array, at: Array) -> Array:
        """Return values at ends (first axis) at other places along that axis, by splines."""
        from scipy.interpolate import make_interp_spline  # slow to import, and seldom needed

        degree = min(DEGREE, (len(self.places) - 1) // 2 * 2 - 1)
        return np.asarray(make_interp_spline(self.places, values, k=degree)(at))


def stage_grid(places: Array, times: Array) -> StageGrid:
    """Return the grid whose steps end at ``times`` (steps + 1,), which are even at ``places``.

    >>> stage_grid(np.array([0.0, 1.0]), np.array([0.0, 1.0])).grid.nodes.tolist()
    [0.0, 0.5, 0.5, 1.0, 1.0]
    """
    lengths = np.diff(times)
    steps, stages = len(lengths), len(ENDS)
    count = stages * steps + 1
    nodes = np.append((times[:-1, None] + lengths[:, None] * STAGES.sum(axis=1)).ravel(), times[-1])
    weights, done = np.zeros((count, count)), np.zeros(count)
    for k, h in enumerate(lengths):
        own = slice(stages * k, stages * (k + 1))
        weights[own] = done
        weights[own, own] += h * STAGES
        done[own] = h * ENDS
    weights[-1] = done
    ends = np.arange(0, count, stages)
    return StageGrid(TimeGrid(nodes, weights, ends, ORDER), ends, places)


@dataclass(frozen=True)
class FlowTimes:
    """Output times of a flow, and the transformed time (age) in which steps are even."""

    times: Array
    age: Age

    @classmethod
    def of(cls, problem: Problem) -> FlowTimes:
        """Return the times of a problem: steps grow with the time until they are GROWN times as long."""
        tau = 1 / initial_rate(problem)
        return cls(problem.times, Age(tau, GROWN * tau))

    @property
    def places(self) -> Array:
        """Output times in transformed time."""
        return self.age.of(self.times)

    def grid(self, steps: int) -> StageGrid:
        """Return a grid of so many steps."""
        places = np.linspace(0.0, self.places[-1], steps + 1)
        times = self.age.back(places)
        times[-1] = self.times[-1]
        return stage_grid(places, times)


def initial_rate(problem: Problem) -> float:
    """Return the rate at which errors fall at the start, ``|d log loss/dt| / 2``, or 1/time if it is unknown.

    If output intervals grow with the time, the first of them is a bound on the time scale too.
    """
    times = problem.times
    gaps, last = np.diff(times), float(times[-1])
    rate = 1 / float(times[1]) if gaps.max() > UNEVEN * gaps.min() else 1 / last
    nodes = np.array([0.0, SHORT * last])
    weights = np.tril(np.full((2, 2), nodes[1]), -1)
    arrays = lowered(problem, TimeGrid(nodes, weights, np.arange(2), 1))
    values = LinearMarch(arrays).values
    variables = VariableBuilder(problem, arrays, values, [0, 1], "none").variables()
    if "train_loss" not in variables:
        return rate
    before, after = np.abs(variables["train_loss"].observable.values)
    if min(before, after) == 0:
        return rate
    return max(rate, abs(float(np.log(after / before))) / (2 * float(nodes[1])))


def require_no_noise(problem: Problem) -> None:
    """Raise SpecError for a flow with noise."""
    if is_noisy(problem.program.rule):
        reason = "adds noise, and the steps of flows with noise are not extrapolated here"
        raise SpecError(
            *problem.key_and_value("training.temperature"), reason, 'a rule in steps, such as "gd"'
        )


def corrections_of_flow(
    problem: Problem, kernels: KeptKernels, progress: Progress | None
) -> tuple[WidthCorrections, dict[str, Any]]:
    """Return the corrections of a flow at its output times, and attributes.

    Variances come from the finest grids whose expansion takes less than a minute, shifts from the finest of
    those with matrices of all order parameters.
    """
    require_no_noise(problem)
    started, axis = clock.perf_counter(), FlowTimes.of(problem)
    whole, shifted = FlowSeries(), FlowSeries()
    notes: dict[str, Any] = {}
    for k, (steps, plan) in enumerate(_plans(problem, kernels)):
        try:
            found = _on_grid(axis, axis.grid(steps), plan)
        except Diverged:  # the steps are too long
            continue
        notes = plan.notes() | {"width_time_nodes": plan.sizes.times}
        whole.add(steps, found)
        if found.shifts:
            shifted.add(steps, found)
        if progress is not None:
            progress(k + 1, k + 2)
        late = clock.perf_counter() - started > SECONDS and whole.error("variances") <= POOR
        if late or whole.error("variances") <= SETTLED:
            break
    best, error = whole.best(), whole.error("variances")
    if best is None or error > POOR:
        last = f"the estimated error of variances is {error:.1g} with as many steps as take a minute"
        raise NotConverged(f"the flow is too long for an expansion in 1/N: {last}; a shorter time would do")
    notes["variance_error"] = error
    means, error = shifted.best(), shifted.error("shifts")
    if means is None or error > POOR:
        told = "the grids of the flow on which means can be found are too coarse"
        return replace(best, shifts={}), notes | {"no_shift": f"X_shift is not given: {told}"}
    return replace(best, shifts=means.shifts), notes | {"shift_error": error, "no_shift": None}


def _plans(problem: Problem, kernels: KeptKernels) -> Iterator[tuple[int, WidthPlan]]:
    """Yield numbers of steps whose expansions take less than a minute, at least two, with plans."""
    growth = size_growth(problem)
    for steps in STEPS:
        nodes = len(ENDS) * steps + 1
        plan = WidthPlan.of(problem, growth.at(nodes), steps + 1, kernels)
        if plan.sizes.nonlinear is None and plan.sizes.parameters > MEANS:
            plan = replace(plan, method=AdjointMethod())
        if steps == STEPS[0]:
            kernels = plan.keep
        plan = replace(plan, keep=kernels)
        if steps > STEPS[1] and plan.seconds > SECONDS:
            return
        plan.require_resources()
        yield steps, plan


def _on_grid(axis: FlowTimes, stages: StageGrid, plan: WidthPlan) -> WidthCorrections:
    """Return corrections at the output times from those at the ends of steps of a grid."""
    solved = plan.method.solve(lowered(plan.problem, stages.grid), plan.problem.solver)
    ends = stages.ends.tolist()
    builder = VariableBuilder(plan.problem, solved.lowered, solved.values, ends, plan.keep)
    found = corrections(solved, builder.variables())

    def read(values: dict[str, Array], positive: bool = False) -> dict[str, Array]:
        """Return variables at the output times."""
        return {name: _read(stages, found.dims[name], x, axis.places, positive) for name, x in values.items()}

    return WidthCorrections(
        read(found.values), read(found.variances, positive=True), read(found.shifts), found.dims
    )


def _read(stages: StageGrid, dims: tuple[str, ...], values: Array, at: Array, positive: bool) -> Array:
    """Return a variable at other times than the ends of steps; positive ones by their logarithm."""
    place = dims.index("time")
    first = np.moveaxis(values, place, 0)
    if positive and (first > 0).all():
        return np.moveaxis(np.exp(stages.read(np.log(first), at)), 0, place)
    found = stages.read(first, at)
    return np.moveaxis(np.maximum(found, 0.0) if positive else found, 0, place)


class FlowSeries:
    """Corrections on finer and finer grids, and their extrapolation to steps of length zero."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, WidthCorrections]] = []

    def add(self, steps: int, found: WidthCorrections) -> None:
        """Add a finer grid."""
        self.grids.append((steps, found))

    def best(self) -> WidthCorrections | None:
        """Return the extrapolation of the two finest grids; None of fewer grids."""
        if len(self.grids) < 2:
            return None
        (coarse, old), (fine, new) = self.grids[-2:]
        weight = 1 / ((fine / coarse) ** ORDER - 1)

        def better(one: dict[str, Array], two: dict[str, Array]) -> dict[str, Array]:
            """Return the extrapolation of both values of each variable."""
            return {name: x + weight * (x - one[name]) for name, x in two.items() if name in one}

        variances = better(old.variances, new.variances)
        variances = {name: np.where(x > 0, x, new.variances[name]) for name, x in variances.items()}
        values, shifts = better(old.values, new.values), better(old.shifts, new.shifts)
        return WidthCorrections(values, variances, shifts, new.dims)

    def error(self, part: str) -> float:
        """Return the estimated error of the extrapolation, relative to the largest value of each variable.

        It is SAFE times the extrapolation itself, because grids are few and steps not always short.
        """
        best = self.best()
        if best is None:
            return np.inf
        fine = getattr(self.grids[-1][1], part)
        changes = [np.abs(x - fine[name]).max(initial=0.0) for name, x in getattr(best, part).items()]
        sizes = [np.abs(x).max(initial=0.0) or 1.0 for x in getattr(best, part).values()]
        return max((SAFE * float(x / size) for x, size in zip(changes, sizes, strict=True)), default=0.0)
