"""What runs say of a network's units and kernels: distributions and alignments, of theories and of networks.

Runs are independent replicas of a theory, or networks; all standard errors come from their spread.
Distributions take paths as :mod:`numerics.paths` lays them out: an array with the dimensions ``run`` and
``unit``, and others that are carried along.  Alignments take kernels stacked over runs along the first axis;
the last ``axes`` axes belong to the kernel, those between are carried along.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from numerics.stats import jackknife

Array = NDArray[np.float64]

ATOM = 0.02
"""The share of units with exactly the same value from which on this value counts as an atom."""

SMOOTHING = 0.5
"""The spread of the normal number added in :func:`non_gaussianity`'s distance, in standard deviations."""


def histogram(paths: xr.DataArray, edges: ArrayLike) -> xr.Dataset:
    """Density per bin between ``edges``, ``density`` and ``density_stderr`` along the dimension ``value``.

    A value that many units share exactly, such as the zero of relu, is no density: its ``atom`` and
    ``atom_stderr`` (the share of units) stand by themselves, at ``atom_at``, and the density integrates to
    the rest.  Shares outside the edges are left out.

    >>> h = np.array([[-2.0, -1.0, 1.0, 2.0], [-2.0, 1.0, 1.5, 2.0]])
    >>> relu = xr.DataArray(np.maximum(h, 0), dims=("run", "unit"))
    >>> found = histogram(relu, [0, 1.8, 3])
    >>> found.atom.item(), found.density.values.round(3).tolist()
    (0.375, [0.208, 0.208])
    """
    edges = np.asarray(edges, dtype=float)
    if edges.ndim != 1 or len(edges) < 2 or np.any(np.diff(edges) <= 0):
        raise ValueError("edges must increase")
    at = atoms(paths)

    def shares(x: Array, atom: float) -> Array:
        """The shares in the bins and, last, in the atom; ``x`` has the axes run, unit."""
        counted = [np.histogram(row[row != atom], edges)[0] for row in x]
        heavy = (x == atom).mean(axis=1)
        return np.column_stack([np.array(counted) / x.shape[1] / np.diff(edges), heavy])

    both = _over_runs("density", _applied(shares, paths, at, out=("run", "value")))
    heavy = both.isel(value=-1).rename(density="atom", density_stderr="atom_stderr")
    found = both.isel(value=slice(0, -1)).merge(heavy).assign(atom_at=at)
    return found.assign_coords(value=(edges[1:] + edges[:-1]) / 2, width=("value", np.diff(edges)))


def atoms(paths: xr.DataArray) -> xr.DataArray:
    """The value that most units share exactly, where at least ATOM of them do; nan elsewhere.

    Mirrored paths of a theory come in equal pairs, which makes no atom.
    """

    def atom(x: Array) -> Array:
        values, counts = np.unique(x, return_counts=True)
        best = int(np.argmax(counts))
        return np.asarray(values[best] if counts[best] > max(ATOM * x.size, 2) else np.nan)

    return _applied(atom, paths)


def kernel_density(paths: xr.DataArray, values: ArrayLike, bandwidth: float | None = None) -> xr.Dataset:
    """The density at ``values`` of a unit plus a normal number of standard deviation ``bandwidth``.

    This is what a kernel density is an unbiased estimate of: it is wider than the unit's own, so compare
    densities of one bandwidth.  Without one, Silverman's rule is taken for all units together, 0.9 min(sd,
    IQR/1.34) n^(-1/5); what was taken is the variable ``bandwidth``.  An atom gets its share of the normal
    density; use :func:`histogram` to keep it apart.

    >>> x = xr.DataArray([[0.0, 0.0], [0.0, 0.0]], dims=("run", "unit"))
    >>> round(float(kernel_density(x, [0.0], bandwidth=2.0).density[0] * np.sqrt(2 * np.pi)), 6)
    0.5
    """
    at = np.asarray(values, dtype=float)
    width = _applied(_silverman, paths) if bandwidth is None else xr.DataArray(float(bandwidth))
    if not bool((width > 0).all()):
        raise ValueError("a bandwidth must be positive: are all units equal?")

    def density(x: Array, width: float) -> Array:
        found = np.stack([np.exp(-(((v - x) / width) ** 2) / 2).mean(axis=1) for v in at], axis=1)
        return np.asarray(found / (width * np.sqrt(2 * np.pi)))

    found = _over_runs("density", _applied(density, paths, width, out=("run", "value")))
    return found.assign(bandwidth=width).assign_coords(value=at)


def cumulative(paths: xr.DataArray, values: ArrayLike) -> xr.Dataset:
    """The share of units at or below ``values``: ``below``, ``below_stderr``."""
    at = np.asarray(values, dtype=float)

    def share(x: Array) -> Array:
        return np.stack([(x <= v).mean(axis=1) for v in at], axis=1)

    return _over_runs("below", _applied(share, paths, out=("run", "value"))).assign_coords(value=at)


def quantiles(paths: xr.DataArray, shares: Sequence[float] = (0.05, 0.25, 0.5, 0.75, 0.95)) -> xr.Dataset:
    """``quantiles`` and ``quantiles_stderr`` along the dimension ``share``, of all runs together."""

    def found(x: Array) -> Array:
        return np.quantile(x, shares)

    return _jackknife(paths, found, {"quantiles": slice(None)}, share=[*shares])


def moments(paths: xr.DataArray) -> xr.Dataset:
    """``mean``, ``variance``, ``skewness`` and ``excess_kurtosis``, each with ``_stderr``.

    A Gaussian has zero of the last two.  They are nan where all units are equal.
    """
    names = ("mean", "variance", "skewness", "excess_kurtosis")

    def found(x: Array) -> Array:
        mean = x.mean()
        d = x - mean
        m2, m3, m4 = ((d**k).mean() for k in (2, 3, 4))
        if not m2 > 0:
            return np.array([mean, m2, np.nan, np.nan])
        return np.array([mean, m2, m3 / m2**1.5, m4 / m2**2 - 3])

    return _jackknife(paths, found, {n: k for k, n in enumerate(names)})


def non_gaussianity(paths: xr.DataArray) -> xr.Dataset:
    """``skewness``, ``excess_kurtosis`` and ``gaussian_distance``, each with ``_stderr``.

    The distance is that of the density of a unit to the Gaussian of the same mean and variance, squared:
    int (p - q)^2 / int q^2, both smoothed by a normal number of SMOOTHING standard deviations, which makes it
    finite for atoms and little noisy.  Products of different runs are taken, so that it has no bias from the
    finite number of units: for Gaussian units it scatters about zero, and may be negative.  There its
    standard error is too large rather than too small (the first order of the jackknife vanishes).

    Raises ValueError for fewer than three runs.
    """
    if paths.sizes["run"] < 3:
        raise ValueError(f"{paths.sizes['run']} runs: distances need three at least")
    k = np.arange(0.0, 9.0, 0.4)  # waves tell apart standardised values up to a distance of 2 pi/0.4
    weights = np.where(k > 0, 2.0, 1.0) * np.exp(-((SMOOTHING * k) ** 2))
    gauss = np.exp(-(k**2) / 2)
    norm = (weights * gauss**2).sum()

    def found(x: Array) -> Array:
        spread = x.std()
        if not spread > 0:
            return np.array([np.nan])
        phase = np.exp(1j * k[:, None, None] * ((x - x.mean()) / spread)).mean(axis=2)
        n = phase.shape[1]
        total = phase.sum(axis=1)
        pairs = (np.abs(total) ** 2 - (np.abs(phase) ** 2).sum(axis=1)) / (n * (n - 1))
        return np.array([(weights * (pairs - 2 * gauss * total.real / n + gauss**2)).sum() / norm])

    distance = _jackknife(paths, found, {"gaussian_distance": 0})
    return moments(paths)[["skewness", "skewness_stderr", "excess_kurtosis", "excess_kurtosis_stderr"]].merge(
        distance
    )


def deviations(first: xr.Dataset, second: xr.Dataset, name: str = "density") -> xr.DataArray:
    """The differences of ``name`` in joint standard errors; nan where neither has an error.

    Standard errors of few runs are themselves uncertain: Student's t with (runs - 1) degrees of freedom.
    """
    gap = first[name] - second[name]
    joint: xr.DataArray = (first[f"{name}_stderr"] ** 2 + second[f"{name}_stderr"] ** 2) ** 0.5
    return gap / joint.where(joint > 0)


# -- runs and their spread -----------------------------------------------------------------------------------


def _applied(
    function: Callable[..., Array], paths: xr.DataArray, *others: xr.DataArray, out: Sequence[str] = ()
) -> xr.DataArray:
    """``function`` of the values (run, unit) and of other numbers, with the axes ``out``."""
    if not {"run", "unit"} <= set(paths.dims):
        raise ValueError(f"paths need the dimensions run and unit, and have {paths.dims}")
    if paths.sizes["run"] < 2:
        raise ValueError("one run has no standard error: give two at least")
    found: xr.DataArray = xr.apply_ufunc(
        function,
        paths,
        *others,
        input_core_dims=[["run", "unit"], *([] for _ in others)],
        output_core_dims=[out],
        vectorize=True,
        output_dtypes=[float],
    )
    return found


def _over_runs(name: str, x: xr.DataArray) -> xr.Dataset:
    """The mean over runs and its standard error."""
    error = x.std("run", ddof=1) / np.sqrt(x.sizes["run"])
    return xr.Dataset({name: x.mean("run"), f"{name}_stderr": error})


def _jackknife(
    paths: xr.DataArray, function: Callable[[Array], Array], names: dict[str, Any], **coords: Any
) -> xr.Dataset:
    """``function`` of all runs, without its bias of order 1/runs, and its standard error."""
    both = _applied(lambda x: np.stack(jackknife(function, x)[:2]), paths, out=("error", "found"))
    result = xr.Dataset()
    for name, k in names.items():
        for suffix, i in (("", 0), ("_stderr", 1)):
            result[name + suffix] = both.isel(error=i, found=k)
    for name, values in coords.items():
        result = result.rename(found=name).assign_coords({name: values})
    return result


def _silverman(x: Array) -> Array:
    low, high = np.quantile(x, [0.25, 0.75])
    spread = min(float(x.std()), (high - low) / 1.34) or float(x.std())
    return np.asarray(0.9 * spread * x.size**-0.2)


# -- alignment of kernels ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alignment:
    """Cosines, their standard errors, and their standard deviation from run to run."""

    value: Array
    stderr: Array
    spread: Array


def cosine(first: Array, second: Array, axes: int = 2) -> Array:
    """``Tr A B^T / (|A| |B|)`` over the last ``axes`` axes; nan for a kernel of zeros.

    >>> float(cosine(np.eye(2), np.ones((2, 2))).round(4))
    0.7071
    """
    over = tuple(range(-axes, 0))
    dot, one, two = ((a * b).sum(over) for a, b in ((first, second), (first, first), (second, second)))
    with np.errstate(invalid="ignore"):
        found: Array = dot / np.sqrt(one * two)
    return found


def alignment(first: Array, second: Array, axes: int = 2) -> Alignment:
    """Alignment of the means over the runs of each side.

    The bias that the scatter of a mean has on the cosine, of order 1/runs, is taken out.  A side of one run
    is taken to be exact; a side with as many runs as the other is still independent of it (see
    :func:`change` for one that is not).
    """
    return Alignment(*jackknife(lambda x, y: cosine(x.mean(0), y.mean(0), axes), first, second))


def change(first: Array, second: Array, axes: int = 2) -> Alignment:
    """Alignment of two kernels of the same runs, such as the initial and the final one: means over runs."""
    both = np.stack([first, second], axis=1)
    return Alignment(*jackknife(lambda x: cosine(x[:, 0].mean(0), x[:, 1].mean(0), axes), both))


def each(theory: Array, networks: Array, axes: int = 2) -> Alignment:
    """Alignment of each of the ``networks`` with the mean of ``theory``: the mean over the networks.

    A network's kernel scatters by 1/sqrt(N) about its mean, so that this is below one by order 1/N.
    """
    value, stderr, _ = jackknife(lambda x: cosine(x.mean(0), networks, axes).mean(0), theory)
    found = cosine(theory.mean(0), networks, axes)
    spread = found.std(0, ddof=1) if len(found) > 1 else np.full(found.shape[1:], np.nan)
    return Alignment(value, np.hypot(stderr, spread / np.sqrt(len(networks))), spread)
