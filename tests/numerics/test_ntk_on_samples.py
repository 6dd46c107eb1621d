"""Tests of fixed samples in NTK scaling: gamma0/sqrt(N) in networks, constant features at infinite width."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import xarray as xr

from derive.program import gamma0
from numerics import simulate, solve
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.fluctuations.moments import moments
from numerics.solver.registry import explain
from numerics.verification import compare
from tests.chance import excess

WIDTHS, SEEDS = (64, 128, 256), (60, 40, 30)


def experiment(network: dict[str, Any] | None = None, **training: Any) -> Experiment:
    rng = np.random.default_rng(2)
    inputs, targets = rng.standard_normal((4, 6)), np.sign(rng.standard_normal(4))
    tables = {
        "network": {"depth": 2, "activation": "tanh", "parametrization": "ntk", **(network or {})},
        "training": {"learning_rate": 1.0, "steps": 4, **training},
    }
    return Experiment.from_dict(tables, inputs=inputs, targets=targets)


@lru_cache
def networks(activation: str, steps: int, scaling: str = "ntk") -> list[xr.Dataset]:
    given = experiment({"activation": activation, "parametrization": scaling}, steps=steps, center=True)
    return [
        simulate(given, width=n, seeds=k, rng=n, kernels="trace") for n, k in zip(WIDTHS, SEEDS, strict=True)
    ]


def test_networks_are_those_of_gamma0_over_the_root_of_the_width() -> None:
    """Bit by bit those of the mean-field scaling at that gamma0, also of unequal widths."""
    own = {"gamma0": 1.5, "relative_widths": [1.0, 2.0]}
    lazier = {**own, "gamma0": 1.5 / 4.0, "parametrization": "mean-field"}
    found, expected = (simulate(experiment(x, center=True), width=32, seeds=2, rng=1) for x in (own, lazier))
    assert np.array_equal(found.error, expected.error)
    assert not np.array_equal(found.error, simulate(experiment(own), width=64, seeds=2, rng=1).error)


def test_one_sample_has_the_loss_of_its_kernel() -> None:
    """``(1 - eta K)^2t`` with K = L + 1 layers of variance one, at any gamma0."""
    tables = {
        "network": {"depth": 3, "parametrization": "ntk", "gamma0": 7.0},
        "training": {"learning_rate": 0.1, "steps": 5},
    }
    found = solve(Experiment.from_dict(tables, kernel=[[1.0]], targets=[1.0]))
    assert found.attrs["method"] == "lazy"
    np.testing.assert_allclose(found.train_loss, 0.6 ** (2 * np.arange(6)), rtol=1e-9)


@pytest.mark.parametrize("rule", ["gd", "flow"])
def test_it_is_the_limit_of_small_gamma0(rule: str) -> None:
    """The error of the mean-field theory falls as gamma0 squared towards it."""
    clock = {"rule": "flow", "time": 2.0, "points": 3} if rule == "flow" else {}
    if clock:
        clock |= {"learning_rate": None, "steps": None}
    end = solve(experiment({"activation": "linear"}, **clock)).train_loss.to_numpy()
    gaps = []
    for strength in (0.02, 0.01):
        near = {"activation": "linear", "parametrization": "mean-field", "gamma0": strength}
        gaps.append(np.abs(solve(experiment(near, **clock)).train_loss.to_numpy() - end).max())
    assert abs(np.log2(gaps[0] / gaps[1]) - 2) < 0.01


def test_methods_that_move_features_refuse_it() -> None:
    choice = explain(experiment())
    assert choice.method is not None
    assert choice.method.name == "lazy"
    for name in ("march", "paths", "direct", "nodes", "rest"):
        with pytest.raises(SpecError, match=r'parametrization = "ntk".*lazy'):
            solve(experiment().replace({"solver.method": name}))


def test_moments_at_finite_width_refuse_it() -> None:
    """They were those of the mean-field parametrisation."""
    with pytest.raises(SpecError, match=r'parametrization = "ntk".*leaves no features that move'):
        moments(experiment({"activation": "linear"}))


def test_outputs_at_the_start_are_subtracted_or_refused() -> None:
    assert experiment().spec.centered
    with pytest.raises(SpecError, match=r"training.center = false.*Gaussian process"):
        solve(experiment(center=False))
    still = experiment({"init_variance": [1.0, 1.0, 0.0]}, center=False)
    assert solve(still).attrs["method"] == "lazy"


@pytest.mark.parametrize("key", ["weight_decay", "temperature", "momentum"])
def test_what_moves_features_or_outputs_otherwise_is_refused_by_its_key(key: str) -> None:
    with pytest.raises(SpecError, match=f"training.{key} = 0.5"):
        solve(experiment(**{key: 0.5}))


def test_momentum_is_refused_for_what_it_is() -> None:
    """Constant momentum was refused with the remedy of a constant."""
    with pytest.raises(SpecError, match=r"has momentum .*\(accepted: 0\.0; "):
        solve(experiment(momentum=0.1))


def test_the_number_of_the_theory_is_that_of_the_file() -> None:
    """Without a width gamma0 is as it was written; with one it is divided by its root."""
    problem = Problem.of(experiment({"gamma0": 3.0}))
    assert problem.numbers[gamma0] == 3.0
    assert problem.at_width(9).numbers[gamma0] == 1.0
    plain = Problem.of(experiment({"gamma0": 3.0, "parametrization": "mean-field"}))
    assert plain.at_width(9) is plain


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["linear", "tanh"])
def test_wide_networks_have_its_losses_and_kernels(activation: str) -> None:
    theory = solve(experiment({"activation": activation}, steps=24), kernels="trace")
    assert float(theory.train_loss[-1]) < 0.9 * float(theory.train_loss[0])
    report = compare(theory, networks(activation, 24))
    assert report.passed, report.table()


def lost(activation: str, width: int, seeds: int) -> tuple[float, float]:
    """Return the relative dip of G of the first layer during training, with its standard error."""
    found: list[float] = []

    def keep(one: Mapping[str, Any]) -> None:
        kernel = one["G_trace"][0]
        found.append(1 - float(kernel[-1, 0] / kernel[0, 0]))

    given = experiment({"activation": activation, "gamma0": 0.5}, steps=4)
    simulate(given, width=width, seeds=seeds, rng=width, kernels="trace", each=keep)
    return float(np.mean(found)), float(np.std(found, ddof=1) / np.sqrt(seeds))


@pytest.mark.slow
def test_units_that_cross_a_kink_are_a_share_of_order_one_over_the_root() -> None:
    """Fields of relu move by 1/sqrt(N), and so many units cross the kink: slopes approach as slowly."""
    (wide, error), (narrow, other) = lost("relu", 1024, 60), lost("relu", 128, 400)
    found = np.log(narrow / wide) / np.log(1024 / 128)
    stderr = np.hypot(error / wide, other / narrow) / np.log(1024 / 128)
    assert excess((found - 0.5) / stderr, 59) < 1
    assert excess((found - 1.0) / stderr, 59) > 1


@pytest.mark.slow
def test_networks_that_learn_features_are_told_apart() -> None:
    theory = solve(experiment(steps=24), kernels="trace")
    assert not compare(theory, networks("tanh", 24, "mean-field")).passed


@pytest.mark.slow
def test_entrywise_rules_have_it_too() -> None:
    """Sampled paths at frozen features: steps of Adam in NTK scaling."""
    given = experiment(rule="adam", learning_rate=0.05, epsilon=0.1, steps=20).replace(
        {"solver.accuracy": 0.02}
    )
    theory = solve(given, kernels="none")
    assert theory.attrs["method"] == "lazy"
    trained = [simulate(given, width=n, seeds=30, rng=n, kernels="none") for n in (128, 256)]
    report = compare(theory, trained)
    assert report.passed, report.table()
