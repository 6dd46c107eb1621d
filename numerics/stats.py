"""Means with their errors: running spreads, a jackknife, the line in 1/N, bounds on the worst of many."""

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
    """Running means and standard errors of named arrays, one pass, without keeping the samples (Welford).

    >>> s = Spread()
    >>> for x in (1.0, 3.0): s.add({"x": np.array([x])})
    >>> s.mean()["x"], s.stderr()["x"]
    (array([2.]), array([1.]))
    """

    counts: dict[str, int] = field(default_factory=dict)
    means: dict[str, Array] = field(default_factory=dict)
    squares: dict[str, Array] = field(default_factory=dict)

    def add(self, sample: Mapping[str, Any]) -> None:
        """One more sample."""
        self.add_all({name: np.asarray(x, dtype=float)[None] for name, x in sample.items()})

    def add_all(self, samples: Mapping[str, Array]) -> None:
        """Samples along the first axis."""
        with np.errstate(over="ignore", invalid="ignore"):  # shortly before a divergence
            for name, xs in samples.items():
                self._add(name, xs)

    def _add(self, name: str, xs: Array) -> None:
        """Samples of one array."""
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
        """The means."""
        return dict(self.means)

    def stderr(self) -> dict[str, Array]:
        """The standard error of each mean, nan for a single sample."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return {
                k: np.sqrt(x / (self.counts[k] * (self.counts[k] - 1)))
                if self.counts[k] > 1
                else np.full_like(x, np.nan)
                for k, x in self.squares.items()
            }


def jackknife(function: Callable[..., Any], *sides: Array) -> tuple[Array, Array, Array]:
    """``function`` of independent samples, its standard error, and its standard deviation from run to run.

    Samples run along the first axis of each of ``sides``; one at a time is left out, on either side: of n
    values f_i without sample i, ``f + (n - 1)(f - <f_i>)`` has no bias of order 1/n, and ``(n - 1) var f_i``
    is its variance.  A side of one sample is taken to be exact.

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
        left = (n - 1) * ((parts - parts.mean(0)) ** 2).mean(0)
        variance, spread = variance + left, spread + n * left
    return value, np.sqrt(variance), np.sqrt(spread)


CONSTANT = 1e-9
"""Share of the size of a control, or of the spread of a number, below which a spread is rounding."""

LEVERAGE = 4
"""Samples for each fitted number, fewer than which controls add more noise than they take away."""

TOGETHER = 2**22
"""Entries of the controls of several numbers that are regressed together."""


@dataclass(frozen=True)
class SampleMean:
    """A mean over samples, its standard error, and the degrees of freedom of that."""

    value: Array
    stderr: Array
    dof: int

    def shaped(self, shape: Sequence[int]) -> SampleMean:
        """Return the mean with its numbers in another shape."""
        return SampleMean(self.value.reshape(shape), self.stderr.reshape(shape), self.dof)

    @staticmethod
    def joined(parts: Sequence[SampleMean]) -> SampleMean:
        """Return the numbers of several means one after the other, with the fewest degrees of freedom."""
        value, stderr = (
            np.concatenate([np.ravel(getattr(x, y)) for x in parts]) for y in ("value", "stderr")
        )
        return SampleMean(value, stderr, min(x.dof for x in parts))


def controlled_mean(values: Array, controls: Array) -> SampleMean:
    """Return means over samples, less regressions on control variates of mean zero.

    The mean is that of :func:`controlled_values`, and so are the shapes.

    >>> rng = np.random.default_rng(0)
    >>> c = rng.standard_normal((200, 1))
    >>> found = controlled_mean(3 + 2 * c + 0.1 * rng.standard_normal((200, 1)), c)
    >>> abs(float(found.value[0]) - 3) < 4 * float(found.stderr[0]), float(found.stderr[0]) < 0.01, found.dof
    (True, True, 198)
    """
    each, dof = controlled_values(values, controls)
    spread = each.std(axis=0, ddof=1)
    spread[spread < CONSTANT * values.std(axis=0)] = 0.0  # rounding of what controls fix
    return SampleMean(each.mean(axis=0), spread / np.sqrt(len(each)), dof)


def controlled_values(values: Array, controls: Array) -> tuple[Array, int]:
    """Return values (samples, numbers) less regressions on controls of mean zero, and degrees of freedom.

    They are ``y_i - beta_i . c_i`` for samples i, with coefficients ``beta_i`` fitted without sample i, so
    that they are independent of ``c_i``: the expectation is exactly that of ``y``, whatever the relation
    between ``y`` and ``c`` is, if samples are independent.  With the fit ``b`` of all samples, residuals
    ``e``, leverages ``h`` and the weights ``g`` of the intercept they are ``b_0 + e_i (1 - g_i)/(1 - h_i)``
    (Sherman and Morrison).

    ``controls`` has shape (samples, controls), or (numbers, samples, controls) where each number has its own.
    Controls that are constant are left out; where there are fewer than LEVERAGE samples for each fitted
    number, all are.
    """
    n, m = values.shape
    sets = controls if controls.ndim == 3 else controls[None]
    if LEVERAGE * (1 + sets.shape[-1]) > n:
        sets = sets[:1, :, :0]
    if len(sets) == 1:
        return _controlled(values.T[None], sets)
    size = max(1, TOGETHER // (n * (1 + sets.shape[-1])))
    parts = [_controlled(values.T[k : k + size, None], sets[k : k + size]) for k in range(0, m, size)]
    return np.concatenate([x for x, _ in parts], axis=1), min(dof for _, dof in parts)


def _controlled(values: Array, sets: Array) -> tuple[Array, int]:
    """Return controlled values of (sets, numbers, samples) with controls (sets, samples, controls)."""
    n = values.shape[-1]
    size = np.sqrt((sets**2).mean(axis=1, keepdims=True))
    moving = sets.std(axis=1, keepdims=True) > CONSTANT * size
    scaled = np.where(moving, sets / np.where(moving, size, 1.0), 0.0)
    design = np.concatenate([np.ones((len(sets), n, 1)), scaled], axis=2)
    roots, vectors = np.linalg.eigh(design.swapaxes(1, 2) @ design)
    kept = roots > 1e-10 * roots[:, -1:]
    inverse = (vectors / np.where(kept, roots, np.inf)[:, None]) @ vectors.swapaxes(1, 2)
    weights = design @ inverse  # rows of the pseudo-inverse: (sets, samples, coefficients)
    fit = values @ weights
    left = values - fit @ design.swapaxes(1, 2)
    leverage = (weights * design).sum(axis=2)
    each = fit[..., :1] + left * ((1 - weights[..., 0]) / (1 - leverage))[:, None]
    return each.reshape(-1, n).T, n - int(kept.sum(axis=1).max(initial=1))


def normal_points(count: int, dimensions: int, seed: Any) -> Array:
    """Independent standard normal numbers from a scrambled Sobol sequence: shape ``(dimensions, count)``.

    ``seed`` is what :func:`numpy.random.default_rng` takes.

    >>> bool(np.abs(normal_points(1024, 2, 0).mean(axis=1)).max() < 0.01)
    True
    """
    from scipy.special import ndtri  # slow to import, and many commands have no need of it

    (own,) = np.random.default_rng(seed).spawn(1)
    uniform = uniform_points(count, max(dimensions, 1), own)
    return np.asarray(ndtri(uniform.clip(1e-15, 1 - 1e-15))[:dimensions])


def each_of(count: int, level: float) -> float:
    """The chance each of ``count`` numbers may have, for the worst of them to have ``level`` (Sidak).

    >>> round(each_of(10, 0.01), 6)
    0.001005
    """
    return float(-np.expm1(np.log1p(-level) / max(count, 1)))


def bound(count: int, level: float, dof: Any = np.inf) -> Any:
    """Standard errors that the worst of ``count`` numbers exceeds, up or down, with chance ``level``.

    Student's t for standard errors with ``dof`` degrees of freedom (a number or an array).  It holds whatever
    the correlations of Gaussian estimates are (Sidak's inequality), and is wide when they are strong.

    >>> round(bound(1, 0.05), 3), round(bound(100, 0.05, 20), 3)
    (1.96, 4.135)
    """
    from scipy.special import ndtri, stdtrit  # slow to import, and many commands have no need of it

    each = each_of(count, level) / 2
    found = -np.where(np.isinf(dof), ndtri(each), stdtrit(np.where(np.isinf(dof), 1, dof), each))
    return float(found) if found.ndim == 0 else found


@dataclass(frozen=True)
class Line:
    """Weights of the fit value(N) = value + slope/N through several widths.

    The variance of a mean over ``networks`` networks of width N is proportional to 1/(networks x N), which
    fixes the weights beforehand: the same for every entry, whatever is measured.  ``intercept @ values`` is
    the extrapolated value, ``hat @ values`` the fitted ones.
    """

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

    def curvature(self, widths: Sequence[int]) -> float:
        """Return what a term 1/N^2 adds to the extrapolated value, but for its sign."""
        return abs(float(self.intercept @ (1.0 / np.asarray(widths, dtype=float) ** 2)))


def extrapolate(datasets: Sequence[xr.Dataset]) -> xr.Dataset:
    """The value at 1/N -> 0 of every variable with a ``*_stderr``, from networks at two or more widths.

    Two widths give the exact line through both; with more, ``<name>_chi2`` (``chi2_dof`` in attrs)
    tells, entry by entry, how well a straight line fits: its terms use each width's own standard error.
    Raises ``ValueError`` if fewer than two widths are given or the axes differ.
    """
    import xarray as xr  # which takes long, and a theory alone does not need

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
    import xarray as xr

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
