"""Tests of theories without memory: equations of motion are equivalent to the sums over the past."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from sympy import Add, Expr, Function, Integer, Rational, Symbol, simplify

from derive.errors import NotApplicable
from derive.program import L, P, Program, s, t
from derive.reduce.memoryless import Markov, State, markov
from tests.derive.once import (
    convolution,
    feedback_alignment,
    isotropic,
    mean_field,
    mlp,
    perceptron,
    recurrent,
)

decay, tau, kept = (Symbol(n, positive=True) for n in ("lambda", "tau", "m"))

STEPS: dict[str, Callable[[], Program]] = {
    "steps": lambda: mlp(1, "tanh"),
    "decay": lambda: mlp(1, "tanh", weight_decay=decay),
    "momentum": lambda: mlp(1, "relu", momentum=Rational(1, 3)),
    "both": lambda: mlp(1, "tanh", weight_decay=decay, momentum=kept),
    "bias and channels": lambda: mlp(1, "tanh", bias=True, outputs=2),
    "feedback alignment": lambda: feedback_alignment(1, "tanh"),
    "convolution": lambda: convolution(1, "tanh", positions=3, receptive=1),
}
FLOWS: dict[str, Callable[[], Program]] = {
    "flow": lambda: mlp(1, "tanh", "flow"),
    "decay": lambda: mlp(1, "tanh", "flow", weight_decay=decay),
    "momentum": lambda: mlp(1, "tanh", "flow", momentum=tau),
    "bias": lambda: mlp(1, "softplus", "flow", bias=True),
}


def one_sample(e: Expr) -> Expr:
    return e.subs(P, 1).doit()


def moved(x: State) -> Expr:
    """Return the state after two steps from zero, by its equation of motion."""
    value: Expr = Integer(0)
    for now in range(2):
        value = one_sample(x.motion.rhs).xreplace({x.symbol: Symbol("X")}).subs(t, now).subs("X", value)
    return value


@pytest.mark.parametrize(
    "name",
    [pytest.param(x, marks=pytest.mark.slow) if x in ("steps", "momentum", "both") else x for x in STEPS],
)
def test_steps_add_up_to_the_sums(name: str) -> None:
    for x in markov(mean_field(STEPS[name]())).states:
        assert simplify(moved(x) - one_sample(x.definition.subs(t, 2))) == 0
        assert one_sample(x.definition.subs(t, 0)) == 0


@pytest.mark.parametrize("name", FLOWS)
def test_flows_are_the_derivatives_of_the_integrals(name: str) -> None:
    """Leibniz: the integrand at s = t, and the integral of the integrand's derivative."""
    for x in markov(mean_field(FLOWS[name]())).states:
        integrand = Add(*[one_sample(i.function) for i in Add.make_args(x.definition)])
        rate = one_sample(x.motion.rhs)
        assert simplify(rate.subs(x.symbol, 0) - integrand.subs(s, t)) == 0
        assert simplify(integrand.diff(t) - rate.coeff(x.symbol) * integrand) == 0


@pytest.mark.parametrize("name", STEPS)
def test_fields_are_those_of_the_theory(name: str) -> None:
    """With the sums in place of the states, and sources at the start where they do not move."""
    theory = mean_field(STEPS[name]())
    reduced = markov(theory)
    sums = {x.symbol: x.definition for x in reduced.states}
    names = {u.symbol.func for u in theory.sources}
    for old, new in zip(theory.equations, reduced.fields, strict=True):
        there = new.rhs.xreplace(sums)
        if "decay" not in name and name != "both":
            there = there.replace(lambda a: a.func in names, lambda a: a.func(*a.args[:-1], t))
            assert one_sample(there.subs(t, 3) - old.rhs.subs(t, 3)).expand() == 0
        assert s not in new.rhs.free_symbols


def test_what_is_drawn_at_the_start() -> None:
    flow: Markov = markov(mean_field(mlp(1, "tanh", "flow", weight_decay=decay)))
    u, r = (Function(n) for n in "ur")
    mu = flow.theory.equations[0].lhs.args[1]
    assert [x.symbol for x in flow.start] == [u(1, mu, 0), r(1, mu, 0)]
    assert not any(x.covariance.has(t, s) for x in flow.start)
    scale = Add(*flow.fields[0].rhs.args).coeff(u(1, mu, 0))
    assert scale.subs(t, 0) == 1
    assert simplify(scale.diff(t) + decay * scale) == 0


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (partial(mlp, 2, "tanh"), "Phi"),
        (partial(mlp, L), "times its value at time 0"),
        (partial(mlp, 1, "tanh", temperature=Rational(1, 2)), "times its value at time 0"),
        (partial(mlp, 1, "tanh", "multistep"), "w\\(t, s\\)"),
        (partial(recurrent, 2), "times its value at time 0"),
        (partial(isotropic, 1), "times its value at time 0"),
        (partial(perceptron), "times its value at time 0"),
    ],
)
def test_memory_is_named(program: Callable[[], Program], reason: str) -> None:
    with pytest.raises(NotApplicable, match=reason):
        markov(mean_field(program()))


def test_responses_are_named() -> None:
    """Only the sources without time are kept, so that a remaining response must be named."""
    theory = mean_field(mlp(2, "tanh")).at_depth(2)
    first = tuple(u for u in theory.sources if not u.covariance.has(t))
    changed: Any = theory.__class__(
        theory.program, first, theory.equations, theory.order_parameters, theory.scalars
    )
    with pytest.raises(NotApplicable, match=r"A\(1, mu, alpha, t, s\), a function of the present"):
        markov(changed)
