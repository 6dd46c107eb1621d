"""Symmetric saddles: theories that stay on a symmetric manifold, and that finite networks leave.

If the gradient vanishes because averages over units vanish, the theory stays for ever, at any accuracy.  If
units are exchangeable, their averages are the same at all times.  In a network of N units averages differ by
``N^{-1/2}``, and what grows of it grows exponentially.  From a solution whose loss does not move and the
theory with its averages shifted by a small number, or from perturbations that break the symmetry of
exchangeable values (:mod:`numerics.solver.paths.instability`), this module finds the growth in a unit of
time; :func:`numerics.solve` puts it into the attributes of its result.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from sympy import Float, S, cos

from derive.program import Mean, Program
from numerics.results import STDERR, SYSTEMATIC

if TYPE_CHECKING:
    import xarray as xr

SHIFT_OF_AVERAGES = 1e-5
"""Shift that is added to averages: small enough for the linear order, and far above rounding error."""

STILL = 1e-3
"""Largest relative change of a loss that counts as constant."""

SIGNIFICANT = 4.0
"""Standard errors by which a rate of growth must exceed zero."""

SHORTEST = 12
"""Fewest output times at which exponential growth can be distinguished from powers of time."""


def stays(found: xr.Dataset) -> bool:
    """Return whether the loss of a solution is positive and constant within its standard errors."""
    if "train_loss" not in found or found.train_loss.size < SHORTEST:
        return False
    loss = found.train_loss.values
    error = found[f"train_loss{STDERR}"].values if f"train_loss{STDERR}" in found else 0.0
    moved = np.abs(loss - loss[0])
    return bool(
        loss[0] > 0 and moved.max() <= STILL * loss[0] and np.all(moved <= 1e-9 * loss[0] + 4 * error)
    )


def shifted(program: Program, size: float = SHIFT_OF_AVERAGES) -> Program:
    """Return a program whose numbers that are averages over units are shifted by ``size`` at most.

    The shift ``size cos(...)`` depends on all indices of the number, so that it breaks their symmetries.

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


def growth(found: xr.Dataset, beside: xr.Dataset) -> float | None:
    """Return the exponential growth in a unit of time of the difference of two solutions.

    Over the second half of the time, t from T/2 to T, an exponential grows by the square of what it grows by
    from T/4 to T/2, and a power of the time by the same.  The result is None if the former does not exceed
    the latter by a half, or if the difference has left the linear order.
    """
    ends = (STDERR, SYSTEMATIC, "train_loss")
    names = [x for x in found.data_vars if x in beside and not str(x).endswith(ends)]
    times = found.time.values
    numbers = [x for x in names if found[x].dims[:1] == ("time",)]
    gaps = [_largest(beside[x].values - found[x].values, len(times)) for x in numbers]
    return growth_of(np.max(gaps, axis=0), times) if gaps else None


def growth_of(gap: NDArray[np.float64], times: NDArray[np.float64]) -> float | None:
    """Return the exponential growth in a unit of time of a size at these times; None if it is a power.

    >>> times = np.arange(41.0)
    >>> growth_of(1.1**times, times), growth_of(1 + times**3, times)
    (1.1, None)
    """
    early, half, late, end = (gap[round(share * (len(times) - 1))] for share in (0.25, 0.5, 0.75, 1.0))
    if not (early > 0 and half > 0 and end / half > 1.5 * half / early):
        return None
    rate: float = np.log(end / late) / (times[-1] - times[round(0.75 * (len(times) - 1))])
    return float(np.exp(rate)) if rate > 0 else None


def _largest(gap: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """Return the largest entry of an array at each time, which is its first axis."""
    size: NDArray[np.float64] = np.abs(gap).reshape(count, -1).max(axis=1)
    return size


def saddle_notes(found: xr.Dataset, beside: xr.Dataset) -> dict[str, Any]:
    """Return attributes for a solution that stays at a saddle, from it and the solution of shifted averages.

    ``saddle_growth`` is the factor by which perturbations grow in a unit of time, and ``saddle`` says it.
    Fluctuations of networks of N units start at ``N^{-1/2}``, so that the time to leave grows as
    ``log N / (2 log growth)``.
    """
    factor = growth(found, beside)
    return {} if factor is None else _notes(factor)


def _notes(factor: float) -> dict[str, Any]:
    """Return the attributes of a solution from which perturbations grow by a factor in a unit of time."""
    delay = 1 / (2 * np.log(factor))
    told = f"after a time that grows as {delay:.3g} log N (averages grow by {factor:.3g} in a unit of time)"
    return {"saddle": f"symmetric saddle: finite networks leave it {told}", "saddle_growth": factor}


def exchange_notes(gaps: NDArray[np.float64], times: NDArray[np.float64]) -> dict[str, Any]:
    """Return attributes of a solution with exchangeable values, from ``gaps`` of (replicas, times).

    These are sizes of perturbations that break the symmetry.  All replicas must show an exponential growth,
    which is one by more than its standard error; ``saddle_growth_stderr`` holds that.
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
