"""What a method of solution says and gives: the words between the registry and the engines."""

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
"""How much of two-time kernels is kept: of all pairs of samples, their traces, none, or what is small."""


EXACT = 1e-12
"""What steps without sampling miss: rounding."""

QUICK = 3.0
"""Seconds that the most exact method may take where the file does not say an accuracy."""

ACCURACY = 5e-3
"""The accuracy of losses and errors, relative to their largest value, if the file does not say."""

WATCHED = ("train_loss", "error", "test_loss", "test_f")
"""What an accuracy is about."""

POOR = 0.1
"""The standard error or bias, relative to the largest value, beyond which a result is not converged."""

SLACK = 3.0
"""Times the estimated time and memory that a search for an accuracy may take."""

BRIEF, SMALL = 20.0, 2.0**30
"""Seconds and bytes that it may take whatever the estimate is."""


@dataclass(frozen=True)
class Yes:
    """A method can: ``cost`` in seconds on one core and ``memory`` in bytes, both estimated; ``error``, what
    it expects to reach, relative to the largest loss and error.  ``asked`` is the accuracy that it aims for
    where the file does not say ``solver.accuracy``; None where that is ``solver.rtol``.
    """

    cost: float
    memory: float
    error: float
    note: str = ""
    asked: float | None = None


@dataclass(frozen=True)
class No:
    """A method cannot: the key (or the program) and the value that it is about, the reason in the theory, and
    what would do.  ``diverged``: a small run, by which the method estimates its cost, diverged.
    """

    key: str
    value: object
    reason: str
    accepted: str = ""
    diverged: Diverged | None = None


@dataclass(frozen=True)
class MethodResult:
    """Variables by the contract's names, and what to report beside them."""

    values: dict[str, Array]
    notes: dict[str, Any] = field(default_factory=dict)


class Method(Protocol):
    """A way to solve problems."""

    @property
    def name(self) -> str:
        """What ``solver.method`` calls it."""
        ...

    @property
    def responses(self) -> bool:
        """Does its result hold A and B?"""
        ...

    @property
    def needs(self) -> tuple[Callable[[Problem], No | None], ...]:
        """What a problem must have before :meth:`fits` is asked, each a function that may refuse it."""
        ...

    def fits(self, problem: Problem, keep: KeptKernels) -> Yes | No:
        """Return cost and error for a problem that has what is needed, or a refusal; nothing is run."""
        ...

    def run(self, problem: Problem, keep: KeptKernels, progress: Progress | None) -> MethodResult:
        """The solution.

        Raises :class:`~numerics.errors.SpecError` for what no memory holds,
        :class:`~numerics.errors.Diverged` with the step, and :class:`~numerics.errors.NotConverged`.
        """
        ...


def answer(method: Method, problem: Problem, keep: KeptKernels) -> Yes | No:
    """Return what a method says of a problem: the first need that the problem lacks, or whether it fits."""
    lacks = next((no for need in method.needs if (no := need(problem)) is not None), None)
    return method.fits(problem, keep) if lacks is None else lacks
