"""The reference solver as a method: what it costs, how many paths it takes, and the variables of a result.

:func:`numerics.solver.direct.evaluate` reads every expression of a theory as it stands.  It serves theories
that no other method takes, at a cost that grows steeply with steps and samples.
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
from numerics.results import STDERR, dimensions, named
from numerics.results.authored import authored_variables, numbers_of_author
from numerics.results.by_author import averaged_by_author
from numerics.solver.by_role import Replicas, kept, reduced
from numerics.solver.direct.evaluation import Evaluated, evaluate
from numerics.solver.direct.layout import Layout
from numerics.solver.method import ACCURACY, BRIEF, POOR, SLACK, WATCHED, KeptKernels

Array = NDArray[np.float64]

REPLICAS = 8
"""Independent solutions, whose spread gives the standard errors."""

FIRST, USUAL, MOST = 2**10, 2**14, 2**17
"""Paths of a replica to begin with, and the most that are tried without and with a ``solver.accuracy``."""

BIAS = 4.0
"""The bias, relative to the largest value, times the paths of a replica, as for sampled paths, measured."""

LINEAR = 2.5e-4, 1.2e-5
"""Seconds of an entry of a linear theory, and of each term of its sums over the past, measured."""

ENTRY, TERM, NUMBER = 1.5e-4, 5e-5, 5e-9
"""Seconds of an entry of a replica, of each term of its sums over the past, and of each number of an array,
measured."""


START = 0.5
"""Seconds until the expressions are compiled, measured."""


@dataclass(frozen=True)
class Size:
    """How many numbers of each kind a theory has at the steps of a problem.

    Attributes:
    - ``entries``: numbers, order parameters and observables at all times.
    - ``fields``: fields at all times.
    - ``terms``: terms of the equations of all fields, with their sums over the past.
    - ``sources``: Gaussian sources at all times.
    """

    entries: float
    fields: float
    terms: float
    sources: float


def size_of(problem: Problem) -> Size:
    """Return the numbers of entries, fields, terms and sources, from the ranges of indices alone.

    Raises :class:`~numerics.errors.Unserved` for a theory that the reference solver does not take.
    """
    theory = Layout(problem.discrete, {str(k): v for k, v in problem.values.items()}).theory
    steps = len(problem.times)

    def count(symbol: AppliedUndef, ranges: Iterable[IndexRange]) -> float:
        times = sum(x in TIMES for x in symbol.args)
        own = {r.index: r for r in ranges if r.index in symbol.free_symbols}
        return float(steps**times) * float(np.prod([length(r.lower, r.upper) for r in own.values()]))

    def length(lower: Any, upper: Any) -> float:
        whole = (sympify(upper) - sympify(lower)).subs(problem.values)
        return max(float(whole) + 1.0, 1.0) if whole.is_number else float(steps) / 2

    def terms(e: Any) -> float:
        found = 0.0
        for x in Add.make_args(sympify(e)):
            sums = [limit for total in x.atoms(Sum) for limit in total.limits]
            found += float(np.prod([length(*limit[1:]) for limit in sums], initial=1.0))
        return found

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
    """Seconds, bytes and error, and the paths of a replica that they are for; one path of a linear theory."""

    seconds: float
    bytes: float
    error: float
    samples: int


def estimate(problem: Problem) -> Estimate:
    """Return the estimate for the accuracy that is asked for, or for the paths that the file says."""
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
    """The most paths of a replica that are tried."""
    return USUAL if problem.solver.accuracy is None else MOST


def _error(samples: int) -> float:
    """The relative standard error of quasi-random paths, measured, or their bias if that is larger."""
    return float(max(0.25 * (samples * REPLICAS) ** -0.5, BIAS / samples))


def _doubled(first: int, last: int) -> list[int]:
    return [first * 2**k for k in range(max(0, int(np.log2(last / first))) + 1)]


def _seconds(size: Size, samples: int) -> float:
    """Every term of a field is an array, and so are its slopes by the sources of all times before."""
    slopes = 1 + size.sources / 4
    each = (size.entries + size.fields) * (ENTRY + samples * NUMBER * 4) + size.terms * (
        TERM + samples * NUMBER * slopes
    )
    return REPLICAS * (each + size.sources**2 * samples * NUMBER / 2)


def _bytes(size: Size, samples: int) -> float:
    """Fields, their slopes, and the sources of one replica; entries of all replicas."""
    return (
        8.0 * samples * (2 * size.sources + size.fields * (1 + size.sources / 2))
        + 64.0 * REPLICAS * size.entries
    )


def solve_reference(problem: Problem, keep: KeptKernels) -> tuple[dict[str, Array], dict[str, Any]]:
    """Return variables with standard errors, and what to report beside them.

    Paths are doubled until the largest standard error of losses, errors and numbers of the program meets
    ``solver.accuracy``, within a few times the estimated cost; ``solver.samples`` are taken as they are.
    """
    keep, expected = kept(problem, keep), estimate(problem)
    require_memory(
        expected.bytes,
        problem.said("training.steps"),
        "for paths of the reference solver",
        "fewer steps or samples",
    )
    asked, given = problem.solver.accuracy or ACCURACY, problem.solver.samples
    size, spent, samples = size_of(problem), 0.0, given or FIRST
    while True:
        found = evaluate(
            problem.discrete,
            steps=len(problem.times),
            values=problem.values,
            data=problem.data,
            samples=samples,
            replicas=REPLICAS,
            seed=problem.solver.seed,
        )
        values, reached = _variables(problem, found, keep)
        if not found.runs:
            return values, {"kernels": keep}
        reached = max(reached, BIAS / samples)
        spent += _seconds(size, samples)
        more = spent + _seconds(size, 2 * samples)
        if (
            reached <= asked
            or given
            or 2 * samples > _most(problem)
            or more > max(SLACK * expected.seconds, BRIEF)
        ):
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


def _variables(problem: Problem, found: Evaluated, keep: KeptKernels) -> tuple[dict[str, Array], float]:
    """Means over replicas with standard errors, and the largest error of what an accuracy is about."""
    runs = found.runs or {place: x[None] for place, x in found.values.items()}
    values = _by_role(problem, runs, keep) if problem.has_roles else averaged_by_author(problem, runs)
    if not found.runs:
        return {name: x for name, x in values.items() if not name.endswith(STDERR)}, 0.0
    scalars = {*problem.program.scalars, *WATCHED}
    watched = [name for name in values if name in scalars and name + STDERR in values]
    shares = [np.max(values[n + STDERR]) / (np.max(np.abs(values[n])) or 1.0) for n in watched]
    return values, float(max(shares, default=0.0))


def _by_role(problem: Problem, runs: Mapping[MemberKey, Array], keep: KeptKernels) -> dict[str, Array]:
    """The contract's variables; losses are those of the mean errors and outputs."""
    replicas = Replicas()
    for k in range(len(next(iter(runs.values())))):
        one = {place: x[k] for place, x in runs.items()}
        replicas.kernels.add(reduced(problem, one, keep))
        replicas.numbers.add(numbers_of_author(problem, one))
        replicas.scalars.append(np.stack([one[ERROR, ()], one[OUTPUT, ()]]))
    values, nonlinear, places = replicas.averaged(problem), problem.by_sample, problem.positions
    own = authored_variables(problem)
    unclear = [x for x in RESPONSES if x in values and np.isnan(_of_layers(values[x], problem)).any()]
    values = {name: x for name, x in values.items() if named(name) not in unclear}
    return {
        k: x
        for k, x in values.items()
        if named(k) in own or len(dimensions(k, x.ndim, nonlinear, places)) == x.ndim
    }


def _of_layers(response: Array, problem: Problem) -> Array:
    """A response at the layers that the theory has it at."""
    return response[: max((problem.depth or 1) - 1, 1)]
