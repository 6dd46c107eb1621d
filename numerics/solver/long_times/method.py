"""Long times under weight decay as a method: conditions, cost and error."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from derive.errors import NotApplicable
from numerics.experiment.problem import Problem
from numerics.progress import Progress
from numerics.results import base_name
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
        return replace(of_paths, note=note)

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        """Solve by sampled paths and compare the outputs with ridge regression.

        Variables, standard errors and notes are those of the method ``paths``. Further notes are ``rest``
        (one line that states whether the outputs are at rest), ``ridge``, ``distance_from_ridge`` (the
        largest difference of an output and the regression) and its standard error. The status is not ok if
        the outputs are not at rest.
        """
        from numerics.solver.by_role import kept
        from numerics.solver.long_times.solve import RidgeReplicas
        from numerics.solver.paths.problem import solve_replicas

        keep = kept(problem, keep)
        # sampled paths compute the tangent kernel only if kernels are asked for
        computed = "trace" if keep == "none" else keep
        values, notes, replicas = solve_replicas(problem, computed, progress, RidgeReplicas)
        if keep == "none":
            values = {name: x for name, x in values.items() if not base_name(name).endswith("_trace")}
        rest = replicas.compared(problem, notes["samples"])
        gap = np.abs(rest.difference).ravel()
        largest = int(gap.argmax())
        notes |= {
            "status": notes["status"] if rest.converged else "not converged",
            "kernels": keep,
            "rest": rest.status,
            "ridge": rest.ridge,
            "distance_from_ridge": float(gap[largest]),
            "distance_from_ridge_stderr": float(rest.difference_stderr.ravel()[largest]),
        }
        return MethodResult(values, notes)
