"""Laplace transforms as a method: conditions, cost and error."""

from __future__ import annotations

from derive.errors import NotApplicable
from numerics.experiment.problem import Problem
from numerics.names import C_LEARNT
from numerics.progress import Progress
from numerics.solver.method import KeptKernels, MethodEstimate, MethodResult, Refusal
from numerics.solver.refusals import (
    flow_on_random_data,
    linear_rules,
    one_output,
    refusal_for,
    steady_numbers,
)

SECONDS = 0.5
"""Seconds to derive and solve the equations of the transforms symbolically."""

OF_MODES = 1e-6, 1.5e-9
"""Measured seconds for each mode and rate, and for each mode and pair of rates."""

RATES = 20
"""Number of rates on a hyperbola, which serves nearly a decade of time."""


class TransformMethod:
    """Method ``transform`` for linear flows on random data with kernels of differences of times."""

    name = "transform"
    responses = True
    needs = (linear_rules, one_output, flow_on_random_data, steady_numbers)

    def fits(self, problem: Problem, keep: KeptKernels) -> MethodEstimate | Refusal:
        """Estimate the cost, or refuse theories whose transforms are not derived.

        An example are kernels that depend on two times, and not on their difference alone. A theory without
        the correlation C_v is refused, too. The estimated
        error is ``solver.rtol``. ``keep`` has no effect.
        """
        from numerics.solver.transform.contour import groups
        from numerics.solver.transform.solve import transformed

        try:
            equations = transformed(problem.theory)
            equations.correlation(C_LEARNT)
        except (NotApplicable, KeyError) as error:
            reason = str(error.args[0] if error.args else error)
            return refusal_for(problem, "network.gamma0", reason, "another method")
        rates = RATES * len(groups(problem.times))
        modes = 1 if problem.spectrum is None else len(problem.spectrum.counts)
        cost = SECONDS + 3 * (OF_MODES[0] * rates * (modes + 1000) + OF_MODES[1] * modes * 2 * rates**2)
        pairs = 2 * rates**2 * len(equations.correlations) ** 2
        return MethodEstimate(cost, 16.0 * (2 * rates * modes + pairs), problem.solver.rtol)

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        """Solve a linear flow by Laplace transforms, and return the variables of the result with notes.

        The result holds losses and those of the correlations C_v, C_Delta, C_h0, C_h and C_g that the theory
        has, whatever ``keep`` is. ``progress`` is not called.
        """
        from numerics.results.predictions import random_losses
        from numerics.solver.linear.variables import RANDOM
        from numerics.solver.transform.solve import solve_transforms

        solution = solve_transforms(
            problem.theory,
            problem.times,
            numbers=problem.numbers,
            units=problem.spectrum,
            rtol=problem.solver.rtol,
        )
        values = {name: solution.correlations[name] for name in RANDOM if name in solution.correlations}
        losses = random_losses(problem.theory, values, problem.numbers, problem.outputs)
        notes = {"method": "Laplace transforms", "error_estimate": solution.error, "rates": solution.rates}
        return MethodResult(losses | values, notes, frozenset({"rtol"}))
