"""Tests of averages and responses: folded form, chain rule, linearity, calculus and printing."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sympy import (
    Derivative,
    DiracDelta,
    Expr,
    Function,
    Integer,
    Integral,
    KroneckerDelta,
    Sum,
    Symbol,
    cos,
    exp,
    latex,
    simplify,
    sin,
    srepr,
    symbols,
)

from derive.calculus.averages import Average, Response
from derive.calculus.sums import rename_bound
from derive.program import alpha, ell, gamma0, mu, s, t
from derive.show import latex as paper_latex
from derive.show import text
from tests.derive.once import mean_field, mlp

h, z, r, u, phi, K, y = (Function(n) for n in ("h", "z", "r", "u", "phi", "K", "y"))
a, b = symbols("a b")


def slope(x: Expr) -> Expr:
    return Derivative(phi(x), x)


def test_response_follows_the_chain_rule() -> None:
    body = phi(h(t)) * z(t) ** 2
    expected = slope(h(t)) * z(t) ** 2 * Response(h(t), r(s)) + 2 * z(t) * phi(h(t)) * Response(z(t), r(s))
    assert Response(body, r(s)).doit() == expected


def test_response_of_a_slope_is_the_second_derivative() -> None:
    second = Derivative(phi(h(t)), (h(t), 2))
    assert Response(slope(h(t)), r(s)).doit() == second * Response(h(t), r(s))


def test_response_through_a_scaled_argument() -> None:
    x = Symbol("x")
    found = Response(phi(2 * h(t)), r(s)).doit().subs(phi, sin).doit()
    assert simplify(found - 2 * cos(2 * h(t)) * Response(h(t), r(s))) == 0
    assert x not in found.free_symbols


def test_second_responses_are_kept() -> None:
    second = Response(Response(phi(h(t)), r(s)).doit(), r(0)).doit()
    expected = Response(Response(h(t), r(s)), r(0)) * slope(h(t))
    expected += Derivative(phi(h(t)), (h(t), 2)) * Response(h(t), r(s)) * Response(h(t), r(0))
    assert second.expand() == expected


def test_response_goes_under_sums_and_integrals() -> None:
    memory = Sum(K(t, s) * phi(h(s)), (s, 0, t - 1))
    s_ = Symbol("s_", nonnegative=True)
    inside = K(t, s_) * slope(h(s_)) * Response(h(s_), r(s))
    assert Response(memory, r(s)).doit(fields={"h", "r"}) == Sum(inside, (s_, 0, t - 1))
    flow = Integral(K(t, s) * phi(h(s)), (s, 0, t))
    assert Response(flow, r(0)).doit(fields={"h", "r"}) == Integral(
        K(t, s) * slope(h(s)) * Response(h(s), r(0)), (s, 0, t)
    )


def test_without_a_list_of_fields_nothing_is_assumed_deterministic() -> None:
    found = Response(y(t) * h(t), r(s)).doit()
    assert found == y(t) * Response(h(t), r(s)) + h(t) * Response(y(t), r(s))
    assert Response(y(t) * h(t), r(s)).doit(fields={"h", "r"}) == y(t) * Response(h(t), r(s))


def test_deterministic_things_do_not_respond() -> None:
    assert Response(Integer(3) * gamma0, r(s)).doit() == 0
    assert Response(Average(h(t)) * gamma0, r(s)).doit() == 0
    assert Response(u(t) + 1, r(s)).doit(sources={"u", "r"}) == 0


def test_a_source_responds_to_itself_at_the_same_indices() -> None:
    same = Response(r(ell, mu, t), r(ell, alpha, s))
    assert same.doit() == KroneckerDelta(mu, alpha) * KroneckerDelta(t, s)
    assert same.doit(discrete=False) == KroneckerDelta(mu, alpha) * DiracDelta(s - t)
    assert Response(r(1, t), r(2, s)).doit() == 0
    assert Response(r(t), r(t)).doit() == 1


def test_calculus_acts_inside_responses() -> None:
    body = gamma0**2 * h(t)
    assert Response(body, r(s)).diff(gamma0) == Response(2 * gamma0 * h(t), r(s))
    assert Response(h(t), r(s)).diff(gamma0) == 0
    assert Response(h(t), r(s)).diff(t) == Response(Derivative(h(t), t), r(s))
    assert isinstance(Response(h(t), r(s)).diff(s), Derivative)  # where it is pushed: no rule
    assert Response(h(t), r(s)).subs(s, 0) == Response(h(t), r(0))


def test_averages_unfold_by_linearity() -> None:
    body = 2 * gamma0 * h(t) + 3 + Sum(K(t, s) * h(s), (s, 0, t))
    assert Average(body).doit() == 2 * gamma0 * Average(h(t)) + 3 + Sum(Average(K(t, s) * h(s)), (s, 0, t))
    assert Average(body).doit(random={"h"}) == 2 * gamma0 * Average(h(t)) + 3 + Sum(
        K(t, s) * Average(h(s)), (s, 0, t)
    )
    assert Average(1).doit() == 1
    assert Average(Average(h(t)) * h(s)).doit() == Average(h(t)) * Average(h(s))
    assert (Average(2 * h(t)) / gamma0).doit() == 2 * Average(h(t)) / gamma0


def test_averages_stay_folded_until_asked() -> None:
    body = gamma0 * phi(h(t)) * phi(h(s))
    assert Average(body).body == body
    assert Average(body).args == (body,)


def test_two_sums_in_one_average_keep_their_own_variables() -> None:
    """<(sum_s f(s) h(s))^2> is a double sum; with one name for both variables it would be a single one."""
    f = Function("f")
    memory = Sum(f(s) * h(s), (s, 0, 2))
    for product in (memory**2, memory * Sum(f(s) * h(s), (s, 0, 2)) * 1):
        found = Average(product).linear({"h"})
        long = sum(f(i) * f(j) * Average(h(i) * h(j)) for i in range(3) for j in range(3))
        assert (found.doit().expand() - long).expand() == 0


def test_a_factor_at_the_bound_time_is_not_captured() -> None:
    found = Average(h(s) * Sum(K(t, s) * h(s), (s, 0, 1))).linear({"h"})
    assert found.doit() == K(t, 0) * Average(h(0) * h(s)) + K(t, 1) * Average(h(1) * h(s))


def test_calculus_acts_inside_averages() -> None:
    assert Average(phi(a * h(t))).diff(b) == 0
    found = Average(sin(a * h(t))).diff(a)
    assert found == Average(h(t) * cos(a * h(t)))
    assert Average(h(t)).diff(t) == Average(Derivative(h(t), t))
    assert Average(h(t) * h(s)).subs(s, t) == Average(h(t) ** 2)


def test_responses_inside_averages_unfold() -> None:
    found = Average(Response(gamma0 * phi(h(t)), r(s)) + Response(r(t), r(s))).doit()
    assert found == gamma0 * Average(slope(h(t)) * Response(h(t), r(s))) + KroneckerDelta(s, t)


def test_derivatives_inside_are_carried_out() -> None:
    folded = Average(slope(h(t)) * z(t)).subs(phi, sin)
    assert folded.has(Derivative)
    assert folded.doit() == Average(cos(h(t)) * z(t))
    second = Response(slope(h(t)), r(s)).subs(phi, sin).doit()
    assert second == -sin(h(t)) * Response(h(t), r(s))
    twice = Response(Response(phi(h(t)), r(s)), r(0))
    assert (twice.doit() - Response(twice.body.doit(), r(0)).doit()).expand() == 0
    assert twice.doit().has(Derivative(phi(h(t)), (h(t), 2)))


def test_a_theory_says_what_is_random_and_how_it_moves() -> None:
    """Without it anything may respond; with it kernels do not, and fields by their equations."""
    theory = mean_field(mlp(activation=phi))
    memory = theory.equation("h", 1).rhs
    loose = Response(memory, r(1, alpha, s)).doit()
    assert "K_x" in {str(x.body.func) for x in loose.atoms(Response)}
    known = theory.unfold(Response(memory, r(1, alpha, s)))
    assert {str(x.body.func) for x in known.atoms(Response)} == {"h", "z"}  # g is made of both
    for levels in (1, 2):
        found = theory.unfold(theory.order_parameter("A").definition, levels)
        assert (found - theory.unfold("A", levels)).expand().subs(s, t - 2).doit() == 0
    flow = mean_field(mlp(activation=phi, rule="flow"))
    found = flow.unfold(Response(r(1, mu, t), r(1, alpha, s)))
    assert found == KroneckerDelta(mu, alpha) * DiracDelta(s - t)


def test_bound_variables_are_renamed_only_where_they_collide() -> None:
    memory = Sum(h(s), (s, 0, t))
    assert rename_bound(memory, [t]) is memory
    nested = Sum(K(t, s) * Sum(h(alpha, s), (alpha, 1, 3)), (s, 0, t))
    renamed = rename_bound(nested, [s, alpha])
    assert nested.free_symbols == renamed.free_symbols
    assert renamed.subs(t, 2).doit() == nested.subs(t, 2).doit()


def test_they_print_folded() -> None:
    response = Response(phi(h(ell, mu, t)), r(ell, alpha, s))
    assert str(Average(response)) == "<d phi(h(ell, mu, t)) / d r(ell, alpha, s)>"
    assert latex(Average(h(t))) == r"\left\langle h{\left(t \right)} \right\rangle"
    theory = mean_field(mlp(activation=phi))
    assert text(Average(response), theory) == "⟨δφ(h^ℓ_μ(t))/δr^ℓ_α(s)⟩"
    assert r"\frac{\delta \phi(h^{\ell}_{\mu}(t))}" in paper_latex(Average(response), theory)


def test_srepr_round_trip() -> None:
    names = {"Average": Average, "Response": Response}
    from sympy import Symbol as Sy

    e = Average(Response(phi(h(t)) * gamma0, r(s)))
    assert eval(srepr(e), {"Symbol": Sy, "Function": Function, "Mul": type(a * b), **names}) == e


# -- any body ------------------------------------------------------------------------------------------------

leaf = st.sampled_from([h(t), z(t), h(0), Integer(2), gamma0])
bodies = st.recursive(
    leaf,
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda p: p[0] * p[1]),
        st.tuples(inner, inner).map(lambda p: p[0] + p[1]),
        inner.map(sin),
        inner.map(lambda x: x**2),
        inner.map(lambda x: exp(x / 5)),
    ),
    max_leaves=6,
)


@settings(max_examples=25, deadline=None)
@given(bodies)
def test_the_chain_rule_is_the_derivative_along_any_path(body: Expr) -> None:
    """With fields that are functions of one number R, responses are derivatives in R."""
    R = Symbol("R")
    path = {h(t): 1 + 2 * R, z(t): R**2 - R, h(0): cos(R)}
    found = Response(body, r(s)).doit()
    rates = {Response(x, r(s)): value.diff(R) for x, value in path.items()}
    direct = body.subs(path, simultaneous=True).diff(R)
    gap = (found.xreplace(rates).subs(path, simultaneous=True) - direct).subs(R, Integer(1) / 3)
    assert abs(gap.subs(gamma0, 2).evalf(30)) < 1e-15 * (1 + abs(direct.subs({R: 1 / 3, gamma0: 2}).evalf()))


@settings(max_examples=20, deadline=None)
@given(bodies, bodies)
def test_averages_are_linear(one: Expr, two: Expr) -> None:
    whole = Average(gamma0 * one + 3 * two).doit()
    assert (whole - gamma0 * Average(one).doit() - 3 * Average(two).doit()).expand() == 0


@pytest.mark.parametrize("word", ["h", "z"])
def test_named_fields_only_are_random(word: str) -> None:
    other = {"h": z, "z": h}[word]
    own = {"h": h, "z": z}[word]
    assert Average(other(t) * own(t)).linear({word}) == other(t) * Average(own(t))


def test_the_response_of_the_derivative_of_a_source_is_not_zero() -> None:
    """It is the derivative of a delta, and was 0 for a name in ``sources``."""
    r, h = Function("r"), Function("h")
    response = Response(Derivative(r(t), t), r(s))
    assert response.doit(sources=["r"]) == response.doit(fields=["h"]) == response
    assert Response(Derivative(h(t), t), r(s)).doit(sources=["h"]) == 0


def test_derivatives_of_a_delta_print_their_order() -> None:
    """All were printed as the delta itself."""
    assert [text(DiracDelta(t, n)) for n in (0, 1, 2, 4)] == ["δ(t)", "δ'(t)", "δ''(t)", "δ^(4)(t)"]
