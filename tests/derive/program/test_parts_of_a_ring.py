"""Losses over part of an index along which fields are shifted: a shifted index is periodic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Expr, Function, KroneckerDelta, S, Sum, Symbol, tanh

from derive.program import (
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    P,
    Population,
    Program,
    ProgramError,
    eta,
    gamma0,
    mu,
    t,
)
from derive.program.gradient_check import check_gradients
from numerics.simulation import simulate_program

units, pixels = Population("units"), Population("pixels", given=True)
h, v, o = (Field(name, units) for name in "hvo")
p, k = (Symbol(name, integer=True) for name in "pk")
OFFSETS, POSITIONS = IndexRange(k, S.Zero, S.One), IndexRange(p, S.One, S(2))
x, c, f, y = GivenVector("x", pixels, "K_x"), Function("c"), Function("f"), Function("y")
U, V = GaussianMatrix("U", units, pixels), GaussianMatrix("V", units, units)
F = GaussianMatrix("F", units, units, others=(OFFSETS,))
H = GaussianMatrix("H", units, units, others=(POSITIONS,))
w = GaussianVector("w", units)

FIRST: dict[Expr, Expr] = {h(mu, p, t): U @ x(mu, p)}
ANSWER: dict[Expr, Expr] = {f(mu, p, t): Mean(w.symbol * tanh(o(mu, p, t))) / gamma0}
NEIGHBOURS = Sum(c(k) * tanh(h(mu, p + k, t)), (k, 0, 1))
MIXED: dict[str, tuple[dict[Expr, Expr], tuple[GaussianMatrix, ...]]] = {
    "numbers": ({**FIRST, v(mu, p, t): NEIGHBOURS, o(mu, p, t): V @ tanh(v(mu, p, t))}, (U, V)),
    "filters": ({**FIRST, o(mu, p, t): Sum(F(k) @ tanh(h(mu, p + k, t)), (k, 0, 1))}, (U, F)),
    "two layers of filters": (
        {
            **FIRST,
            v(mu, p, t): NEIGHBOURS,
            o(mu, p, t): Sum(F(k) @ tanh(v(mu, p - k, t)), (k, 0, 1)),
        },
        (U, F),
    ),
    "heads": ({h(mu, t): U @ x(mu), o(mu, p, t): H(p) @ tanh(h(mu, t))}, (U, H)),
}
SQUARE = (y(mu, p) - f(mu, p, t)) ** 2 / 2


def trained(name: str, loss: Expr) -> Program:
    """Return a network that mixes positions, trained with a loss over some of them."""
    forward, matrices = MIXED[name]
    fields = tuple(z for z in (h, v, o) if any(lhs.func == Function(z.name) for lhs in forward))
    ranges = (POSITIONS, OFFSETS)
    net = Network(name, fields, {**forward, **ANSWER}, (*matrices, w), given=(x,), ranges=ranges)
    return net.train(loss, GradientDescent(eta), together=True)


@pytest.mark.parametrize("ends", [(1, 1), (2, 2)], ids=str)
@pytest.mark.parametrize("name", MIXED)
def test_the_gradient_of_a_part_goes_round(name: str, ends: tuple[int, int]) -> None:
    """Numbers had a wrong gradient for the last position; filters and heads were refused."""
    assert check_gradients(trained(name, Sum(SQUARE, (p, *ends)))) == []


def test_a_part_is_a_sum_with_weights_of_one_and_zero() -> None:
    """The documented way to leave the last position out trains the same networks as weights do."""
    losses = Sum(SQUARE, (p, 1, 1)), Sum((1 - KroneckerDelta(p, 2)) * SQUARE, (p, 1, 2))
    given: dict[str, Any] = {
        "values": {"eta": 0.3, "gamma0": 1.0, "P": 1},
        "data": {"K_x": np.eye(2).reshape(1, 2, 1, 2), "y": [[1.0, -0.4]]},
    }
    part, weighted = (
        simulate_program(trained("filters", loss), width=4, steps=2, seeds=2, **given)["f"].mean
        for loss in losses
    )
    assert np.ptp(part[:, 0]) > 1e-3
    np.testing.assert_allclose(part, weighted, rtol=1e-12)


def test_filters_that_stop_at_the_border_say_which_values_differ() -> None:
    """The message was about a backward field, and asked for what the forward pass already does."""
    samples, wide = IndexRange(mu, S.One, P), IndexRange(p, S.One, S(3))
    lines = (
        Definition(h(mu, p, t), U @ x(mu, p), (samples, wide)),
        Definition(o(mu, p, t), Sum(F(k) @ tanh(h(mu, p + k, t)), (k, 0, 1)), (samples, POSITIONS)),
        Definition(f(mu, p, t), Mean(w.symbol * tanh(o(mu, p, t))) / gamma0, (samples, POSITIONS)),
    )
    net = Network("valid", (h, o), lines, (U, F, w), given=(x,))
    said = (
        r"^the definition of o\(mu, p, t\), for p = 1\.\.2, applies F\(k\) to tanh\(h\(mu, k \+ p, t\)\), "
        r"which is defined for the values 1\.\.3 of this index: define both for the same values; if"
    )
    with pytest.raises(ProgramError, match=said):
        net.train(SQUARE, GradientDescent(eta), together=True)
