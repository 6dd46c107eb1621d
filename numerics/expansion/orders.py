"""Coefficients of theories in powers of a small parameter: gamma0, one over a size, the learning rate.

The expanded theory is a theory with more fields, and the linear march solves it.
"""

from __future__ import annotations

import time as clock
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Expr, Float, Rational, S, Symbol, oo

from derive.calculus.series import PowerSeries
from derive.calculus.symbols import s, t
from derive.errors import NotApplicable
from derive.expansion.orders import TheorySeries, expand_sizes, expand_step_size, named, orders_in
from derive.expansion.theory_orders import StrengthSeries, expand_strength
from derive.program import P, Program, eta
from derive.program.networks.random_data import alpha, alpha_B, nu
from derive.program.networks.random_data import sigma as label_noise
from numerics.errors import SpecError
from numerics.expansion.coefficients import Setting, check_order, evaluated, parted
from numerics.expansion.gamma0_fits import AtStrengths
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.theory import LayerFunctionNames, Reduction, derived, integrated
from numerics.lowering.expressions import observable
from numerics.lowering.indices import axes_of
from numerics.lowering.linear import NotLinear, lower
from numerics.lowering.table import FieldAtLayer, Request, Table
from numerics.names import (
    BACKWARD_RESPONSE,
    C_LEARNT,
    ERROR,
    FEATURE_KERNEL,
    FIELD,
    FORWARD_RESPONSE,
    GRADIENT,
    GRADIENT_KERNEL,
    LINEAR_KERNEL,
    OUTPUT,
)
from numerics.results import STDERR
from numerics.solver.grid import TimeGrid, end_weights
from numerics.solver.linear.march import march
from numerics.solver.linear.variables import RANDOM, by_layer, of_outputs
from numerics.solver.refine import AdamsBashforth
from numerics.solver.refusals import steady_data
from numerics.threads import one_thread

Array = NDArray[np.float64]
ProblemSource = Problem | Experiment | str | Path

SIZES: Mapping[str, tuple[str, Symbol]] = {
    "nu": ("network.width_ratio", nu),
    "alpha": ("data.sample_ratio", alpha),
    "alpha_B": ("data.batch_ratio", alpha_B),
}
"""Sizes in whose inverse theories are expanded: key of the file, and symbol."""


@one_thread
def size_series(source: ProblemSource, size: str, order: int, together: tuple[str, ...] = ()) -> xr.Dataset:
    """Return the coefficients of ``(1/size)^n``, n <= ``order``, of result variables on isotropic data.

    A flow has no responses. ``size`` is the name of a ratio to the input dimension: ``nu`` (width), ``alpha``
    (samples) or ``alpha_B`` (samples of a batch). The ratios in ``together`` grow with it, in the proportion
    that they have in the experiment. Raises :class:`~numerics.errors.SpecError` for data that are not
    isotropic, for a size that is missing or differs between layers, and for a theory without this series, as
    in NTK parametrisation; :class:`~numerics.errors.Diverged` if the limit diverges,
    :class:`~numerics.errors.NotConverged` if a flow does not converge.
    """
    check_order(order)
    started, problem = clock.perf_counter(), Problem.of(source)
    ratios = {x: Rational(str(_size(problem, x))) for x in (size, *together)}
    key, symbol = SIZES[size]
    multiples = {SIZES[x][1]: ratios[x] / ratios[size] * symbol for x in together}
    try:
        expansion = expand_sizes(problem.discrete, symbol, order, multiples)
        table = _table(expansion, problem.depth or 0)
    except NotApplicable as reason:
        raise SpecError(
            key, float(ratios[size]), f"no series in 1/{size}: {reason}", "mean-field networks"
        ) from None
    return _evaluated(problem, expansion, table, started)


@one_thread
def step_size_series(source: ProblemSource, order: int, rtol: float = 1e-5) -> xr.Dataset:
    """Return the coefficients of ``learning_rate^n``, n <= ``order``, at times ``rate * steps``.

    The order zero is the flow.  On fixed data there are ``error``, ``train_loss``, ``Phi``, ``G`` and the
    variables of test points; on isotropic data all variables but the responses, which are densities.
    ``rtol`` bounds the estimated error of the time grid of the flow, in the coefficients of ``error`` (of
    random data, of ``C_v`` at equal times), relative to the largest of them.
    Raises :class:`~numerics.errors.SpecError` for another rule than ``gd``, for a rate that is a schedule, if
    the rate does more than multiply updates (decay, momentum, noise), for units with attributes, for
    nonlinear networks, and for other losses than the square loss; and
    :class:`~numerics.errors.NotConverged` if the flow does not converge to ``rtol``.
    """
    check_order(order)
    started, problem = clock.perf_counter(), Problem.of(source)
    problem.require_no_attributes("the expansion")
    key, rule = problem.key_and_value("training.rule")
    if problem.flow or rule == "sgd":
        raise SpecError(key, rule, "is not a rule with steps whose limit is a flow", "gd")
    if problem.experiment is not None:
        problem.experiment.require_constant("an expansion in it", "learning_rate")
    try:
        expansion = expand_step_size(problem.theory, order)
        table = _table(expansion, problem.depth or 0)
    except NotApplicable as reason:
        raise SpecError(key, rule, str(reason), "gd without decay, momentum and temperature") from None
    steps = AdamsBashforth(problem.times * problem.numbers[eta], rtol)
    return _evaluated(problem, expansion, table, started, steps)


@one_thread
def strength_series(source: ProblemSource, order: int) -> xr.Dataset:
    """Return the coefficients of gamma0^n of the result variables of a linear network.

    Parameters
    ----------
    source : Problem, Experiment, str or Path
        The problem, or an experiment or its file.
    order : int
        Highest power n.

    Returns
    -------
    xarray.Dataset
        Variables with a leading dimension ``order``, without orders above 0 that vanish; a flow has no
        responses.

    Raises
    ------
    SpecError
        If the theory has no such series, with the reason.
    Diverged
        If the lazy network diverges.
    NotConverged
        If a flow does not converge to ``solver.rtol``.

    Notes
    -----
    The theory is expanded order by order (:func:`derive.expansion.theory_orders.expand_strength`), with
    biases, branches, several outputs, unequal widths and variances, decay, momentum and noise, test points,
    random data.  If the march cannot read the orders, the result holds only errors, losses and predictions of
    test points, from solutions at several gamma0 (:class:`~numerics.expansion.gamma0_fits.AtStrengths`).
    """
    check_order(order)
    started, problem = clock.perf_counter(), Problem.of(source)
    try:
        if problem.attributes:
            raise NotApplicable(
                f"units differ by their attributes {', '.join(problem.attributes)}, which are given numbers"
            )
        if (moving := steady_data(problem)) is not None:
            raise NotApplicable(moving.reason)
        expansion, table = _in_strength(problem.program, problem.reductions, tuple(problem.layered), order)
    except NotApplicable as reason:
        with suppress(NotApplicable):
            return _from_solutions(problem, order, started)
        accepted = "`dmft solve`, which needs no series"
        layered = any(x.layered for x in problem.program.fields)
        if problem.depth == 1 and problem.experiment is None and problem.seen and layered:
            accepted = (
                'the program at symbolic depth with numbers={..., "L": 1}, by a series in products of kernels'
            )
        raise SpecError(
            *problem.key_and_value("network.gamma0"),
            f"the theory has no series in gamma0: {reason}",
            accepted,
        ) from None
    return _evaluated(problem, expansion, table, started)


def _from_solutions(problem: Problem, order: int, started: float) -> xr.Dataset:
    """Return the series in gamma0 of errors and losses, from exact solutions at several values of gamma0.

    Predictions of test points are included. ``order`` is the highest power, and ``started`` the clock time at
    the start, for the wall time in the result. Raises NotApplicable as :class:`AtStrengths` does.
    """
    coefficients = AtStrengths(problem, order)
    attributes = {"method": "expansion in gamma0, from exact solutions at several"}
    return evaluated(problem, [lambda: lambda _: coefficients], order, started, attributes=attributes)


def _evaluated(
    problem: Problem, series: TheorySeries, table: Table, started: float, steps: AdamsBashforth | None = None
) -> xr.Dataset:
    """Return the coefficients of an expanded theory as a dataset, computed by a march.

    ``series`` is the expanded theory, ``table`` its equations in the form that the march uses. ``started`` is
    the time of the clock at which the computation began, for the wall time in the result. With ``steps``, a
    flow is integrated on the grid of these Adams-Bashforth steps. Orders that vanish are left out of a series
    in gamma0.
    """
    return evaluated(
        problem,
        [lambda: partial(OfTheory, problem, series, table)],
        series.order,
        started,
        steps=steps,
        every=not isinstance(series, StrengthSeries),
        attributes={"method": f"expansion in {series.variable}"},
    )


@lru_cache(maxsize=8)
def _in_strength(
    program: Program, reductions: tuple[Reduction, ...], layered: LayerFunctionNames, order: int
) -> tuple[StrengthSeries, Table]:
    """Return the theory of a program expanded in gamma0 up to ``order``, and its equations for the march.

    The result is cached. ``reductions`` are applied to the theory first. ``layered`` are the names of
    functions of the layer whose values become symbols.
    """
    expansion = expand_strength(derived(integrated(program), reductions, layered), order)
    return expansion, _table(expansion, int(program.depth))


def _table(series: TheorySeries, depth: int) -> Table:
    """Return the expanded theory in the form that the march uses: equations and order parameters.

    Correlations and responses that results need but that the theory does not contain, such as those at the
    first and last layers, are added. ``depth`` is the number of hidden layers. Raises NotApplicable if the
    expanded theory is not linear.
    """
    try:
        order, table = series.order, lower(series.expanded)
    except NotLinear as reason:
        raise NotApplicable(str(reason)) from None
    more: dict[FieldAtLayer, Request] = {}
    there, layers = {row.field for row in table.fields}, range(1, depth + 1)

    driven = {row.field: row.drives[0][0] for row in table.fields if row.drives}

    def add_response(name: str, layer: int, field: FieldAtLayer, perturbed: FieldAtLayer) -> None:
        """Add the response of ``field`` to the source of the field ``perturbed``, as ``name`` at a layer.

        Nothing is added if either field has no row, or the second one no source.
        """
        if field in there and perturbed in driven:
            more[name, layer] = Request("response", field, driven[perturbed], S.One)

    if any(e.name == ERROR for e in series.theory.scalars):
        for (name, a), layer in product(((LINEAR_KERNEL, FIELD), (GRADIENT_KERNEL, GRADIENT)), layers):
            for n, k in product(range(order + 1), repeat=2):
                pair = (named(a, n), layer), (named(a, k), layer)
                if n + k <= order and there >= set(pair):
                    more[named(name, n, k), layer] = Request("correlation", *pair, S.One)
        # A series in gamma0 has A and B, the responses to the sources of gradients and of fields, divided by
        # gamma0. Their order n is order n + 1 of the response itself, so that responses are needed up to
        # order + 1.
        if isinstance(series, StrengthSeries):
            for n, layer in product(range(1, order + 2), layers):
                add_response(named(FORWARD_RESPONSE, n), layer, (named(FIELD, n), layer), (GRADIENT, layer))
                add_response(
                    named(BACKWARD_RESPONSE, n), layer, (named(GRADIENT, n), layer + 1), (FIELD, layer + 1)
                )
    elif any(name.startswith("R_hr") for name, _ in table.tensors):
        for n in range(order + 1):
            add_response(named("R_hr", n), depth, (named(FIELD, n), depth), (GRADIENT, depth))
    return replace(table, tensors={**more, **table.tensors})


def partial_sum(series: xr.Dataset, value: float, order: int | None = None) -> xr.Dataset:
    """Return the sum of a power series up to ``order``, with ``value`` for the expansion parameter.

    The result has no dimension ``order``. All orders are summed if ``order`` is None.
    """
    kept = series if order is None else series.sel(order=[n for n in series.order.values if n <= order])
    powers = xr.DataArray(value ** kept.order.values.astype(float), dims="order")
    return (kept * powers).sum("order", skipna=False)


def truncation_error(series: xr.Dataset, value: float) -> dict[str, float]:
    """Return an estimate of the truncation error of each variable, by its name.

    The error is that of the sum of all orders at ``value``. The estimate is that of
    :meth:`~derive.expansion.PowerSeries.error_estimate` for the largest entries of the coefficients; it is
    not a bound. It is infinite if these grow as fast as the powers of ``value`` fall, for a single
    coefficient, for two of which one is zero, and if the last two coefficients, or the first two of the last
    three or four, are zero. Orders that the series does not hold count as zero. A series ends before the
    first order that is not known (NaN). Standard errors are left out.
    """
    x = Symbol("x", positive=True)
    estimates = {}
    for name, a in series.data_vars.items():
        if str(name).endswith(STDERR):
            continue
        largest = {int(n): float(np.abs(a.sel(order=n)).max()) for n in series.order.values}
        end = min((n for n, size in largest.items() if np.isnan(size)), default=max(largest) + 1)
        sizes: list[Expr] = [Float(largest[n]) if n in largest else S.Zero for n in range(end)]
        estimate = PowerSeries(tuple(sizes), x).error_estimate().subs(x, value) if sizes else oo
        estimates[str(name)] = float(estimate)
    return estimates


def _size(problem: Problem, size: str) -> float:
    """Return the number for a size (``nu``, ``alpha`` or ``alpha_B``) in a problem.

    Raises SpecError if the problem does not have the size, or has several numbers for it.
    """
    if size not in SIZES:
        raise SpecError("size", size, "is not a size of a theory", ", ".join(SIZES))
    key, symbol = SIZES[size]
    kind = problem.key_and_value("data.kind")
    if kind[1] not in (None, "isotropic") and problem.experiment is not None:
        raise SpecError(*kind, f"has no {key}", "isotropic")
    value = problem.numbers.get(symbol)
    if value is None:
        given = problem.key_and_value(key)[1] if size == "nu" else None
        raise SpecError(key, given, f"must be one number, for a series in 1/{size}", "a ratio such as 2.0")
    return value


class OfTheory:
    """Coefficients of a series of results, from a march of the expanded theory.

    The expanded theory has a field for each order. Time is counted in steps, or on the ``grid`` of a flow. A
    flow has no responses.
    """

    def __init__(self, problem: Problem, series: TheorySeries, table: Table, grid: TimeGrid | None) -> None:
        self.problem, self.series, self.grid = problem, series, grid
        self.orders, self.notes = range(series.order + 1), dict[str, Any]()
        tables: dict[str, Array] = {}
        if problem.flow:
            tables = Setting(problem, grid).tables
        elif grid is not None:
            tables = {"w": grid.weights} | end_weights(grid.nodes, series.order)
        self.run = march(
            table,
            steps=len(problem.times) if grid is None else len(grid.nodes),
            constants=problem.numbers,
            data={**problem.data, **tables},
            wanted=tuple(n for n, q in table.tensors.items() if q.kind == "correlation" or grid is None),
            watched=() if problem.seen else ((C_LEARNT, None),),
            units=problem.spectrum,
        )

    def watched(self) -> Array:
        """Return the values that must converge as the time grid of a flow is refined, (orders, T, ...).

        They are the errors of given samples, or for random data the variance ``C_v(t, t)`` of the error v.
        """
        if self.problem.seen:
            return self.scalar(ERROR)
        value: Array = np.einsum("ntctc->nt", self.correlation(C_LEARNT, None))
        return value

    def values(self) -> dict[str, Array]:
        """Return each result variable by name at output times, orders first."""
        return self.of_samples() if self.problem.seen else self.of_random_data()

    def of_samples(self) -> dict[str, Array]:
        """Return the result variables of a problem on given samples, by name, orders first."""
        problem, layers = self.problem, range(1, (self.problem.depth or 0) + 1)
        at = slice(None) if self.grid is None else self.grid.outputs
        error, f = self.watched()[:, at], self.scalar(OUTPUT)[:, at]
        if any(self.unknown(name, k) for name in "HG" for k in layers):
            return parted(problem, error, f, {}, self.orders)
        H, G = ({k: self.at_outputs(name, k) for k in layers} for name in "HG")
        many = next(iter(G.values())).shape[2] > 1
        kernels = {
            FEATURE_KERNEL: np.stack([x.transpose(0, 1, 3, 2, 4) for x in H.values()], axis=1),
            GRADIENT_KERNEL: np.stack([of_outputs(x) for x in G.values()], axis=1),
        }
        if isinstance(self.series, StrengthSeries):
            if self.grid is None:
                A, B = (
                    np.stack([self.response(x, k) for k in layers], axis=1).transpose(0, 1, 2, 4, 3, 5)
                    for x in "AB"
                )
                kernels |= {
                    FORWARD_RESPONSE: A if many else A[..., 0],
                    BACKWARD_RESPONSE: B if many else B[:, :, :, :, 0],
                }
            if self.series.theory.observables:
                tensors: dict[FieldAtLayer, Array] = {
                    (name, k): x
                    for name, kernel_by_layer in ((LINEAR_KERNEL, H), (GRADIENT_KERNEL, G))
                    for k, x in kernel_by_layer.items()
                }
                kernels["tangent_kernel"] = self.tangent(tensors, many)
        return parted(problem, error, f, kernels, self.orders)

    def of_random_data(self) -> dict[str, Array]:
        """Return the result variables of a problem on random data, by name, orders first.

        Variables that vanish at all orders are left out, such as the response ``R_gu`` at order 0.
        """
        tensors, values = self.run.plan.table.tensors, {}
        for name in RANDOM:
            layers = list(dict.fromkeys(k for n, k in tensors if orders_in(n)[0] == name))
            layers = [k for k in layers if not self.unknown(name, k)]
            if not layers or (self.grid is not None and name.startswith("R_")):
                continue
            by_number = {k: of_outputs(self.at_outputs(name, k)) for k in layers}
            values[name] = by_layer(by_number, range(1, (self.problem.depth or 0) + 1), axis=1)
        test = _equal(values[C_LEARNT])
        test[0] += self.problem.numbers.get(label_noise, 0.0) ** 2 * self.problem.outputs
        train = _equal(values["C_Delta"]) if "C_Delta" in values else test
        return {"train_loss": train, "test_loss": test} | values

    def scalar(self, name: str) -> Array:
        """Return all orders of the scalar ``name``, such as the error, (orders, T, ...)."""
        orders = [
            next((self.run.scalars[x] for _, k in part if (x := named(name, *k)) in self.run.scalars), None)
            for part in self.series.parts(name)
        ]
        shape = next(x for x in orders if x is not None)
        return np.stack([np.zeros_like(shape) if x is None else x for x in orders])

    def unknown(self, name: str, layer: int | None) -> bool:
        """Return whether the expanded theory has no correlation ``name`` at a layer, at any order."""
        tensors = self.run.plan.table.tensors
        return name not in self.series.names or not any(
            (named(name, *k), layer) in tensors for part in self.series.parts(name) for _, k in part
        )

    def correlation(self, name: str, layer: int | None) -> Array:
        """Return all orders of the order parameter ``name`` at a layer, (orders, T, n, T, m).

        ``layer`` is None for an order parameter without layers. n and m are the numbers of samples, outputs
        or units that index its two fields.
        """
        numbers, tensors = self.problem.numbers, self.run.plan.table.tensors
        orders: list[Array | None] = []
        for parts in self.series.parts(name):
            known = [(c, (named(name, *k), layer)) for c, k in parts]
            arrays = [float(c.subs(numbers)) * self.run.tensor(n) for c, n in known if n in tensors]
            orders.append(sum(arrays[1:], arrays[0]) if arrays else None)
        shape = next(x for x in orders if x is not None)
        return np.stack([np.zeros_like(shape) if x is None else x for x in orders])

    def at_outputs(self, name: str, layer: int | None) -> Array:
        """Return all orders of an order parameter at output times, (orders, out, n, out, m).

        The order parameter is ``name`` at ``layer``, which is None if it has no layers. n and m are the
        numbers of samples, outputs or units that index its two fields.
        """
        a, grid = self.correlation(name, layer), self.grid
        return a if grid is None else a[:, grid.outputs][:, :, :, grid.outputs]

    def response(self, name: str, layer: int) -> Array:
        """Return all orders in gamma0 of the response A or B at a layer, (orders, T, n, T, m).

        n and m are the numbers of samples and of outputs for A, and of outputs and of samples for B. The
        array is zero if the response vanishes.
        """
        samples, outputs = int(self.problem.numbers[P]), self.problem.outputs
        rows, columns = (samples, outputs) if name == FORWARD_RESPONSE else (outputs, samples)
        response = np.zeros((len(self.orders), self.run.steps, rows, self.run.steps, columns))
        for n in self.orders:
            if (named(name, n + 1), layer) in self.run.plan.table.tensors:
                response[n] = self.run.tensor((named(name, n + 1), layer))
        return response

    def tangent(self, tensors: Mapping[FieldAtLayer, Array], many: bool) -> Array:
        """Return all orders of the tangent kernel from those of its factors.

        ``tensors`` are the orders of H and G by name and layer; ``many`` is true for several outputs.  The
        products of factors are polynomials of degree ``2 order``: they are evaluated at ``2 order + 1``
        values of gamma0, the coefficients follow from these values, and those beyond ``order`` are left out.
        """
        order, data, numbers = self.series.order, self.problem.arrays, self.problem.numbers
        (equation,) = self.series.theory.observables[:1]
        points = np.cos(np.pi * (np.arange(2 * order + 1) + 0.5) / (2 * order + 1))
        powers = points[:, None] ** np.arange(2 * order + 1)
        at: dict[tuple[str, tuple[int, ...]], Array] = {}
        for (name, layer), a in tensors.items():
            value = np.tensordot(a, powers[:, : order + 1], (0, 1)).transpose(1, 3, 0, 2, 4)
            at[name, (layer or 0,)] = value if name == LINEAR_KERNEL or many else value[0, 0]
        known = {str(k): v for k, v in numbers.items()}
        products = observable(equation, at, known, data, (t, s, *axes_of(equation.lhs)))
        return np.tensordot(np.linalg.inv(powers)[: order + 1], products, (1, -1))


def _equal(a: Array) -> Array:
    """Return a correlation at equal times t = s, summed over outputs, (orders, T).

    ``a`` is the correlation at all pairs of times: (orders, T, T), or (orders, T, T, n, n) for n > 1 outputs.
    """
    value: Array = np.einsum("ntt->nt" if a.ndim == 3 else "nttcc->nt", a)
    return value.copy()  # for one output einsum returns a view of `a`, which is not to be shared
