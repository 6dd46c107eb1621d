"""Weights in the place of numbers, and training rules of single weights."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from sympy import Function, Rational, tanh

from derive import ProgramError
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Momentum,
    Network,
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from derive.theory.routes import check_routes

hidden, pixels = Population("hidden"), Population("pixels", given=True)
a, x = Field("a", hidden), GivenVector("x", pixels, "K")
A, w = GaussianMatrix("A", hidden, pixels), GaussianVector("w", hidden)
out, label = Function("out"), Function("label")
DESCENT = GradientDescent(eta)
LOSS = (label(mu) - out(mu, t)) ** 2 / 2
FORWARD: dict[Any, Any] = {a(mu, t): A @ x(mu), out(mu, t): Mean(w.symbol * tanh(a(mu, t))) / gamma0}


def trained(loss: Any = LOSS, rule: Any = DESCENT, forward: Any = None, **more: Any) -> Program:
    network = Network("own", (a,), FORWARD if forward is None else forward, (A, w), given=(x,))
    return network.train(loss, rule, **more)


BARE: dict[str, tuple[Callable[[], Any], str]] = {
    "penalty": (lambda: trained(LOSS + Mean(A.symbol**2)), "the matrix A in Mean(A**2)"),
    "field": (
        lambda: trained(forward=FORWARD | {out(mu, t): Mean(w.symbol * A.symbol * a(mu, t)) / gamma0}),
        "not applied to a vector",
    ),
    "power of a matrix": (lambda: Mean(A**2), "A is a GaussianMatrix, which is not a number: write A @ v"),
    "factor before a matrix": (lambda: eta * A @ x(mu), "b*(A @ v)"),
    "vector": (lambda: Mean(w * a(mu, t)), "w is a GaussianVector, which is not a number: write w.symbol"),
    "vector alone": (
        lambda: trained(forward=FORWARD | {out(mu, t): Mean(w.symbol) + Mean(tanh(a(mu, t)))}),
        "w is updated with 1 (along), which is not a vector of hidden: define a field",
    ),
    "field times vector": (lambda: a(mu, t) * w, "write w.symbol"),
    "decays": (lambda: GradientDescent(eta, decay={"A": 1}), "must be a number or a SymPy expression"),  # type: ignore[arg-type]
    "momenta": (lambda: Momentum(eta, {"A": 1}), "must be a number or a SymPy expression"),  # type: ignore[arg-type]
    "rules in place of one": (lambda: trained(rule={"A": GradientDescent(eta)}), 'rules={"W": ...}'),
    "rule of nothing": (lambda: trained(rules={"B": GradientDescent(eta)}), "'B' is not a trained weight"),
    "no rule": (lambda: trained(rules={"A": 3}), "A is trained by 3"),
}


@pytest.mark.parametrize("name", BARE)
def test_what_is_no_number_is_refused_in_one_sentence(name: str) -> None:
    make, said = BARE[name]
    with pytest.raises(ProgramError, match=re.escape(said)):
        make()


def test_weights_may_have_rules_of_their_own() -> None:
    decaying = GradientDescent(eta, decay=Rational(1, 10))
    program = trained(rules={"A": decaying})
    assert {x.name: x.rule for x in program.trained()} == {"A": decaying, "w": GradientDescent(eta)}
    assert check_routes(program) == []
    assert trained(rules={"A": GradientDescent(eta)}) == trained()
