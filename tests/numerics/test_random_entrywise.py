"""Random programs trained by Adam, AdamW and Lion: both routes, sampled paths, and finite networks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sympy import Function, Rational, tanh

from derive.program import (
    Field,
    GaussianMatrix,
    GaussianVector,
    GivenVector,
    GradientDescent,
    Mean,
    Network,
    Population,
    adam,
    adamw,
    eta,
    gamma0,
    lion,
    mu,
    t,
)
from derive.theory import mean_field
from derive.theory.routes import check_routes
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from numerics.solver.paths.solve import Prepared, solve_particles
from tests.chance import excess, in_errors
from tests.numerics.random_programs.checks import STEPS, Case, in_networks
from tests.numerics.random_programs.language import draw

RATE, SMALL = Rational(1, 20), Rational(1, 2)
RULES = (adam(RATE, epsilon=SMALL), lion(RATE), adamw(RATE, RATE, epsilon=SMALL))
"""Epsilon is large: gradients that vanish at infinite width are of order N^(-1/2) in networks."""

QUICK = (1, 3, 5, 8, 19, 25)
NETWORKS = (0, 2, 4, 7, 11, 20, 24, 31, 40, 57)
"""Seeds; the last ones have sums over members, attributes, data at integers and gates with responses."""


def case_of(seed: int) -> Case:
    """Return a random program with an entrywise rule in the place of its own."""
    drawn = draw(seed)
    options = {k: v for k, v in drawn.options.items() if k != "rules"}
    return Case(replace(drawn, rule=RULES[seed % len(RULES)], options=options))


def numbers_of(case: Case) -> dict[str, Any]:
    """Return values and data of the theory."""
    values = {k: v for k, v in case.values.items() if k not in case.drawn.functions}
    return {"values": values, "data": {**case.drawn.arrays, **case.drawn.vectors}}


@pytest.mark.parametrize("seed", QUICK)
def test_random_programs_are_derived_and_read(seed: int) -> None:
    case = case_of(seed)
    assert check_routes(case.written) == []
    assert Prepared(mean_field(case.realised), steps=STEPS, **numbers_of(case)).tables.weights


@pytest.mark.slow
@pytest.mark.parametrize("seed", NETWORKS)
def test_random_programs_follow_networks(seed: int) -> None:
    case = case_of(seed)
    solved = solve_particles(
        mean_field(case.realised), steps=STEPS + 1, samples=256, replicas=8, **numbers_of(case)
    )
    kernels = {x.kernel for x in case.drawn.network.given}
    given = {k: x for k, x in in_networks(case.drawn).items() if k not in kernels} | dict(case.drawn.vectors)
    narrow, wide = (
        simulate_program(
            case.stepped,
            width=width,
            steps=STEPS,
            seeds=seeds,
            values=case.values,
            data=given,
            seed=1000 * seed + width,
        )
        for width, seeds in ((128, 120), (256, 100))
    )
    found = []
    for (name, layers), value in solved.values.items():
        if layers or name not in wide or value.shape != wide[name].mean.shape:
            continue
        mean = 2 * wide[name].mean - narrow[name].mean
        error = np.hypot(np.hypot(2 * wide[name].stderr, narrow[name].stderr), solved.stderr(name))
        found.append(in_errors((value - mean)[error > 1e-9], error[error > 1e-9]).ravel())
    assert excess(np.concatenate(found)) < 1


def test_a_gate_before_a_product_with_responses_is_solved_by_paths() -> None:
    """It was refused as read at two times, and left to the reference solver."""
    a, gate, b = Field("a", Population("a")), Field("gate", Population("b")), Field("b", Population("b"))
    x = GivenVector("x", Population("pixels", given=True), "K_x")
    V, U = (GaussianMatrix(n, p.population, x.population) for n, p in (("V", a), ("U", gate)))
    W, c = GaussianMatrix("W", b.population, a.population), GaussianVector("c", b.population)
    f, y = Function("f"), Function("y")
    forward = {
        a(mu, t): V @ x(mu),
        gate(mu, t): U @ x(mu),
        b(mu, t): tanh(gate(mu, t)) * (W @ tanh(a(mu, t))),
        f(mu, t): Mean(c.symbol * b(mu, t)) / gamma0,
    }
    network = Network("gated", (a, gate, b), forward, (V, U, W, c), given=(x,))
    theory = mean_field(network.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta)))
    given = {
        "steps": 3,
        "values": {"eta": 0.4, "gamma0": 1.0, "P": 2},
        "data": {"K_x": np.array([[1.0, 0.3], [0.3, 1.2]]), "y": np.array([1.0, -0.5])},
    }
    paths = solve_particles(theory, samples=128, replicas=8, **given)
    written = evaluate(theory, samples=64, replicas=4, **given)
    z = in_errors(paths.value("f") - written.value("f"), np.hypot(paths.stderr("f"), written.stderr("f")))
    assert excess(z[1:]) < 1, z
