"""The steps before a divergence, for those who ask for them by name (``throw=False``).

A run that diverges is repeated with fewer times, until it does not: at the step that the divergence names,
else by bisection.  Used by :func:`numerics.solve` and :func:`numerics.simulate`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from numerics.errors import Diverged
from numerics.experiment.problem import Problem

RunResult = TypeVar("RunResult")

DIVERGED = "diverged"
"""The status of a result that ends before the dynamics diverged."""


def before_divergence(problem: Problem, run: Callable[[Problem], RunResult], reason: Diverged) -> RunResult:
    """Return the result of ``run`` for the times before ``reason``; raise it where none is left.

    ``run`` solves a problem with fewer times, and raises Diverged as for all of them.
    """
    found, works, fails = None, 0, len(problem.times)
    latest = reason
    while fails - works > 1:
        named = None if problem.flow else latest.step
        trial = named if named is not None and works < named < fails else (works + fails) // 2
        shorter = _first(problem, trial)
        if shorter is None:  # too few times to be solved, or to hold any
            works = trial
            continue
        try:
            found, works = run(shorter), trial
        except Diverged as again:
            fails, latest = trial, again
        else:
            if named == trial:
                break
    if found is None:
        raise reason
    return found


def _first(problem: Problem, count: int) -> Problem | None:
    """The problem up to its first times; None where no output time is among them."""
    times, output_times = problem.times[:count], problem.output_times
    if output_times is not None:
        output_times = output_times[output_times <= times[-1]]
        if not len(output_times):
            return None
    if problem.flow and count < 2:
        return None
    return replace(problem, times=times, output_times=output_times)
