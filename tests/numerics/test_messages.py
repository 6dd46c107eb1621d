"""Tests of refusals of programs: they name the object or symbol and a remedy."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from sympy import Function, S, Sum, Symbol, symbols

import numerics
from derive.errors import ProgramError
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
    Population,
    Program,
    ell,
    eta,
    gamma0,
    mlp,
    mu,
    t,
)
from derive.theory.routes import RoutesDisagree, check_routes
from numerics.errors import Diverged, SpecError
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.verification import identities, networks
from numerics.verification.plan import NetworkPlan
from numerics.verification.run import _symbolic

GIVEN: dict[str, Any] = {
    "numbers": {"eta": 0.1, "gamma0": 1.0},
    "arrays": {"K_x": [[1.0]], "y": [1.0]},
    "times": range(3),
}


def one_layer(sample: Symbol = mu, time: Symbol = t) -> Network:
    """Return a linear network, written with these symbols."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, h = GivenVector("x", pixels, "K_x"), Field("h", units)
    W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units)
    lines = {
        h(sample, time): W @ x(sample),
        Function("f")(sample, time): Mean(w.symbol * h(sample, time)) / gamma0,
    }
    return Network("net", (h,), lines, weights=(W, w), given=(x,))


def trained(sample: Symbol = mu, time: Symbol = t) -> Program:
    loss = (Function("y")(sample) - Function("f")(sample, time)) ** 2 / 2
    return one_layer(sample, time).train(loss, GradientDescent(eta))


def test_a_network_has_to_be_trained_before_it_is_solved() -> None:
    with pytest.raises(SpecError, match=r"is a Network, .*network\.train\(loss, GradientDescent\(eta\)\)"):
        numerics.solve(one_layer(), **GIVEN)  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="int is not a problem"):
        numerics.solve(3, **GIVEN)  # type: ignore[call-overload]


def test_an_open_depth_says_how_to_close_it() -> None:
    told = r'its depth L is a symbol, .*numbers=\{\.\.\., "L": 2\}, program\.at_depth\(2\)'
    with pytest.raises(SpecError, match=told):
        numerics.solve(mlp(), **GIVEN)
    with pytest.raises(SpecError, match=told):
        numerics.simulate(mlp(), width=4, seeds=2, **GIVEN)
    with pytest.raises(SpecError, match=told):
        numerics.expand(mlp(), 2, **GIVEN)
    assert numerics.solve(mlp(), **GIVEN | {"numbers": GIVEN["numbers"] | {"L": 1}})["f"].shape == (3, 1)


@pytest.mark.parametrize("kind", [{}, {"integer": True}])
def test_symbols_that_look_like_those_of_the_package_are_named(kind: dict[str, bool]) -> None:
    with pytest.raises(ProgramError, match=r"its mu is not the symbol mu of derive\.program"):
        trained(sample=Symbol("mu", **kind))
    with pytest.raises(
        ProgramError, match=r"the symbol t of this definition is not the symbol t of derive\.program"
    ):
        trained(time=Symbol("t", **kind))


def test_a_layer_index_that_no_matrix_has_is_not_called_another_symbol() -> None:
    """It is the package's ``ell``: one matrix of all layers has no index that gives its range."""
    units, pixels = Population("units", shared=True), Population("pixels", given=True)
    x, h, f = GivenVector("x", pixels, "K_x"), Field("h", units, layered=True), Function("f")
    W, R, w = (
        GaussianMatrix("W", units, pixels),
        GaussianMatrix("R", units, units),
        GaussianVector("w", units),
    )
    lines = {
        h(1, mu, t): W @ x(mu),
        h(ell + 1, mu, t): R @ h(ell, mu, t),
        f(mu, t): Mean(w.symbol * h(L, mu, t)) / gamma0,
    }
    network = Network("tied", (h,), lines, weights=(W, R, w), given=(x,))
    with pytest.raises(ProgramError, match=r"no matrix with an index says how far ell runs.*ordered=True"):
        network.train(f(mu, t) ** 2, GradientDescent(eta))
    ranged = replace(network, ranges=(IndexRange(ell, S.One, L - 1),))
    with pytest.raises(ProgramError, match=r"use the matrix R.*ordered=True"):
        ranged.train(f(mu, t) ** 2, GradientDescent(eta))


def test_networks_that_diverge_while_a_theory_is_checked_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem.of(trained(), **GIVEN)

    def diverged(*_: object, **__: object) -> None:
        raise Diverged("train_loss is not finite at step 2", step=2)

    monkeypatch.setattr(networks, "simulate", diverged)
    with pytest.raises(Diverged, match=r"^finite networks of width 8: train_loss is not finite") as found:
        networks.train(problem, NetworkPlan((8,), (2,)))
    assert found.value.step == 2


def test_a_program_without_layers_is_derived_once() -> None:
    program = trained()
    problem = Problem.of(program, **GIVEN)
    names = [x.name for x in identities.derivation(problem, _symbolic(problem, program))]
    assert names == ["two derivations: differences", "wrong updates"]


def test_an_edited_backward_pass_is_told_to_say_so() -> None:
    program = mlp(1, "tanh")
    doubled = [replace(d, rhs=2 * d.rhs) if d.name == "g" else d for d in program.definitions]
    edited = replace(program, definitions=tuple(doubled))
    with pytest.raises(RoutesDisagree, match="declare descent=None in the program"):
        check_routes(edited)
    assert check_routes(replace(edited, descent=None)).gradients != "compared"


def test_a_mean_over_no_positions_is_not_blamed_on_the_data() -> None:
    """At the first position the sum over earlier ones is empty: 0/0."""
    units, pixels, p, r = Population("units"), Population("pixels", given=True), *symbols("p r", integer=True)
    x, h, f, n = GivenVector("x", pixels, "K_x"), Field("h", units), Function("f"), Function("n")
    W, w = GaussianMatrix("W", units, pixels), GaussianVector("w", units)
    lines = {
        h(mu, p, t): W @ x(mu, p),
        n(mu, p, t): Sum(Mean(h(mu, r, t) ** 2), (r, 1, p - 1)),
        f(mu, p, t): Sum(Mean(w.symbol * h(mu, r, t)), (r, 1, p - 1)) / n(mu, p, t),
    }
    ranges = (IndexRange(p, S.One, S(2)), IndexRange(r, S.One, S(2)))
    net = Network("earlier", (h,), lines, weights=(W, w), given=(x,), ranges=ranges)
    program = net.train((Function("y")(mu, p) - f(mu, p, t)) ** 2 / 2, GradientDescent(eta), together=True)
    given = {"numbers": GIVEN["numbers"], "arrays": {"K_x": np.eye(2).reshape(1, 2, 1, 2), "y": [[1.0, 1.0]]}}
    solve = partial(numerics.solve, solver=Solver(method="paths", samples=64))
    for command in (solve, partial(numerics.simulate, width=4, seeds=2)):
        with pytest.raises(Diverged, match="a quotient there is 0/0, such as a mean over no positions"):
            command(program, times=range(2), **given)
