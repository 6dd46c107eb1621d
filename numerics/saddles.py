"""Symmetric saddles: theories that stay on a symmetric manifold, and that finite networks leave.

If the gradient vanishes because averages over units vanish, the theory stays for ever, at any accuracy.  If
units are exchangeable, their averages are the same at all times.  In a network of N units averages differ by
``N^{-1/2}``, and what grows of it grows exponentially.  From a solution whose loss does not move and the
theory with its averages shifted by a small number, or from perturbations that break the symmetry of
exchangeable values (:mod:`numerics.solver.paths.instability`), this module finds the growth in a unit of
time; :func:`numerics.solve` puts it into the attributes of its result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sympy import Float, S, cos

from derive.program import Mean, Program
from numerics.results import STDERR, SYSTEMATIC, Labelled

SHIFTS = 1e-5, 1e-8, 1e-11
"""Shifts that are added to averages, from the largest one, which is farthest above rounding errors.

A smaller one is taken if the perturbation leaves the linear order within the times that are solved.
"""

PROPORTIONAL = 0.1
"""Largest relative deviation of a perturbation from its linear order."""

STILL = 1e-3
"""Largest relative change of a loss that counts as constant."""

SIGNIFICANT = 4.0
"""Standard errors by which a rate of growth must exceed zero."""

SHORTEST = 12
"""Fewest output times at which exponential growth can be distinguished from powers of time."""


def stays(variables: Mapping[str, Labelled]) -> bool:
    """Return whether training does not start: the loss is positive and constant within standard errors.

    ``variables`` are those of a solution; false if it has too few output times.
    """
    if "train_loss" not in variables or variables["train_loss"].values.size < SHORTEST:
        return False
    loss = variables["train_loss"].values
    error = variables[f"train_loss{STDERR}"].values if f"train_loss{STDERR}" in variables else 0.0
    moved = np.abs(loss - loss[0])
    return bool(
        loss[0] > 0 and moved.max() <= STILL * loss[0] and np.all(moved <= 1e-9 * loss[0] + 4 * error)
    )


def shifted(program: Program, size: float = SHIFTS[0]) -> Program:
    """Return a program in which each average over units has a small constant added.

    The constant is ``size cos(...)``, which depends on all indices of the average, so that it breaks
    symmetries between their values.

    >>> from derive.program import mlp
    >>> [d.rhs for d in shifted(mlp(1), 0.5).definitions if d.name == "Delta"] == [
    ...     d.rhs for d in mlp(1).definitions if d.name == "Delta"]
    True
    """
    fields, lines = {x.name for x in program.fields}, []
    for place, d in enumerate(program.definitions):
        rhs = d.rhs
        if d.name not in fields and rhs.has(Mean):
            indices = [r.index for r in d.ranges if r.index in d.lhs.free_symbols]
            phase = sum((S(7 * (k + 2)) / 5 * x for k, x in enumerate(indices)), S(place))
            rhs = rhs + Float(size) * cos(phase)
        lines.append(replace(d, rhs=rhs))
    return replace(program, definitions=tuple(lines), descent=None)


def sizes_of_change(before: Mapping[str, Labelled], after: Mapping[str, Labelled]) -> NDArray[np.float64]:
    """Return the largest absolute change of each number between two solutions, shape ``(numbers, times)``.

    The numbers are variables with one axis of time, such as outputs, and without errors and losses, which
    are of second order in a perturbation. The array is empty if there are no such variables.
    """
    ends = (STDERR, SYSTEMATIC, "train_loss")
    names = [x for x in before if x in after and not str(x).endswith(ends)]
    numbers = [x for x in names if before[x].dims[:1] == ("time",)]
    changes = [np.abs(after[x].values - before[x].values) for x in numbers]
    return np.array([x.reshape(len(x), -1).max(axis=1) for x in changes])


def linear_times(large: NDArray[np.float64], small: NDArray[np.float64], ratio: float) -> int:
    """Return the number of first times at which the response to a perturbation is still linear in its size.

    ``large`` and ``small`` are changes of numbers, shape ``(numbers, times)``, by two perturbations, of which
    the former is ``ratio`` times larger; so must be the change. The deviation is relative to the largest
    number at each time, because the others may be rounding errors.

    >>> small = 1e-8 * 2.0 ** np.arange(6)[None]
    >>> linear_times(np.tanh(1e4 * small) * [1, 1, 1, 1, 0.5, 1], small, 1e4)
    4
    """
    deviation, size = np.abs(large - ratio * small).max(axis=0), ratio * small.max(axis=0)
    nonlinear = deviation > PROPORTIONAL * size
    return int(nonlinear.argmax()) if nonlinear.any() else len(nonlinear)


def growth_of(gap: NDArray[np.float64], times: NDArray[np.float64]) -> float | None:
    """Return the exponential growth in a unit of time of a positive size; None if it is a power or decays.

    ``gap`` holds the size at ``times``, which may be unevenly spaced.  Over the second half of the time, from
    T/2 to T, an exponential grows by the square of the factor from T/4 to T/2, and a power of the time by the
    same factor.  The result is None if the former factor does not exceed the latter by a half.

    >>> times = np.arange(41.0)
    >>> growth_of(1.1**times, times), growth_of(1 + times**3, times)
    (1.1, None)
    """
    span = times - times[0]
    shares = np.array([0.25, 0.5, 0.75, 1.0]) * span[-1]
    logs = np.log(np.maximum(gap, np.finfo(float).tiny))
    early, half, late, end = np.interp(shares, span, logs)
    if end - half <= np.log(1.5) + half - early:
        return None
    rate = (end - late) / (shares[3] - shares[2])
    return float(np.exp(rate)) if rate > 0 else None


def saddle_notes(gaps: NDArray[np.float64], times: NDArray[np.float64]) -> dict[str, Any]:
    """Return attributes of a solution that stays at a symmetric saddle; empty if perturbations do not grow.

    ``gaps`` are changes of numbers by a perturbation, shape ``(numbers, times)``, at times at which they are
    linear in it. ``saddle_growth`` is the factor by which the largest grows in a unit of time, and ``saddle``
    a sentence. Fluctuations of networks of N units start at ``N^{-1/2}``, so that the time to leave the
    saddle grows as ``log N / (2 log growth)``.
    """
    factor = growth_of(gaps.max(axis=0), times) if len(gaps) else None
    return {} if factor is None else _notes(factor)


def _notes(factor: float) -> dict[str, Any]:
    """Return the attributes ``saddle`` and ``saddle_growth`` of a solution at a saddle.

    ``factor`` is the growth of perturbations in a unit of time, from which follows how long finite networks
    stay.
    """
    delay = 1 / (2 * np.log(factor))
    escape = f"after a time that grows as {delay:.3g} log N (averages grow by {factor:.3g} in a unit of time)"
    return {"saddle": f"symmetric saddle: finite networks leave it {escape}", "saddle_growth": factor}


def exchange_notes(gaps: NDArray[np.float64], times: NDArray[np.float64]) -> dict[str, Any]:
    """Return attributes of a solution in which some values of an index are exchangeable.

    ``gaps`` (replicas, times) are sizes of perturbations that break this symmetry. The attributes ``saddle``,
    ``saddle_growth`` and ``saddle_growth_stderr`` state how fast networks leave it. Empty unless
    perturbations grow in all replicas, by more than the standard error.
    """
    if len(times) < SHORTEST or len(gaps) < 2:
        return {}
    factors = [growth_of(gap, times) for gap in gaps]
    rates = np.log([x for x in factors if x is not None])
    if len(rates) < len(factors):
        return {}
    factor, error = float(np.exp(rates.mean())), float(rates.std(ddof=1) / np.sqrt(len(rates)))
    if rates.mean() < SIGNIFICANT * error:
        return {}
    return _notes(factor) | {"saddle_growth_stderr": factor * error}
