"""Infinite depth as a method: conditions, cost and error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from derive.errors import NotApplicable
from derive.linear.form import LinearForm
from numerics.errors import Unserved
from numerics.experiment.problem import Problem
from numerics.names import FEATURE_KERNEL, GRADIENT_KERNEL
from numerics.progress import Progress
from numerics.results import SYSTEMATIC, TRACE, VARIABLES
from numerics.solver.method import POOR, WATCHED, KeptKernels, MethodEstimate, MethodResult, Refusal
from numerics.solver.refusals import (
    linear_updates,
    moving_features,
    no_attributes,
    refusal_for,
    symbolic_depth,
)

Array = NDArray[np.float64]


def is_nonlinear(problem: Problem) -> bool:
    """Return whether the theory of a problem has no linear form, so that its limit is sampled."""
    return not isinstance(problem.linear, LinearForm)


def is_sampled(problem: Problem) -> bool:
    """Return whether the limit of a problem is sampled: it is nonlinear, or its equations do not close.

    The second case is a linear program (not a file) without closed equations, whose stochastic process in
    layer time is derived. An example is attention without a perceptron, whose equations contain averages over
    units. It needs a symbolic depth, training in steps, given samples, and an output and an error that are
    recognised.
    """
    from numerics.solver.depth.sampled import process_of
    from numerics.solver.depth.solve import require_limit

    if is_nonlinear(problem):
        return True
    if problem.experiment is not None or problem.depth is not None or problem.flow:
        return False
    try:
        require_limit(problem)
    except ValueError:
        try:
            process_of(problem)
        except ValueError:
            return False
        return bool(problem.seen and problem.has_roles)
    return False


class InfiniteDepthMethod:
    """Method ``layers``: the limit of infinite depth, in layer time."""

    name = "layers"
    responses = True
    needs = (moving_features, linear_updates, no_attributes, symbolic_depth)

    def fits(self, problem: Problem, keep: KeptKernels) -> MethodEstimate | Refusal:
        """Estimate cost and error, or refuse a problem that has no limit of infinite depth."""
        from numerics.solver.depth.solve import LAYERS, require_limit

        try:
            if is_sampled(problem):
                return _sampled(problem, keep)
            require_limit(problem)
        except ValueError as reason:
            return refusal_for(problem, "network.depth", reason, "an integer >= 1")
        steps, samples = len(problem.times), max(problem.sample_count, 1)
        return MethodEstimate(
            1e-6 * LAYERS**2 * (samples * steps) ** 2 + 5, 64.0 * LAYERS**2 * (samples * steps) ** 2, 1e-6
        )

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        """Solve closed equations on grids of layer time; without them, sample paths on several grids."""
        from numerics.solver.by_role import kept
        from numerics.solver.depth.solve import LAYERS, solve_depth_limit
        from numerics.solver.paths.accuracy import scale_of

        if is_sampled(problem):
            return _sample(problem, keep, progress)
        limit = solve_depth_limit(problem, layers=LAYERS, progress=progress)
        values = {k: x for k, x in limit.values.items() if k in VARIABLES}
        shares = [limit.errors[k] / scale_of(values[k]) for k in WATCHED if k in values]
        error = max(shares, default=0.0)
        notes = {
            "method": "infinite depth, layer grid",
            "status": "ok" if error <= (problem.solver.accuracy or POOR) else "not converged",
            "layers": LAYERS,
            "layer_grid_error": limit.errors.get("train_loss"),
            "error_estimate": error,
            "layers_at": limit.nodes,
        }
        if problem.seen:
            keep = kept(problem, keep)
            values, notes["kernels"] = _with_kernels(problem, values, keep), keep
        return MethodResult(values, notes, frozenset())


def _with_kernels(problem: Problem, values: dict[str, Array], keep: KeptKernels) -> dict[str, Array]:
    """Return the variables of a result on given samples, with kernels as ``keep`` states.

    ``"trace"`` replaces the feature kernel by its trace over training samples, and keeps the gradient kernel,
    which has no samples in a linear network. ``"none"`` removes both kernels.
    """
    if keep == "full":
        return values
    kernels = (FEATURE_KERNEL, GRADIENT_KERNEL) if keep == "none" else (FEATURE_KERNEL,)
    rest = {name: x for name, x in values.items() if name not in kernels}
    if keep == "trace" and FEATURE_KERNEL in values:
        seen = values[FEATURE_KERNEL][..., : problem.seen, : problem.seen]
        rest[FEATURE_KERNEL + TRACE] = np.einsum("...mm->...", seen)
    return rest


def _sampled(problem: Problem, keep: KeptKernels) -> MethodEstimate | Refusal:
    """Estimate cost and error of sampled paths on grids of layer time, or refuse the problem.

    Raises SpecError if the theory has no limit of infinite depth, and for a depth that is a number. A problem
    that does not state how its branch depends on the depth must have a branch.
    """
    from numerics.solver.by_role import kept
    from numerics.solver.depth.sampled import ACCURACY, CELLS, forecast_depth, is_scaled, process_of
    from numerics.solver.depth.solve import require_branch

    if problem.depth is not None or not is_scaled(problem):
        require_branch(problem)
    if not (problem.seen and problem.has_roles):
        return refusal_for(
            problem, "data.kind", "has no given samples", 'given samples (data.kind = "fixed")'
        )
    process_of(problem)
    try:
        cost, memory, error = forecast_depth(problem, kept(problem, keep))
    except (Unserved, NotApplicable) as reason:
        return refusal_for(problem, "network.depth", reason, "an integer >= 1")
    grids = ", ".join(map(str, CELLS))
    note = f"sampled paths on {grids} cells of layer time, extrapolated; no responses"
    return MethodEstimate(cost, memory, error, note, ACCURACY)


def _sample(problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
    """Solve the limit of infinite depth by sampled paths on several grids, and extrapolate.

    It is used for nonlinear networks, and for programs without closed equations. ``keep`` states which
    kernels the result holds.
    """
    from numerics.solver.by_role import kept
    from numerics.solver.depth.sampled import solve_cells

    keep = kept(problem, keep)
    solutions = solve_cells(problem, keep, progress)
    values = solutions.order(0)
    ok = all(x["status"] == "ok" for x in solutions.notes)
    grid_error = values.get("train_loss" + SYSTEMATIC)
    notes = {
        "method": "infinite depth, sampled paths in layer time",
        "status": "ok" if ok else "not converged",
        "kernels": keep,
        "layers": max(solutions.cells),
        "samples": min(x["samples"] for x in solutions.notes),
        "replicas": min(x["replicas"] for x in solutions.notes),
        "layer_grid_error": None if grid_error is None else float(grid_error.max()),
        "layers_at": solutions.nodes,
    }
    return MethodResult(values, notes)
