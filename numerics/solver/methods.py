"""The methods that there are, each an engine and what it can do: found from the theory, not from a file.

An engine is imported when its method may run: all of them take longer to import than one takes to solve.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Dummy, Expr, Sum
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.linear.form import LinearForm
from derive.program import gamma0, s, t
from numerics.errors import Diverged, NotConverged, SpecError, Unserved, memory_there
from numerics.experiment.problem import EVALUATE, Problem
from numerics.experiment.rates import first_shares
from numerics.experiment.theory import error_jumps, slope_jumps
from numerics.names import ERROR, INPUT_KERNEL, OUTPUT, TARGETS, MemberKey
from numerics.progress import Progress
from numerics.results import VARIABLES
from numerics.solver.method import KeptKernels, MethodResult, No, Yes

Array = NDArray[np.float64]

EXACT = 1e-12
"""What steps without sampling miss: rounding."""

FAR = 0.1
"""How far fields may move, over their size, for the limit in which they do not."""

QUICK = 3.0
"""Seconds that the most exact method may take where the file does not say an accuracy."""

SAMPLED = 1e-5
"""The accuracy that is out of reach of sampled paths."""


def _no(problem: Problem, key: str, reason: object, accepted: str) -> No:
    """Return a refusal that names a key of the file, or the program; a SpecError says both by itself."""
    if isinstance(reason, SpecError):
        return No(reason.key, reason.value, reason.problem, reason.accepted)
    return No(*problem.said(key), str(reason).removesuffix("."), accepted)


def _symbolic(problem: Problem) -> No | None:
    """Methods that go from layer to layer need a number of them."""
    if problem.depth is not None:
        return None
    return _no(problem, "network.depth", problem.open_depth(), "")


def _no_samples(problem: Problem) -> No | None:
    """Single-site processes are those of given samples, at a number of layers."""
    no = _symbolic(problem)
    if no is not None or problem.seen or not problem.has_roles:
        return no
    return _no(problem, "data.kind", "has no given samples", 'given samples (data.kind = "fixed")')


def _attributes(problem: Problem) -> No | None:
    """Sampled paths and the reference solver alone read attributes of units from arrays."""
    if not problem.attributes:
        return None
    reason = f"has attributes of units ({', '.join(problem.attributes)}), which this method does not take"
    accepted = 'solver.method = "paths"'
    return No("program", problem.program.name, reason, accepted)


def _no_output(problem: Problem) -> No | None:
    """Results are errors and losses of one output."""
    if problem.has_roles and (not problem.seen or {OUTPUT, ERROR} <= {*problem.program.scalars}):
        return None
    names = ", ".join(problem.told(problem.program.scalars)) or "no numbers"
    reason = f"has no single output with an error that updates are multiplied by, but {names}"
    return No("program", problem.program.name, reason, EVALUATE)


def _sampled(problem: Problem) -> No | None:
    """Whoever says how many paths there are wants paths."""
    if problem.solver.samples is None or problem.solver.method != "auto":
        return None
    return No("solver.samples", problem.solver.samples, "asks for sampled paths", "leaving it out")


class MarchMethod:
    """Linear theories, step by step and exactly; flows as an integrator sees them."""

    name = "march"
    responses = True

    def fits(self, problem: Problem, keep: KeptKernels) -> Yes | No:
        if (no := _symbolic(problem) or _attributes(problem) or _no_output(problem)) is not None:
            return no
        from numerics.lowering import NotLinear
        from numerics.solver.linear.reduction import REDUCTIONS, reduced, unlabelled
        from numerics.solver.linear.solve import ROUGH, fitting, numbers_held

        try:
            lowered = reduced(problem, REDUCTIONS)
        except NotLinear as reason:
            return _no(problem, "network.activation", reason, "a linear network")
        if (lacking := unlabelled(problem, lowered)) is not None:
            return _no(problem, "network.depth", lacking, "a program with these names, or another method")
        if problem.positions:
            return No("program", problem.program.name, "its output is a sum over positions", "another method")
        if moving := _moving_in(problem, [e.rhs for e in problem.theory.scalars]):
            return No("program", problem.program.name, moving, "another method")
        steps, samples, depth = len(problem.times), problem.sample_count, problem.depth or 1
        nodes = 3 * steps if problem.flow else steps
        kernels = fitting(problem) if keep == "auto" else keep
        held = numbers_held(problem, lowered, kernels) if problem.seen else 10 * depth
        pairs = depth * samples**2 if kernels == "full" else 0
        cost = 2e-10 * held * nodes**3 + 5e-11 * pairs * steps**3 + 1e-3 * nodes
        error = problem.solver.rtol if problem.flow else EXACT
        error = max(error, ROUGH) if problem.flow and error_jumps(problem.program) else error
        return Yes(cost, 8.0 * (held * nodes**2 + 2 * pairs * steps**2), error)

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        from numerics.solver.linear import solve as linear

        return MethodResult(*linear.solved(problem, keep, progress))


class InfiniteDepthMethod:
    """The limit of infinite depth, in layer time."""

    name = "layers"
    responses = True

    def fits(self, problem: Problem, keep: KeptKernels) -> Yes | No:
        if (no := _attributes(problem)) is not None:
            return no
        if problem.depth is not None:
            accepted = "a program of symbolic depth" if problem.experiment is None else '"L"'
            return _no(problem, "network.depth", "the limit is that of symbolic depth", accepted)
        from numerics.solver.depth import LAYERS, require_limit

        try:
            require_limit(problem)
        except ValueError as reason:
            return _no(problem, "network.depth", reason, "an integer >= 1")
        steps, samples = len(problem.times), max(problem.sample_count, 1)
        return Yes(
            1e-6 * LAYERS**2 * (samples * steps) ** 2 + 5, 64.0 * LAYERS**2 * (samples * steps) ** 2, 1e-6
        )

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        from numerics.solver.depth import LAYERS, solve_depth_limit

        found = solve_depth_limit(problem, layers=LAYERS, progress=progress)
        notes = {
            "method": "infinite depth, layer grid",
            "layers": LAYERS,
            "layer_grid_error": found.errors.get("train_loss"),
            "layers_at": found.nodes,
        }
        return MethodResult({k: x for k, x in found.values.items() if k in VARIABLES}, notes)


class QuadratureMethod:
    """Theories without memory: the nodes of a quadrature move by the derived equations."""

    name = "nodes"
    responses = False

    def fits(self, problem: Problem, keep: KeptKernels) -> Yes | No:
        no = _no_samples(problem) or _no_output(problem) or _attributes(problem)
        if (no := no or _sampled(problem) or _mixed(problem)) is not None:
            return no
        from numerics.solver.nodes import QUADRATURE, forecast, moving
        from numerics.solver.paths.problem import kept

        try:
            moving(problem.theory)
        except NotApplicable as reason:
            return _no(problem, "network.depth", reason, "one hidden layer")
        if problem.flow and error_jumps(problem.program):
            jumps = "the error jumps in the output, and samples that rest there stop the integrator"
            return _no(problem, "training.objective", jumps, '"square"')
        accuracy = problem.solver.accuracy or QUADRATURE
        try:
            patience = QUICK if problem.solver.method == "auto" else np.inf
            found = forecast(problem, accuracy, kernels=kept(problem, keep) != "none", patience=patience)
        except (Unserved, NotConverged, Diverged) as reason:
            said = _no(problem, "network.activation", reason, "another activation or time")
            return replace(said, diverged=reason) if isinstance(reason, Diverged) else said
        known = "measured with few" if found.tried else "at least, nothing was tried"
        note = f"{found.nodes} nodes, {found.rule}; {known}; no responses"
        return Yes(found.cost, found.memory, found.error, note, accuracy)

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        from numerics.solver.nodes import QUADRATURE, solve_nodes
        from numerics.solver.paths.problem import ACCURACY, kept

        found = solve_nodes(
            problem,
            accuracy=problem.solver.accuracy or QUADRATURE,
            seed=problem.solver.seed,
            kernels=kept(problem, keep) != "none",
            most=_most_nodes(problem),
        )
        notes = {
            "quadrature": found.rule,
            "nodes": found.nodes,
            "error_estimate": found.scalar_error,
            "kernel_error": found.kernel_error,
            "status": "ok"
            if found.scalar_error <= (problem.solver.accuracy or ACCURACY)
            else "not converged",
        }
        return _solved(problem, found.values, keep, notes)


class LazyMethod:
    """Theories at gamma0 = 0: Gaussian fields that do not move."""

    name = "lazy"
    responses = False

    def fits(self, problem: Problem, keep: KeptKernels) -> Yes | No:
        no = _no_samples(problem) or _no_output(problem) or _attributes(problem)
        if (no := no or _sampled(problem) or _mixed(problem)) is not None:
            return no
        from derive.reduce.stationary import static
        from numerics.solver.lazy import coupling_of

        try:
            end = static(problem.theory)
        except NotApplicable as reason:
            return _no(problem, "network.gamma0", reason, "a theory that rests at gamma0 = 0")
        if end.output is None:
            lacking = "the theory has no tangent kernel, by which outputs move at gamma0 = 0"
            return _no(problem, "network.gamma0", lacking, "another method")
        if problem.memory:
            moving = "the memory of its training rule is a table over times, and fields must not move"
            return No("program", problem.program.name, moving, "another method")
        if any(_names_time(e.rhs) for e in problem.theory.observables):
            changing = "its tangent kernel has a rate that changes in time, and the limit has one kernel"
            return No("program", problem.program.name, changing, "another method")
        if len(problem.theory.scalars) > 2:
            more = "the theory has other numbers than outputs and errors"
            return _no(problem, "network.gamma0", more, "another method")
        if problem.flow and not _affine(problem):
            linear = "the flow at gamma0 = 0 is solved where the error is linear in the output"
            return _no(problem, "training.objective", linear, '"square"')
        if problem.flow and coupling_of(end)[0].has(t, s):
            changing = "the flow at gamma0 = 0 is solved for a constant rate without momentum"
            return No("program", problem.program.name, changing, "another method")
        moved = _moved(problem)
        if moved > FAR:
            return _no(problem, "network.gamma0", f"fields move, by about {moved:.1g}", "a smaller gamma0")
        samples = problem.sample_count
        cost = 2e-3 * (problem.depth or 1) * samples**2 + 1e-5 * len(problem.times) * samples**2
        memory = 8.0 * samples**2 * len(problem.times) ** 2
        power = _power(problem)
        return Yes(cost, memory, moved**power, f"its error is of order gamma0^{power}; no responses")

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        from numerics.solver.lazy import solve_lazy

        clock: dict[str, Any] = {"times": problem.times} if problem.flow else {"steps": len(problem.times)}
        found = solve_lazy(problem.theory, values=problem.values, data=problem.arrays, **clock)
        count = len(problem.times)
        values: dict[MemberKey, Array] = {(name, ()): x for name, x in found.scalars.items()}
        values |= {
            n: np.broadcast_to(x[..., None, None], (*x.shape, count, count)) for n, x in found.kernels.items()
        }
        moved = _moved(problem)
        if ERROR in found.scalars:
            moved = max(moved, _moved_by(problem, found.scalars[ERROR], found.kernel("K")))
        moved *= found.tails**0.5
        notes = {
            "status": "ok" if moved <= FAR else "not converged",
            "error_estimate": moved ** _power(problem),
        }
        return _solved(problem, values, keep, notes)


class PathsMethod:
    """Any theory: sampled paths of the single-site processes."""

    name = "paths"
    responses = True

    def fits(self, problem: Problem, keep: KeptKernels) -> Yes | No:
        if (no := _no_samples(problem)) is not None:
            return no
        if problem.flow and error_jumps(problem.program):
            jumps = "the error jumps in the output, and steps of sampled paths go over it unseen"
            return _no(problem, "training.objective", jumps, '"square", "logistic", or rule = "gd"')
        from numerics.solver.paths.problem import ACCURACY, forecast, kept

        try:
            cost, memory, error = forecast(problem, kept(problem, keep))
        except (Unserved, NotApplicable) as reason:
            return _no(problem, "network.activation", reason, "another network or rule")
        lacks = f"; there are {memory_there() / 2**30:.0f} GiB" if memory > memory_there() else ""
        given = problem.solver.samples is not None
        note = (
            f"with {problem.solver.samples} samples"
            if given
            else "a search for samples may take three times that"
        )
        linear = not problem.flow and isinstance(problem.linear, LinearForm)
        if linear and not given and isinstance(MarchMethod().fits(problem, keep), No):
            return Yes(cost, memory, EXACT, f"second moments over the paths are exact{lacks}")
        return Yes(cost, memory, max(error, SAMPLED), note + lacks, error if given else ACCURACY)

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        from numerics.solver.paths.problem import kept, solve_paths

        keep = kept(problem, keep)
        values, notes = solve_paths(problem, keep, progress)
        return MethodResult(values, {"method": self.name, "kernels": keep, **notes})


class RestMethod:
    """Weight decay at long times: the outputs beside the ridge regression that they come to rest at."""

    name = "rest"
    responses = True

    def fits(self, problem: Problem, keep: KeptKernels) -> Yes | No:
        if (no := _attributes(problem)) is not None:
            return no
        if problem.flow or not problem.seen:
            steps = "the rest points are those of steps on given samples"
            return _no(problem, "training.rule", steps, 'a rule in steps, such as "gd"')
        from derive.reduce.ridge import representer
        from numerics.solver.rest import FEWEST

        try:
            representer(problem.theory)
        except NotApplicable as reason:
            return _no(problem, "training.weight_decay", reason, "a homogeneous network")
        if (count := len(problem.times)) < FEWEST:
            short = f"whether outputs rest cannot be told from {count} times"
            return _no(problem, "training.steps", short, f"at least {FEWEST} times")
        said = PathsMethod().fits(problem, keep)
        return said if isinstance(said, No) else Yes(said.cost, said.memory, said.error, "ridge at the end")

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        from numerics.solver.rest import at_rest

        found = at_rest(
            problem.program,
            steps=len(problem.times),
            values=problem.values,
            data=problem.arrays,
            seed=problem.solver.seed,
            samples=problem.solver.samples or 512,
        )
        notes = {
            "rest": found.status,
            "ridge": found.ridge,
            "distance_from_ridge": float(np.abs(found.difference).max()),
        }
        return _solved(problem, found.solved.values, keep, notes)


class ReferenceMethod:
    """The reference solver: every expression of the theory as it stands, for a few steps."""

    name = "direct"
    responses = True

    def fits(self, problem: Problem, keep: KeptKernels) -> Yes | No:
        if (no := _symbolic(problem)) is not None:
            return no
        if problem.flow or not (problem.seen or not problem.has_roles):
            return _no(
                problem,
                "training.rule",
                "takes steps on given samples",
                'a rule in steps, such as "gd", and given samples',
            )
        from numerics.solver.direct.method import estimate
        from numerics.solver.paths.problem import ACCURACY

        try:
            found = estimate(problem)
        except (Unserved, ValueError) as reason:
            return _no(problem, "network.activation", reason, "another network or rule")
        asked = None if found.samples == 1 else ACCURACY
        return Yes(found.seconds, found.bytes, found.error, "every expression as it stands", asked)

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        from numerics.solver.direct.method import solve_reference

        return MethodResult(*solve_reference(problem, keep))


def _solved(
    problem: Problem, found: Mapping[MemberKey, Array], keep: KeptKernels, notes: dict[str, Any]
) -> MethodResult:
    """What was found by name and layer, by the contract's names."""
    from numerics.solver.paths.problem import kept, labelled

    keep = kept(problem, keep)
    return MethodResult(labelled(problem, found, keep), {"kernels": keep, **notes})


# -- what the estimates are made of --------------------------------------------------------------------------


def _most_nodes(problem: Problem) -> int:
    """In up to three dimensions nodes are cheap, and more of them reach the accuracy for kernels too."""
    return 2**20 if _rank(problem) + problem.outputs <= 3 else 2**18


def _rank(problem: Problem) -> int:
    """How many directions the data have: the rank of K_x(mu, a, .., alpha, b, ..) between its halves."""
    kernel = problem.arrays.get(INPUT_KERNEL, np.ones((1, 1)))
    return int(np.linalg.matrix_rank(kernel.reshape(prod(kernel.shape[: kernel.ndim // 2]), -1)))


def _names_time(e: Expr) -> bool:
    """Return whether a time stands in an expression outside of the arguments of functions."""
    return bool(e.replace(lambda x: isinstance(x, AppliedUndef), lambda _: Dummy()).has(t, s))


def moving_data(problem: Problem) -> No | None:
    """Of methods that read data once: constants and inputs that change from step to step."""
    program = problem.program
    updates = (u for w in program.trained() for u in w.update.terms)
    reason = _moving_in(problem, [*(d.rhs for d in program.definitions), *(u.coefficient for u in updates)])
    return No("program", program.name, reason, "another method") if reason else None


def _moving_in(problem: Problem, said: Iterable[Expr]) -> str:
    """Return which data in these expressions change from step to step, as a reason, or an empty string."""
    names = {*problem.arrays, *(x.name for x in problem.program.given)}
    found = {str(a.func) for e in said for a in e.atoms(AppliedUndef) if a.has(t) and str(a.func) in names}
    return f"{', '.join(problem.told(sorted(found)))} changes from step to step" if found else ""


def _mixed(problem: Problem) -> No | None:
    """Of methods that compute an error from its own output, and from data that stay the same."""
    if (no := moving_data(problem)) is not None:
        return no
    names = {e.name for e in problem.theory.scalars}
    totals = [total for e in problem.theory.scalars for total in e.rhs.atoms(Sum)]
    if not any(str(x.func) in names for total in totals for x in total.function.atoms(AppliedUndef)):
        return None
    mixed = "the error of an output depends on all outputs"
    return _no(problem, "training.objective", mixed, '"square", "logistic" or "hinge"')


def _affine(problem: Problem) -> bool:
    """Is the error affine in the output?"""
    for e in problem.theory.scalars:
        for x in e.rhs.atoms(AppliedUndef):
            if str(x.func) == OUTPUT:
                y = Dummy()
                if e.rhs.xreplace({x: y}).diff(y, 2) != 0:
                    return False
    return True


def _power(problem: Problem) -> int:
    """With which power of what fields move the limit is off: kernels are even in gamma0, with a kink in its
    absolute value.
    """
    return 1 if slope_jumps(problem.program) else 2


def _moved_by(problem: Problem, error: Array, tangent: Array) -> float:
    """How far errors move fields, over their size: ``gamma0 rate sum_t,mu |Delta_mu(t)| max K^(1/2)``.

    An update moves h^l by ``gamma0 rate Delta Phi^(l-1) g^l``, whose variance over that of h^l is
    ``Phi^(l-1) G^l``, a part of the tangent kernel.
    """
    rates = first_shares(problem)
    sizes = np.abs(error[:, : problem.seen]).reshape(len(error), -1).sum(axis=1)
    between = np.diff(problem.times) * (sizes[1:] + sizes[:-1]) / 2
    span = between if problem.flow else sizes[:-1]
    return float(problem.numbers.get(gamma0, 1.0) * (rates @ span) * np.sqrt(np.abs(tangent).max()))


def _moved(problem: Problem) -> float:
    """The same beforehand: updates of all times at the size of the first, kernels that of the data."""
    strength = problem.numbers.get(gamma0, 1.0)
    rates = first_shares(problem)
    span = float(np.abs(rates) @ np.diff(problem.times)) * problem.seen
    y = problem.arrays.get(TARGETS, np.ones(1))[: problem.seen]
    kernel = problem.arrays.get(INPUT_KERNEL, np.ones((1, 1)))
    size = float(np.abs(y).mean()) * problem.outputs * max(1.0, float(np.abs(kernel).max()))
    return strength * span * size * (problem.depth or 1)
