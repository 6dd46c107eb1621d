"""Tests of the error-projected closure: rewritten equations and refusals.

Its numbers are unchanged according to tests/numerics/solver/test_march.py.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from sympy import Function, Integral, S, Sum, Symbol, tanh
from sympy.core.function import AppliedUndef

from derive.calculus.averages import Response
from derive.calculus.symbols import primed
from derive.errors import NotApplicable
from derive.linear import projection
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    L,
    Mean,
    Network,
    P,
    Parametrization,
    Population,
    alpha,
    ell,
    eta,
    gamma0,
    mu,
    recurrent,
    s,
    t,
)
from derive.theory import Term
from numerics.solver.direct import evaluate
from tests.derive.once import error_projected, mean_field, mlp

Delta, G, K_x, b, g, h, p, q, r, u, u_p = (
    Function(n) for n in ("Delta", "G", "K_x", "b", "g", "h", "p", "q", "r", "u", "u_p")
)


def names(theory, e):
    return {str(a.func) for a in e.atoms(AppliedUndef)}


def test_backward_fields_see_the_samples_through_the_projection_only():
    theory = error_projected(mean_field(mlp()))
    assert theory.reduction == "error projection"
    for e in theory.equations:
        if e.name == "g":
            past = [a for a in e.rhs.atoms(AppliedUndef) if str(a.func) in ("h", "p") and a.args[-1] == s]
            assert past
            assert {str(a.func) for a in past} == {"p"}
            assert not e.rhs.has(alpha)


def test_the_top_and_interior_equations():
    theory = error_projected(mean_field(mlp()))
    top = theory.equation("g", L).rhs
    assert top - (r(L, t) + Sum(eta * gamma0 * p(L, s), (s, 0, t - 1))) == 0
    interior = next(e for e in theory.equations if e.name == "g" and e.lhs.args[0] != L)
    assert {"b", "G", "p", "r"} <= names(theory, interior.rhs)


def test_the_projected_field_is_the_projection_of_the_equation():
    theory = error_projected(mean_field(mlp(1))).at_depth(1)
    e = theory.equation("p", 1)
    source, memory = e.terms
    assert source.expr == u_p(1, t)
    weights = Delta(mu, t) * Delta(alpha, s) * K_x(mu, alpha)
    inner = memory.expr.function.doit()
    assert memory.expr.limits[0] == (s, 0, t - 1)
    assert inner.has(g(1, s))
    two = {mu: 1, alpha: 1, P: 1}
    assert (memory.expr.function.subs(P, 1).doit() - eta * gamma0 * g(1, s) * weights.subs(two)).expand() == 0


def test_sources_come_with_their_cross_covariances():
    theory = error_projected(mean_field(mlp(2))).at_depth(2)
    pairs = {(str(x.symbol.func), str(x.partner.func)) for x in theory.sources}
    assert pairs >= {("u", "u"), ("u", "u_p"), ("u_p", "u"), ("u_p", "u_p"), ("r", "r")}
    cross = next(x for x in theory.sources if x.symbol == u(2, mu, t) and x.partner == u_p(2, s))
    assert cross.covariance == q(1, mu, t, s)  # <u_mu(t) u_p(s)> is <h_mu(t) p(s)> of the layer below


def test_the_response_to_the_projected_source():
    theory = error_projected(mean_field(mlp()))
    x = theory.order_parameter("b")
    response = next(iter(x.definition.atoms(Response)))
    assert response.body == g(ell + 1, t)
    assert str(response.source.func) == "u_p"
    assert "B" not in {y.name for y in theory.order_parameters}
    assert theory.order_parameter("q").symbol == q(ell, mu, t, s)


@pytest.mark.parametrize("rule", ["gd", "flow", "multistep"])
@pytest.mark.parametrize("loss", ["sum", "mean"])
def test_every_rule_projects(rule, loss):
    theory = error_projected(mean_field(mlp(L, "linear", rule, loss)))
    past = Integral if rule == "flow" else Sum
    assert all(isinstance(x.expr, past) for e in theory.equations for x in e.terms if x.kind != "source")


def test_an_untied_network_projects_too():
    theory = error_projected(mean_field(mlp(L, tied=False)))
    assert theory.responses() == ()


def test_it_commutes_with_fixing_the_depth():
    late = error_projected(mean_field(mlp())).at_depth(3)
    for k in (1, 2, 3):
        early = error_projected(mean_field(mlp(3))).at_depth(3)
        for n in "hgp":
            assert late.equation(n, k).rhs - early.equation(n, k).rhs == 0


def test_a_nonlinear_network_is_refused():
    with pytest.raises(NotApplicable):
        error_projected(mean_field(mlp(2, tanh)))


def test_another_way_through_the_samples_is_refused():
    theory = mean_field(mlp(1))
    stray = Term.local(Sum(h(1, alpha, s), (alpha, 1, P), (s, 0, t - 1)), "memory")
    equations = tuple(replace(e, terms=(*e.terms, stray)) if e.name == "g" else e for e in theory.equations)
    with pytest.raises(NotApplicable, match="only by the projection"):
        error_projected(replace(theory, equations=equations))


def test_a_field_without_source_or_correlation_is_refused():
    theory = mean_field(mlp(1))
    with pytest.raises(NotApplicable, match="must be a field whose equation has a Gaussian source"):
        error_projected(theory, field="x")
    bare = replace(theory, order_parameters=tuple(x for x in theory.order_parameters if x.name != "H"))
    with pytest.raises(NotApplicable, match="no correlation function"):
        error_projected(bare)


def test_a_field_that_is_the_same_for_all_samples_is_refused():
    units, y, f = Population("units"), Function("y"), Function("f")
    first, second = Field("first", units), Field("second", units)
    b, w, W = GaussianVector("b", units), GaussianVector("w", units), GaussianMatrix("W", units, units)
    lines = {
        first(t): b.symbol,
        second(t): W @ first(t),
        f(mu, t): Mean(w.symbol * second(t)) / gamma0,
    }
    network = Network("bias", (first, second), lines, weights=(W, w), frozen=(b,))
    with pytest.raises(NotApplicable, match="has no index mu of samples"):
        error_projected(
            mean_field(network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))), "first", "Delta"
        )


@pytest.mark.parametrize("rule", ["gd", "multistep"])
@pytest.mark.parametrize(
    "option",
    [{"bias": True}, {"branch": Symbol("beta")}, {"outputs": Symbol("C", integer=True, positive=True)}],
    ids=["bias", "branch", "outputs"],
)
def test_biases_branches_and_outputs_have_a_projection(option, rule):
    theory = error_projected(mean_field(mlp(rule=rule, **option)))
    past = [a for e in theory.equations for a in e.rhs.atoms(AppliedUndef) if a.args[-1] == s]
    assert {str(a.func) for a in past} & {"h", "p", "g"} == {"p", "g"}  # no sample remembers another


def test_each_channel_of_the_error_has_its_projection():
    channels = Symbol("C", integer=True, positive=True)
    theory = error_projected(mean_field(mlp(outputs=channels)))
    c = next(e for e in theory.scalars if e.name == "Delta").lhs.args[1]
    assert theory.equation("p", 1).lhs == p(1, c, t)
    assert p(ell, primed(c), s) in theory.order_parameter("q").definition.atoms(AppliedUndef)


def test_a_source_of_biases_keeps_its_name_apart_from_the_projected_response():
    theory = error_projected(mean_field(mlp(bias=True)))
    assert {x.name for x in theory.responses()} == {"A", "a", "B_p"}


def test_names_of_the_field_and_the_error_are_read_off_the_updates():
    """Renamed fields and errors give the same projected theory, in their names."""
    units, pixels = Population("N"), Population("D", given=True)
    x, a = GivenVector("x", pixels, "K_x"), Field("a", units, layered=True)
    U = GaussianMatrix("U", units.at(1), pixels)
    W = GaussianMatrix("W", units.at(ell + 1), units.at(ell), index=IndexRange(ell, S.One, L - 1))
    v, out, y = GaussianVector("v", units.at(L)), Function("out"), Function("y")
    lines = {
        a(1, mu, t): U @ x(mu),
        a(ell + 1, mu, t): W(ell) @ a(ell, mu, t),
        out(mu, t): Mean(v.symbol * a(L, mu, t)) / gamma0,
    }
    network = Network("net", (a,), lines, weights=(U, W, v), given=(x,))
    program = network.train(
        (y(mu) - out(mu, t)) ** 2 / 2, GradientDescent(eta), Parametrization(gamma0), error="err"
    )
    found = error_projected(mean_field(program))
    (top,) = [e for e in found.equations if e.name.startswith("g") and e.lhs.args == (L, t)]
    assert names(found, top.rhs) == {"r", "p"}
    expected = Sum(eta * gamma0 * p(L, s), (s, 0, t - 1))
    assert top.rhs - r(L, t) == expected


def test_a_single_field_with_names_of_its_own_has_a_projection_without_layers():
    units, inputs = Population("units"), Population("inputs", given=True)
    a, z = Field("a", units), GivenVector("z", inputs, "Kz")
    A, v = GaussianMatrix("A", units, inputs), GaussianVector("v", units)
    o, y = Function("o")(mu, t), Function("y")(mu)
    forward = {a(mu, t): A @ z(mu), o: Mean(v.symbol * a(mu, t)) / gamma0}
    net = Network("own names", (a,), forward, (A, v), given=(z,))
    theory = mean_field(net.train((y - o) ** 2 / 2, GradientDescent(eta)))
    projected = error_projected(theory)
    p = Function("p")
    assert projected.equation("g_a").rhs.has(p(s))
    given = {
        "values": {eta: 0.2, gamma0: 1.1, P: 2},
        "data": {"Kz": [[1, 0.3], [0.3, 0.8]], "y": [1.0, -1.0]},
    }
    plain, other = (evaluate(x, steps=4, **given).value("o") for x in (theory, projected))
    assert abs(plain - other).max() < 1e-12  # rounding: both are exact for linear networks


def test_steps_of_a_recurrent_network_are_not_projected_as_layers():
    theory = mean_field(recurrent(activation="linear"))
    with pytest.raises(NotApplicable, match=r"h\(k \+ 1, mu, t\) has further indices"):
        error_projected(theory)


def test_a_theory_is_projected_once():
    with pytest.raises(NotApplicable, match="projected on the error already"):
        projection.error_projected(error_projected(mean_field(mlp())))


def test_a_field_called_q_keeps_its_name_apart_from_the_projected_correlation():
    units, inputs = Population("units"), Population("inputs", given=True)
    field, z = Field("q", units), GivenVector("z", inputs, "Kz")
    A, v = GaussianMatrix("A", units, inputs), GaussianVector("v", units)
    o, y = Function("o")(mu, t), Function("y")(mu)
    lines = {field(mu, t): A @ z(mu), o: Mean(v.symbol * field(mu, t)) / gamma0}
    net = Network("q", (field,), lines, (A, v), given=(z,))
    theory = error_projected(mean_field(net.train((y - o) ** 2 / 2, GradientDescent(eta))))
    stated = [x.name for x in (*theory.equations, *theory.order_parameters)]
    assert len(set(stated)) == len(stated)
    q_2 = theory.order_parameter("q_2")
    assert q_2.definition.atoms(AppliedUndef) == {Function("q")(mu, t), p(s)}
