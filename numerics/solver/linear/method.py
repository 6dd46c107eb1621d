"""The march of linear theories as a method: conditions, cost and error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numerics.experiment.problem import Problem
from numerics.experiment.theory import error_jumps
from numerics.progress import Progress
from numerics.solver.grid import ORDER
from numerics.solver.method import EXACT, KeptKernels, MethodEstimate, MethodResult, Refusal
from numerics.solver.refusals import (
    integer_depth,
    linear_rules,
    moving_features,
    no_attributes,
    one_output,
    refusal_for,
    steady_numbers,
)

Array = NDArray[np.float64]


STABLE = 0.3
"""Longest stable step of the explicit integrator times the largest eigenvalue."""


def explicit_steps(problem: Problem) -> int:
    """Estimate the number of steps by which the explicit integrator solves a flow of modes of the data.

    It is 0 for a problem without modes, and if the trapezoidal rule is used instead.
    """
    from numerics.solver.linear.solve import implicit_in_modes

    if problem.spectrum is None or implicit_in_modes(problem):
        return 0
    fastest = max(float(np.abs(a).max()) for a in problem.spectrum.attributes.values())
    longest = min(STABLE, problem.solver.rtol ** (1 / ORDER))
    return int(min(problem.times[-1] * fastest / longest, 1e9))


class MarchMethod:
    """Method ``march`` for linear theories.

    It solves training in steps exactly, and a flow by an integrator in time.
    """

    name = "march"
    responses = True
    needs = (moving_features, linear_rules, integer_depth, no_attributes, one_output, steady_numbers)

    def fits(self, problem: Problem, keep: KeptKernels) -> MethodEstimate | Refusal:
        """Estimate the cost and error, or refuse theories that are not linear.

        It also refuses programs without the fields, scalars or layers that a result needs, and units with
        positions (:attr:`.Problem.positions`).
        """
        from numerics.lowering import NotLinear
        from numerics.solver.linear.reduction import REDUCTIONS, reduced, unlabelled
        from numerics.solver.linear.solve import ROUGH, fitting, numbers_held, responses_of_modes

        try:
            lowered = reduced(problem, REDUCTIONS)
        except NotLinear as reason:
            return refusal_for(problem, "network.activation", reason, "a linear network")
        missing = unlabelled(problem, lowered)
        if missing is not None:
            return refusal_for(
                problem, "network.depth", missing, "a program with these names, or another method"
            )
        if problem.positions:
            return Refusal(
                "program",
                problem.program.name,
                "its output is a sum over positions, which the march does not support",
                "another method",
            )
        steps, samples, depth = len(problem.times), problem.sample_count, problem.depth or 1
        nodes = 3 * steps if problem.flow else steps
        kernels = fitting(problem) if keep == "auto" else keep
        held = numbers_held(problem, lowered, kernels) if problem.seen else 10 * depth
        if problem.flow and problem.spectrum is not None:
            nodes = max(nodes, explicit_steps(problem))
        held += responses_of_modes(problem, lowered)
        pairs = depth * samples**2 if kernels == "full" else 0
        cost = 2e-10 * held * nodes**3 + 5e-11 * pairs * steps**3 + 1e-3 * nodes
        error = problem.solver.rtol if problem.flow else EXACT
        error = max(error, ROUGH) if problem.flow and error_jumps(problem.program) else error
        return MethodEstimate(cost, 8.0 * (held * nodes**2 + 2 * pairs * steps**2), error)

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        """Solve a linear theory by the march, and return the variables of the result with notes."""
        from numerics.solver.linear import solve as linear

        return MethodResult(*linear.solved(problem, keep, progress), frozenset({"rtol"}))
