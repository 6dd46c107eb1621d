"""Long times: rest points of outputs under weight decay, and kernels of Langevin dynamics.

A network that is homogeneous in its weights comes to rest if its outputs are kernel ridge regression with its
own final tangent kernel (:func:`derive.reduce.ridge.representer`). Both come from one solution by sampled
paths: each replica's outputs are compared with the regression of its own kernel, so that common sampling
errors cancel.

At weak feature learning the kernels of Langevin dynamics become stationary too. They obey a derived recursion
(:func:`derive.reduce.stationary`), which is closed in averages over pairs of Gaussian variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Eq, Expr, Float, Function, Integer, Symbol
from sympy.core.function import AppliedUndef

from derive.calculus.gaussian import GaussianAverage
from derive.calculus.symbols import converted
from derive.program import Program, ell
from derive.program.networks.options import SAMPLE_WEIGHT, has_sample_weights
from derive.reduce.ridge import representer
from derive.reduce.stationary import Stationary, stationary
from derive.theory import Theory, mean_field
from numerics.averages.kink_quadrature import Moment
from numerics.errors import SpecError, require_whole
from numerics.experiment import Experiment
from numerics.experiment.checks import by_name, given_arrays, real_numbers
from numerics.experiment.given_data import require_shapes
from numerics.experiment.problem import Problem
from numerics.lowering.indices import RealNumber
from numerics.names import INPUT_KERNEL, OUTPUT, TARGETS
from numerics.solver.paths.solve import Solved, solve_particles

Array = NDArray[np.float64]

SHARE = 4
"""The rate of convergence is measured in the last 1/SHARE of the steps."""

FEWEST = 2 * SHARE
"""Smallest number of steps from which a rate can be measured."""

SMALLER = 0.75
"""Moves of outputs count as shrinking if, over the last 1/SHARE of the steps, the ratio of their size in the
second half to that in the first half is below this number."""


@dataclass(frozen=True)
class AtRest:
    """Outputs after the last step, and ridge regression with the tangent kernel of that step.

    Arrays have an entry for each sample (and channel), test points included.

    Attributes
    ----------
    kappa, ridge : float
        Degree of homogeneity of the network in its weights, and ridge parameter of the regression.
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
    program: Program | Experiment | str | Path,
    *,
    steps: int | None = None,
    values: Mapping[Symbol | str, RealNumber] | None = None,
    data: Mapping[str, Any] | None = None,
    tolerance: float = 1e-3,
    **options: Any,
) -> AtRest:
    """Train with weight decay for ``steps`` steps and compare outputs with ridge regression.

    ``program`` is a network on fixed samples with a rule in steps (with ``values`` and ``data`` as for
    :func:`.solve_particles`, which takes the other ``options``), or an experiment or the path of its file.
    Values and data are then those of the experiment, and so are ``steps`` if not given; the
    ``solver.samples`` and ``solver.seed`` of the file are not read. The regression is over the training
    samples; with sample weights, samples of weight zero are test points. ``tolerance`` is in units of the
    largest target. A flow has the same rest points as steps.

    Raises :class:`~derive.reduce.homogeneous.NotHomogeneous` for networks to which the theorem does not
    apply, :class:`~derive.errors.NotApplicable` for rules without rest points,
    :class:`~numerics.errors.SpecError` for an experiment that is not descent on fixed data and for steps
    that are not an integer of at least FEWEST, and ValueError for a program without ``steps``, ``values`` or
    ``data``.
    """
    if isinstance(program, Experiment | str | Path):
        program = Experiment.of(program)
        _require_descent(program)
        problem = Problem.of(program)
        program, values, data = problem.program, problem.values, problem.arrays
        steps = len(problem.times) if steps is None else steps
    if steps is None or values is None or data is None:
        raise ValueError("for a program, give steps, values and data; an experiment contains them")
    steps = require_whole("steps", steps, FEWEST, "are too few to tell whether the outputs have converged")
    numbers = by_name("values", values)
    theory = mean_field(program)
    theorem = representer(theory)
    _require_numbers(
        theory, {x.name for e in (theorem.kappa, theorem.ridge) for x in e.free_symbols}, numbers
    )
    kappa, ridge = (
        float(e.subs({x: numbers[x.name] for x in e.free_symbols})) for e in (theorem.kappa, theorem.ridge)
    )
    solved = solve_particles(theory, steps=steps, values=values, data=data, **options)
    targets = np.asarray(data[TARGETS], dtype=float)
    return compare(solved, kappa, ridge, targets, _weights(program, data), tolerance)


def _require_numbers(theory: Theory, used: Set[str], numbers: Mapping[str, Any]) -> None:
    """Raise SpecError for a symbolic depth, and unless each of the symbols ``used`` has a number."""
    if not theory.program.depth.is_Integer:
        raise SpecError(
            "depth", str(theory.program.depth), "is not a number of layers", "a program such as mlp(2)"
        )
    if missing := sorted(used - numbers.keys()):
        raise SpecError("values", missing[0], "has no number", f"numbers for {', '.join(missing)}")


def compare(
    solved: Solved, kappa: float, ridge: float, targets: Array, weights: Array, tolerance: float = 1e-3
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
    replicas = solved.replicas
    f = solved.runs[OUTPUT, ()].reshape(replicas, -1, targets.size)  # axes: replica, time, output
    steps = f.shape[1]
    rho = np.repeat(weights, targets.size // len(weights))
    predicted = np.empty_like(f)
    for n in range(replicas):
        for step in range(steps):
            kernel = _kernel(solved, n, np.array([step]), targets)
            predicted[n, step] = regression(kernel, targets.ravel(), rho, ridge)
    gap = f - predicted
    mean = gap.mean(axis=0)
    moves = np.abs(np.diff(f.mean(axis=0), axis=0)).max(axis=1)
    rate = _shrinking(moves)
    to_go = rate / (1 - rate) if rate < 1 else np.inf
    remaining = float(moves[-1] * to_go) if moves[-1] > 0 else 0.0
    window = np.arange(steps - steps // SHARE, steps)
    averaged = np.stack(
        [
            f[n, window].mean(axis=0)
            - regression(_kernel(solved, n, window, targets), targets.ravel(), rho, ridge)
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
        *with_error(averaged),
        np.abs(mean).max(axis=1),
        moves,
        rate,
        remaining,
        bool(remaining <= tolerance * np.abs(targets).max()),
        solved,
    )


def regression(kernel: Array, targets: Array, weights: Array, ridge: float) -> Array:
    """Return the kernel ridge regression ``k(x)^T rho [K rho + ridge]^{-1} y`` at all points x.

    ``kernel`` (n, n), ``targets`` (n,), ``weights`` (n,) and the result (n,) are those of all points, with
    the channels of a point flattened. The weights rho multiply the terms of the loss of the regression.
    Points of weight zero are test points: their targets are not used.

    >>> regression(np.array([[1.0, 0.5], [0.5, 1.0]]), np.array([1.0, 9.0]), np.array([1.0, 0.0]), 1.0)
    array([0.5 , 0.25])
    """
    weighed = kernel * weights  # column j of the kernel times the weight of sample j
    return np.asarray(weighed @ np.linalg.solve(weighed + ridge * np.eye(len(kernel)), targets))


def _kernel(solved: Solved, replica: int, window: NDArray[np.int_], targets: Array) -> Array:
    """Return the tangent kernel of one replica, averaged over all pairs of steps in ``window``.

    Its shape is that of a matrix over samples and channels of ``targets``.
    """
    pairs = solved.runs["K", ()][replica][..., window[:, None], window]
    return np.asarray(pairs.mean(axis=(-1, -2)).reshape(targets.size, targets.size))


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


def _weights(program: Program, data: Mapping[str, Any]) -> Array:
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

    ``theory`` is at integer depth; lags of a rule in steps count steps. Arrays have an axis for each index of
    the kernel and the lags last: ``("Phi", 1)`` has shape (P, P, lags). The names ``H`` and ``Z`` are those
    of the covariances of the fields h and z. ``values`` and ``data`` are as for :func:`.solve_particles`.
    Raises the errors of :func:`derive.reduce.stationary`, and SpecError for negative lags, for lags of a rule
    in steps that are not whole numbers, and for a kernel of the data that is not symmetric positive
    semidefinite.

    >>> from derive.program import eta, mlp
    >>> decay, heat = Symbol("decay", positive=True), Symbol("heat", positive=True)
    >>> noisy = mean_field(mlp(1, "relu", weight_decay=decay, temperature=heat))
    >>> values = {decay: 1.0, heat: 0.5, eta: 0.2}
    >>> kernels = stationary_kernels(noisy, values=values, data={"K_x": [[1.0]]}, lags=(0, 1))
    >>> kernels["Phi", 1].round(4).tolist(), kernels["G", 1].round(4).tolist()
    ([[[0.2778, 0.2298]]], [[[0.2778, 0.1767]]])
    """
    numbers = {name: converted(x) for name, x in by_name("values", values).items()}
    for lag in real_numbers("lags", lags).ravel():
        if lag < 0 or (theory.program.rule.discrete and lag != int(lag)):
            accepted = "whole numbers of steps >= 0" if theory.program.rule.discrete else "numbers >= 0"
            raise SpecError("lags", float(lag), "is not a lag between two times", accepted)
    arrays = given_arrays(theory.program, data)
    require_shapes(theory.program, arrays, numbers)
    recursion = stationary(theory)
    rows = (*recursion.fields, *recursion.kernels)
    used = {x.name for row in rows for x in row.rhs.free_symbols} & theory.symbols.keys()
    _require_numbers(theory, used - {x.name for row in rows for x in row.lhs.free_symbols}, numbers)
    if missing := [x.kernel for x in theory.program.given if x.kernel not in arrays]:
        raise SpecError("data", missing[0], "has no array", f"arrays of {', '.join(missing)}")
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
                [float(solver.value(Function(name)(layer, *at, _number(lag)))) for lag in lags]
                for at in product(range(1, samples + 1), repeat=len(indices))
            ]
            kernels[name, layer] = np.array(entries).reshape(*shape, len(lags))
    return kernels


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
        plain = plain.subs({x: self.numbers[x.name] for x in plain.free_symbols})
        return plain.replace(lambda a: isinstance(a, AppliedUndef), self.value)

    def average(self, a: GaussianAverage, at: Mapping[Expr, Expr]) -> float:
        """Return the value of a Gaussian average, with numbers ``at`` for the indices in its covariances."""
        c = [[float(self.number(x, at)) for x in a.matrix.row(i)] for i in range(len(a.variables))]
        return Moment(a.body, a.variables)(c[0][0], c[-1][-1], c[0][-1], ACCURACY)[0]


def _matched(row: Eq, x: AppliedUndef) -> tuple[Expr, dict[Expr, Expr]] | None:
    """Return how the equation ``row`` gives the kernel ``x``: its right-hand side, and values of its indices.

    The result is None if the left-hand side of the equation is another kernel, or another layer.
    """
    lhs = row.lhs
    if lhs.func != x.func or (lhs.args[0].is_Integer and lhs.args[0] != x.args[0]):
        return None
    at = dict(zip(lhs.args[1:], x.args[1:], strict=True))
    return row.rhs, {ell: x.args[0] - (lhs.args[0] - ell), **at}
