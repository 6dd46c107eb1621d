"""Tests of the search for an accuracy: its estimated cost, and tiny predictions."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from numerics.errors import NotConverged
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.solver import explain, solve
from numerics.solver.method import MethodEstimate
from numerics.solver.paths import problem as paths_problem
from numerics.solver.paths.accuracy import LEAP, cheapest
from numerics.solver.paths.solve import FEWEST

X = np.random.default_rng(0).normal(size=(6, 8))
Y = np.array([1.0, -1.0, 1.0, 1.0, -1.0, 1.0])


def experiment(activation: str, count: int, depth: int = 2, solver: Any = None, **data: Any) -> Experiment:
    network = {"depth": depth, "activation": activation}
    tables = {"network": network, "training": {"learning_rate": 0.2, "steps": 2}, "solver": solver or {}}
    return Experiment.from_dict(tables, inputs=X[:count], targets=Y[:count], **data)


def test_a_search_ends_at_three_times_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    """An activation with large variance; the count is that of paths, by the estimate of their time."""
    accuracy = 1e-2
    monkeypatch.setattr(paths_problem, "BRIEF", 0.0)
    e = experiment("sin(20*h)", 1, solver={"accuracy": accuracy})
    choice = explain(e)
    (said,) = [x for m, x in choice.answers if m.name == "paths"]
    assert isinstance(said, MethodEstimate)
    marched: list[float] = []
    batches = paths_problem.Prepared.batches

    def counted(self: Any, samples: Any, *args: Any, **given: Any) -> Any:
        marched.extend(self.seconds(n) for n in samples)
        return batches(self, samples, *args, **given)

    monkeypatch.setattr(paths_problem.Prepared, "batches", counted)
    with pytest.raises(NotConverged, match="at most three times the estimated time and memory") as refused:
        solve(e)
    assert sum(marched) < 3.1 * said.cost
    found = re.search(r"solver.accuracy = (\S+): .* samples reach (\S+),", str(refused.value))
    assert found is not None
    assert float(found[2]) > float(found[1]) == accuracy


@pytest.mark.parametrize(
    ("activation", "steps", "accuracy"),
    [("tanh", 2, 5e-4), pytest.param("tanh", 14, 1.5e-3, marks=pytest.mark.slow), ("relu", 2, 2e-4)],
)
def test_a_search_takes_at_most_twice_the_time_of_the_number_that_it_finds(
    monkeypatch: pytest.MonkeyPatch, activation: str, steps: int, accuracy: float
) -> None:
    """Check the estimated time of a search for the number of paths.

    Derivatives for responses of the result are carried once, and at most once more if more paths are needed
    than expected, by eight replicas each time.
    """
    marched: list[float] = []
    carrying: list[int] = []
    batches = paths_problem.Prepared.batches

    def counted(self: Any, samples: Any, *args: Any, **given: Any) -> Any:
        marched.extend(self.seconds(n) for n in samples)
        carrying.extend(n for n in samples if self.carriers(max(samples)))
        return batches(self, samples, *args, **given)

    monkeypatch.setattr(paths_problem.Prepared, "batches", counted)
    e = experiment(activation, 2).replace({"training.steps": steps})
    searched = solve(e.replace({"solver.accuracy": accuracy}))
    search_s, marched[:] = sum(marched), []
    assert len(carrying) <= 8 + 8
    assert searched.samples > 256
    given = solve(e.replace({"solver.samples": searched.samples}))
    assert search_s <= 2 * sum(marched) * searched.replicas / given.replicas
    if searched.replicas == given.replicas:
        for name in given.data_vars:
            if not name.endswith("_systematic"):  # seen in fewer replicas of half the paths
                np.testing.assert_allclose(searched[name], given[name], rtol=1e-6, atol=1e-9)


def test_a_tiny_prediction_asks_for_no_more_paths() -> None:
    """A test point that is nearly at right angles to all others; its scale was its own prediction."""
    plain = solve(experiment("tanh", 2))
    test = solve(experiment("tanh", 2, test_inputs=1e-3 * X[3:4] + np.eye(1, 8)))
    assert abs(test.test_f).max() < 0.1
    assert test.samples == plain.samples


def test_explain_prints_the_accuracy_that_is_asked_for() -> None:
    default = "0.005 (the default of paths for solver.accuracy)"
    for solver, said in (({"accuracy": 0.02}, "0.02 (solver.accuracy)"), ({}, default)):
        assert f"runs: paths; target accuracy: {said}" in str(explain(experiment("tanh", 2, solver=solver)))
    assert "runs: march; target accuracy: 1e-08 (solver.rtol)" in str(explain(experiment("linear", 2)))


def test_many_dimensions_are_sampled_by_the_cheapest_method() -> None:
    """Nodes in six dimensions reach 5e-4 in 40 s, paths 5e-3 in a tenth of a second."""
    choice = explain(experiment("tanh", 5, depth=1))
    said = {m.name: x for m, x in choice.answers if isinstance(x, MethodEstimate)}
    assert said["nodes"].error < said["paths"].error
    assert said["nodes"].cost > 30 * said["paths"].cost
    assert choice.method is not None
    assert choice.method.name == "paths"


def test_a_search_begins_with_more_samples_where_they_take_little_time() -> None:
    """Check the first number of paths of a search.

    With one sample and two steps the calls take the time; with six samples and forty steps the paths do, and
    a large accuracy needs few of them.
    """
    small, large = experiment("tanh", 1), experiment("tanh", 6).replace({"training.steps": 40})
    prepared = [paths_problem.prepared_for(Problem.of(e)) for e in (small, large)]
    assert prepared[0].cheap > prepared[1].cheap == FEWEST
    rough = Problem.of(small.replace({"solver.accuracy": 0.05}))
    assert paths_problem._first(rough, prepared[0]) == FEWEST


def test_replicas_are_added_where_more_samples_take_longer() -> None:
    """Pairs of paths take the square of their number: the same error by replicas takes less time."""
    noise, power, have = 2.0, 0.75, 8
    assert cheapest(noise, 0.0, power, have, 64) > 0
    assert cheapest(noise, 0.0, power, have, 64, costs=[4.0**k for k in range(LEAP + 1)]) == 0
