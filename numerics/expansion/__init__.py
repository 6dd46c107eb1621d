"""Numerical coefficients of the expansion of an experiment's theory in gamma0.

:func:`series` gives the expansion in symbols, :func:`expand` its coefficients as arrays, :func:`resum` and
:func:`evaluated_at` values at one gamma0 with an estimate of the truncation error.
"""

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
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.expansion import Expansion, LinearExpansion, expand_linear
from derive.expansion.errors import ErrorLaw
from derive.expansion.operator_words import WORDS as LAST_WORDS
from derive.expansion.theory_orders import expand_strength
from derive.linear.closure import LinearClosure
from derive.program import L, Program
from derive.program import gamma0 as gamma0_symbol
from derive.program.program import stated_loss
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
from numerics.solver.method import MethodEstimate, estimate_or_refusal
from numerics.solver.refine import AdamsBashforth, Attempt, refine
from numerics.threads import one_thread

Array = NDArray[np.float64]

COARSE = 1e-2
"""Tolerance to which the lazy error must converge on the coarsest grid that is used."""


LOWEST = 4
"""Lowest order of :func:`resum`, which needs two corrections in gamma0^2 to estimate its truncation error."""

Expandable = Problem | Experiment | Program | Theory | str | Path
"""Sources of an expansion: an experiment, its file, a problem, or a program or theory with its numbers."""


def series(experiment: Experiment, order: int) -> Expansion:
    """Return the expansion in gamma0 of an experiment's theory in symbols.

    Training rule, loss and activation are those of the experiment.  The series of a linear network is a sum
    of operator words, which are products of kernels of two times, if its closure has such a series.  The
    theory of another network is expanded order by order.  Beyond order 0 an activation with a kink has powers
    of ``|gamma0|``.

    Parameters
    ----------
    experiment : Experiment
        The experiment; its depth may be a symbol.
    order : int
        Highest power of gamma0.

    Returns
    -------
    Expansion
        The series, which renders as text or LaTeX.

    Raises
    ------
    SpecError
        For an order that is negative or not an integer, if the theory has no such series, and if the
        derivation is estimated to take longer than ``solver.hours``.
    """
    check_order(order)
    experiment.require_linear_rule("the expansion in gamma0")
    experiment.require_moving_features("the expansion in gamma0")
    require_order(experiment, order, experiment.solver)
    _check_error(theory_of(experiment), order, "training.objective", experiment.objective)
    program, key_and_value = program_of(experiment, L), ("network.activation", experiment.network.activation)
    if not is_linear(experiment.network.activation):
        _check_samples("data.kind", experiment.spec.kind, experiment.spec.kind == "fixed")
        if not order or not slope_jumps(program):
            return trees.nonlinear(program, order, *key_and_value)
        one = not experiment.symbolic and experiment.depth == 1
        return kinks.series(program_of(experiment) if one else program, order, *key_and_value)
    try:
        return _expansion(program, order)
    except NotApplicable:
        pass  # no series of operator words, or random data: it is expanded order by order below
    try:
        return expand_strength(theory_of(experiment), order)
    except NotApplicable as reason:
        gamma0, problem = experiment.network.gamma0, f"the theory has no series in gamma0: {reason}"
        raise SpecError("network.gamma0", gamma0, problem, "`dmft solve`, which needs no series") from None


def _missing_output(problem: Problem) -> str:
    """Return the reason why a program has no single output with an error, which the expansion needs."""
    scalars, losses = {*problem.program.scalars}, stated_loss(problem.program)
    read = {str(a.func) for loss in losses for a in loss.atoms(AppliedUndef)} & scalars
    outputs = sorted(problem.author.get(name, name) for name in read)
    if len(outputs) > 1:
        return f"has the outputs {', '.join(outputs)}, and the expansion needs one"
    if not outputs:
        kind = "has a loss that contains no output" if losses else "has no loss, and so no output"
        return f"{kind} (a number that a definition computes), and the expansion needs one"
    return f"has no number that is the error of the output {outputs[0]} alone, which the expansion needs"


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
    """Return the coefficients of gamma0^n of every result variable.

    Parameters
    ----------
    source : Problem, Experiment, Program, Theory, str or Path
        An experiment, its file, a problem, or a program (or its theory) with ``numbers``, ``arrays`` and
        ``times``. Only a program or theory takes these three and ``solver``.
    order : int
        Highest power n of gamma0.
    numbers : mapping, optional
        Numbers for the symbols of a program, by symbol or name.
    arrays : mapping of str to array, optional
        Arrays of a program by name, each with the shape of its indices.
    times : array, shape (T,), optional
        Times of the coefficients; a program needs them.
    solver : Solver, optional
        Settings of the solver for a program.
    progress : callable, optional
        Called with (replicas done, replicas) for a nonlinear network, and not for a linear one.

    Returns
    -------
    xarray.Dataset
        Variables with a leading dimension ``order``; orders above 0 that vanish are left out.

    Raises
    ------
    SpecError
        For an order that is negative or not an integer, for missing numbers, arrays and times, if the theory
        has no series, and if the computation is estimated to take longer than ``solver.hours``.
    Diverged
        If the learning rate is too large for the lazy network, if rounding errors of an order are too large,
        or if outputs are too small for floating-point numbers.
    NotConverged
        If a flow does not converge to ``solver.rtol``, or if an average over a nonlinear network does not
        converge.

    Notes
    -----
    A linear network on fixed samples whose closure has a series of operator words (products of kernels of two
    times) is evaluated by the closure's recursion, another linear network by the theory of each order
    (:func:`.strength_series`).  For nonlinear networks see :mod:`numerics.expansion.trees`, for kinks
    :mod:`numerics.expansion.kinks`.

    Examples
    --------
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
        raise SpecError("program", problem.program.name, _missing_output(problem), "solve and simulate")
    if problem.depth is None:
        raise problem.open_depth()
    require_order(problem, order, problem.solver, symbols=False)
    _check_error(problem.theory, order, *problem.key_and_value("training.objective"))
    if problem.flow and error_jumps(problem.program):
        reason = (
            "has an error that jumps as a function of the output, so that no series of a flow is integrated"
        )
        raise SpecError(
            *problem.key_and_value("training.objective"), reason, '"square", "logistic", or rule = "gd"'
        )
    if isinstance(problem.linear, NotApplicable):
        problem.require_no_attributes("the expansion of a nonlinear network")
        _check_samples(*problem.key_and_value("data.kind"), problem.seen > 0)
        kinked = order and slope_jumps(problem.program)
        return (kinks.expand_kinks if kinked else trees.expand_nonlinear)(problem, order, progress=progress)
    closure = None if problem.attributes else closure_of(problem)
    if closure is None:
        return strength_series(problem, order)

    def evaluate(grid: TimeGrid | None) -> OrderByOrder:
        """Return the coefficients in gamma0 of a linear network on one time grid.

        None stands for the steps of the training rule.
        """
        return OrderByOrder(Setting(problem, grid), closure, order)

    return evaluated(
        problem, [lambda: evaluate], order, started, attributes={"method": "expansion in gamma0"}
    )


WORDS, SYMBOLS, TREES = (2e-5, 3), (18 / 14**4, 14**0.5), (5e-2, 4.5)
"""Measured seconds at order n: for words, the first number times n to the power of the second; for words in
symbols and for trees, the first number times the second to the power n."""


def forecast(source: Expandable, order: int, *, symbols: bool = False) -> float:
    """Return the estimated seconds of an expansion on one core, from measurements on small problems.

    Parameters
    ----------
    source : Problem, Experiment, Program, Theory, str or Path
        An experiment, its file or a problem. A program or theory, which has no numbers here, only with
        ``symbols``.
    order : int
        Highest power of gamma0.
    symbols : bool
        Whether the series is derived in symbols; otherwise the time is that of its numerical coefficients.
        With ``symbols`` any source but an Experiment counts as a linear network.

    Returns
    -------
    float
        Seconds. For numerical coefficients 0 if there is no estimate: for activations with a kink, and for
        theories that the march refuses.

    Notes
    -----
    The number of operator words in symbols grows by a factor of 12 with each power of gamma0^2, and the time
    by 14, up to order 8.  The theory of each order has a correlation for each pair of orders.  The number of
    trees grows by a factor of 20 with each power of gamma0^2.

    Examples
    --------
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
    reply = estimate_or_refusal(MarchMethod(), problem, "auto")
    return reply.cost * (order + 2.0) ** 2 if isinstance(reply, MethodEstimate) else 0.0


def _power(first: float, base: float, n: int) -> float:
    """Return ``first * base^n``, the estimated seconds of an expansion to order n.

    ``first`` is the time at order 0, and ``base`` the factor by which the time grows with each order. The
    result is infinite for n >= ``MOST_ORDERS``.
    """
    return first * base**n if n < MOST_ORDERS else float("inf")


MOST_ORDERS = 400
"""Order from which on an estimate of seconds is infinite, because ``base^n`` would overflow."""


def require_order(source: Expandable, order: int, solver: Solver, *, symbols: bool = True) -> None:
    """Raise SpecError if the expansion to ``order`` is estimated to take longer than ``solver.hours``.

    ``symbols`` says whether the series is derived in symbols. Otherwise its coefficients are numbers.
    """
    seconds = forecast(source, order, symbols=symbols)
    require_time(seconds, solver.hours, f"the expansion to order {order}", "a lower order")


@one_thread
def resum(source: Expandable, order: int, gamma0: float | None = None) -> xr.Dataset:
    """Return error and loss at one gamma0 from a resummed expansion, in which the error is not expanded.

    The expansion of a linear network is a sum of operator words, products of kernels of two times.

    Parameters
    ----------
    source : Problem, Experiment, str or Path
        A problem, an experiment or its file. ``Problem.of`` makes a problem of a program with its numbers.
    order : int
        Highest power of gamma0, at least 4; an odd order counts as the even one below it.
    gamma0 : float, optional
        Value of gamma0; that of the problem by default.

    Returns
    -------
    xarray.Dataset
        ``error`` and ``train_loss`` with estimates ``*_truncation``: the change of the solution if the
        output f is perturbed by its estimated truncation error.  The truncation error of f is estimated by
        its change when the equations of the closure are used once more.

    Raises
    ------
    SpecError
        For an order that is not an integer of at least 4, for networks without a series of words, for units
        with attributes, and for another loss than the square loss.
    Diverged
        If the error grows without bound, as with a learning rate that is too large, or if outputs are too
        small for floating-point numbers.
    NotConverged
        If a series has no approximant or the error does not converge.

    Notes
    -----
    See :mod:`numerics.expansion.fixed_error`.  Expanded in gamma0, the error is exact up to one power of
    gamma0^2 beyond ``order``.
    """
    problem = Problem.of(source)
    problem.require_no_attributes("the expansion")
    closure = _resummable(problem, order)
    started = clock.perf_counter()
    strength = _strength(problem) if gamma0 is None else gamma0
    last = order // 2 * 2

    def attempt(setting: Setting) -> tuple[Array, Array]:
        """Return the error, and the error for a perturbed output f, on one time grid, both (T, P).

        The perturbation is the estimated truncation error of f.
        """
        closed = Closed.of(setting, closure)
        return solved(AtFixedError(closed, setting, strength, last))

    notes: dict[str, Any] = {}
    if not problem.flow:
        errors = attempt(Setting(problem))
    else:

        def lazy(grid: TimeGrid) -> Attempt[None]:
            """Return the error of a flow at gamma0 = 0 on one time grid.

            The number of nodes at which this error converges to the tolerance COARSE is the smallest number
            of nodes that is used for the resummation.
            """
            setting = Setting(problem, grid)
            closed = Closed.of(setting, closure)
            nothing = np.zeros((closed.T, closed.P))
            error, _ = setting.error_and_output(closed.weight, closed.gain * closed.kernel, nothing)
            return Attempt(error[grid.outputs], None)

        enough = len(refine(AdamsBashforth(problem.times, COARSE), lazy).grid.nodes)

        def on(grid: TimeGrid) -> Attempt[tuple[Array, Array]]:
            """Return the error of a flow, and the error for a perturbed output f, on one time grid.

            The perturbation is the estimated truncation error of f. Raises Diverged on a grid that is too
            coarse even at gamma0 = 0.
            """
            if len(grid.nodes) < enough:
                raise Diverged(
                    "the time grid is too coarse: even at gamma0 = 0 the flow needs a grid of at least "
                    f"{enough} times"
                )
            error, perturbed = (x[grid.outputs] for x in attempt(Setting(problem, grid)))
            return Attempt(error, (error, perturbed))

        _, errors, notes = refine(AdamsBashforth(problem.times, problem.solver.rtol), on).parts
    error, perturbed = (x[:, : problem.seen] for x in errors)
    loss = mean_square(error)
    values = {
        "error": (("time", "sample"), error),
        "error_truncation": (("time", "sample"), np.abs(error - perturbed)),
        "train_loss": (("time",), loss),
        "train_loss_truncation": (("time",), np.abs(loss - mean_square(perturbed))),
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
    """Return the coefficients, and loss and error at the gamma0 of the source.

    Parameters
    ----------
    source : Problem, Experiment, str or Path
        As in :func:`resum`.
    order : int
        Highest power of gamma0.
    method : {"sum", "pade", "self-consistent"}, optional
        Evaluation of the series; "self-consistent" is :func:`resum`.  By default "pade", and a series that
        does not converge at this gamma0 is then reported in ``resummation_status``.
    progress : callable, optional
        As in :func:`expand`.

    Returns
    -------
    xarray.Dataset
        The coefficients, the values ``train_loss_resummed`` and ``error_resummed``, and their estimated
        truncation errors ``train_loss_truncation`` and ``error_truncation``.  The attributes are ``gamma0``,
        ``resummation``, ``resummation_status`` ("ok"; "partial" if entries failed, which are NaN; or "failed"
        with the reason) and, if entries failed, their counts in ``resummation_failed``.  A series whose
        evaluation failed comes without values at gamma0; powers of ``|gamma0|`` come also without these
        attributes.

    Raises
    ------
    Diverged
        As :func:`expand`, and with "self-consistent" as :func:`resum`.
    NotConverged
        As :func:`expand`, and if a method is given and the series does not converge.
    SpecError
        As :func:`expand`, and with "self-consistent" as :func:`resum`. Also for units with attributes, and
        beyond order 0 if a method is given and the activation has a kink: its series is in powers of
        ``|gamma0|``, of which two are known, too few for the truncation error of their sum.
    ValueError
        For an unknown method.
    """
    asked = Problem.of(source)
    asked.require_no_attributes("the expansion")
    problem = asked.at_all_times()  # the error of a sum at one time is estimated from neighbouring times
    gamma0, chosen = _strength(problem), ResummationMethod(method or "pade")
    if order and slope_jumps(problem.program):
        if method is not None:
            reason = (
                "two powers of |gamma0| are known, which do not determine the truncation error of their sum"
            )
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
            values_at = resum(problem, order, gamma0)
        else:
            values_at = resummed(result[names], gamma0, chosen)
    except NotConverged as failure:
        if method is not None:
            raise
        failed = notes | {"resummation_status": f"failed: {failure}"}
        return at_times(result.assign_attrs(failed), asked.held)
    values = {}
    for name in names:
        values[f"{name}{RESUMMED}"] = values_at[name]
        values[f"{name}{TRUNCATION}"] = values_at[f"{name}{TRUNCATION}"]
    notes["resummation_status"] = values_at.attrs["status"]
    if "failed" in values_at.attrs:
        notes["resummation_failed"] = values_at.attrs["failed"]
    return at_times(result.assign(values).assign_attrs(notes), asked.held)


def below_zero(series: xr.Dataset, gamma0: float) -> str:
    """Return a sentence if a partial sum of the series of the loss is negative at some time, else "".

    The term of order zero is the loss of the lazy network. Partial sums are checked at the times at which
    this term is positive. They count as negative if they are below ``-ROUNDED`` times the largest value of
    this term.

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
        # Sums that overflow need no warnings: the comparison below is right for infinite sums, and false for
        # NaN.
        with np.errstate(over="ignore", invalid="ignore"):
            total = total + np.float64(gamma0) ** float(order) * coefficients
        wrong = (total < -ROUNDED * np.abs(start).max()) & (start > 0)
        if wrong.any():
            when = f"t = {float(series.time.values[int(np.argmax(wrong))]):g}"
            sentence = (
                f"the series of train_loss to order {int(order)} is below zero at gamma0 = {gamma0:g} from"
            )
            return f"{sentence} {when} on: a smaller gamma0, fewer steps or `dmft solve` would do"
    return ""


ROUNDED = 1e-9
"""Fraction of the largest lazy loss up to which a negative sum counts as a rounding error."""


def _check_error(theory: Theory, order: int, key: str, value: Any) -> None:
    """Raise SpecError beyond order 0 if the error, or its slope, jumps as a function of the output.

    SpecError is also raised if the slope is not known, as for an undefined function. Nothing is checked if
    the error is not a function of a single output. ``key`` and ``value`` are the key of the experiment file
    that sets the loss, and its value, for the message.
    """
    try:
        law = ErrorLaw.of(theory)
    except NotApplicable:
        # Jumps are looked for only in an error signal Delta that is a function of a single output f. Any
        # other error is not checked.
        return
    try:
        slope_of(law, min(order, 1))
    except NotApplicable as reason:
        raise SpecError(key, value, str(reason), "--order 0, or a smooth loss") from None


def _strength(problem: Problem) -> float:
    """Return the value of gamma0, the feature-learning strength, in a problem.

    Raises SpecError for a program that has no number gamma0.
    """
    if gamma0_symbol not in problem.numbers:
        reason = _missing_output(problem)
        if problem.has_roles:
            reason = "has a theory without gamma0, and the expansion is in powers of gamma0"
        raise SpecError("program", problem.program.name, reason, "solve and simulate")
    return float(problem.numbers[gamma0_symbol])


def _check_samples(key: str, kind: Any, seen: bool) -> None:
    """Raise SpecError unless a problem of a nonlinear network has given samples.

    The theory of a nonlinear network on random data has no expansion. ``seen`` says whether there are given
    samples. ``key`` and ``kind`` are the key of the file that sets the kind of data and its value, for the
    message.
    """
    if not seen:
        reason = "has no given samples: the theory of a nonlinear network on random data has no expansion"
        raise SpecError(key, kind, reason, '"fixed"')


def _resummable(problem: Problem, order: int) -> LinearClosure:
    """Return the closure of a linear network, for the resummation at fixed error.

    Raises SpecError if the closure has no expansion in products of kernels, if the loss is not square, or if
    ``order`` is too low.
    """
    check_order(order, LOWEST)
    closure = closure_of(problem)
    if closure is None:
        reason = (
            "is for linear networks of one output on given samples that have a series in products of kernels"
        )
        raise SpecError("--resum", "self-consistent", reason, '"sum" or "pade"')
    if not squares_errors(problem, loss_of(problem.program)):
        reason = "is for the square loss, which is a function of the error signal alone"
        raise SpecError("--resum", "self-consistent", reason, '"sum" or "pade"')
    return closure


def has_words(source: Expandable) -> bool:
    """Return whether the expansion in gamma0 is a sum of operator words.

    An operator word is a product of kernels of two times. The closure of a linear network on given samples
    with one output has such an expansion, in most cases.

    Parameters
    ----------
    source : Problem, Experiment, str or Path
        As in :func:`resum`.

    Returns
    -------
    bool
        Whether the expansion is a sum of operator words.
    """
    return closure_of(Problem.of(source)) is not None


def closure_of(problem: Problem) -> LinearClosure | None:
    """Return the closure of a linear network with one output on given samples.

    Returns None for other networks, for random data or several outputs, and if the closure cannot be expanded
    in products of kernels.
    """
    if not problem.seen or problem.outputs > 1:
        return None
    return _closure(symbolic(problem))


@lru_cache(maxsize=64)
def _closure(program: Program) -> LinearClosure | None:
    """Return the closure (equations for order parameters alone) of a program; cached.

    Returns None if its theory is nonlinear or cannot be expanded in products of kernels.
    """
    try:
        return _expansion(integrated(program), 0).closure
    except NotApplicable:
        return None


@lru_cache(maxsize=16)
def _expansion(program: Program, order: int) -> LinearExpansion:
    """Return the expansion in gamma0 of a linear program up to ``order``, in symbols; cached.

    Each term is an operator word, a product of kernels of two times. Raises NotApplicable if the program has
    no such expansion.
    """
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
