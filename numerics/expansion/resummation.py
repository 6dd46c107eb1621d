"""Evaluation of truncated power series: partial sums and Padé approximants, each with an error estimate.

    result = expand(experiment, 8); at = resummed(result, 0.7); at.train_loss, at.train_loss_truncation

Every entry of an array has its own approximants, unless entries share their denominators.  An approximant is
skipped, and the next one used, if its linear equations are singular, or if its denominator vanishes between 0
and the point (also at a spurious pole next to a zero).  If no approximant is left and the partial sum does
not converge, the entry has failed: it is NaN, and is counted.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from math import gcd

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from numerics.errors import NotConverged, SpecError
from numerics.results import LOSSES, STDERR, has_run_away

Array = NDArray[np.float64]

TRUNCATION = "_truncation"
"""Suffix of the estimated truncation error of a variable."""

RESUMMED = "_resummed"
"""Suffix of the value of a variable at one gamma0."""

TIMES = ("time", "time_")

SINGULAR = 1e-12
"""Ratio of singular values below which the equations of a denominator count as singular."""
BEYOND = 1.1
"""Denominators must exceed SMALLEST from 0 up to this multiple of the point z."""
SMALLEST = 0.05
"""Value of a denominator, relative to its value at 0, up to which there is a pole."""
ROUNDING = 4e-15


class ResummationMethod(StrEnum):
    """Methods that evaluate a power series at one gamma0.

    They are partial sums, Padé approximants, and the resummation in which the error is not expanded
    (:func:`numerics.expansion.resum`).
    """

    SUM = "sum"
    PADE = "pade"
    SELF_CONSISTENT = "self-consistent"


@dataclass(frozen=True)
class Resummed:
    """Values of a series at one point, estimated truncation errors, and which entries failed.

    Value and error of a failed entry are NaN.
    """

    value: Array
    error: Array
    failed: NDArray[np.bool_]


def partial_sums(coefficients: ArrayLike, z: float) -> Resummed:
    """Return ``sum_k c[k] z**k`` with an error that continues the last terms as a geometric series.

    ``coefficients`` have k as first axis; each entry along the other axes is a series of its own.

    The ratio of successive terms is the square root of (the larger of the last two terms over the larger of
    the two before).  If it is one or more, the series does not converge and the entry has failed.  With three
    coefficients the two pairs share the middle term, and the ratio is the quotient itself.  With two
    coefficients the quotient of both decides on convergence only: the error is the last term itself, because
    one correction does not determine the next.  A single coefficient fails unless it is zero, because nothing
    shows whether its series converges.  Terms below the rounding error of the largest one count as zero in
    the ratio, and their sizes are added to the error.  Compare
    :meth:`derive.expansion.PowerSeries.error_estimate`.

    >>> found = partial_sums([1.0, 0.5, 0.25, 0.125], 1.0)
    >>> float(found.value), float(found.error), bool(found.failed)
    (1.875, 0.125, False)
    """
    terms = _terms(np.asarray(coefficients, dtype=np.float64), z)
    significant = _above_rounding(terms)
    value, left = terms.sum(axis=0), np.where(significant, 0.0, np.abs(terms)).sum(axis=0)
    sizes = np.abs(np.where(significant, terms, 0.0)[-4:])
    half = len(sizes) // 2
    if half == 0:
        late = early = sizes[-1]
    else:
        late, early = sizes[half:].max(axis=0), sizes[: len(sizes) - half].max(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(late == 0, 0.0, (late / early) ** (1.0 / max(half, 1)))
        size = np.maximum(sizes[-1], sizes[-2] * ratio) if half else sizes[-1]
        error = np.where(size == 0, 0.0, size * ratio / (1 - ratio)) if len(sizes) > 2 else sizes[-1]
    failed = ~(ratio < 1)
    return Resummed(np.where(failed, np.nan, value), np.where(failed, np.nan, error + left), failed)


def _terms(c: Array, z: float) -> Array:
    """Return the terms ``c[k] z**k`` of a series, in the shape of c."""
    return c * (z ** np.arange(len(c))).reshape(-1, *[1] * (c.ndim - 1))


def _above_rounding(terms: Array) -> NDArray[np.bool_]:
    """Return which terms of a series exceed the rounding error of the largest term, in their shape.

    ``terms`` has the order as first axis, and each entry along the other axes is a series of its own. Terms
    that are not finite count as exceeding it. Smaller terms have no meaning: higher orders of the loss after
    one step, for example, are rounding errors.
    """
    sizes = np.abs(terms)
    significant: NDArray[np.bool_] = ~np.isfinite(sizes) | (sizes > ROUNDING * sizes.max(axis=0))
    return significant


def pade(coefficients: ArrayLike, m: int, n: int, z: float, shared: int = 0) -> Resummed:
    """Return the values at ``z >= 0`` of the Padé approximants with degrees m over n, for each entry.

    ``n`` is at least 1. ``coefficients`` have the power of z as first axis. An approximant is marked as
    failed if the equations of its denominator are singular, or if the denominator falls below SMALLEST (its
    value at 0 is one) between 0 and BEYOND times z. The entries along the last ``shared`` axes have one
    common denominator, found by least squares, because they are functions with the same singularities. The
    ``error`` of the result is only that of rounding; :func:`resum` estimates the truncation error. Raises
    ValueError for too few coefficients.

    >>> pade([1.0, -1.0, 1.0], 1, 1, 3.0).value.round(12)
    np.float64(0.25)
    """
    c = np.asarray(coefficients, dtype=np.float64)
    if m + n >= len(c):
        raise ValueError(
            f"Padé approximant [{m}/{n}]: needs {m + n + 1} coefficients of the series; there are {len(c)}"
        )
    shape = c.shape[1:]
    alone = shape[: len(shape) - shared]
    # The axes of `flat` are the power of z, the group of series with a common denominator, and the series of
    # the group.
    flat = c[: m + n + 1].reshape(m + n + 1, int(np.prod(alone)), -1)
    # z is rescaled in each group of series so that no rescaled coefficient exceeds the largest given
    # coefficient of the group. Otherwise the linear system of the denominator has entries of very different
    # size if the coefficients grow or fall fast. A scale that is zero or not finite, as for a group of zeros,
    # is replaced by 1 below.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        sizes = np.abs(flat).max(axis=2)
        powers = np.arange(1, len(flat))
        scale = ((sizes[1:] / sizes.max(axis=0)) ** (1.0 / powers)[:, None]).max(axis=0)
    fine = np.isfinite(scale) & (scale > 0)
    scale = np.where(fine, scale, 1.0)
    scaled = flat / (scale ** np.arange(len(flat))[:, None])[..., None]
    x = z * scale
    below = np.ones((n + 1, flat.shape[1]))
    if n:
        nothing = np.zeros_like(scaled[0])
        rows = [
            [scaled[m + i - j] if m + i >= j else nothing for j in range(1, n + 1)] for i in range(1, n + 1)
        ]
        matrix = np.moveaxis(np.array(rows), (0, 1, 2, 3), (1, 3, 0, 2)).reshape(len(scale), -1, n)
        right = np.moveaxis(-scaled[m + 1 :], 0, 1).reshape(len(scale), -1, 1)
        singular = np.linalg.svd(matrix, compute_uv=False)
        fine &= singular[:, -1] > SINGULAR * singular[:, 0]
        matrix[~fine] = 1.0
        below[1:] = (np.linalg.pinv(matrix) @ right)[..., 0].T
    above = np.stack(
        [sum(below[j][:, None] * scaled[k - j] for j in range(min(k, n) + 1)) for k in range(m + 1)]
    )
    for share in np.linspace(0.0, BEYOND, 23):
        fine &= _polynomial(below, share * x) > SMALLEST
    with np.errstate(divide="ignore", invalid="ignore"):
        value = _polynomial(above, x[:, None]) / _polynomial(below, x)[:, None]
    value = np.where(fine[:, None], value, np.nan).reshape(shape)
    return Resummed(value, np.asarray(ROUNDING * np.abs(value)), np.isnan(value))


def _polynomial(c: Array, x: Array) -> Array:
    """Return ``sum_k c[k] x**k``; x and the further axes of c are broadcast against each other."""
    total: Array = np.zeros(1)
    for k in range(len(c) - 1, -1, -1):
        total = total * x + c[k]
    return total


def approximants(order: int) -> list[tuple[int, int]]:
    """Return the degrees (m, n) of the Padé approximants to try, for coefficients up to ``order``.

    m is the degree of the numerator and n, at least 1, that of the denominator. At most three that use all
    coefficients come first, then at most two that do not use the last one; those nearest to the diagonal m =
    n come first.  Of two as near to the diagonal, the one with more poles comes first, because singularities
    of a theory that can diverge are poles.  The list is empty for an order below 2.

    >>> approximants(4)
    [(2, 2), (1, 3), (3, 1), (1, 2), (2, 1)]
    """
    full = [(order - n, n) for n in range(1, order)]
    full.sort(key=lambda x: (abs(x[0] - x[1]), -x[1]))
    less = [(order - 1 - n, n) for n in range(1, order)]
    less.sort(key=lambda x: (abs(x[0] - x[1]), -x[1]))
    return [*full[:3], *less[:2]] if order > 1 else []


def resum(coefficients: ArrayLike, z: float, shared: int = 0) -> Resummed:
    """Return the values of a series at ``z >= 0``, resummed entry by entry.

    ``coefficients`` have the power 0, 1, 2, ... of z as first axis. Entries along the last ``shared`` axes
    share their denominators. The value is that of the first approximant that has not failed, and the error
    its largest distance from the next one or two. If fewer than two have not failed, the value is the partial
    sum if that converges; otherwise it is still the approximant, and the error its distance from the partial
    sum. An entry without either has failed. If all of several coefficients except the first vanish, the value
    is that coefficient; a single coefficient fails unless it is zero.

    >>> found = resum([1.0, -1.0, 1.0, -1.0, 1.0], 2.0)  # 1 / (1 + z), twice as far as the series reaches
    >>> float(found.value.round(12)), bool(found.error < 1e-12)
    (0.333333333333, True)
    """
    c = np.asarray(coefficients, dtype=np.float64)
    plain = partial_sums(c, z)
    c = np.where(_above_rounding(_terms(c, z)), c, 0.0)
    candidates = [pade(c, m, n, z, shared) for m, n in approximants(len(c) - 1)]
    value, error = np.full(c.shape[1:], np.nan), np.full(c.shape[1:], 0.0)
    seen = np.zeros(c.shape[1:], dtype=int)
    for x in candidates:
        gap = np.where(seen == 0, x.error, np.abs(x.value - value))
        use = ~x.failed & (seen < 3)
        error = np.where(use, np.maximum(error, gap), error)
        value = np.where(use & (seen == 0), x.value, value)
        seen = seen + use
    constant = ~np.any(c[1:], axis=0) if len(c) > 2 else np.zeros(c.shape[1:], dtype=bool)
    few, sums = seen < 2, ~plain.failed
    raw = np.tensordot(z ** np.arange(len(c)), c, 1)
    error = np.where(few, np.where(sums, plain.error, np.abs(value - raw)), error)
    value = np.where(few & sums, plain.value, value)
    value, error = np.where(constant, c[0], value), np.where(constant, 0.0, error)
    return Resummed(value, error, np.isnan(value))


def resummed(series: xr.Dataset, gamma0: float, method: str = "pade") -> xr.Dataset:
    """Return a result of ``expand`` at one gamma0: values, and their truncation errors ``*_truncation``.

    ``method`` is ``"pade"`` or ``"sum"`` (partial sums).  Every variable is evaluated as a series of its own.
    Standard errors ``*_stderr`` of coefficients become those of values: the sum over orders of the change of
    the value by one standard error of the coefficient, a bound for all correlations of the coefficients.  An
    error that changes sign in time is small at one time by accident, so that the truncation error of an entry
    with corrections is the largest of those at the times around it, a tenth of all times on either side.
    Entries where the method
    fails, or where a loss becomes too large, are NaN: ``status`` is then "partial", and ``failed`` counts
    them by variable.  Raises ValueError for an unknown method or a negative gamma0,
    :class:`~numerics.errors.SpecError` for an order that is not known (NaN), and
    :class:`~numerics.errors.NotConverged` if every entry of a variable fails.

    >>> times = np.array([0.0, 1.0])
    >>> series = xr.Dataset({"train_loss": (("order", "time"), [[1.0, 1.0], [0.0, -1.0], [0.0, 1.0]])},
    ...                     {"order": [0, 2, 4], "time": times})
    >>> at = resummed(series, 1.0)
    >>> at.train_loss.values, at.status
    (array([1. , 0.5]), 'ok')
    """
    if method not in ("pade", "sum"):
        raise ValueError(f"method = {method!r}: must be 'pade' or 'sum'")
    if gamma0 < 0:
        raise ValueError(f"gamma0 = {gamma0}: must not be negative")
    orders = [int(n) for n in series.order.values]
    step = gcd(*orders) or 1
    evaluate = resum if method == "pade" else partial_sums
    top = max([*orders, int(series.attrs.get("truncation_order", 0)) // step * step])
    if max(orders) == 0 and top == 1:  # an even series to order 1 has one coefficient only
        top = 0
    variables: dict[str, tuple[tuple[str, ...], Array, dict[str, str]]] = {}
    failed: dict[str, str] = {}
    for name, array in series.data_vars.items():
        if str(name).endswith(STDERR):
            continue
        dense = _dense(array, step, top)
        z = float(np.float64(gamma0) ** step)
        with np.errstate(over="ignore", invalid="ignore"):
            values = evaluate(dense, z)
        bad = values.failed | ~np.isfinite(values.value) | ~np.isfinite(values.error)
        if name in LOSSES:
            bad |= has_run_away(values.value)
        if bad.any():
            values = Resummed(np.where(bad, np.nan, values.value), np.where(bad, np.nan, values.error), bad)
            failed[str(name)] = f"{int(bad.sum())} of {bad.size}"
            if bad.all():
                raise NotConverged(_why_failed(str(name), gamma0, top))
        dims = tuple(map(str, array.dims[1:]))
        truncation = np.where(np.any(dense[1:], axis=0), _largest_around(values.error, dims), values.error)
        words = str(array.attrs.get("long_name", name))
        variables[str(name)] = (dims, values.value, {"long_name": words})
        variables[f"{name}{TRUNCATION}"] = (
            dims,
            truncation,
            {"long_name": f"estimated truncation error of {words}"},
        )
        if f"{name}{STDERR}" in series:
            errors = _dense(series[f"{name}{STDERR}"], step, top)
            variables[f"{name}{STDERR}"] = (
                dims,
                _sampling_error(dense, errors, values.value, partial(evaluate, z=z)),
                {"long_name": f"standard error of {words}"},
            )
    status = str(series.attrs.get("status", "ok")) if not failed else "partial"
    notes = {"gamma0": gamma0, "method": f"expansion in gamma0, {method}", "status": status}
    if failed:
        notes["failed"] = ", ".join(f"{k}: {v}" for k, v in failed.items())
    return xr.Dataset(
        variables, {k: v for k, v in series.coords.items() if k != "order"}, {**series.attrs, **notes}
    )


def _dense(array: xr.DataArray, step: int, top: int) -> Array:
    """Return the coefficients of a variable for the powers 0, step, ..., top of gamma0.

    Successive powers differ by ``step``; they are the first axis of the result. Coefficients that the series
    does not hold are zero. Raises SpecError for an order whose coefficients are all NaN.
    """
    dense = np.zeros((top // step + 1, *array.shape[1:]))
    for n, values in zip(array.order.values, array.values, strict=True):
        if np.all(np.isnan(values)):
            problem = f"has no known coefficients of order {n}"
            raise SpecError("series", str(array.name), problem, "a series of lower order")
        dense[int(n) // step] = values
    return dense


def _sampling_error(
    coefficients: Array, errors: Array, value: Array, evaluate: Callable[[Array], Resummed]
) -> Array:
    """Return a bound of the standard error of a series with sampled coefficients, in the shape of ``value``.

    ``coefficients`` and their standard ``errors`` have the order as first axis. The bound is the sum over
    orders of the change of the value if the coefficient of this order changes by its standard error.
    """
    total = np.zeros_like(value)
    for n in np.flatnonzero(np.any(errors.reshape(len(errors), -1) != 0, axis=1)):
        moved = coefficients.copy()
        moved[n] += errors[n]
        with np.errstate(over="ignore", invalid="ignore"):
            total = total + np.abs(evaluate(moved).value - value)
    return total


def _why_failed(name: str, gamma0: float, top: int) -> str:
    """Return the message for a series of ``name`` to order ``top`` without any value at ``gamma0``.

    A single nonzero coefficient, that of order 0, fails at every gamma0.
    """
    if top == 0:
        return (
            f"the series of {name} has one coefficient, that of order 0, which does not show whether it "
            f"converges at gamma0 = {gamma0}: a higher order would do"
        )
    return (
        f"the series of {name} to order {top} does not converge at gamma0 = {gamma0}: a smaller gamma0, or a "
        "higher order, would do"
    )


def _largest_around(error: Array, dims: tuple[str, ...]) -> Array:
    """Return for each entry the largest error at the times around it, in the shape of ``error``.

    An error that changes sign is small at one time by accident. The times around an entry are a tenth of all
    times on either side, at least one. Entries that have failed are NaN: they stay NaN, and their neighbours
    ignore them. ``dims`` names all axes; those in TIMES are times.
    """
    largest = error
    for axis, dim in enumerate(dims):
        if dim in TIMES:
            here, count = np.moveaxis(largest, axis, 0), largest.shape[axis]
            wide = here.copy()
            for k in range(1, min(count, 1 + max(1, count // 10))):
                wide[k:] = np.fmax(wide[k:], here[:-k])
                wide[:-k] = np.fmax(wide[:-k], here[k:])
            largest = np.moveaxis(wide, 0, axis)
    return np.where(np.isnan(error), np.nan, largest)
