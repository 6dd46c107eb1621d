"""Fields and numbers that a program reads at time zero: every solver serves them, or refuses them by name."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import xarray as xr
from sympy import Expr, Function, S, Symbol, tanh

import numerics
from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    IndexRange,
    Mean,
    Network,
    Population,
    Program,
    eta,
    gamma0,
    t,
)
from derive.theory import mean_field
from derive.theory.routes import check_routes
from numerics.errors import SpecError
from numerics.experiment.schema import Solver
from numerics.solver.direct import evaluate
from numerics.solver.paths import solve_particles
from tests.chance import excess

i, M = (Symbol(n, integer=True, positive=True) for n in "iM")
cells, pixels = Population("cells"), Population("pixels", given=True)
z = GivenVector("z", pixels, "overlap")
a, c, d = (Field(n, cells) for n in "acd")
A, B, b = GaussianMatrix("A", cells, pixels), GaussianMatrix("B", cells, cells), GaussianVector("b", cells)
out, raw, label = Function("out"), Function("raw"), Function("label")
RNG = np.random.default_rng(5)
X, Y = RNG.standard_normal((2, 5)), np.array([1.0, -0.6])
NUMBERS, ARRAYS = {"eta": 0.2, "gamma0": 1.2}, {"overlap": X @ X.T / 5, "label": Y}
STEPS, REPLICAS = 3, 8


def phi(x: Expr, linear: bool) -> Expr:
    return x if linear else tanh(x)


def lines(kind: str, linear: bool) -> dict[Expr, Any]:
    """Return the forward pass between ``a`` and the output."""
    later, first = phi(a(i, t), linear), phi(a(i, 0), linear)
    read = {
        "number": {raw(i, t): Mean(b.symbol * later) / gamma0, out(i, t): raw(i, t) - raw(i, 0)},
        "number of shifted fields": {
            d(i, t): a(i, t) + phi(a(i + 1, t), linear) / 2,
            raw(i, t): Mean(b.symbol * phi(d(i, t), linear)) / gamma0,
            out(i, t): raw(i, t) - raw(i, 0),
        },
        "average": {out(i, t): Mean(b.symbol * later) / gamma0 - Mean(b.symbol * first) / gamma0},
        "field": {d(i, t): a(i, t) - a(i, 0) / 2},
        "product": {d(i, t): phi(a(i, t) * a(i, 0), linear) + a(i, t)},
        "before a matrix": {d(i, t): B @ (later - first / 2)},
        "behind a matrix": {c(i, t): B @ later, d(i, t): c(i, t) - c(i, 0) / 2},
        "alone": {d(i, t): B @ first + a(i, t)},
        "two matrices": {d(i, t): B @ later - B @ first / 3},
    }[kind]
    top = {out(i, t): Mean(b.symbol * phi(d(i, t), linear)) / gamma0}
    return read if out(i, t) in read else read | top


@cache
def program(kind: str, linear: bool) -> Program:
    forward = {a(i, t): A @ z(i)} | lines(kind, linear)
    fields = tuple(x for x in (a, c, d) if x(i, t) in forward)
    deep = any("matri" in word or word == "alone" for word in kind.split())
    weights = (A, B, b) if deep else (A, b)
    net = Network("net", fields, forward, weights, given=(z,), ranges=(IndexRange(i, S.One, M),))
    shifted = "shifted" in kind.split()
    return net.train((label(i) - out(i, t)) ** 2 / 2, GradientDescent(eta), together=shifted)


KINDS = (
    "number",
    "number of shifted fields",
    "average",
    "field",
    "product",
    "before a matrix",
    "behind a matrix",
    "alone",
    "two matrices",
)


@pytest.mark.parametrize("linear", [pytest.param(True, marks=pytest.mark.slow), False])
@pytest.mark.parametrize(
    "kind", [pytest.param(x, marks=pytest.mark.slow) if x == "before a matrix" else x for x in KINDS]
)
def test_sampled_paths_agree_with_the_reference(kind: str, linear: bool) -> None:
    """Numbers, correlations and responses of both are the same, with derivatives along the paths."""
    theory, values = mean_field(program(kind, linear)), {**NUMBERS, "M": 2}
    paths = solve_particles(
        theory, steps=STEPS, values=values, data=ARRAYS, samples=64, replicas=REPLICAS, seed=1
    )
    reference = evaluate(theory, steps=STEPS, values=values, data=ARRAYS, samples=64, replicas=REPLICAS)
    for name in (*(q.name for q in theory.order_parameters), "out"):
        gap = paths.value(name) - reference.value(name)
        error = np.hypot(paths.stderr(name), reference.stderr(name))
        moving = error > 1e-12
        assert np.abs(gap[~moving]).max(initial=0.0) < 1e-9
        assert excess(gap[moving] / error[moving], REPLICAS - 1) < 1, name


def solved(kind: str, method: str, **numbers: float) -> xr.Dataset | str:
    """Return the linear program solved by a method, or the reason of the method's refusal."""
    try:
        return numerics.solve(
            program(kind, True),
            numbers=NUMBERS | numbers,
            arrays=ARRAYS,
            times=range(3),
            solver=Solver(method=method),
        )
    except SpecError as refusal:
        return str(refusal)


@pytest.mark.parametrize("kind", ["number", "two matrices"])
def test_methods_serve_values_at_zero_or_refuse_them(kind: str) -> None:
    """No method takes a value at time zero for one at another time; sampled paths take all."""
    reference = solved(kind, "direct")
    for method in ("march", "nodes", "paths"):
        found = solved(kind, method)
        if isinstance(found, str):
            assert method != "paths"
            assert "\n" not in found
        else:
            np.testing.assert_allclose(found["f"], reference["f"], rtol=0, atol=1e-9)


@pytest.mark.parametrize("kind", ["before a matrix", pytest.param("two matrices", marks=pytest.mark.slow)])
def test_the_series_of_a_linear_network_is_its_solution(kind: str) -> None:
    """Correlations of a field at time zero have no closure; ``expand`` ended in ValueError."""
    given: dict[str, Any] = {"arrays": ARRAYS, "times": range(3), "numbers": {"eta": 0.2, "gamma0": 0.1}}
    series = numerics.expand(program(kind, True), order=2, **given)
    exact = solved(kind, "direct", gamma0=0.1)
    assert not isinstance(exact, str)
    summed = (series.error * 0.1**series.order).sum("order")
    np.testing.assert_allclose(summed, exact.error, rtol=0, atol=1e-5)


def test_a_matrix_on_a_field_and_its_value_at_zero_is_differentiated() -> None:
    """The gradient of ``B @ (phi(a(t)) - phi(a(0))/2)`` passes through ``a(t)``: once it was dropped."""
    assert check_routes(program("before a matrix", False)) == []
