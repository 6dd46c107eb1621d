"""Given vectors beside constants and other given vectors, in what a matrix is applied to."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Expr, Function, S, Symbol, tanh

import numerics
from derive import ProgramError
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
from derive.theory import mean_field
from tests.chance import excess, in_errors

units, pixels = Population("units"), Population("pixels", given=True)
h, x, z = Field("h", units), GivenVector("x", pixels, "K_x"), GivenVector("z", pixels, "K_z")
W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units)
f, y, c = Function("f"), Function("y"), Function("c")
KERNEL = np.array([[1.0, 0.3], [0.3, 0.8]])


def trained(before: Expr, *given: GivenVector) -> Program:
    forward: dict[Any, Any] = {h(mu, t): before, f(mu, t): Mean(w.symbol * tanh(h(mu, t))) / gamma0}
    network = Network("own", (h,), forward, (W, w), given=given or (x,))
    return network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def solved(program: Program, **arrays: Any) -> xr.Dataset:
    given: dict[str, Any] = {"numbers": {"eta": 0.3, "gamma0": 1.0}, "times": range(3)}
    return numerics.solve(program, arrays={"y": [1.0, -0.5], **arrays}, **given)


def test_constants_come_before_the_matrix() -> None:
    weights = np.array([0.5, 2.0])
    inside = trained(W @ (c(mu) * x(mu) / 2))
    assert inside == trained(c(mu) * (W @ x(mu)) / 2)
    scaled = KERNEL * np.outer(weights, weights) / 4
    found, expected = solved(inside, K_x=KERNEL, c=weights), solved(trained(W @ x(mu)), K_x=scaled)
    np.testing.assert_allclose(found.f, expected.f, rtol=1e-9, atol=1e-12)


UNKNOWN: dict[str, tuple[Callable[[], Program], str]] = {
    "square": (
        lambda: trained(W @ (x(mu) ** 2)),
        r"x\(mu\)\*\*2, whose inner products the kernel K_x does not give",
    ),
    "function": (lambda: trained(W @ tanh(x(mu))), r"tanh\(x\(mu\)\), whose inner products the kernel K_x"),
    "product": (lambda: trained(W @ (x(mu) * z(mu)), x, z), r"x\(mu\)\*z\(mu\), whose inner products"),
    "two": (
        lambda: trained(W @ x(mu) + W @ z(mu), x, z),
        "applied to [xz].mu. and to [xz].mu., and no kernel gives",
    ),
}


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_no_kernel_says_is_refused(name: str) -> None:
    """The inner product of two given vectors was taken to be the kernel of the first."""
    make, told = UNKNOWN[name]
    with pytest.raises(ProgramError, match=told):
        mean_field(make())


def test_two_inputs_of_one_matrix_are_one_given_vector_with_an_index() -> None:
    k = Symbol("k", integer=True)
    forward: dict[Any, Any] = {h(mu, t): W @ x(mu, 1) + W @ x(mu, 2)}
    forward[f(mu, t)] = Mean(w.symbol * tanh(h(mu, t))) / gamma0
    network = Network("own", (h,), forward, (W, w), given=(x,), ranges=(IndexRange(k, S.One, S(2)),))
    program = network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))
    vectors = np.random.default_rng(0).standard_normal((2, 2, 4))
    both = np.einsum("mkd,nld->mknl", vectors, vectors) / 4
    summed = np.einsum("md,nd->mn", vectors.sum(1), vectors.sum(1)) / 4
    found, expected = solved(program, K_x=both), solved(trained(W @ x(mu)), K_x=summed)
    gap, error = (found.f - expected.f).values[1:], found.f_stderr.values[1:]
    assert excess(in_errors(gap, error), found.attrs["replicas"] - 1) < 1
