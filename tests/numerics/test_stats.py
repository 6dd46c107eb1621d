"""Tests of standard deviations, extrapolation in 1/N and the bound on the worst, on synthetic data."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

from numerics.stats import Spread, bound, extrapolate
from tests.chance import LEVEL, excess

REPLICAS = 2000
LIMIT, SLOPE = 2.0, 10.0


def measured(width: int, seeds: int, rng: np.random.Generator, curvature: float = 0.0) -> xr.Dataset:
    """Return limit + slope/N + curvature/N^2 + noise of variance 1/(N seeds), many times over."""
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
    assert excess(z.mean() * np.sqrt(REPLICAS)) < 1
    assert excess((z.std() - 1) * np.sqrt(2 * REPLICAS)) < 1


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
    assert excess((float(straight["x_chi2"].mean()) - 2) / 2 * np.sqrt(REPLICAS)) < 1
    assert float(bent["x_chi2"].min()) > 20


def test_refusals():
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="two different widths"):
        extrapolate([measured(64, 4, rng), measured(64, 4, rng)])
    with pytest.raises(ValueError, match="axis 'time'"):
        extrapolate(
            [measured(64, 4, rng), measured(128, 4, rng).assign_coords(time=np.arange(REPLICAS) + 0.5)]
        )


def test_the_running_spread_is_that_of_all_samples():
    x = np.random.default_rng(3).standard_normal((7, 4)) + 1e6
    one, many = Spread(), Spread()
    for row in x:
        one.add({"x": row})
    many.add_all({"x": x[:3]})
    many.add_all({"x": x[3:]})
    for spread in (one, many):
        assert spread.mean()["x"] == pytest.approx(x.mean(axis=0))
        assert spread.stderr()["x"] == pytest.approx(x.std(axis=0, ddof=1) / 7**0.5)
    single = Spread()
    single.add({"x": x[0]})
    assert np.isnan(single.stderr()["x"]).all()


def test_the_worst_of_many_exceeds_the_bound_as_often_as_said():
    rng, level, count = np.random.default_rng(4), 0.1, 30
    z = np.abs(rng.standard_normal((20000, count))).max(axis=1)
    assert (z > bound(count, level)).mean() == pytest.approx(level, abs=0.01)
    t = np.abs(rng.standard_t(5, size=(20000, count))).max(axis=1)
    assert (t > bound(count, level, 5)).mean() == pytest.approx(level, abs=0.01)


def test_what_is_not_known_is_not_within_what_chance_allows():
    assert excess([]) == 0
    assert not excess([0.0, np.nan]) < 1
    assert excess([bound(2, LEVEL, 5), -1.0], 5) == pytest.approx(1)
