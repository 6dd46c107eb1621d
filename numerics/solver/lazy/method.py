"""The limit of small gamma0 (lazy limit) as a method: conditions, cost and error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sympy import Dummy, Expr
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.program import gamma0, s, t
from derive.reduce.frozen_features import frozen_features
from numerics.errors import Unserved
from numerics.experiment.problem import Problem
from numerics.experiment.rates import next_step_factors
from numerics.experiment.theory import slope_jumps
from numerics.names import ERROR, INPUT_KERNEL, TARGETS, MemberKey
from numerics.progress import Progress
from numerics.solver.method import ACCURACY, KeptKernels, MethodEstimate, MethodResult, Refusal
from numerics.solver.refusals import (
    given_samples,
    no_attributes,
    one_output,
    refusal_for,
    samples_not_asked,
    separate_errors,
    steady_data,
)

if TYPE_CHECKING:
    from derive.reduce.stationary import Static

Array = NDArray[np.float64]

FAR = 0.1
"""Largest relative change of fields for which the limit gamma0 = 0, where they stand still, is used."""

AVERAGED = 1e-10
"""Error of the Gaussian averages of kernels, which is the whole error if fields do not move."""


def known_start(problem: Problem) -> Refusal | None:
    """Refuse NTK scaling with random initial outputs, because results would be averages over them.

    The result is None for other problems, for a program that is not from a file, and for outputs that are
    centered or zero at the start.
    """
    experiment = problem.experiment
    if experiment is None or not problem.features_rest or experiment.spec.centered:
        return None
    variance = experiment.network.init_variance
    if isinstance(variance, list) and not variance[-1]:
        return None
    random = "in NTK scaling initial outputs stay random at infinite width: a Gaussian process over the data"
    return refusal_for(problem, "training.center", random, "true, or a readout whose init_variance is zero")


class LazyMethod:
    """Method ``lazy`` for theories at gamma0 = 0: Gaussian fields that do not move.

    Training rules that are nonlinear in the updates are solved by sampled paths with frozen features.
    """

    name = "lazy"
    responses = False
    needs = (
        given_samples,
        one_output,
        no_attributes,
        samples_not_asked,
        steady_data,
        separate_errors,
        known_start,
    )

    def fits(self, problem: Problem, keep: KeptKernels) -> MethodEstimate | Refusal:
        """Estimate cost and the error of the limit, or refuse theories whose fields move at gamma0 = 0.

        It also refuses what :func:`_refusals` yields, such as rules with a memory and theories without a
        tangent kernel, and a gamma0 for which the estimated relative change of fields exceeds FAR.
        """
        from derive.reduce.stationary import static

        if problem.program.has_nonlinear_rules:
            return _fits_frozen_features(problem, keep)
        try:
            static_theory = static(problem.theory)
        except NotApplicable as reason:
            return refusal_for(
                problem,
                _key_of_motion(problem),
                reason,
                "0.0, or a theory whose fields are constant at gamma0 = 0",
            )
        refusal = next(_refusals(problem, static_theory), None)
        if refusal is not None:
            return refusal
        samples = problem.sample_count
        cost = 2e-3 * (problem.depth or 1) * samples**2 + 1e-5 * len(problem.times) * samples**2
        memory = 8.0 * samples**2 * len(problem.times) ** 2
        if problem.features_rest:
            return MethodEstimate(
                cost, memory, AVERAGED, "exact at infinite width in NTK scaling; no responses"
            )
        moved = _estimated_change(problem)
        if moved > FAR:
            return refusal_for(
                problem,
                "network.gamma0",
                f"the limit gamma0 = 0 is inaccurate, because fields move, by about {moved:.1g}",
                "a smaller gamma0",
            )
        power = _power(problem)
        return MethodEstimate(
            cost, memory, moved**power, f"its error is of order gamma0^{power}; no responses"
        )

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        """Solve the theory at gamma0 = 0, and estimate the error of that limit from the updates.

        In NTK scaling features do not move for any gamma0, and the limit has no such error.
        """
        from numerics.solver.by_role import kept, labelled_result
        from numerics.solver.lazy.solve import solve_lazy
        from numerics.solver.paths.problem import solve_paths

        if problem.program.has_nonlinear_rules:
            keep, moved = kept(problem, keep), 0.0 if problem.features_rest else _steps_taken(problem)
            variables, notes = solve_paths(_with_frozen_features(problem), keep, progress)
            notes |= {"method": self.name, "kernels": keep, "error_estimate": moved ** _power(problem)}
            return MethodResult(variables, notes)
        at: dict[str, Any] = {"times": problem.times} if problem.flow else {"steps": len(problem.times)}
        solution = solve_lazy(problem.theory, values=problem.values, data=problem.arrays, **at)
        count = len(problem.times)
        values: dict[MemberKey, Array] = {(name, ()): x for name, x in solution.scalars.items()}
        for node, kernel in solution.kernels.items():  # kernels do not depend on time at gamma0 = 0
            values[node] = np.broadcast_to(kernel[..., None, None], (*kernel.shape, count, count))
        if problem.features_rest:
            notes = {"status": "ok", "error_estimate": solution.error}
            return replace(labelled_result(problem, values, keep, notes), reads=frozenset())
        moved = _estimated_change(problem)
        if ERROR in solution.scalars:
            moved = max(moved, _change_by_updates(problem, solution.scalars[ERROR], solution.kernel("K")))
        moved *= solution.tails**0.5
        notes = {
            "status": "ok" if moved <= FAR else "not converged",
            "error_estimate": moved ** _power(problem),
        }
        return replace(labelled_result(problem, values, keep, notes), reads=frozenset())


def _refusals(problem: Problem, static_theory: Static) -> Iterator[Refusal]:
    """Yield the refusals of a theory whose kernels are static at gamma0 = 0; none if the solver takes it.

    ``static_theory`` is the derived theory at gamma0 = 0.
    """
    from numerics.solver.lazy.solve import coupling_of, error_is_linear

    if static_theory.output is None:
        reason = "the theory has no tangent kernel, which the equation of the outputs at gamma0 = 0 needs"
        yield refusal_for(problem, "network.gamma0", reason, "another method")
    if problem.memory:
        reason = (
            "its training rule has momentum or another memory of past updates, which the method does not "
            "take at gamma0 = 0"
        )
        yield _refused_memory(problem, reason)
    if any(_names_time(e.rhs) for e in problem.theory.observables):
        reason = "its tangent kernel has a rate that changes in time, and the method takes a constant kernel"
        yield _refused_memory(problem, reason)
    if len(problem.theory.scalars) > 2:
        reason = "the theory has other scalars than outputs and errors, which the method does not compute"
        yield refusal_for(problem, "network.gamma0", reason, "another method")
    if problem.flow and not error_is_linear(static_theory):
        reason = "the flow at gamma0 = 0 is solved only if the error is linear in the output"
        yield refusal_for(problem, "training.objective", reason, '"square"')
    if problem.flow and coupling_of(static_theory)[0].has(t, s):
        reason = "the flow at gamma0 = 0 is solved only for a constant rate without momentum"
        yield _refused_memory(problem, reason)


def _key_of_motion(problem: Problem) -> str:
    """Return the key of the file because of which fields move at gamma0 = 0: decay, temperature or gamma0."""
    training = None if problem.experiment is None else problem.experiment.training
    for key in ("weight_decay", "temperature"):
        if training is not None and getattr(training, key):
            return f"training.{key}"
    return "network.gamma0"


def _refused_memory(problem: Problem, reason: str) -> Refusal:
    """Return the refusal of a rule with a memory, or with a rate that depends on time, by its key and remedy.

    The key is that of the momentum for a file with momentum, and that of the learning rate for all other
    problems.
    """
    if problem.experiment is not None and problem.experiment.training.momentum:
        accepted = "0.0" if problem.features_rest else "0.0, or another method"
        return refusal_for(problem, "training.momentum", reason, accepted)
    return refusal_for(problem, "training.learning_rate", reason, "a constant, with a rule without momentum")


def _with_frozen_features(problem: Problem) -> Problem:
    """Return the problem with features frozen at their initial values (for nonlinear training rules)."""
    return replace(problem, reductions=(*problem.reductions, frozen_features))


def _fits_frozen_features(problem: Problem, keep: KeptKernels) -> MethodEstimate | Refusal:
    """Estimate cost and error of sampled paths with frozen features, for rules nonlinear in the updates.

    Refuse a theory that sampled paths do not solve, and a gamma0 for which the estimated relative change of
    fields exceeds FAR.
    """
    from numerics.solver.by_role import kept
    from numerics.solver.paths.problem import forecast

    try:
        cost, memory, error = forecast(_with_frozen_features(problem), kept(problem, keep))
    except (Unserved, NotApplicable) as reason:
        return refusal_for(
            problem, "network.gamma0", reason, "a theory whose features do not move at gamma0 = 0"
        )
    if problem.features_rest:
        return MethodEstimate(
            cost, memory, error, "features do not move in NTK scaling; sampled paths, no responses", ACCURACY
        )
    moved = _steps_taken(problem)
    if moved > FAR:
        return refusal_for(
            problem,
            "network.gamma0",
            f"the limit gamma0 = 0 is inaccurate, because fields move, by about {moved:.1g}",
            "a smaller gamma0",
        )
    power = _power(problem)
    note = f"its error is of order gamma0^{power}, beside that of sampled paths; no responses"
    return MethodEstimate(cost, memory, max(error, moved**power), note, ACCURACY)


def _steps_taken(problem: Problem) -> float:
    """Return the relative change of fields for updates of order one, ``gamma0 sum_t |rate(t)|``.

    gamma0 is taken to be 1 for a problem without it.
    """
    return float(problem.numbers.get(gamma0, 1.0) * np.abs(next_step_factors(problem)).sum())


def _names_time(e: Expr) -> bool:
    """Return whether an expression contains a time t or s as a number, as in ``t*h(t)`` or ``exp(-t)``.

    Times that occur only as arguments of fields, order parameters or data, as in ``h(t)``, do not count.
    """
    return bool(e.replace(lambda x: isinstance(x, AppliedUndef), lambda _: Dummy()).has(t, s))


def _power(problem: Problem) -> int:
    """Return the order in gamma0 of the error of the lazy limit: 2, or 1 if the activation has a kink.

    Kernels are even functions of gamma0; a kink adds a term of order ``|gamma0|``.
    """
    return 1 if slope_jumps(problem.program) else 2


def _change_by_updates(problem: Problem, error: Array, tangent: Array) -> float:
    """Return the relative change of fields, ``gamma0 sum_t,mu rate(t) |Delta_mu(t)| max |K|^(1/2)``.

    ``error`` are the errors Delta, times first, ``tangent`` is the tangent kernel K, of which the largest
    entry is taken. The sum is over training samples and steps; for a flow it is an integral over time. An
    update moves h^l by ``gamma0 rate Delta Phi^(l-1) g^l``, whose variance over that of h^l is ``(gamma0 rate
    Delta)^2`` times ``Phi^(l-1) G^l``, a part of the tangent kernel.
    """
    rates = next_step_factors(problem)
    sizes = np.abs(error[:, : problem.seen]).reshape(len(error), -1).sum(axis=1)
    between = np.diff(problem.times) * (sizes[1:] + sizes[:-1]) / 2
    span = between if problem.flow else sizes[:-1]
    return float(problem.numbers.get(gamma0, 1.0) * (rates @ span) * np.sqrt(np.abs(tangent).max()))


def _estimated_change(problem: Problem) -> float:
    """Return an estimate of the relative change of fields, before the solution is known.

    All updates are taken to be as large as the first one, kernels as large as that of the data, and the
    changes of all layers are added.
    """
    strength = problem.numbers.get(gamma0, 1.0)
    rates = next_step_factors(problem)
    span = float(np.abs(rates) @ np.diff(problem.times)) * problem.seen
    y = problem.arrays.get(TARGETS, np.ones(1))[: problem.seen]
    kernel = problem.arrays.get(INPUT_KERNEL, np.ones((1, 1)))
    size = float(np.abs(y).mean()) * problem.outputs * max(1.0, float(np.abs(kernel).max()))
    return strength * span * size * (problem.depth or 1)
