"""Long times: rest points of outputs under weight decay, and kernels of Langevin dynamics.

A network that is homogeneous in its weights comes to rest if its outputs are kernel ridge regression with its
own final tangent kernel (:func:`derive.reduce.ridge.representer`). Both come from one solution by sampled
paths: each replica's outputs are compared with the regression of its own kernel, so that common sampling
errors cancel.

At weak feature learning the kernels of Langevin dynamics become stationary too. They obey a derived recursion
(:func:`derive.reduce.stationary`), which is closed in averages over pairs of Gaussian variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Eq, Expr, Float, Function, Integer, Symbol, sympify
from sympy.core.function import AppliedUndef

from derive.calculus.gaussian import GaussianAverage
from derive.program import Program, ell
from derive.program.networks.options import SAMPLE_WEIGHT, has_sample_weights
from derive.reduce.ridge import representer
from derive.reduce.stationary import Stationary, stationary, tau
from derive.theory import Theory, mean_field
from numerics.averages.kink_quadrature import Moment
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.lowering.indices import RealNumber
from numerics.names import INPUT_KERNEL, OUTPUT, TARGETS, MemberKey
from numerics.solver.by_role import Replicas
from numerics.solver.named_values import averaged
from numerics.solver.paths.solve import Solved, solve_particles

Array = NDArray[np.float64]

SHARE = 4
"""The rate of convergence is measured in the last 1/SHARE of the steps."""

FEWEST = 2 * SHARE
"""Smallest number of steps from which a rate can be measured."""

SMALLER = 0.75
"""Moves count as shrinking if their size falls below this ratio from the first to the second half of those
steps."""


TOLERANCE = 1e-3
"""Distance of the outputs from rest that counts as converged, relative to the largest target."""


@dataclass(frozen=True)
class AtRest:
    """Outputs after the last step, and ridge regression with the tangent kernel of that step.

    Arrays have an entry for each sample (and channel), test points included.

    Attributes
    ----------
    kappa, ridge : float
        Degree of homogeneity and ridge of the theorem.
    outputs, predicted, difference : numpy.ndarray
        Outputs, regression, and outputs minus regression, shape ``(P,)`` or ``(P, C)``; ``*_stderr`` are
        standard errors over replicas.
    limit : numpy.ndarray
        The difference extrapolated to the rest point, same shape; NaN if ``rate`` is 1.
    averaged : numpy.ndarray
        Difference of the mean outputs of the last quarter of the steps and the regression with the mean
        kernel of all pairs of these steps, same shape. Units of a rectifier may be held on their kinks: steps
        then jump across, weights rest only on average, and the theorem holds for gradients averaged in time.
    distance : numpy.ndarray
        Largest absolute entry of the mean difference over replicas at each time, shape ``(steps,)``.
    moves : numpy.ndarray
        Largest absolute change of a mean output over replicas from each time to the next, shape
        ``(steps - 1,)``.
    rate : float
        Factor by which moves shrink in a step at the end: 1 if they hardly shrink, 0 if outputs have stopped.
    remaining : float
        Estimated distance of the outputs from rest: the sum of all further moves, if each is ``rate`` times
        the one before. It is infinite if ``rate`` is 1.
    converged : bool
        Whether ``remaining`` is at most the tolerance times the largest absolute target.
    solved : Solved
        The solution by sampled paths.
    """

    kappa: float
    ridge: float
    outputs: Array
    outputs_stderr: Array
    predicted: Array
    predicted_stderr: Array
    difference: Array
    difference_stderr: Array
    limit: Array
    limit_stderr: Array
    averaged: Array
    averaged_stderr: Array
    distance: Array
    moves: Array
    rate: float
    remaining: float
    converged: bool
    solved: Solved

    @property
    def status(self) -> str:
        """One line that states whether the outputs are at rest.

        >>> from derive.program import P, eta, gamma0, mlp
        >>> given = {"values": {eta: 0.2, gamma0: 1.5, P: 1}, "data": {"K_x": [[1.0]], "y": [1.0]}}
        >>> print(at_rest(mlp(1, weight_decay=1), steps=30, samples=64, replicas=2, **given).status)
        at rest: the outputs are 0.0002 from their limit; they differ from ridge regression by 6e-05
        """
        largest = float(np.abs(self.difference).max())
        end = f"they differ from ridge regression by {largest:.1g}"
        if self.converged:
            return f"at rest: the outputs are {self.remaining:.1g} from their limit; {end}"
        if not np.isfinite(self.remaining):
            return f"not at rest: the outputs move by {self.moves[-1]:.1g} a step, not less and less; {end}"
        return f"not at rest: the outputs are {self.remaining:.1g} from their limit, take more steps; {end}"


def at_rest(
    program: Program | Experiment,
    *,
    steps: int | None = None,
    values: Mapping[Symbol | str, RealNumber] | None = None,
    data: Mapping[str, Any] | None = None,
    tolerance: float = TOLERANCE,
    **options: Any,
) -> AtRest:
    """Train with weight decay for ``steps`` steps and compare outputs with ridge regression.

    ``program`` is a network on fixed samples with a rule in steps (with ``values`` and ``data`` as for
    :func:`.solve_particles`, which takes the other ``options``), or an experiment. An experiment contains
    values and data, ``solver.samples`` and ``solver.seed``, and also ``steps`` if these are not given. Unlike
    ``solver.method = "rest"`` it is not solved to ``solver.accuracy``. The regression is over the training
    samples; with sample weights, samples of weight zero are test points. ``tolerance`` is in units of the
    largest target. A flow has the same rest points as steps.

    Raises :class:`~derive.reduce.homogeneous.NotHomogeneous` for networks to which the theorem does not
    apply, :class:`~derive.errors.NotApplicable` for rules without rest points,
    :class:`~numerics.errors.SpecError` for an experiment that is not descent on fixed data and for fewer than
    FEWEST steps, and ValueError for a program without ``steps``, ``values`` or ``data``.
    """
    if isinstance(program, Experiment):
        _require_descent(program)
        problem = Problem.of(program)
        program, values, data = problem.program, problem.values, problem.arrays
        steps = len(problem.times) if steps is None else steps
        of_file = {"seed": problem.solver.seed, "samples": problem.solver.samples}
        options = {name: x for name, x in of_file.items() if x is not None} | options
    if steps is None or values is None or data is None:
        raise ValueError("for a program, give steps, values and data; an experiment contains them")
    try:
        steps = index(steps)
    except TypeError:
        raise SpecError("steps", steps, "is not an integer", f"an integer >= {FEWEST}") from None
    if steps < FEWEST:
        raise SpecError(
            "steps", steps, "are too few to tell whether the outputs have converged", f"at least {FEWEST}"
        )
    theory = mean_field(program)
    kappa, ridge = constants_of_regression(theory, values)
    solved = solve_particles(theory, steps=steps, values=values, data=data, **options)
    targets = np.asarray(data[TARGETS], dtype=float)
    return compare(solved, kappa, ridge, targets, sample_weights(program, data), tolerance)


def constants_of_regression(
    theory: Theory, values: Mapping[Symbol | str, RealNumber] | Mapping[Symbol, RealNumber]
) -> tuple[float, float]:
    """Return the degree of homogeneity and the ridge of the theorem, with numbers for its symbols.

    Raises :class:`~derive.reduce.homogeneous.NotHomogeneous` and :class:`~derive.errors.NotApplicable` for
    theories without the theorem, and :class:`~numerics.errors.SpecError` for a number that is missing.
    """
    theorem, numbers = representer(theory), {str(k): v for k, v in values.items()}
    kappa, ridge = (float(_with_numbers(e, numbers)) for e in (theorem.kappa, theorem.ridge))
    return kappa, ridge


def _with_numbers(e: Expr, numbers: Mapping[str, Any]) -> Expr:
    """Return an expression with numbers for its symbols; raise SpecError for a symbol without one."""
    for name in sorted(x.name for x in e.free_symbols):
        if name not in numbers:
            raise SpecError(f"values.{name}", None, "is missing", "a number for this symbol of the theory")
    return e.subs({x: numbers[x.name] for x in e.free_symbols})


def compare(
    solved: Solved, kappa: float, ridge: float, targets: Array, weights: Array, tolerance: float = TOLERANCE
) -> AtRest:
    """Compare the outputs of sampled paths at each step with ridge regression by their tangent kernel.

    ``kappa`` is the degree of homogeneity of the network in its weights, ``ridge`` the ridge parameter of the
    regression. ``targets`` have shape (P,) or (P, C). ``weights`` are those of the samples in the loss, shape
    (P,); samples of weight zero are test points. The outputs count as converged if their estimated distance
    from rest is at most ``tolerance`` times the largest target.

    >>> from derive.program import P, eta, gamma0, mlp
    >>> values, data = {eta: 0.2, gamma0: 1.5, P: 1}, {"K_x": [[1.0]], "y": [1.0]}
    >>> theory = mean_field(mlp(1, weight_decay=1))
    >>> solved = solve_particles(theory, steps=60, values=values, data=data, samples=64, replicas=2)
    >>> rest = compare(solved, 2, 2, np.ones(1), np.ones(1))
    >>> [round(float(x), 4) for x in (rest.outputs[0], rest.predicted[0])]
    [0.3333, 0.3333]
    """
    replicas, count = solved.replicas, targets.size
    f = solved.runs[OUTPUT, ()].reshape(replicas, -1, count)  # axes: replica, time, output
    kernels = TangentKernels.of(solved.runs["K", ()])
    return _compared(solved, f, kernels, kappa, ridge, targets, weights, tolerance)


@dataclass(frozen=True)
class TangentKernels:
    """Tangent kernels of replicas: ``now`` at equal times, ``late`` over pairs of the last steps.

    Axes of ``now`` are the replicas, then those of a kernel of samples and channels, and the time last; those
    of ``late``, the mean over all pairs of the last 1/SHARE of the steps, are the same without the time.
    """

    now: Array
    late: Array

    @classmethod
    def of(cls, kernels: Array) -> TangentKernels:
        """Return the parts that are compared, from kernels of replicas with both times on the last axes."""
        window = _last_steps(kernels.shape[-1])
        pairs = kernels[..., window[:, None], window]
        return cls(np.diagonal(kernels, axis1=-2, axis2=-1).copy(), pairs.mean(axis=(-1, -2)))


def _last_steps(steps: int) -> NDArray[np.int_]:
    """Return the last 1/SHARE of the steps."""
    return np.arange(steps - steps // SHARE, steps)


def _compared(  # noqa: PLR0913 - the parts of a comparison
    solved: Solved,
    f: Array,
    kernels: TangentKernels,
    kappa: float,
    ridge: float,
    targets: Array,
    weights: Array,
    tolerance: float,
) -> AtRest:
    """Compare outputs ``f``, shape (replicas, times, outputs), with regression by the tangent ``kernels``."""
    replicas, steps, count = f.shape
    rho = np.repeat(weights, count // len(weights))
    now = kernels.now.reshape(replicas, count, count, steps)
    late = kernels.late.reshape(replicas, count, count)
    predicted = np.empty_like(f)
    for n in range(replicas):
        for step in range(steps):
            predicted[n, step] = regression(now[n, ..., step], targets.ravel(), rho, ridge)
    gap = f - predicted
    mean = gap.mean(axis=0)
    moves = np.abs(np.diff(f.mean(axis=0), axis=0)).max(axis=1)
    rate = _shrinking(moves)
    to_go = rate / (1 - rate) if rate < 1 else np.inf
    remaining = float(moves[-1] * to_go) if moves[-1] > 0 else 0.0
    window = _last_steps(steps)
    in_window = np.stack(
        [
            f[n, window].mean(axis=0) - regression(late[n], targets.ravel(), rho, ridge)
            for n in range(replicas)
        ]
    )
    limits = gap[:, -1] + (gap[:, -1] - gap[:, -2]) * (to_go if np.isfinite(to_go) else np.nan)

    def with_error(x: Array) -> tuple[Array, Array]:
        """Return the mean and standard error of ``x`` over replicas (first axis), shaped as the targets."""
        error = x.std(axis=0, ddof=1) / np.sqrt(replicas)
        return x.mean(axis=0).reshape(targets.shape), np.asarray(error).reshape(targets.shape)

    return AtRest(
        kappa,
        ridge,
        *with_error(f[:, -1]),
        *with_error(predicted[:, -1]),
        *with_error(gap[:, -1]),
        *with_error(limits),
        *with_error(in_window),
        np.abs(mean).max(axis=1),
        moves,
        rate,
        remaining,
        bool(remaining <= tolerance * np.abs(targets).max()),
        solved,
    )


def regression(kernel: Array, targets: Array, weights: Array, ridge: float) -> Array:
    """Return ``k(x)^T [K + ridge]^{-1} y`` at all points; K and y are those of points with weight.

    ``kernel`` (n, n), ``targets`` (n,), ``weights`` (n,) and the result (n,) are those of all points, with
    the channels of a point flattened. Weights ``rho`` other than 0 or 1 multiply the terms of the loss of the
    regression. Targets of points with weight zero are not used.

    >>> regression(np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([1.0, 9.0]), np.array([1.0, 0.0]), 1.0)
    array([0.5 , 0.25])
    """
    weighed = kernel * weights  # column j of the kernel times the weight of sample j
    return np.asarray(weighed @ np.linalg.solve(weighed + ridge * np.eye(len(kernel)), targets))


@dataclass
class RidgeReplicas(Replicas):
    """Replicas whose outputs and tangent kernels are kept, to be compared with ridge regression.

    ``outputs`` holds for each batch of replicas the outputs, with axes (replicas, samples and channels,
    times), and ``tangents`` their tangent kernels.
    """

    outputs: list[Array] = field(default_factory=list)
    tangents: list[TangentKernels] = field(default_factory=list)

    def watch(self, solutions: Mapping[MemberKey, Array]) -> None:
        """Keep the outputs and tangent kernels of a batch of replicas, which are on the first axis."""
        self.outputs.append(solutions[OUTPUT, ()].copy())
        self.tangents.append(TangentKernels.of(solutions["K", ()]))

    def compared(self, problem: Problem, samples: int) -> AtRest:
        """Compare the outputs of all replicas, each of ``samples`` paths, with ridge regression."""
        f = np.moveaxis(np.concatenate(self.outputs), -1, 1)
        now, late = (np.concatenate([getattr(x, name) for x in self.tangents]) for name in ("now", "late"))
        runs: dict[MemberKey, Array] = {(OUTPUT, ()): f}
        solved = Solved("particles", *averaged(runs), samples, len(f), {}, runs=runs)
        targets = np.asarray(problem.arrays[TARGETS], dtype=float)
        constants = constants_of_regression(problem.theory, problem.values)
        weights = sample_weights(problem.program, problem.arrays)
        rows = f.reshape(len(f), -1, targets.size)
        return _compared(solved, rows, TangentKernels(now, late), *constants, targets, weights, TOLERANCE)


def _shrinking(moves: Array) -> float:
    """Return the factor by which moves of the outputs shrink in a step, from the last 1/SHARE of the steps.

    ``moves`` are the largest changes of an output in each step. The factor is 1 if they hardly shrink, and 0
    if the last one is only rounding.
    """
    last = moves[-max(2, len(moves) // SHARE) :]
    if last[-1] <= 1e-14 * moves.max():  # the outputs have stopped, up to rounding
        return 0.0
    half = len(last) // 2
    before, after = np.sqrt(np.mean(last[:half] ** 2)), np.sqrt(np.mean(last[-half:] ** 2))
    return float((after / before) ** (1 / (len(last) - half))) if after < SMALLER * before else 1.0


def sample_weights(program: Program, data: Mapping[str, Any]) -> Array:
    """Return the weight of each sample in the loss, shape (samples,): ones unless the program has weights."""
    samples = len(np.asarray(data[TARGETS]))
    if not has_sample_weights(program):
        return np.ones(samples)
    return np.asarray(data[SAMPLE_WEIGHT], dtype=float)


def _require_descent(experiment: Experiment) -> None:
    """Raise SpecError for an experiment that is not gradient descent on fixed samples."""
    spec = experiment.spec
    if spec.kind != "fixed":
        raise SpecError(
            "data.kind",
            spec.kind,
            "has random samples, and the limit of long times is derived for given samples",
            "fixed",
        )
    if spec.training.rule != "gd":
        raise SpecError(
            "training.rule",
            spec.training.rule,
            "is not gradient descent; a flow has the same rest points as its steps",
            "gd",
        )


# -- stationary kernels of Langevin dynamics -----------------------------------------------------------------

ACCURACY = 1e-11
"""Accuracy of Gaussian averages, relative to the average of the absolute value."""


def stationary_kernels(
    theory: Theory,
    *,
    values: Mapping[Symbol | str, float],
    data: Mapping[str, Any],
    lags: Sequence[float] = (0.0,),
) -> dict[tuple[str, int], Array]:
    """Return every kernel of the stationary recursion by name and layer, at ``lags`` between two times.

    ``theory`` is at integer depth; lags of a rule in steps count steps, and are integers. A lag of either
    sign gives the same kernels, because they depend on two times only through the covariance of a weight at
    these times, which is symmetric. Arrays have an axis for each index of the kernel and the lags last:
    ``("Phi", 1)`` has shape (P, P, lags). The names ``H`` and ``Z`` are those of the covariances of the
    fields h and z. ``values`` and ``data`` are as for :func:`.solve_particles`. Raises the errors of
    :func:`derive.reduce.stationary`, and :class:`~numerics.errors.SpecError` for lags, values or data that
    are missing or cannot be, and for weights without a stationary state.

    >>> from derive.program import eta, mlp
    >>> decay, heat = Symbol("decay", positive=True), Symbol("heat", positive=True)
    >>> noisy = mean_field(mlp(1, "relu", weight_decay=decay, temperature=heat))
    >>> values = {decay: 1.0, heat: 0.5, eta: 0.2}
    >>> kernels = stationary_kernels(noisy, values=values, data={"K_x": [[1.0]]}, lags=(0, 1))
    >>> kernels["Phi", 1].round(4).tolist(), kernels["G", 1].round(4).tolist()
    ([[[0.2778, 0.2298]]], [[[0.2778, 0.1767]]])
    """
    numbers = {str(k): sympify(v) for k, v in values.items()}
    arrays = {k: np.asarray(v, dtype=float) for k, v in data.items()}
    _require_lags(lags, steps=theory.program.rule.discrete)
    _require_input_kernel(arrays)
    recursion = stationary(theory)
    _require_variance(recursion, numbers)
    solver = _StationaryRecursion(recursion, numbers, arrays)
    depth = int(theory.program.depth)
    kernels: dict[tuple[str, int], Array] = {}
    samples = len(solver.data[INPUT_KERNEL])
    for row in solver.rows:
        name = str(row.lhs.func)
        site, *indices, _ = row.lhs.args
        shape = [samples] * len(indices)
        for layer in range(1, depth + 1):
            if (name, layer) in kernels or not _covers(site, layer, depth):
                continue
            entries = [
                [float(solver.value(Function(name)(layer, *at, _number(abs(lag))))) for lag in lags]
                for at in product(range(1, samples + 1), repeat=len(indices))
            ]
            kernels[name, layer] = np.array(entries).reshape(*shape, len(lags))
    return kernels


def _require_lags(lags: Sequence[float], *, steps: bool) -> None:
    """Raise SpecError for a lag that is not a finite number or, for a rule in ``steps``, not an integer."""
    for lag in lags:
        if not np.isfinite(lag):
            raise SpecError("lags", lag, "is not finite", "differences of two times")
        if steps and not float(lag).is_integer():
            raise SpecError("lags", lag, "is not an integer, and times of a rule in steps are", "integers")


def _require_input_kernel(data: Mapping[str, Array]) -> None:
    """Raise SpecError unless the data contain the kernel of the inputs, a square matrix."""
    kernel, accepted = data.get(INPUT_KERNEL), "an array of shape (P, P)"
    if kernel is None:
        raise SpecError(f"data.{INPUT_KERNEL}", None, "is missing", accepted)
    if kernel.ndim != 2 or kernel.shape[0] != kernel.shape[1]:
        given = f"an array of shape {kernel.shape}"
        raise SpecError(f"data.{INPUT_KERNEL}", given, "is not a square matrix", accepted)


def _require_variance(recursion: Stationary, numbers: Mapping[str, Expr]) -> None:
    """Raise SpecError unless the variance of a weight at long times is positive and finite.

    It is negative or infinite if a step multiplies a weight by -1 or a number of larger size.
    """
    variance = _with_numbers(recursion.entry.subs(tau, 0), numbers)
    if not (variance.is_finite and variance > 0):  # it is complex infinity without decay
        symbols = sorted(x.name for x in recursion.entry.free_symbols - {tau})
        given = {name: float(numbers[name]) for name in symbols}
        value = f"{float(variance):.3g}" if variance.is_finite else "infinite"
        raise SpecError(
            "values",
            given,
            f"weights have no stationary state: their variance would be {value}",
            "a smaller learning rate or decay, and a positive temperature",
        )


def _covers(site: Expr, layer: int, depth: int) -> bool:
    """Return whether an equation of the recursion for kernels holds at ``layer`` of ``depth`` layers.

    ``site`` is the layer for which the equation is written: an integer, or a symbol for all layers.
    """
    return bool(site == layer) if site.is_Integer else 1 <= layer <= depth


def _number(lag: float) -> Expr:
    """Return a lag, a difference of two times, as an integer if it is one, or as a decimal number."""
    return Integer(int(lag)) if float(lag).is_integer() else Float(lag)


class _StationaryRecursion:
    """Values of the kernels of a network in stationary Langevin dynamics, from a recursion over layers.

    Each kernel is computed from its equation when it is first read.
    """

    def __init__(self, recursion: Stationary, numbers: Mapping[str, Expr], data: Mapping[str, Array]) -> None:
        self.rows: tuple[Eq, ...] = (*recursion.fields, *recursion.kernels)
        self.numbers, self.data = numbers, data
        self.known: dict[Expr, Expr] = {}

    def value(self, x: AppliedUndef) -> Expr:
        """Return the number of a kernel or of given data, whose indices are integers."""
        name = str(x.func)
        if name in self.data:
            return Float(self.data[name][tuple(int(a) - 1 for a in x.args)])
        if x not in self.known:
            matches = (_matched(row, x) for row in self.rows)
            rhs, at = next(pair for pair in matches if pair is not None)
            self.known[x] = Float(float(self.number(rhs, at)))
        return self.known[x]

    def number(self, e: Expr, at: Mapping[Expr, Expr]) -> Expr:
        """Return the number of an expression of the recursion, with the values ``at`` for its indices."""
        averages = {a: Float(self.average(a, at)) for a in e.atoms(GaussianAverage)}
        plain = e.xreplace(averages).subs(dict(at))
        plain = _with_numbers(plain, self.numbers)
        return plain.replace(lambda a: isinstance(a, AppliedUndef), self.value)

    def average(self, a: GaussianAverage, at: Mapping[Expr, Expr]) -> float:
        """Return the value of a Gaussian average, with numbers ``at`` for the indices in its covariances."""
        c = [[float(self.number(x, at)) for x in a.matrix.row(i)] for i in range(len(a.variables))]
        free = a.body.free_symbols - set(a.bound_symbols)
        body = a.body.subs({x: _with_numbers(x, self.numbers) for x in free})
        return Moment(body, a.variables)(c[0][0], c[-1][-1], c[0][-1], ACCURACY)[0]


def _matched(row: Eq, x: AppliedUndef) -> tuple[Expr, dict[Expr, Expr]] | None:
    """Return how the equation ``row`` gives the kernel ``x``: its right-hand side, and values of its indices.

    The result is None if the left-hand side of the equation is another kernel, or another layer.
    """
    lhs = row.lhs
    if lhs.func != x.func or (lhs.args[0].is_Integer and lhs.args[0] != x.args[0]):
        return None
    at = dict(zip(lhs.args[1:], x.args[1:], strict=True))
    return row.rhs, {ell: x.args[0] - (lhs.args[0] - ell), **at}
