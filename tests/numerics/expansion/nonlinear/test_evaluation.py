"""Numbers of the nonlinear expansion: the linear limit, depth one by points, sampled averages, depth laws."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import mpmath
import numpy as np
import pytest
from sympy import Function, Lambda, Rational, Symbol, asin, erf, lambdify, nsolve, pi, tanh

import numerics.expansion.trees as evaluation
from derive.expansion.nonlinear import expand_nonlinear as derived
from derive.expansion.nonlinear.depth import p, q, x
from derive.expansion.nonlinear.trees import ForestCoefficient
from derive.program import L, TrainingRule, ell
from numerics.errors import SpecError
from numerics.expansion import expand, series
from numerics.expansion.statics import Moments, Statics
from numerics.expansion.trees import expand_nonlinear
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.experiment.theory import integrated, program_of
from tests.derive.once import mean_field, mlp

KERNEL = [[1.0, 0.3], [0.3, 0.8]]
TARGETS = [1.0, -0.6]


def experiment(depth: int, activation: str = "tanh", **training: Any) -> Experiment:
    rule = training or {"learning_rate": 0.3, "steps": 4, "loss": "sum"}
    return Experiment.from_dict(
        {"network": {"depth": depth, "activation": activation}, "training": rule},
        kernel=KERNEL,
        targets=TARGETS,
    )


@lru_cache(maxsize=4)
def symbolic(rule: TrainingRule, order: int) -> Any:
    """Return the expansion of a symbolic phi, at symbolic depth."""
    return derived(mean_field(mlp(L, Function("phi")).with_rule(rule)), order)


@pytest.mark.parametrize(("depth", "rule"), [pytest.param(1, "flow", marks=pytest.mark.slow), (2, "gd")])
def test_the_identity_is_the_linear_network(depth: int, rule: str) -> None:
    """Every variable at every order, all samples; responses in a layer whose g has no sample sum over it."""
    y = Symbol("y", real=True)
    how = {"rule": "flow", "time": 1.0, "points": 3} if rule == "flow" else {"learning_rate": 0.1, "steps": 5}
    run = experiment(depth, "linear", **how)
    expected = expand(run, 2)
    general = symbolic(integrated(program_of(run)).rule, 2)
    of_identity = replace(general, site=replace(general.site, activation=Lambda(y, y)))
    found = expand_nonlinear(Problem.of(run), 2, of_identity)
    assert list(found.order) == list(expected.order) == [0, 2]
    for name in ("error", "train_loss", "Phi", "tangent_kernel"):
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=1e-11)
    np.testing.assert_allclose(found.G[..., 0, 1], expected.G, rtol=0, atol=1e-11)
    if depth > 1 and rule == "gd":
        np.testing.assert_allclose(found.A[:, :-1].sum("sample_"), expected.A[:, :-1], rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.B[..., 0, :], expected.B, rtol=0, atol=1e-12)


def test_the_first_step_of_depth_one() -> None:
    """h(1) = u + eta gamma0 sum_a y_a K_.a phi'(u_a) r_a, z(1) likewise: both of order one, by points."""
    found = expand(experiment(1), 2).sel(order=2)
    x1 = np.linspace(-9, 9, 361)  # the trapezoidal rule, which is exact for what is analytic
    w1 = np.exp(-(x1**2) / 2)
    w1 /= w1.sum()
    u = (
        np.stack(np.meshgrid(x1, x1, indexing="ij"), -1).reshape(-1, 2)
        @ np.linalg.cholesky(np.array(KERNEL)).T
    )
    weight = np.outer(w1, w1).ravel()
    K, y, eta = np.array(KERNEL), np.array(TARGETS), 0.3
    slope = 1 - np.tanh(u) ** 2
    bend = -2 * np.tanh(u) * slope
    push = eta * (slope * y) @ K  # h1 = push * r, with r the same at both samples
    expected = np.einsum("n,ni,nj->ij", weight, slope * push, slope * push)
    half = np.einsum("n,ni,nj->ij", weight, bend * push**2 / 2, np.tanh(u))
    np.testing.assert_allclose(found.Phi.values[0, 1, 1], expected + half + half.T, atol=1e-9)


@pytest.mark.slow
def test_planted_errors_are_seen() -> None:
    """Half of a covariance's correction, as (P.25) prints it, or no D at all."""
    run = experiment(2)
    right = expand(run, 2).sel(order=2)
    expansion = series(run, 2)
    laws = dict(expansion.laws)
    for tensor, law in laws.items():
        if (tensor.name, tensor.order) == ("G", 2):
            halved = {
                t: c / 2 if any((s.tensor.name, s.tensor.order) == ("G", 2) for s in t.statics) else c
                for t, c in law.terms.items()
            }
            laws[tensor] = replace(law, terms=halved)
    wrong = expand_nonlinear(Problem.of(run), 2, replace(expansion, laws=laws)).sel(order=2)
    assert float(np.abs(right.G - wrong.G).max()) > 0.05
    np.testing.assert_allclose(right.G[1], wrong.G[1], atol=1e-12)


@pytest.mark.slow
def test_sampled_averages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Means over points agree with quadrature within their standard errors."""
    run = experiment(2)
    exact = expand(run, 2)
    monkeypatch.setattr(evaluation, "QUADRATURE", 1)
    rough = expand(run, 2)
    assert "A" not in rough
    for name in ("train_loss", "error", "tangent_kernel"):
        error = rough[name + "_stderr"]
        assert np.all(np.abs(rough[name] - exact[name]) <= 6 * error + 1e-9)
        assert float(error.max()) < 0.01


ORDERS = [0, pytest.param(2, marks=pytest.mark.slow)]


@pytest.mark.parametrize("order", ORDERS)
def test_exact_depth_laws(order: int) -> None:
    """At the fixed point of erf's variance every tensor up to order two is its formula in ell and L."""
    expansion = derived(mean_field(mlp(L, erf)), order)
    law = expansion.depth_dependence()
    fixed = float(nsolve(2 / pi * asin(2 * q / (1 + 2 * q)) - q, q, 0.5))
    patterns = {(o,) for o in law.symbols} | {((1, 1),), ((0, 2),)}
    moments = Moments(expansion.activation, np.array([[fixed]]), patterns, 1e-13)
    known = {law.symbols[o]: Rational(float(moments.arrays[(o,)][0])) for o in law.symbols}
    slope = float(moments.arrays[((1, 1),)][0])
    known |= {
        x: Rational(slope),
        q: Rational(fixed),
        p: Rational(slope + float(moments.arrays[((0, 2),)][0])),
    }
    depth, symbols = 3, [ell, L, *known]
    statics = Statics(expansion, depth, np.array([[fixed]]), 1e-13, frozenset())
    with mpmath.workdps(60):  # differences of large terms, since <phi'^2> is close to one
        numbers = [mpmath.mpf(int(v.p)) / int(v.q) for v in known.values()]
        for tensor in law.found:
            if len(tensor.shape) > 1:
                formula = lambdify(symbols, law.expression(tensor), "mpmath")
                for layer in range(1, depth + 1):
                    value = float(statics.value(tensor, layer).ravel()[0])
                    assert value == pytest.approx(float(formula(layer, depth, *numbers)), abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("order", [0, 2])
def test_leading_depth_laws(order: int) -> None:
    """tanh: the distance from the leading power falls with the depth, like 1/L but for logarithms."""
    expansion = derived(mean_field(mlp(L, tanh)), order)
    law = expansion.depth_dependence("critical")
    away: dict[ForestCoefficient, list[float]] = {}
    for depth in (40, 160):
        skipped = frozenset({"A2", "B2", "C2", "f2"})
        statics = Statics(expansion, depth, np.array([[1.0]]), 1e-11, skipped)
        for tensor, leading in law.found.items():
            if len(tensor.shape) > 1 and leading.terms:
                formula = float(law.expression(tensor).subs({ell: depth // 2, L: depth}))
                value = float(statics.value(tensor, depth // 2).ravel()[0])
                away.setdefault(tensor, []).append(abs(value / formula - 1))
    assert len(away) >= (8 if order else 2)
    assert all(late < 0.55 * early and late < 0.17 for early, late in away.values())


def test_kinks_have_order_zero_only_in_gamma0() -> None:
    """Units that cross the kink give |gamma0|: no coefficient of gamma0^2 is returned in its place."""
    run = experiment(2, "relu")
    lazy = expand(run, 0)
    K = np.array(KERNEL)
    assert float(lazy.Phi[0, 0, 0, 0, 0, 0]) == pytest.approx(K[0, 0] / 2)
    assert "B" not in lazy


def test_what_it_serves() -> None:
    with pytest.raises(SpecError, match="--order"):
        expand(experiment(1), -1)
    assert series(experiment(1), 0).order == 0
    assert expand(experiment(1), 0).attrs["truncation_order"] == 0
