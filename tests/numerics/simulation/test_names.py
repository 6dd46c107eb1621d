"""Tests that measurements of networks do not depend on the names of their fields."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from sympy import Function, S, Symbol, tanh

from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from derive.program.networks import recurrent
from numerics.simulation import simulate
from numerics.simulation.experiment import MeasuredKernels

DATA = {"K_x": np.array([[1.0, 0.3], [0.3, 0.8]]), "y": np.array([1.0, -0.6])}
NUMBERS = {"eta": 0.3, "gamma0": 1.0}


def program_of(name: str, *, ordered: bool) -> Program:
    """Return a network of two fields, or of one ordered family of three, of this name."""
    n = Symbol("n", integer=True)
    units, pixels = Population("units"), Population("pixels", given=True)
    a, b, x = Field(name, units, ordered=ordered), Field("b", units), GivenVector("x", pixels, "K_x")
    U, V, w = (
        GaussianMatrix("U", units, pixels),
        GaussianMatrix("V", units, units),
        GaussianVector("w", units),
    )
    f, y = Function("f"), Function("y")
    if ordered:
        lines, top = {a(1, mu, t): U @ x(mu), a(n + 1, mu, t): V @ tanh(a(n, mu, t))}, a(3, mu, t)
    else:
        lines, top = {a(mu, t): U @ x(mu), b(mu, t): V @ tanh(a(mu, t))}, b(mu, t)
    lines[f(mu, t)] = Mean(w.symbol * tanh(top)) / gamma0
    ranges = (IndexRange(n, S.One, S(2)),) if ordered else ()
    fields = (a,) if ordered else (a, b)
    network = Network("named", fields, lines, weights=(U, V, w), given=(x,), ranges=ranges)
    return network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def measured(program: Program, kernels: MeasuredKernels, times: int) -> xr.Dataset:
    """Return means over two small networks."""
    given = {"numbers": NUMBERS, "arrays": DATA, "times": range(times)}
    return simulate(program, width=6, seeds=2, rng=0, kernels=kernels, **given)


@pytest.mark.parametrize(
    ("kernels", "ordered"),
    [
        ("full", False),
        ("full", True),
        ("trace", True),
        *(
            pytest.param(*x, marks=pytest.mark.slow)
            for x in (("trace", False), ("none", False), ("none", True))
        ),
    ],
)
def test_a_field_without_layers_is_measured_alike_under_any_name(
    kernels: MeasuredKernels, ordered: bool
) -> None:
    """The kernels of a field ``h`` without layers are called Phi and G; their axes are not layers."""
    for times in (2, 3):
        found, other = (measured(program_of(x, ordered=ordered), kernels, times) for x in ("h", "k"))
        assert {*found.data_vars} == {*other.data_vars}
        for name in found.data_vars:
            xr.testing.assert_identical(found[name], other[name])


@pytest.mark.parametrize("kernels", ["full", "trace", "none"])
@pytest.mark.parametrize(
    "times", [pytest.param(2, marks=pytest.mark.slow), 3, pytest.param(4, marks=pytest.mark.slow)]
)
def test_places_of_a_recurrent_network_are_no_times(times: int, kernels: MeasuredKernels) -> None:
    found = measured(recurrent(3), kernels, times)
    assert found.sizes["time"] == times
    assert "layer" not in found.dims
    paired = {str(name).partition("_stderr")[0] for name, x in found.items() if "time_" in x.dims}
    assert paired <= {"tangent_kernel", "tangent_kernel_trace"}
