"""Symmetric saddles: theories that stay on a symmetric manifold, and that finite networks leave.

If the gradient vanishes because averages over units vanish, the theory stays for ever, at any accuracy.  If
units are exchangeable, their averages are the same at all times.  In a network of N units averages differ
from those of the theory by ``N^{-1/2}``, and unstable directions of this difference grow exponentially.  This
module finds the factor of growth in a unit of time.  It compares a solution whose loss does not move with
solutions of the theory whose averages are shifted by a small number, or reads perturbations that break the
symmetry of exchangeable values (:mod:`numerics.solver.paths.instability`).  :func:`numerics.solve` puts the
factor into the attributes of its result.
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
    """Return whether training does not start: the loss is positive and stays at its initial value.

    At each time its distance from the initial value must be at most four standard errors of the loss (plus
    rounding), and at most a share STILL (0.001) of the initial value. ``variables`` are those of a solution.
    The result is false without a training loss, and for fewer than SHORTEST (12) output times.
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
    """Return a program in which a small constant is added to each number that averages over units define.

    The constant is ``size cos(...)``, which depends on all indices of the number, so that it breaks
    symmetries between their values.  Definitions of fields, and of numbers without an average such as
    ``Delta``, stay.

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

    The numbers are the variables of both solutions whose first dimension is time, such as outputs and error
    signals; the maximum runs over their other dimensions. Standard errors, bounds on the bias and the
    training loss, which is of second order in a perturbation, are left out. The array is empty if there are
    no such variables.
    """
    ends = (STDERR, SYSTEMATIC, "train_loss")
    names = [x for x in before if x in after and not str(x).endswith(ends)]
    numbers = [x for x in names if before[x].dims[:1] == ("time",)]
    changes = [np.abs(after[x].values - before[x].values) for x in numbers]
    return np.array([x.reshape(len(x), -1).max(axis=1) for x in changes])


def linear_times(large: NDArray[np.float64], small: NDArray[np.float64], ratio: float) -> int:
    """Return the number of first times at which the response to a perturbation is still linear in its size.

    ``large`` and ``small`` are changes of numbers, shape ``(numbers, times)``, by two perturbations, of which
    the former is ``ratio`` times larger. The response at a time is linear if ``large`` differs from ``ratio *
    small`` by at most a tenth (PROPORTIONAL) of the largest entry of ``ratio * small`` at this time, because
    the smaller entries may be rounding errors.

    >>> small = 1e-8 * 2.0 ** np.arange(6)[None]
    >>> linear_times(np.tanh(1e4 * small) * [1, 1, 1, 1, 0.5, 1], small, 1e4)
    4
    """
    deviation, size = np.abs(large - ratio * small).max(axis=0), ratio * small.max(axis=0)
    nonlinear = deviation > PROPORTIONAL * size
    return int(nonlinear.argmax()) if nonlinear.any() else len(nonlinear)


def growth_of(gap: NDArray[np.float64], times: NDArray[np.float64]) -> float | None:
    """Return the factor by which a positive size grows in a unit of time; None if it is a power or decays.

    ``gap`` holds the size at ``times``, which may be unevenly spaced; below, times are counted from the first
    of them, and T is the last.  If an exponential grows by a factor c from T/4 to T/2, it grows by c^2 from
    T/2 to T, and a power of the time grows by c again. The size counts as exponential if its factor from T/2
    to T is more than 1.5 c.  The result is the growth in a unit of time over the last quarter.

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
    linear in it. ``saddle_growth`` is the factor by which the largest change grows in a unit of time, and
    ``saddle`` a sentence. Fluctuations of networks of N units start at ``N^{-1/2}``, so that the time to
    leave the saddle grows as ``log N / (2 log growth)``.
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
    perturbations grow exponentially in all replicas, and their mean rate exceeds zero by four standard errors
    (SIGNIFICANT); also empty with one replica, or fewer than SHORTEST (12) times.
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
