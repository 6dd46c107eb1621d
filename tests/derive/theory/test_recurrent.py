"""The classical theories of random recurrent networks, from programs written by hand."""

from __future__ import annotations

import pytest
from sympy import Derivative, Expr, Function, Integral, S, sqrt, symbols

from derive.calculus.sums import normal_form
from derive.program import s, t
from derive.theory import Average, Response
from derive.theory.routes import check_routes
from tests.derive.once import mean_field
from tests.derive.programs import decomposed, g, phi, recurrent, tau

x, eta, C, R = (Function(n) for n in ("x", "eta", "C_phi", "R_phieta"))


def test_iid_couplings_give_sompolinsky_crisanti_sommers() -> None:
    """dx/dt = -x + eta, <eta eta> = g^2 C, C = <phi phi> (1988), and no response."""
    theory = mean_field(recurrent())
    (e,) = theory.equations
    assert e.lhs == Derivative(x(t), t)
    assert e.rhs == -x(t) + eta(t)
    (u,) = theory.sources
    assert (u.symbol, u.partner, u.covariance) == (eta(t), eta(s), g**2 * C(t, s))
    assert [(q.symbol, q.definition) for q in theory.order_parameters] == [
        (C(t, s), Average(phi(x(t)) * phi(x(s))))
    ]
    check_routes(recurrent())


def test_correlated_couplings_act_back_on_themselves() -> None:
    """Marti, Brunel, Ostojic 2018: tau g^2 int R(t, s) phi(x(s)) ds, R the response of phi to the noise."""
    theory = mean_field(recurrent(tau))
    (e,) = theory.equations
    expected = -x(t) + eta(t) + Integral(g**2 * tau * R(t, s) * phi(x(s)), (s, 0, t))
    assert normal_form(e.rhs - expected) == 0
    (response,) = theory.responses()
    assert response.symbol == R(t, s)
    assert response.definition == Average(Response(phi(x(t)), eta(s)))
    assert response.causal == "strict"  # a rate of change moves x only later
    check_routes(recurrent(tau))


def test_fully_symmetric_and_antisymmetric() -> None:
    for value in (S.One, -S.One):
        (e,) = mean_field(recurrent(value)).equations
        assert (
            normal_form(e.rhs - (eta(t) - x(t) + Integral(value * g**2 * R(t, s) * phi(x(s)), (s, 0, t))))
            == 0
        )


@pytest.mark.parametrize("symmetry", [S.Zero, tau], ids=["iid", "correlated"])
def test_the_transpose_of_a_random_matrix_is_as_good(symmetry: Expr) -> None:
    forward, backward = (mean_field(recurrent(symmetry, transposed=x)) for x in (False, True))
    assert [e.rhs for e in forward.equations] == [e.rhs for e in backward.equations]
    assert [u.covariance for u in forward.sources] == [u.covariance for u in backward.sources]


def test_symmetric_part_by_hand_gives_the_same() -> None:
    """J = a M + b M^T, M iid, a^2 + b^2 = 1, 2 a b = tau: one noise eta = a u + b r, one response."""
    a, b = symbols("a b", positive=True)
    check_routes(decomposed(a, b))
    theory = mean_field(decomposed(a, b))
    variance = sum(c**2 * u.covariance for c, u in zip((a, b), theory.sources, strict=True))
    assert (variance - (a**2 + b**2) * g**2 * C(t, s)).expand() == 0
    # phi depends on u and r only through eta, so d phi/d u = a d phi/d eta and d phi/d r = b d phi/d eta
    e = theory.equation("x").rhs.subs(
        {Function("R_phiu")(t, s): a * R(t, s), Function("R_phir")(t, s): b * R(t, s)}
    )
    u, r = Function("u")(t), Function("r")(t)
    force = Integral(2 * a * b * g**2 * R(t, s) * phi(x(s)), (s, 0, t))
    assert normal_form(e - (-x(t) + a * u + b * r + force)) == 0
    # with a^2 + b^2 = 1 and 2 a b = tau this is the equation of correlated couplings
    values = {a: (sqrt(1 + tau) + sqrt(1 - tau)) / 2, b: (sqrt(1 + tau) - sqrt(1 - tau)) / 2}
    assert (a**2 + b**2).subs(values).expand() == 1
    assert (2 * a * b).subs(values).expand() == tau


def test_a_symmetric_matrix_used_both_ways_is_one_matrix() -> None:
    """J + J^T with tau = 1 is 2 J: u and r are the same field, responses add up to four times that of J."""
    one = S.One
    check_routes(decomposed(one, one, tau))
    theory = mean_field(decomposed(one, one, one))
    assert {u.covariance for u in theory.sources} == {g**2 * C(t, s)}
    assert len(theory.sources) == 3  # <u u>, <r r> and <u r>, all equal
    feedback = theory.equation("x").rhs.subs({Function(n)(t, s): R(t, s) for n in ("R_phiu", "R_phir")})
    u, r = Function("u")(t), Function("r")(t)
    force = Integral(4 * g**2 * R(t, s) * phi(x(s)), (s, 0, t))
    assert normal_form(feedback - (-x(t) + u + r + force)) == 0
