"""Pieces of evidence behind entries of the ledger, and the criteria for their numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

Number = tuple[str, float, float]
"""Label, value, and what the value is judged by: a tolerance or a standard error."""

MUCH = 10.0
"""By how many tolerances a printed form must be off to be called wrong."""


@dataclass(frozen=True)
class Evidence:
    """Result of the computation called ``name``: its findings, and whether they support the ledger entries.

    ``passed`` means that the correct form holds within its tolerance and, for entries that contradict a
    printed formula, that the printed form is off by at least ten tolerances.
    """

    name: str
    passed: bool
    summary: str
    numbers: tuple[Number, ...]


@dataclass(frozen=True)
class Finding:
    """One number and whether it is as it should be."""

    label: str
    value: float
    tolerance: float
    holds: bool


def agrees(label: str, difference: float, tolerance: float) -> Finding:
    """Return the finding of a difference that must vanish within ``tolerance``.

    >>> agrees("kernel", 1e-15, 1e-12).holds, agrees("kernel", float("nan"), 1e-12).holds
    (True, False)
    """
    value = float(difference)
    return Finding(label, value, float(tolerance), abs(value) <= tolerance)


def contradicts(label: str, difference: float, tolerance: float, by: float = MUCH) -> Finding:
    """Return the finding of a difference that must be at least ``by`` times ``tolerance``.

    >>> contradicts("printed kernel", 0.2, 1e-12).holds
    True
    """
    value = float(difference)
    return Finding(label, value, float(tolerance), math.isfinite(value) and abs(value) >= by * tolerance)


def conclude(name: str, summary: str, *findings: Finding) -> Evidence:
    """Return the evidence of all findings; it fails without any finding.

    >>> conclude("x:y", "It is so.", agrees("difference", 0.0, 1e-12)).passed
    True
    """
    failed = [x.label for x in findings if not x.holds]
    passed = bool(findings) and not failed
    text = summary if passed else f"NOT SHOWN ({', '.join(failed) or 'no findings'}): {summary}"
    return Evidence(name, passed, text, tuple((x.label, x.value, x.tolerance) for x in findings))
