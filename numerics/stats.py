"""Estimates with standard errors: running means, the jackknife, control variates, extrapolation in 1/N.

The input are samples of finite networks or of sampled paths; the output are means, standard errors and the
bounds that the largest of many normalised errors must keep. Simulations, solvers by sampling and verification
use them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from numerics.sobol import uniform_points

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


@dataclass
class Spread:
    """Running means and standard errors of named arrays (Welford), without keeping the samples.

    >>> s = Spread()
    >>> for x in (1.0, 3.0): s.add({"x": np.array([x])})
    >>> s.mean()["x"], s.stderr()["x"]
    (array([2.]), array([1.]))
    """

    counts: dict[str, int] = field(default_factory=dict)
    means: dict[str, Array] = field(default_factory=dict)
    squares: dict[str, Array] = field(default_factory=dict)

    def add(self, sample: Mapping[str, Any]) -> None:
        """Add one sample, arrays by name."""
        self.add_all({name: np.asarray(x, dtype=float)[None] for name, x in sample.items()})

    def add_all(self, samples: Mapping[str, Array]) -> None:
        """Add several samples, arrays by name with the samples along the first axis."""
        with np.errstate(over="ignore", invalid="ignore"):  # squares overflow shortly before a divergence
            for name, xs in samples.items():
                self._add(name, xs)

    def _add(self, name: str, xs: Array) -> None:
        """Add the samples ``xs``, along the first axis, of the array called ``name``."""
        count, more = self.counts.get(name, 0), len(xs)
        base = self.means[name] if count else xs[0]
        change = xs - base
        mean = change.mean(axis=0)
        change -= mean
        change *= change
        squares = change.sum(axis=0)
        self.counts[name] = count + more
        self.means[name] = base + mean * (more / (count + more))
        if count:
            squares += self.squares[name] + mean**2 * (count * more / (count + more))
        self.squares[name] = squares

    def mean(self) -> dict[str, Array]:
        """Return the mean of each array."""
        return dict(self.means)

    def stderr(self) -> dict[str, Array]:
        """Return the standard error of each mean; NaN if there is one sample."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return {
                k: np.sqrt(x / (self.counts[k] * (self.counts[k] - 1)))
                if self.counts[k] > 1
                else np.full_like(x, np.nan)
                for k, x in self.squares.items()
            }


def jackknife(function: Callable[..., Any], *sides: Array) -> tuple[Array, Array, Array]:
    """Return an estimate from independent samples, its standard error and its standard deviation.

    The estimate is ``function(*sides)`` less its bias of order 1/n. Each array of ``sides`` has its samples
    along the first axis; the arrays are independent of each other. For each array one sample at a time is
    left out: with values f_i without sample i, ``f + (n - 1)(f - <f_i>)`` has no bias of order 1/n, and
    ``(n - 1) var f_i`` is its variance. Corrections and variances of all arrays are added. The standard
    deviation is that of an estimate from one sample. An array with one sample counts as exact.

    >>> [float(x.round(6)) for x in jackknife(lambda x: x.mean(0), np.array([1.0, 3.0]))]
    [2.0, 1.0, 1.414214]
    """
    whole = np.asarray(function(*sides), dtype=float)
    value, variance, spread = whole, np.zeros(whole.shape), np.zeros(whole.shape)
    for k, side in enumerate(sides):
        n = len(side)
        if n < 2:
            continue
        parts = np.stack(
            [function(*sides[:k], np.delete(side, i, axis=0), *sides[k + 1 :]) for i in range(n)]
        )
        value = value + (n - 1) * (whole - parts.mean(0))
        omitted = (n - 1) * ((parts - parts.mean(0)) ** 2).mean(0)
        variance, spread = variance + omitted, spread + n * omitted
    return value, np.sqrt(variance), np.sqrt(spread)


CONSTANT = 1e-9
"""A standard deviation below this share of the size of a control, or of a number, counts as rounding."""

LEVERAGE = 4
"""Smallest number of samples for each fitted coefficient; with fewer, controls would add noise."""

TOGETHER = 2**22
"""Largest number of entries in the arrays of one batch of regressions."""


@dataclass(frozen=True)
class SampleMean:
    """Mean over samples, its standard error, and the degrees of freedom of that error."""

    value: Array
    stderr: Array
    dof: int

    def shaped(self, shape: Sequence[int]) -> SampleMean:
        """Return the mean with its arrays in another shape."""
        return SampleMean(self.value.reshape(shape), self.stderr.reshape(shape), self.dof)

    @staticmethod
    def joined(parts: Sequence[SampleMean]) -> SampleMean:
        """Return several means as one flat array, with the smallest of their degrees of freedom."""
        value, stderr = (
            np.concatenate([np.ravel(getattr(x, y)) for x in parts]) for y in ("value", "stderr")
        )
        return SampleMean(value, stderr, min(x.dof for x in parts))


def controlled_mean(values: Array, controls: Array) -> SampleMean:
    """Return means over samples with regressions on control variates of mean zero subtracted.

    ``values`` and ``controls`` have the shapes of :func:`controlled_values`; the mean has shape (numbers,).

    >>> rng = np.random.default_rng(0)
    >>> c = rng.standard_normal((200, 1))
    >>> mean = controlled_mean(3 + 2 * c + 0.1 * rng.standard_normal((200, 1)), c)
    >>> abs(float(mean.value[0]) - 3) < 4 * float(mean.stderr[0]), float(mean.stderr[0]) < 0.01, mean.dof
    (True, True, 198)
    """
    each, dof = controlled_values(values, controls)
    spread = each.std(axis=0, ddof=1)
    # A spread of corrected values as small as rounding errors is set to zero: the value of each sample is
    # then a linear function of its controls.
    spread[spread < CONSTANT * values.std(axis=0)] = 0.0
    return SampleMean(each.mean(axis=0), spread / np.sqrt(len(each)), dof)


def controlled_values(values: Array, controls: Array) -> tuple[Array, int]:
    """Subtract regressions on control variates from samples; return them and the degrees of freedom.

    ``values`` has shape (samples, numbers). ``controls`` has mean zero and shape (samples, controls), or
    (numbers, samples, controls) if each number has its own controls.

    The result is ``y_i - beta_i . c_i`` for sample i, with coefficients ``beta_i`` fitted without sample i.
    They are independent of ``c_i`` if the samples are independent, so that the expectation is exactly that of
    ``y``. With the fit ``b`` of all samples, residuals ``e``, leverages ``h`` and the weights ``g`` of the
    intercept the result is ``b_0 + e_i (1 - g_i)/(1 - h_i)`` (Sherman and Morrison).

    Constant controls are left out. If there are fewer than LEVERAGE samples for each fitted coefficient,
    all controls are left out.
    """
    n, m = values.shape
    sets = controls if controls.ndim == 3 else controls[None]
    if LEVERAGE * (1 + sets.shape[-1]) > n:
        sets = sets[:1, :, :0]
    if len(sets) == 1:
        return _controlled(values.T[None], sets)
    size = max(1, TOGETHER // (n * (1 + sets.shape[-1])))
    parts = [_controlled(values.T[k : k + size, None], sets[k : k + size]) for k in range(0, m, size)]
    return np.concatenate([part for part, _ in parts], axis=1), min(dof for _, dof in parts)


def _controlled(values: Array, sets: Array) -> tuple[Array, int]:
    """Subtract regressions on control variates from samples, for several sets of numbers at once.

    ``values`` has shape (sets, numbers, samples); ``sets`` holds the control variates of each set, (sets,
    samples, controls). Return an array (samples, sets x numbers) and the degrees of freedom. The
    least-squares fit of each set is ``b = (X^T X)^+ X^T y`` with the design ``X = (1, controls)``.
    """
    n = values.shape[-1]
    size = np.sqrt((sets**2).mean(axis=1, keepdims=True))
    moving = sets.std(axis=1, keepdims=True) > CONSTANT * size
    scaled = np.where(moving, sets / np.where(moving, size, 1.0), 0.0)
    design = np.concatenate([np.ones((len(sets), n, 1)), scaled], axis=2)
    roots, vectors = np.linalg.eigh(design.swapaxes(1, 2) @ design)
    kept = roots > 1e-10 * roots[:, -1:]
    inverse = (vectors / np.where(kept, roots, np.inf)[:, None]) @ vectors.swapaxes(1, 2)
    weights = design @ inverse  # transposed pseudo-inverse: (sets, samples, coefficients)
    fit = values @ weights
    residuals = values - fit @ design.swapaxes(1, 2)
    leverage = (weights * design).sum(axis=2)
    each = fit[..., :1] + residuals * ((1 - weights[..., 0]) / (1 - leverage))[:, None]
    return each.reshape(-1, n).T, n - int(kept.sum(axis=1).max(initial=1))


def sample_variance(values: Array) -> SampleMean:
    """Return variances over samples (first axis) with the standard errors of the jackknife.

    Without sample i the variance is ``s^2_i``; the pseudo-values ``n s^2 - (n - 1) s^2_i`` are
    ``(n d_i^2 - s^2)/(n - 2)`` with deviations ``d_i`` from the mean.  Their mean is ``s^2``, and their
    scatter holds the fourth moment of the samples. Raises ValueError for fewer than three samples.

    >>> x = np.random.default_rng(0).standard_normal((2000, 1))
    >>> found = sample_variance(x)
    >>> abs(float(found.value[0]) - 1) < 4 * float(found.stderr[0]), found.stderr.round(3), found.dof
    (True, array([0.032]), 1999)
    """
    n = len(values)
    if n < 3:
        raise ValueError(f"{n} samples: the error of a variance needs at least three")
    squares = (values - values.mean(axis=0)) ** 2
    value = squares.sum(axis=0) / (n - 1)
    return SampleMean(value, n / (n - 2) * squares.std(axis=0, ddof=1) / np.sqrt(n), n - 1)


def normal_points(count: int, dimensions: int, seed: Any) -> Array:
    """Return standard normal numbers from a scrambled Sobol sequence, shape ``(dimensions, count)``.

    ``seed`` is an argument of :func:`numpy.random.default_rng`.

    >>> bool(np.abs(normal_points(1024, 2, 0).mean(axis=1)).max() < 0.01)
    True
    """
    from scipy.special import ndtri  # imported here because it is slow and many commands do not use it

    (generator,) = np.random.default_rng(seed).spawn(1)
    uniform = uniform_points(count, max(dimensions, 1), generator)
    return np.asarray(ndtri(uniform.clip(1e-15, 1 - 1e-15))[:dimensions])


def each_of(count: int, level: float) -> float:
    """Return the level of one of ``count`` tests such that all tests together have ``level`` (Sidak).

    Levels are probabilities between 0 and 1.

    >>> round(each_of(10, 0.01), 6)
    0.001005
    """
    return float(-np.expm1(np.log1p(-level) / max(count, 1)))


def bound(count: int, level: float, dof: Any = np.inf) -> Any:
    """Return the bound on ``count`` normalised errors that the largest exceeds with probability ``level``.

    ``level`` is between 0 and 1, both excluded. The bound is a quantile of Student's t with ``dof`` degrees
    of freedom (a number or an array; infinite for a Gaussian), two-sided. For dependent Gaussian errors the
    probability is at most ``level`` (Sidak's inequality), and the bound is wide if correlations are strong.

    >>> round(bound(1, 0.05), 3), round(bound(100, 0.05, 20), 3)
    (1.96, 4.135)
    """
    from scipy.special import ndtri, stdtrit  # slow to import, and many commands do not use it

    each = each_of(count, level) / 2
    quantile = -np.where(np.isinf(dof), ndtri(each), stdtrit(np.where(np.isinf(dof), 1, dof), each))
    return float(quantile) if quantile.ndim == 0 else quantile


@dataclass(frozen=True)
class Line:
    """Weights of a least-squares line value(N) = value + slope/N through means at several widths N.

    The means are those over networks. The variance of a mean over ``networks`` networks of width N is
    proportional to 1/(networks x N). This fixes the weights of the fit before anything is measured, and
    they are the same for every entry of an array. With ``values`` (widths, ...), ``intercept @ values`` is
    the extrapolated value, and ``hat @ values`` are the fitted values at each width.
    """

    intercept: Array
    hat: Array

    @staticmethod
    def through(widths: Sequence[int], networks: Sequence[int], order: int = 1) -> Line:
        """Return the weights of the fit through the ``widths`` N, with the number of networks of each width.

        With an ``order`` other than 1 the fit is value(N) = value + c/N^order. Raises ValueError for fewer
        than two different widths.

        >>> Line.through([100, 200], [8, 8]).intercept
        array([-1.,  2.])
        >>> Line.through([100, 200], [8, 8], order=2).intercept.round(3)
        array([-0.333,  1.333])
        """
        if len(set(widths)) < 2:
            raise ValueError(f"widths = {list(widths)}: extrapolation needs at least two different widths")
        x = 1.0 / np.asarray(widths, dtype=float) ** order
        weight = np.asarray(networks, dtype=float) * np.asarray(widths, dtype=float)
        design = np.stack([np.ones_like(x), x], axis=1)
        solve = np.linalg.solve(design.T @ (weight[:, None] * design), design.T * weight)
        return Line(solve[0], design @ solve)

    def curvature(self, widths: Sequence[int], order: int = 1) -> float:
        """Return the error of the extrapolated value if the data have a term 1/N^(order + 1) with factor 1.

        ``order`` must be that of the line, which was fitted in 1/N^order through the ``widths``. The result
        is the absolute value of the error.
        """
        return abs(float(self.intercept @ (1.0 / np.asarray(widths, dtype=float) ** (order + 1))))


def extrapolate(datasets: Sequence[xr.Dataset]) -> xr.Dataset:
    """Extrapolate every variable with a ``*_stderr`` to 1/N -> 0, from networks of at least two widths.

    Each dataset holds means over the networks of one width, with the attributes ``width`` and ``seeds``
    (number of networks). Variables without a standard error are left out. Two widths give the line through
    both. With more widths, ``<name>_chi2`` (``chi2_dof`` in the attributes) is the chi-squared of the
    straight line for each entry, from the standard error of each width. Raises ValueError for fewer than two
    widths, or if the axes differ.
    """
    import xarray as xr  # imported here because it is slow and a theory does not use it

    data = list(datasets)
    line = Line.through([int(d.attrs["width"]) for d in data], [int(d.attrs["seeds"]) for d in data])
    first = data[0]
    for other in data[1:]:
        check_same_axes(first, other)
    result: dict[str, xr.DataArray] = {}
    for name in (str(n) for n in first.data_vars if f"{n}_stderr" in first):
        # The terms of the widths are added one by one, because an array for all K widths needs K times the
        # memory of an array for one width.
        value = xr.zeros_like(first[name])
        variance = xr.zeros_like(first[name])
        for weight, d in zip(line.intercept, data, strict=True):
            value += float(weight) * d[name]
            variance += float(weight) ** 2 * d[f"{name}_stderr"] ** 2
        result[name], result[f"{name}_stderr"] = value, variance**0.5
        if len(data) > 2:
            result[f"{name}_chi2"] = _chi2(line, data, name)
    attrs = {
        **{k: first.attrs[k] for k in ("spec", "version", "libraries", "data_sha256") if k in first.attrs},
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
    """Return the chi-squared of a straight line in 1/N for each entry of the variable ``name``.

    It is the sum over widths N of the squared deviation of the mean from the fitted ``line``, in units of the
    standard error of the mean. ``data`` holds the means at each width. Means without a standard error do not
    contribute.
    """
    import xarray as xr

    total = xr.zeros_like(data[0][name])
    for k, d in enumerate(data):
        fitted = sum(float(line.hat[k, j]) * other[name] for j, other in enumerate(data))
        stderr = d[f"{name}_stderr"]
        # An entry that is equal in all networks, such as f(0) of an antithetic pair, has the standard error
        # zero and does not contribute.
        total += ((d[name] - fitted) / stderr.where(stderr > 0, np.inf)) ** 2
    return total


def check_same_axes(one: xr.Dataset, two: xr.Dataset) -> None:
    """Raise ValueError with the name of the first axis on which two datasets differ.

    Compared are the axes of times, layers and samples that both datasets have.
    """
    for axis in ("time", "layer", "sample"):
        if axis not in one.sizes or axis not in two.sizes:
            continue
        a, b = one[axis].to_numpy(), two[axis].to_numpy()
        if a.shape != b.shape or not np.allclose(a, b):
            raise ValueError(
                f"the axis {axis!r} of the two datasets differs, in shape ({a.shape}, {b.shape}) or values"
            )
