"""What can go wrong, as types: the command line turns each into its exit status.

`SpecError` (exit 2) is bad input; `NumericsError` (exit 3) is a computation that gave no result, with
`Diverged` for dynamics that left every bound and `NotConverged` for a solver that missed its tolerance.
`Interrupted` is a `KeyboardInterrupt` (exit 130) that keeps what was finished.
"""

from __future__ import annotations

import json
import math
import os
import resource
from collections.abc import Iterable, Mapping
from contextlib import suppress
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xarray as xr
    from numpy.typing import ArrayLike


class SpecError(ValueError):
    """An experiment that is refused before anything runs.

    Attributes: `key`, the dotted path in the experiment file or the option of the command; `value`, what
    was given (None if nothing was); `problem`, what is wrong with it; `accepted`, what would do.

    >>> str(SpecError("training.learning_rate", -0.1, "must be greater than 0", "a positive number"))
    'training.learning_rate = -0.1: must be greater than 0 (accepted: a positive number)'
    >>> str(SpecError("data.targets", None, "is missing", "the name of a .npy file of shape (P,)"))
    'data.targets: is missing (accepted: the name of a .npy file of shape (P,))'
    """

    def __init__(self, key: str, value: object, problem: str, accepted: str) -> None:
        self.key = key
        self.value = value
        self.problem = problem
        self.accepted = accepted
        given = "" if value is None else f" = {_short(value)}"
        super().__init__(f"{key}{given}: {problem} (accepted: {accepted})")

    def __reduce__(self) -> tuple[type[SpecError], tuple[str, object, str, str]]:
        return SpecError, (self.key, self.value, self.problem, self.accepted)


class NumericsError(ArithmeticError):
    """A computation that ended without a result."""


class Diverged(NumericsError):
    """The dynamics left every bound: a smaller learning rate is needed.

    With ``start`` they did so before any step, so that no rate would do; ``step`` is the first step whose
    numbers are out of bounds, if it is known.
    """

    def __init__(self, message: str, *, start: bool = False, step: int | None = None) -> None:
        self.start, self.step = start, step
        super().__init__(message)


SMALLER = "a smaller learning rate is needed"
AT_START = "before any step: smaller data, or a gamma0 nearer to one, would do"
UNDEFINED = (
    "before any step: a quotient there is 0/0, such as a mean over no positions, or numbers have overflown"
)
"""What would do after a divergence: at some step, and at the start."""


def remedy_at_start(values: ArrayLike) -> str:
    """Return what would do for values that are not finite before any step: data do not help 0/0.

    >>> remedy_at_start([1.0, float("nan")])
    'before any step: a quotient there is 0/0, such as a mean over no positions, or numbers have overflown'
    """
    import numpy as np  # the command line imports this module first

    numbers = np.asarray(values)
    return UNDEFINED if np.isnan(numbers).any() and not np.isinf(numbers).any() else AT_START


def diverged_at(step: int, name: str, values: ArrayLike = ()) -> Diverged:
    """What left every bound at a step; at the start, where no rate would do, with what would.

    >>> str(diverged_at(3, "f")), diverged_at(0, "f").start
    ('f diverged at step 3', True)
    """
    said = f"{name} diverged at step {step}" + ("" if step else f"; {remedy_at_start(values)}")
    return Diverged(said, start=not step, step=step)


class NotConverged(NumericsError):
    """A solver did not reach the tolerance that was asked of it."""


class Interrupted(KeyboardInterrupt):
    """An interrupt that leaves something: ``result``, with the status "partial", is what was finished."""

    def __init__(self, result: xr.Dataset) -> None:
        self.result = result
        super().__init__("interrupted")


class Unserved(ValueError):
    """What is asked for is outside of what a computation can take; the message says what."""


def require_finite(numbers: Mapping[str, object]) -> None:
    """Raises :class:`Diverged`, which names it, for a number (or one of a list) that is not finite.

    >>> require_finite({"rate": None, "loss": [1.0, float("inf")]})
    Traceback (most recent call last):
    numerics.errors.Diverged: loss is not finite: numbers on the way have overflown; numbers nearer to one ...
    """
    for name, x in numbers.items():
        every = x if isinstance(x, list | tuple) else x.values() if isinstance(x, Mapping) else [x]
        if not all(math.isfinite(y) for y in every if isinstance(y, float)):
            raise Diverged(
                f"{name} is not finite: numbers on the way have overflown; numbers nearer to one would do"
            )


def _short(value: object, limit: int = 80) -> str:
    text = value_to_toml(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def value_to_toml(value: object) -> str:
    """The value as TOML would spell it; anything that TOML has no word for as its `repr`.

    >>> value_to_toml(True), value_to_toml(0.1), value_to_toml("x.npy"), value_to_toml([1, 2.5])
    ('true', '0.1', '"x.npy"', '[1, 2.5]')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(value_to_toml, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key} = {value_to_toml(item)}" for key, item in value.items()) + "}"
    return repr(value)


CONTAINER = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
"""Where a container says how much memory it has."""


def memory_there() -> float:
    """The bytes of memory that this process may have: of the machine, or of its container if that is less."""
    found = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for path in CONTAINER:
        with suppress(OSError, ValueError):  # no container, or "max"
            found.append(float(Path(path).read_text(encoding="ascii")))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return min(found if limit == resource.RLIM_INFINITY else [*found, float(limit)])


ALWAYS = 2.0**26
"""Bytes that there are wherever this runs: what a container says need not be read for less."""


def require_memory(size: float, said: tuple[str, object], what: str, accepted: str) -> None:
    """Raises SpecError, which names the key and the value that were ``said``, for more bytes than there are.

    >>> require_memory(1e18, ("training.steps", 9), "for kernels", "fewer steps")
    Traceback (most recent call last):
    numerics.errors.SpecError: training.steps = 9: needs 931322575 GiB for kernels; there are ...
    """
    if not size <= ALWAYS and not size <= memory_there():
        problem = f"needs {size / 2**30:.0f} GiB {what}; there are {memory_there() / 2**30:.0f}"
        raise SpecError(*said, problem, accepted)


def require_whole(name: str, value: object, least: int, problem: str) -> None:
    """Raises SpecError, with the ``problem``, for what is no whole number or is less than the ``least``.

    >>> require_whole("width", 2.5, 1, "must be positive")
    Traceback (most recent call last):
    numerics.errors.SpecError: width = 2.5: must be a whole number (accepted: an integer >= 1)
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SpecError(name, value, "must be a whole number", f"an integer >= {least}")
    if value < least:
        raise SpecError(name, value, problem, f"an integer >= {least}")


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raises SpecError for a value that is none of the ``choices``."""
    if value not in (known := tuple(choices)):
        raise SpecError(name, value, "no such choice", f"{', '.join(known[:-1])} or {known[-1]}")


def require_time(seconds: float, hours: float, what: str, accepted: str) -> None:
    """Raises SpecError for what is estimated to take more than so many hours on one core.

    >>> require_time(1e9, 24.0, "the march", "fewer steps")
    Traceback (most recent call last):
    numerics.errors.SpecError: solver.hours = 24.0: the march takes about 2.8e+05 hours (accepted: ...
    """
    if not seconds <= 3600 * hours:
        problem = f"{what} takes about {seconds / 3600:.2g} hours"
        raise SpecError("solver.hours", hours, problem, f"{accepted}, or a larger solver.hours")
