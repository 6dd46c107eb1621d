"""Tests of depth laws of one sample: exact ones, leading powers, refusals.

Numbers are compared in tests/numerics.
"""

from __future__ import annotations

import pytest
from sympy import Function, Rational, erf, limit, sin, tanh
from sympy.abc import y

from derive.errors import NotApplicable
from derive.expansion.nonlinear import NonlinearExpansion, expand_nonlinear
from derive.expansion.nonlinear.depth import q, x
from derive.expansion.nonlinear.trees import PAIR, ForestCoefficient
from derive.program import L, ell
from tests.derive.once import mean_field, mlp


def expanded(phi: object, order: int = 0) -> NonlinearExpansion:
    return expand_nonlinear(mean_field(mlp(L, phi)), order)


def test_the_tangent_kernel_is_a_geometric_sum() -> None:
    found = expanded(Function("phi")).depth_dependence().tangent(0)
    assert (found - q * (x ** (L + 1) - 1) / (x - 1)).simplify() == 0
    assert (limit(found, x, 1) - q * (L + 1)).expand() == 0


def test_variance_that_decays() -> None:
    law = expanded(tanh).depth_dependence("critical")
    assert law.expression(ForestCoefficient("Phi", 0, PAIR)) == 1 / (2 * ell)
    assert law.expression(ForestCoefficient("G", 0, PAIR)) == ell / L
    assert law.tangent(0) == Rational(1, 2)


def test_the_tangent_kernel_of_tanh_moves_as_the_depth_squared() -> None:
    """The paper's O(L) relative to order 0 is for multipliers that are one."""
    series = expanded(tanh, 2)
    law = series.depth_dependence("critical")
    found = {law.tangent(2, f) for f in series.forests("Phi", 2)}
    assert found == {L**2 / 48, -(L**2) / 32}
    cancelled = [t for t in law.found if t.name == "Phi" and not law.found[t].terms]
    assert len(cancelled) == 1
    with pytest.raises(NotApplicable, match="leading powers of a coefficient cancel"):
        law.expression(cancelled[0])


@pytest.mark.parametrize("phi", [erf, y + y**3 / 6, y + y**2], ids=["slope", "grows", "even"])
def test_other_phi_are_refused(phi: object) -> None:
    with pytest.raises(NotApplicable):
        expanded(phi).depth_dependence("critical")


def test_other_phi_of_the_same_class() -> None:
    law = expanded(sin).depth_dependence("critical")
    assert law.expression(ForestCoefficient("Phi", 0, PAIR)) == 1 / ell
    with pytest.raises(ValueError, match="where = 'edge'"):
        expanded(sin).depth_dependence("edge")


def test_odd_orders_of_the_tangent_kernel_are_zero() -> None:
    assert expanded(Function("phi"), 1).depth_dependence().tangent(1) == 0


@pytest.mark.slow
def test_even_orders_of_the_tangent_kernel_have_forests() -> None:
    series = expanded(Function("phi"), 2)
    with pytest.raises(KeyError, match=r"by default 1, the forest of order 0\): give one that this order"):
        series.depth_dependence().tangent(2)


def test_what_has_no_recursion_over_layers_is_refused() -> None:
    series = expanded(Function("phi"))
    for name in ("A", "foo", "K"):
        with pytest.raises(ValueError, match=f"names: '{name}' has no recursion over layers"):
            series.depth_dependence(names=(name,))
    with pytest.raises(ValueError, match="names is empty"):
        series.depth_dependence(names=())
    with pytest.raises(NotApplicable, match="one hidden layer has no recursions over layers"):
        expand_nonlinear(mean_field(mlp(1, Function("phi"))), 0).depth_dependence()
