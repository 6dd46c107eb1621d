"""Coefficients of a series as arrays: averages over replicas, refinement of the grid of a flow, labels.

An evaluator is a function of a time grid (None: the rule's own steps) that returns :class:`Coefficients`.
:func:`evaluated` refines the grid of a flow, averages over replicas, leaves out orders that vanish and labels
the others.

On given samples the output's equation is the same at each order n: f_n is linear in Delta_n, with the
feedback K of order 0, and the rest of f_n is known,

    f_n(t) = rest_n(t) + K sum_s w(t, s) Delta_n(s),    Delta_n(t) = [e(f_0 + gamma0 f_1 + ...)](t)_n,

where e is minus the derivative of the loss (:class:`~derive.expansion.errors.ErrorLaw`), zero for test
points.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Any, Protocol

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Symbol, lambdify
from sympy.core.function import AppliedUndef

from derive.errors import NotApplicable
from derive.expansion.errors import OUTPUT, ErrorLaw
from derive.program import L, Program
from derive.program.networks.options import SAMPLE_WEIGHT
from derive.program.symbolic_depth import at_symbolic_depth
from numerics.errors import SpecError, diverged_at, require_whole
from numerics.experiment.problem import Problem
from numerics.experiment.theory import program_of
from numerics.names import INPUT_KERNEL, TARGETS
from numerics.progress import Progress
from numerics.results import RUNAWAY, STDERR, dataset
from numerics.results.losses import SampleLoss, first_sample, loss_in_words, loss_of
from numerics.results.predictions import of_training, squares_errors
from numerics.solver.grid import TimeGrid, tables_of
from numerics.solver.refine import AdamsBashforth, Attempt, refine
from numerics.stats import Spread

Array = NDArray[np.float64]


class Coefficients(Protocol):
    """Interface of the coefficients of a power series of results on one time grid."""

    @property
    def orders(self) -> Sequence[int]:
        """Powers of the expansion parameter whose coefficients may differ from zero, ascending."""

    @property
    def notes(self) -> dict[str, Any]:
        """Further attributes of the result dataset, such as ``average_error``, by name."""

    def watched(self) -> Array:
        """Return the values that are compared between time grids of a flow, until they converge.

        They are errors in most cases, with shape (orders, T, ...) for the T times of the grid.
        """

    def values(self) -> dict[str, Array]:
        """Return the coefficients of each result variable at all times of the problem; orders first.

        They are arrays by the name of the variable.
        """


Evaluator = Callable[[TimeGrid | None], Coefficients]


def evaluated(  # noqa: PLR0913 - options of every series, most of them keyword-only
    problem: Problem,
    evaluators: Sequence[Callable[[], Evaluator]],
    order: int,
    started: float,
    *,
    progress: Progress | None = None,
    steps: AdamsBashforth | None = None,
    every: bool = False,
    attributes: Mapping[str, Any],
) -> xr.Dataset:
    """Return the coefficients of an evaluator as a dataset, or means over several with standard errors.

    Each item of ``evaluators`` returns the evaluator of one replica when it is called.  The first replica
    refines the time grid of a flow until it converges, and the others use this grid.  ``steps`` are the
    Adams-Bashforth steps to refine for a problem in steps whose series has coefficients of a flow; a problem
    that is a flow itself needs none.  Orders above 0 that vanish are left out, unless ``every``; ``order`` is
    the highest one that was computed, which the attribute ``truncation_order`` states.  ``started`` is the
    time of the clock at the start; ``attributes`` are added to the result; ``progress`` is called with
    (replicas done, replicas). Raises :class:`~numerics.errors.NotConverged` for a flow that does not
    converge.
    """
    if problem.flow:
        steps = AdamsBashforth(problem.times, problem.solver.rtol)
    grid: TimeGrid | None = None
    notes: dict[str, Any] = {}
    values: dict[str, Array] = {}
    runs = Spread()
    for number, make in enumerate(evaluators):
        evaluate = make()
        if steps is None or grid is not None:
            coefficients = evaluate(grid)
        else:
            grid, coefficients, notes = refine(steps, partial(_attempt, evaluate)).parts
        if number == 1:
            runs.add(values)
        values = coefficients.values()
        if number:
            runs.add(values)
        if progress is not None:
            progress(number + 1, len(evaluators))
    if runs.counts:
        values = runs.mean() | {k + STDERR: v for k, v in runs.stderr().items()}
        notes["replicas"] = number + 1
    kept = [i for i, n in enumerate(coefficients.orders) if n == 0 or every or _occurs(values, i)]
    return dataset(
        values if len(kept) == len(coefficients.orders) else {k: v[kept] for k, v in values.items()},
        times=problem.times if steps is None else steps.times,
        spec=problem.text,
        data_sha256=problem.data_sha256,
        held=problem.held,
        time_name=problem.time_name,
        loss=loss_in_words(problem, values),
        orders=[coefficients.orders[i] for i in kept],
        truncation_order=order,
        wall_time_s=clock.perf_counter() - started,
        **attributes,
        **notes,
        **coefficients.notes,
    )


def _attempt(evaluate: Evaluator, grid: TimeGrid) -> Attempt[Coefficients]:
    """Return the coefficients on one time grid of a flow, with the values whose convergence is tested.

    ``evaluate`` computes the coefficients of a series on a grid.
    """
    coefficients = evaluate(grid)
    return Attempt(coefficients.watched()[:, grid.outputs], coefficients)


def _occurs(values: Mapping[str, Array], i: int) -> bool:
    """Return whether any variable differs from zero in the order at position ``i`` of the computed orders.

    NaN counts as zero. Tangent kernels, which may be rounding errors, do not count.
    """
    return any(np.any(np.nan_to_num(x[i])) for name, x in values.items() if not name.startswith("tangent"))


def check_order(order: int, lowest: int = 0) -> None:
    """Raise SpecError for an order that is not an integer, that is negative, or below ``lowest``."""
    require_whole("--order", order, 0, "must not be negative")
    if order < lowest:
        raise SpecError("--order", order, "is too low to be resummed", f"{lowest} or more")


@dataclass(frozen=True, eq=False)
class Setting:
    """Problem on given samples with a time grid.

    Training samples come first, test points last. Times are the steps of the training rule, or the nodes of
    ``grid`` for a gradient flow.
    """

    problem: Problem
    grid: TimeGrid | None = None

    @property
    def numbers(self) -> Mapping[Symbol, float]:
        """Numbers for the symbols of the theory, such as gamma0 and the learning rate."""
        return self.problem.numbers

    @property
    def depth(self) -> int:
        """Number of hidden layers."""
        return int(self.problem.program.depth)

    @property
    def kernel(self) -> Array:
        """Kernel of the data, (P, P)."""
        return np.asarray(self.problem.arrays[INPUT_KERNEL])

    @property
    def targets(self) -> Array:
        """Targets of the samples, (P,); zero for test points whose targets are not given."""
        return np.asarray(self.problem.arrays[TARGETS])

    @cached_property
    def error(self) -> Composed:
        """The error (minus the derivative of the loss) as a numerical function of the output."""
        return Composed(
            ErrorLaw.of(self.problem.theory), self.problem.arrays, first_sample(self.problem, slice(None))
        )

    @property
    def times(self) -> int:
        """Number T of times: steps of the rule, or nodes of the grid of a flow."""
        return len(self.problem.times) if self.grid is None else len(self.grid.nodes)

    @property
    def out(self) -> NDArray[np.intp]:
        """Positions of all times of the problem among the rule's steps, or the nodes of a flow's grid."""
        return np.arange(self.times) if self.grid is None else self.grid.outputs

    @cached_property
    def tables(self) -> dict[str, Array]:
        """Tables of the memory of the training rule, (T, T) by name.

        An example is the factor of an update at time s in the weights at time t. For a flow they contain the
        quadrature weights of the integrator.
        """
        problem = self.problem
        if self.grid is None:
            return {**{name: problem.arrays[name] for name in problem.program.tables}, **problem.memory}
        return tables_of(problem.program, problem.numbers, self.grid.nodes, self.grid.weights)

    def error_and_output(
        self, weight: Array, feedback: Array, rest: Array, lower: Sequence[Array] = ()
    ) -> tuple[Array, Array]:
        """Return order n of the error, Delta_n, and of the output, f_n, both (T, P).

        They solve ``f_n = rest + feedback sum_s weight(t, s) Delta_n(s)``, where Delta_n follows from f_n
        and the lower orders of f.

        Parameters
        ----------
        weight
            Weight of an update at s in fields at t, (T, T), strictly lower triangular.
        feedback
            Matrix (P, P) that multiplies past errors.
        rest
            The part of f_n without Delta_n, (T, P).
        lower
            The orders f_0, ..., f_(n-1), each (T, P).

        Raises
        ------
        Diverged
            If Delta_n becomes RUNAWAY times larger than without feedback.
        """
        f, error, law = rest.copy(), np.zeros_like(rest), self.error
        bound = RUNAWAY * max(float(np.max(np.abs(law.order([*lower, rest])))), 1e-300)
        if lower:
            slope, error = law.slope(1, lower[0]), law.order([*lower, error])
        with np.errstate(over="ignore", invalid="ignore"):
            for now, (at, past, e) in enumerate(zip(f, weight, error, strict=True)):
                at += feedback.dot(past[:now].dot(error[:now]))
                e += slope[now] * at if lower else law(at)
        grown = ~np.all(np.abs(error) < bound, axis=1)
        if np.any(grown):
            raise diverged_at(int(np.argmax(grown)), f"Delta at order {len(lower)}")
        return error, f


class Composed:
    """Error e, minus the derivative of the loss, as a numerical function of the output f.

    If the output is a power series in g, the coefficient of g^n of the error is

        [e(f_0 + g f_1 + ...)]_n = sum_k e^(k)(f_0)/k! [(g f_1 + g^2 f_2 + ...)^k]_n

    Arrays have samples as last axis. ``first`` is the value of their index at the first sample.
    """

    def __init__(self, law: ErrorLaw, data: Mapping[str, Array], first: int = 1) -> None:
        names = sorted({str(x.func) for x in law.body.atoms(AppliedUndef)} - {OUTPUT})
        self.law, self.data, self.first = law, [np.asarray(data[name]) for name in names], first

    def __call__(self, f: Array) -> Array:
        """Return the error e at an output f, (..., samples), in a shape that broadcasts to that of f."""
        return self._slope(0, f)

    def slope(self, k: int, f: Array) -> Array:
        """Return the Taylor coefficient ``e^(k)/k!`` of the error e at an output f, in the shape of f."""
        with np.errstate(over="ignore"):
            return np.broadcast_to(self._slope(k, f), f.shape).astype(float)

    def _slope(self, k: int, f: Array) -> Array:
        """Return the Taylor coefficient ``e^(k)/k!`` of the error e at an output f.

        The shape is that of f or can be broadcast to it. The error may depend on the index of the sample.
        """
        return slope_of(self.law, k)(self.first + np.arange(float(f.shape[-1])), f, *self.data)

    def order(self, outputs: Sequence[Array]) -> Array:
        """Return the coefficient of g^n of the error e for the output ``f_0 + g f_1 + ... + g^n f_n``.

        ``outputs`` is the sequence (f_0, ..., f_n), whose last entry defines n.
        """
        f0, *higher = outputs
        n = len(higher)
        power: list[Array | float] = [1.0, *[0.0] * n]
        total = np.zeros_like(f0)
        for k in range(n + 1):
            if np.any(power[n]):
                total = total + self.slope(k, f0) * power[n]
            power = [sum((power[i] * higher[m - i - 1] for i in range(m)), 0.0) for m in range(n + 1)]
        return total


@lru_cache(maxsize=256)
def slope_of(law: ErrorLaw, k: int) -> Callable[..., Array]:
    """Return the Taylor coefficient ``e^(k)/k!`` of the error e in the output as a compiled function.

    Its arguments are the number of the sample, the output, and the arrays in e in the order of their names.
    Raises :class:`~derive.errors.NotApplicable` for k > 0 if the derivative of order k jumps, contains a
    delta function or is not known.
    """
    arguments = [law.output, *sorted(law.body.atoms(AppliedUndef) - {law.output}, key=lambda x: str(x.func))]
    names = {x: Symbol(str(x.func)) for x in arguments}
    symbols = [law.output.args[0], *names.values()]
    function: Callable[..., Array] = lambdify(symbols, law.slope(k).xreplace(names), "numpy")
    return function


def symbolic(problem: Problem) -> Program:
    """Return the program of a problem at symbolic depth L, with the symbol ell for the layer.

    Experiments, and problems with a ``family``, have this form. Any other program is returned unchanged if a
    form that holds for every depth is not found, as for one layer.
    """
    if problem.experiment is not None:
        written, trained = program_of(problem.experiment), problem.program
        pairs = zip((written, *written.trained()), (trained, *trained.trained()), strict=True)
        rules = {x.rule: y.rule for x, y in pairs}
        return program_of(problem.experiment, L).with_rules(lambda rule: rules.get(rule, rule))
    if problem.family is not None:
        return problem.family
    try:
        return at_symbolic_depth(problem.program)
    except NotApplicable:
        return problem.program


def parted(
    problem: Problem,
    error: Array,
    f: Array,
    kernels: Mapping[str, Array],
    orders: Sequence[int],
    *,
    nonlinear: bool = False,
) -> dict[str, Array]:
    """Return the coefficients of the result variables at ``orders``, by name.

    Training samples and test points, which are the last ones, are separated into variables of their own.

    Parameters
    ----------
    problem
        The problem.
    error, f
        Error and output at all orders 0, 1, ... and for all samples, (order, time, sample[, channel]).
    kernels
        Order parameters by name, at ``orders`` only.
    orders
        Orders of the result.
    nonlinear
        Whether the network is nonlinear; ``kernels`` then may have other axes of samples.
    """
    held, at, loss = problem.held_out, list(orders), loss_of(problem.program)
    count = None if held is None else held.training
    error = error[:, :, :count]
    values = {"error": error[at]}
    trained, tested = slice(problem.seen), slice(problem.seen, None)
    if squares_errors(problem, loss):
        values["train_loss"] = squared(error)[at]
    elif loss is not None:
        values |= {name: x[at] for name, x in _losses(problem, loss, trained, f[:, :, :count]).items()}
    for name, x in kernels.items():
        if count is not None:
            x = of_training(name, x, count, nonlinear, problem.positions, leading=1)
        values[name] = x
    if held is not None:
        values["test_f"] = f[at][:, :, count:]
        if held.targets is None or loss is None:
            return values
        if loss.is_square:
            test_error = -f[:, :, count:]
            test_error[0] += held.targets
            return values | {"test_error": test_error[at], "test_loss": squared(test_error)[at]}
        values["test_loss"] = _losses(problem, loss, tested, f[:, :, count:])["train_loss"][at]
    return values


def _losses(problem: Problem, loss: SampleLoss, samples: slice, f: Array) -> dict[str, Array]:
    """Return the coefficients of the loss on the samples in the slice, (order, time), by name.

    The name is "train_loss" also for test samples. ``f`` is the output (order, time, sample[, channel]) of
    these samples.  If the error signal is proportional to target minus output but the loss is not the square
    loss, the orders of the mean square error are returned too, as "mean_square_error".
    """
    bodies = {"train_loss": loss.expression}
    if loss.difference is not None and not loss.is_square:
        bodies["mean_square_error"] = loss.difference**2
    losses = {}
    for name, body in bodies.items():
        body = body.subs({x: v for x, v in problem.values.items() if isinstance(x, Symbol)})
        data = {
            str(x.func): problem.arrays[str(x.func)][samples]
            for x in body.atoms(AppliedUndef) - {loss.output}
        }
        if SAMPLE_WEIGHT in data and (samples.start or 0) >= problem.seen:
            data[SAMPLE_WEIGHT] = np.ones_like(data[SAMPLE_WEIGHT])
        law = Composed(ErrorLaw(body, loss.output), data, first_sample(problem, samples))
        orders = [law.order(list(f[: n + 1])) for n in range(len(f))]
        losses[name] = np.stack([x.reshape(*x.shape[:2], -1).sum(axis=2).mean(axis=1) for x in orders])
    return losses


def squared(error: Array) -> Array:
    """Return the orders of the square of a series, summed over outputs and averaged over samples.

    ``error`` is (order, time, sample[, output]), and the result (order, time).

    >>> squared(np.array([[[1.0, 3.0]], [[1.0, 0.0]]])).tolist()
    [[5.0], [1.0]]
    """
    flat = error.reshape(*error.shape[:3], -1)
    orders = range(len(flat))
    return np.stack(
        [np.mean(sum((flat[k] * flat[n - k]).sum(axis=2) for k in range(n + 1)), axis=1) for n in orders]
    )
