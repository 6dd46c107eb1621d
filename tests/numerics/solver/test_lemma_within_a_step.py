"""Tests of Stein's lemma for a vector that is a function of sources of the same step.

These sources are correlated with earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sympy import Expr, Function, S, Sum, tanh

from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    P,
    Population,
    Program,
    eta,
    gamma0,
    mu,
    t,
)
from derive.reduce.responses import without_equal_times
from derive.theory import Theory
from numerics.solver.paths import solve_particles
from tests.chance import excess, in_errors
from tests.derive.once import mean_field, mlp

units, pixels = Population("units"), Population("pixels", given=True)
MATRICES = {
    "symmetric": GaussianMatrix("M", units, units, symmetry=S.One),
    "antisymmetric": GaussianMatrix("M", units, units, symmetry=-S.One, variance=2),
    "there and back": GaussianMatrix("M", units, units, variance=2),
}


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x == "antisymmetric" else x for x in MATRICES]
)
def test_the_lemma_takes_the_sources_of_the_step(name: str) -> None:
    """One matrix in sequence: responses were off by a fifth, with derivatives along the paths right."""
    M = MATRICES[name]
    a, b, c = (Field(n, units) for n in "abc")
    x, U, w = GivenVector("x", pixels, "K_x"), GaussianMatrix("U", units, pixels), GaussianVector("w", units)
    f, y = Function("f"), Function("y")
    forward = {
        a(mu, t): U @ x(mu),
        b(mu, t): M @ tanh(a(mu, t)),
        c(mu, t): (M.T if name == "there and back" else M) @ tanh(b(mu, t)),
        f(mu, t): Mean(w.symbol * c(mu, t) * tanh(c(mu, t))) / gamma0,
    }
    network = Network("in sequence", (a, b, c), forward, (U, M, w), given=(x,))
    assert_the_lemma_holds(network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta)))


@pytest.mark.parametrize("ridge", [None, 0.0])
def test_a_source_that_stays_the_same_does_not_share_the_response_to_its_past(ridge: float | None) -> None:
    """A frozen readout before a transposed matrix: outputs were a third too small."""
    A, a, b, c = GaussianMatrix("A", units, units, variance=2), *(Field(n, units) for n in "abc")
    x, U, w = GivenVector("x", pixels, "K_x"), GaussianMatrix("U", units, pixels), GaussianVector("w", units)
    f, y = Function("f"), Function("y")
    forward = {
        a(mu, t): U @ x(mu),
        b(mu, t): a(mu, t) - A @ tanh(a(mu, t)),
        c(mu, t): A.T @ tanh(b(mu, t)),
        f(mu, t): Mean(w.symbol * c(mu, t)) / gamma0,
    }
    network = Network("frozen readout", (a, b, c), forward, (U, A), (w,), given=(x,))
    assert_the_lemma_holds(network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta)), ridge)


def assert_the_lemma_holds(program: Program, ridge: float | None = None) -> None:
    """Require that outputs after one step are those of derivatives along the paths."""
    theory, replicas = mean_field(program), 8
    given: dict[str, Any] = {
        "values": {eta: 0.5, gamma0: 1, P: 1},
        "data": {"K_x": [[1.0]], "y": [3.0]},
    }
    along, lemma = (
        solve_particles(
            theory, steps=2, samples=512, replicas=replicas, responses=how, ridge=ridge, seed=1, **given
        )
        for how in ("jacobian", "stein")
    )
    gap = np.asarray(along.value("f") - lemma.value("f"))[1:]
    bias = 4 / 512 * np.abs(along.value("f"))[1:]  # of order 1/samples, and in no standard error
    error = np.hypot(along.stderr("f"), lemma.stderr("f"))[1:] + bias
    assert excess(in_errors(gap, error), replicas - 1) < 1


def cut_in_equations(theory: Theory) -> Theory:
    """Return a theory whose equations sum responses up to the step before, and whose responses stay."""

    def earlier(e: Expr) -> Expr:
        def cut(x: Sum) -> Sum:
            return Sum(x.function, *[(i, a, t - 1 if b == t else b) for i, a, b in x.limits])

        return e.replace(lambda x: isinstance(x, Sum), cut)

    cut = (replace(e, terms=tuple(x.rewrite(earlier) for x in e.terms)) for e in theory.equations)
    return replace(theory, equations=tuple(cut))


@pytest.mark.parametrize("cut", [without_equal_times, cut_in_equations])
def test_a_response_without_its_value_at_equal_times_needs_derivatives(
    cut: Callable[[Theory], Theory],
) -> None:
    """The lemma divides a response between neighbouring times: G was too small by half."""
    given: dict[str, Any] = {
        "values": {eta: 0.1, gamma0: 1.0, P: 1},
        "data": {"K_x": [[1.0]], "y": [1.0]},
        "samples": 256,
        "replicas": 8,
        "steps": 27,
    }
    edited = cut(mean_field(mlp(2, "erf")))
    taken = solve_particles(edited, **given)
    along_paths = solve_particles(edited, responses="jacobian", **given)
    gap = taken.value("G", 1) - along_paths.value("G", 1)
    errors = np.hypot(taken.stderr("G", 1), along_paths.stderr("G", 1))
    last = in_errors(gap[..., -1, -1], errors[..., -1, -1])
    assert excess(last, taken.replicas - 1) < 1
    with pytest.raises(ValueError, match="Stein's lemma cannot tell neighbouring times apart"):
        solve_particles(edited, responses="stein", **given)
    with pytest.raises(ValueError, match="has no value at equal times in this theory"):
        solve_particles(cut(mean_field(mlp(2, "relu"))), **given)
