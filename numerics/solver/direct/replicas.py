"""Cost, number of paths, and variables of a result of the reference solver.

:func:`numerics.solver.direct.evaluate` evaluates every expression of a theory. It can solve theories that all
other methods refuse, at a cost that grows steeply with steps and samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Add, Sum, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import IndexRange
from derive.errors import NotApplicable
from numerics.errors import require_memory
from numerics.experiment.problem import Problem
from numerics.lowering.indices import TIMES
from numerics.names import ERROR, OUTPUT, RESPONSES, MemberKey
from numerics.results import STDERR, base_name, dimensions
from numerics.results.program_names import authored_variables, numbers_of_author
from numerics.results.without_roles import averaged_by_author
from numerics.solver.by_role import Replicas, kept, reduced
from numerics.solver.direct.evaluation import Evaluated, evaluate
from numerics.solver.direct.layout import Layout
from numerics.solver.method import ACCURACY, BRIEF, POOR, SLACK, WATCHED, KeptKernels

Array = NDArray[np.float64]

REPLICAS = 8
"""Number of independent solutions, from whose scatter standard errors follow."""

FIRST, USUAL, MOST = 2**10, 2**14, 2**17
"""Numbers of paths of a replica: the first that is tried, the largest without ``solver.accuracy``, and with
it."""

BIAS = 4.0
"""Measured bias of sampled paths, relative to the largest value, times the number of paths of a replica."""

LINEAR = 2.5e-4, 1.2e-5
"""Measured seconds for a linear theory.

The first is for each value of an order parameter, scalar or field, the second for each pair of a term of a
field, with those of its sums over the past, and a source."""

ENTRY, TERM, NUMBER = 1.5e-4, 5e-5, 5e-9
"""Measured seconds of a replica.

They are for each value of an order parameter, scalar or field, for each term of a field, with those of its
sums over the past, and for each element of an array over the paths."""


START = 0.5
"""Measured seconds to compile the expressions."""


@dataclass(frozen=True)
class Size:
    """Number of values of each kind at the steps of a problem.

    Attributes
    ----------
    entries : float
        Order parameters at all times, and terms of the equations of scalars and observables.
    fields : float
        Fields at all times.
    terms : float
        Terms of the equations of all fields, with those of their sums over the past.
    sources : float
        Gaussian sources at all times.
    """

    entries: float
    fields: float
    terms: float
    sources: float


def size_of(problem: Problem) -> Size:
    """Return the numbers of entries, fields, terms and sources of a problem, from the ranges of indices.

    Raises ValueError if the depth is not an integer.
    """
    theory = Layout(problem.discrete, {str(k): v for k, v in problem.values.items()}).theory
    steps = len(problem.times)

    def count(symbol: AppliedUndef, ranges: Iterable[IndexRange]) -> float:
        times = sum(x in TIMES for x in symbol.args)
        by_index = {r.index: r for r in ranges if r.index in symbol.free_symbols}
        return float(steps**times) * float(np.prod([length(r.lower, r.upper) for r in by_index.values()]))

    def length(lower: Any, upper: Any) -> float:
        whole = (sympify(upper) - sympify(lower)).subs(problem.values)
        return max(float(whole) + 1.0, 1.0) if whole.is_number else float(steps) / 2

    def terms(e: Any) -> float:
        number = 0.0
        for x in Add.make_args(sympify(e)):
            sums = [limit for total in x.atoms(Sum) for limit in total.limits]
            number += float(np.prod([length(*limit[1:]) for limit in sums], initial=1.0))
        return number

    numbers = (*theory.scalars, *theory.observables)
    fields = [(count(e.lhs, e.ranges), terms(e.rhs)) for e in theory.equations]
    entries = [(count(e.lhs, e.ranges), terms(e.rhs)) for e in numbers]
    entries += [(count(q.symbol, q.ranges), 1.0) for q in theory.order_parameters]
    return Size(
        sum(n * m for n, m in entries),
        sum(n for n, _ in fields),
        sum(n * m for n, m in fields),
        sum(count(u.symbol, u.ranges) for u in theory.sources),
    )


@dataclass(frozen=True)
class Estimate:
    """Estimated seconds, bytes and error, and the number of paths of a replica; 1 for a linear theory."""

    seconds: float
    bytes: float
    error: float
    samples: int


def estimate(problem: Problem) -> Estimate:
    """Return the estimated cost for ``solver.accuracy``, or for ``solver.samples`` if that is given."""
    size = size_of(problem)
    if not isinstance(problem.linear, NotApplicable):
        work = (size.entries + size.fields) * LINEAR[0] + size.terms * size.sources * LINEAR[1]
        return Estimate(START + work, 8.0 * size.fields * size.sources + 64.0 * size.entries, 1e-12, 1)
    accuracy, samples = problem.solver.accuracy or ACCURACY, problem.solver.samples or FIRST
    while problem.solver.samples is None and samples < _most(problem) and _error(samples) > accuracy:
        samples *= 2
    search = [samples] if problem.solver.samples else _doubled(FIRST, samples)
    seconds = START + sum(_seconds(size, n) for n in search)
    return Estimate(seconds, _bytes(size, samples), _error(samples), samples)


def _most(problem: Problem) -> int:
    """Return the largest number of paths of a replica that is tried for a problem.

    It is MOST for a problem with a given ``solver.accuracy``, and USUAL for other problems.
    """
    return USUAL if problem.solver.accuracy is None else MOST


def _error(samples: int) -> float:
    """Return the expected relative error: standard error of quasi-random paths, or bias if that is larger.

    ``samples`` is the number of paths of a replica; the standard error is that of the mean over REPLICAS
    replicas.
    """
    return float(max(0.25 * (samples * REPLICAS) ** -0.5, BIAS / samples))


def _doubled(first: int, last: int) -> list[int]:
    """Return the numbers of paths that a search tries: ``first``, then doubled up to ``last``."""
    return [first * 2**k for k in range(max(0, int(np.log2(last / first))) + 1)]


def _seconds(size: Size, samples: int) -> float:
    """Return the estimated seconds of all replicas with ``samples`` paths each.

    Each term of a field costs one array over the paths, and its derivatives cost a quarter of an array for
    each source.
    """
    slopes = 1 + size.sources / 4
    each = (size.entries + size.fields) * (ENTRY + samples * NUMBER * 4) + size.terms * (
        TERM + samples * NUMBER * slopes
    )
    return REPLICAS * (each + size.sources**2 * samples * NUMBER / 2)


def _bytes(size: Size, samples: int) -> float:
    """Return the estimated bytes of fields, derivatives and sources of a replica, and of all results."""
    return (
        8.0 * samples * (2 * size.sources + size.fields * (1 + size.sources / 2))
        + 64.0 * REPLICAS * size.entries
    )


def solve_reference(problem: Problem, keep: KeptKernels) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return the variables of a result with standard errors, and the notes that become its attributes.

    ``keep`` states which kernels the result holds. A linear theory is solved exactly, without standard
    errors, and its notes hold only ``kernels``. For others the number of paths doubles until two errors are
    at most ``solver.accuracy``, within a few times the estimated cost: the estimated relative bias, and the
    largest standard error of losses, errors and scalars of the program, each relative to the largest value of
    its variable. The status is "not converged" if an error exceeds the accuracy, or without a given accuracy
    if it exceeds POOR. If ``solver.samples`` is given, it is the number of paths of each replica. Raises
    SpecError if memory does not suffice, and the errors of
    :func:`~numerics.solver.direct.evaluation.evaluate`.
    """
    keep, expected = kept(problem, keep), estimate(problem)
    require_memory(
        expected.bytes,
        problem.key_and_value("training.steps"),
        "for paths of the reference solver",
        "fewer steps or samples",
    )
    asked, given = problem.solver.accuracy or ACCURACY, problem.solver.samples
    size, spent, samples = size_of(problem), 0.0, given or FIRST
    while True:
        solution = evaluate(
            problem.discrete,
            steps=len(problem.times),
            values=problem.values,
            data=problem.data,
            samples=samples,
            replicas=REPLICAS,
            seed=problem.solver.seed,
        )
        values, reached = _variables(problem, solution, keep)
        if not solution.runs:
            return values, {"kernels": keep}
        reached = max(reached, BIAS / samples)
        spent += _seconds(size, samples)
        time_with_more = spent + _seconds(size, 2 * samples)
        is_last = 2 * samples > _most(problem) or time_with_more > max(SLACK * expected.seconds, BRIEF)
        if reached <= asked or given or is_last:
            break
        samples *= 2
    bound = asked if problem.solver.accuracy is not None else POOR
    return values, {
        "kernels": keep,
        "status": "ok" if reached <= bound else "not converged",
        "samples": samples,
        "replicas": REPLICAS,
        "accuracy": reached,
        "bias": BIAS / samples,
    }


def _variables(problem: Problem, solution: Evaluated, keep: KeptKernels) -> tuple[dict[str, Array], float]:
    """Return the variables of a result by name, means over replicas with standard errors, and one error.

    The error is the largest standard error of losses, errors and scalars of the program, each divided by the
    largest value of its variable; 0 for a solution without replicas. ``keep`` states which kernels are
    included; it has no effect for a program whose output and error are not recognised.
    """
    runs = solution.runs or {place: x[None] for place, x in solution.values.items()}
    values = _by_role(problem, runs, keep) if problem.has_roles else averaged_by_author(problem, runs)
    if not solution.runs:
        return {name: x for name, x in values.items() if not name.endswith(STDERR)}, 0.0
    scalars = {*problem.program.scalars, *WATCHED}
    watched = [name for name in values if name in scalars and name + STDERR in values]
    shares = [np.max(values[n + STDERR]) / (np.max(np.abs(values[n])) or 1.0) for n in watched]
    return values, float(max(shares, default=0.0))


def _by_role(problem: Problem, runs: Mapping[MemberKey, Array], keep: KeptKernels) -> dict[str, Array]:
    """Return the variables of a result by name for a program whose output and error are recognised.

    ``runs`` holds the values of order parameters and scalars by key (name, integer indices), with replicas on
    the first axis of each array. Losses are those of the mean errors and outputs. ``keep`` states which
    kernels are included. A response with a NaN at a layer before the last, or at a single layer, is left out,
    and so is a variable with a role for whose axes a result has no names.
    """
    replicas = Replicas()
    for k in range(len(next(iter(runs.values())))):
        one = {place: x[k] for place, x in runs.items()}
        replicas.kernels.add(reduced(problem, one, keep))
        replicas.numbers.add(numbers_of_author(problem, one))
        replicas.scalars.append(np.stack([one[ERROR, ()], one[OUTPUT, ()]]))
    values, nonlinear, places = replicas.averaged(problem), problem.by_sample, problem.positions
    authored = authored_variables(problem)
    undefined = [x for x in RESPONSES if x in values and np.isnan(_of_layers(values[x], problem)).any()]
    values = {name: x for name, x in values.items() if base_name(name) not in undefined}
    return {
        k: x
        for k, x in values.items()
        if base_name(k) in authored or len(dimensions(k, x.ndim, nonlinear, places)) == x.ndim
    }


def _of_layers(response: Array, problem: Problem) -> Array:
    """Return a response, layers along the first axis, without the last layer; a single layer is kept.

    No layer reads the last one, so that its response A is undefined.
    """
    return response[: max((problem.depth or 1) - 1, 1)]
