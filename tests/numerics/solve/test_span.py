"""Smooth rows times growing matrices: what is neglected, and that a march agrees with a plain one."""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
import pytest

from numerics.compile import lower
from numerics.experiment import Experiment
from numerics.numbers import arrays_of, numbers_of, theory_at_depth
from numerics.solve import span
from numerics.solve.march import March, march
from numerics.solve.span import NOISE, PLAIN, WINDOW, Products, Shape

Array = np.ndarray[Any, np.dtype[np.float64]]

EPS = float(np.finfo(float).eps)
STEPS = 360


def matrix(shape: str, width: int, columns: int, rng: np.random.Generator) -> Array:
    """Random, so that no smoothness of the matrix helps."""
    M = rng.normal(size=(STEPS, width, STEPS, columns))
    later = np.arange(STEPS)[:, None] < np.arange(STEPS)[None]
    if shape == "lower":
        M[later.nonzero()[0], :, later.nonzero()[1]] = 0.0
    elif shape == "upper":
        M[later.T.nonzero()[0], :, later.T.nonzero()[1]] = 0.0
    M = M.reshape(STEPS * width, STEPS * columns)
    return M + M.T if shape == "symmetric" else M


def smooth(width: int) -> Array:
    """Decay at many rates, (T, T width): the singular values fall exponentially."""
    t, s = np.arange(STEPS)[:, None, None], np.arange(STEPS)[None, :, None]
    return (1 / (1 + 0.02 * (t - s) ** 2 + np.arange(width) + 0.1 * t)).reshape(STEPS, -1)


@pytest.mark.parametrize("shape", get_args(Shape))
@pytest.mark.parametrize(("width", "columns"), [(1, 1), (2, 3)])
def test_smooth_rows_are_multiplied_within_what_is_neglected(shape: Shape, width: int, columns: int) -> None:
    """At most ``neglected |row| |M|``, and the rounding of sums of T width terms."""
    if shape == "symmetric":
        columns = width
    rows, M = smooth(width), matrix(shape, width, columns, np.random.default_rng(width))
    products, norm = Products(STEPS), float(np.linalg.norm(M, 2))
    ahead = 1 if shape == "lower" else 0  # what is through the present, of which the row is there
    worst = 0.0
    for t in range(1, STEPS):
        row = rows[t, : (t + ahead) * width][None]
        found = products.times("k", row, "M", M, t, t + ahead, shape)
        expected = row @ M[: row.shape[1], : (t + ahead) * columns]
        assert found.shape == expected.shape
        worst = max(worst, float(np.linalg.norm(found - expected) / np.linalg.norm(row)))
    (used,) = products.spans.values()
    assert used.renewed > 1
    assert 3 < used.rank < span.LARGEST
    assert 0 < used.neglected < 4 * NOISE
    assert worst <= (used.neglected + STEPS * width * EPS) * norm


def test_rows_that_are_not_smooth_are_multiplied_plainly() -> None:
    rng = np.random.default_rng(1)
    products, M = Products(STEPS), matrix("full", 1, 1, rng)
    starts, norm = set(), np.linalg.norm(M, 2)
    for t in range(1, STEPS):
        row = rng.normal(size=(1, t))
        found, expected = products.times("k", row, "M", M, t, t, "full"), row @ M[:t, :t]
        assert np.abs(found - expected).max() < STEPS * EPS * norm * np.linalg.norm(row)
        starts.add(products.spans["k"].start if t >= PLAIN else 0)
    assert len(starts) > 1  # it was tried,
    assert products.spans["k"].start == 0 or products.spans["k"].rank > WINDOW // span.STRIDE  # and given up


# -- the march -----------------------------------------------------------------------------------------


def solved(depth: int, times: int, kind: str) -> March:
    data = {"full": {"sample_ratio": 1.5}, "online": {"batch_ratio": 1.2}}[kind]
    e = Experiment.from_dict(
        {
            "network": {"depth": depth, "gamma0": 0.8, "width_ratio": 0.8},
            "data": {"kind": "isotropic"} | data,
            "training": {
                "rule": {"full": "gd", "online": "sgd"}[kind],
                "learning_rate": 9.0 / (depth + 1) / times,
                "steps": times - 1,
            },
        }
    )
    table = lower(theory_at_depth(e))
    arguments = {"constants": numbers_of(e), "data": arrays_of(e), "wanted": tuple(table.tensors)}
    return march(table, steps=times, **arguments)


@pytest.mark.parametrize(
    ("depth", "times", "kind"),
    [
        (1, 300, "full"),
        (2, 300, "online"),
        pytest.param(4, 500, "full", marks=pytest.mark.slow),
        pytest.param(3, 1000, "online", marks=pytest.mark.slow),
        pytest.param(4, 1000, "full", marks=pytest.mark.slow),
    ],
)
def test_the_march_is_the_plain_one(depth: int, times: int, kind: str, monkeypatch: Any) -> None:
    """Every array, relative to its largest entry: 2e-13 was seen."""
    found = solved(depth, times, kind)
    monkeypatch.setattr(span, "PLAIN", times)
    plain = solved(depth, times, kind)
    for one, other in ((found.correlations, plain.correlations), (found.responses, plain.responses)):
        assert list(one) == list(other)
        for pair, a in one.items():
            assert np.abs(a - other[pair]).max() <= 1e-12 * np.abs(other[pair]).max(), pair
    a = next(iter(found.correlations))
    assert not np.array_equal(found.correlations[a], plain.correlations[a])  # bases were used


def test_short_marches_are_plain(monkeypatch: Any) -> None:
    found = solved(2, PLAIN, "full")
    monkeypatch.setattr(span, "PLAIN", 10**6)
    plain = solved(2, PLAIN, "full")
    assert all(np.array_equal(a, plain.correlations[pair]) for pair, a in found.correlations.items())
    assert all(np.array_equal(a, plain.responses[pair]) for pair, a in found.responses.items())
