"""Distributions and alignments over runs: densities, moments and kernel cosines with standard errors.

Runs are independent replicas of a theory, or networks; all standard errors come from the variation between
runs.  Distributions take paths as :mod:`numerics.paths` returns them: an array with the dimensions ``run``
and ``unit``; further dimensions are kept.  Alignments take kernels stacked over runs along the first axis:
the last ``axes`` axes are those of the kernel, and axes between are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import ArrayLike, NDArray

from numerics.errors import require_whole
from numerics.stats import jackknife

Array = NDArray[np.float64]

ATOM = 0.02
"""Share of units with exactly the same value above which this value counts as an atom."""

SMOOTHING = 0.5
"""Standard deviation of the normal number added in :func:`non_gaussianity`, relative to that of a unit."""


def histogram(paths: xr.DataArray, edges: ArrayLike) -> xr.Dataset:
    """Return the density of units in bins between ``edges``, and the share of units in an atom.

    ``paths`` has the dimensions ``run`` and ``unit``. The density is ``density`` with ``density_stderr``
    along the dimension ``value``, the middle of each bin; ``width`` is the width of the bins. A value that
    many units share exactly, such as the zero of relu, is an atom: its share of units is ``atom`` with
    ``atom_stderr``, and its value ``atom_at``, which is nan without an atom. The density is relative to all
    units: it integrates to the share of the units between the edges that are not in the atom. Raises
    ValueError for edges that are not finite or do not increase, for paths that are not finite numbers, and
    for fewer than two runs.

    >>> h = np.array([[-2.0, -1.0, 1.0, 2.0], [-2.0, 1.0, 1.5, 2.0]])
    >>> relu = xr.DataArray(np.maximum(h, 0), dims=("run", "unit"))
    >>> found = histogram(relu, [0, 1.8, 3])
    >>> found.atom.item(), found.density.values.round(3).tolist()
    (0.375, [0.208, 0.208])
    """
    edges = np.asarray(edges, dtype=float)
    if edges.ndim != 1 or len(edges) < 2 or not np.all(np.diff(edges) > 0) or not np.isfinite(edges).all():
        raise ValueError("edges must increase: give two or more finite ends of bins in increasing order")
    at = atoms(paths)

    def shares(x: Array, atom: float) -> Array:
        """Return the density of units in each bin and, as last entry, the fraction of units at ``atom``.

        ``x`` has shape (run, unit); the result has shape (run, bins + 1). ``atom`` may be nan.
        """
        counted = [np.histogram(row[row != atom], edges)[0] for row in x]
        atom_share = (x == atom).mean(axis=1)
        return np.column_stack([np.array(counted) / x.shape[1] / np.diff(edges), atom_share])

    shares_over_runs = _over_runs("density", _applied(shares, paths, at, out=("run", "value")))
    atom_share = shares_over_runs.isel(value=-1).rename(density="atom", density_stderr="atom_stderr")
    result = shares_over_runs.isel(value=slice(0, -1)).merge(atom_share).assign(atom_at=at)
    return result.assign_coords(value=(edges[1:] + edges[:-1]) / 2, width=("value", np.diff(edges)))


def atoms(paths: xr.DataArray) -> xr.DataArray:
    """Return the atom of the paths: the value that most units share exactly, such as the zero of relu.

    Units of all runs are counted together, separately at each entry of further dimensions. The result is nan
    if the value belongs to at most two per cent of the units (ATOM). It is also nan if the value belongs to
    at most two units, because mirrored paths of a theory come in equal pairs.
    """

    def atom(x: Array) -> Array:
        """Return the value that most entries of an array share exactly.

        The result is nan if at most two entries, or at most the fraction ATOM of all entries, share it.
        """
        values, counts = np.unique(x, return_counts=True)
        best = int(np.argmax(counts))
        return np.asarray(values[best] if counts[best] > max(ATOM * x.size, 2) else np.nan)

    return _applied(atom, paths)


def kernel_density(paths: xr.DataArray, values: ArrayLike, bandwidth: float | None = None) -> xr.Dataset:
    """Return the density at ``values`` of a unit plus a normal number of standard deviation ``bandwidth``.

    The result has ``density`` and ``density_stderr`` along the dimension ``value``, and ``bandwidth``. A
    kernel density is an unbiased estimate of this density, which is wider than that of the unit itself:
    compare densities of equal bandwidth.  Without ``bandwidth``, Silverman's rule is applied to the units of
    all runs together, ``0.9 min(sd, IQR/1.34) n^(-1/5)``. An atom contributes its share of the normal
    density; use :func:`histogram` to keep it apart. Raises ValueError for values or paths that are not finite
    numbers, for a bandwidth that is not positive, as Silverman's rule gives it if all units are equal, and
    for fewer than two runs.

    >>> x = xr.DataArray([[0.0, 0.0], [0.0, 0.0]], dims=("run", "unit"))
    >>> round(float(kernel_density(x, [0.0], bandwidth=2.0).density[0] * np.sqrt(2 * np.pi)), 6)
    0.5
    """
    at = _list_of_numbers("values", values)
    width = _applied(_silverman, paths) if bandwidth is None else xr.DataArray(float(bandwidth))
    if not bool(((width > 0) & np.isfinite(width)).all()):
        raise ValueError(
            "the bandwidth must be positive and finite; the default bandwidth is zero if all units are equal"
        )

    def density(x: Array, width: float) -> Array:
        """Return the density of the units of each run, smoothed by a Gaussian, shape (run, value).

        It is taken at the values of the enclosing function. ``x`` has the shape (run, unit), and ``width`` is
        the standard deviation of the Gaussian.
        """
        result = np.stack([np.exp(-(((v - x) / width) ** 2) / 2).mean(axis=1) for v in at], axis=1)
        return np.asarray(result / (width * np.sqrt(2 * np.pi)))

    result = _over_runs("density", _applied(density, paths, width, out=("run", "value")))
    return result.assign(bandwidth=width).assign_coords(value=at)


def cumulative(paths: xr.DataArray, values: ArrayLike) -> xr.Dataset:
    """Return the fraction of units whose value is at most each of ``values``: the cumulative distribution.

    ``values`` is a list of numbers. The variables are ``below`` and its standard error ``below_stderr`` over
    runs, along the dimension ``value``. Raises ValueError for values or paths that are not finite numbers,
    and for fewer than two runs.
    """
    at = _list_of_numbers("values", values)

    def share(x: Array) -> Array:
        """Return, for each run and value, the fraction of units that do not exceed the value.

        ``x`` has the shape (run, unit) and the result (run, value); the enclosing function has the values.
        """
        return np.stack([(x <= v).mean(axis=1) for v in at], axis=1)

    return _over_runs("below", _applied(share, paths, out=("run", "value"))).assign_coords(value=at)


def quantiles(paths: xr.DataArray, shares: ArrayLike = (0.05, 0.25, 0.5, 0.75, 0.95)) -> xr.Dataset:
    """Return the quantiles at the probabilities ``shares`` of the units of all runs together.

    They are ``quantiles`` and ``quantiles_stderr`` along the dimension ``share``. The jackknife over runs
    gives the standard errors and removes the bias of order 1/runs. Raises ValueError for probabilities that
    are not between 0 and 1, for paths that are not finite numbers, and for fewer than two runs.
    """
    probabilities = _list_of_numbers("shares", shares).tolist()
    if not all(0 <= share <= 1 for share in probabilities):
        raise ValueError(f"shares = {probabilities}: must be probabilities between 0 and 1")

    def quantiles_of(x: Array) -> Array:
        """Return the quantiles of all numbers in an array, shape (share,).

        Their probabilities are those of the enclosing function.
        """
        return np.asarray(np.quantile(x, probabilities))

    return _jackknife(paths, quantiles_of, {"quantiles": slice(None)}, share=probabilities)


def moments(paths: xr.DataArray) -> xr.Dataset:
    """Return ``mean``, ``variance``, ``skewness`` and ``excess_kurtosis``, each with ``_stderr``.

    They are those of the units of all runs together. The jackknife over runs gives the standard errors and
    removes the bias of order 1/runs. Skewness and excess kurtosis are zero for a Gaussian, and nan where all
    units of all runs, or of all runs but one, are equal. Raises ValueError for paths that are not finite
    numbers, and for fewer than two runs.
    """
    names = ("mean", "variance", "skewness", "excess_kurtosis")

    def moments_of(x: Array) -> Array:
        """Return mean, variance, skewness and excess kurtosis of all numbers in an array, shape (4,)."""
        mean = x.mean()
        d = x - mean
        m2, m3, m4 = ((d**k).mean() for k in (2, 3, 4))
        if not m2 > 0:
            return np.array([mean, m2, np.nan, np.nan])
        return np.array([mean, m2, m3 / m2**1.5, m4 / m2**2 - 3])

    return _jackknife(paths, moments_of, {n: k for k, n in enumerate(names)})


def non_gaussianity(paths: xr.DataArray) -> xr.Dataset:
    """Return ``skewness``, ``excess_kurtosis`` and ``gaussian_distance``, each with ``_stderr``.

    The distance compares the density p of a unit with the Gaussian q of the same mean and variance:
    ``int (p - q)^2 / int q^2``, where both are convolved with a normal density, whose standard deviation is
    half that of the unit (SMOOTHING). The convolution keeps the distance finite for atoms and reduces its
    noise.  The square of p is estimated from products of different runs, so that the finite number of units
    adds no bias: for Gaussian units the distance scatters around zero, and may be negative.  There its
    standard error is too large rather than too small, because the first order of the jackknife vanishes.

    Raises ValueError for paths that are not finite numbers, and for fewer than three runs.
    """
    _require_paths(paths)
    if paths.sizes["run"] < 3:
        raise ValueError(
            f"{paths.sizes['run']} runs: the distance to a Gaussian needs at least three, because it is a "
            "mean of products of two runs, and its standard error leaves out one run at a time"
        )
    # Wave numbers k of the characteristic functions, in units of one over the standard deviation. With the
    # spacing 0.4, two values can be distinguished if they differ by less than 2 pi/0.4, or 15.7 standard
    # deviations. Beyond k = 9 the factor exp(-(SMOOTHING k)^2) of the smoothing is below 2e-9.
    k = np.arange(0.0, 9.0, 0.4)
    weights = np.where(k > 0, 2.0, 1.0) * np.exp(-((SMOOTHING * k) ** 2))
    gauss = np.exp(-(k**2) / 2)
    norm = (weights * gauss**2).sum()

    def distance_of(x: Array) -> Array:
        """Return the squared distance between the density of ``x`` and a Gaussian of its mean and variance.

        It is divided by the integral of the squared Gaussian, and both densities are smoothed. ``x`` has the
        shape (run, unit), the result (1,). The distance is nan if all values are equal.
        """
        spread = x.std()
        if not spread > 0:
            return np.array([np.nan])
        phase = np.exp(1j * k[:, None, None] * ((x - x.mean()) / spread)).mean(axis=2)
        n = phase.shape[1]
        total = phase.sum(axis=1)
        pairs = (np.abs(total) ** 2 - (np.abs(phase) ** 2).sum(axis=1)) / (n * (n - 1))
        return np.array([(weights * (pairs - 2 * gauss * total.real / n + gauss**2)).sum() / norm])

    distance = _jackknife(paths, distance_of, {"gaussian_distance": 0})
    return moments(paths)[["skewness", "skewness_stderr", "excess_kurtosis", "excess_kurtosis_stderr"]].merge(
        distance
    )


def deviations(first: xr.Dataset, second: xr.Dataset, name: str = "density") -> xr.DataArray:
    """Return the difference ``first - second`` of a variable ``name`` in units of its joint standard error.

    It is nan where both errors are zero. Standard errors of few runs are uncertain: if one of the datasets is
    exact, the ratio is distributed about as Student's t with (runs of the other dataset - 1) degrees of
    freedom. Raises ValueError for a variable
    that a dataset does not have, and for different coordinates, such as values or times.
    """
    for x in (first, second):
        if missing := {name, f"{name}_stderr"} - {*map(str, x.data_vars)}:
            known = ", ".join(map(str, x.data_vars))
            raise ValueError(
                f"name = {name!r}: one of the two datasets has no variable {sorted(missing)[0]}; its "
                f"variables are {known}"
            )
    try:
        first, second = xr.align(first, second, join="exact")
    except ValueError:
        raise ValueError(
            f"the datasets of {name} have different coordinates: compute both at the same coordinates"
        ) from None
    gap = first[name] - second[name]
    joint: xr.DataArray = (first[f"{name}_stderr"] ** 2 + second[f"{name}_stderr"] ** 2) ** 0.5
    return gap / joint.where(joint > 0)


# -- means over runs and their standard errors ---------------------------------------------------------------


def _require_paths(paths: xr.DataArray) -> None:
    """Raise ValueError for paths without units, with fewer than two runs, or with entries not finite."""
    if not {"run", "unit"} <= set(paths.dims):
        raise ValueError(f"paths need the dimensions run and unit, and have {paths.dims}")
    if paths.sizes["run"] < 2:
        raise ValueError(f"{paths.sizes['run']} runs: a standard error needs at least two")
    if not paths.size:
        raise ValueError(f"paths have no entries: each of the sizes {dict(paths.sizes)} must be at least 1")
    if wrong := int((~np.isfinite(paths)).sum()):
        raise ValueError(
            f"paths have {wrong} entries that are nan or infinite, as after a divergence: leave out "
            "their runs"
        )


def _list_of_numbers(name: str, values: ArrayLike) -> Array:
    """Return ``values`` as an array (n,) of finite numbers; a single number gives n = 1.

    Raises ValueError for other values; ``name`` is their name in the message.
    """
    numbers = np.atleast_1d(np.asarray(values, dtype=float))
    if numbers.ndim != 1 or not numbers.size or not np.isfinite(numbers).all():
        raise ValueError(f"{name} must be a list of one finite number or more")
    return numbers


def _applied(
    function: Callable[..., Array], paths: xr.DataArray, *further: xr.DataArray, out: Sequence[str] = ()
) -> xr.DataArray:
    """Apply a function to the values (run, unit) of paths, separately at each entry of other dimensions.

    The entries of the arrays ``further`` are further arguments. The function returns an array with the
    dimensions ``out``. Raises ValueError as :func:`_require_paths` does.
    """
    _require_paths(paths)
    result: xr.DataArray = xr.apply_ufunc(
        function,
        paths,
        *further,
        input_core_dims=[["run", "unit"], *([] for _ in further)],
        output_core_dims=[out],
        vectorize=True,
        output_dtypes=[float],
    )
    return result


def _over_runs(name: str, values: xr.DataArray) -> xr.Dataset:
    """Return a dataset with the mean of ``values`` over the dimension ``run`` and its standard error.

    The variables are ``name`` and ``name`` with the ending ``_stderr``.
    """
    error = values.std("run", ddof=1) / np.sqrt(values.sizes["run"])
    return xr.Dataset({name: values.mean("run"), f"{name}_stderr": error})


def _jackknife(
    paths: xr.DataArray, function: Callable[[Array], Array], names: dict[str, Any], **coords: Any
) -> xr.Dataset:
    """Return statistics of the units of all runs together, with standard errors by the jackknife over runs.

    ``function`` maps values (run, unit) to an array of statistics. One run is left out at a time, which also
    removes the bias of order 1/runs. ``names`` maps each variable of the result to its index in the array of
    statistics; ``coords`` gives the name and the coordinate of a dimension along statistics.
    """
    both = _applied(lambda x: np.stack(jackknife(function, x)[:2]), paths, out=("error", "found"))
    result = xr.Dataset()
    for name, k in names.items():
        for suffix, i in (("", 0), ("_stderr", 1)):
            result[name + suffix] = both.isel(error=i, found=k)
    for name, values in coords.items():
        result = result.rename(found=name).assign_coords({name: values})
    return result


def _silverman(x: Array) -> Array:
    """Return the bandwidth that Silverman's rule gives for a kernel density of the numbers in an array.

    It is ``0.9 min(sd, IQR/1.34) n^(-1/5)``, without IQR if the interquartile range is zero.
    """
    low, high = np.quantile(x, [0.25, 0.75])
    spread = min(float(x.std()), (high - low) / 1.34) or float(x.std())
    return np.asarray(0.9 * spread * x.size**-0.2)


# -- alignment of kernels ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Alignment:
    """Cosines between kernels: ``value``, standard error ``stderr``, and ``spread``.

    ``spread`` is the standard deviation from run to run; a run is a network or a replica of a sampled theory.
    The arrays have the axes of the kernels that are neither runs nor those over which the cosine is taken.
    """

    value: Array
    stderr: Array
    spread: Array


def cosine(first: Array, second: Array, axes: int = 2) -> Array:
    """Return the cosine ``Tr A B^T / (|A| |B|)`` of two kernels over their last ``axes`` axes.

    It is nan for a kernel of zeros. Axes before the last ones are broadcast. Raises ValueError if the last
    ``axes`` axes of the kernels differ in size, and for a kernel with fewer axes.

    >>> float(cosine(np.eye(2), np.ones((2, 2))).round(4))
    0.7071
    """
    require_whole("axes", axes, 1, "must be positive")
    first, second = np.asarray(first), np.asarray(second)
    if min(first.ndim, second.ndim) < axes or first.shape[-axes:] != second.shape[-axes:]:
        raise ValueError(
            f"kernels have shapes {first.shape} and {second.shape}: both must have at least {axes} axes, and "
            f"the last {axes} axes must have equal sizes, as for kernels of the same samples"
        )
    over = tuple(range(-axes, 0))
    dot, one, two = ((a * b).sum(over) for a, b in ((first, second), (first, first), (second, second)))
    with np.errstate(invalid="ignore"):
        cosines: Array = dot / np.sqrt(one * two)
    return cosines


def _runs(kernels: Array) -> Array:
    """Return kernels as an array with one run or more along the first axis; raise ValueError without runs."""
    array = np.asarray(kernels, dtype=float)
    if array.ndim == 0 or not len(array):
        raise ValueError(f"kernels have shape {array.shape}: give one run or more along the first axis")
    return array


def alignment(first: Array, second: Array, axes: int = 2) -> Alignment:
    """Return the cosine of the mean kernels of two independent sets of runs, ``first`` and ``second``.

    Runs are along the first axis, and the last ``axes`` axes are those of the kernel.

    The jackknife removes the bias of order 1/runs that the variance of the means causes. A set of one run is
    taken to be exact. Both sets are taken to be independent even if they have equally many runs; for two
    kernels of the same runs use :func:`change`. Raises ValueError for a set without runs, and as
    :func:`cosine` does.
    """
    first, second = _runs(first), _runs(second)
    return Alignment(*jackknife(lambda x, y: cosine(x.mean(0), y.mean(0), axes), first, second))


def change(first: Array, second: Array, axes: int = 2) -> Alignment:
    """Return the cosine of the means of two kernels of the same runs, such as initial and final kernel.

    Both arrays have the same shape, with the runs along the first axis; the last ``axes`` axes are those of
    the kernel. One run alone is taken to be exact.
    Raises ValueError for arrays of different shapes, without runs, and as :func:`cosine` does.
    """
    first, second = _runs(first), _runs(second)
    if first.shape != second.shape:
        raise ValueError(
            f"kernels of the same runs must have one shape, and have {first.shape} and {second.shape}: use "
            "alignment for independent runs"
        )
    both = np.stack([first, second], axis=1)
    return Alignment(*jackknife(lambda x: cosine(x[:, 0].mean(0), x[:, 1].mean(0), axes), both))


def each(theory: Array, networks: Array, axes: int = 2) -> Alignment:
    """Return the cosine of each network's kernel with the mean kernel of ``theory``, averaged over networks.

    Both arrays have their runs along the first axis, and the last ``axes`` axes are those of the kernel.
    ``spread`` is the standard deviation from network to network; it and the standard error are nan for one
    network. A kernel of a network of width N deviates from its mean by order 1/sqrt(N), so that the cosine is
    below one by order 1/N. Raises ValueError for an array without runs, and as :func:`cosine` does.
    """
    theory, networks = _runs(theory), _runs(networks)
    value, stderr, _ = jackknife(lambda x: cosine(x.mean(0), networks, axes).mean(0), theory)
    cosines = cosine(theory.mean(0), networks, axes)
    spread = cosines.std(0, ddof=1) if len(cosines) > 1 else np.full(cosines.shape[1:], np.nan)
    return Alignment(value, np.hypot(stderr, spread / np.sqrt(len(networks))), spread)
