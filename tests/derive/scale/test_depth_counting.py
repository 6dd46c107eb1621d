"""Tests of counted powers of the depth, of the end of counting, and of a program with other powers."""

from dataclasses import replace

import pytest
from sympy import Function, Symbol, cos, sqrt

from derive.calculus.symbols import L, ell
from derive.depth import cross_layer
from derive.depth.balance import (
    STABLE,
    STEADY,
    Domain,
    alpha,
    as_expression,
    counted,
    form_of,
    gamma,
    over_layers,
)
from derive.errors import NotApplicable
from derive.scale.depth_steps import at_all_steps, at_steps, changes, sizes
from tests.derive.once import depth_program, isotropic, mean_field
from tests.derive.scale.derived import depth


def steps(n, a=alpha, g=gamma):
    return at_steps(cross_layer(mean_field(depth_program(alpha=a, gamma=g))), n)


def test_sums_that_end_before_they_begin_are_empty():
    """SymPy's own sums over such ranges are not zero."""
    assert steps(1).row("R_xu_1_1").terms == steps(1).row("R_xu_0_0").terms
    assert not steps(1).row("R_xu_1_0").terms


def test_the_change_of_the_stream_has_no_part_of_the_start():
    moved = changes(steps(1)).row("D_x_1_1")
    names = [{str(f.func) for f in x.atoms(Function)} for x in moved.terms]
    assert all(n != {"R_xU_0"} for n in names)
    assert {"D_x_1_1", "R_xu_0_0"} in names
    with pytest.raises(NotApplicable, match="no equation of C_y_0_0, the correlation of the field y"):
        changes(steps(1), "y")


def test_exponents_follow_the_program():
    """Twice the power in the branch: every exponent has 2 alpha in the place of alpha."""
    usual = sizes(steps(1)).exponents["f_1"]
    other = sizes(steps(1, a=2 * alpha)).exponents["f_1"]
    assert as_expression(other) == as_expression(usual).subs(alpha, 2 * alpha)


def test_a_missing_power_is_seen():
    """A planted error, one branch without its power, moves the exponent of the output."""
    whole = steps(1)
    rows = tuple(
        replace(r, rhs=r.neighbour + (r.rhs - r.neighbour) * L**alpha) if r.name == "R_xV_1" else r
        for r in whole.rows
    )
    planted = sizes(replace(whole, rows=rows), of=["f_1"])
    assert planted.exponent("f_1") == sizes(whole).exponent("f_1") + alpha


def test_unstable_scalings_are_refused():
    with pytest.raises(NotApplicable, match="enters its own equation"):
        sizes(steps(2), STEADY)
    with pytest.raises(NotApplicable, match="enters its own equation"):
        sizes(steps(0), Domain((form_of(0 * alpha)[0],) * 2))
    with pytest.raises(NotApplicable, match="need the times 0, 1 and 2"):
        at_all_steps(steps(1), STABLE)


def test_all_steps_are_bounded_by_those_of_the_first():
    later = at_all_steps(steps(2), STABLE)
    assert later.exponent("f") == sizes(steps(1)).exponent("f_1")
    assert later.exponent("C_x") == later.exponent("C_x(t, t)") == 0


def test_what_is_no_power_is_refused():
    with pytest.raises(NotApplicable, match="not linear in alpha and gamma"):
        form_of(alpha**2)
    with pytest.raises(NotApplicable, match="not linear in alpha and gamma"):
        counted(L**gamma * L ** (alpha * gamma), recursion=False)
    with pytest.raises(NotApplicable, match="is not counted"):
        counted(1 / Function("C")(ell), recursion=False)
    for factor in (1 + L, 1 / (1 + L), sqrt(1 + L)):
        with pytest.raises(NotApplicable, match="it contains L and is no power of L"):
            counted(factor * Function("C")(ell), recursion=False)
    assert counted(over_layers * Symbol("c") / L, recursion=True).power[0] == 1


def test_flows_have_no_first_step():
    from derive.program.rules import GradientFlow

    flow = mean_field(isotropic(data="population", rule=GradientFlow()))
    assert not flow.program.rule.discrete
    with pytest.raises(NotApplicable, match=r"continuous time|linear|rate of change"):
        at_steps(cross_layer(flow), 1)


@pytest.mark.slow
def test_closed_forms_need_one_leading_power():
    first = depth().first_step
    assert first.large(first.output).has(L)
    with pytest.raises(NotApplicable, match="must be a power of L"):
        first.large(L**alpha + cos(alpha))
