"""Names of fields that hold underscores, beside the names of the parts of each order, ``a__2``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Function

import numerics
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Population,
    eta,
    gamma0,
    mu,
    t,
)


def expanded(field: str, source: str) -> xr.Dataset:
    """Return the expansion of a linear network with one shared matrix."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, a, b = GivenVector("x", pixels, "K"), Field(field, units), Field("b", units)
    A, B = GaussianMatrix("A", units, pixels), GaussianMatrix("B", units, units)
    c, w = GaussianVector("c", units, source=source), GaussianVector("w", units, source="own_w")
    f, y = Function("f"), Function("y")
    forward = {a(mu, t): A @ x(mu) + c.symbol, b(mu, t): B @ a(mu, t)}
    forward[f(mu, t)] = Mean(w.symbol * b(mu, t)) / gamma0
    network = Network("own", (a, b), forward, (A, B, c, w), given=(x,))
    given: dict[str, Any] = {"numbers": {"eta": 0.2, "gamma0": 1.0}, "times": range(3)}
    given["arrays"] = {"K": np.array([[1.0, 0.3], [0.3, 0.8]]), "y": [1.0, -0.5]}
    return numerics.expand(network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta)), 2, **given)


@pytest.mark.parametrize(
    ("field", "source"),
    [
        ("a_", "s_"),
        ("a__2", "s__1"),
        *(pytest.param(*x, marks=pytest.mark.slow) for x in (("a__", "s"), ("a__b", "s__c"), ("_", "__"))),
    ],
)
def test_underscores_in_names_are_no_orders(field: str, source: str) -> None:
    usual, other = expanded("a", "s"), expanded(field, source)
    for name in ("error", "train_loss"):  # numbers of order one, to rounding
        np.testing.assert_allclose(other[name], usual[name], rtol=0, atol=1e-12)
