"""Independent solutions of a nonlinear network, compared with its solution by sampled paths.

On the first steps of training with a few samples these are: the direct evaluation of the theory's
expressions; Stein's lemma for derivatives along the paths; and the lazy limit. The numbers of each
check are tested together by Sidak's bound with Student's t.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
from numpy.typing import NDArray
from sympy import Float, Function, Symbol

from derive.calculus.averages import Average, Response
from derive.errors import NotApplicable
from derive.program import IndexRange, s, t
from derive.theory import OrderParameter
from numerics.errors import Unserved
from numerics.experiment.problem import Problem
from numerics.experiment.theory import slope_jumps
from numerics.lowering.indices import node_of
from numerics.names import ERROR
from numerics.solver.direct.evaluation import Evaluated, evaluate
from numerics.solver.lazy.method import LazyMethod
from numerics.solver.lazy.solve import solve_lazy
from numerics.solver.method import Refusal, estimate_or_refusal
from numerics.stats import bound
from numerics.verification.report import EPS, LEVEL, Check
from numerics.verification.smaller_problems import (
    FULL,
    Effort,
    arrays_of_theory,
    at_gamma0,
    directly_evaluated,
    smaller_problem,
    solve_by_paths,
    with_solver,
)

Array = NDArray[np.float64]

SEED = 1

SAMPLES, STEPS = 3, 4
"""Samples and steps of the smaller problem on which responses and the lazy limit are checked."""

NOTHING = 1e-9
"""gamma0 at which fields do not change."""

LAZY, KINKED = (0.1, 0.2), (0.005, 0.01, 0.02)
"""Values of gamma0 from which the lazy limit is extrapolated in powers of gamma0^2; the second in powers of
``|gamma0|``, if the activation has a kink."""


def direct_evaluation(problem: Problem, effort: Effort = FULL) -> list[Check]:
    """Return a check of the solution by sampled paths against the reference solver.

    The reference solver evaluates the theory's expressions as they stand, with other random numbers. Both
    solve the first steps on a few samples. The list is empty if the reference solver does not support the
    theory, or gives NaN for a response of a discontinuous function to equal sources.
    """
    small = directly_evaluated(problem)
    one = solve_by_paths(small, effort.paths, effort.replicas, SEED)
    try:
        other = evaluate(
            small.discrete,
            steps=len(small.times),
            values=small.values,
            data=arrays_of_theory(small),
            method="particles",
            samples=effort.paths,
            replicas=effort.replicas,
            seed=SEED + 1,
        )
    except Unserved:
        return []
    if any(k in one.values and np.isnan(x).any() for k, x in other.values.items()):
        # If two sources are equal, the direct evaluation gives NaN for the response of a discontinuous
        # function to them, so that there is nothing to compare.
        return []
    return [same(f"paths vs direct evaluation, {len(small.times)} times", one, other, effort.replicas)]


def responses(problem: Problem, effort: Effort = FULL) -> list[Check]:
    """Return a check of responses, computed from derivatives along paths, by Stein's lemma.

    For a field X and a Gaussian source u, ``<X(t) u(s)>`` is the sum of ``<dX(t)/dv(s')> <v(s') u(s)>``
    over s' and over the sources v that are correlated with u: u itself, and those of other vectors that the
    same matrix multiplies. The left side needs no derivatives. The list is empty for a theory without
    responses, and where derivatives along paths are refused, for example because a slope of the activation
    jumps: responses are then computed by the lemma.
    """
    small, replicas = smaller_problem(problem, SAMPLES, STEPS), effort.replicas
    theory = small.discrete
    response_parameters = [q for q in theory.order_parameters if q.kind == "response"]
    if not response_parameters:
        return []
    products = [_product(q) for q in response_parameters]
    correlated = {frozenset((x.symbol.func, x.partner.func)) for x in theory.sources}
    pairs = {
        (i, j): _covariance(f"covariance_{i}_{j}", p, q)
        for (i, p), (j, q) in product(enumerate(response_parameters), repeat=2)
        if _response(p).body == _response(q).body
        and frozenset((_response(p).source.func, _response(q).source.func)) in correlated
    }
    extended = replace(theory, order_parameters=(*theory.order_parameters, *products, *pairs.values()))
    try:
        run = solve_by_paths(small, effort.paths, replicas, SEED, theory=extended, responses="jacobian")
    except ValueError:
        return []
    values = {x: run.runs[node_of(x.symbol)] for x in (*response_parameters, *products, *pairs.values())}
    steps = len(small.times)
    entries = [int(np.sqrt(values[pairs[i, i]][0].size)) // steps for i in range(len(response_parameters))]
    gap = []
    for j, both in enumerate(products):
        expected = np.zeros(
            (replicas, values[both][0].size // (entries[j] * steps**2), entries[j], steps, steps)
        )
        for i, p in enumerate(response_parameters):
            if (i, j) in pairs:
                response = values[p].reshape(replicas, -1, entries[i], steps, steps) / _factor(p, small)
                C = values[pairs[i, j]].reshape(replicas, entries[i], entries[j], steps, steps)
                expected += np.einsum("riats,rabsw->ribtw", response, C)
        gap.append((values[both].reshape(expected.shape) - expected).reshape(replicas, -1))
    joined = np.concatenate(gap, axis=1)
    name = "derivatives on paths vs Stein's lemma"
    return [_judged(name, joined.mean(axis=0), [joined.var(axis=0, ddof=1) / replicas], replicas)]


def _response(q: OrderParameter) -> Response:
    """Return the derivative ``dX(t)/du(s)`` whose average over units defines the response ``q``."""
    (average,) = q.definition.atoms(Average)
    derivative: Response = average.body
    return derivative


def _factor(q: OrderParameter, problem: Problem) -> float:
    """Return the number that multiplies the average over units in the definition of a response ``q``."""
    (average,) = q.definition.atoms(Average)
    return float((q.definition / average).xreplace({k: Float(v) for k, v in problem.numbers.items()}))


def _product(q: OrderParameter) -> OrderParameter:
    """Return the definition of the correlation ``<X(t) u(s)>``, for the response ``q`` of a field X to u."""
    d = _response(q)
    return OrderParameter(
        Function(f"lemma_{q.name}")(*q.symbol.args), Average(d.body * d.source), "correlation", q.ranges
    )


def _covariance(name: str, p: OrderParameter, q: OrderParameter) -> OrderParameter:
    """Return the definition of the correlation ``<v(t) u(s)>`` of two sources, with the name ``name``.

    ``p`` is a response to the source v, and ``q`` is a response to the source u.
    """
    first, second = _response(p).source, _response(q).source
    indices, others = ([x for x in u.args if isinstance(x, Symbol) and x != s] for u in (first, second))
    twins = {x: Symbol(f"{x.name}2", integer=True) for x in others}
    ranges = [r for r in p.ranges if r.index in indices]
    twin = [IndexRange(twins[r.index], r.lower, r.upper) for r in q.ranges if r.index in twins]
    symbol = Function(name)(*indices, *twins.values(), t, s)
    average = Average(first.xreplace({s: t}) * second.xreplace(twins))
    return OrderParameter(symbol, average, "correlation", (*ranges, *twin))


def lazy(problem: Problem, effort: Effort = FULL) -> list[Check]:
    """Return a check of sampled error signals, extrapolated to gamma0 = 0, against the lazy theory.

    The lazy theory is derived and needs no paths. The list is empty for flows, and if the method ``lazy``
    refuses the problem at gamma0 near 0, for example because fields move there (decay, noise), because the
    rule has momentum, because there is no tangent kernel, or because data change from step to step.
    """
    small, replicas = smaller_problem(problem, SAMPLES, STEPS), effort.replicas
    # The lazy limit has no paths, so that their number is not given to the solver.
    without_paths = with_solver(at_gamma0(small, NOTHING), "auto", samples=None)
    if isinstance(estimate_or_refusal(LazyMethod(), without_paths, "none"), Refusal):
        return []
    theory, steps = small.discrete, len(small.times)
    try:
        exact = solve_lazy(theory, steps=steps, values=small.values, data=arrays_of_theory(small)).scalars[
            ERROR
        ]
    except (NotApplicable, Unserved):
        return []
    strengths, powers = (KINKED, (0, 1, 2)) if slope_jumps(small.program) else (LAZY, (0, 2))
    at_each = [
        solve_by_paths(at_gamma0(small, g), effort.paths, replicas, SEED + k) for k, g in enumerate(strengths)
    ]
    sampled_errors = [x.runs[ERROR, ()] for x in at_each]
    weights = np.linalg.inv(np.array([[g**p for p in powers] for g in strengths]))[0]
    gap = [x.reshape(replicas, -1) - exact.reshape(1, -1) for x in sampled_errors]
    value = sum(w * x.mean(axis=0) for w, x in zip(weights, gap, strict=True))
    parts = [w**2 * x.var(axis=0, ddof=1) / replicas for w, x in zip(weights, gap, strict=True)]
    return [_judged("errors at gamma0 -> 0 vs lazy theory", value, parts, replicas)]


# -- comparison of solutions ---------------------------------------------------------------------------


def same(name: str, one: Evaluated, other: Evaluated, replicas: int) -> Check:
    """Return a check that two sampled solutions agree in all numbers that both hold.

    Shown is the difference, in units of its joint standard error over ``replicas`` replicas of each, that is
    largest relative to its limit. ``name`` is the label of the check.
    """
    gap, parts = [], []
    for place in one.values:
        if place in other.values:
            gap.append((one.values[place] - other.values[place]).ravel())
            parts.append([x.errors[place].ravel() ** 2 for x in (one, other)])
    return _judged(name, np.concatenate(gap), [np.concatenate(x) for x in zip(*parts, strict=True)], replicas)


def _judged(name: str, gap: Array, parts: list[Array], replicas: int) -> Check:
    """Return the check, with the label ``name``, that the differences ``gap`` (n,) vanish within noise.

    ``parts`` are arrays (n,) of variances; their sum is the variance of the difference, each estimated from
    ``replicas`` replicas. The worst ``|z|`` must be below Sidak's bound with Student's t; entries without
    variance must vanish to rounding.
    """
    variance = np.sum(parts, axis=0)
    spread = np.sum([x**2 / (replicas - 1) for x in parts], axis=0)
    known = variance > EPS**2
    exact = float(np.abs(gap[~known]).max(initial=0.0))
    if not known.any():
        return Check("solution", name, exact, 0, EPS * gap.size, "rounding")
    z = np.abs(gap[known]) / np.sqrt(variance[known])
    limits = np.array([bound(int(known.sum()), LEVEL, x) for x in variance[known] ** 2 / spread[known]])
    worst = int(np.argmax(z / limits))
    observed = float(z[worst]) if exact <= EPS * gap.size else np.inf
    limit = float(limits[worst])
    return Check("solution", name, observed, 0, limit, f"worst |z| of {known.sum()}", upper=True)
