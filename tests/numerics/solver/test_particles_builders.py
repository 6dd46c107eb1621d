"""Builders other than networks on fixed data: which nonlinear theories particles serve, which they refuse."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sympy import Rational, Symbol, sign, tanh

from derive.program import P, Program, eta, gamma0
from numerics.simulation import simulate_program
from numerics.solver.direct import evaluate
from numerics.solver.paths import solve_particles
from tests.chance import excess, in_errors
from tests.derive.once import convolution, feedback_alignment, mean_field, perceptron, structured
from tests.numerics.solver.helpers import TARGETS, kernel
from tests.numerics.solver.test_particles_networks import distances
from tests.numerics.solver.test_two_layer import within

VALUES: dict[Any, Any] = {eta: 0.15, gamma0: 1.1, P: 2, "kappa": 1.5, "rho": 1.0}
DATA: dict[str, Any] = {"K_x": kernel(2), "y": TARGETS[:2]}
GIVEN: dict[str, Any] = {"steps": 3, "values": VALUES, "data": DATA}

SERVED: dict[str, Callable[[], Program]] = {
    "feedback alignment": lambda: feedback_alignment(2, "tanh"),
    "feedback alignment, relu": lambda: feedback_alignment(2, "relu"),
    "teacher": lambda: perceptron(teacher=tanh),
    "teacher, noise": lambda: perceptron(teacher=tanh, noise=Rational(1, 10)),
    "mixture": lambda: perceptron("mixture", "logistic"),
}


QUICK = ("feedback alignment, relu", "teacher, noise", "mixture")


@pytest.mark.parametrize(
    "name", [x if x in QUICK else pytest.param(x, marks=pytest.mark.slow) for x in SERVED]
)
def test_builders_against_the_direct_evaluation(name: str) -> None:
    theory = mean_field(SERVED[name]())
    other = evaluate(theory, samples=2**8, replicas=16, seed=1, **GIVEN)
    ours = solve_particles(theory, samples=2**8, replicas=16, seed=2, ridge=0.0, **GIVEN)
    within(distances(ours, other), 16)


@pytest.mark.slow
def test_a_teacher_that_jumps_against_finite_sizes() -> None:
    """The direct evaluation refuses it; perceptrons of two sizes, taken to infinity."""
    program = perceptron(teacher=sign)
    ours = solve_particles(mean_field(program), samples=2048, replicas=32, seed=2, **GIVEN)
    a, b = 200, 400
    narrow, wide = (
        simulate_program(program, width=n, steps=2, seeds=400, values=VALUES, seed=n) for n in (a, b)
    )
    for name in ("C_v", "C_Delta"):
        limit = (b * wide[name].mean - a * narrow[name].mean) / (b - a)
        error = np.hypot(b * wide[name].stderr, a * narrow[name].stderr) / (b - a)
        joint = np.hypot(error, ours.stderr(name))
        gap = np.abs(limit - ours.value(name))
        assert excess(in_errors(gap, joint), 31) < 1, name


@pytest.mark.slow
def test_residual_convolutions() -> None:
    """Fields of different layers add up, at unshifted positions; at step 0 the ends are known."""
    program = convolution(2, "tanh", positions=3, receptive=1, branch=Symbol("beta"))
    x = np.random.default_rng(3).standard_normal((2, 3, 4))
    data = {"K_x": np.einsum("mpd,nqd->mpnq", x, x) / 12, "y": TARGETS[:2]}
    given: dict[str, Any] = {"steps": 2, "values": VALUES | {eta: 0.05, Symbol("beta"): 0.7}, "data": data}
    ours = solve_particles(mean_field(program), samples=512, replicas=16, seed=3, **given)
    narrow, wide = (
        simulate_program(program, width=n, seeds=40, seed=n, **given | {"steps": 1}) for n in (40, 80)
    )
    limit = 2 * wide["Delta"].mean - narrow["Delta"].mean
    error = np.hypot(2 * wide["Delta"].stderr, narrow["Delta"].stderr)
    z = (limit - ours.value("Delta")) / np.hypot(error, ours.stderr("Delta"))
    assert excess(z, 15) < 1


def test_structured_data() -> None:
    """Its error reads the weights at time zero and attributes of modes; the theory is linear."""
    theory = mean_field(structured(1))
    given: dict[str, Any] = {"steps": 3, "values": VALUES | {"N": 4, "M": 4, "B": 4}}
    given["data"] = {"lamda": np.array([1.0, 0.5]), "w_star": np.array([1.0, -0.5])}
    ours = solve_particles(theory, samples=2**6, replicas=2, seed=1, **given)
    exact = evaluate(theory, **given)
    assert exact.method == "linear"
    for name in exact.values:
        np.testing.assert_allclose(ours.values[name], exact.values[name], atol=1e-12, err_msg=str(name))


@pytest.mark.parametrize("data", [DATA, {"lamda": 1.0, "w_star": np.ones(2)}])
def test_an_attribute_without_numbers(data: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="data must hold lamda as an array with one number for each unit"):
        solve_particles(mean_field(structured(1)), **GIVEN | {"data": data})
