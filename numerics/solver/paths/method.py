"""Sampled paths as a method: conditions, cost and error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from derive.errors import NotApplicable
from derive.linear.form import LinearForm
from numerics.errors import Unserved, memory_there
from numerics.experiment.problem import Problem
from numerics.experiment.theory import error_jumps
from numerics.progress import Progress
from numerics.solver.linear.method import MarchMethod
from numerics.solver.method import (
    ACCURACY,
    EXACT,
    KeptKernels,
    MethodEstimate,
    MethodResult,
    Refusal,
    estimate_or_refusal,
)
from numerics.solver.refusals import given_samples, moving_features, refusal_for

Array = NDArray[np.float64]

SAMPLED = 1e-5
"""Smallest error that is stated for sampled paths."""


class PathsMethod:
    """Method ``paths``: sampled paths of the single-site processes.

    It solves problems on given samples, in steps or flows, whose features move.
    """

    name = "paths"
    responses = True
    needs = (
        moving_features,
        given_samples,
    )

    def fits(self, problem: Problem, keep: KeptKernels) -> MethodEstimate | Refusal:
        """Estimate cost, memory and error, or refuse the problem.

        Refused are a flow whose error is a discontinuous function of the output, and forms of a theory that
        sampled paths cannot compute.
        """
        if problem.flow and error_jumps(problem.program):
            jumps = (
                "the error is a discontinuous function of the output, and steps of sampled paths miss the "
                "jump"
            )
            return refusal_for(problem, "training.objective", jumps, '"square", "logistic", or rule = "gd"')
        from numerics.solver.by_role import kept
        from numerics.solver.paths.problem import forecast

        try:
            cost, memory, error = forecast(problem, kept(problem, keep))
        except (Unserved, NotApplicable) as reason:
            return refusal_for(problem, "network.activation", reason, "another network or rule")
        lacks = f"; this machine has {memory_there() / 2**30:.0f} GiB" if memory > memory_there() else ""
        given = problem.solver.samples is not None
        note = (
            f"with {problem.solver.samples} samples"
            if given
            else "a search for samples may take three times that"
        )
        linear = not problem.flow and isinstance(problem.linear, LinearForm)
        if linear and not given and isinstance(estimate_or_refusal(MarchMethod(), problem, keep), Refusal):
            return MethodEstimate(cost, memory, EXACT, f"second moments over the paths are exact{lacks}")
        return MethodEstimate(cost, memory, max(error, SAMPLED), note + lacks, error if given else ACCURACY)

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        """Solve by sampled paths, with ``solver.samples`` paths or as many as the accuracy needs."""
        from numerics.solver.by_role import kept
        from numerics.solver.paths.problem import solve_paths

        keep = kept(problem, keep)
        values, notes = solve_paths(problem, keep, progress)
        return MethodResult(values, {"method": self.name, "kernels": keep, **notes})
