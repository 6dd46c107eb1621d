"""Infinite depth as a method: what it takes, at what cost, and how exactly."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from numerics.experiment.problem import Problem
from numerics.progress import Progress
from numerics.results import VARIABLES
from numerics.solver.method import KeptKernels, MethodResult, No, Yes
from numerics.solver.refusals import linear_rules, moving_features, no_attributes, no_for, symbolic_depth

Array = NDArray[np.float64]


class InfiniteDepthMethod:
    """The limit of infinite depth, in layer time."""

    name = "layers"
    responses = True
    needs = (moving_features, linear_rules, no_attributes, symbolic_depth)

    def fits(self, problem: Problem, keep: KeptKernels) -> Yes | No:
        from numerics.solver.depth.solve import LAYERS, require_limit

        try:
            require_limit(problem)
        except ValueError as reason:
            return no_for(problem, "network.depth", reason, "an integer >= 1")
        steps, samples = len(problem.times), max(problem.sample_count, 1)
        return Yes(
            1e-6 * LAYERS**2 * (samples * steps) ** 2 + 5, 64.0 * LAYERS**2 * (samples * steps) ** 2, 1e-6
        )

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        from numerics.solver.depth.solve import LAYERS, solve_depth_limit

        found = solve_depth_limit(problem, layers=LAYERS, progress=progress)
        notes = {
            "method": "infinite depth, layer grid",
            "layers": LAYERS,
            "layer_grid_error": found.errors.get("train_loss"),
            "layers_at": found.nodes,
        }
        return MethodResult({k: x for k, x in found.values.items() if k in VARIABLES}, notes)
