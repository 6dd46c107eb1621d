"""Symbols of a schedule that have the names of the variables of sums over times."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from sympy import Expr, Heaviside, Integer, Sum, Symbol

from derive import isotropic
from derive.linear.propagators import cross_layer, transfer
from derive.program import t
from derive.program.rules import GradientDescent, GradientFlow, Momentum, TrainingRule, anchored_descent
from derive.theory.path_integral.elimination import solution
from tests.derive.once import mean_field

RULES: dict[str, Callable[[Expr], TrainingRule]] = {
    "switch": lambda q: GradientDescent(1, decay=Heaviside(q - t, 0) / 3, diffusion=q),
    "flow": lambda q: GradientFlow(1, decay=1 / (q + t + 1), diffusion=1 / (t + q + 1)),
    "anchor": lambda q: anchored_descent(1 / (q + t), 1 / (t + q), 1),
    "momentum": lambda q: Momentum(1, q / (1 + q + t)),
}
NAMES = ("t_1", "t_2", "t_3")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", RULES)
def test_a_symbol_of_a_schedule_is_no_variable_of_a_sum(kind: str, name: str) -> None:
    """The memory and noise of a weight are the same numbers under every name, on both routes."""
    expected = _numbers(RULES[kind](Integer(2)))
    symbol = Symbol(name, nonnegative=True)
    found = _numbers(RULES[kind](symbol), symbol)
    assert all(abs(x - y) < 1e-12 for x, y in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["t_1", "s_1"])
def test_a_symbol_of_a_schedule_is_no_time_of_a_source(name: str) -> None:
    """Equations between layers keep the symbol, and sum over another."""
    symbol = Symbol(name, nonnegative=True)
    theory = mean_field(isotropic(1, data="online", rule=GradientDescent(1 / (1 + symbol * t))))
    (equation,) = (e for e in transfer(theory, "h0").equations if e.rhs.has(Sum))
    assert symbol in equation.rhs.free_symbols
    variables = {v for x in cross_layer(theory).correlation("C_v").rhs.atoms(Sum) for v in x.variables}
    assert symbol not in variables


def _numbers(rule: TrainingRule, symbol: Symbol = t) -> list[Expr]:
    """Return numbers of the memory and noise of a weight at two times, at 2 for the symbol."""
    time, past = Integer(4), Integer(2)
    found = [*rule.memory(time, past), rule.noise(time, past)]
    motion = solution(rule)
    found += [motion.initial_factor(time), motion.update_factor(time, past), motion.noise(time, past)]
    return [x.subs(symbol, 2).doit().evalf() for x in found]
