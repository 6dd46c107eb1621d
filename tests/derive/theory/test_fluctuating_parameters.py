"""Tests of the averages over units that are order parameters of finite networks."""

from __future__ import annotations

from sympy import Function, Rational, tanh

from derive.calculus.symbols import alpha, ell, mu, s, t
from derive.program import mlp
from derive.theory.fluctuations import fluctuations

h = Function("h")


def test_correlations_keep_numbers_in_front_of_averages() -> None:
    Phi = fluctuations(mlp(2, lambda x: tanh(2 * x) / 3)).parameter("Phi")
    assert Phi.unit == Rational(1, 9) * tanh(2 * h(ell, mu, t)) * tanh(2 * h(ell, alpha, s))
