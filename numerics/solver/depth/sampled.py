"""Nonlinear residual networks of infinite depth: sampled paths on cells of layer time, extrapolated.

The Euler scheme with n cells of the derived process in layer time
(:func:`derive.depth.process.layer_process`) is the theory of n layers, which sampled paths solve. A program
may state how its branch depends on the depth, as ``beta/L``; otherwise the branch is ``beta0/sqrt(n)``.
Averages are ``X + X_1/n + X_2/n^2 + ...``; four grids give the limit X and the
coefficient ``X_1``, which is that of 1/depth for networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derive.depth.block_sizes import states_depth
from derive.depth.infinite import Scaling
from derive.depth.process import LayerProcess, layer_process
from derive.program import Program
from numerics.errors import SpecError, require_whole
from numerics.experiment.problem import Problem
from numerics.experiment.theory import Reduction, beta, derived
from numerics.names import RESPONSES
from numerics.progress import Progress
from numerics.results import STDERR, SYSTEMATIC
from numerics.solver.depth.solve import SCALING, DepthCorrection, DepthLimit, limit_of, require_derived

Array = NDArray[np.float64]

CELLS = (2, 4, 8, 16)
"""Numbers of cells of the grids of layer time.

Doubling from grid to grid enlarges the standard errors of the extrapolation least (by 4.1 in the limit). The
grid error of the loss of linear networks, whose exact value is known, is 2e-3 (beta0 = 1, five steps).
"""

ACCURACY = 2e-2
"""Accuracy if ``solver.accuracy`` is not given.

Each grid is then solved about as accurately as networks of finite depth are by default.
"""

SHARE = 0.8
"""Share of the required accuracy that standard errors may take; the rest is for the error of the grid."""


def process_of(problem: Problem) -> LayerProcess:
    """Return the derived stochastic process in layer time that describes a problem at infinite depth.

    Raises SpecError if there is no such limit.
    """
    return _process(*limit_of(problem))


@lru_cache(maxsize=8)
def _process(program: Program, reductions: tuple[Reduction, ...]) -> LayerProcess:
    """Derive the stochastic process in layer time that describes a residual program at infinite depth.

    ``reductions`` are applied to the theory first. Results are cached. Raises SpecError if there is no such
    limit.
    """
    theory = derived(program, reductions)
    return require_derived(lambda: layer_process(theory, Scaling() if states_depth(theory) else SCALING))


def is_scaled(problem: Problem) -> bool:
    """Return whether the program of a problem states how it depends on the depth L.

    This is so if L stands in the coefficients or covariances of its theory, as in the factor of a branch or
    in a learning rate. It is false for an experiment from a file, whose branch is then divided by the root of
    the depth.
    """
    return problem.experiment is None and states_depth(derived(*limit_of(problem)))


def at_cells(problem: Problem, cells: int, grids: tuple[int, ...] = CELLS) -> Problem:
    """Return the problem whose number of layers is ``cells``: an Euler scheme of the process in layer time.

    The branch is divided by the root of the number of cells, if the problem does not state its depth. Grids
    have different seeds, so that their errors are independent. Unless ``solver.samples`` is given, the
    accuracy of a grid is set so that the standard error of the limit from all ``grids`` takes the part SHARE
    of the required accuracy. Responses come from Stein's lemma, because derivatives along paths run through
    all layers (with 16 layers 20 times slower).
    """
    seed = int(np.random.SeedSequence([problem.solver.seed, cells]).generate_state(1, np.uint64)[0])
    accuracy = problem.solver.accuracy
    if problem.solver.samples is None:
        accuracy = SHARE * (accuracy or ACCURACY) / float(np.linalg.norm(weights(grids)[0]))
    solver = problem.solver.model_copy(update={"seed": seed, "accuracy": accuracy, "method": "auto"})
    how: dict[str, Any] = {"solver": solver, "response_method": "stein"}
    if is_scaled(problem):
        return replace(problem, program=problem.program.at_depth(cells), family=None, **how)
    branch = problem.numbers[beta] / cells**0.5
    if problem.experiment is not None:
        experiment = problem.experiment.replace({"network.depth": cells, "network.branch": branch})
        return replace(Problem.of(experiment), **how)
    numbers = {**problem.numbers, beta: branch}
    return replace(problem, program=problem.program.at_depth(cells), numbers=numbers, family=None, **how)


def weights(cells: tuple[int, ...]) -> Array:
    """Return the weights of grids in the limit (first row) and in the coefficients of powers of ``1/n``.

    ``cells`` are the numbers of cells n of the grids, which are the columns. Row k is for the power k.

    >>> weights((4, 8))
    array([[-1.,  2.],
           [ 8., -8.]])
    """
    spacings = 1.0 / np.array(cells)
    return np.asarray(np.linalg.inv(np.vander(spacings, increasing=True)))


def forecast_depth(problem: Problem, keep: str) -> tuple[float, float, float]:
    """Return the estimated seconds, bytes and relative error of the limit, by sampled paths on all grids.

    The grids are those in CELLS; ``keep`` states which kernels the result holds.
    """
    from numerics.solver.paths.problem import forecast

    seconds, size, error = forecast(at_cells(problem, max(CELLS)), keep)
    return seconds * sum(CELLS) / max(CELLS), size, error * float(np.linalg.norm(weights(CELLS)[0]))


@dataclass(frozen=True)
class SampledDepth:
    """Solutions by sampled paths on several grids of layer time.

    Attributes
    ----------
    cells : tuple of int
        Number of cells of each grid.
    runs : tuple of dict
        Variables of each solution, with standard errors.
    notes : tuple of dict
        Attributes of each solution, such as its status and number of paths.
    """

    cells: tuple[int, ...]
    runs: tuple[dict[str, Array], ...]
    notes: tuple[Mapping[str, Any], ...]

    @property
    def nodes(self) -> Array:
        """Layer times that all grids have, from ``1/nodes`` to 1 in equal steps, shape (nodes,)."""
        common = gcd(*self.cells)
        return np.arange(1, common + 1) / common

    def order(self, n: int) -> dict[str, Array]:
        """Return the coefficients of ``1/depth^n``, with standard errors and grid errors.

        Parameters
        ----------
        n : int
            Order: 0 is the limit; at most the number of grids minus one.

        Returns
        -------
        dict
            Variables, standard errors ``*_stderr`` and grid errors ``*_systematic``.
        """
        return self.combined(np.eye(len(self.cells))[n])

    def at_depth(self, depth: float) -> dict[str, Array]:
        """Return the variables at a depth, from the polynomial in ``1/depth`` through all grids.

        Parameters
        ----------
        depth : float
            Number of layers.

        Returns
        -------
        dict
            Variables, standard errors ``*_stderr`` and grid errors ``*_systematic``.
        """
        return self.combined(np.array([float(depth) ** -n for n in range(len(self.cells))]))

    def combined(self, powers: Array) -> dict[str, Array]:
        """Return a linear combination of the coefficients of powers of 1/depth, with errors.

        Responses are left out, and variables whose shape depends on the grid by more than its number of
        layers.

        Parameters
        ----------
        powers : numpy.ndarray, shape (grids,)
            Factor of each coefficient; the first one is the limit of infinite depth.

        Returns
        -------
        dict
            Variables, standard errors ``*_stderr`` and grid errors ``*_systematic``. The grid error is the
            change of the result if the coarsest grid is left out, minus twice the standard error of this
            change, or zero if that is negative; the largest over all entries of the variable.
        """
        fine, middle = (self.row(powers, left) for left in (0, 1))
        combination: dict[str, Array] = {}
        for name in self.runs[0]:
            if name.endswith((STDERR, SYSTEMATIC)) or name.partition("_")[0] in RESPONSES:
                continue
            axis = self.layer_axis(name)
            if axis is None:
                continue
            values, errors = (
                np.stack([self.common(x, name, end, axis) for x in self.runs]) for end in ("", STDERR)
            )
            combination[name] = np.tensordot(fine, values, 1)
            combination[name + STDERR] = np.sqrt(np.tensordot(fine**2, errors**2, 1))
            # `fine` and `middle` are the weights of the grids with and without the coarsest grid. For each
            # entry, the change of the result without the coarsest grid is reduced by two standard errors of
            # this change. The grid error is the largest of these numbers, or 0 if all are negative.
            change = np.abs(np.tensordot(fine - middle, values, 1))
            noise = np.sqrt(np.tensordot((fine - middle) ** 2, errors**2, 1))
            grid_error = np.maximum(change - 2 * noise, 0.0).max(initial=0.0)
            combination[name + SYSTEMATIC] = np.full(change.shape, grid_error)
        return combination

    def row(self, powers: Array, left: int) -> Array:
        """Return the weights of the grids in a linear combination of coefficients of powers of 1/depth.

        Parameters
        ----------
        powers : numpy.ndarray, shape (grids,)
            Factor of each coefficient.
        left : int
            Number of coarsest grids to leave out, and of highest powers, which cannot be determined then.

        Returns
        -------
        numpy.ndarray
            Weights, shape ``(grids,)``; zero for grids that are left out.
        """
        count = len(self.cells) - left
        return np.concatenate([np.zeros(left), powers[:count] @ weights(self.cells[left:])])

    def layer_axis(self, name: str) -> int | None:
        """Return the axis of a variable whose length is the number of cells of each grid.

        Parameters
        ----------
        name : str
            Variable.

        Returns
        -------
        int or None
            The axis; -1 if the shape is the same on all grids, so that the variable has no axis of layers;
            None if its shape changes in another way.
        """
        shapes = np.array([x[name].shape for x in self.runs])
        axes = np.flatnonzero((shapes != shapes[0]).any(axis=0))
        if len(axes) == 0:
            return -1
        return int(axes[0]) if np.array_equal(shapes[:, axes[0]], self.cells) else None

    def common(self, run: Mapping[str, Array], name: str, end: str, axis: int) -> Array:
        """Return a variable, or its standard error, at the layer times that all grids have.

        Parameters
        ----------
        run : dict of str to numpy.ndarray, shape (layers, T, ...) or (T, ...)
            Variables of one solution.
        name : str
            Variable.
        end : str
            Suffix of the standard error, or empty.
        axis : int
            Axis of the layers; -1 without layers.

        Returns
        -------
        numpy.ndarray
            Values at the common layer times; zeros if there is no standard error.
        """
        value = run.get(name + end)
        if value is None:
            return np.zeros_like(self.common(run, name, "", axis))
        if axis < 0:
            return value
        step = value.shape[axis] // len(self.nodes)
        return np.take(value, np.arange(step - 1, value.shape[axis], step), axis)


def solve_cells(
    problem: Problem,
    keep: str = "none",
    progress: Progress | None = None,
    cells: tuple[int, ...] = CELLS,
) -> SampledDepth:
    """Solve a problem of symbolic depth by sampled paths on several grids of layer time.

    Parameters
    ----------
    problem : Problem
        Problem whose depth is a symbol.
    keep : str
        Two-time kernels to keep: "full", "trace" or "none".
    progress : Progress, optional
        Callback that reports progress.
    cells : tuple of int
        Number of cells of each grid, in increasing order.

    Returns
    -------
    SampledDepth
        The solutions, from which orders in 1/depth follow.

    Raises
    ------
    SpecError
        If there is no limit of infinite depth, and for numbers of cells that are not positive or do not
        increase.
    Diverged
        If the solution diverges; the message states the step.
    NotConverged
        If a grid has no solution. A grid that misses its accuracy has the status "not converged" in the
        notes.
    """
    from numerics.solver.paths.problem import solve_paths

    for n in cells:
        require_whole("cells", n, 1, "must be positive")
    if not cells or any(b <= a for a, b in pairwise(cells)):
        raise SpecError("cells", cells, "must be one or more rising numbers", "numbers such as (2, 4, 8)")
    process_of(problem)
    runs, notes = [], []
    for done, n in enumerate(cells):

        def counted(k: int, total: int, done: int = done) -> None:
            assert progress is not None
            progress(done * total + k, len(cells) * total)

        values, run_notes = solve_paths(
            at_cells(problem, n, cells), keep, None if progress is None else counted
        )
        runs.append(values)
        notes.append(run_notes)
    return SampledDepth(cells, tuple(runs), tuple(notes))


def solve_sampled_correction(
    problem: Problem, keep: str = "none", progress: Progress | None = None
) -> DepthCorrection:
    """Return the limit of infinite depth and the coefficient of 1/depth by sampled paths.

    Parameters
    ----------
    problem : Problem
        Problem whose depth is a symbol.
    keep : str
        Two-time kernels to keep: "full", "trace" or "none".
    progress : Progress, optional
        Callback that reports progress.

    Returns
    -------
    DepthCorrection
        Both orders, with standard errors ``*_stderr`` and grid errors ``*_systematic`` among their values.

    Raises
    ------
    SpecError
        If there is no limit of infinite depth.
    Diverged
        If the solution diverges; the message states the step.
    NotConverged
        If a grid has no solution.
    """
    solutions = solve_cells(problem, keep, progress)
    return DepthCorrection(-1.0, *(_limit(solutions, n) for n in (0, 1)))


def _limit(solutions: SampledDepth, n: int) -> DepthLimit:
    """Return the coefficient of ``1/depth^n`` as a :class:`DepthLimit`, with one error for each variable.

    The error is the sum of the largest standard error and the grid error.
    """
    values = solutions.order(n)
    names = [x for x in values if not x.endswith((STDERR, SYSTEMATIC))]
    errors = {x: float(values[x + STDERR].max() + values[x + SYSTEMATIC].max()) for x in names}
    return DepthLimit(max(solutions.cells), solutions.nodes, values, errors)
