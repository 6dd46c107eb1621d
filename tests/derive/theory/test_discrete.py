"""Exact discrete time: the theory for counted steps, its first steps by hand, and its way to a flow (M)."""

from __future__ import annotations

import pytest
from sympy import Expr, Function, Integral, S, Sum, Symbol, simplify

from derive.calculus.averages import Average, Response
from derive.program import L, alpha, ell, gamma0, mu, s, t
from derive.theory import Theory
from tests.derive.once import mean_field, mlp

phi, h, z, g, u, r = (Function(n) for n in ("phi", "h", "z", "g", "u", "r"))
eta = Symbol("eta", positive=True)


@pytest.fixture(scope="module")
def steps() -> Theory:
    return mean_field(mlp(L, phi, "gd"))


@pytest.fixture(scope="module")
def flow() -> Theory:
    return mean_field(mlp(L, phi, "flow"))


def test_nothing_has_moved_at_the_start(steps: Theory) -> None:
    """At t = 0 h is its source; z holds its equal-time response."""
    P = Symbol("P", integer=True, positive=True)
    assert steps.equation("h", ell + 1).rhs.subs({t: 0, P: 2}).doit() == u(ell + 1, mu, 0)
    rest = steps.equation("z", ell).rhs.subs({t: 0, P: 2}).doit() - r(ell, mu, 0)
    assert rest.has(Function("B"))
    assert not rest.has(Function("G"))


def test_responses_are_to_the_opposite_source(steps: Theory) -> None:
    """(M.8), repaired: A = <d phi(h)/d r>/gamma0, B = <d g/d u>/gamma0; A strictly in the past, B not."""
    A, B = (steps.order_parameter(n) for n in ("A", "B"))
    assert A.definition == Average(Response(phi(h(ell, mu, t)), r(ell, alpha, s))) / gamma0
    assert B.definition == Average(Response(g(ell + 1, mu, t), u(ell + 1, alpha, s))) / gamma0
    assert (A.causal, B.causal) == ("strict", "past")


def test_first_step_of_one_hidden_layer_by_hand() -> None:
    """h(1) = h(0) + eta gamma0 sum Delta K g(0), z(1) = z(0) + eta gamma0 sum Delta phi(h(0))."""
    theory = mean_field(mlp(1, phi, "gd"))
    P = Symbol("P", integer=True, positive=True)
    Delta, K = Function("Delta"), Function("K_x")
    pushed = Sum(Delta(alpha, 0) * K(mu, alpha) * g(1, alpha, 0), (alpha, 1, P))
    risen = Sum(Delta(alpha, 0) * phi(h(1, alpha, 0)), (alpha, 1, P))
    for name, source, move in (("h", u(1, mu, 1), pushed), ("z", r(1, mu, 1), risen)):
        found = theory.equation(name, 1).rhs.subs(t, 1).subs(P, 2).doit()
        assert simplify(found - source - eta * gamma0 * move.subs(P, 2).doit()) == 0


@pytest.mark.parametrize(("name", "site"), [("h", ell + 1), ("z", ell), ("h", S.One), ("z", L)])
def test_small_steps_turn_sums_into_integrals(steps: Theory, flow: Theory, name: str, site: Expr) -> None:
    """Term by term: eta sum over steps is an integral; a response to a step's source eta times a density."""
    mine, others = steps.equation(name, site).terms, flow.equation(name, site).terms
    assert [x.kind for x in mine] == [x.kind for x in others]
    for x, y in zip(mine, others, strict=True):
        if x.kind == "source":
            assert x.expr == y.expr
            continue
        rate = eta if x.kind == "memory" else S.One
        assert simplify(_integrand(x.expr) / rate - _integrand(y.expr)) == 0


def _integrand(e: Expr) -> Expr:
    """Return the summand or integrand over the past and over samples."""
    while isinstance(e, Sum | Integral):
        e = e.function
    parts = [x for x in e.args if isinstance(x, Sum | Integral)]
    return e if not parts else e / parts[0] * _integrand(parts[0])


def test_kernels_do_not_know_how_time_runs(steps: Theory, flow: Theory) -> None:
    for name in ("Phi", "G", "A", "B"):
        assert steps.order_parameter(name).definition == flow.order_parameter(name).definition
    assert steps.observables[0].rhs == flow.observables[0].rhs
