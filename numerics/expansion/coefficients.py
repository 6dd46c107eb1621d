"""Coefficients of a series as numbers: what evaluates them gives, and what is done once around all of it.

An evaluator is a function of a grid of time (None: the rule's own steps) that gives :class:`Coefficients`.
:func:`evaluated` refines the grid of a flow, averages over replicas, leaves out orders that vanish and labels
what is left.

On given samples the error's equation is the same at each order n: f_n is linear in Delta_n, with the feedback
of order 0, and the rest of f_n is known,

    Delta_n(t) = rho [y_n - rest_n(t) - K sum_s w(t, s) Delta_n(s)],

where rho is one for training samples and zero for test points, which nothing is learnt from.
"""

from __future__ import annotations

import time as clock
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np
import xarray as xr
from numpy.typing import NDArray
from sympy import Symbol

from derive.program import L, Program
from derive.program.networks.options import SAMPLE_WEIGHT
from numerics.errors import Diverged, SpecError
from numerics.experiment.problem import Problem
from numerics.experiment.theory import program_of
from numerics.predictions import of_training
from numerics.results import RUNAWAY, STDERR, dataset
from numerics.solver.grid import Grid, tables_of
from numerics.solver.refine import Attempt, Multistep, refine
from numerics.stats import Spread

Array = NDArray[np.float64]


class Coefficients(Protocol):
    """The coefficients of a series on one grid of time, whichever way they are computed.

    ``orders`` are those at which anything may differ from zero, ``notes`` what a result reports.
    """

    @property
    def orders(self) -> Sequence[int]: ...

    @property
    def notes(self) -> dict[str, Any]: ...

    def watched(self) -> Array:
        """What a flow is refined for, (orders, nodes, ...)."""

    def values(self) -> dict[str, Array]:
        """Every result variable at output times, with one entry for each of ``orders`` first."""


Evaluator = Callable[[Grid | None], Coefficients]


def evaluated(
    problem: Problem,
    evaluators: Iterable[Evaluator],
    order: int,
    started: float,
    *,
    steps: Multistep | None = None,
    every: bool = False,
    attributes: Mapping[str, Any],
) -> xr.Dataset:
    """The mean over evaluators (replicas, if there are several: with standard errors), labelled.

    The first of them finds the grid on which a flow settles, or that of ``steps`` where these stand for one.
    Orders that vanish are left out, unless ``every`` one is wanted; ``started`` is when the work began, and
    ``attributes`` stand in the result.  Raises :class:`~numerics.errors.NotConverged` for a flow that does
    not settle.
    """
    if problem.flow:
        steps = Multistep(problem.times, problem.solver.rtol)
    grid: Grid | None = None
    notes: dict[str, Any] = {}
    values: dict[str, Array] = {}
    runs = Spread()
    for number, evaluate in enumerate(evaluators):
        if steps is None or grid is not None:
            found = evaluate(grid)
        else:
            grid, found, notes = refine(steps, partial(_attempt, evaluate)).parts
        if number == 1:
            runs.add(values)
        values = found.values()
        if number:
            runs.add(values)
    if runs.counts:
        values = runs.mean() | {k + STDERR: v for k, v in runs.stderr().items()}
        notes["replicas"] = number + 1
    kept = [i for i, n in enumerate(found.orders) if n == 0 or every or _occurs(values, i)]
    return dataset(
        values if len(kept) == len(found.orders) else {k: v[kept] for k, v in values.items()},
        times=problem.times if steps is None else steps.times,
        spec=problem.text,
        orders=[found.orders[i] for i in kept],
        truncation_order=order,
        wall_time_s=clock.perf_counter() - started,
        **attributes,
        **notes,
        **found.notes,
    )


def _attempt(evaluate: Evaluator, grid: Grid) -> Attempt[Coefficients]:
    found = evaluate(grid)
    return Attempt(found.watched()[:, grid.outputs], found)


def _occurs(values: Mapping[str, Array], i: int) -> bool:
    """Does anything differ from zero?  A tangent kernel, a product of others, may by rounding alone."""
    return any(np.any(np.nan_to_num(x[i])) for name, x in values.items() if not name.startswith("tangent"))


def check_order(order: int, lowest: int = 0) -> None:
    """Raises :class:`~numerics.errors.SpecError` for an order that is negative, or below ``lowest``."""
    if order < 0:
        raise SpecError("--order", order, "must not be negative", "an integer >= 0, such as 2")
    if order < lowest:
        raise SpecError("--order", order, "is too low to be resummed", f"{lowest} or more")


@dataclass(frozen=True, eq=False)
class Setting:
    """A problem on given samples, test points last, in steps or on the ``grid`` of a flow."""

    problem: Problem
    grid: Grid | None = None

    @property
    def numbers(self) -> Mapping[Symbol, float]:
        """Numbers for the symbols of the theory."""
        return self.problem.numbers

    @property
    def depth(self) -> int:
        """The number of hidden layers."""
        return int(self.problem.program.depth)

    @property
    def kernel(self) -> Array:
        """The data's kernel, (P, P)."""
        return np.asarray(self.problem.arrays["K_x"])

    @property
    def targets(self) -> Array:
        """The targets, (P,); zero where they are not known."""
        return np.asarray(self.problem.arrays["y"])

    @cached_property
    def rho(self) -> Array:
        """What each sample counts in the loss, (P,)."""
        return self.problem.arrays.get(SAMPLE_WEIGHT, np.ones(len(self.targets)))

    @property
    def times(self) -> int:
        """The number of steps or nodes."""
        return len(self.problem.times) if self.grid is None else len(self.grid.nodes)

    @property
    def out(self) -> NDArray[np.intp]:
        """The steps or nodes of the output times."""
        return np.arange(self.times) if self.grid is None else self.grid.outputs

    @cached_property
    def tables(self) -> dict[str, Array]:
        """The integrator's weights with the rule's memory in them, by the theory's name for them."""
        if self.grid is None:
            return {}
        problem = self.problem
        return tables_of(problem.program.rule, problem.numbers, self.grid.nodes, self.grid.weights)

    def target(self, n: int) -> Array:
        """What the error starts from at order n, (T, P)."""
        value = self.targets if n == 0 else np.zeros(len(self.targets))
        return np.broadcast_to(value, (self.times, len(value)))

    def answer(self, weight: Array, feedback: Array, drive: Array, n: int) -> Array:
        """Delta_n, (T, P), from what drives it.  Raises :class:`~numerics.errors.Diverged`."""
        return volterra(weight, self.rho[:, None] * feedback, self.rho * drive, n)


def symbolic(problem: Problem) -> Program:
    """The program with layer and depth as symbols where a file says what it is, else as it was given."""
    return problem.program if problem.experiment is None else program_of(problem.experiment, L)


def volterra(w: Array, K: Array, drive: Array, n: int) -> Array:
    """``x(t) = drive(t) - K sum_s w(t, s) x(s)``, step by step.

    ``w`` is (T, T) and strictly lower triangular, ``drive`` (T, P); ``n`` is the order, for the message.
    Raises :class:`~numerics.errors.Diverged` where x grows beyond RUNAWAY times the drive.
    """
    out = np.zeros_like(drive)
    bound = RUNAWAY * max(float(np.max(np.abs(drive))), 1e-300)
    for step in range(len(drive)):
        out[step] = drive[step] - K @ (w[step, :step] @ out[:step])
        if not np.all(np.abs(out[step]) < bound):
            raise Diverged(f"Delta at order {n} diverged at step {step}")
    return out


def parted(
    problem: Problem,
    error: Array,
    f: Array,
    kernels: Mapping[str, Array],
    orders: Sequence[int],
    *,
    nonlinear: bool = False,
) -> dict[str, Array]:
    """The contract's variables at ``orders``, from those of all samples.

    Errors and outputs (order, time, sample[, channel]) are those of all orders 0, 1, ...; ``kernels`` those
    of ``orders``.
    """
    held, at = problem.held_out, list(orders)
    count = None if held is None else held.training
    error = error[:, :, :count]
    found = {"error": error[at], "train_loss": squared(error)[at]}
    for name, x in kernels.items():
        found[name] = x if count is None else of_training(name, x, count, nonlinear, leading=1)
    if held is not None:
        found["test_f"] = f[at][:, :, count:]
        if held.targets is not None:
            missed = -f[:, :, count:]
            missed[0] += held.targets
            found |= {"test_error": missed[at], "test_loss": squared(missed)[at]}
    return found


def squared(error: Array) -> Array:
    """The orders of the square of a series, summed over outputs and averaged over samples.

    >>> squared(np.array([[[1.0, 3.0]], [[1.0, 0.0]]])).tolist()
    [[5.0], [1.0]]
    """
    flat = error.reshape(*error.shape[:3], -1)
    orders = range(len(flat))
    return np.stack(
        [np.mean(sum((flat[k] * flat[n - k]).sum(axis=2) for k in range(n + 1)), axis=1) for n in orders]
    )


__all__ = [
    "Coefficients",
    "Evaluator",
    "Setting",
    "check_order",
    "evaluated",
    "parted",
    "symbolic",
    "volterra",
]
