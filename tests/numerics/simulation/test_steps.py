"""Finite networks of any experiment in exact steps, against the solved theory and against plain networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from numerics.errors import Diverged, SpecError
from numerics.experiment import Experiment
from numerics.simulation import simulate
from numerics.simulation.experiment import reference_size
from numerics.solver import solve
from tests.chance import excess

KERNEL = np.array([[1.0, 0.3, -0.2], [0.3, 1.2, 0.1], [-0.2, 0.1, 0.8]])
TARGETS = np.array([1.0, -0.5, 0.3])
WIDTHS, SEEDS = (64, 128), 40

ISOTROPIC: dict[str, dict[str, Any]] = {
    "full batch": {"data": {"sample_ratio": 2.0, "noise": 0.3}},
    "online, unequal widths": {
        "network": {"width_ratio": [1.0, 2.0]},
        "data": {"batch_ratio": 2.0},
        "training": {"rule": "sgd"},
    },
    "population, branches": {"network": {"branch": 0.6}},
    "two outputs, centred": {"network": {"outputs": 2}, "training": {"center": True}},
    "ntk": {"network": {"parametrization": "ntk"}, "data": {"sample_ratio": 1.0}},
}


def isotropic(changes: dict[str, dict[str, Any]]) -> Experiment:
    base: dict[str, dict[str, Any]] = {
        "network": {"depth": 2, "gamma0": 0.8, "width_ratio": 1.5},
        "data": {"kind": "isotropic"},
        "training": {"learning_rate": 0.1, "steps": 4},
    }
    return Experiment.from_dict({k: {**base[k], **changes.get(k, {})} for k in base})


def fixed(network: dict[str, Any], training: dict[str, Any], targets: Any = TARGETS) -> Experiment:
    tables = {
        "network": {"depth": 2, "gamma0": 0.8, **network},
        "training": {"learning_rate": 0.1, "steps": 4, **training},
    }
    return Experiment.from_dict(tables, kernel=KERNEL, targets=targets)


def worst(experiment: Experiment, names: tuple[str, ...], theory: Any = None) -> float:
    """Return the largest |z| at the end, extrapolated to 1/N -> 0, relative to the bound of chance."""
    runs = [simulate(experiment, width=n, seeds=SEEDS, rng=n) for n in WIDTHS]
    theory = solve(experiment, kernels="full") if theory is None else theory
    scores = []
    for name in names:
        last = {"time": -1} | ({"time_": -1} if "time_" in theory[name].dims else {})
        one, two = (r[name].isel(last).values for r in runs)
        e1, e2 = (r[f"{name}_stderr"].isel(last).values for r in runs)
        limit, stderr = 2 * two - one, np.sqrt(4 * e2**2 + e1**2)
        measured = stderr > 1e-12  # exact zeros, such as of outputs that nothing couples, are checked as such
        assert np.allclose(limit[~measured], theory[name].isel(last).values[~measured], atol=1e-12)
        scores += list(np.abs(limit - theory[name].isel(last).values)[measured] / stderr[measured])
    return excess(scores, SEEDS - 1)


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.slow) if x in ("full batch", "ntk") else x for x in ISOTROPIC]
)
def test_networks_on_isotropic_data_are_those_of_the_theory(name: str) -> None:
    assert worst(isotropic(ISOTROPIC[name]), ("test_loss", "train_loss", "C_v", "C_h", "C_g")) < 1


@pytest.mark.parametrize(
    ("network", "training"),
    [
        (
            {"bias": True, "init_variance": [1.0, 2.0, 0.5], "relative_widths": [1.0, 2.0]},
            {"momentum": 0.5, "weight_decay": 0.2},
        ),
        pytest.param({"bias": True, "branch": 0.7}, {"momentum": 0.5}, marks=pytest.mark.slow),
    ],
)
def test_networks_on_fixed_samples_are_those_of_the_theory(network, training) -> None:
    assert worst(fixed(network, training), ("error", "Phi", "G")) < 1


def test_another_theory_is_rejected() -> None:
    """The comparison can fail: it sees that networks have a third of the samples."""
    names = ("test_loss", "train_loss", "C_v", "C_h", "C_g")
    fewer = isotropic({"data": {"sample_ratio": 0.7, "noise": 0.3}})
    assert worst(fewer, names, theory=solve(isotropic(ISOTROPIC["full batch"]))) > 1.5


def test_sizes_follow_the_widest_layer() -> None:
    assert reference_size(isotropic({}), 150) == 100
    assert reference_size(fixed({"relative_widths": [1.0, 2.0]}, {}), 100) == 50
    assert simulate(isotropic({}), width=60, seeds=2).attrs["features"] == 40


def test_the_seed_is_kept_and_repeats_the_run() -> None:
    once = simulate(isotropic({}), width=30, seeds=3, rng=np.random.default_rng(5))
    again = simulate(isotropic({}), width=30, seeds=3, rng=once.attrs["seed"])
    assert np.array_equal(once.C_v, again.C_v)


def test_what_cannot_be_simulated_is_refused() -> None:
    with pytest.raises(SpecError, match="seeds = 1"):
        simulate(isotropic({}), width=10, seeds=1)
    with pytest.raises(SpecError, match=r"network\.width_ratio: is left out"):
        simulate(isotropic({"network": {"width_ratio": None}}), width=10, seeds=2)
    with pytest.raises(Diverged, match="step"):
        simulate(isotropic({"training": {"learning_rate": 9.0, "steps": 60}}), width=20, seeds=2)
