"""Results up to a divergence (``throw=False`` of :func:`numerics.solve` and :func:`numerics.simulate`).

A run that diverges is repeated with fewer times until it does not diverge: up to the step that the exception
names, else by bisection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from numerics.errors import Diverged
from numerics.experiment.problem import Problem

RunResult = TypeVar("RunResult")

DIVERGED = "diverged"
"""Status of a result that ends before the dynamics diverged."""


def before_divergence(problem: Problem, run: Callable[[Problem], RunResult], reason: Diverged) -> RunResult:
    """Return the result of ``run`` for the times before the divergence; raise ``reason`` if no time is left.

    ``run`` solves a problem and raises Diverged if the solution diverges within its times. ``reason`` is the
    error that it raised for all times.
    """
    # The number of times before the divergence is searched between two bounds. With the first `fails` of the
    # times of the problem a run diverges. With the first `works` of them a run succeeds, or is not possible
    # because they are too few or contain no output time.
    result, works, fails = None, 0, len(problem.times)
    latest = reason
    while fails - works > 1:
        named = None if problem.flow else latest.step
        trial = named if named is not None and works < named < fails else (works + fails) // 2
        shorter = _first(problem, trial)
        if shorter is None:  # too few times to run, or no output time among them: try more
            works = trial
            continue
        try:
            result, works = run(shorter), trial
        except Diverged as again:
            fails, latest = trial, again
        else:
            if named == trial:
                break
    if result is None:
        raise reason
    return result


def _first(problem: Problem, count: int) -> Problem | None:
    """Return the problem with the first ``count`` of its times.

    None if no output time of the problem is among these times, or if a flow would have fewer than two times.
    """
    times, output_times = problem.times[:count], problem.output_times
    if output_times is not None:
        output_times = output_times[output_times <= times[-1]]
        if not len(output_times):
            return None
    if problem.flow and count < 2:
        return None
    return replace(problem, times=times, output_times=output_times)
