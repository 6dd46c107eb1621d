"""Evaluate the expansion in gamma0 of an experiment's theory."""

from __future__ import annotations

import time as clock
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from sympy import Symbol

from derive.errors import NotApplicable
from derive.expansion import Expansion, LinearExpansion, expand_linear
from derive.expansion.errors import ErrorLaw
from derive.expansion.strength import expand_strength
from derive.expansion.words import WORDS as LAST_WORDS
from derive.linear.closure import LinearClosure
from derive.program import L, Program
from derive.program import gamma0 as gamma0_symbol
from derive.theory import Theory, mean_field
from numerics.errors import Diverged, NotConverged, SpecError, require_time
from numerics.expansion import kinks, trees
from numerics.expansion.closure import Closed, OrderByOrder
from numerics.expansion.coefficients import Setting, check_order, evaluated, slope_of, symbolic
from numerics.expansion.fixed_error import AtFixedError, solved
from numerics.expansion.orders import strength_series
from numerics.expansion.resummation import RESUMMED, TRUNCATION, ResummationMethod, resummed
from numerics.experiment.activation import is_linear
from numerics.experiment.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.experiment.theory import error_jumps, integrated, program_of, slope_jumps, theory_of
from numerics.progress import Progress
from numerics.results import at_times, provenance
from numerics.results.losses import loss_in_words, loss_of
from numerics.results.predictions import mean_square, squares_errors
from numerics.solver.grid import TimeGrid
from numerics.solver.linear.method import MarchMethod
from numerics.solver.method import Yes, answer
from numerics.solver.refine import AdamsBashforth, Attempt, refine
from numerics.threads import one_thread

Array = NDArray[np.float64]

COARSE = 1e-2
"""Grids on which the lazy error has not settled to this are too coarse to be tried."""


LOWEST = 4
"""Words at fixed error need at least two orders of feedback."""

Expandable = Problem | Experiment | Program | Theory | str | Path
"""What is expanded: an experiment, its file, or any problem; a program or theory with its numbers."""


def series(experiment: Experiment, order: int) -> Expansion:
    """The expansion in the experiment's own rule, loss and nonlinearity; layer and depth may be symbols.

    Of a linear network in words where its closure has them, else as a theory order by order.  Beyond order 0
    an activation with a kink has powers of ``|gamma0|``.  Raises :class:`~numerics.errors.SpecError` for a
    negative order, and where there is no such series.
    """
    check_order(order)
    experiment.require_linear_rule("the expansion in gamma0")
    experiment.require_moving_features("the expansion in gamma0")
    require_order(experiment, order, experiment.solver)
    _check_error(theory_of(experiment), order, "training.objective", experiment.objective)
    program, said = program_of(experiment, L), ("network.activation", experiment.network.activation)
    if not is_linear(experiment.network.activation):
        _check_samples("data.kind", experiment.spec.kind, experiment.spec.kind == "fixed")
        if not order or not slope_jumps(program):
            return trees.nonlinear(program, order, *said)
        one = not experiment.symbolic and experiment.depth == 1
        return kinks.series(program_of(experiment) if one else program, order, *said)
    try:
        return _expansion(program, order)
    except NotApplicable:
        pass  # words do not apply, or the data are random
    try:
        return expand_strength(theory_of(experiment), order)
    except NotApplicable as reason:
        gamma0, problem = experiment.network.gamma0, f"the theory has no series in it: {reason}"
        raise SpecError("network.gamma0", gamma0, problem, "`dmft solve`") from None


@one_thread
def expand(
    source: Expandable,
    order: int,
    *,
    numbers: Mapping[Symbol | str, float] | None = None,
    arrays: Mapping[str, ArrayLike] | None = None,
    times: ArrayLike | None = None,
    solver: Solver | None = None,
    progress: Progress | None = None,
) -> xr.Dataset:
    """Coefficients of gamma0^n, n <= ``order``, of every result variable; only orders that do not vanish.

    ``source`` is an experiment or the path of its file, a :class:`~numerics.experiment.problem.Problem`, or a
    program (or its theory) with ``numbers`` for its symbols, ``arrays`` by name and the ``times`` at which
    the coefficients are wanted, and with ``solver`` settings.  ``progress`` is told how many of how many
    replicas of a nonlinear network's averages are done.

    A linear network on fixed samples whose closure has a series of words is evaluated by its recursion
    (momentum and test points among them); any other by the theory of each order (:func:`.strength_series`).
    Nonlinear networks: see :mod:`numerics.expansion.trees`; kinks: :mod:`numerics.expansion.kinks`.  Raises
    :class:`~numerics.errors.SpecError` for a negative order, for numbers and arrays that are missing and
    where the theory has no series, :class:`~numerics.errors.Diverged` for a learning rate too large for the
    lazy network, :class:`~numerics.errors.NotConverged` when a flow does not settle to ``solver.rtol``.

    >>> from derive.program import mlp
    >>> given = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": {"K_x": [[1.0]], "y": [1.0]}}
    >>> expand(mlp(1, "linear"), 2, times=range(3), **given).train_loss.values.round(4).tolist()
    [[1.0, 0.64, 0.4096], [0.0, 0.0, -0.0037]]
    """
    check_order(order)
    started = clock.perf_counter()
    problem = Problem.of(source, numbers=numbers, arrays=arrays, times=times, solver=solver)
    if problem.experiment is not None:
        problem.experiment.require_linear_rule("the expansion in gamma0")
        problem.experiment.require_moving_features("the expansion in gamma0")
    if not problem.has_roles:
        reason = "has no single output with an error, and the expansion is that of one output"
        raise SpecError("program", problem.program.name, reason, "solve and simulate")
    if problem.depth is None:
        raise problem.open_depth()
    require_order(problem, order, problem.solver, symbols=False)
    _check_error(problem.theory, order, *problem.said("training.objective"))
    if problem.flow and error_jumps(problem.program):
        reason = "jumps in the output: no integrator of a series follows its flow"
        raise SpecError(*problem.said("training.objective"), reason, '"square", "logistic", or rule = "gd"')
    if isinstance(problem.linear, NotApplicable):
        problem.require_no_attributes("the expansion of a nonlinear network")
        _check_samples(*problem.said("data.kind"), problem.seen > 0)
        kinked = order and slope_jumps(problem.program)
        return (kinks.expand_kinks if kinked else trees.expand_nonlinear)(problem, order, progress=progress)
    closure = None if problem.attributes else closure_of(problem)
    if closure is None:
        return strength_series(problem, order)

    def evaluate(grid: TimeGrid | None) -> OrderByOrder:
        return OrderByOrder(Setting(problem, grid), closure, order)

    return evaluated(
        problem, [lambda: evaluate], order, started, attributes={"method": "expansion in gamma0"}
    )


WORDS, SYMBOLS, TREES = (2e-5, 3), (18 / 14**4, 14**0.5), (5e-2, 4.5)
"""Measured seconds: of words to order n the first times n to the second, of words as symbols and of trees the
first times the second to the n."""


def forecast(source: Expandable, order: int, *, symbols: bool = False) -> float:
    """About how many seconds an expansion takes on one core, measured on small problems.

    Words as ``symbols`` multiply by twelve with each power of gamma0^2, and their time by fourteen, and end
    at order 8; the theory of each order has as many correlations as there are pairs of orders; trees multiply
    by twenty.

    >>> e = Experiment.from_dict({"network": {"depth": "L"}})
    >>> [round(forecast(e, n, symbols=True)) for n in (4, 6, 8)]
    [0, 1, 18]
    """
    if symbols:
        linear = not isinstance(source, Experiment) or is_linear(source.network.activation)
        recursion = WORDS[0] * float(order) ** WORDS[1]
        return _power(*SYMBOLS, min(order, LAST_WORDS)) + recursion if linear else _power(*TREES, order)
    problem = Problem.of(source)
    if isinstance(problem.linear, NotApplicable):
        return 0.0 if slope_jumps(problem.program) else _power(*TREES, order)
    if problem.depth is None or has_words(problem):
        return WORDS[0] * float(order) ** WORDS[1]
    said = answer(MarchMethod(), problem, "auto")
    return said.cost * (order + 2.0) ** 2 if isinstance(said, Yes) else 0.0


def _power(first: float, base: float, n: int) -> float:
    """``first base^n``, infinite where it is more than any number."""
    return first * base**n if n < MOST_ORDERS else float("inf")


MOST_ORDERS = 400


def require_order(source: Expandable, order: int, solver: Solver, *, symbols: bool = True) -> None:
    """Raises SpecError for an order that takes more than ``solver.hours``."""
    seconds = forecast(source, order, symbols=symbols)
    require_time(seconds, solver.hours, f"the expansion to order {order}", "a lower order")


@one_thread
def resum(source: Expandable, order: int, gamma0: float | None = None) -> xr.Dataset:
    """Error and loss at ``gamma0`` (the experiment's) from words up to ``order``, the error in them in full.

    See :mod:`numerics.expansion.fixed_error`.  Expanded in gamma0
    the error is right up to one power of gamma0^2 beyond ``order``.  ``error_truncation`` and
    ``train_loss_truncation`` are how far the solution moves when f is pushed by as much as the last use of
    the closure's laws has moved it.  Raises :class:`~numerics.errors.SpecError` for an order below 4 and
    :class:`~numerics.errors.NotConverged` where a series has no approximant or the error does not settle.
    """
    problem = Problem.of(source)
    problem.require_no_attributes("the expansion")
    closure = _resummable(problem, order)
    started = clock.perf_counter()
    strength = _strength(problem) if gamma0 is None else gamma0
    last = order // 2 * 2

    def attempt(setting: Setting) -> tuple[Array, Array]:
        closed = Closed.of(setting, closure)
        return solved(AtFixedError(closed, setting, strength, last))

    notes: dict[str, Any] = {}
    if not problem.flow:
        errors = attempt(Setting(problem))
    else:

        def lazy(grid: TimeGrid) -> Attempt[None]:
            setting = Setting(problem, grid)
            closed = Closed.of(setting, closure)
            nothing = np.zeros((closed.T, closed.P))
            found, _ = setting.answer(closed.weight, closed.gain * closed.kernel, nothing)
            return Attempt(found[grid.outputs], None)

        enough = len(refine(AdamsBashforth(problem.times, COARSE), lazy).grid.nodes)

        def on(grid: TimeGrid) -> Attempt[tuple[Array, Array]]:
            if len(grid.nodes) < enough:
                raise Diverged("the grid is too coarse for the lazy network")
            found, pushed = (x[grid.outputs] for x in attempt(Setting(problem, grid)))
            return Attempt(found, (found, pushed))

        _, errors, notes = refine(AdamsBashforth(problem.times, problem.solver.rtol), on).parts
    error, pushed = (x[:, : problem.seen] for x in errors)
    loss = mean_square(error)
    values = {
        "error": (("time", "sample"), error),
        "error_truncation": (("time", "sample"), np.abs(error - pushed)),
        "train_loss": (("time",), loss),
        "train_loss_truncation": (("time",), np.abs(loss - mean_square(pushed))),
    }
    attributes = {
        "spec": problem.text,
        "data_sha256": problem.data_sha256,
        **provenance(),
        "status": "ok",
        "method": "expansion in gamma0 at fixed error",
        "gamma0": strength,
        "truncation_order": last,
        "wall_time_s": clock.perf_counter() - started,
        **notes,
    }
    named = ("time", problem.times, {"long_name": problem.time_name})
    whole = xr.Dataset(values, {"time": named, "sample": np.arange(problem.seen)}, attributes)
    whole["train_loss"].attrs["loss"] = whole.attrs["loss"] = loss_in_words(problem, {"train_loss"})
    return at_times(whole, problem.held)


def evaluated_at(
    source: Expandable, order: int, method: str | None = None, *, progress: Progress | None = None
) -> xr.Dataset:
    """The coefficients, and loss and error at the experiment's gamma0 with estimates of what is missed.

    These are ``train_loss_resummed``, ``error_resummed`` and their ``_truncation``.  Attributes: ``gamma0``,
    ``resummation``, ``resummation_status`` ("partial" where entries failed; they are NaN) and
    ``resummation_failed``.

    ``method`` is "sum", "pade" or "self-consistent" (:func:`resum`); the default is "pade", and then a series
    that says nothing at this gamma0 is reported in ``resummation_status``.  With a method named it raises
    :class:`~numerics.errors.NotConverged`.  Powers of ``|gamma0|``, of which two are known, are not summed,
    for nothing tells what the sum misses; a method named is refused.
    """
    asked = Problem.of(source)
    asked.require_no_attributes("the expansion")
    problem = asked.at_all_times()  # a sum at one time is judged by its neighbours
    gamma0, chosen = _strength(problem), ResummationMethod(method or "pade")
    if order and slope_jumps(problem.program):
        if method is not None:
            reason = "two powers of |gamma0| are known, which do not tell what their sum misses"
            raise SpecError("--resum", str(method), reason, "no --resum, or a smooth activation")
        return expand(asked, order, progress=progress)
    if chosen is ResummationMethod.SELF_CONSISTENT:
        _resummable(problem, order)
    result = expand(problem, order, progress=progress)
    if note := below_zero(result, gamma0):
        result.attrs["note"] = note
    names = [n for n in ("train_loss", "error") if n in result]
    notes = {"gamma0": gamma0, "resummation": str(chosen)}
    try:
        if chosen is ResummationMethod.SELF_CONSISTENT:
            found = resum(problem, order, gamma0)
        else:
            found = resummed(result[names], gamma0, chosen)
    except NotConverged as failure:
        if method is not None:
            raise
        failed = notes | {"resummation_status": f"failed: {failure}"}
        return at_times(result.assign_attrs(failed), asked.held)
    values = {}
    for name in names:
        values[f"{name}{RESUMMED}"] = found[name]
        values[f"{name}{TRUNCATION}"] = found[f"{name}{TRUNCATION}"]
    notes["resummation_status"] = found.attrs["status"]
    if "failed" in found.attrs:
        notes["resummation_failed"] = found.attrs["failed"]
    return at_times(result.assign(values).assign_attrs(notes), asked.held)


def below_zero(series: xr.Dataset, gamma0: float) -> str:
    """Return a sentence on a sum of the series of the loss that is below zero, or an empty string.

    The loss of order zero is that of a network whose features do not move; sums are compared where it is
    positive by more than rounding.

    >>> orders, times = [0, 2], [0.0, 1.0]
    >>> found = xr.Dataset({"train_loss": (("order", "time"), [[1.0, 0.5], [0.0, -1.0]])},
    ...     {"order": orders, "time": times})
    >>> below_zero(found, 0.1), below_zero(found, 1.0)[:64]
    ('', 'the series of train_loss to order 2 is below zero at gamma0 = 1 ')
    """
    if "train_loss" not in series or "order" not in series.train_loss.dims:
        return ""
    loss = series.train_loss.transpose("order", "time").values
    total, start = np.zeros(loss.shape[1]), loss[0]
    for order, coefficients in zip(series.order.values, loss, strict=True):
        with np.errstate(over="ignore", invalid="ignore"):  # a sum that is not finite is not compared
            total = total + np.float64(gamma0) ** float(order) * coefficients
        wrong = (total < -ROUNDED * np.abs(start).max()) & (start > 0)
        if wrong.any():
            when = f"t = {float(series.time.values[int(np.argmax(wrong))]):g}"
            said = f"the series of train_loss to order {int(order)} is below zero at gamma0 = {gamma0:g} from"
            return f"{said} {when} on: a smaller gamma0, fewer steps or `dmft solve` would do"
    return ""


ROUNDED = 1e-9
"""Share of the first loss below which a sum of the series is zero."""


def _check_error(theory: Theory, order: int, key: str, value: Any) -> None:
    """Raises SpecError beyond order 0 where the error jumps in the output."""
    try:
        law = ErrorLaw.of(theory)
    except NotApplicable:
        return  # no output that it is a function of: another expansion says whether it applies
    try:
        slope_of(law, min(order, 1))
    except NotApplicable as reason:
        raise SpecError(key, value, str(reason), "--order 0, or a smooth loss") from None


def _strength(problem: Problem) -> float:
    return float(problem.numbers[gamma0_symbol])


def _check_samples(key: str, kind: Any, seen: bool) -> None:
    """Raises SpecError for random data."""
    if not seen:
        reason = "nonlinear networks on random data have no expansion: their theory is not expanded in gamma0"
        raise SpecError(key, kind, reason, '"fixed"')


def _resummable(problem: Problem, order: int) -> LinearClosure:
    check_order(order, LOWEST)
    closure = closure_of(problem)
    if closure is None:
        reason = "is for linear networks whose closure has a series of words"
        raise SpecError("--resum", "self-consistent", reason, '"sum" or "pade"')
    if not squares_errors(problem, loss_of(problem.program)):
        reason = "is for the square loss, which is read off the error"
        raise SpecError("--resum", "self-consistent", reason, '"sum" or "pade"')
    return closure


def has_words(source: Expandable) -> bool:
    """Has the closure of the theory a series of words?"""
    return closure_of(Problem.of(source)) is not None


def closure_of(problem: Problem) -> LinearClosure | None:
    """The closure of a linear network with one output on given samples; None without a series of words."""
    if not problem.seen or problem.outputs > 1:
        return None
    return _closure(symbolic(problem))


@lru_cache(maxsize=64)
def _closure(program: Program) -> LinearClosure | None:
    try:
        return _expansion(integrated(program), 0).closure
    except NotApplicable:
        return None


@lru_cache(maxsize=16)
def _expansion(program: Program, order: int) -> LinearExpansion:
    return expand_linear(mean_field(program), order)


__all__ = [
    "evaluated_at",
    "expand",
    "forecast",
    "has_words",
    "resum",
    "series",
    "strength_series",
]
