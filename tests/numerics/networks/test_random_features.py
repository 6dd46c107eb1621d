"""Random features: both routes, steps and flows against networks, and what a wrong theory looks like."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sympy import S, Symbol, sqrt

import numerics
from derive.errors import ProgramError
from derive.program import (
    Attribute,
    Field,
    GaussianMatrix,
    GaussianVector,
    GradientFlow,
    Mean,
    Network,
    Parametrization,
    Population,
    t,
)
from derive.program.networks import random_features
from derive.program.networks.random_data import M, N, P
from derive.theory.routes import check_routes
from tests.chance import excess
from tests.numerics.networks import random_features as cases
from tests.numerics.networks.random_features import flow, power_law_arrays

Array = NDArray[np.float64]

NUMBERS = {"N": 300.0, "P": 500.0, "sigma": 0.1}
"""Features, samples and label noise of the large problem, which has 3,000 modes."""


@pytest.mark.parametrize(("data", "rule"), [("full-batch", "flow"), ("online", "gd"), ("population", "flow")])
def test_both_routes_agree(data: str, rule: str) -> None:
    check_routes(random_features(data=data, rule=rule, noise=data != "population"))


def test_unknown_data_and_noise_without_samples_are_refused() -> None:
    with pytest.raises(ProgramError, match="must be 'full-batch', 'online' or 'population'"):
        random_features(data="batch")
    with pytest.raises(ProgramError, match="population's loss has no samples"):
        random_features(data="population", noise=True)


@pytest.mark.slow
def test_other_names_have_the_same_solution() -> None:
    """The program as a stranger writes it."""
    inputs, units = Population("frequencies"), Population("units", ratio=N / M)
    rows = Population("rows", ratio=P / M)
    weight, truth = Attribute("strength", inputs), Attribute("truth", inputs)
    c, gap, miss = Field("c", units), Field("gap", inputs), Field("miss", rows)
    i = Symbol("k", integer=True, positive=True)
    F, X = GaussianMatrix("F", units, inputs, M), GaussianMatrix("X", rows, inputs, M)
    start = GaussianVector("c0", units, variance=S.Zero)
    seen = sqrt(weight(i)) * gap(t)
    lines = {c(t): start.symbol, gap(t): truth(i) - (F.T @ c(t)) / N, miss(t): X @ seen}
    net = Network("stranger", (c, gap, miss), lines, (start,), (F, X), attributes=(weight, truth))
    notation = {seen: "C_v", miss(t): "C_Delta"}
    program = net.train(
        Mean(miss(t) ** 2) / 2, GradientFlow(), Parametrization(S.One, rate=N / M), notation=notation
    )
    arrays = power_law_arrays(6)
    given: dict[str, Any] = {"numbers": {"N": 4.0, "P": 5.0}, "times": [0.0, 1.0, 30.0]}
    own = numerics.solve(random_features(), arrays=arrays, **given)
    renamed = {"strength": arrays["lamda"], "truth": arrays["w_star"]}
    other = numerics.solve(program, arrays=renamed, **given)
    assert own.attrs["method"] == other.attrs["method"]
    errors = own.attrs["error_estimate"] + other.attrs["error_estimate"]
    for name in ("train_loss", "test_loss"):
        assert np.abs(own[name] / other[name] - 1).max() <= errors


def test_a_few_steps_are_those_of_networks() -> None:
    assert replace(cases.random_features(8, 10), seeds=(40, 20)).compared().passed


@pytest.mark.slow
@pytest.mark.parametrize("data", ["full-batch", "online", "population"])
def test_steps_are_those_of_networks(data: str) -> None:
    case = cases.random_features(24, 30, data)
    assert case.compared().passed
    assert case.theory().test_loss[-1] < 0.5 * case.theory().test_loss[0]


@pytest.mark.slow
def test_a_theory_of_other_features_is_seen() -> None:
    """Networks of more features fail the same comparison."""
    case = cases.random_features(20, 30)
    other = replace(case, numbers={**case.numbers, "N": 1.2 * case.numbers["N"]})
    assert not numerics.verification.compare(case.theory(), other.networks()).passed


def networks(times: Array, copies: int, seeds: int) -> tuple[Array, Array]:
    """Return mean training and test losses of networks, ``(2, times)``, and their standard errors."""
    arrays = power_law_arrays(3000)
    found = np.array([flow(arrays, NUMBERS, times, copies, (copies, i)) for i in range(seeds)])
    return found.mean(axis=0), found.std(axis=0, ddof=1) / np.sqrt(seeds)


@pytest.mark.slow
def test_three_thousand_modes_to_late_times_within_a_minute() -> None:
    """Losses against networks extrapolated in size; a theory of 200 features for 300 is seen."""
    times = np.array([0.0, *np.geomspace(0.1, 1e4, 26)])
    started = time.process_time()
    theory = numerics.solve(
        random_features(noise=True), numbers=NUMBERS, arrays=power_law_arrays(3000), times=times
    )
    assert time.process_time() - started < 60
    (small, one), (large, two) = networks(times, 1, 40), networks(times, 2, 20)
    errors = np.sqrt(4 * two**2 + one**2)[:, 1:]
    fewer = numerics.solve(
        random_features(noise=True),
        numbers={**NUMBERS, "N": 200.0},
        arrays=power_law_arrays(3000),
        times=times,
    )
    right, wrong = (
        excess((2 * large - small - np.stack([x.train_loss, x.test_loss]))[:, 1:] / errors, 19)
        for x in (theory, fewer)
    )
    assert right <= 1 < wrong
