"""Theories in powers of a small parameter, as numbers: gamma0, one over a size, the learning rate.

The expanded theory is a theory, and it is solved by what solves theories.
"""

from __future__ import annotations

import time as clock
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Expr, Float, Rational, S, Symbol

from derive.calculus.series import PowerSeries
from derive.errors import NotApplicable
from derive.expansion.orders import TheorySeries, expand_sizes, expand_step_size, named
from derive.expansion.strength import StrengthSeries, expand_strength
from derive.program import P, Program, eta
from derive.program.networks.random_data import alpha, alpha_B, nu
from derive.program.networks.random_data import sigma as label_noise
from numerics.compile.lower import lower
from numerics.compile.table import Node, Request, Table
from numerics.errors import SpecError
from numerics.expansion.setting import parted
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.theory import Layered, Reduction, derived, integrated
from numerics.predictions import OUTPUT
from numerics.results import dataset
from numerics.solver.grid import Grid, end_weights
from numerics.solver.linear import RANDOM
from numerics.solver.march import March, march
from numerics.solver.memory import tables_of
from numerics.solver.observables import evaluate
from numerics.solver.refine import Attempt, Multistep, refine
from numerics.threads import one_thread

Array = NDArray[np.float64]
Source = Problem | Experiment | str | Path

SIZES: Mapping[str, tuple[str, Symbol]] = {
    "nu": ("network.width_ratio", nu),
    "alpha": ("data.sample_ratio", alpha),
    "alpha_B": ("data.batch_ratio", alpha_B),
}
"""What theories can be expanded in the inverse of: the key of a file, and the symbol."""


@one_thread
def size_series(source: Source, size: str, order: int, together: tuple[str, ...] = ()) -> xr.Dataset:
    """Coefficients of ``(1/size)^n``, n <= ``order``, of every result variable on isotropic data.

    ``size`` is ``nu``, ``alpha`` or ``alpha_B``.  Sizes in ``together`` grow with it, in the proportion
    that they have in the experiment.  Raises :class:`~numerics.errors.SpecError` for data that are not
    isotropic, for a size that is not in the file or differs from layer to layer, and in NTK
    parametrisation; :class:`~numerics.errors.Diverged` when the limit diverges,
    :class:`~numerics.errors.NotConverged` for a flow.
    """
    _check(order)
    started, problem = clock.perf_counter(), Problem.of(source)
    ratios = {x: Rational(str(_size(problem, x))) for x in (size, *together)}
    key, symbol = SIZES[size]
    multiples = {SIZES[x][1]: ratios[x] / ratios[size] * symbol for x in together}
    try:
        found = expand_sizes(problem.discrete, symbol, order, multiples)
        table = _table(problem, found)
    except NotApplicable as reason:
        raise SpecError(
            key, float(ratios[size]), f"no series in 1/{size}: {reason}", "mean-field networks"
        ) from None
    run, grid, notes = _marched(problem, found, table)
    return _labelled(run, _random(run, grid), problem.times, notes, started)


def _marched(
    problem: Problem, found: TheorySeries, table: Table
) -> tuple[_Solved, Grid | None, dict[str, Any]]:
    """The march of all orders, of a flow on the grid on which the errors have settled."""
    if not problem.flow:
        return _march(problem, found, table, len(problem.times), {}), None, {}

    def attempt(grid: Grid) -> Attempt[_Solved]:
        tables = tables_of(problem.program.rule, problem.numbers, grid.nodes, grid.weights)
        run = _march(problem, found, table, len(grid.nodes), tables)
        return Attempt(run.errors()[:, grid.outputs], run)

    grid, run, notes = refine(Multistep(problem.times, problem.solver.rtol), attempt).parts
    return run, grid, notes


@one_thread
def step_size_series(source: Source, order: int, rtol: float = 1e-5) -> xr.Dataset:
    """Coefficients of ``learning_rate^n``, n <= ``order``, at the times ``rate * steps`` of the experiment.

    The order zero is the flow.  On fixed data there are ``error``, ``train_loss``, ``Phi`` and ``G``; on
    isotropic data all but the responses, which are densities.  ``rtol`` is what coefficients settle to as
    the flow's grid is refined, relative to the largest of them.  Raises :class:`~numerics.errors.SpecError`
    for another rule than ``gd`` and where the rate does more than weigh updates (decay, momentum, noise),
    and what a flow raises.
    """
    _check(order)
    started, problem = clock.perf_counter(), Problem.of(source)
    key, rule = problem.said("training.rule")
    if problem.flow or rule == "sgd":
        raise SpecError(key, rule, "has no steps that become small", "gd")
    try:
        found = expand_step_size(problem.theory, order)
        table = _table(problem, found)
    except NotApplicable as reason:
        raise SpecError(key, rule, str(reason), "gd without decay, momentum and temperature") from None
    times = problem.times * problem.numbers[eta]

    def attempt(grid: Grid) -> Attempt[_Solved]:
        tables = {"w": grid.weights} | end_weights(grid.nodes, order)
        run = _march(problem, found, table, len(grid.nodes), tables)
        return Attempt(run.errors()[:, grid.outputs], run)

    grid, run, notes = refine(Multistep(times, rtol), attempt).parts
    values = _fixed(run, grid) if problem.seen else _random(run, grid)
    return _labelled(run, values, times, notes, started)


@one_thread
def strength_series(source: Source, order: int) -> xr.Dataset:
    """Coefficients of ``gamma0^n``, n <= ``order``, of every result variable: any linear network and data.

    Those of the theory itself, order by order (:func:`derive.expansion.strength.expand_strength`): biases,
    branches, several outputs, unequal widths and variances, decay, momentum and noise, test points, random
    data.  Of a flow there are no responses.  Raises :class:`~numerics.errors.SpecError` with the reason where
    the theory has no such series, :class:`~numerics.errors.Diverged`, and
    :class:`~numerics.errors.NotConverged` for a flow that does not settle to ``solver.rtol``.
    """
    _check(order)
    started, problem = clock.perf_counter(), Problem.of(source)
    try:
        found, table = _in_strength(problem.program, problem.reductions, problem.layered, order)
    except NotApplicable as reason:
        raise no_series(problem, reason) from None
    solved, grid, notes = _marched(problem, found, table)
    values = _of_samples(solved, grid) if problem.seen else _random(solved, grid)
    own = [x for k, x in values.items() if k != "tangent_kernel"]
    orders = [n for n in range(order + 1) if n == 0 or any(np.any(np.nan_to_num(x[n])) for x in own)]
    kept = {k: x[orders] for k, x in values.items()}
    return _labelled(solved, kept, problem.times, notes, started, orders)


def no_series(problem: Problem, reason: NotApplicable) -> SpecError:
    """The refusal of a theory that has no series in gamma0."""
    return SpecError(
        *problem.said("network.gamma0"), f"the theory has no series in it: {reason}", "`dmft solve`"
    )


@lru_cache(maxsize=8)
def _in_strength(
    program: Program, reductions: tuple[Reduction, ...], layered: Layered, order: int
) -> tuple[StrengthSeries, Table]:
    """The series of a program's theory, and its rows."""
    found = expand_strength(derived(integrated(program), reductions, layered), order)
    depth, fixed = int(program.depth), any(e.name == "Delta" for e in found.theory.scalars)
    table = lower(found.expanded)
    more: dict[Node, Request] = {}
    there = {row.field for row in table.fields}
    if fixed:
        for (name, a), layer in product((("H", "h"), ("G", "g")), range(1, depth + 1)):
            for n, k in product(range(order + 1), repeat=2):
                pair = (named(a, n), layer), (named(a, k), layer)
                if n + k <= order and there >= set(pair):
                    more[named(name, n, k), layer] = Request("correlation", *pair, S.One)
        # the papers' A and B have 1/gamma0 in front
        for n, layer in product(range(1, order + 2), range(1, depth + 1)):
            for name, what, pushed in (("A", ("h", layer), "r"), ("B", ("g", layer + 1), "u")):
                field = named(what[0], n), what[1]
                source = pushed, layer + (name == "B")
                if field in there and source in table.source_indices:
                    more[named(name, n), layer] = Request("response", field, source, S.One)
    elif any(name.startswith("R_hr") for name, _ in table.tensors):
        for n in range(order + 1):
            if (named("h", n), depth) in there:
                more[named("R_hr", n), depth] = Request(
                    "response", (named("h", n), depth), ("r", depth), S.One
                )
    return found, replace(table, tensors={**more, **table.tensors})


def _of_samples(run: _Solved, grid: Grid | None) -> dict[str, Array]:
    """The contract's variables of fixed samples, orders first."""
    problem, series = run.problem, run.series
    layers = range(1, (problem.depth or 0) + 1)
    assert isinstance(series, StrengthSeries)
    at = slice(None) if grid is None else grid.outputs

    def scalar(name: str) -> Array:
        parts = [run.run.scalars.get(named(name, *k)) for part in series.parts(name) for k in _first(part)]
        shape = next(x for x in parts if x is not None)
        return np.stack([np.zeros_like(shape) if x is None else x for x in parts])[:, at]

    def pair(name: str, layer: int) -> Array:
        return _at(run.coefficients(name, layer), grid)

    f, error = scalar(OUTPUT), scalar("Delta")
    H = {k: pair("H", k) for k in layers}
    G = {k: pair("G", k) for k in layers}
    many = problem.outputs > 1
    values = {
        "error": error,
        "Phi": np.stack([x.transpose(0, 1, 3, 2, 4) for x in H.values()], axis=1),
        "G": np.stack([x.transpose(0, 1, 3, 2, 4) if many else x[:, :, 0, :, 0] for x in G.values()], axis=1),
    }
    if grid is None:
        A, B = (
            np.stack([run.response(x, k) for k in layers], axis=1).transpose(0, 1, 2, 4, 3, 5) for x in "AB"
        )
        values |= {"A": A if many else A[..., 0], "B": B if many else B[:, :, :, :, 0]}
    if series.theory.observables:
        tensors: dict[Node, Array] = {}
        for k in layers:
            tensors["H", k], tensors["G", k] = H[k], G[k]
        values["tangent_kernel"] = _tangent(run, tensors, many)
    return parted(problem, values, f)


def _first(parts: tuple[tuple[Expr, tuple[int, ...]], ...]) -> list[tuple[int, ...]]:
    return [k for _, k in parts] or [(-1,)]


def _tangent(run: _Solved, tensors: Mapping[Node, Array], many: bool) -> Array:
    """The orders of the tangent kernel: products of those of its factors, as the theory defines it.

    The series of a product are put together by evaluating it at as many values of gamma0 as there are orders:
    a polynomial of twice the order is cut off exactly.
    """
    series, order = run.series, run.series.order
    data, numbers = run.problem.arrays, run.problem.numbers
    (equation,) = series.theory.observables[:1]
    points = np.cos(np.pi * (np.arange(2 * order + 1) + 0.5) / (2 * order + 1))
    found = []
    for x in points:
        powers = x ** np.arange(order + 1)
        at = {n: np.tensordot(powers, a, 1).transpose(1, 3, 0, 2) for n, a in tensors.items()}
        at = {n: a if n[0] == "H" or many else a[0, 0] for n, a in at.items()}
        found.append(evaluate(equation, at, data, numbers))
    inverse = np.linalg.inv(points[:, None] ** np.arange(2 * order + 1))
    return np.tensordot(inverse[: order + 1], np.stack(found), 1)


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


def _size(problem: Problem, size: str) -> float:
    if size not in SIZES:
        raise SpecError("size", size, "is no size of a theory", ", ".join(SIZES))
    key, symbol = SIZES[size]
    kind = problem.said("data.kind")
    if kind[1] not in (None, "isotropic") and problem.experiment is not None:
        raise SpecError(*kind, f"has no {key}", "isotropic")
    value = problem.numbers.get(symbol)
    if value is None:
        given = problem.said(key)[1] if size == "nu" else None
        raise SpecError(key, given, f"must be one number, for a series in 1/{size}", "a ratio such as 2.0")
    return value


def _table(problem: Problem, found: TheorySeries) -> Table:
    """The rows of the expanded theory, and order parameters of the ends that no equation needs."""
    table = lower(found.expanded)
    more: dict[Node, Request] = {}
    layers = range(1, (problem.depth or 0) + 1)
    if problem.seen:
        for (name, a), layer in product((("H", "h"), ("G", "g")), layers):
            for n, k in product(range(found.order + 1), repeat=2):
                pair = (named(a, n), layer), (named(a, k), layer)
                more[named(name, n, k), layer] = Request("correlation", *pair, S.One)
    elif any(name == "R_hr" for name, _ in table.tensors):
        for n in range(found.order + 1):
            last = (named("h", n), problem.depth), ("r", problem.depth)
            more[named("R_hr", n), problem.depth] = Request("response", *last, S.One)
    return replace(table, tensors={**more, **table.tensors})


@dataclass(frozen=True)
class _Solved:
    """A march of an expanded theory."""

    problem: Problem
    series: TheorySeries
    run: March

    def coefficients(self, name: str, layer: int | None) -> Array:
        """Orders 0, 1, ... of an order parameter of two times, (orders, T, n, T, m)."""
        numbers = self.problem.numbers
        found: list[Array | None] = []
        for parts in self.series.parts(name):
            known = [(c, (named(name, *k), layer)) for c, k in parts]
            arrays = [
                float(c.subs(numbers)) * self.run.tensor(n)
                for c, n in known
                if n in self.run.plan.table.tensors
            ]
            found.append(sum(arrays[1:], arrays[0]) if arrays else None)
        shape = next(x for x in found if x is not None)
        return np.stack([np.zeros_like(shape) if x is None else x for x in found])

    def response(self, name: str, layer: int) -> Array:
        """Orders 0, 1, ... of A or B, (orders, T, n, T, m); zero where it vanishes."""
        tensors, numbers = self.run.plan.table.tensors, self.problem.numbers
        samples, outputs = int(numbers[P]), self.problem.outputs
        rows, columns = (samples, outputs) if name == "A" else (outputs, samples)
        found = np.zeros((self.series.order + 1, self.run.steps, rows, self.run.steps, columns))
        for n in range(self.series.order + 1):
            if (named(name, n + 1), layer) in tensors:
                found[n] = self.run.tensor((named(name, n + 1), layer))
        return found

    def errors(self) -> Array:
        """What a flow is refined for: errors on samples, or ``C_v`` at equal times; (orders, T, ...)."""
        if self.problem.seen:
            first = self.run.scalars["Delta"]
            zero = np.zeros_like(first)
            return np.stack(
                [self.run.scalars.get(named("Delta", n), zero) for n in range(self.series.order + 1)]
            )
        value: Array = np.einsum("ntctc->nt", self.coefficients("C_v", None))
        return value


def _march(
    problem: Problem, found: TheorySeries, table: Table, steps: int, tables: Mapping[str, Array]
) -> _Solved:
    """Of responses to a flow there are only densities, which are not asked for."""
    run = march(
        table,
        steps=steps,
        constants=problem.numbers,
        data={**problem.arrays, **tables},
        wanted=tuple(n for n, q in table.tensors.items() if q.kind == "correlation" or not tables),
        watched=() if problem.seen else (("C_v", None),),
        units=problem.spectrum,
    )
    return _Solved(problem, found, run)


# -- values --------------------------------------------------------------------------------------------


def _labelled(
    run: _Solved,
    values: Mapping[str, Array],
    times: Array,
    notes: Mapping[str, Any],
    started: float,
    orders: Sequence[int] | None = None,
) -> xr.Dataset:
    return dataset(
        values,
        times=times,
        spec=run.problem.text,
        orders=range(run.series.order + 1) if orders is None else orders,
        method=f"expansion in {run.series.variable}",
        truncation_order=run.series.order,
        wall_time_s=clock.perf_counter() - started,
        **notes,
    )


def _random(run: _Solved, grid: Grid | None) -> dict[str, Array]:
    tensors, values = run.run.plan.table.tensors, {}
    for name in RANDOM:
        layers = list(dict.fromkeys(k for n, k in tensors if n.partition("__")[0] == name))
        if not layers or (grid is not None and name.startswith("R_")):
            continue
        found = {k: _pair(run.coefficients(name, k), grid) for k in layers}
        if layers == [None]:
            values[name] = found[None]
        else:
            empty = np.zeros_like(next(iter(found.values())))
            numbers = range(1, (run.problem.depth or 0) + 1)
            values[name] = np.stack([found.get(k, empty) for k in numbers], axis=1)
    test = _equal(values["C_v"])
    test[0] += run.problem.numbers.get(label_noise, 0.0) ** 2 * run.problem.outputs
    train = _equal(values["C_Delta"]) if "C_Delta" in values else test
    return {"train_loss": train, "test_loss": test} | values


def _fixed(run: _Solved, grid: Grid) -> dict[str, Array]:
    error, orders = run.errors()[:, grid.outputs], range(run.series.order + 1)
    losses = [np.sum([error[k] * error[n - k] for k in range(n + 1)], axis=0) for n in orders]
    layers = range(1, (run.problem.depth or 0) + 1)
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


__all__ = [
    "SIZES",
    "no_series",
    "partial_sum",
    "size_series",
    "step_size_series",
    "strength_series",
    "truncation_error",
]
