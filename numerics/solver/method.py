"""Interface of a method of solution: estimates, refusals, results, and the constants that methods share.

Each method estimates the cost of a problem or refuses it, and solves it. The registry
(:mod:`numerics.solver.registry`) chooses among the methods by these estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from numerics.errors import Diverged
from numerics.experiment.problem import Problem
from numerics.progress import Progress

Array = NDArray[np.float64]
KeptKernels = Literal["auto", "full", "trace", "none"]
"""Two-time kernels in a result: all pairs of samples, traces over samples, none, or the largest that fits."""


EXACT = 1e-12
"""Error of steps without sampling, which is rounding."""

QUICK = 3.0
"""Seconds up to which the most exact method is preferred if the file does not state an accuracy."""

ACCURACY = 5e-3
"""Accuracy of losses and errors, relative to their largest value, if the file does not state one."""

WATCHED = ("train_loss", "error", "test_loss", "test_f")
"""Variables to which an accuracy applies."""

POOR = 0.1
"""Largest standard error or bias, relative to the largest value, of a result that counts as converged if the
file does not state an accuracy."""

OPTIONS = ("samples", "seed", "rtol")
"""Options of the solver that some methods do not read; a result names those that are set in vain."""

SLACK = 3.0
"""Largest ratio of the time and memory of a search for an accuracy to their estimates."""

BRIEF, SMALL = 20.0, 2.0**30
"""Seconds and bytes that a search for an accuracy may always take, also if its estimate is smaller."""


@dataclass(frozen=True)
class MethodEstimate:
    """Estimate of the cost and error with which a method would solve a problem.

    Attributes
    ----------
    cost : float
        Seconds on one core.
    memory : float
        Bytes.
    error : float
        Expected error, relative to the largest loss and error.
    note : str
        Remark for the table of methods.
    asked : float or None
        Accuracy that the method aims at if the file does not state ``solver.accuracy``; None if it aims at
        none, or at ``solver.rtol``.
    """

    cost: float
    memory: float
    error: float
    note: str = ""
    asked: float | None = None


@dataclass(frozen=True)
class Refusal:
    """Refusal of a method to solve a problem, with the reason.

    Attributes
    ----------
    key : str
        Key of the file because of which the method refuses, or ``"program"``.
    value : object
        Value of this key.
    reason : str
        Reason in the theory.
    accepted : str
        Values that would be accepted.
    diverged : Diverged or None
        Divergence of the small run by which the method estimates its cost.
    """

    key: str
    value: object
    reason: str
    accepted: str = ""
    diverged: Diverged | None = None


@dataclass(frozen=True)
class MethodResult:
    """Variables of a result by name, and notes that become its attributes.

    ``reads`` are the names of those options of the solver in OPTIONS (samples, seed, rtol) on which the
    solution depends; all of them by default.
    """

    values: dict[str, Array]
    notes: dict[str, Any] = field(default_factory=dict)
    reads: frozenset[str] = frozenset({"samples", "seed", "rtol"})


class Method(Protocol):
    """Interface of a method of solution."""

    @property
    def name(self) -> str:
        """Name of the method in ``solver.method``."""
        ...

    @property
    def responses(self) -> bool:
        """False if results lack the responses A and B that other methods give for the same problem."""
        ...

    @property
    def needs(self) -> tuple[Callable[[Problem], Refusal | None], ...]:
        """Conditions that a problem must satisfy; each is a function that returns a refusal or None."""
        ...

    def fits(self, problem: Problem, keep: KeptKernels) -> MethodEstimate | Refusal:
        """Estimate cost, memory and error without solving the problem, or refuse it.

        The problem satisfies ``needs``. ``keep`` states which two-time kernels the result will hold. A method
        may run a small part of the problem for the estimate.
        """
        ...

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        """Solve a problem; the result holds the two-time kernels that ``keep`` states.

        A method may call ``progress``, unless it is None, with the numbers of finished steps and of all
        steps. Raises :class:`~numerics.errors.SpecError` if the memory does not suffice,
        :class:`~numerics.errors.Diverged` with the step, and :class:`~numerics.errors.NotConverged` if it
        does not converge.
        """
        ...


def estimate_or_refusal(method: Method, problem: Problem, keep: KeptKernels) -> MethodEstimate | Refusal:
    """Return the estimate of cost and error of a method for a problem, or the first reason to refuse it.

    The conditions that the method lists in ``needs`` are tested first; then its function ``fits`` estimates
    or refuses.
    """
    refusals = (need(problem) for need in method.needs)
    first = next((refusal for refusal in refusals if refusal is not None), None)
    return method.fits(problem, keep) if first is None else first
