"""Distributions of a theory's units: exact at the start and for linear networks, like networks' otherwise."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.special import erf

from derive.program import P, eta, gamma0
from numerics.analysis.ensembles import deviations, histogram, kernel_density, moments, non_gaussianity
from numerics.paths import Paths
from numerics.simulation import Networks, simulate_program
from numerics.solver.paths import solve_particles
from tests.chance import excess
from tests.derive.once import convolution, mean_field, mlp
from tests.numerics.solver.helpers import TARGETS, kernel

DATA: dict[str, Any] = {"K_x": kernel(2), "y": TARGETS[:2]}
VALUES: dict[Any, Any] = {eta: 0.3, gamma0: 2.0, P: 2}
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(80)
WEIGHTS = WEIGHTS / WEIGHTS.sum()
RUNS = 12


def theory(depth: int, activation: str, paths: Paths, **options: Any) -> xr.Dataset:
    given: dict[str, Any] = {"steps": 6, "values": VALUES, "data": DATA, "samples": 512, "replicas": RUNS}
    found = solve_particles(mean_field(mlp(depth, activation)), paths=paths, **given | options).paths
    assert found is not None
    return found


def networks(depth: int, activation: str, paths: Paths, **options: Any) -> Networks:
    given: dict[str, Any] = {"steps": 5, "values": VALUES, "data": DATA, "width": 300, "seeds": RUNS}
    return simulate_program(mlp(depth, activation), paths=paths, wanted={}, **given | options)


def known(z: xr.DataArray) -> np.ndarray:
    """Return the values that have an error."""
    return z.to_numpy()[z.notnull().to_numpy()]


def furthest(found: xr.Dataset, name: str, exact: Any) -> float:
    """Return the largest distance to ``exact``, relative to the bound of chance.

    Values that mirrored paths make exact must agree to rounding.
    """
    gap, error = (np.abs(x.to_numpy()) for x in (found[name] - exact, found[f"{name}_stderr"]))
    assert gap[error < 1e-12].max(initial=0.0) < 1e-12
    return excess(gap[error >= 1e-12] / error[error >= 1e-12], RUNS - 1)


# -- the start -----------------------------------------------------------------------------------------------


def recursion(depth: int) -> list[np.ndarray]:
    """Return covariances of h at initialisation for erf in closed form (Williams 1997)."""
    found = [DATA["K_x"]]
    for _ in range(depth - 1):
        k = found[-1]
        d = 1 + 2 * np.diag(k)
        found.append(2 / np.pi * np.arcsin(2 * k / np.sqrt(np.outer(d, d))))
    return found


def test_fields_start_gaussian_with_the_covariances_of_the_recursion() -> None:
    paths = theory(3, "erf", Paths(("h", "z"), times=(0,)), steps=1, matched=False)
    for name in ("h", "z"):
        found = non_gaussianity(paths[name].isel(sample=0))
        for measure in ("skewness", "excess_kurtosis", "gaussian_distance"):
            assert furthest(found, measure, 0.0) < 1, (name, measure)
    for layer, exact in enumerate(recursion(3), 1):
        x = paths.h.sel(layer=layer, time=0)
        for sign in (1, -1):  # the variances of the sum and of the difference of two samples
            both = moments(x.isel(sample=0) + sign * x.isel(sample=1))
            expected = exact[0, 0] + exact[1, 1] + 2 * sign * exact[0, 1]
            assert furthest(both, "variance", expected) < 1


def test_gradients_start_as_far_from_gaussian_as_quadrature_says() -> None:
    """Check g = phi'(h) z of independent Gaussians: its kurtosis is that of a mixture."""
    slope = 2 / np.sqrt(np.pi) * np.exp(-((np.sqrt(np.diag(DATA["K_x"]))[:, None] * NODES) ** 2))
    expected = 3 * (slope**4 @ WEIGHTS) / (slope**2 @ WEIGHTS) ** 2 - 3
    assert expected.min() > 0.5
    found = moments(theory(1, "erf", Paths(("g",), times=(0,)), steps=1, samples=2048).g)
    assert furthest(found, "excess_kurtosis", expected) < 1
    height = erf(np.sqrt(np.diag(DATA["K_x"]))[:, None] * NODES)
    flat = moments(theory(1, "erf", Paths(("phi(h)",), times=(0,)), steps=1)["phi(h)"])
    assert furthest(flat, "excess_kurtosis", (height**4 @ WEIGHTS) / (height**2 @ WEIGHTS) ** 2 - 3) < 1


def test_relu_starts_with_an_atom_of_one_half() -> None:
    found = histogram(theory(2, "relu", Paths(("phi(h)", "g")))["phi(h)"], np.linspace(0, 3, 9))
    assert (found.atom_at == 0).all()
    assert furthest(found.sel(time=0), "atom", 0.5) < 1
    later = found.sel(time=5, layer=1)
    assert excess((later.atom - 0.5) / later.atom_stderr, RUNS - 1) > 1  # units have moved across the kink
    measured = networks(2, "relu", Paths(("phi(h)",))).paths
    assert measured is not None
    theirs = histogram(measured["phi(h)"], np.linspace(0, 3, 9))
    assert furthest(theirs.sel(time=0), "atom", 0.5) < 1
    z = deviations(found.sel(time=5), theirs.sel(time=5), "atom")
    assert excess(z, RUNS - 1) < 1


# -- later ---------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("depth", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_units_of_linear_networks_stay_gaussian(depth: int) -> None:
    """Their equations are linear in Gaussian sources."""
    paths = theory(depth, "linear", Paths(("h", "g"), times=(2, 5), samples=(0,)), matched=False, samples=256)
    for name in ("h", "g"):
        found = non_gaussianity(paths[name])
        for measure in ("skewness", "excess_kurtosis", "gaussian_distance"):
            assert furthest(found, measure, 0.0) < 1, (name, measure)
    assert float(moments(paths.h.sel(time=5)).variance.max()) > 1.3 * DATA["K_x"][0, 0]


def test_units_of_relu_networks_do_not() -> None:
    found = non_gaussianity(theory(1, "relu", Paths(("h",), times=(5,)), samples=1024).h)
    for measure in ("skewness", "excess_kurtosis", "gaussian_distance"):
        z = np.abs(found[measure] / found[f"{measure}_stderr"])
        assert float(z.max()) > 5, measure


@pytest.mark.slow
def test_a_two_layer_density_is_that_of_networks() -> None:
    """Compare tanh at gamma0 = 2 with networks.

    The same numbers reject the Gaussian of the same variance.
    """
    options: dict[str, Any] = {"values": VALUES | {gamma0: 3.0, eta: 0.2}}
    paths = Paths(("h", "z"), times=(0, 8))
    ours = theory(1, "tanh", paths, steps=9, samples=1024, **options)
    measured = networks(1, "tanh", paths, steps=8, width=500, seeds=24, **options).paths
    assert measured is not None
    for name in ("h", "z"):
        edges = np.linspace(-5, 5, 21)
        one, two = histogram(ours[name], edges), histogram(measured[name], edges)
        z = deviations(one, two).sel(time=8)
        z = z.where(two.density.sel(time=8) > 0.003)  # bins of a hundred units or more
        assert int(z.count()) > 15
        assert excess(known(z), RUNS - 1) < 1, name
        assert float((z**2).mean() ** 0.5) < 1.4, name
        both = [non_gaussianity(x[name].sel(time=8)) for x in (ours, measured)]
        for measure in ("skewness", "excess_kurtosis", "gaussian_distance"):
            assert excess(known(deviations(*both, measure)), RUNS - 1) < 1
    smooth = [kernel_density(x.h.sel(time=8), np.linspace(-3, 3, 7), bandwidth=0.3) for x in (ours, measured)]
    assert excess(known(deviations(*smooth)), RUNS - 1) < 1
    far = non_gaussianity(measured.h.sel(time=8, layer=1))
    assert float((far.gaussian_distance / far.gaussian_distance_stderr).max()) > 5


@pytest.mark.slow
def test_units_of_a_convolution() -> None:
    """Positions are one more dimension, the same for the theory and for networks."""
    program = convolution(2, "tanh", positions=3, receptive=1)
    x = np.random.default_rng(0).standard_normal((2, 3, 4))
    given: dict[str, Any] = {
        "values": VALUES | {eta: 0.2, gamma0: 1.0},
        "data": {"K_x": np.einsum("mad,nbd->manb", x, x) / 4, "y": TARGETS[:2]},
        "paths": Paths(("h", "z"), times=(0, 3), samples=(1,)),
    }
    ours = solve_particles(mean_field(program), steps=4, samples=256, replicas=RUNS, **given).paths
    theirs = simulate_program(program, width=150, steps=3, seeds=RUNS, wanted={}, **given).paths
    assert ours is not None
    assert theirs is not None
    assert ours.h.dims == theirs.h.dims == ("run", "layer", "time", "sample", "p", "unit")
    assert ours.coords.equals(theirs.coords)
    for name in ("h", "z"):
        z = deviations(moments(ours[name]), moments(theirs[name]), "variance")
        assert excess(known(z), RUNS - 1) < 1


def test_selections_are_lists_of_integers_of_any_kind() -> None:
    given: dict[str, Any] = {"width": 4, "steps": 2, "seeds": 2, "values": VALUES, "data": DATA}
    kept = Paths(samples=np.arange(2), times=np.array([2, 0]), layers=range(1, 2))  # type: ignore[arg-type]
    found = simulate_program(mlp(1), paths=kept, **given).paths
    assert found is not None
    assert found.h.sizes == {"run": 2, "layer": 1, "time": 2, "sample": 2, "unit": 4}


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ({"times": ()}, r"times = \(\): must be a list of one value or more; existing: 0 to 2"),
        ({"times": 1}, r"times = 1: must be a list"),
        ({"samples": (0.0,)}, r"samples contains 0.0, which is not an integer; existing: 0 to 1"),
        ({"layers": (2,)}, r"layers contains 2, which does not exist; existing: 1 to 1"),
    ],
)
def test_selections_of_nothing_are_refused(paths: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"width": 4, "steps": 2, "seeds": 2, "values": VALUES, "data": DATA}
    with pytest.raises(ValueError, match=message):
        simulate_program(mlp(1), paths=Paths(**paths), **given)
    with pytest.raises(ValueError, match="paths: samples contains 0, which does not exist; there are none"):
        Paths(samples=(0,)).chosen("samples", [])


@pytest.mark.parametrize("option", [{"width": 10.5}, {"seeds": 2.0}, {"steps": 1.0}, {"seed": 0.5}])
def test_counts_of_networks_are_whole_numbers(option: dict[str, Any]) -> None:
    given: dict[str, Any] = {"width": 4, "steps": 2, "seeds": 2, "values": VALUES, "data": DATA}
    with pytest.raises(ValueError, match=f"{next(iter(option))} = .*: must be a whole number"):
        simulate_program(mlp(1), **given | option)
