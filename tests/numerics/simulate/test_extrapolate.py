"""Extrapolation in 1/N and the comparison with a theory, on synthetic data whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from numerics.simulate import compare, extrapolate, simulate

from .helpers import gd

REPLICAS = 2000
LIMIT, SLOPE = 2.0, 10.0


def measured(width: int, seeds: int, rng: np.random.Generator, curvature: float = 0.0) -> xr.Dataset:
    """limit + slope/N + curvature/N^2 + noise of known variance 1/(N seeds), many times over."""
    stderr = np.full(REPLICAS, 1.0 / np.sqrt(width * seeds))
    value = LIMIT + SLOPE / width + curvature / width**2 + stderr * rng.standard_normal(REPLICAS)
    return xr.Dataset(
        {"x": ("time", value), "x_stderr": ("time", stderr)},
        coords={"time": np.arange(float(REPLICAS))},
        attrs={"width": width, "seeds": seeds, "seed": 0},
    )


@pytest.mark.parametrize("widths", [(64, 128), (32, 64, 128, 256)])
def test_estimate_is_unbiased_and_its_error_bar_right(widths):
    rng = np.random.default_rng(0)
    result = extrapolate([measured(n, 8, rng) for n in widths])
    z = ((result["x"] - LIMIT) / result["x_stderr"]).to_numpy()
    assert abs(z.mean()) < 4 / np.sqrt(REPLICAS)
    assert z.std() == pytest.approx(1.0, abs=0.08)


def test_two_widths_give_the_line_through_both():
    rng = np.random.default_rng(1)
    a, b = measured(100, 4, rng), measured(300, 4, rng)
    result = extrapolate([a, b])
    expected = (300 * b["x"] - 100 * a["x"]) / 200
    assert result["x"].to_numpy() == pytest.approx(expected.to_numpy())
    spread = np.hypot(300 * b["x_stderr"], 100 * a["x_stderr"]) / 200
    assert result["x_stderr"].to_numpy() == pytest.approx(spread.to_numpy())
    assert "x_chi2" not in result


def test_chi2_is_one_per_degree_of_freedom_and_sees_curvature():
    rng = np.random.default_rng(2)
    widths = (32, 64, 128, 256)
    straight = extrapolate([measured(n, 8, rng) for n in widths])
    bent = extrapolate([measured(n, 8, rng, curvature=12000.0) for n in widths])
    assert bent.attrs["chi2_dof"] == 2
    assert float(straight["x_chi2"].mean()) == pytest.approx(2.0, abs=0.2)
    assert float(bent["x_chi2"].min()) > 20


def test_refusals():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="two different widths"):
        extrapolate([measured(64, 4, rng), measured(64, 4, rng)])
    with pytest.raises(ValueError, match="axis 'time'"):
        extrapolate(
            [measured(64, 4, rng), measured(128, 4, rng).assign_coords(time=np.arange(REPLICAS) + 0.5)]
        )


@pytest.fixture(scope="module")
def networks() -> list[xr.Dataset]:
    return [simulate(gd(steps=3), width=n, seeds=12, rng=n) for n in (24, 48)]


def test_comparison_accepts_the_truth_at_its_nominal_rate(networks):
    """Against the mean of many other networks of the same width, few comparisons fail."""
    truth = simulate(gd(steps=3), width=24, seeds=2000, rng=5)
    failed = 0
    for k in range(40):
        failed += not compare(truth, simulate(gd(steps=3), width=24, seeds=12, rng=100 + k), level=0.1).passed
    assert failed <= 11  # 4 expected at most; 11 has probability below 1e-3


def test_comparison_rejects_a_wrong_theory_and_names_the_worst(networks):
    limit = extrapolate(networks)
    wrong = limit.assign(train_loss=limit["train_loss"] * 3.0)
    verdict = compare(wrong, networks)
    assert not verdict.passed
    assert verdict.worst.name == "train_loss"
    assert "DISAGREE" in str(verdict)
    right = compare(limit, networks)
    assert right.passed
    assert right.extrapolated
    assert 0 < right.tolerance < np.inf
    assert all(abs(row.z) < 1e-6 for row in right.rows if not row.name.startswith(("tangent",)))


def test_comparison_refuses_other_times(networks):
    other = simulate(gd(steps=4), width=8, seeds=2, rng=0)
    with pytest.raises(ValueError, match="axis 'time'"):
        compare(other, networks)
