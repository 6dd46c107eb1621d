"""Matrices that are applied to sums over fields: gradients are right, or the program is refused."""

from __future__ import annotations

import pytest
from sympy import Expr, Function, S, Sum, Symbol, tanh

from derive.errors import ProgramError
from derive.program import (
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
    alpha,
    eta,
    gamma0,
    mu,
    t,
)
from derive.program.gradient_check import check_gradients

p = Symbol("p", integer=True)
units, answers = Population("units"), Population("answers")
pixels = Population("pixels", given=True)
x, cell, sum_of_cells = GivenVector("x", pixels, "K_x"), Field("cell", units), Field("total", units)
answer = Field("answer", answers)
U, V = GaussianMatrix("U", units, pixels), GaussianMatrix("V", answers, units)
w = GaussianVector("w", answers)
out, goal, mask = Function("out"), Function("goal"), Function("mask")
POSITIONS = IndexRange(p, S.One, S(3))


def summed(e: Expr) -> Sum:
    return Sum(e, (p, 1, 3))


def trained(line: Expr, *, total: Expr | None = None) -> Program:
    """Return a network whose answer is ``line``, with a field ``total(mu, t)`` if it is given."""
    lines = {cell(mu, p, t): U @ x(mu, p)}
    if total is not None:
        lines[sum_of_cells(mu, t)] = total
    lines |= {answer(mu, t): line, out(mu, t): Mean(w.symbol * answer(mu, t)) / gamma0}
    fields = (cell, answer) if total is None else (cell, sum_of_cells, answer)
    net = Network("cells", fields, lines, (U, V, w), given=(x,), ranges=(POSITIONS,))
    return net.train((goal(mu) - out(mu, t)) ** 2 / 2, GradientDescent(eta))


INSIDE = {
    "a sum": V @ summed(cell(mu, p, t)),
    "a sum of functions": V @ summed(tanh(cell(mu, p, t))),
    "a function of a sum": V @ tanh(summed(cell(mu, p, t))),
    "a multiple of a sum": V @ (2 * summed(cell(mu, p, t)) + 1),
    "a sum with weights": V @ summed(mask(p) * cell(mu, p, t)),
    "a sum over samples": V @ (Sum(cell(alpha, 1, t), (alpha, 1, P)) / P),
}


@pytest.mark.parametrize("name", INSIDE)
def test_a_sum_over_fields_inside_of_a_product_is_refused(name: str) -> None:
    """The gradient of a sum was summed over its index once more: updates were three times too large."""
    with pytest.raises(ProgramError, match=r"sums over fields: write the sum in front .*Sum\(V @ h\(p\)"):
        trained(INSIDE[name])


def test_what_the_refusal_asks_for_has_the_right_gradient() -> None:
    in_front = summed(V @ tanh(cell(mu, p, t)))
    as_field = V @ sum_of_cells(mu, t)
    assert check_gradients(trained(in_front)) == []
    assert check_gradients(trained(as_field, total=summed(tanh(cell(mu, p, t))))) == []


def test_a_factor_that_is_a_sum_stays_beside_a_field() -> None:
    line = V @ (sum_of_cells(mu, t) * summed(tanh(cell(mu, p, t))))
    assert check_gradients(trained(line, total=summed(cell(mu, p, t)) / 3)) == []
