"""Densities, quantiles and non-Gaussianity of samples whose law is known."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import laplace, norm

from numerics.analysis.ensembles import (
    SMOOTHING,
    atoms,
    cumulative,
    deviations,
    histogram,
    kernel_density,
    moments,
    non_gaussianity,
    quantiles,
)
from tests.chance import excess


def runs(values: np.ndarray) -> xr.DataArray:
    return xr.DataArray(values, dims=("run", "unit"))


def sampled(law: str, count: int = 16, units: int = 400, seed: int = 0) -> xr.DataArray:
    rng = np.random.default_rng(seed)
    return runs(getattr(rng, law)(size=(count, units)))


def near(value: xr.DataArray, error: xr.DataArray, exact: object, count: int = 16) -> None:
    """Require values within the bound of chance for ``count`` runs."""
    assert (error.to_numpy() > 0).all()
    assert excess((value - exact) / error, count - 1) < 1


def test_a_density_is_that_of_its_law() -> None:
    x = sampled("laplace", units=2000)
    edges = np.linspace(-3, 3, 13)
    found = histogram(x, edges)
    near(found.density, found.density_stderr, np.diff(laplace.cdf(edges)) / np.diff(edges))
    inside = float((found.density * found.width).sum())
    assert inside == pytest.approx(float(((x > -3) & (x <= 3)).mean()), abs=1e-12)
    assert np.isnan(found.atom_at)
    assert found.atom == 0


def test_a_kernel_density_is_that_of_a_unit_and_a_normal_number() -> None:
    at = np.linspace(-2, 2, 9)
    found = kernel_density(sampled("standard_normal"), at, bandwidth=0.7)
    near(found.density, found.density_stderr, norm.pdf(at, scale=np.hypot(1, 0.7)))
    free = kernel_density(sampled("standard_normal"), at)
    assert free.bandwidth == pytest.approx(0.9 * 6400**-0.2, rel=0.03)  # Silverman, standard deviation one
    with pytest.raises(ValueError, match="bandwidth must be positive"):
        kernel_density(runs(np.ones((2, 3))), at)


def test_the_atom_of_relu() -> None:
    x = np.maximum(sampled("standard_normal"), 0)
    found = histogram(x, np.linspace(0, 2, 6))
    assert found.atom_at == 0
    near(found.atom, found.atom_stderr, 0.5)
    near(found.density, found.density_stderr, exact(found))
    whole = float(found.atom + (found.density * found.width).sum())
    assert whole == pytest.approx(float((x <= 2).mean()), abs=1e-12)


def exact(found: xr.Dataset) -> np.ndarray:
    low, high = found.value - found.width / 2, found.value + found.width / 2
    return np.asarray((norm.cdf(high) - norm.cdf(low)) / found.width)


def test_pairs_of_equal_units_are_no_atom() -> None:
    x = sampled("standard_normal", count=2, units=30).to_numpy()
    assert np.isnan(atoms(runs(np.concatenate([x, x], axis=1))))


def test_shares_and_quantiles() -> None:
    x = sampled("laplace", units=2000)
    below = cumulative(x, [-1.0, 0.0, 2.0])
    near(below.below, below.below_stderr, laplace.cdf([-1.0, 0.0, 2.0]))
    found = quantiles(x, [0.1, 0.5, 0.9])
    near(found.quantiles, found.quantiles_stderr, laplace.ppf([0.1, 0.5, 0.9]))


def test_moments_of_a_skew_law() -> None:
    found = moments(sampled("standard_exponential", count=40, units=500))
    for name, value in (("mean", 1), ("variance", 1), ("skewness", 2), ("excess_kurtosis", 6)):
        near(found[name], found[f"{name}_stderr"], value, 40)


def smoothed_distance(density: np.ndarray, x: np.ndarray) -> float:
    """Return the distance of a density of variance one, by quadrature on the grid ``x``."""
    step = x[1] - x[0]
    noise = norm.pdf(x, scale=SMOOTHING) * step
    p, q = (np.convolve(y, noise, mode="same") for y in (density, norm.pdf(x)))
    return float(((p - q) ** 2).sum() / (q**2).sum())


def test_the_distance_is_that_of_smoothed_densities() -> None:
    x = np.arange(-12, 12.001, 0.01)
    found = non_gaussianity(sampled("laplace", units=1000))
    expected = smoothed_distance(laplace.pdf(x, scale=np.sqrt(0.5)), x)
    assert expected > 0.01
    near(found.gaussian_distance, found.gaussian_distance_stderr, expected)


@pytest.mark.slow
def test_gaussian_units_are_gaussian() -> None:
    """Over 30 samples: distances average to zero, and errors are those of the scatter, or larger."""
    found = [non_gaussianity(sampled("standard_normal", 8, 300, seed=1000 + k)) for k in range(30)]
    for name, smallest in (("skewness", 0.8), ("excess_kurtosis", 0.8), ("gaussian_distance", 0.4)):
        values = np.array([float(x[name]) for x in found])
        errors = np.array([float(x[f"{name}_stderr"]) for x in found])
        assert excess(values.mean() / values.std(ddof=1) * np.sqrt(len(values)), len(values) - 1) < 1, name
        assert smallest < values.std() / np.sqrt((errors**2).mean()) < 1.25, name
    assert min(float(x.gaussian_distance) for x in found) < 0


@settings(max_examples=8, deadline=None)
@given(st.floats(0.1, 10), st.floats(-5, 5), st.booleans(), st.integers(0, 10**6))
def test_shape_does_not_depend_on_units_of_measure(
    scale: float, shift: float, mirrored: bool, seed: int
) -> None:
    x = sampled("standard_exponential", 4, 30, seed)
    sign = -1 if mirrored else 1
    one, two = non_gaussianity(x), non_gaussianity(sign * scale * x + shift)
    assert float(two.skewness) == pytest.approx(sign * float(one.skewness), abs=1e-6)
    for name in ("excess_kurtosis", "gaussian_distance", "excess_kurtosis_stderr"):
        assert float(two[name]) == pytest.approx(float(one[name]), abs=1e-6)


@settings(max_examples=8, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.integers(20, 50))  # the jackknife moves those of few
def test_shares_grow_and_quantiles_undo_them(seed: int, count: int, units: int) -> None:
    x = sampled("laplace", count, units, seed)
    at = np.linspace(-4, 4, 17)
    share = cumulative(x, at).below.to_numpy()
    assert (np.diff(share) >= 0).all()
    density = histogram(x, at)
    np.testing.assert_allclose(np.diff(share), density.density * density.width, atol=1e-12)
    q = quantiles(x, [0.2, 0.8]).quantiles.to_numpy()
    assert q[0] < q[1]


def test_other_dimensions_are_carried_along(tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    x = xr.DataArray(
        rng.standard_normal((4, 2, 3, 50)),
        dims=("run", "layer", "time", "unit"),
        coords={"layer": [1, 2], "time": [0, 4, 9]},
    )
    found = xr.merge([histogram(x, [-1, 0, 1]), non_gaussianity(x), quantiles(x)])
    assert found.density.dims == ("layer", "time", "value")
    assert (
        found.gaussian_distance.sel(layer=2, time=4)
        == non_gaussianity(x.sel(layer=2, time=4)).gaussian_distance
    )
    found.to_netcdf(tmp_path / "found.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "found.nc", engine="h5netcdf") as loaded:
        xr.testing.assert_equal(loaded.load(), found)


def test_deviations() -> None:
    one = xr.Dataset({"density": ("value", [1.0, 2.0]), "density_stderr": ("value", [0.3, 0.0])})
    two = xr.Dataset({"density": ("value", [2.0, 2.0]), "density_stderr": ("value", [0.4, 0.0])})
    np.testing.assert_allclose(deviations(one, two), [-2.0, np.nan])
    at = [x.assign_coords(value=v) for x, v in ((one, [0.0, 1.0]), (two, [0.0, 2.0]))]
    with pytest.raises(
        ValueError, match="datasets of density have different coordinates"
    ):  # only the first was compared
        deviations(*at)
    with pytest.raises(ValueError, match="no variable below; its variables are density, density_stderr"):
        deviations(one, two, "below")


def test_refusals() -> None:
    x = sampled("laplace", 2, 10)
    with pytest.raises(ValueError, match="edges must increase"):
        histogram(x, [1, 0])
    with pytest.raises(ValueError, match="1 runs: a standard error needs at least two"):
        moments(x[:1])
    with pytest.raises(ValueError, match="need the dimensions run and unit"):
        moments(x.rename(run="network"))
    with pytest.raises(ValueError, match="2 runs"):
        non_gaussianity(x)
    with pytest.raises(ValueError, match="need the dimensions run and unit"):
        non_gaussianity(x.rename(run="network"))
    with pytest.raises(ValueError, match="list of one finite number or more"):
        cumulative(x, [0.0, np.nan])
    with pytest.raises(ValueError, match=r"shares = \[2.0\]"):
        quantiles(x, [2.0])
    with pytest.raises(ValueError, match="no entries"):
        moments(x[:, :0])


@pytest.mark.parametrize(
    "distribution",
    [moments, atoms, lambda x: histogram(x, [0, 1]), lambda x: cumulative(x, [0]), lambda x: quantiles(x)],
)
def test_paths_that_diverged_are_refused(distribution: Callable[[xr.DataArray], object]) -> None:
    """A share of units counted them as larger than every number."""
    for entry in (np.nan, np.inf):
        with pytest.raises(ValueError, match="paths have 1 entries that are nan or infinite"):
            distribution(runs(np.array([[0.1, 0.2], [0.3, entry]])))


def test_one_value_is_a_list_of_one() -> None:
    x = sampled("laplace", 2, 10)
    xr.testing.assert_equal(cumulative(x, 0.5), cumulative(x, [0.5]))
    xr.testing.assert_equal(kernel_density(x, 0.5), kernel_density(x, [0.5]))
    xr.testing.assert_equal(quantiles(x, 0.5), quantiles(x, [0.5]))
