"""Single entries of responses are right within their error bars, however many there are, or not given."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import f as fisher
from sympy import Expr, Function, sqrt, tanh

import numerics
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
    eta,
    gamma0,
    mu,
    t,
)
from numerics.experiment.schema import Solver
from numerics.solver.direct import evaluate
from numerics.solver.paths import Solved, solve_particles
from tests.chance import LEVEL, excess, in_errors
from tests.derive.once import mean_field, mlp

REPLICAS = 8
IDENTITY: dict[str, Any] = {"K_x": np.eye(9), "y": np.ones(9)}


def solved(activation: str, steps: int, count: int, problem: int, **options: Any) -> Solved:
    """Return 256 paths a replica for random data, the same for the same number ``problem``."""
    rng = np.random.default_rng(problem)
    x = rng.normal(size=(count, 3))
    data = {"K_x": x @ x.T / 3 + 0.1 * np.eye(count), "y": rng.normal(size=count)}
    values = {eta: rng.uniform(0.5, 1.5) / steps, gamma0: rng.uniform(0.5, 1.5), P: count}
    given: dict[str, Any] = {"steps": steps, "values": values, "data": data, "replicas": REPLICAS}
    return solve_particles(mean_field(mlp(2, activation)), **given | {"samples": 256} | options)


def parts(x: Solved, name: str) -> np.ndarray:
    """Return means of a response at equal times, one step later, and at all other times, by replica."""
    runs = x.runs[name, (1,)]
    equal, next_to = (np.diagonal(runs, -k, -2, -1).mean(axis=-1) for k in (0, 1))
    others = np.tril(runs, -2).mean(axis=(-2, -1))
    return np.stack([y.reshape(REPLICAS, -1) for y in (equal, next_to, others)], axis=-1)


@pytest.mark.parametrize(
    ("activation", "steps", "count"),
    [("erf", 20, 1), ("erf", 28, 1), pytest.param("tanh", 27, 1, marks=pytest.mark.slow), ("softplus", 9, 3)],
)
def test_responses_on_both_sides_of_the_threshold(activation: str, steps: int, count: int) -> None:
    """They are those of derivatives along all paths of other seeds, at equal times and at all others."""
    ours = solved(activation, steps, count, steps)
    paths = solved(activation, steps, count, steps, seed=1, responses="jacobian")
    for name in "AB":
        one, other = parts(ours, name), parts(paths, name)
        gap = one.mean(axis=0) - other.mean(axis=0)
        variance = (one.var(axis=0, ddof=1) + other.var(axis=0, ddof=1)) / REPLICAS
        assert excess(in_errors(gap, np.sqrt(variance)), REPLICAS - 1) < 1
        # as many paths carry derivatives, so that variances have the F distribution of two times 7
        moving = other.var(axis=0) > 1e-16
        ratios = one.var(axis=0)[moving] / other.var(axis=0)[moving]
        assert ratios.max() < fisher.ppf(1 - LEVEL / ratios.size, REPLICAS - 1, REPLICAS - 1)


@pytest.mark.parametrize(("patience", "how"), [((4.0, 1.0), "jacobian"), ((0.0, 0.0), "stein")])
def test_a_result_states_how_its_responses_are_computed(
    patience: tuple[float, float], how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Responses by Stein's lemma, where derivatives would take too long, were called those of derivatives."""
    monkeypatch.setattr("numerics.solver.paths.solve.PATIENCE", patience)
    ours = solved("tanh", 3, 9, 0, samples=64, values={eta: 3.0, gamma0: 2.0, P: 9}, data=IDENTITY)
    assert set(ours.responses.values()) == {how}


def test_a_result_of_a_program_states_how_its_responses_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numerics.solver.paths.solve.PATIENCE", (0.0, 0.0))
    given = {"numbers": {"eta": 3.0, "gamma0": 2.0}, "arrays": IDENTITY, "times": range(3)}
    result = numerics.solve(mlp(2, "tanh"), solver=Solver(samples=64), **given)
    assert result.attrs["responses"] == "stein"


def test_responses_of_functions_that_jump_have_no_bias_of_a_ridge() -> None:
    """Stein's lemma from many replicas of few paths agrees with that from many paths, entry by entry."""
    few, many = (solved("abs", 2, 1, 0, samples=n, replicas=64 * 512 // n, seed=n) for n in (64, 2048))
    for name in "AB":
        gap = few.value(name, 1) - many.value(name, 1)
        z = in_errors(gap, np.hypot(few.stderr(name, 1), many.stderr(name, 1)))
        assert excess(z, 15) < 1


@pytest.mark.parametrize("where", ["inside", pytest.param("outside", marks=pytest.mark.slow)])
def test_responses_of_normalised_fields_are_those_of_the_reference(where: str) -> None:
    """Averages of each replica occur in the fields, and responses do not pass through them."""
    units, inputs = Population("units"), Population("inputs", given=True)
    h, k, x = Field("h", units), Field("k", units), GivenVector("x", inputs, "K_x")
    U, W, w = (
        GaussianMatrix("U", units, inputs),
        GaussianMatrix("W", units, units),
        GaussianVector("w", units),
    )
    f, y = Function("f"), Function("y")

    def normalised(e: Expr, here: bool) -> Expr:
        return tanh(e / sqrt(Mean(e**2)) if here else e)

    forward = {
        h(mu, t): U @ x(mu),
        k(mu, t): W @ normalised(h(mu, t), where == "inside"),
        f(mu, t): Mean(w.symbol * normalised(k(mu, t), where == "outside")) / gamma0,
    }
    net = Network("normalised", (h, k), forward, (U, W, w), given=(x,))
    theory = mean_field(net.train((y(mu) - f(mu, t)) ** 2 / 2, GradientDescent(eta)))
    data = {"K_x": np.array([[1.0]]), "y": np.array([1.0])}
    values = {"eta": 0.5, "gamma0": 1.0, "P": 1}
    ours = solve_particles(theory, steps=3, values=values, data=data, samples=256, replicas=32, seed=1)
    reference = evaluate(theory, steps=3, values=values, data=data, samples=512, replicas=32)
    for q in theory.order_parameters:
        gap = ours.value(q.name) - reference.value(q.name)
        z = in_errors(gap, np.hypot(ours.stderr(q.name), reference.stderr(q.name)))
        assert excess(z, 31) < 1, q.name


def test_a_response_that_is_mostly_noise_is_left_out() -> None:
    """Sources at neighbouring times of a kinked network are nearly the same, and no derivative helps."""
    network = {"depth": 2, "activation": "relu", "gamma0": 1.0}
    tables = {"network": network, "training": {"learning_rate": 0.03, "steps": 25}, "solver": {"samples": 64}}
    found = numerics.solve(numerics.Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0]))
    assert not {"A", "B", "A_stderr", "B_stderr"} & set(found.data_vars)
    assert found.attrs["left_out"].startswith("A, B: standard errors are more than half of the values")
    assert np.isfinite(found.Phi).all()
