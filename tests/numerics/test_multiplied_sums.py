"""Sums that are multiplied or nested, over an index of one name: the name of an index changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Expr, Function, S, Sum, Symbol, symbols, tanh

import numerics
from derive.calculus.sums import rename_multiplied
from derive.depth.layers import tau
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    GradientFlow,
    Mean,
    Network,
    Population,
    Program,
    TrainingRule,
    adam,
    eta,
    gamma0,
    mu,
    t,
)
from numerics.errors import SpecError
from numerics.experiment.schema import Solver
from numerics.lowering.layer_time import products_of

b, c, f, y = (Function(n) for n in ("b", "c", "f", "y"))
p, q = symbols("p q", integer=True, positive=True)
ARRAYS: dict[str, Any] = {
    "K_x": [[1.0, 0.2], [0.2, 0.9]],
    "y": [1.0, -0.5],
    "b": [0.5, 0.3, -0.2],
    "c": [0.2, 0.7, 0.4],
}
SAME: dict[str, Expr] = {
    "product": Sum(b(p), (p, 1, 3)) * Sum(c(p), (p, 1, 3)),
    "nested": Sum(b(p) * Sum(c(p), (p, 1, 3)), (p, 1, 3)),
}
TWO_NAMES = Sum(b(p), (p, 1, 3)) * Sum(c(q), (q, 1, 3))


def program(factor: Expr, rule: TrainingRule, layered: bool = False, output: Expr = S.One) -> Program:
    """Return one hidden layer whose units are multiplied by a constant factor, and the output by another."""
    units, pixels = Population("units"), Population("pixels", given=True)
    x, z, h = (
        GivenVector("x", pixels, "K_x"),
        Field("z", units, layered=layered),
        Field("h", units, layered=layered),
    )
    first, level = (units.at(1), (1,)) if layered else (units, ())
    W, w = GaussianMatrix("W", first, pixels), GaussianVector("w", first)
    top = h(*level, mu, t) if layered else tanh(h(*level, mu, t))
    forward = {
        z(*level, mu, t): W @ x(mu),
        h(*level, mu, t): factor * z(*level, mu, t),
        f(mu, t): output * Mean(w.symbol * top) / gamma0,
    }
    depth = {"depth": 1} if layered else {}
    network = Network("scaled", (z, h), forward, weights=(W, w), given=(x,), **depth)
    return network.train((y(mu) - f(mu, t)) ** 2 / 2, rule)


def outputs(trained: Program, method: str, **arrays: Any) -> np.ndarray[Any, Any]:
    """Return the outputs at all times."""
    given = {k: x for k, x in {**ARRAYS, **arrays}.items() if x is not None}
    solved = numerics.solve(
        trained,
        numbers={"eta": 0.1, "gamma0": 1.0},
        arrays=given,
        times=range(3),
        solver=Solver(method=method, samples=16) if method == "paths" else Solver(method=method),
    )
    return np.asarray(solved["f"])


@pytest.mark.parametrize("form", SAME)
def test_multiplied_sums_of_linear_networks_are_two_sums(form: str) -> None:
    """The march once took both sums over p for one, ``sum_p b_p c_p``."""
    found = outputs(program(SAME[form], GradientDescent(eta), layered=True), "march")
    kernel = 2 * np.array(ARRAYS["K_x"]) * (np.sum(ARRAYS["b"]) * np.sum(ARRAYS["c"])) ** 2
    np.testing.assert_allclose(found[1], 0.1 * kernel @ ARRAYS["y"], atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [*SAME.values(), Sum(b(p), (p, 1, 3)) ** 2 * SAME["product"]])
def test_all_methods_agree_on_multiplied_sums(factor: Expr) -> None:
    linear = program(factor, GradientDescent(eta), layered=True)
    expected = outputs(linear, "direct")
    for method in ("auto", "march", "nodes", "paths"):
        np.testing.assert_allclose(outputs(linear, method), expected, atol=1e-9)


@pytest.mark.parametrize("method", [pytest.param("auto", marks=pytest.mark.slow), "march"])
def test_sums_of_given_numbers_before_an_output(method: str) -> None:
    """The gradient has a source times such a sum, which ended in a TypeError about complex numbers."""
    scaled = program(S.One, GradientDescent(eta), layered=True, output=TWO_NAMES)
    if method == "march":
        with pytest.raises(SpecError, match="multiplies sources by numbers and attributes of units only"):
            outputs(scaled, method)
        return
    np.testing.assert_allclose(outputs(scaled, method), outputs(scaled, "direct"), atol=1e-9)


def test_flows_with_responses_at_equal_times_list_none() -> None:
    flow = program(Sum(b(p), (p, 1, 3)), GradientFlow(), layered=True)
    arrays = {"K_x": [[1.0]], "y": [1.0], "b": ARRAYS["b"]}
    given: dict[str, Any] = {"numbers": {"gamma0": 1.0}, "arrays": arrays, "times": [0.0, 0.01]}
    found = numerics.solve(flow, solver=Solver(method="march"), **given)
    assert not {"A", "B"} & {*found.data_vars}


@pytest.mark.slow
def test_flows_of_units_that_are_multiplied_by_given_numbers() -> None:
    """Densities of responses ended in a ValueError of shapes; such flows have none."""
    given: dict[str, Any] = {"numbers": {"gamma0": 1.0}, "arrays": ARRAYS, "times": range(3)}
    flow = program(TWO_NAMES, GradientFlow(), layered=True)
    by_march, by_nodes = (
        numerics.solve(flow, solver=Solver(method=method), **given) for method in ("march", "nodes")
    )
    assert "A" not in by_march
    for name in ("f", "tangent_kernel"):
        np.testing.assert_allclose(by_march[name], by_nodes[name], atol=1e-6)


@pytest.mark.parametrize("form", ["product", pytest.param("nested", marks=pytest.mark.slow)])
def test_gradients_of_entrywise_rules_with_multiplied_sums(form: str) -> None:
    """Adam ended in a ValueError about axes."""
    inputs = np.array([[1.0, 0.2, 0.3], [0.2, -0.5, 0.4]])
    same, two = (
        outputs(program(factor, adam(eta)), "paths", x=inputs, K_x=None) for factor in (SAME[form], TWO_NAMES)
    )
    np.testing.assert_allclose(same, two, atol=1e-12)


def test_multiplied_sums_in_layer_time_have_indices_of_their_own() -> None:
    g = Function("g")
    (squared,) = products_of(Sum(g(tau, p), (p, 1, 3)) ** 2, {"g": 1})
    (multiplied,) = products_of(Sum(g(tau, p), (p, 1, 3)) * Sum(b(p), (p, 1, 3)), {"g": 1})
    for found in (squared, multiplied):
        assert len({x.index for x in found.spans}) == len(found.spans) == 2
        assert len({x.args[-1] for x in found.reads}) == 2


def test_only_indices_that_collide_are_renamed() -> None:
    apart = Sum(b(p), (p, 1, 3)) * Sum(c(q), (q, 1, 3)) + Sum(b(q), (q, 1, 2))
    assert rename_multiplied(apart) == apart
    renamed = rename_multiplied(SAME["nested"], [q])
    assert renamed.doit() == SAME["nested"].doit()
    assert Symbol("p_", integer=True, positive=True) in renamed.atoms(Symbol)
