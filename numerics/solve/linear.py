"""Solve an experiment on a deep linear network: derive its theory, march it, label the result."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from derive.program import Program, mlp
from derive.theory import Theory
from numerics.compile.lower import lower
from numerics.compile.table import Node
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, numbers_of, spectrum_of
from numerics.experiment.problem import Problem
from numerics.experiment.theory import Variant, program_of, solvable
from numerics.predictions import OUTPUT, mean_square, size_of, split, watched
from numerics.solve.afterwards import Afterwards
from numerics.solve.densities import densities
from numerics.solve.exact import solve_flow, solve_steps
from numerics.solve.graded import solve_graded
from numerics.solve.grid import Grid
from numerics.solve.march import March, march
from numerics.solve.method import Kernels, Progress
from numerics.solve.observables import evaluate
from numerics.solve.settle import MAX_NODES, settle

Array = NDArray[np.float64]

ROOM = 2.0**31
"""Bytes up to which ``auto`` keeps two-time kernels of all pairs of samples."""

ROOM_TRACE = 2.0**29
"""Bytes of one response of all layers up to which ``auto`` keeps traces; making them takes ten times that."""


def solved(
    problem: Problem, kernels: Kernels, progress: Progress | None
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The contract's variables of a linear theory at integer depth, and what to report.

    Raises :class:`~numerics.errors.SpecError` when ``full`` fits in no memory, and what marches raise.
    """
    experiment = problem.experiment
    assert experiment is not None
    notes: dict[str, Any] = {}
    if not problem.seen:
        kernels = "none" if kernels == "none" else "full"
        _refuse_too_many_modes(experiment)
    else:
        kernels = _fitting(experiment) if kernels == "auto" else kernels
        _refuse_too_large(experiment, kernels)
    own = problem.program == program_of(experiment)
    variant = None if own else _same(problem.program)
    plain = bool(problem.seen) and problem.program == _plain(experiment)
    if problem.spectrum is not None and problem.flow:
        values, notes = solve_graded(experiment, progress, variant)
    elif not plain and problem.flow:
        values, notes = solve_flow(experiment, kernels, progress, variant)
    elif not plain:
        values = solve_steps(experiment, kernels, progress, variant)
    elif problem.flow:
        values, notes = _flow(experiment, kernels, progress)
    else:
        values = _steps(experiment, kernels, progress)
    return values, {"method": "linear causal march", "kernels": kernels if problem.seen else None, **notes}


def _plain(experiment: Experiment) -> Program:
    training, weighted = experiment.training, experiment.spec.asks_elsewhere
    return mlp(experiment.depth, "linear", training.rule, training.loss, sample_weights=weighted)


@lru_cache(maxsize=16)
def _same(program: Program) -> Variant:
    """The variant that is this program, the same one for the same program."""
    return lambda _: program


def _fitting(experiment: Experiment) -> Kernels:
    """How much of the kernels a result keeps when nobody says."""
    times, samples = len(experiment.times), experiment.sample_count
    if 8.0 * (experiment.depth + 1) * (samples * times) ** 2 <= ROOM:
        return "full"
    return "trace" if 8.0 * experiment.depth * samples * times**2 <= ROOM_TRACE else "none"


def _refuse_too_large(experiment: Experiment, kernels: Kernels) -> None:
    """What no memory holds is refused before anything runs."""
    times, samples, depth = len(experiment.times), experiment.sample_count, experiment.depth
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    march_itself = 8 * 2 * depth * samples * times**2  # one response and one correlation of every sample
    if march_itself > have:
        gd = experiment.training.rule == "gd"
        key, value = ("training.steps", times - 1) if gd else ("training.points", times)
        problem = f"needs {march_itself / 2**30:.0f} GiB for the two-time functions of the theory"
        raise SpecError(
            key, value, f"{problem}; there are {have / 2**30:.0f}", "fewer times, or fewer samples"
        )
    if kernels != "full":
        return
    entries = (depth + 1) * (samples * times) ** 2
    if 8 * entries > have:
        problem = f"needs {8 * entries / 2**30:.0f} GiB for the kernels of all pairs of samples and times"
        raise SpecError("--kernels", kernels, f"{problem}; there are {have / 2**30:.0f}", "trace or none")


def _refuse_too_many_modes(experiment: Experiment) -> None:
    """The same of responses of modes."""
    spectrum, random = spectrum_of(experiment), experiment.network.width is not None
    if spectrum is None or not random or experiment.training.rule == "flow":
        return
    have = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    steps = len(experiment.times)
    sources = 2 if experiment.training.rule == "sgd" else 1
    needed = 8 * 2 * sources * steps**2 * len(spectrum.counts)  # of v and h0 to each source
    if needed > have:
        problem = f"needs {needed / 2**30:.0f} GiB for the responses of modes; there are {have / 2**30:.0f}"
        raise SpecError("training.steps", steps - 1, problem, "fewer steps, or fewer modes")


# -- one march -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """A march with the theory and data that it solved."""

    theory: Theory
    result: March
    data: dict[str, Array]
    experiment: Experiment

    @property
    def depth(self) -> int:
        """Number of hidden layers."""
        return self.experiment.depth


def _march(experiment: Experiment, steps: int, weights: Array | None, progress: Progress | None) -> Run:
    training, weighted = experiment.training, experiment.spec.asks_elsewhere
    theory = solvable(experiment.depth, training.rule, training.loss, sample_weights=weighted)
    data = arrays_of(experiment)
    if weights is not None:
        data["w"] = weights
    layers = range(1, experiment.depth + 1)
    wanted: tuple[Node, ...] = tuple(("G", k) for k in layers)
    result = march(
        lower(theory),
        steps=steps,
        constants=numbers_of(experiment),
        data=data,
        wanted=wanted,
        progress=progress,
    )
    return Run(theory, result, data, experiment)


def _steps(experiment: Experiment, kernels: Kernels, progress: Progress | None) -> dict[str, Array]:
    count = len(experiment.times)
    run = _march(experiment, count, None, progress)
    return _values(run, kernels, np.arange(count), None)


def _flow(
    experiment: Experiment, kernels: Kernels, progress: Progress | None
) -> tuple[dict[str, Array], dict[str, Any]]:
    def attempt(grid: Grid) -> tuple[Array, Run]:
        run = _march(experiment, len(grid.nodes), grid.weights, progress)
        return watched(experiment, run.result.scalars)[grid.outputs], run

    grid, run, notes = settle(experiment.times, experiment.solver.rtol, attempt, size_of(experiment))
    return _values(run, kernels, grid.outputs, grid), notes


# -- labelled values -----------------------------------------------------------------------------------


def _values(run: Run, kernels: Kernels, at: NDArray[np.intp], grid: Grid | None) -> dict[str, Array]:
    """The contract's variables at the nodes ``at``."""
    values = split(run.experiment, _of_all_samples(run, kernels, at, grid))
    return values | {"train_loss": mean_square(values["error"])}


def _of_all_samples(run: Run, kernels: Kernels, at: NDArray[np.intp], grid: Grid | None) -> dict[str, Array]:
    """Of training samples and test points; traces are those over training samples."""
    values = {"error": run.result.scalars["Delta"][at], OUTPUT: run.result.scalars["f"][at]}
    layers = range(1, run.depth + 1)
    pick = np.ix_(at, at)
    G = {k: run.result.correlation(("g", k), ("g", k))[:, 0, :, 0][pick] for k in layers}
    values["G"] = np.stack([G[k] for k in layers])
    if kernels == "none":
        return values
    trained = len(run.experiment.targets)
    after = Afterwards(run.result, run.data, numbers_of(run.experiment), at, trained)
    nodes = [("h", k) for k in layers]
    if kernels == "trace":
        # every term of the tangent kernel has one sample-indexed factor, so the trace goes through to it
        traces = [after.trace(x) for x in nodes]
        values["Phi_trace"] = np.stack(traces)
        single = {"K_x": np.trace(run.experiment.kernel).reshape(1, 1)}
        H: dict[Node, Array] = {("H", k): traces[k - 1][None, None] for k in layers}
        values["tangent_kernel_trace"] = _tangent(run, H, G, single)[:, :, 0, 0]
        return values
    full = [after.outputs(x, x) for x in nodes]
    values["Phi"] = np.stack([x.transpose(0, 2, 1, 3) for x in full])
    values["tangent_kernel"] = _tangent(
        run, {("H", k): full[k - 1].transpose(1, 3, 0, 2) for k in layers}, G, run.data
    )
    values |= _responses(run, at, grid)
    return values


def _tangent(run: Run, H: dict[Node, Array], G: dict[int, Array], data: dict[str, Array]) -> Array:
    tensors: dict[Node, Array] = H | {("G", k): x for k, x in G.items()}
    return evaluate(run.theory.observables[0], tensors, data, numbers_of(run.experiment))


def _responses(run: Run, at: NDArray[np.intp], grid: Grid | None) -> dict[str, Array]:
    """A^l (and A^L, which enters f) and B^l, over gamma0; for the flow as densities in s."""
    error = run.result.scalars["Delta"][at]
    scale = float(run.experiment.network.gamma0)
    smooth = None
    if grid is not None:
        smooth = densities(run.result, grid.nodes, run.data, numbers_of(run.experiment))

    def read(i: Node, k: Node) -> Array:
        full = (run.result.response(i, k) if smooth is None else smooth[i, k])[..., 0]
        return full[at][..., at] / scale

    A = [read(("h", k), ("r", k)).transpose(0, 2, 1) for k in range(1, run.depth + 1)]
    B = [read(("g", k), ("u_p", k))[:, 0, :, None] * error[None] for k in range(2, run.depth + 1)]
    return {"A": np.stack(A), "B": np.stack([*B, np.zeros_like(A[0])])}


__all__ = ["MAX_NODES", "Run", "solved"]
