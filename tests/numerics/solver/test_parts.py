"""Tests of the parts of the test loss: their sum, the source of each, and eq. 13."""

from typing import Any

import numpy as np
import pytest
import xarray as xr

from numerics.experiment import Experiment
from numerics.solver import solve

ALL = ("bias", "width", "data", "noise")
STEPS = 12


def experiment(network: dict[str, Any], data: dict[str, Any], **training: Any) -> Experiment:
    steps = {} if training.get("rule") == "flow" else {"learning_rate": 0.06, "steps": STEPS}
    return Experiment.from_dict(
        {
            "network": {"depth": 2, "gamma0": 0.9, **network},
            "data": {"kind": "isotropic", **data},
            "training": {**steps, **training},
            "solver": {"rtol": 1e-4},
        }
    )


def parts(result: xr.Dataset) -> dict[str, Any]:
    return {x: result[f"test_loss_{x}"].values for x in ALL if f"test_loss_{x}" in result}


CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any], tuple[str, ...]]] = [
    ({"width_ratio": 0.5}, {"sample_ratio": 0.7, "noise": 0.3}, {}, ALL),
    ({"width_ratio": 0.5}, {"batch_ratio": 0.7, "noise": 0.3}, {"rule": "sgd", "center": True}, ALL),
    ({"width_ratio": 0.5}, {"batch_ratio": 0.7}, {"rule": "sgd"}, ("bias", "width", "data")),
    ({"width_ratio": [0.5, 1.0]}, {}, {"center": True}, ("bias", "width")),
    ({}, {"sample_ratio": 0.7}, {}, ("bias", "data")),
    ({}, {}, {}, ("bias",)),
    ({"width_ratio": 0.5}, {"sample_ratio": 0.7}, {"weight_decay": 0.2}, ("bias", "width", "data")),
    ({"width_ratio": 0.5}, {"sample_ratio": 0.7}, {"momentum": 0.2}, ("bias", "width", "data")),
    (
        {"width_ratio": 0.5, "branch": 0.5},
        {"sample_ratio": 0.7},
        {"temperature": 0.2},
        ("bias", "width", "data"),
    ),
    ({"width_ratio": 0.5, "parametrization": "ntk"}, {}, {}, ("bias", "width")),
    ({"width_ratio": 0.5, "outputs": 2}, {"sample_ratio": 0.7, "noise": 0.3}, {"center": True}, ALL),
    (
        {"width_ratio": 0.5},
        {"sample_ratio": 0.7, "noise": 0.3},
        {"rule": "flow", "center": True, "time": 1.0, "points": 4},
        ALL,
    ),
    (
        {"width_ratio": 0.5},
        {"sample_ratio": 0.7},
        {"rule": "flow", "time": 1.0, "points": 4, "weight_decay": 0.2, "temperature": 0.1},
        ("bias", "width", "data"),
    ),
]


QUICK = (0, 1, 3, 7)
"""With every part; with fresh batches; by widths alone; with momentum."""


@pytest.mark.parametrize(
    ("network", "data", "training", "there"),
    [pytest.param(*x, marks=() if i in QUICK else pytest.mark.slow) for i, x in enumerate(CASES)],
)
def test_the_parts_add_up_to_the_test_loss(
    network: dict[str, Any], data: dict[str, Any], training: dict[str, Any], there: tuple[str, ...]
) -> None:
    result = solve(experiment(network, data, **training))
    found = parts(result)
    assert tuple(found) == there
    np.testing.assert_allclose(sum(found.values()), result.test_loss.values, rtol=1e-12)
    assert all(x.min() >= -1e-14 for x in found.values())
    if len(there) > 1:
        assert min(x[-1] for x in found.values()) > 1e-3


def test_a_decay_that_forgets_all_in_one_step_has_parts() -> None:
    """Compare eta lambda = 1 with a rate just below."""
    network, data = {"depth": 1}, {"sample_ratio": 0.7}
    found, near = (
        solve(experiment(network, data, learning_rate=rate, weight_decay=0.25, steps=3)).test_loss_bias
        for rate in (4.0, 4.0 - 1e-9)
    )
    np.testing.assert_allclose(found, near, rtol=1e-4)


@pytest.mark.parametrize("center", [False, True])
def test_they_are_the_quadratic_forms_of_eq_13(center: bool) -> None:
    """linear2025, written out: v = (1 + K R_Delta)^-1 (w - r0 - K u0), K = eta C_g^1 + R_gu^1/gamma0."""
    network, data = {"width_ratio": 0.5}, {"sample_ratio": 0.7, "noise": 0.3}
    result = solve(experiment(network, data, center=center))
    K = 0.06 * result.C_g.values[0] + result.R_gu.values[0] / 0.9
    K = np.tril(K, -1)
    one = np.eye(STEPS + 1)
    H = np.linalg.inv(one + K @ result.R_Delta.values)
    start = H @ (one - np.outer(np.ones(STEPS + 1), one[0])) if center else H
    answer = np.linalg.inv(one - result.R_vu.values)
    noise = 0.09 * answer @ np.ones((STEPS + 1, STEPS + 1)) @ answer.T
    forms = {
        "bias": H @ np.ones((STEPS + 1, STEPS + 1)) @ H.T,
        "width": start @ (result.C_g.values[0] / (0.9**2 * 0.5)) @ start.T,
        "data": H @ K @ (result.C_Delta.values - noise) @ K.T @ H.T / 0.7,
        "noise": H @ K @ noise @ K.T @ H.T / 0.7 + 0.09,
    }
    for name, form in forms.items():
        np.testing.assert_allclose(parts(result)[name], np.diag(form), rtol=1e-10)


@pytest.mark.parametrize(
    ("name", "network", "data"),
    [
        ("width", {"width_ratio": 1e7}, {"sample_ratio": 0.7}),
        ("data", {"width_ratio": 0.5}, {"sample_ratio": 1e7}),
        ("noise", {"width_ratio": 0.5}, {"sample_ratio": 0.7, "noise": 1e-4}),
    ],
)
def test_a_part_vanishes_with_what_it_is_called_after(
    name: str, network: dict[str, Any], data: dict[str, Any]
) -> None:
    found = parts(solve(experiment(network, data, center=True)))
    assert found[name].max() < 1e-5
    assert min(x.max() for k, x in found.items() if k != name) > 0.03


def test_they_are_left_out_where_nobody_asks() -> None:
    spec = experiment({"width_ratio": 0.5}, {"sample_ratio": 0.7})
    assert parts(solve(spec, kernels="none")) == {}
