"""Sampled paths that a solution keeps: they are the ones its averages were taken over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Symbol

from derive.program import P, Program, ell, eta, gamma0, mu, t
from numerics.paths import Paths
from numerics.solver.paths import Solved, solve_particles
from tests.derive.once import mean_field, mlp
from tests.numerics.solver.helpers import TARGETS, kernel

DATA: dict[str, Any] = {"K_x": kernel(3), "y": TARGETS[:3]}
VALUES: dict[Any, Any] = {eta: 0.3, gamma0: 1.1, P: 3, Symbol("beta"): 0.7}


def solved(program: Program, paths: Paths | None, **options: Any) -> Solved:
    given: dict[str, Any] = {
        "steps": 4,
        "values": VALUES,
        "data": DATA,
        "samples": 64,
        "replicas": 3,
    } | options
    return solve_particles(mean_field(program), paths=paths, **given)


def averages(x: xr.DataArray, layer: int) -> np.ndarray:
    """Return <x(t) x(s)> of each replica, with the axes of the theory's kernels."""
    x = x.sel(layer=layer)
    return np.einsum("rtmn,rsan->rmats", x, x) / x.sizes["unit"]


@pytest.mark.parametrize("activation", ["tanh", "relu", "linear"])
@pytest.mark.parametrize("depth", [1, 2])
def test_averages_over_kept_paths_are_the_kernels(activation: str, depth: int) -> None:
    ours = solved(mlp(depth, activation), Paths(("h", "phi(h)", "g")))
    assert ours.paths is not None
    phi = "H" if activation == "linear" else "Phi"
    for layer in range(1, depth + 1):
        expected = ours.runs[phi, (layer,)]
        np.testing.assert_allclose(averages(ours.paths["phi(h)"], layer), expected, atol=1e-12)
        if activation != "linear":  # there the gradients are the same for all samples
            np.testing.assert_allclose(averages(ours.paths.g, layer), ours.runs["G", (layer,)], atol=1e-12)
    assert ours.paths.h.dims == ("run", "layer", "time", "sample", "unit")


def test_the_output_is_the_average_of_kept_paths() -> None:
    ours = solved(mlp(2, "tanh"), Paths(("z", "phi(h)"), layers=(2,)))
    assert ours.paths is not None
    f = (ours.paths.z * ours.paths["phi(h)"]).mean("unit").isel(layer=0) / VALUES[gamma0]
    np.testing.assert_allclose(f.transpose("run", "time", "sample"), ours.runs["f", ()], atol=1e-12)


def test_a_selection_is_part_of_the_whole() -> None:
    program = mlp(2, "tanh")
    whole = solved(program, Paths(("h", "z"))).paths
    part = solved(program, Paths(("h", "z"), layers=(2,), times=(3, 0), samples=(2, 0))).paths
    assert whole is not None
    assert part is not None
    xr.testing.assert_identical(part, whole.sel(layer=[2], time=[3, 0], sample=[2, 0]))
    assert part.h.shape == (3, 1, 2, 2, 64)
    assert part.h.nbytes == 8 * part.h.size


def test_what_is_kept_changes_nothing_else() -> None:
    assert np.array_equal(
        solved(mlp(2, "relu"), None).value("Delta"), solved(mlp(2, "relu"), Paths()).value("Delta")
    )


def test_expressions_and_other_indices(tmp_path: Path) -> None:
    program = mlp(2, "tanh", outputs=2, branch=Symbol("beta"))
    h = next(d.lhs.func for d in program.definitions if d.name == "h")
    paths = Paths({"h": h(ell, mu, t), "h^2": h(ell, mu, t) ** 2})
    data = DATA | {"y": np.stack([TARGETS[:3], TARGETS[1:4]], axis=1)}
    both = solved(program, paths, data=data).paths
    assert both is not None
    np.testing.assert_array_equal(both["h^2"], both.h**2)
    z = solved(program, Paths(("z", "h")), data=data).paths
    assert z is not None
    assert z.z.dims == ("run", "layer", "time", "sample", "c", "unit")
    z.to_netcdf(tmp_path / "paths.nc", engine="h5netcdf")
    with xr.open_dataset(tmp_path / "paths.nc", engine="h5netcdf") as loaded:
        xr.testing.assert_equal(loaded.load(), z)


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (Paths(("x",)), r"x is not a field; fields are: .*h"),
        (Paths(layers=(3,)), "layers contains 3, which does not exist; existing: 1 to 2"),
        (Paths(times=(4,)), "times contains 4, which does not exist; existing: 0 to 3"),
        (Paths(samples=(3,)), "samples contains 3, which does not exist; existing: 0 to 2"),
        (Paths({"c": Symbol("c")}), "has no units"),
    ],
)
def test_refusals(paths: Paths, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        solved(mlp(2, "tanh"), paths)
