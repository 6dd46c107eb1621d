"""The series resummed at fixed error.

The expansion has two sources of powers of gamma0: the words, and the coefficients Delta^(n) of the error that
their letters remember.  The second is what ends the series early, because the error reacts back on itself.
Here the error is not expanded: the letters remember the full Delta, and ``Delta = y - f[Delta]`` is solved,
where f[Delta] is made from the series of words at that error (:mod:`numerics.expansion.by_laws`).
Expanded in gamma0 this gives back the coefficients, order by order, and the next one besides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from sympy import Symbol

from derive.linear.closure import LinearClosure
from numerics.errors import NotConverged
from numerics.expansion.by_laws import output_at
from numerics.expansion.by_recursion import Closed
from numerics.expansion.resummation import Values
from numerics.expansion.setting import volterra

Array = NDArray[np.float64]

SETTLED = 1e-9
"""Changes of the error below this share of its start are none."""
ROUGHLY = 1e-3
SWEEPS = 60
HORIZONS = 8
"""The error is found up to growing times, so that what follows starts from something sensible."""


@dataclass(frozen=True)
class AtFixedError:
    """What the error's equation is made of; it feeds back ``gain * kernel`` at lowest order."""

    closure: LinearClosure
    depth: int
    constants: Mapping[Symbol, float]
    memory: Mapping[str, Array]
    kernel: Array
    targets: Array
    rho: Array
    gain: float
    gamma0: float
    order: int

    def upto(self, now: int) -> AtFixedError:
        """The same up to a time only."""
        return replace(self, memory={k: v[:now, :now] for k, v in self.memory.items()})

    def step(self, error: Array, pushed: Array | None = None) -> tuple[Array, Array]:
        """The error that follows from f at ``error`` (and ``pushed``, added to f), and the estimate of what f
        misses."""
        closed = Closed(self.closure, self.depth, self.constants, self.memory, self.kernel)
        rest = beyond_lowest(closed, error, self.order, self.gamma0)
        w = next(iter(self.memory.values()))
        drive = self.targets - rest.value - (0.0 if pushed is None else pushed)
        feedback = self.rho[:, None] * self.gain * self.kernel
        return volterra(w, feedback, self.rho * drive, self.order), rest.error

    def settled(self, error: Array, tolerance: float, pushed: Array | None = None) -> tuple[Array, Array]:
        """Repeats steps until nothing changes; raises NotConverged if it does not end."""
        for _ in range(SWEEPS):
            new, missed = self.step(error, pushed)
            change, error = float(np.max(np.abs(new - error))), new
            if change <= tolerance:
                return error, missed
        raise NotConverged(
            f"the error at gamma0 = {self.gamma0} does not settle at order {self.order} "
            f"(change {change:.1e}): a smaller gamma0 or a higher order would do"
        )


def solved(problem: AtFixedError) -> tuple[Array, Array]:
    """The error, (T, P), and the same with f pushed by what its series is estimated to miss.

    Raises :class:`~numerics.errors.NotConverged` where the words' own series fails, or the equation does not
    settle.
    """
    T = next(iter(problem.memory.values())).shape[0]
    scale = max(float(np.max(np.abs(problem.targets))), 1e-300)
    error = np.broadcast_to(problem.targets, (1, len(problem.targets)))
    missed = np.zeros_like(error)
    for part in range(1, HORIZONS + 1):
        now = max(min(2, T), -(-T * part // HORIZONS))
        error = np.concatenate([error, np.repeat(error[-1:], max(now - len(error), 0), axis=0)])
        tolerance = (SETTLED if part == HORIZONS else ROUGHLY) * scale
        error, missed = problem.upto(now).settled(error, tolerance)
    pushed, _ = problem.settled(error, ROUGHLY * scale, np.where(error < 0, 1, -1) * missed)
    return error, pushed


def beyond_lowest(closed: Closed, error: Array, order: int, gamma0: float) -> Values:
    """f[Delta] without its term of lowest order, which is linear in Delta, and what is missed of it."""
    if gamma0 == 0:
        return Values(np.zeros_like(error), np.zeros_like(error), np.zeros(error.shape, dtype=bool))
    found = output_at(closed, error, order, gamma0)
    return Values(found.value - closed.output(0), found.error, found.failed)


def with_truncation(errors: tuple[Array, Array]) -> dict[str, tuple[tuple[str, ...], Array]]:
    """Error and loss, and how far those of the pushed solution are from them."""
    last, pushed = errors
    loss, other = np.mean(last**2, axis=1), np.mean(pushed**2, axis=1)
    return {
        "error": (("time", "sample"), last),
        "error_truncation": (("time", "sample"), np.abs(last - pushed)),
        "train_loss": (("time",), loss),
        "train_loss_truncation": (("time",), np.abs(loss - other)),
    }


__all__ = ["AtFixedError", "beyond_lowest", "solved", "with_truncation"]
