"""What a verification says: a row per check, with the value, what it should be and how far off it may be."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

EPS = float(np.finfo(np.float64).eps)


@dataclass(frozen=True)
class Check:
    """One row: `observed` passes if it is within `allowed` of `expected`, in the same units.

    `error` is the standard error of a Monte-Carlo estimate, None for everything else; `basis` says in a few
    words where `allowed` (or `error`) comes from. `upper` rows only bound the observed value from above.

    >>> Check("identities", "H is symmetric", 1e-16, 0.0, 1e-13, "rounding").passed
    True
    >>> Check("expansion", "exponent", float("nan"), 4.0, 0.2, "fit").passed
    False
    """

    group: str
    name: str
    observed: float
    expected: float
    allowed: float
    basis: str
    error: float | None = None
    upper: bool = False

    @property
    def passed(self) -> bool:
        """Whether the observed value is close enough; a NaN never is."""
        difference = self.observed - self.expected
        return bool((difference if self.upper else abs(difference)) <= self.allowed)

    def as_dict(self) -> dict[str, Any]:
        """For JSON, which has no NaN: what is not finite becomes null."""
        fields = {**asdict(self), "passed": self.passed}
        return {
            key: None if isinstance(value, float) and not math.isfinite(value) else value
            for key, value in fields.items()
        }


@dataclass(frozen=True)
class Report:
    """All checks of one experiment, the equations they were about and the files that were written."""

    title: str
    checks: tuple[Check, ...]
    notes: tuple[str, ...] = ()
    equations: str = ""
    figure: Path | None = None
    wall_time_s: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether every check passed; a report without checks has shown nothing."""
        return bool(self.checks) and all(check.passed for check in self.checks)

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that did not pass."""
        return tuple(check for check in self.checks if not check.passed)

    def table(self) -> str:
        """Aligned text, under 110 columns; each row begins with ok or FAIL and ends with its basis."""
        lines = [self.title, ""]
        head = f"{'':<4} {'':<38} {'observed':>19} {'expected':>11} {'allowed':>8}"
        for group in dict.fromkeys(check.group for check in self.checks):
            rows = [check for check in self.checks if check.group == group]
            lines += [group + head[len(group) :], *(_row(check) for check in rows), ""]
        lines += [*self.notes, self._verdict()]
        return "\n".join(lines)

    def _verdict(self) -> str:
        if not self.checks:
            return "FAILED: nothing was checked"
        count, time = len(self.checks), f"{self.wall_time_s:.0f} s"
        if self.passed:
            return f"all {count} checks passed in {time}"
        return f"FAILED: {len(self.failed)} of {count} checks, in {time}: " + _listed(
            check.name for check in self.failed
        )


def _row(check: Check) -> str:
    allowed = f"{check.allowed:.2g}"
    if check.upper:
        expected, allowed = f"< {check.expected + check.allowed:.3g}", ""
    else:
        expected = _number(check.expected)
    observed = _number(check.observed)
    if check.error is not None:
        observed += f" +- {check.error:.1e}" if check.error < 1e-4 else f" +- {check.error:.2g}"
    verdict = "ok" if check.passed else "FAIL"
    return f"{verdict:<4} {check.name:<38} {observed:>19} {expected:>11} {allowed:>8}  {check.basis}".rstrip()


def _number(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    if value == 0 or (value == round(value) and abs(value) < 1e6):
        return f"{value:.0f}"
    if abs(value) < 1e-4:
        return f"{value:.2e}" if abs(value) > 1e-6 else f"{value:.0e}"
    return f"{value:.5g}" if abs(value) < 1e6 else f"{value:.4g}"


def _listed(names: Iterable[str], limit: int = 3) -> str:
    every = list(names)
    return "; ".join(every[:limit]) + (f"; and {len(every) - limit} more" if len(every) > limit else "")


__all__ = ["Check", "Report"]
