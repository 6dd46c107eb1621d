"""Results hold the kernels of layers by role, whatever the fields of a network are called."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Function, Integer, tanh

import numerics
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
    ell,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.experiment.schema import Solver
from tests.chance import excess, in_errors
from tests.derive.once import mlp

GIVEN: dict[str, Any] = {
    "numbers": {"eta": 0.3, "gamma0": 1.2},
    "arrays": {"K_x": np.array([[1.0, 0.3], [0.3, 0.8]]), "y": np.array([1.0, -0.6])},
    "times": range(3),
}


def layers(name: str, depth: int, phi: Callable[[Any], Any]) -> Program:
    """Return a chain of layers whose field has this name, without a family if there is one layer."""
    layer, pixels = Population("layer"), Population("pixels", given=True)
    a, x = Field(name, layer, layered=True), GivenVector("x", pixels, "K_x")
    inside = IndexRange(ell, Integer(1), Integer(depth - 1))
    U, w = GaussianMatrix("U", layer.at(1), pixels), GaussianVector("w", layer.at(depth))
    W = GaussianMatrix("W", layer.at(ell + 1), layer.at(ell), index=inside)
    f, y = Function("f"), Function("y")
    forward = {a(1, mu, t): U @ x(mu), f(mu, t): Mean(w.symbol * phi(a(depth, mu, t))) / gamma0}
    if depth > 1:
        forward[a(ell + 1, mu, t)] = W(ell) @ phi(a(ell, mu, t))
    weights, ranges = ((U, w), ()) if depth == 1 else ((U, W, w), (inside,))
    net = Network("layers", (a,), forward, weights=weights, given=(x,), ranges=ranges)
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def found(program: Program, what: str) -> xr.Dataset:
    if what == "simulate":
        return numerics.simulate(program, width=6, seeds=2, rng=0, **GIVEN)
    return numerics.solve(program, solver=Solver(samples=64), **GIVEN)


def straight(h: Any) -> Any:
    """Return the argument, as a linear activation."""
    return h


@pytest.mark.parametrize(
    ("phi", "what"),
    [
        (tanh, "simulate"),
        (straight, "simulate"),
        (straight, "solve"),
        pytest.param(tanh, "solve", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("depth", [1, 2])
def test_kernels_do_not_depend_on_the_name_of_the_field(phi: Any, depth: int, what: str) -> None:
    """A single layer had kernels, and a chain no responses, only if its field was called ``h``."""
    one, other = (found(layers(name, depth, phi), what) for name in ("h", "a"))
    assert {"Phi", "G", "tangent_kernel"} <= {*one.data_vars}
    assert {*one.data_vars} == {*other.data_vars}
    assert one.attrs["method"] == other.attrs["method"]
    for name in one.data_vars:
        np.testing.assert_allclose(other[name], one[name], rtol=1e-10, atol=1e-12)


def test_the_kernel_of_a_single_layer_is_that_of_what_it_hands_on() -> None:
    """Phi was the correlation of the field before its nonlinearity."""
    programs, seeds = (mlp(1, "tanh"), layers("h", 1, tanh)), 400
    built, own = (numerics.simulate(x, width=20, seeds=seeds, rng=k, **GIVEN) for k, x in enumerate(programs))
    gap = in_errors(own.Phi - built.Phi, np.hypot(own.Phi_stderr, built.Phi_stderr))
    assert excess(gap, seeds - 1) <= 1


def test_a_single_linear_layer_is_that_of_the_builder() -> None:
    """It was sampled, as a chain of layers without a family was no chain."""
    built, own = found(mlp(1), "solve"), found(layers("a", 1, straight), "solve")
    assert own.attrs["method"] == built.attrs["method"] == "linear causal march"
    for name in built.data_vars:
        np.testing.assert_allclose(own[name], built[name], rtol=1e-10, atol=1e-12)
