"""Constants and numbers beside fields that have indices of their own: gradients against the loss."""

from __future__ import annotations

import pytest
from sympy import Expr, Function, KroneckerDelta, S, Sum, Symbol, tanh

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
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from derive.program.gradient_check import check_gradients

p, e, r = (Symbol(n, integer=True) for n in "per")
units, pixels = Population("units"), Population("pixels", given=True)
x, h, q = GivenVector("x", pixels, "K_x"), Field("h", units), Field("q", units)
U = GaussianMatrix("U", units, pixels)
R, Q = (GaussianMatrix(n, units, units) for n in "RQ")
POSITIONS, OFFSETS = IndexRange(p, S.One, S(3)), IndexRange(e, S.One, S(3))
F = GaussianMatrix("F", units, units, others=(OFFSETS,))
w, v = GaussianVector("w", units), GaussianVector("v", units, indices=(POSITIONS,))
f, y, c, m = (Function(n) for n in "fycm")
PIXELS: dict[Expr, Expr] = {h(mu, p, t): U @ x(mu, p)}


def trained(lines: dict[Expr, Expr], output: Expr, *weights: GaussianMatrix | GaussianVector) -> Program:
    lines = {**PIXELS, **lines, f(mu, t): output / gamma0}
    fields = (h, q) if len(lines) > 2 else (h,)
    ranges = (POSITIONS, OFFSETS)
    net = Network("own constants", fields, lines, (U, *weights), given=(x,), ranges=ranges)
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def mixed(vector: Expr, *weights: GaussianMatrix | GaussianVector) -> Program:
    """Return a network whose second field is ``vector``."""
    output = Mean(w.symbol * Sum(m(p) * tanh(q(mu, p, t)), (p, 1, 3)))
    return trained({q(mu, p, t): vector}, output, *weights, w)


def pooled(vector: Expr) -> Program:
    return trained({}, Mean(w.symbol * Sum(vector, (p, 1, 3))), w)


IN_PRODUCTS = {
    "a factor inside": R @ tanh(c(p) * h(mu, p, t)),
    "a bias": R @ tanh(c(p) + h(mu, p, t)),
    "of the sample": R @ tanh(c(mu) * h(mu, p, t)),
    "a delta": R @ tanh(KroneckerDelta(p, 2) * h(mu, p, t)),
    "the index": R @ tanh(p * h(mu, p, t)),
    "in a sum": Sum(c(p, r) * (R @ tanh(m(r) * h(mu, r, t))), (r, 1, p)),
    "shifted": R @ tanh(c(p) * h(mu, p + 1, t)),
    "reversed": Sum(R @ tanh(m(r) * h(mu, 4 - r, t)), (r, 1, 3)) + h(mu, p, t),
    "twice": R @ tanh(c(p) * h(mu, p, t)) + (R @ tanh(m(p) * h(mu, p, t))),
}


@pytest.mark.parametrize("name", IN_PRODUCTS)
def test_a_constant_moves_with_the_field_beside_it(name: str) -> None:
    """Updates held ``c(p)`` of one position, beside fields of all."""
    assert check_gradients(mixed(IN_PRODUCTS[name], R)) == []


def test_two_matrices_on_one_function_with_a_constant() -> None:
    vector = tanh(c(p) * h(mu, p, t))
    assert check_gradients(mixed((R @ vector) + (Q @ vector), R, Q)) == []


@pytest.mark.parametrize(
    "vector", [tanh(c(e) * h(mu, p + e, t)), h(mu, p, t) * h(mu, p + e, t)], ids=["constant", "fields"]
)
def test_a_vector_with_more_indices_than_a_field_is_refused(vector: Expr) -> None:
    with pytest.raises(ProgramError, match="no field in this expression has all indices"):
        mixed(Sum(F(e) @ vector, (e, 1, 3)), F)


@pytest.mark.parametrize("factor", [c(p), KroneckerDelta(p, 1)])
def test_a_factor_beside_a_periodic_index(factor: Expr) -> None:
    """``c(p - 1)`` in a gradient is read as periodic, as by the solvers."""
    assert check_gradients(pooled(factor * tanh(h(mu, p + 1, t)))) == []


@pytest.mark.parametrize("factor", [KroneckerDelta(p, 3), p])
def test_a_number_beside_a_periodic_index_is_refused(factor: Expr) -> None:
    """The gradient held ``p - 1`` = 0 where the last position, 3, was meant."""
    with pytest.raises(ProgramError, match=r"is periodic, but p is also used as a number .*: define"):
        pooled(factor * tanh(h(mu, p + 1, t)))
    with pytest.raises(ProgramError, match="a shifted index is also used as a number"):
        mixed(R @ tanh(factor * h(mu, p + 1, t)), R)
    as_field = trained(
        {q(mu, p, t): h(mu, p + 1, t)}, Mean(w.symbol * Sum(factor * tanh(q(mu, p, t)), (p, 1, 3))), w
    )
    assert check_gradients(as_field) == []


def test_a_weight_beside_a_periodic_index_is_refused() -> None:
    with pytest.raises(ProgramError, match=r"p is also used as a number or as the index of a weight"):
        mixed(v(p) * tanh(h(mu, p + 1, t)), v)


@pytest.mark.parametrize("factor", [m(p), KroneckerDelta(p, 2)])
def test_a_linear_readout_of_a_sum_with_factors(factor: Expr) -> None:
    """The output was divided by the factor at an index without a value, and by zero for a delta."""
    program = pooled(factor * h(mu, p, t))
    line = next(d for d in program.definitions if d.name == "f")
    assert p not in line.rhs.free_symbols
    assert check_gradients(program) == []


def test_a_power_that_is_an_index() -> None:
    """At p = 1 the check evaluated the field h at its indices as an unknown function of these."""
    assert check_gradients(pooled(h(mu, p, t) ** p)) == []


def test_a_member_at_a_number_beside_a_sum_over_the_index_of_its_family() -> None:
    """The sum had the index of the family, so that the term of ``v(1)`` was summed over other members."""
    output = Sum(Mean(v(p) * v(1) * h(mu, p, t)), (p, 1, 3))
    lines = {**PIXELS, f(mu, t): output}
    net = Network("twice", (h,), lines, (U, v), given=(x,), ranges=(POSITIONS,))
    loss = (y(mu) - f(mu, t)) ** 2 / 2
    for together in (False, True):
        assert check_gradients(net.train(loss, GradientDescent(eta), together=together)) == []
