"""The series at the experiment's own gamma0, beside its coefficients."""

from __future__ import annotations

from enum import StrEnum

import xarray as xr

from numerics.errors import NotConverged
from numerics.expansion.resummation import TRUNCATION, resummed

NAMES = ("train_loss", "error")
RESUMMED = "_resummed"
LOWEST = 4
"""Words at fixed error need at least two orders of feedback."""


class Method(StrEnum):
    """How a series is evaluated."""

    SUM = "sum"
    PADE = "pade"
    SELF_CONSISTENT = "self-consistent"


def with_values(series: xr.Dataset, values: xr.Dataset | None, gamma0: float, method: Method) -> xr.Dataset:
    """``series`` with ``train_loss_resummed``, ``error_resummed`` and their ``_truncation`` at ``gamma0``.

    ``values`` are those found at fixed error, None for the other methods.  Attributes: ``gamma0``,
    ``resummation``, ``resummation_status`` ("partial" where entries failed; they are NaN) and
    ``resummation_failed``.  Raises :class:`~numerics.errors.NotConverged` when all of a variable fails.
    """
    known = [n for n in NAMES if n in series]
    found = resummed(series[known], gamma0, str(method)) if values is None else values
    new = {}
    for name in known:
        new[f"{name}{RESUMMED}"] = found[name]
        new[f"{name}{TRUNCATION}"] = found[f"{name}{TRUNCATION}"]
    notes = {"gamma0": gamma0, "resummation": str(method), "resummation_status": found.attrs["status"]}
    if "failed" in found.attrs:
        notes["resummation_failed"] = found.attrs["failed"]
    return series.assign(new).assign_attrs(notes)


def without_values(series: xr.Dataset, gamma0: float, method: Method, reason: NotConverged) -> xr.Dataset:
    """``series`` as it is, with the reason why it has no value at ``gamma0`` in its attributes."""
    notes = {"gamma0": gamma0, "resummation": str(method), "resummation_status": f"failed: {reason}"}
    return series.assign_attrs(notes)


__all__ = ["Method", "with_values", "without_values"]
