"""What an expansion of fixed samples is evaluated for, and what its orders are called in a result.

The error's equation is the same at each order n: f_n is linear in Delta_n, with the feedback of order 0, and
the rest of f_n is known,

    Delta_n(t) = rho [y_n - rest_n(t) - K sum_s w(t, s) Delta_n(s)],

where rho is one for training samples and zero for test points, which nothing is learnt from.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol

from derive.program import L, Program
from derive.program.networks.options import SAMPLE_WEIGHT
from numerics.errors import Diverged
from numerics.experiment.problem import Problem
from numerics.experiment.theory import program_of
from numerics.predictions import split
from numerics.solver.grid import Grid
from numerics.solver.march import RUNAWAY
from numerics.solver.memory import tables_of

Array = NDArray[np.float64]


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
    problem: Problem, values: Mapping[str, Array], f: Array, *, nonlinear: bool = False
) -> dict[str, Array]:
    """The contract's variables from those of all samples, orders first; ``f`` (orders, time, sample)."""
    cut = [split(problem, {k: x[n] for k, x in values.items()}, nonlinear=nonlinear) for n in range(len(f))]
    error = np.stack([x["error"] for x in cut])
    found = {"error": error, "train_loss": squared(error)}
    found |= {k: np.stack([x[k] for x in cut]) for k in values if k != "error"}
    held = problem.held_out
    if held is not None:
        found["test_f"] = f[:, :, held.training :]
        if held.targets is not None:
            found["test_error"] = -found["test_f"]
            found["test_error"][0] += held.targets
            found["test_loss"] = squared(found["test_error"])
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


__all__ = ["Setting", "parted", "squared", "symbolic", "volterra"]
