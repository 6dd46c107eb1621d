"""Tests of sampled paths on another device than the CPU: one code path, and refusals before a run.

PyTorch's arrays on the CPU pass through the same code as those of a graphics card.
"""

from __future__ import annotations

import numpy as np
import pytest

from derive.program import P, eta, gamma0, mlp
from derive.theory import mean_field
from numerics.arrays import CPU, Device, torch_device
from numerics.errors import SpecError
from numerics.experiment import Experiment
from numerics.paths import Paths
from numerics.solver import explain, solve
from numerics.solver.paths import Solved, solve_particles
from numerics.solver.registry import METHODS

X = np.random.default_rng(0).standard_normal((2, 6))
DATA = {"K_x": X @ X.T / 6, "y": np.array([1.0, -1.0])}


@pytest.fixture(scope="module")
def torch() -> Device:
    pytest.importorskip("torch")
    return torch_device("cpu")


def solved(device: Device, activation: str, responses: str = "auto", **options: object) -> Solved:
    theory = mean_field(mlp(2, activation, **options))
    return solve_particles(
        theory,
        steps=4,
        values={eta: 0.3, gamma0: 1.0, P: 2},
        data=DATA,
        samples=64,
        responses=responses,
        device=device,
        paths=Paths(fields=("h",)),
    )


@pytest.mark.parametrize(
    ("activation", "responses", "options"),
    [
        ("tanh", "stein", {}),
        ("tanh", "jacobian", {"bias": True}),
        ("relu", "auto", {"branch": 0.5}),
        ("gelu", "auto", {"weight_decay": 0.1}),
    ],
    ids=str,
)
def test_paths_are_those_of_the_cpu(torch: Device, activation: str, responses: str, options: dict) -> None:
    here, there = (solved(d, activation, responses, **options) for d in (CPU, torch))
    for name, value in here.values.items():
        scale = max(float(np.abs(value).max()), 1e-3)
        assert np.abs(there.values[name] - value).max() <= 1e-9 * scale, name
    assert here.paths is not None
    assert there.paths is not None
    assert np.abs(here.paths["h"].values - there.paths["h"].values).max() <= 1e-8


def tanh(**solver: object) -> Experiment:
    return Experiment.from_dict(
        {
            "network": {"depth": 2, "activation": "tanh"},
            "training": {"learning_rate": 0.1, "steps": 2},
            "solver": {"samples": 64, **solver},
        },
        kernel=DATA["K_x"],
        targets=DATA["y"],
    )


def test_a_card_that_is_not_there_is_refused_before_anything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    for refused in (solve, explain):
        with pytest.raises(SpecError, match=r'solver\.device = "cuda": PyTorch (is not installed|finds no)'):
            refused(tanh(device="cuda"))
    with pytest.raises(SpecError, match=r"solver\.device"):
        tanh(device="gpu")


def test_only_sampled_paths_run_elsewhere(torch: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """With PyTorch's arrays on the CPU in place of a card: other methods report that they run on the CPU."""
    monkeypatch.setattr("numerics.solver.registry.device_named", lambda name: torch)
    monkeypatch.setattr("numerics.solver.paths.problem.device_named", lambda name: torch)
    said = str(explain(tanh(device="cuda")))
    assert "runs: paths" in said
    assert said.count('solver.device = "cuda": runs on the CPU only') == len(METHODS) - 1
    found, expected = solve(tanh(device="cuda")), solve(tanh())
    assert np.abs(found.train_loss - expected.train_loss).max() < 1e-9
    with pytest.raises(SpecError, match=r'solver\.method = "march": .*solver\.device = "cuda"'):
        solve(tanh(device="cuda", method="march"))
