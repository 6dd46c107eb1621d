"""Evaluate the expansion in gamma0 of an experiment's theory."""

from __future__ import annotations

import time as clock
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Expr, Integer

from derive.errors import NotApplicable
from derive.expansion import Expansion, LinearExpansion, expand_linear
from derive.expansion.strength import expand_strength
from derive.program import L, Program
from derive.program import gamma0 as gamma0_symbol
from derive.theory import mean_field
from numerics.errors import Diverged, NotConverged, SpecError
from numerics.expansion.by_recursion import ByRecursion
from numerics.expansion.by_words import ByWords, feedback, memories
from numerics.expansion.evaluated import LOWEST, Method, with_values, without_values
from numerics.expansion.nonlinear import evaluation as trees
from numerics.expansion.nonlinear import kinks
from numerics.expansion.orders import strength_series
from numerics.expansion.self_consistent import AtFixedError, solved, with_truncation
from numerics.expansion.setting import Setting, parted, symbolic
from numerics.experiment.activation import is_linear, slope_jumps
from numerics.experiment.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.theory import integrated, program_of, theory_of
from numerics.predictions import split
from numerics.results import dataset
from numerics.solver.grid import Grid
from numerics.solver.method import Yes
from numerics.solver.methods import March
from numerics.solver.refine import Attempt, Multistep, refine
from numerics.threads import one_thread

Array = NDArray[np.float64]

BY_WORDS = 2
"""Up to this order words are evaluated; beyond, their number grows tenfold with each order."""

COARSE = 1e-2
"""Grids on which the lazy error has not settled to this are too coarse to be tried."""


class Orders(Protocol):
    """The coefficients on one time grid, whichever way they are computed."""

    errors: dict[int, Array]
    outputs: dict[int, Array]

    def occurs(self, n: int) -> bool:
        """May anything at this order differ from zero?"""

    def layer(self, name: str, n: int, layer: int, out: NDArray[np.intp], into: Array) -> None:
        """Order n of a correlation at one layer and at output times, into (out, rows, out, cols)."""

    def responses(self, name: str, n: int, layer: int, out: NDArray[np.intp]) -> Array:
        """Order n of a response, (out, out, P); for the flow as a density."""

    def tangent(self, n: int, out: NDArray[np.intp]) -> Array:
        """Order n of the tangent kernel at output times, (out, out, P, P)."""


Source = Problem | Experiment | str | Path
"""What is expanded: an experiment, its file, or any problem."""


def series(experiment: Experiment, order: int) -> Expansion:
    """The expansion in the experiment's own rule, loss and nonlinearity; layer and depth may be symbols.

    Of a linear network in words where its closure has them, else as a theory order by order.  Beyond order 0
    an activation with a kink has powers of ``|gamma0|``.  Raises :class:`~numerics.errors.SpecError` for a
    negative order, and where there is no such series.
    """
    _check(order)
    if order and slope_jumps(experiment.network.activation):
        return kinks.series(experiment, order)
    if not is_linear(experiment.network.activation):
        return trees.series(experiment, order)
    try:
        return _expansion(program_of(experiment, L), order)
    except NotApplicable:
        pass  # words do not apply, or the data are random
    try:
        return expand_strength(theory_of(experiment), order)
    except NotApplicable as reason:
        gamma0, problem = experiment.network.gamma0, f"the theory has no series in it: {reason}"
        raise SpecError("network.gamma0", gamma0, problem, "`dmft solve`") from None


@one_thread
def expand(source: Source, order: int) -> xr.Dataset:
    """Coefficients of gamma0^n, n <= ``order``, of every result variable; only orders that do not vanish.

    A linear network on fixed samples whose closure has a series of words is evaluated by these (momentum and
    test points among them); any other by the theory of each order (:func:`.strength_series`).  Raises
    :class:`~numerics.errors.SpecError` for a negative order and where the theory has no series,
    :class:`~numerics.errors.Diverged` for a learning rate too large for the lazy network,
    :class:`~numerics.errors.NotConverged` when a flow does not settle to ``solver.rtol``.  Nonlinear
    networks: see :mod:`numerics.expansion.nonlinear`; kinks: :mod:`numerics.expansion.nonlinear.kinks`.
    """
    _check(order)
    problem = Problem.of(source)
    if problem.depth is None:
        raise SpecError(*problem.said("network.depth"), "numbers need a depth that is one", "an integer >= 1")
    if order and jumps(problem):
        return kinks.expand_kinks(problem, order)
    if isinstance(problem.linear, NotApplicable):
        return trees.expand_nonlinear(problem, order)
    if not has_words(problem):
        return strength_series(problem, order)
    started = clock.perf_counter()
    notes: dict[str, Any] = {}
    if not problem.flow:
        setting = Setting(problem)
        found, values = _values(setting, _orders(setting, order), order)
    else:

        def attempt(grid: Grid) -> Attempt[Orders]:
            found = _orders(Setting(problem, grid), order)
            return Attempt(np.stack([e[grid.outputs] for e in found.errors.values()]), found)

        grid, evaluation, notes = refine(Multistep(problem.times, problem.solver.rtol), attempt).parts
        found, values = _values(Setting(problem, grid), evaluation, order)
    orders = [n for n in found if n == 0 or any(np.any(v[found.index(n)]) for v in values.values())]
    kept = [found.index(n) for n in orders]
    return dataset(
        {k: v if len(kept) == len(found) else v[kept] for k, v in values.items()},
        times=problem.times,
        spec=problem.text,
        orders=orders,
        method="expansion in gamma0",
        truncation_order=order,
        wall_time_s=clock.perf_counter() - started,
        **notes,
    )


def forecast(source: Source, order: int, *, symbols: bool = False) -> float | None:
    """About how many seconds an expansion takes on one core, measured; None where it was not.

    Words as ``symbols`` multiply by eight with each power of gamma0^2, and so does the time to print them;
    the theory of each order has as many correlations as there are pairs of orders.

    >>> e = Experiment.from_dict({"network": {"depth": "L"}})
    >>> [round(forecast(e, n, symbols=True)) for n in (4, 6, 8)]
    [5, 40, 320]
    """
    if symbols:
        linear = isinstance(source, Experiment) and is_linear(source.network.activation)
        return 40.0 * 8.0 ** ((order - 6) / 2) if linear else None
    problem = Problem.of(source)
    if isinstance(problem.linear, NotApplicable) or problem.depth is None or has_words(problem):
        return None
    said = March().fits(problem, "auto")
    return said.cost * (order + 2) ** 2 if isinstance(said, Yes) else None


@one_thread
def resum(source: Source, order: int, gamma0: float | None = None) -> xr.Dataset:
    """Error and loss at ``gamma0`` (the experiment's) from words up to ``order``, the error in them in full.

    See :mod:`numerics.expansion.self_consistent` and :mod:`numerics.expansion.by_laws`.  Expanded in gamma0
    the error is right up to one power of gamma0^2 beyond ``order``.  ``error_truncation`` and
    ``train_loss_truncation`` are how far the solution moves when f is pushed by as much as the last use of
    the closure's laws has moved it.  Raises :class:`~numerics.errors.SpecError` for an order below 4 and
    :class:`~numerics.errors.NotConverged` where a series has no approximant or the error does not settle.
    """
    problem = Problem.of(source)
    _check_resummable(problem, order)
    started = clock.perf_counter()
    strength = _strength(problem) if gamma0 is None else gamma0
    few, depth = _expansion(integrated(symbolic(problem)), 0), int(problem.program.depth)
    gain = float(feedback(few, 0).subs(L, depth))
    last = order // 2 * 2

    def attempt(setting: Setting) -> tuple[Array, Array]:
        data = (memories(setting, few.closure), setting.kernel, setting.targets, setting.rho)
        return solved(AtFixedError(few.closure, depth, setting.numbers, *data, gain, strength, last))

    notes: dict[str, Any] = {}
    if not problem.flow:
        errors = attempt(Setting(problem))
    else:

        def lazy(grid: Grid) -> Attempt[None]:
            setting = Setting(problem, grid)
            memory = next(iter(memories(setting, few.closure).values()))
            return Attempt(
                setting.answer(memory, gain * setting.kernel, setting.target(0), 0)[grid.outputs], None
            )

        enough = len(refine(Multistep(problem.times, COARSE), lazy).grid.nodes)

        def on(grid: Grid) -> Attempt[tuple[Array, Array]]:
            if len(grid.nodes) < enough:
                raise Diverged("the grid is too coarse for the lazy network")
            found = attempt(Setting(problem, grid))
            return Attempt(found[0][grid.outputs], (found[0][grid.outputs], found[1][grid.outputs]))

        _, errors, notes = refine(Multistep(problem.times, problem.solver.rtol), on).parts
    values = with_truncation((errors[0][:, : problem.seen], errors[1][:, : problem.seen]))
    coordinates = {"time": problem.times, "sample": np.arange(problem.seen)}
    attributes = {
        "spec": problem.text,
        "status": "ok",
        "method": "expansion in gamma0 at fixed error",
        "gamma0": strength,
        "truncation_order": last,
        "wall_time_s": clock.perf_counter() - started,
        **notes,
    }
    return xr.Dataset(values, coordinates, attributes)


def evaluated_at(source: Source, order: int, method: str | None = None) -> xr.Dataset:
    """The coefficients, and loss and error at the experiment's gamma0 with estimates of what is missed.

    ``method`` is "sum", "pade" or "self-consistent" (:func:`resum`); the default is "pade", and then a series
    that says nothing at this gamma0 is reported in ``resummation_status``.  With a method named it raises
    :class:`~numerics.errors.NotConverged`.  Powers of ``|gamma0|``, of which two are known, are not summed,
    for nothing tells what the sum misses; a method named is refused.
    """
    problem = Problem.of(source)
    gamma0, chosen = _strength(problem), Method(method or "pade")
    if order and jumps(problem):
        if method is not None:
            reason = "two powers of |gamma0| are known, which do not tell what their sum misses"
            raise SpecError("--resum", str(method), reason, "no --resum, or a smooth activation")
        return expand(problem, order)
    if chosen is Method.SELF_CONSISTENT:
        _check_resummable(problem, order)
    result = expand(problem, order)
    try:
        values = resum(problem, order, gamma0) if chosen is Method.SELF_CONSISTENT else None
        return with_values(result, values, gamma0, chosen)
    except NotConverged as failure:
        if method is not None:
            raise
        return without_values(result, gamma0, chosen, failure)


def _strength(problem: Problem) -> float:
    return float(problem.numbers[gamma0_symbol])


def jumps(problem: Problem) -> bool:
    """Has the activation a slope that jumps?"""
    return problem.experiment is not None and slope_jumps(problem.experiment.network.activation)


def _check(order: int, lowest: int = 0) -> None:
    if order < 0:
        raise SpecError("--order", order, "must not be negative", "an integer >= 0, such as 2")
    if order < lowest:
        raise SpecError("--order", order, "is too low to be resummed", f"{lowest} or more")


def _check_resummable(problem: Problem, order: int) -> None:
    _check(order, LOWEST)
    if not has_words(problem):
        reason = "is for linear networks whose closure has a series of words"
        raise SpecError("--resum", "self-consistent", reason, '"sum" or "pade"')


def has_words(source: Source) -> bool:
    """Has the closure of the theory a series of words?"""
    problem = Problem.of(source)
    if not problem.seen or problem.outputs > 1:
        return False
    try:
        _expansion(integrated(symbolic(problem)), 0)
    except NotApplicable:
        return False
    return True


@lru_cache(maxsize=16)
def _expansion(program: Program, order: int) -> LinearExpansion:
    return expand_linear(mean_field(program), order)


@lru_cache(maxsize=16)
def _gains(program: Program, order: int) -> tuple[Expr, ...]:
    expansion = _expansion(program, order)
    return tuple(feedback(expansion, n) if expansion.output[n] != 0 else Integer(0) for n in range(order + 1))


def _orders(setting: Setting, order: int) -> Orders:
    """By words while they are few, else by the recursion that they solve."""
    program = integrated(symbolic(setting.problem))
    few = _expansion(program, min(order, BY_WORDS))
    if order <= BY_WORDS:
        return ByWords(setting, few, _gains(program, order))
    return ByRecursion(setting, few, order)


def _values(setting: Setting, e: Orders, order: int) -> tuple[list[int], dict[str, Array]]:
    """The orders at which anything occurs, and every variable, with the order first."""
    depth, out = setting.depth, setting.out
    orders, layers = [n for n in range(order + 1) if e.occurs(n)], range(1, depth + 1)
    T, P = len(out), e.errors[0].shape[1]
    error, f = (np.stack([x[n][out] for n in range(order + 1)]) for x in (e.errors, e.outputs))
    Phi, G = np.empty((len(orders), depth, T, P, T, P)), np.empty((len(orders), depth, T, T))
    A, B = np.empty((2, len(orders), depth, T, T, P))
    tangent = np.empty((len(orders), T, T, P, P))
    for i, n in enumerate(orders):
        for j, k in enumerate(layers):
            e.layer("H", n, k, out, Phi[i, j])
            e.layer("G", n, k, out, G[i, j][:, None, :, None])
            A[i, j] = e.responses("A", n, k, out)
            B[i, j] = e.responses("B", n, k, out)
        tangent[i] = e.tangent(n, out)
    kernels = {"Phi": Phi.transpose(0, 1, 2, 4, 3, 5), "G": G, "A": A, "B": B, "tangent_kernel": tangent}
    losses = parted(setting.problem, {"error": error}, f)
    cut = [split(setting.problem, {k: x[i] for k, x in kernels.items()}) for i in range(len(orders))]
    return orders, {k: x[orders] for k, x in losses.items()} | {
        k: np.stack([x[k] for x in cut]) for k in kernels
    }


__all__ = [
    "evaluated_at",
    "expand",
    "feedback",
    "forecast",
    "has_words",
    "resum",
    "series",
    "strength_series",
]
