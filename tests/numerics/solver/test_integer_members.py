"""Programs that read single members of a family of weights, such as ``a(1)``, by sampled paths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Function, S, Symbol, tanh

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
    ProgramError,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.experiment.schema import Solver
from tests.chance import excess, in_errors

GIVEN: dict[str, Any] = {
    "numbers": {"eta": 0.3, "gamma0": 1.0},
    "times": range(4),
    "arrays": {"K_x": [[1.0, 0.3], [0.3, 1.0]], "y": [1.0, -1.0]},
}
PATHS = Solver(method="paths", samples=64)
k = Symbol("k", integer=True, positive=True)
members = IndexRange(k, S.One, S(2))
units, inputs = Population("units"), Population("input", given=True)
x, h = GivenVector("x", inputs, "K_x"), Field("h", units)
z, y = Function("z"), Function("y")


def trained(forward: dict[Any, Any], *weights: Any) -> Program:
    """Return the network with an output ``z``, trained on squared errors."""
    net = Network("members by number", (h,), forward, weights=weights, given=(x,), ranges=(members,))
    return net.train((y(mu) - z(mu, t)) ** 2 / 2, GradientDescent(eta))


def two_readouts(first: Any, second: Any, *vectors: Any) -> Program:
    """Return a network whose two readouts read tanh(h) and its square."""
    W, hidden = GaussianMatrix("W", units, inputs), tanh(h(mu, t))
    output = Mean(first * hidden + second * hidden**2) / gamma0
    return trained({h(mu, t): W @ x(mu), z(mu, t): output}, W, *vectors)


def test_members_read_by_number_are_sampled() -> None:
    """The members 1 and 2 of a family of vectors give the same losses as two single vectors."""
    a = GaussianVector("a", units, indices=(members,))
    b, c = GaussianVector("b", units), GaussianVector("c", units)
    programs = two_readouts(a(1), a(2), a), two_readouts(b.symbol, c.symbol, b, c)
    one, other = (numerics.solve(p, **GIVEN, solver=PATHS, kernels="none") for p in programs)
    error = np.hypot(one.train_loss_stderr, other.train_loss_stderr)
    assert excess(in_errors(one.train_loss - other.train_loss, error), 7) < 1
    assert one.train_loss[-1] < 0.5 * one.train_loss[0]


def test_a_family_is_used_with_its_indices() -> None:
    W, a = GaussianMatrix("W", units, inputs, index=members), GaussianVector("a", units)
    with pytest.raises(ProgramError, match=r"W @ ... must be W\(k\) @ ..., because W is a family over k"):
        trained({h(k, mu, t): W @ x(mu), z(mu, t): Mean(a.symbol * h(1, mu, t)) / gamma0}, W, a)
