"""Reference solver as a method: conditions, cost and error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Unserved
from numerics.experiment.problem import Problem
from numerics.progress import Progress
from numerics.solver.method import ACCURACY, KeptKernels, MethodEstimate, MethodResult, Refusal
from numerics.solver.refusals import (
    integer_depth,
    linear_rules,
    moving_features,
    refusal_for,
    steps_on_given_samples,
)

Array = NDArray[np.float64]


class ReferenceMethod:
    """Method ``direct``, the reference solver: evaluates every expression of the theory, for a few steps."""

    name = "direct"
    responses = True
    needs = (moving_features, linear_rules, integer_depth, steps_on_given_samples)

    def fits(self, problem: Problem, keep: KeptKernels) -> MethodEstimate | Refusal:
        """Estimate cost and error of the reference solver, or refuse a theory that it cannot evaluate.

        Flows, random data and training rules that are nonlinear in the updates are refused before, by the
        conditions ``needs``.
        """
        from numerics.solver.direct.replicas import estimate

        try:
            cost = estimate(problem)
        except (Unserved, ValueError) as reason:
            return refusal_for(problem, "network.activation", reason, "another network or rule")
        asked = None if cost.samples == 1 else ACCURACY
        return MethodEstimate(
            cost.seconds,
            cost.bytes,
            cost.error,
            "every expression of the theory is evaluated as written",
            asked,
        )

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        """Solve by evaluating all expressions of the theory, and return the variables with notes.

        ``progress`` is not called.
        """
        from numerics.solver.direct.replicas import solve_reference

        values, notes = solve_reference(problem, keep)
        return MethodResult(values, notes, frozenset({"samples", "seed"} if "samples" in notes else ()))
