"""Theories of entrywise rules: the average over pairs by both routes, how it prints, and who refuses it."""

from __future__ import annotations

import inspect
import pkgutil
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest
from sympy import Function, Sum, Symbol

import derive
from derive.calculus.pairs import Copy, EntryStep, PairMean
from derive.errors import NotApplicable, NotDerived
from derive.program import (
    Entrywise,
    GradientDescent,
    P,
    Program,
    adam,
    adamw,
    alpha,
    eta,
    gamma0,
    lion,
    mlp,
    mu,
    muon,
    rmsprop,
    s,
    sign_descent,
    t,
)
from derive.program.entrywise import A
from derive.theory import mean_field
from derive.theory.document import namespace
from derive.theory.routes import check_routes

lam = Symbol("lam", positive=True)
RULES = {
    "sign": sign_descent(eta),
    "adam": adam(eta),
    "adamw": adamw(eta, lam),
    "rmsprop": rmsprop(eta, decay=lam),
    "lion": lion(eta, decay=Function("lam")(t)),
    "schedule": sign_descent(eta / (1 + t)),
}


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize(("depth", "activation"), [(1, "relu"), (2, "tanh"), (3, "linear")])
def test_both_routes_agree(name: str, depth: int, activation: str) -> None:
    assert check_routes(mlp(depth, activation, rule=RULES[name])) == []


@pytest.mark.parametrize(
    "program",
    [
        mlp(2, "tanh", rule=adam(eta), bias=True),
        mlp(rule=adam(eta)),
        mlp(2, "relu", rule=adam(eta), loss="mean", outputs=3),
        mlp(3, "tanh", rule=lion(eta), relative_widths="a"),
    ],
    ids=["biases", "any depth", "outputs", "widths"],
)
def test_both_routes_agree_on_other_networks(program: Program) -> None:
    assert check_routes(program) == []


def test_the_memory_of_a_matrix_is_an_average_over_an_independent_unit() -> None:
    """Equation (5) of the theory: the step multiplies the present vector, and is strict in time."""
    theory = mean_field(mlp(2, "tanh", rule=adam(eta)))
    g, Delta, x = (Function(n) for n in ("g", "Delta", "x"))
    (term,) = (y for y in theory.equation("h", 1).terms if y.kind == "pair")
    gradient = Sum(Delta(alpha, s) * g(1, alpha, s) * Copy(x(alpha)), (alpha, 1, P))
    assert term.field == PairMean(EntryStep("W0", gradient, s) * Copy(x(mu)))
    assert (term.kernel, term.reach) == (eta * gamma0, "strict")
    (readout,) = (y for y in theory.equation("z", 2).terms if y.kind == "memory")
    assert not readout.expr.has(PairMean)
    assert "E~[" in theory.render()
    assert r"\widetilde{\mathbb{E}}" in theory.render(format="latex")


def test_decay_and_schedule_stand_in_the_kernel_alone() -> None:
    rate, decay = Function("eta")(t), Function("lam")(t)
    theory = mean_field(mlp(2, "tanh", rule=Entrywise(rate, A**3, decay=decay)))
    (term,) = (y for y in theory.equation("h", 1).terms if y.kind == "pair")
    assert term.kernel.has(Function("lam"))
    assert not term.field.has(Function("lam"))


def test_descent_as_an_entrywise_rule_is_descent() -> None:
    """With Q = A no average over copies is left, and the memory is that of gradient descent."""
    theory, plain = (
        mean_field(mlp(2, "tanh", rule=rule)) for rule in (Entrywise(eta, A), GradientDescent(eta))
    )
    for name, layer in (("h", 1), ("h", 2), ("z", 1), ("z", 2)):
        assert theory.equation(name, layer).rhs == plain.equation(name, layer).rhs


ALLOWED = {
    *("absorb_factors", "as_written", "at_start", "both_ways", "check_routes", "count_powers"),
    *("ensemble_law", "entrywise_rules", "error_slopes", "exchangeable", "families", "forward_pass"),
    *("frozen_features", "gradient_independence", "gradient_powers", "headline", "independent_backward"),
    *("instant_responses", "kinds_of", "laws", "linear_weights", "loss_decomposition", "mean_field"),
    *("named", "optimizer_powers", "output", "outputs", "parametrized", "path_integral", "read"),
    *(
        "render",
        "scaling_faults",
        "separate_families",
        "states_depth",
        "streams_of",
        "summary",
        "symbols_of",
        "symmetries",
    ),
    *("label_variance", "products_at_plain_indices", "require_free_layer_times"),
    *("tensor_program", "unknowns", "weight_in_loss", "weights", "width_constraints"),
    *("with_separate_ends", "without_equal_times", "without_responses", "without_silent"),
}
"""Functions that read a theory of any rule, or what the program itself says, and those of random data; those
that count powers take entrywise rules."""


def public_functions() -> Iterator[Callable[..., Any]]:
    """Yield every function of derive whose only required argument is a theory or a program."""
    for module in pkgutil.walk_packages(derive.__path__, "derive."):
        if not module.name.startswith(("derive.program", "derive.show", "derive.calculus", "derive.ledger")):
            for name, f in sorted(vars(import_module(module.name)).items()):
                if not name.startswith("_") and inspect.isfunction(f) and f.__module__ == module.name:
                    first, *rest = [*inspect.signature(f).parameters.values()] or [None]
                    kind = "" if first is None else str(first.annotation)
                    needed = [x for x in rest if x is not None and x.default is x.empty]
                    if ("Theory" in kind or "Program" in kind) and not needed and name not in ALLOWED:
                        yield f


@pytest.mark.parametrize("f", [*public_functions()], ids=lambda f: f"{f.__module__}.{f.__name__}")
def test_whoever_needs_linear_updates_refuses(f: Callable[..., Any]) -> None:
    program = mlp(2, "tanh", rule=adam(eta))
    kind = str(next(iter(inspect.signature(f).parameters.values())).annotation)
    with pytest.raises(NotApplicable):
        f(program if "Program" in kind else mean_field(program))


@pytest.mark.parametrize(
    "call",
    [
        derive.expand,
        derive.error_projected,
        derive.linear_closure,
        derive.lazy,
        derive.two_layer,
        derive.largest_rate,
        derive.first_step,
    ],
    ids=lambda f: f.__name__,
)
def test_the_refusal_is_one_sentence(call: Callable[..., Any]) -> None:
    with pytest.raises(NotDerived, match="W0 moves by Adam, which is not linear in the updates: "):
        call(mean_field(mlp(2, "linear", rule=adam(eta))))


def test_the_printed_theory_defines_its_steps() -> None:
    """A reader of the theory finds Q and its states, and the data format gives back each equation."""
    theory = mean_field(mlp(2, "tanh", rule=adam(eta), rules={"W": muon(eta)}))
    text = theory.render("single-site")
    assert "m(t+1)" in text
    assert "F_W(" in text
    data = eval(theory.render("single-site", "srepr"), namespace())
    assert [rhs for _, rhs in data["equations"]] == [e.rhs for e in theory.equations]


def test_a_term_of_pairs_is_explained() -> None:
    theory = mean_field(mlp(2, "tanh", rule=adam(eta)))
    terms = {"W0 @ x(mu)": theory.equation("h", 1).terms[-1]}
    terms["W(ell) @ tanh(h(ell, mu, t))"] = theory.equation("h", 2).terms[-1]
    for product, term in terms.items():  # each is explained by the definition of its own layer
        assert f"by Adam before t, applied in {product}" in theory.explain_term(term)
        assert f"= {product}" in theory.explain_term(term)
    assert "averaged over an independent unit" in theory.explain("h")
