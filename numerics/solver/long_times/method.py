"""Long times under weight decay as a method: conditions, cost and error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from derive.errors import NotApplicable
from numerics.experiment.problem import Problem
from numerics.progress import Progress
from numerics.solver.method import KeptKernels, MethodEstimate, MethodResult, Refusal, estimate_or_refusal
from numerics.solver.paths.method import PathsMethod
from numerics.solver.refusals import (
    linear_rules,
    moving_features,
    no_attributes,
    refusal_for,
    steps_on_given_samples,
)

Array = NDArray[np.float64]


class RestMethod:
    """Method ``rest`` for long times under weight decay.

    It solves by sampled paths, and computes the ridge regression to which the outputs converge.
    """

    name = "rest"
    responses = True
    needs = (moving_features, linear_rules, no_attributes, steps_on_given_samples)

    def fits(self, problem: Problem, keep: KeptKernels) -> MethodEstimate | Refusal:
        """Estimate the cost of sampled paths, or refuse the problem.

        Refused are problems without given samples, networks whose rest points of outputs are not derived,
        fewer than FEWEST times, and all that the method of sampled paths refuses.
        """
        if not problem.seen:
            given = "the method finds rest points on given samples"
            return refusal_for(problem, "data.kind", given, "a loss summed over given samples")
        from derive.reduce.ridge import representer
        from numerics.solver.long_times.solve import FEWEST

        try:
            representer(problem.theory)
        except NotApplicable as reason:
            decays = problem.experiment is not None and problem.experiment.training.weight_decay
            key = "network.activation" if decays else "training.weight_decay"
            return refusal_for(problem, key, reason, "a homogeneous network whose weights decay")
        if (count := len(problem.times)) < FEWEST:
            short = f"convergence of the outputs cannot be told from {count} times"
            return refusal_for(problem, "training.steps", short, f"at least {FEWEST} times")
        of_paths = estimate_or_refusal(PathsMethod(), problem, keep)
        if isinstance(of_paths, Refusal):
            return of_paths
        note = "sampled paths, compared with ridge regression at the end"
        return MethodEstimate(of_paths.cost, of_paths.memory, of_paths.error, note)

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        """Solve by sampled paths and compare the outputs with ridge regression.

        The number of paths of each replica is ``solver.samples``, or 512 if the file states none;
        ``solver.accuracy`` is not used. The variables are means over replicas without standard errors. The
        notes are ``rest`` (one line that states whether the outputs are at rest), ``ridge``, and
        ``distance_from_ridge``.
        """
        from numerics.solver.by_role import labelled_result
        from numerics.solver.long_times.solve import at_rest

        solution = at_rest(
            problem.program,
            steps=len(problem.times),
            values=problem.values,
            data=problem.arrays,
            seed=problem.solver.seed,
            samples=problem.solver.samples or 512,
        )
        notes = {
            "rest": solution.status,
            "ridge": solution.ridge,
            "distance_from_ridge": float(np.abs(solution.difference).max()),
        }
        return labelled_result(problem, solution.solved.values, keep, notes)
