"""Smaller problems and other ones, made of the problem that is verified: what checks are tried on.

An opening is the beginning of training on a few of the samples.  What comes from an experiment file is cut by
its keys, a program of one's own by its numbers, arrays and times.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Expr, ImmutableMatrix, Sum, Symbol, eye
from sympy.core.function import AppliedUndef

from derive.calculus.symbols import expression, primed
from derive.program import LinearRule, P, Program, eta, gamma0, t
from derive.program.rules import LinearSystem
from derive.theory import Theory
from numerics.experiment import Experiment
from numerics.experiment.numbers import Spectrum, spectrum_of
from numerics.experiment.problem import Problem
from numerics.experiment.rates import first_shares, is_mean
from numerics.names import INPUT_KERNEL
from numerics.results.authored import sample_index
from numerics.solver.grid import adams_weights, tables_of
from numerics.solver.paths.solve import Solved, solve_particles

Array = NDArray[np.float64]

WRITTEN, READ_MODES = (2, 2), 4
"""Samples and steps, and modes, of the opening on which every expression of the theory is evaluated as it is
written, which is slow."""

RESOLUTION = 0.5
"""Steps of descent in place of a flow, in units of its fastest lazy relaxation time."""

GENTLE = 0.25, 0.0625, 0.015625
"""The same for the expansion of a flow, well inside stability; the next where biases, say, make it faster."""

SMALL_SAMPLES = 20
"""To how many samples a problem is cut whose kernels are large, for the check of its expansion."""

MOST_TIMES = 61
LOOSEST = 0.9


@dataclass(frozen=True)
class Effort:
    """How much a verification may take; its statements stay the same, its standard errors do not.

    - ``work``: spent on networks, in units that take about a nanosecond on one core of a laptop.
    - ``smallest``: neurons, features or samples, whichever are fewest, of the smaller networks: that of
      which enough networks can be afforded, and whose tolerance is expected to be smallest.
    - ``paths``, ``replicas``: of each sampled solution of an opening.
    - ``kernel``: bytes of the largest two-time kernels that are kept, or measured, for all pairs of samples;
      beyond them their traces are.
    """

    work: float = 3e10
    smallest: tuple[int, ...] = (256, 192, 128, 96, 64, 48, 32, 16)
    paths: int = 1024
    replicas: int = 16
    kernel: float = 2e8


FULL = Effort()
"""What a verification takes if nobody says."""


def opening(problem: Problem, samples: int, steps: int) -> Problem:
    """The first steps, on a few of the samples or modes; each loss stays a mean, or a sum.

    Of a flow it is the beginning, cut into as many intervals.
    """
    steps = min(steps, len(problem.times) - 1)
    clock = steps + 1, float(problem.times[steps])
    own = problem.experiment
    if own is not None and own.data is not None and own.data.modes is not None:
        return _timed(Problem.of(own.replace({"data.modes": min(own.data.modes, READ_MODES)})), *clock)
    count = problem.seen or _sample_count(problem)
    return _on(problem, _spread(count, samples), *clock) if count else _timed(problem, *clock)


def _spread(count: int, samples: int) -> NDArray[np.intp]:
    return np.unique(np.linspace(0, count - 1, min(count, samples)).round().astype(int))


def _clock(problem: Problem, points: int, end: float) -> dict[str, Any]:
    """Keys of [training] for so many times; of a flow, up to ``end``."""
    if not problem.flow:
        return {"steps": points - 1, "times": None}
    return {"time": end, "points": points, "grid": "uniform", "times": None}


def _timed(problem: Problem, points: int, end: float) -> Problem:
    """The problem at other times."""
    if problem.experiment is not None:
        keys = _clock(problem, points, end).items()
        return Problem.of(problem.experiment.replace({f"training.{k}": v for k, v in keys}))
    times = np.linspace(0.0, end, points) if problem.flow else problem.times[:points]
    return replace(problem, times=times, output_times=None)


def _on(problem: Problem, pick: NDArray[np.intp], points: int, end: float) -> Problem:
    """The problem on some of its training samples, with at most one test point, at other times."""
    seen, experiment = problem.seen, problem.experiment
    tested = [seen] if problem.sample_count > seen else []
    if experiment is not None:
        tables = experiment.spec.model_dump(exclude_unset=True, exclude={"data"})
        tables["training"] = tables.get("training", {}) | _clock(problem, points, end)
        held = experiment.held_out
        kernel = None if held is None else held.kernel[seen : seen + 1][:, [*pick, seen]]
        own, y = experiment.kernel[np.ix_(pick, pick)], experiment.targets[pick]
        if experiment.training.entrywise and experiment.inputs is not None:
            tests = None if held is None or held.inputs is None else held.inputs[:1]
            own = experiment.inputs[pick]
            return Problem.of(Experiment.from_dict(tables, inputs=own, targets=y, test_inputs=tests))
        return Problem.of(Experiment.from_dict(tables, kernel=own, targets=y, test_kernel=kernel))
    cut = _sample_axes(problem)
    if cut is None:  # all samples, and fewer times
        return _timed(problem, points, end)
    count, axes = cut
    rows, arrays = np.array([*pick, *tested]), dict(problem.arrays)
    for name, axis in axes:
        arrays[name] = np.take(arrays[name], rows[rows < arrays[name].shape[axis]], axis=axis)
    numbers = {k: float(len(rows)) if k in (count, P) else v for k, v in problem.numbers.items()}
    left = min(seen, len(pick))
    return _timed(replace(problem, arrays=arrays, numbers=numbers, seen=left), points, end)


def _sample_count(problem: Problem) -> int:
    """The number of samples of a program that calls it by a symbol of its own; 0 if none can be left out."""
    cut = _sample_axes(problem)
    return 0 if cut is None else int(problem.numbers.get(cut[0], 0))


def _sample_axes(problem: Problem) -> tuple[Symbol, list[tuple[str, int]]] | None:
    """The symbol that counts samples, and the axes of arrays that samples run along.

    None where the number of samples is no symbol, or an array is read along such an axis at an integer, at
    ``mu + 1``, or in another way than at an index of samples: then none can be left out.
    """
    program = problem.program
    sample = program.roles.sample or sample_index(program)
    counts, indices = _indices_by_count(program)
    count = counts.get(sample)
    if not isinstance(count, Symbol) or count not in {P, *problem.numbers}:
        return None
    whole = {problem.seen, int(problem.numbers.get(count, problem.seen))}
    given = {x.name: x.kernel for x in program.given}
    reads: dict[tuple[str, int], set[bool]] = {}
    for x in _applied(program):
        name = str(x.func)
        of_samples = [a in indices[count] for a in x.args]
        places = [(given.get(name, name), k) for k in range(len(x.args))]
        if name in given:  # a kernel has the axes of two vectors, and the vector may be given by its entries
            places += [(given[name], len(x.args) + k) for k in range(len(x.args))]
            places += [(name, k) for k in range(len(x.args))]
            of_samples *= 3
        for place, is_sample in zip(places, of_samples, strict=True):
            if place[0] in problem.arrays:
                reads.setdefault(place, set()).add(is_sample)
    if any(len(kinds) > 1 for kinds in reads.values()):
        return None
    axes = [place for place, kinds in reads.items() if kinds == {True}]
    return (count, axes) if all(problem.arrays[name].shape[k] in whole for name, k in axes) else None


def _applied(program: Program) -> set[AppliedUndef]:
    """Every function of indices in a program."""
    found: set[AppliedUndef] = set()

    def seen(e: Any) -> Any:
        found.update(expression(e).atoms(AppliedUndef))
        return e

    program.map(seen)
    return found


def _indices_by_count(program: Program) -> tuple[dict[Symbol | None, Expr], dict[Expr, set[Symbol]]]:
    """How far each index that begins at 1 runs, and the indices that run so far, those of updates too."""
    limits = [r.limits for d in program.definitions for r in d.ranges]
    stated = [] if program.loss is None else [program.loss]
    bodies = [*(d.rhs for d in program.definitions), *stated]
    limits += [limit for e in bodies for total in expression(e).atoms(Sum) for limit in total.limits]
    counts: dict[Symbol | None, Expr] = {}
    indices: dict[Expr, set[Symbol]] = {}
    for index, lower, upper in limits:
        if lower == 1:
            counts.setdefault(index, upper)
            indices.setdefault(upper, set()).update((index, primed(index)))
    return counts, indices


def few(problem: Problem, effort: Effort = FULL) -> Problem:
    """The problem on fewer samples and times, if its kernels are large; each teaches at its rate."""
    depth, times, count = problem.depth or 1, len(problem.times), problem.seen
    if 8.0 * depth * (times * count) ** 2 <= effort.kernel:
        return problem
    pick = _spread(count, SMALL_SAMPLES)
    share = len(pick) / count if is_mean(problem) else 1.0
    small = _on(problem, pick, min(times, MOST_TIMES), float(problem.times[-1]) * share)
    if problem.flow:
        return small
    return replace(small, numbers={k: v * share if k == eta else v for k, v in small.numbers.items()})


def comparable(source: Problem | Experiment, gentle: float = GENTLE[0]) -> Problem:
    """The problem as its series is checked on it: a flow at its opening, in steps of a fixed length.

    A discretised flow has its own exact theory and series. With the loosest tolerance both are evaluated on
    the same nodes if all are stable there, and what is left between them is the truncation alone, however
    coarse the nodes are.
    """
    problem = Problem.of(source)
    if not problem.flow:
        return problem
    step = gentle / (fastest(problem) or 1e-300)
    end = min(float(problem.times[-1]), step * (MOST_TIMES - 1))
    points = max(2, int(np.ceil(end / step)) + 1)
    return by(_timed(problem, points, end), problem.solver.method, rtol=LOOSEST)


def in_steps(problem: Problem, samples: int, steps: int) -> Problem | None:
    """An opening in exact steps; of a flow, descent in steps that resolve its fastest relaxation.

    A discretised flow is a program like descent, with another memory of the same updates.  None of a program
    of one's own that flows, for nobody knows its descent.
    """
    if not problem.flow:
        return opening(problem, samples, steps)
    small = opening(problem, samples, 1)
    rate = fastest(small)
    end = min(float(problem.times[-1]), steps * RESOLUTION / rate if rate > 0 else np.inf)
    return None if small.experiment is None else descent(small.experiment, end, steps)


def descent(experiment: Experiment, end: float, count: int) -> Problem:
    """Return the flow of an experiment in steps of length ``dt = end/count``, those of Euler.

    The equation of motion ``dz = (A z + b U) dt + noise`` of each weight becomes ``z <- z + dt (A z + b U) +
    noise``, with coefficients at the start of the step.
    """
    dt = end / count
    length = Symbol("dt", positive=True)
    rest = dict.fromkeys(("time", "points", "grid", "times"))
    changes: dict[str, object] = {"rule": "gd", "learning_rate": dt, "steps": count, **rest}
    changes |= dict.fromkeys(("weight_decay", "momentum", "temperature"), 0.0)
    steps = Problem.of(experiment.replace({f"training.{k}": x for k, x in changes.items()}))
    flow = Problem.of(experiment)
    return replace(
        steps,
        program=flow.program.with_rules(lambda rule: _in_steps(rule, length)),
        numbers={**flow.numbers, length: dt},
    )


@lru_cache(maxsize=64)
def _in_steps(rule: Any, length: Symbol) -> LinearRule:
    """A rule of a flow in Euler steps of a length."""
    system: LinearSystem = rule.system

    def at(e: Expr) -> Expr:
        return length * e.xreplace({t: length * t})

    moved = eye(system.states) + system.matrix.applyfunc(at)
    entered = ImmutableMatrix([at(x) for x in system.input])
    if system.states == 1:
        return LinearRule(moved[0], entered[0], at(system.noise_matrix[0]), system.start)
    return LinearRule(moved, entered, system.noise_matrix.applyfunc(at), system.start)


def at(problem: Problem, strength: float) -> Problem:
    """The same at another gamma0."""
    return replace(problem, numbers={**problem.numbers, gamma0: strength})


def by(problem: Problem, method: str, **keys: Any) -> Problem:
    """The same, solved by a method, with other keys of [solver]."""
    return replace(problem, solver=problem.solver.model_copy(update={"method": method, **keys}))


def speed(problem: Problem) -> float:
    """The largest factor by which a step multiplies updates: eta, or eta/P where the loss is a mean."""
    timed = problem if len(problem.times) > 1 else replace(problem, times=np.arange(2.0))
    return float(np.abs(first_shares(timed)).max())


def fastest(problem: Problem) -> float:
    """The fastest lazy relaxation: the rate times the largest eigenvalue of a bound of the tangent kernel."""
    kernel = problem.arrays.get(INPUT_KERNEL, np.eye(1))[: problem.seen]
    half = prod(kernel.shape[: kernel.ndim // 2])  # an input may have positions
    largest = float(np.linalg.eigvalsh(kernel.reshape(half, -1)[:, :half])[-1])
    return speed(problem) * largest * ((problem.depth or 1) + 1)


def arrays(small: Problem) -> dict[str, Array]:
    """What the theory of an opening holds of arrays: those of its samples, modes, and integrator."""
    spectrum = modes(small)
    found = dict(small.data) | ({} if spectrum is None else dict(spectrum.attributes))
    if small.flow:
        tables = tables_of(small.program, small.numbers, small.times, adams_weights(small.times))
        found |= tables
    return found


def modes(problem: Problem) -> Spectrum | None:
    """Every mode of random data whose modes have attributes."""
    experiment = problem.experiment
    return problem.spectrum if experiment is None else spectrum_of(experiment, every=True)


def particles(
    small: Problem, samples: int, replicas: int, seed: int, theory: Theory | None = None, **options: Any
) -> Solved:
    """The solution of an opening by paths, or of another ``theory`` with its numbers."""
    return solve_particles(
        theory or small.discrete,
        steps=len(small.times),
        values=small.values,
        data=arrays(small),
        samples=samples,
        replicas=replicas,
        seed=seed,
        **options,
    )
