"""Evaluate the expansion in gamma0 of an experiment's theory."""

from __future__ import annotations

import time as clock
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import xarray as xr
from numpy.typing import NDArray

import numerics.expand_nonlinear
from derive.expansion import LinearExpansion, expand_linear
from derive.expansion.nonlinear import NonlinearExpansion
from derive.meanfield import mean_field
from derive.program import L, mlp
from numerics.activation import is_linear
from numerics.errors import SpecError
from numerics.expand.by_recursion import ByRecursion
from numerics.expand.by_words import ByWords, feedback
from numerics.experiment import Experiment
from numerics.results import dataset
from numerics.solve.grid import Grid
from numerics.solve.settle import settle
from numerics.threads import one_thread

Array = NDArray[np.float64]

BY_WORDS = 2
"""Up to this order words are evaluated; beyond, their number grows tenfold with each order."""


class Orders(Protocol):
    """The coefficients on one time grid, whichever way they are computed."""

    errors: dict[int, Array]

    def layer(self, name: str, n: int, layer: int, out: NDArray[np.intp]) -> Array:
        """Order n of a correlation at one layer and at output times, (out, rows, out, cols)."""

    def responses(self, name: str, n: int, layer: int, out: NDArray[np.intp], grid: Grid | None) -> Array:
        """Order n of a response, (out, out, P); for the flow as a density."""

    def tangent(self, n: int, out: NDArray[np.intp]) -> Array:
        """Order n of the tangent kernel at output times, (out, out, P, P)."""


def series(experiment: Experiment, order: int) -> LinearExpansion | NonlinearExpansion:
    """The expansion with layer and depth symbolic, in the experiment's own rule, loss and nonlinearity.

    Raises :class:`~numerics.errors.SpecError` for a negative order.
    """
    _check(order)
    if not is_linear(experiment.network.activation):
        return numerics.expand_nonlinear.series(experiment, order)
    return _expansion(experiment.training.rule, experiment.training.loss, order)


@one_thread
def expand(experiment: Experiment, order: int) -> xr.Dataset:
    """Coefficients of gamma0^n, n <= ``order``, of every result variable; only orders that do not vanish.

    Raises :class:`~numerics.errors.SpecError` for a negative order, :class:`~numerics.errors.Diverged` for
    a learning rate too large for the lazy network, :class:`~numerics.errors.NotConverged` when a flow does
    not settle to ``solver.rtol``.  Nonlinear networks: see :mod:`numerics.expand_nonlinear`.
    """
    _check(order)
    if not is_linear(experiment.network.activation):
        return numerics.expand_nonlinear.expand_nonlinear(experiment, order)
    started = clock.perf_counter()
    notes: dict[str, Any] = {}
    if experiment.training.rule == "gd":
        count = len(experiment.times)
        values = _values(
            _orders(experiment, order, None, count), order, experiment.depth, np.arange(count), None
        )
    else:

        def attempt(grid: Grid) -> tuple[Array, Orders]:
            found = _orders(experiment, order, grid.weights, len(grid.nodes))
            return np.stack([e[grid.outputs] for e in found.errors.values()]), found

        grid, evaluation, notes = settle(experiment.times, experiment.solver.rtol, attempt)
        values = _values(evaluation, order, experiment.depth, grid.outputs, grid)
    orders = [n for n in range(order + 1) if n == 0 or any(np.any(v[n]) for v in values.values())]
    return dataset(
        {k: v[orders] for k, v in values.items()},
        times=experiment.times,
        spec=experiment.text,
        orders=orders,
        method="expansion in gamma0",
        truncation_order=order,
        wall_time_s=clock.perf_counter() - started,
        **notes,
    )


def _check(order: int) -> None:
    if order < 0:
        raise SpecError("--order", order, "must not be negative", "an integer >= 0, such as 2")


@lru_cache(maxsize=16)
def _expansion(rule: str, loss: str, order: int) -> LinearExpansion:
    return expand_linear(mean_field(mlp(L, "linear", rule, loss)), order)


def _orders(experiment: Experiment, order: int, weights: Array | None, T: int) -> Orders:
    """By words while they are few, else by the recursion that they solve."""
    rule = "multistep" if experiment.training.rule == "flow" else experiment.training.rule
    few = _expansion(rule, experiment.training.loss, min(order, BY_WORDS))
    return (
        ByWords(experiment, few, weights, T)
        if order <= BY_WORDS
        else ByRecursion(experiment, few, order, weights, T)
    )


def _values(e: Orders, order: int, depth: int, out: NDArray[np.intp], grid: Grid | None) -> dict[str, Array]:
    """Every variable, with the order first."""
    orders, layers = range(order + 1), range(1, depth + 1)
    error = np.stack([e.errors[n][out] for n in orders])
    loss = np.stack([np.mean(sum(error[k] * error[n - k] for k in range(n + 1)), axis=1) for n in orders])
    H = np.stack([[e.layer("H", n, k, out) for k in layers] for n in orders])
    G = np.stack([[e.layer("G", n, k, out)[:, 0, :, 0] for k in layers] for n in orders])
    return {
        "error": error,
        "train_loss": loss,
        "Phi": H.transpose(0, 1, 2, 4, 3, 5),
        "G": G,
        "A": np.stack([[e.responses("A", n, k, out, grid) for k in layers] for n in orders]),
        "B": np.stack([[e.responses("B", n, k, out, grid) for k in layers] for n in orders]),
        "tangent_kernel": np.stack([e.tangent(n, out) for n in orders]),
    }


__all__ = ["expand", "feedback", "series"]
