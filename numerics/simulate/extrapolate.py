"""From several widths to infinite width: a weighted straight line in 1/N.

In mean-field parametrisation averages over initial weights differ from their infinite-width values by
c/N + O(1/N^2), and one network's fluctuations have variance of order 1/N. The line is fitted with the
weights (networks x width) that this scaling makes optimal. They are the same for every entry and do not
depend on the measured spread, so the estimate is linear and unbiased at O(1/N); its standard error is
propagated from the measured standard errors. What remains is O(1/N^2): with three or more widths chi2
shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import xarray as xr
from numpy.typing import NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """Least squares in 1/N at K widths: estimate = intercept . values, fitted = hat @ values."""

    intercept: Array
    hat: Array

    @staticmethod
    def through(widths: Sequence[int], networks: Sequence[int]) -> Line:
        """From widths N_k and numbers of networks; ``ValueError`` for fewer than two different widths.

        >>> Line.through([100, 200], [8, 8]).intercept
        array([-1.,  2.])
        """
        if len(set(widths)) < 2:
            raise ValueError(f"widths = {list(widths)}: extrapolation needs at least two different widths")
        x = 1.0 / np.asarray(widths, dtype=float)
        weight = np.asarray(networks, dtype=float) * np.asarray(widths, dtype=float)
        design = np.stack([np.ones_like(x), x], axis=1)
        solve = np.linalg.solve(design.T @ (weight[:, None] * design), design.T * weight)
        return Line(solve[0], design @ solve)


def extrapolate(datasets: Sequence[xr.Dataset]) -> xr.Dataset:
    """The value at 1/N -> 0 of every variable with a ``*_stderr``, from ``simulate`` at two or more widths.

    Two widths give the exact line through both; with more, ``<name>_chi2`` (``chi2_dof`` in attrs)
    tells, entry by entry, how well a straight line fits: its terms use each width's own standard error.
    Raises ``ValueError`` if fewer than two widths are given or the axes differ.
    """
    data = list(datasets)
    line = Line.through([int(d.attrs["width"]) for d in data], [int(d.attrs["seeds"]) for d in data])
    first = data[0]
    for other in data[1:]:
        check_same_axes(first, other)
    result: dict[str, xr.DataArray] = {}
    for name in (str(n) for n in first.data_vars if f"{n}_stderr" in first):
        # one array at a time: stacking large kernels would need K times their memory
        value = xr.zeros_like(first[name])
        variance = xr.zeros_like(first[name])
        for weight, d in zip(line.intercept, data, strict=True):
            value += float(weight) * d[name]
            variance += float(weight) ** 2 * d[f"{name}_stderr"] ** 2
        result[name], result[f"{name}_stderr"] = value, variance**0.5
        if len(data) > 2:
            result[f"{name}_chi2"] = _chi2(line, data, name)
    attrs = {
        "spec": first.attrs.get("spec", ""),
        "version": first.attrs.get("version", ""),
        "seed": [int(d.attrs["seed"]) for d in data],
        "status": "ok",
        "wall_time_s": float(sum(d.attrs.get("wall_time_s", 0.0) for d in data)),
        "method": "finite networks, extrapolated in 1/N",
        "widths": [int(d.attrs["width"]) for d in data],
        "seeds": [int(d.attrs["seeds"]) for d in data],
        "chi2_dof": len(data) - 2,
    }
    return xr.Dataset(result, attrs=attrs)


def _chi2(line: Line, data: Sequence[xr.Dataset], name: str) -> xr.DataArray:
    total = xr.zeros_like(data[0][name])
    for k, d in enumerate(data):
        fitted = sum(float(line.hat[k, j]) * other[name] for j, other in enumerate(data))
        stderr = d[f"{name}_stderr"]
        # entries that are the same in every network (f(0) of an antithetic pair) carry no information
        total += ((d[name] - fitted) / stderr.where(stderr > 0, np.inf)) ** 2
    return total


def check_same_axes(one: xr.Dataset, two: xr.Dataset) -> None:
    """``ValueError`` naming the first axis on which two datasets differ."""
    for axis in ("time", "layer", "sample"):
        if axis not in one.sizes or axis not in two.sizes:
            continue
        a, b = one[axis].to_numpy(), two[axis].to_numpy()
        if a.shape != b.shape or not np.allclose(a, b):
            raise ValueError(f"the axis {axis!r} differs: {a.shape} against {b.shape}, or other values")
