"""Theories in powers of other parameters than gamma0, as numbers: one over a size, and the learning rate.

The expanded theory is a theory, and it is solved by what solves theories.
"""

from __future__ import annotations

import time as clock
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Float, Rational, S, Symbol

from derive.calculus.series import PowerSeries
from derive.errors import NotApplicable
from derive.expansion.orders import TheorySeries, expand_sizes, expand_step_size, named
from derive.program import eta
from derive.program.networks.random_data import alpha, alpha_B, nu
from numerics.compile.lower import lower
from numerics.compile.table import Node, Request, Table
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, numbers_of, theory_at_depth
from numerics.results import dataset
from numerics.solve.end_weights import end_weights
from numerics.solve.exact import RANDOM
from numerics.solve.grid import Grid
from numerics.solve.march import March, march
from numerics.solve.memory import memory_tables
from numerics.solve.settle import settle
from numerics.threads import one_thread

Array = NDArray[np.float64]

SIZES: Mapping[str, tuple[str, Symbol]] = {
    "nu": ("network.width_ratio", nu),
    "alpha": ("data.sample_ratio", alpha),
    "alpha_B": ("data.batch_ratio", alpha_B),
}
"""What theories can be expanded in the inverse of: the key of a file, and the symbol."""


@one_thread
def size_series(experiment: Experiment, size: str, order: int, together: tuple[str, ...] = ()) -> xr.Dataset:
    """Coefficients of ``(1/size)^n``, n <= ``order``, of every result variable on isotropic data.

    ``size`` is ``nu``, ``alpha`` or ``alpha_B``.  Sizes in ``together`` grow with it, in the proportion
    that they have in the experiment.  Raises :class:`~numerics.errors.SpecError` for data that are not
    isotropic, for a size that is not in the file or differs from layer to layer, and in NTK
    parametrisation; :class:`~numerics.errors.Diverged` when the limit diverges,
    :class:`~numerics.errors.NotConverged` for a flow.
    """
    _check(order)
    started = clock.perf_counter()
    ratios = {x: Rational(str(_size(experiment, x))) for x in (size, *together)}
    key, symbol = SIZES[size]
    multiples = {SIZES[x][1]: ratios[x] / ratios[size] * symbol for x in together}
    try:
        found = expand_sizes(theory_at_depth(experiment), symbol, order, multiples)
        table = _table(experiment, found)
    except NotApplicable as reason:
        raise SpecError(
            key, float(ratios[size]), f"no series in 1/{size}: {reason}", "mean-field networks"
        ) from None
    if experiment.training.rule == "flow":

        def attempt(grid: Grid) -> tuple[Array, _Solved]:
            run = _march(
                experiment, found, table, len(grid.nodes), memory_tables(experiment, grid.nodes, grid.weights)
            )
            return run.errors()[:, grid.outputs], run

        grid, run, notes = settle(experiment.times, experiment.solver.rtol, attempt)
        values = _random(run, grid)
    else:
        run, notes = _march(experiment, found, table, len(experiment.times), {}), {}
        values = _random(run, None)
    return _labelled(run, values, experiment.times, notes, started)


@one_thread
def step_size_series(experiment: Experiment, order: int, rtol: float = 1e-5) -> xr.Dataset:
    """Coefficients of ``learning_rate^n``, n <= ``order``, at the times ``rate * steps`` of the experiment.

    The order zero is the flow.  On fixed data there are ``error``, ``train_loss``, ``Phi`` and ``G``; on
    isotropic data all but the responses, which are densities.  ``rtol`` is what coefficients settle to as
    the flow's grid is refined, relative to the largest of them.  Raises :class:`~numerics.errors.SpecError`
    for another rule than ``gd`` and where the rate does more than weigh updates (decay, momentum, noise),
    and what a flow raises.
    """
    _check(order)
    started = clock.perf_counter()
    rule = experiment.training.rule
    if rule != "gd":
        raise SpecError("training.rule", rule, "has no steps that become small", "gd")
    try:
        found = expand_step_size(theory_at_depth(experiment), order)
        table = _table(experiment, found)
    except NotApplicable as reason:
        raise SpecError(
            "training.rule", rule, str(reason), "gd without decay, momentum and temperature"
        ) from None
    times = experiment.times * numbers_of(experiment)[eta]

    def attempt(grid: Grid) -> tuple[Array, _Solved]:
        tables = {"w": grid.weights} | end_weights(grid.nodes, order)
        run = _march(experiment, found, table, len(grid.nodes), tables)
        return run.errors()[:, grid.outputs], run

    grid, run, notes = settle(times, rtol, attempt)
    values = _fixed(run, grid) if experiment.spec.kind == "fixed" else _random(run, grid)
    return _labelled(run, values, times, notes, started)


def partial_sum(series: xr.Dataset, value: float, order: int | None = None) -> xr.Dataset:
    """The series at one value of its variable, up to an order: a dataset without the dimension ``order``."""
    kept = series if order is None else series.sel(order=[n for n in series.order.values if n <= order])
    powers = xr.DataArray(value ** kept.order.values.astype(float), dims="order")
    return (kept * powers).sum("order", skipna=False)


def truncation_error(series: xr.Dataset, value: float) -> dict[str, float]:
    """An estimate of what the series misses at one value of its variable, of the largest entry, by variable.

    That of :meth:`~derive.expansion.PowerSeries.error_estimate` for the largest entries of the coefficients;
    infinite where these grow as fast as the powers fall.  It is an estimate, no bound.
    """
    x = Symbol("x", positive=True)
    found = {}
    for name, a in series.data_vars.items():
        sizes = [Float(float(np.abs(a.sel(order=n)).max())) for n in series.order.values]
        found[str(name)] = float(PowerSeries(tuple(sizes), x).error_estimate().subs(x, value))
    return found


# -- theories ------------------------------------------------------------------------------------------


def _check(order: int) -> None:
    if order < 0:
        raise SpecError("order", order, "must not be negative", "an integer >= 0, such as 2")


def _size(experiment: Experiment, size: str) -> float:
    if size not in SIZES:
        raise SpecError("size", size, "is no size of a theory", ", ".join(SIZES))
    key, symbol = SIZES[size]
    if experiment.spec.kind != "isotropic":
        raise SpecError("data.kind", experiment.spec.kind, f"has no {key}", "isotropic")
    value = numbers_of(experiment).get(symbol)
    if value is None:
        given = experiment.network.width_ratio if size == "nu" else None
        raise SpecError(key, given, f"must be one number, for a series in 1/{size}", "a ratio such as 2.0")
    return value


def _table(experiment: Experiment, found: TheorySeries) -> Table:
    """The rows of the expanded theory, and order parameters of the ends that no equation needs."""
    table = lower(found.expanded)
    more: dict[Node, Request] = {}
    layers = range(1, experiment.depth + 1)
    if experiment.spec.kind == "fixed":
        for (name, a), layer in product((("H", "h"), ("G", "g")), layers):
            for n, k in product(range(found.order + 1), repeat=2):
                pair = (named(a, n), layer), (named(a, k), layer)
                more[named(name, n, k), layer] = Request("correlation", *pair, S.One)
    elif any(name == "R_hr" for name, _ in table.tensors):
        for n in range(found.order + 1):
            last = (named("h", n), experiment.depth), ("r", experiment.depth)
            more[named("R_hr", n), experiment.depth] = Request("response", *last, S.One)
    return replace(table, tensors={**more, **table.tensors})


@dataclass(frozen=True)
class _Solved:
    """A march of an expanded theory."""

    experiment: Experiment
    series: TheorySeries
    run: March

    def coefficients(self, name: str, layer: int | None) -> Array:
        """Orders 0, 1, ... of an order parameter of two times, (orders, T, n, T, m)."""
        numbers = numbers_of(self.experiment)
        found = []
        for parts in self.series.parts(name):
            arrays = [float(c.subs(numbers)) * self.run.tensor((named(name, *k), layer)) for c, k in parts]
            found.append(sum(arrays[1:], arrays[0]) if arrays else 0.0 * self.run.tensor((name, layer)))
        return np.stack(found)

    def errors(self) -> Array:
        """What a flow is refined for: errors on samples, or ``C_v`` at equal times; (orders, T, ...)."""
        if self.experiment.spec.kind == "fixed":
            return np.stack([self.run.scalars[named("Delta", n)] for n in range(self.series.order + 1)])
        value: Array = np.einsum("ntctc->nt", self.coefficients("C_v", None))
        return value


def _march(
    experiment: Experiment, found: TheorySeries, table: Table, steps: int, tables: Mapping[str, Array]
) -> _Solved:
    """Of responses to a flow there are only densities, which are not asked for."""
    run = march(
        table,
        steps=steps,
        constants=numbers_of(experiment),
        data=arrays_of(experiment) | dict(tables),
        wanted=tuple(n for n, q in table.tensors.items() if q.kind == "correlation" or not tables),
        watched=() if experiment.spec.kind == "fixed" else (("C_v", None),),
    )
    return _Solved(experiment, found, run)


# -- values --------------------------------------------------------------------------------------------


def _labelled(
    run: _Solved, values: Mapping[str, Array], times: Array, notes: Mapping[str, Any], started: float
) -> xr.Dataset:
    return dataset(
        values,
        times=times,
        spec=run.experiment.text,
        orders=range(run.series.order + 1),
        method=f"expansion in {run.series.variable}",
        truncation_order=run.series.order,
        wall_time_s=clock.perf_counter() - started,
        **notes,
    )


def _random(run: _Solved, grid: Grid | None) -> dict[str, Array]:
    tensors, values = run.run.plan.table.tensors, {}
    for name in RANDOM:
        layers = [k for n, k in tensors if n == name]
        if not layers or (grid is not None and name.startswith("R_")):
            continue
        found = {k: _pair(run.coefficients(name, k), grid) for k in layers}
        if layers == [None]:
            values[name] = found[None]
        else:
            empty = np.zeros_like(next(iter(found.values())))
            numbers = range(1, run.experiment.depth + 1)
            values[name] = np.stack([found.get(k, empty) for k in numbers], axis=1)
    data = run.experiment.spec.data
    test = _equal(values["C_v"])
    test[0] += ((data.noise if data else 0.0) or 0.0) ** 2 * run.experiment.network.outputs
    train = _equal(values["C_Delta"]) if "C_Delta" in values else test
    return {"train_loss": train, "test_loss": test} | values


def _fixed(run: _Solved, grid: Grid) -> dict[str, Array]:
    error, orders = run.errors()[:, grid.outputs], range(run.series.order + 1)
    losses = [np.sum([error[k] * error[n - k] for k in range(n + 1)], axis=0) for n in orders]
    layers = range(1, run.experiment.depth + 1)
    H, G = (np.stack([_at(run.coefficients(x, k), grid) for k in layers], axis=1) for x in ("H", "G"))
    return {
        "error": error,
        "train_loss": np.stack([x.reshape(len(x), -1).sum(1) / error.shape[2] for x in losses]),
        "Phi": H.transpose(0, 1, 2, 4, 3, 5),
        "G": G[:, :, :, 0, :, 0] if G.shape[3] == 1 else G.transpose(0, 1, 2, 4, 3, 5),
    }


def _at(a: Array, grid: Grid | None) -> Array:
    return a if grid is None else a[:, grid.outputs][:, :, :, grid.outputs]


def _pair(a: Array, grid: Grid | None) -> Array:
    """Axes order, t, s and, with several outputs, those of the outputs."""
    a = _at(a, grid)
    return a[:, :, 0, :, 0] if a.shape[2] == a.shape[4] == 1 else a.transpose(0, 1, 3, 2, 4)


def _equal(a: Array) -> Array:
    """At equal times, summed over outputs."""
    value: Array = np.einsum("ntt->nt" if a.ndim == 3 else "nttcc->nt", a)
    return value.copy()  # of one output it is a view


__all__ = ["SIZES", "partial_sum", "size_series", "step_size_series", "truncation_error"]
