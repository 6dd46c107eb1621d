"""Means over networks with control variates: unbiased, with error bars that cover, and much smaller ones."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
import pytest
import xarray as xr
from scipy.stats import binom
from scipy.stats import t as student

from numerics.experiment import Experiment
from numerics.experiment.problem import Problem
from numerics.simulation import simulate
from numerics.solver import solve
from numerics.stats import LEVERAGE, SampleMean, controlled_mean, controlled_values
from numerics.verification import networks
from numerics.verification.controls import (
    MEAN_LOSS,
    NetworkSamples,
    StartFluctuations,
    loss_of_mean_error,
    start_means,
    with_controls,
)
from numerics.verification.plan import NetworkPlan, measured_kernels
from numerics.verification.report import LEVEL
from tests.chance import excess

KERNEL = np.array([[1.0, 0.3, -0.2], [0.3, 1.2, 0.1], [-0.2, 0.1, 0.8]])
TARGETS = np.array([1.0, -0.5, 0.3])
PLAN = NetworkPlan((32, 64, 128), (80, 40, 32))


def experiment(network: Mapping[str, Any] | None = None, steps: int = 8, seed: int = 0) -> Experiment:
    tables = {
        "network": {"depth": 2, **(network or {})},
        "training": {"learning_rate": 0.3, "steps": steps},
        "solver": {"seed": seed, "samples": 256},
    }
    return Experiment.from_dict(tables, kernel=KERNEL, targets=TARGETS)


@cache
def theory() -> xr.Dataset:
    return solve(experiment(), kernels="full")


# -- regressions on controls of mean zero ------------------------------------------------------------


def repeated(count: int, samples: int, rng: np.random.Generator) -> tuple[SampleMean, np.ndarray]:
    """Return means of ``y = 1 + c + c^2 + noise`` for many sets at once, and controls.

    The true mean is two.
    """
    c = rng.standard_normal((count, samples, 1))
    y = 1 + c[..., 0] + c[..., 0] ** 2 + 0.3 * rng.standard_normal((count, samples))
    return controlled_mean(y.T, c), c


def test_controls_leave_means_unbiased_where_they_are_not_linear() -> None:
    """A fit of all samples is off by -2/n here, 0.4 standard errors; fits without each sample are not."""
    samples = 20
    found, c = repeated(20000, samples, np.random.default_rng(0))
    error = found.value.std(ddof=1) / np.sqrt(len(found.value))
    assert excess((found.value.mean() - 2) / error) < 1
    y = 1 + c[..., 0] + c[..., 0] ** 2
    own = c[..., 0] - c[..., 0].mean(axis=1, keepdims=True)
    slope = (own * y).sum(axis=1) / (own**2).sum(axis=1)
    of_all = y.mean(axis=1) - slope * c[..., 0].mean(axis=1)
    assert of_all.mean() < 2 - 5 * error


@pytest.mark.parametrize("samples", [12, 40])
def test_intervals_of_controlled_means_cover(samples: int) -> None:
    """Linear relations: Student's t, with a degree of freedom less for each control."""
    rng, count = np.random.default_rng(1), 4000
    c = rng.standard_normal((count, samples, 2))
    y = 1 + c @ [2.0, -1.0] + rng.standard_normal((count, samples))
    found = controlled_mean(y.T, c)
    assert found.dof == samples - 3
    outside = int((np.abs(found.value - 1) > student.ppf(0.975, found.dof) * found.stderr).sum())
    assert binom.ppf(1e-3, count, 0.05) <= outside <= binom.isf(1e-3, count, 0.06)


def test_the_sign_and_the_size_of_controls_do_not_matter() -> None:
    rng = np.random.default_rng(2)
    c, y = rng.standard_normal((50, 3)), rng.standard_normal((50, 4))
    one, other = controlled_mean(y, c), controlled_mean(y, -1e3 * c)
    np.testing.assert_allclose(one.value, other.value)
    np.testing.assert_allclose(one.stderr, other.stderr)


def test_controls_without_use_are_left_out() -> None:
    """Too many for the samples, constant ones and copies."""
    rng = np.random.default_rng(3)
    y, c = rng.standard_normal((LEVERAGE * 3 - 1, 1)), rng.standard_normal((LEVERAGE * 3 - 1, 2))
    plain = controlled_mean(y, c[:, :0])
    assert plain.value == pytest.approx(y.mean(axis=0))
    assert plain.stderr == pytest.approx(y.std(axis=0, ddof=1) / np.sqrt(len(y)))
    assert controlled_mean(y, c).stderr == plain.stderr
    one = controlled_mean(y, c[:, :1])
    copies = controlled_mean(y, np.concatenate([c[:, :1], 2 * c[:, :1]], axis=1)[:, :1])
    assert copies.value == pytest.approx(one.value)
    still = controlled_mean(y, np.concatenate([c[:, :1], np.full((len(y), 1), 7.0)], axis=1)[:, ::-1][:, 1:])
    assert still.value == pytest.approx(one.value)
    fixed = controlled_mean(3 + 2 * c[:, :1], c[:, :1])  # what controls fix has no error
    assert fixed.stderr == 0
    assert fixed.value == pytest.approx(3)


def test_the_loss_of_the_mean_error_is_not_the_mean_loss() -> None:
    """Errors of mean 0.5 and variance one, of four networks: a loss of 0.25 around any theory."""
    rng = np.random.default_rng(4)
    for middle in (0.0, 0.5, 3.0):
        x = 0.5 + rng.standard_normal((4, 20000, 1))
        found = loss_of_mean_error(x, np.full((20000, 1), middle), 3).value
        assert excess((found.mean() - 0.25) / (found.std() / np.sqrt(found.size))) < 1


@pytest.mark.parametrize("curved", [0.0, 0.1])
def test_the_loss_of_mean_errors_that_are_controlled_has_no_bias(curved: float) -> None:
    """Controls explain 99 % of the variance; regressions of the loss itself were off by 4 errors here."""
    rng, count, repeats = np.random.default_rng(6), 48, 4000
    c = rng.standard_normal((repeats, count, 1))
    noise = 0.05 * rng.standard_normal((repeats, count))
    y = 0.1 + 0.5 * c[..., 0] + curved * (c[..., 0] ** 2 - 1) + noise
    each, dof = controlled_values(y.T, c)
    found = loss_of_mean_error(each[..., None], np.full((repeats, 1), 0.1), dof)
    gap = found.value - 0.01
    assert excess(gap.mean() / (gap.std() / np.sqrt(repeats))) < 1
    if not curved:  # squares of normal numbers are too skew for Student's t
        outside = int((np.abs(gap) > student.ppf(0.975, dof) * found.stderr).sum())
        assert binom.ppf(1e-3, repeats, 0.04) <= outside <= binom.isf(1e-3, repeats, 0.06)


# -- networks ------------------------------------------------------------------------------------------


def samples_of(e: Experiment, width: int, count: int) -> tuple[xr.Dataset, dict[str, np.ndarray]]:
    kept = NetworkSamples(count, 1e9)
    found = simulate(
        e,
        width=width,
        seeds=count,
        rng=5,
        kernels=measured_kernels(Problem.of(e), networks.FULL),
        each=kept.add,
    )
    return found, kept.arrays()


@pytest.mark.parametrize(
    "network",
    [
        {},
        {"bias": True},
        {"branch": 0.5},
        {"relative_widths": [1.0, 0.5], "init_variance": [1.0, 1.5, 0.7]},
        {"outputs": 2},
        {"activation": "tanh", "depth": 1},
        pytest.param({"activation": "relu"}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_means_at_the_start_are_exact_at_every_width(network: Mapping[str, Any]) -> None:
    """Very narrow networks, whose means are far from those of the limit if they are not exact."""
    targets = np.stack([TARGETS, TARGETS[::-1]], axis=1) if "outputs" in network else TARGETS
    tables = {
        "network": {"depth": 2, **network},
        "training": {"learning_rate": 0.1, "steps": 1},
        "solver": {"samples": 64},
    }
    problem = Problem.of(Experiment.from_dict(tables, kernel=KERNEL, targets=targets))
    found = solve(problem, kernels="full")
    means = start_means(problem, found)
    assert means is not None
    _, samples = samples_of(problem.experiment, 4, 400)
    worst, numbers, dof = StartFluctuations.of(means, samples).scores
    assert numbers > 9
    assert worst < float(networks.bound(numbers, LEVEL, dof))


def test_a_wrong_mean_of_a_control_is_seen() -> None:
    """The theory's kernels at the start are a fifth larger than those of networks."""
    e, found = experiment(), theory()
    problem = Problem.of(e)
    plain, samples = samples_of(e, 64, 60)
    for factor, right in ((1.0, True), (1.2, False)):
        means = start_means(problem, found.assign(Phi=factor * found.Phi))
        assert means is not None
        (row,) = networks._starts([with_controls(problem, found, plain, means, samples)])
        assert row.name.startswith(networks.STARTS)
        assert row.passed == right


def test_controls_make_error_bars_several_times_smaller() -> None:
    """Loss and kernels at the end of training, for networks of one width."""
    e, found = experiment(), theory()
    problem = Problem.of(e)
    plain, samples = samples_of(e, 96, 120)
    means = start_means(problem, found)
    assert means is not None
    controlled = with_controls(problem, found, plain, means, samples)
    last = {"time": -1, "time_": -1}
    for name, factor in (("train_loss", 1.8), ("error", 1.8), ("Phi_trace", 1.5), ("G", 1.5)):
        errors = [
            d[f"{name}_stderr"].isel({k: x for k, x in last.items() if k in d[name].dims})
            for d in (plain, controlled)
        ]
        assert float(errors[0].mean()) > factor * float(errors[1].mean()), name
        joint = np.hypot(*errors)
        gap = plain[name] - controlled[name]
        gap = gap.isel({k: x for k, x in last.items() if k in gap.dims})
        assert excess(gap / joint, 100) < 1
    assert float(controlled[f"{MEAN_LOSS}_stderr"][-1]) < float(controlled.train_loss_stderr[-1])


def test_a_theory_with_a_wrong_loss_is_seen() -> None:
    """Five per cent in the loss at the end of training, by 152 networks."""
    e, found = experiment(), theory()
    trained = networks.train(e, PLAN, theory=found)
    assert all(x.passed for x in networks.against_networks(found, trained))
    wrong = found.assign(train_loss=1.05 * found.train_loss)
    failed = [x.name for x in networks.against_networks(wrong, trained) if not x.passed]
    assert any(x.startswith("loss of mean error") for x in failed)


def test_rows_share_the_level() -> None:
    """Each of ten rows may fail once in ten thousand times, for any number of its numbers."""
    ones, errors = ("sample", np.ones(3)), ("sample", np.full(3, 0.1))
    found = xr.Dataset({"x": ones})
    trained = [xr.Dataset({"x": ones, "x_stderr": errors}, attrs={"width": 64, "seeds": 9})]
    quantity = networks.ComparedQuantity("x", "x", {}, size=np.inf)
    single = networks.ComparedQuantity("x", "x", {"sample": 0}, size=np.inf)
    for q, numbers in ((quantity, 3), (single, 1)):
        check = networks.against_networks(found, trained, [q] * 10)[0]
        share = 1 - (1 - LEVEL) ** (1 / 10)
        each = 1 - (1 - share) ** (1 / numbers)
        limit = student.ppf(1 - each / 2, 8)
        assert check.allowed == pytest.approx(limit if numbers > 1 else limit * 0.1)


@pytest.mark.slow
def test_a_right_theory_fails_as_rarely_as_is_said() -> None:
    """Many verifications of a right theory: three families of rows fail once in a thousand each."""
    found, repeats = theory(), 60
    failures, seen = 0, 0
    wrong = found.assign(train_loss=1.05 * found.train_loss)
    for seed in range(repeats):
        trained = networks.train(experiment(seed=seed), PLAN, theory=found)
        failures += not all(x.passed for x in networks.against_networks(found, trained))
        rows = networks.against_networks(wrong, trained)
        seen += any(x.name.startswith("loss of mean error") and not x.passed for x in rows)
    assert failures <= binom.isf(1e-3, repeats, 3 * LEVEL)
    assert seen >= 0.9 * repeats


@pytest.mark.slow
def test_error_bars_of_networks_cover_the_mean_at_their_width() -> None:
    """Means of 48 networks with controls, against those of 7,200 networks of the same width."""
    e, found, width, count, repeats = experiment(), theory(), 32, 48, 150
    problem = Problem.of(e)
    means = start_means(problem, found)
    assert means is not None
    plain, samples = samples_of(e, width, count * repeats)
    truth = with_controls(problem, found, plain, means, samples)
    outside = dict.fromkeys(("train_loss", MEAN_LOSS, "error", "G", "Phi_trace"), 0)
    for k in range(repeats):
        part = {x: a[k * count : (k + 1) * count] for x, a in samples.items()}
        own = with_controls(problem, found, plain.assign_attrs(seeds=count), means, part)
        for name in outside:
            last = {x: -1 if "time" in x else 0 for x in own[name].dims}
            gap, error = (float(x.isel(last)) for x in (own[name] - truth[name], own[f"{name}_stderr"]))
            outside[name] += abs(gap) > student.ppf(0.975, own[name].attrs["degrees_of_freedom"]) * error
    for name, found_outside in outside.items():
        assert binom.ppf(1e-3, repeats, 0.03) <= found_outside <= binom.isf(1e-3, repeats, 0.07), name
