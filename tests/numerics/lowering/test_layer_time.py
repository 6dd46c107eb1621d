"""Tests of equations in layer time as products of tensors, and of refusals."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sympy import Eq, Function, Heaviside, Integral, KroneckerDelta, Sum, Symbol, sin

from derive.calculus.symbols import L, s, t
from derive.depth import LayerTime, gamma_c_recursion, layer_time
from derive.depth.infinite import between
from derive.depth.layers import tau, tau_
from numerics.lowering.layer_time import NotLowered, lower_layer_time
from tests.derive.once import depth_program, mean_field

r = Symbol("s_", integer=True)
R, C = Function("R"), Function("C")


def limit(*integrals: Eq, correlations: tuple[Eq, ...] = ()) -> LayerTime:
    return LayerTime((), (), (), (), tuple(integrals), correlations, (), (), ())


def equation(rhs: object) -> LayerTime:
    return limit(Eq(R(tau, tau_, t, s), rhs, evaluate=False))


def test_a_product_keeps_its_number_bounds_and_times() -> None:
    inside = 2 * Sum(R(between, tau_, r, s) * C(between, t, r), (r, s + 1, t - 1))
    table = lower_layer_time(equation(Integral(inside, (between, 0, tau))))
    ((row,),) = table.groups
    (product,) = row.products
    assert product.number == 2
    assert (product.layer, product.bound, product.step) == (between, "below", 0)
    (span,) = product.spans
    assert (span.index, span.present, span.late, span.within) == (r, False, True, True)
    assert table.known == {"C"}


def test_a_step_is_there_on_one_side_and_at_equal_times() -> None:
    table = lower_layer_time(equation(Heaviside(tau_ - tau) * KroneckerDelta(s, t)))
    ((row,),) = table.groups
    assert row.jumps
    assert [(p.step, p.present) for p in row.products] == [(-1, True)]


def test_gradients_come_before_what_reads_them_at_the_same_step() -> None:
    table = lower_layer_time(layer_time(gamma_c_recursion(mean_field(depth_program()))))
    order = {row.name: k for k, group in enumerate(table.groups) for row in group}
    assert order["f"] < order["chi"] < order["Gamma_1V"]  # the output, the loss's slope, what it sends back
    assert order["C_0"] == order["Gamma_00"]  # each needs the other at the layers before
    assert table.known == {"xi", "dloss"}


@pytest.mark.parametrize(
    ("rhs", "reason"),
    [
        (sin(C(tau, t, s)), "must be a number, a step function"),
        (L * C(tau, t, s), "still contains the depth"),
        (Integral(C(tau, t, r), (r, s, t)), "use a rule in steps"),
        (Sum(C(tau, t, r), (r, 0, t - 2)), "or over times from 0, s or s"),
        (Sum(C(tau, t, r), (r, s, t - 1)), "sum over the times s_ that is not causal"),
        (Heaviside(tau - 2 * tau_) * KroneckerDelta(s, t), "must be tau - tau_ or tau_ - tau"),
        (
            Integral(C(between, t, s), (between, 0, tau)) * Integral(C(between, t, s), (between, 0, tau)),
            "two integrals",
        ),
        (
            Heaviside(tau - tau_) * KroneckerDelta(s, t) + C(tau, t, s) * R(tau, tau, t, s),
            "has no unique value",
        ),
    ],
)
def test_what_is_no_sum_of_products_over_the_past_is_refused(rhs: object, reason: str) -> None:
    with pytest.raises(NotLowered, match=reason):
        lower_layer_time(equation(rhs))


def test_a_tensor_at_a_number_is_no_row() -> None:
    bad = replace(limit(), integrals=(Eq(R(0, tau_, t, s), C(tau, t, s), evaluate=False),))
    with pytest.raises(NotLowered, match="an argument that is not a symbol"):
        lower_layer_time(bad)
