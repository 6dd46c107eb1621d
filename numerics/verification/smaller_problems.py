"""Smaller and modified problems, derived from the problem that is verified, on which checks are run.

A smaller problem has the first steps of training and a few of the samples.  An experiment file is cut by its
keys, a program by its numbers, arrays and times.
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
from numerics.experiment.rates import is_mean, next_step_factors
from numerics.names import INPUT_KERNEL
from numerics.results.program_names import sample_index
from numerics.solver.grid import adams_weights, tables_of
from numerics.solver.paths.solve import Solved, solve_particles

Array = NDArray[np.float64]

WRITTEN, READ_MODES = (2, 2), 4
"""Samples and steps, and modes, of the smaller problem on which expressions are evaluated directly."""

RESOLUTION = 0.5
"""Largest step length of descent in place of a flow, in units of its fastest lazy relaxation time."""

GENTLE = 0.25, 0.0625, 0.015625
"""Step lengths for the expansion of a flow, well inside stability; the next is tried for faster flows,
for example with biases."""

SMALL_SAMPLES = 20
"""Number of samples to which a problem with large kernels is cut, for the check of its expansion."""

MOST_TIMES = 61
LOOSEST = 0.9


@dataclass(frozen=True)
class Effort:
    """Amount of computation of a verification.

    With less, standard errors are larger, and fewer kernels and variances of networks are compared.

    Attributes
    ----------
    work : float
        Work spent on networks, in units of about a nanosecond on one core of a laptop.
    smallest : tuple of int
        Candidate sizes of the smaller networks: their number of neurons, features or samples, whichever is
        fewest.  Chosen is the size with the smallest expected tolerance whose networks can be afforded.
    paths : int
        Number of paths of each sampled solution of a smaller problem.
    replicas : int
        Number of independent replicas of each sampled solution of a smaller problem.
    kernel : float
        Bytes of the largest two-time kernels that are kept, or measured, for all pairs of samples; of larger
        kernels only traces are.
    """

    work: float = 3e10
    smallest: tuple[int, ...] = (256, 192, 128, 96, 64, 48, 32, 16)
    paths: int = 1024
    replicas: int = 16
    kernel: float = 2e8


FULL = Effort()
"""Default effort of a verification."""


def smaller_problem(problem: Problem, samples: int, steps: int) -> Problem:
    """Return a problem with the first `steps` steps and at most `samples` of its samples, for cheap checks.

    The loss keeps its normalisation, a mean or a sum over samples.  If an experiment file has modes, at most
    `samples` of them are kept instead. The samples of isotropic data, and the samples or modes of programs
    whose arrays cannot be cut, are all kept. A flow ends at its output time number `steps`, with as many
    equal intervals.
    """
    steps = min(steps, len(problem.times) - 1)
    clock = steps + 1, float(problem.times[steps])
    experiment = problem.experiment
    if experiment is not None and experiment.data is not None and experiment.data.modes is not None:
        return _at_other_times(
            Problem.of(experiment.replace({"data.modes": min(experiment.data.modes, samples)})), *clock
        )
    count = problem.seen or _sample_count(problem)
    return (
        _on_samples(problem, _evenly_spaced(count, samples), *clock)
        if count
        else _at_other_times(problem, *clock)
    )


def directly_evaluated(problem: Problem) -> Problem:
    """Return the smaller problem on which expressions are evaluated directly, which is slow.

    The pair WRITTEN holds its numbers of samples and of steps. Modes of an experiment file are cut to
    READ_MODES modes instead, because modes are cheaper.
    """
    samples, steps = WRITTEN
    experiment = problem.experiment
    has_modes = experiment is not None and experiment.data is not None and experiment.data.modes is not None
    return smaller_problem(problem, READ_MODES if has_modes else samples, steps)


def _evenly_spaced(count: int, samples: int) -> NDArray[np.intp]:
    """Return at most ``samples`` of the positions 0 to ``count`` - 1, evenly spaced.

    Both ends are included, or only position 0 if ``samples`` is one.
    """
    return np.unique(np.linspace(0, count - 1, min(count, samples)).round().astype(int))


def _time_keys(problem: Problem, points: int, end: float) -> dict[str, Any]:
    """Return values of the keys of [training] that set ``points`` output times, time 0 included.

    For a flow the times are evenly spaced up to time ``end``; for steps they are the first ones.
    """
    if not problem.flow:
        return {"steps": points - 1, "times": None}
    return {"time": end, "points": points, "grid": "uniform", "times": None}


def _at_other_times(problem: Problem, points: int, end: float) -> Problem:
    """Return the problem at its first ``points`` times; for a flow, at ``points`` times up to ``end``.

    The times of a flow are equally spaced.
    """
    if problem.experiment is not None:
        keys = _time_keys(problem, points, end).items()
        return Problem.of(problem.experiment.replace({f"training.{k}": v for k, v in keys}))
    times = np.linspace(0.0, end, points) if problem.flow else problem.times[:points]
    return replace(problem, times=times, output_times=None)


def _on_samples(problem: Problem, pick: NDArray[np.intp], points: int, end: float) -> Problem:
    """Return the problem on the training samples at positions ``pick``, with at most one test point.

    Its times are those of :func:`_at_other_times`. All samples of a program are kept if its arrays cannot be
    cut (:func:`_sample_axes`).
    """
    seen, experiment = problem.seen, problem.experiment
    tested = [seen] if problem.sample_count > seen else []
    if experiment is not None:
        tables = experiment.spec.model_dump(exclude_unset=True, exclude={"data"})
        tables["training"] = tables.get("training", {}) | _time_keys(problem, points, end)
        held = experiment.held_out
        kernel = None if held is None else held.kernel[seen : seen + 1][:, [*pick, seen]]
        kernel_or_inputs, y = experiment.kernel[np.ix_(pick, pick)], experiment.targets[pick]
        if experiment.training.entrywise and experiment.inputs is not None:
            tests = None if held is None or held.inputs is None else held.inputs[:1]
            kernel_or_inputs = experiment.inputs[pick]
            return Problem.of(
                Experiment.from_dict(tables, inputs=kernel_or_inputs, targets=y, test_inputs=tests)
            )
        return Problem.of(
            Experiment.from_dict(tables, kernel=kernel_or_inputs, targets=y, test_kernel=kernel)
        )
    cut = _sample_axes(problem)
    if cut is None:  # samples cannot be left out of the arrays, so that only the times are changed
        return _at_other_times(problem, points, end)
    count, axes = cut
    rows, arrays = np.array([*pick, *tested]), dict(problem.arrays)
    for name, axis in axes:
        arrays[name] = np.take(arrays[name], rows[rows < arrays[name].shape[axis]], axis=axis)
    numbers = {k: float(len(rows)) if k in (count, P) else v for k, v in problem.numbers.items()}
    left = min(seen, len(pick))
    return _at_other_times(replace(problem, arrays=arrays, numbers=numbers, seen=left), points, end)


def _sample_count(problem: Problem) -> int:
    """Return the number of training samples of a program; 0 if none of them can be left out."""
    cut = _sample_axes(problem)
    return 0 if cut is None else int(problem.numbers.get(cut[0], 0))


def _sample_axes(problem: Problem) -> tuple[Symbol, list[tuple[str, int]]] | None:
    """Return the symbol for the number of samples, and the axes along which arrays are cut to fewer samples.

    An axis is given as (name of the array, position of the axis). None if no sample can be left out: the
    number of samples is not a symbol, an array is also read along such an axis other than at an index of
    samples, for example at an integer or at ``mu + 1``, or such an axis has another length.
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
        # A given vector may be stored by its entries or by its kernel, the inner products of two vectors.
        # Argument k of the vector belongs to two axes of the kernel, k and k + the number of arguments.
        if name in given:
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
    """Return every applied function, such as ``y(mu)``, in the expressions of a program."""
    functions: set[AppliedUndef] = set()

    def seen(e: Any) -> Any:
        functions.update(expression(e).atoms(AppliedUndef))
        return e

    program.map(seen)
    return functions


def _indices_by_count(program: Program) -> tuple[dict[Symbol | None, Expr], dict[Expr, set[Symbol]]]:
    """Return the ranges that begin at 1, of indices in a program.

    The first member maps each index to its upper limit, such as ``mu`` to ``P``; the second maps each upper
    limit to the set of its indices and their primed copies.
    """
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


def with_small_kernels(problem: Problem, effort: Effort = FULL) -> Problem:
    """Return the problem on fewer samples and times if its kernels exceed ``effort.kernel`` bytes.

    If the loss is a mean over samples, the learning rate is lowered in proportion to the number of samples,
    so that the weight of each sample in an update stays the same. The end of a flow is made earlier instead.
    """
    depth, times, count = problem.depth or 1, len(problem.times), problem.seen
    if 8.0 * depth * (times * count) ** 2 <= effort.kernel:
        return problem
    pick = _evenly_spaced(count, SMALL_SAMPLES)
    share = len(pick) / count if is_mean(problem) else 1.0
    small = _on_samples(problem, pick, min(times, MOST_TIMES), float(problem.times[-1]) * share)
    if problem.flow:
        return small
    return replace(small, numbers={k: v * share if k == eta else v for k, v in small.numbers.items()})


def in_fixed_steps(source: Problem | Experiment, gentle: float = GENTLE[0]) -> Problem:
    """Return the problem on which a series in gamma0 is checked.

    Problems in steps are unchanged. A flow is cut to its beginning, on a coarse grid with steps of at most
    ``gentle`` times the estimated fastest relaxation time. A flow on a fixed time grid has its own exact
    theory and series. The tolerance is set to LOOSEST, so that the solutions and the series are all evaluated
    on the first grid if they are stable there. They then differ by the truncation of the series alone, for
    any length of the steps.
    """
    problem = Problem.of(source)
    if not problem.flow:
        return problem
    step = gentle / (fastest_rate(problem) or 1e-300)
    end = min(float(problem.times[-1]), step * (MOST_TIMES - 1))
    points = max(2, int(np.ceil(end / step)) + 1)
    return with_solver(_at_other_times(problem, points, end), problem.solver.method, rtol=LOOSEST)


def in_steps(problem: Problem, samples: int, steps: int) -> Problem | None:
    """Return a problem with at most ``samples`` samples that is trained in at most ``steps`` steps.

    A flow becomes gradient descent in ``steps`` steps, each of at most RESOLUTION (0.5) times the fastest
    relaxation time of the lazy limit. None for a flow that is not from an experiment file, because its
    descent is not known.
    """
    if not problem.flow:
        return smaller_problem(problem, samples, steps)
    small = smaller_problem(problem, samples, 1)
    rate = fastest_rate(small)
    end = min(float(problem.times[-1]), steps * RESOLUTION / rate if rate > 0 else np.inf)
    return None if small.experiment is None else descent(small.experiment, end, steps)


def descent(experiment: Experiment, end: float, count: int) -> Problem:
    """Return the flow of an experiment up to time ``end`` in ``count`` Euler steps.

    With the length ``dt = end/count``, the equation of motion ``dz = (A z + b U) dt + noise`` of the state z
    of each weight, with its update U, becomes ``z <- z + dt (A z + b U) + noise``, with coefficients at the
    start of the step.
    """
    dt = end / count
    length = Symbol("dt", positive=True)
    unset = dict.fromkeys(("time", "points", "grid", "times"))
    changes: dict[str, object] = {"rule": "gd", "learning_rate": dt, "steps": count, **unset}
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
    """Return the training rule in steps that Euler's method makes of the rule of a flow.

    ``length`` is the symbol of the step length.
    """
    system: LinearSystem = rule.system

    def at(e: Expr) -> Expr:
        return length * e.xreplace({t: length * t})

    moved = eye(system.states) + system.matrix.applyfunc(at)
    entered = ImmutableMatrix([at(x) for x in system.input])
    if system.states == 1:
        return LinearRule(moved[0], entered[0], at(system.noise_matrix[0]), system.start)
    return LinearRule(moved, entered, system.noise_matrix.applyfunc(at), system.start)


def at_gamma0(problem: Problem, strength: float) -> Problem:
    """Return the problem with ``strength`` as its gamma0."""
    return replace(problem, numbers={**problem.numbers, gamma0: strength})


def with_solver(problem: Problem, method: str, **keys: Any) -> Problem:
    """Return the problem with another solver method.

    ``keys`` are new values of other keys of [solver]; keys that are not given keep their values.
    """
    return replace(problem, solver=problem.solver.model_copy(update={"method": method, **keys}))


def largest_update_factor(problem: Problem) -> float:
    """Return the largest factor over all steps that multiplies the gradient of a single sample in an update.

    It is the learning rate eta if the loss is a sum over samples, and eta/P if it is a mean over P samples.
    """
    timed = problem if len(problem.times) > 1 else replace(problem, times=np.arange(2.0))
    return float(np.abs(next_step_factors(timed)).max())


def fastest_rate(problem: Problem) -> float:
    """Estimate the fastest relaxation rate in the lazy limit: rate times largest kernel eigenvalue.

    The rate is :func:`largest_update_factor`. The tangent kernel is estimated by the input kernel times the
    number of layers of weights; with biases, for example, it may be larger.
    """
    kernel = problem.arrays.get(INPUT_KERNEL, np.eye(1))[: problem.seen]
    # With positions the kernel of the inputs has four axes: sample and position of each of the two inputs.
    half = prod(kernel.shape[: kernel.ndim // 2])
    largest = float(np.linalg.eigvalsh(kernel.reshape(half, -1)[:, :half])[-1])
    return largest_update_factor(problem) * largest * ((problem.depth or 1) + 1)


def arrays_of_theory(small: Problem) -> dict[str, Array]:
    """Return arrays by name that the theory of a problem reads.

    They are its data and, where it has them, eigenvalues and targets of modes, and tables of the time
    integrator of a flow.
    """
    spectrum = spectrum_of_problem(small)
    named_arrays = dict(small.data) | ({} if spectrum is None else dict(spectrum.attributes))
    if small.flow:
        tables = tables_of(small.program, small.numbers, small.times, adams_weights(small.times))
        named_arrays |= tables
    return named_arrays


def spectrum_of_problem(problem: Problem) -> Spectrum | None:
    """Return the modes of random data with their eigenvalues and target coefficients, or None without modes.

    For an experiment file every mode is returned, without the approximation by fewer nodes.
    """
    experiment = problem.experiment
    return problem.spectrum if experiment is None else spectrum_of(experiment, every=True)


def solve_by_paths(
    small: Problem, samples: int, replicas: int, seed: int, theory: Theory | None = None, **options: Any
) -> Solved:
    """Return the solution of a problem by sampled paths, or of another ``theory`` with the problem's numbers.

    ``samples`` is the number of paths in each of ``replicas`` independent replicas; ``options`` are others
    of :func:`numerics.solver.paths.solve.solve_particles`.
    """
    return solve_particles(
        theory or small.discrete,
        steps=len(small.times),
        values=small.values,
        data=arrays_of_theory(small),
        samples=samples,
        replicas=replicas,
        seed=seed,
        **options,
    )
