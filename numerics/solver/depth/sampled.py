"""Nonlinear residual networks of infinite depth: sampled paths on cells of layer time, extrapolated.

The derived process in layer time (:func:`derive.depth.process.layer_process`) has as its Euler scheme of n
cells the theory of n layers with the branch ``beta0/sqrt(n)``, which sampled paths solve.  Averages are
``X + X_1/n + X_2/n^2 + ...``; four grids give the limit X and the coefficient ``X_1``, which is that of one
over the depth of networks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derive.depth.process import LayerProcess, layer_process
from derive.program import Program
from numerics.experiment.problem import Problem
from numerics.experiment.theory import Reduction, beta, derived
from numerics.names import FEATURE_KERNEL, GRADIENT_KERNEL, RESPONSES
from numerics.progress import Progress
from numerics.results import STDERR, SYSTEMATIC, TRACE
from numerics.solver.depth.solve import SCALING, DepthCorrection, DepthLimit, limit_of, refused

Array = NDArray[np.float64]

CELLS = (2, 4, 8, 16)
"""Cells of the grids of layer time.  Doubled, they enlarge standard errors least (by 4.1 in the limit).  What
they miss of the loss of linear networks, which is known, is 2e-3 (beta0 = 1, five steps)."""

ACCURACY = 2e-2
"""The accuracy that is aimed for where the file does not say one: with CELLS, each
grid is then solved about as exactly as a network is by default."""

SHARE = 0.8
"""The part of an accuracy that standard errors may take; the rest is for the grid."""

LAYERS_FIRST = (FEATURE_KERNEL, GRADIENT_KERNEL, FEATURE_KERNEL + TRACE, GRADIENT_KERNEL + TRACE)
"""Variables whose first axis is that of the layers."""


def process_of(problem: Problem) -> LayerProcess:
    """Return the derived process in layer time of a problem; raises SpecError where there is no limit."""
    return _process(*limit_of(problem))


@lru_cache(maxsize=8)
def _process(program: Program, reductions: tuple[Reduction, ...]) -> LayerProcess:
    return refused(lambda: layer_process(derived(program, reductions), SCALING))


def at_cells(problem: Problem, cells: int) -> Problem:
    """Return the Euler scheme with so many cells: the problem of so many layers, the branch over their root.

    Grids have seeds of their own, so that their errors are independent.  Responses are found by Stein's
    lemma, because derivatives along paths go through all layers of a stream (of 16: 20 times the time).
    """
    seed = int(np.random.SeedSequence([problem.solver.seed, cells]).generate_state(1, np.uint64)[0])
    accuracy = problem.solver.accuracy
    if problem.solver.samples is None:
        accuracy = SHARE * (accuracy or ACCURACY) / float(np.linalg.norm(weights(CELLS)[0]))
    solver = problem.solver.model_copy(update={"seed": seed, "accuracy": accuracy, "method": "auto"})
    how: dict[str, Any] = {"solver": solver, "response_method": "stein"}
    branch = problem.numbers[beta] / cells**0.5
    if problem.experiment is not None:
        found = problem.experiment.replace({"network.depth": cells, "network.branch": branch})
        return replace(Problem.of(found), **how)
    numbers = {**problem.numbers, beta: branch}
    return replace(problem, program=problem.program.at_depth(cells), numbers=numbers, family=None, **how)


def weights(cells: tuple[int, ...]) -> Array:
    """Return the weights of grids in the limit (first row) and in the coefficients of powers of ``1/n``.

    >>> weights((4, 8))
    array([[-1.,  2.],
           [ 8., -8.]])
    """
    spacings = 1.0 / np.array(cells)
    return np.asarray(np.linalg.inv(np.vander(spacings, increasing=True)))


def forecast_depth(problem: Problem, keep: str) -> tuple[float, float, float]:
    """Return seconds, bytes and the relative error of paths on all grids."""
    from numerics.solver.paths.problem import forecast

    seconds, size, error = forecast(at_cells(problem, max(CELLS)), keep)
    return seconds * sum(CELLS) / max(CELLS), size, error * float(np.linalg.norm(weights(CELLS)[0]))


@dataclass(frozen=True)
class SampledDepth:
    """Solutions on grids by name, and what each run reported."""

    cells: tuple[int, ...]
    runs: tuple[dict[str, Array], ...]
    notes: tuple[Mapping[str, Any], ...]

    @property
    def nodes(self) -> Array:
        """Layer times that all grids have."""
        return np.arange(1, (common := gcd(*self.cells)) + 1) / common

    def order(self, n: int) -> dict[str, Array]:
        """Return the coefficients of ``1/depth^n`` with standard errors, and what the grids miss."""
        return self.combined(np.eye(len(self.cells))[n])

    def at_depth(self, depth: float) -> dict[str, Array]:
        """Return the variables of networks of a depth, by the polynomial in ``1/depth`` through all grids."""
        return self.combined(np.array([float(depth) ** -n for n in range(len(self.cells))]))

    def combined(self, powers: Array) -> dict[str, Array]:
        """Return sums of coefficients, so many times each, with standard errors and what the grids miss."""
        fine, middle = (self.row(powers, left) for left in (0, 1))
        found: dict[str, Array] = {}
        for name in self.runs[0]:
            if name.endswith((STDERR, SYSTEMATIC)) or name.partition("_")[0] in RESPONSES:
                continue
            values, errors = (
                np.stack([self.common(x, name, end) for x in self.runs]) for end in ("", STDERR)
            )
            found[name] = np.tensordot(fine, values, 1)
            found[name + STDERR] = np.sqrt(np.tensordot(fine**2, errors**2, 1))
            moved = np.abs(np.tensordot(fine - middle, values, 1))  # what the last grid adds
            noise = np.sqrt(np.tensordot((fine - middle) ** 2, errors**2, 1))
            missed = np.maximum(moved - 2 * noise, 0.0).max(initial=0.0)
            found[name + SYSTEMATIC] = np.full(moved.shape, missed)
        return found

    def row(self, powers: Array, left: int) -> Array:
        """The weights of the grids without the ``left`` coarsest ones."""
        count = len(self.cells) - left
        return np.concatenate([np.zeros(left), powers[:count] @ weights(self.cells[left:])])

    def common(self, run: Mapping[str, Array], name: str, end: str) -> Array:
        """A variable, or its standard error, at the layer times that all grids have."""
        value = run.get(name + end)
        if value is None:
            return np.zeros_like(self.common(run, name, ""))
        if name not in LAYERS_FIRST:
            return value
        step = len(value) // len(self.nodes)
        return value[step - 1 :: step]


def solve_cells(
    problem: Problem,
    keep: str = "none",
    progress: Progress | None = None,
    cells: tuple[int, ...] = CELLS,
) -> SampledDepth:
    """Solve a problem of symbolic depth by sampled paths on all grids.

    Raises :class:`~numerics.errors.SpecError` for what has no limit,
    :class:`~numerics.errors.Diverged` with the step, and :class:`~numerics.errors.NotConverged`.
    """
    from numerics.solver.paths.problem import solve_paths

    process_of(problem)
    runs, notes = [], []
    for done, n in enumerate(cells):

        def counted(k: int, total: int, done: int = done) -> None:
            assert progress is not None
            progress(done * total + k, len(cells) * total)

        values, said = solve_paths(at_cells(problem, n), keep, None if progress is None else counted)
        runs.append(values)
        notes.append(said)
    return SampledDepth(cells, tuple(runs), tuple(notes))


def solve_sampled_correction(
    problem: Problem, keep: str = "none", progress: Progress | None = None
) -> DepthCorrection:
    """Return the limit and the coefficient of one over the depth, each with standard errors beside it."""
    found = solve_cells(problem, keep, progress)
    return DepthCorrection(-1.0, *(_limit(found, n) for n in (0, 1)))


def _limit(found: SampledDepth, n: int) -> DepthLimit:
    """One order; ``errors`` are the largest standard error of a variable, and what the grid misses."""
    values = found.order(n)
    names = [x for x in values if not x.endswith((STDERR, SYSTEMATIC))]
    errors = {x: float(values[x + STDERR].max() + values[x + SYSTEMATIC].max()) for x in names}
    return DepthLimit(max(found.cells), found.nodes, values, errors)
