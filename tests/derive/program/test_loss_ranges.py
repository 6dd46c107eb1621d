"""Over what a loss is summed, where definitions run over different parts of one index."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from sympy import Expr, Function, S, Sum, Symbol, tanh

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
from derive.theory.routes import check_routes
from derive.theory.unfold import partners
from tests.derive.once import mean_field

k = Symbol("k", integer=True, positive=True)
units, pixels = Population("units"), Population("pixels", given=True)
h, x = Field("h", units, ordered=True), GivenVector("x", pixels, "K_x")
U, W = GaussianMatrix("U", units, pixels), GaussianMatrix("W", units, units)
w, b = GaussianVector("w", units), GaussianVector("b", units)
f, y = Function("f"), Function("y")

LINES: dict[str, tuple[Expr, Any]] = {
    "first": (h(1, mu, t), U @ x(mu, 1)),
    "next": (h(k + 1, mu, t), W @ tanh(h(k, mu, t)) + U @ x(mu, k + 1)),
    "answer": (f(mu, k, t), Mean(w.symbol * tanh(h(k, mu, t))) / gamma0),
}


def driven(order: tuple[str, ...], loss: Expr, last: int = 3) -> Program:
    """Return a network with an output at each step, its lines in any order.

    No equation reads its last step.
    """
    forward, weights = dict(LINES[x] for x in order), (U, W, *((w,) if "answer" in order else ()))
    ranges = (IndexRange(k, S.One, S(last - 1)),)
    net = Network("driven", (h,), forward, weights, given=(x,), ranges=ranges)
    return net.train(loss, GradientDescent(eta), together=True)


SQUARE = (y(mu, k) - f(mu, k, t)) ** 2 / 2


@pytest.mark.parametrize("order", list(permutations(LINES)), ids="-".join)
def test_every_answer_trains_the_readout(order: tuple[str, ...]) -> None:
    """The loss was summed over the range of the last line: over one of two outputs if "next" was last."""
    readout = next(v for v in driven(order, SQUARE).trained() if v.name == "w")
    (answers,) = (r for term in readout.update.terms for r in term.over if r.index == k)
    assert (answers.lower, answers.upper) == (1, 2)


@pytest.mark.parametrize("order", [tuple(LINES), ("answer", "first", "next")], ids="-".join)
def test_both_routes_and_the_gradient_agree_at_each_answer(order: tuple[str, ...]) -> None:
    """The check of routes mistook a term of one step for one of all, and the loss for that of one output."""
    assert check_routes(driven(order, SQUARE)).gradients == "compared"


def test_a_loss_of_fields_reaches_as_far_as_it_was_written() -> None:
    """Gradients of the last step were undefined, so that the first weights were not trained."""
    program = driven(("first", "next"), Mean((h(k, mu, t) - y(mu, k)) ** 2) / 2)
    assert program.loss is not None
    assert [x.limits for x in program.loss.atoms(Sum)] == [((k, 1, 2),)]
    assert check_routes(program).gradients == "compared"


def test_a_first_step_and_the_others_share_a_bias() -> None:
    """The bias of a later step had no covariance with that of the first one."""
    forward = {lhs: rhs + (0 if lhs.has(f) else b.symbol) for lhs, rhs in LINES.values()}
    ranges = (IndexRange(k, S.One, S(2)),)
    net = Network("biased", (h,), forward, (U, W, w, b), given=(x,), ranges=ranges)
    theory = mean_field(net.train(SQUARE, GradientDescent(eta), together=True))
    source = next(u.symbol.func for u in theory.sources if u.matrix == "b")
    for place, other in ((1, 2), (2, 1)):
        found = [p.symbol.args[0] for p in partners(source(place, mu, t), theory.sources)]
        assert len(found) == 2, found
        assert any(a.subs({z: 1 for z in a.free_symbols}) == other for a in found)
