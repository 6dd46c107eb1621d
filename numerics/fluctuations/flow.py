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

CONVERGED = 1e-3
"""Estimated relative error at which extrapolated variances have converged."""

LARGEST_ERROR = 0.1
"""Estimated relative error above which shifts of a flow are left out, and variances are not converged."""

MOST_WITH_SHIFTS = 4600
"""Largest number of order parameters of a flow for which shifts are computed, in about twenty seconds."""

UNEVEN = 4.0
"""Ratio of the longest to the shortest output interval above which the first interval is a time scale."""

STEP_GROWTH = 4.0
"""Largest ratio of the longest to the first step, because longer explicit steps are unstable."""

SAFETY = 2.0
"""Factor by which the estimated error exceeds the change that the extrapolation makes."""

FIRST_STEP = 1e-6
"""Length of the step from which the initial rate is computed, divided by the last time."""


@dataclass(frozen=True)
class StageGrid:
    """Grid of the times at which the stages of Runge-Kutta steps are computed.

    Attributes
    ----------
    grid
        The times of all stages and of the end of the flow, and the weights with which updates are summed.
    ends
        The positions of the start and of the ends of steps among these times, ``(steps + 1,)``.
    places
        The start and the ends of steps in a transformed time in which all steps have equal length, ``(steps +
        1,)``.
    """

    grid: TimeGrid
    ends: NDArray[np.intp]
    places: Array

    def read(self, values: Array, positions: Array) -> Array:
        """Interpolate values at the ends of steps to other positions in transformed time, by splines.

        ``values`` (steps + 1, ...) are those at the start and at the ends of steps. The result has
        ``positions`` along its first axis. In transformed time all steps have equal length.
        """
        from scipy.interpolate import make_interp_spline  # slow to import, and seldom needed

        degree = min(DEGREE, (len(self.places) - 1) // 2 * 2 - 1)
        return np.asarray(make_interp_spline(self.places, values, k=degree)(positions))


def stage_grid(places: Array, times: Array) -> StageGrid:
    """Return the grid of Runge-Kutta stages of the steps between successive ``times``, ``(steps + 1,)``.

    ``places`` (steps + 1,) are the same times in a transformed time in which all steps have equal length.

    >>> stage_grid(np.array([0.0, 1.0]), np.array([0.0, 1.0])).grid.nodes.tolist()
    [0.0, 0.5, 0.5, 1.0, 1.0]
    """
    lengths = np.diff(times)
    steps, stages = len(lengths), len(ENDS)
    count = stages * steps + 1
    nodes = np.append((times[:-1, None] + lengths[:, None] * STAGES.sum(axis=1)).ravel(), times[-1])
    weights, done = np.zeros((count, count)), np.zeros(count)
    for k, h in enumerate(lengths):
        step_nodes = slice(stages * k, stages * (k + 1))
        weights[step_nodes] = done
        weights[step_nodes, step_nodes] += h * STAGES
        done[step_nodes] = h * ENDS
    weights[-1] = done
    ends = np.arange(0, count, stages)
    return StageGrid(TimeGrid(nodes, weights, ends, ORDER), ends, places)


@dataclass(frozen=True)
class FlowTimes:
    """Output times of a flow, and a transformed time ``age`` in which integration steps are of equal length.

    Members are the output ``times`` of the problem, and ``age``, which converts to the transformed time and
    back.
    """

    times: Array
    age: Age

    @classmethod
    def of(cls, problem: Problem) -> FlowTimes:
        """Return the output times of a problem, with the transformed time for its integration steps.

        Steps in time become longer as the flow goes on, up to STEP_GROWTH times the first one.
        """
        tau = 1 / initial_rate(problem)
        return cls(problem.held_times, Age(tau, STEP_GROWTH * tau))

    @property
    def places(self) -> Array:
        """Output times in the transformed time in which integration steps are equal."""
        return self.age.of(self.times)

    def grid(self, steps: int) -> StageGrid:
        """Return the grid of Runge-Kutta stages with ``steps`` steps of equal length in transformed time."""
        places = np.linspace(0.0, self.places[-1], steps + 1)
        times = self.age.back(places)
        times[-1] = self.times[-1]
        return stage_grid(places, times)


def initial_rate(problem: Problem) -> float:
    """Return the rate at which errors fall at the start of a flow, ``|d log loss/dt| / 2``.

    The rate is at least one over the last time; if the longest interval between times exceeds UNEVEN times
    the shortest, it is at least one over the first time after 0. This bound is returned if the problem has no
    loss or the loss is zero.
    """
    times = problem.times
    gaps, last = np.diff(times), float(times[-1])
    rate = 1 / float(times[1]) if gaps.max() > UNEVEN * gaps.min() else 1 / last
    nodes = np.array([0.0, FIRST_STEP * last])
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
    """Raise SpecError for a flow with noise, whose corrections are not extrapolated."""
    if is_noisy(problem.program.rule):
        reason = (
            "adds noise, and corrections of flows with noise are not extrapolated to steps of length zero"
        )
        raise SpecError(
            *problem.key_and_value("training.temperature"), reason, 'a rule in steps, such as "gd"'
        )


def corrections_of_flow(
    problem: Problem, kernels: KeptKernels, progress: Progress | None
) -> tuple[WidthCorrections, dict[str, Any]]:
    """Return variances and shifts at order 1/N of a flow at its output times, and attributes of the result.

    Attributes hold the method, the kernels that are kept, and estimated errors. ``progress`` is called with
    (k, k + 1) after the k-th grid. The flow is computed on finer and finer grids of Runge-Kutta steps, and
    the two finest are extrapolated to steps of length zero. Grids are refined until the estimated error of
    variances is at most CONVERGED, until it is at most LARGEST_ERROR and a minute has passed, until the next
    grid would take more than a minute by estimate, or until the last number of STEPS. Shifts are extrapolated
    from the two finest of those grids on which dense matrices of all order parameters are computed; they are
    left out if their estimated error exceeds LARGEST_ERROR. Raise NotConverged if the estimated error of
    variances exceeds LARGEST_ERROR, and SpecError for a flow with noise.
    """
    require_no_noise(problem)
    started, axis = clock.perf_counter(), FlowTimes.of(problem)
    whole, shifted = FlowSeries(), FlowSeries()
    notes: dict[str, Any] = {}
    for k, (steps, plan) in enumerate(_plans(problem, kernels)):
        try:
            width_corrections = _on_grid(axis, axis.grid(steps), plan)
        except Diverged:  # the steps are too long for the integrator; the next grid has shorter ones
            continue
        notes = plan.notes() | {"width_time_nodes": plan.sizes.times}
        whole.add(steps, width_corrections)
        if width_corrections.shifts:
            shifted.add(steps, width_corrections)
        if progress is not None:
            progress(k + 1, k + 2)
        late = clock.perf_counter() - started > SECONDS and whole.error("variances") <= LARGEST_ERROR
        if late or whole.error("variances") <= CONVERGED:
            break
    best, error = whole.best(), whole.error("variances")
    if best is None or error > LARGEST_ERROR:
        estimate = f"is {error:.1g}" if np.isfinite(error) else "is not known"
        last = f"the estimated error of variances {estimate} on the finest time grid that was tried"
        raise NotConverged(f"the flow is too long for an expansion in 1/N: {last}; use a shorter time")
    notes["variance_error"] = error
    means, error = shifted.best(), shifted.error("shifts")
    if means is None or error > LARGEST_ERROR:
        reason = "time grids that are small enough for the computation of shifts are too coarse"
        return replace(best, shifts={}), notes | {"no_shift": f"X_shift is not given: {reason}"}
    return replace(best, shifts=means.shifts), notes | {"shift_error": error, "no_shift": None}


def _plans(problem: Problem, kernels: KeptKernels) -> Iterator[tuple[int, WidthPlan]]:
    """Yield pairs (number of Runge-Kutta steps, plan of the expansion in 1/N on this grid), coarsest first.

    The numbers of steps are those of STEPS for which the expansion takes less than a minute, and at least the
    first two, because the extrapolation to short steps needs two grids. All plans keep the same kernels as
    the first one.
    """
    growth = size_growth(problem)
    for steps in STEPS:
        nodes = len(ENDS) * steps + 1
        plan = WidthPlan.of(problem, growth.at(nodes), steps + 1, kernels)
        if plan.sizes.nonlinear is None and plan.sizes.parameters > MOST_WITH_SHIFTS:
            plan = replace(plan, method=AdjointMethod())
        if steps == STEPS[0]:
            kernels = plan.keep
        plan = replace(plan, keep=kernels)
        if steps > STEPS[1] and plan.seconds > SECONDS:
            return
        plan.require_resources()
        yield steps, plan


def _on_grid(axis: FlowTimes, stages: StageGrid, plan: WidthPlan) -> WidthCorrections:
    """Return variances and shifts at order 1/N at the output times, computed on one grid of steps.

    Values at the ends of Runge-Kutta steps are interpolated to the output times. ``axis`` holds the output
    times, ``stages`` the grid, and ``plan`` the problem and the method.
    """
    solved = plan.method.solve(lowered(plan.problem, stages.grid), plan.problem.solver)
    ends = stages.ends.tolist()
    builder = VariableBuilder(plan.problem, solved.lowered, solved.values, ends, plan.keep)
    at_ends = corrections(solved, builder.variables())

    def read(values: dict[str, Array], positive: bool = False) -> dict[str, Array]:
        """Return variables, by name, interpolated from the ends of steps to the output times.

        If ``positive``, the results are not negative.
        """
        return {
            name: _read(stages, at_ends.dims[name], x, axis.places, positive) for name, x in values.items()
        }

    return WidthCorrections(
        read(at_ends.values),
        read(at_ends.variances, positive=True),
        read(at_ends.shifts),
        at_ends.dims,
    )


def _read(stages: StageGrid, dims: tuple[str, ...], values: Array, positions: Array, positive: bool) -> Array:
    """Interpolate a variable from the ends of integration steps to other positions, by splines.

    ``positions`` are in the transformed time in which all steps have equal length. ``dims`` are the
    dimensions of ``values``, among which is "time". If ``positive``, results are not negative: the logarithm
    is interpolated if all values are positive; otherwise negative results are set to zero.
    """
    place = dims.index("time")
    first = np.moveaxis(values, place, 0)
    if positive and (first > 0).all():
        return np.moveaxis(np.exp(stages.read(np.log(first), positions)), 0, place)
    interpolated = stages.read(first, positions)
    return np.moveaxis(np.maximum(interpolated, 0.0) if positive else interpolated, 0, place)


class FlowSeries:
    """Corrections of a flow at order 1/N on finer and finer grids, extrapolated to zero step length."""

    def __init__(self) -> None:
        self.grids: list[tuple[int, WidthCorrections]] = []

    def add(self, steps: int, on_grid: WidthCorrections) -> None:
        """Add the corrections at order 1/N on a grid of ``steps`` steps, finer than those before."""
        self.grids.append((steps, on_grid))

    def best(self) -> WidthCorrections | None:
        """Return the corrections at order 1/N of the two finest grids, extrapolated to zero step length.

        The errors of the grids are assumed to fall as the fourth power of the step. A variance that would not
        be positive keeps its value on the finest grid. None if fewer than two grids were added.
        """
        if len(self.grids) < 2:
            return None
        (coarse, old), (fine, new) = self.grids[-2:]
        weight = 1 / ((fine / coarse) ** ORDER - 1)

        def better(one: dict[str, Array], two: dict[str, Array]) -> dict[str, Array]:
            """Return each variable, extrapolated to steps of length zero.

            ``one`` holds the variables on the coarse grid, ``two`` those on the fine grid.
            """
            return {name: x + weight * (x - one[name]) for name, x in two.items() if name in one}

        variances = better(old.variances, new.variances)
        variances = {name: np.where(x > 0, x, new.variances[name]) for name, x in variances.items()}
        values, shifts = better(old.values, new.values), better(old.shifts, new.shifts)
        return WidthCorrections(values, variances, shifts, new.dims)

    def error(self, part: str) -> float:
        """Return the estimated relative error of the extrapolated corrections.

        ``part`` is "variances" or "shifts". The result is the largest over variables of SAFETY times the
        change by the extrapolation, divided by the largest value of the variable; SAFETY is larger than one,
        because grids are few and steps not always short. It is infinite if fewer than two grids are known.
        """
        best = self.best()
        if best is None:
            return np.inf
        fine = getattr(self.grids[-1][1], part)
        changes = [np.abs(x - fine[name]).max(initial=0.0) for name, x in getattr(best, part).items()]
        sizes = [np.abs(x).max(initial=0.0) or 1.0 for x in getattr(best, part).values()]
        return max((SAFETY * float(x / size) for x, size in zip(changes, sizes, strict=True)), default=0.0)
