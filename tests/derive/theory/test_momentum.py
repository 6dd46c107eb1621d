"""Tests of momentum: the memory of the weights, and the resulting theories (L)."""

from __future__ import annotations

import pytest
from sympy import Function, Rational, Symbol, limit, oo, simplify, symbols

from derive.program import L, Momentum, MomentumFlow, s, t
from derive.theory import Theory
from derive.theory.routes import check_routes
from tests.derive.once import mean_field, mlp

tau, lag = symbols("tau lag", positive=True)
phi = Function("phi")


def memories(theory: Theory, name: str) -> list[object]:
    return [x.expr for e in theory.equations if e.name == name for x in e.terms if x.kind == "memory"]


def test_memory_solves_the_equation_of_motion() -> None:
    """(L.1): tau w'' + w' = force, from rest; the weight k of a force at s obeys it for t > s."""
    kept, fed = MomentumFlow(tau).memory(t, s)
    assert kept == 1
    assert simplify(tau * fed.diff(t, 2) + fed.diff(t)) == 0
    assert fed.subs(s, t) == 0
    assert simplify(tau * fed.diff(t).subs(s, t)) == 1


def test_momentum_fades_with_its_time_constant() -> None:
    _, fed = MomentumFlow(tau).memory(t, s)
    assert limit(fed.subs(t, s + lag), tau, 0, "+") == 1
    assert limit(fed.subs(t, s + lag) * tau, tau, oo) == lag


def test_heavy_ball_by_hand() -> None:
    """Three steps of v <- beta v + force, w <- w + eta v: the weights of the forces."""
    beta, eta = Rational(3, 5), Rational(1, 3)
    rule = Momentum(eta, beta)
    pushes = [Symbol(f"p{k}") for k in range(3)]
    w = v = Rational(0)
    for push in pushes:
        v = beta * v + push
        w = w + eta * v
    _, fed = rule.memory(t, s)
    told = sum(fed.subs({t: 3, s: k}) * push for k, push in enumerate(pushes))
    assert simplify(w - told) == 0
    assert simplify(fed.subs({t: 3, s: 2})) == eta


@pytest.mark.parametrize("rule", ["flow", "gd"])
def test_without_momentum_it_is_plain_descent(rule: str) -> None:
    plain = mean_field(mlp(2, phi, rule))
    if rule == "gd":
        assert mean_field(mlp(2, phi, rule, momentum=0)).equivalent(plain)
        return
    theory = mean_field(mlp(2, phi, rule, momentum=tau))
    assert not theory.equivalent(plain)
    for mine, others in zip(memories(theory, "h"), memories(plain, "h"), strict=True):
        faded = mine.replace(lambda x: x.func.__name__ == "exp", lambda _: 0)
        assert simplify(faded - others) == 0


@pytest.mark.parametrize("rule", ["flow", pytest.param("gd", marks=pytest.mark.slow)])
def test_both_routes_agree(rule: str) -> None:
    assert check_routes(mlp(L, phi, rule, momentum=Rational(1, 2))) == []


def test_decimal_numbers_are_fractions() -> None:
    """Factors 1.0 of one route alone were a disagreement."""
    given = {"weight_decay": 0.1, "momentum": 0.5}
    fractions = {"weight_decay": Rational(1, 10), "momentum": Rational(1, 2)}
    assert mean_field(mlp(1, phi, **given)) == mean_field(mlp(1, phi, **fractions))
