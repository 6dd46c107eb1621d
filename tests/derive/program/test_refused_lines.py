"""Refusals of lines of a forward pass: each names what the user wrote, the reason, and what would do."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
from sympy import Expr, Function, S, Sum, Symbol, tanh

from derive.program import (
    Definition,
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    GradientFlow,
    IndexRange,
    L,
    Mean,
    Network,
    P,
    Population,
    Program,
    ProgramError,
    eta,
    gamma0,
    mu,
    s,
    t,
)

units, pixels = Population("units"), Population("pixels", given=True)
h, q = Field("h", units), Field("q", units)
x, c, f, y = GivenVector("x", pixels, "K_x"), Function("c"), Function("f"), Function("y")
U, V, W = GaussianMatrix("U", units, pixels), *(GaussianMatrix(name, units, units) for name in "VW")
w, b = GaussianVector("w", units), GaussianVector("b", units)
tau, size = Symbol("tau"), Symbol("P")
LAYER, OUTPUT = h(mu, t), f(mu, t)


def trained(
    forward: Mapping[Expr, Expr],
    *matrices: GaussianMatrix,
    frozen: tuple[GaussianMatrix | GaussianVector, ...] = (),
    index: IndexRange | None = None,
    output: Expr = OUTPUT,
) -> Program:
    """Return a trained network with these lines."""
    names = {str(lhs.func) for lhs in forward}
    fields = tuple(z for z in (h, q) if z.name in names)
    ranges = () if index is None else (index,)
    net = Network("own", fields, dict(forward), (*matrices, w), frozen, given=(x,), ranges=ranges)
    return net.train((y(mu) - output) ** 2 / 2, GradientDescent(eta))


def deep(line: Expr, **options: tuple[GaussianMatrix | GaussianVector, ...]) -> Program:
    """Return a network of two layers, the second of which is computed by ``line``."""
    weights = (U, V) if options else (U, V, W)
    mean = Mean(w.symbol * tanh(q(mu, t))) / gamma0
    return trained({h(mu, t): U @ x(mu), q(mu, t): line, f(mu, t): mean}, *weights, **options)


def shallow(index: Symbol = mu, time: Expr = t, factor: Expr = S.One, own_range: bool = False) -> Program:
    """Return a network of one layer, written with these symbols."""
    mean = factor * Mean(w.symbol * tanh(h(index, time))) / gamma0
    lines = {h(index, time): U @ x(index), f(index, time): mean}
    span = IndexRange(index, S.One, S(2)) if own_range else None
    return trained(lines, U, index=span, output=f(index, time))


def answers(head: Expr, first: Expr = LAYER) -> Program:
    """Return a network of one layer, the output of which is called ``head``."""
    return trained({first: U @ x(mu), head: Mean(w.symbol * tanh(first)) / gamma0}, U, output=head)


FEATURE = tanh(LAYER)
INNER = r"which contains a matrix product: define a field that is W @ tanh\(h\(mu, t\)\), and use that"


def tied(layers: IndexRange) -> Program:
    """Return a network whose layers are different units and share a matrix."""
    k, stack = layers.index, Field("h", units, layered=True)
    lines = {stack(1, mu, t): U @ x(mu), stack(k + 1, mu, t): W @ tanh(stack(k, mu, t))}
    lines[f(mu, t)] = Mean(w.symbol * tanh(stack(3, mu, t))) / gamma0
    net = Network("tied", (stack,), lines, (U, W, w), given=(x,), ranges=(layers,), depth=S(3))
    return net.train((y(mu) - OUTPUT) ** 2 / 2, GradientDescent(eta))


REFUSED: dict[str, tuple[Callable[[], Program], str]] = {
    "tied layers": (
        lambda: tied(IndexRange(Symbol("n", integer=True), S.One, S(2))),
        r"^h\(n \+ 1, mu, t\): all layers of h use the matrix W, .* give the matrix the index n$",
    ),
    "product of a product": (
        lambda: deep(V @ (W @ FEATURE)),
        rf"^q\(mu, t\) applies V to W @ tanh\(h\(mu, t\)\), {INNER}",
    ),
    "product of a product, frozen": (
        lambda: deep(V @ (W @ FEATURE), frozen=(W,)),
        rf"^q\(mu, t\) applies V to W @ tanh\(h\(mu, t\)\), {INNER}",
    ),
    "product of a function of a product": (
        lambda: deep(V.T @ tanh(W @ FEATURE)),
        rf"^q\(mu, t\) applies V.T to tanh\(W @ tanh\(h\(mu, t\)\)\), {INNER}",
    ),
    "product of the inputs' product": (
        lambda: deep(V @ FEATURE + W @ (U @ x(mu))),
        r"applies W to U @ x\(mu\), which contains a matrix product: define a field that is U @ x\(mu\)",
    ),
    "a number that is called as a vector of weights": (
        lambda: deep(Symbol("w") * (V @ FEATURE) + W @ FEATURE),
        r"define a field for V @ tanh\(h\(mu, t\)\); if w is meant as a number, give it another name$",
    ),
    "another symbol of the same name": (
        lambda: trained({LAYER: U @ x(mu), f(mu, t): Mean(w.symbol * tanh(h(Symbol("mu"), t))) / gamma0}, U),
        r"^f\(mu, t\) uses h\(mu, t\), in which mu has other assumptions than the index mu: write the same",
    ),
    "a field with an index that it does not have": (
        lambda: trained({LAYER: U @ x(mu), f(mu, t): Mean(w.symbol * tanh(h(1, mu, t))) / gamma0}, U),
        r"^h is the name of two things, h\(mu, t\) and h\(1, mu, t\), whose indices differ: write",
    ),
    "product of a bias in a function": (
        lambda: deep(V @ tanh(h(mu, t) + b.symbol), frozen=(b,)),
        r"must be a term of its own, times entrywise factors; define a field for b$",
    ),
    "mean of a product": (
        lambda: trained({h(mu, t): U @ x(mu), f(mu, t): Mean(w.symbol * tanh(W @ FEATURE)) / gamma0}, U, W),
        r"contains the mean of w\*tanh\(W @ tanh\(h\(mu, t\)\)\), .* that is W @ tanh\(h\(mu, t\)\)$",
    ),
    "loss of the first step": (
        lambda: trained({h(mu, t): U @ x(mu), f(mu, t): Mean(w.symbol * tanh(h(mu, 0))) / gamma0}, U),
        r"gradient of the loss by U is zero, .* at most through values at the first step, such as h\(mu, 0\)",
    ),
    "own time": (
        lambda: shallow(time=tau),
        r"^h\(mu, tau\): the last argument is tau, and must be the time t .*: write h\(mu, t\)$",
    ),
    "second time": (lambda: shallow(time=s), r"^h\(mu, s\): the last argument is s, and must be the time t"),
    "time shifted": (lambda: shallow(time=t + 1), r"the last argument is t \+ 1, .* write h\(mu, t\)$"),
    "no time": (lambda: answers(f(mu, t), h(mu)), r"^h\(mu\): the last argument is mu, .* write h\(mu, t\)$"),
    "time in front": (lambda: answers(f(mu, t), h(t, mu)), r"^h\(t, mu\): .* write h\(mu, t\)$"),
    "own time of a program": (
        lambda: Program("own", GradientFlow(), (h,), (Definition(h(tau), -h(tau), evolves=True),)),
        r"h\(tau\): the last argument is tau, and must be the time t .*: write h\(t\)",
    ),
    "no function": (
        lambda: Network("own", (h,), {h(mu, t): U @ x(mu), Symbol("f"): S.One}, (U,), given=(x,)),  # type: ignore[arg-type, return-value]
        r"^f: must be a function of its indices and of the time t of derive.program, such as f\(mu, t\)",
    ),
    "index twice": (
        lambda: answers(f(mu, mu, t)),
        r"^f\(mu, mu, t\): the index mu stands twice, .*: write mu once, or give one of the places another",
    ),
    "index twice, shifted": (
        lambda: answers(f(mu, mu + 1, t)),
        r"^f\(mu, mu \+ 1, t\): the index mu stands twice",
    ),
    "index of a field twice": (
        lambda: answers(f(mu, t), h(mu, mu, t)),
        r"^h\(mu, mu, t\): the index mu stands twice",
    ),
    "index called P": (
        lambda: shallow(size, own_range=True),
        "^the index P is called like the number of samples: give it another name$",
    ),
    "index that is P": (
        lambda: shallow(P),
        r"the index P is called like the number of samples: give it another name$",
    ),
    "sum over P": (
        lambda: shallow(factor=Sum(c(P), (P, 1, 3))),
        "^the index P is called like the number of samples: give it another name$",
    ),
    "sum over L": (lambda: shallow(factor=Sum(c(L), (L, 1, 3))), "the index L is called like the number of"),
    "sum over s": (lambda: shallow(factor=Sum(c(s), (s, 1, 3))), "the index s is called like a time"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_line_is_refused_in_the_words_of_its_author(what: str) -> None:
    build, said = REFUSED[what]
    with pytest.raises(ProgramError, match=said):
        build()


def test_the_weight_of_a_refused_product_is_not_said_to_be_idle() -> None:
    """Obeying "the loss does not depend on W" led to a second refusal; a field of its own does."""
    lines = {h(mu, t): U @ x(mu), q(mu, t): W @ FEATURE, f(mu, t): Mean(w.symbol * q(mu, t)) / gamma0}
    assert {"W", "U", "w"} == {z.name for z in trained(lines, U, W).trained()}


def test_the_initial_value_of_a_field_that_evolves_may_be_defined() -> None:
    start, rest = Definition(h(0), S.One), Definition(h(t), -h(t), evolves=True)
    assert Program("own", GradientFlow(), (h,), (rest, start)).definitions == (rest, start)
    with pytest.raises(ProgramError, match=r"^h\(0\): the last argument is 0, .* write h\(t\)$"):
        Program("own", GradientFlow(), (h,), (start,))
