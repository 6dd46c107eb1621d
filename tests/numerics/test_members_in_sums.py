"""Tests of sums over members of a family of matrices, with one random field or one for each member.

A sum in which all members have equal weight has one source, because sums of Gaussian fields are Gaussian.
With separate factors each member has a source. With factors that are one, both are the same network.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sympy import Expr, Function, S, Sum, Symbol, tanh

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
    mu,
    t,
)
from derive.program.networks import convolution
from derive.theory import mean_field
from numerics.experiment.problem import Problem
from numerics.experiment.schema import Solver
from numerics.lowering.linear import NotLinear, lower
from numerics.lowering.quantities import read_quantities
from numerics.lowering.sizes import SizedTheory
from numerics.solver.direct import evaluate
from numerics.solver.paths import solve_particles
from tests.chance import excess, in_errors

p, q = Symbol("p", integer=True), Symbol("q", integer=True)
POSITIONS, OFFSETS = IndexRange(p, S.One, S(3)), IndexRange(q, -S.One, S.One)
LETTERS = np.random.default_rng(4).standard_normal((2, 3, 4))
KERNEL = np.einsum("apd,bqd->apbq", LETTERS, LETTERS) / 4

Nonlinearity = Callable[[Any], Any]


def straight(h: Any) -> Any:
    """Return the argument, as a linear activation."""
    return h


def network(factor: Expr, phi: Nonlinearity, together: bool) -> Program:
    """Return two layers of filters, or one of filters and members that multiply one vector."""
    units, pixels = Population("units"), Population("pixels", given=True)
    a, b, x = Field("a", units), Field("b", units), GivenVector("x", pixels, "K_x")
    A = GaussianMatrix("A", units, pixels, others=(OFFSETS,))
    B, w = GaussianMatrix("B", units, units, others=(OFFSETS,)), GaussianVector("w", units)
    f, y = Function("f"), Function("y")
    shift = 0 if together else q
    forward = {
        a(mu, p, t): Sum(factor * (A(q) @ x(mu, p + q)), OFFSETS.limits),
        b(mu, p, t): Sum(factor * (B(q) @ phi(a(mu, p + shift, t))), OFFSETS.limits),
        f(mu, t): Sum(Mean(w.symbol * phi(b(mu, p, t))), POSITIONS.limits) / gamma0,
    }
    ranges = (POSITIONS, OFFSETS)
    net = Network("filters", (a, b), forward, weights=(A, B, w), given=(x,), ranges=ranges)
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def both(phi: Nonlinearity, together: bool) -> list[tuple[Program, dict[str, Any]]]:
    """Return the program without factors, and with factors that are one; their sources differ."""
    found = []
    for factor, arrays in ((S.One, {}), (Function("share")(q), {"share": np.ones(3)})):
        given = {"K_x": KERNEL, "y": np.array([1.0, -0.6]), **arrays}
        told = {"numbers": {"eta": 0.02, "gamma0": 1.2}, "arrays": given, "times": range(3)}
        found.append((network(factor, phi, together), told))
    sources = [{str(x.symbol) for x in mean_field(program).sources} for program, _ in found]
    assert sources[0].isdisjoint({x for x in sources[1] if "q" in x}), sources
    assert any("q" in x for x in sources[1])
    return found


@pytest.mark.parametrize("together", [pytest.param(False, marks=pytest.mark.slow), True])
def test_linear_theories_of_both_readings_are_equal(together: bool) -> None:
    solved = []
    for program, told in both(straight, together):
        problem = Problem.of(program, **told)
        found = evaluate(problem.discrete, steps=2, method="linear", values=problem.values, data=problem.data)
        solved.append(found.values["f", ()])
    np.testing.assert_allclose(solved[1], solved[0], rtol=1e-12, atol=1e-12)
    assert np.abs(np.diff(solved[0], axis=0)).min() > 0


@pytest.mark.parametrize("together", [pytest.param(False, marks=pytest.mark.slow), True])
def test_networks_of_both_readings_are_equal(together: bool) -> None:
    one, other = (numerics.simulate(x, width=6, seeds=2, rng=0, **told) for x, told in both(tanh, together))
    np.testing.assert_allclose(other.f, one.f, rtol=1e-10)


@pytest.mark.parametrize("together", [pytest.param(False, marks=pytest.mark.slow), True])
def test_paths_of_both_readings_agree(together: bool) -> None:
    """The two vectors of a kernel read at ``p + q`` were read at different places, if q begins below one."""
    solver = Solver(method="paths", samples=2**9)
    one, other = (numerics.solve(x, solver=solver, **told) for x, told in both(tanh, together))
    error = np.hypot(one.f_stderr, other.f_stderr)
    degrees = min(one.attrs["replicas"], other.attrs["replicas"]) - 1
    assert excess(in_errors(one.f - other.f, error), degrees) <= 1


def shifted(first: int) -> Program:
    """Return filters of two letters whose offsets begin at ``first``.

    A field is read at the next position.
    """
    offsets = IndexRange(q, S(first), S(first + 1))
    units, pixels = Population("units"), Population("pixels", given=True)
    a, b, x = Field("a", units), Field("b", units), GivenVector("x", pixels, "K_x")
    A, w = GaussianMatrix("A", units, pixels, others=(offsets,)), GaussianVector("w", units)
    f, y = Function("f"), Function("y")
    total = Sum(a(mu, p, q, t), offsets.limits)
    forward = {
        a(mu, p, q, t): A(q) @ x(mu, p + q - first),
        b(mu, p, t): total * tanh(total.subs(p, p + 1)),
        f(mu, t): Sum(p * Mean(w.symbol * tanh(b(mu, p, t))), POSITIONS.limits) / gamma0,
    }
    net = Network("filters", (a, b), forward, weights=(A, w), given=(x,), ranges=(POSITIONS, offsets))
    return net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta))


def test_offsets_may_begin_anywhere() -> None:
    """Paths read ``x(p + q)`` elsewhere if q begins below p, and the reference solver refused."""
    weights = np.array([0.3, 0.0, 1.0])
    given = {"K_x": np.einsum("apbq,p,q->apbq", KERNEL, weights, weights), "y": np.array([1.0, -0.6])}
    numbers = {"eta": 0.02, "gamma0": 1.0}
    paths, reference = [], []
    for program in (shifted(0), shifted(1)):
        problem = Problem.of(program, numbers=numbers, arrays=given, times=range(2))
        told = {"steps": 2, "values": problem.values, "data": problem.data, "samples": 8, "replicas": 2}
        paths.append(solve_particles(problem.discrete, **told).value("f"))
        reference.append(evaluate(problem.discrete, **told).value("f"))
    np.testing.assert_allclose(paths[0], paths[1], rtol=1e-9)
    np.testing.assert_allclose(reference[0], reference[1], rtol=1e-9)
    assert np.abs(paths[0][1]).min() > 0


def test_sums_round_a_ring_start_anywhere() -> None:
    """Filters read a field at ``p' - q``, summed over p' and q, at p' and not at integers.

    Second moments of paths are exact in a linear theory, and so is the reference.  The march complained about
    the lengths of indices instead of saying that it takes none that are shifted.
    """
    program = convolution(2, "linear", positions=3, receptive=1)
    arrays = {"K_x": KERNEL, "y": np.array([1.0, -0.6])}
    problem = Problem.of(program, numbers={"eta": 0.1, "gamma0": 1.2}, arrays=arrays, times=range(2))
    told: dict[str, Any] = {"steps": 2, "values": problem.values, "data": problem.data}
    reference = evaluate(problem.discrete, method="linear", **told)
    found = solve_particles(problem.discrete, samples=64, replicas=2, **told)
    for name, layers in (("f", ()), ("H", (1, 2)), ("G", (1, 2)), ("A", (1,)), ("B", (1,))):
        for layer in layers or (None,):
            np.testing.assert_allclose(
                found.value(name, layer), reference.value(name, layer), rtol=1e-9, atol=1e-12
            )
    with pytest.raises(NotLinear, match="the index k runs from -1"):
        lower(problem.discrete)
    assert not read_quantities(SizedTheory.of(problem.discrete, problem.values | {"P": 2})).written_out
