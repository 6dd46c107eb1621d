"""Tests of the index of layers, recognised by its position in programs under any letter."""

from __future__ import annotations

import pytest
from sympy import Function, Integer, Symbol, tanh

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
from derive.theory import mean_field
from derive.theory.routes import check_routes

LETTERS = [Symbol("l", integer=True), Symbol("j", integer=True, positive=True), Symbol("ell", positive=True)]


def network(layers: Symbol, members: Symbol, *, ordered: bool = False) -> Program:
    """Return three layers.

    ``layers`` is the index in definitions, ``members`` that of the family of matrices.
    """
    layer, inputs = Population("layer"), Population("inputs", given=True)
    h, x = Field("h", layer, layered=not ordered, ordered=ordered), GivenVector("x", inputs, "K_x")
    size, f, y = Function("size"), Function("f"), Function("y")
    family = IndexRange(members, Integer(1), Integer(2))
    U = GaussianMatrix("U", layer if ordered else layer.at(1), inputs)
    if ordered:
        W = GaussianMatrix("W", layer, layer)
        product = W @ tanh(h(layers, mu, t))
    else:
        W = GaussianMatrix("W", layer.at(members + 1), layer.at(members), index=family)
        product = W(layers) @ tanh(h(layers, mu, t))
    w = GaussianVector("w", layer if ordered else layer.at(3))
    forward = {
        h(1, mu, t): U @ x(mu),
        h(layers + 1, mu, t): product,
        size(layers, t): Mean(h(layers, 1, t) ** 2),
        f(mu, t): Mean(w.symbol * tanh(h(3, mu, t))) / gamma0,
    }
    ranges = (IndexRange(layers, Integer(1), Integer(2)),)
    net = Network("layers", (h,), forward, weights=(U, W, w), given=(x,), ranges=ranges)
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


@pytest.mark.parametrize("letter", LETTERS)
def test_layers_may_be_counted_by_any_letter(letter: Symbol) -> None:
    """Solvers and routes took another letter for an index of one population."""
    usual, other = network(ell, ell), network(letter, letter)
    assert other == usual
    assert network(letter, ell) == usual


def test_routes_agree_whatever_counts_the_layers() -> None:
    assert not check_routes(network(LETTERS[0], LETTERS[1]))


@pytest.mark.parametrize("letter", [ell, LETTERS[2]])
def test_the_places_of_an_ordered_family_may_be_called_ell(letter: Symbol) -> None:
    """``solve`` ended in "values has no number for ell", and the second route in "Invalid limits given"."""
    k = Symbol("k", integer=True)
    usual, other = (network(x, x, ordered=True) for x in (k, letter))
    assert mean_field(other).render("all") == mean_field(usual).render("all")
