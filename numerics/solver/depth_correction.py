"""How far residual networks of finite depth are from infinite depth: the first correction, solved.

Its equations (:mod:`derive.depth.infinite`) hold those of the limit; one layer grid solves both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sympy import Expr

from derive.calculus.symbols import L
from derive.depth import cross_layer, rescale
from derive.depth.infinite import InfiniteDepth, infinite_depth
from derive.depth.layers import coefficient_name
from derive.program import Program
from derive.program.networks.residual import depth_program
from derive.theory import mean_field
from numerics.compile.layered import LayerTable, lower_layer_time
from numerics.experiment import Experiment
from numerics.experiment.theory import Reduction
from numerics.solver.depth import (
    GRIDS,
    LAYERED,
    LAYERS,
    SCALING,
    DepthLimit,
    Progress,
    closed_equations,
    extrapolated,
    limit_of,
    on_grids,
    refused,
    require_limit,
    values_of,
)
from numerics.solver.frozen_ends import Slope, as_inputs, exact_power
from numerics.solver.layer_grid import LayerGrid, solve_layer_grid

Array = NDArray[np.float64]
FIRST = coefficient_name("", 1)
"""How the tensors of the first correction are called."""


@dataclass(frozen=True)
class DepthCorrection:
    """A network of L layers is ``limit + L**order * first``, up to higher powers.

    ``first`` has the variables of ``limit``, and errors of its own.  Layers are at ``tau = ell/L``.
    """

    order: float
    limit: DepthLimit
    first: DepthLimit

    def at_depth(self, depth: int, name: str) -> Array:
        """The variable at a finite depth, to first order."""
        value: Array = self.limit[name] + depth**self.order * self.first[name]
        return value


def solve_depth_correction(
    experiment: Experiment, *, layers: int = LAYERS, progress: Progress | None = None
) -> DepthCorrection:
    """Solve ``experiment``, whose depth must be ``"L"``, at infinite depth and to first order in 1/L.

    The same networks and refusals as :func:`~numerics.solver.depth.solve_depth_limit`.

    >>> from numerics.experiment import Experiment
    >>> e = Experiment.from_dict({
    ...     "network": {"depth": "L", "branch": 1.0, "width_ratio": 2.0}, "data": {"kind": "isotropic"},
    ...     "training": {"learning_rate": 0.1, "steps": 1}})
    >>> found = solve_depth_correction(e, layers=8)
    >>> exact = [(1 + 1 / n) ** (n - 1) / 2 + 1 for n in (50, 100)]  # the loss at the start
    >>> [bool(abs(found.at_depth(n, "test_loss")[0] - x) < 4 / n**2) for n, x in zip((50, 100), exact)]
    [True, True]
    """
    require_limit(experiment)
    deep = limit_of(experiment)
    table, whole = lower_layer_time(correction_of(*deep).limit), _table(*deep)
    runs = on_grids(experiment, whole, layers, progress)

    def values(run: LayerGrid, share: float) -> dict[str, Array]:
        moved = {n: run[n] + share * run.values.get(FIRST + n, 0.0) for n in _names(table)}
        return dict(values_of(experiment, replace(run, values=moved), table))

    def first(run: LayerGrid) -> dict[str, Array]:
        """What results are of the fields is quadratic at most, so this difference is their derivative."""
        up, down = values(run, 1.0), values(run, -1.0)
        return {n: 0.5 * (up[n] - down[n]) for n in up}

    return DepthCorrection(
        float(correction_of(*deep).power),
        extrapolated(layers, [values(run, 0.0) for run in runs], LAYERED),
        extrapolated(layers, [first(run) for run in runs], LAYERED),
    )


def solve_frozen_ends_correction(
    inputs: ArrayLike,
    slope: Slope,
    curvature: Slope,
    *,
    layers: int = LAYERS,
    alpha: float = 0.5,
    gamma: float = 0.5,
) -> DepthCorrection:
    """The same for :func:`~numerics.solver.frozen_ends.solve_frozen_ends`; ``curvature(t, f)`` is the second
    derivative of the loss.

    ``order`` is ``1 - 2 alpha`` for alpha between 1/2 and 1, where what the noise of the layers still does is
    more than layers being steps; -1 at both ends.

    >>> found = solve_frozen_ends_correction([1.0], lambda t, f: f, lambda t, f: 1.0, layers=8)
    >>> found.order, bool(abs(found.first["C_x"][-1, 0, 0] + np.e / 2) < 1e-3)  # (1 + 1/L)**L
    (-1.0, True)
    """
    xi = as_inputs(inputs)
    correction = frozen_ends_correction(exact_power(alpha), exact_power(gamma))
    table = _frozen_table(exact_power(alpha), exact_power(gamma))
    names = {"f": "f", "chi": "chi", "C_x": "C_x", "C_dx": "C_dx"}
    known: dict[str, Callable[..., object]] = {
        "xi": lambda step: xi[step],
        "dloss": slope,
        "ddloss": curvature,
    }
    runs = [
        solve_layer_grid(table, layers=int(layers * part), steps=len(xi), constants={}, known=known)
        for part in GRIDS
    ]
    limit, first = (
        extrapolated(
            layers, [{n: run[before + x] for n, x in names.items()} for run in runs], ("C_x", "C_dx")
        )
        for before in ("", FIRST)
    )
    return DepthCorrection(float(correction.power), limit, first)


@lru_cache(maxsize=8)
def frozen_ends_correction(alpha: Expr, gamma: Expr) -> InfiniteDepth:
    """The equations of depth2023's Program 1 for other powers, to first order."""
    theory = mean_field(depth_program(L, alpha, gamma))
    return infinite_depth(rescale(cross_layer(theory), L**-alpha))


@lru_cache(maxsize=8)
def _frozen_table(alpha: Expr, gamma: Expr) -> LayerTable:
    return lower_layer_time(frozen_ends_correction(alpha, gamma).system)


@lru_cache(maxsize=8)
def correction_of(program: Program, reductions: tuple[Reduction, ...]) -> InfiniteDepth:
    """The equations of a program (see :func:`.limit_of`), to first order."""
    return refused(lambda: infinite_depth(closed_equations(program, reductions), SCALING))


@lru_cache(maxsize=8)
def _table(program: Program, reductions: tuple[Reduction, ...]) -> LayerTable:
    return lower_layer_time(correction_of(program, reductions).system)


def _names(table: LayerTable) -> list[str]:
    return [row.name for group in table.groups for row in group]
