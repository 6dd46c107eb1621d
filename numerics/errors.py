"""Exceptions of this package, and checks that raise them.

The command line turns exceptions into exit statuses. `SpecError` (exit 2) is bad input; `NumericsError` (exit
3) is a computation without a result, with `Diverged` for dynamics that exceeded every bound and
`NotConverged` for a solver that missed its tolerance. `Interrupted` is a `KeyboardInterrupt` (exit 130) that
keeps the finished part. `Unserved` has no exit status of its own: callers must catch it.
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
    """Bad input, refused before anything runs.

    Attributes
    ----------
    key : str
        Dotted path in the experiment file, option of the command, or argument of a function.
    value : object
        The given value; None for a missing key or a value that is not shown.
    problem : str
        The reason.
    accepted : str
        A description of accepted values.

    Examples
    --------
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
    """Computation that ended without a result."""


class Diverged(NumericsError):
    """Dynamics that exceeded every bound, as with a learning rate that is too large.

    Numbers that are too small, or that have lost their digits by rounding, count as diverged too.

    ``start`` is true if they diverged before any step, so that no learning rate helps; ``step`` is the first
    step whose numbers are out of bounds, None if it is not known.
    """

    def __init__(self, message: str, *, start: bool = False, step: int | None = None) -> None:
        self.start, self.step = start, step
        super().__init__(message)


SMALLER = "a smaller learning rate (of a flow: a shorter time) is needed"
AT_START = "before any step: smaller data, or a gamma0 nearer to one, would do"
UNDEFINED = (
    "before any step: a quotient there is 0/0, such as a mean over no positions, a root or a logarithm is "
    "not real, or numbers overflow"
)
"""Advice after a divergence: at a later step, at the start, and at the start for numbers that are nan."""


def remedy_at_start(values: ArrayLike) -> str:
    """Return the advice for values that are not finite before any step.

    If some values are NaN and none is infinite, the advice names quotients such as 0/0. Otherwise it is
    smaller data, or a gamma0 nearer to one.

    >>> remedy_at_start([1.0, float("nan")])
    'before any step: a quotient there is 0/0, such as a mean over no positions, a root or a logarithm ...'
    """
    import numpy as np  # imported here: the command line imports this module and must start fast

    numbers = np.asarray(values)
    return UNDEFINED if np.isnan(numbers).any() and not np.isinf(numbers).any() else AT_START


def diverged_at(step: int, name: str, values: ArrayLike = ()) -> Diverged:
    """Return the exception for a quantity that diverged at a step, with advice if that is the start.

    ``name`` is the quantity, and ``values`` are its values, on which the advice depends.

    >>> str(diverged_at(3, "f")), diverged_at(0, "f").start
    ('f diverged at step 3', True)
    """
    message = f"{name} diverged at step {step}" + ("" if step else f"; {remedy_at_start(values)}")
    return Diverged(message, start=not step, step=step)


class NotConverged(NumericsError):
    """Failure of a solver to reach its tolerance."""


class Interrupted(KeyboardInterrupt):
    """Interrupt that keeps the finished part as ``result``, with the status "partial"."""

    def __init__(self, result: xr.Dataset) -> None:
        self.result = result
        super().__init__("interrupted")


class Unserved(ValueError):
    """Request that a computation does not support; the message gives the reason."""


def require_finite(numbers: Mapping[str, object]) -> None:
    """Raise :class:`Diverged` with the name of a number, or of a list, that is not finite.

    Of lists, tuples and dictionaries each value is checked. Values that are not floats, such as None, texts
    and arrays, are not checked.

    >>> require_finite({"rate": None, "loss": [1.0, float("inf")]})
    Traceback (most recent call last):
    numerics.errors.Diverged: loss is not finite, because numbers in its computation overflow; ...
    """
    for name, value in numbers.items():
        if isinstance(value, Mapping):
            entries = list(value.values())
        else:
            entries = list(value) if isinstance(value, list | tuple) else [value]
        if not all(math.isfinite(entry) for entry in entries if isinstance(entry, float)):
            raise Diverged(
                f"{name} is not finite, because numbers in its computation overflow; use given numbers that "
                "are nearer to one"
            )


def _short(value: object, limit: int = 80) -> str:
    """Return the value as TOML text, cut to ``limit`` characters."""
    text = value_to_toml(value)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def value_to_toml(value: object) -> str:
    """Return a bool, number, text, list or table of Python as TOML text, and another value as its `repr`.

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
"""Files in which Linux states the memory limit of a container."""


def memory_there() -> float:
    """Return the bytes of memory that this process may use.

    It is the least of the memory of the machine, the limit of the container and the limit of the process.
    """
    limits = [float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))]
    for path in CONTAINER:
        with suppress(OSError, ValueError):  # no file without a container; "max" means no limit
            limits.append(float(Path(path).read_text(encoding="ascii")))
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    return min(limits if limit == resource.RLIM_INFINITY else [*limits, float(limit)])


ALWAYS = 2.0**26
"""Bytes that are always available, so that the limits are not read for smaller requests."""


def require_memory(size: float, key_value: tuple[str, object], what: str, accepted: str) -> None:
    """Raise SpecError if ``size`` bytes exceed the available memory; 64 MiB are always available.

    The error names the key and the value ``key_value``; ``what`` are the words after the size, such as "for
    kernels", and ``accepted`` states what would need less.

    >>> require_memory(1e18, ("training.steps", 9), "for kernels", "fewer steps")
    Traceback (most recent call last):
    numerics.errors.SpecError: training.steps = 9: needs 931322575 GiB for kernels, and ...
    """
    if not size <= ALWAYS and not size <= memory_there():
        raise SpecError(
            *key_value,
            f"needs {size / 2**30:.0f} GiB {what}, and {memory_there() / 2**30:.0f} GiB are available",
            accepted,
        )


def require_whole(name: str, value: object, least: int, problem: str) -> int:
    """Return the value as an int; raise SpecError if it is not an integer, or less than ``least``.

    True and False are refused too; integers of NumPy are converted. ``problem`` is the reason that the error
    gives for a value that is too small.

    >>> require_whole("width", 2.5, 1, "must be positive")
    Traceback (most recent call last):
    numerics.errors.SpecError: width = 2.5: must be a whole number (accepted: an integer >= 1)
    """
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise SpecError(name, value, "must be a whole number", f"an integer >= {least}")
    if value < least:
        raise SpecError(name, value, problem, f"an integer >= {least}")
    return int(value)


def require_probability(name: str, value: float) -> None:
    """Raise SpecError for a number that is not between 0 and 1, both excluded.

    >>> require_probability("level", 95)
    Traceback (most recent call last):
    numerics.errors.SpecError: level = 95: is not a probability (accepted: a number between 0 and 1, both ...
    """
    if not 0 < value < 1:
        shown = value.item() if hasattr(value, "item") else value  # a NumPy number as one of Python
        raise SpecError(name, shown, "is not a probability", "a number between 0 and 1, both excluded")


def require_choice(name: str, value: object, choices: Iterable[str]) -> None:
    """Raise SpecError for a value that is not one of the ``choices``.

    >>> require_choice("kernels", "some", ["all"])
    Traceback (most recent call last):
    numerics.errors.SpecError: kernels = "some": is not one of the choices (accepted: all)
    """
    if value not in (known := tuple(choices)):
        parts = [", ".join(known[:-1]), *known[-1:]] if len(known) > 1 else known
        raise SpecError(name, value, "is not one of the choices", " or ".join(parts))


def require_mapping(name: str, value: object, accepted: str) -> None:
    """Raise SpecError for a value that is not a mapping; ``accepted`` is an example of one.

    >>> require_mapping("changes", 3, '{"training.steps": 10}')
    Traceback (most recent call last):
    numerics.errors.SpecError: changes = 3: is int, not a mapping (accepted: {"training.steps": 10})
    """
    if not isinstance(value, Mapping):
        shown = value if isinstance(value, str | int | float) else None
        raise SpecError(name, shown, f"is {type(value).__name__}, not a mapping", accepted)


def require_time(seconds: float, hours: float, what: str, accepted: str) -> None:
    """Raise SpecError if the estimated ``seconds`` on one core exceed ``hours``; ``what`` takes this time.

    >>> require_time(1e9, 24.0, "the march", "fewer steps")
    Traceback (most recent call last):
    numerics.errors.SpecError: solver.hours = 24.0: the march takes about 2.8e+05 hours (accepted: ...
    """
    if not seconds <= 3600 * hours:
        raise SpecError(
            "solver.hours",
            hours,
            f"{what} takes about {seconds / 3600:.2g} hours",
            f"{accepted}, or a larger solver.hours",
        )
