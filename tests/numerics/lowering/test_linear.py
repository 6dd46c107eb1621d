"""Tests of lowering of linear theories, and of refusals of theories that the march cannot solve."""

from __future__ import annotations

from dataclasses import replace

import pytest
from sympy import Function, Mul, Rational, S, Sum, sin, symbols, tanh

from derive.linear.projection import error_projected
from derive.program import P, alpha, eta, gamma0, mu, s, t
from derive.theory import Average, Term
from numerics.lowering import NotLinear, lower
from numerics.lowering.linear import products
from tests.derive.once import mean_field, mlp
from tests.numerics.solver.helpers import solvable


def term(theory, name, expr):
    """Return ``theory`` with the memory of the field ``name`` replaced by ``expr``."""
    equations = tuple(
        replace(e, terms=(Term.local(expr, "memory"),)) if e.name == name else e for e in theory.equations
    )
    return replace(theory, equations=equations)


def test_the_rows_of_a_two_layer_network():
    table = lower(mean_field(mlp(1)).at_depth(1))
    h, g = table.row(("h", 1)), table.row(("g", 1))
    assert (h.indices, h.drives) == ((mu,), ((("u", 1), 1),))
    assert (g.indices, g.drives) == ((), ((("r", 1), 1),))
    (back,) = g.couplings
    assert back.field == ("h", 1)
    (m,) = back.kernel.monomials
    assert m.coefficient == eta * gamma0
    assert [f.tensor for f in m.factors] == [("Delta", None)]
    assert back.kernel.reach == "past"
    assert (("u", 1), ("u", 1)) in table.covariances


def test_what_does_not_depend_on_the_present_is_hoisted():
    """sum_alpha K_mu,alpha Delta_alpha(s) of the first layer is one product a step."""
    table = lower(solvable(3, "gd", "sum"))
    (h,) = table.hoisted
    assert {f.tensor[0] for f in h.factors} == {"K_x", "Delta"}
    assert h.rows == (mu,)


def test_projection_leaves_one_sample_index_in_every_coupling():
    table = lower(solvable(3, "gd", "sum"))
    assert all(c.kernel.cols == () for row in table.fields for c in row.couplings)
    plain = lower(solvable(3, "gd", "sum", False))
    assert any(c.kernel.cols for row in plain.fields for c in row.couplings)


def test_a_factor_in_front_of_a_sum_is_one_inside_it():
    theory = mean_field(mlp(1)).at_depth(1)
    g = Function("g")
    tables = [
        lower(term(theory, "h", e))
        for e in (Sum(g(1, s), (s, 0, t - 1)) * eta / 2, Sum(eta * g(1, s) / 2, (s, 0, t - 1)))
    ]
    first, second = (x.row(("h", 1)).couplings for x in tables)
    assert first == second


def test_a_sum_of_fields_is_two_couplings():
    theory = mean_field(mlp(1)).at_depth(1)
    h, g = Function("h"), Function("g")
    both = Sum(eta * (g(1, s) - 3 * g(1, s) * Function("G")(1, t, s)), (s, 0, t - 1))
    row = lower(term(theory, "h", both)).row(("h", 1))
    (c,) = row.couplings  # the same field: one kernel of two monomials
    assert sorted(len(m.factors) for m in c.kernel.monomials) == [0, 1]
    mixed = Sum(g(1, s) + Sum(Function("Delta")(alpha, s) * h(1, alpha, s), (alpha, 1, P)), (s, 0, t - 1))
    assert {c.field for c in lower(term(theory, "g", mixed)).row(("g", 1)).couplings} == {
        ("g", 1),
        ("h", 1),
    }


def test_a_nonlinear_network_is_refused():
    with pytest.raises(NotLinear):
        lower(mean_field(mlp(2, tanh)).at_depth(2))


def test_a_family_of_layers_is_refused():
    for theory in (mean_field(mlp()), mean_field(mlp(3)), error_projected(mean_field(mlp()))):
        with pytest.raises(ValueError, match="at_depth"):
            lower(theory)


@pytest.mark.parametrize(
    ("expr", "why"),
    [
        ("g(1, s)", "sums over all past steps"),
        ("Sum(g(1, s), (s, 1, t - 1))", "at most one sum or integral over past times"),
        ("Sum(g(1, s)*g(1, s), (s, 0, t - 1))", "not linear"),
        ("Sum(sin(g(1, s)), (s, 0, t - 1))", "not linear"),
        ("Sum(eta, (s, 0, t - 1))", "contains no field"),
        ("Sum(g(1, s)*sin(G(1, t, s)), (s, 0, t - 1))", "only products of numbers, correlations"),
        ("Sum(g(1, s)*G(1, s, t), (s, 0, t - 1))", "only if its last two arguments are the times t and s"),
        ("Sum(g(1, s)*h(1, alpha, s), (alpha, 1, P), (s, 0, t - 1))", "not linear"),
    ],
)
def test_terms_the_march_cannot_take(expr, why):
    names = {n: Function(n) for n in ("g", "h", "G")}
    names |= {"s": s, "t": t, "alpha": alpha, "P": P, "eta": eta, "Sum": Sum, "sin": sin}
    theory = mean_field(mlp(1)).at_depth(1)
    with pytest.raises(NotLinear, match=why):
        lower(term(theory, "g", eval(expr, names)))


def test_an_average_of_three_fields_is_refused():
    theory = mean_field(mlp(1)).at_depth(1)
    g = Function("g")
    (q, *rest) = theory.order_parameters
    for body in (g(1, t) ** 3, g(1, t), tanh(g(1, t)) * g(1, s), g(1, t) ** Rational(5, 2), 1 / g(1, t) ** 2):
        changed = replace(theory, order_parameters=(replace(q, definition=Average(body)), *rest))
        with pytest.raises(NotLinear, match="average of two fields"):
            lower(changed)


def test_products_flatten_sums():
    a, b = (Function(n)(alpha) for n in "ab")
    x, y = symbols("x y")
    found = list(products(x * Sum(a * (b + y), (alpha, 1, P)) + 2))
    assert {(c, Mul(*fs)) for c, fs in found} == {(x, a * b), (x * y, a), (S(2), S.One)}
