"""A field whose values of an index are defined by several lines, each for a part of its range."""

from __future__ import annotations

from functools import cache

from sympy import Function, S, Sum, Symbol, sin, tanh

from derive import check_routes
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
    eta,
    gamma0,
    mu,
    t,
)
from tests.derive.once import mean_field


@cache
def program() -> Program:
    """Return a network whose readout adds two units of one kind and two of another kind."""
    p = Symbol("p", integer=True, positive=True)
    units, pixels = Population("units"), Population("pixels", given=True)
    x, U, w = GivenVector("x", pixels, "K_x"), GaussianMatrix("U", units, pixels), GaussianVector("w", units)
    a, z, f, y = Field("a", units), Field("z", units), Function("f"), Function("y")
    samples, four = IndexRange(mu, S.One, P), (p, 1, 4)
    lines = (
        Definition(a(mu, t), U @ x(mu), (samples,)),
        Definition(z(p, mu, t), tanh(a(mu, t)), (IndexRange(p, S.One, S(2)), samples)),
        Definition(z(p, mu, t), sin(a(mu, t)), (IndexRange(p, S(3), S(4)), samples)),
        Definition(f(mu, t), Mean(w.symbol * Sum(z(p, mu, t), four)) / gamma0, (samples,)),
    )
    net = Network("parts", (a, z), lines, weights=(U, w), given=(x,))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def test_each_line_holds_for_its_part() -> None:
    """The index was left out of both lines, so that z was tanh(a) and sin(a) at once."""
    printed = " ".join(mean_field(program()).render().split())
    assert "z_pμ(t) = tanh(a_μ(t)) (p = 1..2)" in printed
    assert "z_pμ(t) = sin(a_μ(t)) (p = 3..4)" in printed


def test_both_routes_agree_on_parts() -> None:
    assert check_routes(program()) == []
