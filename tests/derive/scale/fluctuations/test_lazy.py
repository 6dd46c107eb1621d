"""Lazy fluctuations against the solved theory at a small gamma0, and against networks with linear outputs."""

from __future__ import annotations

import numpy as np
import pytest
from sympy import Symbol, exp, simplify, symbols

from derive.calculus.symbols import P, alpha, eta, gamma0, mu, t
from derive.errors import NotApplicable
from derive.program import Program
from derive.program.centring import centred
from derive.scale.fluctuations import initial_mean, lazy_fluctuations
from derive.scale.fluctuations.lazy import lamda_k
from derive.theory.fluctuations import fluctuations
from numerics.errors import Unserved
from numerics.fluctuations.dense import DenseFluctuations
from numerics.fluctuations.lazy import lazy_covariance
from numerics.fluctuations.lowered import LoweredFluctuations, TheorySizes
from numerics.lowering.expressions import KnownArrays
from tests.derive.once import kept, mlp
from tests.numerics.fluctuations.one_layer import OneLayer, leading_order

lazy = kept(lazy_fluctuations)
ETA, STEPS = 0.08, 4
DATA = {"K_x": np.array([[1.2, 0.4], [0.4, 0.7]]), "y": np.array([0.9, -0.6])}
SIZES = {"gamma0": 0.02, "eta": ETA}


def solved(program: Program, gamma: float) -> np.ndarray:
    """Return N Cov of errors at all steps from the dense solution, (T, P, T, P)."""
    depth = int(program.depth)
    values = {"eta": ETA, "gamma0": gamma, "P": 2, "L": depth}
    sizes = TheorySizes(values, STEPS + 1)
    found = DenseFluctuations(LoweredFluctuations(fluctuations(program), sizes, KnownArrays(values, DATA)))
    at = [found.number("Delta", sample, step) for step in range(STEPS + 1) for sample in (1, 2)]
    return found.covariance[np.ix_(at, at)].reshape(STEPS + 1, 2, STEPS + 1, 2)


def check_limit(program: Program, power: int) -> None:
    """Check the limit of the solved covariance.

    Two values of gamma0 show a remainder of order gamma0^2.
    """
    gammas = (0.04, 0.02)
    expected = lazy_covariance(lazy(program), DATA, {eta: ETA, gamma0: 1.0, P: 2}, range(STEPS + 1))
    first, second = (solved(program, x) * x**power for x in gammas)
    limit = second + (second - first) / (gammas[0] ** 2 / gammas[1] ** 2 - 1)
    # the remainder is of order gamma0^4 and the rounding of 1/gamma0^2
    np.testing.assert_allclose(limit, expected, atol=1e-5 * np.abs(expected).max())
    assert np.abs(first - expected).max() > 10 * np.abs(limit - expected).max()


def test_centred_outputs_of_one_layer() -> None:
    check_limit(centred(mlp(1)), 0)


@pytest.mark.slow
@pytest.mark.parametrize(("program", "power"), [(centred(mlp(2, loss="mean")), 0), (mlp(2), 2)])
def test_two_layers(program: Program, power: int) -> None:
    """Centred: the kernel alone.  Else gamma0^2 times the covariance is that of the initial outputs."""
    if power:
        found = lazy(program)
        data = {**DATA, "y": np.zeros(2)}
        expected = lazy_covariance(found, data, {eta: ETA, gamma0: 1.0, P: 2}, range(STEPS + 1))
        first, second = (solved(program, x) * x**2 for x in (0.04, 0.02))
        np.testing.assert_allclose(second + (second - first) / 3, expected, atol=1e-5 * expected.max())
    else:
        check_limit(program, power)


def test_flow_of_one_layer_against_integrated_derivatives() -> None:
    """Centred, at gamma0 = 0.01: the difference is of order gamma0^2."""
    reference = leading_order(OneLayer(DATA["K_x"], DATA["y"], 0.4, 2, 0.01, centred=True, flow=True))
    expected = reference.scaled_covariance(reference.jets["f"], reference.jets["f"])
    found = lazy_covariance(lazy(centred(mlp(1, rule="flow"))), DATA, {gamma0: 0.01}, [0.0, 0.4, 0.8])
    np.testing.assert_allclose(found, expected, atol=1e-3 * np.abs(expected).max())


def test_formulas() -> None:
    """finite-width.md, section 7."""
    steps, flow = lazy(mlp()), lazy(mlp(rule="flow"))
    y, V_f, V_K = Symbol("y", real=True), *symbols("V_f V_K", positive=True)
    left = 1 - eta * lamda_k
    expected = left ** (2 * t) * V_f + (eta * t * y) ** 2 * left ** (2 * t - 2) * V_K
    assert simplify(steps.one_sample() - expected) == 0
    assert simplify(flow.one_sample() - exp(-2 * lamda_k * t) * (V_f + (t * y) ** 2 * V_K)) == 0
    assert lazy(centred(mlp(rule="flow"))).initial == 0
    assert str(initial_mean(mlp(), ("K", mu, alpha)).value) == "(L + 1)*K_x(mu, alpha)"
    assert "gamma0^0" in steps.conditions()[2]


def test_refusals() -> None:
    with pytest.raises(NotApplicable, match="as for the square loss"):
        lazy(mlp(objective="logistic"))
    with pytest.raises(NotApplicable, match="without decay"):
        lazy(mlp(weight_decay=Symbol("lam", positive=True)))
    with pytest.raises(Unserved, match="eta"):
        lazy_covariance(lazy(mlp(1)), DATA, {gamma0: 1.0}, [1])
    asymmetric = DATA | {"K_x": np.array([[1.0, 3.0], [0.0, 1.0]])}
    with pytest.raises(ValueError, match=r"arrays\.K_x: is not symmetric"):
        lazy_covariance(lazy(mlp(1)), asymmetric, {gamma0: 1.0, eta: ETA, P: 2}, [1])
    for times in ([float("nan")], [-1], [0.5]):  # they gave nan or numbers
        with pytest.raises(ValueError, match="times"):
            lazy_covariance(lazy(mlp(1)), DATA, {gamma0: 1.0, eta: ETA, P: 2}, times)
