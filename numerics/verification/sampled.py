"""What must hold of the solution of a nonlinear network, which is an average over sampled paths.

Independent ways to the same numbers, on an opening of the experiment: the theory evaluated as it is written;
derivatives along the paths by Stein's lemma; the lazy limit; of a flow, descent in small steps.  Numbers with
standard errors are judged together by Sidak's bound with Student's t.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Expr, Float, Function, Symbol

from derive.calculus.averages import Average
from derive.errors import NotApplicable
from derive.program import IndexRange, s, t
from derive.theory import OrderParameter, Theory
from numerics.errors import Unserved
from numerics.experiment import Experiment
from numerics.experiment.numbers import numbers_of, theory_at_depth
from numerics.solver import solve
from numerics.solver.direct import Evaluated, evaluate
from numerics.solver.lazy import solve_lazy
from numerics.solver.paths import Solved, solve_particles
from numerics.stats import bound
from numerics.verification.flows import halfway
from numerics.verification.identities import LETTERS, arrays, blocks, covariance, descent, opening
from numerics.verification.networks import LEVEL
from numerics.verification.report import EPS, Check

Array = NDArray[np.float64]

SEED = 1
REPLICAS = 16

READ_SAMPLES, READ_STEPS, READ_PATHS = 2, 2, 1024
"""The opening on which every expression of the theory is evaluated as it is written, which is slow."""

SAMPLES, STEPS, PATHS = 3, 4, 1024
"""The opening on which responses are checked, and the lazy limit."""

LAZY = (0.1, 0.2)
"""Values of gamma0 from which the lazy limit is extrapolated, in powers of gamma0 squared."""

DESCENT = (16, 32)
"""Steps of descent up to the time at which a flow is compared."""


def checks(experiment: Experiment, theory: xr.Dataset) -> list[Check]:
    """All checks of the solution."""
    return [
        *start(experiment, theory),
        *causality(experiment, theory),
        *correlations(theory),
        *reading(experiment),
        *responses(experiment),
        *lazy(experiment),
        *settled(experiment, theory),
        *small_steps(experiment, theory),
    ]


# -- what holds exactly --------------------------------------------------------------------------------


def start(experiment: Experiment, theory: xr.Dataset) -> list[Check]:
    """Before anything is learned the loss is that of f = 0, within the standard error."""
    squares = experiment.targets.reshape(len(experiment.targets), -1) ** 2
    expected = float(squares.sum(axis=1).mean())
    value, stderr = float(theory.train_loss[0]), float(theory.train_loss_stderr[0])
    allowed = EPS * squares.size * expected + bound(1, LEVEL, theory.attrs["replicas"] - 1) * stderr
    name = "loss at the start = mean of y^2"
    return [Check("solution", name, value, expected, allowed, "standard error", error=stderr)]


def causality(experiment: Experiment, theory: xr.Dataset) -> list[Check]:
    """Nothing answers what comes later.  Results of flows have no responses."""
    strict = {q.name: q.causal == "strict" for q in theory_at_depth(experiment).order_parameters}
    found = [x for x in ("A", "B") if x in theory and x in strict]
    worst = 0.0
    for name in found:
        values = theory[name].isel(layer=slice(0, -1)).transpose(..., "time", "time_").to_numpy()
        worst = max(worst, float(np.abs(np.triu(values, 0 if strict[name] else 1)).max()))
    if not found:
        return []
    basis = f"exact zeros, {len(found)} kinds"
    return [Check("solution", "responses to what is to come", worst, 0, 0, basis)]


def correlations(theory: xr.Dataset) -> list[Check]:
    """Averages of products over paths are covariances: symmetric and positive semidefinite."""
    return [
        check
        for name, letter in (("Phi", "Phi^l"), ("G", LETTERS["G"]))
        if name in theory
        for check in covariance(letter, blocks(theory[name]))
    ]


# -- other ways to the same numbers --------------------------------------------------------------------


def reading(experiment: Experiment) -> list[Check]:
    """The march of paths gives what the theory's expressions give, each evaluated as it is written."""
    small = opening(experiment, READ_SAMPLES, READ_STEPS)
    one = _particles(small, READ_PATHS)
    other = evaluate(
        theory_at_depth(small),
        steps=len(small.times),
        values=_numbers(small),
        data=arrays(small),
        method="particles",
        samples=READ_PATHS,
        replicas=REPLICAS,
        seed=SEED + 1,
    )
    names = {n for n, _ in other.values}
    return [_worst(f"paths = theory as written, {len(small.times)} times", one, other, names)]


def responses(experiment: Experiment) -> list[Check]:
    """Responses from derivatives along the paths obey Stein's lemma, which has none.

    ``<X(t) u(s)>`` is the sum of ``<dX(t)/du(s')> <u(s') u(s)>``.  Where a slope jumps the responses
    themselves come from the lemma, and there is nothing to check.
    """
    small = opening(experiment, SAMPLES, STEPS)
    theory = theory_at_depth(small)
    found = [q for q in theory.order_parameters if q.kind == "response"]
    pairs = [_lemma(q) for q in found]
    more = tuple(x for pair in pairs for x in pair)
    if not found:
        return []
    extended = replace(theory, order_parameters=(*theory.order_parameters, *more))
    try:
        run = _particles(small, PATHS, theory=extended, responses="jacobian")
    except ValueError:
        return []
    gap = []
    for q, (both, own) in zip(found, pairs, strict=True):
        response, product, covariance = (run.runs[_place(x)] for x in (q, both, own))
        entries = int(np.sqrt(covariance[0].size)) // len(small.times)
        shape = (REPLICAS, -1, entries, *response.shape[-2:])
        C = covariance.reshape(shape)
        factor = float(_factor(q).xreplace(_symbols(small)))
        expected = np.einsum("riats,rabsw->ribtw", response.reshape(shape), C) / factor
        gap.append((product.reshape(shape) - expected).reshape(REPLICAS, -1))
    joined = np.concatenate(gap, axis=1)
    name = "derivatives along paths: Stein's lemma"
    return [_judged(name, joined.mean(axis=0), [joined.var(axis=0, ddof=1) / REPLICAS])]


def _lemma(q: OrderParameter) -> tuple[OrderParameter, OrderParameter]:
    """``<X(t) u(s)>`` for a response of X to u, and ``<u(t) u(s)>``, as order parameters."""
    (average,) = q.definition.atoms(Average)
    body, source = average.body.body, average.body.source
    layer = [x for x in source.args if x.is_Integer]
    indices = [x for x in source.args if isinstance(x, Symbol) and x != s]
    twins = {x: Symbol(f"{x.name}2", integer=True) for x in indices}
    ranges = [r for r in q.ranges if r.index in twins]
    twin = [IndexRange(twins[r.index], r.lower, r.upper) for r in ranges]
    both = Function(f"lemma_{q.name}")(*q.symbol.args)
    own = Function(f"source_{q.name}")(*layer, *indices, *twins.values(), t, s)
    square = source.xreplace({s: t}) * source.xreplace(twins)
    return (
        OrderParameter(both, Average(body * source), "correlation", q.ranges),
        OrderParameter(own, Average(square), "correlation", (*ranges, *twin)),
    )


def _factor(q: OrderParameter) -> Expr:
    (average,) = q.definition.atoms(Average)
    return q.definition / average


def _place(q: OrderParameter) -> tuple[str, tuple[int, ...]]:
    return q.name, tuple(int(x) for x in q.symbol.args if x.is_Integer)


def lazy(experiment: Experiment) -> list[Check]:
    """Without feature learning the errors are those of the derived lazy theory, which has no paths.

    Flows are left out, and rules with which fields move at gamma0 = 0 (decay, noise).
    """
    if experiment.training.rule == "flow":
        return []
    small = opening(experiment, SAMPLES, STEPS)
    theory, steps = theory_at_depth(small), len(small.times)
    try:
        exact = solve_lazy(theory, steps=steps, values=_numbers(small), data=arrays(small)).scalars["Delta"]
    except (NotApplicable, Unserved):
        return []
    found = [
        _particles(small.replace({"network.gamma0": g}), PATHS, seed=SEED + k).runs["Delta", ()]
        for k, g in enumerate(LAZY)
    ]
    weights = np.linalg.inv(np.array([[1.0, g**2] for g in LAZY]))[0]
    gap = [x.reshape(REPLICAS, -1) - exact.reshape(1, -1) for x in found]
    value = sum(w * x.mean(axis=0) for w, x in zip(weights, gap, strict=True))
    parts = [w**2 * x.var(axis=0, ddof=1) / REPLICAS for w, x in zip(weights, gap, strict=True)]
    return [_judged("lazy limit: errors without paths", value, parts)]


def settled(experiment: Experiment, theory: xr.Dataset) -> list[Check]:
    """The solver's own estimate of what its grid misses along a flow."""
    if experiment.training.rule != "flow":
        return []
    estimate, basis = float(theory.attrs["grid_error"]), f"{theory.attrs['time_nodes']} nodes"
    allowed = max(experiment.solver.rtol, float(theory.attrs["accuracy"]))
    return [Check("solution", "flow: error by refinement", estimate, 0, allowed, basis, upper=True)]


def small_steps(experiment: Experiment, theory: xr.Dataset) -> list[Check]:
    """The training loss of a flow halfway down, from descent in steps of two lengths, extrapolated to none.

    Descent is another program with another theory.  Allowed is what the shorter steps changed, and what all
    standard errors together let expect.
    """
    if experiment.training.rule != "flow":
        return []
    end = halfway(theory)
    runs = [solve(descent(experiment, end, n), kernels="none") for n in DESCENT]
    ends = {"training.time": end, "training.points": 3, "training.grid": "uniform"}
    runs.append(solve(experiment.replace(ends), kernels="none"))
    losses = [float(x.train_loss[-1]) for x in runs]
    errors = [float(x.train_loss_stderr[-1]) for x in runs]
    value = 2 * losses[1] - losses[0]
    stderr = float(np.sqrt(4 * errors[1] ** 2 + errors[0] ** 2 + errors[2] ** 2))
    allowed = (
        abs(value - losses[1]) + bound(1, LEVEL, min(int(x.attrs["replicas"]) for x in runs) - 1) * stderr
    )
    name = f"train loss at t = {end:.4g}, from descent"
    basis = f"{DESCENT[0]}, {DESCENT[1]} steps, -> 0"
    return [Check("solution", name, value, losses[2], allowed, basis, error=stderr)]


# -- solutions of an opening, and how they are compared ------------------------------------------------


def _numbers(small: Experiment) -> dict[str, float | int]:
    return {str(k): int(v) if float(v).is_integer() else v for k, v in numbers_of(small).items()}


def _symbols(small: Experiment) -> dict[Symbol, Float]:
    return {k: Float(v) for k, v in numbers_of(small).items()}


def _particles(
    small: Experiment, samples: int, seed: int = SEED, theory: Theory | None = None, **options: object
) -> Solved:
    run: Callable[..., Solved] = solve_particles
    return run(
        theory or theory_at_depth(small),
        steps=len(small.times),
        values=_numbers(small),
        data=arrays(small),
        samples=samples,
        replicas=REPLICAS,
        seed=seed,
        **options,
    )


def _worst(name: str, one: Evaluated, other: Evaluated, names: set[str]) -> Check:
    """The largest difference of all numbers of these names, in joint standard errors."""
    gap, parts = [], []
    for place in one.values:
        if place[0] in names and place in other.values:
            gap.append((one.values[place] - other.values[place]).ravel())
            parts.append([x.errors[place].ravel() ** 2 for x in (one, other)])
    return _judged(name, np.concatenate(gap), [np.concatenate(x) for x in zip(*parts, strict=True)])


def _judged(name: str, gap: Array, parts: list[Array]) -> Check:
    """The largest of many differences that must vanish, given the variances of what they are made of."""
    variance = np.sum(parts, axis=0)
    spread = np.sum([x**2 / (REPLICAS - 1) for x in parts], axis=0)
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
