"""Tests of Stein's lemma for a vector that is a function of sources of the same step.

These sources are correlated with earlier ones.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sympy import Function, S, tanh

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
from derive.theory import mean_field
from numerics.solver.paths import solve_particles
from tests.chance import excess, in_errors

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
