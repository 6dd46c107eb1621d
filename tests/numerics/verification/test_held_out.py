"""Tests of test points in `dmft verify`."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.simulation import simulate
from numerics.solver import solve
from numerics.verification.figure import draw
from numerics.verification.identities import (
    causality,
    direct_evaluation,
    inner_products,
    output_changes,
    start,
    unreduced_theory,
)
from numerics.verification.networks import against_networks, quantities
from numerics.verification.report import title
from numerics.verification.smaller_problems import smaller_problem


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    rng = np.random.default_rng(3)
    return Experiment.from_dict(
        {"network": {"depth": 2}, "training": {"learning_rate": 0.3, "steps": 4}},
        inputs=rng.standard_normal((7, 5)),
        targets=rng.standard_normal(7),
        test_inputs=rng.standard_normal((3, 5)),
        test_targets=rng.standard_normal(3),
    )


@pytest.fixture(scope="module")
def theory(experiment: Experiment) -> xr.Dataset:
    return solve(experiment, kernels="full")


@pytest.fixture(scope="module")
def networks(experiment: Experiment) -> list[xr.Dataset]:
    return [simulate(experiment, width=n, seeds=8, rng=n) for n in (32, 64, 128)]


def test_the_opening_keeps_one_of_them(experiment: Experiment) -> None:
    small = smaller_problem(Problem.of(experiment), 3, 2)
    held, whole = small.held_out, experiment.held_out
    assert held is not None
    assert whole is not None
    assert len(held) == 1
    pick = [0, 3, 6, 7]
    assert np.array_equal(held.kernel, whole.kernel[np.ix_(pick, pick)])


def test_identities_hold_of_the_weighted_theory(experiment: Experiment, theory: xr.Dataset) -> None:
    problem = Problem.of(experiment)
    checks = [
        *direct_evaluation(problem),
        *inner_products(problem),
        *start(problem, theory),
        *causality(problem, theory),
    ]
    checks += [*unreduced_theory(problem), *output_changes(problem)]
    assert len(checks) >= 7
    assert all(c.passed for c in checks)


def test_predictions_are_compared(
    experiment: Experiment, theory: xr.Dataset, networks: list[xr.Dataset]
) -> None:
    names = [q.name for q in quantities(theory, networks)]
    assert names.count("test_f") == names.count("error") == 2
    assert "test_loss" in names
    assert all(c.passed for c in against_networks(theory, networks))


def test_wrong_predictions_fail(
    experiment: Experiment, theory: xr.Dataset, networks: list[xr.Dataset]
) -> None:
    wrong = theory.assign(test_f=theory.test_f + 0.5)
    failed = [c.name for c in against_networks(wrong, networks) if not c.passed]
    assert failed
    assert all(name.startswith("f of test points") for name in failed)


def test_the_picture_has_both_losses(
    experiment: Experiment, theory: xr.Dataset, networks: list[xr.Dataset]
) -> None:
    figure = draw(experiment, theory, networks)
    legends = [ax.get_legend() for ax in figure.get_axes()]
    labels = [[x.get_text() for x in legend.get_texts()] for legend in legends if legend is not None]
    assert ["training", "test"] in labels
    assert "P = 7 samples and 3 test points" in title(experiment)
