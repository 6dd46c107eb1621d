"""Exponents from curves: exact powers, known drift, noise, and refusals."""

import numpy as np
import pytest

from numerics.analysis.exponents import local_slopes, regimes

T = np.geomspace(10, 1e6, 26)


def test_a_power_has_its_slope_everywhere():
    found = local_slopes(T, 7 * T**-0.625)
    assert np.allclose(found.slope, -0.625, atol=1e-12)
    assert np.allclose(found.exponent, 0.625, atol=1e-12)
    assert np.all(found.error < 1e-11)
    assert np.all(abs(found.drift) < 1e-11)


def test_slope_error_and_drift_of_a_sum_of_powers():
    a, b = 3 * T**-0.5, 2 * T**-1.0
    found = local_slopes(T, a + b)
    share = (b / (a + b))[2:-2]
    exact = -0.5 - 0.5 * share
    assert np.all(abs(found.slope - exact) < found.error)
    assert np.all(found.error < 5e-3)
    # d share / d log t = -0.5 share (1 - share)
    assert np.allclose(found.drift, 0.25 * share * (1 - share), rtol=0.1)


def test_the_limit_is_where_a_drifting_slope_goes():
    limit, error = local_slopes(T, T**-0.5 + T**-0.75).limit()
    last = local_slopes(T, T**-0.5 + T**-0.75).slope[-1]
    assert abs(limit + 0.5) < error < abs(last + 0.5)


def test_a_slope_that_turns_has_no_limit():
    with pytest.raises(ValueError, match="do not converge"):
        local_slopes(T, 1 / (T**0.1 + 1e-6 * T)).limit()


def test_the_error_covers_noise():
    rng = np.random.default_rng(0)
    pulls = []
    for _ in range(100):
        noise = 0.02 * T**-0.5
        found = local_slopes(T, T**-0.5 + noise * rng.normal(size=len(T)), noise)
        pulls.append((found.slope[10] + 0.5) / found.error[10])
    assert 0.3 < np.std(pulls) < 1.05  # the error is never less than the spread, nor far more
    assert abs(np.mean(pulls)) < 0.2


def test_regimes_of_a_crossover():
    slow, fast = regimes(
        local_slopes(T := np.geomspace(1, 1e8, 81), 1 / (T**0.3 + 1e-3 * T)), {"slow": -0.3, "fast": -1.0}
    )
    crossover = 1e3 ** (1 / 0.7)
    assert slow.end < crossover < fast.start
    assert slow.decades > 1
    assert fast.decades > 1


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"window": 4}, "window = 4"),
        ({"window": 27}, "26 points"),
        ({"values": -T}, "values: must be positive"),
        ({"time": T[::-1]}, "time: must be positive and finite, and increase"),
        ({"time": np.append(T[:-1], np.inf)}, "time: must be positive and finite"),
        ({"window": 5.0}, "window = 5.0: must be a whole number"),
        ({"errors": [0.1, 0.2]}, "errors has shape"),
        ({"errors": np.inf}, "errors: must be finite"),
        ({"time": T[1:]}, "time has shape"),
        ({"errors": -1.0}, "errors"),
    ],
)
def test_refusals(change, says):
    given = {"time": T, "values": T} | change
    with pytest.raises(ValueError, match=says):
        local_slopes(**given)


@pytest.mark.parametrize(
    ("slopes", "tolerance", "says"),
    [
        ({}, 0.1, "one finite slope or more"),
        ({"a": np.nan}, 0.1, "finite slope"),
        ({"a": -1.0}, -0.1, "0 or more"),
    ],
)
def test_regimes_need_slopes(slopes, tolerance, says):
    with pytest.raises(ValueError, match=says):
        regimes(local_slopes(T, 1 / T), slopes, tolerance)


def test_no_slope_outside_of_the_curve():
    with pytest.raises(ValueError, match="times of the first and the last slope"):
        local_slopes(T, T).at(1.0)
