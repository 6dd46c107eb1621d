"""Tests of messages about a missing part of a network, or a part at an absent time or index."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from sympy import Expr, Function, Symbol

import numerics
from derive.errors import ProgramError
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.errors import SpecError

units, pixels = Population("units"), Population("pixels", given=True)
x, h = GivenVector("x", pixels, "K_x"), Field("h", units)
U, v = GaussianMatrix("U", units, pixels), GaussianVector("v", units)
f, q, y, nu = Function("f"), Function("q"), Function("y"), Symbol("nu")
INPUTS = U @ x(mu)
OUTPUT = Mean(v.symbol * h(mu, t)) / gamma0
SQUARE = (y(mu) - f(mu, t)) ** 2 / 2


def trained(loss: Expr = SQUARE, inputs: Expr = INPUTS, output: Expr = OUTPUT, **options: Any) -> Program:
    forward = {h(mu, t): inputs, q(mu, t): OUTPUT, f(mu, t): output}
    given: dict[str, Any] = {"fields": (h,), "weights": (U, v), **options}
    return Network("own", forward=forward, given=(x,), **given).train(loss, GradientDescent(eta))


WRONG: dict[str, tuple[str, Callable[[], Any]]] = {
    "a loss at another time": (
        "the loss (-f(mu, t - 1) + y(mu))**2/2: f(mu, t - 1) is at another time",
        lambda: trained((y(mu) - f(mu, t - 1)) ** 2 / 2),
    ),
    "a loss at a step that is a number": (
        "the loss (-f(mu, 1) - f(mu, t) + y(mu))**2/2: f(mu, 1) is at another time than t; write t, or 0",
        lambda: trained((y(mu) - f(mu, t) - f(mu, 1)) ** 2 / 2),
    ),
    "an output at a step that is a number": (
        "f(mu, t): q(mu, 2) is at another time",
        lambda: trained(output=q(mu, t) + q(mu, 2)),
    ),
    "an output at another time": (
        "f(mu, t): q(mu, t - 1) is at another time",
        lambda: trained(output=q(mu, t) + q(mu, t - 1)),
    ),
    "an index that is not an integer": (
        "the loss (-f(mu, t) + y(nu))**2/2 contains the index nu, which is not an index of the forward pass",
        lambda: trained((y(nu) - f(mu, t)) ** 2 / 2),
    ),
    "an output at such an index": (
        "the loss (-f(nu, t) + y(nu))**2/2 contains the index nu, which is not an index of the forward pass",
        lambda: trained((y(nu) - f(nu, t)) ** 2 / 2),
    ),
    "a field that is not listed": (
        "h(mu, t) = U @ x(mu) is a vector: list h among the fields",
        lambda: trained(fields=()),
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_training_says_what_is_wrong(case: str) -> None:
    told, make = WRONG[case]
    with pytest.raises(ProgramError) as refusal:
        make()
    assert str(refusal.value).startswith(told)


@pytest.mark.parametrize(
    ("name", "make"),
    [
        ("numbers.v", lambda: trained(weights=(U,))),
        ("numbers.pe", lambda: trained(inputs=U @ x(mu) + Symbol("pe"))),
        ("arrays.pe", lambda: trained(inputs=U @ x(mu) + Function("pe")(mu))),
    ],
)
def test_a_vector_that_is_not_listed_may_be_one_of_weights(name: str, make: Callable[[], Program]) -> None:
    given: dict[str, Any] = {"numbers": {"eta": 0.1, "gamma0": 1.0}, "arrays": {"K_x": [[1.0]], "y": [1.0]}}
    with pytest.raises(SpecError) as refusal:
        numerics.solve(make(), **given, times=range(2))
    own = name.split(".")[1]
    assert str(refusal.value).startswith(f"{name}: is missing")
    assert f"if {own} is a vector of weights, list it in weights or frozen" in str(refusal.value)


@pytest.mark.parametrize(("name", "value"), [("T", -0.1), ("tau", 2.0)])
def test_numbers_of_symbols_are_what_the_constant_can_be(name: str, value: float) -> None:
    matrix = GaussianMatrix("J", units, units, symmetry=Symbol("tau"))
    forward = {h(mu, t): U @ x(mu) + matrix @ Field("e", units)(t), f(mu, t): OUTPUT}
    forward |= {Field("e", units)(t): GaussianVector("b", units).symbol}
    net = Network(
        "own",
        (h, Field("e", units)),
        forward,
        (U, v),
        frozen=(matrix, GaussianVector("b", units)),
        given=(x,),
    )
    program = net.train(SQUARE, GradientDescent(eta, decay=0.1, diffusion=Symbol("T")))
    numbers = {"eta": 0.1, "gamma0": 1.0, "T": 0.1, "tau": 0.5, name: value}
    with pytest.raises(SpecError, match=f"numbers.{name} = {value}: gives"):
        numerics.solve(program, numbers=numbers, arrays={"K_x": [[1.0]], "y": [1.0]}, times=range(2))
