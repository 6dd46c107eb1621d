"""Residual linear networks of infinite depth: their equations in layer time, extrapolated in the layer grid.

In an experiment of symbolic depth, ``depth = "L"``, the branch is ``branch/sqrt(L)`` and L goes to infinity:
``network.branch`` is beta0 of linear2025 (eq. 85).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol, sqrt

from derive.depth import CrossLayer, Scaling, cross_layer, layer_time, rescale
from derive.errors import NotApplicable
from derive.program import L, Program
from numerics.compile.layered import LayerTable, lower_layer_time
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.activation import is_linear
from numerics.experiment.numbers import arrays_of, numbers_of
from numerics.experiment.theory import Reduction, beta, derived, program_of, reductions_of, wide_layers
from numerics.predictions import OUTPUT, mean_square, split
from numerics.solver.layer_grid import LayerGrid, needed_bytes, solve_layer_grid

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]

T = TypeVar("T")

beta0 = Symbol("beta0", positive=True)
"""``beta sqrt(L)``, which stays as the network gets deeper."""

SCALING = Scaling({beta: beta0 / sqrt(L)})

LAYERS = 16
"""Cells of layer time that a command takes."""

LAYERED = ("Phi", "G", "C_h", "C_g")
"""Variables with an axis of layers, the first one."""

GRIDS = (Fraction(1, 2), Fraction(3, 4), Fraction(1))
"""Cells of the grids that are extrapolated, as shares of those that were asked for."""


@dataclass(frozen=True)
class DepthLimit:
    """The limit of infinite depth.

    ``values`` are the contract's variables, with an axis of ``nodes`` (layer times from 0 to 1) where finite
    networks have layers; ``errors`` says of each by how much the last extrapolation in the layer grid moved
    it, an estimate of its error.
    """

    layers: int
    nodes: Array
    values: dict[str, Array]
    errors: dict[str, float]

    def __getitem__(self, name: str) -> Array:
        """The values of a variable.  Raises KeyError if there is none."""
        return self.values[name]


def solve_depth_limit(
    experiment: Experiment, *, layers: int = LAYERS, progress: Progress | None = None
) -> DepthLimit:
    """Solve ``experiment``, whose depth must be ``"L"``, in the limit of infinite depth.

    Solves the equations in layer time that are derived for its theory on ``layers``, three quarters and half
    as many cells, and extrapolates: the error of a grid is a series in the squared spacing.  Raises
    :class:`~numerics.errors.SpecError` for an experiment without such a limit (no branch, a flow,
    biases) and for ``layers`` that are no multiple of 4, :class:`~numerics.errors.Diverged` with the
    step.

    >>> from numerics.experiment import Experiment
    >>> e = Experiment.from_dict({
    ...     "network": {"depth": "L", "branch": 1.0, "width_ratio": 2.0}, "data": {"kind": "isotropic"},
    ...     "training": {"learning_rate": 0.1, "steps": 1}})
    >>> found = solve_depth_limit(e, layers=8)
    >>> exact = 1 + np.exp(1.0) / 2.0  # of the loss at the start
    >>> bool(abs(found["test_loss"][0] - exact) < found.errors["test_loss"] < 1e-3)
    True
    """
    require_limit(experiment)
    table = _table(*limit_of(experiment))
    runs = on_grids(experiment, table, layers, progress)
    return extrapolated(layers, [dict(values_of(experiment, run, table)) for run in runs], LAYERED)


def on_grids(
    experiment: Experiment, table: LayerTable, layers: int, progress: Progress | None = None
) -> list[LayerGrid]:
    """Solutions on :data:`GRIDS` of equations that know the numbers of ``experiment``.

    Raises :class:`~numerics.errors.SpecError` for ``layers`` that are no multiple of 4, and for more memory
    than there is.
    """
    if layers < 4 or layers % 4:
        raise SpecError("layers", layers, "is the finest of three grids", "a multiple of 4")
    steps = len(experiment.times)
    constants = {beta0 if k == beta else k: v for k, v in numbers_of(experiment).items()}
    extents = {"c": experiment.network.outputs}
    if experiment.spec.kind == "fixed":
        extents |= {"mu": experiment.sample_count, "alpha": experiment.sample_count}
    needed, have = (
        needed_bytes(table, layers, steps, extents),
        os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )
    if needed > have:
        problem = f"needs {needed / 2**30:.0f} GiB for responses between layers; there are {have / 2**30:.0f}"
        raise SpecError("training.steps", steps - 1, problem, "fewer steps, samples, or cells of layer time")
    return [
        solve_layer_grid(
            table,
            layers=int(layers * part),
            steps=steps,
            constants=constants,
            extents=extents,
            known=arrays_of(experiment),
            progress=None
            if progress is None
            else lambda k, n, done=done: progress(done * n + k, len(GRIDS) * n),  # type: ignore[misc]
        )
        for done, part in enumerate(GRIDS)
    ]


def require_limit(experiment: Experiment) -> None:
    """Raises SpecError for an experiment without a limit of infinite depth, or whose limit is not served."""
    network, training = experiment.network, experiment.training
    if not experiment.symbolic:
        raise SpecError("network.depth", network.depth, "the limit is that of symbolic depth", '"L"')
    if network.branch is None:
        raise SpecError(
            "network.branch", None, "is missing", "beta0, the branch times the square root of the depth"
        )
    if not is_linear(network.activation):
        raise SpecError("network.activation", network.activation, "is not served", '"linear"')
    if training.rule == "flow":
        raise SpecError("training.rule", "flow", "is not served at infinite depth", '"gd" or "sgd"')
    if network.bias:
        raise SpecError(
            "network.bias", True, "has no limit of infinite depth: the updates of all biases add up", "false"
        )


@lru_cache(maxsize=32)
def _table(program: Program, reductions: tuple[Reduction, ...]) -> LayerTable:
    """The equations in layer time of a program."""
    return lower_layer_time(refused(lambda: layer_time(closed_equations(program, reductions), SCALING)))


def refused(derive: Callable[[], T]) -> T:
    """What is derived, or a refusal that names the depth."""
    try:
        return derive()
    except NotApplicable as reason:
        raise SpecError(
            "network.depth", "L", f"no limit of infinite depth: {reason}", "an integer >= 1"
        ) from None


@lru_cache(maxsize=32)
def closed_equations(program: Program, reductions: tuple[Reduction, ...]) -> CrossLayer:
    """The equations across layers of a program, its branch ``beta``."""
    return refused(lambda: rescale(cross_layer(derived(program, reductions)), beta))


def limit_of(experiment: Experiment) -> tuple[Program, tuple[Reduction, ...]]:
    """The program of an experiment, and what is done to its theory: the limit of wide layers."""
    reductions = reductions_of(experiment.spec)
    return program_of(experiment), tuple(x for x in reductions if x is wide_layers)


def values_of(experiment: Experiment, run: LayerGrid, table: LayerTable) -> Iterator[tuple[str, Array]]:
    """The contract's variables; times before indices, as they have it."""
    if experiment.spec.kind == "fixed":
        found = {
            name: np.moveaxis(run[theirs], -1, 0) for name, theirs in (("error", "Delta"), (OUTPUT, "f"))
        }
        found |= {"Phi": run["H"].transpose(0, 3, 4, 1, 2), "G": np.moveaxis(run["G"], (-2, -1), (1, 2))}
        found = split(experiment, found)
        yield from found.items()
        yield "train_loss", mean_square(found["error"])
        return
    for row in (r for g in table.groups for r in g if r.symmetric):
        first = row.layers
        yield row.name, np.moveaxis(run[row.name], (-2, -1), (first, first + 1))
    data, outputs = experiment.spec.data, experiment.network.outputs
    noise = 0.0 if data is None else data.noise or 0.0
    test = _equal(run["C_v"]) + noise**2 * outputs
    yield "test_loss", test
    yield "train_loss", _equal(run["C_Delta"]) if "C_Delta" in run.values else test


def _equal(a: Array) -> Array:
    value: Array = np.einsum("tt->t" if a.ndim == 2 else "cctt->t", a)
    return value


def extrapolated(layers: int, runs: list[dict[str, Array]], layered: Collection[str]) -> DepthLimit:
    """Richardson's extrapolation of errors in the second and fourth power of the spacing, from solutions on
    :data:`GRIDS`; the first axis of names in ``layered`` is that of the nodes, kept where all grids have one.
    """
    squares = [float((layers * part) ** 2) for part in GRIDS]
    common = gcd(*(int(layers * part) for part in GRIDS))
    values, errors = {}, {}
    for name in runs[0]:
        rows = [run[name] for run in runs]
        if name in layered:
            rows = [a[:: (len(a) - 1) // common] for a in rows]
        once = _removed(rows, squares)
        (values[name],) = _removed(once, squares, 2)
        errors[name] = float(np.max(np.abs(values[name] - once[1])))
    return DepthLimit(layers, np.linspace(0.0, 1.0, common + 1), values, errors)


def _removed(rows: list[Array], squares: list[float], apart: int = 1) -> list[Array]:
    """The next power taken out: polynomials in the squared spacing, by Neville's scheme."""
    pairs = zip(rows, rows[1:], squares, squares[apart:], strict=False)
    return [(n * fine - m * wide) / (n - m) for wide, fine, m, n in pairs]
