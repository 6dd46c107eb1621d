"""Plans of expansions in 1/N: method, kept kernels, and checks of memory and time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from numerics.errors import require_memory, require_time
from numerics.experiment.problem import Problem
from numerics.fluctuations.expanded_problem import FluctuationSizes
from numerics.fluctuations.methods import FluctuationMethod, method_for
from numerics.solver.method import KeptKernels

SECONDS = 60.0
"""Estimated seconds up to which ``auto`` keeps variances of all kernels, or of their traces."""


@dataclass(frozen=True, eq=False)
class WidthPlan:
    """Plan for the corrections at order 1/N of a problem: method, and kernels to compute.

    Attributes
    ----------
    problem
        The problem.
    sizes
        Sizes of the arrays of its expansion in 1/N.
    method
        Method that computes them.
    outputs
        The number of output times of the corrections.
    keep
        Kernels that are kept: of all pairs of samples, their traces, or none.
    """

    problem: Problem
    sizes: FluctuationSizes
    method: FluctuationMethod
    outputs: int
    keep: KeptKernels

    @classmethod
    def of(cls, problem: Problem, sizes: FluctuationSizes, outputs: int, kernels: KeptKernels) -> WidthPlan:
        """Return the plan for the corrections at order 1/N of a problem at ``outputs`` times.

        ``kernels`` is "full" (all pairs of samples), "trace" (sums over equal samples), "none" or "auto".
        With "auto" the plan keeps the most kernels whose estimated time is at most SECONDS. If all choices
        take longer, it keeps the most kernels that take no longer than "none". For random data "auto" is
        "full". Raises SpecError if no method applies.
        """
        method = method_for(problem, sizes)
        choices: tuple[KeptKernels, ...] = ("full", "trace", "none") if kernels == "auto" else (kernels,)
        plans = [cls(problem, sizes, method, outputs, keep) for keep in choices]
        if not problem.seen:  # random data have no pairs of samples, whose kernels could be left out
            return plans[0]
        most = max(SECONDS, plans[-1].seconds)
        return next(x for x in plans if x.seconds <= most)

    @property
    def seconds(self) -> float:
        """Estimated seconds for the corrections at order 1/N of all output times."""
        return self.method.seconds(self.sizes, self.outputs * self.observables, self.problem.solver)

    @property
    def observables(self) -> int:
        """Number of scalars at each time whose variances are computed, for the estimates of cost.

        They are the outputs of all samples and the entries of the kernels that are kept. For random data they
        are correlations of errors and of fields.
        """
        problem, outputs, depth = self.problem, self.problem.outputs, self.problem.depth or 1
        # With random data nothing is observed at single samples (`seen` is zero). The scalars are
        # correlations of errors and of fields instead.
        if not problem.seen:
            return outputs**2 * (3 + 2 * depth)
        samples = max(problem.sample_count, 1)
        pairs = samples * (samples + 1) // 2 + outputs**2
        kernels = {"full": depth * pairs, "trace": depth * (1 + outputs**2) + 1, "none": 0}
        return samples * outputs + kernels[self.keep]

    def require_resources(self) -> None:
        """Raise SpecError if the corrections would take too much memory, or more than ``solver.hours``."""
        problem = self.problem
        setting = problem.key_and_value("training.points" if problem.flow else "training.steps")
        size = self.method.memory(self.sizes, self.outputs * self.observables, problem.solver)
        require_memory(size, setting, "for the fields of a unit at all times", "fewer times or samples")
        less = 'fewer training.times, or kernels = "none"'
        require_time(self.seconds, problem.solver.hours, "the expansion in 1/N", less)

    def notes(self) -> dict[str, Any]:
        """Return the attributes of results: ``width_method``, ``width_kernels`` and ``no_shift``.

        These are the name of the method, the kernels that are kept (None for random data), and the reason for
        missing shifts of means (None if there are shifts).
        """
        kept = self.keep if self.problem.seen else None
        return {
            "width_method": self.method.name,
            "width_kernels": kept,
            "no_shift": self.method.no_shift(self.sizes),
        }
