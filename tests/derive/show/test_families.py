"""Base cases are read off the equations, and only where the ends really are members of their family."""

from dataclasses import replace

import pytest
from sympy import Function, Integer

from derive.program import L, Outer, Program, ell
from derive.program.training import TrainedMatrix
from derive.theory.document import render
from derive.theory.families import families
from tests.derive.once import error_projected, mean_field, mlp, recurrent


def base_cases(theory):
    return {str(e.lhs): str(e.rhs) for e in families(theory).base_cases}


def scaled(program: Program, name: str, factor: int) -> Program:
    """Return ``program`` with the update of one matrix multiplied."""

    def change(m):
        if not isinstance(m, TrainedMatrix) or m.name != name:
            return m
        u = m.update
        return replace(m, update=Outer(factor * u.coefficient, u.left, u.right, u.over))

    return replace(program, matrices=tuple(map(change, program.matrices)))


@pytest.mark.parametrize("rule", ["gd", "flow", "multistep"])
def test_linear_network_of_any_depth(rule):
    assert base_cases(mean_field(mlp(rule=rule))) == {
        "H(0, mu, alpha, t, s)": "K_x(mu, alpha)",
        "G(L + 1, t, s)": "1",
        "A(0, mu, t, s)": "0",
        "B(L, alpha, t, s)": "0",
    }


def test_nonlinear_network():
    assert base_cases(mean_field(mlp(L, Function("phi")))) == {
        "Phi(0, mu, alpha, t, s)": "K_x(mu, alpha)",
        "G(L + 1, mu, alpha, t, s)": "1",
        "A(0, mu, alpha, t, s)": "0",
        "B(L, mu, alpha, t, s)": "0",
    }


def test_untied_backward_matrices_leave_no_responses():
    assert base_cases(mean_field(mlp(3, tied=False))) == {
        "H(0, mu, alpha, t, s)": "K_x(mu, alpha)",
        "G(4, t, s)": "1",
    }


def test_error_projection_has_its_own_base_case():
    found = base_cases(error_projected(mean_field(mlp())))
    assert found["q(0, mu, t, s)"] == "Sum(Delta(alpha, s)*K_x(mu, alpha), (alpha, 1, P))"
    assert found["b(L, t, s)"] == "0"


def test_first_layer_that_learns_at_another_rate_stays_apart():
    found = families(mean_field(scaled(mlp(), "W0", 2)))
    equations, cases = found.equations, found.base_cases
    assert [str(e.lhs) for e in cases] == ["G(L + 1, t, s)", "B(L, alpha, t, s)"]
    assert [str(e.lhs) for e in equations] == ["h(1, mu, t)", "h(ell + 1, mu, t)", "g(ell, t)"]


def test_interior_that_learns_at_another_rate_splits_both_ends():
    assert base_cases(mean_field(scaled(mlp(), "W", 2))) == {}


def test_members_reach_both_ends():
    found = families(mean_field(mlp()))
    for x in (*found.equations, *found.sources):
        layers = next(r for r in x.ranges if r.index == ell)
        assert (layers.lower, layers.upper) == (1, L)
    assert str(found.observables[0].rhs) == "Sum(G(ell + 1, t, s)*H(ell, mu, alpha, t, s), (ell, 0, L))"


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_joined_equations_are_the_derived_ones(depth):
    """Written out member by member, with base cases put in, nothing has changed."""
    theory = mean_field(mlp(depth))
    found = families(theory)
    values = {(str(e.lhs.func), e.lhs.args[0]): e.rhs for e in found.base_cases}

    def put(e):
        for a in e.atoms(Function):
            if a.args and (str(a.func), a.args[0]) in values:
                e = e.xreplace({a: values[str(a.func), a.args[0]]})
        return e

    apart = {e.lhs: e for e in theory.at_depth(depth).equations}
    for e in found.equations:
        for layer in range(1, depth + 1):
            at = {ell: Integer(layer)}
            ours = {y for x in e.terms if _nonzero(y := put(x.expr.subs(at)))}
            assert ours == {x.expr for x in apart[e.lhs.subs(at)].terms}


def _nonzero(e):
    return not (e.args and e.args[0] == 0)


def test_theory_without_layers_is_left_alone():
    theory = mean_field(mlp(1))
    found = families(theory)
    assert (found.equations, found.base_cases) == (theory.equations, ())


def test_weights_tied_over_depth_say_where_their_equations_hold():
    text = render(mean_field(recurrent(L, Function("phi"))), "single-site", "latex")
    rows = [row for row in text.splitlines() if "&=" in row and "k" in row.split("&=")[0]]
    assert rows
    assert all(r"k = 1,\dots,L-1" in row for row in rows)
    assert "_r_" not in text
