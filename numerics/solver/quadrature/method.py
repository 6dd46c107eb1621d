"""Quadrature as a method: conditions, cost and error."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from derive.errors import NotApplicable
from numerics.errors import Diverged, NotConverged, Unserved
from numerics.experiment.problem import Problem
from numerics.experiment.theory import error_jumps
from numerics.names import INPUT_KERNEL
from numerics.progress import Progress
from numerics.solver.method import ACCURACY, QUICK, KeptKernels, MethodEstimate, MethodResult, Refusal
from numerics.solver.refusals import (
    given_samples,
    linear_rules,
    moving_features,
    no_attributes,
    one_output,
    refusal_for,
    samples_not_asked,
    separate_errors,
    steady_data,
)

Array = NDArray[np.float64]


class QuadratureMethod:
    """Method ``nodes`` for theories without memory, by quadrature over the initial Gaussian variables.

    Each node of the quadrature is a set of initial fields, which move by the derived equations.
    """

    name = "nodes"
    responses = False
    needs = (
        moving_features,
        linear_rules,
        given_samples,
        one_output,
        no_attributes,
        samples_not_asked,
        steady_data,
        separate_errors,
    )

    def fits(self, problem: Problem, keep: KeptKernels) -> MethodEstimate | Refusal:
        """Estimate cost and error from runs with few nodes, or refuse the problem.

        Refused are theories with memory, flows whose error jumps as a function of the output, averages that
        are not supported, and problems whose trial runs diverge or do not converge. ``keep`` states which
        kernels are computed; it changes the cost. The cost is only a lower bound, as the note of the
        estimate says, if trial runs would take too long.
        """
        from numerics.solver.by_role import kept
        from numerics.solver.quadrature.solve import QUADRATURE, forecast, moving

        try:
            moving(problem.theory)
        except NotApplicable as reason:
            return refusal_for(problem, "network.depth", reason, "one hidden layer")
        if problem.flow and error_jumps(problem.program):
            jumps = (
                "the error is a discontinuous function of the output, and outputs at the jump stop the "
                "integrator"
            )
            return refusal_for(problem, "training.objective", jumps, '"square"')
        accuracy = problem.solver.accuracy or QUADRATURE
        try:
            patience = QUICK if problem.solver.method == "auto" else np.inf
            kernels = kept(problem, keep) != "none"
            cost = forecast(problem, accuracy, kernels=kernels, most=_most_nodes(problem), patience=patience)
        except (Unserved, NotConverged, Diverged) as reason:
            refusal = refusal_for(problem, "network.activation", reason, "another activation or time")
            return replace(refusal, diverged=reason) if isinstance(reason, Diverged) else refusal
        origin = (
            "cost measured with few nodes" if cost.tried else "cost is a lower bound, without a trial run"
        )
        note = f"{cost.nodes} nodes, {cost.rule}; {origin}; no responses"
        return MethodEstimate(cost.cost, cost.memory, cost.error, note, accuracy)

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        """Solve a theory without memory by quadrature, and return the variables of the result with notes.

        Nodes are added until all errors are below ``solver.accuracy`` (QUADRATURE if not stated), or until
        their largest number is reached. The status is "not converged" only if the error of scalars exceeds
        ``solver.accuracy`` (ACCURACY if not stated). ``progress`` is not called.
        """
        from numerics.solver.by_role import kept, labelled_result
        from numerics.solver.quadrature.solve import QUADRATURE, solve_nodes

        solution = solve_nodes(
            problem,
            accuracy=problem.solver.accuracy or QUADRATURE,
            seed=problem.solver.seed,
            kernels=kept(problem, keep) != "none",
            most=_most_nodes(problem),
        )
        notes = {
            "quadrature": solution.rule,
            "nodes": solution.nodes,
            "error_estimate": solution.scalar_error,
            "kernel_error": solution.kernel_error,
            "status": "ok"
            if solution.scalar_error <= (problem.solver.accuracy or ACCURACY)
            else "not converged",
        }
        reads = frozenset({"seed"} if solution.rule == "sobol" else ())
        return replace(labelled_result(problem, solution.values, keep, notes), reads=reads)


def _most_nodes(problem: Problem) -> int:
    """Return the largest number of nodes: 2**20 in up to three dimensions, and 2**18 in more.

    The dimensions are counted as the rank of the inputs plus the number of outputs.
    """
    return 2**20 if _rank(problem) + problem.outputs <= 3 else 2**18


def _rank(problem: Problem) -> int:
    """Return the number of independent directions of the inputs: the rank of their kernel as a matrix.

    Rows and columns of this matrix are the first and the second half of the axes of ``K_x``. It is one if the
    problem has no such array.
    """
    kernel = problem.arrays.get(INPUT_KERNEL, np.ones((1, 1)))
    return int(np.linalg.matrix_rank(kernel.reshape(prod(kernel.shape[: kernel.ndim // 2]), -1)))
