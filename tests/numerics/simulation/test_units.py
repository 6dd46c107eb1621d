"""Units that a run keeps are those that its averages were taken over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Rational, Symbol

from derive.program import Program
from numerics.analysis.ensembles import moments
from numerics.paths import Paths
from numerics.simulation import Networks, simulate_program
from tests.chance import excess
from tests.derive.once import mlp

DATA: dict[str, Any] = {"K_x": np.array([[1.0, 0.3], [0.3, 0.8]]), "y": np.array([1.0, -1.0])}
VALUES: dict[Any, Any] = {"eta": 0.2, "gamma0": 1.3, "P": 2, "beta": 0.5}


def run(program: Program, paths: Paths | None, **options: Any) -> Networks:
    given: dict[str, Any] = {"width": 24, "steps": 3, "seeds": 4, "values": VALUES, "data": DATA}
    return simulate_program(program, paths=paths, **given | options)


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_averages_over_kept_units_are_the_kernels(activation: str) -> None:
    found = run(mlp(2, activation), Paths(("phi(h)", "g")), each=True)
    assert found.paths is not None
    assert found.each is not None
    for name, field in (("Phi", "phi(h)"), ("G", "g")):
        x = found.paths[field]
        kernels = np.einsum("rltmn,rlsan->rltsma", x, x) / x.sizes["unit"]
        np.testing.assert_allclose(kernels, found.each[name], atol=1e-13)
        np.testing.assert_allclose(kernels.mean(0), found[name].mean, atol=1e-13)


def test_a_selection_is_part_of_the_whole() -> None:
    whole = run(mlp(2, "tanh"), Paths(("h", "z"))).paths
    part = run(mlp(2, "tanh"), Paths(("h", "z"), layers=(2,), times=(3, 1), samples=(1,))).paths
    assert whole is not None
    assert part is not None
    xr.testing.assert_identical(part, whole.sel(layer=[2], time=[3, 1], sample=[1]))
    assert whole.h.dims == ("run", "layer", "time", "sample", "unit")
    assert run(mlp(2, "tanh"), None).paths is None


def test_layers_that_are_the_same_units() -> None:
    found = run(mlp(2, "tanh", branch=Symbol("beta")), Paths(layers=(2,))).paths
    assert found is not None
    assert dict(found.h.sizes) == {"run": 4, "time": 4, "layer": 1, "sample": 2, "unit": 24}


def test_flows_are_looked_at_at_their_times() -> None:
    found = run(mlp(1, "tanh", "flow"), Paths(times=(0, 2)), steps=2, dt=0.05, times=(0.0, 0.1, 0.4)).paths
    assert found is not None
    np.testing.assert_allclose(found.time, [0.0, 0.4])


def test_layers_of_unequal_widths() -> None:
    program = mlp(2, "tanh", relative_widths=[1, Rational(1, 2)])
    found = run(program, Paths(layers=(2,))).paths
    assert found is not None
    assert found.h.sizes["unit"] == 12
    with pytest.raises(ValueError, match="have different widths"):
        run(program, Paths())


@pytest.mark.slow
def test_the_first_layer_starts_exactly_gaussian() -> None:
    """At any width: its weights are.  Deeper layers are at infinite width only."""
    found = run(mlp(2, "relu"), Paths(times=(0,)), steps=0, width=3, seeds=800).paths
    assert found is not None
    measured = moments(found.h.isel(sample=0, time=0))
    z = measured.excess_kurtosis / measured.excess_kurtosis_stderr
    assert excess(z.sel(layer=1)) < 1
    assert excess(z.sel(layer=2)) > 1.5


def test_refusals() -> None:
    with pytest.raises(ValueError, match="x is not a field"):
        run(mlp(1, "tanh"), Paths(("x",)))
    with pytest.raises(ValueError, match="times contains 4, which does not exist"):
        run(mlp(1, "tanh"), Paths(times=(4,)))
    with pytest.raises(ValueError, match="has no units"):
        run(mlp(1, "tanh"), Paths({"c": Symbol("gamma0")}))
