"""The reference solver as a method: what it takes, at what cost, and how exactly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Unserved
from numerics.experiment.problem import Problem
from numerics.progress import Progress
from numerics.solver.method import ACCURACY, KeptKernels, MethodResult, No, Yes
from numerics.solver.refusals import integer_depth, linear_rules, moving_features, no_for

Array = NDArray[np.float64]


class ReferenceMethod:
    """The reference solver: every expression of the theory as it stands, for a few steps."""

    name = "direct"
    responses = True
    needs = (moving_features, linear_rules, integer_depth)

    def fits(self, problem: Problem, keep: KeptKernels) -> Yes | No:
        if problem.flow or not (problem.seen or not problem.has_roles):
            return no_for(
                problem,
                "training.rule",
                "takes steps on given samples",
                'a rule in steps, such as "gd", and given samples',
            )
        from numerics.solver.direct.replicas import estimate

        try:
            found = estimate(problem)
        except (Unserved, ValueError) as reason:
            return no_for(problem, "network.activation", reason, "another network or rule")
        asked = None if found.samples == 1 else ACCURACY
        return Yes(found.seconds, found.bytes, found.error, "every expression as it stands", asked)

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        from numerics.solver.direct.replicas import solve_reference

        return MethodResult(*solve_reference(problem, keep))
