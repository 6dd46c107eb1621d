"""Solve an experiment on any linear network: derive its theory, march it, label it.

What a theory holds decides what a result holds: errors and kernels of fixed samples, correlations and
responses of random data.  A flow is marched as an explicit integrator sees it, on ever finer grids; it has no
responses in its result, which are densities there.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import S

from derive.program import gamma0
from derive.reduce.data import NOISE, LossDecomposition, loss_decomposition
from derive.theory import Theory
from numerics.compile.lower import lower
from numerics.compile.table import Node, Request, Table
from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, numbers_of, spectrum_of, structure, theory_at_depth
from numerics.experiment.theory import Variant
from numerics.predictions import OUTPUT, mean_square, size_of, split, watched
from numerics.solve.grid import Grid
from numerics.solve.march import March, march
from numerics.solve.memory import memory_tables
from numerics.solve.observables import evaluate
from numerics.solve.parts import NAMES, loss_parts
from numerics.solve.settle import settle

Array = NDArray[np.float64]
Outputs = NDArray[np.intp]
Progress = Callable[[int, int], None]

RANDOM = ("C_v", "C_Delta", "C_h0", "C_h", "C_g", "R_hr", "R_gu", "R_Delta", "R_vu", "R_h0r0")
"""What a result on random data holds of the theory's order parameters, those that the theory has."""


def solve_steps(
    experiment: Experiment,
    kernels: str = "full",
    progress: Progress | None = None,
    variant: Variant | None = None,
) -> dict[str, Array]:
    """The contract's variables, by name; ``kernels`` is ``full``, ``trace`` or ``none`` of fixed samples; on
    isotropic data ``none`` leaves out the parts of the loss.

    With ``variant`` they are those of another program, made of the experiment's own.  Raises
    :class:`~numerics.errors.Diverged` with the step.
    """
    run = _run(experiment, variant, kernels, len(experiment.times), {}, progress)
    return _values(experiment, variant, run, kernels, None)


def solve_flow(
    experiment: Experiment,
    kernels: str = "full",
    progress: Progress | None = None,
    variant: Variant | None = None,
) -> tuple[dict[str, Array], dict[str, Any]]:
    """The contract's variables at the output times, without responses, and what to report of the accuracy.

    Grids are refined until the errors and the predictions on test points (of random data the equal-time
    ``C_v``) have settled to ``solver.rtol``.  Raises :class:`~numerics.errors.NotConverged` when that takes
    too many nodes.
    """

    def attempt(grid: Grid) -> tuple[Array, March]:
        tables = memory_tables(experiment, grid.nodes, grid.weights)
        run = _run(experiment, variant, kernels, len(grid.nodes), tables, progress)
        if experiment.spec.kind == "fixed":
            return watched(experiment, run.scalars)[grid.outputs], run
        return _equal(_two_times(run, ("C_v", None)))[grid.outputs], run

    grid, run, notes = settle(experiment.times, experiment.solver.rtol, attempt, size_of(experiment))
    return _values(experiment, variant, run, kernels, grid), notes


def _run(
    experiment: Experiment,
    variant: Variant | None,
    kernels: str,
    steps: int,
    tables: dict[str, Array],
    progress: Progress | None,
) -> March:
    _, table = _lowered(structure(experiment).text, variant)
    fixed = experiment.spec.kind == "fixed"
    wanted = tuple(table.tensors) if not fixed or kernels != "none" else tuple(_named(table, "G"))
    if tables:
        wanted = tuple(n for n in wanted if table.tensors[n].kind == "correlation")
    return march(
        table,
        steps=steps,
        constants=numbers_of(experiment),
        data=arrays_of(experiment) | tables,
        wanted=wanted,
        watched=() if fixed else (("C_v", None),),
        units=spectrum_of(experiment),
        progress=progress,
    )


def _values(
    experiment: Experiment, variant: Variant | None, run: March, kernels: str, grid: Grid | None
) -> dict[str, Array]:
    at = None if grid is None else grid.outputs
    if experiment.spec.kind == "fixed":
        return _of_samples(experiment, variant, run, kernels, at)
    values = _of_random_data(experiment, run, at)
    if kernels != "none" and experiment.spec.kind == "isotropic":
        values |= _parts(experiment, variant, run, grid)
    return values


@lru_cache(maxsize=64)
def _lowered(text: str, variant: Variant | None) -> tuple[Theory, Table]:
    """The theory of a structure, and its rows with those of the ends."""
    experiment = Experiment.without_arrays(tomllib.loads(text))
    theory = theory_at_depth(experiment, variant)
    table = lower(theory)
    fixed = experiment.spec.kind == "fixed"
    return theory, _with_ends(table, experiment.depth) if fixed else _with_last(table, experiment.depth)


# -- random data ---------------------------------------------------------------------------------------


def _of_random_data(experiment: Experiment, result: March, at: Outputs | None) -> dict[str, Array]:
    table = result.plan.table
    values: dict[str, Array] = {}
    for name in RANDOM:
        nodes = _named(table, name)
        if at is not None and name.startswith("R_"):
            continue
        if nodes == [(name, None)]:
            values[name] = _two_times(result, nodes[0], at)
        elif nodes:
            layers = range(1, experiment.depth + 1)
            found = {k: _two_times(result, (name, k), at) for _, k in nodes if k is not None}
            shape = next(iter(found.values())).shape
            values[name] = np.stack([found.get(k, np.zeros(shape)) for k in layers])
    noise = 0.0 if experiment.spec.data is None else experiment.spec.data.noise or 0.0
    square = noise**2 * experiment.network.outputs
    test = _equal(values["C_v"]) + square
    return {
        "train_loss": _equal(values["C_Delta"]) if "C_Delta" in values else test,
        "test_loss": test,
    } | values


def _parts(
    experiment: Experiment, variant: Variant | None, result: March, grid: Grid | None
) -> dict[str, Array]:
    """The test loss by what causes it; label noise counts with its own square, which nothing can fit."""

    tables = {} if grid is None else memory_tables(experiment, grid.nodes, grid.weights)
    tables = {k: x if x.ndim == 1 else x[:, None, :, None] for k, x in tables.items()}

    def read(n: Node) -> Array:
        return tables[n[0]] if n[0] in tables else result.tensor(n)

    outputs = experiment.network.outputs
    split = _split(structure(experiment).text, variant)
    found = loss_parts(split, read, numbers_of(experiment), result.steps, outputs)
    noise = experiment.spec.data.noise if experiment.spec.data is not None else None
    if noise:
        found[NOISE] = found.get(NOISE, np.zeros(result.steps)) + outputs * noise**2
    return {NAMES[k]: x if grid is None else x[grid.outputs] for k, x in found.items()}


@lru_cache(maxsize=64)
def _split(text: str, variant: Variant | None) -> LossDecomposition:
    """Of the theory of a structure."""
    theory, _ = _lowered(text, variant)
    return loss_decomposition(theory)


def _with_last(table: Table, depth: int) -> Table:
    """The response of the last layer too, which no layer above reads."""
    known = next((q for (name, _), q in table.tensors.items() if name == "R_hr"), None)
    if known is None:
        return table
    last = replace(known, first=("h", depth), second=("r", depth))
    return replace(table, tensors={**table.tensors, ("R_hr", depth): last})


def _two_times(result: March, n: Node, at: Outputs | None = None) -> Array:
    """An order parameter with axes t, s (at some nodes) and, with several outputs, those of the outputs."""
    a = _picked(result.tensor(n), at)
    return a[:, 0, :, 0] if a.shape[1] == a.shape[3] == 1 else a.transpose(0, 2, 1, 3)


def _picked(a: Array, at: Outputs | None) -> Array:
    return a if at is None else a[at][:, :, at]


def _equal(a: Array) -> Array:
    """Its values at equal times, summed over outputs."""
    value: Array = np.einsum("tt->t" if a.ndim == 2 else "ttcc->t", a)
    return value


# -- fixed samples -------------------------------------------------------------------------------------


def _with_ends(table: Table, depth: int) -> Table:
    """The theory's table, that of A and B completed: A^L, which no layer above reads, and all of H and G."""
    scale = 1 / gamma0  # the papers' A and B
    more: dict[Node, Request] = {}
    for k in range(1, depth + 1):
        more["A", k] = Request("response", ("h", k), ("r", k), scale)
        if k < depth:
            more["B", k] = Request("response", ("g", k + 1), ("u", k + 1), scale)
        more["H", k] = Request("correlation", ("h", k), ("h", k), S.One)
        more["G", k] = Request("correlation", ("g", k), ("g", k), S.One)
    return replace(table, tensors={**more, **table.tensors})


def _of_samples(
    experiment: Experiment, variant: Variant | None, result: March, kernels: str, at: Outputs | None
) -> dict[str, Array]:
    values = split(experiment, _of_all_samples(experiment, variant, result, kernels, at))
    return values | {"train_loss": mean_square(values["error"])}


def _of_all_samples(
    experiment: Experiment, variant: Variant | None, result: March, kernels: str, at: Outputs | None
) -> dict[str, Array]:
    """Of training samples and test points; traces are those over training samples."""
    theory, _ = _lowered(structure(experiment).text, variant)
    values = {OUTPUT: result.scalars["f"], "error": result.scalars["Delta"]}
    if at is not None:
        values = {name: array[at] for name, array in values.items()}
    layers = range(1, experiment.depth + 1)
    many = experiment.network.outputs > 1
    values["G"] = np.stack([_two_times(result, ("G", k), at) for k in layers])
    if kernels == "none":
        return values
    H: dict[Node, Array] = {
        ("H", k): _picked(result.tensor(("H", k)), at).transpose(1, 3, 0, 2) for k in layers
    }
    if kernels == "trace":
        seen = len(experiment.targets)
        values["Phi_trace"] = np.stack([np.einsum("mmts->ts", a[:seen, :seen]) for a in H.values()])
        return values
    values["Phi"] = np.stack([a.transpose(2, 3, 0, 1) for a in H.values()])
    G: dict[Node, Array] = {}
    for k in layers:
        full = _picked(result.tensor(("G", k)), at).transpose(1, 3, 0, 2)
        G["G", k] = full if many else full[0, 0]
    if theory.observables:
        tensors: dict[Node, Array] = {**H, **G}
        constants = numbers_of(experiment)
        values["tangent_kernel"] = evaluate(theory.observables[0], tensors, arrays_of(experiment), constants)
    if at is not None or variant is not None:
        return values  # responses are densities, or may be others than those of the experiment
    return values | _responses(result, layers, many)


def _responses(result: March, layers: range, many: bool) -> dict[str, Array]:
    """A and B of all layers; B of the last one is zero."""
    A = [result.tensor(("A", k)).transpose(0, 2, 1, 3) for k in layers]
    B = [result.tensor(("B", k)).transpose(0, 2, 1, 3) for k in layers[:-1]]
    B.append(np.zeros_like(A[0].transpose(0, 1, 3, 2)))
    return {
        "A": np.stack([a if many else a[..., 0] for a in A]),
        "B": np.stack([b if many else b[:, :, 0] for b in B]),
    }


def _named(table: Table, name: str) -> list[Node]:
    return [n for n in table.tensors if n[0] == name]
