"""Another program in place of the experiment's own: an independent backward pass, solved and trained."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from derive.program import P
from derive.reduce.independence import independent_backward
from numerics.experiment import Experiment
from numerics.experiment.numbers import arrays_of, numbers_of
from numerics.experiment.problem import Problem
from numerics.simulation import simulate
from numerics.solver import solve
from numerics.solver.direct import evaluate
from tests.chance import excess
from tests.derive.once import mean_field, mlp

EPS = float(np.finfo(float).eps)


@pytest.fixture
def given(tmp_path: Any) -> dict[str, Any]:
    """Return three samples, three layers and four steps."""
    rng = np.random.default_rng(3)
    for name, shape in (("x", (3, 5)), ("y", (3,))):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal(shape))
    return {
        "network": {"depth": 3, "gamma0": 1.3},
        "data": {"kind": "fixed", "inputs": str(tmp_path / "x.npy"), "targets": str(tmp_path / "y.npy")},
        "training": {"rule": "gd", "learning_rate": 0.1, "steps": 4},
    }


def test_the_march_is_the_theory_of_independent_backward_matrices(given: dict[str, Any]) -> None:
    """Against the theory of ``mlp(tied=False)`` evaluated term by term, to a hundred roundings."""
    experiment = Experiment.from_dict(given)
    found = solve(Problem.of(experiment).varied(independent_backward))
    theory = mean_field(mlp(3, "linear", "gd", "mean", tied=False))
    expected = evaluate(theory, steps=5, values={**numbers_of(experiment), P: 3}, data=arrays_of(experiment))
    assert np.abs(found.error.values - expected.value("Delta")).max() <= 100 * EPS
    for layer in (1, 2, 3):
        G = expected.value("G", layer)
        assert np.abs(found.G.values[layer - 1] - G).max() <= 100 * EPS * np.abs(G).max()
    assert "A" not in found  # no response enters
    tied = solve(experiment)
    assert np.abs(found.error.values - tied.error.values).max() > 0.1


def test_its_networks_have_independent_backward_matrices(given: dict[str, Any]) -> None:
    """64 networks of width 256: corrections of order 1/N are a quarter of the errors."""
    given["network"]["depth"] = 2
    experiment = Experiment.from_dict(given)
    theory = solve(Problem.of(experiment).varied(independent_backward))
    networks = simulate(experiment, width=256, seeds=64, rng=1, variant=independent_backward)
    gap = np.abs(networks.error.values - theory.error.values) / networks.error_stderr.values
    assert excess(gap, 63) < 1
    other = np.abs(networks.error.values - solve(experiment).error.values) / networks.error_stderr.values
    assert other.max() > 10


@pytest.mark.slow
def test_a_flow_of_it_is_the_limit_of_small_steps(given: dict[str, Any]) -> None:
    """Steps eta and eta/2, extrapolated; their error is found from a third."""
    flow = given | {"training": {"rule": "flow", "time": 0.4, "points": 3}}
    found = solve(Problem.of(Experiment.from_dict(flow)).varied(independent_backward)).error.values

    def steps(n: int) -> Any:
        one = given | {"training": {"rule": "gd", "learning_rate": 0.2 / n, "steps": 2 * n}}
        return solve(Problem.of(Experiment.from_dict(one)).varied(independent_backward)).error.values[::n]

    coarse, middle, fine = (steps(n) for n in (4, 8, 16))
    first, second = 2 * middle - coarse, 2 * fine - middle
    error = np.abs(second - first).max()
    assert error < 0.02
    assert np.abs(found - second).max() < error
