"""Sums and integrals whose variable is fixed by a delta."""

from __future__ import annotations

from sympy import DiracDelta, Function, Integral

from derive.calculus.sums import evaluate_deltas
from derive.calculus.symbols import s, t

f = Function("f")


def test_a_derivative_of_a_delta_does_not_fix_its_variable() -> None:
    """The integral of delta'(t - s) f(s) is a derivative of f; it was evaluated as f(t)."""
    assert evaluate_deltas(Integral(DiracDelta(t - s) * f(s), (s, 0, t))) == f(t)
    slope = Integral(DiracDelta(t - s, 1) * f(s), (s, 0, t))
    assert evaluate_deltas(slope) == slope
